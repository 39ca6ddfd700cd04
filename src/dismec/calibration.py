"""Scores → probabilities, and the probabilities from which labels are assigned.

P(label l | score s) = 1/(1 + exp(−bend(z))), z = slope_l·s + intercept_l. Without the bend this is
Platt's curve. Most labels have too few rows to fit theirs on; so three fits build on each other,
all on rows that the weights were not trained on:

1. the *shared* curve, whose slope and intercept are linear in c = log(1 + training rows of the
   label): logistic regression of the hits on (1, s, c, s·c);
2. the curve of each label, the most probable one if log(slope) and intercept are normally
   distributed around those of the shared curve for its count. Labels with many held-out hits get
   a curve of their own, and the tail keeps the shared one;
3. the *bend*, the same for all labels, increasing and linear between a few knots: scores of
   margin classifiers rise faster below the margin than above it, and a straight line through both
   is wrong where it matters most.

As z is linear in the row and the bend increases, the most probable labels can be found as those
with the best scores are. Labels that share a classifier have the same scores, and hence one curve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dismec import metrics
from dismec.errors import DataError, ModelError
from dismec.features import check_csr

if TYPE_CHECKING:
    from dismec.model import Model

__all__ = ["Calibration", "fit", "logistic"]

Floats = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]
Labels = npt.NDArray[np.integer[Any]]

# The labels of a row that curves are fitted on: as many, or twice as many as rows have labels on
# average if that is more. Measured with 10 to 400: the more, the worse are the probabilities of the
# first places, as a curve has to follow ever more pairs that nobody asks for.
_CANDIDATES, _MOST_CANDIDATES = 20, 200
_DEEPER = 5  # times as many are looked at for thresholds
_FULL_ROWS = 0.01  # rows that may reach a threshold with all of those
_STEPS = 30  # of Newton's method, at most
_LARGEST_SCORE = 50.0  # that curves are fitted on; the margin is at 1
# The shared curve and the bend where there are no data, and how sure that is.
_CURVE, _CURVE_SPREAD = np.array([0.0, 3.0, 0.0, 0.0]), np.array([10.0, 3.0, 3.0, 1.0])
_BEND, _BEND_SPREAD = np.array([0.0, 1.0, 0.0, 0.0, 0.0]), np.array([1.0, 1.0, 1.0, 1.0, 1.0])
_KNOTS = (-2.0, 0.0, 2.0)  # of the bend
_LEAST_SLOPE = 0.1  # of the shared curve and the bend
# Of log(slope) and intercept around the shared curve. With three times as much, test rows were less
# likely on the three sets where this was tried; with next to nothing, about as likely.
_SLOPE_SPREAD, _INTERCEPT_SPREAD = 0.1, 0.3
_MOST = np.nextafter(np.float32(1), np.float32(0))
_GRID = np.arange(1, 40) / 40  # thresholds for macro-F1
_HITS_OF_PRIOR = 10.0  # expected of a label when its own F1 counts as much as that of all


@dataclass(frozen=True, eq=False)
class Calibration:
    """What makes probabilities of a model's scores.

    Attributes
    ----------
    slopes, intercepts
        float32 (n_labels,): of each label's curve; slopes are above 0.
    shared
        float64 (10,): coefficients of the shared curve for 1, s, c and s·c; those of the bend for
        1, z and max(0, z − knot) at −2, 0 and 2; and the threshold for macro-F1 of labels that
        nothing else is known of.
    micro_threshold
        The probability from which on labels are assigned for the highest micro-F1.
    macro_thresholds
        float32 (n_labels,): the same for macro-F1, label by label.

    Raises
    ------
    ModelError
        If sizes do not fit together, or a value is not finite or outside its range.
    """

    slopes: Float32s
    intercepts: Float32s
    shared: Floats
    micro_threshold: float
    macro_thresholds: Float32s

    def __post_init__(self) -> None:
        n_labels = len(self.slopes)
        for name, size in [
            ("slopes", n_labels),
            ("intercepts", n_labels),
            ("macro_thresholds", n_labels),
            ("shared", 10),
        ]:
            values = getattr(self, name)
            if values.shape != (size,):
                raise ModelError(f"calibration: {name} has shape {values.shape}, not ({size},)")
            if not np.isfinite(values).all():
                raise ModelError(f"calibration: {name} holds a value that is not finite")
        if not (self.slopes > 0).all():
            raise ModelError("calibration: a slope is not above 0")
        if not (np.diff(self._nodes[1]) > 0).all():
            raise ModelError("calibration: the bend does not increase")
        for threshold in (self.micro_threshold, self.shared[9], self.macro_thresholds):
            if not np.all((np.float32(0) < threshold) & (threshold < np.float32(1))):
                raise ModelError("calibration: a threshold is not between 0 and 1")

    @property
    def n_labels(self) -> int:
        """Number of labels."""
        return len(self.slopes)

    def probabilities(self, labels: npt.ArrayLike, scores: npt.ArrayLike) -> Float32s:
        """The probabilities of labels with these scores, arrays of one shape.

        Empty places, label −1, have probability 0.
        """
        of = np.asarray(labels)
        score = np.where(of < 0, 0, np.asarray(scores, np.float64))
        if self.n_labels == 0:
            return np.zeros(of.shape, np.float32)
        p = self.of_logits(self.slopes[of].astype(np.float64) * score + self.intercepts[of])
        return np.where(of < 0, np.float32(0), p)

    def of_logits(self, z: npt.ArrayLike) -> Float32s:
        """The probabilities for slope·score + intercept; never falling as it rises."""
        p = logistic(self._bent(z)).astype(np.float32)
        return np.minimum(p, _MOST)  # of nothing that is learned one can be certain

    def logits(self, probabilities: npt.ArrayLike) -> Floats:
        """The inverse of `of_logits`, for probabilities above 0 and below 1."""
        p = np.asarray(probabilities, np.float64)
        x, y = self._nodes
        z: Floats = np.interp(np.log(p) - np.log1p(-p), y, x)
        return z

    def _bent(self, z: npt.ArrayLike) -> Floats:
        result: Floats = np.interp(np.asarray(z, np.float64), *self._nodes)
        return result

    @property
    def _nodes(self) -> tuple[Floats, Floats]:
        """The corners of the bend, and two ends that are beyond any z."""
        z = np.array([-1e6, *_KNOTS, 1e6])
        return z, self.shared[4:9] @ _bend_terms(z)

    def for_labels(self, counts: npt.ArrayLike) -> tuple[Float32s, Float32s, Float32s]:
        """Slopes, intercepts and macro-F1 thresholds by the shared curve alone.

        `counts` are the training rows of labels that were not there when the curves were fitted.
        """
        slopes, intercepts = _curve(self.shared[:4], np.log1p(np.asarray(counts, np.float64)))
        thresholds = np.full(slopes.shape, self.shared[9], np.float32)
        return slopes.astype(np.float32), intercepts.astype(np.float32), thresholds

    def extended(self, counts: npt.ArrayLike) -> Calibration:
        """With labels appended that had so many training rows."""
        slopes, intercepts, thresholds = self.for_labels(counts)
        return replace(
            self,
            slopes=np.concatenate([self.slopes, slopes]),
            intercepts=np.concatenate([self.intercepts, intercepts]),
            macro_thresholds=np.concatenate([self.macro_thresholds, thresholds]),
        )

    def taken_from(self, labels: Labels) -> Calibration:
        """One whose label i has what label ``labels[i]`` has here."""
        return replace(
            self,
            slopes=self.slopes[labels],
            intercepts=self.intercepts[labels],
            macro_thresholds=self.macro_thresholds[labels],
        )

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All of it as arrays by name, to be stored."""
        return {f.name: np.atleast_1d(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], n_labels: int) -> Calibration:
        """The inverse of `to_arrays`.

        Raises
        ------
        ModelError
            If an array is missing, unknown or of another type or size, or holds what no
            calibration does.
        """
        kinds: dict[str, np.dtype[Any]] = {f.name: np.dtype(np.float32) for f in fields(cls)}
        kinds |= {"shared": np.dtype(np.float64), "micro_threshold": np.dtype(np.float64)}
        for name in sorted(arrays.keys() ^ kinds.keys()):
            state = "missing" if name in kinds else "not expected"
            raise ModelError(f"calibration: {name} is {state}")
        for name, dtype in kinds.items():
            if arrays[name].dtype != dtype:
                raise ModelError(f"calibration: {name} is {arrays[name].dtype}, not {dtype}")
        if arrays["slopes"].shape != (n_labels,):
            raise ModelError(
                f"calibration: it is of {arrays['slopes'].size} labels, the model has {n_labels}"
            )
        if arrays["micro_threshold"].shape != (1,):
            raise ModelError("calibration: micro_threshold is not one number")
        return cls(**{**arrays, "micro_threshold": float(arrays["micro_threshold"][0])})  # type: ignore[arg-type]


