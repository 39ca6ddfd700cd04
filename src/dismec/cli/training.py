"""Commands that train and edit models."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from dismec.cli.console import (
    cluster_messages,
    print_message,
    print_table,
    print_trained,
    print_unsolved,
    shown_progress,
    trained_facts,
)
from dismec.cli.options import (
    PATH,
    F,
    Reading,
    added,
    cluster_option,
    data_options,
    dense_option,
    file_option,
    json_option,
    listed_labels,
    parse_number,
    quiet_option,
    threads_option,
)
from dismec.data.counts import counted
from dismec.training.params import AUTO, TrainingParams

if TYPE_CHECKING:
    from dismec.data.formats import DataFile
    from dismec.features.vocabulary import TextParams
    from dismec.model.model import Model

_FEW_ROWS = 100  # fewer rows give rough probabilities
_ENOUGH_ROWS = 1000  # with fewer rows, choosing C and calibrating have to be asked for


def _option(field: Field[Any]) -> Callable[[F], F]:
    """Create the option of a hyperparameter from its default and its metadata."""
    name, default = field.name, cast(Any, field.default)
    flag = "--" + name.replace("_", "-")
    more: dict[str, Any] = {"help": field.metadata["help"]}
    if name in ("C", "delta"):
        more |= {"callback": parse_number("auto"), "metavar": field.metadata["metavar"]}
        if name == "C":  # the default depends on DATA
            more["help"] += f" [default: auto; 1 for l1, or fewer than {_ENOUGH_ROWS:,} rows]"
    elif name == "dense_scale":
        more |= {"type": float}
    elif name in ("tfidf", "calibrate"):  # the default depends on DATA
        flag, more = f"{flag}/--no-{name}", {"default": None, **more}
        if name == "calibrate":
            more["help"] += f" [default: with at least {_ENOUGH_ROWS:,} rows]"
    elif isinstance(default, bool):
        more |= {"is_flag": True}
        if default:
            flag = f"--no-{flag[2:]}"
    else:
        choices = field.metadata.get("choices")
        kind = click.Choice(choices) if choices else type(default)
        more |= {"type": kind, "default": default}
    return click.option(flag, *([name] if name == "C" else []), **more)


def _parse_lengths(
    _: click.Context, __: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    """Parse one length, the maximum, or a minimum and a maximum."""
    if value is None:
        return None
    from dismec.cpu import kernels

    try:
        lengths = [int(part) for part in value.split(",")]
    except ValueError:
        lengths = []
    least, most = (min(1, *lengths), *lengths)[-2:] if len(lengths) in (1, 2) else (-1, -1)
    if (least, most) != (0, 0) and not 1 <= least <= most <= kernels.longest_gram:
        raise click.BadParameter(
            f"{value!r} is not a range of lengths: give a maximum, or a minimum and a maximum, "
            f"such as 1,2, from 1 to {kernels.longest_gram}; 0 for none"
        )
    return least, most


_LENGTHS: dict[str, Any] = {"metavar": "MIN,MAX", "callback": _parse_lengths}
# For the fields of `TextParams` that can be changed.
_TEXT_OPTIONS: dict[str, Any] = {
    "word_ngrams": click.option(
        "--word-ngrams", help="Word n-gram range [default: 1].", **_LENGTHS
    ),
    "char_ngrams": click.option(
        "--char-ngrams", help="Character n-gram range [default: none].", **_LENGTHS
    ),
    "prefix": click.option(
        "--prefix", type=int, help="Also use the first so many characters of longer words."
    ),
    "min_df": click.option(
        "--min-df", type=int, help="Drop terms that occur in fewer texts [default: 1]."
    ),
    "max_df": click.option(
        "--max-df", type=float, help="Drop terms that occur in more than this share of texts."
    ),
    "max_features": click.option(
        "--max-features", type=int, help="Keep only this many terms, the most frequent."
    ),
    "lowercase": click.option(
        "--lowercase/--keep-case", default=None, help="Lowercase the text (default: on)."
    ),
}


@click.command()
@click.argument("data", type=PATH)
@click.option("-o", "--output", "model", type=PATH, required=True, help="Directory for the model.")
@json_option
@data_options(weights=True)
@added(*map(_option, fields(TrainingParams)))
@click.option(
    "--validation",
    type=PATH,
    help="Data for --C auto, --delta auto and --calibrate [default: a tenth of DATA].",
)
@click.option("--validation-labels", type=PATH, help="Like --labels, for --validation.")
@click.option("--validation-dense", type=PATH, help="Like --dense, for --validation.")
@click.option("--overwrite", is_flag=True, help="Overwrite an existing model.")
@click.option(
    "--no-examples",
    is_flag=True,
    help="Keep no training texts in the model [default: excerpts of five].",
)
@dense_option
@click.option(
    "--encoder",
    metavar="NAME|PATH",
    help="Sentence encoder whose embeddings of texts are dense features; not downloaded.",
)
@click.option("--dense-only", is_flag=True, help="Use only the labels of DATA, and --dense.")
@file_option(
    "--pair-weights",
    "Pair weights: lines 'row label weight', rows counted from 1, or a sparse .npz file.",
)
@click.option(
    "--label-texts",
    metavar="FILE|names",
    help="Texts that describe labels (keys label, name, description, synonyms), or their names.",
)
@added(*_TEXT_OPTIONS.values())
@cluster_option
@threads_option
@quiet_option
@click.option(
    "--data-on-workers",
    is_flag=True,
    help="DATA is a file on the workers of --cluster; this machine need not have it.",
)
def train(
    data: Path,
    model: Path,
    as_json: bool,
    reading: Reading,
    validation: Path | None,
    validation_labels: Path | None,
    validation_dense: Path | None,
    overwrite: bool,
    no_examples: bool,
    encoder: str | None,
    dense_only: bool,
    pair_weights: Path | None,
    label_texts: str | None,
    cluster: str | None,
    threads: int | None,
    quiet: bool,
    data_on_workers: bool,
    **given: Any,
) -> None:
    """Train a model on DATA.

    If the directory holds an unfinished run with the same data and options, it is resumed.
    """
    from dismec.data.dataset import load_data
    from dismec.data.mixed import load_dense
    from dismec.data.names import load_names
    from dismec.data.training_file import TrainingData
    from dismec.data.weights import load_pair_weights
    from dismec.training.choose_terms import texts_with_best_terms
    from dismec.training.params import TrainOptions
    from dismec.training.resume import check_output
    from dismec.training.train import train_on

    if given["best"] and given["C"] not in (None, AUTO):
        raise click.UsageError("--best chooses C: give only one of --best and --C")
    learns = AUTO in (given["C"], given["delta"]) or given["calibrate"] or given["best"]
    if (validation or validation_labels) and not (validation and learns):
        raise click.UsageError(
            "--validation requires --C auto, --delta auto or --calibrate, "
            "and --validation-labels requires --validation"
        )
    if reading.dense is None and (dense_only or validation_dense):
        option = "--dense-only" if dense_only else "--validation-dense"
        raise click.UsageError(f"{option} requires --dense")
    if reading.dense is not None and bool(validation) != bool(validation_dense):
        raise click.UsageError("with --dense, --validation requires --validation-dense")
    for name, value in (("encoder", encoder), ("label-texts", label_texts)):
        if value is not None and reading.dense is not None:
            raise click.UsageError(f"--{name} cannot be combined with --dense")
    of_texts = {name: given.pop(name) for name in _TEXT_OPTIONS}
    of_texts |= {"encoder": encoder, "label_texts": label_texts}
    file = None
    if data_on_workers:
        others = {"pair_weights": pair_weights, "validation": validation}
        _check_on_workers(cluster, reading, others | of_texts)
    else:
        check_output(model, overwrite)
        file = reading.look(data)
    is_text = file is not None and file.is_texts
    params = _training_params(given, is_text and not dense_only)
    text = None if file is None else _text_params(of_texts, file, dense_only)
    begin = time.perf_counter()
    with ExitStack() as stack:
        stack.enter_context(_resumable(model))
        progress = stack.enter_context(shown_progress(quiet, "training"))
        stack.enter_context(cluster_messages(cluster, quiet))
        pairs = None if pair_weights is None else load_pair_weights(pair_weights)
        dense, judge_dense = (
            None if path is None else load_dense(path) for path in (reading.dense, validation_dense)
        )
        judge: Any = None
        if validation and not is_text:
            rows = load_data(validation, labels=validation_labels, threads=threads)
            judge = _with_dense(rows.X, judge_dense, dense_only), rows.Y
        options = TrainOptions(
            params,
            model,
            judge,
            threads=threads,
            overwrite=overwrite,
            progress=progress,
            cluster=cluster,
        )
        if file is None:
            names = load_names(reading.names) if reading.names else None
            found = TrainingData(str(data), None, names=names)
        elif is_text:
            file.read_twice()
            found, options = stack.enter_context(
                texts_with_best_terms(
                    file,
                    options,
                    text,
                    fmt=reading.fmt,
                    validation=validation,
                    weights=reading.row_weights,
                    pair_weights=pairs,
                    log=None if quiet else print_message,
                    examples=not no_examples,
                    dense=dense,
                    validation_dense=judge_dense,
                    dense_only=dense_only,
                    label_texts=label_texts == "names" or label_texts,
                    encoder=encoder,
                )
            )
        else:
            X, Y, names = reading.load(file, threads)
            X = _with_dense(X, dense, dense_only)
            source = file.path if file.kind == "xmc" else None
            found = TrainingData(X, Y, reading.row_weights, pairs, names, source)
        if file is not None and found.Y.shape[0] >= _ENOUGH_ROWS and found.Y.shape[1] > 1:
            if given["C"] is None and params.penalty == "l2":
                params = replace(params, C=AUTO)
            params = replace(params, calibrate=given["calibrate"] is not False)
        trained = train_on(found, replace(options, params=params))
    seconds = time.perf_counter() - begin
    if as_json:
        facts = trained_facts(trained, model, seconds)
        if params.chooses_C:
            table = {"metric": params.metric, "table": trained.params["C_table"]}
            facts |= {"C": trained.params["C"], **table}
        click.echo(json.dumps(facts))
    else:
        if params.chooses_C and (given["C"] == AUTO or not quiet):
            _print_chosen_C(trained)
        if not quiet:
            _print_learned(trained, params)
            print_trained(trained, model, seconds)
    if not quiet:
        _warn_of_few_rows(trained)
    print_unsolved(trained)


@contextmanager
def _resumable(model: Path) -> Iterator[None]:
    """After Ctrl-C, print how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"{model}: run the same command again to resume", err=True)
        raise


