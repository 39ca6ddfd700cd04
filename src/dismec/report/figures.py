"""Facts → figures (the only module that imports matplotlib).

The colors are those of Okabe and Ito, which color-blind readers can distinguish. Figures of facts
are SVG with a bounded number of elements, regardless of the number of labels.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dismec.errors import DismecError
from dismec.measure.breakdown import frequency_range
from dismec.solve.block import BINS, SIDE

BLUE, ORANGE, VERMILION = "#0072B2", "#E69F00", "#D55E00"
PALE_BLUE, GREY = "#BFD9E8", "#777777"
# For curves, which also differ in markers and dashes.
COLORS = (BLUE, VERMILION, "#009E73", "#CC79A7", ORANGE, "#56B4E9")
MARKERS = "osD^vP"
_STYLE = Path(__file__).with_name("figures.mplstyle")
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def draw_frequencies(frequencies: Mapping[str, Any]) -> bytes:
    """Draw the number of rows per label by rank, with the power law (the paper's Figure 1)."""
    ranks, rows = np.array(frequencies["ranks"]), np.array(frequencies["rows"])

    def draw(ax: Any) -> None:
        ax.loglog(ranks, rows, "o", ms=4, color=BLUE, label="labels", zorder=3)
        if frequencies["beta"] is not None:
            law = frequencies["n_1"] * ranks ** -frequencies["beta"]
            r2 = frequencies["R2"]
            said = f"β = {frequencies['beta']:.2f}" + (f", R² = {r2:.3f}" if r2 is not None else "")
            ax.loglog(ranks, law, "-", lw=2, color=VERMILION, label=f"nᵣ = n₁·r⁻ᵝ, {said}")
        ax.set_xlim(0.8, max(ranks[-1] * 1.25, 10))
        ax.set_ylim(0.7, max(rows[0] * 3, 10))
        ax.legend(loc="upper right")
        plain_ticks(ax.xaxis)
        plain_ticks(ax.yaxis)
        ax.set_xlabel("rank of the label")
        ax.set_ylabel("rows with the label")

    return draw_svg(draw)


def draw_weights(counts: Mapping[str, Any], delta: float | None) -> bytes:
    """Draw weights by sign and magnitude, before and after pruning (the paper's Figure 2)."""
    before, after = counts["before"], counts["after"]
    either = np.maximum(after if before is None else before, after)
    reach = np.abs(np.flatnonzero(either) - SIDE).max(initial=12)
    edges = np.arange(BINS + 1) - SIDE - 0.5

    def draw(ax: Any) -> None:
        floor = 0.7
        for values, color, label in (
            (before, PALE_BLUE, "before pruning"),
            (after, BLUE, "after pruning, as stored"),
        ):
            if values is not None:
                heights = np.maximum(values, floor / 2)
                ax.stairs(heights, edges, baseline=floor / 2, fill=True, color=color, label=label)
        if delta:
            line = {"color": VERMILION, "ls": "--", "lw": 1.5}
            place = max(_axis_place(delta), 0.5)  # smaller values fall into the middle bin
            ax.axvline(-place, **line)
            ax.axvline(place, **line, label=f"w = ±Δ = ±{delta:g}")
        ax.set_yscale("log")
        ax.set_ylim(floor, max(10, 2 * either.max()))
        # Each decade has a tick, every second one a label; there is no room for more.
        named = {
            sign * _axis_place(size): f"{sign * size:g}"
            for size in (0.0001, 0.01, 1)
            for sign in (-1, 1)
        }
        ax.set_xticks([0, *named], ["0", *named.values()])
        ax.set_xticks(
            [sign * _axis_place(10.0**d) for d in (-5, -3, -1, 1) for sign in (-1, 1)], minor=True
        )
        ax.set_xlim(-reach - 1, reach + 1)
        plain_ticks(ax.yaxis)
        ax.grid(axis="x", visible=False)
        ax.set_xlabel("weight w (log scale on both sides; in the middle |w| < 10⁻⁶, and zeros)")
        ax.set_ylabel("number of weights")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=3)

    return draw_svg(draw)


def draw_groups(groups: Sequence[Mapping[str, Any]], k: int) -> bytes:
    """Draw recall and coverage of each group of labels, and its contribution to P@k."""
    names = [frequency_range(group["frequency"]) for group in groups]
    heights = {
        label: [group[name] for group in groups]
        for name, label in (
            (f"P@{k}", f"contribution to P@{k}"),
            (f"Coverage@{k}", f"Coverage@{k}: labels found at all"),
            (f"R@{k}", f"R@{k}: true pairs found"),
        )
    }
    return draw_bars(names, heights, "training rows per label")


