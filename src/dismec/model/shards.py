"""Weights by label ⇄ weights by feature, rounded to the precision that a model keeps.

A shard holds up to 65,536 *classifiers*, which are distinct rows of weights: labels that the same
training rows have share one. ``docs/model-format.md`` specifies its arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import kernels
from dismec.data.matrices import Rows, check_rows, csr_on
from dismec.errors import DataError, ModelError
from dismec.model.format import MOST_WEIGHTS, PADDING, PRECISIONS, check_precision

__all__ = ["Shard", "first_labels", "gather", "pack", "prune"]

Labelled = tuple[npt.NDArray[np.int64], sp.csr_array]  # labels, and their rows of weights


@dataclass(frozen=True, eq=False)
class Shard:
    """The weights of some labels, by feature.

    The labels of classifier i are ``labels[label_starts[i] : label_starts[i + 1]]``, ascending, and
    so are the first ones of the classifiers. `starts`, (n_features + 1, 2), is where the weights
    and the places of each feature begin; if the shard is split, (n_features + 1, 4): first of those
    above 0, then of those below.
    """

    labels: npt.NDArray[np.int32]
    label_starts: npt.NDArray[np.int32]
    scales: npt.NDArray[np.float32]  # of the classifiers: powers of two, but for `rescaled`
    bias: npt.NDArray[np.float32]  # of the classifiers
    starts: npt.NDArray[np.uint32]
    places: npt.NDArray[np.uint16]  # classifiers with a weight for the feature, or a bit for each
    weights: npt.NDArray[Any]  # one of `PRECISIONS`, times the classifier's scale

    @property
    def precision(self) -> str:
        """The name of the weights' type."""
        return next(name for name, dtype in PRECISIONS.items() if dtype == self.weights.dtype)

    @property
    def n_features(self) -> int:
        """Number of features, without the bias."""
        return len(self.starts) - 1

    @property
    def is_split(self) -> bool:
        """Whether weights above 0 are kept apart from those below."""
        return bool(self.starts.shape[1] == 4)

    @cached_property
    def nnz(self) -> int:
        """Number of weights, each stored once, and biases that are not 0."""
        return len(self.weights) - PADDING + int(np.count_nonzero(self.bias))

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
        return csr_on(data, indices, indptr, (len(self.scales), self.n_features + 1))

    def repacked(self, rows: sp.csr_array, precision: str) -> Shard:
        """The same labels with these weights for their classifiers, as `unpack` gives them."""
        check_precision(precision)
        packer = kernels.Packer(precision, len(self.scales), self.n_features, split=self.is_split)
        to = np.arange(len(self.scales), dtype=np.int32)
        for step in (packer.count, packer.place):
            step(to, *_block_rows(to, rows, self.n_features))
        return Shard(self.labels, self.label_starts, *_typed(packer.take(), precision))

    def rescaled(
        self, slopes: npt.NDArray[np.float32], offsets: npt.NDArray[np.float32], bias: float
    ) -> Shard:
        """A view whose score is slope·score + offset of each classifier, with their first labels'.

        It is of rows whose bias feature is 1, whatever `bias` it is here. Only sums are scaled, so
        that the weights are shared; but scales are then no powers of two, and what `unpack` gives
        is rounded once more. `slopes` and `offsets` are of all labels of the model.
        """
        first = self.labels[self.label_starts[:-1]]
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            scales = self.scales * slopes[first]
            own = np.float32(bias) * self.bias
            biases = (own.astype(np.float64) * slopes[first] + offsets[first]).astype(np.float32)
        if not (np.isfinite(biases) & np.isfinite(scales) & (scales > 0)).all():
            raise ModelError("weights are too large or too small for the curves of their labels")
        return replace(self, scales=scales, bias=biases)

    def __getstate__(self) -> dict[str, Any]:
        return self.arrays


def first_labels(shards: Sequence[Shard], n_labels: int) -> npt.NDArray[np.int64]:
    """For each label the first one that has the same classifier: itself, for most."""
    first = np.arange(n_labels)
    for shard in shards:
        sizes = np.diff(shard.label_starts)
        first[shard.labels] = np.repeat(shard.labels[shard.label_starts[:-1]], sizes)
    return first


def pack(blocks: Sequence[Labelled], n_features: int, precision: str) -> Iterator[Shard]:
    """Shards of the labels in blocks, in an order that does not depend on how these were cut.

    No label may be in two blocks. Weights are CSR, these labels × (n_features + 1), bias last; one
    that rounds to 0 is dropped. A block is asked for three times and not kept in between: the
    sequence may read it from a file each time.
    """
    check_precision(precision)
    classifiers = _Classifiers.find(blocks, n_features)
    if not classifiers.ascend:
        blocks = [_by_label(blocks)]
        classifiers = _Classifiers.find(blocks, n_features)
    for begin, end in _cuts(classifiers.sizes):
        packer = kernels.Packer(
            precision, end - begin, n_features, split=end - begin > kernels.split_rows
        )
        for step in (packer.count, packer.place):
            for number, of_row in enumerate(classifiers.targets):
                inside = (of_row >= begin) & (of_row < end)
                if inside.any():
                    to = np.where(inside, of_row - begin, -1).astype(np.int32)
                    step(to, *_block_rows(*blocks[number], n_features))
        yield Shard(*classifiers.labels(begin, end), *_typed(packer.take(), precision))


