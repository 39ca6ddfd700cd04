"""Rows and labels → those to train on, and those to judge by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dismec.data.counts import counted
from dismec.data.matrices import check_Y
from dismec.data.mixed import MixedRows
from dismec.data.targets import matrix_of_labels
from dismec.data.training_file import TrainingData
from dismec.errors import DataError, located
from dismec.training.job import Job

_MOST_ROWS = 10_000
_FEW_LABELS = 400  # up to this many labels, a trial trains all of them
EVERY = 6  # above that, it trains every sixth


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
    def prepare(
        cls, job: Job, given: tuple[Any, Any] | None, hashed: str | None = None
    ) -> Validation:
        """Return the given rows, checked, or hold out a tenth of the job's own."""
        if given is None:
            return cls(None, held_out(job.problem.n_rows - job.data.n_described))
        with located("validation data", DataError):
            X = job.transform.take(given[0])
            Y = check_Y(matrix_of_labels(given[1], job.parts.labels.names), X.shape[0])
        if X.shape[0] == 0:
            raise DataError("validation data: no rows")
        truth: Any = Y
        if not truth[:, : job.problem.n_labels].nnz:
            raise DataError("validation data: no row has a label of the training data")
        return cls(TrainingData(X, Y, hashed=hashed), np.empty(0, np.int64))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that identify these rows in a manifest (`dismec.model.provenance`)."""
        if self.given is None:
            return {"rows": len(self.rows)}
        return {"rows": self.given.X.shape[0], "data": self.given.fingerprint[:16]}

    def split(self, job: Job) -> tuple[TrainingData, TrainingData]:
        """Return the job's rows without those held out, and the rows to judge by."""
        if self.given is not None:
            return replace(job.data, names=None, source=None), self.given
        others = np.delete(np.arange(job.problem.n_rows), self.rows)
        data, judge = job.data.at(others), job.data.at(self.rows)
        data = replace(data, n_described=job.data.n_described)
        if job.parts.vocabulary:
            # Words of later texts that no training text has are not counted.
            judge = replace(judge, X=only_known(judge.X, data.X))
        return data, judge


def sampled(Y: Any, counts: npt.NDArray[np.int64], every: int = EVERY) -> tuple[Any, float]:
    """Return Y with 1 in `every` labels, in order of frequency, and the share of labels kept.

    If there are few labels, all are kept. Labels of similar frequency share a curve, so a sample is
    enough to fit it.
    """
    keep, share = sample_mask(counts, every)
    return (Y if keep is None else only_columns(Y, keep)), share


def sample_mask(
    counts: npt.NDArray[np.int64], every: int = EVERY
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
