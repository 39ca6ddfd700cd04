"""Weights by label ⇄ weights by feature, rounded to the precision that a model keeps.

A shard holds up to 65,536 *classifiers*, which are distinct rows of weights: labels that the same
training rows have share one. ``docs/reference/model-format.md`` specifies its arrays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import in_threads, kernels, mapping
from dismec.data.matrices import csr_on
from dismec.errors import ModelError
from dismec.model.classifiers import Classifiers, Labelled, Run, block_rows
from dismec.model.format import MOST_WEIGHTS, PADDING, PRECISIONS, check_precision

__all__ = ["Packing", "Shard", "first_labels", "gather", "pack", "prune"]

T = TypeVar("T")

_PIECE_WEIGHTS = 1 << 21  # gathered from blocks at a time: up to 16 MB


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
        to = np.arange(len(self.scales), dtype=np.int32)
        arrays = block_rows(len(to), rows, self.n_features)
        packer = kernels.Packer(precision, len(to), self.n_features, split=self.is_split)

        def bring(_: int) -> None:
            packer.begin(0, np.diff(arrays.indptr))
            packer.take_in(to, to, *arrays)

        packed = _packed(packer, precision, self.n_features, 1, bring)
        return Shard(self.labels, self.label_starts, *packed)

    @property
    def leaders(self) -> npt.NDArray[np.int32]:
        """The first label of each classifier."""
        return self.labels[self.label_starts[:-1]]

    def rescaled(
        self, slopes: npt.NDArray[np.float32], offsets: npt.NDArray[np.float32], bias: float
    ) -> Shard:
        """A view whose score is slope·score + offset, with a slope and offset per classifier.

        It is of rows whose bias feature is 1, whatever `bias` it is here. Only sums are scaled, so
        that the weights are shared; but scales are then no powers of two, and what `unpack` gives
        is rounded once more.
        """
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            scales = self.scales * slopes
            own = np.float32(bias) * self.bias
            biases = (own.astype(np.float64) * slopes + offsets).astype(np.float32)
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


def pack(
    blocks: Sequence[Labelled],
    n_features: int,
    precision: str,
    counts: npt.NDArray[np.int64] | None = None,
) -> Iterator[Shard]:
    """The shards of a `Packing`, one after another."""
    packing = Packing(blocks, n_features, precision, counts)
    return map(packing.shard, range(len(packing)))


class Packing:
    """Shards of the labels in blocks, in an order that does not depend on how these were cut.

    No label may be in two blocks. Weights are CSR, these labels × (n_features + 1), bias last; one
    that rounds to 0 is dropped. With `counts`, the training rows of each label, those without are
    left out. Blocks are asked for several times and not kept in between: the sequence may map them
    from files each time. Of each, only the rows of a shard are read for it.
    """

    def __init__(
        self,
        blocks: Sequence[Labelled],
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
        """What `keep` makes of each shard, given its number too.

        As many are put together at the same time as there are threads, but no more weights than
        those of two of the largest possible shards: what is left of the threads helps.
        """
        sizes = self._classifiers.sizes
        most = max((int(sizes[begin:end].sum()) for begin, end in self._ranges), default=0)
        at_once = max(1, min(threads, len(self), 2 * MOST_WEIGHTS // max(most, 1)))
        helpers = (
            1 if threads == 1 else -(-2 * threads // at_once)
        )  # some have nothing to do at times

        def make(number: int) -> T:
            return keep(number, self.shard(number, helpers))

        return in_threads(make, range(len(self)), at_once, self.stop)

    def shard(self, number: int, threads: int = 1) -> Shard:
        """Put one together; others may be at the same time, until one calls `stop`."""
        begin, end = self._ranges[number]
        n_rows = end - begin
        packer = kernels.Packer(
            self._precision, n_rows, self._n_features, split=n_rows > kernels.split_rows
        )
        sizes = self._classifiers.sizes[begin:end]
        pieces = list(_cuts(sizes, n_rows, _PIECE_WEIGHTS))
        with mapping(threads) as run:

            def bring(number: int) -> None:
                if self._stopped:
                    raise InterruptedError
                first, last = pieces[number]
                packer.begin(first, sizes[first:last])
                self._classifiers.hand_over(begin + first, begin + last, packer.take_in, run)

            packed = _packed(
                packer, self._precision, self._n_features, len(pieces), bring, run, threads
            )
        return Shard(*self._classifiers.labels(begin, end), *packed)

    def stop(self) -> None:
        """End what threads are putting together, with an `InterruptedError`."""
        self._stopped = True


def prune(
    weights: sp.csr_array, delta: float, more: Sequence[tuple[int, float]] = ()
) -> sp.csr_array:
    """The matrix without the entries below `delta` in magnitude: what training itself would keep.

    `more` are columns, ascending, and what holds instead from there on, but for the last column.
    The solver compares in float32, so this does.
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
    run: Run = map,
    threads: int = 1,
) -> tuple[npt.NDArray[Any], ...]:
    """The arrays of a shard but for its labels; `bring` puts one of its pieces into the packer.

    Each is brought twice if there are several: to be counted, and to be placed. `run` has threads
    do both, each for some features.
    """
    # Some features have far more weights than others: threads take several ranges in turns.
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
    """Ranges of up to so many classifiers and weights, given how many weights each has.

    One that has more is alone.
    """
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    begin = 0
    while begin < len(sizes):
        full = int(np.searchsorted(before, before[begin] + most_weights, side="right")) - 1
        end = max(begin + 1, min(full, begin + most_rows, len(sizes)))
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