def draw_bars(names: Sequence[str], heights: Mapping[str, Sequence[float]], what: str) -> bytes:
    """Draw three bars for each name, in percent."""

    def draw(ax: Any) -> None:
        x = np.arange(len(names))
        bars = zip(heights.items(), (PALE_BLUE, ORANGE, BLUE), strict=True)
        for place, ((label, values), color) in enumerate(bars):
            ax.bar(x + 0.27 * (place - 1), values, 0.25, color=color, label=label)
        ax.set_xlim(-0.6, max(len(names), 5) - 0.4)
        ax.set_xticks(x, names, rotation=30, ha="right", rotation_mode="anchor")
        ax.grid(axis="x", visible=False)
        ax.set_xlabel(what)
        ax.set_ylabel("percent")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=3)

    return draw_svg(draw)


def draw_reliability(bins: Sequence[Mapping[str, float]]) -> bytes:
    """Draw the share of hits against the probability; larger points stand for more pairs."""
    p, found = ([100 * entry[key] for entry in bins] for key in ("probability", "share of hits"))
    pairs = np.array([entry["pairs"] for entry in bins], dtype=np.float64)

    def draw(ax: Any) -> None:
        ax.plot([0, 100], [0, 100], color=GREY, ls="--", lw=1, label="exact probabilities")
        ax.plot(p, found, color=BLUE, lw=1.5)
        size = 20 + 180 * pairs / max(pairs.max(initial=1), 1)
        ax.scatter(
            p, found, s=size, color=BLUE, zorder=3, label="this model (size: number of pairs)"
        )
        ax.set_xlim(-3, 103)
        ax.set_ylim(-3, 103)
        ax.set_xlabel("predicted probability, %")
        ax.set_ylabel("share of pairs that are true, %")
        ax.legend(loc="upper left")

    return draw_svg(draw)


def draw_pruning(table: Sequence[Mapping[str, float]]) -> bytes:
    """Draw P@k and the number of weights of each delta (the paper's Figure 5)."""
    deltas = [row["delta"] for row in table]

    def draw(ax: Any) -> None:
        size = ax.twinx()
        size.plot(deltas, [row["weights"] for row in table], color=GREY, ls="--", label="weights")
        curves = [name for name in table[0] if name.startswith("P@")]
        for name, color, marker in zip(curves, COLORS, MARKERS, strict=False):
            values = [row[name] for row in table]
            ax.plot(deltas, values, color=color, marker=marker, ms=4, label=name)
        # 0 has no place on a logarithmic scale, so the axis is linear up to the smallest other Δ.
        ax.set_xscale("symlog", linthresh=min((d for d in deltas if d > 0), default=0.01))
        ax.set_xticks(deltas, [f"{delta:g}" for delta in deltas], rotation=60)
        ax.minorticks_off()
        ax.set_xlabel("Δ: weights with |w| < Δ are dropped")
        ax.set_ylabel("P@k, %")
        size.set(ylim=0, ylabel="weights (dashed)")
        size.grid(visible=False)
        plain_ticks(size.yaxis)
        ax.legend(loc="lower left")

    return draw_svg(draw)


def check_drawing() -> None:
    """Raise `DismecError` if matplotlib is not installed; check before long work."""
    _new_figure(1, 1)


def _new_figure(width: float, height: float) -> Any:
    """Return an empty figure, sizes in inches; raise `DismecError` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DismecError("plots need matplotlib: pip install 'dismec[plots]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def draw_svg(draw: Any, height: float = 4.2) -> bytes:
    """Return an SVG of what `draw` puts on its axes; the same input gives the same bytes."""
    figure = _new_figure(7.5, height)  # raises if matplotlib is missing
    from matplotlib import rc_context

    target = io.BytesIO()
    with rc_context(fname=_STYLE):
        draw(figure.add_subplot())
        figure.savefig(target, format="svg", metadata=_NO_METADATA)
    return target.getvalue()


def plain_ticks(axis: Any) -> None:
    """Format numbers as 1,000 and 0.1."""
    axis.set_major_formatter("{x:,.10g}")
    axis.set_minor_formatter("")


def _axis_place(weight: float) -> float:
    """Return the position of a positive weight on the axis of bins."""
    return 0.5 + 2 * (math.log2(weight) + 20)
