"""Rows to train on and rows to judge by → what each C of a grid gives, as a table.

Every label is solved at the C of the grid one after the other, from the middle out: the solution at
one C, with the working set that it was found on, is where the next begins (`LabelSolver` says how
exact it is). What is solved scores the rows held out at once and is dropped, so that no more than
some part of the weights is ever in memory. How far this has come is kept now and then, for a run
that goes on after a kill.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, perf_counter
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import kernels
from dismec.data.matrices import Rows
from dismec.measure.metrics import Truth
from dismec.model.scoring import empty_topk
from dismec.model.shards import pack
from dismec.solve.blocks import EqualLabels
from dismec.solve.problem import Problem, Solution
from dismec.solve.threads import solve_path
from dismec.training.job import Job
from dismec.training.request import Progress, part_of
from dismec.training.stages import Stages, digest
from dismec.training.trial import Split

__all__ = ["KINDS", "GridTrials", "Row"]

KINDS = ("P", "nDCG", "PSP")
# Weights that are kept until they are packed to score rows.
_PENDING = 1 << 24
_GRID_STAGE = "grid"
_KEEP_SECONDS = 30.0  # after which what was found so far is kept: scoring it takes about one
Row = dict[str, float]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GridTrials:
    """The rows that C is tried on, the values to try, the depths to measure, and where."""

    split: Split
    job: Job  # its manifest says how C will be chosen
    grid: list[float]
    depths: list[int]
    stages: Stages

    def run(self, progress: Progress | None) -> list[Row]:
        """A row of the table for each C, ascending."""
        on_threads = self.stages.place.cluster is None
        return (self._along_a_path if on_threads else self._one_by_one)(progress)

    def _along_a_path(self, progress: Progress | None) -> list[Row]:
        """All labels on one path through the grid."""
        split, grid, threads = self.split, self.grid, self.stages.place.threads
        params = self.job.params
        job = split.job(params)
        problem = cast(Problem, job.problem)  # data of a cluster are tried there
        given = job.transform.arrays(split.X_judge)
        rows = job.transform.apply_between(given, 0, given.n_rows)
        equal = problem.equal_labels.among(np.flatnonzero(problem.label_counts))
        state = _GridState(equal, [_TrialAt(rows, equal, self._depth) for _ in grid])
        training = digest(self.job.manifest)
        state.take_over(self.stages.known(_GRID_STAGE, training))
        order = _from_the_middle(grid)
        total = len(grid) * problem.n_labels
        done = total - len(grid) * len(equal.labels) + state.labels_done
        if progress:
            progress(done, total)
        path = solve_path(problem, job.solver, order, state.left, threads=threads)
        last = monotonic()
        with ThreadPoolExecutor(threads) as pool, closing(path) as solutions:
            for solution in solutions:
                for place in np.unique(solution.place).tolist():
                    part = solution[np.flatnonzero(solution.place == place)]
                    done += state.add(grid.index(order[place]), part)
                keep = done == total or monotonic() - last > _KEEP_SECONDS
                if keep or state.pending > _PENDING:
                    state.score(pool, params.precision)
                if keep:
                    self.stages.keep(_GRID_STAGE, training, state.arrays)
                    last = monotonic()
                if progress:
                    progress(done, total)
        counts = problem.label_counts, problem.n_rows
        return [
            {
                "C": C,
                **_metrics(split, trial.top, self.depths, *counts),
                "weights": trial.nnz,
                "seconds": round(trial.seconds, 3),
            }
            for C, trial in zip(grid, state.trials, strict=True)
        ]

    @property
    def _depth(self) -> int:
        return min(max(self.depths), self.job.problem.n_labels)

    def _one_by_one(self, progress: Progress | None) -> list[Row]:
        """A training for each C: what a cluster does."""
        table: list[Row] = []
        n_labels = self.split.Y.shape[1]
        for number, C in enumerate(self.grid):
            count = part_of(progress, number * n_labels, len(self.grid) * n_labels)
            find, name = partial(self._tried, C, count), f"C-{C}"
            found = self.stages.found(name, digest(self.job.manifest), find, name)
            table.append({key: value.item() for key, value in found.items()})
        return table

    def _tried(self, C: float, progress: Progress | None) -> dict[str, npt.NDArray[Any]]:
        """A row of the table, by a training of its own."""
        begin, params = perf_counter(), self.job.params
        params = replace(params, C=C, delta=params.solver.delta, calibrate=False, refine=False)
        model = self.split.fit(params, self.stages, f"C-{C}", progress)
        seconds = round(perf_counter() - begin, 3)
        found = model.evaluate(
            self.split.X_judge,
            self.split.Y_judge,
            self.depths,
            weights=self.split.weights_judge,
            threads=self.stages.place.threads,
        )
        row: Row = {"C": C, **_columns(found), "weights": model.nnz, "seconds": seconds}
        return {key: np.array([value]) for key, value in row.items()}


def _from_the_middle(grid: Sequence[float]) -> list[float]:
    """The order in which a label goes through the grid.

    It is solved anew at the C that takes the fewest steps for that, near 1, and goes up from there;
    then from there again, down: a smaller C has more rows inside the margin, and these would slow
    down all that come after.
    """
    first = min(grid, key=lambda C: abs(math.log(C)))
    start = grid.index(first)
    return [*grid[start:], *reversed(grid[:start])]


class _GridState:
    """The trial at each C, and which labels each of them has.

    A label that an earlier run has solved at some C only goes through the whole grid again; where
    it was solved before, it does not count a second time.
    """

    def __init__(self, equal: EqualLabels, trials: list[_TrialAt]) -> None:
        self.trials = trials
        self._equal = equal
        self._has = np.zeros((len(trials), len(equal.distinct)), np.bool_)

    @property
    def left(self) -> Ints:
        """The labels to solve."""
        return self._equal.distinct[~self._has.all(axis=0)]

    @property
    def labels_done(self) -> int:
        """How many labels the trials have in all, with those of the same rows."""
        return int((self._has * self._equal.sizes).sum())

    @property
    def pending(self) -> int:
        """Weights that have not been used yet."""
        return sum(trial.pending for trial in self.trials)

    def add(self, trial: int, part: Solution) -> int:
        """Take in labels that have been solved at one C; how many of them are new there."""
        at = self._equal.find(part.labels)
        new = np.flatnonzero(~self._has[trial, at])
        self._has[trial, at] = True
        self.trials[trial].add(part[new])
        return int(self._equal.sizes[at[new]].sum())

    def score(self, pool: ThreadPoolExecutor, precision: str) -> None:
        """Let the labels that came in since the last time compete."""
        list(pool.map(lambda trial: trial.score(precision), self.trials))

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What a later run needs to go on, right after `score`."""
        return {
            "has": self._has.astype(np.uint8),
            "top": np.stack([trial.top for trial in self.trials]),
            "scores": np.stack([trial.scores for trial in self.trials]),
            "weights": np.array([trial.nnz for trial in self.trials], np.int64),
            "seconds": np.array([trial.seconds for trial in self.trials]),
        }

    def take_over(self, arrays: Mapping[str, npt.NDArray[Any]] | None) -> None:
        """Go on from what an earlier run of the same training has kept."""
        if arrays is None:
            return
        self._has = arrays["has"].astype(np.bool_)
        for number, trial in enumerate(self.trials):
            trial.top = arrays["top"][number].copy()
            trial.scores = arrays["scores"][number].copy()
            trial.nnz = int(arrays["weights"][number])
            trial.seconds = float(arrays["seconds"][number])


class _TrialAt:
    """The model at one C, as far as it is solved: the best labels of the rows that judge it."""

    def __init__(self, rows: Rows, equal: EqualLabels, depth: int) -> None:
        self._rows = rows
        self._equal = equal
        self._parts: list[Solution] = []
        self.top, self.scores = empty_topk(rows.n_rows, depth)
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
            # Labels of different rows may share weights too: each group of equals is in order,
            # and several groups of a classifier have to be merged.
            classifier = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
            held = replace(
                shard,
                labels=labels[np.lexsort((labels, classifier))].astype(np.int32),
                label_starts=starts.astype(np.int32),
            )
            kernels.merge_topk(held.native, *self._rows, self.top, self.scores)
            self.nnz += held.nnz


def _metrics(split: Split, top: Any, depths: Sequence[int], counts: Ints, n_rows: int) -> Row:
    """As `Model.evaluate` has them."""
    truth = Truth.align(split.Y_judge, counts, n_rows)
    return _columns(truth.metrics(top, depths, split.weights_judge))


def _columns(found: Row) -> Row:
    """What a row of the table has of it, in as many digits as a person may want to see."""
    return {k: round(value, 4) for k, value in found.items() if k.partition("@")[0] in KINDS}
