"""Facts about a hierarchy → its levels as a table, and the tree to expand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dismec.data.counts import counted
from dismec.data.printable import html_text
from dismec.report.page import MOST_LABELS, folded, paragraphs, table
from dismec.report.tested import KS

__all__ = ["hierarchy_sections"]


def hierarchy_sections(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sections of a page for the result of `describe_hierarchy`."""
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
                "Labels count with all their ancestors. hP@k: the share of the nodes of a level "
                "predicted by the first k labels that are true. hR@k: the share of the true nodes "
                "of the level that are predicted. A wrong label with the right parent counts as "
                "right one level up."
            ],
            "note",
        )
    yield folded("The tree", _tree(found["nodes"]))


def _tree(nodes: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """Yield all nodes from the roots down, each containing its descendants."""
    children: list[list[int]] = [[] for _ in nodes["name"]]
    for child, parents in enumerate(nodes["parents"]):
        for parent in parents:
            children[parent].append(child)
    roots = [root for root, parents in enumerate(nodes["parents"]) if not parents]
    # Nodes with the most labels below them come first, then the most frequent.
    rank = [
        (-below, -(rows or 0))
        for below, rows in zip(nodes["labels below"], nodes["training rows"], strict=True)
    ]
    for several in (roots, *children):
        several.sort(key=rank.__getitem__)
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
    """Return a node's name, counts and metrics."""
    below, rows = nodes["labels below"][node], nodes["training rows"][node]
    if rows is None:
        facts = [f"group of {counted(below, 'label')}"]
    else:
        facts = [f"{counted(below, 'label')} below"] if below else []
        facts.append(counted(rows, "training row"))
    if nodes.get("test rows"):
        facts.append(counted(nodes["test rows"][node], "test row"))
        shares = ((key, nodes[key][node]) for key in ("precision", "recall"))
        facts += [f"{key} {share:.1f}\u00a0%" for key, share in shares if share is not None]
    said = html_text(", ".join(facts))
    return f'{html_text(nodes["name"][node])} <span class="note">{said}</span>'
