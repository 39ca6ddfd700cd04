"""Names of the forms that predictions are written in, their endings, and how text spells a name."""

from __future__ import annotations

import json
import re
from pathlib import Path

from dismec.data.printable import ACTED_ON, printable

__all__ = ["BINARY_FORMATS", "ENDINGS", "FORMATS", "format_of", "json_text", "spell_name"]

FORMATS = ("text", "csv", "tsv", "jsonl", "json", "parquet", "npz", "xmc")
BINARY_FORMATS = ("parquet", "npz")
# XMC text is requested by name: the ending .xmc is that of binary datasets.
ENDINGS = {
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".npz": "npz",
}

_UNQUOTED = re.compile(rf'(?!\d+\Z)[^\s:"\\{ACTED_ON}]+')


def format_of(path: Path) -> str | None:
    """The form that a file's ending stands for, before a further ``.gz``; None if there is none."""
    name = path.name.lower()
    form = ENDINGS.get(Path(name.removesuffix(".gz")).suffix)
    return None if form in BINARY_FORMATS and name.endswith(".gz") else form


def json_text(value: object, encoding: str = "utf-8") -> str:
    """A value as JSON on one line, also for readers that split lines at U+0085 or U+2028.

    It has no characters that a terminal acts on.
    Characters that `encoding` lacks are escaped.
    """
    text = json.dumps(value, ensure_ascii=False)
    if not _can_encode(text, encoding):
        return json.dumps(value)
    return printable(text)


def spell_name(name: str, encoding: str = "utf-8") -> str:
    r"""A label's name for ``name:score``: as it is, or as a JSON string where that is ambiguous.

    It is a JSON string if it is empty or a number, if it holds white space, ``:``, ``"``, ``\`` or
    control characters, or characters that `encoding` lacks.

    Examples
    --------
    >>> print(spell_name("wheat"), spell_name("cast iron"), spell_name("2024"))
    wheat "cast iron" "2024"
    """
    if _UNQUOTED.fullmatch(name) and _can_encode(name, encoding):
        return name
    return json_text(name, encoding)


def _can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
