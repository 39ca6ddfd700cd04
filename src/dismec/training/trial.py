"""Learn delta and probabilities on rows that a trial training does not see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.dataset import fingerprint
from dismec.data.matrices import check_Y
from dismec.data.mixed import MixedRows
from dismec.data.pair_weights import PairWeights, pairs_at
from dismec.data.row_weights import RowWeights, weights_at
from dismec.data.targets import matrix_of_labels
from dismec.errors import DataError
from dismec.model.manifest import Manifest
from dismec.model.model import Model
from dismec.solve.costs import Costs
from dismec.training import delta, resume
from dismec.training.calibrating import fit_calibration
from dismec.training.job import Job
from dismec.training.params import TrainingParams
from dismec.training.request import Progress, Request, part_of
from dismec.training.stages import Stages

__all__ = ["Split", "Trial", "Validation", "only_columns", "only_known", "only_labels", "sampled"]

_STAGE = "trial"
_FEW_LABELS = 400  # up to this many labels, a trial trains all of them
_EVERY = 4  # above that, it trains every fourth


class Split(NamedTuple):
    """Rows to train on, and rows to judge by."""

    X: Any
    Y: Any
    X_judge: Any
    Y_judge: Any
    weights: RowWeights | None = None
    weights_judge: RowWeights | None = None
    costs: Costs | None = None  # of labels, as of a `Job`
    pairs: PairWeights | None = None  # of rows to train on

    def job(self, params: TrainingParams) -> Job:
        """Return the job for the rows to train on."""
        request = Request(self.X, self.Y, params, weights=self.weights, costs=self.costs)
        return Job.prepare(replace(request, pair_weights=self.pairs))

    def fit(
        self, params: TrainingParams, stages: Stages, name: str, progress: Progress | None
    ) -> Model:
        """Train a stage on the rows to train on; all of `params` must be fixed."""
        return stages.trained(name, self.job(params), progress)


class Validation(NamedTuple):
    """The rows to judge a trial by, which it is not trained on."""

    given: tuple[Any, sp.csr_array] | None  # rows passed by the caller
    held_out: npt.NDArray[np.int64]  # otherwise, rows of the job

    @classmethod
    def prepare(cls, job: Job, given: tuple[Any, Any] | None) -> Validation:
        """Return the given rows, checked, or hold out a tenth of the job's own."""
        if given is None:
            return cls(None, delta.held_out(job.X.shape[0]))
        try:
            X = job.transform.take(given[0])
            Y = check_Y(matrix_of_labels(given[1], job.parts.labels.names), X.shape[0])
        except DataError as error:
            raise DataError(f"validation data: {error}") from None
        if X.shape[0] == 0:
            raise DataError("validation data: no rows")
        truth: Any = Y
        if not truth[:, : job.Y.shape[1]].nnz:
            raise DataError("validation data: no row has a label of the training data")
        return cls((X, Y), np.empty(0, np.int64))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that identify these rows in a manifest (`dismec.model.provenance`)."""
        if self.given is None:
            return {"rows": len(self.held_out)}
        return {"rows": self.given[0].shape[0], "data": fingerprint(*self.given)[:16]}

    def split(self, job: Job) -> Split:
        """Return the job's rows without those held out, and the rows to judge by."""
        X: Any = job.X
        Y: Any = job.Y
        if self.given is not None:
            return Split(X, Y, *self.given, job.weights, None, job.costs, job.pairs)
        judge = X[self.held_out], Y[self.held_out]
        others = np.delete(np.arange(X.shape[0]), self.held_out)
        X, Y = X[others], Y[others]
        if job.parts.vocabulary:
            # Words of later texts that no training text has are not counted.
            judge = only_known(judge[0], X), judge[1]
        weights = weights_at(job.weights, others), weights_at(job.weights, self.held_out)
        return Split(X, Y, *judge, *weights, job.costs, pairs_at(job.pairs, others))


class Trial(NamedTuple):
    """A training on some of the rows, to learn delta and probabilities from the others."""

    job: Job  # its manifest states which rows are used
    validation: Validation | None

    @classmethod
    def prepare(cls, job: Job, given: tuple[Any, Any] | None) -> Trial:
        """Return the trial that the job's parameters require, which for most is none."""
        params = job.params
        if not params.holds_out:
            if given is not None and params.refine:
                raise DataError(
                    "validation data is not supported with refine, which holds out training rows"
                )
            if given is not None:
                raise DataError(
                    'validation data is used only with delta="auto" or calibrate=True, '
                    f"but delta is {params.delta}"
                )
            return cls(job, None)
        n_labels = job.Y.shape[1]
        if params.chooses_delta and n_labels < 2:
            raise DataError(
                f'delta="auto" needs at least 2 labels to rank, the data have {n_labels}; '
                "set delta to a number"
            )
        validation = Validation.prepare(job, given)
        facts = {"delta_auto": validation.fields} if params.chooses_delta else {}
        if params.calibrate and not params.refine:
            facts["calibrated"] = validation.fields
        return cls(job.with_facts(**facts), validation)

    def outcome(
        self, stages: Stages, earlier: Manifest | None, progress: Progress | None
    ) -> tuple[Job, Manifest | None, Progress | None]:
        """Return the job with what is learned, now or by an earlier run.

        Also return the run to resume, and the progress callback for the remaining work.
        """
        if self.validation is None:
            return self.job, earlier, progress
        total, share = self.job.problem.n_labels, self._share
        rest = part_of(progress, total, 2 * total, (share / (1 + share), 1.0))
        if stages.directory and earlier:
            known = resume.known_trial(stages.directory, self.job, earlier)
            if known:
                return known, earlier, rest
        earlier = stages.begin(self.job, earlier)
        part = part_of(progress, 0, 2 * total, (0.0, share / (1 + share)))
        learned = self._learn(self.validation, stages, part)
        earlier = stages.begin(learned, earlier)
        stages.drop(_STAGE)
        return learned, earlier, rest

    @property
    def _share(self) -> float:
        """The share of all labels that the trial trains."""
        if self.job.params.chooses_delta:  # it is judged by rankings of all labels
            return 1.0
        return _sample(self.job.parts.labels.counts)[1]

    def _learn(self, validation: Validation, stages: Stages, progress: Progress | None) -> Job:
        """Train the trial and return the job with the delta and calibration learned from it."""
        job, threads, share = self.job, stages.place.threads, self._share
        split = validation.split(job)
        if not job.params.chooses_delta:
            some, _ = sampled(split.Y, job.parts.labels.counts)
            split = split._replace(Y=some, Y_judge=only_labels(split.Y_judge, some))
        params = replace(job.params, delta=job.params.solver.delta, calibrate=False, refine=False)
        model = split.fit(params, stages, _STAGE, progress)
        if job.params.chooses_delta:
            judge = split.X_judge, split.Y_judge
            choice = delta.choose(model, *judge, weights=split.weights_judge, threads=threads)
            job = job.with_delta(choice.delta, choice.effect)
            model = model.pruned(choice.delta)
        if job.params.calibrate and not job.params.refine:
            curves = fit_calibration(
                model,
                split.X_judge,
                split.Y_judge[:, : model.n_labels],  # may have labels without training rows
                counts=job.parts.labels.counts,
                share=share,
                weights=split.weights_judge,
                threads=threads,
            )
            job = job.with_calibration(curves.taken_from(job.problem.equal_labels.groups))
        return job


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
