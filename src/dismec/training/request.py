"""A training request, built by the API, the estimators and the command line alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dismec.data.files import StrPath

if TYPE_CHECKING:
    from dismec.features.vocabulary import Vocabulary
    from dismec.solve.costs import Costs
    from dismec.training.params import TrainingParams

__all__ = ["Progress", "Request", "WorkProgress", "part_of", "report", "share_of"]

Progress: TypeAlias = Callable[[int, int], None]


class WorkProgress(ABC):
    """A progress callback that also receives the share of the work done.

    Labels take unequal times, so the number of labels alone does not predict the time left.
    """

    @abstractmethod
    def update(self, done: int, total: int, share: float) -> None:
        """Report that `done` of `total` labels are done, which is this share of the work."""

    def __call__(self, done: int, total: int) -> None:
        """Report the number of labels done, and take it for the share of the work."""
        self.update(done, total, done / total if total else 1.0)


def report(progress: Progress | None, done: int, total: int, share: float) -> None:
    """Call a progress callback, with the share of the work if it accepts one."""
    if isinstance(progress, WorkProgress):
        progress.update(done, total, share)
    elif progress:
        progress(done, total)


@dataclass(frozen=True, eq=False)
class Request:
    """The data, the parameters, the output directory and the resources of a training run.

    The fields are the parameters of `dismec.train`. X, Y and the weights are as passed by the
    caller, not checked yet. `cluster` may also be a `Cluster`, which is left open.
    """

    X: Any
    Y: Any
    params: TrainingParams
    path: Path | None = None  # None: the model stays in memory
    names: Sequence[str] | None = None
    validation: tuple[Any, Any] | None = None
    weights: Any = None  # one per row, at least 0; None: all 1
    pair_weights: Any = None  # a sparse matrix, or a file of (row, label) pairs
    costs: Costs | None = None  # factors for the losses of each label's rows
    vocabulary: Vocabulary | None = None
    columns: Mapping[str, str] | None = None  # of text files, for later commands to use
    examples: tuple[str, ...] = ()  # texts stored in the model (`dismec.training.examples`)
    source: StrPath | None = None
    threads: int | None = None
    overwrite: bool = False
    progress: Progress | None = None
    cluster: Any = None


def part_of(
    progress: Progress | None,
    before: int,
    total: int,
    shares: tuple[float, float] | None = None,
) -> Progress | None:
    """Return the callback for one of several rounds, after `before` of `total` labels.

    `shares` are the shares of the work done when the round begins and ends. By default they are
    computed from the numbers of labels.
    """
    return progress and _Part(progress, before, total, shares)


def share_of(progress: Progress | None, begin: float, end: float, n_labels: int) -> Progress | None:
    """Return the callback for a stage that covers the work between two shares.

    The share done is reported as the number of labels it would be if all took equally long.
    """
    return progress and _Share(progress, begin, end, n_labels)


@dataclass(frozen=True)
class _Share(WorkProgress):
    whole: Progress
    begin: float
    end: float
    n_labels: int

    def update(self, done: int, total: int, share: float) -> None:
        at = self.begin + share * (self.end - self.begin)
        report(self.whole, int(at * self.n_labels), self.n_labels, at)


@dataclass(frozen=True)
class _Part(WorkProgress):
    whole: Progress
    before: int
    total: int
    shares: tuple[float, float] | None

    def update(self, done: int, total: int, share: float) -> None:
        all_labels = max(self.total, 1)
        begin, end = self.shares or (self.before / all_labels, (self.before + total) / all_labels)
        report(self.whole, self.before + done, self.total, begin + share * (end - begin))
