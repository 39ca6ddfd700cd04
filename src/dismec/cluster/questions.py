"""What is asked of rows and shards: answered by each worker for its shards, merged by the client.

Labels are ranked by score, or by slope·score + offset with a slope and an offset per label
(`Curves`), among all labels, those of one set (`LabelSet`), or those of one set per row. Workers
keep curves and sets that they were sent, by their keys, so that each is sent once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dismec.data.matrices import Rows
from dismec.model.allowed import Allowed
from dismec.model.held_labels import HeldLabels
from dismec.model.scoring import (
    Labels,
    Scores,
    best_labels,
    count_before,
    empty_topk,
    explained,
)

__all__ = [
    "Ask",
    "Best",
    "CountBefore",
    "Curves",
    "Explain",
    "LabelSet",
    "Question",
    "Ranked",
    "Rescaling",
    "merge",
]

Ranked = tuple[Labels, Scores]


class Question(Protocol):
    """What is to be found for transformed rows."""

    def answer(
        self, shards: Sequence[Any], held: HeldLabels, rows: Rows, choice: Allowed | None
    ) -> Any:
        """On a worker: what its shards (`Shard.native`), which hold these labels, make of it."""

    def merged(self, found: Sequence[Any], n_rows: int) -> Any:
        """On the client: the answer, from those of disjoint sets of shards."""


@dataclass(frozen=True, eq=False)
class Best:
    """The best labels of each row, as `Predictor.topk` ranks them."""

    places: int  # labels per row
    sets: Allowed | None = None  # where each row has a set of its own to choose from

    def answer(
        self, shards: Sequence[Any], held: HeldLabels, rows: Rows, choice: Allowed | None
    ) -> Ranked:
        """At most as many places as there are labels."""
        allowed = choice if self.sets is None else self.sets
        among = None if allowed is None else held.among(allowed, 0, rows.n_rows)
        return best_labels(shards, rows, min(self.places, held.n_held), among)

    def merged(self, found: Sequence[Ranked], n_rows: int) -> Ranked:
        """Labels and scores, (n_rows, places)."""
        return merge(found, n_rows, self.places)


@dataclass(frozen=True)
class Explain:
    """The weights of a classifier for the entries of one row, and its score; asks one shard."""

    classifier: int

    def answer(
        self, shards: Sequence[Any], _: HeldLabels, rows: Rows, __: Allowed | None
    ) -> tuple[Scores, float]:
        """Those of the one shard that is asked."""
        return explained(shards[0], self.classifier, rows)

    def merged(self, found: Sequence[tuple[Scores, float]], _: int) -> tuple[Scores, float]:
        """What that shard says."""
        return found[0]


@dataclass(frozen=True)
class CountBefore:
    """How many labels rank before one that has this score for a row."""

    label: int
    score: float

    def answer(self, shards: Sequence[Any], held: HeldLabels, rows: Rows, _: Allowed | None) -> int:
        """Those of the worker's shards."""
        return count_before(shards, rows, held.n_labels, self.label, self.score)

    def merged(self, found: Sequence[int], _: int) -> int:
        """Those of all."""
        return sum(found)


class Rescaling(NamedTuple):
    """What `Shard.rescaled` takes, for one shard."""

    slopes: npt.NDArray[np.float32]
    offsets: npt.NDArray[np.float32]
    bias: float


@dataclass(frozen=True, eq=False)
class Curves:
    """An order by slope·score + offset, with one of both for each label of the model."""

    slopes: npt.NDArray[np.float32]
    offsets: npt.NDArray[np.float32]
    bias: float  # of the rows that the weights are for

    @cached_property
    def key(self) -> str:
        """The same for the same curves."""
        return _key(self.slopes, self.offsets, np.float64(self.bias))

    def of(self, leaders: npt.NDArray[np.int32]) -> Rescaling:
        """For a shard whose classifiers have these first labels."""
        return Rescaling(self.slopes[leaders], self.offsets[leaders], self.bias)


class LabelSet:
    """One set of labels that all rows may be given, a bit for each label of the model."""

    def __init__(self, mask: npt.NDArray[np.bool_]) -> None:
        self.bits = np.packbits(mask)
        self.key = _key(self.bits)  # the same for the same set

    @staticmethod
    def allowed(bits: npt.NDArray[np.uint8], n_labels: int) -> Allowed:
        """The set that such bits are of."""
        return Allowed(n_labels, np.flatnonzero(np.unpackbits(bits, count=n_labels)))


@dataclass(frozen=True, eq=False)
class Ask:
    """A question, in an order, among some labels."""

    question: Question
    curves: Curves | None = None  # by score without
    choice: LabelSet | None = None  # among all labels without
    shard: int | None = None  # the only one that is asked

    @property
    def shared_key(self) -> tuple[str | None, str | None] | None:
        """What it has in common with others whose rows can be in one batch; None if it is alone."""
        if not isinstance(self.question, Best) or self.question.sets is not None:
            return None
        order = None if self.curves is None else self.curves.key
        return order, None if self.choice is None else self.choice.key


def merge(found: Sequence[Ranked], n_rows: int, places: int) -> Ranked:
    """The best of what has been found among disjoint sets of labels, as `Predictor.topk` ranks."""
    candidates = zip(*found, empty_topk(n_rows, places), strict=True)
    labels, scores = (np.concatenate(arrays, axis=1) for arrays in candidates)
    # An empty place, −1, is the largest unsigned number: it loses to a label of score −inf.
    order: npt.NDArray[np.intp] = np.lexsort((labels.view(np.uint32), -scores), axis=1)
    order = order[:, :places]
    return np.take_along_axis(labels, order, 1), np.take_along_axis(scores, order, 1)


def _key(*parts: Any) -> str:
    found = blake2b(digest_size=16)
    for part in parts:
        found.update(np.asarray(part).tobytes())
    return found.hexdigest()
