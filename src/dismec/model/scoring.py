"""Rows × shards → top k."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from dismec.cpu import in_threads, kernels, thread_count
from dismec.data.columns import is_matrix, is_texts, text_column
from dismec.data.counts import check_k, counted
from dismec.data.matrices import Rows
from dismec.data.mixed import MixedArrays, MixedRows, is_parts, mixed_rows
from dismec.errors import DataError, ModelError
from dismec.features.vocabulary import TextRows, Vocabulary
from dismec.model.allowed import Allowed
from dismec.model.label_index import LabelIndex
from dismec.model.shards import Shard

# Rows that a thread transforms and scores at a time: enough to share decoded weights, few enough
# for their transformed copy to stay in the cache.
_CHUNK_ROWS = 1024
_MIN_CHUNK_ROWS = 8

Labels = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float32]
InputRows: TypeAlias = Rows | MixedArrays
Keep: TypeAlias = Callable[[int, int, tuple[Labels, Scores]], None]


class RowTransform(Protocol):
    """The steps between input rows and scored rows: a `Transform` or a `RefinedTransform`."""

    @property
    def n_features(self) -> int:
        """Number of sparse features of an input row."""

    @property
    def dense(self) -> int:
        """Number of dense features of an input row."""

    @property
    def first_dense(self) -> int:
        """Column of the first dense feature in a transformed row."""

    @property
    def n_columns(self) -> int:
        """Number of features of a transformed row, without the bias."""

    @property
    def bias(self) -> float:
        """Value of the bias feature, which is the last column."""

    @property
    def idf(self) -> npt.NDArray[np.float32] | None:
        """Inverse document frequencies of the input features, or None."""

    def with_bias(self, bias: float) -> RowTransform:
        """Return the same transform with another bias."""

    def take(self, X: Any) -> Any:
        """Check input rows; return them in a form that can be indexed by rows."""

    def arrays(self, X: Any) -> InputRows:
        """Check input rows; return their arrays."""

    def apply_between(self, rows: InputRows, begin: int, end: int) -> Rows:
        """Return rows begin … end − 1 of the result of `arrays`, transformed."""


class Ranking(ABC):
    """A ranking of all labels of a model, by a `Predictor` or by the workers of a cluster."""

    def __init__(self, n_labels: int, transform: RowTransform) -> None:
        self.n_labels = n_labels
        self.transform = transform  # applied to rows before scoring

    @abstractmethod
    def _rank(
        self, rows: InputRows, places: int, threads: int | None, allowed: Allowed | None, keep: Keep
    ) -> None:
        """Call ``keep(start, stop, best)`` with the best labels of all rows, part by part."""

    @abstractmethod
    def _explained(self, row: Rows, label: int) -> tuple[Scores, float]:
        """Return the weights of a label for the entries of a transformed row, and its score."""

    @abstractmethod
    def _count_before(self, row: Rows, label: int, score: float) -> int:
        """Return how many labels rank before a label with this score."""

    @abstractmethod
    def decision_function(self, X: Any, threads: int | None = None) -> Scores:
        """Return the scores of all labels, float32 (n_rows, n_labels).

        They take 4·n_rows·n_labels bytes; for many labels, use `topk`. Arguments and errors are
        as there. An untrained label has score −1, as if trained on negatives only.
        """

    def topk(
        self, X: Any, k: int = 5, threads: int | None = None, allowed: Allowed | None = None
    ) -> tuple[Labels, Scores]:
        """Return the k labels with the highest scores for each row, as `Model.predict_topk`.

        X contains input rows, which are transformed chunk by chunk.
        """
        k = check_k(k)
        rows = self.transform.arrays(X)
        if allowed is not None:
            allowed.check(rows.n_rows)
        labels, scores = empty_topk(rows.n_rows, k)
        places = min(k, self.n_labels)  # k may exceed the number of labels by far

        def keep(start: int, stop: int, best: tuple[Labels, Scores]) -> None:
            labels[start:stop, :places], scores[start:stop, :places] = best

        if places and rows.n_rows:
            self._rank(rows, places, threads, allowed, keep)
        return labels, scores

    def explain(self, X: Any, label: int) -> tuple[Rows, Scores, float]:
        """Return a row transformed, the label's weight for each of its entries, and the score.

        The score equals that of `topk` bit for bit. Only the weights of the label are read.
        """
        rows = self.transform.arrays(X)
        if rows.n_rows != 1:
            raise DataError(f"X has {counted(rows.n_rows, 'row')}; one is explained at a time")
        if not 0 <= label < self.n_labels:
            raise DataError(f"label {label}; expected one of 0 to {self.n_labels - 1}")
        row = self.transform.apply_between(rows, 0, 1)
        return row, *self._explained(row, label)

    def place(self, X: Any, label: int) -> int:
        """Return the rank of a label for one row, from 1, in the order of `topk`.

        Errors are those of `explain`.
        """
        row, _, score = self.explain(X, label)
        return 1 + self._count_before(row, label, score)


class Predictor(Ranking):
    """The shards of a model, ready to score rows against all labels.

    The score of a label is Σ value·weight over the features of the transformed row in ascending
    order, the bias last, in float32 and rounded after every product and every sum: bit for bit what
    ``transform.apply(X) @ W.T`` gives for the stored weights W. A label whose weights were all
    dropped has score 0 and is ranked like any other. A label in no shard, because no training row
    had it, is never ranked. Results depend neither on how labels are divided into shards nor on the
    number of threads.

    Shards may be in any order. Raises `ModelError` if shards do not fit the transform, hold a label
    twice, or hold one beyond `n_labels`.
    """

    def __init__(self, shards: Sequence[Shard], n_labels: int, transform: RowTransform) -> None:
        super().__init__(n_labels, transform)
        held = np.zeros(n_labels, np.int64)
        for shard in shards:
            if shard.n_features != transform.n_columns:
                raise ModelError(
                    f"a shard has {shard.n_features} features; expected {transform.n_columns}"
                )
            if len(shard.labels) and shard.labels.max() >= n_labels:
                raise ModelError(f"a shard holds label {shard.labels.max()} of {n_labels} labels")
            held += np.bincount(shard.labels, minlength=n_labels)
        if (held > 1).any():
            raise ModelError(f"label {np.argmax(held)} is in the shards {held.max()} times")
        self._unseen = held == 0
        self._shards = [shard.native for shard in shards]
        self._index = LabelIndex(shards, n_labels)

    def _rank(
        self, rows: InputRows, places: int, threads: int | None, allowed: Allowed | None, keep: Keep
    ) -> None:
        def rank(start: int, stop: int) -> None:
            chunk = self.transform.apply_between(rows, start, stop)
            among = None if allowed is None else self._index.among(allowed, start, stop)
            keep(start, stop, best_labels(self._shards, chunk, places, among))

        _for_chunks(rank, rows.n_rows, threads)

    def decision_function(self, X: Any, threads: int | None = None) -> Scores:  # noqa: D102
        rows = self.transform.arrays(X)
        scores = np.empty((rows.n_rows, self.n_labels), dtype=np.float32)

        def score(start: int, stop: int) -> None:
            chunk = self.transform.apply_between(rows, start, stop)
            with _damage_as_model_error():
                for shard in self._shards:
                    kernels.dense_scores(shard, *chunk, scores[start:stop])

        _for_chunks(score, rows.n_rows, threads)
        scores[:, self._unseen] = -1
        return scores

    def _explained(self, row: Rows, label: int) -> tuple[Scores, float]:
        shard, classifier = self._index.find(label)
        return explained(self._shards[shard], classifier, row)

    def _count_before(self, row: Rows, label: int, score: float) -> int:
        return count_before(self._shards, row, self.n_labels, label, score)


def input_rows(
    X: Any, transform: RowTransform, vocabulary: Vocabulary | None, threads: int | None
) -> Any:
    """Turn texts into rows and check the kind of other rows, as `Model.rows_of`."""
    if isinstance(X, MixedRows) or is_parts(X):
        return transform.take(_mixed_rows(X, vocabulary, threads))
    encodes = vocabulary is not None and vocabulary.encoder is not None and not is_matrix(X)
    if not encodes and transform.dense and (transform.n_features or is_texts(X)):
        raise DataError(
            f"X has no dense features, but the model takes {transform.dense} in addition to "
            f"{transform.n_features} sparse ones: pass [X, E]"
        )
    if vocabulary is None:
        if is_texts(X):
            raise DataError("the model was trained on numeric features, but X is texts")
        return X
    if isinstance(X, TextRows):
        return X
    if is_matrix(X):
        raise DataError(
            "the model takes texts, but X is a matrix; if its columns are the terms of the "
            "model's vocabulary, pass dismec.TextRows(X)"
        )
    return vocabulary.rows(text_column(X), threads=threads)


def _mixed_rows(X: Any, vocabulary: Vocabulary | None, threads: int | None) -> MixedRows:
    if isinstance(X, MixedRows):
        return X
    sparse = X[0] if len(X) == 2 else None
    if sparse is not None and vocabulary is not None and not isinstance(sparse, TextRows):
        if is_matrix(sparse):
            raise DataError(
                "the model takes texts and dense features, but the first part of X is a "
                "matrix; if its columns are the terms of the model's vocabulary, pass "
                "[dismec.TextRows(X), E]"
            )
        sparse = vocabulary.rows(text_column(sparse), threads=threads)
    elif sparse is not None and is_texts(sparse):
        raise DataError("the model was trained on numeric features, but X has texts")
    return mixed_rows(sparse, X[-1])


def empty_topk(n_rows: int, k: int) -> tuple[Labels, Scores]:
    """Return a ranking with all places empty: labels −1, scores −inf."""
    return np.full((n_rows, k), -1, np.int32), np.full((n_rows, k), -np.inf, np.float32)


def best_labels(
    shards: Sequence[Any], rows: Rows, places: int, allowed: Sequence[Any] | None = None
) -> tuple[Labels, Scores]:
    """Return the best labels of transformed rows in some shards, and their scores.

    `shards` are `Shard.native` objects, and `allowed` has the allowed labels of each (by default
    all). The results have shape (n_rows, places) and are ordered as by `Predictor.topk`.
    """
    labels, scores = empty_topk(rows.n_rows, places)
    with _damage_as_model_error():
        if allowed is None:
            for shard in shards:
                kernels.merge_topk(shard, *rows, labels, scores)
        else:
            for shard, among in zip(shards, allowed, strict=True):
                kernels.merge_topk(shard, *rows, labels, scores, allowed=among)
    return labels, scores


def merge_topk(
    found: Sequence[tuple[Labels, Scores]], n_rows: int, places: int
) -> tuple[Labels, Scores]:
    """Merge the best labels among disjoint sets of labels, ranked as in `Predictor.topk`."""
    candidates = zip(*found, empty_topk(n_rows, places), strict=True)
    labels, scores = (np.concatenate(arrays, axis=1) for arrays in candidates)
    # An empty place, −1, is the largest unsigned number, so it loses to a label with score −inf.
    order: npt.NDArray[np.intp] = np.lexsort((labels.view(np.uint32), -scores), axis=1)
    order = order[:, :places]
    return np.take_along_axis(labels, order, 1), np.take_along_axis(scores, order, 1)


def explained(shard: Any, classifier: int, row: Rows) -> tuple[Scores, float]:
    """Return the weights of a classifier for the entries of a transformed row, and its score."""
    with _damage_as_model_error():
        score, weights = kernels.explain(shard, classifier, *row)
    return weights, score


def count_before(shards: Sequence[Any], row: Rows, n_labels: int, label: int, score: float) -> int:
    """Return how many labels of some shards rank before a label with this score."""
    scores = np.full((1, n_labels), np.nan, np.float32)  # labels in no shard are not ranked
    with _damage_as_model_error():
        for shard in shards:
            kernels.dense_scores(shard, *row, scores)
    before = np.count_nonzero(scores[0] > score)
    return int(before + np.count_nonzero(scores[0, :label] == score))


@contextmanager
def _damage_as_model_error() -> Iterator[None]:
    """Turn errors of the kernels into `ModelError`: the file may have been opened unchecked."""
    try:
        yield
    except ValueError as error:
        raise ModelError(f"the model is damaged: {error}") from None


def _for_chunks(work: Callable[[int, int], None], n_rows: int, threads: int | None) -> None:
    """Call ``work(start, stop)`` for chunks of rows, in up to `threads` threads."""
    threads = thread_count(threads)
    # Several chunks per thread, so that a delayed thread does not hold up the others.
    size = min(max(-(-n_rows // (4 * threads)), _MIN_CHUNK_ROWS), _CHUNK_ROWS)
    chunks = [(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]
    in_threads(lambda chunk: work(*chunk), chunks, min(threads, len(chunks)))
