"""Scores → probabilities, and the thresholds at which labels are assigned.

P(label l | score s) = 1/(1 + exp(−bend(z))), z = slope_l·s + intercept_l. Without the bend this is
Platt's curve. Labels with few rows have the slope and intercept of the *shared* curve, which are
linear in c = log(1 + training rows of the label). The *bend* is the same for all labels, increasing
and linear between a few knots. `dismec.training.calibrate` fits all three.

Because z is linear in the row and the bend is increasing, the most probable labels are found in the
same way as those with the best scores. Labels that share a classifier have the same scores and
therefore share a curve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.data.counts import counted
from dismec.errors import ModelError

Floats = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]
Labels = npt.NDArray[np.integer[Any]]

_KNOTS = (-2.0, 0.0, 2.0)  # knots of the bend
LEAST_SLOPE = 0.1  # lower limit for the slopes of the shared curve and the bend
_MOST_PROBABLE = np.nextafter(np.float32(1), np.float32(0))


@dataclass(frozen=True, eq=False)
class Calibration:
    """A mapping from a model's scores to probabilities, with thresholds for assigning labels.

    Raises `ModelError` if a shape, a sign or a range is wrong.

    `shared` holds the coefficients of the shared curve for 1, s, c and s·c; those of the bend for
    1, z and max(0, z − knot) at −2, 0 and 2; and the macro-F1 threshold for labels that have none
    of their own.
    """

    slopes: Float32s  # (n_labels,), positive
    intercepts: Float32s  # (n_labels,)
    shared: Floats  # (10,)
    micro_threshold: float  # probability threshold that maximizes micro-F1
    macro_thresholds: Float32s  # (n_labels,): thresholds per label that maximize macro-F1

    def __post_init__(self) -> None:
        sizes = dict.fromkeys(("slopes", "intercepts", "macro_thresholds"), len(self.slopes))
        for name, size in {**sizes, "shared": 10}.items():
            values = getattr(self, name)
            if values.shape != (size,):
                raise ModelError(f"calibration: {name} has shape {values.shape}, not ({size},)")
            if not np.isfinite(values).all():
                raise ModelError(f"calibration: {name} contains a value that is not finite")
        if not (self.slopes > 0).all():
            raise ModelError("calibration: a slope is not positive")
        if not (np.diff(self._nodes[1]) > 0).all():
            raise ModelError("calibration: the bend is not increasing")
        for threshold in (self.micro_threshold, self.shared[9], self.macro_thresholds):
            if not np.all((np.float32(0) < threshold) & (threshold < np.float32(1))):
                raise ModelError("calibration: a threshold is not between 0 and 1")

    @property
    def n_labels(self) -> int:
        """Number of labels."""
        return len(self.slopes)

    def probabilities(self, labels: npt.ArrayLike, scores: npt.ArrayLike) -> Float32s:
        """Return the probabilities of labels with these scores; both arrays have the same shape.

        Empty places (label −1) have probability 0.
        """
        of = np.asarray(labels)
        score = np.where(of < 0, 0, np.asarray(scores, np.float64))
        if self.n_labels == 0:
            return np.zeros(of.shape, np.float32)
        p = self.of_logits(self.slopes[of].astype(np.float64) * score + self.intercepts[of])
        return np.where(of < 0, np.float32(0), p)

    def of_logits(self, z: npt.ArrayLike) -> Float32s:
        """Return the probabilities for z = slope·score + intercept; they never decrease with z."""
        bent = np.interp(np.asarray(z, np.float64), *self._nodes)
        p = logistic(bent).astype(np.float32)
        return np.minimum(p, _MOST_PROBABLE)  # nothing learned from data is certain

    def logits(self, probabilities: npt.ArrayLike) -> Floats:
        """Invert `of_logits`, for probabilities above 0 and below 1."""
        p = np.asarray(probabilities, np.float64)
        x, y = self._nodes
        z: Floats = np.interp(np.log(p) - np.log1p(-p), y, x)
        return z

    def scores(self, labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> Float32s:
        """Return the scores at which labels have these probabilities: invert `probabilities`."""
        of = np.asarray(labels)
        p = np.clip(np.asarray(probabilities, np.float64), 1e-30, _MOST_PROBABLE)
        scores: Floats = (self.logits(p) - self.intercepts[of]) / self.slopes[of]
        return scores.astype(np.float32)

    @cached_property
    def _nodes(self) -> tuple[Floats, Floats]:
        """The corners of the bend, between two end points that are beyond any z."""
        z = np.array([-1e6, *_KNOTS, 1e6])
        return z, self.shared[4:9] @ bend_terms(z)

    def for_labels(self, counts: npt.ArrayLike) -> tuple[Float32s, Float32s, Float32s]:
        """Return slopes, intercepts and macro-F1 thresholds according to the shared curve alone.

        `counts` are the numbers of training rows of labels that did not exist when the curves were
        fitted.
        """
        slopes, intercepts = shared_curve(self.shared[:4], np.log1p(np.asarray(counts, np.float64)))
        thresholds = np.full(slopes.shape, self.shared[9], np.float32)
        return slopes.astype(np.float32), intercepts.astype(np.float32), thresholds

    def extended(self, counts: npt.ArrayLike) -> Calibration:
        """Return a calibration with further labels, given their numbers of training rows."""
        slopes, intercepts, thresholds = self.for_labels(counts)
        return replace(
            self,
            slopes=np.concatenate([self.slopes, slopes]),
            intercepts=np.concatenate([self.intercepts, intercepts]),
            macro_thresholds=np.concatenate([self.macro_thresholds, thresholds]),
        )

    def with_curve(self, labels: Any, slope: float, intercept: float) -> Calibration:
        """Return a calibration in which these labels have this slope and intercept."""
        slopes, intercepts = self.slopes.copy(), self.intercepts.copy()
        slopes[labels], intercepts[labels] = slope, intercept
        return replace(self, slopes=slopes, intercepts=intercepts)

    def taken_from(self, labels: Labels) -> Calibration:
        """Return a calibration whose label i has the curve and threshold of ``labels[i]`` here."""
        return replace(
            self,
            slopes=self.slopes[labels],
            intercepts=self.intercepts[labels],
            macro_thresholds=self.macro_thresholds[labels],
        )

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all fields as arrays by name, for a file."""
        return {f.name: np.atleast_1d(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], n_labels: int) -> Calibration:
        """Invert `to_arrays`; raise `ModelError` unless this is a calibration of `n_labels`."""
        kinds: dict[str, np.dtype[Any]] = {f.name: np.dtype(np.float32) for f in fields(cls)}
        kinds |= {"shared": np.dtype(np.float64), "micro_threshold": np.dtype(np.float64)}
        for name in sorted(arrays.keys() ^ kinds.keys()):
            state = "missing" if name in kinds else "not expected"
            raise ModelError(f"calibration: {name} is {state}")
        for name, dtype in kinds.items():
            if arrays[name].dtype != dtype:
                raise ModelError(f"calibration: {name} is {arrays[name].dtype}, not {dtype}")
        if arrays["slopes"].shape != (n_labels,):
            size = counted(arrays["slopes"].size, "label")
            raise ModelError(f"calibration: it has {size}, the model has {n_labels:,}")
        if arrays["micro_threshold"].shape != (1,):
            raise ModelError("calibration: micro_threshold is not one number")
        return cls(**{**arrays, "micro_threshold": float(arrays["micro_threshold"][0])})  # type: ignore[arg-type]


def logistic(z: npt.ArrayLike) -> Floats:
    """Return 1/(1 + exp(−z)), without overflow."""
    p: Floats = 1 / (1 + np.exp(-np.clip(np.asarray(z, np.float64), -85, 85)))
    return p


def shared_curve(curve: Floats, c: Floats) -> tuple[Floats, Floats]:
    """Return slopes and intercepts according to the shared curve."""
    slopes: Floats = np.maximum(curve[1] + curve[3] * c, LEAST_SLOPE)
    return slopes, curve[0] + curve[2] * c


def bend_terms(z: Floats) -> Floats:
    """Return the terms whose weighted sum is the bend: 1, z, and max(0, z − knot) per knot."""
    return np.stack([np.ones_like(z), z, *(np.maximum(0, z - knot) for knot in _KNOTS)])
