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
        mask = allowed.mask
        if mask is not None:
            return allowed.prepared(self, lambda: self._allowed_for_all(mask))
        label_starts, labels = allowed.between(start, stop)
        row = np.repeat(np.arange(stop - start), np.diff(label_starts))
        shard, classifier = self._classifiers[labels].T
        found = []
        for number in range(len(self._labels)):
            own = shard == number
            starts = np.searchsorted(row[own], np.arange(stop - start + 1))
            classifiers = classifier[own].astype(np.uint16)
            found.append(kernels.AllowedLabels(label_starts, labels, starts, classifiers))
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
    def _classifiers(self) -> npt.NDArray[np.int32]:
        """(n_labels, 2): the shard of each label and its classifier there; −1 if it has none."""
        found = np.full((self.n_labels, 2), -1, np.int32)
        for number, (labels, starts) in enumerate(self._labels):
            found[labels, 0] = number
            found[labels, 1] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        return found
