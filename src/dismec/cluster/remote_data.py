"""Data that only workers have, as known to the client: sizes, counts, and a file's location."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.features.transform import Transform
from dismec.solve.partition import EqualLabels
from dismec.solve.problem import ProblemFacts


@dataclass(frozen=True, eq=False)
class DataFacts:
    """A worker's description of training data, whose size does not grow with the rows."""

    size: int  # bytes of the file
    fingerprint: str
    n_rows: int
    transform: Transform  # fitted to the rows
    label_counts: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]  # for each label, the first label with the same rows
    names: list[str] | None  # label names, if the file has them


@dataclass(frozen=True, eq=False)
class RemoteData:
    """The rows and labels of a training run, in a file that a worker can read."""

    facts: DataFacts
    home: str  # the worker that has the file
    path: str  # path of the file there

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of all features."""
        return self.facts.n_rows, self.facts.transform.n_columns

    @cached_property
    def problem(self) -> ProblemFacts:
        """The dimensions of the problem that workers solve."""
        facts, transform = self.facts, self.facts.transform
        equal = EqualLabels(np.arange(len(facts.groups)), facts.groups)
        sizes = facts.n_rows, transform.n_features, transform.n_columns
        return ProblemFacts(*sizes, facts.label_counts, equal)


def is_remote(X: Any) -> bool:
    """Return whether X is a Dask collection, a list of them, or the path of a file."""
    return is_path(X) or any(map(is_collection, as_parts(X)))


def is_path(X: Any) -> bool:
    """Return whether X is the path of a file."""
    return isinstance(X, str | os.PathLike)


def is_collection(X: Any) -> bool:
    """Return whether X is a Dask array, bag or frame, without importing Dask."""
    graph = getattr(X, "__dask_graph__", None)
    return callable(graph) and hasattr(X, "to_delayed") and graph() is not None


def as_parts(X: Any) -> list[Any]:
    """Return the matrices of ``[X, E]``, or X itself as the only one."""
    return list(X) if isinstance(X, list | tuple) and len(X) <= 2 else [X]
