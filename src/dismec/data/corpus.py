"""Text files and frames → texts with label names.

A file contains JSON lines, a JSON array, CSV, TSV, fastText lines, plain text, Parquet or Arrow,
and is read one batch of rows at a time, so it may be larger than memory. Nothing is skipped
silently; the first invalid line raises an error that names it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dismec.data.columns import column_values, frame_columns
from dismec.data.counts import counted
from dismec.data.files import StrPath
from dismec.data.formats import DataFile, detect
from dismec.data.text_format import WITHOUT_COLUMNS, TextFormat, TextRow
from dismec.data.text_readers import RowReader, file_rows, frame_rows
from dismec.data.types import Frame
from dismec.data.weights import RowWeights, check_row_weights
from dismec.errors import DataError

_ROW_CHARS = 256  # size of a row's objects in addition to its text


class TextBatch(NamedTuple):
    """Some consecutive rows of a file."""

    texts: list[str]
    labels: list[list[str]]
    """Label names of each row in the file's order, without duplicates."""
    first_row: int
    """Number of rows before this batch."""
    ids: list[str] | None = None
    """Id of each row, if an id column was requested."""
    weights: list[float] | None = None
    """Weight of each row, if a weight column was requested."""


def read_texts(
    path: StrPath,
    fmt: TextFormat = TextFormat(),
    *,
    needs_labels: bool = True,
    batch_chars: int = 1 << 24,
) -> Iterator[TextBatch]:
    """Read texts and their labels from a file, a batch at a time.

    Parameters
    ----------
    path : str or path-like
        JSON lines ``{"text": …, "labels": [names]}`` or an array of such objects; CSV or TSV with a
        header; fastText lines, where words that begin with ``__label__`` are labels; plain text
        with one text per line; Parquet or Arrow. Text is UTF-8, and may be compressed by gzip or
        Zstandard. Blank lines are skipped, except in plain text.
    fmt : TextFormat, default=TextFormat()
        The names of the columns. Entries that do not apply to the kind of file are refused.
    needs_labels : bool, default=True
        Whether rows must have labels. An empty list of labels is allowed. Pass False for texts to
        predict labels for.
    batch_chars : int, default=16777216
        Approximate number of characters per batch, including an overhead per row.

    Returns
    -------
    iterator of TextBatch
        The batches, in the order of the file.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from dismec import read_texts
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "news.jsonl"
    ...     _ = file.write_text('{"text": "Wheat rose.", "labels": ["grain", "wheat"]}')
    ...     (batch,) = read_texts(file)
    >>> batch.texts, batch.labels
    (['Wheat rose.'], [['grain', 'wheat']])
    """
    with detect(path) as data, data.open() as file:
        _check_kind(data, fmt, needs_labels)
        reader = RowReader(fmt, data.kind, needs_labels=needs_labels)
        yield from _batches(str(data), file_rows(data, file, reader), reader, batch_chars)


def is_frame(source: Any) -> bool:
    """Return whether `source` is a table with named columns that `read_frame` can read."""
    return frame_columns(source) is not None


def read_frame(
    frame: Frame,
    fmt: TextFormat = TextFormat(),
    *,
    needs_labels: bool = True,
) -> Iterator[TextBatch]:
    """Read texts and their labels from a frame, a batch at a time.

    Parameters
    ----------
    frame : frame
        A table of pandas, polars, pyarrow or Hugging Face datasets.
    fmt, needs_labels
        As for `read_texts`.

    Returns
    -------
    iterator of TextBatch
        The batches, in the order of the frame.

    Examples
    --------
    >>> from dismec import TextFormat, read_frame
    >>> import polars
    >>> frame = polars.DataFrame({"body": ["Wheat rose."], "tags": ["grain|wheat"]})
    >>> (batch,) = read_frame(frame, TextFormat("body", "tags", "|"))
    >>> batch.labels
    [['grain', 'wheat']]
    """
    header = frame_columns(frame)
    if header is None:
        raise DataError(f"a {type(frame).__name__} is not a table with named columns")
    name = f"the {type(frame).__name__}"
    reader = RowReader(fmt, needs_labels=needs_labels)

    def values(column: str) -> list[Any]:
        return column_values(frame[column], f"column {column!r}", "value")

    yield from _batches(name, frame_rows(name, header, values, reader), reader)


