"""The weights of some labels, and what it took to solve them: values, no arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.solve.weight_counts import BINS

__all__ = ["Block", "BlockStats", "sum_counts"]


@dataclass(frozen=True)
class BlockStats:
    """What solving a block took; sums over its labels."""

    solved: int  # labels with at least one positive, those with the same rows counted once
    unsolved: int  # labels that stopped before the tolerance was reached
    passes: int  # over all rows
    steps: int  # on working sets
    set_rows: int  # rows in working sets
    seconds: float  # of cores, but for those that helped at the end
    # Weights other than 0 before pruning, in the bins of `weight_counts`; None where some of what
    # is summed up was solved by a version that did not count.
    weight_counts: tuple[int, ...] | None = None

    @classmethod
    def total(cls, stats: Sequence[BlockStats]) -> BlockStats:
        """Sums over blocks."""
        names = [f.name for f in fields(cls) if f.name != "weight_counts"]
        sums = {name: sum(getattr(s, name) for s in stats) for name in names}
        sums["seconds"] = round(sums["seconds"], 3)
        known = [np.array([s.weight_counts]) for s in stats if s.weight_counts is not None]
        return cls(**sums, weight_counts=sum_counts(known) if len(known) == len(stats) else None)


def sum_counts(counts: Iterable[npt.NDArray[Any]]) -> tuple[int, ...]:
    """Sums over labels of their counts."""
    total = np.zeros(BINS, np.int64)
    for part in counts:
        total += part.sum(axis=0, dtype=np.int64)
    return tuple(total.tolist())


@dataclass(frozen=True, eq=False)
class Block:
    """Weights of some labels, those that labels have in common only once."""

    number: int  # which of the model's blocks it is
    labels: npt.NDArray[np.int64]  # ascending
    rows: npt.NDArray[np.int64]  # of `weights`, one per label
    weights: sp.csr_array  # float32 (classifiers, n_features + 1), bias last
    stats: BlockStats | None = None
