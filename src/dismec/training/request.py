"""What somebody asks to have trained; every door fills in one of these."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from dismec.features.vocabulary import Vocabulary
    from dismec.training.params import TrainingParams

__all__ = ["Progress", "Request", "StrPath", "part_of"]

StrPath: TypeAlias = str | os.PathLike[str]
Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Request:
    """A training: the data, the parameters, where the model goes and where the work is done.

    Attributes
    ----------
    X, Y
        (n_rows, n_features) and (n_rows, n_labels), as a caller has them: not checked yet.
    params
        What model it is to be.
    path
        The model directory, or None for a model in memory.
    names
        One name per label.
    validation
        X and Y to learn on what `params` leave open, instead of a tenth of the rows.
    vocabulary
        What has made X from texts; it becomes part of the model.
    source
        The ``.xmc`` file that X and Y were loaded from, if there is one: workers of a cluster that
        see it need not be sent the data.
    threads
        All available CPUs by default.
    overwrite
        Replace a model that is there, finished or not.
    progress
        Called now and then with (labels done, labels in all).
    cluster
        Where to train instead of here: a Dask client, the address or the scheduler file of a
        cluster, or a `Cluster`, which stays open.
    """

    X: Any
    Y: Any
    params: TrainingParams
    path: Path | None = None
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
