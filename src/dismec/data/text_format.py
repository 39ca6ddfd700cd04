"""The meaning of a file's columns: texts, ids, weights, and the label names in a cell.

A cell contains names joined by a separator, or a list as written by pandas or JSON. If no separator
was chosen, cells are split at commas while checking whether another separator would fit better:
names that are not separated would train a useless model.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from dismec.data.columns import is_missing
from dismec.data.formats import Kind
from dismec.errors import DataError

_CHECKED = 2000  # cells after which a wrong separator would have been noticed
_FEWEST = 5  # minimum number of cells with a separator
_CANDIDATES = ("|", ";", "\t", ",", " ")
_ENTRY = r"""'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+"|[-+.\w]++"""
_LIST = re.compile(rf"\s*+(?:(?:{_ENTRY})(?:\s*+,\s*+|\s++|\s*+$))*+", re.DOTALL)
_ENTRIES = re.compile(_ENTRY, re.DOTALL)
_WHOLE = re.compile(r"\A([-+]?[0-9]+)\.0*\Z")  # a float in a list, as numpy writes it
_WHOLE_OF_PANDAS = re.compile(r"\A(-?[0-9]+)\.0\Z")
_BRACKETS = {"[": "]", "(": ")", "{": "}"}

WITHOUT_COLUMNS: tuple[Kind, ...] = ("fastText", "plain text")


class RefusedError(Exception):
    """An invalid row; the message is the reason."""


class TextRow(NamedTuple):
    """A row of a file of texts."""

    text: str
    labels: list[str]
    id: str | None = None
    weight: float | None = None


@dataclass(frozen=True)
class TextFormat:
    """The columns of a file or frame that hold texts, labels, ids and weights.

    Attributes
    ----------
    text_column : str, default=None
        The column of a table or key of JSON that holds the text. By default ``text``. Several
        names, joined by commas, make one text, with a blank line between those that are not empty.
    label_column : str, default=None
        The column or key that holds the labels. By default ``labels``.
    label_separator : str, default=None
        Separator of labels that are written as one string. By default a comma. A list as Python or
        JSON writes it (``['a', 'b']``) is always read as a list.
    id_column : str, default=None
        The column or key of row ids, which predictions repeat.
    weight_column : str, default=None
        The column or key of the weights of rows, for training.

    Examples
    --------
    >>> from dismec import TextFormat
    >>> TextFormat(text_column="title,body", label_column="tags", label_separator="|").text_keys
    ['title', 'body']
    """

    text_column: str | None = None
    label_column: str | None = None
    label_separator: str | None = None
    id_column: str | None = None
    weight_column: str | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value == "":
                raise DataError(f"{name} is empty")
        if "" in self.text_keys:
            raise DataError(f"text_column is {self.text_column!r}; one of its names is empty")

    @property
    def kept(self) -> dict[str, str]:
        """The entries that a model keeps: all that were given, except for `id_column`."""
        return {key: value for key, value in asdict(self).items() if value and key != "id_column"}

    @property
    def text_keys(self) -> list[str]:
        """Names of the columns that make up the text."""
        return [name.strip() for name in (self.text_column or "text").split(",")]

    @property
    def label_key(self) -> str:
        """Name of the label column."""
        return self.label_column or "labels"


def format_of_model(
    columns: Mapping[str, Any] | None, kind: Kind, *, weighted: bool = False, **given: str | None
) -> TextFormat:
    """Combine the format that a model keeps, `columns`, with entries that are `given`.

    Entries of the model that do not apply to this kind of file are left out. `weighted` says
    whether the model's column of weights is used, as for training.
    """
    known = set() if kind in WITHOUT_COLUMNS else {field.name for field in fields(TextFormat)}
    if not weighted:
        known.discard("weight_column")
    kept = {
        key: value
        for key, value in (columns or {}).items()
        if key in known and isinstance(value, str) and value
    }
    return TextFormat(**kept | given)


def checked_names(labels: Iterable[Any]) -> list[str]:
    """Return label names without surrounding white space, each once."""
    names = []
    for label in labels:
        if type(label) is not str:
            raise RefusedError(f"a label must be text, not {quoted(label)}")
        name = label.strip()
        if not name:
            raise RefusedError("a label has an empty name")
        names.append(name)
    check_unicode("\n".join(names))
    return list(dict.fromkeys(names))


def checked_weight(value: Any) -> float:
    """Return the weight of a row: a number of at least 0, possibly given as text."""
    try:
        weight = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        weight = math.nan
    if not 0 <= weight < math.inf:
        raise RefusedError(f"the weight is {quoted(value)}; expected a finite number of at least 0")
    return weight


def check_unicode(text: str) -> None:
    """Reject half a surrogate pair, which JSON can express but no file can store."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise RefusedError(f"{half} is half of a surrogate pair, not a character") from None


def quoted(value: object) -> str:
    """Return a value from the file, shortened, on one line."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    shown = repr(value[:61] if isinstance(value, str) else value)
    return shown if len(shown) <= 64 else f"{shown[:60]}...'"


