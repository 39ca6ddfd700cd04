"""Weights by label ⇄ weights by feature, rounded to the precision of a model.

A shard holds up to 65,536 *classifiers*, which are distinct rows of weights: labels with the same
training rows share one. ``docs/reference/model-format.md`` specifies its arrays.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import in_threads, kernels, thread_map
from dismec.data.container import forget
from dismec.data.counts import counted
from dismec.data.matrices import Rows, check_rows, csr_on
from dismec.errors import DataError, ModelError, located
from dismec.model.manifest import MOST_WEIGHTS, PADDING, PRECISIONS, check_precision
from dismec.solve.partition import first_equal, repeated

T = TypeVar("T")
Ints = npt.NDArray[np.int64]
MapFunction = Callable[..., Any]  # `map`, or the same on several threads
# Labels and rows of weights; if labels can share a row, also the row of each label.
LabeledWeights = tuple[Ints, sp.csr_array] | tuple[Ints, sp.csr_array, Ints]

_PIECE_WEIGHTS = 1 << 21  # weights read from blocks at a time: up to 16 MB


@dataclass(frozen=True, eq=False)
class Shard:
    """The weights of some labels, by feature.

    The labels of classifier i are ``labels[label_starts[i] : label_starts[i + 1]]``, ascending;
    classifiers are in the order of their first labels. `starts` says where the weights and the
    places of each feature begin, (n_features + 1, 2). A large shard has ceilings, numbers that its
    weights do not exceed.
    """

    labels: npt.NDArray[np.int32]
    label_starts: npt.NDArray[np.int32]
    scales: npt.NDArray[np.float32]  # per classifier: powers of two, except in `rescaled`
    bias: npt.NDArray[np.float32]  # per classifier
    starts: npt.NDArray[np.uint32]
    places: npt.NDArray[np.uint16]  # classifiers with a weight for the feature, or a bit for each
    weights: npt.NDArray[Any]  # one of `PRECISIONS`; to be multiplied by the classifier's scale
    ceiling_starts: npt.NDArray[np.uint32] | None = None
    ceiling_ranges: npt.NDArray[np.float32] | None = None
    ceiling_places: npt.NDArray[np.uint16] | None = None
    ceilings: npt.NDArray[np.uint8] | None = None
    slopes: npt.NDArray[np.float32] | None = None  # what `rescaled` multiplied the scales by

    @property
    def precision(self) -> str:
        """Name of the type of the weights."""
        return next(name for name, dtype in PRECISIONS.items() if dtype == self.weights.dtype)

    @property
    def n_features(self) -> int:
        """Number of features, without the bias."""
        return len(self.starts) - 1

    @cached_property
    def nnz(self) -> int:
        """Number of stored weights, plus that of nonzero biases."""
        return len(self.weights) - PADDING + int(np.count_nonzero(self.bias))

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays by name."""
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: array for name, array in named.items() if array is not None}

    @cached_property
    def native(self) -> Any:
        """The shard as an object of the kernels."""
        with located("a shard's arrays do not fit together", ModelError, ValueError, TypeError):
            return kernels.Shard(**self.arrays)

    def unpack(self) -> sp.csr_array:
        """Return the classifiers as CSR float32 (n_classifiers, n_features + 1), bias last."""
        with located("a shard is damaged", ModelError, ValueError):
            indptr, indices, data = kernels.unpack(self.native)
        return csr_on(data, indices, indptr, (len(self.scales), self.n_features + 1))

    def repacked(self, rows: sp.csr_array, precision: str) -> Shard:
        """Return a shard of the same labels with other weights, in the form of `unpack`."""
        check_precision(precision)
        to = np.arange(len(self.scales), dtype=np.int32)
        arrays = _block_rows(len(to), rows, self.n_features)
        packer = kernels.Packer(precision, len(to), self.n_features)

        def bring(_: int) -> None:
            packer.begin(0, np.diff(arrays.indptr))
            packer.take_in(to, to, *arrays)

        packed = _packed(packer, precision, self.n_features, 1, bring)
        made = Shard(self.labels, self.label_starts, *packed)
        return made if self.ceilings is None else made.bounded()

    def bounded(self, beyond: int = 0) -> Shard:
        """Return the shard with ceilings if it has more classifiers than `beyond`."""
        if len(self.scales) <= beyond:
            return self
        with located("the model is damaged", ModelError, ValueError):
            made = kernels.ceilings(self.native)
        names = ("ceiling_starts", "ceiling_ranges", "ceiling_places", "ceilings")
        return replace(self, **dict(zip(names, made, strict=True)))

    @property
    def leaders(self) -> npt.NDArray[np.int32]:
        """The first label of each classifier."""
        return self.labels[self.label_starts[:-1]]

    def rescaled(
        self, slopes: npt.NDArray[np.float32], offsets: npt.NDArray[np.float32], bias: float
    ) -> Shard:
        """Return a view whose scores are slope·score + offset, with one of each per classifier.

        It is for rows whose bias feature is 1 instead of `bias`. Only sums are scaled, so the
        weights are shared; but the scales are no longer powers of two, so `unpack` rounds once
        more.
        """
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            scales = self.scales * slopes
            own = np.float32(bias) * self.bias
            biases = (own.astype(np.float64) * slopes + offsets).astype(np.float32)
        if not (np.isfinite(biases) & np.isfinite(scales) & (scales > 0)).all():
            raise ModelError("weights are too large or too small for the calibration curves")
        # Products that were rounded because they are tiny have slightly other slopes.
        return replace(self, scales=scales, bias=biases, slopes=scales / self.scales)

    def __getstate__(self) -> dict[str, Any]:
        return self.arrays


