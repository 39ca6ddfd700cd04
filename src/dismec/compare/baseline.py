"""What the other systems of the paper's comparison share: interface, best labels, least squares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "Baseline",
    "Fitted",
    "Topk",
    "best_entries",
    "best_of",
    "best_of_rows",
    "conjugate_gradients",
    "csr_arrays",
    "some_at_a_time",
]

Topk: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]
Floats = npt.NDArray[np.float32]

_MOST_CELLS = 1 << 23  # cells of a dense matrix that is made for some rows at a time
_TINY = np.float32(np.finfo(np.float32).tiny)


class Fitted(Protocol):
    """A trained system."""

    def predict_topk(self, X: Any, k: int) -> Topk:
        """Return the best k labels per row, best first, and their scores.

        If a system finds fewer than k labels, the remaining places are −1 with a score of −inf.
        """

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything that prediction needs, as it would be stored."""


class Baseline(Protocol):
    """A system and its parameters."""

    def fit(self, X: Any, Y: Any, *, threads: int = 1) -> Fitted:
        """Train on the rows of X (CSR, float32, norm 1) and their labels Y (CSR, ones).

        The result depends on the seed in the parameters but not on the number of threads.
        """


def some_at_a_time(n_rows: int, n_columns: int) -> Iterator[slice]:
    """Yield slices of rows whose dense matrices with `n_columns` columns stay small."""
    size = max(_MOST_CELLS // max(n_columns, 1), 1)
    for begin in range(0, n_rows, size):
        yield slice(begin, min(begin + size, n_rows))


def best_of(scores: npt.NDArray[np.floating[Any]], k: int) -> Topk:
    """Return the best k columns of each row of a dense matrix; ties go to the smaller column.

    Columns with a score of −inf are never returned.
    """
    n_rows, n_columns = scores.shape
    width = min(k, n_columns)
    labels = np.full((n_rows, k), -1, np.int32)
    values = np.full((n_rows, k), -np.inf, np.float32)
    if not width:
        return labels, values
    kth = np.partition(scores, n_columns - width, axis=1)[:, n_columns - width, None]
    for row in range(n_rows):
        candidates = np.flatnonzero(scores[row] >= kth[row])
        order = np.argsort(-scores[row, candidates], kind="stable")[:width]
        found = candidates[order]
        values[row, :width] = scores[row, found]
        labels[row, :width] = np.where(np.isneginf(scores[row, found]), -1, found)
    return labels, values


def best_of_rows(X: Any, k: int, labels: int | npt.NDArray[np.int32], score: Any) -> Topk:
    """Return the best k labels per row, computed for some rows at a time.

    `labels` are the numbers of the columns of scores, or how many there are; `score` is a function
    from rows to dense scores, or weights (features × labels, CSR).
    """
    n_labels = labels if isinstance(labels, int) else len(labels)
    best = np.full((X.shape[0], k), -1, np.int32)
    values = np.full((X.shape[0], k), -np.inf, np.float32)
    for some in some_at_a_time(X.shape[0], n_labels):
        scores = score(X[some]) if callable(score) else (X[some] @ score).toarray()
        best[some], values[some] = best_of(scores, k)
    if n_labels and not isinstance(labels, int):
        best = np.where(best < 0, np.int32(-1), labels[best])
    return best, values


def best_entries(matrix: Any, k: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Any]:
    """Return the k largest entries per row of a CSR matrix: rows, ranks from 0, `data` places."""
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((matrix.indices, -matrix.data, row))
    rank = np.arange(len(row)) - matrix.indptr[row]
    best = rank < k
    return row[best], rank[best], order[best]


def csr_arrays(**matrices: Any) -> dict[str, npt.NDArray[Any]]:
    """Return the three arrays of compressed sparse matrices, as they would be stored."""
    return {
        f"{name}_{part}": np.asarray(getattr(matrix, part)).astype(kind, copy=False)
        for name, matrix in matrices.items()
        for part, kind in (("data", np.float32), ("indices", np.int32), ("indptr", np.int32))
    }


def conjugate_gradients(
    product: Callable[[Floats], Floats],
    target: Floats,
    start: Floats,
    steps: int,
    enough: Callable[[Floats], Floats],
) -> Floats:
    """Improve on the columns of `start`: product(S) ≈ target, separately per column.

    Stops after `steps`, or when the squared norms of all gradients are at most `enough` of those
    at the start.
    """
    S = start
    gradient = target - product(S)
    direction = gradient
    squares = np.einsum("ij,ij->j", gradient, gradient)
    bound = enough(squares)
    for _ in range(steps):
        if (squares <= bound).all():
            break
        curved = product(direction)
        step = squares / np.maximum(np.einsum("ij,ij->j", direction, curved), _TINY)
        S = S + direction * step
        gradient = gradient - curved * step
        before, squares = squares, np.einsum("ij,ij->j", gradient, gradient)
        direction = gradient + direction * (squares / np.maximum(before, _TINY))
    return S
