"""The weights of some labels, and statistics of solving them; data only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.solve.weight_counts import BINS


@dataclass(frozen=True)
class BlockStats:
    """Statistics of solving a block, summed over its labels."""

    solved: int  # labels with at least one positive; labels with the same rows count once
    unsolved: int  # labels that stopped before the tolerance was reached
    passes: int  # over all rows
    steps: int  # on working sets
    set_rows: int  # rows in working sets
    seconds: float  # core seconds, without threads that helped at the end
    # Nonzero weights before pruning, in the bins of `weight_counts`; None if part of the sum was
    # solved by a version that did not count them.
    weight_counts: tuple[int, ...] | None = None

    @classmethod
    def total(cls, stats: Sequence[BlockStats]) -> BlockStats:
        """Sum the statistics of blocks."""
        names = [f.name for f in fields(cls) if f.name != "weight_counts"]
        sums = {name: sum(getattr(s, name) for s in stats) for name in names}
        sums["seconds"] = round(sums["seconds"], 3)
        known = [np.array([s.weight_counts]) for s in stats if s.weight_counts is not None]
        return cls(**sums, weight_counts=sum_counts(known) if len(known) == len(stats) else None)


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
