"""Commands that make models."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dismec.cli.console import cluster_news, say_trained, say_unsolved, shown_progress, spoken
from dismec.cli.options import (
    PATH,
    F,
    Reading,
    cluster_option,
    data_options,
    parse_delta,
    precision_option,
    propensity_options,
    quiet_option,
    threads_option,
)

if TYPE_CHECKING:
    from dismec.model import Model
    from dismec.params import TrainingParams
    from dismec.text import TextParams

_FEW_ROWS = 100  # to learn probabilities on
_TEXT_OPTIONS = ("word_ngrams", "char_ngrams", "min_df", "max_df", "max_features", "lowercase")


def _parse_lengths(
    _: click.Context, __: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    """One length, or the least and the greatest."""
    if value is None:
        return None
    try:
        lengths = [int(part) for part in value.split(",")]
    except ValueError:
        lengths = []
    if len(lengths) not in (1, 2):
        raise click.BadParameter(f"{value!r} is not a length or two of them, such as 1,2")
    least = lengths[0] if len(lengths) == 2 else min(1, lengths[0])
    return least, lengths[-1]


def _text_options(command: F) -> F:
    """How texts become features; what is not given is left out."""
    lengths: dict[str, Any] = {"metavar": "LEAST,MOST", "callback": _parse_lengths}
    for option in reversed(
        (
            click.option(
                "--word-ngrams",
                help="Words in a row that make a feature [default: 1].",
                **lengths,
            ),
            click.option(
                "--char-ngrams",
                help="Characters of a word that make one [default: none].",
                **lengths,
            ),
            click.option("--min-df", type=int, help="Drop features in fewer texts [default: 1]."),
            click.option("--max-df", type=float, help="Drop those in more than this share."),
            click.option("--max-features", type=int, help="Keep only the most frequent."),
            click.option(
                "--lowercase/--keep-case", default=None, help="Whether case is ignored [default]."
            ),
        )
    ):
        command = option(command)
    return command


@click.command()
@click.argument("data", type=PATH)
@click.option("-o", "--output", "model", type=PATH, required=True, help="The model directory.")
@click.option("--C", "C", type=float, default=1.0, show_default=True, help="Weight of the losses.")
@click.option(
    "--delta",
    callback=parse_delta,
    metavar="NUMBER|auto",
    help="Drop weights with |w| below this; auto: as many as P@k allows [default: 0.01; l1: 0].",
)
@click.option(
    "--penalty",
    type=click.Choice(["l2", "l1"]),
    default="l2",
    show_default=True,
    help="What keeps weights small; l1: few of them.",
)
@click.option(
    "--positive-weight",
    type=float,
    default=1.0,
    show_default=True,
    help="What the losses of positive rows are multiplied by.",
)
@click.option(
    "--weighting",
    type=click.Choice(["propensity"]),
    help="Multiply the losses of a label's positive rows the more, the rarer it is.",
)
@propensity_options
@click.option("--calibrate", is_flag=True, help="Learn what probability a score stands for.")
@click.option(
    "--validation",
    type=PATH,
    help="Data for --delta auto and --calibrate [default: a tenth of the rows of DATA].",
)
@click.option("--validation-labels", type=PATH, help="As --labels, for --validation.")
@click.option(
    "--tol", type=float, default=0.01, show_default=True, help="LIBLINEAR's stopping tolerance."
)
@click.option(
    "--tfidf/--no-tfidf",
    default=None,
    help="Multiply features by their idf in DATA [default: if DATA is text].",
)
@click.option("--no-normalize", is_flag=True, help="Leave rows at the length they have.")
@click.option(
    "--bias", type=float, default=1.0, show_default=True, help="Value of the bias feature; 0: none."
)
@click.option("--block-size", type=int, default=1000, show_default=True, help="Labels a block.")
@precision_option("float16", show_default=True)
@click.option("--overwrite", is_flag=True, help="Replace a model that is there.")
@data_options()
@_text_options
@cluster_option
@threads_option
@quiet_option
def train(
    data: Path,
    model: Path,
    reading: Reading,
    validation: Path | None,
    validation_labels: Path | None,
    threads: int | None,
    cluster: str | None,
    overwrite: bool,
    quiet: bool,
    no_normalize: bool,
    tfidf: bool | None,
    A: float,
    B: float,
    **params: Any,
) -> None:
    """Train a model on DATA.

    On a directory that holds an unfinished run of the same training it goes on where that stopped.
    """
    is_text = reading.is_text(data)
    text = _text_params({key: params.pop(key) for key in _TEXT_OPTIONS}, data, is_text)
    try:
        from dismec.params import TrainingParams

        chosen = TrainingParams(
            normalize=not no_normalize,
            tfidf=is_text if tfidf is None else tfidf,
            propensity_a=A,
            propensity_b=B,
            **params,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if (validation or validation_labels) and not (validation and chosen.holds_out):
        raise click.UsageError(
            "--validation goes with --delta auto or --calibrate, --validation-labels with both"
        )
    begin = time.perf_counter()
    try:
        with shown_progress(quiet, "training") as progress, cluster_news(cluster, quiet):
            common: dict[str, Any] = {
                "threads": threads,
                "overwrite": overwrite,
                "progress": progress,
                "client": cluster,
            }
            if text is not None:
                from dismec.text_training import train_text

                trained = train_text(
                    *(data, model, chosen, text),
                    fmt=reading.fmt,
                    validation=validation,
                    news=None if quiet else spoken,
                    **common,
                )
            else:
                trained = _train_numeric(
                    data, model, chosen, reading, validation, validation_labels, common
                )
    except KeyboardInterrupt:
        click.echo(f"{model}: run the same command again to go on where this stopped", err=True)
        raise
    if not quiet:
        _say_learned(trained, chosen)
        say_trained(trained, model, time.perf_counter() - begin)
    say_unsolved(trained)


def _text_params(given: dict[str, Any], data: Path, is_text: bool) -> TextParams | None:
    """What the options say of texts, if DATA holds some."""
    given = {key: value for key, value in given.items() if value is not None}
    if not is_text:
        if given:
            option = min(given).replace("_", "-")
            raise click.UsageError(f"--{option} is for texts, and {data} holds none")
        return None
    from dismec.text import TextParams

    try:
        return TextParams(**given)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _train_numeric(
    data: Path,
    model: Path,
    params: TrainingParams,
    reading: Reading,
    validation: Path | None,
    validation_labels: Path | None,
    common: dict[str, Any],
) -> Model:
    from dismec.dataset import is_binary, load_data
    from dismec.training import train as run

    dataset = reading.load(data, common["threads"])
    judge = None
    if validation:
        judge = load_data(validation, labels=validation_labels, threads=common["threads"])
    return run(
        *(dataset.X, dataset.Y, model, params),
        names=dataset.names,
        validation=judge and judge[:2],
        source=data if is_binary(data) else None,
        **common,
    )


def _say_learned(model: Model, params: TrainingParams) -> None:
    said = model.params
    if params.chooses_delta:
        click.echo(
            f"delta {said['delta']}, chosen {said['delta_auto']}: {said['delta_effect']}", err=True
        )
    if params.calibrate:
        click.echo(f"probabilities learned {said['calibrated']}", err=True)
        if int(re.findall(r"\d+", said["calibrated"])[0]) < _FEW_ROWS:
            click.echo(
                f"dismec: fewer than {_FEW_ROWS} rows to learn probabilities on: they are rough",
                err=True,
            )


@click.command()
@click.argument("model", type=PATH)
@click.option("-o", "--output", type=PATH, required=True, help="The new model directory.")
@click.option("--delta", type=float, help="Weights with |w| below this are dropped.")
@precision_option(None)
@click.option("--overwrite", is_flag=True, help="Replace a model that is there.")
@quiet_option
def prune(
    model: Path,
    output: Path,
    delta: float | None,
    precision: str | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Write a smaller model, as training with a larger delta or another precision would give it.

    A model of an older format is written in the one of today.
    """
    from dismec.model import open_model

    if output.exists() and model.exists() and output.samefile(model):
        raise click.UsageError(f"{output} is the model itself: choose another directory")
    begin = time.perf_counter()
    opened = open_model(model, check=True)
    opened.pruned(delta, precision=precision).save(output, overwrite=overwrite)
    if not quiet:
        say_trained(open_model(output, check=False), output, time.perf_counter() - begin)


