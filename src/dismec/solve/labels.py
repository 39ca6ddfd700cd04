"""The rows of labels → which labels have the same rows, and so the same solution."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["EqualLabels"]

Ints = npt.NDArray[np.int64]


class EqualLabels:
    """Some labels, and which of them have the same rows: one is solved for all of those.

    Attributes
    ----------
    labels
        Which labels, int64.
    groups
        For each of them the first label of the problem with the same rows, int64.
    first
        The place in `labels` of the first label of each group, by group.
    distinct
        These labels: the ones to solve.
    sizes
        How many of the labels each of `distinct` stands for.
    """

    def __init__(self, labels: Ints, groups: Ints) -> None:
        self.labels, self.groups = labels, groups
        _, self.first, copy_of, self.sizes = np.unique(
            groups, return_index=True, return_inverse=True, return_counts=True
        )
        self.distinct = labels[self.first]
        self._sorter = np.argsort(self.distinct)
        self._order = np.argsort(copy_of, kind="stable")
        self._starts = np.cumsum(self.sizes) - self.sizes

    @classmethod
    def of(cls, indptr: Ints, rows: npt.NDArray[np.int32], n_rows: int) -> EqualLabels:
        """All labels of a problem, given the rows of each as those of a CSC matrix.

        Row sets are compared by the sum of two random 64-bit numbers per row.
        """
        random = np.random.default_rng(0)
        keys = [np.diff(indptr).astype(np.uint64)]
        for _ in range(2):
            of_row = random.integers(0, 2**64, n_rows, dtype=np.uint64)
            sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(of_row[rows])])
            keys.append(sums[indptr[1:]] - sums[indptr[:-1]])
        order = np.lexsort(keys)
        new = np.ones(len(order), dtype=np.bool_)
        for key in keys:
            new[1:] &= key[order[1:]] == key[order[:-1]]
        new[1:] = ~new[1:]
        groups = np.empty(len(order), dtype=np.int64)
        groups[order] = order[new][np.cumsum(new) - 1]
        return cls(np.arange(len(order)), groups)

    def among(self, labels: Ints) -> EqualLabels:
        """The same for some labels of a problem; `self` is of all of them."""
        return EqualLabels(labels, self.groups[labels])

    def copies(self, distinct: npt.NDArray[Any]) -> tuple[Ints, Ints]:
        """The labels that these of `distinct` stand for, themselves among them.

        Returns
        -------
        places, bounds
            Their places in `labels`; those of ``distinct[i]`` from ``bounds[i]`` to
            ``bounds[i + 1]``.
        """
        at = self._sorter[np.searchsorted(self.distinct, distinct, sorter=self._sorter)]
        sizes = self.sizes[at]
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        places = np.arange(bounds[-1]) + np.repeat(self._starts[at] - bounds[:-1], sizes)
        return self._order[places], bounds
