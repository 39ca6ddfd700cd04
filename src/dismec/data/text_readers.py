"""Lines, a JSON array, or the rows of a table → rows of texts with label names."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BufferedReader, StringIO
from pathlib import Path
from typing import Any, NoReturn

from dismec.data.formats import BOM, FASTTEXT_LABEL, UnreadableError
from dismec.data.text_format import (
    LabelCells,
    RefusedError,
    TextFormat,
    TextRow,
    check_unicode,
    checked_names,
    checked_weight,
    column_place,
    names_there,
    one_text,
    quoted,
)
from dismec.errors import DataError

__all__ = [
    "arrow_rows",
    "csv_rows",
    "fasttext_rows",
    "json_array_rows",
    "json_rows",
    "lines_of",
    "plain_rows",
    "table_rows",
]

_LONGEST_FIELD = 1 << 24  # the csv module uses four bytes per character of a field

_LONGEST_LINE = 1 << 28
_MOST_BLANK = 1 << 20  # consecutive blank lines: compression makes any number of them tiny
_CHUNK = 1 << 20  # characters of a JSON array read at a time


def lines_of(path: Path, file: BufferedReader) -> Iterator[str]:
    """Yield all lines, including blank ones, with their line breaks."""
    number, n_blank = 1, 0
    line = b""
    try:
        while line := file.readline(_LONGEST_LINE + 1):
            if number == 1:
                line = line.removeprefix(BOM)
            if len(line) > _LONGEST_LINE:
                raise DataError(f"{path}:{number}: the line is longer than {_LONGEST_LINE} bytes")
            if b"\0" in line:
                raise DataError(f"{path}:{number}: a NUL byte: this is not UTF-8 text")
            n_blank = 0 if len(line) > 2 or line.strip() else n_blank + 1
            if n_blank > _MOST_BLANK:
                raise DataError(
                    f"{path}:{number}: {n_blank:,} blank lines in a row: not a text file"
                )
            yield line.decode()
            number += 1
    except UnicodeDecodeError as error:
        byte = f"byte 0x{line[error.start]:02x} at place {error.start + 1} of the line"
        raise DataError(f"{path}:{number}: not UTF-8: {byte}") from None
    except UnreadableError as error:
        raise DataError(f"{path}:{number}: {error}") from error


def _line_rows(
    path: Path, lines: Iterator[str], parse: Callable[[str], TextRow]
) -> Iterator[TextRow]:
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line:
            continue
        try:
            row = parse(line)
        except RefusedError as error:
            raise DataError(f"{path}:{number}: {error}") from None
        yield row


# Lines of words


def fasttext_rows(path: Path, lines: Iterator[str]) -> Iterator[TextRow]:
    """Yield rows from lines in which words that start with ``__label__`` are labels."""
    return _line_rows(path, lines, _fasttext_row)


def _fasttext_row(line: str) -> TextRow:
    labels = FASTTEXT_LABEL.findall(line)
    if "" in labels:
        raise RefusedError("a label has an empty name: nothing follows __label__")
    return TextRow(FASTTEXT_LABEL.sub("", line).rstrip(), list(dict.fromkeys(labels)))


def plain_rows(path: Path, lines: Iterator[str]) -> Iterator[TextRow]:
    """Yield texts without labels, one per line; a blank line is an empty text."""
    return (TextRow(line.strip(), []) for line in lines)


# JSON


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _json_float(number: str) -> str:
    return number.removesuffix(".0")


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise RefusedError(f"the key {quoted(twice)} occurs {keys.count(twice)} times in an object")
    return found


# Numbers are kept as written: the label 1.50 is named "1.50". But pandas converts integers to
# floats if some are missing, so 1.0 is the label "1".
_decode = json.JSONDecoder(
    parse_int=str,
    parse_float=_json_float,
    parse_constant=_no_constant,
    object_pairs_hook=_json_object,
).raw_decode


def json_rows(
    path: Path, lines: Iterator[str], fmt: TextFormat, cells: LabelCells, needs_labels: bool
) -> Iterator[TextRow]:
    """Yield rows from one JSON object per line."""

    def parse(line: str) -> TextRow:
        value, end = _decoded(line, 0)
        if end < len(line):
            raise _not_json("Extra data", end)
        return _json_row(value, fmt, cells, needs_labels)

    return _line_rows(path, lines, parse)


def json_array_rows(
    path: Path, lines: Iterator[str], fmt: TextFormat, cells: LabelCells, needs_labels: bool
) -> Iterator[TextRow]:
    """Yield rows from the objects of one JSON array, on one or more lines.

    It is read in pieces: only one object, and what was read with it, is in memory.
    """
    text, number, last = "", 1, False

    def more() -> bool:
        nonlocal text, last
        whole = StringIO()  # lines may be short, and a list of them many times as large
        size = 0
        while size < max(_CHUNK, len(text)) and not last:
            piece = next(lines, None)
            last = piece is None
            size += whole.write(piece or "")
        text += whole.getvalue()
        return size > 0

    def skip() -> None:
        nonlocal text, number
        while True:
            rest = text.lstrip()
            number += text.count("\n", 0, len(text) - len(rest))
            text = rest
            if text or not more():
                return

    def refuse(reason: str) -> NoReturn:
        raise DataError(f"{path}:{number}: {reason}") from None

    skip()
    text = text.removeprefix("[")
    skip()
    first = True
    while not text.startswith("]"):
        if not first:
            if not text.startswith(","):
                refuse("expected ',' or ']' after a row of the array; is the file cut off?")
            text = text[1:]
            skip()
        first = False
        while True:
            try:
                value, end = _decoded(text, 0)
                row = _json_row(value, fmt, cells, needs_labels)
                break
            except RefusedError as error:
                if len(text) > _LONGEST_LINE or not (isinstance(error, _NotJSONError) and more()):
                    refuse(str(error))
        yield row
        number += text.count("\n", 0, end)
        text = text[end:]
        skip()
    text = text[1:]
    skip()
    if text:
        refuse("text after the end of the array")


class _NotJSONError(RefusedError):
    """Text that may become valid JSON when more is read."""


def _not_json(reason: str, place: int) -> _NotJSONError:
    at = f"{reason.removesuffix(' at')} at character {place + 1}"
    return _NotJSONError(f"not a JSON object on a line of its own: {at}")


def _decoded(text: str, begin: int) -> tuple[Any, int]:
    try:
        return _decode(text, begin)
    except json.JSONDecodeError as error:
        raise _not_json(error.msg, error.pos) from None
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"cannot be read as JSON: {error}") from None


def _json_row(row: Any, fmt: TextFormat, cells: LabelCells, needs_labels: bool) -> TextRow:
    if type(row) is not dict:
        raise RefusedError(f'expected {{"text": …, "labels": […]}}, not {quoted(row)}')
    texts = []
    for key in fmt.text_keys:
        text = row.get(key)
        if type(text) is not str:
            if key in row:
                raise RefusedError(f"{quoted(key)} is {quoted(text)}, which is not text")
            raise RefusedError(f"no key {quoted(key)} (text_column); {names_there('keys', row)}")
        texts.append(text)
    text = one_text(texts)
    check_unicode(text)
    name = None
    if fmt.id_column is not None:
        name = row.get(fmt.id_column)
        if type(name) is not str:
            what = f"no text or number under the key {quoted(fmt.id_column)} (id_column)"
            raise RefusedError(f"{what}; {names_there('keys', row)}")
    weight = None
    if fmt.weight_column is not None:
        if fmt.weight_column not in row:
            what = f"no weight under the key {quoted(fmt.weight_column)} (weight_column)"
            raise RefusedError(f"{what}; {names_there('keys', row)}")
        weight = checked_weight(row[fmt.weight_column])
    return TextRow(text, _json_labels(row, fmt.label_key, cells, needs_labels), name, weight)


def _json_labels(
    row: dict[str, Any], label_key: str, cells: LabelCells, needs_labels: bool
) -> list[str]:
    labels = row.get(label_key)
    if labels is None:
        if needs_labels and label_key not in row:  # frames write null for a missing value
            what = f"no labels under the key {quoted(label_key)} (label_column)"
            raise RefusedError(f"{what}; {names_there('keys', row)}")
        return []
    if type(labels) is str:
        return cells.names(labels)
    if type(labels) is not list:
        raise RefusedError(f"the labels are {quoted(labels)}; expected a list of names")
    return checked_names(labels)


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
