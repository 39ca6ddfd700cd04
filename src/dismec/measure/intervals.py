"""(true, predicted) → how far metrics may be off: the bootstrap over rows.

Rows are drawn with replacement, as many as there are, and the metrics are computed on each draw.
The middle 95 % of the values found are the interval (Efron and Tibshirani, "An Introduction to the
Bootstrap", 1993). Draws depend on the seed and on the number of rows alone, so two systems that are
judged on the same rows see the same draws. The interval of their difference is then a paired one,
which is narrower than the intervals of either suggest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.measure.metrics import shares_of_rows

__all__ = ["DRAWS", "difference", "drawn", "interval"]

DRAWS = 1000
_MIDDLE = (2.5, 97.5)  # percent
_AT_A_TIME = 4_000_000  # numbers drawn

Draws = npt.NDArray[np.float64]


def drawn(
    Y_true: Any,
    top: npt.ArrayLike,
    propensities: npt.ArrayLike,
    ks: Sequence[int] = (1, 3, 5),
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, Draws]:
    """P@k, nDCG@k and PSP@k in percent, on as many draws of the rows; arguments as `evaluate`."""
    shares = shares_of_rows(Y_true, top, propensities, ks)
    parts = np.array([part for pair in shares.values() for part in pair])
    n_rows = parts.shape[1]
    sums = np.empty((draws, len(parts)))
    rng = np.random.default_rng(seed)
    step = max(1, _AT_A_TIME // n_rows)
    for begin in range(0, draws, step):
        end = min(begin + step, draws)
        rows = rng.integers(n_rows, size=(end - begin, n_rows), dtype=np.int32)
        for place, some in enumerate(rows, begin):
            sums[place] = parts @ np.bincount(some, minlength=n_rows)
    above, below = sums[:, 0::2], sums[:, 1::2]
    values = 100 * np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return dict(zip(shares, values.T, strict=True))


def interval(values: Draws) -> tuple[float, float]:
    """Between which numbers the middle 95 % of the values are."""
    low, high = np.percentile(values, _MIDDLE)
    return float(low), float(high)


def difference(one: Mapping[str, Draws], other: Mapping[str, Draws], name: str) -> Draws:
    """A metric of one system less that of another on the same draws."""
    return one[name] - other[name]
