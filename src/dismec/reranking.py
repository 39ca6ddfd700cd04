"""Scores and propensities → top k in which rare labels count for more."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dismec.calibration import Calibration
from dismec.errors import DataError
from dismec.features import Transform, check_X
from dismec.manifest import Manifest
from dismec.model import TopkModel
from dismec.parts import Parts
from dismec.predictor import Labels, Predictor, Scores

__all__ = ["Gains", "LogLine", "Reranked"]

Floats = npt.NDArray[np.float64]

_LEAST_PROBABILITY, _MOST_PROBABILITY = 1e-9, 1 - 1e-6  # between which the line is near the curve
_GRID = 4000
_TOUCHES = 0.3  # the probability at which the line has the curve's slope
_ROUNDING = 1e-5  # what it may have taken from a bound, as a share
_FIRST_PLACES, _TIMES = 16, 4  # that are looked at for k: so many more, so many times as many


class LogLine(NamedTuple):
    """A line above the logarithm of a calibration's probabilities.

    log P(z) ≤ slope·z + intercept if P(z) is at least `least`. Labels are ranked by sums that are
    linear in the row; so by log P they are not, and by the line they are.
    """

    slope: float
    intercept: float
    least: float

    @classmethod
    def above(cls, calibration: Calibration) -> LogLine:
        """One that is close where probabilities are neither near 0 nor near 1."""
        touch, step = float(calibration.logits(_TOUCHES)), 1e-3
        around = _log_probabilities(calibration, np.array([touch - step, touch + step]))
        slope = float(around[1] - around[0]) / (2 * step)
        first, last = calibration.logits([_LEAST_PROBABILITY, _MOST_PROBABILITY])
        z = np.linspace(first, last, _GRID)
        # P rises with z: between two points it is at most what it is at the second, and the line
        # is at least what it is at the first. Beyond the last it is at most 1.
        most = np.append(_log_probabilities(calibration, z)[1:], 0.0)
        return cls(slope, float((most - slope * z).max()), _LEAST_PROBABILITY)


class Gains:
    """Ranks labels by P/p^alpha, exactly, where P is a label's probability and p its propensity.

    Candidates come from a ranking by what log(P/p^alpha) is at most. Once the k best of them are at
    least as good as the bound of all that are not among them, they are the best of all labels.

    Parameters
    ----------
    bounds
        Scores labels by ``line.slope·z + line.intercept + bonus``, z as for `calibration`.
    calibration
        What makes probabilities of z.
    line
        Above their logarithm.
    bonus
        float64 (n_labels,): −alpha·log p of each label.
    """

    def __init__(
        self, bounds: Predictor, calibration: Calibration, line: LogLine, bonus: Floats
    ) -> None:
        self._bounds = bounds
        self._calibration = calibration
        self._line = line
        self._bonus = bonus
        # Less than `least` is not below the line, but never more than this.
        self._floor = np.log(line.least) + bonus.max(initial=0.0)

    def topk(self, X: Any, k: int = 5, threads: int | None = None) -> tuple[Labels, Scores]:
        """The k labels of the highest P/p^alpha with these, best first, ties to the smaller label.

        Arguments and errors as for `Predictor.topk`; empty places hold label −1 and 0.
        """
        if k < 1:
            raise DataError(f"k is {k}; expected at least 1")
        rows: Any = check_X(X, self._bounds.transform.n_features)
        n_labels = self._bounds.n_labels
        labels = np.full((rows.shape[0], k), -1, np.int32)
        gains = np.zeros((rows.shape[0], k), np.float32)
        places = min(k, n_labels)
        left, depth = np.arange(rows.shape[0]), min(_TIMES * k + _FIRST_PLACES, n_labels)
        while len(left) and places:
            found, bounds = self._bounds.topk(
                rows if len(left) == rows.shape[0] else rows[left], depth, threads
            )
            values = self._values(found, bounds)
            order = np.lexsort((found, -values))[:, :places]
            best = np.take_along_axis(values, order, axis=1)
            beyond = np.maximum(bounds[:, -1], self._floor)
            beyond += _ROUNDING * (1 + np.abs(beyond))
            done = (best[:, -1] > beyond) | (found[:, -1] < 0) | (depth == n_labels)
            labels[left[done], :places] = np.take_along_axis(found, order, axis=1)[done]
            gains[left[done], :places] = np.exp(np.minimum(best[done], 80.0))
            left, depth = left[~done], min(_TIMES * depth, n_labels)
        return labels, gains

    def _values(self, labels: Labels, bounds: Scores) -> Floats:
        """log(P/p^alpha) of labels with these bounds; −inf for none."""
        there = labels >= 0
        bonus = self._bonus[np.where(there, labels, 0)]
        line = np.where(there, bounds, 0).astype(np.float64) - bonus - self._line.intercept
        values = _log_probabilities(self._calibration, line / self._line.slope) + bonus
        return np.where(there, values, -np.inf)


class Reranked(TopkModel):
    """A view of a model that ranks labels in another way; made by `Model.reranked`."""

    def __init__(
        self,
        manifest: Manifest,
        transform: Transform,
        parts: Parts,
        ranking: Predictor | Gains,
        nnz: int,
    ) -> None:
        super().__init__(manifest, transform, parts)
        self._ranking = ranking
        self._nnz = nnz

    @property
    def nnz(self) -> int:  # noqa: D102
        return self._nnz

    def predict_topk(  # noqa: D102
        self, X: Any, k: int = 5, *, threads: int | None = None
    ) -> tuple[Labels, Scores]:
        return self._ranking.topk(X, k, threads)


def _log_probabilities(calibration: Calibration, z: Floats) -> Floats:
    return np.log(calibration.of_logits(z).astype(np.float64))
