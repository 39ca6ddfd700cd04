"""Rows × shards → top k."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dismec.cpu import kernels, thread_count
from dismec.data.counts import check_k, counted
from dismec.data.matrices import Rows, csr_on
from dismec.data.mixed import MixedArrays
from dismec.errors import DataError, ModelError
from dismec.model.allowed import Allowed
from dismec.model.by_label import WeightsByLabel
from dismec.model.held_labels import HeldLabels
from dismec.model.shards import Shard

__all__ = [
    "Labels",
    "Predictor",
    "Ranking",
    "RowTransform",
    "Scores",
    "best_labels",
    "check_explained",
    "count_before",
    "empty_topk",
    "explained",
]

# Rows that a thread transforms and scores at a time: enough to share decoded weights, few enough
# that their transformed copy stays in the cache.
_CHUNK_ROWS = 1024
_MIN_CHUNK_ROWS = 8

Labels = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float32]


class RowTransform(Protocol):
    """What rows go through before they are scored: a `Transform`, or an `Informed` one."""

    @property
    def n_features(self) -> int:
        """Sparse features that a row comes with."""

    @property
    def dense(self) -> int:
        """Dense features that it comes with."""

    @property
    def first_dense(self) -> int:
        """The number of the first dense feature among those that it is scored by."""

    @property
    def n_columns(self) -> int:
        """Features that it is scored by, without the bias."""

    @property
    def bias(self) -> float:
        """The value of the last feature."""

    @property
    def idf(self) -> npt.NDArray[np.float32] | None:
        """What its own features are multiplied by, if they are."""

    def with_bias(self, bias: float) -> RowTransform:
        """The same with another bias."""

    def take(self, X: Any) -> Any:
        """Rows of a caller, checked, of which some can be selected."""

    def arrays(self, X: Any) -> Rows | MixedArrays:
        """The arrays of `take`."""

    def apply_between(self, rows: Rows | MixedArrays, begin: int, end: int) -> Rows:
        """Rows begin … end of those that have been through `arrays`, transformed."""


class Ranking(Protocol):
    """An order of all labels of a model: a `Predictor`, or what asks the workers of a cluster."""

    @property
    def n_labels(self) -> int:
        """Labels of the model."""

    @property
    def transform(self) -> RowTransform:
        """What is done to a row before it is scored."""

    def topk(
        self, X: Any, k: int = 5, threads: int | None = None, allowed: Allowed | None = None
    ) -> tuple[Labels, Scores]:
        """As `Predictor.topk`, and so are the others."""

    def decision_function(self, X: Any, threads: int | None = None) -> Scores:
        """The scores of all labels."""

    def explain(self, X: Any, label: int) -> tuple[Rows, Scores, float]:
        """What the score of a label for one row consists of."""

    def place(self, X: Any, label: int) -> int:
        """The place of a label for one row."""


class Predictor:
    """The shards of a model, ready to score rows against all labels.

    The score of a label is Σ value·weight over the features of the transformed row in ascending
    order, the bias last, in float32 and rounded after every product and every sum: bit for bit what
    ``transform.apply(X) @ W.T`` gives for the stored weights W. A label whose weights were all
    dropped has score 0 and competes like any other; one that is in no shard, because training saw
    no row of it, never does. Results do not depend on how labels are cut into shards, nor on the
    number of threads.

    Shards may come in any order. Raises `ModelError` if they do not fit the transform, or hold a
    label twice or one beyond `n_labels`. `by_label` has the weights of the same classifiers, for
    rows that may be given few labels; their scales and biases are those of the shards.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        n_labels: int,
        transform: RowTransform,
        by_label: WeightsByLabel | None = None,
    ) -> None:
        self.n_labels = n_labels
        self.transform = transform
        held = np.zeros(n_labels, np.int64)
        for shard in shards:
            if shard.n_features != transform.n_columns:
                raise ModelError(
                    f"a shard is of {shard.n_features} features, not {transform.n_columns}"
                )
            if len(shard.labels) and shard.labels.max() >= n_labels:
                raise ModelError(f"a shard holds label {shard.labels.max()} of {n_labels} labels")
            held += np.bincount(shard.labels, minlength=n_labels)
        if (held > 1).any():
            raise ModelError(f"label {np.argmax(held)} is in the shards {held.max()} times")
        self._unseen = held == 0
        self._shards = [shard.native for shard in shards]
        self._held = HeldLabels(shards, n_labels)
        self._by_label = by_label
        self._scales = [shard.scales for shard in shards]
        self._biases = [shard.bias for shard in shards]

    def topk(
        self, X: Any, k: int = 5, threads: int | None = None, allowed: Allowed | None = None
    ) -> tuple[Labels, Scores]:
        """The k labels with the highest scores for every row; all as `TopkModel.predict_topk`.

        X is raw, and transformed piece by piece.
        """
        k = check_k(k)
        rows = self.transform.arrays(X)
        if allowed is not None:
            allowed.check(rows.n_rows)
        labels, scores = empty_topk(rows.n_rows, k)
        places = min(k, self.n_labels)  # k may be far more than there is to fill
        if places == 0:
            return labels, scores

        def rank(start: int, stop: int) -> None:
            chunk = self.transform.apply_between(rows, start, stop)
            if allowed is None:
                best = best_labels(self._shards, chunk, places)
            else:
                best = self._best_among(chunk, places, allowed, start, stop)
            labels[start:stop, :places], scores[start:stop, :places] = best

        _for_chunks(rank, rows.n_rows, threads)
        return labels, scores

    def _best_among(
        self, chunk: Rows, places: int, allowed: Allowed, start: int, stop: int
    ) -> tuple[Labels, Scores]:
        """`best_labels` of rows start … stop − 1 among those that they may be given."""
        copy = None if self._by_label is None else self._by_label.copy_for(allowed)
        if copy is None:
            return best_labels(self._shards, chunk, places, self._held.among(allowed, start, stop))
        labels, scores = empty_topk(stop - start, places)
        ranked = np.empty(stop - start, np.uint8)
        few = (*allowed.between(start, stop), self._held.numbers)
        copy.rank(*self._scales_and_biases, *chunk, *few, labels, scores, ranked)
        left = np.flatnonzero(ranked == 0)
        if len(left):  # for these it would take longer
            rest: Any = csr_on(
                chunk.data,
                chunk.indices,
                chunk.indptr,
                (chunk.n_rows, self.transform.n_columns + 1),
            )[left]
            rest = Rows(rest.indptr.astype(np.int64), rest.indices, rest.data)
            among = self._held.among(allowed.take(start + left), 0, len(left))
            labels[left], scores[left] = best_labels(self._shards, rest, places, among)
        return labels, scores

    @cached_property
    def _scales_and_biases(self) -> tuple[Scores, Scores]:
        """Those of the classifiers of all shards."""
        return np.concatenate(self._scales), np.concatenate(self._biases)

    def decision_function(self, X: Any, threads: int | None = None) -> Scores:
        """The scores of all labels, as a dense float32 (n_rows, n_labels).

        That is 4·n_rows·n_labels bytes: for many labels use `topk`. Arguments and errors as there.
        An untrained label has score −1, the answer of a classifier that has seen only negatives.
        """
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

    def explain(self, X: Any, label: int) -> tuple[Rows, Scores, float]:
        """A row transformed, the label's weight for each of its entries, and its score.

        The score is bit for bit what `topk` gives. Nothing is read but the label's own weights.
        """
        rows = self.transform.arrays(X)
        check_explained(rows.n_rows, label, self.n_labels)
        shard, classifier = self._held.find(label)
        if shard < 0:
            raise DataError(f"label {label} was never trained: no training row had it")
        row = self.transform.apply_between(rows, 0, 1)
        weights, score = explained(self._shards[shard], classifier, row)
        return row, weights, score

    def place(self, X: Any, label: int) -> int:
        """The place of a label for one row, from 1, in the order of `topk`; errors as `explain`."""
        row, _, score = self.explain(X, label)
        return 1 + count_before(self._shards, row, self.n_labels, label, score)


