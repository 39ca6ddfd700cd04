"""A model and rows that it was not trained on → the largest Δ that costs nothing.

How Δ is chosen, given a model of Δ = 0.01 and rows that it was not trained on: it is the largest Δ
of `GRID` at which P@k is at most `TOLERANCE` points below that of Δ = 0.01, for each of `DEPTHS`.
Three noisy measures that must all pass make this careful where there are many rows. Where one row
is more than the tolerance, below 1,000 rows, a lucky Δ may pass far up: there every smaller Δ of
the grid has to pass too. Below 100 rows nothing can be told, and Δ stays 0.01.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.data.row_weights import RowWeights
from dismec.errors import DataError
from dismec.model.model import Model
from dismec.training.params import LEAST_DELTA

__all__ = ["DEPTHS", "GRID", "TOLERANCE", "Choice", "choose", "held_out", "pick"]

# 0.01 · 50^(i/20), in two digits.
GRID = (
    *(LEAST_DELTA, 0.012, 0.015, 0.018, 0.022, 0.027, 0.032, 0.039, 0.048, 0.058),
    *(0.071, 0.086, 0.10, 0.13, 0.15, 0.19, 0.23, 0.28, 0.34, 0.41, 0.50),
)
DEPTHS = (1, 3, 5)
TOLERANCE = 0.1  # points
_MOST_ROWS = 10_000
_ENOUGH_ROWS, _FEWEST_ROWS = 1000, 100
_SLACK = 1e-9  # of a point: what rounding may add to a loss


def held_out(n_rows: int) -> npt.NDArray[np.int64]:
    """Which rows to hold out, ascending: a random tenth, 1 to 10,000; the same for the same number.

    Raises
    ------
    DataError
        If no row would be left to train on.
    """
    if n_rows < 2:
        raise DataError(
            f"there is {n_rows} row: too few to hold one out; give rows to learn delta or "
            "probabilities on (validation=…), or do without"
        )
    size = min(max(n_rows // 10, 1), _MOST_ROWS)
    return np.sort(np.random.default_rng(0).choice(n_rows, size, replace=False))


@dataclass(frozen=True)
class Choice:
    """A Δ, and what it does to the rows that it was chosen on.

    Attributes
    ----------
    delta
        The Δ chosen, one of `GRID`.
    before, after
        P@k in percent for each of `DEPTHS`, at Δ = 0.01 and at the one chosen.
    """

    delta: float
    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def effect(self) -> dict[str, Any]:
        """What the manifest says of it (`dismec.model.provenance`)."""
        before, after = (
            {f"P@{k}": p for k, p in zip(DEPTHS, values, strict=True)}
            for values in (self.before, self.after)
        )
        return {"at": GRID[0], "before": before, "after": after}


def choose(
    model: Model,
    X: Any,
    Y: Any,
    *,
    weights: RowWeights | None = None,
    threads: int | None = None,
) -> Choice:
    """The Δ for a model of Δ = 0.01 and two labels or more, by rows that it was not trained on.

    Nothing is trained: each Δ of the grid costs one prediction of these rows. With `weights` rows
    count as much as they say.

    Raises
    ------
    DataError
        If X and Y do not fit the model or have no rows.
    """
    curve: list[tuple[float, ...]] = []
    for delta in GRID:
        model = model.pruned(delta)  # of the last one, which has fewer weights to go through
        found = model.evaluate(X, Y, DEPTHS, weights=weights, threads=threads)
        curve.append(tuple(found[f"P@{k}"] for k in DEPTHS))
    chosen = pick(curve, int(found["rows"]))
    return Choice(GRID[chosen], curve[0], curve[chosen])


def pick(precision: Sequence[Sequence[float]], n_rows: int) -> int:
    """Which place of `GRID` is chosen if these are the P@k there, in percent, on so many rows."""
    loss = np.asarray(precision[0]) - np.asarray(precision)
    fine = (loss <= TOLERANCE + _SLACK).all(axis=1)
    if n_rows < _ENOUGH_ROWS:
        fine = np.logical_and.accumulate(fine)
    return int(np.flatnonzero(fine)[-1]) if n_rows >= _FEWEST_ROWS else 0
