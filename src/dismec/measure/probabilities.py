"""(true labels, labels assigned or their probabilities) → F1 and calibration error.

- F1 of a label: 2·hits/(times assigned + times true). micro-F1 sums these three numbers over all
  labels; macro-F1 is the mean over the labels that are true or assigned in at least one row,
  because the many labels that are neither would otherwise dominate it.
- ECE, the expected calibration error: predicted pairs of row and label are binned by probability,
  in bins of equal width; the error of a bin is the difference between its mean probability and its
  share of hits, and ECE is the mean error, weighted by the number of pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.weights import RowWeights
from dismec.errors import DataError
from dismec.measure.metrics import check_truth


def f1_scores(Y_true: Any, assigned: Any, weights: RowWeights | None = None) -> dict[str, float]:
    """Return ``{"micro-F1": …, "macro-F1": …}``, between 0 and 1; 0 if nothing is true or assigned.

    Both matrices are sparse (n_rows, n_labels). Nonzero entries of `Y_true` are true labels; every
    stored entry of `assigned` is an assigned label, whatever its value. `weights` are row weights.
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
    """Return the weight of each entry's row."""
    return None if weights is None else np.repeat(weights, np.diff(matrix.indptr))


def expected_calibration_error(
    probabilities: npt.ArrayLike,
    hits: npt.ArrayLike,
    bins: int = 15,
    weights: npt.ArrayLike | None = None,
) -> float:
    """Return the ECE, between 0 and 1; 0 without pairs.

    The arrays have the same shape and hold the probability of each predicted pair, whether it is a
    hit, and its weight.
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
    """Bin pairs by probability in equal widths: "pairs", "probability", "share of hits".

    The latter two are means over the pairs in the bin; empty bins are left out.
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
