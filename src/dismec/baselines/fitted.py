"""The interface of all systems here."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Baseline", "Fitted", "best_of"]


class Fitted(Protocol):
    """A trained system."""

    def predict_topk(self, X: Any, k: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return the best k labels per row, best first, and their scores.

        If a system finds fewer than k labels, the remaining places are −1 with a score of −inf.
        """

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything that prediction needs, as it would be stored."""


class Baseline(Protocol):
    """A system and its parameters."""

    def fit(self, X: Any, Y: Any, *, threads: int = 1) -> Fitted:
        """Train on the rows of X (CSR, float32, norm 1) and their labels Y (CSR, ones).

        The result depends on the seed in the parameters but not on the number of threads.
        """


def best_of(
    scores: npt.NDArray[np.floating[Any]], k: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Return the best k columns of each row of a dense matrix; ties go to the smaller column.

    Columns with a score of −inf are never returned.
    """
    n_rows, n_columns = scores.shape
    width = min(k, n_columns)
    kth = np.partition(scores, n_columns - width, axis=1)[:, n_columns - width, None]
    labels = np.full((n_rows, k), -1, np.int32)
    values = np.full((n_rows, k), -np.inf, np.float32)
    for row in range(n_rows):
        candidates = np.flatnonzero(scores[row] >= kth[row])
        order = np.argsort(-scores[row, candidates], kind="stable")[:width]
        found = candidates[order]
        values[row, :width] = scores[row, found]
        labels[row, :width] = np.where(np.isneginf(scores[row, found]), -1, found)
    return labels, values
