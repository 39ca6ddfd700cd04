"""Rows held out → the C that ranks their labels best, and the training with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dismec.data.corpus import TextFormat
from dismec.data.counts import counted
from dismec.data.files import StrPath
from dismec.errors import DataError
from dismec.features.vocabulary import TextParams, Vocabulary
from dismec.model.manifest import Manifest
from dismec.model.model import Model
from dismec.training.grid import KINDS, GridTrials, Row
from dismec.training.job import Job
from dismec.training.params import TrainingParams
from dismec.training.recipe import Settle, carry_out
from dismec.training.request import Progress, Request, part_of
from dismec.training.resume import known_C
from dismec.training.stages import Stages
from dismec.training.texts import Log, TextRequest
from dismec.training.trial import Validation

__all__ = ["GRID", "METRIC", "ChoiceOfC", "Tuned", "pick", "tune", "tune_text"]

GRID = (0.25, 0.5, 1.0, 2.0)
METRIC = "nDCG@5"
_DEPTHS = (1, 3, 5)
_MOST_DEPTH = 100


@dataclass(frozen=True, eq=False)
class Tuned:
    """A model, and how its C was chosen.

    Attributes
    ----------
    model
        Trained on all rows with the C chosen.
    C
        That one.
    metric
        What it was chosen by.
    table
        A row for each C of the grid, ascending: ``{"C": …, "P@1": …, "nDCG@1": …, "PSP@1": …,
        "weights": …, "seconds": …}``, metrics in percent on the rows held out, and the core-seconds
        that its trial took.
    """

    model: Model
    C: float
    metric: str
    table: list[Row]


def tune(
    X: Any,
    Y: Any,
    path: StrPath,
    grid: Sequence[float] = GRID,
    params: TrainingParams | None = None,
    *,
    metric: str = METRIC,
    validation: tuple[Any, Any] | None = None,
    weights: Any = None,
    names: Sequence[str] | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    cluster: Any = None,
    source: StrPath | None = None,
    vocabulary: Vocabulary | None = None,
    client: Any = None,
) -> Tuned:
    """Choose C by rows held out, and train a model with it on all rows.

    The weights are byte for byte those that `dismec.train` gives at this C. Of equally good C the
    smallest is chosen. A run that was killed goes on where it stopped, within the grid too.

    Parameters
    ----------
    X, Y, path, names, weights, threads, overwrite, cluster, source, vocabulary, client
        As for `dismec.train`. On a cluster every C is a training of its own. Rows that are held
        out count by their weights, too.
    grid
        The C to try, two at least, in any order.
    params
        As for `dismec.train`; their C counts for nothing. A delta left to choose is chosen after C,
        and so are probabilities learned.
    metric
        "P@k", "nDCG@k" or "PSP@k", with a number for k.
    validation
        X and Y to choose on, and what `dismec.train` needs them for, instead of a tenth of the
        rows.
    progress
        Called now and then with (labels done, labels in all), where each label counts once for
        every time that it is solved.

    Returns
    -------
    Tuned
        The model, the C chosen, and what was tried.

    Raises
    ------
    DataError
        For a grid or metric that cannot be used, and as `dismec.train` does.
    ModelError, ClusterError
        As `dismec.train` does.
    """
    request = Request(
        X,
        Y,
        params or TrainingParams(),
        Path(path),
        names=names,
        validation=validation,
        weights=weights,
        vocabulary=vocabulary,
        source=source,
        threads=threads,
        overwrite=overwrite,
        progress=progress,
        cluster=client if cluster is None else cluster,
    )
    return ChoiceOfC.of(grid, metric).carried_out(request)


def tune_text(
    source: Any,
    path: StrPath,
    grid: Sequence[float] = GRID,
    params: TrainingParams | None = None,
    text: TextParams | None = None,
    *,
    metric: str = METRIC,
    fmt: TextFormat | None = None,
    validation: Any = None,
    weights: Any = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    log: Log | None = None,
    cluster: Any = None,
    client: Any = None,
    dense: Any = None,
    validation_dense: Any = None,
) -> Tuned:
    """Choose C for texts and train with it; `grid`, `metric` as for `tune`, others `train_text`."""
    choice = ChoiceOfC.of(grid, metric)
    request = TextRequest(
        source,
        params,
        path,
        text=text,
        fmt=fmt,
        validation=validation,
        weights=weights,
        threads=threads,
        overwrite=overwrite,
        progress=progress,
        log=log,
        cluster=client if cluster is None else cluster,
        dense=dense,
        validation_dense=validation_dense,
    )
    with request.as_rows() as rows:
        return choice.carried_out(rows)


@dataclass(frozen=True)
class ChoiceOfC:
    """By which metric C is chosen, and from which values, ascending."""

    grid: list[float]
    metric: str

    @classmethod
    def of(cls, grid: Sequence[float], metric: str) -> ChoiceOfC:
        """The choice from a grid in any order; `DataError` for what cannot be chosen from or by."""
        return cls(check_grid(grid), check_metric(metric))

    def carried_out(self, request: Request) -> Tuned:
        """The model of a request at the C chosen."""
        model = carry_out(request, self.open)
        return Tuned(model, model.params["C"], self.metric, model.params["C_table"])

    def open(self, job: Job, given: tuple[Any, Any] | None) -> tuple[Job, Settle]:
        """The job with how its C will be chosen, and what chooses it (`recipe.Choose`)."""
        n_rows, n_labels = job.Y.shape
        if n_labels < 2:
            raise DataError(
                f"C is chosen by the order of labels, and there is {n_labels} label; "
                "train with a C of your own"
            )
        if given is None and n_rows < 2:
            raise DataError(
                f"there is {n_rows} row: too few to hold one out for the choice of C; "
                "give rows to choose it on (validation=…)"
            )
        for C in (self.grid[0], self.grid[-1]):
            job.problem.check_C(C)
        validation = Validation.prepare(job, given)
        fields = {"metric": self.metric, "grid": self.grid, **validation.fields}
        return job.stating(C_auto=fields), partial(self._settle, validation)

    def _settle(
        self,
        validation: Validation,
        job: Job,
        earlier: Manifest | None,
        stages: Stages,
        progress: Progress | None,
    ) -> tuple[Job, Manifest | None, Progress | None]:
        n_labels = job.problem.n_labels
        tried, total = len(self.grid), len(self.grid) + 1 + job.params.holds_out
        rest = part_of(progress, tried * n_labels, total * n_labels)
        known = earlier and known_C(job, self.grid, earlier)
        if known:
            return known, earlier, rest
        earlier = stages.begin(job, earlier)
        trials = GridTrials(validation.split(job), job, self.grid, self._depths, stages)
        table = trials.run(part_of(progress, 0, total * n_labels))
        chosen = job.with_C(pick(table, self.metric), table)
        return chosen, stages.begin(chosen, earlier), rest

    @property
    def _depths(self) -> list[int]:
        return sorted({*_DEPTHS, int(self.metric.partition("@")[2])})


def check_grid(grid: Sequence[float]) -> list[float]:
    """The C of a grid, ascending; `DataError` for fewer than two, or one that no solver takes."""
    found = set()
    for C in grid:
        try:
            found.add(TrainingParams(C=C).C)
        except ValueError as error:
            raise DataError(f"the grid's {error}") from None
    if len(found) < 2:
        raise DataError(
            f"the grid has {counted(len(found), 'value')} of C; expected two or more to choose from"
        )
    return sorted(found)


def check_metric(metric: str) -> str:
    """The metric's name; `DataError` if it is none."""
    kind, _, k = metric.partition("@")
    if kind not in KINDS or not re.fullmatch("[1-9][0-9]*", k) or int(k) > _MOST_DEPTH:
        raise DataError(
            f"the metric is {metric!r}; expected P@k, nDCG@k or PSP@k, k from 1 to {_MOST_DEPTH}"
        )
    return metric


def pick(table: Sequence[Row], metric: str) -> float:
    """The C with the highest value; of equals the smallest."""
    return min(table, key=lambda row: (-row[metric], row["C"]))["C"]
