"""Rows held out → the C that ranks their labels best, and the training with it.

Every label is solved at the C of a grid one after the other, from the middle out: the solution at
one C, with the working set that it was found on, is where the next begins (`LabelSolver`
says how exact it is). What is solved scores the rows held out at once and is dropped, so that no
more than some part of the weights is ever in memory.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import kernels, thread_count
from dismec.data.corpus import TextFormat
from dismec.data.labels import propensities
from dismec.data.matrices import Rows, check_rows
from dismec.errors import DataError, ModelError
from dismec.features.vocabulary import TextParams
from dismec.measure import metrics
from dismec.model.manifest import Manifest
from dismec.model.model import Model
from dismec.model.shards import pack
from dismec.solve.labels import EqualLabels
from dismec.solve.problem import Solution
from dismec.solve.threads import solve_path
from dismec.training.job import Job, Progress
from dismec.training.params import TrainingParams
from dismec.training.recipe import Judge, fit, train_job
from dismec.training.texts import News, Texts, on_disk

if TYPE_CHECKING:
    from dismec.cluster.connection import Cluster
    from dismec.features.vocabulary import Vocabulary

__all__ = ["GRID", "METRIC", "Tuned", "check_grid", "check_metric", "pick", "tune", "tune_text"]

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
    path: str | os.PathLike[str],
    grid: Sequence[float] = GRID,
    params: TrainingParams | None = None,
    *,
    metric: str = METRIC,
    validation: tuple[Any, Any] | None = None,
    names: Sequence[str] | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    client: Any = None,
    source: str | os.PathLike[str] | None = None,
    vocabulary: Vocabulary | None = None,
) -> Tuned:
    """Choose C by rows held out, and train a model with it on all rows.

    The model is byte for byte what `dismec.train` gives at this C. Of equally good C the smallest
    is chosen. A run that was killed after the choice goes on with it; one that was killed before
    chooses again.

    Parameters
    ----------
    X, Y, path, names, threads, overwrite, client, source, vocabulary
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

    Raises
    ------
    DataError
        For a grid or metric that cannot be used, and as `dismec.train` does.
    ModelError, ClusterError
        As `dismec.train` does.
    """
    ordered, chosen_by = check_grid(grid), check_metric(metric)
    params = params or TrainingParams()
    job = Job.prepare(X, Y, params, names, vocabulary=vocabulary)
    if job.Y.shape[1] < 2:
        raise DataError(
            f"C is chosen by the order of labels, and there is {job.Y.shape[1]} label; "
            "train with a C of your own"
        )
    if validation is None and job.X.shape[0] < 2:
        raise DataError(
            f"there is {job.X.shape[0]} row: too few to hold one out for the choice of C; "
            "give rows to choose it on (--validation)"
        )
    judge = Judge.prepare(job, validation)
    shown = ", ".join(f"{C:g}" for C in ordered)
    job = job.told(C_auto=f"by {chosen_by} from {shown} {judge}")

    def settle(
        job: Job, earlier: Manifest | None, cluster: Cluster | None
    ) -> tuple[Job, Progress | None]:
        if earlier:
            return _as_chosen(job, ordered, earlier), progress
        n_tried = len(ordered) * job.problem.n_labels
        rounds = len(ordered) + 1 + params.holds_out
        first = progress and (lambda done, _: progress(done, rounds * job.problem.n_labels))
        then = progress and (lambda done, total: progress(n_tried + done, n_tried + total))
        try_all = _try_here if cluster is None else partial(_try_on, cluster)
        depths = sorted({*_DEPTHS, int(chosen_by.partition("@")[2])})
        table = try_all(*judge.parted(job), job.params, ordered, depths, threads, first)
        return job.with_C(pick(table, chosen_by), table), then

    model = train_job(
        *(Path(path), job, validation if params.holds_out else None),
        threads=threads,
        overwrite=overwrite,
        progress=progress,
        client=client,
        source=source,
        settle=settle,
    )
    said = model.params
    return Tuned(model, said["C"], chosen_by, said["C_table"])


def tune_text(
    source: str | os.PathLike[str] | Texts,
    path: str | os.PathLike[str],
    grid: Sequence[float] = GRID,
    params: TrainingParams | None = None,
    text: TextParams | None = None,
    *,
    metric: str = METRIC,
    fmt: TextFormat | None = None,
    validation: str | os.PathLike[str] | Texts | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    news: News | None = None,
    client: Any = None,
) -> Tuned:
    """Choose C for texts and train with it; `grid`, `metric` as for `tune`, others `train_text`."""
    check_grid(grid)
    check_metric(metric)
    with on_disk(source, path, text, fmt, validation, threads, news) as (X, Y, facts):
        return tune(
            *(X, Y, path, grid, params or TrainingParams(tfidf=True)),
            metric=metric,
            threads=threads,
            overwrite=overwrite,
            progress=progress,
            client=client,
            **facts,
        )


def check_grid(grid: Sequence[float]) -> list[float]:
    """The C of a grid, ascending.

    Raises
    ------
    DataError
        If there are fewer than two, or one is not a number above 0 that a solver can use.
    """
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
    """The metric's name, if it is one.

    Raises
    ------
    DataError
        If it is not.
    """
    kind, _, k = metric.partition("@")
    if kind not in _KINDS or not re.fullmatch("[1-9][0-9]*", k) or int(k) > _MOST_DEPTH:
        raise DataError(
            f"the metric is {metric!r}; expected P@k, nDCG@k or PSP@k, k from 1 to {_MOST_DEPTH}"
        )
    return metric


def pick(table: Sequence[Row], metric: str) -> float:
    """The C with the highest value; of equals the smallest."""
    return min(table, key=lambda row: (-row[metric], row["C"]))["C"]


def _as_chosen(job: Job, grid: Sequence[float], earlier: Manifest) -> Job:
    """The job at the C that an earlier run of it has chosen."""
    C, table = earlier.params.get("C"), earlier.params.get("C_table")
    if not isinstance(C, float) or C not in grid or not isinstance(table, list):
        raise ModelError(f"the unfinished model's C, {C!r}, is none that is chosen")
    return job.with_C(C, table)


def _try_here(
    X: Any,
    Y: Any,
    judge_X: Any,
    truth: Any,
    params: TrainingParams,
    grid: Sequence[float],
    depths: Sequence[int],
    threads: int | None,
    progress: Progress | None,
) -> list[Row]:
    """A row of the table for each C, ascending, all labels on one path through the grid."""
    threads = thread_count(threads)
    job = Job.prepare(X, Y, params, None)
    problem = job.problem
    given = check_rows(judge_X, problem.n_features)
    rows = job.transform.apply_between(given, 0, given.n_rows)
    equal = problem.equal_labels.among(np.flatnonzero(problem.label_counts))
    trials = [_Trial(rows, equal, min(max(depths), problem.n_labels)) for _ in grid]
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
                trials[grid.index(order[place])].add(part)
                done += int(equal.copies(part.labels)[1][-1])
            if progress:
                progress(done, total)
            if sum(trial.pending for trial in trials) > _PENDING or done == total:
                list(pool.map(lambda trial: trial.score(params.precision), trials))
    counts = problem.label_counts, problem.n_rows
    return [
        {
            "C": C,
            **_metrics(truth, trial.top, depths, *counts),
            "weights": trial.nnz,
            "seconds": round(trial.seconds, 3),
        }
        for C, trial in zip(grid, trials, strict=True)
    ]


def _from_the_middle(grid: Sequence[float]) -> list[float]:
    """The order in which a label goes through the grid.

    It is solved anew at the C that takes the fewest steps for that, near 1, and goes up from there;
    then from there again, down: a smaller C has more rows inside the margin, and these would slow
    down all that come after.
    """
    first = min(grid, key=lambda C: abs(math.log(C)))
    start = grid.index(first)
    return [*grid[start:], *reversed(grid[:start])]


class _Trial:
    """The model at one C, as far as it is solved: the best labels of the rows that judge it."""

    def __init__(self, rows: Rows, equal: EqualLabels, depth: int) -> None:
        self._rows = rows
        self._equal = equal
        self._parts: list[Solution] = []
        self.top = np.full((rows.n_rows, depth), -1, np.int32)
        self._scores = np.full((rows.n_rows, depth), -np.inf, np.float32)
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
    n_labels = max(len(counts), truth.shape[1])
    wide = truth.copy()
    wide.resize((truth.shape[0], n_labels))
    known = np.zeros(n_labels, np.int64)
    known[: len(counts)] = counts
    depth = max(depths)
    if top.shape[1] < depth:
        top = np.pad(top, ((0, 0), (0, depth - top.shape[1])), constant_values=-1)
    found = metrics.evaluate(wide, top, depths, propensities(known, n_rows))
    return _shown(found)


def _shown(found: Row) -> Row:
    """What a row of the table has of it, in as many digits as a person may want to see."""
    return {k: round(value, 4) for k, value in found.items() if k.partition("@")[0] in _KINDS}


def _try_on(
    cluster: Cluster,
    X: Any,
    Y: Any,
    judge_X: Any,
    truth: Any,
    params: TrainingParams,
    grid: Sequence[float],
    depths: Sequence[int],
    threads: int | None,
    progress: Progress | None,
) -> list[Row]:
    """The same on a cluster: a training for each C."""
    table: list[Row] = []
    for number, C in enumerate(grid):
        begin = perf_counter()
        trial = replace(params, C=C, delta=params.solver.delta, calibrate=False)
        count = progress and partial(_count, progress, number, len(grid))
        model = fit(X, Y, trial, threads=threads, progress=count, client=cluster)
        seconds = perf_counter() - begin
        found = model.evaluate(judge_X, truth, depths, threads=threads)
        table.append({"C": C, **_shown(found), "weights": model.nnz, "seconds": round(seconds, 3)})
    return table


def _count(progress: Progress, before: int, rounds: int, done: int, total: int) -> None:
    """The progress of one of several rounds, after those before it."""
    progress(before * total + done, rounds * total)
