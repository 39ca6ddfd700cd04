"""Rows held out → the C that ranks their labels best, and the training with it.

Every label is solved at the C of a grid one after the other, from the middle out: the solution at
one C, with the working set that it was found on, is where the next begins (`LabelSolver`
says how exact it is). What is solved scores the rows held out at once and is dropped, so that no
more than some part of the weights is ever in memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import kernels
from dismec.data.corpus import TextFormat
from dismec.data.files import StrPath
from dismec.data.matrices import Rows, check_rows
from dismec.errors import DataError
from dismec.features.vocabulary import TextParams, Vocabulary
from dismec.measure.metrics import Truth
from dismec.model.manifest import Manifest
from dismec.model.model import Model
from dismec.model.scoring import empty_topk
from dismec.model.shards import pack
from dismec.solve.blocks import EqualLabels
from dismec.solve.problem import Solution
from dismec.solve.threads import solve_path
from dismec.training.job import Job
from dismec.training.params import TrainingParams
from dismec.training.recipe import Settle, carry_out
from dismec.training.request import Progress, Request, part_of
from dismec.training.resume import known_C
from dismec.training.running import Workplace
from dismec.training.texts import News, TextRequest, Texts
from dismec.training.trial import Split, Validation

__all__ = ["GRID", "METRIC", "ChoiceOfC", "Tuned", "pick", "tune", "tune_text"]

GRID = (0.25, 0.5, 1.0, 2.0)
METRIC = "nDCG@5"
_DEPTHS = (1, 3, 5)
_KINDS = ("P", "nDCG", "PSP")
_MOST_DEPTH = 100
# Weights that are kept until they are packed to score rows.
_PENDING = 1 << 24

Row = dict[str, float]
Ints = npt.NDArray[np.int64]


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

    The model is byte for byte what `dismec.train` gives at this C. Of equally good C the smallest
    is chosen. A run that was killed after the choice goes on with it; one that was killed before
    chooses again.

    Parameters
    ----------
    X, Y, path, names, threads, overwrite, cluster, source, vocabulary, client
        As for `dismec.train`. On a cluster every C is a training of its own.
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
        *(X, Y, params or TrainingParams(), Path(path)),
        names=names,
        validation=validation,
        vocabulary=vocabulary,
        source=source,
        threads=threads,
        overwrite=overwrite,
        progress=progress,
        cluster=client if cluster is None else cluster,
    )
    return ChoiceOfC.of(grid, metric).carried_out(request)


def tune_text(
    source: StrPath | Texts,
    path: StrPath,
    grid: Sequence[float] = GRID,
    params: TrainingParams | None = None,
    text: TextParams | None = None,
    *,
    metric: str = METRIC,
    fmt: TextFormat | None = None,
    validation: StrPath | Texts | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    news: News | None = None,
    cluster: Any = None,
    client: Any = None,
) -> Tuned:
    """Choose C for texts and train with it; `grid`, `metric` as for `tune`, others `train_text`."""
    choice = ChoiceOfC.of(grid, metric)
    request = TextRequest(
        *(source, params, path, text, fmt, validation, threads, overwrite, progress, news),
        cluster=client if cluster is None else cluster,
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
                "give rows to choose it on (--validation)"
            )
        validation = Validation.prepare(job, given)
        fields = {"metric": self.metric, "grid": self.grid, **validation.fields}
        return job.stating(C_auto=fields), partial(self._settle, validation)

    def _settle(
        self,
        validation: Validation,
        job: Job,
        earlier: Manifest | None,
        place: Workplace,
        progress: Progress | None,
    ) -> tuple[Job, Progress | None]:
        if earlier:
            return known_C(job, self.grid, earlier), progress
        n_labels = job.problem.n_labels
        tried, total = len(self.grid), len(self.grid) + 1 + job.params.holds_out
        trials = _Trials(validation.split(job), job.params, self.grid, self._depths, place)
        table = trials.run(part_of(progress, 0, total * n_labels))
        chosen = job.with_C(pick(table, self.metric), table)
        return chosen, part_of(progress, tried * n_labels, total * n_labels)

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
        raise DataError(f"the grid has {len(found)} values of C; expected two or more to choose of")
    return sorted(found)


def check_metric(metric: str) -> str:
    """The metric's name; `DataError` if it is none."""
    kind, _, k = metric.partition("@")
    if kind not in _KINDS or not re.fullmatch("[1-9][0-9]*", k) or int(k) > _MOST_DEPTH:
        raise DataError(
            f"the metric is {metric!r}; expected P@k, nDCG@k or PSP@k, k from 1 to {_MOST_DEPTH}"
        )
    return metric


def pick(table: Sequence[Row], metric: str) -> float:
    """The C with the highest value; of equals the smallest."""
    return min(table, key=lambda row: (-row[metric], row["C"]))["C"]