def logistic(z: npt.ArrayLike) -> Floats:
    """1/(1 + exp(−z)), without overflow."""
    p: Floats = 1 / (1 + np.exp(-np.clip(np.asarray(z, np.float64), -85, 85)))
    return p


def fit(
    model: Model,
    X: Any,
    Y: Any,
    *,
    counts: npt.NDArray[np.int64] | None = None,
    threads: int | None = None,
) -> Calibration:
    """The calibration of a model by rows that it was not trained on.

    Curves are fitted on the labels of each row that score best, 20 or somewhat more. This choice
    looks only at scores, and so does not bias what is learned of labels with a given score; it
    makes curves right for labels that may be predicted, and an extrapolation far below. Thresholds
    are chosen on five times as many. True labels further down are not lost to F1, they count as
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
        Training rows of each label of the model that it is for, by default of `model`: the curve
        of a label that `model` had no rows of goes by these.
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
        raise DataError(f"Y has {truth.shape[1]} labels, the model has {n_labels}")
    truth.resize((truth.shape[0], n_labels))
    truth.sum_duplicates()
    truth.eliminate_zeros()
    if truth.shape[0] == 0:
        raise DataError("there are no rows to calibrate on")
    depth = min(max(_CANDIDATES, 2 * truth.nnz // truth.shape[0]), _MOST_CANDIDATES)
    top, scores = model.predict_topk(X, max(min(_DEEPER * depth, n_labels), 1), threads=threads)
    found = metrics.hits(truth, top)
    there = top >= 0
    near = np.broadcast_to(np.arange(top.shape[1]) < depth, top.shape)[there]
    label, y = top[there], found[there].astype(np.float64)
    s = np.clip(scores[there].astype(np.float64), -_LARGEST_SCORE, _LARGEST_SCORE)

    first = model.first_labels
    trained = model.label_counts[first]
    c = np.log1p(np.where(trained > 0, trained, trained if counts is None else counts))
    curve = _regress(_curve_terms(s, c[label])[:, near], y[near], _CURVE, _CURVE_SPREAD)
    slopes, intercepts = _curve(curve, c)
    _fit_own(first[label[near]], s[near], y[near], slopes, intercepts)
    slopes, intercepts = slopes[first], intercepts[first]
    z = slopes[label] * s + intercepts[label]
    bend = _increasing(_regress(_bend_terms(z)[:, near], y[near], _BEND, _BEND_SPREAD))

    p = logistic(bend @ _bend_terms(z))
    least = 0.0
    if top.shape[1] < n_labels:
        deepest = np.zeros(top.shape)
        deepest[there] = p
        least = float(np.quantile(deepest[:, -1], 1 - _FULL_ROWS))
    n_true = np.bincount(first[truth.indices], minlength=n_labels)
    thresholds, general = _macro_thresholds(first[label], p, y > 0, n_true, least)
    return Calibration(
        slopes.astype(np.float32),
        intercepts.astype(np.float32),
        np.concatenate([curve, bend, [general]]),
        _micro_threshold(p, y, truth.nnz, least),
        thresholds[first].astype(np.float32),
    )


def _curve_terms(s: Floats, c: Floats) -> Floats:
    return np.stack([np.ones_like(s), s, c, s * c])


def _curve(curve: Floats, c: Floats) -> tuple[Floats, Floats]:
    """Slopes and intercepts of the shared curve."""
    slopes: Floats = np.maximum(curve[1] + curve[3] * c, _LEAST_SLOPE)
    return slopes, curve[0] + curve[2] * c


def _bend_terms(z: Floats) -> Floats:
    return np.stack([np.ones_like(z), z, *(np.maximum(0, z - knot) for knot in _KNOTS)])


def _increasing(bend: Floats) -> Floats:
    """The bend with no slope below the least."""
    slopes = np.maximum(np.cumsum(bend[1:]), _LEAST_SLOPE)
    return np.concatenate([bend[:1], slopes[:1], np.diff(slopes)])


def _losses(z: Floats, y: Floats) -> Floats:
    result: Floats = np.logaddexp(0, z) - y * z
    return result


def _regress(terms: Floats, y: Floats, centre: Floats, spread: Floats) -> Floats:
    """The coefficients of a logistic regression, normally distributed around a centre.

    Newton's method on a strictly convex function, whatever the data are.
    """
    precision = spread**-2

    def objective(b: Floats) -> float:
        return float(_losses(b @ terms, y).sum() + precision @ (b - centre) ** 2 / 2)

    b, value = centre, objective(centre)
    for _ in range(_STEPS):
        p = logistic(b @ terms)
        gradient = terms @ (p - y) + precision * (b - centre)
        step = np.linalg.solve((terms * (p * (1 - p))) @ terms.T + np.diag(precision), gradient)
        while (at := objective(b - step)) > value and np.abs(step).max() > 1e-9:
            step /= 2
        if value - at < 1e-9 * (1 + value):
            break
        b, value = b - step, at
    return b


def _fit_own(
    label: npt.NDArray[np.int64], s: Floats, y: Floats, slopes: Floats, intercepts: Floats
) -> None:
    """Move the curves of labels from the shared one, in place, to where their own pairs want them.

    Newton's method for all labels at once, on u = log(slope/shared slope) and v = intercept −
    shared intercept, with the expected second derivatives, which are never below 0; a label whose
    objective would rise takes half a step.
    """
    labels, of = np.unique(label, return_inverse=True)
    n = len(labels)
    u, v = np.zeros(n), np.zeros(n)
    a, b = slopes[labels], intercepts[labels]
    of_u, of_v = _SLOPE_SPREAD**-2, _INTERCEPT_SPREAD**-2

    def sums(values: Floats) -> Floats:
        result: Floats = np.bincount(of, values, minlength=n).astype(np.float64, copy=False)
        return result

    def z(u: Floats, v: Floats) -> Floats:
        result: Floats = (a * np.exp(u))[of] * s + (b + v)[of]
        return result

    def objective(u: Floats, v: Floats) -> Floats:
        return sums(_losses(z(u, v), y)) + (of_u * u**2 + of_v * v**2) / 2

    value = objective(u, v)
    for _ in range(_STEPS):
        p = logistic(z(u, v))
        x = (a * np.exp(u))[of] * s
        gu, gv = sums((p - y) * x) + of_u * u, sums(p - y) + of_v * v
        w = p * (1 - p)
        uu, uv, vv = sums(w * x * x) + of_u, sums(w * x), sums(w) + of_v
        determinant = uu * vv - uv * uv
        du, dv = (vv * gu - uv * gv) / determinant, (uu * gv - uv * gu) / determinant
        size = np.minimum(1.0, 2.0 / np.maximum(np.abs(du), 1e-9))  # exp(u) goes far soon
        for _ in range(6):
            at = objective(u - size * du, v - size * dv)
            worse = at > value
            if not worse.any():
                break
            size = np.where(worse, size / 2, size)
        size[worse] = 0
        u, v = u - size * du, v - size * dv
        gain = np.where(worse, 0, value - at).max(initial=0)
        value = np.where(worse, value, at)
        if gain < 1e-6:
            break
    slopes[labels], intercepts[labels] = a * np.exp(u), b + v


def _micro_threshold(p: Floats, y: Floats, n_true: int, least: float) -> float:
    """Where the F1 of all pairs together is highest, half-way to the next lower probability."""
    p, y = p[p >= least], y[p >= least]
    order = np.argsort(-p, kind="stable")
    p, y = p[order], y[order]
    ends = np.flatnonzero(np.append(np.diff(p) < 0, p.size > 0))  # equal ones are assigned together
    f1 = 2 * np.cumsum(y)[ends] / (ends + 1 + n_true)
    if f1.size == 0 or f1.max() == 0:
        return 0.5
    best = int(f1.argmax())
    below = p[ends[best + 1]] if best + 1 < len(ends) else p[ends[best]]
    return float(np.clip((p[ends[best]] + below) / 2, 1e-6, 1 - 1e-6))


def _macro_thresholds(
    label: npt.NDArray[np.int64],
    p: Floats,
    y: npt.NDArray[np.bool_],
    n_true: npt.NDArray[np.int64],
    least: float,
) -> tuple[Floats, float]:
    """For each label the threshold of the highest F1, and one for labels nothing is known of.

    The F1 of a label at a threshold is taken to be between that which its probabilities make one
    expect and the mean over all labels, as found: the more hits are expected of it, the nearer to
    the former. What is expected varies less than what few rows happen to show.
    """
    n_labels = len(n_true)
    expected = np.bincount(label, p, minlength=n_labels)
    own = expected / (expected + _HITS_OF_PRIOR)
    best, threshold = np.full(n_labels, -np.inf), np.full(n_labels, 0.5)
    best_mean, general = -np.inf, 0.5
    for t in _GRID[min(least, _GRID[-1]) <= _GRID]:
        chosen = p >= t
        assigned = np.bincount(label[chosen], minlength=n_labels)
        found = np.bincount(label[chosen & y], minlength=n_labels)
        total = assigned + n_true
        mean = (2 * found / np.maximum(total, 1)).sum() / max(np.count_nonzero(total), 1)
        if mean > best_mean:
            best_mean, general = mean, float(t)
        likely = np.bincount(label[chosen], p[chosen], minlength=n_labels)
        f1 = 2 * likely / np.maximum(assigned + expected, 1e-9)
        at = own * f1 + (1 - own) * mean
        higher = at > best
        best[higher], threshold[higher] = at[higher], t
    if best_mean == 0:  # no label was found at any threshold
        return np.full(n_labels, 0.5), 0.5
    return threshold, general
