"""Blocks of weights → their distinct rows, the classifiers, and where each of them is."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import in_threads
from dismec.data.matrices import Rows, check_rows
from dismec.errors import DataError, ModelError
from dismec.solve.blocks import first_equal, repeated

__all__ = ["Classifiers", "Labelled", "block_rows"]

Ints = npt.NDArray[np.int64]
Labelled = tuple[Ints, sp.csr_array]  # labels, and their rows of weights


@dataclass(frozen=True, eq=False)
class Classifiers:
    """The distinct rows of weights of some blocks, in the order of their first labels."""

    sizes: Ints  # weights of each
    _source: Sequence[Labelled]
    _n_features: int
    _blocks: npt.NDArray[np.int32]  # the block that each is taken from: that of its first label
    _rows: npt.NDArray[np.int32]  # and its row there
    _labels: npt.NDArray[np.int32]  # of all, one classifier after another, ascending in each
    _starts: Ints  # of each classifier in them

    @classmethod
    def find(
        cls,
        blocks: Sequence[Labelled],
        n_features: int,
        counts: Ints | None = None,
        threads: int = 1,
    ) -> Classifiers:
        """Those of all labels in blocks, but for labels without training rows by their `counts`.

        Each block is looked at once, and once more where some of its rows may be the same as
        others. Raises `ModelError` for a label that is in two blocks, and for weights that are not
        those of so many features.
        """

        def look(number: int) -> tuple[npt.NDArray[Any], ...]:
            labels, weights = blocks[number]
            rows = block_rows(labels, weights, n_features)
            kept = np.arange(len(labels)) if counts is None else np.flatnonzero(counts[labels] > 0)
            block = np.full(len(kept), number, np.int32)
            sizes = np.diff(rows.indptr)[kept]
            return labels[kept], block, kept.astype(np.int32), sizes, _signatures(rows)[kept]

        kinds = (np.int64, np.int32, np.int32, np.int64, np.uint64)
        none = tuple(np.empty(0, kind) for kind in kinds)
        found = zip(none, *in_threads(look, range(len(blocks)), threads), strict=True)
        label, block, row, size, signature = map(np.concatenate, found)
        by_label = np.argsort(label)
        label, block, row, size, signature = (
            array[by_label] for array in (label, block, row, size, signature)
        )
        twice = np.flatnonzero(label[1:] == label[:-1])
        if len(twice):
            raise ModelError(f"label {label[twice[0]]} is in two blocks")
        alike = repeated(signature)
        digests = _digests(blocks, n_features, block[alike], row[alike], threads)
        first = np.arange(len(label))  # for each label the first one with the same weights
        first[alike] = alike[first_equal([*digests.T])]
        is_first = first == np.arange(len(label))
        classifier = (np.cumsum(is_first) - 1)[first]
        starts = np.zeros(np.count_nonzero(is_first) + 1, np.int64)
        np.cumsum(np.bincount(classifier, minlength=len(starts) - 1), out=starts[1:])
        held = label[np.argsort(classifier, kind="stable")].astype(np.int32)
        places = block[is_first], row[is_first]
        return cls(size[is_first], blocks, n_features, *places, held, starts)

    def labels(self, begin: int, end: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """`labels` and `label_starts` of a shard of some classifiers."""
        starts = self._starts[begin : end + 1]
        return self._labels[starts[0] : starts[-1]], (starts - starts[0]).astype(np.int32)

    def weights(self, begin: int, end: int) -> Rows:
        """The weights of some classifiers, in their order; of each block, only these are read."""
        numbers = self._blocks[begin:end]
        by_block = np.argsort(numbers, kind="stable")
        parts = []
        for places in _runs(numbers[by_block]):
            at = by_block[places]
            weights: Any = self._source[numbers[at[0]]][1]
            parts.append(weights[self._rows[begin:end][at]])
        gathered: Any = sp.vstack(parts, format="csr")
        if (np.diff(by_block) < 0).any():
            gathered = gathered[np.argsort(by_block)]
        return block_rows(numbers, gathered, self._n_features)


def block_rows(labels: npt.NDArray[Any], weights: Any, n_features: int) -> Rows:
    """The weights of some labels, as the kernels take them."""
    if weights.shape != (len(labels), n_features + 1):
        raise ModelError(
            f"a block of {len(labels)} labels holds {weights.shape[0]} × {weights.shape[1]} "
            f"weights; expected {n_features + 1} a label: {n_features} features and the bias"
        )
    try:
        return check_rows(weights, n_features + 1)
    except DataError as error:
        raise ModelError(f"a block's weights: {error}") from None


def _signatures(rows: Rows) -> npt.NDArray[np.uint64]:
    """A number per row that is the same for the same weights, and seldom for others.

    It takes three weights of each: the bias, or what else is last, tells most labels apart.
    """
    first, last = rows.indptr[:-1], rows.indptr[1:] - 1
    signature = (last - first).astype(np.uint64)
    filled = np.flatnonzero(last >= first)
    first, last = first[filled], last[filled]
    key = signature[filled]
    for at in (first, (first + last) // 2, last):
        for part in (rows.indices[at].view(np.uint32), rows.data[at].view(np.uint32)):
            key = (key ^ part) * np.uint64(0x9E3779B97F4A7C15)
            key ^= key >> np.uint64(32)
    signature[filled] = key
    return signature


def _digests(
    blocks: Sequence[Labelled],
    n_features: int,
    numbers: npt.NDArray[np.int32],
    rows: npt.NDArray[np.int32],
    threads: int,
) -> npt.NDArray[np.uint64]:
    """128 bits for each of some rows of blocks, the same for the same weights and for no others."""
    digests = np.empty((len(rows), 2), np.uint64)
    by_block = np.argsort(numbers, kind="stable")

    def digest(places: slice) -> None:
        at = by_block[places]
        weights: Any = blocks[numbers[at[0]]][1]
        taken = block_rows(at, weights[rows[at]], n_features)
        indices, data = taken.indices.data, taken.data.data
        digested = bytearray()
        for begin, end in pairwise(taken.indptr.tolist()):
            one = hashlib.blake2b(indices[begin:end], digest_size=16)
            one.update(data[begin:end])
            digested += one.digest()
        digests[at] = np.frombuffer(digested, np.uint64).reshape(-1, 2)

    in_threads(digest, _runs(numbers[by_block]), threads)
    return digests


def _runs(values: npt.NDArray[Any]) -> list[slice]:
    """Where the same value is repeated."""
    inner = (np.flatnonzero(np.diff(values)) + 1).tolist()
    bounds = [0, *inner, len(values)] if len(values) else []
    return [slice(begin, end) for begin, end in pairwise(bounds)]
