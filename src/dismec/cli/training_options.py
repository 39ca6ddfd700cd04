"""Options that say what model is trained, and the parameters that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dismec.cli.console import spoken
from dismec.cli.options import F, Reading, parse_delta
from dismec.training.params import TrainingParams

if TYPE_CHECKING:
    from dismec.data.formats import DataFile
    from dismec.features.vocabulary import TextParams
    from dismec.training.params import TrainingParams

T = TypeVar("T")

_TEXT = ("word_ngrams", "char_ngrams", "min_df", "max_df", "max_features", "lowercase")


def params_options(*without: str) -> Callable[[F], F]:
    """An option for every field of `TrainingParams` but `without`; `training_params` takes them."""
    options = [_option(f) for f in fields(TrainingParams) if f.name not in without]

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _option(field: Field[Any]) -> Callable[[F], F]:
    """The option of a hyper-parameter, from its default and its metadata."""
    name, default = field.name, field.default
    flag = "--" + name.replace("_", "-")
    more: dict[str, Any] = {"help": field.metadata["help"]}
    if name == "delta":
        more |= {"callback": parse_delta, "metavar": field.metadata["metavar"]}
    elif name == "tfidf":  # by default it depends on DATA
        flag, more = f"{flag}/--no-tfidf", {"default": None, **more}
    elif isinstance(default, bool):
        more |= {"is_flag": True}
        if default:
            flag = f"--no-{flag[2:]}"
    else:
        choices = field.metadata.get("choices")
        kind = click.Choice(choices) if choices else type(default)
        more |= {"type": kind, "default": default, "show_default": default is not None}
    return click.option(flag, *([name] if name == "C" else []), **more)


def training_params(is_text: bool, options: dict[str, Any]) -> TrainingParams:
    """The parameters that the options stand for, for texts or for numeric data."""
    given: dict[str, Any] = {
        name.removeprefix("no_"): not value if name.startswith("no_") else value
        for name, value in options.items()
    }
    if given.get("tfidf") is None:
        given["tfidf"] = is_text
    try:
        return TrainingParams(**given)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


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


def text_options(command: F) -> F:
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


def text_params(options: dict[str, Any], data: DataFile) -> TextParams | None:
    """Take what the options say of texts out of `options`; None if DATA holds no texts."""
    given = {key: options.pop(key) for key in _TEXT}
    given = {key: value for key, value in given.items() if value is not None}
    if not data.is_texts:
        if given:
            option = min(given).replace("_", "-")
            raise click.UsageError(f"--{option} is for texts, and {data} holds none")
        return None
    from dismec.features.vocabulary import TextParams

    try:
        return TextParams(**given)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


@contextmanager
def resumable(model: Path) -> Iterator[None]:
    """Say after Ctrl-C that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"{model}: run the same command again to go on where this stopped", err=True)
        raise


def on_data(
    data: DataFile,
    reading: Reading,
    validation: tuple[Path | None, Path | None],
    run: Callable[..., T],
    quiet: bool,
    **common: Any,
) -> T:
    """Call `run` with DATA and the data to learn on, if there are such.

    Of texts it is given the file, of numeric data X and Y; `common` is what both take.
    """
    path, labels = validation
    if data.is_texts:
        news = None if quiet else spoken
        return run(data, fmt=reading.fmt, validation=path, news=news, **common)
    from dismec.data.dataset import load_data

    threads = common["threads"]
    dataset = reading.load(data, threads)
    judge = load_data(path, labels=labels, threads=threads) if path else None
    return run(
        *(dataset.X, dataset.Y),
        names=dataset.names,
        validation=judge and judge[:2],
        source=data.path if data.kind == "xmc" else None,
        **common,
    )
