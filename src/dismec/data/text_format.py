"""The meaning of a file's columns, and checks that all readers of texts share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from dismec.data.formats import Kind
from dismec.errors import DataError

__all__ = [
    "RefusedError",
    "TextFormat",
    "TextRow",
    "check_unicode",
    "checked_names",
    "checked_weight",
    "column_place",
    "names_there",
    "one_text",
    "quoted",
    "unused_entries",
]

# Entries of a `TextFormat` that do not apply to a kind of file.
_UNUSED: dict[Kind, tuple[str, ...]] = {
    "fastText": ("text_column", "label_column", "label_separator", "id_column", "weight_column"),
    "plain text": ("text_column", "label_column", "label_separator", "id_column", "weight_column"),
}


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

    Raises
    ------
    DataError
        If a name is empty.

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
        for field in fields(self):
            if getattr(self, field.name) == "":
                raise DataError(f"{field.name} is empty")
        if "" in self.text_keys:
            raise DataError(f"text_column is {self.text_column!r}; one of its names is empty")

    @property
    def kept(self) -> dict[str, str]:
        """The entries that a model keeps: all that were given, except for `id_column`."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {key: value for key, value in given.items() if value and key != "id_column"}

    @classmethod
    def of_model(
        cls,
        columns: Mapping[str, Any] | None,
        kind: Kind,
        *,
        weighted: bool = False,
        **given: str | None,
    ) -> TextFormat:
        """Combine the format that a model keeps with entries that are given.

        Parameters
        ----------
        columns : mapping of str to str, or None
            What the model keeps.
        kind : str
            The kind of file. Entries of the model that do not apply to it are left out.
        weighted : bool, default=False
            Whether the model's column of weights is used, as for training.
        given : str
            Entries that replace those of the model.

        Returns
        -------
        TextFormat
            The format.
        """
        known = {field.name for field in fields(cls)} - set(unused_entries(kind))
        if not weighted:
            known.discard("weight_column")
        kept = {
            key: value
            for key, value in (columns or {}).items()
            if key in known and isinstance(value, str) and value
        }
        return cls(**kept | given)

    @property
    def text_keys(self) -> list[str]:
        """Names of the columns that make up the text."""
        return [name.strip() for name in (self.text_column or "text").split(",")]

    @property
    def label_key(self) -> str:
        """Name of the label column."""
        return self.label_column or "labels"


def unused_entries(kind: Kind) -> tuple[str, ...]:
    """Return the entries of a `TextFormat` that do not apply to a kind of file."""
    return _UNUSED.get(kind, ())


def column_place(header: list[str], name: str, option: str) -> int:
    """Return the index of a column; raise if it is missing or duplicated."""
    if header.count(name) > 1:
        raise RefusedError(f"there are {header.count(name)} columns {quoted(name)}")
    if name not in header:
        what = f"no column {quoted(name)} ({option})"
        raise RefusedError(f"{what}; {names_there('columns', header)}")
    return header.index(name)


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


def one_text(texts: list[str]) -> str:
    """Join the texts of several columns."""
    return texts[0] if len(texts) == 1 else "\n\n".join(filter(None, texts))


def names_there(what: str, names: Iterable[str]) -> str:
    """Return the available names as a part of a message."""
    shown = [quoted(name) for name in names]
    more = f" and {len(shown) - 20} more" if len(shown) > 20 else ""
    return f"the {what} are {', '.join(shown[:20])}{more}" if shown else f"there are no {what}"


def quoted(value: object) -> str:
    """Return a value from the file, shortened, on one line."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    shown = repr(value[:61] if isinstance(value, str) else value)
    return shown if len(shown) <= 64 else f"{shown[:60]}...'"