class LabelCells:
    """Reads the cells of one column.

    `separator` is None if none was chosen: then it is `default`, and if that is None, too, a text
    is one name. An integer becomes the name made of its digits, even if it is stored as a float:
    pandas converts integers to floats if some are missing. `untyped` means that numbers, too, are
    given as text, as in CSV files: then 1.0 is a number.
    """

    def __init__(
        self, separator: str | None = None, default: str | None = ",", *, untyped: bool = False
    ) -> None:
        self._untyped = untyped
        self._separator = separator or default
        self._check = _SeparatorCheck(default) if separator is None else None

    def names(self, value: Any) -> list[str]:
        """Return the names in a cell, each once; raise `RefusedError` for anything else."""
        if is_missing(value):  # missing values in frames
            return []
        if isinstance(value, str):
            listed = _list_entries(value.strip(), self._separator)
            if listed is not None:
                return checked_names(listed)
            if self._check is not None:
                self._check.add(value)
            if self._separator is None:
                return checked_names([value])
            names = [name for part in value.split(self._separator) if (name := part.strip())]
            if self._untyped:
                names = [_WHOLE_OF_PANDAS.sub(r"\1", name) for name in names]
            return list(dict.fromkeys(names))
        if isinstance(value, bool | dict | bytes):
            raise RefusedError(f"the labels are {quoted(value)}; expected names")
        if hasattr(value, "tolist"):  # numpy values
            value = value.tolist()
        if isinstance(value, int | float) and (name := _number_name(value)) is not value:
            return [name]
        if not isinstance(value, Iterable):
            raise RefusedError(f"the labels are {quoted(value)}; expected names")
        entries = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return checked_names(map(_number_name, entries))

    def doubt(self) -> str | None:
        """Return why another separator seems to be right, or None."""
        return None if self._check is None else self._check.doubt()


class _SeparatorCheck:
    """A comparison of the default separator with others, on the first cells."""

    def __init__(self, default: str | None) -> None:
        self._default = default
        self._names: set[str] = set()  # as the default separates them
        self._seen = self._separated = 0
        others = [separator for separator in _CANDIDATES if separator != default]
        self._with = dict.fromkeys(others, 0)
        self._parts: dict[str, set[str]] = {separator: set() for separator in others}

    def add(self, cell: str) -> None:
        if self._seen == _CHECKED or not cell.strip():
            return
        self._seen += 1
        names = [cell] if self._default is None else cell.split(self._default)
        self._names.update(name.strip() for name in names)
        self._separated += self._default is not None and self._default in cell
        for separator in self._with:
            parts = [part for part in map(str.strip, cell.split(separator)) if part]
            self._with[separator] += len(parts) > 1
            self._parts[separator].update(parts)

    def doubt(self) -> str | None:
        for separator in self._with:
            n_with, n_parts = self._with[separator], len(self._parts[separator])
            # Names of several words share words, too, so few words must make up most cells. If the
            # default occurs as well, it may be part of names, but only if this gives fewer names.
            is_clear = self._separated < 0.1 * n_with
            fewer = 0.5 if separator == " " else 1.0 if is_clear else 0.7
            often = self._seen * (0.5 if separator == " " else 0.05)
            if (
                n_with >= max(_FEWEST, often)
                and n_parts < fewer * len(self._names)
                and (is_clear or (separator != " " and self._separated < n_with))
            ):
                other = "a list of names" if self._default is None else "label_separator=','"
                return (
                    f"{n_with:,} of {self._seen:,} label cells contain {separator!r}: give "
                    f"label_separator={separator!r} if it separates labels, or {other} if it is "
                    "part of their names"
                )
        return None


def _list_entries(cell: str, separator: str | None) -> list[Any] | None:
    """Return the entries of a list, tuple or set as Python, numpy or JSON writes it."""
    if cell == "set()":
        return []
    if len(cell) < 2 or _BRACKETS.get(cell[0]) != cell[-1]:
        return None
    if cell[0] == "[":
        try:
            found = json.loads(cell, parse_int=str, parse_float=_digits)
        except (ValueError, RecursionError):
            pass
        else:
            return list(found)
    inner = cell[1:-1]
    has_quotes = "'" in inner or '"' in inner
    if not has_quotes and (cell[0] != "[" or (separator or ",") not in inner):
        return [] if cell == "[]" else _numbers(cell, inner)
    if _LIST.fullmatch(inner) is None:
        raise _unreadable(cell)
    entries = _ENTRIES.findall(inner)
    if any(entry[0] not in "'\"" and not _is_number(entry) for entry in entries):
        raise _unreadable(cell)
    return [ast.literal_eval(entry) if entry[0] in "'\"" else _digits(entry) for entry in entries]


def _numbers(cell: str, inner: str) -> list[str] | None:
    """Return numbers as numpy writes them, ``[1 2]``; otherwise the cell is a name in brackets."""
    words = inner.split()
    if cell[0] != "[" or not words or not all(map(_is_number, words)):
        return None
    return list(map(_digits, words))


def _number_name(value: Any) -> Any:
    """Return the name for an integer, and anything else unchanged."""
    if type(value) is int or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    return value


def _digits(number: str) -> str:
    """Return a number without a zero fraction."""
    return _WHOLE.sub(r"\1", number)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return word.lower().lstrip("+-") not in ("nan", "inf", "infinity")


def _unreadable(cell: str) -> RefusedError:
    return RefusedError(
        f"the labels {quoted(cell)} look like a list but cannot be read as one; write it as JSON"
    )
