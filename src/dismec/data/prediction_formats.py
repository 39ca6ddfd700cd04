"""Names and extensions of the prediction formats, and how text formats write a name."""

from __future__ import annotations

import json
import re
from pathlib import Path

from dismec.data.printable import ACTED_ON, printable

__all__ = ["BINARY_FORMATS", "ENDINGS", "FORMATS", "format_of", "json_text", "spell_name"]

FORMATS = ("text", "csv", "tsv", "jsonl", "json", "parquet", "npz", "xmc")
BINARY_FORMATS = ("parquet", "npz")
# XMC text must be requested by name: the extension .xmc is used for binary datasets.
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
    """Return the format for a file's extension, ignoring ``.gz``; None if there is none."""
    name = path.name.lower()
    form = ENDINGS.get(Path(name.removesuffix(".gz")).suffix)
    return None if form in BINARY_FORMATS and name.endswith(".gz") else form


def json_text(value: object, encoding: str = "utf-8") -> str:
    """Return a value as one line of JSON, also for readers that split at U+0085 or U+2028.

    It contains no terminal control characters. Characters that `encoding` lacks are escaped.
    """
    text = json.dumps(value, ensure_ascii=False)
    if not _can_encode(text, encoding):
        return json.dumps(value)
    return printable(text)


def spell_name(name: str, encoding: str = "utf-8") -> str:
    r"""Return a label's name for ``name:score``: unchanged, or a JSON string if ambiguous.

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
