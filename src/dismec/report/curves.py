"""Tables of `dismec.training.tuning` and `dismec.training.sweep` → pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dismec.errors import DataError
from dismec.report.figures import new_figure

__all__ = ["check_plot", "draw_sweep", "draw_tuning"]

Row = dict[str, float]

# Okabe and Ito's colours, which colour-blind people can tell apart; markers and dashes differ too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = "osD^vP"
_DASHES = ("-", "--", ":", "-.", "-", "--")


def draw_tuning(
    table: Sequence[Row], metric: str, chosen: float, path: str | os.PathLike[str]
) -> None:
    """The metrics of each C (`Tuned.table`), as .svg, .png or .pdf by the file's ending.

    Raises
    ------
    DataError
        If matplotlib is not there, or knows no such ending.
    """
    kind, _, k = metric.partition("@")
    depths = sorted({1, 3, 5, int(k)})
    figure = new_figure(5.2, 3.6)
    axes = figure.subplots()
    for depth, style in zip(depths, _styles(), strict=False):
        name = f"{kind}@{depth}"
        values = [row[name] for row in table]
        axes.plot([row["C"] for row in table], values, label=name, **style)
    axes.axvline(chosen, color="#666666", linewidth=1, linestyle=(0, (1, 2)))
    to_the_left = chosen > table[len(table) // 2]["C"]
    axes.annotate(
        f"C = {chosen:g}, best {metric}",
        (chosen, 0.02),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if to_the_left else 4, 0),
        textcoords="offset points",
        horizontalalignment="right" if to_the_left else "left",
        fontsize=8,
    )
    axes.set_xscale("log")
    axes.set_xticks([row["C"] for row in table], [f"{row['C']:g}" for row in table])
    axes.minorticks_off()
    axes.set_xlabel("C, weight of the losses")
    axes.set_ylabel(f"{kind}@k on rows held out, %")
    _finish(figure, axes, path)


def draw_sweep(table: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """P@k, weights and time of each delta (`sweep_model`); file and errors as `draw_tuning`."""
    figure = new_figure(5.2, 5.4)
    quality, size = figure.subplots(2, 1, sharex=True)
    deltas = [row["delta"] for row in table]
    names = [name for name in table[0] if name.startswith("P@")]
    for name, style in zip(names, _styles(), strict=False):
        quality.plot(deltas, [row[name] for row in table], label=name, **style)
    quality.set_ylabel("P@k, %")
    _tidy(quality)
    time = size.twinx()
    first, second, *_ = _styles()
    unit, name = (1e6, "millions") if table[0]["weights"] >= 1e6 else (1e3, "thousands")
    size.plot(deltas, [row["weights"] / unit for row in table], label="weights", **first)
    time.plot(deltas, [row["ms a row"] for row in table], label="time of a row", **second)
    size.set_ylim(bottom=0)
    size.set_ylabel(f"weights, {name}")
    time.set_ylabel("prediction, ms of a core a row")
    time.set_ylim(bottom=0)
    # 0 has no place on a logarithmic scale: up to the smallest other delta it is linear.
    least = min((delta for delta in deltas if delta > 0), default=0.01)
    size.set_xscale("symlog", linthresh=least)
    size.set_xlim(left=deltas[0])
    size.set_xticks(deltas, [f"{delta:g}" for delta in deltas], rotation=60)
    size.minorticks_off()
    size.set_xlabel("Δ: weights with |w| < Δ are dropped")
    handles = [*size.get_lines(), *time.get_lines()]
    _tidy(size, handles)
    _finish(figure, None, path)


def check_plot(path: str | os.PathLike[str]) -> None:
    """Raise `DataError` unless a picture can be drawn to that file: before hours of work."""
    target = Path(path)
    known = new_figure(1, 1).canvas.get_supported_filetypes()
    if target.suffix.lower().lstrip(".") not in known:
        raise DataError(f"{target.name}: unknown ending; use .svg, .png or .pdf")
    if not target.parent.is_dir():
        raise DataError(f"{target.parent}: no such directory")


def _styles() -> list[dict[str, Any]]:
    return [
        {"color": c, "marker": m, "linestyle": d, "markersize": 4, "linewidth": 1.4}
        for c, m, d in zip(_COLOURS, _MARKERS, _DASHES, strict=True)
    ]


def _tidy(axes: Any, handles: Sequence[Any] | None = None) -> None:
    axes.grid(alpha=0.25)
    axes.spines["top"].set_visible(False)
    # Above, where no line can run through it.
    axes.legend(
        handles=handles,
        frameon=False,
        fontsize=8,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=6,
        borderaxespad=0.2,
    )


def _finish(figure: Any, axes: Any, path: str | os.PathLike[str]) -> None:
    if axes is not None:
        _tidy(axes)
    try:
        # Nothing of the day or the machine: the same table gives the same file.
        metadata = {"Date": None} if str(path).endswith(".svg") else None
        figure.savefig(path, metadata=metadata, bbox_inches="tight")
    except ValueError as error:
        raise DataError(f"{Path(path).name}: {error}") from None
