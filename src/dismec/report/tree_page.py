"""Facts of a hierarchy → its levels as a table, and the tree to unfold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from dismec.report.page import MOST_LABELS, folded, paragraphs, table
from dismec.report.tested import KS

__all__ = ["hierarchy_sections"]


def hierarchy_sections(found: Mapping[str, Any]) -> Iterator[str]:
    """The part of a page on what `describe_hierarchy` has found."""
    yield "<h2>Hierarchy of labels</h2>"
    levels: Sequence[Mapping[str, Any]] = found["levels"]
    counts = ["level", "nodes", "labels"]
    if "hP@1" in levels[0]:
        counts.append("true pairs")
    metrics = [f"{name}@{k}" for name in ("hP", "hR") for k in KS if f"hP@{k}" in levels[0]]
    yield table(
        [*counts, *(f"{name}, %" for name in metrics)],
        [
            [*(entry[key] for key in counts), *(f"{entry[key]:.2f}" for key in metrics)]
            for entry in levels
        ],
    )
    if metrics:
        yield paragraphs(
            [
                "Labels count with all their ancestors. hP@k: the share of what the first k labels "
                "say at a level that is true. hR@k: the share of what is true at the level that "
                "they say. A wrong label with the right parent is right one level up."
            ],
            "note",
        )
    yield folded("The tree", _tree(found["nodes"]))


def _tree(nodes: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """All nodes from the roots down, each with what is below it inside."""
    children: list[list[int]] = [[] for _ in nodes["name"]]
    for child, parents in enumerate(nodes["parents"]):
        for parent in parents:
            children[parent].append(child)
    roots = [root for root, parents in enumerate(nodes["parents"]) if not parents]
    # Those with the most below them first; labels that stand alone come last.
    below = nodes["labels below"]
    for several in (roots, *children):
        several.sort(key=lambda node: (-below[node], nodes["name"][node]))
    shown: set[int] = set()
    waiting: list[int | None] = list(reversed(roots))
    yield '<div class="tree">'
    while waiting and len(shown) < MOST_LABELS:
        node = waiting.pop()
        if node is None:
            yield "</details>"
        elif not children[node] or node in shown:
            again = " – see above" if node in shown and children[node] else ""
            yield f"<p>{_line(nodes, node)}{again}</p>"
            shown.add(node)
        else:
            yield f"<details><summary>{_line(nodes, node)}</summary>"
            shown.add(node)
            waiting += [None, *reversed(children[node])]
    yield "</details>" * waiting.count(None) + "</div>"
    left = len(nodes["name"]) - len(shown)
    if left:
        yield paragraphs([f"… and {left:,} more."], "note")


def _line(nodes: Mapping[str, Sequence[Any]], node: int) -> str:
    """A node's name, and its counts and metrics."""
    facts = []
    if below := nodes["labels below"][node]:
        facts.append(f"{below:,} label{'' if below == 1 else 's'} below")
    rows = nodes["training rows"][node]
    facts.append("group" if rows is None else f"{rows:,} training row{'' if rows == 1 else 's'}")
    if nodes.get("test rows"):
        facts.append(f"{nodes['test rows'][node]:,} test rows")
        shares = ((key, nodes[key][node]) for key in ("precision", "recall"))
        facts += [f"{key} {share:.1f}\u00a0%" for key, share in shares if share is not None]
    said = escape(", ".join(facts))
    return f'{escape(nodes["name"][node])} <span class="note">{said}</span>'