@click.command("add-labels")
@click.argument("model", type=PATH)
@click.argument("data", type=PATH)
@data_options()
@cluster_option
@threads_option
@quiet_option
def add_labels(model: Path, data: Path, **how: Any) -> None:
    """Train the labels of DATA that MODEL does not have, and leave the others as they are.

    DATA has all rows that the new labels are to be told from: those of the first training with the
    new labels, or newer ones.
    """
    from dismec.editing import add_labels as run

    _edit(model, data, "added", run, **how)


@click.command()
@click.argument("model", type=PATH)
@click.argument("data", type=PATH)
@click.option(
    "--labels",
    "listed",
    type=PATH,
    required=True,
    help="The labels to train anew: names, or numbers if they have none, one a line.",
)
@data_options("--label-matrix")
@cluster_option
@threads_option
@quiet_option
def update(model: Path, data: Path, listed: Path, **how: Any) -> None:
    """Train some labels of MODEL anew on DATA, and leave the others as they are."""
    from dismec.dataset import load_names
    from dismec.editing import update_labels

    labels = load_names(listed)

    def run(model: Path, X: Any, Y: Any, names: Any, **common: Any) -> Model:
        return update_labels(model, X, Y, labels, names, **common)

    _edit(model, data, "updated", run, **how)


def _edit(
    model: Path,
    data: Path,
    done: str,
    run: Callable[..., Model],
    reading: Reading,
    threads: int | None,
    cluster: str | None,
    quiet: bool,
) -> None:
    from dismec.dataset import is_binary
    from dismec.model import open_model
    from dismec.text_training import text_dataset

    begin = time.perf_counter()
    before = open_model(model)
    is_text = reading.is_text(data)
    if is_text:
        dataset = text_dataset(before, data, fmt=reading.fmt, threads=threads)
    else:
        dataset = reading.load(data, threads)
    try:
        with shown_progress(quiet, "training") as progress, cluster_news(cluster, quiet):
            changed = run(
                *(model, dataset.X, dataset.Y, dataset.names),
                threads=threads,
                progress=progress,
                client=cluster,
                source=None if is_text or not is_binary(data) else data,
            )
    except KeyboardInterrupt:
        click.echo(f"{model}: run the same command again to go on where this stopped", err=True)
        raise
    if not quiet:
        _say_changed(changed, done)
        say_trained(changed, model, time.perf_counter() - begin)


def _say_changed(model: Model, done: str) -> None:
    entry = model.manifest.history[-1]
    click.echo(f"{entry['labels']:,} labels {done}", err=True)
    from dismec.editing import ranged

    everywhere = [n for n in ranged(entry["numbers"]) if model.label_counts[n] == entry.get("rows")]
    if everywhere:
        name = everywhere[0] if model.names is None else repr(model.names[everywhere[0]])
        click.echo(
            f"dismec: every row has label {name}: there is nothing that it could be told from",
            err=True,
        )


@click.command("remove-labels")
@click.argument("model", type=PATH)
@click.argument("labels", nargs=-1)
@click.option(
    "--labels", "listed", type=PATH, help="More labels to remove: names or numbers, one a line."
)
@quiet_option
def remove_labels(model: Path, labels: tuple[str, ...], listed: Path | None, quiet: bool) -> None:
    """Take LABELS, names or numbers, out of MODEL: they are not predicted any more."""
    from dismec.dataset import load_names
    from dismec.editing import remove_labels as run

    changed = run(model, [*labels, *(load_names(listed) if listed else ())])
    if not quiet:
        _say_changed(changed, "removed")
