"""Choose the C of a grid that ranks the labels of held-out rows best.

Every label is solved at each C of the grid in turn, from the middle out: the solution at one C and
its working set are the starting point for the next (`LabelSolver` states how exact the result is).
Solved labels score the held-out rows at once and are dropped, so only a part of the weights is in
memory at any time. Progress is saved from time to time, so that a killed run can be resumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, perf_counter
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import kernels
from dismec.data.matrices import Rows
from dismec.data.training_file import TrainingData
from dismec.errors import DataError
from dismec.measure.metrics import Truth
from dismec.model.scoring import empty_topk
from dismec.model.shards import pack
from dismec.solve.partition import EqualLabels
from dismec.solve.problem import Problem, Solution
from dismec.solve.threads import solve_path
from dismec.training.execute import Store
from dismec.training.held_out import Validation
from dismec.training.job import Job
from dismec.training.params import KINDS, Progress, part_of
from dismec.training.resume import known_C

_DEPTHS = (1, 3, 5)
# Weights that are collected before they are packed to score rows.
_PENDING = 1 << 24
_GRID_STAGE = "grid"
_KEEP_SECONDS = 30.0  # seconds between saves; scoring for a save takes about one
Row = dict[str, float]
Ints = npt.NDArray[np.int64]


class ChoiceOfC(NamedTuple):
    """The stage that chooses C."""

    validation: Validation

    def stated(self, job: Job) -> Job:
        """Return the job whose manifest states how C will be chosen."""
        params, n_labels = job.params, job.problem.n_labels
        if n_labels < 2:
            raise DataError(
                f"choosing C needs at least 2 labels to rank, the data have {n_labels}; "
                "train with a fixed C"
            )
        how = {"metric": params.metric, "grid": list(params.grid)}
        return job.with_facts(C_auto=how | self.validation.fields)

    def run(self, job: Job, store: Store) -> Job:
        """Return the job with the best C, which an earlier run may have chosen."""
        n_labels, progress = job.problem.n_labels, store.progress
        tried = len(job.params.grid)
        total = tried + 1 + job.params.holds_out
        store.progress = part_of(progress, tried * n_labels, total * n_labels)
        known = store.earlier and known_C(job, store.earlier)
        if known:
            return known
        store.record(job)
        trials = _GridTrials(*self.validation.split(job), job, store)
        table = trials.run(part_of(progress, 0, total * n_labels))
        chosen = job.with_C(pick(table, job.params.metric), table)
        store.record(chosen)
        return chosen


def pick(table: Sequence[Row], metric: str) -> float:
    """Return the C with the highest metric; ties go to the smallest C."""
    return min(table, key=lambda row: (-row[metric], row["C"]))["C"]


@dataclass(frozen=True, eq=False)
class _GridTrials:
    """Trials of each C: the rows to train on and to judge by."""

    data: TrainingData
    judge: TrainingData
    job: Job  # its manifest states how C will be chosen
    store: Store

    def run(self, progress: Progress | None) -> list[Row]:
        """Return a row of the table for each C, ascending."""
        on_threads = self.store.executor.cluster is None
        return (self._along_a_path if on_threads else self._one_by_one)(progress)

    def _along_a_path(self, progress: Progress | None) -> list[Row]:
        """Solve all labels on one path through the grid."""
        params, threads = replace(self.job.params, C=1.0), self.store.threads
        grid = list(params.grid)
        job = self.job.stage(_GRID_STAGE, self.data, params)
        problem = cast(Problem, job.problem)  # data on a cluster is tried there
        arrays = job.transform.arrays(self.judge.X)
        rows = job.transform.apply_between(arrays, 0, arrays.n_rows)
        equal = problem.equal_labels.among(np.flatnonzero(problem.label_counts))
        depth = min(max(self._depths), problem.n_labels)
        state = _GridState(equal, [_TrialAt(rows, equal, depth) for _ in grid])
        state.take_over(self.store.known(_GRID_STAGE, self.job))
        order = _solving_order(grid)
        total, done = len(grid) * len(equal.labels), state.labels_done

        def show() -> None:
            if progress:  # labels without rows count as done at the end
                every = len(grid) * problem.n_labels
                progress(every if done == total else done, every)

        show()
        path = solve_path(problem, job.solver, order, state.left, threads=threads)
        last = monotonic()
        with ThreadPoolExecutor(threads) as pool, closing(path) as solutions:
            for solution in solutions:
                for place in np.unique(solution.path_index).tolist():
                    part = solution[np.flatnonzero(solution.path_index == place)]
                    done += state.add(grid.index(order[place]), part)
                keep = done == total or monotonic() - last > _KEEP_SECONDS
                if keep or state.pending > _PENDING:
                    state.score(pool, params.precision)
                if keep:
                    self.store.keep(_GRID_STAGE, self.job, state.arrays)
                    last = monotonic()
                show()
        truth = Truth.align(self.judge.Y, problem.label_counts, problem.n_rows)
        return [
            {
                "C": C,
                **_columns(truth.metrics(trial.top, self._depths, self.judge.weights)),
                "weights": trial.nnz,
                "seconds": round(trial.seconds, 3),
            }
            for C, trial in zip(grid, state.trials, strict=True)
        ]

    @property
    def _depths(self) -> list[int]:
        return sorted({*_DEPTHS, int(self.job.params.metric.partition("@")[2])})

    def _one_by_one(self, progress: Progress | None) -> list[Row]:
        """Train once for each C, as on a cluster."""
        table: list[Row] = []
        grid, n_labels = self.job.params.grid, self.job.problem.n_labels
        for number, C in enumerate(grid):
            count = part_of(progress, number * n_labels, len(grid) * n_labels)
            find, name = partial(self._trial_row, C, count), f"C-{C}"
            found = self.store.found(name, self.job, find, name)
            table.append({key: value.item() for key, value in found.items()})
        return table

    def _trial_row(self, C: float, progress: Progress | None) -> dict[str, npt.NDArray[Any]]:
        """Return a row of the table, from a separate training."""
        begin, params, name = perf_counter(), self.job.params, f"C-{C}"
        params = replace(params, C=C, delta=params.solver.delta, calibrate=False, refine=False)
        model = self.store.train(name, self.job.stage(name, self.data, params), progress)
        seconds = round(perf_counter() - begin, 3)
        judge = self.judge
        found = model.evaluate(
            judge.X, judge.Y, self._depths, weights=judge.weights, threads=self.store.threads
        )
        row: Row = {"C": C, **_columns(found), "weights": model.nnz, "seconds": seconds}
        return {key: np.array([value]) for key, value in row.items()}


def _solving_order(grid: Sequence[float]) -> list[float]:
    """Return the order in which a label goes through the grid.

    The first solve is at the C that takes the fewest steps from zero, near 1. From there the path
    goes up, then starts there again and goes down: a smaller C has more rows inside the margin,
    which would slow down every solve after it.
    """
    first = min(grid, key=lambda C: abs(math.log(C)))
    start = grid.index(first)
    return [*grid[start:], *reversed(grid[:start])]


class _GridState:
    """The trials at each C, and the labels that each of them has solved.

    A label that an earlier run solved at only some values of C goes through the whole grid again,
    and is not counted twice where it was solved before.
    """

    def __init__(self, equal: EqualLabels, trials: list[_TrialAt]) -> None:
        self.trials = trials
        self._equal = equal
        self._has = np.zeros((len(trials), len(equal.distinct)), np.bool_)

    @property
    def left(self) -> Ints:
        """The labels that remain to be solved."""
        return self._equal.distinct[~self._has.all(axis=0)]

    @property
    def labels_done(self) -> int:
        """The number of labels solved, over all trials, including labels with the same rows."""
        return int((self._has * self._equal.sizes).sum())

    @property
    def pending(self) -> int:
        """The number of weights that have not been scored yet."""
        return sum(trial.pending for trial in self.trials)

    def add(self, trial: int, part: Solution) -> int:
        """Add labels solved at one C, and return how many of them are new there."""
        at = self._equal.find(part.labels)
        new = np.flatnonzero(~self._has[trial, at])
        self._has[trial, at] = True
        self.trials[trial].add(part[new])
        return int(self._equal.sizes[at[new]].sum())

    def score(self, pool: ThreadPoolExecutor, precision: str) -> None:
        """Score the rows with the labels added since the last call."""
        list(pool.map(lambda trial: trial.score(precision), self.trials))

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return what a later run needs to resume, right after `score`."""
        return {
            "has": self._has.astype(np.uint8),
            "top": np.stack([trial.top for trial in self.trials]),
            "scores": np.stack([trial.scores for trial in self.trials]),
            "weights": np.array([trial.nnz for trial in self.trials], np.int64),
            "seconds": np.array([trial.seconds for trial in self.trials]),
        }

    def take_over(self, arrays: Mapping[str, npt.NDArray[Any]] | None) -> None:
        """Resume from what an earlier run of the same training saved."""
        if arrays is None:
            return
        self._has = arrays["has"].astype(np.bool_)
        for number, trial in enumerate(self.trials):
            trial.top = arrays["top"][number].copy()
            trial.scores = arrays["scores"][number].copy()
            trial.nnz = int(arrays["weights"][number])
            trial.seconds = float(arrays["seconds"][number])


