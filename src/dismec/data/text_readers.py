"""Lines, a JSON array, or the rows of a table → rows of texts with label names."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from io import BufferedReader, StringIO
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from dismec.data.formats import BOM, FASTTEXT_LABEL, DataFile, UnreadableError, arrow_module
from dismec.data.text_format import (
    LabelCells,
    RefusedError,
    TextFormat,
    TextRow,
    check_unicode,
    checked_weight,
    quoted,
)
from dismec.errors import DataError, located

T = TypeVar("T")

_LONGEST_FIELD = 1 << 24  # the csv module uses four bytes per character of a field
_LONGEST_LINE = 1 << 28
_MOST_BLANK = 1 << 20  # consecutive blank lines: compression makes any number of them tiny
_CHUNK = 1 << 20  # characters of a JSON array read at a time
_MOST_SHOWN = 20  # names of columns in an error


class RowReader:
    """Makes rows of the values in the columns of a table, or under the keys of JSON objects."""

    def __init__(self, fmt: TextFormat, kind: str = "", *, needs_labels: bool = True) -> None:
        self.fmt, self.needs_labels = fmt, needs_labels
        self.is_json = kind.startswith("JSON")
        default = None if self.is_json else ","
        self.cells = LabelCells(fmt.label_separator, default, untyped=kind in ("CSV", "TSV"))
        self._texts = fmt.text_keys
        self._needed = [(name, "text_column") for name in self._texts]
        self._needed += [(fmt.label_key, "label_column")] if needs_labels else []
        for option in ("id_column", "weight_column"):
            if (name := getattr(fmt, option)) is not None:
                self._needed.append((name, option))

    def check(self, names: Collection[str]) -> None:
        """Raise `RefusedError` if a column or key that is needed is missing."""
        for name, option in self._needed:
            if name not in names:
                what = "key" if self.is_json else "column"
                shown = ", ".join(map(quoted, list(names)[:_MOST_SHOWN]))
                more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
                there = f"the {what}s are {shown}{more}" if names else f"there are no {what}s"
                raise RefusedError(f"no {what} {quoted(name)} ({option}); {there}")

    def columns(self, header: list[str]) -> list[str]:
        """Return the columns to read; raise `RefusedError` if one is missing or duplicated."""
        self.check(header)
        used = dict.fromkeys([*(name for name, _ in self._needed), self.fmt.label_key])
        for name in used:
            if header.count(name) > 1:
                raise RefusedError(f"there are {header.count(name)} columns {quoted(name)}")
        return [name for name in used if name in header]

    def row(self, values: Mapping[str, Any]) -> TextRow:
        """Make a row of the values of these columns; raise `RefusedError` if one is invalid."""
        texts = []
        for key in self._texts:
            if not isinstance(text := values[key], str):
                raise RefusedError(f"{quoted(key)} is {quoted(text)}, which is not text")
            texts.append(text)
        text = texts[0] if len(texts) == 1 else "\n\n".join(filter(None, texts))
        check_unicode(text)
        name = weight = None
        if self.fmt.id_column is not None:
            value = values[self.fmt.id_column]
            if isinstance(value, bool | list | dict | None):
                raise RefusedError(f"the id is {quoted(value)}; expected text or a number")
            name = str(value)
        if self.fmt.weight_column is not None:
            weight = checked_weight(values[self.fmt.weight_column])
        return TextRow(text, self.cells.names(values.get(self.fmt.label_key)), name, weight)


def _parsed(
    records: Iterable[tuple[int, T]], parse: Callable[[T], TextRow], where: str
) -> Iterator[TextRow]:
    """Yield the rows of numbered records; errors begin with `where` and the number."""
    for number, record in records:
        try:
            row = parse(record)
        except RefusedError as error:
            raise DataError(f"{where}{number}: {error}") from None
        yield row


def file_rows(data: DataFile, file: BufferedReader, reader: RowReader) -> Iterator[TextRow]:
    """Yield the rows of an open file of texts."""
    path, where = data.path, f"{data.path}:"
    if data.kind in ("Parquet", "Arrow"):
        return _arrow_rows(path, file, reader, parquet=data.kind == "Parquet")
    lines = _lines_of(path, file)
    filled = ((n, s) for n, line in enumerate(lines, 1) if (s := line.strip()))
    if data.kind == "JSON array":
        return _parsed(_array_values(path, lines), lambda value: _json_row(value, reader), where)
    if data.kind == "fastText":
        return _parsed(filled, _fasttext_row, where)
    if data.kind == "plain text":  # a blank line is an empty text
        return (TextRow(line.strip(), []) for line in lines)
    if data.kind in ("CSV", "TSV"):
        return _csv_rows(path, lines, data.delimiter, reader)
    return _parsed(filled, lambda line: _json_row(_json_value(line), reader), where)


def frame_rows(
    name: str,
    header: list[str],
    values: Callable[[str], list[Any]],
    reader: RowReader,
) -> Iterator[TextRow]:
    """Yield the rows of a frame with these columns, whose values a function returns."""
    with located(name, DataError, RefusedError):
        columns = reader.columns(header)
    rows = zip(*map(values, columns), strict=True)
    records = (dict(zip(columns, row, strict=True)) for row in rows)
    yield from _parsed(enumerate(records), reader.row, f"{name}: row index ")


def _lines_of(path: Path, file: BufferedReader) -> Iterator[str]:
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


def _fasttext_row(line: str) -> TextRow:
    labels = FASTTEXT_LABEL.findall(line)
    if "" in labels:
        raise RefusedError("a label has an empty name: nothing follows __label__")
    return TextRow(FASTTEXT_LABEL.sub("", line).rstrip(), list(dict.fromkeys(labels)))


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


def _json_value(line: str) -> Any:
    value, end = _decoded(line)
    if end < len(line):
        raise _not_json("Extra data", end)
    return value


def _json_row(value: Any, reader: RowReader) -> TextRow:
    if type(value) is not dict:
        raise RefusedError(f'expected {{"text": …, "labels": […]}}, not {quoted(value)}')
    reader.check(value)
    return reader.row(value)


class _NotJSONError(RefusedError):
    """Text that may become valid JSON when more is read."""


def _not_json(reason: str, place: int) -> _NotJSONError:
    at = f"{reason.removesuffix(' at')} at character {place + 1}"
    return _NotJSONError(f"not a JSON object on a line of its own: {at}")


def _decoded(text: str) -> tuple[Any, int]:
    try:
        return _decode(text)
    except json.JSONDecodeError as error:
        raise _not_json(error.msg, error.pos) from None
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"cannot be read as JSON: {error}") from None


def _array_values(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, Any]]:
    """Yield the entries of one JSON array, on one or more lines, and the lines they start on.

    It is read in pieces: only one entry, and what was read with it, is in memory.
    """
    text, number = "", 1

    def more() -> bool:
        nonlocal text
        whole = StringIO()  # lines may be short, and a list of them many times as large
        while whole.tell() < max(_CHUNK, len(text)) and (piece := next(lines, "")):
            whole.write(piece)
        text += whole.getvalue()
        return whole.tell() > 0

    def skip() -> str:
        """Skip white space, and return the next character, if any."""
        nonlocal text, number
        while True:
            rest = text.lstrip()
            number += text.count("\n", 0, len(text) - len(rest))
            text = rest
            if text or not more():
                return text[:1]

    def refuse(reason: str) -> NoReturn:
        raise DataError(f"{path}:{number}: {reason}") from None

    skip()
    text, first = text.removeprefix("["), True
    while (sign := skip()) != "]":
        if not first:
            if sign != ",":
                refuse("expected ',' or ']' after a row of the array; is the file cut off?")
            text = text[1:]
            skip()
        first = False
        while True:
            try:
                value, end = _decoded(text)
                break
            except RefusedError as error:
                if len(text) > _LONGEST_LINE or not (isinstance(error, _NotJSONError) and more()):
                    refuse(str(error))
        yield number, value
        number += text.count("\n", 0, end)
        text = text[end:]
    text = text[1:]
    if skip():
        refuse("text after the end of the array")


def _csv_rows(
    path: Path, lines: Iterator[str], delimiter: str, reader: RowReader
) -> Iterator[TextRow]:
    """Yield the rows of a CSV or TSV file, after its header."""
    records = _csv_fields(path, lines, delimiter)
    number, names = next(records, (1, []))
    if not names:
        return
    header = [name.strip() for name in names]
    with located(f"{path}:{number}", DataError, RefusedError):
        reader.columns(header)

    def parse(fields: list[str]) -> TextRow:
        if len(fields) != len(header):
            raise RefusedError(f"{len(fields)} fields, but the header has {len(header)}")
        return reader.row(dict(zip(header, fields, strict=True)))

    yield from _parsed(records, parse, f"{path}:")


def _arrow_rows(
    path: Path, file: BufferedReader, reader: RowReader, *, parquet: bool
) -> Iterator[TextRow]:
    """Yield the rows of a Parquet or Arrow file."""
    kind = "Parquet" if parquet else "Arrow"
    arrow = arrow_module(f"{path}: {kind} files are read")
    try:
        table = arrow.ArrowTable(file, parquet=parquet)
        records = table.rows(reader.columns(table.names))
        yield from _parsed(enumerate(records, 1), reader.row, f"{path}: row ")
    except RefusedError as error:
        raise DataError(f"{path}: {error}") from None
    except arrow.ARROW_ERRORS as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: cannot be read as {kind}: {reason}") from None


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
