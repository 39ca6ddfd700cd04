"""The labels that shards hold, and what a caller allows → what the kernels may choose from."""

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
    """Where the labels of some shards are: in which of these, and at which classifier."""

    def __init__(self, shards: Sequence[Shard], n_labels: int) -> None:
        self.n_labels = n_labels  # of the model; the shards may hold fewer
        self._labels = [(shard.labels, shard.label_starts) for shard in shards]

    @property
    def n_held(self) -> int:
        """Labels that the shards hold."""
        return sum(len(labels) for labels, _ in self._labels)

    def find(self, label: int) -> tuple[int, int]:
        """The shard of a label and its classifier there; −1 for both if no shard holds it."""
        shard, classifier = self._classifiers[label].tolist()
        return shard, classifier

    def among(self, allowed: Allowed, start: int, stop: int) -> list[Any]:
        """What rows start … stop − 1 may be given, for each shard."""
        # A set for one row is hardly prepared before it is over, unless it is used again.
        fleeting = stop - start == 1 and allowed.mean_size < _FEW * self.n_labels
        if not (fleeting and allowed.is_new(self)) and allowed.mask is not None:
            mask = allowed.mask
            return allowed.prepared(self, lambda: self._open_to_all(mask))
        label_starts, labels = allowed.between(start, stop)
        numbers, first = self.numbers[labels], 0
        found = []
        for _, starts in self._labels:
            last = first + len(starts) - 1
            own = (numbers >= first) & (numbers < last)
            before = np.concatenate([np.zeros(1, np.int64), np.cumsum(own)])
            open_ = (numbers[own] - first).astype(np.uint16)
            found.append(kernels.AllowedLabels(label_starts, labels, before[label_starts], open_))
            first = last
        return found

    def _open_to_all(self, mask: npt.NDArray[np.bool_]) -> list[Any]:
        """For each shard: the labels that are allowed, and the classifiers that have one."""
        bits = np.packbits(mask, bitorder="little")
        found = []
        for labels, starts in self._labels:
            open_ = mask[labels]
            if len(labels) >= len(starts):  # some share a classifier
                open_ = np.logical_or.reduceat(open_, starts[:-1])
            words = np.zeros(-(-len(open_) // 16), np.uint16)
            packed = np.packbits(open_, bitorder="little")
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
        """(n_labels, 2): the shard of each label and its classifier there; −1 where unseen."""
        found = np.full((self.n_labels, 2), -1, np.int32)
        for number, (labels, starts) in enumerate(self._labels):
            found[labels, 0] = number
            found[labels, 1] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        return found
