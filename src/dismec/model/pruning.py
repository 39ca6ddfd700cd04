"""Weights → fewer weights: those below delta are dropped."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

__all__ = ["prune"]


def prune(weights: sp.csr_array, delta: float) -> sp.csr_array:
    """The matrix without the entries below `delta` in magnitude: what training itself would keep.

    The solver compares in float32, so this does.
    """
    keep = np.abs(weights.data) >= np.float32(delta)
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep)])
    pruned: Any = sp.csr_array(weights.shape, dtype=np.float32)
    pruned.indptr = before[weights.indptr]
    pruned.indices, pruned.data = weights.indices[keep], weights.data[keep]
    return pruned  # type: ignore[no-any-return]
