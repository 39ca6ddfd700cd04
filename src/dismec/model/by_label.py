"""Shards → a copy of their weights by label, for rows with few allowed labels."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

from dismec.cpu import available_memory, kernels
from dismec.errors import ModelError
from dismec.model.allowed import Allowed
from dismec.model.shards import Shard

__all__ = ["WeightsByLabel"]

# Rows with few allowed labels are ranked faster from weights by label. Copying the weights takes
# about as long as ranking MANY_ROWS rows among all labels.
FEW = 1 / 128  # largest share of the labels
MANY_ROWS = 4096
MANY_LABELS = kernels.split_rows  # per shard
_MOST_MEMORY = 1 / 8  # of the available memory: several processes may make a copy each


class WeightsByLabel:
    """A copy of the weights of shards by label, made after many rows with few allowed labels.

    No copy is made if it would take more than an eighth of the available memory, or if the model
    has no large shard: ranking by feature is faster then.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        worth_it = any(len(shard.scales) > MANY_LABELS for shard in shards)
        self._rows = 0 if worth_it else -1  # rows with few allowed labels so far; −1 once decided
        self._copy: Any | None = None
        self._lock = Lock()

    def copy_for(self, allowed: Allowed) -> Any | None:
        """Return the copy, a `kernels.LabelWeights`, if there is one and few labels are allowed."""
        return self._copy if allowed.mean_size <= FEW * allowed.n_labels else None

    def count(self, allowed: Allowed, n_rows: int) -> None:
        """Count rows about to be ranked, and make the copy once there have been many.

        Meanwhile, other threads rank without the copy.
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
        """Memory of the copy: a feature and a code per weight, and the offsets of the labels."""
        weights = sum(shard.nnz * (4 + shard.weights.itemsize) for shard in self._shards)
        # The kernel needs the offsets twice while it makes the copy.
        starts = 2 * 16 * sum(len(shard.scales) for shard in self._shards)
        return weights + starts + 4 * max((s.n_features for s in self._shards), default=0)
