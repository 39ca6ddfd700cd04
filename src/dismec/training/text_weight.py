"""Choose how much the texts of labels count: in training, and as matches with a text.

A trial with the texts as training rows is compared with one without them, on held-out rows. In the
former, multiples of the matches are added to the weights (`dismec.features.label_texts`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dismec.data.matrices import plus
from dismec.data.training_file import TrainingData
from dismec.features.label_texts import added_weights
from dismec.measure.metrics import Truth, paired_margin
from dismec.model.calibration import LEAST_SLOPE
from dismec.model.model import Model
from dismec.model.shards import pack
from dismec.model.sidecar_files import LabelTable, Parts
from dismec.training.calibrate import fit_calibration
from dismec.training.job import Job, Mask

_SCORES = np.linspace(-1.0, -0.2, 9)  # of labels without rows, from no match to a good one
WEIGHTS = (0.0, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0)
_LEAST_DEPTH = 2  # at a depth of 1, a sample of the labels prefers other weights than all do


def with_label_texts(model: Model, job: Job, weight: float | None) -> Model:
    """Return the model of a stage with what texts add to the labels that it has."""
    added = job.added(weight, model.transform.n_columns)
    trained = np.repeat(model.label_counts > 0, np.diff(added.indptr))
    added.data = np.where(trained, added.data, np.float32(0))
    blocks = [(np.arange(model.n_labels), plus(model.weights, added))]
    shards = list(pack(blocks, model.transform.n_columns, model.precision, model.label_counts))
    return Model.from_shards(model.manifest, model.transform, model.parts, shards)


def choose_text_weight(
    job: Job, plain: Model, described: Model, judge: TrainingData, share: float, threads: int
) -> tuple[Job, Model]:
    """Return the job with the weight that ranks held-out rows best, and the model of its trial.

    `plain` and `described` are trained without and with the texts as rows. `share` is the share of
    all labels that they have.
    """
    k = max(_LEAST_DEPTH, int(np.ceil(5 * share)))
    metric = f"nDCG@{k}"

    def judged(model: Model) -> tuple[float, Any, Any]:
        top, _ = model.predict_topk(judge.X, k, rank="score", threads=threads)
        truth = Truth.align(judge.Y, model.label_counts, job.problem.n_rows)
        quality = truth.metrics(top, [k], judge.weights)[metric]
        return quality, *truth.shares(top, [k])[metric]

    before, reached, attainable = judged(plain)
    results = [judged(with_label_texts(described, job, weight)) for weight in WEIGHTS]
    quality, best = max((result[0], -place) for place, result in enumerate(results))
    weight = WEIGHTS[-best]
    margin = paired_margin(results[-best][1] - reached, attainable, judge.weights)
    used = quality - before > margin / 2
    effect = {"metric": metric, "gain": round(quality - before, 2), "margin": round(margin, 2)}
    job = job.with_text_weight({"weight": weight if used else None, **effect})
    return job, with_label_texts(described, job, weight) if used else plain


def with_described_curve(job: Job, known: Mask, judge: TrainingData, share: float) -> Job:
    """Return the job with a calibration that has a curve for labels without training rows.

    It is fitted as if the `known` labels, which some rows of the trial have, had no rows: to scores
    that are only matches.
    """
    calibration = job.parts.calibration
    assert job.matches is not None and calibration is not None  # noqa: PT018
    counts, kept = known.astype(np.int64), np.flatnonzero(known)
    n_columns = job.transform.n_columns
    weights = added_weights(job.matches, counts, 0.0, known, job.transform.bias, n_columns)
    blocks = [(kept, weights[kept])]
    table = LabelTable(counts)
    matching = Model.from_shards(
        job.manifest, job.transform, Parts(table), list(pack(blocks, n_columns, "float32"))
    )
    Y = judge.Y[:, : job.problem.n_labels]
    alone = fit_calibration(matching, judge.X, Y, share=share, weights=judge.weights)
    z = calibration.logits(alone.probabilities(np.full(len(_SCORES), kept[0]), _SCORES))
    slope, intercept = np.polyfit(_SCORES, z, 1).tolist()
    curve = [max(slope, LEAST_SLOPE), intercept]
    found = calibration.with_curve(job.parts.labels.described, *curve)
    return job.with_facts(label_texts_curve=curve).with_calibration(found)
