"""Weights by label ⇄ weights by feature, rounded to the precision that a model keeps.

A shard holds up to 65,536 *classifiers*, which are distinct rows of weights: labels that the same
training rows have share one. ``docs/model-format.md`` specifies its arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.errors import DataError, ModelError
from dismec.features import check_X
from dismec.native import kernels

__all__ = ["PRECISIONS", "Shard", "check_precision", "gather", "pack"]

PRECISIONS: dict[str, np.dtype[Any]] = {
    "float16": np.dtype("<f2"),
    "float32": np.dtype("<f4"),
    "int8": np.dtype("u1"),
}
_PADDING = 16  # weights that are not there, at the end, so that vectors of them can be read
_MOST_WEIGHTS = 1 << 26  # of a shard: it is put together in memory

Arrays = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Shard:
    """The weights of some labels, by feature.

    Attributes
    ----------
    labels, label_starts
        int32: the labels of classifier i are ``labels[label_starts[i] : label_starts[i + 1]]``,
        ascending, and so are the first ones of the classifiers.
    scales, bias
        float32: a power of two and the bias of each classifier.
    starts
        uint32 (n_features + 1, 2): where the weights and the places of each feature begin.
    places
        uint16: classifiers that have a weight for the feature, or a bit for every classifier.
    weights
        Of the type of one of `PRECISIONS`, times the classifier's scale.

    Raises
    ------
    ModelError
        If the arrays do not fit together.
    """

    labels: npt.NDArray[np.int32]
    label_starts: npt.NDArray[np.int32]
    scales: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]
    starts: npt.NDArray[np.uint32]
    places: npt.NDArray[np.uint16]
    weights: npt.NDArray[Any]

    @property
    def precision(self) -> str:
        """The name of the weights' type."""
        return next(name for name, dtype in PRECISIONS.items() if dtype == self.weights.dtype)

    @property
    def n_features(self) -> int:
        """Number of features, without the bias."""
        return len(self.starts) - 1

    @cached_property
    def nnz(self) -> int:
        """Number of weights, each stored once, and biases that are not 0."""
        return len(self.weights) - _PADDING + int(np.count_nonzero(self.bias))

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays by their names."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @cached_property
    def native(self) -> Any:
        """The shard as the kernels take it."""
        try:
            return kernels.Shard(**self.arrays)
        except (ValueError, TypeError) as error:
            raise ModelError(f"a shard's arrays do not fit together: {error}") from None

    def unpack(self) -> sp.csr_array:
        """The classifiers as CSR float32 (number of them, n_features + 1), bias last."""
        try:
            indptr, indices, data = kernels.unpack(self.native)
        except ValueError as error:
            raise ModelError(f"a shard is damaged: {error}") from None
        rows: Any = sp.csr_array((len(self.scales), self.n_features + 1), dtype=np.float32)
        rows.indptr, rows.indices, rows.data = indptr, indices, data
        return rows  # type: ignore[no-any-return]

    def repacked(self, rows: sp.csr_array, precision: str) -> Shard:
        """The same labels with these weights for their classifiers, as `unpack` gives them."""
        check_precision(precision)
        number = np.arange(len(self.scales), dtype=np.int32)
        arrays = _checked(len(number), rows, self.n_features)
        packed = kernels.pack([arrays], 0 * number, number, self.n_features, precision)
        return Shard(self.labels, self.label_starts, *_typed(packed, precision))

    def __getstate__(self) -> dict[str, Any]:
        return self.arrays


