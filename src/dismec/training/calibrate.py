"""Fit a model's calibration to the scores of held-out rows.

Most labels have too few rows for a curve of their own, and for the rest an individual curve does
not make held-out rows more likely. So all labels share two fits, one on top of the other (notation
of `dismec.model.calibration`):

1. the shared curve: logistic regression of the hits on (1, s, c, s·c);
2. the bend: the log-odds of margin classifiers rise faster below the margin than above it, and a
   single straight line is wrong where it matters most.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.data.counts import counted
from dismec.data.matrices import check_csr
from dismec.data.weights import RowWeights, check_row_weights
from dismec.errors import DataError
from dismec.measure.metrics import hits
from dismec.model.calibration import LEAST_SLOPE, Calibration, bend_terms, logistic, shared_curve
from dismec.model.model import Model

Floats = npt.NDArray[np.float64]
# Curves are fitted on the best-scoring labels of each row: 10 of them, or the mean number of labels
# per row if that is larger. With 5 or 20, ranking held-out rows by probability is less accurate
# (``docs/howto/refining.md``): every further label adds irrelevant pairs that the curve has to fit.
_CANDIDATES, _MOST_CANDIDATES = 10, 100
_EXAMINED = 10  # thresholds are chosen on this many times more labels per row
_SHARE_OF_FULL_ROWS = 0.01  # share of rows in which all of those labels may reach a threshold
_STEPS = 30  # maximum number of Newton steps
_LARGEST_SCORE = 50.0  # scores are clipped to this; the margin is at 1
# Prior mean and standard deviation of the coefficients of the shared curve and of the bend.
_CURVE_MEAN, _CURVE_SPREAD = np.array([0.0, 3.0, 0.0, 0.0]), np.array([10.0, 3.0, 3.0, 1.0])
_BEND_MEAN, _BEND_SPREAD = np.array([0.0, 1.0, 0.0, 0.0, 0.0]), np.array([1.0, 1.0, 1.0, 1.0, 1.0])
_THRESHOLDS = np.arange(1, 40) / 40  # candidates for macro-F1
_PRIOR_HITS = 10.0  # expected hits at which a label's own F1 and the mean F1 weigh the same


def fit_calibration(
    model: Model,
    X: Any,
    Y: Any,
    *,
    counts: npt.NDArray[np.int64] | None = None,
    share: float = 1.0,
    weights: RowWeights | None = None,
    threads: int | None = None,
    by_count: bool = True,
) -> Calibration:
    """Fit the calibration of a model on rows that it was not trained on.

    The curves are fitted on the best-scoring labels of each row, 10 or slightly more. This
    selection depends on scores only, so it does not bias the probability of a label given its
    score. The curves are accurate for labels that may be predicted and extrapolate far below that.

    Thresholds are chosen on ten times as many labels per row. True labels ranked below those count
    as missed in F1. Nothing is known about the other labels down there, so no threshold is low
    enough to assign all examined labels to more than one row in a hundred.

    `model` has the same parameters but was trained without these rows. It need not be the model
    that the calibration is for: retraining on all rows changes scores little. One row is enough for
    an answer, a thousand for a good one. `counts` are the training rows of each label of the model
    that the calibration is for, by default of `model`. `share` is the share of all labels that
    `model` has; proportionally fewer labels per row are examined. A row of weight 2 counts like two
    rows. Without `by_count`, all labels share one curve, whatever their numbers of rows.

    Raises `DataError` if X and Y do not fit the model or each other, or there are no rows.
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
    row_weights = np.ones(truth.shape[0])
    if weights is not None:
        row_weights = check_row_weights(weights, truth.shape[0])
    pair_weights = np.repeat(row_weights, np.diff(truth.indptr))
    labels_per_row = float(pair_weights.sum() / row_weights.sum())
    candidates = min(max(_CANDIDATES * share, labels_per_row), _MOST_CANDIDATES)
    depth = max(int(np.ceil(candidates)), 1)
    n_examined = max(min(_EXAMINED * depth, n_labels), 1)
    top, scores = model.predict_topk(X, n_examined, rank="score", threads=threads)
    found = hits(truth, top)
    filled = top >= 0
    fitted = np.broadcast_to(np.arange(top.shape[1]) < depth, top.shape)[filled]
    label, y = top[filled], found[filled].astype(np.float64)
    v = np.broadcast_to(row_weights[:, None], top.shape)[filled]
    s = np.clip(scores[filled].astype(np.float64), -_LARGEST_SCORE, _LARGEST_SCORE)

    first = model.first_labels
    c = np.log1p(model.label_counts[first]) * by_count
    terms = np.stack([np.ones_like(s), s, c[label], s * c[label]])
    curve = _regress(terms[:, fitted], y[fitted], v[fitted], _CURVE_MEAN, _CURVE_SPREAD)
    slopes, intercepts = shared_curve(curve, c)
    z = slopes[label] * s + intercepts[label]
    bend = _increasing(
        _regress(bend_terms(z)[:, fitted], y[fitted], v[fitted], _BEND_MEAN, _BEND_SPREAD)
    )

    p = logistic(bend @ bend_terms(z))
    least = 0.0
    if top.shape[1] < n_labels:
        deepest = np.zeros(top.shape)
        deepest[filled] = p
        least = float(np.quantile(deepest[:, -1], 1 - _SHARE_OF_FULL_ROWS))
    n_true = np.zeros(n_labels)
    np.add.at(n_true, first[truth.indices], pair_weights)
    thresholds, general = _macro_thresholds(first[label], p, y > 0, v, n_true, least)
    if counts is not None:
        slopes, intercepts = shared_curve(curve, np.log1p(counts[first]) * by_count)
    return Calibration(
        slopes.astype(np.float32),
        intercepts.astype(np.float32),
        np.concatenate([curve, bend, [general]]),
        _micro_threshold(p, y, v, float(pair_weights.sum()), least),
        thresholds[first].astype(np.float32),
    )


