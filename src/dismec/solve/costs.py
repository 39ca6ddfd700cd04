"""Label counts and row weights → the costs of a label's positive and negative rows.

``docs/howto/rare-labels.md`` derives the costs from propensities, and
``docs/explanation/solver.md`` describes the effect of weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dismec.data.targets import propensities
from dismec.data.weights import RowWeights

PROPENSITY = "propensity"
WEIGHTINGS = (PROPENSITY,)

# Limits of a factor: beyond them, only a label's positives count, or they do not count at all.
SMALLEST_COST, LARGEST_COST = 1e-6, 1e6
_NOTHING = 1e-30  # the smallest relative weight; a smaller one would make no difference


class Costs(NamedTuple):
    """Factors of the losses of a label's rows: float64 (n_labels,) each, > 0."""

    positive: npt.NDArray[np.float64]
    negative: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Weighting:
    """How costs are computed from the number of rows of a label."""

    positive_weight: float = 1.0  # factor of the losses of positive rows, for all labels
    kind: str | None = None  # "propensity": another factor 2/p − 1, p being the label's propensity
    A: float = 0.55  # as in `dismec.data.targets.propensities`
    B: float = 1.5
    factors: Costs | None = field(default=None, compare=False)  # for individual labels

    def __post_init__(self) -> None:
        if not SMALLEST_COST <= self.positive_weight <= LARGEST_COST:
            raise ValueError(
                f"positive_weight is {self.positive_weight}; "
                f"expected a number from {SMALLEST_COST:g} to {LARGEST_COST:g}"
            )
        if self.kind is not None and self.kind not in WEIGHTINGS:
            raise ValueError(
                f"weighting is {self.kind!r}; expected None or {', '.join(WEIGHTINGS)}"
            )
        # Larger constants could give propensities with exponents that do not fit in float32.
        if not (abs(self.A) <= 2 and 0 < self.B <= 1e6):
            raise ValueError(
                f"propensity constants are {self.A}, {self.B}; expected −2 to 2, and above 0 to 1e6"
            )

    def costs(self, counts: npt.NDArray[np.int64], n_rows: int) -> Costs:
        """Return the costs of labels with `counts` positive rows among `n_rows` rows."""
        positive = np.full(len(counts), self.positive_weight)
        if self.kind == PROPENSITY and n_rows > 0:
            positive *= 2 / propensities(counts, n_rows, self.A, self.B) - 1
        if self.factors is None:
            return Costs(positive, np.ones(len(counts)))
        return Costs(positive * self.factors.positive, self.factors.negative.copy())


def split_weights(
    weights: RowWeights | None,
) -> tuple[float, npt.NDArray[np.float32] | None]:
    """Split row weights, all above 0, into a factor for C and the remaining weights; None for ones.

    Equal weights only change C. For unequal weights, a power of two near their mean goes into C,
    which is exact and keeps the rest within the range of single precision.
    """
    if weights is None:
        return 1.0, None
    if (weights == weights[0]).all():
        return float(weights[0]), None
    most = float(weights.max())
    shares = weights / most
    scale = 2.0 ** round(math.log2(most) + math.log2(float(shares.mean())))
    return scale, np.maximum(weights / scale, _NOTHING).astype(np.float32)
