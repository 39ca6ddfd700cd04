"""Facts of `dismec.report.facts` → one HTML page that needs nothing else.

The page holds its style and its drawings, runs no script and forbids itself to load anything.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from dismec.data.files import whole_file
from dismec.report import figures
from dismec.report.estimate import tell_estimate
from dismec.report.facts import KS, frequency_range, plain_facts, shown

__all__ = ["figure", "make_page", "page_of", "table", "write_page"]

_STYLE = """
:root { color-scheme: light dark; --line: #ccc; --soft: #666; }
@media (prefers-color-scheme: dark) { :root { --line: #444; --soft: #aaa; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .2rem .8rem .2rem 0; text-align: right; vertical-align: bottom;
  border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; min-width: 6rem; overflow-wrap: break-word; }
.facts td { text-align: left; white-space: pre-line; overflow-wrap: anywhere; }
figure { margin: 1rem 0; }
figure img { width: 100%; max-width: 45rem; background: #fff; border-radius: .5rem; }
figcaption, .note { color: var(--soft); font-size: .9rem; max-width: 45rem; }
"""
# The drawings are data of the page itself; nothing else may be loaded, and nothing run.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_TABLE_1 = {
    "rows": "rows N",
    "features": "features D",
    "characters": "characters",
    "labels": "labels L",
    "rows a label": "rows a label (APpL)",
    "labels a row": "labels a row (ALpP)",
}


def write_page(
    target: str | os.PathLike[str], path: str | os.PathLike[str], facts: Mapping[str, Any]
) -> None:
    """Write the page of what `path` holds; it appears under its name when it is whole."""
    content = make_page(os.fspath(path), facts).encode()
    with whole_file(target) as file:
        file.write(content)


def make_page(path: str, facts: Mapping[str, Any]) -> str:
    """The page of data or a model: what one of the `describe_…` functions has found of it.

    A model's facts may have what `describe_test` has found under "test".
    """
    is_model = "weight counts" in facts
    sections = _model_sections(facts) if is_model else _data_sections(facts)
    return page_of(f"{'Model' if is_model else 'Data'} {path}", sections)


def page_of(title: str, sections: Iterable[str]) -> str:
    """A whole page of sections, which are HTML."""
    title = escape(title)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def _data_sections(facts: Mapping[str, Any]) -> Iterable[str]:
    table_1 = {name: facts[key] for key, name in _TABLE_1.items() if key in facts}
    yield table(list(table_1), [list(table_1.values())])
    yield _frequencies(facts["label frequencies"], "Label frequencies")
    for key, what in (("features of a row", "features"), ("characters of a text", "characters")):
        if facts.get(key, {}).get("rows"):
            yield f"<h2>{key.capitalize()}</h2>"
            drawing = figures.draw_histogram(facts[key], f"{what} a row")
            yield figure(drawing, f"How many rows have how many {what}.")
    if facts.get("training"):
        yield "<h2>What training will take</h2>"
        yield from (f"<p>{escape(line)}</p>" for line in tell_estimate(facts["training"]))
    yield "<h2>All facts</h2>" + _facts(facts)


def _model_sections(facts: Mapping[str, Any]) -> Iterable[str]:
    if not facts["complete"]:
        yield f"<p>{escape(facts['state'])}</p>"
    yield _facts(facts)
    yield "<h2>Weights before and after pruning</h2>" + _weights(facts)
    if "test" in facts:
        yield from _test_sections(facts["test"])
    yield _frequencies(facts["label frequencies"], "Label frequencies in the training data")
    yield "<h2>Files</h2>" + _files(facts["file sizes"])


def _frequencies(found: Mapping[str, Any], title: str) -> str:
    if not found["ranks"]:
        return f"<h2>{title}</h2><p>No label has rows.</p>"
    shares = ", ".join(
        f"{100 * share:.1f} % have at most {most}" + (" row" if most == "1" else "")
        for most, share in found["share with at most"].items()
    )
    text = f"Labels ranked by how many rows have them. Of the labels that have rows, {shares}."
    if found["beta"] is not None:
        text += (
            f" The law is fitted by least squares on log axes over the ranks 1 to "
            f"{found['fitted ranks'][1]:,}, rank r with weight 1/r, so that every stretch of the "
            "axis has the same say; R² has the same weights."
        )
    return f"<h2>{title}</h2>" + figure(figures.draw_frequencies(found), text)


def _weights(facts: Mapping[str, Any]) -> str:
    counts, delta = facts["weight counts"], facts.get("delta")
    if counts["before"] is None:
        text = "What there was before pruning is not known: this version's training counts it."
    else:
        text = (
            "Labels with the same rows share a classifier, which counts once. Before pruning there "
            f"were {sum(counts['before']):,} weights, {sum(counts['after']):,} are stored."
        )
        if "share of ambiguous weights" in facts:
            text += (
                f" {100 * facts['share of ambiguous weights']:.2f} % of all weights are ambiguous "
                f"(|w| < Δ), and {100 * facts['share of ambiguous weights other than 0']:.2f} % of "
                "those that training has made other than 0."
            )
        if facts.get("history"):
            text += " Labels that were replaced or removed later are counted before pruning too."
    number = delta if isinstance(delta, int | float) else None
    return figure(figures.draw_weights(counts, number), text)


def _test_sections(test: Mapping[str, Any]) -> Iterable[str]:
    found, k = test["metrics"], max(KS)
    yield f"<h2>Test data, {int(found['rows']):,} rows</h2>"
    names = list(dict.fromkeys(key.split("@")[0] for key in found if "@" in key))
    yield table(
        ["%", *(f"@{k}" for k in KS)],
        [[name, *(f"{found[f'{name}@{k}']:.2f}" for k in KS)] for name in names],
    )
    rest = {key: f"{v:.2f} %" for key, v in found.items() if "@" not in key and key != "rows"}
    if rest:
        yield "<p>" + escape(", ".join(f"{key} {value}" for key, value in rest.items())) + "</p>"
    yield "<h2>By training frequency of the labels</h2>"
    text = (
        "Labels ranked by how many training rows have them, in ten groups of equally many labels. "
        "P@k, nDCG@k and PSP@k of a group are its part of the metrics of all labels: only hits "
        "whose label is in the group count, divided by the same as always (all rows, k places, the "
        "best attainable with all labels), so that the parts add up to the table above. R@k is of "
        "the group alone: the share of its pairs of row and true label that are found in the first "
        "k places. Coverage@k: of its labels that are true somewhere, the share that is found "
        "somewhere."
    )
    if test["groups"]:
        yield figure(figures.draw_groups(test["groups"], k), text)
    metrics = [f"{name}@{k}" for name in ("P", "nDCG", "PSP") for k in KS]
    metrics += [f"R@{k}", f"Coverage@{k}"]
    yield table(
        ["training rows", "labels", "true pairs", *metrics],
        [
            [
                frequency_range(group["frequency"]),
                group["labels"],
                group["true pairs"],
                *(f"{group[name]:.2f}" for name in metrics),
            ]
            for group in test["groups"]
        ],
    )
    if "reliability" in test:
        yield "<h2>Reliability of the probabilities</h2>"
        text = f"Pairs of a row and one of its {k} best labels, in bins by their probability."
        yield figure(figures.draw_reliability(test["reliability"]), text)
    for which in ("best", "worst"):
        yield f"<h2>The {which} labels</h2>" + _labels(test[f"{which} labels"])
    yield (
        f'<p class="note">By F1 in the first {k} places, of the {test["labels judged"]:,} labels '
        "with at least 5 test rows; of equal ones, those with more test rows first. Recall is the "
        f"share of a label's rows that have it among their first {k}, precision the share of the "
        "rows with it there that are its own.</p>"
    )


def _labels(labels: Sequence[Mapping[str, Any]]) -> str:
    if not labels:
        return "<p>No label has rows enough.</p>"
    counts, scores = ["training rows", "test rows"], ["precision", "recall", "F1"]
    return table(
        ["label", *counts, *(f"{name}, %" for name in scores)],
        [
            [entry["name"], *(entry[c] for c in counts), *(f"{entry[s]:.1f}" for s in scores)]
            for entry in labels
        ],
    )


def _files(files: Sequence[Mapping[str, Any]], most: int = 50) -> str:
    heads = ["file", "labels", "weights", "bytes"]
    text = table(heads, [[entry[head] for head in heads] for entry in files[:most]])
    if len(files) > most:
        text += f'<p class="note">… and {len(files) - most:,} more.</p>'
    return text


def _facts(facts: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(key)}</td><td>{escape(value)}</td></tr>\n"
        for key, value in plain_facts(facts).items()
    )
    return f'<div class="wide"><table class="facts">\n{rows}</table></div>'


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; cells are plain text."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(shown(cell))}</td>" for cell in row) + "</tr>\n"
        for row in rows
    )
    return f'<div class="wide"><table>\n<tr>{head}</tr>\n{body}</table></div>'


def figure(svg: bytes, caption: str) -> str:
    """A drawing, as part of the page itself."""
    data = b64encode(svg).decode()
    text = escape(caption)
    return (
        f'<figure><img alt="{text}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>{text}</figcaption></figure>"
    )