def first_labels(shards: Sequence[Shard], n_labels: int) -> npt.NDArray[np.int64]:
    """Return, for each label, the first label with the same classifier: mostly itself."""
    first = np.arange(n_labels)
    for shard in shards:
        sizes = np.diff(shard.label_starts)
        first[shard.labels] = np.repeat(shard.labels[shard.label_starts[:-1]], sizes)
    return first


def pack(
    blocks: Sequence[LabeledWeights],
    n_features: int,
    precision: str,
    counts: npt.NDArray[np.int64] | None = None,
) -> Iterator[Shard]:
    """Yield the shards of a `Packing`."""
    packing = Packing(blocks, n_features, precision, counts)
    return map(packing.shard, range(len(packing)))


class Packing:
    """The conversion of blocks to shards, which do not depend on how the blocks were cut.

    No label may be in two blocks. The weights of a block are CSR, (n_labels, n_features + 1), bias
    last; weights that round to 0 are dropped. With `counts`, the training rows of each label,
    labels without any are left out. Blocks are accessed several times and not kept in between, so
    the sequence may map them from files each time; only the rows that a shard needs are read.
    """

    def __init__(
        self,
        blocks: Sequence[LabeledWeights],
        n_features: int,
        precision: str,
        counts: npt.NDArray[np.int64] | None = None,
        *,
        threads: int = 1,
    ) -> None:
        check_precision(precision)
        self._n_features, self._precision = n_features, precision
        self._stopped = False
        self._classifiers = Classifiers.find(blocks, n_features, counts, threads)
        self._ranges = list(_cuts(self._classifiers.sizes, kernels.shard_rows, MOST_WEIGHTS))

    def __len__(self) -> int:
        """Number of shards."""
        return len(self._ranges)

    def each(self, keep: Callable[[int, Shard], T], threads: int = 1) -> list[T]:
        """Return the results of ``keep(number, shard)`` for all shards.

        Each thread assembles one shard at a time, but together they hold no more weights than two
        shards of the largest possible size; the remaining threads help with these shards.
        """
        sizes = self._classifiers.sizes
        most = max((int(sizes[begin:end].sum()) for begin, end in self._ranges), default=0)
        at_once = max(1, min(threads, len(self), 2 * MOST_WEIGHTS // max(most, 1)))
        # Twice as many as there are threads, because some of them are idle at times.
        helpers = 1 if threads == 1 else -(-2 * threads // at_once)

        def make(number: int) -> T:
            return keep(number, self.shard(number, helpers))

        return in_threads(make, range(len(self)), at_once, self.stop)

    def shard(self, number: int, threads: int = 1) -> Shard:
        """Assemble a shard; several threads may do so at the same time, until `stop` is called."""
        begin, end = self._ranges[number]
        n_rows = end - begin
        packer = kernels.Packer(self._precision, n_rows, self._n_features)
        sizes = self._classifiers.sizes[begin:end]
        pieces = list(_cuts(sizes, n_rows, _PIECE_WEIGHTS))
        with thread_map(threads) as run:

            def bring(number: int) -> None:
                if self._stopped:
                    raise InterruptedError
                first, last = pieces[number]
                packer.begin(first, sizes[first:last])
                self._classifiers.visit(begin + first, begin + last, packer.take_in, run)

            packed = _packed(
                packer, self._precision, self._n_features, len(pieces), bring, run, threads
            )
        return Shard(*self._classifiers.labels(begin, end), *packed).bounded(kernels.bounded_rows)

    def stop(self) -> None:
        """Make `shard` raise `InterruptedError` in all threads."""
        self._stopped = True


def prune(
    weights: sp.csr_array, delta: float, more: Sequence[tuple[int, float]] = ()
) -> sp.csr_array:
    """Return the matrix without entries below `delta` in magnitude, as training would keep it.

    `more` lists columns, ascending, and the delta from there on, except for the last column, the
    bias. Magnitudes are compared in float32, as in the solver.
    """
    keep = np.abs(weights.data) >= np.float32(delta)
    for first, limit in more:
        later = (weights.indices >= first) & (weights.indices < weights.shape[1] - 1)
        keep = np.where(later, np.abs(weights.data) >= np.float32(limit), keep)
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep)])
    indptr = before[weights.indptr]
    return csr_on(weights.data[keep], weights.indices[keep], indptr, weights.shape)


