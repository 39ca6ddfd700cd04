"""Shards, and rows that may be given few labels → a copy of the weights by label."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

from dismec.cpu import available_memory, kernels
from dismec.errors import ModelError
from dismec.model.allowed import Allowed
from dismec.model.shards import Shard

__all__ = ["WeightsByLabel"]

# Rows that may be given few labels are ranked in less time if weights are by label. To copy them
# takes about as long as to rank so many rows among all labels.
FEW = 1 / 128  # of the labels
MANY_ROWS = 4096
MANY_LABELS = kernels.split_rows  # of a shard
_MOST_MEMORY = 1 / 8  # of what is available, so that processes of one machine do not use it up


class WeightsByLabel:
    """A copy of the weights of shards by label, made when many rows were allowed few labels.

    There is none if it would take more than an eighth of the memory that is available, nor of a
    model that has no large shard: there the labels of a row are found by feature in less time.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        worth_it = any(len(shard.scales) > MANY_LABELS for shard in shards)
        self._rows = 0 if worth_it else -1  # that were allowed few labels; −1 once it was decided
        self._copy: Any | None = None
        self._lock = Lock()

    def copy_for(self, allowed: Allowed) -> Any | None:
        """The copy as `kernels.LabelWeights`, if it was made and few labels are allowed."""
        return self._copy if allowed.mean_size <= FEW * allowed.n_labels else None

    def count(self, allowed: Allowed, n_rows: int) -> None:
        """Note that so many rows are to be ranked, and make the copy if there were many by now.

        Other threads go on without it meanwhile.
        """
        if self._rows < 0 or allowed.mean_size > FEW * allowed.n_labels:
            return
        with self._lock:
            if self._rows < 0:
                return
            self._rows += n_rows
            if self._rows < MANY_ROWS:
                return
            self._rows = -1
        self._copy = self._make()

    def _make(self) -> Any | None:
        free = available_memory()
        if free is not None and self.n_bytes > _MOST_MEMORY * free:
            return None
        try:
            return kernels.LabelWeights([shard.native for shard in self._shards])
        except MemoryError:
            return None
        except ValueError as error:
            raise ModelError(f"the model is damaged: {error}") from None

    @property
    def n_bytes(self) -> int:
        """What the copy takes: a feature and a code per weight, and where each label's begin."""
        weights = sum(shard.nnz * (4 + shard.weights.itemsize) for shard in self._shards)
        starts = 2 * 16 * sum(len(shard.scales) for shard in self._shards)  # twice for a moment
        return weights + starts + 4 * max((s.n_features for s in self._shards), default=0)
