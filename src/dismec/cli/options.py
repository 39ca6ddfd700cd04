"""Options shared by several commands."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from dismec.cli.console import print_message
from dismec.data.counts import counted
from dismec.errors import DismecError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from dismec.data.dataset import Dataset
    from dismec.data.formats import DataFile
    from dismec.data.text_format import TextFormat
    from dismec.data.weights import RowWeights
    from dismec.model.model import Model

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
MOST_PLACES = 2**31 - 1
_COLUMNS = ("text_column", "label_column", "label_separator", "id_column", "weight_column")


class DataBatch(NamedTuple):
    """Some consecutive rows of DATA."""

    X: Any  # CSR, or with dense features
    ids: list[str] | None = None  # their ids in DATA
    texts: list[str] | None = None


@dataclass(frozen=True)
class Reading:
    """How to read DATA."""

    labels: Path | None  # file of the label matrix
    names: Path | None  # file of label names
    columns: dict[str, str]  # those of _COLUMNS that were given
    kind: str | None = None  # file format, if given
    numeric: bool | None = None  # whether a text model accepts numeric rows
    weights: Path | None = None  # file of row weights
    dense: Path | None = None  # file of dense features

    @property
    def files(self) -> tuple[Path | None, ...]:
        """Return the files that are read besides DATA."""
        return self.labels, self.names, self.weights, self.dense

    @property
    def fmt(self) -> TextFormat:
        """Return how to read texts before a model has been trained."""
        from dismec.data.text_format import TextFormat

        return TextFormat(**self.columns)

    def fmt_for(self, model: Model, data: DataFile, *, trains: bool = False) -> TextFormat:
        """Return how to read texts for a model: as in its training, unless options override it.

        The model's weight column is only used if `trains` is set.
        """
        from dismec.data.text_format import format_of_model

        weighted = trains and self.weights is None
        given: dict[str, Any] = self.columns
        return format_of_model(model.manifest.columns, data.kind, weighted=weighted, **given)

    @property
    def row_weights(self) -> RowWeights | None:
        """Return the row weights of the given file."""
        from dismec.data.weights import load_row_weights

        return None if self.weights is None else load_row_weights(self.weights)

    def look(self, data: Path) -> DataFile:
        """Detect the kind of DATA; options that do not apply to it are an error.

        The file is opened only here: pass on the result instead of the path.
        """
        from dismec.data.formats import detect

        found = click.get_current_context().with_resource(detect(data, self.kind))
        if found.is_texts and (self.labels or self.names):
            raise click.UsageError(
                f"{found} holds texts with label names: --labels and --label-names "
                "apply to numeric data only"
            )
        if self.weights and "weight_column" in self.columns:
            raise click.UsageError("--weights cannot be combined with --weight-column")
        if self.columns and not found.is_texts:
            option = min(self.columns).replace("_", "-")
            raise click.UsageError(f"--{option} is for texts, but {found} holds numeric data")
        if found.found:
            print_message(f"{found}: {found.found}")
        return found

    def rows_of(self, model: Model, data: DataFile, threads: int | None) -> Dataset:
        """Read DATA as rows of the model's features and labels, in memory."""
        return self.weighted_rows_of(model, data, threads)[0]

    def weighted_rows_of(
        self, model: Model, data: DataFile, threads: int | None, *, trains: bool = False
    ) -> tuple[Dataset, RowWeights | None]:
        """Like `rows_of`, with row weights; None if none are given."""
        weights = self.row_weights
        if not data.is_texts:
            self._check_numeric(model, data)
            dataset = _aligned_by_name(self.load(data, threads), model.names)
            dataset = dataset._replace(X=self.terms(model, data, dataset.X))
        else:
            from dismec.features.text_rows import text_dataset

            fmt = self.fmt_for(model, data, trains=trains)
            dataset, of_column = text_dataset(model, data, fmt=fmt, threads=threads)
            weights = of_column if weights is None else weights
        n_rows = dataset.X.shape[0]
        (rows,) = self.with_dense(model, [DataBatch(dataset.X)], str(data), lambda: n_rows)
        return dataset._replace(X=rows.X), weights

    def batches(self, model: Model, data: DataFile, threads: int | None) -> Iterator[DataBatch]:
        """Yield the rows of DATA in batches; with --dense, DATA is read twice."""
        rows = self.own_batches(model, data, threads)
        return self.with_dense(model, rows, str(data), lambda: self._count_rows(model, data))

    def with_dense(
        self,
        model: Model,
        batches: Iterable[DataBatch],
        data: str,
        n_rows: Callable[[], int],
    ) -> Iterator[DataBatch]:
        """Combine rows with their dense features, for a model that needs them.

        `n_rows` returns the total number of rows: a different number of dense rows is an error
        before the first batch.
        """
        dense = self.dense_for(model)
        if dense is None:
            return iter(batches)
        if (seen := n_rows()) != len(dense):
            raise DismecError(
                f"{self.dense} has {counted(len(dense), 'row')}, but {data} has {seen:,}"
            )
        return self._add_dense(model, batches, dense)

    def _add_dense(
        self, model: Model, batches: Iterable[DataBatch], dense: Any
    ) -> Iterator[DataBatch]:
        from dismec.data.mixed import mixed_rows

        seen = 0
        for batch in batches:
            first, seen = seen, seen + batch.X.shape[0]
            # A model with only dense features ignores all others.
            sparse = batch.X if model.n_features else None
            yield batch._replace(X=mixed_rows(sparse, dense[first:seen]))

    def _count_rows(self, model: Model, data: DataFile) -> int:
        data.read_twice()
        if not data.is_texts:
            from dismec.data.dataset import feature_batches

            return sum(rows.shape[0] for rows in feature_batches(data))
        from dismec.data.corpus import read_texts

        read = read_texts(data, self.fmt_for(model, data), needs_labels=False)
        return sum(len(batch.texts) for batch in read)

    def dense_for(self, model: Model) -> Any:
        """Return the dense features of the rows, if the model needs them."""
        if model.encoder is not None and not self.numeric:
            if self.dense is not None:
                raise DismecError("the model encodes texts itself: omit --dense")
            return None
        if self.dense is None:
            if model.n_dense:
                raise DismecError(
                    f"the model needs {counted(model.n_dense, 'dense feature')} per row: pass "
                    "them with --dense FILE.npy"
                )
            return None
        if not model.n_dense:
            raise DismecError("the model has no dense features: omit --dense")
        from dismec.data.mixed import load_dense

        dense = load_dense(self.dense)
        if dense.shape[1] != model.n_dense:
            raise DismecError(
                f"{self.dense} has {counted(dense.shape[1], 'feature')} per row, but the model "
                f"needs {model.n_dense}"
            )
        return dense

    def own_batches(
        self, model: Model, data: DataFile, threads: int | None = None
    ) -> Iterator[DataBatch]:
        """Yield the rows of DATA in batches, without the features of --dense."""
        if not data.is_texts:
            from dismec.data.dataset import feature_batches

            for rows in feature_batches(data, threads=threads):
                yield DataBatch(self.terms(model, data, rows))
            return
        from dismec.data.corpus import read_texts
        from dismec.data.mixed import no_features
        from dismec.features.text_rows import vocabulary_of

        vocabulary = vocabulary_of(model) if model.n_features else None
        for batch in read_texts(data, self.fmt_for(model, data), needs_labels=False):
            if vocabulary is None:
                yield DataBatch(no_features(len(batch.texts)), batch.ids, batch.texts)
            else:
                found = vocabulary.rows(batch.texts, threads=threads)
                yield DataBatch(found, batch.ids, batch.texts)

    def terms(self, model: Model, data: DataFile, rows: csr_array) -> csr_array:
        """Return numeric rows of DATA for the model, if it accepts them or --numeric is given."""
        self._check_numeric(model, data)
        if model.vocabulary is None:
            return rows
        from dismec.features.vocabulary import TextRows

        return TextRows(rows)

    def _check_numeric(self, model: Model, data: DataFile) -> None:
        if model.vocabulary is not None and not self.numeric:
            raise DismecError(
                f"{data} holds numeric rows, but the model was trained on texts; use --numeric if "
                "the features are the terms of its vocabulary"
            )

    def load(self, data: DataFile, threads: int | None) -> Dataset:
        """Load numeric data with label names, if any."""
        from dismec.data.dataset import load_data
        from dismec.data.names import load_names

        names = load_names(self.names) if self.names else None
        n_labels = len(names) if names is not None else None
        dataset = load_data(data, labels=self.labels, n_labels=n_labels, threads=threads)
        return dataset if names is None else dataset._replace(names=names)


