"""Lines, or the values of a JSON array → rows of texts with label names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import BufferedReader, StringIO
from pathlib import Path
from typing import Any, NoReturn

from dismec.data.formats import BOM, FASTTEXT_LABEL, UnreadableError
from dismec.data.label_cells import LabelCells
from dismec.data.text_format import (
    RefusedError,
    TextFormat,
    TextRow,
    check_unicode,
    checked_names,
    checked_weight,
    names_there,
    one_text,
    quoted,
)
from dismec.errors import DataError

__all__ = ["fasttext_rows", "json_array_rows", "json_rows", "lines_of", "plain_rows"]

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
