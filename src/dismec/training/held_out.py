"""Learn delta and probabilities on rows that a trial training does not see.

Given a model of Δ = 0.01 and rows that it was not trained on, the choice of Δ is the largest of
`DELTAS` at which P@k, for each k of `DEPTHS`, is at most `TOLERANCE` points below that of Δ = 0.01.
Requiring three noisy metrics to pass is cautious when there are many rows. Below 1,000 rows, a
single row is worth more than the tolerance and a large Δ may pass by luck, so every smaller Δ has
to pass too. Below 100 rows, the metrics say nothing, and Δ stays 0.01.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dismec.data.training_file import TrainingData
from dismec.errors import DataError
from dismec.model.model import Model
from dismec.training import resume
from dismec.training.calibrate import fit_calibration
from dismec.training.execute import Store
from dismec.training.job import Job
from dismec.training.params import DELTAS, LOOSE, plain, share_of
from dismec.training.split import Validation, only_labels, sample_mask, sampled
from dismec.training.text_weight import choose_text_weight, with_described_curve

DEPTHS = (1, 3, 5)
TOLERANCE = 0.1  # points of P@k
_ENOUGH_ROWS, _FEWEST_ROWS = 1000, 100
_SLACK = 1e-9  # points that rounding may add to a loss
_STAGE, _UNDESCRIBED = "trial", "trial-undescribed"


class Trial(NamedTuple):
    """The stage that learns delta and probabilities from a training on some of the rows."""

    validation: Validation

    def stated(self, job: Job) -> Job:
        """Return the job whose manifest states on which rows they will be learned."""
        params, fields = job.params, self.validation.fields
        if params.chooses_delta and job.problem.n_labels < 2:
            raise DataError(
                f'delta="auto" needs at least 2 labels to rank, the data have '
                f"{job.problem.n_labels}; set delta to a number"
            )
        facts = {"delta_auto": fields} if params.chooses_delta else {}
        if params.calibrate and not params.refine:
            facts["calibrated"] = fields
        return job.with_facts(**facts)

    def run(self, job: Job, store: Store) -> Job:
        """Return the job with what is learned, now or by an earlier run."""
        n_labels, share, progress = job.problem.n_labels, _share(job), store.progress
        end = share / (1 + share)
        store.progress = share_of(progress, end, 1.0, n_labels)
        if store.directory and store.earlier:
            known = resume.known_trial(store.directory, job, store.earlier)
            if known:
                return known
        store.record(job)
        part = share_of(progress, 0.0, end, n_labels)
        data, judge = self.validation.split(job)
        params = plain(job.params)
        if not job.params.chooses_delta:
            some, _ = sampled(data.Y, job.parts.labels.counts)
            data, judge = replace(data, Y=some), replace(judge, Y=only_labels(judge.Y, some))
            params = plain(job.params, LOOSE)
        model = store.train(_STAGE, job.stage(_STAGE, data, params), part)
        if job.matches is not None:
            others = job.stage(_UNDESCRIBED, data.undescribed, params)
            plain_model = store.train(_UNDESCRIBED, others, None)
            compared = plain_model, model, judge, _share(job), store.threads
            job, model = choose_text_weight(job, *compared)
        learned = _learned(job, model, judge, store.threads)
        store.record(learned)
        for name in (_STAGE, _UNDESCRIBED):
            store.drop(name)
        return learned


def _share(job: Job) -> float:
    """Return the share of all labels that the trial trains."""
    if job.params.chooses_delta:  # it is judged by rankings of all labels
        return 1.0
    return sample_mask(job.parts.labels.counts)[1]


def _learned(job: Job, model: Model, judge: TrainingData, threads: int) -> Job:
    """Return the job with the delta and the calibration that the model of a trial gives."""
    share = _share(job)
    if job.params.chooses_delta:
        chosen, effect = choose_delta(model, judge, threads=threads)
        job = job.with_delta(chosen, effect)
        model = model.pruned(chosen)
    if job.params.calibrate and not job.params.refine:
        curves = fit_calibration(
            model,
            judge.X,
            judge.Y[:, : model.n_labels],  # may have labels without training rows
            counts=job.parts.labels.counts,
            share=share,
            weights=judge.weights,
            threads=threads,
            by_count=job.text_weight is None,
        )
        job = job.with_calibration(curves.taken_from(job.equal_labels.groups))
        if job.matches is not None and job.text_weight is None:
            job = with_described_curve(job, model.label_counts > 0, judge, share)
    return job


def choose_delta(
    model: Model, judge: TrainingData, *, threads: int | None = None
) -> tuple[float, dict[str, Any]]:
    """Choose Δ for a model of Δ = 0.01 with two or more labels, on rows that it was not trained on.

    Nothing is trained: each Δ costs one prediction of these rows. The effect on P@k is returned as
    it is stored in the manifest (`dismec.model.provenance`).
    """
    curve: list[list[float]] = []
    for delta in DELTAS:
        model = model.pruned(delta)  # the previous model has fewer weights left to prune
        found = model.evaluate(judge.X, judge.Y, DEPTHS, weights=judge.weights, threads=threads)
        curve.append([found[f"P@{k}"] for k in DEPTHS])
    chosen = pick_delta(curve, int(found["rows"]))
    before, after = (
        {f"P@{k}": p for k, p in zip(DEPTHS, curve[place], strict=True)} for place in (0, chosen)
    )
    return DELTAS[chosen], {"at": DELTAS[0], "before": before, "after": after}


def pick_delta(precision: Sequence[Sequence[float]], n_rows: int) -> int:
    """Return the index into `DELTAS` of the Δ to choose.

    `precision` holds P@k in percent at each Δ, measured on `n_rows` rows.
    """
    loss = np.asarray(precision[0]) - np.asarray(precision)
    fine = (loss <= TOLERANCE + _SLACK).all(axis=1)
    if n_rows < _ENOUGH_ROWS:
        fine = np.logical_and.accumulate(fine)
    return int(np.flatnonzero(fine)[-1]) if n_rows >= _FEWEST_ROWS else 0
