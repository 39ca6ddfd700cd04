"""Facts about data or a test → a few sentences with the main results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dismec.data.counts import counted
from dismec.report.evaluation import KS

__all__ = ["list_anomalies", "percent", "summarize_data", "summarize_test"]


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
        lines.append(
            f"The most frequent label, {_quoted_name(first['name'])}, has "
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


def _quoted_name(name: str, most: int = 80) -> str:
    return f"“{name[:most]}{'…' if len(name) > most else ''}”"
