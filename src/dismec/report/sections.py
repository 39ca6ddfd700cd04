"""Facts → sentences and titled tables, for pages and for the terminal alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from dismec.data.counts import counted
from dismec.measure.breakdown import frequency_range
from dismec.report.evaluation import KS
from dismec.report.figures import draw_groups


class Section(NamedTuple):
    """A titled table with text above and a note below; any of them may be empty.

    On a page, the text is the caption of the figure, if there is one.
    """

    title: str
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    text: str = ""
    note: str = ""
    kind: str = ""  # class of the table on a page
    draw: Callable[[], bytes] | None = None


def label_sections(facts: Mapping[str, Any]) -> Iterator[Section]:
    """Yield frequent, rare, similar and co-occurring labels of data, and duplicate rows."""
    frequent, rare = facts["most frequent labels"], facts["rare labels"]
    if frequent:
        yield Section(
            "Most frequent labels",
            ["label", "rows", "of all rows"],
            [[e["name"], e["rows"], percent(100 * e["rows"] / facts["rows"])] for e in frequent],
        )
    if rare["1 row"]:
        more = ", …" if rare["1 row"] > len(rare["examples"]) else ""
        said = f"{counted(rare['1 row'], 'label')} with one row: "
        yield Section("Rare labels", text=said + "; ".join(rare["examples"]) + more)
    similar = facts.get("similar names", {})
    if similar.get("examples"):
        total = similar["same words"] + similar["one edit"]
        yield Section(
            "Similar names",
            ["labels (rows)", "differ by"],
            [[_with_rows(e), e["differ by"]] for e in similar["examples"]],
            note=_listed_of(len(similar["examples"]), total, "most frequent first"),
            kind="names lines",
        )
    same = facts["labels with the same rows"]
    if same["examples"]:
        yield Section(
            "Labels with the same rows",
            ["labels", "rows"],
            [[_some_names(e["names"], e["labels"]), e["rows"]] for e in same["examples"]],
            note=_listed_of(len(same["examples"]), same["groups"], "most rows first"),
            kind="lines",
        )
    together = facts["labels that occur together"]
    if together["pairs"]:
        yield Section(
            "Labels that occur together",
            ["labels (rows)", "rows with both", "Jaccard", "lift"],
            [
                [_with_rows(e), e["together"], f"{e['Jaccard']:.2f}", f"{e['lift']:,.1f}"]
                for e in together["pairs"]
            ],
            note=f"Pairs among the {together['of labels']:,} most frequent labels that share "
            "clearly more rows than expected by chance. Jaccard: rows with both / rows with at "
            "least one; 1 if the labels never occur apart. Lift: rows with both / rows with both "
            "expected by chance.",
            kind="lines",
        )
    for what in ("text", "row"):
        if facts.get(f"duplicate {what}s", {}).get("groups"):
            yield _duplicates(facts[f"duplicate {what}s"], what)


def _duplicates(found: Mapping[str, Any], what: str) -> Section:
    white = " Differences in white space are ignored." if what == "text" else ""
    return Section(
        f"Duplicate {what}s",
        [what, "times", "labels differ", "rows, from 1"],
        [
            [
                e.get("text", f"row {e['rows'][0]:,}"),
                e["times"],
                e["labels differ"],
                ", ".join(f"{row:,}" for row in e["rows"]) + ", …" * (e["times"] > len(e["rows"])),
            ]
            for e in found["examples"]
        ],
        f"{counted(found['rows'], 'row')} in {counted(found['groups'], 'group')} of equal {what}s; "
        f"in {found['groups whose labels differ']:,} of them the labels differ.{white}",
        _listed_of(len(found["examples"]), found["groups"], "largest first"),
    )


def _with_rows(entry: Mapping[str, Any]) -> str:
    """Return the names of an entry, one per line, with their numbers of rows."""
    pairs = zip(entry["names"], entry["rows"], strict=True)
    return "\n".join(f"{name} ({rows:,})" for name, rows in pairs)


def _some_names(names: Sequence[str], total: int) -> str:
    more = [f"… and {total - len(names):,} more"] if total > len(names) else []
    return "\n".join([*names, *more])


def _listed_of(n: int, total: int, order: str) -> str:
    return f"{n:,} of {total:,}, {order}." if n < total else ""


def group_section(groups: Sequence[Mapping[str, Any]], ks: Sequence[int]) -> Section:
    """Return the metrics at these k of groups of labels (`measure.breakdown`)."""
    metrics = [f"{name}@{k}" for name in ("P", "nDCG", "PSP") for k in ks]
    metrics += [f"R@{max(ks)}", f"Coverage@{max(ks)}"]
    return Section(
        "By training frequency of the labels",
        ["training rows", "labels", "true pairs", *metrics],
        [
            [
                frequency_range(group["frequency"]),
                group["labels"],
                group["true pairs"],
                *(f"{group[name]:.2f}" for name in metrics),
            ]
            for group in groups
        ],
        note="In percent. Labels ranked by training rows, in ten groups of equal size. P@k, nDCG@k "
        "and PSP@k of a group are its contributions to the metrics of all labels: only hits on "
        "labels of the group count, with the usual denominators (all rows, k places, the best "
        "attainable with all labels), so the contributions add up to the metrics of all labels. "
        "R@k is that of the group alone: the share of its true pairs of row and label found in the "
        "first k places. Coverage@k: of its labels that occur in test rows, the share found at "
        "least once.",
        draw=partial(draw_groups, groups, max(ks)) if groups else None,
    )


def extreme_section(test: Mapping[str, Any], which: str) -> Section:
    """Return the "best" or the "worst" labels of a test."""
    labels = test[f"{which} labels"]
    counts, scores = ["training rows", "test rows"], ["precision", "recall", "F1"]
    return Section(
        f"The {which} labels",
        ["label", *counts, *(f"{name}, %" for name in scores)],
        [
            [entry["name"], *(entry[c] for c in counts), *(f"{entry[s]:.1f}" for s in scores)]
            for entry in labels
        ],
        "" if labels else "No label has enough test rows.",
        f"By F1 in the first {max(KS)} places, among {counted(test['labels judged'], 'label')} "
        "with at least 5 test rows; ties: more test rows first.",
    )


def file_section(files: Sequence[Mapping[str, Any]], most: int) -> Section:
    """Return the sizes of the first files of a model."""
    heads = ["file", "labels", "weights", "bytes"]
    more = f"… and {len(files) - most:,} more." if len(files) > most else ""
    rows = [[entry[head] for head in heads] for entry in files[:most]]
    return Section("Files", heads, rows, note=more)


def summarize_test(test: Mapping[str, Any]) -> list[str]:
    """Describe how good a model is, on which data, and compared with guessing.

    `test` is the result of `describe_test`, and may name the "data".
    """
    found, k = test["metrics"], max(KS)
    place = f" of {test['data']}" if "data" in test else ""
    frequent, random = test["guesses"]["most frequent labels"], test["guesses"]["random labels"]
    lines = [
        f"For {percent(found['P@1'])} of {counted(int(found['rows']), 'test row')}{place}, the "
        f"first predicted label is right (P@1). Always predicting the most frequent label would "
        f"reach {percent(frequent['P@1'])}, a random label {percent(random['P@1'])}.",
        f"Of the first {k} labels, {percent(found[f'P@{k}'])} are right (P@{k}; the {k} most "
        f"frequent: {percent(frequent[f'P@{k}'])}); they include {percent(found[f'R@{k}'])} of a "
        f"row's true labels (R@{k}).",
    ]
    if "ECE" in found:
        lines.append(
            f"Its probabilities are off by {found['ECE']:.1f} percentage points on average (ECE)."
        )
    if test["rows without labels"]:
        n = test["rows without labels"]
        verb = "has" if n == 1 else "have"
        lines.append(
            f"{counted(n, 'test row')} {verb} no labels: no prediction can be right there."
        )
    if test["pairs with unknown labels"]:
        share = 100 * test["pairs with unknown labels"] / test["pairs"]
        lines.append(
            f"{percent(share)} of the true labels are unknown to the model and count as missed."
        )
    return lines


def summarize_data(facts: Mapping[str, Any]) -> list[str]:
    """Describe the amount of data and how it is distributed over the labels."""
    lines = [
        f"{counted(facts['rows'], 'row')} with {facts['labels per row']:,} labels per row; "
        f"{counted(facts['labels'], 'label')} with {facts['rows per label']:,} rows per label."
    ]
    if facts.get("most frequent labels"):
        first = facts["most frequent labels"][0]
        once = facts["rare labels"]["1 row"]
        share, rare = 100 * first["rows"] / facts["rows"], 100 * once / facts["labels"]
        verb = "has" if once == 1 else "have"
        name = first["name"] if len(first["name"]) <= 80 else f"{first['name'][:80]}…"
        lines.append(
            f"The most frequent label, “{name}”, has "
            f"{counted(first['rows'], 'row')} ({percent(share)})"
            + (f"; {counted(once, 'label')} ({percent(rare)}) {verb} only one." if once else ".")
        )
    return lines


def list_anomalies(facts: Mapping[str, Any]) -> list[str]:
    """Describe anomalies in the data to look at before training; empty if there are none."""
    lines = []
    for key in ("rows without labels", "rows without text", "rows without features"):
        if facts.get(key):
            what, _, missing = key.partition(" without ")
            lines.append(f"{counted(facts[key], what[:-1])} without {missing}")
    similar = facts.get("similar names", {})
    if similar.get("same words"):
        groups = counted(similar["same words"], "group")
        lines.append(f"{groups} of names that differ only in case, spaces, signs or a plural s")
    if similar.get("one edit"):
        lines.append(f"{counted(similar['one edit'], 'pair')} of names that differ in one letter")
    same = facts.get("labels with the same rows", {})
    if same.get("groups"):
        groups = counted(same["groups"], "group")
        lines.append(f"{groups} of labels that never occur apart")
    for what in ("text", "row"):
        found = facts.get(f"duplicate {what}s", {})
        if found.get("groups"):
            times = "occurs" if found["groups"] == 1 else "occur"
            line = f"{counted(found['groups'], what)} {times} more than once"
            differ = found["groups whose labels differ"]
            if differ:
                of_them = "" if differ == found["groups"] else f"{differ:,} of them "
                line += f", {of_them}with different labels"
            lines.append(line)
    return lines


def percent(value: float) -> str:
    """Format a share given in percent, with as many digits as are meaningful."""
    if 0 < value < 0.01:
        return "less than 0.01 %"
    return f"{value:.1f} %" if value >= 1 or value == 0 else f"{value:.2g} %"