def _with_dense(X: Any, dense: Any, dense_only: bool) -> Any:
    if dense is None:
        return X
    return [dense] if dense_only else [X, dense]


def _check_on_workers(cluster: str | None, reading: Reading, others: dict[str, Any]) -> None:
    """Raise an error for options that --data-on-workers does not support."""
    if cluster is None:
        raise click.UsageError("--data-on-workers requires --cluster")
    own = {"labels": reading.labels, "weights": reading.weights, "dense": reading.dense}
    for name, value in (own | others | reading.columns).items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} is not supported with --data-on-workers")


def _training_params(given: dict[str, Any], is_text: bool) -> TrainingParams:
    """Return the hyperparameters, given by their names on the command line."""
    values: dict[str, Any] = {
        name.removeprefix("no_"): not value if name.startswith("no_") else value
        for name, value in given.items()
    }
    if values["C"] is None:
        values["C"] = 1.0
    values["calibrate"] = bool(values["calibrate"])
    if values["tfidf"] is None:
        values["tfidf"] = is_text
    try:
        return TrainingParams(**values).expanded
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _text_params(of_texts: dict[str, Any], data: DataFile, dense_only: bool) -> TextParams | None:
    """Return the parameters of text features; None if none are given."""
    from dismec.features.vocabulary import TextParams

    given = {key: value for key, value in of_texts.items() if value is not None}
    if given and not (data.is_texts and not dense_only):
        option = min(given).replace("_", "-")
        why = "which --dense-only ignores" if data.is_texts else f"but {data} holds numeric data"
        raise click.UsageError(f"--{option} is for texts, {why}")
    terms = {key: value for key, value in given.items() if key in _TEXT_OPTIONS}
    try:
        return TextParams(**terms) if terms else None
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _print_chosen_C(model: Model) -> None:
    """Print the results of each trial."""
    from dismec.model.provenance import sentence

    C, how, table = (model.params[key] for key in ("C", "C_auto", "C_table"))
    metric = how.get("judged_by", how["metric"])
    weights = ["positives"] if "positive_weight" in table[0] else []
    top = max(row[metric] for row in table)
    rows = [
        [
            f"{row['C']:g}",
            *(f"× {row['positive_weight']:g}" for _ in weights),
            f"{row[metric]:.2f}",
            f"{row[metric] - top:+.2f} ± {row['margin']:.2f}",
            f"{row['weights']:,}",
            f"{row['seconds']:.1f}",
        ]
        for row in table
    ]
    columns = ["C", *weights, metric, "to the best", "weights", "seconds"]
    print_table(columns, rows, left=0, best=[row[metric] for row in table].index(top))
    heavier = f" and positives × {model.params['positive_weight']:g}" if weights else ""
    click.echo(f"C {C:g}{heavier}, chosen {sentence('C_auto', how)}")


