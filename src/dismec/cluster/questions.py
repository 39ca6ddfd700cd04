"""Questions about rows and shards: answered by each worker for its shards, merged by the client.

Labels are ranked by score, or by slope·score + offset with a slope and an offset per label
(`Curves`), among all labels, those of one set (`LabelSet`), or those of one set per row. Workers
keep the curves and sets they receive, by key, so each is sent only once.
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
from dismec.model.label_index import LabelIndex
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
    """A question about transformed rows, answered by shards and merged by the client."""

    def answer(
        self, shards: Sequence[Any], held: LabelIndex, rows: Rows, choice: Allowed | None
    ) -> Any:
        """On a worker: return the answer of its shards (`Shard.native`) with these labels."""

    def merged(self, found: Sequence[Any], n_rows: int) -> Any:
        """On the client: merge the answers of disjoint sets of shards."""


@dataclass(frozen=True, eq=False)
class Best:
    """The best labels of each row, ranked as in `Predictor.topk`."""

    places: int  # labels per row
    sets: Allowed | None = None  # if each row has its own set of allowed labels

    def answer(
        self, shards: Sequence[Any], held: LabelIndex, rows: Rows, choice: Allowed | None
    ) -> Ranked:
        """Return at most as many places as there are labels."""
        allowed = choice if self.sets is None else self.sets
        among = None if allowed is None else held.among(allowed, 0, rows.n_rows)
        return best_labels(shards, rows, min(self.places, held.n_held), among)

    def merged(self, found: Sequence[Ranked], n_rows: int) -> Ranked:
        """Return labels and scores, (n_rows, places)."""
        return merge(found, n_rows, self.places)


@dataclass(frozen=True)
class Explain:
    """The weights of a classifier for the entries of one row, and its score; asks one shard."""

    classifier: int

    def answer(
        self, shards: Sequence[Any], _: LabelIndex, rows: Rows, __: Allowed | None
    ) -> tuple[Scores, float]:
        """Return the answer of the only shard that is asked."""
        return explained(shards[0], self.classifier, rows)

    def merged(self, found: Sequence[tuple[Scores, float]], _: int) -> tuple[Scores, float]:
        """Return that shard's answer."""
        return found[0]


@dataclass(frozen=True)
class CountBefore:
    """The number of labels that rank before one with this score for a row."""

    label: int
    score: float

    def answer(self, shards: Sequence[Any], held: LabelIndex, rows: Rows, _: Allowed | None) -> int:
        """Count the labels of the worker's shards."""
        return count_before(shards, rows, held.n_labels, self.label, self.score)

    def merged(self, found: Sequence[int], _: int) -> int:
        """Add up the counts."""
        return sum(found)


class Rescaling(NamedTuple):
    """The arguments of `Shard.rescaled` for one shard."""

    slopes: npt.NDArray[np.float32]
    offsets: npt.NDArray[np.float32]
    bias: float


@dataclass(frozen=True, eq=False)
class Curves:
    """An order by slope·score + offset, with one pair for each label of the model."""

    slopes: npt.NDArray[np.float32]
    offsets: npt.NDArray[np.float32]
    bias: float  # of the rows that the weights are for

    @cached_property
    def key(self) -> str:
        """A key that is equal for equal curves."""
        return _key(self.slopes, self.offsets, np.float64(self.bias))

    def of(self, leaders: npt.NDArray[np.int32]) -> Rescaling:
        """Return the rescaling for a shard whose classifiers have these first labels."""
        return Rescaling(self.slopes[leaders], self.offsets[leaders], self.bias)


class LabelSet:
    """One set of labels allowed for all rows, as one bit per label of the model."""

    def __init__(self, mask: npt.NDArray[np.bool_]) -> None:
        self.bits = np.packbits(mask)
        self.key = _key(self.bits)  # equal for equal sets

    @staticmethod
    def allowed(bits: npt.NDArray[np.uint8], n_labels: int) -> Allowed:
        """Return the set for these bits."""
        return Allowed(n_labels, np.flatnonzero(np.unpackbits(bits, count=n_labels)))


@dataclass(frozen=True, eq=False)
class Ask:
    """A question with its order and its allowed labels."""

    question: Question
    curves: Curves | None = None  # None: by score
    choice: LabelSet | None = None  # None: among all labels
    shard: int | None = None  # the only shard to ask

    @property
    def shared_key(self) -> tuple[str | None, str | None] | None:
        """The key of questions whose rows can share a batch; None if it must be alone."""
        if not isinstance(self.question, Best) or self.question.sets is not None:
            return None
        order = None if self.curves is None else self.curves.key
        return order, None if self.choice is None else self.choice.key


def merge(found: Sequence[Ranked], n_rows: int, places: int) -> Ranked:
    """Merge the best labels among disjoint sets of labels, ranked as in `Predictor.topk`."""
    candidates = zip(*found, empty_topk(n_rows, places), strict=True)
    labels, scores = (np.concatenate(arrays, axis=1) for arrays in candidates)
    # An empty place, −1, is the largest unsigned number, so it loses to a label with score −inf.
    order: npt.NDArray[np.intp] = np.lexsort((labels.view(np.uint32), -scores), axis=1)
    order = order[:, :places]
    return np.take_along_axis(labels, order, 1), np.take_along_axis(scores, order, 1)


def _key(*parts: Any) -> str:
    found = blake2b(digest_size=16)
    for part in parts:
        found.update(np.asarray(part).tobytes())
    return found.hexdigest()
