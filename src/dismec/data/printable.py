"""Text from others → text that is safe for a terminal, a log and a page.

Label names may come from anywhere. Terminals interpret control characters, and a bidirectional
override reverses the text around it. Such characters are shown as JSON escapes, so JSON stays JSON
with the same meaning.
"""

from __future__ import annotations

import re

__all__ = ["ACTED_ON", "html_text", "printable"]

# For use within brackets in a regular expression.
ACTED_ON = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
_CONTROLS = re.compile(f"[{ACTED_ON}]")
_CONTROLS_IN_LINES = re.compile(rf"(?![\t\n])[{ACTED_ON}]")


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
