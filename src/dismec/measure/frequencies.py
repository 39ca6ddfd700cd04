"""Label counts → the power law they follow, and the share of rare labels.

As in Figure 1 of the paper: with labels ranked by decreasing number of rows, n_r = n_1·r^−β. On log
axes this is a straight line; both β and n_1 are fitted by least squares over all ranks. Rank r has
the weight 1/r, which gives every part of the log axis the same influence; otherwise the many ranks
of the tail would dominate the fit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["POINTS", "describe_frequencies", "histogram", "spread_ranks"]

POINTS = 200
RARE = (1, 5, 10)


def describe_frequencies(counts: npt.ArrayLike) -> dict[str, Any]:
    """Describe how the rows are distributed over the labels; labels without rows have no rank.

    The keys are "ranks" and "rows", at most `POINTS` points of the ranked counts; "beta", "n_1" and
    "R2" of the power law, with the same weights, None with fewer than two ranks (R2 also if all
    counts are equal); "fitted ranks", the first and the last rank; and "share with at most", the
    share of the labels with rows that have at most the given number of rows.
    """
    n = np.sort(np.asarray(counts, dtype=np.float64))[::-1]
    n = n[n > 0]
    ranks = spread_ranks(len(n))
    beta, first, r2 = _law(n)
    return {
        "ranks": ranks.tolist(),
        "rows": [round(value) for value in n[ranks - 1].tolist()],
        "beta": beta,
        "n_1": first,
        "R2": r2,
        "fitted ranks": [1, len(n)] if beta is not None else None,
        "share with at most": {
            str(most): float(np.mean(n <= most)) if len(n) else 0.0 for most in RARE
        },
    }


def spread_ranks(n: int) -> npt.NDArray[np.int64]:
    """Return up to `POINTS` of the ranks 1 … n, both ends included, even on a log axis."""
    if n <= POINTS:
        return np.arange(1, n + 1)
    return np.unique(np.rint(np.geomspace(1, n, POINTS)).astype(np.int64))


def _law(n: npt.NDArray[np.float64]) -> tuple[float | None, float | None, float | None]:
    """Return β, n_1 and R² of the fit on log axes."""
    if len(n) < 2:
        return None, None, None
    ranks = np.arange(1, len(n) + 1)
    x, y, weight = np.log(ranks), np.log(n), 1 / ranks
    slope, intercept = np.polyfit(x, y, 1, w=np.sqrt(weight))
    spread = float(weight @ (y - np.average(y, weights=weight)) ** 2)
    missed = float(weight @ (y - intercept - slope * x) ** 2)
    r2 = 1 - missed / spread if n[0] > n[-1] else None
    return -float(slope), float(np.exp(intercept)), r2


def histogram(values: npt.ArrayLike, bins: int = 40) -> dict[str, list[int]]:
    """Count integers in bins of equal width: "edges" has one entry more than "rows".

    The last bin starts at or below the 99.5th percentile and includes everything above, so a few
    very large values do not squeeze the others into one bin.
    """
    numbers = np.asarray(values, dtype=np.int64)
    if numbers.size == 0:
        return {"edges": [], "rows": []}
    low, high = int(numbers.min()), int(np.quantile(numbers, 0.995, method="higher"))
    width = max(1, -(-(high - low + 1) // bins))
    edges = np.arange(low, high + width + 1, width)
    place = np.minimum((numbers - low) // width, len(edges) - 2)
    edges[-1] = max(int(edges[-1]), int(numbers.max()) + 1)
    return {"edges": edges.tolist(), "rows": np.bincount(place, minlength=len(edges) - 1).tolist()}
