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
import numpy.typing as npt

from dismec.data.counts import counted
from dismec.data.matrices import check_Y
from dismec.data.mixed import MixedRows
from dismec.data.targets import matrix_of_labels
from dismec.data.training_file import TrainingData
from dismec.errors import DataError
from dismec.model.model import Model
from dismec.training import resume
from dismec.training.calibrate import fit_calibration
from dismec.training.execute import Store
from dismec.training.job import Job
from dismec.training.params import DELTAS, part_of

DEPTHS = (1, 3, 5)
TOLERANCE = 0.1  # points of P@k
_MOST_ROWS = 10_000
_ENOUGH_ROWS, _FEWEST_ROWS = 1000, 100
_SLACK = 1e-9  # points that rounding may add to a loss
_STAGE = "trial"
_FEW_LABELS = 400  # up to this many labels, a trial trains all of them
_EVERY = 4  # above that, it trains every fourth


def held_out(n_rows: int) -> npt.NDArray[np.int64]:
    """Return the rows to hold out, ascending: a random tenth, at least 1 and at most 10,000.

    The same number of rows always gives the same selection.

    Raises `DataError` if no row would be left to train on.
    """
    if n_rows < 2:
        raise DataError(
            f"{counted(n_rows, 'row')}: too few to hold one out to choose C or delta or to "
            "calibrate; pass validation rows",
            "validation=…",
        )
    size = min(max(n_rows // 10, 1), _MOST_ROWS)
    return np.sort(np.random.default_rng(0).choice(n_rows, size, replace=False))


class Validation(NamedTuple):
    """The rows to judge a trial by, which it is not trained on."""

    given: TrainingData | None  # rows passed by the caller
    rows: npt.NDArray[np.int64]  # otherwise, rows of the job

    @classmethod
    def prepare(cls, job: Job, given: tuple[Any, Any] | None) -> Validation:
        """Return the given rows, checked, or hold out a tenth of the job's own."""
        if given is None:
            return cls(None, held_out(job.problem.n_rows))
        try:
            X = job.transform.take(given[0])
            Y = check_Y(matrix_of_labels(given[1], job.parts.labels.names), X.shape[0])
        except DataError as error:
            raise DataError(f"validation data: {error}") from None
        if X.shape[0] == 0:
            raise DataError("validation data: no rows")
        truth: Any = Y
        if not truth[:, : job.problem.n_labels].nnz:
            raise DataError("validation data: no row has a label of the training data")
        return cls(TrainingData(X, Y), np.empty(0, np.int64))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that identify these rows in a manifest (`dismec.model.provenance`)."""
        if self.given is None:
            return {"rows": len(self.rows)}
        return {"rows": self.given.X.shape[0], "data": self.given.fingerprint[:16]}

    def split(self, job: Job) -> tuple[TrainingData, TrainingData]:
        """Return the job's rows without those held out, and the rows to judge by."""
        if self.given is not None:
            return replace(job.data, names=None, source=None, hashed=None), self.given
        others = np.delete(np.arange(job.problem.n_rows), self.rows)
        data, judge = job.data.at(others), job.data.at(self.rows)
        if job.parts.vocabulary:
            # Words of later texts that no training text has are not counted.
            judge = replace(judge, X=only_known(judge.X, data.X))
        return data, judge


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
        total, share, progress = job.problem.n_labels, _share(job), store.progress
        store.progress = part_of(progress, total, 2 * total, (share / (1 + share), 1.0))
        if store.directory and store.earlier:
            known = resume.known_trial(store.directory, job, store.earlier)
            if known:
                return known
        store.record(job)
        part = part_of(progress, 0, 2 * total, (0.0, share / (1 + share)))
        data, judge = self.validation.split(job)
        if not job.params.chooses_delta:
            some, _ = sampled(data.Y, job.parts.labels.counts)
            data, judge = replace(data, Y=some), replace(judge, Y=only_labels(judge.Y, some))
        model = store.train(_STAGE, job.stage(_STAGE, data, job.params.plain()), part)
        learned = _learned(job, model, judge, store.threads)
        store.record(learned)
        store.drop(_STAGE)
        return learned


def _share(job: Job) -> float:
    """Return the share of all labels that the trial trains."""
    if job.params.chooses_delta:  # it is judged by rankings of all labels
        return 1.0
    return _sample(job.parts.labels.counts)[1]


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
        )
        job = job.with_calibration(curves.taken_from(job.problem.equal_labels.groups))
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


def sampled(Y: Any, counts: npt.NDArray[np.int64], every: int = _EVERY) -> tuple[Any, float]:
    """Return Y with every fourth label, in order of frequency, and the share of labels kept.

    If there are few labels, all are kept. Labels of similar frequency share a curve, so a sample is
    enough to fit it.
    """
    keep, share = _sample(counts, every)
    return (Y if keep is None else only_columns(Y, keep)), share


def _sample(
    counts: npt.NDArray[np.int64], every: int = _EVERY
) -> tuple[npt.NDArray[np.bool_] | None, float]:
    """Return a mask of the sampled labels, or None for all of them, and their share."""
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    if len(order) < _FEW_LABELS:
        return None, 1.0
    keep = np.zeros(len(counts), np.bool_)
    keep[order[every // 2 :: every]] = True
    return keep, 1 / every


def only_labels(Y: Any, some: Any) -> Any:
    """Return Y with only the labels that occur in `some`; labels beyond its columns are kept."""
    keep = np.ones(Y.shape[1], np.bool_)
    keep[: some.shape[1]] = np.bincount(some.indices, minlength=some.shape[1])[: Y.shape[1]] > 0
    return only_columns(Y, keep)


def only_known(X: Any, others: Any) -> Any:
    """Return the rows without sparse features that no row of `others` has."""
    if isinstance(X, MixedRows):
        return X.with_sparse(only_known(X.sparse, others))
    if isinstance(others, MixedRows):
        others = others.sparse
    return only_columns(X, np.bincount(others.indices, minlength=others.shape[1]) > 0)


def only_columns(X: Any, keep: npt.NDArray[np.bool_]) -> Any:
    """Return the matrix with only the entries in the columns to keep."""
    kept: Any = X.copy()
    kept.data[~keep[kept.indices]] = 0
    kept.eliminate_zeros()
    return kept
