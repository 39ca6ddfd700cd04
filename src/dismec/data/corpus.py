"""Text files → texts with label names.

A file is JSON lines, CSV, TSV or fastText lines, gzipped or not, and is read a batch of rows at a
time: it may be larger than memory. Nothing in it is left out in silence; the first line that is not
as it should be ends the reading with an error that names it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, TypeAlias

from dismec.data.files import StrPath
from dismec.data.formats import BOM, FASTTEXT_LABEL, DataFile, UnreadableError, detect
from dismec.errors import DataError

__all__ = ["TextBatch", "TextFormat", "read_texts"]

_Row: TypeAlias = tuple[str, list[str]]

_LONGEST_LINE = 1 << 28
_LONGEST_FIELD = 1 << 24  # the csv module holds a field at four bytes a character
_ROW_CHARS = 256  # what the objects of a row take beyond the characters of its text
# Entries of a `TextFormat` that a kind of file has no use for.
_UNUSED: dict[str, tuple[str, ...]] = {
    "CSV": (),
    "TSV": (),
    "JSON": ("label_separator",),
    "fastText": ("text_column", "label_column", "label_separator"),
}


@dataclass(frozen=True)
class TextFormat:
    """Where texts and labels are in a file; None stands for the default.

    Attributes
    ----------
    text_column
        Column of a CSV or TSV file, or key of JSON lines: ``text`` by default. Several, joined by
        commas, give one text with a blank line between those that are not empty.
    label_column
        The same for the labels: ``labels`` by default.
    label_separator
        What stands between labels within their column of a CSV or TSV file: ``,`` by default.
    """

    text_column: str | None = None
    label_column: str | None = None
    label_separator: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) == "":
                raise DataError(f"{field.name} is empty")
        if "" in self.text_keys:
            raise DataError(f"text_column is {self.text_column!r}; a name is missing in it")

    @property
    def text_keys(self) -> list[str]:
        """Names of the columns that make up the text."""
        return [name.strip() for name in (self.text_column or "text").split(",")]

    @property
    def label_key(self) -> str:
        """Name of the column of the labels."""
        return self.label_column or "labels"


class TextBatch(NamedTuple):
    """Some rows of a file, in its order."""

    texts: list[str]
    labels: list[list[str]]
    """Names of each row's labels in the file's order, each once."""
    first_row: int
    """How many rows came before this batch."""


class _RefusedError(Exception):
    """What is wrong with a line."""


def read_texts(
    path: StrPath,
    fmt: TextFormat = TextFormat(),
    *,
    needs_labels: bool = True,
    batch_chars: int = 1 << 24,
) -> Iterator[TextBatch]:
    """Read a text file, a batch at a time.

    Parameters
    ----------
    path
        JSON lines ``{"text": …, "labels": [names]}``, where labels may also be one name; CSV or TSV
        with a header; or fastText lines, where words that begin with ``__label__`` are labels. Any
        of them gzipped. UTF-8. Blank lines are skipped.
    fmt
        Names of the columns; an entry that the file's kind has no use for is refused.
    needs_labels
        Whether a row without a ``labels`` key, or a file without such a column, is refused. A row
        whose list of labels is empty is fine.
    batch_chars
        About how many characters a batch has, with some for each row's own objects.

    Raises
    ------
    DataError
        ``path:line: reason`` at the first line that is wrong, or if there is nothing to read. The
        line is that where the row begins.
    """
    texts: list[str] = []
    labels: list[list[str]] = []
    n_rows = chars = 0
    with detect(path) as data, data.open() as file:
        for text, names in _rows_of(data, file, fmt, needs_labels):
            texts.append(text)
            labels.append(names)
            chars += len(text) + _ROW_CHARS
            if chars >= batch_chars:
                yield TextBatch(texts, labels, n_rows)
                n_rows += len(texts)
                texts, labels, chars = [], [], 0
    if texts:
        yield TextBatch(texts, labels, n_rows)
    elif not n_rows:
        raise DataError(f"{path}: no rows")


# Lines


def _rows_of(data: DataFile, file: BinaryIO, fmt: TextFormat, needs_labels: bool) -> Iterator[_Row]:
    path = data.path
    kind = "JSON" if data.is_blank and not data.is_texts else data.kind
    if kind not in _UNUSED:
        raise DataError(
            f"{path}: not JSON lines or fastText lines; a CSV or TSV file needs the ending "
            ".csv or .tsv"
        )
    for name in _UNUSED[kind]:
        if getattr(fmt, name) is not None:
            raise DataError(f"{path}: {name} means nothing here: these are {kind} lines")
    lines = _lines(path, file)
    if kind == "JSON":
        keys, label_key = fmt.text_keys, fmt.label_key
        return _line_rows(path, lines, lambda line: _json_row(line, keys, label_key, needs_labels))
    if kind == "fastText":
        return _line_rows(path, lines, _fasttext_row)
    return _csv_rows(path, lines, "\t" if kind == "TSV" else ",", fmt, needs_labels)


def _lines(path: Path, file: BinaryIO) -> Iterator[str]:
    """All lines, the blank ones too, with their line breaks."""
    number = 1
    line = b""
    try:
        while line := file.readline(_LONGEST_LINE + 1):
            if number == 1:
                line = line.removeprefix(BOM)
            if len(line) > _LONGEST_LINE:
                raise DataError(f"{path}:{number}: the line is longer than {_LONGEST_LINE} bytes")
            if b"\0" in line:
                raise DataError(f"{path}:{number}: a NUL byte: this is not UTF-8 text")
            yield line.decode()
            number += 1
    except UnicodeDecodeError as error:
        byte = f"byte 0x{line[error.start]:02x} at place {error.start + 1} of the line"
        raise DataError(f"{path}:{number}: not UTF-8: {byte}") from None
    except UnreadableError as error:
        raise DataError(f"{path}:{number}: {error}") from error


# Rows


def _line_rows(path: Path, lines: Iterator[str], parse: Callable[[str], _Row]) -> Iterator[_Row]:
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line:
            continue
        try:
            row = parse(line)
        except _RefusedError as error:
            raise DataError(f"{path}:{number}: {error}") from None
        yield row


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Numbers stay as they are written: the label 1.50 is named "1.50".
_decode = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_no_constant).raw_decode


def _json_row(line: str, text_keys: list[str], label_key: str, needs_labels: bool) -> _Row:
    try:
        row, end = _decode(line)
        if end < len(line):
            raise json.JSONDecodeError("Extra data", line, end)
    except json.JSONDecodeError as error:
        place = f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"
        raise _RefusedError(f"not a row as JSON on a line of its own: {place}") from None
    except (ValueError, RecursionError) as error:
        raise _RefusedError(f"not JSON that can be read: {error}") from None
    if type(row) is not dict:
        raise _RefusedError(f'expected {{"text": …, "labels": […]}}, not {_quoted(row)}')
    texts = []
    for key in text_keys:
        text = row.get(key)
        if type(text) is not str:
            if key in row:
                raise _RefusedError(f"{_quoted(key)} is {_quoted(text)}, which is not text")
            raise _RefusedError(f"no key {_quoted(key)} (text_column); {_names_there('keys', row)}")
        texts.append(text)
    text = texts[0] if len(texts) == 1 else _one_text(texts)
    _check_unicode(text)
    labels = row.get(label_key)
    if labels is None:
        if needs_labels:
            what = f"no labels under the key {_quoted(label_key)} (label_column)"
            raise _RefusedError(f"{what}; {_names_there('keys', row)}")
        return text, []
    return text, _checked_labels([labels] if type(labels) is str else labels)


def _checked_labels(labels: Any) -> list[str]:
    if type(labels) is not list:
        raise _RefusedError(f"the labels are {_quoted(labels)}; expected a list of names")
    try:
        named = all(map(str.strip, labels))
    except TypeError:
        wrong = next(label for label in labels if type(label) is not str)
        raise _RefusedError(f"the label {_quoted(wrong)} is not a name") from None
    if not named:
        raise _RefusedError("a label has an empty name")
    _check_unicode("\n".join(labels))
    return list(dict.fromkeys(labels))


def _check_unicode(text: str) -> None:
    """Refuse half a surrogate pair, which JSON can spell and no file can hold."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise _RefusedError(f"{half} is half of a surrogate pair, not a character") from None


