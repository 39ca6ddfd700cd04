"""Weights → counts per sign and magnitude.

A bin is half an octave wide: starting at 2⁻²⁰ there are `SIDE` bins on either side of the middle
bin, which holds smaller weights and 0. The outermost bins are open. The solver counts in the same
bins (``native/solve/``) before it drops weights below delta.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

SIDE = 48
BINS = 2 * SIDE + 1
# The positive side: bin SIDE + i holds EDGES[i − 1] ≤ w < EDGES[i]; the last one has no upper
# limit.
EDGES = 2.0 ** (np.arange(SIDE) / 2 - 20)


def count_weights(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Count the weights in each bin."""
    bounds: Any = EDGES.astype(np.float32)
    place = np.searchsorted(bounds, np.abs(weights), side="right")
    return np.bincount(SIDE + np.where(weights < 0, -place, place), minlength=BINS)
