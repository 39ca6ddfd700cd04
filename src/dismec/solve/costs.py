"""Label counts and weights of rows → what a label's positive and negative rows cost.

``docs/howto/rare-labels.md`` derives the costs from propensities, and
``docs/explanation/solver.md`` describes the effect of weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dismec.data.labels import propensities
from dismec.data.row_weights import RowWeights

__all__ = [
    "LARGEST_COST",
    "PROPENSITY",
    "SMALLEST_COST",
    "WEIGHTINGS",
    "Costs",
    "Weighting",
    "split_weights",
]

PROPENSITY = "propensity"
WEIGHTINGS = (PROPENSITY,)

# Of a factor: beyond it a label is nothing but its positives, or none.
SMALLEST_COST, LARGEST_COST = 1e-6, 1e6
_NOTHING = 1e-30  # a row of so much less weight than others counts no more and no less


class Costs(NamedTuple):
    """What the losses of a label's rows are multiplied by: float64 (n_labels,) each, > 0."""

    positive: npt.NDArray[np.float64]
    negative: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Weighting:
    """How costs follow from the number of rows that have a label."""

    positive_weight: float = 1.0  # factor of the losses of all labels' positive rows
    kind: str | None = None  # "propensity": a further factor of 2/p − 1, p the label's propensity
    A: float = 0.55  # as for `dismec.data.labels.propensities`
    B: float = 1.5
    factors: Costs | None = field(default=None, compare=False)  # of single labels

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
        # The exponent of 10 that propensities can be taken to would be out of float32.
        if not (abs(self.A) <= 2 and 0 < self.B <= 1e6):
            raise ValueError(
                f"propensity constants are {self.A}, {self.B}; expected −2 to 2, and above 0 to 1e6"
            )

    def costs(self, counts: npt.NDArray[np.int64], n_rows: int) -> Costs:
        """Of labels that so many of the rows have."""
        positive = np.full(len(counts), self.positive_weight)
        if self.kind == PROPENSITY and n_rows > 0:
            positive *= 2 / propensities(counts, n_rows, self.A, self.B) - 1
        if self.factors is None:
            return Costs(positive, np.ones(len(counts)))
        return Costs(positive * self.factors.positive, self.factors.negative.copy())


def split_weights(
    weights: RowWeights | None,
) -> tuple[float, npt.NDArray[np.float32] | None]:
    """What weights of rows, all above 0, multiply C by, and what is left of them; None for ones.

    Equal weights are another C, and nothing else. Of unequal ones a power of two near their mean
    goes to C, which is exact and keeps the rest in the range of single precision.
    """
    if weights is None:
        return 1.0, None
    if (weights == weights[0]).all():
        return float(weights[0]), None
    most = float(weights.max())
    shares = weights / most
    scale = 2.0 ** round(math.log2(most) + math.log2(float(shares.mean())))
    return scale, np.maximum(weights / scale, _NOTHING).astype(np.float32)