def _print_learned(model: Model, params: TrainingParams) -> None:
    from dismec.model.provenance import shown

    described = shown(model.params)
    for row in model.params.get("terms_table", ()):
        click.echo(f"{row['terms']}: {_outcome(row)}", err=True)
    if "sqrt_effect" in described:
        click.echo(f"square roots of values: {described['sqrt_effect']}", err=True)
    if "dense_scale_table" in described:
        table = described["dense_scale_table"]
        tried = ", ".join("{}: {:.2f}".format(*row.values()) for row in table)
        click.echo(
            f"dense scale {model.params['dense_scale']:g}, chosen "
            f"{described['dense_scale_auto']}: {tried}",
            err=True,
        )
    if params.chooses_delta:
        click.echo(
            f"delta {model.params['delta']}, chosen {described['delta_auto']}: "
            f"{described['delta_effect']}",
            err=True,
        )
    if params.refine:
        helped = "refined" if model.manifest.refined else "not refined"
        slow = "not tried, because it would be slow with these terms"
        click.echo(f"{helped}: {described.get('refine_effect', slow)}", err=True)
    if params.calibrate:
        click.echo(f"probabilities learned {described['calibrated']}", err=True)


def _outcome(row: dict[str, Any]) -> str:
    """Describe what terms of texts that were tried gained and cost."""
    if "gain" not in row:
        slow = f"not tried, because training would be slow with about {row['entries']:,} entries"
        return "used" if row["used"] else slow
    tried = f"{'used' if row['used'] else 'not used'}, tried in {row['seconds']:.1f} s"
    return f"{row['gain']:+.2f} ± {row['margin']:.2f} points of {row['metric']}, {tried}"