def empty_topk(n_rows: int, k: int) -> tuple[Labels, Scores]:
    """Places that nothing has been ranked into yet: labels −1, scores −inf."""
    return np.full((n_rows, k), -1, np.int32), np.full((n_rows, k), -np.inf, np.float32)


def best_labels(
    shards: Sequence[Any], rows: Rows, places: int, allowed: Sequence[Any] | None = None
) -> tuple[Labels, Scores]:
    """The best labels of transformed rows among those of some shards, given as `Shard.native`.

    `allowed` says for each shard which of its labels rows may be given, by default all. Returns
    labels and scores, (n_rows, places), as `Predictor.topk` does.
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


def check_explained(n_rows: int, label: int, n_labels: int) -> None:
    """Refuse what is not one row and a label of the model."""
    if n_rows != 1:
        raise DataError(f"X has {counted(n_rows, 'row')}; one is explained at a time")
    if not 0 <= label < n_labels:
        raise DataError(f"label {label}; expected one of 0 to {n_labels - 1}")


def explained(shard: Any, classifier: int, row: Rows) -> tuple[Scores, float]:
    """The weights of a classifier for the entries of a transformed row, and its score."""
    with _damage_as_model_error():
        score, weights = kernels.explain(shard, classifier, *row)
    return weights, score


def count_before(shards: Sequence[Any], row: Rows, n_labels: int, label: int, score: float) -> int:
    """How many labels of some shards rank before a label that has this score for a row."""
    scores = np.full((1, n_labels), np.nan, np.float32)  # what no shard holds ranks nowhere
    with _damage_as_model_error():
        for shard in shards:
            kernels.dense_scores(shard, *row, scores)
    before = np.count_nonzero(scores[0] > score)
    return int(before + np.count_nonzero(scores[0, :label] == score))


@contextmanager
def _damage_as_model_error() -> Iterator[None]:
    """Raise `ModelError` for what a kernel finds in a file that was opened without a check."""
    try:
        yield
    except ValueError as error:
        raise ModelError(f"the model is damaged: {error}") from None


def _for_chunks(work: Callable[[int, int], None], n_rows: int, threads: int | None) -> None:
    """Call ``work(start, stop)`` for chunks of rows, in as many threads as are worth it."""
    threads = thread_count(threads)
    # As many chunks for each thread, but several: one may be held up.
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
