"""Label counts → what a label's positive and negative rows cost.

``docs/tail.md`` derives the costs from propensities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dismec.data.labels import propensities

__all__ = ["PROPENSITY", "WEIGHTINGS", "Costs", "Weighting"]

PROPENSITY = "propensity"
WEIGHTINGS = (PROPENSITY,)

_LEAST, _MOST = 1e-6, 1e6  # of a factor: beyond it a label is nothing but its positives, or none


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

    def __post_init__(self) -> None:
        if not _LEAST <= self.positive_weight <= _MOST:
            raise ValueError(
                f"positive_weight is {self.positive_weight}; "
                f"expected a number from {_LEAST:g} to {_MOST:g}"
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
        return Costs(positive, np.ones(len(counts)))
