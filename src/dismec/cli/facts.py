"""Facts about data and models (`dismec.report.facts`) → lines, small bars and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dismec.cli.console import (
    print_level_table,
    print_metrics,
    print_pairs,
    print_paragraphs,
    print_table,
)

if TYPE_CHECKING:
    from dismec.report.sections import Section

__all__ = ["print_facts"]

_BARS = "▁▂▃▄▅▆▇█"
_LISTED = 10  # entries of a table; pages and JSON have more


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print facts about data or a model (`dismec.report.facts`)."""
    from dismec.report.estimate import summarize_estimate
    from dismec.report.evaluation import KS
    from dismec.report.facts import plain_facts
    from dismec.report.sections import (
        extreme_section,
        file_section,
        group_section,
        label_sections,
        list_anomalies,
        summarize_data,
        summarize_test,
    )

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
        for section in label_sections(facts):
            _print_section(section)
    if facts.get("training"):
        print_paragraphs(["", *summarize_estimate(facts["training"])])
    if len(facts.get("file sizes", ())) > 1:
        _print_section(file_section(facts["file sizes"], _LISTED))
    if "test" in facts:
        print_metrics(facts["test"]["metrics"], KS)
        _print_section(group_section(facts["test"]["groups"], KS[-1:]), left=0)
        for which in ("best", "worst"):
            _print_section(extreme_section(facts["test"], which))
    if "hierarchy" in facts:
        print_level_table(facts["hierarchy"]["levels"], KS)


def _print_section(section: Section, left: int = 1) -> None:
    """Print a titled table, at most its first rows."""
    from dismec.report.facts import shown

    print_paragraphs(["", section.title, *([section.text] if section.text else [])])
    rows = [[shown(cell) for cell in row] for row in section.rows[:_LISTED]]
    print_table(section.heads, rows, section.note or None, left=left)


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


def _logs(counts: Sequence[float]) -> list[float]:
    return [math.log(count) + 1 if count else 0 for count in counts]


def _bars(heights: Sequence[float]) -> str:
    """Return a bar per number; blank for 0."""
    most = max(heights, default=0) or 1
    return "".join(
        _BARS[min(int(len(_BARS) * h / most), len(_BARS) - 1)] if h else " " for h in heights
    )
