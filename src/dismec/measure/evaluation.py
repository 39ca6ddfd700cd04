"""(true labels, a model's best labels and training counts) → its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.labels import propensities
from dismec.data.matrices import check_csr
from dismec.measure.metrics import evaluate

__all__ = ["Truth"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Truth:
    """The true labels of rows, over all labels that they or a model have.

    Attributes
    ----------
    Y
        CSR (n_rows, n_labels). Labels that the model does not have count as missed.
    label_counts
        int64 (n_labels,): the model's training rows of each label.
    propensities
        float64 (n_labels,), by these counts.
    """

    Y: sp.csr_array
    label_counts: Ints
    propensities: npt.NDArray[np.float64]

    @classmethod
    def align(
        cls, Y: Any, label_counts: Ints, n_rows: int, A: float = 0.55, B: float = 1.5
    ) -> Truth:
        """The truth for a model with these label counts, of so many training rows.

        `Y` is sparse or dense, and not changed. `A` and `B` as for `propensities`.

        Raises
        ------
        DataError
            If `Y` is no matrix of numbers, and as `propensities` does.
        """
        truth: Any = check_csr(Y, "Y", "labels").copy()
        counts = np.zeros(max(len(label_counts), truth.shape[1]), np.int64)
        counts[: len(label_counts)] = label_counts
        truth.resize((truth.shape[0], len(counts)))
        return cls(truth, counts, propensities(counts, n_rows, A, B))

    def metrics(self, top: npt.NDArray[Any], ks: Sequence[int] = (1, 3, 5)) -> dict[str, float]:
        """All metrics in percent (`dismec.measure.metrics.evaluate`).

        `top` (n_rows, places) holds the model's best labels; places beyond those are empty.
        """
        missing = min(max(ks, default=0), self.Y.shape[1]) - top.shape[1]
        if missing > 0:
            top = np.pad(top, ((0, 0), (0, missing)), constant_values=-1)
        return evaluate(self.Y, top, ks, self.propensities)
