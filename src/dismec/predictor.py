"""Rows × blocks → top k."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.errors import DataError, ModelError
from dismec.features import Transform, check_X
from dismec.native import kernels, thread_count

__all__ = ["Predictor"]

# Rows that a thread transforms and scores at a time: enough to make the calls per block cheap, few
# enough that their transformed copy stays in the cache and the threads finish together.
_CHUNK_ROWS = 256
_MIN_CHUNK_ROWS = 8

Labels = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float32]


class Predictor:
    """The weights of a model, laid out for scoring rows against all labels.

    The score of a label is Σ value·weight over the features of the transformed row in ascending
    order, the bias last, in float32 and rounded after every product and every sum: bit for bit what
    ``transform.apply(X) @ W.T`` gives. A label whose weights were all dropped has score 0 and
    competes like any other; one that had no row to learn from never does. Results do not depend on
    how labels are cut into blocks, nor on the number of threads.

    Parameters
    ----------
    blocks
        ``(labels, weights)`` in any order; labels are the numbers of the block's labels, ascending,
        and weights is CSR, these labels × (n_features + 1), bias last. Together they hold every
        label once. They are copied.
    n_labels
        Number of labels of the model.
    transform
        What is done to rows first.
    untrained
        bool (n_labels,): labels that are never predicted, because training saw no row of them.

    Raises
    ------
    ModelError
        When the blocks are not exactly the labels 0 … n_labels − 1, do not fit the transform, or
        hold weights that are not finite.
    """

    def __init__(
        self,
        blocks: Sequence[tuple[npt.ArrayLike, Any]],
        n_labels: int,
        transform: Transform,
        untrained: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        self.n_labels = n_labels
        self.transform = transform
        self._untrained = np.zeros(n_labels, np.bool_) if untrained is None else untrained
        numbers = [np.asarray(labels, dtype=np.int32) for labels, _ in blocks]
        held = np.concatenate([np.empty(0, np.int32), *numbers])
        if not np.array_equal(np.sort(held), np.arange(n_labels)):
            raise ModelError(f"the blocks do not hold each of {n_labels} labels once")
        matrices = [
            _checked(len(labels), weights, transform)
            for labels, (_, weights) in zip(numbers, blocks, strict=True)
        ]
        self._shards = list(_pack(numbers, matrices, transform, ~self._untrained))

    def topk(self, X: Any, k: int = 5, threads: int | None = None) -> tuple[Labels, Scores]:
        """The k labels with the highest scores for every row, ties to the smaller label.

        Parameters
        ----------
        X
            (n_rows, up to n_features): sparse or dense, raw; it is transformed piece by piece.
        k
            Number of places. Those beyond the labels that can be predicted hold label −1 and score
            −inf.
        threads
            By default as many as there are cores that this process may use.

        Returns
        -------
        labels, scores
            int32 and float32, (n_rows, k), best first.

        Raises
        ------
        DataError
            For k < 1, and as `check_X` does.
        """
        if k < 1:
            raise DataError(f"k is {k}; expected at least 1")
        X = check_X(X, self.transform.n_features)
        shape = (X.shape[0], k)
        labels = np.full(shape, -1, dtype=np.int32)
        scores = np.full(shape, -np.inf, dtype=np.float32)
        places = min(k, self.n_labels)  # k may be far more than there is to fill
        if places == 0:
            return labels, scores

        def rank(start: int, stop: int) -> None:
            rows = _arrays(self.transform.apply_checked(_between(X, start, stop)))
            best_labels = np.full((stop - start, places), -1, dtype=np.int32)
            best_scores = np.full((stop - start, places), -np.inf, dtype=np.float32)
            for shard in self._shards:
                kernels.merge_topk(shard, *rows, best_labels, best_scores)
            labels[start:stop, :places] = best_labels
            scores[start:stop, :places] = best_scores

        _for_chunks(rank, X.shape[0], threads)
        return labels, scores

    def decision_function(self, X: Any, threads: int | None = None) -> Scores:
        """The scores of all labels, as a dense float32 (n_rows, n_labels).

        That is 4·n_rows·n_labels bytes: for many labels use `topk`. Arguments and errors as there.
        An untrained label has score −1, the answer of a classifier that has seen only negatives.
        """
        X = check_X(X, self.transform.n_features)
        scores = np.empty((X.shape[0], self.n_labels), dtype=np.float32)

        def score(start: int, stop: int) -> None:
            rows = _arrays(self.transform.apply_checked(_between(X, start, stop)))
            for shard in self._shards:
                kernels.dense_scores(shard, *rows, scores[start:stop])

        _for_chunks(score, X.shape[0], threads)
        scores[:, self._untrained] = -1
        return scores


def _checked(n_labels: int, weights: Any, transform: Transform) -> sp.csr_array:
    """A block's weights, as the kernels take them."""
    n_columns = transform.n_features + 1
    if weights.shape != (n_labels, n_columns):
        raise ModelError(
            f"a block of {n_labels} labels holds {weights.shape[0]} × {weights.shape[1]} "
            f"weights; expected {n_columns} a label: {transform.n_features} features and the bias"
        )
    try:
        return check_X(weights)
    except DataError as error:
        raise ModelError(f"a block's weights: {error}") from None


def _pack(
    labels: Sequence[npt.NDArray[np.int32]],
    matrices: Sequence[sp.csr_array],
    transform: Transform,
    ranks: npt.NDArray[np.bool_],
) -> Iterator[Any]:
    """Shards of consecutive labels, however these lie in blocks."""
    n_labels = len(ranks)
    matrix, row = np.empty(n_labels, np.int32), np.empty(n_labels, np.int32)
    for number, held in enumerate(labels):
        matrix[held], row[held] = number, np.arange(len(held), dtype=np.int32)
    for start in range(0, n_labels, kernels.shard_labels):
        stop = min(start + kernels.shard_labels, n_labels)
        used, which = np.unique(matrix[start:stop], return_inverse=True)
        yield kernels.pack(
            [_arrays(matrices[number]) for number in used],
            which.astype(np.int32),
            row[start:stop],
            transform.n_features + 1,
            np.arange(start, stop, dtype=np.int32),
            ranks[start:stop].astype(np.uint8),
        )


def _arrays(
    rows: sp.csr_array,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The three arrays of a matrix from `check_X`, typed as the kernels take them."""
    return rows.indptr.astype(np.int64, copy=False), rows.indices, rows.data


def _between(rows: sp.csr_array, start: int, stop: int) -> sp.csr_array:
    """Rows start … stop on the memory of the whole; scipy's own slice copies."""
    if stop - start == rows.shape[0]:
        return rows
    first, last = rows.indptr[start], rows.indptr[stop]
    return sp.csr_array(
        (
            rows.data[first:last],
            rows.indices[first:last],
            rows.indptr[start : stop + 1] - first,
        ),
        shape=(stop - start, rows.shape[1]),
    )


def _for_chunks(work: Callable[[int, int], None], n_rows: int, threads: int | None) -> None:
    """Call ``work(start, stop)`` for chunks of rows, in as many threads as are worth it."""
    threads = thread_count(threads)
    size = min(max(-(-n_rows // (4 * threads)), _MIN_CHUNK_ROWS), _CHUNK_ROWS)
    chunks = [(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]
    threads = min(threads, len(chunks))
    if threads <= 1:
        for start, stop in chunks:
            work(start, stop)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="dismec-predict") as pool:
        for _ in pool.map(lambda chunk: work(*chunk), chunks):
            pass
