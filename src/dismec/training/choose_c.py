"""Choose the C that ranks the labels of held-out rows best.

Three neighboring powers of two are tried. The result is the peak of the parabola through them over
log C. If it is more than half a step outside of them, they move towards it.

Of many labels, a sample is tried. A label's rank among 1 in n labels is about an n-th of its rank
among all, so the depth of the metric is divided by n, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dismec.data.training_file import TrainingData
from dismec.errors import DataError
from dismec.measure.metrics import Truth, paired_margin
from dismec.training.execute import Executor, Store, run_in_memory
from dismec.training.held_out import Validation, only_labels, sampled
from dismec.training.job import Job
from dismec.training.params import KINDS, LOOSE, Progress, share_of
from dismec.training.resume import known_C

_START, _FACTOR, _MOST_STEPS = 0.5, 2.0, 8
_BEYOND = 1.5  # steps from the middle value to which the parabola is trusted
_BEND = 0.1  # points by which it is bent more: if all are equally good, chance should not decide
_DEPTHS = (1, 3, 5)
_LEAST_LABELS, _MOST_EVERY = 400, 16  # a sample has 1 in 16 labels, or at least 400 of them
_USUAL_TRIALS = 3
Row = dict[str, float]
Floats = npt.NDArray[np.float64]


class ChoiceOfC(NamedTuple):
    """The stage that replaces ``C="auto"`` by the best value."""

    validation: Validation

    def stated(self, job: Job) -> Job:
        """Return the job whose manifest states how C will be chosen."""
        n_labels, metric = job.problem.n_labels, job.params.metric
        if n_labels < 2:
            raise DataError(
                f"choosing C needs at least 2 labels to rank, the data have {n_labels}; "
                "train with a fixed C"
            )
        how: dict[str, Any] = {"metric": metric}
        every = sample_of(job)
        if every > 1:
            kind, _, k = metric.partition("@")
            how |= {"judged_by": f"{kind}@{max(1, round(int(k) / every))}", "label_share": every}
        return job.with_facts(C_auto=how | self.validation.fields)

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
        chosen = job.with_C(peak(trials.quality_at), trials.table)
        store.record(chosen)
        return chosen


def sample_of(job: Job) -> int:
    """Return n for a sample of 1 in n labels."""
    occurring = int(np.count_nonzero(job.parts.labels.counts))
    return max(1, min(_MOST_EVERY, occurring // _LEAST_LABELS))


def peak(quality_at: Callable[[float], float]) -> float:
    """Return the C of the highest quality, to two digits."""
    found: dict[int, float] = {}

    def at(step: int) -> float:
        if step not in found:
            found[step] = quality_at(_START * _FACTOR**step)
        return found[step]

    middle, seen = int(at(1) > at(0)), set[int]()
    while middle not in seen and abs(middle) < _MOST_STEPS:
        seen.add(middle)
        below, here, above = (at(middle + step) for step in (-1, 0, 1))
        slope, bend = above - below, 2 * here - below - above + _BEND
        if bend > 0 and abs(slope) <= 2 * _BEYOND * bend:
            top = middle + slope / (2 * bend)
            break
        middle += 1 if slope > 0 else -1
    else:  # the values have no clear peak
        top = max(found, key=lambda step: found[step])
    return float(f"{_START * _FACTOR**top:.2g}")


@dataclass(frozen=True, eq=False)
class Trials:
    """Trainings of a sample of the labels, judged on rows that they do not see."""

    data: TrainingData
    judge: TrainingData
    job: Job  # its manifest states how C will be chosen
    store: Store
    progress: Progress | None
    metric: str  # to judge by
    _found: dict[float, Mapping[str, npt.NDArray[Any]]] = field(default_factory=dict)

    @classmethod
    def prepare(
        cls, job: Job, validation: Validation, store: Store, progress: Progress | None
    ) -> Trials:
        """Split the rows, and draw a sample of the labels."""
        data, judge = validation.split(job)
        every, how = sample_of(job), job.manifest.params["C_auto"]
        if every > 1:
            some = sampled(data.Y, job.parts.labels.counts, every)[0]
            data, judge = replace(data, Y=some), replace(judge, Y=only_labels(judge.Y, some))
        return cls(data, judge, job, store, progress, how.get("judged_by", how["metric"]))

    def quality_at(self, C: float) -> float:
        """Return the metric to judge by at this C."""
        name = f"C-{C:g}"
        self._found[C] = self.store.found(name, self.job, partial(self._try, name, C))
        return float(self._found[C][self.metric])

    @property
    def table(self) -> list[Row]:
        """The metrics at each C that was tried, and how sure their differences are."""
        best = max(self._found.values(), key=lambda found: float(found[self.metric]))

        def margin(found: Mapping[str, Floats]) -> float:
            """Return half of the 95 % interval of the difference from the best C, in points."""
            differences = best["reached"] - found["reached"]
            return paired_margin(differences, best["attainable"], self.judge.weights)

        return [
            {
                "C": C,
                **{k: round(float(v), 4) for k, v in found.items() if k.partition("@")[0] in KINDS},
                "margin": round(margin(found), 4),
                "weights": int(found["weights"]),
                "seconds": round(float(found["seconds"]), 3),
            }
            for C, found in sorted(self._found.items())
        ]

    def _try(self, name: str, C: float) -> dict[str, npt.NDArray[Any]]:
        """Train at one C, and return the metrics and what each row contributes to them."""
        begin, number, judge = perf_counter(), len(self._found), self.judge
        n_labels, threads = self.job.problem.n_labels, self.store.threads
        begin_at, end_at = (1 - (1 - 1 / _USUAL_TRIALS) ** n for n in (number, number + 1))
        progress = share_of(self.progress, begin_at, end_at, n_labels)
        job = self.job.stage(name, self.data, self.job.params.plain(LOOSE, C=C))
        model = run_in_memory(job, Executor(threads), progress)
        depths = self._depths
        top, _ = model.predict_topk(judge.X, max(depths), threads=threads)
        truth = Truth.align(judge.Y, model.label_counts, self.data.X.shape[0])
        found = {k: np.array(v) for k, v in truth.metrics(top, depths, judge.weights).items()}
        found["reached"], found["attainable"] = truth.shares(top, depths)[self.metric]
        found["weights"] = np.array(model.nnz)
        return found | {"seconds": np.array(perf_counter() - begin)}

    @property
    def _depths(self) -> list[int]:
        k = int(self.metric.partition("@")[2])
        return [k] if self.metric != self.job.params.metric else sorted({*_DEPTHS, k})