def _warn_of_few_rows(model: Model) -> None:
    learned_on = model.params.get("calibrated")
    if learned_on and learned_on["rows"] < _FEW_ROWS:
        click.echo(
            f"dismec: probabilities may be inaccurate: learned on fewer than {_FEW_ROWS} rows",
            err=True,
        )


@click.command("add-labels")
@click.argument("model", type=PATH)
@click.argument("data", type=PATH, required=False)
@click.option(
    "--label-texts",
    type=PATH,
    metavar="FILE",
    help="Instead of DATA: texts about labels that have no rows yet, or one name per line.",
)
@data_options(model=True, weights=True)
@cluster_option
@threads_option
@json_option
@quiet_option
def add_labels(model: Path, data: Path | None, label_texts: Path | None, **how: Any) -> None:
    """Add the new labels of DATA to MODEL.

    Labels that MODEL already has do not change. DATA must include negative examples: use the rows
    the model was trained on, or newer ones, with the new labels added.
    """
    from dismec.training.edit_labels import add_labels as run
    from dismec.training.edit_labels import describe_labels

    if (data is None) == (label_texts is None):
        raise click.UsageError("give either DATA or --label-texts")
    if data is not None:
        _edit(model, data, "added", run, **how)
    elif label_texts is not None:
        begin = time.perf_counter()
        changed = describe_labels(model, label_texts)
        _print_edit(changed, model, "described", begin, how["as_json"], how["quiet"])