def _increasing(bend: Floats) -> Floats:
    """Return the bend with every slope raised to at least `LEAST_SLOPE`."""
    slopes = np.maximum(np.cumsum(bend[1:]), LEAST_SLOPE)
    return np.concatenate([bend[:1], slopes[:1], np.diff(slopes)])


def _losses(z: Floats, y: Floats) -> Floats:
    """Return the logistic loss of each pair."""
    result: Floats = np.logaddexp(0, z) - y * z
    return result


def _regress(terms: Floats, y: Floats, v: Floats, center: Floats, spread: Floats) -> Floats:
    """Return the coefficients of a logistic regression with a normal prior.

    The prior has mean `center` and standard deviation `spread`; `v` are the weights of the pairs.
    The objective is strictly convex for any data and is minimized with Newton's method.
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
    """Return the threshold with the highest micro-F1, halfway to the next lower probability."""
    p, y, v = p[p >= least], y[p >= least], v[p >= least]
    order = np.argsort(-p, kind="stable")
    p, y, v = p[order], y[order], v[order]
    ends = np.flatnonzero(np.append(np.diff(p) < 0, p.size > 0))  # ties are assigned together
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
    """Return the threshold with the highest F1 for each label, and one for labels without data.

    The F1 of a label at a threshold is estimated by a weighted mean of two values: the F1 that its
    probabilities predict, and the observed mean F1 of all labels. The more hits are expected of a
    label, the more the former counts. Predicted F1 varies less than F1 observed on a few rows.
    """
    n_labels = len(n_true)
    expected = np.bincount(label, v * p, minlength=n_labels)
    own = expected / (expected + _PRIOR_HITS)
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
    if best_mean == 0:  # no label had a hit at any threshold
        return np.full(n_labels, 0.5), 0.5
    return threshold, general
