"""Facts about data and models (`dismec.report.facts`) → lines, small bars and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dismec.cli.console import (
    print_level_table,
    print_metrics,
    print_pairs,
    print_paragraphs,
    print_table,
)
from dismec.data.counts import counted

__all__ = ["print_facts"]

_BARS = "▁▂▃▄▅▆▇█"
_LISTED = 10  # entries of a table; pages and JSON have more


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print facts about data or a model (`dismec.report.facts`)."""
    from dismec.report.estimate import summarize_estimate
    from dismec.report.facts import plain_facts
    from dismec.report.headline import list_anomalies, summarize_data, summarize_test

    if "test" in facts:
        print_paragraphs([*summarize_test(facts["test"]), ""])
    elif "all labels" in facts:
        anomalies = list_anomalies(facts)
        worth = ["", "Check before training:", *(f"- {line}" for line in anomalies)]
        print_paragraphs([*summarize_data(facts), *(worth if anomalies else []), ""])
    lines = plain_facts(facts) | _frequency_lines(facts["label frequencies"])
    for key in ("features of a row", "characters of a text"):
        if facts.get(key, {}).get("rows"):
            low, high = facts[key]["edges"][0], facts[key]["edges"][-1] - 1
            lines[key] = f"{_bars(facts[key]['rows'])}  {low:,} to {high:,}"
    for when in ("before", "after"):
        counts = facts.get("weight counts", {}).get(when)
        if counts is not None:
            lines[f"weights {when} pruning"] = f"{_bars(_logs(_coarse(counts)))}  −…0…+, log scales"
    print_pairs(lines)
    if "all labels" in facts:
        _print_labels(facts)
    if facts.get("training"):
        print_paragraphs(["", *summarize_estimate(facts["training"])])
    if len(facts.get("file sizes", ())) > 1:
        _print_files(facts["file sizes"])
    if "test" in facts:
        _print_test(facts["test"])
    if "hierarchy" in facts:
        from dismec.report.evaluation import KS

        print_level_table(facts["hierarchy"]["levels"], KS)


def _print_labels(facts: Mapping[str, Any]) -> None:
    """Print labels by name (frequent, rare, similar, co-occurring), and duplicate rows."""
    print_table(
        ["most frequent labels", "rows"],
        [[e["name"], f"{e['rows']:,}"] for e in facts["most frequent labels"][:_LISTED]],
    )
    rare = facts["rare labels"]
    if rare["1 row"]:
        some = "; ".join(rare["examples"][:_LISTED])
        print_paragraphs([f"Labels with one row: {rare['1 row']:,}, such as {some}", ""])
    alike = facts.get("similar names", {"examples": []})["examples"][:_LISTED]
    print_table(
        ["similar names", "rows", "differ by"],
        [
            [name, f"{rows:,}", e["differ by"] if place == 0 else ""]
            for e in alike
            for place, (name, rows) in enumerate(zip(e["names"], e["rows"], strict=True))
        ],
    )
    print_table(
        ["labels with the same rows", "and", "rows"],
        [
            [e["names"][0], _and_others(e["names"][1], e["labels"] - 2), f"{e['rows']:,}"]
            for e in facts["labels with the same rows"]["examples"][:_LISTED]
        ],
        left=2,
    )
    together = facts["labels that occur together"]
    print_table(
        ["labels that occur together", "and", "rows with both", "Jaccard", "lift"],
        [
            [*e["names"], f"{e['together']:,}", f"{e['Jaccard']:.2f}", f"{e['lift']:,.1f}"]
            for e in together["pairs"][:_LISTED]
        ],
        left=2,
    )
    print_table(
        ["label", "always occurs with", "rows"],
        [[e["name"], e["with"], f"{e['rows']:,}"] for e in together["always"][:_LISTED]],
        left=2,
    )
    for what in ("text", "row"):
        repeated = facts.get(f"duplicate {what}s", {"examples": []})["examples"][:_LISTED]
        print_table(
            [f"duplicate {what}s", "times", "labels differ", "rows, from 1"],
            [
                [
                    e.get("text", f"row {e['rows'][0]:,}"),
                    f"{e['times']:,}",
                    "yes" if e["labels differ"] else "no",
                    ", ".join(f"{row:,}" for row in e["rows"]),
                ]
                for e in repeated
            ],
        )


def _and_others(name: str, others: int) -> str:
    return f"{name} and {others:,} more" if others else name


def _frequency_lines(found: Mapping[str, Any]) -> dict[str, str]:
    if not found["ranks"]:
        return {}
    rows = found["rows"][:: max(1, len(found["rows"]) // 30)]
    lines = {"rows of labels by rank": f"{_bars(_logs(rows))}  log scales"}
    if found["beta"] is not None:
        last = found["fitted ranks"][1]
        r2 = "" if found["R2"] is None else f", R² {found['R2']:.3f} on log axes"
        lines["power law"] = f"exponent {found['beta']:.2f}{r2}, ranks 1 to {last:,}"
    for most, share in found["share with at most"].items():
        unit = "row" if most == "1" else "rows"
        lines[f"labels with at most {most} {unit}"] = f"{100 * share:.1f} %"
    return lines


def _coarse(counts: Sequence[int], size: int = 4) -> list[int]:
    """Merge bins of weights, `size` at a time on either side of the middle bin."""
    middle = len(counts) // 2
    below, above = counts[middle - 1 :: -1], counts[middle + 1 :]
    low, high = ([sum(c[i : i + size]) for i in range(0, len(c), size)] for c in (below, above))
    return [*low[::-1], counts[middle], *high]


def _print_files(files: Sequence[Mapping[str, Any]], most: int = 10) -> None:
    counts = ("labels", "weights", "bytes")
    rows = [[entry["file"], *(f"{entry[key]:,}" for key in counts)] for entry in files[:most]]
    more = f"… and {len(files) - most:,} more" if len(files) > most else ""
    print_table(["file", *counts], rows, more)


def _print_test(test: Mapping[str, Any]) -> None:
    from dismec.report.evaluation import KS
    from dismec.report.facts import frequency_range

    k = max(KS)
    print_metrics(test["metrics"], KS)
    names = [f"P@{k}", f"nDCG@{k}", f"PSP@{k}", f"R@{k}", f"Coverage@{k}"]
    print_table(
        ["training rows", "labels", "pairs", *names[:-1], f"cover@{k}"],
        [
            [
                frequency_range(group["frequency"]),
                f"{group['labels']:,}",
                f"{group['true pairs']:,}",
                *(f"{group[name]:.2f}" for name in names),
            ]
            for group in test["groups"]
        ],
        f"By training frequency, %: contributions to P, nDCG and PSP above; R@{k} and coverage "
        "of the group alone",
    )
    for which in ("best", "worst"):
        print_table(
            [f"{which} labels", "training rows", "test rows", "precision", "recall", "F1"],
            [
                [
                    entry["name"],
                    *(f"{entry[key]:,}" for key in ("training rows", "test rows")),
                    *(f"{entry[key]:.1f}" for key in ("precision", "recall", "F1")),
                ]
                for entry in test[f"{which} labels"]
            ],
            f"In the first {k} places, %, of {counted(test['labels judged'], 'label')} with at "
            "least 5 test rows",
        )


def _logs(counts: Sequence[float]) -> list[float]:
    return [math.log(count) + 1 if count else 0 for count in counts]


def _bars(heights: Sequence[float]) -> str:
    """Return a bar per number; blank for 0."""
    most = max(heights, default=0) or 1
    return "".join(
        _BARS[min(int(len(_BARS) * h / most), len(_BARS) - 1)] if h else " " for h in heights
    )