@dataclass(frozen=True, eq=False)
class _Classifiers:
    """The distinct rows of weights, in the order of their first labels."""

    sizes: npt.NDArray[np.int64]  # weights of each classifier
    targets: list[npt.NDArray[np.int64]]  # by block and row: what it is the first of, or −1
    _labels: npt.NDArray[np.int64]  # by classifier
    _starts: npt.NDArray[np.int64]  # of each classifier in them

    @classmethod
    def find(cls, blocks: Sequence[Labelled], n_features: int) -> _Classifiers:
        labels, sizes, digests = [np.empty(0, np.int64)], [np.empty(0, np.int64)], []
        for number in range(len(blocks)):
            rows = _block_rows(*blocks[number], n_features)
            labels.append(blocks[number][0])
            sizes.append(np.diff(rows[0]))
            digests.append(_digests(rows))
        lengths = [len(part) for part in labels[1:]]
        label, size = np.concatenate(labels), np.concatenate(sizes)
        key = np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)
        order = np.lexsort([label, *key.T])  # those with the same weights together
        new = np.ones(len(order), np.bool_)
        new[1:] = (np.diff(label[order]) <= 0) | (key[order[1:]] != key[order[:-1]]).any(axis=1)
        twice = np.flatnonzero(np.diff(np.sort(label)) == 0)
        if len(twice):
            raise ModelError(f"label {np.sort(label)[twice[0]]} is in two blocks")
        first = order[new]
        by_first_label = np.argsort(label[first])
        of_row = np.full(len(label), -1)
        of_row[first[by_first_label]] = np.arange(len(first))
        group = np.empty(len(label), np.int64)
        group[order] = of_row[first][np.cumsum(new) - 1]
        by_classifier = np.lexsort([label, group])
        starts = np.searchsorted(group[by_classifier], np.arange(len(first) + 1))
        targets = np.split(of_row, np.cumsum(lengths)[:-1]) if lengths else []
        return cls(size[first[by_first_label]], targets, label[by_classifier], starts)

    @property
    def ascend(self) -> bool:
        """Whether going through the blocks is going through the classifiers."""
        found = np.concatenate([np.empty(0, np.int64), *self.targets])
        return bool((np.diff(found[found >= 0]) > 0).all())

    def labels(self, begin: int, end: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """`labels` and `label_starts` of a shard of some classifiers."""
        starts = self._starts[begin : end + 1]
        held = self._labels[starts[0] : starts[-1]]
        return held.astype(np.int32), (starts - starts[0]).astype(np.int32)


def _digests(rows: Rows) -> bytes:
    """Sixteen bytes per row that are the same for the same weights, and for no others."""
    digests = []
    for begin, end in pairwise(rows.indptr.tolist()):
        digest = hashlib.blake2b(rows.indices[begin:end].data, digest_size=16)
        digest.update(rows.data[begin:end].data)
        digests.append(digest.digest())
    return b"".join(digests)


def prune(weights: sp.csr_array, delta: float) -> sp.csr_array:
    """The matrix without the entries below `delta` in magnitude: what training itself would keep.

    The solver compares in float32, so this does.
    """
    keep = np.abs(weights.data) >= np.float32(delta)
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep)])
    indptr = before[weights.indptr]
    return csr_on(weights.data[keep], weights.indices[keep], indptr, weights.shape)


def _by_label(blocks: Sequence[Labelled]) -> Labelled:
    """All blocks as one, in the order of labels."""
    labels = np.concatenate([labels for labels, _ in blocks])
    stacked: Any = sp.vstack([weights for _, weights in blocks], format="csr")
    order = np.argsort(labels)
    return labels[order], stacked[order]


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
        full = int(np.searchsorted(before, before[begin] + MOST_WEIGHTS, side="right")) - 1
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


def _block_rows(labels: npt.NDArray[Any], weights: Any, n_features: int) -> Rows:
    """A block's weights, as the kernels take them."""
    if weights.shape != (len(labels), n_features + 1):
        raise ModelError(
            f"a block of {len(labels)} labels holds {weights.shape[0]} × {weights.shape[1]} "
            f"weights; expected {n_features + 1} a label: {n_features} features and the bias"
        )
    try:
        return check_rows(weights, n_features + 1)
    except DataError as error:
        raise ModelError(f"a block's weights: {error}") from None
