"""The results of a comparison of systems → figures and a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dismec.data.counts import counted
from dismec.data.files import StrPath, whole_file
from dismec.data.printable import html_text
from dismec.measure.breakdown import frequency_range
from dismec.report.figures import BLUE, COLORS, MARKERS, draw_bars, draw_svg, plain_ticks
from dismec.report.html_page import figure, page_of, section_of, table
from dismec.report.sections import Section

_DEPTHS = (1, 3, 5)
_BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1), "fontsize": 8}


def accuracy_rows(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the header and rows of the metrics table; ± is half the width of the 95 % interval.

    A difference from dismec whose interval contains 0 is marked ≈.
    """
    heads = ["system", "P@1", "P@3", "P@5", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5"]
    rows = []
    for name, entry in _finished(found).items():
        if "P@1" not in entry:
            continue
        low, high = entry["intervals"]["P@1"]
        apart = entry.get("minus_dismec", {}).get("P@1", (1, 1))
        same = " ≈" if apart[0] <= 0 <= apart[1] else ""
        first = f"{entry['P@1']:.2f} ± {(high - low) / 2:.2f}{same}"
        rows.append([name, first, *(f"{entry[head]:.2f}" for head in heads[2:])])
    return heads, rows


def cost_rows(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the header and rows of the table of times and sizes; dashes if there is no result."""
    heads = ["system", "train s", "CPU s", "batch ms", "one row ms", "peak MB", "model MB"]

    def shown(entry: Mapping[str, Any], name: str, unit: float, digits: int) -> str:
        value = entry.get(name)
        return "–" if value is None else f"{value / unit:,.{digits}f}"

    rows = [
        [
            name,
            shown(entry, "train_seconds", 1, 1),
            shown(entry, "cpu_seconds", 1, 1),
            shown(entry, "predict_ms", 1, 3),
            shown(entry, "single_ms", 1, 3),
            shown(entry, "peak_bytes", 1e6, 0),
            shown(entry, "model_bytes", 1e6, 1),
        ]
        for name, entry in found["systems"].items()
    ]
    return heads, rows


def notes(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the version of each system, with remarks on its row."""
    return {
        name: "; ".join(part for part in (entry["version"], entry["note"]) if part)
        for name, entry in _finished(found).items()
    }


def failures(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the systems without a result, and the reasons."""
    return {n: entry["error"] for n, entry in found["systems"].items() if "error" in entry}


def write_comparison(target: StrPath, title: str, found: Mapping[str, Any]) -> None:
    """Write the page of a comparison; the file appears only when it is complete."""
    content = page_of(f"Comparison on {title}", _sections(found)).encode()
    with whole_file(target) as file:
        file.write(content)


def _sections(found: Mapping[str, Any]) -> Iterable[str]:
    data = found["data"]
    yield (
        f"<p>{counted(data['rows'], 'training row')}, {counted(data['test rows'], 'test row')}, "
        f"{counted(data['features'], 'feature')}, {counted(data['labels'], 'label')} with "
        "training rows. "
        f"Trained with {counted(data['threads'], 'thread')}, predicted with one; "
        f"{html_text(data['machine'])}.</p>"
    )
    note = (
        "In percent. ± is half the width of a 95 % bootstrap interval over test rows. ≈: not "
        "significantly different from dismec (the paired 95 % interval of the difference contains "
        "0)."
    )
    yield section_of(Section("Accuracy", *accuracy_rows(found), note=note))
    note = (
        "Times are the best of all runs. Memory is the peak of the training process, including the "
        "data. Sizes are those of files."
    )
    yield section_of(Section("Cost", *cost_rows(found), note=note))
    yield table(["system", "version"], notes(found).items())
    failed = list(failures(found).items())
    if failed:
        yield section_of(Section("Systems without a result", ["system", "reason"], failed))
    shown = {n: entry for n, entry in _finished(found).items() if "P@1" in entry}
    if not shown:
        return
    yield "<h2>Accuracy against cost</h2>"
    for key, unit, what, caption in (
        ("train_seconds", 1, "training time, s", "P@1 against training time."),
        ("model_bytes", 1e6, "size of the model, MB", "P@1 against model size."),
    ):
        points = {n: [(e[key] / unit, e["P@1"])] for n, e in shown.items() if e.get(key)}
        ranges = {n: shown[n]["intervals"]["P@1"] for n in points}
        yield figure(_draw_points(points, what, ranges), f"{caption} Lines: 95 % intervals.")
    yield "<h2>nDCG@k</h2>"
    heights = {f"nDCG@{k}": [e[f"nDCG@{k}"] for e in shown.values()] for k in _DEPTHS}
    bars = draw_bars(list(shown), heights, "system")
    yield figure(bars, "nDCG@k of each system (the paper's Figure 3).")
    yield "<h2>By label frequency</h2>"
    caption = (
        "Labels in ten groups by training frequency, plus a group of labels that occur only in "
        "test rows; the share of each group's true pairs found in the first 5 places."
    )
    yield figure(_by_frequency(shown), caption)
    yield "<h2>Precision against propensity-scored precision</h2>"
    caption = (
        "P@1 against PSP@1. Lines: one calibrated model, ranked by score, by probability, and by "
        "P/p^alpha up to alpha = 1."
    )
    curves = {
        name: sorted((e["PSP@1"], e["P@1"]) for e in (entry, *entry["rankings"].values()))
        for name, entry in shown.items()
    }
    yield figure(_draw_points(curves, "PSP@1, %"), caption)


def _finished(found: Mapping[str, Any]) -> dict[str, Any]:
    return {n: entry for n, entry in found["systems"].items() if "error" not in entry}


def _draw_points(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    what: str,
    ranges: Mapping[str, Sequence[float]] | None = None,
) -> bytes:
    """Draw P@1 (y) of each system against something else (x); several points are joined.

    With `ranges` of y, x has a logarithmic scale.
    """

    def draw(ax: Any) -> None:
        for place, (name, points) in enumerate(curves.items()):
            ax.plot(*zip(*points, strict=True), lw=1.2, ms=6, label=name, **_style_of(place, name))
            if ranges:
                ax.vlines(points[0][0], *ranges[name], lw=1, color=_style_of(place, name)["color"])
        if ranges:
            ax.set_xscale("log")
            plain_ticks(ax.xaxis)
        ax.set_xlabel(what)
        ax.set_ylabel("P@1, %")
        ax.legend(**_BESIDE)

    return draw_svg(draw, height=5)


def _style_of(place: int, name: str) -> dict[str, Any]:
    others = [color for color in COLORS if color != BLUE]
    color = BLUE if name.startswith("dismec") else others[place % len(others)]
    return {"color": color, "marker": MARKERS[place % len(MARKERS)]}


def _by_frequency(shown: Mapping[str, Any]) -> bytes:
    def draw(ax: Any) -> None:
        for place, (name, entry) in enumerate(shown.items()):
            heights = [group["R@5"] for group in entry["groups"]]
            dashes = "-" if name.startswith("dismec") else "--"
            style = _style_of(place, name)
            ax.plot(heights, ls=dashes, lw=1.2, ms=4, label=name, **style)
        groups = next(iter(shown.values()))["groups"]
        names = [frequency_range(group["frequency"]) for group in groups]
        ax.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
        ax.set_xlabel("training rows per label")
        ax.set_ylabel("R@5 of the group, %")
        ax.legend(**_BESIDE)

    return draw_svg(draw, height=5)