def _fasttext_row(line: str) -> _Row:
    labels = FASTTEXT_LABEL.findall(line)
    if "" in labels:
        raise _RefusedError("a label has an empty name: nothing follows __label__")
    return FASTTEXT_LABEL.sub("", line).rstrip(), list(dict.fromkeys(labels))


def _csv_rows(
    path: Path, lines: Iterator[str], delimiter: str, fmt: TextFormat, needs_labels: bool
) -> Iterator[_Row]:
    rows = _csv_fields(path, lines, delimiter)
    number, names = next(rows, (1, None))
    if names is None:
        return
    header = [name.strip() for name in names]
    label_place = None
    try:
        text_places = [_column_place(header, name, "text_column") for name in fmt.text_keys]
        if needs_labels or fmt.label_key in header:
            label_place = _column_place(header, fmt.label_key, "label_column")
    except _RefusedError as error:
        raise DataError(f"{path}:{number}: {error}") from None
    separator = fmt.label_separator or ","
    for number, row in rows:
        if len(row) != len(header):
            raise DataError(f"{path}:{number}: {len(row)} fields, but the header has {len(header)}")
        labels = [] if label_place is None else row[label_place].split(separator)
        named = filter(None, map(str.strip, labels))
        yield _one_text([row[place] for place in text_places]), list(dict.fromkeys(named))


def _csv_fields(
    path: Path, lines: Iterator[str], delimiter: str
) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, and the number of the line where each of them begins."""
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


def _column_place(header: list[str], name: str, option: str) -> int:
    if header.count(name) > 1:
        raise _RefusedError(f"there are {header.count(name)} columns {_quoted(name)}")
    if name not in header:
        what = f"no column {_quoted(name)} ({option})"
        raise _RefusedError(f"{what}; {_names_there('columns', header)}")
    return header.index(name)


def _one_text(texts: list[str]) -> str:
    return "\n\n".join(filter(None, texts))


def _names_there(what: str, names: Any) -> str:
    """The names that are there, as a part of a message."""
    shown = [_quoted(name) for name in names]
    more = f" and {len(shown) - 20} more" if len(shown) > 20 else ""
    return f"the {what} are {', '.join(shown[:20])}{more}" if shown else f"there are no {what}"


def _quoted(value: object) -> str:
    """A value from the file, short and on one line."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    shown = repr(value[:61] if isinstance(value, str) else value)
    return shown if len(shown) <= 64 else f"{shown[:60]}...'"
