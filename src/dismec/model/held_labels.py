"""The labels of shards, and those that a caller allows → the candidates for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.cpu import kernels
from dismec.model.allowed import Allowed
from dismec.model.shards import Shard

__all__ = ["HeldLabels"]

_FEW = 1 / 16  # of the labels


class HeldLabels:
    """The labels of some shards, with the shard and the classifier of each."""

    def __init__(self, shards: Sequence[Shard], n_labels: int) -> None:
        self.n_labels = n_labels  # labels of the model; the shards may hold fewer
        self._labels = [(shard.labels, shard.label_starts) for shard in shards]

    @property
    def n_held(self) -> int:
        """Number of labels in the shards."""
        return sum(len(labels) for labels, _ in self._labels)

    def find(self, label: int) -> tuple[int, int]:
        """Return the shard of a label and its classifier there; −1 for both if there is none."""
        shard, classifier = self._classifiers[label].tolist()
        return shard, classifier

    def among(self, allowed: Allowed, start: int, stop: int) -> list[Any]:
        """Return, for each shard, the labels allowed for rows start … stop − 1."""
        # Preparing a set for a single row does not pay off, unless the set is used again.
        fleeting = stop - start == 1 and allowed.mean_size < _FEW * self.n_labels
        if not (fleeting and allowed.is_new(self)) and allowed.mask is not None:
            mask = allowed.mask
            return allowed.prepared(self, lambda: self._allowed_for_all(mask))
        label_starts, labels = allowed.between(start, stop)
        numbers, first = self.numbers[labels], 0
        found = []
        for _, starts in self._labels:
            last = first + len(starts) - 1
            own = (numbers >= first) & (numbers < last)
            before = np.concatenate([np.zeros(1, np.int64), np.cumsum(own)])
            allowed_here = (numbers[own] - first).astype(np.uint16)
            found.append(
                kernels.AllowedLabels(label_starts, labels, before[label_starts], allowed_here)
            )
            first = last
        return found

    def _allowed_for_all(self, mask: npt.NDArray[np.bool_]) -> list[Any]:
        """Return, for each shard, the allowed labels and the classifiers that have one."""
        bits = np.packbits(mask, bitorder="little")
        found = []
        for labels, starts in self._labels:
            has_allowed = mask[labels]
            if len(labels) >= len(starts):  # some labels share a classifier
                has_allowed = np.logical_or.reduceat(has_allowed, starts[:-1])
            words = np.zeros(-(-len(has_allowed) // 16), np.uint16)
            packed = np.packbits(has_allowed, bitorder="little")
            words.view(np.uint8)[: len(packed)] = packed
            found.append(kernels.AllowedLabels(bits, words.astype("<u2", copy=False)))
        return found

    @cached_property
    def numbers(self) -> npt.NDArray[np.int32]:
        """(n_labels,): the classifier of each label, counted through all shards; −1 if unseen."""
        sizes = [len(starts) - 1 for _, starts in self._labels]
        first = np.concatenate([np.zeros(1, np.int32), np.cumsum(sizes, dtype=np.int32)])
        shard, classifier = self._classifiers.T
        return np.where(shard < 0, np.int32(-1), first[shard] + classifier)

    @cached_property
    def _classifiers(self) -> npt.NDArray[np.int32]:
        """(n_labels, 2): the shard of each label and its classifier there; −1 if it has none."""
        found = np.full((self.n_labels, 2), -1, np.int32)
        for number, (labels, starts) in enumerate(self._labels):
            found[labels, 0] = number
            found[labels, 1] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        return found
