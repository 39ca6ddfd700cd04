"""The labels of a model in a hierarchy, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

__all__ = ["LabelTree"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LabelTree:
    """The labels of a model in a hierarchy; created by `Hierarchy.over`.

    The nodes are the labels 0 … n_labels − 1, followed by groups: names above labels that are not
    labels themselves.
    """

    names: Sequence[str]  # names of the nodes
    n_labels: int
    child: Ints  # for each pair of a child and a parent
    parent: Ints
    levels: Ints  # (n_nodes,), from 1: roots, and labels outside the hierarchy

    @property
    def n_nodes(self) -> int:
        """Number of labels and groups."""
        return len(self.levels)

    @cached_property
    def leaves(self) -> npt.NDArray[np.bool_]:
        """Labels without children: bool (n_labels,)."""
        found = np.ones(self.n_nodes, np.bool_)
        found[self.parent] = False
        return found[: self.n_labels]

    @cached_property
    def up(self) -> sp.csr_array:
        """int32 (n_nodes, n_nodes): 1 if the column is the row's own node or an ancestor."""
        shape = self.n_nodes, self.n_nodes
        ones = np.ones(len(self.child), np.int32)
        step: Any = sp.csr_array((ones, (self.child, self.parent)), shape=shape)
        found: Any = sp.eye_array(self.n_nodes, dtype=np.int32, format="csr")
        reached = found
        while reached.nnz:
            reached = _ones(reached @ step)
            found = _ones(found + reached)
        found.sort_indices()
        return found  # type: ignore[no-any-return]

    @property
    def labels_below(self) -> Ints:
        """int64 (n_nodes,): number of labels below each node, excluding itself."""
        up: Any = self.up
        found: Ints = np.bincount(up[: self.n_labels].indices, minlength=self.n_nodes)
        found[: self.n_labels] -= 1
        return found

    def closed(self, Y: Any) -> sp.csr_array:
        """Return the labels of rows with all their ancestors: bool (n_rows, n_nodes).

        Y is sparse (n_rows, up to n_labels); nonzero entries are labels.
        """
        rows: Any = sp.csr_array(Y, copy=True)
        rows.eliminate_zeros()
        rows.resize((rows.shape[0], self.n_nodes))
        rows.data = np.ones(rows.nnz, np.int32)
        return _ones(rows @ self.up).astype(np.bool_)  # type: ignore[no-any-return]

    def close_ranking(
        self, labels: npt.NDArray[np.int32], scores: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Add those ancestors that are labels to ranked labels of rows, (n_rows, places).

        An ancestor gets the highest score of the labels below it, or its own if that is higher.
        Best first; among equal scores, ancestors come before their descendants, then smaller labels
        first. Empty places hold label −1 and score −inf, in the input and the output.
        """
        up, there = self.up, labels >= 0
        n_rows = len(labels)
        row, label = np.nonzero(there)[0], labels[there]
        sizes = np.diff(up.indptr)[label]
        begins = np.repeat(up.indptr[label] - np.cumsum(sizes) + sizes, sizes)
        node = up.indices[begins + np.arange(sizes.sum())]
        row, score = np.repeat(row, sizes), np.repeat(scores[there], sizes)
        of_label = node < self.n_labels
        row, node, score = row[of_label], node[of_label], score[of_label]
        order = np.lexsort((-score, node, row))
        row, node, score = row[order], node[order], score[order]
        first = np.append(True, (np.diff(row) != 0) | (np.diff(node) != 0))[: len(row)]
        row, node, score = row[first], node[first], score[first]
        order = np.lexsort((node, self.levels[node], -score, row))
        row, node, score = row[order], node[order], score[order]
        lengths = np.bincount(row, minlength=n_rows)
        place = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        width = int(lengths.max(initial=0))
        closed = np.full((n_rows, width), -1, np.int32)
        values = np.full((n_rows, width), -np.inf, np.float32)
        closed[row, place], values[row, place] = node, score
        return closed, values


def _ones(matrix: Any) -> Any:
    """Return the matrix with all stored values set to 1, so sums and products count paths."""
    matrix.data = np.ones(len(matrix.data), np.int32)
    return matrix
