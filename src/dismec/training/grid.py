"""Rows to train on and rows to judge by → what each C of a grid gives, as a table.

Every label is solved at the C of the grid one after the other, from the middle out: the solution at
one C, with the working set that it was found on, is where the next begins (`LabelSolver` says how
exact it is). What is solved scores the rows held out at once and is dropped, so that no more than
some part of the weights is ever in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import kernels
from dismec.data.matrices import Rows, check_rows
from dismec.measure.metrics import Truth
from dismec.model.scoring import empty_topk
from dismec.model.shards import pack
from dismec.solve.blocks import EqualLabels
from dismec.solve.problem import Solution
from dismec.solve.threads import solve_path
from dismec.training.job import Job
from dismec.training.params import TrainingParams
from dismec.training.request import Progress, Request, part_of
from dismec.training.running import Workplace
from dismec.training.trial import Split

__all__ = ["KINDS", "GridTrials", "Row"]

KINDS = ("P", "nDCG", "PSP")
# Weights that are kept until they are packed to score rows.
_PENDING = 1 << 24
Row = dict[str, float]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GridTrials:
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
            kernels.merge_topk(held.native, *self._rows, self.top, self._scores)
            self.nnz += held.nnz


def _metrics(truth: Any, top: Any, depths: Sequence[int], counts: Ints, n_rows: int) -> Row:
    """As `Model.evaluate` has them."""
    return _columns(Truth.align(truth, counts, n_rows).metrics(top, depths))


def _columns(found: Row) -> Row:
    """What a row of the table has of it, in as many digits as a person may want to see."""
    return {k: round(value, 4) for k, value in found.items() if k.partition("@")[0] in KINDS}
