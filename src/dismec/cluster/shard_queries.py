"""What workers do with the shards of a model that they hold, as tasks; and merging the results.

A `HeldShard` is the result of a task, so it stays on its worker, and Dask loads it elsewhere if
that worker dies. Tasks that depend on it run where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from dismec.cluster.file_copies import FileSpec, LocalCopy, open_file
from dismec.data.matrices import Rows
from dismec.model import weight_files
from dismec.model.allowed import Allowed
from dismec.model.label_index import LabelIndex
from dismec.model.manifest import ShardReceipt
from dismec.model.scoring import (
    Labels,
    Scores,
    best_labels,
    count_before,
    empty_topk,
    explained,
)
from dismec.model.shards import Shard

Ranked = tuple[Labels, Scores]


class ShardFile(NamedTuple):
    """A shard: its path on the client, and its expected contents."""

    path: str
    receipt: ShardReceipt  # its entry in the model's manifest
    shape: tuple[int, int]  # labels and features of the model

    @property
    def spec(self) -> FileSpec:
        """The file as workers find it."""
        return FileSpec(self.path, self.receipt.bytes, self.receipt.sha256)

    def read(self, path: Path | None = None, *, check: bool = True) -> Shard:
        """Return the memory-mapped shard, from this or another path; see `read_shard`."""
        where = Path(self.path) if path is None else path
        return weight_files.read_shard(where, self.receipt, *self.shape, check=check)


class Rescaling:
    """The arguments of `Shard.rescaled` for one shard: a ranking by slope·score + offset."""

    def __init__(
        self, slopes: npt.NDArray[np.float32], offsets: npt.NDArray[np.float32], bias: float
    ) -> None:
        self.slopes, self.offsets, self.bias = slopes, offsets, bias


class HeldShard:
    """A shard on a worker, with the rescaled views that it has been asked for."""

    def __init__(self, shard: Shard, file: ShardFile, copy: LocalCopy | None = None) -> None:
        self._shard, self._file, self._copy = shard, file, copy
        self._views: WeakKeyDictionary[Rescaling, Shard] = WeakKeyDictionary()
        shard.native  # noqa: B018  so that the first rows need not wait for it

    def __sizeof__(self) -> int:
        return self._file.receipt.bytes  # for Dask: moving it to another worker is expensive

    def __reduce__(self) -> tuple[Any, ...]:
        return HeldShard, (self._shard, self._file)

    @property
    def n_labels(self) -> int:
        """Number of labels of the model."""
        return self._file.shape[0]

    @cached_property
    def index(self) -> LabelIndex:
        """The labels of the shard."""
        return LabelIndex([self._shard], self.n_labels)

    def ranked_by(self, rescaling: Rescaling | None) -> Any:
        """Return the shard for the kernels, ranking by score or by a rescaled score."""
        if rescaling is None:
            return self._shard.native
        view = self._views.get(rescaling)
        if view is None:
            how = rescaling.slopes, rescaling.offsets, rescaling.bias
            view = self._views[rescaling] = self._shard.rescaled(*how)
        return view.native


def load_shard(file: ShardFile, home: str | None) -> HeldShard:
    """Map a shard and compare it with its SHA-256; `home` and errors as in `open_file`."""
    shard, copy = open_file(file.spec, file.read, home)
    return HeldShard(shard, file, copy)


def label_set(bits: npt.NDArray[np.uint8], n_labels: int) -> Allowed:
    """Return one set of allowed labels for all rows, given one bit per label of the model."""
    return Allowed(n_labels, np.flatnonzero(np.unpackbits(bits, count=n_labels)))


def best(
    held: HeldShard, rescaling: Rescaling | None, rows: Rows, places: int, allowed: Allowed | None
) -> Ranked:
    """Return the best labels of transformed rows in a shard, at most as many as it has."""
    among = None if allowed is None else held.index.among(allowed, 0, rows.n_rows)
    places = min(places, held.index.n_held)
    return best_labels([held.ranked_by(rescaling)], rows, places, among)


def explain(
    held: HeldShard, rescaling: Rescaling | None, row: Rows, classifier: int
) -> tuple[Scores, float]:
    """Return the weights of a classifier for the entries of one row, and its score."""
    return explained(held.ranked_by(rescaling), classifier, row)


def count(held: HeldShard, rescaling: Rescaling | None, row: Rows, label: int, score: float) -> int:
    """Return how many labels of a shard rank before a label with this score for a row."""
    return count_before([held.ranked_by(rescaling)], row, held.n_labels, label, score)


def merge(found: Sequence[Ranked], n_rows: int, places: int) -> Ranked:
    """Merge the best labels among disjoint sets of labels, ranked as in `Predictor.topk`."""
    candidates = zip(*found, empty_topk(n_rows, places), strict=True)
    labels, scores = (np.concatenate(arrays, axis=1) for arrays in candidates)
    # An empty place, −1, is the largest unsigned number, so it loses to a label with score −inf.
    order: npt.NDArray[np.intp] = np.lexsort((labels.view(np.uint32), -scores), axis=1)
    order = order[:, :places]
    return np.take_along_axis(labels, order, 1), np.take_along_axis(scores, order, 1)
