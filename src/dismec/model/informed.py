"""Rows → rows that also have the labels which a first stage finds likely, for a second stage.

``docs/howto/refining.md`` explains why this helps. Rows are extended here at prediction; training
does the same to its own rows, with scores of models that have not seen them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.cpu import kernels
from dismec.data.matrices import Rows
from dismec.data.mixed import MixedArrays
from dismec.errors import ModelError
from dismec.features.transform import Transform
from dismec.model.explanation import Contribution, Reason, contributions
from dismec.model.scoring import Labels, Predictor, Scores, best_labels
from dismec.model.shards import Shard

__all__ = ["Informed", "Refinement", "label_columns", "widened"]

# How much larger delta is for weights of labels: most are between it and this, and nothing is lost
# without them (``docs/howto/refining.md``).
_PRUNED_MORE = 5.0
_MOST_LABELS = 1000  # of a row: a manifest may lie
_TRACED, _TRACED_TERMS = 5, 5  # labels that are explained by their own words, and how many of these


@dataclass(frozen=True)
class Refinement:
    """How labels become features; part of the manifest of a refined model.

    A label with score s has the value ½·scale·(1 + t/√(1 + t²)), t = slope·s: between 0 and
    `scale`, half of it where the score is 0. It looks like the logistic function, and is made of
    operations that every machine rounds in the same way.
    """

    informing: int  # labels that inform others: those with enough training rows
    folds: int = 3  # that the training rows were cut into
    labels: int = 15  # of a row, those with the best scores
    scale: float = 0.3
    slope: float = 1.5

    def __post_init__(self) -> None:
        whole = (self.informing, self.folds, self.labels)
        if (
            not all(type(n) is int and n >= 0 for n in whole)
            or not 1 <= self.labels <= _MOST_LABELS
        ):
            raise ModelError(f"refined: {whole} are not numbers of labels and folds")
        if not all(type(x) is float and 0 < x <= 100 for x in (self.scale, self.slope)):
            raise ModelError(f"refined: {self.scale!r} or {self.slope!r} is out of range")

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> Refinement:
        """The inverse of `to_dict`; `ModelError` if it is none."""
        if entries.keys() != {f.name for f in fields(cls)}:
            raise ModelError("refined: its entries are not those of a refined model")
        return cls(**entries)


@dataclass(frozen=True, eq=False)
class Informed:
    """What a row goes through before the second stage scores it; `Transform` for plain models.

    Its own sparse features, transformed; then one for each label that informs others, with a value
    for those that the first stage scores best; then its dense features, if any, and the bias.
    """

    own: Transform  # with the bias of the first stage
    first: Sequence[Shard]  # the first stage
    refinement: Refinement
    bias: float  # of the second stage

    @property
    def n_features(self) -> int:
        """Sparse features that a row comes with."""
        return self.own.n_features

    @property
    def dense(self) -> int:
        """Dense features that a row comes with."""
        return self.own.dense

    def take(self, X: Any) -> Any:
        """Rows of a caller, checked."""
        return self.own.take(X)

    def arrays(self, X: Any) -> Rows | MixedArrays:
        """The arrays of `take`."""
        return self.own.arrays(X)

    @property
    def first_dense(self) -> int:
        """The number of the first dense feature: they come after labels."""
        return self.own.n_features + len(self.informing)

    @property
    def n_columns(self) -> int:
        """Features that it is scored by, without the bias."""
        return self.first_dense + self.own.dense

    def pruned_more(self, delta: float) -> tuple[int, float]:
        """The first feature that is a label, and what is used for delta from there on."""
        return self.own.n_features, _PRUNED_MORE * delta

    @property
    def idf(self) -> npt.NDArray[np.float32] | None:
        """Of a row's own features."""
        return self.own.idf

    @cached_property
    def informing(self) -> npt.NDArray[np.int64]:
        """The labels that inform others, ascending: of feature n_features and those after it."""
        held: list[npt.NDArray[Any]] = [np.empty(0, np.int64)]
        held += [shard.labels for shard in self.first]
        return np.sort(np.concatenate(held).astype(np.int64))

    def apply_between(self, rows: Rows | MixedArrays, begin: int, end: int) -> Rows:
        """Rows begin … end of those that have been through `arrays`, ready to be scored."""
        chunk = self.own.apply_between(rows, begin, end)
        found = best_labels(self._natives, chunk, self.refinement.labels)
        return widened(chunk, self.own, *found, self._columns, self.refinement, self.bias)

    def reasons(
        self,
        X: Any,
        parts: Sequence[Contribution],
        names: Sequence[str] | None,
        terms: Sequence[str] | None,
    ) -> list[Reason]:
        """Those of the parts of a score that labels add, with what speaks for the largest."""
        first = Predictor(self.first, int(self.informing.max(initial=-1)) + 1, self.own)
        found: list[Reason] = []
        for part in parts:
            if not self.n_features <= part.feature < self.first_dense:
                continue
            label = int(self.informing[part.feature - self.n_features])
            why: list[Contribution] = []
            if len(found) < _TRACED:
                row, weights, _ = first.explain(X, label)
                all_parts = contributions(row, weights, self.own.n_columns, terms)[1]
                own_terms = [term for term in all_parts if term.feature < self.n_features]
                why = own_terms[:_TRACED_TERMS]
            name = None if names is None else names[label]
            found.append(Reason(label, name, part.value, part.weight, part.contribution, why))
        return found

    @cached_property
    def _columns(self) -> npt.NDArray[np.int32]:
        return label_columns(self.informing)

    @cached_property
    def _natives(self) -> list[Any]:
        return [shard.native for shard in self.first]

    def with_bias(self, bias: float) -> Informed:
        """The same with another bias for the second stage."""
        return replace(self, bias=bias)

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)


def widened(
    chunk: Rows,
    own: Transform,
    labels: Labels,
    scores: Scores,
    columns: npt.NDArray[np.int32],
    refinement: Refinement,
    bias: float = 0.0,
) -> Rows:
    """Rows that `own` has transformed, with their best labels, (n_rows, k), as further features.

    Empty places are label −1. `columns` are those of labels (`label_columns`). The bias of `own`
    gives way to another one, which comes last; with 0 there is none. Dense features stay behind the
    others.
    """
    n_columns = own.n_features + refinement.informing
    return Rows(
        *kernels.widen(
            *chunk,
            own.bias != 0,
            labels.ravel(),
            scores.ravel(),
            columns,
            refinement.scale,
            refinement.slope,
            bias,
            own.n_features,
            n_columns,
            own.dense,
        )
    )


def label_columns(informing: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """For each label its place among those that inform others, ascending; −1 if it does not."""
    columns = np.full(int(informing.max(initial=-1)) + 1, -1, np.int32)
    columns[informing] = np.arange(len(informing), dtype=np.int32)
    return columns