def _aligned_by_name(dataset: Dataset, names: Sequence[str] | None) -> Dataset:
    """Return the data with the model's labels, matched by name, before other labels.

    Data without names are matched by number.
    """
    if names is None or dataset.names is None or names == dataset.names:
        return dataset
    from dismec.data.targets import columns_by_name

    Y, known = columns_by_name(dataset.Y, dataset.names, names)
    return dataset._replace(Y=Y, names=known)


def added(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds options to a command, in this order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def file_option(flag: str, text: str) -> Callable[[F], F]:
    """Create the option of a file that a command reads."""
    return click.option(flag, type=PATH, metavar="FILE", help=text)


dense_option = file_option(
    "--dense", "Dense features, such as embeddings: a .npy file with one row per row of DATA."
)


def data_options(
    matrix: str = "--labels", *, model: bool = False, ids: bool = False, weights: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add options for reading DATA, passed to the command as one `Reading`.

    `model` is for commands that read DATA for a model, `ids` for those that repeat row ids, and
    `weights` for those that use row weights.
    """
    texts = "Column or key with the text; separate several by commas [default: text]."
    of_model = "as in training" if model else ""
    separator = f"Separator of labels given as one string [default: {of_model or 'a comma'}]."
    kinds = ["jsonl", "json", "csv", "tsv", "fasttext", "lines", "parquet", "arrow", "xmc"]
    options = [
        click.option(
            matrix,
            "label_matrix",
            type=PATH,
            help="Label matrix (.npz), if DATA is .npz.",
        ),
        click.option(
            "--label-names", type=PATH, help="File of label names for numeric DATA, one per line."
        ),
        click.option("--text-column", metavar="NAME", help=texts),
        click.option(
            "--label-column",
            metavar="NAME",
            help="Column or key with the labels [default: labels].",
        ),
        click.option("--label-separator", metavar="TEXT", help=separator),
        click.option(
            "--data-format",
            type=click.Choice(kinds),
            help="Format of DATA, if it cannot be detected.",
        ),
    ]
    if ids:
        options.append(
            click.option(
                "--id-column", metavar="NAME", help="Column or key of row ids, for the output."
            )
        )
    if weights:
        options += [
            click.option(
                "--weights",
                "row_weights",
                type=PATH,
                help="Row weights: a file with one number per line, or .npy.",
            ),
            click.option(
                "--weight-column",
                metavar="NAME",
                help="Column or key with the row weights of texts.",
            ),
        ]
    if model:
        options.append(dense_option)
        options.append(
            click.option(
                "--numeric",
                is_flag=True,
                help="Accept numeric DATA for a text model; features are the model's terms.",
            )
        )

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def gathered(
            *args: Any, label_matrix: Path | None, label_names: Path | None, **others: Any
        ) -> Any:
            given = {key: others.pop(key, None) for key in _COLUMNS}
            columns = {key: value for key, value in given.items() if value is not None}
            keys = ("data_format", "numeric", "row_weights", "dense")
            how = (others.pop(key, None) for key in keys)
            reading = Reading(label_matrix, label_names, columns, *how)
            return command(*args, reading=reading, **others)

        return added(*options)(gathered)

    return add


propensity_options = added(
    *(
        click.option(
            f"--propensity-{name.lower()}",
            name,
            type=float,
            help=f"The constant {name} of propensities [default: as in training].",
        )
        for name in ("A", "B")
    )
)


def parse_number(*words: str) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """Return a callback that parses a number or one of some words, or nothing."""

    def parse(_: click.Context, __: click.Parameter, value: str | None) -> float | str | None:
        if value is None or value in words:
            return value
        try:
            return float(value)
        except ValueError:
            expected = " nor ".join(("a number", *words))
            raise click.BadParameter(f"{value!r} is neither {expected}") from None

    return parse


def parse_numbers(
    _: click.Context, __: click.Parameter, value: str | None
) -> tuple[float, ...] | None:
    """Parse comma-separated numbers, or nothing."""
    if value is None:
        return None
    try:
        return tuple(float(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 0.3,1,3") from None


def parse_ks(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    """Parse comma-separated numbers, in order."""
    try:
        ks = tuple(sorted({int(part) for part in value.split(",")}))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of integers such as 1,3,5") from None
    if not 1 <= ks[0] <= ks[-1] <= MOST_PLACES:
        raise click.BadParameter(f"k must be from 1 to {MOST_PLACES}")
    return ks


threads_option = click.option(
    "--threads", type=click.IntRange(1, 1024), help="Threads [default: all available CPUs]."
)
cluster_option = click.option(
    "--cluster",
    metavar="ADDRESS|FILE",
    help="Dask cluster to run on: scheduler address (tcp://host:8786) or scheduler file.",
)
quiet_option = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def listed_labels(labels: Iterable[str], file: Path | None) -> list[str]:
    """Return labels given as arguments, and those in a file."""
    from dismec.data.names import load_names

    return [*labels, *filter(None, load_names(file, blanks=True) if file else ())]


def check_new_files(
    *targets: Path | None,
    overwrite: bool,
    sources: Iterable[Path | None] = (),
    makes_folder: bool = False,
) -> None:
    """Reject files that cannot be written, or that exist and may not be overwritten.

    A device or a pipe is always accepted, and one of the `sources` never. `makes_folder` is for
    commands that create the directories of their files.
    """
    seen = set()
    for target in filter(None, targets):
        if target.is_dir():
            raise DismecError(f"{target} is a directory: give the name of a file")
        if not makes_folder and not target.parent.is_dir():
            raise DismecError(f"{target.parent}: no such directory")
        if target.resolve() in seen:
            raise DismecError(f"{target} is given twice: choose different files")
        seen.add(target.resolve())
        if not target.is_file():
            continue
        if any(s is not None and s.exists() and target.samefile(s) for s in sources):
            raise DismecError(f"{target} is read by this command: choose another file")
        if not overwrite:
            raise DismecError(f"{target} exists: choose another file, or use --overwrite")
