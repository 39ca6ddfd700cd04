"""Labels by name, number and shard: a name → its label, a label → its shard and classifier."""

from __future__ import annotations

import operator
import re
import reprlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.cpu import kernels
from dismec.data.names import Names
from dismec.errors import DataError
from dismec.model.allowed import Allowed
from dismec.model.shards import Shard


class LabelNames:
    """The names of a model's labels, if they have any; finds labels by name or number."""

    def __init__(self, names: Sequence[str] | None, n_labels: int) -> None:
        self._names, self._n_labels = names, n_labels

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Numbers of the labels by their names; of equal names, the first."""
        return {name: number for number, name in reversed(list(enumerate(self._names or ())))}

    def find_name(self, name: str) -> int | None:
        """Return the number of the first label with a name, or None if there is none."""
        known = self._names
        return known.find(name) if isinstance(known, Names) else self.numbers.get(name)

    def find(self, label: Any) -> int:
        """Return the number of a label, as `Model.find_label`."""
        if isinstance(label, str):
            number = self.find_name(label)
            if number is None:  # white space around a name is not part of it
                number = self.find_name(label := label.strip())
            if self._names is None and re.fullmatch(r"\d{1,20}", label):
                number = int(label)
            if number is None or number >= self._n_labels:
                raise DataError(f"the model has no label {reprlib.repr(label)}")
            return number
        try:
            number = -1 if isinstance(label, bool) else operator.index(label)
        except TypeError:
            raise DataError(f"the model has no label {reprlib.repr(label)}") from None
        if not 0 <= number < self._n_labels:
            raise DataError(f"label {reprlib.repr(label)} is outside 0 … {self._n_labels - 1}")
        return number

    def find_all(self, labels: Any, what: str) -> npt.NDArray[np.int64]:
        """Return the numbers of labels; `what` names the argument in errors."""
        if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
            raise DataError(f"{what} is {reprlib.repr(labels)}; expected a list of labels")
        if isinstance(labels, np.ndarray) and labels.dtype.kind in "iu" and labels.ndim == 1:
            outside = (labels < 0) | (labels >= self._n_labels)
            if outside.any():
                self.find(int(labels[np.argmax(outside)]))
            return labels.astype(np.int64)
        wanted = list(labels)
        known = self._names
        numbers: list[int | None] = [None] * len(wanted)
        if isinstance(known, Names) and all(isinstance(label, str) for label in wanted):
            numbers = known.find_all(wanted)
        pairs = zip(numbers, wanted, strict=True)
        return np.array([self.find(x) if n is None else n for n, x in pairs], np.int64)


class LabelIndex:
    """The labels of some shards, with the shard and the classifier of each."""

    def __init__(self, shards: Sequence[Shard], n_labels: int) -> None:
        self.n_labels = n_labels  # labels of the model; the shards may hold fewer
        self._labels = [(shard.labels, shard.label_starts) for shard in shards]

    @property
    def n_held(self) -> int:
        """Number of labels in the shards."""
        return sum(len(labels) for labels, _ in self._labels)

    def find(self, label: int) -> tuple[int, int]:
        """Return the shard of a label and its classifier there; raise `DataError` without any."""
        shard, classifier = self._classifiers[label].tolist()
        if shard < 0:
            raise DataError(f"label {label} was never trained: no training row had it")
        return shard, classifier

    def among(self, allowed: Allowed, start: int, stop: int) -> list[Any]:
        """Return, for each shard, the labels allowed for rows start … stop − 1."""
        mask = allowed.mask
        if mask is not None and not allowed.is_fleeting(self, stop - start):
            return allowed.prepared(self, lambda: self._allowed_for_all(mask))
        label_starts, labels = allowed.between(start, stop)
        numbers, first = self._numbers[labels], 0
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
    def _numbers(self) -> npt.NDArray[np.int32]:
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
