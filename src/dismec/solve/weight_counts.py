"""Weights → how many there are of each sign and size.

A bin is half an octave wide: from 2⁻²⁰ outwards there are `SIDE` on either side of the middle one,
which is for weights that are smaller or 0. The outermost are open. The solver counts in the same
bins (``native/solve/``), before it drops what is below delta.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BINS", "EDGES", "SIDE", "count_weights"]

SIDE = 48
BINS = 2 * SIDE + 1
# Of the positive side: bin SIDE + i holds EDGES[i − 1] ≤ w < EDGES[i], the last one all above.
EDGES = 2.0 ** (np.arange(SIDE) / 2 - 20)


def count_weights(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """How many weights are in each bin."""
    bounds: Any = EDGES.astype(np.float32)
    place = np.searchsorted(bounds, np.abs(weights), side="right")
    return np.bincount(SIDE + np.where(weights < 0, -place, place), minlength=BINS)
