"""The options of `dismec train`, and the data and options of a training built from them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from dismec.cli.console import cluster_messages, print_message, shown_progress
from dismec.cli.options import (
    PATH,
    F,
    Reading,
    cluster_option,
    data_options,
    dense_option,
    in_flags,
    parse_delta,
    parse_numbers,
    quiet_option,
    threads_option,
)
from dismec.training.params import AUTO, TrainingParams

if TYPE_CHECKING:
    from dismec.data.formats import DataFile
    from dismec.data.training_file import TrainingData
    from dismec.features.vocabulary import TextParams
    from dismec.training.params import TrainOptions


@dataclass(frozen=True)
class Arguments:
    """What `dismec train` was given."""

    reading: Reading
    params: dict[str, Any]  # options of `TrainingParams`, by name on the command line
    text: dict[str, Any]  # options of `TextParams`
    validation: Path | None
    validation_labels: Path | None
    dense_only: bool
    validation_dense: Path | None
    pair_weights: Path | None
    overwrite: bool
    no_examples: bool
    threads: int | None
    cluster: str | None
    quiet: bool

    @contextmanager
    def opened(
        self, data: Path, path: Path, on_workers: bool
    ) -> Iterator[tuple[TrainingData, TrainOptions]]:
        """Yield the data and options of the training, showing progress meanwhile.

        With `on_workers`, DATA is a file of rows that cluster workers read themselves.
        """
        from dismec.training.params import TrainOptions
        from dismec.training.resume import check_output

        self._check_validation()
        if on_workers:
            self._check_on_workers()
            file = None
        else:
            check_output(path, self.overwrite)
            file = self.reading.look(data)
        is_texts = file is not None and file.is_texts
        params = self._training_params(is_texts and not self.dense_only)
        text = self._text_params(file) if file else None
        with (
            resumable(path),
            shown_progress(self.quiet, "training") as progress,
            cluster_messages(self.cluster, self.quiet),
        ):
            options = TrainOptions(
                params,
                path,
                threads=self.threads,
                overwrite=self.overwrite,
                progress=progress,
                cluster=self.cluster,
            )
            if file is None:
                yield self._data_on_workers(data), options
            elif is_texts:
                with self._texts(file, options, text) as read:
                    yield read
            else:
                yield self._rows(file, options)

    @contextmanager
    def _texts(
        self, file: DataFile, options: TrainOptions, text: TextParams | None
    ) -> Iterator[tuple[TrainingData, TrainOptions]]:
        """Yield the rows of texts."""
        from dismec.training.texts import texts_read

        file.read_twice()
        dense, judge_dense = self._dense()
        with texts_read(
            file,
            options,
            text,
            fmt=self.reading.fmt,
            validation=self.validation,
            weights=self.reading.row_weights,
            pair_weights=self._pairs(),
            log=None if self.quiet else print_message,
            examples=not self.no_examples,
            dense=dense,
            validation_dense=judge_dense,
            dense_only=self.dense_only,
        ) as read:
            yield read

    def _rows(self, file: DataFile, options: TrainOptions) -> tuple[TrainingData, TrainOptions]:
        """Load numeric rows."""
        from dismec.data.dataset import load_data
        from dismec.data.training_file import TrainingData

        pairs = self._pairs()
        dense, judge_dense = self._dense()
        X, Y, names = self.reading.load(file, self.threads)
        if self.validation:
            labels = self.validation_labels
            judge = load_data(self.validation, labels=labels, threads=self.threads)
            validation = self._with_dense(judge.X, judge_dense), judge.Y
            options = replace(options, validation=validation)
        source = file.path if file.kind == "xmc" else None
        weights = self.reading.row_weights
        X = self._with_dense(X, dense)
        return TrainingData(X, Y, weights, pairs, names, source), options

    def _data_on_workers(self, data: Path) -> TrainingData:
        from dismec.data.names import load_names
        from dismec.data.training_file import TrainingData

        names = load_names(self.reading.names) if self.reading.names else None
        return TrainingData(str(data), None, names=names)

    def _check_on_workers(self) -> None:
        if self.cluster is None:
            raise click.UsageError("--data-on-workers requires --cluster")
        reading = self.reading
        for option, given in (
            ("--labels", reading.labels),
            ("--weights", reading.weights),
            ("--pair-weights", self.pair_weights),
            ("--dense", reading.dense),
            ("--validation", self.validation),
            *((f"--{name.replace('_', '-')}", value) for name, value in self.text.items()),
            *((f"--{name.replace('_', '-')}", value) for name, value in reading.columns.items()),
        ):
            if given is not None:
                raise click.UsageError(f"{option} is not supported with --data-on-workers")

    def _check_validation(self) -> None:
        """Raise an error for options that need another one."""
        params, dense = self.params, self.reading.dense
        learns = AUTO in (params["C"], params["delta"]) or params["calibrate"]
        if (self.validation or self.validation_labels) and not (self.validation and learns):
            raise click.UsageError(
                "--validation requires --C auto, --delta auto or --calibrate, "
                "and --validation-labels requires --validation"
            )
        if dense is None and (self.dense_only or self.validation_dense):
            option = "--dense-only" if self.dense_only else "--validation-dense"
            raise click.UsageError(f"{option} requires --dense")
        if dense is not None and bool(self.validation) != bool(self.validation_dense):
            raise click.UsageError("with --dense, --validation requires --validation-dense")

    def _dense(self) -> list[Any]:
        """Load the dense features of the rows and of the validation rows."""
        from dismec.data.mixed import load_dense

        files = self.reading.dense, self.validation_dense
        return [None if file is None else load_dense(file) for file in files]

    def _pairs(self) -> Any:
        from dismec.data.weights import load_pair_weights

        return None if self.pair_weights is None else load_pair_weights(self.pair_weights)

    def _with_dense(self, X: Any, dense: Any) -> Any:
        if dense is None:
            return X
        return [dense] if self.dense_only else [X, dense]

    def _training_params(self, is_text: bool) -> TrainingParams:
        given: dict[str, Any] = {
            name.removeprefix("no_"): not value if name.startswith("no_") else value
            for name, value in self.params.items()
        }
        if given["tfidf"] is None:
            given["tfidf"] = is_text
        try:
            return TrainingParams(**given)
        except ValueError as error:
            raise click.UsageError(in_flags(str(error))) from None

    def _text_params(self, data: DataFile) -> TextParams | None:
        """Return the parameters of text features; None if texts are not used."""
        given = {key: value for key, value in self.text.items() if value is not None}
        if not data.is_texts:
            if given:
                option = min(given).replace("_", "-")
                raise click.UsageError(f"--{option} is for texts, but {data} holds numeric data")
            return None
        if self.dense_only:
            if given:
                option = min(given).replace("_", "-")
                raise click.UsageError(f"--{option} is for texts, which --dense-only ignores")
            return None
        from dismec.features.vocabulary import TextParams

        try:
            return TextParams(**given)
        except ValueError as error:
            raise click.UsageError(in_flags(str(error))) from None


def training_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all training options, passed to the command as `Arguments`."""

    @functools.wraps(command)
    def with_arguments(*args: Any, **given: Any) -> Any:
        found: dict[str, Any] = {
            "params": {name: given.pop(name) for name in [*given] if _is_param(name)},
            "text": {name: given.pop(name) for name in _TEXT_OPTIONS},
        }
        found |= {f.name: given.pop(f.name) for f in fields(Arguments) if f.name not in found}
        return command(*args, arguments=Arguments(**found), **given)

    for option in reversed(
        [
            data_options(weights=True),
            *(_option(f) for f in fields(TrainingParams)),
            *_OTHER_OPTIONS,
            *_TEXT_OPTIONS.values(),
            cluster_option,
            threads_option,
            quiet_option,
        ]
    ):
        with_arguments = option(with_arguments)
    return with_arguments


