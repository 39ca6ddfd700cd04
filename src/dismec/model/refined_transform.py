"""Rows → rows extended by the labels that a first stage finds likely, for a second stage.

``docs/howto/refining.md`` explains why this helps. This module extends rows for prediction;
training extends its own rows in the same way, with scores from models not trained on them.
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
from dismec.model.scoring import Labels, Scores, best_labels
from dismec.model.shards import Shard

# Factor on delta for the weights of labels: most of these weights are between delta and this limit,
# and dropping them costs no accuracy (``docs/howto/refining.md``).
_PRUNED_MORE = 5.0
_MOST_LABELS = 1000  # labels per row that a manifest may ask for


@dataclass(frozen=True)
class Refinement:
    """The parameters that turn labels into features; part of the manifest of a refined model.

    A label with score s has the value ½·scale·(1 + t/√(1 + t²)), t = slope·s: between 0 and
    `scale`, and half of it for score 0. The curve resembles the logistic function but uses only
    operations that every machine rounds in the same way.
    """

    informing: int  # number of labels used as features: those with enough training rows
    folds: int = 3  # number of folds of the training rows
    labels: int = 15  # labels per row: those with the best scores
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
        """Return a dict that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> Refinement:
        """Invert `to_dict`; raise `ModelError` for anything else."""
        if entries.keys() != {f.name for f in fields(cls)}:
            raise ModelError("refined: its entries are not those of a refined model")
        return cls(**entries)


@dataclass(frozen=True, eq=False)
class RefinedTransform:
    """The transform of rows before the second stage; plain models have a `Transform` instead.

    A row consists of its own sparse features, transformed; then a feature for each label that
    informs others, nonzero for those with the best scores in the first stage; then its dense
    features, if any, and the bias.
    """

    own: Transform  # transform of a row's own features, with the bias of the first stage
    first: Sequence[Shard]  # weights of the first stage
    refinement: Refinement
    bias: float  # bias of the second stage

    @property
    def n_features(self) -> int:
        """Number of sparse features of an input row."""
        return self.own.n_features

    @property
    def dense(self) -> int:
        """Number of dense features of an input row."""
        return self.own.dense

    def take(self, X: Any) -> Any:
        """Check input rows and return them."""
        return self.own.take(X)

    def arrays(self, X: Any) -> Rows | MixedArrays:
        """Return the arrays of the rows that `take` returns."""
        return self.own.arrays(X)

    @property
    def first_dense(self) -> int:
        """Number of the first dense feature; dense features come after labels."""
        return self.own.n_features + len(self.informing)

    @property
    def n_columns(self) -> int:
        """Number of features that the second stage scores, without the bias."""
        return self.first_dense + self.own.dense

    def pruned_more(self, delta: float) -> tuple[int, float]:
        """Return the first feature that is a label, and the delta to use from there on."""
        return self.own.n_features, _PRUNED_MORE * delta

    @property
    def idf(self) -> npt.NDArray[np.float32] | None:
        """The idf of a row's own features."""
        return self.own.idf

    @cached_property
    def informing(self) -> npt.NDArray[np.int64]:
        """The labels used as features, ascending: those of the features from n_features on."""
        held: list[npt.NDArray[Any]] = [np.empty(0, np.int64)]
        held += [shard.labels for shard in self.first]
        return np.sort(np.concatenate(held).astype(np.int64))

    def apply_between(self, rows: Rows | MixedArrays, begin: int, end: int) -> Rows:
        """Transform rows begin … end − 1 of the result of `arrays`."""
        chunk = self.own.apply_between(rows, begin, end)
        found = best_labels(self._natives, chunk, self.refinement.labels)
        return widened(chunk, self.own, *found, self._columns, self.refinement, self.bias)

    @cached_property
    def _columns(self) -> npt.NDArray[np.int32]:
        return label_columns(self.informing)

    @cached_property
    def _natives(self) -> list[Any]:
        return [shard.native for shard in self.first]

    def with_bias(self, bias: float) -> RefinedTransform:
        """Return the same transform with another bias for the second stage."""
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
    """Append the best labels of each row, (n_rows, k), as features to rows transformed by `own`.

    Empty places hold label −1. `columns` is the result of `label_columns`. The bias of `own` is
    replaced by `bias`, which becomes the last feature; with 0 there is none. Dense features stay
    after the others.
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
    """Return the position of each label among those used as features; −1 for other labels."""
    columns = np.full(int(informing.max(initial=-1)) + 1, -1, np.int32)
    columns[informing] = np.arange(len(informing), dtype=np.int32)
    return columns