def _check_kind(data: DataFile, fmt: TextFormat, needs_labels: bool) -> None:
    """Reject a file without texts, or without the columns or labels that are asked for."""
    if not data.is_texts and not data.is_blank:
        raise DataError(
            f"{data}: not texts; a CSV or TSV file needs the extension .csv or .tsv, or its format "
            "given",
            "data_format='csv'",
        )
    given = [name for name, value in asdict(fmt).items() if value is not None]
    if given and data.kind in WITHOUT_COLUMNS:
        raise DataError(f"{data}: {given[0]} does not apply to lines of {data.kind}")
    if needs_labels and data.kind == "plain text":
        raise DataError(
            f"{data}: plain text without labels; JSON lines, CSV, TSV, fastText lines and "
            "Parquet can hold both"
        )


def _batches(
    name: str, rows: Iterator[TextRow], reader: RowReader, batch_chars: int = 1 << 24
) -> Iterator[TextBatch]:
    held: list[TextRow] = []
    n_rows = chars = 0

    def batch() -> TextBatch:
        if reader.needs_labels and (doubt := reader.cells.doubt()):
            raise DataError(f"{name}: {doubt}")
        texts, labels, ids, weights = map(list, zip(*held, strict=True))
        found = TextBatch(texts, labels, n_rows)
        if reader.fmt.id_column is not None:
            found = found._replace(ids=ids)
        return found if reader.fmt.weight_column is None else found._replace(weights=weights)

    for row in rows:
        held.append(row)
        chars += len(row.text) + _ROW_CHARS
        if chars >= batch_chars:
            yield batch()
            n_rows += len(held)
            held, chars = [], 0
    if held:
        yield batch()
    elif not n_rows:
        raise DataError(f"{name}: no rows")


@dataclass(frozen=True)
class Texts:
    """Texts that can be read repeatedly, a batch at a time.

    Attributes
    ----------
    read
        Begins at the first row each time it is called.
    name
        Name of the texts in messages.
    """

    read: Callable[[], Iterable[TextBatch]]
    name: str = "the texts"

    @classmethod
    def of(cls, source: Any, fmt: TextFormat | None = None) -> Texts:
        """Return the texts of a file or a frame; `Texts` are returned unchanged."""
        if isinstance(source, Texts):
            return source
        fmt = fmt or TextFormat()
        if is_frame(source):
            return cls(lambda: read_frame(source, fmt), f"the {type(source).__name__}")
        if not isinstance(source, str | os.PathLike):
            raise DataError(
                f"the texts are a {type(source).__name__}; expected a file, or a frame with columns"
                " of texts and labels (lists are for DiSMECTextClassifier)"
            )
        return cls(lambda: read_texts(source, fmt), str(source))

    def weighted(self, weights: Any = None) -> Texts:
        """Return the texts of positive weight, the only ones that training learns from.

        `weights`, one number per text, override those of a file or frame.
        """
        if weights is None:
            return replace(self, read=lambda: map(_without_zero_weights, self.read()))
        given = np.asarray(weights)
        found = check_row_weights(given, given.size)
        return replace(self, read=lambda: self._with_weights(found))

    def which_count(self, weights: Any = None) -> npt.NDArray[np.bool_] | None:
        """Whether each text is one of those that `counted` keeps; None if all are."""
        found: list[float] = []
        if weights is not None:
            found = np.asarray(weights, np.float64).tolist()
        else:
            for batch in self.read():
                if batch.weights is None:
                    return None
                found.extend(batch.weights)
        return None if all(found) else np.array(found) != 0

    def _with_weights(self, weights: RowWeights) -> Iterator[TextBatch]:
        n_rows = 0
        for batch in self.read():
            part = weights[n_rows : n_rows + len(batch.texts)].tolist()
            n_rows += len(batch.texts)
            if len(part) == len(batch.texts):
                yield _without_zero_weights(batch._replace(weights=part))
        if n_rows != len(weights):
            raise DataError(
                f"weights: {counted(len(weights), 'number')} for {counted(n_rows, 'text')}"
            )


def _without_zero_weights(batch: TextBatch) -> TextBatch:
    """Return the batch without rows of weight 0."""
    if batch.weights is None or all(batch.weights):
        return batch
    keep = [row for row, weight in enumerate(batch.weights) if weight]
    return TextBatch(
        [batch.texts[row] for row in keep],
        [batch.labels[row] for row in keep],
        batch.first_row,
        None if batch.ids is None else [batch.ids[row] for row in keep],
        [batch.weights[row] for row in keep],
    )