def _is_param(name: str) -> bool:
    return name.removeprefix("no_") in TrainingParams.__dataclass_fields__


def _option(field: Field[Any]) -> Callable[[F], F]:
    """Create the option of a hyperparameter from its default and its metadata."""
    name, default = field.name, cast(Any, field.default)
    flag = "--" + name.replace("_", "-")
    more: dict[str, Any] = {"help": field.metadata["help"]}
    if name in ("C", "delta"):
        more |= {"callback": parse_delta, "metavar": field.metadata["metavar"]}
        if name == "C":
            more |= {"default": str(default), "show_default": True}
    elif name == "grid":
        shown = ",".join(f"{C:g}" for C in default)
        more |= {"callback": parse_numbers, "metavar": "NUMBERS", "default": shown}
        more |= {"show_default": True}
    elif name == "tfidf":  # the default depends on DATA
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


_OTHER_OPTIONS: list[Any] = [
    click.option(
        "--validation",
        type=PATH,
        help="Data for --C auto, --delta auto and --calibrate [default: a tenth of DATA].",
    ),
    click.option("--validation-labels", type=PATH, help="Like --labels, for --validation."),
    click.option("--validation-dense", type=PATH, help="Like --dense, for --validation."),
    click.option("--overwrite", is_flag=True, help="Overwrite an existing model."),
    click.option(
        "--no-examples",
        is_flag=True,
        help="Keep no training texts in the model [default: excerpts of five].",
    ),
    dense_option,
    click.option("--dense-only", is_flag=True, help="Use only the labels of DATA, and --dense."),
    click.option(
        "--pair-weights",
        type=PATH,
        metavar="FILE",
        help="Pair weights: lines 'row label weight', rows counted from 1, or a sparse .npz file.",
    ),
]
_LENGTHS: dict[str, Any] = {"metavar": "MIN,MAX", "callback": _parse_lengths}
_TEXT_OPTIONS: dict[str, Any] = {
    "word_ngrams": click.option(
        "--word-ngrams", help="Word n-gram range [default: 1].", **_LENGTHS
    ),
    "char_ngrams": click.option(
        "--char-ngrams", help="Character n-gram range [default: none].", **_LENGTHS
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


@contextmanager
def resumable(model: Path | None) -> Iterator[None]:
    """After Ctrl-C, print how to resume, if there is a model directory."""
    try:
        yield
    except KeyboardInterrupt:
        if model:
            click.echo(f"{model}: run the same command again to resume", err=True)
        raise
