"""The weights of some labels, and statistics of solving them.

Weights are counted in bins half an octave wide: starting at 2⁻²⁰ there are `SIDE` bins on either
side of the middle bin, which holds smaller weights and 0. The outermost bins are open. The solver
counts in the same bins (``native/solve/``) before it drops weights below delta.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

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


@dataclass(frozen=True)
class BlockStats:
    """Statistics of solving a block, summed over its labels."""

    solved: int  # labels with at least one positive; labels with the same rows count once
    unsolved: int  # labels that stopped before the tolerance was reached
    passes: int  # over all rows
    steps: int  # on working sets
    set_rows: int  # rows in working sets
    seconds: float  # core seconds, without threads that helped at the end
    weight_counts: tuple[int, ...]  # nonzero weights before pruning in each bin

    @classmethod
    def total(cls, stats: Sequence[BlockStats]) -> BlockStats:
        """Sum the statistics of blocks."""
        names = [f.name for f in fields(cls) if f.name != "weight_counts"]
        sums = {name: sum(getattr(s, name) for s in stats) for name in names}
        sums["seconds"] = round(sums["seconds"], 3)
        return cls(**sums, weight_counts=sum_counts(np.array([s.weight_counts]) for s in stats))


def sum_counts(counts: Iterable[npt.NDArray[Any]]) -> tuple[int, ...]:
    """Sum the counts over labels."""
    total = np.zeros(BINS, np.int64)
    for part in counts:
        total += part.sum(axis=0, dtype=np.int64)
    return tuple(total.tolist())


@dataclass(frozen=True, eq=False)
class Block:
    """The weights of some labels; weights shared by several labels are stored once."""

    number: int  # its number among the model's blocks
    labels: npt.NDArray[np.int64]  # ascending
    rows: npt.NDArray[np.int64]  # rows of `weights`, one per label
    weights: sp.csr_array  # float32 (classifiers, n_features + 1), bias last
    stats: BlockStats | None = None
