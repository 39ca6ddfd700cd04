"""Text files and frames → texts with label names.

A file contains JSON lines, a JSON array, CSV, TSV, fastText lines, plain text, Parquet or Arrow,
and is read one batch of rows at a time, so it may be larger than memory. Nothing is skipped
silently; the first invalid line raises an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader
from typing import Any, NamedTuple

from dismec.data.columns import column_values, frame_columns
from dismec.data.files import StrPath
from dismec.data.formats import DataFile, Kind, detect
from dismec.data.text_format import LabelCells, RefusedError, TextFormat, TextRow, unused_entries
from dismec.data.text_readers import (
    arrow_rows,
    csv_rows,
    fasttext_rows,
    json_array_rows,
    json_rows,
    lines_of,
    plain_rows,
    table_rows,
)
from dismec.data.types import Frame
from dismec.errors import DataError

__all__ = ["TextBatch", "TextFormat", "is_frame", "read_frame", "read_texts"]

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

    Raises
    ------
    DataError
        If something in the file is wrong: ``path:line: reason``. Also if labels seem to be
        separated by something other than `fmt` says.

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
        default = None if data.kind.startswith("JSON") else ","
        untyped = data.kind in ("CSV", "TSV")
        cells = LabelCells(fmt.label_separator, default, untyped=untyped)
        rows = _rows_of(data, file, fmt, cells, needs_labels)
        yield from _batches(str(data), rows, cells, fmt, needs_labels, batch_chars)


def is_frame(source: Any) -> bool:
    """Return whether `source` is a table with named columns that `read_frame` can read."""
    return frame_columns(source) is not None


def read_frame(
    frame: Frame,
    fmt: TextFormat = TextFormat(),
    *,
    needs_labels: bool = True,
    batch_chars: int = 1 << 24,
) -> Iterator[TextBatch]:
    """Read texts and their labels from a frame, a batch at a time.

    Parameters
    ----------
    frame : frame
        A table of pandas, polars, pyarrow or Hugging Face datasets.
    fmt : TextFormat, default=TextFormat()
        The names of the columns.
    needs_labels : bool, default=True
        Whether rows must have labels. An empty list of labels is allowed. Pass False for texts to
        predict labels for.
    batch_chars : int, default=16777216
        Approximate number of characters per batch, including an overhead per row.

    Returns
    -------
    iterator of TextBatch
        The batches, in the order of the frame.

    Raises
    ------
    DataError
        If something in the frame is wrong.

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
    cells = LabelCells(fmt.label_separator)
    wanted = [*fmt.text_keys, fmt.label_key, fmt.id_column, fmt.weight_column]
    name = f"the {type(frame).__name__}"
    try:
        values = [
            column_values(frame[c], f"column {c!r}", "value")
            for c in wanted
            if c is not None and c in header
        ]
        lines = zip(*values, strict=True)
        rows = table_rows(name, header, lines, fmt, cells, needs_labels, of_file=False)
        yield from _batches(name, rows, cells, fmt, needs_labels, batch_chars)
    except RefusedError as error:
        raise DataError(f"{name}: {error}") from None


def _batches(
    name: str,
    rows: Iterator[TextRow],
    cells: LabelCells,
    fmt: TextFormat,
    needs_labels: bool,
    batch_chars: int,
) -> Iterator[TextBatch]:
    texts: list[str] = []
    labels: list[list[str]] = []
    ids: list[str] | None = None if fmt.id_column is None else []
    weights: list[float] | None = None if fmt.weight_column is None else []
    n_rows = chars = 0
    for text, names, row_id, weight in rows:
        texts.append(text)
        labels.append(names)
        if ids is not None:
            ids.append(row_id or "")
        if weights is not None and weight is not None:
            weights.append(weight)
        chars += len(text) + _ROW_CHARS
        if chars >= batch_chars:
            _check_separator(name, cells, needs_labels)
            yield TextBatch(texts, labels, n_rows, ids, weights)
            n_rows += len(texts)
            texts, labels, chars = [], [], 0
            ids = None if ids is None else []
            weights = None if weights is None else []
    if texts:
        _check_separator(name, cells, needs_labels)
        yield TextBatch(texts, labels, n_rows, ids, weights)
    elif not n_rows:
        raise DataError(f"{name}: no rows")


def _check_separator(name: str, cells: LabelCells, needs_labels: bool) -> None:
    if needs_labels and (doubt := cells.doubt()):
        raise DataError(f"{name}: {doubt}")


def _rows_of(
    data: DataFile, file: BufferedReader, fmt: TextFormat, cells: LabelCells, needs_labels: bool
) -> Iterator[TextRow]:
    path = data.path
    kind: Kind = "JSON" if data.is_blank and not data.is_texts else data.kind
    if kind in ("XMC text", "npz", "xmc"):
        raise DataError(
            f"{path}: not texts; a CSV or TSV file needs the extension .csv or .tsv, or its format "
            "given",
            "data_format='csv'",
        )
    for entry in unused_entries(kind):
        if getattr(fmt, entry) is not None:
            raise DataError(f"{path}: {entry} does not apply to lines of {kind}")
    if kind in ("Parquet", "Arrow"):
        return arrow_rows(path, file, fmt, cells, needs_labels, parquet=kind == "Parquet")
    lines = lines_of(path, file)
    if kind == "JSON":
        return json_rows(path, lines, fmt, cells, needs_labels)
    if kind == "JSON array":
        return json_array_rows(path, lines, fmt, cells, needs_labels)
    if kind == "fastText":
        return fasttext_rows(path, lines)
    if kind == "plain text":
        if needs_labels:
            raise DataError(
                f"{path}: plain text without labels; JSON lines, CSV, TSV, fastText lines and "
                "Parquet can hold both"
            )
        return plain_rows(path, lines)
    return csv_rows(path, lines, data.delimiter, fmt, cells, needs_labels)
