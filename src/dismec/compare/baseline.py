"""What the other systems of the paper's comparison share: best labels, least squares.

A system is a dataclass of its parameters. Its `fit(X, Y, *, threads=1)` trains on the rows of X
(CSR, float32, norm 1) and their labels Y (CSR, ones); the result depends on the seed in the
parameters but not on the number of threads. `predict_topk(X, k)` of the result returns the best k
labels per row, best first, and their scores; if there are fewer than k, the remaining places are −1
with a score of −inf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.measure.metrics import evaluate

Topk: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]
Floats = npt.NDArray[np.float32]
Params = TypeVar("Params", bound=Any)

_MOST_CELLS = 1 << 23  # cells of a dense matrix that is made for some rows at a time
_TINY = np.float32(np.finfo(np.float32).tiny)


def settled(params: Params, **defaults: float) -> Params:
    """Return the parameters with these values in place of None."""
    missing = {name: value for name, value in defaults.items() if getattr(params, name) is None}
    return replace(params, **missing)


def some_at_a_time(n_rows: int, n_columns: int) -> Iterator[slice]:
    """Yield slices of rows whose dense matrices with `n_columns` columns stay small."""
    size = max(_MOST_CELLS // max(n_columns, 1), 1)
    for begin in range(0, n_rows, size):
        yield slice(begin, min(begin + size, n_rows))


def best_of(scores: Any, k: int) -> Topk:
    """Return the best k columns of each row of a dense or CSR matrix; ties: the smaller column.

    Columns with a score of −inf, and entries that a CSR matrix does not store, are never returned.
    """
    n_rows, n_columns = scores.shape
    width = min(k, n_columns)
    labels = np.full((n_rows, k), -1, np.int32)
    values = np.full((n_rows, k), -np.inf, np.float32)
    if not isinstance(scores, np.ndarray):
        rows, ranks, entries = best_entries(scores, k)
        labels[rows, ranks], values[rows, ranks] = scores.indices[entries], scores.data[entries]
    elif width:
        kth = np.partition(scores, n_columns - width, axis=1)[:, n_columns - width, None]
        for row in range(n_rows):
            candidates = np.flatnonzero(scores[row] >= kth[row])
            order = np.argsort(-scores[row, candidates], kind="stable")[:width]
            found = candidates[order]
            values[row, :width] = scores[row, found]
            labels[row, :width] = np.where(np.isneginf(scores[row, found]), -1, found)
    return labels, values


def best_of_rows(X: Any, k: int, n_columns: int, score: Callable[[Any], Any]) -> Topk:
    """Return the best k labels per row, computed for some rows at a time.

    `score` returns the scores of rows, dense or CSR; on the way it may make dense matrices with
    `n_columns` columns.
    """
    labels = np.full((X.shape[0], k), -1, np.int32)
    values = np.full((X.shape[0], k), -np.inf, np.float32)
    for some in some_at_a_time(X.shape[0], n_columns):
        labels[some], values[some] = best_of(score(X[some]), k)
    return labels, values


def best_by_weights(X: Any, k: int, weights: Any, labels: npt.NDArray[Any]) -> Topk:
    """Return the best k of some labels per row; column j of the weights belongs to labels[j]."""
    by_feature = sp.csr_matrix(weights)
    places, scores = best_of_rows(X, k, len(labels), lambda rows: (rows @ by_feature).toarray())
    return np.append(labels, -1).astype(np.int32)[places], scores


def precision_at_1(X: Any, Y: Any, weights: Any) -> float:
    """Return P@1 on rows with known labels; column j of the weights belongs to label j."""
    top, _ = best_by_weights(X, 1, weights, np.arange(Y.shape[1]))
    return evaluate(Y, top, (1,))["P@1"]


def best_entries(matrix: Any, k: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Any]:
    """Return the k largest entries per row of a CSR matrix: rows, ranks from 0, `data` places."""
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((matrix.indices, -matrix.data, row))
    rank = np.arange(len(row)) - matrix.indptr[row]
    best = rank < k
    return row[best], rank[best], order[best]


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
