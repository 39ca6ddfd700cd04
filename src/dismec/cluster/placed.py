"""Data that only workers have, as the client knows it: sizes, counts, and where a file of it is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.features.transform import Transform
from dismec.solve.blocks import EqualLabels
from dismec.solve.problem import ProblemFacts

__all__ = ["DataFacts", "PlacedData", "as_parts", "is_collection", "is_path", "is_placed"]


@dataclass(frozen=True, eq=False)
class DataFacts:
    """What a worker says of the data of a training: nothing of it grows with the rows."""

    size: int  # bytes of the file
    fingerprint: str
    n_rows: int
    transform: Transform  # fitted to the rows
    label_counts: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]  # of each label the first one with the same rows
    names: list[str] | None  # of labels, if the file has them


@dataclass(frozen=True, eq=False)
class PlacedData:
    """The rows and labels of a training, in a file that a worker sees."""

    facts: DataFacts
    home: str  # the worker that has the file
    path: str  # of the file there

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of all features."""
        return self.facts.n_rows, self.facts.transform.n_columns

    @cached_property
    def problem(self) -> ProblemFacts:
        """What is known of the problem that workers solve."""
        facts, transform = self.facts, self.facts.transform
        equal = EqualLabels(np.arange(len(facts.groups)), facts.groups)
        sizes = facts.n_rows, transform.n_features, transform.n_columns
        return ProblemFacts(*sizes, facts.label_counts, equal)


def is_placed(X: Any) -> bool:
    """Whether X is a Dask collection, a list of such, or the path of a file."""
    return is_path(X) or any(map(is_collection, as_parts(X)))


def is_path(X: Any) -> bool:
    """Whether X is the path of a file."""
    return isinstance(X, str | os.PathLike)


def is_collection(X: Any) -> bool:
    """Whether X is a Dask array, bag or frame, without an import of Dask."""
    graph = getattr(X, "__dask_graph__", None)
    return callable(graph) and hasattr(X, "to_delayed") and graph() is not None


def as_parts(X: Any) -> list[Any]:
    """The matrices of ``[X, E]``, or the one that X is."""
    return list(X) if isinstance(X, list | tuple) and len(X) <= 2 else [X]