class _TrialAt:
    """The solved part of the model at one C, with the best labels of each judged row."""

    def __init__(self, rows: Rows, equal: EqualLabels, depth: int) -> None:
        self._rows = rows
        self._equal = equal
        self._parts: list[Solution] = []
        self.top, self.scores = empty_topk(rows.n_rows, depth)
        self.nnz = 0
        self.pending = 0  # weights that have not been scored yet
        self.seconds = 0.0

    def add(self, part: Solution) -> None:
        """Add solved labels."""
        self._parts.append(part)
        self.pending += part.weights.nnz
        self.seconds += float(part.seconds.sum())

    def score(self, precision: str) -> None:
        """Score the rows with the labels added since the last call, rounded as in a model."""
        parts = [part for part in self._parts if len(part.labels)]
        self._parts, self.pending = [], 0
        if not parts:
            return
        labels = np.concatenate([part.labels for part in parts])
        stacked: Any = sp.vstack([part.weights for part in parts], format="csr")
        order = np.argsort(labels)
        for shard in pack([(labels[order], stacked[order])], stacked.shape[1] - 1, precision):
            places, bounds = self._equal.copies(shard.labels)
            starts = bounds[shard.label_starts]
            labels = self._equal.labels[places]
            # Labels with different rows may share weights too: each group of equal labels is in
            # order, but several groups of one classifier have to be merged.
            classifier = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
            held = replace(
                shard,
                labels=labels[np.lexsort((labels, classifier))].astype(np.int32),
                label_starts=starts.astype(np.int32),
            )
            kernels.merge_topk(held.native, *self._rows, self.top, self.scores)
            self.nnz += held.nnz


def _columns(found: Row) -> Row:
    """Return the columns of the table, rounded for display."""
    return {k: round(value, 4) for k, value in found.items() if k.partition("@")[0] in KINDS}
