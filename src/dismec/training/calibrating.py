"""Scores of rows that a model was not trained on → its calibration.

Most labels have too few rows to fit a curve on, and for the others one of their own does not make
held-out rows more likely. So two fits build on each other (notation of `dismec.model.calibration`):

1. the shared curve: logistic regression of the hits on (1, s, c, s·c);
2. the bend: scores of margin classifiers rise faster below the margin than above it, and a straight
   line through both is wrong where it matters most.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.data.counts import counted
from dismec.data.matrices import check_csr
from dismec.data.row_weights import RowWeights, check_row_weights
from dismec.errors import DataError
from dismec.measure.metrics import hits
from dismec.model.calibration import LEAST_SLOPE, Calibration, bend_terms, logistic, shared_curve
from dismec.model.model import Model

__all__ = ["fit_calibration"]

Floats = npt.NDArray[np.float64]
# The labels of a row that curves are fitted on: as many, or as many as rows have on average if that
# is more. With 5 or 20, held-out rows are ranked worse by probability
# (``docs/howto/refining.md``); the more there are, the more irrelevant pairs a curve has to fit.
_CANDIDATES, _MOST_CANDIDATES = 10, 100
_DEEPER = 10  # times as many are looked at for thresholds
_FULL_ROWS = 0.01  # rows that may reach a threshold with all of those
_STEPS = 30  # of Newton's method, at most
_LARGEST_SCORE = 50.0  # that curves are fitted on; the margin is at 1
# The shared curve and the bend where there are no data, and how sure that is.
_CURVE, _CURVE_SPREAD = np.array([0.0, 3.0, 0.0, 0.0]), np.array([10.0, 3.0, 3.0, 1.0])
_BEND, _BEND_SPREAD = np.array([0.0, 1.0, 0.0, 0.0, 0.0]), np.array([1.0, 1.0, 1.0, 1.0, 1.0])
_THRESHOLDS = np.arange(1, 40) / 40  # that are tried for macro-F1
_HITS_OF_PRIOR = 10.0  # expected of a label when its own F1 counts as much as that of all


def fit_calibration(
    model: Model,
    X: Any,
    Y: Any,
    *,
    counts: npt.NDArray[np.int64] | None = None,
    share: float = 1.0,
    weights: RowWeights | None = None,
    threads: int | None = None,
) -> Calibration:
    """The calibration of a model by rows that it was not trained on.

    Curves are fitted on the labels of each row that score best, 10 or somewhat more. This choice
    looks only at scores, and so does not bias what is learned of labels with a given score; it
    makes curves right for labels that may be predicted, and an extrapolation far below. Thresholds
    are chosen on ten times as many. True labels further down are not lost to F1, they count as
    missed; what else is there is not known, so that no threshold is so low that one row in a
    hundred would be assigned all that was looked at.

    Parameters
    ----------
    model
        A model of the same parameters, trained without these rows. It need not be the one that
        the calibration is for: training on all rows afterwards moves the scores little.
    X, Y
        (n_rows, up to n_features) and (n_rows, up to n_labels); one row is enough for an answer,
        a thousand for a good one.
    counts
        Training rows of each label of the model that it is for, by default of `model`: their
        curves go by these.
    share
        How many of all labels `model` has, if it is of some: as many fewer of a row are looked at.
    weights
        How much each row counts: as often as if it were there so many times.
    threads
        All available CPUs by default.

    Raises
    ------
    DataError
        If X and Y do not fit the model or each other, or there are no rows.
    """
    n_labels = model.n_labels
    truth: Any = check_csr(Y, "Y", "labels").copy()
    if truth.shape[1] > n_labels:
        raise DataError(f"Y has {counted(truth.shape[1], 'label')}, the model has {n_labels}")
    truth.resize((truth.shape[0], n_labels))
    truth.sum_duplicates()
    truth.eliminate_zeros()
    if truth.shape[0] == 0:
        raise DataError("there are no rows to calibrate on")
    of_row = np.ones(truth.shape[0])
    if weights is not None:
        of_row = check_row_weights(weights, truth.shape[0])
    of_true = np.repeat(of_row, np.diff(truth.indptr))
    labels_per_row = float(of_true.sum() / of_row.sum())
    usual = min(max(_CANDIDATES * share, labels_per_row), _MOST_CANDIDATES)
    depth = max(int(np.ceil(usual)), 1)
    deep = max(min(_DEEPER * depth, n_labels), 1)
    top, scores = model.predict_topk(X, deep, rank="score", threads=threads)
    found = hits(truth, top)
    there = top >= 0
    near = np.broadcast_to(np.arange(top.shape[1]) < depth, top.shape)[there]
    label, y = top[there], found[there].astype(np.float64)
    v = np.broadcast_to(of_row[:, None], top.shape)[there]
    s = np.clip(scores[there].astype(np.float64), -_LARGEST_SCORE, _LARGEST_SCORE)

    first = model.first_labels
    c = np.log1p(model.label_counts[first])
    terms = np.stack([np.ones_like(s), s, c[label], s * c[label]])
    curve = _regress(terms[:, near], y[near], v[near], _CURVE, _CURVE_SPREAD)
    slopes, intercepts = shared_curve(curve, c)
    z = slopes[label] * s + intercepts[label]
    bend = _increasing(_regress(bend_terms(z)[:, near], y[near], v[near], _BEND, _BEND_SPREAD))

    p = logistic(bend @ bend_terms(z))
    least = 0.0
    if top.shape[1] < n_labels:
        deepest = np.zeros(top.shape)
        deepest[there] = p
        least = float(np.quantile(deepest[:, -1], 1 - _FULL_ROWS))
    n_true = np.zeros(n_labels)
    np.add.at(n_true, first[truth.indices], of_true)
    thresholds, general = _macro_thresholds(first[label], p, y > 0, v, n_true, least)
    if counts is not None:
        slopes, intercepts = shared_curve(curve, np.log1p(counts[first]))
    return Calibration(
        slopes.astype(np.float32),
        intercepts.astype(np.float32),
        np.concatenate([curve, bend, [general]]),
        _micro_threshold(p, y, v, float(of_true.sum()), least),
        thresholds[first].astype(np.float32),
    )


def _increasing(bend: Floats) -> Floats:
    """The bend with no slope below the least."""
    slopes = np.maximum(np.cumsum(bend[1:]), LEAST_SLOPE)
    return np.concatenate([bend[:1], slopes[:1], np.diff(slopes)])


def _losses(z: Floats, y: Floats) -> Floats:
    result: Floats = np.logaddexp(0, z) - y * z
    return result


def _regress(terms: Floats, y: Floats, v: Floats, center: Floats, spread: Floats) -> Floats:
    """The coefficients of a logistic regression, normally distributed around a center.

    Each pair counts as often as `v` says.
    Newton's method on a strictly convex function, whatever the data are.
    """
    precision = spread**-2

    def objective(b: Floats) -> float:
        return float((v * _losses(b @ terms, y)).sum() + precision @ (b - center) ** 2 / 2)

    b, value = center, objective(center)
    for _ in range(_STEPS):
        p = logistic(b @ terms)
        gradient = terms @ (v * (p - y)) + precision * (b - center)
        step = np.linalg.solve((terms * (v * p * (1 - p))) @ terms.T + np.diag(precision), gradient)
        while (at := objective(b - step)) > value and np.abs(step).max() > 1e-9:
            step /= 2
        if value - at < 1e-9 * (1 + value):
            break
        b, value = b - step, at
    return b


def _micro_threshold(p: Floats, y: Floats, v: Floats, n_true: float, least: float) -> float:
    """Where the F1 of all pairs together is highest, half-way to the next lower probability."""
    p, y, v = p[p >= least], y[p >= least], v[p >= least]
    order = np.argsort(-p, kind="stable")
    p, y, v = p[order], y[order], v[order]
    ends = np.flatnonzero(np.append(np.diff(p) < 0, p.size > 0))  # equal ones are assigned together
    f1 = 2 * np.cumsum(v * y)[ends] / (np.cumsum(v)[ends] + n_true)
    if f1.size == 0 or f1.max() == 0:
        return 0.5
    best = int(f1.argmax())
    below = p[ends[best + 1]] if best + 1 < len(ends) else p[ends[best]]
    return float(np.clip((p[ends[best]] + below) / 2, 1e-6, 1 - 1e-6))


def _macro_thresholds(
    label: npt.NDArray[np.int64],
    p: Floats,
    y: npt.NDArray[np.bool_],
    v: Floats,
    n_true: Floats,
    least: float,
) -> tuple[Floats, float]:
    """For each label the threshold of the highest F1, and one for labels nothing is known of.

    The F1 of a label at a threshold is taken to be between that which its probabilities make one
    expect and the mean over all labels, as found: the more hits are expected of it, the nearer to
    the former. What is expected varies less than what few rows happen to show.
    """
    n_labels = len(n_true)
    expected = np.bincount(label, v * p, minlength=n_labels)
    own = expected / (expected + _HITS_OF_PRIOR)
    best, threshold = np.full(n_labels, -np.inf), np.full(n_labels, 0.5)
    best_mean, general = -np.inf, 0.5
    for t in _THRESHOLDS[min(least, _THRESHOLDS[-1]) <= _THRESHOLDS]:
        chosen = p >= t
        assigned = np.bincount(label[chosen], v[chosen], minlength=n_labels)
        found = np.bincount(label[chosen & y], v[chosen & y], minlength=n_labels)
        total = assigned + n_true
        seen = total > 0
        mean = (2 * found / np.where(seen, total, 1)).sum() / max(np.count_nonzero(seen), 1)
        if mean > best_mean:
            best_mean, general = mean, float(t)
        likely = np.bincount(label[chosen], (v * p)[chosen], minlength=n_labels)
        f1 = 2 * likely / np.maximum(assigned + expected, 1e-9)
        at = own * f1 + (1 - own) * mean
        higher = at > best
        best[higher], threshold[higher] = at[higher], t
    if best_mean == 0:  # no label was found at any threshold
        return np.full(n_labels, 0.5), 0.5
    return threshold, general
