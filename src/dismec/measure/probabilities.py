"""(true labels, labels assigned or their probabilities) → F1 and calibration error.

- F1 of a label: 2·hits/(times assigned + times true). micro-F1 takes the three sums over all
  labels; macro-F1 is the mean over the labels that are true or assigned in at least one row: the
  many that are neither would otherwise decide it.
- ECE, the expected calibration error: predicted pairs of row and label are put into bins of equal
  width by their probability; in each bin the mean probability is held against the share of hits,
  and the differences are averaged, weighted by the pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.row_weights import RowWeights
from dismec.errors import DataError
from dismec.measure.metrics import check_truth

__all__ = ["expected_calibration_error", "f1_scores", "reliability"]


def f1_scores(Y_true: Any, assigned: Any, weights: RowWeights | None = None) -> dict[str, float]:
    """``{"micro-F1": …, "macro-F1": …}``, between 0 and 1; 0 where nothing is true or assigned.

    Both matrices are sparse (n_rows, n_labels). True labels are entries other than 0; assigned are
    all that are stored, whatever their value. With `weights` a row counts as much as they say.
    """
    truth = check_truth(Y_true)
    chosen: Any = sp.csr_array(assigned)
    if chosen.shape != truth.shape:
        raise DataError(f"assigned is {chosen.shape}, Y_true is {truth.shape}: expected the same")
    chosen = sp.csr_array(
        (np.ones(chosen.nnz, np.bool_), chosen.indices, chosen.indptr), chosen.shape, copy=True
    )
    chosen.sum_duplicates()
    both: Any = truth.multiply(chosen)
    n_labels = truth.shape[1]
    found, of_true, of_chosen = (
        np.bincount(matrix.indices, _of_entries(matrix, weights), minlength=n_labels)
        for matrix in (both.tocsr(), truth, chosen)
    )
    total = of_true + of_chosen
    seen = total > 0
    macro = 2 * found[seen] / total[seen]
    return {
        "micro-F1": float(2 * found.sum() / total.sum()) if seen.any() else 0.0,
        "macro-F1": float(macro.mean()) if macro.size else 0.0,
    }


def _of_entries(matrix: Any, weights: RowWeights | None) -> RowWeights | None:
    """The weight of each entry's row."""
    return None if weights is None else np.repeat(weights, np.diff(matrix.indptr))


def expected_calibration_error(
    probabilities: npt.ArrayLike,
    hits: npt.ArrayLike,
    bins: int = 15,
    weights: npt.ArrayLike | None = None,
) -> float:
    """ECE, between 0 and 1, and 0 without pairs.

    The arrays, of one shape, hold the probability of each predicted pair, whether it is a hit, and
    how much it counts.
    """
    p, found = np.asarray(probabilities, np.float64), np.asarray(hits, np.float64)
    if p.shape != found.shape:
        raise DataError(f"probabilities are {p.shape}, hits are {found.shape}: expected the same")
    if not ((p >= 0) & (p <= 1)).all():
        raise DataError("a probability is not between 0 and 1")
    if bins < 1:
        raise DataError(f"bins is {bins}; expected at least 1")
    if p.size == 0:
        return 0.0
    number = np.minimum((p.ravel() * bins).astype(np.int64), bins - 1)
    v = np.ones(p.size) if weights is None else np.asarray(weights, np.float64).ravel()
    if not v.sum() > 0:
        return 0.0
    excess = np.bincount(number, v * (p.ravel() - found.ravel()), minlength=bins)
    return float(np.abs(excess).sum() / v.sum())


def reliability(
    probabilities: npt.NDArray[Any], hits: npt.NDArray[np.bool_], bins: int = 10
) -> list[dict[str, float]]:
    """Pairs in bins of equal width by their probability: "pairs", "probability", "share of hits".

    The latter two are means over the pairs of the bin; bins without pairs are left out.
    """
    place = np.minimum((probabilities * bins).astype(np.int64), bins - 1)
    pairs, p, found = (
        np.bincount(place, values, minlength=bins)
        for values in (np.ones(len(place)), probabilities, hits)
    )
    return [
        {
            "pairs": int(pairs[i]),
            "probability": float(p[i] / pairs[i]),
            "share of hits": float(found[i] / pairs[i]),
        }
        for i in np.flatnonzero(pairs).tolist()
    ]
