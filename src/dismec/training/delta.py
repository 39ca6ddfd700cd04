"""Choose the largest Δ that does not cost accuracy on held-out rows.

Given a model of Δ = 0.01 and rows that it was not trained on, the choice is the largest Δ of `GRID`
at which P@k, for each k of `DEPTHS`, is at most `TOLERANCE` points below that of Δ = 0.01.
Requiring three noisy metrics to pass is cautious when there are many rows. Below 1,000 rows, a
single row is worth more than the tolerance and a large Δ may pass by luck, so every smaller Δ of
the grid has to pass too. Below 100 rows, the metrics say nothing, and Δ stays 0.01.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.data.counts import counted
from dismec.data.row_weights import RowWeights
from dismec.errors import DataError
from dismec.model.model import Model
from dismec.training.params import LEAST_DELTA

__all__ = ["DEPTHS", "GRID", "TOLERANCE", "Choice", "choose", "held_out", "pick"]

# 0.01 · 50^(i/20), rounded to two digits.
GRID = (
    *(LEAST_DELTA, 0.012, 0.015, 0.018, 0.022, 0.027, 0.032, 0.039, 0.048, 0.058),
    *(0.071, 0.086, 0.10, 0.13, 0.15, 0.19, 0.23, 0.28, 0.34, 0.41, 0.50),
)
DEPTHS = (1, 3, 5)
TOLERANCE = 0.1  # points
_MOST_ROWS = 10_000
_ENOUGH_ROWS, _FEWEST_ROWS = 1000, 100
_SLACK = 1e-9  # points that rounding may add to a loss


def held_out(n_rows: int) -> npt.NDArray[np.int64]:
    """Return the rows to hold out, ascending: a random tenth, at least 1 and at most 10,000.

    The same number of rows always gives the same selection.

    Raises
    ------
    DataError
        If no row would be left to train on.
    """
    if n_rows < 2:
        raise DataError(
            f'{counted(n_rows, "row")}: too few to hold one out for delta="auto" or '
            "calibrate=True; pass validation rows (validation=…)"
        )
    size = min(max(n_rows // 10, 1), _MOST_ROWS)
    return np.sort(np.random.default_rng(0).choice(n_rows, size, replace=False))


@dataclass(frozen=True)
class Choice:
    """A chosen Δ and its effect on the rows that it was chosen on.

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
        """The effect as stored in the manifest (`dismec.model.provenance`)."""
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
    """Choose Δ for a model of Δ = 0.01 with two or more labels, on rows that it was not trained on.

    Nothing is trained: each Δ of the grid costs one prediction of these rows. `weights` are the
    weights of the rows in the metrics.

    Raises
    ------
    DataError
        If X and Y do not fit the model or have no rows.
    """
    curve: list[tuple[float, ...]] = []
    for delta in GRID:
        model = model.pruned(delta)  # the previous model has fewer weights left to prune
        found = model.evaluate(X, Y, DEPTHS, weights=weights, threads=threads)
        curve.append(tuple(found[f"P@{k}"] for k in DEPTHS))
    chosen = pick(curve, int(found["rows"]))
    return Choice(GRID[chosen], curve[0], curve[chosen])


def pick(precision: Sequence[Sequence[float]], n_rows: int) -> int:
    """Return the index into `GRID` of the Δ to choose.

    `precision` holds P@k in percent at each Δ of the grid, measured on `n_rows` rows.
    """
    loss = np.asarray(precision[0]) - np.asarray(precision)
    fine = (loss <= TOLERANCE + _SLACK).all(axis=1)
    if n_rows < _ENOUGH_ROWS:
        fine = np.logical_and.accumulate(fine)
    return int(np.flatnonzero(fine)[-1]) if n_rows >= _FEWEST_ROWS else 0
