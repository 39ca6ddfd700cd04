"""Choose the C of a grid that ranks the labels of held-out rows best.

Of the values that these rows cannot distinguish from the best, the middle one is chosen.

Every label is solved at each C of the grid in turn, from the middle out: the solution at one C and
its working set are the starting point for the next (`LabelSolver` states how exact the result is).
Solved labels score the held-out rows at once and are dropped, so only a part of the weights is in
memory at any time. Progress is saved from time to time, so that a killed run can be resumed.

Of many labels, a sample is tried. A label's rank among 1 in n labels is about an n-th of its rank
among all, so the depth of the metric is divided by n, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import kernels
from dismec.data.matrices import Rows
from dismec.data.training_file import TrainingData
from dismec.errors import DataError
from dismec.measure.metrics import Truth, paired_margin, shares_of_rows
from dismec.model.scoring import Labels, empty_topk
from dismec.model.shards import pack
from dismec.solve.partition import EqualLabels
from dismec.solve.problem import Problem, Solution
from dismec.solve.threads import solve_path
from dismec.training.execute import Store
from dismec.training.held_out import Validation, only_labels, sampled
from dismec.training.job import Job
from dismec.training.params import KINDS, Progress, part_of
from dismec.training.resume import known_C

_DEPTHS = (1, 3, 5)
# Weights that are collected before they are packed to score rows.
_PENDING = 1 << 24
_GRID_STAGE = "grid"
_KEEP_SECONDS = 30.0  # seconds between saves; scoring for a save takes about one
_LEAST_LABELS, _MOST_EVERY = 700, 16  # a sample has 1 in 16 labels, or at least 700 of them
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
        how: dict[str, Any] = {"metric": params.metric, "grid": list(params.grid)}
        every = _every(job)
        if every > 1:
            kind, _, k = params.metric.partition("@")
            how |= {"judged_by": f"{kind}@{max(1, round(int(k) / every))}", "label_share": every}
        return job.with_facts(C_auto=how | self.validation.fields)

    def run(self, job: Job, store: Store) -> Job:
        """Return the job with the best C, which an earlier run may have chosen."""
        n_labels, progress = job.problem.n_labels, store.progress
        tried, others, every = len(job.params.grid), 1 + job.params.holds_out, _every(job)
        total, share = (tried + others) * n_labels, tried / (tried + others * every)
        store.progress = part_of(progress, tried * n_labels, total, (share, 1.0))
        known = store.earlier and known_C(job, store.earlier)
        if known:
            return known
        store.record(job)
        data, judge = self.validation.split(job)
        if every > 1:
            some = sampled(data.Y, job.parts.labels.counts, every)[0]
            data, judge = replace(data, Y=some), replace(judge, Y=only_labels(judge.Y, some))
        how = job.manifest.params["C_auto"]
        trials = _GridTrials(data, judge, job, store, how.get("judged_by", how["metric"]))
        table = trials.run(part_of(progress, 0, total, (0.0, share)))
        chosen = job.with_C(pick(table, trials.metric), table)
        store.record(chosen)
        return chosen


def _every(job: Job) -> int:
    """Return n for a sample of 1 in n labels."""
    occurring = int(np.count_nonzero(job.parts.labels.counts))
    return max(1, min(_MOST_EVERY, occurring // _LEAST_LABELS))


def pick(table: Sequence[Row], metric: str) -> float:
    """Return the middle of the values that the rows cannot distinguish from the best."""
    best = max(row[metric] for row in table)
    near = sorted(row["C"] for row in table if best - row[metric] <= row["margin"])
    return near[len(near) // 2]  # of two, the larger one, which is faster to train


@dataclass(frozen=True, eq=False)
class _GridTrials:
    """Trials of each C: the rows to train on and to judge by."""

    data: TrainingData
    judge: TrainingData
    job: Job  # its manifest states how C will be chosen
    store: Store
    metric: str  # to judge by

    def run(self, progress: Progress | None) -> list[Row]:
        """Solve all labels on one path through the grid; return a row of the table for each C."""
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
        metrics = [truth.metrics(t.top, self._depths, self.judge.weights) for t in state.trials]
        best = state.trials[int(np.argmax([found[self.metric] for found in metrics]))]
        return [
            {
                "C": C,
                **_columns(found),
                "margin": round(self._margin(truth, trial.top, best.top), 4),
                "weights": trial.nnz,
                "seconds": round(trial.seconds, 3),
            }
            for C, trial, found in zip(grid, state.trials, metrics, strict=True)
        ]

    @property
    def _depths(self) -> list[int]:
        k = int(self.metric.partition("@")[2])
        return [k] if self.metric != self.job.params.metric else sorted({*_DEPTHS, k})

    def _margin(self, truth: Truth, top: Labels, best: Labels) -> float:
        """Return half of the 95 % interval of the difference from the best C, in points."""
        given = truth.propensities, self._depths
        (one, most), (other, _) = (
            shares_of_rows(truth.Y, found, *given)[self.metric] for found in (top, best)
        )
        return paired_margin(one - other, most, self.judge.weights)


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
