"""Blocks of weights → classifiers: the distinct rows of weights, and where each of them is."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import in_threads, kernels, thread_map
from dismec.data.container import forget
from dismec.data.counts import counted
from dismec.data.matrices import Rows, check_rows
from dismec.errors import DataError, ModelError
from dismec.solve.blocks import first_equal, repeated

__all__ = ["Classifiers", "LabeledWeights", "MapFunction", "block_rows"]

Ints = npt.NDArray[np.int64]
MapFunction = Callable[..., Any]  # `map`, or the same on several threads
# Labels and rows of weights; if labels can share a row, also the row of each label.
LabeledWeights = tuple[Ints, sp.csr_array] | tuple[Ints, sp.csr_array, Ints]


@dataclass(frozen=True, eq=False)
class Classifiers:
    """The distinct rows of weights of some blocks, in the order of their first labels."""

    sizes: Ints  # number of weights of each classifier
    _source: _Blocks
    _blocks: npt.NDArray[np.int32]  # block of each classifier: that of its first label
    _rows: npt.NDArray[np.int32]  # its row in that block
    _labels: npt.NDArray[np.int32]  # labels by classifier, ascending within each
    _starts: Ints  # where the labels of each classifier start

    @classmethod
    def find(
        cls,
        blocks: Sequence[LabeledWeights],
        n_features: int,
        counts: Ints | None = None,
        threads: int = 1,
    ) -> Classifiers:
        """Find the classifiers of all labels in blocks, except for labels whose `counts` are 0.

        Each block is read once, and once more if some of its rows may be equal to others. Raise
        `ModelError` if a label is in two blocks, or the weights are not for `n_features` features.
        """
        source = _Blocks(blocks, n_features)

        def summarize(number: int) -> tuple[npt.NDArray[Any], ...]:
            labels, rows, of_label = source.check(number)
            if counts is not None:
                trained = counts[labels] > 0
                labels, of_label = labels[trained], of_label[trained]
            block = np.full(len(labels), number, np.int32)
            sizes, signatures = np.diff(rows.indptr)[of_label], _signatures(rows)[of_label]
            forget(rows.data)
            return labels, block, of_label.astype(np.int32), sizes, signatures

        kinds = (np.int64, np.int32, np.int32, np.int64, np.uint64)
        none = tuple(np.empty(0, kind) for kind in kinds)
        found = zip(none, *in_threads(summarize, range(len(blocks)), threads), strict=True)
        label, block, row, size, signature = map(np.concatenate, found)
        by_label = np.argsort(label)
        label, block, row, size, signature = (
            array[by_label] for array in (label, block, row, size, signature)
        )
        twice = np.flatnonzero(label[1:] == label[:-1])
        if len(twice):
            raise ModelError(f"label {label[twice[0]]} is in two blocks")
        with thread_map(threads) as run:
            first = _first_equal(source, signature, block, row, run)
        is_first = first == np.arange(len(label))
        classifier = (np.cumsum(is_first) - 1)[first]
        starts = np.zeros(np.count_nonzero(is_first) + 1, np.int64)
        np.cumsum(np.bincount(classifier, minlength=len(starts) - 1), out=starts[1:])
        held = label[np.argsort(classifier, kind="stable")].astype(np.int32)
        places = block[is_first], row[is_first]
        return cls(size[is_first], source, *places, held, starts)

    def labels(self, begin: int, end: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return `labels` and `label_starts` of a shard with classifiers begin … end − 1."""
        starts = self._starts[begin : end + 1]
        return self._labels[starts[0] : starts[-1]], (starts - starts[0]).astype(np.int32)

    def visit(self, begin: int, end: int, use: Callable[..., None], run: MapFunction = map) -> None:
        """Call `use` with the weights of classifiers begin … end − 1, block by block.

        The arguments are the classifiers in a block, counted from `begin`, their rows there, and
        the arrays of the block, of which only these rows are read. `run` may use several threads.
        """
        self._source.visit(self._blocks[begin:end], self._rows[begin:end], use, run)


