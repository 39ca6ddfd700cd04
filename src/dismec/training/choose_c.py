"""Choose the C that ranks the labels of held-out rows best; with ``best=True`` also more.

Three values, each twice the one before, are tried. The result is the peak of the parabola through
them over log C. If it is more than half a step outside of them, they move towards it.

With ``best=True``, square roots of numbers are tried first, at one C. After C is chosen, the losses
of positive rows are doubled, with a smaller C, as long as that ranks better.

Of many rows and labels, a sample is tried. A label's rank among 1 in n labels is about an n-th of
its rank among all, so the depth of the metric is divided by n, too, and rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dismec.data.mixed import sparse_part
from dismec.data.training_file import TrainingData
from dismec.errors import DataError
from dismec.measure.metrics import Truth, paired_margin
from dismec.training.execute import Executor, Store, run_in_memory
from dismec.training.job import Job
from dismec.training.params import ENCODER_SCALE, LOOSE, Progress, plain, share_of
from dismec.training.resume import known_C, known_dense_scale
from dismec.training.split import Validation, only_labels, sampled

START, _FACTOR, _MOST_STEPS = 0.5, 2.0, 8
_BEYOND = 1.5  # steps from the middle value to which the parabola is trusted
# Points by which the parabola is bent and rises more: of equally good values, a larger C is faster.
_TILT = 0.1
_SAMPLE = 400, 16  # a sample has 1 in 16 labels, or at least 400 of them
_SAMPLE_BEST = 1500, 4  # with ``best=True``
MOST_ROWS = 200_000  # of a trial; of more, a random sample is used
_HEAVIEST = 8.0  # the largest weight of positive rows that is tried
_LIGHTER = 0.7  # C is divided by the weight to this power
_USUAL_TRIALS = 3
Found = Mapping[str, npt.NDArray[Any]]  # of a trial: its quality, and what each row contributes


class ChoiceOfC(NamedTuple):
    """The stage that replaces ``C="auto"`` by the best value."""

    validation: Validation

    def stated(self, job: Job) -> Job:
        """Return the job whose manifest states how C will be chosen."""
        if job.problem.n_labels < 2:
            raise DataError(
                f"choosing C needs at least 2 labels to rank, the data have "
                f"{job.problem.n_labels}; train with a fixed C"
            )
        return job.with_facts(C_auto=_judged(job) | self.validation.fields)

    def run(self, job: Job, store: Store) -> Job:
        """Return the job with the best C, which an earlier run may have chosen."""
        n_labels, progress = job.problem.n_labels, store.progress
        share = 1 - 1 / (1 + _USUAL_TRIALS / sample_of(job))
        store.progress = share_of(progress, share, 1.0, n_labels)
        known = store.earlier and known_C(job, store.earlier)
        if known:
            return known
        store.record(job)
        trials = Trials.prepare(job, self.validation, store, share_of(progress, 0, share, n_labels))
        if job.params.best:
            trials = _with_best_values(trials)
            job = trials.job
        terms = job.manifest.params.get("terms_table")
        C = peak(trials.quality_at, terms[0]["C"] if terms else START)
        weight = job.params.positive_weight
        if job.params.best and weight == 1 and job.params.weighting is None:
            C, weight = _weighed(trials, C)
        chosen = job.with_C(C, weight, trials.table)
        store.record(chosen)
        return chosen


class ChoiceOfScale(NamedTuple):
    """The stage that chooses the scale of the embeddings of texts, before C."""

    validation: Validation

    def stated(self, job: Job) -> Job:
        """Return the job whose manifest states how the scale will be chosen."""
        return job.with_facts(dense_scale_auto=_judged(job) | self.validation.fields)

    def run(self, job: Job, store: Store) -> Job:
        """Return the job with the best scale, which an earlier run may have chosen."""
        n_labels, progress = job.problem.n_labels, store.progress
        share = 1 - 1 / (1 + _USUAL_TRIALS / sample_of(job))
        store.progress = share_of(progress, share, 1.0, n_labels)
        known = store.earlier and known_dense_scale(job, store.earlier)
        if known:
            return known
        store.record(job)
        C = START if job.params.chooses_C else float(job.params.C)
        trials = Trials.prepare(job, self.validation, store, None)
        table: list[dict[str, float]] = []

        def quality_at(scale: float) -> float:
            params = replace(job.params, dense_scale=scale)
            n = len(table)
            begin, end = (share * (1 - (1 - 1 / _USUAL_TRIALS) ** m) for m in (n, n + 1))
            part = share_of(progress, begin, end, n_labels)
            trial = replace(trials, job=replace(job, params=params), found={}, progress=part)
            table.append({"dense_scale": scale, trials.metric: round(trial.quality_at(C), 4)})
            return table[-1][trials.metric]

        scale = peak(quality_at, ENCODER_SCALE)
        chosen = job.with_dense_scale(scale, sorted(table, key=lambda row: row["dense_scale"]))
        store.record(chosen)
        return chosen


def _judged(job: Job) -> dict[str, Any]:
    """Return the metric to choose by, and on which share of the labels."""
    every, metric = sample_of(job), job.params.metric
    if every == 1:
        return {"metric": metric}
    kind, _, k = metric.partition("@")
    judged_by = f"{kind}@{-(-int(k) // every)}"
    return {"metric": metric, "judged_by": judged_by, "label_share": every}


def sample_of(job: Job) -> int:
    """Return n for a sample of 1 in n labels."""
    occurring = int(np.count_nonzero(job.parts.labels.counts))
    least, most = _SAMPLE_BEST if job.params.best else _SAMPLE
    return max(1, min(most, occurring // least))


def peak(quality_at: Callable[[float], float], start: float = START) -> float:
    """Return the C of the highest quality, to two digits."""
    found: dict[int, float] = {}

    def at(step: int) -> float:
        if step not in found:
            found[step] = quality_at(start * _FACTOR**step)
        return found[step]

    middle, seen = int(at(1) > at(0)), set[int]()
    while middle not in seen and abs(middle) < _MOST_STEPS:
        seen.add(middle)
        below, here, above = (at(middle + step) for step in (-1, 0, 1))
        slope, bend = above - below + _TILT, 2 * here - below - above + _TILT
        if bend > 0 and abs(slope) <= 2 * _BEYOND * bend:
            top = middle + slope / (2 * bend)
            break
        middle += 1 if slope > 0 else -1
    else:  # the values have no clear peak
        top = max(found, key=lambda step: found[step])
    return float(f"{start * _FACTOR**top:.2g}")


def _with_best_values(trials: Trials) -> Trials:
    """Return the trials with square roots of numbers, if these rank better, and with the effect."""
    job, values = trials.job, sparse_part(trials.data.X).data
    if job.params.sqrt or job.parts.vocabulary or not len(values) or (values == values[0]).all():
        return trials
    rooted = replace(trials, job=replace(job, params=replace(job.params, sqrt=True)), found={})
    gain = rooted.quality_at(START) - trials.quality_at(START)
    key = START, job.params.positive_weight
    margin = difference_margin(rooted.found[key], trials.found[key], trials.judge.weights)
    effect = {"metric": trials.metric, "gain": round(gain, 2), "margin": round(margin, 2)}
    effect["used"] = gain > margin / 2
    return replace(rooted if effect["used"] else trials, job=job.with_sqrt(effect))


def _weighed(trials: Trials, C: float) -> tuple[float, float]:
    """Return C and the weight of positive rows that rank best."""
    near = min(trials.found, key=lambda key: abs(math.log(key[0] / C)))
    best, weight = near, 2.0
    while weight <= _HEAVIEST:
        heavier = float(f"{C / weight**_LIGHTER:.2g}"), weight
        gain = trials.quality_at(*heavier) - trials.quality_at(*best)
        margin = trials.margin(best, heavier)
        if gain > margin / 2:
            best = heavier
        if gain <= margin:
            break
        weight *= 2
    return (C, 1.0) if best == near else best


@dataclass(frozen=True, eq=False)
class Trials:
    """Trainings of a sample of the labels, judged on rows that they do not see."""

    data: TrainingData
    judge: TrainingData
    job: Job
    store: Store
    progress: Progress | None
    metric: str  # to judge by
    found: dict[tuple[float, float], Found] = field(default_factory=dict)

    @classmethod
    def prepare(
        cls, job: Job, validation: Validation, store: Store, progress: Progress | None
    ) -> Trials:
        """Split the rows, and draw a sample of the rows to train on and of the labels."""
        data, judge = validation.split(job)
        data = few_rows(data.undescribed)
        every, how = sample_of(job), _judged(job)
        if every > 1:
            some = sampled(data.Y, job.parts.labels.counts, every)[0]
            data, judge = replace(data, Y=some), replace(judge, Y=only_labels(judge.Y, some))
        return cls(data, judge, job, store, progress, how.get("judged_by", how["metric"]))

    def quality_at(self, C: float, weight: float | None = None) -> float:
        """Return the metric to judge by at this C, and this weight of positive rows."""
        key = C, self.job.params.positive_weight if weight is None else weight
        if key not in self.found:
            name = f"{'sqrt' if self.job.params.sqrt else 'C'}-{key[0]:g}-{key[1]:g}"
            name += f"-{self.job.params.dense_scale:g}" if self.job.transform.dense else ""
            self.found[key] = self.store.found(name, self.job, partial(self._try, name, *key))
        return float(self.found[key]["quality"])

    def margin(self, one: tuple[float, float], other: tuple[float, float]) -> float:
        """Return half of the 95 % interval of the difference of two trials, in points."""
        return difference_margin(self.found[one], self.found[other], self.judge.weights)

    @property
    def table(self) -> list[dict[str, float]]:
        """The quality of each trial, and how sure its difference from the best is."""
        best = max(self.found, key=lambda key: float(self.found[key]["quality"]))
        return [
            {
                "C": key[0],
                **({"positive_weight": key[1]} if self.job.params.best else {}),
                self.metric: round(float(found["quality"]), 4),
                "margin": round(self.margin(best, key), 4),
                "weights": int(found["weights"]),
                "seconds": round(float(found["seconds"]), 3),
            }
            for key, found in sorted(self.found.items(), key=lambda item: (item[0][1], item[0][0]))
        ]

    def _try(self, name: str, C: float, weight: float) -> dict[str, npt.NDArray[Any]]:
        """Train once, and return the quality and what each row contributes to it."""
        begin, number, judge = perf_counter(), len(self.found), self.judge
        n_labels, threads = self.job.problem.n_labels, self.store.threads
        begin_at, end_at = (1 - (1 - 1 / _USUAL_TRIALS) ** n for n in (number, number + 1))
        progress = share_of(self.progress, begin_at, end_at, n_labels)
        params = plain(self.job.params, LOOSE, C=C, positive_weight=weight)
        job = self.job.stage(name, self.data, params)
        model = run_in_memory(job, Executor(threads), progress)
        k = int(self.metric.partition("@")[2])
        top, _ = model.predict_topk(judge.X, k, threads=threads)
        truth = Truth.align(judge.Y, model.label_counts, self.data.X.shape[0])
        reached, attainable = truth.shares(top, [k])[self.metric]
        return {
            "quality": np.array(truth.metrics(top, [k], judge.weights)[self.metric]),
            "reached": reached,
            "attainable": attainable,
            "weights": np.array(model.nnz),
            "seconds": np.array(perf_counter() - begin),
        }


def few_rows(data: TrainingData) -> TrainingData:
    """Return a random sample of the rows if there are more than a trial needs."""
    n_rows = data.Y.shape[0]
    if n_rows <= MOST_ROWS:
        return data
    return data.at(np.sort(np.random.default_rng(0).choice(n_rows, MOST_ROWS, replace=False)))


def difference_margin(one: Found, other: Found, weights: Any) -> float:
    """Return half of the 95 % interval of the difference of two trials, in points."""
    return paired_margin(one["reached"] - other["reached"], one["attainable"], weights)
