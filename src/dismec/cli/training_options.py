"""Options of the training commands, and the request built from them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dismec.cli.console import cluster_messages, print_message, shown_progress
from dismec.cli.options import (
    PATH,
    F,
    Reading,
    cluster_option,
    data_options,
    dense_option,
    parse_delta,
    quiet_option,
    threads_option,
)
from dismec.cli.wording import in_flags
from dismec.training.params import AUTO, TrainingParams

if TYPE_CHECKING:
    from dismec.data.formats import DataFile
    from dismec.features.vocabulary import TextParams
    from dismec.training.request import Request


@dataclass(frozen=True)
class Order:
    """A training request, as given by the options of a command."""

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

    @property
    def holds_out(self) -> bool:
        """Whether something is learned from rows held out of training."""
        return bool(self.params["delta"] == AUTO or self.params["calibrate"])

    @contextmanager
    def request(
        self, data: Path, path: Path | None, what: str = "training", **fixed: Any
    ) -> Iterator[Request]:
        """Yield the request for a model of DATA, showing progress meanwhile.

        `fixed` are parameters that are not among the options.
        """
        from dismec.data.dataset import load_data
        from dismec.data.mixed import load_dense
        from dismec.data.pair_weights import load_pair_weights
        from dismec.training.request import Request
        from dismec.training.resume import check_output
        from dismec.training.texts import TextRequest

        self._check_dense()
        if path is not None:
            check_output(path, bool(self.overwrite))
        pairs = None if self.pair_weights is None else load_pair_weights(self.pair_weights)
        found = self.reading.look(data)
        if found.is_texts:
            found.read_twice()
        text = self._text_params(found)
        params = self._training_params(found.is_texts and not self.dense_only, fixed)
        dense, judge_dense = (
            None if file is None else load_dense(file)
            for file in (self.reading.dense, self.validation_dense)
        )
        with (
            resumable(path),
            shown_progress(self.quiet, what) as progress,
            cluster_messages(self.cluster, self.quiet),
        ):
            common: dict[str, Any] = {
                "threads": self.threads,
                "overwrite": self.overwrite,
                "progress": progress,
                "cluster": self.cluster,
                "pair_weights": pairs,
            }
            if found.is_texts:
                log = None if self.quiet or path is None else print_message
                of_text = (text, self.reading.fmt, self.validation)
                common |= {"log": log, "examples": path is not None and not self.no_examples}
                common["weights"] = self.reading.row_weights
                common |= {"dense": dense, "validation_dense": judge_dense}
                common |= {"dense_only": self.dense_only}
                with TextRequest(found, params, path, *of_text, **common).as_rows() as request:
                    yield request
                return
            X, Y, names = self.reading.load(found, self.threads)
            judge = None
            if self.validation:
                labels = self.validation_labels
                judge = load_data(self.validation, labels=labels, threads=self.threads)[:2]
                judge = self._with_dense(judge[0], judge_dense), judge[1]
            source = found.path if found.kind == "xmc" else None
            common |= {"names": names, "validation": judge, "source": source}
            common["weights"] = self.reading.row_weights
            yield Request(self._with_dense(X, dense), Y, params, path, **common)

    @contextmanager
    def request_on_workers(self, data: Path, path: Path) -> Iterator[Request]:
        """Yield the request for a file of rows that cluster workers read themselves."""
        from dismec.data.names import load_names
        from dismec.training.request import Request

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
        params = self._training_params(False, {})
        with (
            resumable(path),
            shown_progress(self.quiet, "training") as progress,
            cluster_messages(self.cluster, self.quiet),
        ):
            names = load_names(reading.names) if reading.names else None
            common: dict[str, Any] = {"names": names, "threads": self.threads}
            common |= {"overwrite": bool(self.overwrite), "progress": progress}
            yield Request(str(data), None, params, path, cluster=self.cluster, **common)

    def _with_dense(self, X: Any, dense: Any) -> Any:
        if dense is None:
            return X
        return [dense] if self.dense_only else [X, dense]

    def _check_dense(self) -> None:
        dense = self.reading.dense
        if dense is None and (self.dense_only or self.validation_dense):
            option = "--dense-only" if self.dense_only else "--validation-dense"
            raise click.UsageError(f"{option} requires --dense")
        if dense is not None and bool(self.validation) != bool(self.validation_dense):
            raise click.UsageError("with --dense, --validation requires --validation-dense")

    def _training_params(self, is_text: bool, fixed: dict[str, Any]) -> TrainingParams:
        given: dict[str, Any] = {
            name.removeprefix("no_"): not value if name.startswith("no_") else value
            for name, value in self.params.items()
        }
        if given["tfidf"] is None:
            given["tfidf"] = is_text
        try:
            return TrainingParams(**given, **fixed)
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


def training_options(
    *without: str, validation: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add all training options, passed to the command as one `Order`.

    There is an option for every field of `TrainingParams` except `without`. With `validation`, the
    help text of that option, there are also options for validation rows and for overwriting.
    """
    options = [_option(f) for f in fields(TrainingParams) if f.name not in without]
    if validation is not None:
        options += [
            click.option("--validation", type=PATH, help=validation),
            click.option("--validation-labels", type=PATH, help="Like --labels, for --validation."),
            click.option("--validation-dense", type=PATH, help="Like --dense, for --validation."),
            click.option("--overwrite", is_flag=True, help="Overwrite an existing model."),
            click.option(
                "--no-examples",
                is_flag=True,
                help="Keep no training texts in the model [default: excerpts of five].",
            ),
        ]
    only = "Use only the labels of DATA, and --dense."
    options += [dense_option, click.option("--dense-only", is_flag=True, help=only)]
    pairs = "Pair weights: lines 'row label weight', rows counted from 1, or a sparse .npz file."
    options.append(click.option("--pair-weights", type=PATH, metavar="FILE", help=pairs))
    options += [*_TEXT_OPTIONS.values(), cluster_option, threads_option, quiet_option]

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_order(*args: Any, **given: Any) -> Any:
            order: dict[str, Any] = {
                "params": {name: given.pop(name) for name in [*given] if _is_param(name)},
                "text": {name: given.pop(name) for name in _TEXT_OPTIONS},
            }
            for name in ("validation", "validation_labels", "overwrite", "no_examples"):
                order[name] = given.pop(name, None)
            for name in ("dense_only", "validation_dense", "pair_weights"):
                order[name] = given.pop(name, None)
            for name in ("reading", "threads", "cluster", "quiet"):
                order[name] = given.pop(name)
            return command(*args, order=Order(**order), **given)

        for option in reversed([data_options(weights=True), *options]):
            with_order = option(with_order)
        return with_order

    return add


def _is_param(name: str) -> bool:
    return name.removeprefix("no_") in TrainingParams.__dataclass_fields__


def _option(field: Field[Any]) -> Callable[[F], F]:
    """Create the option of a hyperparameter from its default and its metadata."""
    name, default = field.name, field.default
    flag = "--" + name.replace("_", "-")
    more: dict[str, Any] = {"help": field.metadata["help"]}
    if name == "delta":
        more |= {"callback": parse_delta, "metavar": field.metadata["metavar"]}
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