class _Blocks:
    """Blocks of weights, which are checked once and then visited."""

    def __init__(self, blocks: Sequence[LabeledWeights], n_features: int) -> None:
        self._blocks, self._n_features = blocks, n_features
        self._typed = [False] * len(blocks)  # whether the kernels can use a block unconverted

    def check(self, number: int) -> tuple[Ints, Rows, Ints]:
        """Check a block; return its labels, its rows of weights, and the row of each label."""
        labels, weights, *shared = self._blocks[number]
        of_label = shared[0] if shared else np.arange(len(labels))
        n_rows = weights.shape[0] if shared else len(labels)
        rows = block_rows(n_rows, weights, self._n_features)
        self._typed[number] = rows.indices is weights.indices
        return labels, rows, of_label

    def visit(
        self,
        numbers: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        use: Callable[..., None],
        run: MapFunction,
    ) -> None:
        """Call `use` for each block with the positions of its rows here, the rows, and its arrays.

        `numbers` and `rows` are the block of each row, and its number there.
        """
        by_block = np.argsort(numbers, kind="stable").astype(np.int32)

        def of_block(span: slice) -> None:
            places = by_block[span]
            _, weights, *_ = self._blocks[numbers[places[0]]]
            if self._typed[numbers[places[0]]]:
                indptr = weights.indptr.astype(np.int64, copy=False)
                use(places, rows[places], indptr, weights.indices, weights.data)
            else:
                use(places, rows[places], *block_rows(weights.shape[0], weights, self._n_features))
            forget(weights.data)

        deque(run(of_block, _runs(numbers[by_block])), maxlen=0)


def block_rows(n_rows: int, weights: Any, n_features: int) -> Rows:
    """Return the weights of a block for the kernels; raise `ModelError` if they are invalid."""
    if weights.shape != (n_rows, n_features + 1):
        raise ModelError(
            f"a block of {counted(n_rows, 'label')} holds {weights.shape[0]} × {weights.shape[1]} "
            f"weights; expected {n_features + 1} per label: {n_features} features and the bias"
        )
    try:
        return check_rows(weights, n_features + 1)
    except DataError as error:
        raise ModelError(f"a block's weights: {error}") from None


def _signatures(rows: Rows) -> npt.NDArray[np.uint64]:
    """Return a number per row that is equal for equal weights, and rarely for others.

    Three weights of a row are enough: the last one, usually the bias, differs for most labels.
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


def _first_equal(
    source: _Blocks,
    signature: npt.NDArray[np.uint64],
    block: npt.NDArray[np.int32],
    row: npt.NDArray[np.int32],
    run: MapFunction,
) -> Ints:
    """Return, for each row of weights, the first row with the same weights.

    Rows with the same signature are nearly always equal: they belong to labels with the same
    training rows, which are in one block. So each is compared with the one before it. Only if one
    of them differs are digests computed for all rows with that signature.
    """
    first = np.arange(len(signature))
    alike = repeated(signature)
    if len(alike) == 0:
        return first
    alike = alike[np.argsort(signature[alike], kind="stable")]
    begins = np.append(True, np.diff(signature[alike]) != 0)
    starts, group = np.flatnonzero(begins), np.cumsum(begins) - 1
    same = begins.copy()
    beside = ~begins & (np.diff(block[alike], prepend=-1) == 0)
    shared = beside & (np.diff(row[alike], prepend=-1) == 0)
    same[shared] = True
    pair = np.flatnonzero(beside & ~shared)

    def compare(places: npt.NDArray[np.int32], rows: npt.NDArray[np.int32], *arrays: Any) -> None:
        before = row[alike[pair[places] - 1]]
        same[pair[places]] = kernels.same_rows(before, rows, *arrays)

    source.visit(block[alike[pair]], row[alike[pair]], compare, run)
    settled = np.logical_and.reduceat(same, starts)[group]
    first[alike[settled]] = alike[starts[group[settled]]]
    others = np.sort(alike[~settled])
    digests = np.empty((len(others), 2), np.uint64)

    def digest(
        places: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        indptr: Ints,
        indices: npt.NDArray[np.int32],
        data: npt.NDArray[np.float32],
    ) -> None:
        for place, begin, end in zip(places, indptr[rows], indptr[rows + 1], strict=True):
            one = hashlib.blake2b(indices[begin:end].data, digest_size=16)
            one.update(data[begin:end].data)
            digests[place] = np.frombuffer(one.digest(), np.uint64)

    source.visit(block[others], row[others], digest, run)
    first[others] = others[first_equal([*digests.T])]
    return first


def _runs(values: npt.NDArray[Any]) -> list[slice]:
    """Return slices of equal consecutive values."""
    inner = (np.flatnonzero(np.diff(values)) + 1).tolist()
    bounds = [0, *inner, len(values)] if len(values) else []
    return [slice(begin, end) for begin, end in pairwise(bounds)]
