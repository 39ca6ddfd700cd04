"""How labels are cut into blocks, and the values that travel between engine and store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.solver import Solution
from dismec.weight_counts import BINS

__all__ = ["Block", "BlockStats", "costs", "cut", "cut_evenly"]


def cut(groups: npt.NDArray[np.int64], block_size: int) -> list[npt.NDArray[np.int64]]:
    """Blocks of `block_size` labels; the last may be shorter.

    Labels of one group come together, at the place of the first: they have the same solution, and
    a block is solved by itself. Without such groups a block holds consecutive labels. Within a
    block labels ascend.
    """
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; expected at least 1")
    order = np.argsort(groups, kind="stable")
    return [np.sort(order[i : i + block_size]) for i in range(0, len(order), block_size)]


def costs(groups: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """About how long each label takes to solve, in no unit.

    Parameters
    ----------
    groups
        For each label the first one with the same rows; of these only the first costs anything.
    counts
        Rows that have each label.

    A pass over all rows costs the same for every label, steps on the working set grow with the
    positives: measured on Eurlex-4K, 2 ms and 0.1 ms a positive.
    """
    first = np.zeros(len(groups), dtype=np.bool_)
    first[np.unique(groups, return_index=True)[1]] = True
    return np.where(first & (counts > 0), 20 + counts, 0)


def cut_evenly(
    groups: npt.NDArray[np.int64], block_size: int, costs: npt.NDArray[np.int64], n_blocks: int
) -> list[npt.NDArray[np.int64]]:
    """As `cut`, with at least `n_blocks` blocks of about equal cost where there are labels enough.

    A label that costs more than that has a block of its own, or nearly so.
    """
    order = np.argsort(groups, kind="stable")
    before = np.cumsum(costs[order]) - costs[order]
    share = before // max(1, -(-int(costs.sum()) // max(n_blocks, 1)))
    bounds = np.flatnonzero(np.diff(share)) + 1
    return [
        np.sort(part[i : i + block_size])
        for part in np.split(order, bounds)
        for i in range(0, len(part), block_size)
    ]


@dataclass(frozen=True)
class BlockStats:
    """What solving a block took.

    Attributes
    ----------
    solved
        Problems solved: labels with at least one positive, those with the same rows counted once.
    unsolved
        Labels that stopped before the tolerance was reached.
    passes, steps, set_rows
        Sums over labels: passes over all rows, steps on working sets, rows in these.
    seconds
        Core-seconds spent.
    weight_counts
        Weights other than 0 before pruning, in the bins of `dismec.weight_counts`; None where some
        of what is summed up was solved by a version that did not count.
    """

    solved: int
    unsolved: int
    passes: int
    steps: int
    set_rows: int
    seconds: float
    weight_counts: tuple[int, ...] | None = None

    @classmethod
    def of(cls, solutions: list[Solution], seconds: float) -> BlockStats:
        """Statistics over the parts of a block."""
        return cls(
            solved=sum(int(np.count_nonzero(s.passes)) for s in solutions),
            unsolved=sum(int(np.count_nonzero(~(s.gradient <= 1))) for s in solutions),
            passes=sum(int(s.passes.sum(dtype=np.int64)) for s in solutions),
            steps=sum(int(s.steps.sum(dtype=np.int64)) for s in solutions),
            set_rows=sum(int(s.set_size.sum()) for s in solutions),
            seconds=round(seconds, 3),
            weight_counts=_sums([s.weight_counts for s in solutions]),
        )

    @classmethod
    def total(cls, stats: Sequence[BlockStats]) -> BlockStats:
        """Sums over blocks."""
        names = [f.name for f in fields(cls) if f.name != "weight_counts"]
        sums = {name: sum(getattr(s, name) for s in stats) for name in names}
        sums["seconds"] = round(sums["seconds"], 3)
        known = [np.array([s.weight_counts]) for s in stats if s.weight_counts is not None]
        return cls(**sums, weight_counts=_sums(known) if len(known) == len(stats) else None)


def _sums(counts: Iterable[npt.NDArray[Any]]) -> tuple[int, ...]:
    """Sums over labels of their counts."""
    total = np.zeros(BINS, np.int64)
    for part in counts:
        total += part.sum(axis=0, dtype=np.int64)
    return tuple(total.tolist())


@dataclass(frozen=True, eq=False)
class Block:
    """Weights of some labels.

    Attributes
    ----------
    number
        Which of the model's blocks it is.
    labels
        int64, ascending: the labels of the rows of `weights`.
    weights
        CSR float32 (len(labels), n_features + 1), bias last.
    """

    number: int
    labels: npt.NDArray[np.int64]
    weights: sp.csr_array
    stats: BlockStats | None = None

    def trained(self, counts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], sp.csr_array]:
        """The labels that had training rows, by the `counts` of all labels, and their weights."""
        has_rows = counts[self.labels] > 0
        if has_rows.all():
            return self.labels, self.weights
        rows: Any = self.weights
        return self.labels[has_rows], rows[np.flatnonzero(has_rows)]
