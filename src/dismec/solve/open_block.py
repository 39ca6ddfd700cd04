"""Solutions of some labels → a block, once all its labels are there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from dismec.solve.block import Block, BlockStats, sum_counts
from dismec.solve.labels import EqualLabels
from dismec.solve.problem import Solution, empty_array

__all__ = ["OpenBlock"]


class OpenBlock:
    """A block whose labels come in bit by bit; only its distinct ones do."""

    def __init__(self, number: int, equal: EqualLabels) -> None:
        self.number = number
        self.equal = equal
        self._missing = len(equal.distinct)
        self._solutions: list[Solution] = []
        self._seconds = 0.0

    def add(self, solution: Solution, seconds: float) -> int:
        """Take some labels in; returns how many they stand for."""
        self._solutions.append(solution)
        self._missing -= len(solution.labels)
        self._seconds += seconds
        return int(self.equal.copies(solution.labels)[1][-1])

    @property
    def complete(self) -> bool:
        """Whether all labels have come in."""
        return self._missing == 0

    def close(self) -> Block:
        """The block with all its labels, in order."""
        stats = _stats(self._solutions, self._seconds)
        labels = self.equal.labels
        targets = [self.equal.copies(solution.labels) for solution in self._solutions]
        lengths = np.zeros(len(labels), dtype=np.int64)
        for solution, (places, bounds) in zip(self._solutions, targets, strict=True):
            lengths[places] = np.repeat(np.diff(solution.weights.indptr), np.diff(bounds))
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        indices = empty_array(indptr[-1], np.int32)
        data = empty_array(indptr[-1], np.float32)
        starts = indptr.tolist()
        while self._solutions:  # what has been copied need not stay
            source, (places, bounds) = self._solutions.pop().weights, targets.pop()
            ends = source.indptr.tolist()
            of_copy = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
            for row, place in zip(of_copy.tolist(), places.tolist(), strict=True):
                span, target = slice(ends[row], ends[row + 1]), slice(*starts[place : place + 2])
                indices[target] = source.indices[span]
                data[target] = source.data[span]
        weights = sp.csr_array((data, indices, indptr), shape=(len(labels), source.shape[1]))
        return Block(self.number, labels, weights, stats)


def _stats(solutions: Sequence[Solution], seconds: float) -> BlockStats:
    """What it took to solve a block."""
    return BlockStats(
        solved=sum(int(np.count_nonzero(s.passes)) for s in solutions),
        unsolved=sum(int(np.count_nonzero(~(s.gradient <= 1))) for s in solutions),
        passes=sum(int(s.passes.sum(dtype=np.int64)) for s in solutions),
        steps=sum(int(s.steps.sum(dtype=np.int64)) for s in solutions),
        set_rows=sum(int(s.set_size.sum()) for s in solutions),
        seconds=round(seconds, 3),
        weight_counts=sum_counts([s.weight_counts for s in solutions]),
    )
