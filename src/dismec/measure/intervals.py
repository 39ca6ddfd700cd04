"""(true, predicted) → confidence intervals of metrics: the bootstrap over rows.

Each draw samples as many rows as there are, with replacement, and the metrics are computed on it.
The interval is the middle 95 % of these values (Efron and Tibshirani, "An Introduction to the
Bootstrap", 1993). The draws depend only on the seed and the number of rows, so two systems that are
evaluated on the same rows see the same draws. The interval of their difference is therefore paired,
and narrower than the two separate intervals suggest.
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
_AT_A_TIME = 4_000_000  # numbers drawn at a time

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
    """Return P@k, nDCG@k and PSP@k in percent for each draw of the rows; see `evaluate`."""
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
    """Return the bounds of the middle 95 % of the values."""
    low, high = np.percentile(values, _MIDDLE)
    return float(low), float(high)


def difference(one: Mapping[str, Draws], other: Mapping[str, Draws], name: str) -> Draws:
    """Return a metric of one system minus that of another on the same draws."""
    return one[name] - other[name]