@click.command()
@click.argument("model", type=PATH)
@click.argument("data", type=PATH)
@click.option(
    "--labels",
    "listed",
    type=PATH,
    required=True,
    help="File of labels to retrain: names, or numbers if there are no names, one per line.",
)
@data_options("--label-matrix", model=True, weights=True)
@cluster_option
@threads_option
@json_option
@quiet_option
def update(model: Path, data: Path, listed: Path, **how: Any) -> None:
    """Retrain some labels of MODEL on DATA.

    The other labels do not change.
    """
    from dismec.training.edit_labels import update_labels

    labels = listed_labels((), listed)

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
    as_json: bool,
    quiet: bool,
) -> None:
    from dismec.model.opening import open_model

    begin = time.perf_counter()
    found = reading.look(data)
    dataset, weights = reading.weighted_rows_of(open_model(model), found, threads, trains=True)
    with (
        _resumable(model),
        shown_progress(quiet, "training") as progress,
        cluster_messages(cluster, quiet),
    ):
        changed = run(
            model,
            dataset.X,
            dataset.Y,
            dataset.names,
            weights=weights,
            threads=threads,
            progress=progress,
            cluster=cluster,
            source=found.path if found.kind == "xmc" else None,
        )
    _print_edit(changed, model, done, begin, as_json, quiet)
    if not quiet:
        _warn_of_no_negatives(changed)


def _print_edit(
    changed: Model, path: Path, done: str, begin: float, as_json: bool, quiet: bool
) -> None:
    seconds = time.perf_counter() - begin
    if as_json:
        click.echo(json.dumps(_changed_facts(changed, path, seconds)))
    elif not quiet:
        _print_changed(changed, done)
        print_trained(changed, path, seconds)


def _changed_facts(model: Model, path: Path, seconds: float) -> dict[str, Any]:
    from dismec.model.provenance import parse_ranges

    entry = model.manifest.history[-1]
    numbers = list(parse_ranges(entry["numbers"]))
    return {
        **trained_facts(model, path, seconds),
        "action": entry["action"],
        "numbers": numbers,
        "names": None if model.names is None else [model.names[number] for number in numbers],
    }


def _print_changed(model: Model, done: str) -> None:
    click.echo(f"{counted(model.manifest.history[-1]['labels'], 'label')} {done}", err=True)


def _warn_of_no_negatives(model: Model) -> None:
    from dismec.model.provenance import parse_ranges

    entry = model.manifest.history[-1]
    everywhere = [
        n for n in parse_ranges(entry["numbers"]) if model.label_counts[n] == entry.get("rows")
    ]
    if everywhere:
        name = everywhere[0] if model.names is None else repr(model.names[everywhere[0]])
        click.echo(
            f"dismec: every row has label {name}: it has no negative examples",
            err=True,
        )


@click.command("remove-labels")
@click.argument("model", type=PATH)
@click.argument("labels", nargs=-1)
@click.option(
    "--labels", "listed", type=PATH, help="More labels to remove: names or numbers, one per line."
)
@json_option
@quiet_option
def remove_labels(
    model: Path, labels: tuple[str, ...], listed: Path | None, as_json: bool, quiet: bool
) -> None:
    """Remove LABELS, given by name or number, from MODEL."""
    from dismec.training.edit_labels import remove_labels as run

    begin = time.perf_counter()
    changed = run(model, listed_labels(labels, listed))
    if as_json:
        click.echo(json.dumps(_changed_facts(changed, model, time.perf_counter() - begin)))
    elif not quiet:
        _print_changed(changed, "removed")
