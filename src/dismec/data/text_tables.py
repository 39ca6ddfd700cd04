"""Tables with named columns (CSV, TSV, Parquet, Arrow, frames) → rows of texts with label names."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

from dismec.data.label_cells import LabelCells
from dismec.data.text_format import (
    RefusedError,
    TextFormat,
    TextRow,
    check_unicode,
    checked_weight,
    column_place,
    one_text,
    quoted,
)
from dismec.errors import DataError

__all__ = ["arrow_rows", "csv_rows", "table_rows"]

_LONGEST_FIELD = 1 << 24  # the csv module uses four bytes per character of a field


def csv_rows(
    path: Path,
    lines: Iterator[str],
    delimiter: str,
    fmt: TextFormat,
    cells: LabelCells,
    needs_labels: bool,
) -> Iterator[TextRow]:
    """Yield the rows of a CSV or TSV file, after its header."""
    rows = _csv_fields(path, lines, delimiter)
    number, names = next(rows, (1, None))
    if names is None:
        return
    header = [name.strip() for name in names]
    try:
        columns = _Columns(header, fmt, needs_labels)
    except RefusedError as error:
        raise DataError(f"{path}:{number}: {error}") from None
    for number, row in rows:
        if len(row) != len(header):
            raise DataError(f"{path}:{number}: {len(row)} fields, but the header has {len(header)}")
        try:
            found = columns.row([row[place] for place in columns.places], cells)
        except RefusedError as error:
            raise DataError(f"{path}:{number}: {error}") from None
        yield found


def arrow_rows(
    path: Path,
    file: BufferedReader,
    fmt: TextFormat,
    cells: LabelCells,
    needs_labels: bool,
    *,
    parquet: bool,
) -> Iterator[TextRow]:
    """Yield the rows of a Parquet or Arrow file."""
    kind = "Parquet" if parquet else "Arrow"
    try:
        from dismec.data.arrow import ARROW_ERRORS, ArrowTable
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise DataError(
            f"{path}: {kind} files are read with pyarrow: pip install 'dismec[arrow]'"
        ) from None
    try:
        table = ArrowTable(file, parquet=parquet)
        names = table.names
        values = table.rows([names[i] for i in _places(path, names, fmt, needs_labels)])
        yield from table_rows(str(path), names, values, fmt, cells, needs_labels)
    except ARROW_ERRORS as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: cannot be read as {kind}: {reason}") from None


def table_rows(
    name: str,
    header: list[str],
    values: Iterable[Sequence[Any]],
    fmt: TextFormat,
    cells: LabelCells,
    needs_labels: bool,
    *,
    of_file: bool = True,
) -> Iterator[TextRow]:
    """Yield rows from the values that the `_Columns` of a header need.

    Errors count the rows of a file from 1, and give the index for rows of a frame.
    """
    columns = _Columns(header, fmt, needs_labels)
    for number, row in enumerate(values, 1):
        try:
            found = columns.row(row, cells)
        except RefusedError as error:
            where = f"row {number}" if of_file else f"row index {number - 1}"
            raise DataError(f"{name}: {where}: {error}") from None
        yield found


def _places(path: Path, header: list[str], fmt: TextFormat, needs_labels: bool) -> list[int]:
    try:
        return _Columns(header, fmt, needs_labels).places
    except RefusedError as error:
        raise DataError(f"{path}: {error}") from None


class _Columns:
    """The columns to read: text, then labels, id and weight, if present."""

    def __init__(self, header: list[str], fmt: TextFormat, needs_labels: bool) -> None:
        self._texts = [column_place(header, name, "text_column") for name in fmt.text_keys]
        self.places = list(self._texts)
        self._has_labels = needs_labels or fmt.label_key in header
        if self._has_labels:
            self.places.append(column_place(header, fmt.label_key, "label_column"))
        self._has_id = fmt.id_column is not None
        if fmt.id_column is not None:
            self.places.append(column_place(header, fmt.id_column, "id_column"))
        self._has_weight = fmt.weight_column is not None
        if fmt.weight_column is not None:
            self.places.append(column_place(header, fmt.weight_column, "weight_column"))

    def row(self, values: Sequence[Any], cells: LabelCells) -> TextRow:
        """Create a row from the values of `places`."""
        texts = list(values[: len(self._texts)])
        for text in texts:
            if not isinstance(text, str):
                raise RefusedError(f"the text is {quoted(text)}, which is not text")
        text = one_text(texts)
        check_unicode(text)
        rest = list(values[len(self._texts) :])
        weight = checked_weight(rest.pop()) if self._has_weight else None
        name = str(rest.pop()) if self._has_id else None
        return TextRow(text, cells.names(rest[0]) if self._has_labels else [], name, weight)


def _csv_fields(
    path: Path, lines: Iterator[str], delimiter: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield nonblank rows, and the number of the line where each of them starts."""
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    number = 1
    try:
        for row in reader:
            if row and not (len(row) == 1 and row[0].isspace()):
                yield number, row
            number = reader.line_num + 1
    except csv.Error as error:
        hint = "is a quote not closed, or a quote in a field not doubled?"
        reason = str(error).partition(" - ")[0].replace("\t", "\\t")
        raise DataError(f"{path}:{number}: {reason}; {hint}") from None
