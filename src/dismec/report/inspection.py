"""Facts from `dismec.report.facts` → the page for data or a model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from dismec.data.counts import counted
from dismec.data.files import whole_file
from dismec.data.printable import html_text
from dismec.report import figures
from dismec.report.estimate import summarize_estimate
from dismec.report.evaluation import KS
from dismec.report.facts import plain_facts
from dismec.report.html_page import (
    MOST_LABELS,
    folded,
    label_table,
    page_of,
    paragraphs,
    section_of,
    table,
)
from dismec.report.sections import (
    Section,
    extreme_section,
    file_section,
    group_section,
    label_sections,
    list_anomalies,
    summarize_data,
    summarize_test,
)

_TABLE_1 = {
    "rows": "rows N",
    "features": "features D",
    "characters": "characters",
    "labels": "labels L",
    "rows per label": "rows per label (APpL)",
    "labels per row": "labels per row (ALpP)",
}


def write_page(
    target: str | os.PathLike[str], path: str | os.PathLike[str], facts: Mapping[str, Any]
) -> None:
    """Write the page for the data or model at `path`; the file appears only when it is complete."""
    content = make_page(os.fspath(path), facts).encode()
    with whole_file(target) as file:
        file.write(content)


def make_page(path: str, facts: Mapping[str, Any]) -> str:
    """Return the page for data or a model, given the result of a `describe_…` function.

    A model's facts may contain the result of `describe_test` under "test".
    """
    is_model = "weight counts" in facts
    sections = _model_sections(facts) if is_model else _data_sections(facts)
    return page_of(f"{'Model' if is_model else 'Data'} {path}", sections)


def _data_sections(facts: Mapping[str, Any]) -> Iterator[str]:
    if "rows" in facts:
        headline, *details = summarize_data(facts)
        yield paragraphs([headline], "headline") + paragraphs(details)
        if anomalies := list_anomalies(facts):
            items = "".join(f"<li>{html_text(line)}</li>" for line in anomalies)
            yield f"<h2>Check before training</h2><ul>{items}</ul>"
    if "all labels" in facts:
        yield from map(section_of, label_sections(facts))
    yield section_of(_frequencies(facts["label frequencies"], "Label frequencies"))
    if "all labels" in facts:
        yield "<h2>All labels</h2>" + label_table(facts["all labels"], "labels.csv")
    if facts.get("training"):
        lines = summarize_estimate(facts["training"])
        yield "<h2>Estimated cost of training</h2>" + paragraphs(lines)
    table_1 = {name: facts[key] for key, name in _TABLE_1.items() if key in facts}
    yield folded(
        "All facts", [table(list(table_1), [list(table_1.values())]), "<p></p>", _facts(facts)]
    )


def _model_sections(facts: Mapping[str, Any]) -> Iterator[str]:
    if not facts["complete"]:
        yield f"<p>{html_text(facts['state'])}</p>"
    test = facts.get("test")
    size = (
        f"{counted(facts['labels'], 'label')}, {counted(facts['features'], 'feature')}, trained on "
        f"{counted(facts['training rows'], 'row')}."
    )
    if test is None:
        yield paragraphs([size], "headline")
        yield paragraphs(
            ["This report does not include an evaluation: run dismec inspect MODEL --test DATA."]
        )
    else:
        yield from _test_sections(test, size)
    if "hierarchy" in facts:
        yield from hierarchy_sections(facts["hierarchy"])
    internals = [
        section_of(
            _frequencies(facts["label frequencies"], "Label frequencies in the training data")
        ),
        section_of(_weights(facts)),
        "<h2>All facts</h2>" + _facts(facts),
        section_of(file_section(facts["file sizes"], 50)),
    ]
    yield folded("Internals", internals, is_open=test is None)


def _frequencies(found: Mapping[str, Any], title: str) -> Section:
    if not found["ranks"]:
        return Section(title, text="No label has rows.")
    shares = ", ".join(
        f"{100 * share:.1f} % have at most {most}" + (" row" if most == "1" else "")
        for most, share in found["share with at most"].items()
    )
    text = f"Labels ranked by their number of rows. Of the labels with rows, {shares}."
    if found["beta"] is not None:
        text += (
            f" The power law is fitted by least squares on log axes over ranks 1 to "
            f"{found['fitted ranks'][1]:,}, with weight 1/r for rank r, so that every part of the "
            "axis counts the same; R² uses the same weights."
        )
    return Section(title, text=text, draw=partial(figures.draw_frequencies, found))


def _weights(facts: Mapping[str, Any]) -> Section:
    counts, delta = facts["weight counts"], facts.get("delta")
    if counts["before"] is None:
        text = "The counts before pruning were not recorded by the version that trained this model."
    else:
        text = (
            "Labels with the same rows share a classifier, which counts once. Before pruning there "
            f"were {counted(sum(counts['before']), 'weight')}; {sum(counts['after']):,} are stored."
        )
        if "share of ambiguous weights" in facts:
            text += (
                f" {100 * facts['share of ambiguous weights']:.2f} % of all weights are ambiguous "
                f"(|w| < Δ), and {100 * facts['share of ambiguous weights other than 0']:.2f} % of "
                "the nonzero ones before pruning."
            )
        if facts.get("history"):
            text += " The counts before pruning include labels that were replaced or removed later."
    number = delta if isinstance(delta, int | float) else None
    drawing = partial(figures.draw_weights, counts, number)
    return Section("Weights before and after pruning", text=text, draw=drawing)


def _test_sections(test: Mapping[str, Any], size: str) -> Iterator[str]:
    found, k = test["metrics"], max(KS)
    headline, *details = summarize_test(test)
    yield paragraphs([headline], "headline") + paragraphs([*details, size])
    yield table(
        ["P@k, %", *(f"@{k}" for k in KS)],
        [
            [name, *(f"{values[f'P@{k}']:.2f}" for k in KS)]
            for name, values in {"this model": found, **test["guesses"]}.items()
        ],
    )
    yield folded("All metrics", _metric_table(found))
    if "reliability" in test:
        yield section_of(_reliability(test["reliability"]))
    yield section_of(group_section(test["groups"], KS))
    for which in ("best", "worst"):
        yield section_of(extreme_section(test, which))
    yield "<h2>All labels</h2>" + label_table(test["all labels"], "labels.csv")
    yield paragraphs(
        [
            f"Recall: the share of a label's test rows that have it among their first {k} "
            "predicted labels. Precision: the share of the rows for which it is predicted there "
            "(predicted rows) that have it."
        ],
        "note",
    )


def _metric_table(found: Mapping[str, float]) -> Iterator[str]:
    names = list(dict.fromkeys(key.split("@")[0] for key in found if "@" in key))
    yield table(
        ["%", *(f"@{k}" for k in KS)],
        [[name, *(f"{found[f'{name}@{k}']:.2f}" for k in KS)] for name in names],
    )
    rest = [f"{key} {v:.2f} %" for key, v in found.items() if "@" not in key and key != "rows"]
    if rest:
        yield paragraphs([", ".join(rest)])


def _reliability(bins: Sequence[Mapping[str, Any]]) -> Section:
    return Section(
        "Reliability of the probabilities",
        ["predicted probability, mean", "share that is true", "pairs"],
        [
            [f"{100 * e['probability']:.1f} %", f"{100 * e['share of hits']:.1f} %", e["pairs"]]
            for e in bins
        ],
        f"Pairs of a row and one of its {max(KS)} best labels, in bins by their probability.",
        draw=partial(figures.draw_reliability, bins),
    )


def _facts(facts: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{html_text(key)}</td><td>{html_text(value)}</td></tr>\n"
        for key, value in plain_facts(facts).items()
    )
    return f'<div class="wide"><table class="facts">\n{rows}</table></div>'


def hierarchy_sections(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sections of a page for the result of `describe_hierarchy`."""
    levels: Sequence[Mapping[str, Any]] = found["levels"]
    counts, metrics, note = ["level", "nodes", "labels"], [], ""
    if "hP@1" in levels[0]:
        counts.append("true pairs")
        metrics = [f"{name}@{k}" for name in ("hP", "hR") for k in KS]
        note = (
            "Labels count with all their ancestors. hP@k: the share of the nodes of a level "
            "predicted by the first k labels that are true. hR@k: the share of the true nodes of "
            "the level that are predicted. A wrong label with the right parent counts as right one "
            "level up."
        )
    heads = [*counts, *(f"{name}, %" for name in metrics)]
    rows = [
        [*(entry[key] for key in counts), *(f"{entry[key]:.2f}" for key in metrics)]
        for entry in levels
    ]
    yield section_of(Section("Hierarchy of labels", heads, rows, note=note))
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
