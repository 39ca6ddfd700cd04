"""Text of others → text that a terminal, a log and a page can show.

Names of labels come from anywhere. A terminal acts on control characters in them, and an override
of the writing direction turns round whatever stands beside it. They are shown as JSON writes them:
what is JSON stays JSON, with the same meaning.
"""

from __future__ import annotations

import re

__all__ = ["ACTED_ON", "html_text", "printable"]

# In a regular expression, between brackets.
ACTED_ON = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
_CONTROLS = re.compile(f"[{ACTED_ON}]")
_CONTROLS_IN_LINES = re.compile(rf"(?![\t\n])[{ACTED_ON}]")


def printable(text: str, *, one_line: bool = False) -> str:
    r"""The text with ``\u001b`` in place of the character, and so on.

    Tabs and line ends stay, unless it is to be `one_line`.

    Examples
    --------
    >>> print(printable("red\x1b[31m"))
    red\u001b[31m
    """
    pattern = _CONTROLS if one_line else _CONTROLS_IN_LINES
    return pattern.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def html_text(text: str) -> str:
    """The text as HTML, in elements and in the values of attributes."""
    from html import escape  # with tables of all entities, which the command line can do without

    return escape(printable(text))
