"""LIBLINEAR, the yardstick of time and precision."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import scipy.sparse as sp
from liblinear import liblinearutil


class Liblinear:
    """One matrix of transformed rows, for many labels.

    Parameters
    ----------
    Xt
        CSR (n_rows, n_features + 1), the bias as its last column.
    Y
        CSC (n_rows, n_labels).
    """

    def __init__(self, Xt: Any, Y: Any) -> None:
        self.Y = Y
        rows = sp.csr_matrix(Xt, dtype=np.float64)
        self._problem = liblinearutil.problem(np.zeros(rows.shape[0]), rows)

    def solve(
        self, label: int, C: float, *, kind: int = 2, eps: float = 0.01
    ) -> tuple[np.ndarray, float]:
        """Return the weights at ε and the CPU seconds taken; `kind` is 2 for L2, 5 for L1."""
        s = np.ctypeslib.as_array(self._problem.y, (self._problem.l,))
        s[:] = signs(self.Y, label)
        options = liblinearutil.parameter(f"-s {kind} -c {C} -e {eps} -q")
        begin = time.process_time()
        model = liblinearutil.train(self._problem, options)
        seconds = time.process_time() - begin
        weights = np.array(model.w[: model.get_nr_feature()])
        return weights * model.get_labels()[0], seconds


def signs(Y: Any, label: int) -> np.ndarray:
    """Return +1 for the rows that have the label, −1 for the others; Y is CSC."""
    s = np.full(Y.shape[0], -1.0)
    s[Y.indices[Y.indptr[label] : Y.indptr[label + 1]]] = 1.0
    return s


def objective(Xt: Any, s: np.ndarray, w: np.ndarray, C: float) -> float:
    """Return ½‖w‖² + C·Σ max(0, 1 − s·Xt·w)², in double precision if Xt and w are."""
    slack = np.maximum(0, 1 - s * (Xt @ w))
    return float(0.5 * w @ w + C * slack @ slack)


def l1_objective(Xt: Any, s: np.ndarray, w: np.ndarray, C: float) -> float:
    """Return ‖w‖₁ + C·Σ max(0, 1 − s·Xt·w)², in double precision if Xt and w are."""
    slack = np.maximum(0, 1 - s * (Xt @ w))
    return float(np.abs(w).sum() + C * slack @ slack)
