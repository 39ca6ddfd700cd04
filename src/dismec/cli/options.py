"""Options that several commands have."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from dismec.data.corpus import TextFormat
    from dismec.data.dataset import Dataset
    from dismec.data.formats import DataFile
    from dismec.model.topk_model import TopkModel

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
MOST_PLACES = 2**31 - 1
_COLUMNS = ("text_column", "label_column", "label_separator")


class DataBatch(NamedTuple):
    """Some rows of DATA, in its order."""

    X: csr_array
    ids: list[str] | None = None  # what DATA calls them


@dataclass(frozen=True)
class Reading:
    """How to read DATA."""

    labels: Path | None  # the file of the label matrix
    names: Path | None  # the file of label names
    columns: dict[str, str]  # those of _COLUMNS that were given

    @property
    def fmt(self) -> TextFormat:
        """How to read text."""
        from dismec.data.corpus import TextFormat

        return TextFormat(**self.columns)

    def look(self, data: Path) -> DataFile:
        """DATA and what it holds; options that do not go with that are refused.

        It is opened here and nowhere else: pass on what this returns, in place of the path.
        """
        from dismec.data.formats import detect

        found = click.get_current_context().with_resource(detect(data))
        if found.is_texts and (self.labels or self.names):
            raise click.UsageError(
                f"{data} holds texts and the names of their labels: --labels and --label-names "
                "are for numeric data"
            )
        if self.columns and not found.is_texts:
            option = min(self.columns).replace("_", "-")
            raise click.UsageError(f"--{option} is for texts, and {data} holds none")
        return found

    def rows_of(self, model: TopkModel, data: DataFile, threads: int | None) -> Dataset:
        """DATA as rows of the model's features and labels, in memory."""
        if not data.is_texts:
            return self.load(data, threads)
        from dismec.training.texts import text_dataset

        return text_dataset(model, data, fmt=self.fmt, threads=threads)

    def batches(self, model: TopkModel, data: DataFile, threads: int | None) -> Iterator[DataBatch]:
        """The rows of DATA: of texts a batch at a time, of other data all at once."""
        if not data.is_texts:
            from dismec.data.dataset import load_features

            yield DataBatch(load_features(data, threads=threads))
            return
        from dismec.data.corpus import read_texts
        from dismec.training.texts import vocabulary_of

        vocabulary = vocabulary_of(model)
        for batch in read_texts(data, self.fmt, needs_labels=False):
            yield DataBatch(vocabulary.rows(batch.texts, threads=threads))

    def load(self, data: DataFile, threads: int | None) -> Dataset:
        """Numeric data with label names, if there are some."""
        from dismec.data.dataset import load_data
        from dismec.data.names import load_names

        names = load_names(self.names) if self.names else None
        n_labels = len(names) if names is not None else None
        dataset = load_data(data, labels=self.labels, n_labels=n_labels, threads=threads)
        return dataset if names is None else dataset._replace(names=names)


def data_options(matrix: str = "--labels") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Options for reading DATA, given to the command as one `Reading`."""
    labels = "The label matrix that goes with DATA if that is an .npz file."
    names = "Names of the labels of numeric DATA, one a line."
    texts = "Where texts are in CSV, TSV or JSON lines [default: text]."
    separator = "What is between labels in CSV and TSV [default: a comma]."
    options = (
        click.option(matrix, "label_matrix", type=PATH, help=labels),
        click.option("--label-names", type=PATH, help=names),
        click.option("--text-column", metavar="NAME", help=texts),
        click.option("--label-column", metavar="NAME", help="Where labels are [default: labels]."),
        click.option("--label-separator", metavar="TEXT", help=separator),
    )

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def gathered(
            *args: Any, label_matrix: Path | None, label_names: Path | None, **others: Any
        ) -> Any:
            given = {key: others.pop(key) for key in _COLUMNS}
            columns = {key: value for key, value in given.items() if value is not None}
            return command(*args, reading=Reading(label_matrix, label_names, columns), **others)

        for option in reversed(options):
            gathered = option(gathered)
        return gathered

    return add


def propensity_options(command: F) -> F:
    """The constants of propensities."""
    for name, default in (("B", 1.5), ("A", 0.55)):
        flag, text = f"--propensity-{name.lower()}", f"The constant {name} of propensities."
        command = click.option(flag, name, default=default, show_default=True, help=text)(command)
    return command


def parse_delta(_: click.Context, __: click.Parameter, value: str | None) -> float | str | None:
    """A number, "auto", or nothing."""
    if value is None:
        return None
    try:
        return "auto" if value == "auto" else float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number nor auto") from None


def precision_option(default: str | None) -> Callable[[F], F]:
    """``--precision``."""
    return click.option(
        "--precision",
        type=click.Choice(["float16", "float32", "int8"]),
        default=default,
        help="How weights are stored; int8: eight bits each.",
    )


def parse_ks(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    """Numbers joined by commas, in order."""
    try:
        ks = tuple(sorted({int(part) for part in value.split(",")}))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 1,3,5") from None
    if not 1 <= ks[0] <= ks[-1] <= MOST_PLACES:
        raise click.BadParameter(f"places count from 1 to {MOST_PLACES}")
    return ks


threads_option = click.option(
    "--threads", type=click.IntRange(1, 1024), help="Threads [default: all available CPUs]."
)
cluster_option = click.option(
    "--cluster",
    metavar="ADDRESS|FILE",
    help="Run on the Dask cluster of this scheduler: tcp://host:8786, or its scheduler file.",
)
quiet_option = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