@dataclass(frozen=True, eq=False)
class _Trials:
    """The rows that C is tried on, the values to try, the depths to measure, and where."""

    split: Split
    params: TrainingParams
    grid: list[float]
    depths: list[int]
    place: Workplace

    def run(self, progress: Progress | None) -> list[Row]:
        """A row of the table for each C, ascending."""
        return (self._along_a_path if self.place.cluster is None else self._one_by_one)(progress)

    def _along_a_path(self, progress: Progress | None) -> list[Row]:
        """All labels on one path through the grid."""
        split, grid, threads = self.split, self.grid, self.place.threads
        job = Job.prepare(Request(split.X, split.Y, self.params))
        problem = job.problem
        given = check_rows(split.X_judge, problem.n_features)
        rows = job.transform.apply_between(given, 0, given.n_rows)
        equal = problem.equal_labels.among(np.flatnonzero(problem.label_counts))
        depth = min(max(self.depths), problem.n_labels)
        found = [_TrialAt(rows, equal, depth) for _ in grid]
        order = _from_the_middle(grid)
        total = len(grid) * problem.n_labels
        done = total - len(grid) * len(equal.labels)
        if progress:
            progress(0, total)
        path = solve_path(problem, job.params.solver, order, equal.distinct, threads=threads)
        with ThreadPoolExecutor(threads) as pool, closing(path) as solutions:
            for solution in solutions:
                for place in np.unique(solution.place).tolist():
                    part = solution[np.flatnonzero(solution.place == place)]
                    found[grid.index(order[place])].add(part)
                    done += int(equal.copies(part.labels)[1][-1])
                if progress:
                    progress(done, total)
                if sum(trial.pending for trial in found) > _PENDING or done == total:
                    list(pool.map(lambda trial: trial.score(self.params.precision), found))
        counts = problem.label_counts, problem.n_rows
        return [
            {
                "C": C,
                **_metrics(split.Y_judge, trial.top, self.depths, *counts),
                "weights": trial.nnz,
                "seconds": round(trial.seconds, 3),
            }
            for C, trial in zip(grid, found, strict=True)
        ]

    def _one_by_one(self, progress: Progress | None) -> list[Row]:
        """A training for each C: what a cluster does."""
        table: list[Row] = []
        n_labels = self.split.Y.shape[1]
        for number, C in enumerate(self.grid):
            begin = perf_counter()
            params = replace(self.params, C=C, delta=self.params.solver.delta, calibrate=False)
            count = part_of(progress, number * n_labels, len(self.grid) * n_labels)
            model = self.split.fit(params, self.place, count)
            seconds = round(perf_counter() - begin, 3)
            found = model.evaluate(
                self.split.X_judge, self.split.Y_judge, self.depths, threads=self.place.threads
            )
            table.append({"C": C, **_columns(found), "weights": model.nnz, "seconds": seconds})
        return table


def _from_the_middle(grid: Sequence[float]) -> list[float]:
    """The order in which a label goes through the grid.

    It is solved anew at the C that takes the fewest steps for that, near 1, and goes up from there;
    then from there again, down: a smaller C has more rows inside the margin, and these would slow
    down all that come after.
    """
    first = min(grid, key=lambda C: abs(math.log(C)))
    start = grid.index(first)
    return [*grid[start:], *reversed(grid[:start])]


class _TrialAt:
    """The model at one C, as far as it is solved: the best labels of the rows that judge it."""

    def __init__(self, rows: Rows, equal: EqualLabels, depth: int) -> None:
        self._rows = rows
        self._equal = equal
        self._parts: list[Solution] = []
        self.top, self._scores = empty_topk(rows.n_rows, depth)
        self.nnz = 0
        self.pending = 0  # weights that have not been used yet
        self.seconds = 0.0

    def add(self, part: Solution) -> None:
        """Take in labels that have been solved."""
        self._parts.append(part)
        self.pending += part.weights.nnz
        self.seconds += float(part.seconds.sum())

    def score(self, precision: str) -> None:
        """Let the labels that came in since the last time compete, rounded as a model has them."""
        if not self._parts:
            return
        labels = np.concatenate([part.labels for part in self._parts])
        stacked: Any = sp.vstack([part.weights for part in self._parts], format="csr")
        self._parts, self.pending = [], 0
        order = np.argsort(labels)
        for shard in pack([(labels[order], stacked[order])], stacked.shape[1] - 1, precision):
            places, bounds = self._equal.copies(shard.labels)
            held = replace(
                shard,
                labels=self._equal.labels[places].astype(np.int32),
                label_starts=bounds[shard.label_starts].astype(np.int32),
            )
            kernels.merge_topk(held.native, *self._rows, self.top, self._scores)
            self.nnz += held.nnz


def _metrics(truth: Any, top: Any, depths: Sequence[int], counts: Ints, n_rows: int) -> Row:
    """As `Model.evaluate` has them."""
    return _columns(Truth.align(truth, counts, n_rows).metrics(top, depths))


def _columns(found: Row) -> Row:
    """What a row of the table has of it, in as many digits as a person may want to see."""
    return {k: round(value, 4) for k, value in found.items() if k.partition("@")[0] in _KINDS}