def pack(
    blocks: Sequence[tuple[npt.NDArray[np.int64], sp.csr_array]], n_features: int, precision: str
) -> Iterator[Shard]:
    """Shards of the labels in blocks, in an order that does not depend on how these were cut.

    Parameters
    ----------
    blocks
        ``(labels, weights)`` in any order, no label twice; weights is CSR, these labels ×
        (n_features + 1), bias last.
    n_features
        Number of features, without the bias.
    precision
        One of `PRECISIONS`. A weight that rounds to 0 is dropped.

    Raises
    ------
    ModelError
        If weights are not finite or do not fit `n_features`, or a label is in two blocks.
    """
    check_precision(precision)
    matrices = [_checked(len(labels), weights, n_features) for labels, weights in blocks]
    labels = np.concatenate([np.empty(0, np.int64), *(labels for labels, _ in blocks)])
    matrix = np.repeat(np.arange(len(blocks), dtype=np.int32), [len(b[0]) for b in blocks])
    row = np.concatenate([np.empty(0, np.int32), *(np.arange(len(b[0])) for b in blocks)])
    order = np.argsort(labels, kind="stable")
    labels, matrix, row = labels[order], matrix[order], row[order].astype(np.int32)
    if (np.diff(labels) == 0).any():
        raise ModelError(f"label {labels[:-1][np.diff(labels) == 0][0]} is in two blocks")

    leader = kernels.leaders(matrices, matrix, row, n_features)
    by_classifier = np.argsort(leader, kind="stable")
    first = np.flatnonzero(leader == np.arange(len(leader)))
    ends = np.searchsorted(leader[by_classifier], first, side="right")
    starts = np.concatenate([np.zeros(1, np.int64), ends])
    size = np.empty(len(first), np.int64)
    for number, (indptr, _, _) in enumerate(matrices):
        of_it = matrix[first] == number
        size[of_it] = np.diff(indptr)[row[first[of_it]]]
    for begin, end in _cuts(size):
        held = first[begin:end]
        used, which = np.unique(matrix[held], return_inverse=True)
        of_shard = by_classifier[starts[begin] : starts[end]]
        packed = kernels.pack(
            [matrices[number] for number in used],
            which.astype(np.int32),
            row[held],
            n_features,
            precision,
        )
        yield Shard(
            labels[of_shard].astype(np.int32),
            (starts[begin : end + 1] - starts[begin]).astype(np.int32),
            *_typed(packed, precision),
        )


def check_precision(precision: str) -> None:
    """Raise `DataError` unless it is the name of a precision."""
    if precision not in PRECISIONS:
        raise DataError(f"precision is {precision!r}; expected {', '.join(PRECISIONS)}")


def _typed(packed: tuple[npt.NDArray[Any], ...], precision: str) -> Iterator[npt.NDArray[Any]]:
    """The kernel's arrays; it has no name for a float of 16 bits."""
    *others, weights = packed
    yield from others
    yield weights.view(PRECISIONS[precision])


def _cuts(size: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of classifiers that make a shard, given how many weights each has."""
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(size)])
    begin = 0
    while begin < len(size):
        full = int(np.searchsorted(before, before[begin] + _MOST_WEIGHTS, side="right")) - 1
        end = max(begin + 1, min(full, begin + kernels.shard_rows, len(size)))
        yield begin, end
        begin = end


def gather(shards: Sequence[Shard], n_labels: int, n_features: int) -> sp.csr_array:
    """The weights of all labels, CSR float32 (n_labels, n_features + 1); others have empty rows."""
    none: Any = sp.csr_array((1, n_features + 1), dtype=np.float32)
    stacked: Any = sp.vstack([none, *(shard.unpack() for shard in shards)], format="csr")
    place, done = np.zeros(n_labels, np.int64), 1
    for shard in shards:
        rows = np.arange(done, done + len(shard.scales))
        place[shard.labels] = np.repeat(rows, np.diff(shard.label_starts))
        done += len(shard.scales)
    return stacked[place]  # type: ignore[no-any-return]


def _checked(n_labels: int, weights: Any, n_features: int) -> Arrays:
    """A block's weights, as the kernels take them."""
    if weights.shape != (n_labels, n_features + 1):
        raise ModelError(
            f"a block of {n_labels} labels holds {weights.shape[0]} × {weights.shape[1]} "
            f"weights; expected {n_features + 1} a label: {n_features} features and the bias"
        )
    try:
        rows = check_X(weights)
    except DataError as error:
        raise ModelError(f"a block's weights: {error}") from None
    return rows.indptr.astype(np.int64, copy=False), rows.indices, rows.data
