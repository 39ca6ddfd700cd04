"""Tables, figures and text → one self-contained HTML page.

The page contains its style, its figures and at most one script of its own, and its policy forbids
loading or running anything else. Without the script it shows the same content but cannot be sorted
or filtered.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from dismec.data.printable import html_text
from dismec.report.facts import shown
from dismec.report.sections import Section

MOST_LABELS = 20_000  # labels on a page
_AT_ONCE = 50  # labels shown before the reader asks for more; report.js has the same number


@cache
def _resource(name: str) -> str:
    return (files("dismec.report") / name).read_text("utf-8").strip()


def _filled(name: str, **parts: str) -> str:
    """Return a file of this package with parts, which may contain braces, in its places."""
    return re.sub(r"\{(\w+)\}", lambda place: parts[place[1]], _resource(name))


def page_of(title: str, sections: Iterable[str]) -> str:
    """Return a page of HTML sections, with the script if there is a table of labels."""
    title, body = html_text(title), "\n".join(sections)
    script = _resource("report.js") if 'class="labels"' in body or "<details" in body else ""
    source = b64encode(sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'" + (f"; script-src 'sha256-{source}'" if script else "")
    )
    return _filled(
        "page.html",
        title=title,
        policy=policy,
        style=_resource("report.css"),
        body=body,
        script=f"<script>{script}</script>" if script else "",
    )


def paragraphs(lines: Iterable[str], kind: str = "") -> str:
    """Return plain text as HTML, one paragraph per line, with the class `kind`."""
    start = f'<p class="{kind}">' if kind else "<p>"
    # No line starts with a percent sign.
    return "\n".join(f"{start}{html_text(line)}</p>".replace(" %", "\u00a0%") for line in lines)


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], kind: str = "") -> str:
    """Return a table with the class `kind`; cells are plain text."""
    head = "".join(f"<th>{html_text(text)}</th>" for text in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{html_text(shown(cell))}</td>" for cell in row) + "</tr>\n"
        for row in rows
    )
    start = f'<table class="{kind}">' if kind else "<table>"
    return f'<div class="wide">{start}\n<tr>{head}</tr>\n{body}</table></div>'


def section_of(section: Section) -> str:
    """Return a heading, a figure or text, a table and a note."""
    if section.draw:
        above = figure(section.draw(), section.text)
    else:
        above = paragraphs([section.text] if section.text else [])
    return (
        f"<h2>{html_text(section.title)}</h2>{above}"
        + (table(section.heads, section.rows, section.kind) if section.rows else "")
        + paragraphs([section.note] if section.note else [], "note")
    )


def figure(svg: bytes, caption: str) -> str:
    """Return a figure embedded in the page."""
    data = b64encode(svg).decode()
    text = html_text(caption)
    return (
        f'<figure><div class="wide"><img alt="{text}" src="data:image/svg+xml;base64,{data}"></div>'
        f"<figcaption>{text}</figcaption></figure>"
    )


def folded(title: str, sections: Iterable[str], *, is_open: bool = False) -> str:
    """Return sections that are collapsed until opened, and shown in print."""
    start = "<details open>" if is_open else "<details>"
    return f"{start}<summary>{html_text(title)}</summary>\n" + "\n".join(sections) + "\n</details>"


def label_table(columns: Mapping[str, Sequence[Any]], file: str) -> str:
    """Return a table of all labels that can be sorted, filtered and saved as the CSV file `file`.

    Columns are lists of equal length, shown in the given order; "name" is one of them, and "label"
    appears only in the CSV. If there are more than `MOST_LABELS` labels, the first ones are shown.
    """
    n_labels, titles = len(columns["name"]), {"label": "", "name": "label"}
    entries: list[dict[str, Any]] = [
        {
            "key": key,
            "title": titles.get(key, f"{key}, %" if key in _PERCENT else key),
            "digits": 1 if key in _PERCENT else 0,
            "values": list(values[:MOST_LABELS]),
        }
        for key, values in columns.items()
    ]
    seen = [entry for entry in entries if entry["title"]]
    heads = "".join(f'<th aria-sort="none">{html_text(entry["title"])}</th>' for entry in seen)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html_text(_cell(entry, i))}</td>" for entry in seen) + "</tr>\n"
        for i in range(min(n_labels, _AT_ONCE))
    )
    # Only "<" could end a script element.
    data = json.dumps({"columns": entries, "file": file}, separators=(",", ":"))
    data = data.replace("<", "\\u003c")
    left = max(n_labels - _AT_ONCE, 0)
    rest = f'<p class="rest">… and {left:,} more.</p>\n' if left else ""
    if n_labels > MOST_LABELS:
        rest += (
            f'<p class="note">The {MOST_LABELS:,} most frequent of {n_labels:,} labels: '
            "<code>dismec inspect --csv FILE</code> writes them all.</p>\n"
        )
    return _filled("labels.html", heads=heads, rows=rows, rest=rest, data=data)


_PERCENT = ("precision", "recall", "F1")


def _cell(entry: Mapping[str, Any], place: int) -> str:
    value = entry["values"][place]
    if value is None:
        return "–"
    return f"{value:.{entry['digits']}f}" if entry["digits"] else shown(value)
