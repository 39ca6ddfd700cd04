"""What somebody asks to have trained; every door fills in one of these."""

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
    """A progress that is also told how much of the work is done: labels take unequally long."""

    @abstractmethod
    def update(self, done: int, total: int, share: float) -> None:
        """So many labels of `total` are done, which is this share of the work."""

    def __call__(self, done: int, total: int) -> None:
        """The same, where no more is known than labels."""
        self.update(done, total, done / total if total else 1.0)


def report(progress: Progress | None, done: int, total: int, share: float) -> None:
    """Tell a progress what it wants to know."""
    if isinstance(progress, WorkProgress):
        progress.update(done, total, share)
    elif progress:
        progress(done, total)


@dataclass(frozen=True, eq=False)
class Request:
    """A training: the data, the parameters, where the model goes and where the work is done.

    The fields are the parameters of `dismec.train`. X, Y and weights are as a caller has them, not
    checked yet; `cluster` may also be a `Cluster`, which stays open.
    """

    X: Any
    Y: Any
    params: TrainingParams
    path: Path | None = None  # None for a model in memory
    names: Sequence[str] | None = None
    validation: tuple[Any, Any] | None = None
    weights: Any = None  # one number of at least 0 per row; None for ones
    pair_weights: Any = None  # a sparse matrix, or a file of pairs of a row and a label
    costs: Costs | None = None  # factors of the losses of each label's rows
    vocabulary: Vocabulary | None = None
    columns: Mapping[str, str] | None = None  # of files of texts, for later commands to use
    examples: tuple[str, ...] = ()  # texts that the model keeps (`dismec.training.examples`)
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
    """The progress of one of several rounds, after `before` labels of `total`.

    `shares` are from where to where it takes the work; by default that goes by labels.
    """
    return progress and _Part(progress, before, total, shares)


def share_of(progress: Progress | None, begin: float, end: float, n_labels: int) -> Progress | None:
    """The progress of a stage that takes from one share of all work to another.

    What is reported is how many labels that would be if each took the same.
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
