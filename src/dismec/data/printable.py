"""Text from others → text that is safe for a terminal, a log and a page.

Label names may come from anywhere. Terminals interpret control characters, and a bidirectional
override reverses the text around it. Such characters are shown as JSON escapes, so JSON stays JSON
with the same meaning.
"""

from __future__ import annotations

import json
import re

# For use within brackets in a regular expression.
_ACTED_ON = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
_CONTROLS = re.compile(f"[{_ACTED_ON}]")
_CONTROLS_IN_LINES = re.compile(rf"(?![\t\n])[{_ACTED_ON}]")
_UNQUOTED = re.compile(rf'(?!\d+\Z)[^\s:"\\{_ACTED_ON}]+')


def printable(text: str, *, one_line: bool = False) -> str:
    r"""Return the text with control characters replaced by escapes such as ``\u001b``.

    Tabs and line ends are kept, unless `one_line` is set.

    Examples
    --------
    >>> print(printable("red\x1b[31m"))
    red\u001b[31m
    """
    pattern = _CONTROLS if one_line else _CONTROLS_IN_LINES
    return pattern.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def html_text(text: str) -> str:
    """Escape text for HTML elements and attribute values."""
    from html import escape  # has tables of all entities, which the command line does not need

    return escape(printable(text))


def json_text(value: object, encoding: str = "utf-8") -> str:
    """Return a value as one line of JSON, also for readers that split at U+0085 or U+2028.

    It contains no terminal control characters. Characters that `encoding` lacks are escaped.
    """
    text = json.dumps(value, ensure_ascii=False)
    if not can_encode(text, encoding):
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
    if _UNQUOTED.fullmatch(name) and can_encode(name, encoding):
        return name
    return json_text(name, encoding)


def can_encode(text: str, encoding: str = "utf-8") -> bool:
    """Return whether all characters of a text can be written in an encoding."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
