"""Label statistics that need no model: propensities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dismec.errors import DataError

__all__ = ["propensities"]

Floats = npt.NDArray[np.float64]


def propensities(
    label_counts: npt.ArrayLike, n_rows: int, A: float = 0.55, B: float = 1.5
) -> Floats:
    """Estimate how likely each label is to be recorded where it is true.

    This is the model of Jain et al. (2016): p_l = 1 / (1 + C·(N_l + B)^(−A)) with
    C = (ln N − 1)·(B + 1)^A. The rarer a label is, the more often it is assumed to be missing.

    Parameters
    ----------
    label_counts : array-like of shape (n_labels,)
        N_l, the number of training rows of each label.
    n_rows : int
        N, the number of training rows. With fewer than three rows every propensity is 1.
    A, B : float, default=0.55 and 1.5
        The constants of the XMC Repository: 0.5 and 0.4 for the large Wikipedia sets, 0.6 and 2.6
        for the Amazon sets, 0.55 and 1.5 for all others.

    Returns
    -------
    ndarray of float64, shape (n_labels,)
        The propensities, above 0 and at most 1.

    Raises
    ------
    DataError
        If a count is not between 0 and `n_rows`, or `A` or `B` is out of range.

    Examples
    --------
    >>> from dismec import propensities
    >>> propensities([1, 10, 100], n_rows=1000).round(2).tolist()
    [0.14, 0.28, 0.56]
    """
    counts = np.asarray(label_counts, dtype=np.float64)
    if counts.ndim != 1:
        raise DataError(f"label_counts is {counts.ndim}-d; expected one count per label")
    if n_rows < 1:
        raise DataError(f"n_rows is {n_rows}; propensities need at least one training row")
    if not (abs(A) <= 10 and 0 < B <= 1e6):
        raise DataError(
            f"propensity constants A = {A}, B = {B}; expected −10 ≤ A ≤ 10 and 0 < B ≤ 1e6"
        )
    wrong = np.flatnonzero(~((counts >= 0) & (counts <= n_rows)))
    if wrong.size:
        label = wrong[0]
        raise DataError(
            f"label {label}: count {counts[label]:g}; expected between 0 and n_rows = {n_rows}"
        )
    C = max(np.log(n_rows) - 1.0, 0.0) * (B + 1.0) ** A
    result: Floats = 1.0 / (1.0 + C * (counts + B) ** -A)
    return result