def _packed(
    packer: Any,
    precision: str,
    n_features: int,
    n_pieces: int,
    bring: Callable[[int], None],
    run: MapFunction = map,
    threads: int = 1,
) -> tuple[npt.NDArray[Any], ...]:
    """Return the arrays of a shard except for its labels; `bring` puts a piece into the packer.

    If there are several pieces, each is brought twice: to be counted, and to be placed. Both are
    done by the threads of `run`, each for some of the features.
    """
    # Some features have far more weights than others, so there are several ranges per thread.
    bounds = np.linspace(0, n_features, 1 + (1 if threads == 1 else 4 * threads), dtype=np.int64)
    ranges = list(pairwise(bounds.tolist()))

    def each_piece(step: Callable[[int, int], None], *, again: bool) -> None:
        for number in range(n_pieces):
            if again:
                bring(number)
            deque(run(lambda span: step(*span), ranges), maxlen=0)

    each_piece(packer.count, again=True)
    n_places, n_bytes = packer.measure()
    places, weights = np.zeros(n_places, np.uint16), np.zeros(n_bytes, np.uint8)
    packer.give(places, weights)
    each_piece(packer.place, again=n_pieces > 1)
    return *packer.take(), places, weights.view(PRECISIONS[precision])


def _cuts(
    sizes: npt.NDArray[np.int64], most_rows: int, most_weights: int
) -> Iterator[tuple[int, int]]:
    """Yield ranges of classifiers with at most `most_rows` classifiers and `most_weights` weights.

    `sizes` are the weights of each; a classifier with more weights has a range of its own.
    """
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    begin = 0
    while begin < len(sizes):
        full = int(np.searchsorted(before, before[begin] + most_weights, side="right")) - 1
        end = max(begin + 1, min(full, begin + most_rows, len(sizes)))
        yield begin, end
        begin = end


def gather(shards: Sequence[Shard], n_labels: int, n_features: int) -> sp.csr_array:
    """Return the weights of all labels, CSR float32 (n_labels, n_features + 1).

    Labels in no shard have empty rows.
    """
    none: Any = sp.csr_array((1, n_features + 1), dtype=np.float32)
    stacked: Any = sp.vstack([none, *(shard.unpack() for shard in shards)], format="csr")
    place, done = np.zeros(n_labels, np.int64), 1
    for shard in shards:
        rows = np.arange(done, done + len(shard.scales))
        place[shard.labels] = np.repeat(rows, np.diff(shard.label_starts))
        done += len(shard.scales)
    return stacked[place]  # type: ignore[no-any-return]


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
        rows = _block_rows(n_rows, weights, self._n_features)
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
                use(places, rows[places], *_block_rows(weights.shape[0], weights, self._n_features))
            forget(weights.data)

        deque(run(of_block, _runs(numbers[by_block])), maxlen=0)


def _block_rows(n_rows: int, weights: Any, n_features: int) -> Rows:
    """Return the weights of a block for the kernels; raise `ModelError` if they are invalid."""
    if weights.shape != (n_rows, n_features + 1):
        raise ModelError(
            f"a block of {counted(n_rows, 'label')} holds {weights.shape[0]} × {weights.shape[1]} "
            f"weights; expected {n_features + 1} per label: one per feature and the bias"
        )
    with located("a block's weights", ModelError, DataError):
        return check_rows(weights, n_features + 1)


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
