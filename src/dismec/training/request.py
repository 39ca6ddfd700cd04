"""What somebody asks to have trained; every door fills in one of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dismec.data.files import StrPath

if TYPE_CHECKING:
    from dismec.features.vocabulary import Vocabulary
    from dismec.training.params import TrainingParams

__all__ = ["Progress", "Request", "part_of"]

Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Request:
    """A training: the data, the parameters, where the model goes and where the work is done.

    The fields are the parameters of `dismec.train`. X and Y are as a caller has them, not checked
    yet; `cluster` may also be a `Cluster`, which stays open.
    """

    X: Any
    Y: Any
    params: TrainingParams
    path: Path | None = None  # None for a model in memory
    names: Sequence[str] | None = None
    validation: tuple[Any, Any] | None = None
    vocabulary: Vocabulary | None = None
    source: StrPath | None = None
    threads: int | None = None
    overwrite: bool = False
    progress: Progress | None = None
    cluster: Any = None


def part_of(progress: Progress | None, before: int, total: int) -> Progress | None:
    """The progress of one of several rounds, after `before` labels of `total`."""
    return progress and (lambda done, _: progress(before + done, total))
