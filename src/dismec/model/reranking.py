"""Scores and propensities → top k that rank rare labels higher."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.data.counts import check_k
from dismec.model.allowed import Allowed
from dismec.model.calibration import Calibration, Float32s, Floats
from dismec.model.scoring import Labels, Ranking, Scores, empty_topk
from dismec.model.thresholds import Rule, assigned, ranked
from dismec.model.topk_model import TopkModel

__all__ = ["Gains", "Reranked"]

_FIRST_LEVEL, _STEP = -1.0, 0.25  # levels of log(P/p^alpha) are multiples of the step
_LEAST_LOG_P, _MOST_P = -80.0, 1 - 1e-7  # limits of log P and P for a level
_ROUNDING = 1e-4  # largest rounding error of z
_VIEWS = 16  # rankings that are kept, one per level


class Gains:
    """An exact ranking by P/p^alpha, where P is a label's probability and p its propensity.

    P is not linear in the row, but it increases with z = slope·score + intercept, which is. So
    log(P/p^alpha) of a label reaches a level exactly if its z reaches a bound that depends only on
    the label: z minus the bound, the margin, is at least 0. A first pass finds a level that k
    labels reach; a second pass finds all labels that reach it, and the best k of these are the best
    of all.
    """

    def __init__(
        self,
        rescaled: Callable[[Float32s, Float32s], Ranking],  # ranks by slope·score + offset
        calibration: Calibration,
        bonus: Floats,  # (n_labels,): −alpha·log p, at least 0
    ) -> None:
        self._rescaled = rescaled
        self._calibration = calibration
        self._bonus = bonus
        self._lowest = _LEAST_LOG_P + float(bonus.max(initial=0.0))
        self._margins = lru_cache(_VIEWS)(self._make_margins)

    def topk(
        self, X: Any, k: int = 5, threads: int | None = None, allowed: Allowed | None = None
    ) -> tuple[Labels, Scores]:
        """Return the k labels with the highest P/p^alpha, best first, and these values.

        Ties go to the smaller label; empty places hold label −1 and value 0. Arguments and errors
        are those of `Predictor.topk`.
        """
        k = check_k(k)
        first = self._margins(_FIRST_LEVEL)
        rows = first.transform.take(X)
        labels, logs = empty_topk(rows.shape[0], k)
        places = min(k, len(self._bonus))
        if places == 0:
            return labels, np.exp(logs)
        found, margins = first.topk(rows, 2 * places + 8, threads, allowed)
        ascending = np.sort(self._values(found, margins, _FIRST_LEVEL), axis=1)
        reached = _STEP * np.floor(ascending[:, -places] / _STEP)
        level = np.where(reached < self._lowest, -np.inf, reached)
        for at in np.unique(level).tolist():
            some = np.flatnonzero(level == at)
            rule, among = self._reaching(at), None if allowed is None else allowed.take(some)
            sets = assigned(self._margins(at), rows[some], rule, None, threads, among)
            best, values = ranked(sets)
            width = min(places, best.shape[1])
            labels[some, :width], logs[some, :width] = best[:, :width], values[:, :width]
        return labels, np.exp(np.minimum(logs, np.float32(80)))

    def _make_margins(self, level: float) -> Ranking:
        """Create the ranking by the margin: how far z is above the bound for a level."""
        offsets = (self._calibration.intercepts - self._least(level)).astype(np.float32)
        return self._rescaled(self._calibration.slopes, offsets)

    def _least(self, level: float) -> Floats:
        """Return the bound of each label: the z at which it reaches a level, or slightly less."""
        log_p = np.maximum(level, self._lowest) - self._bonus
        return self._calibration.logits(np.minimum(np.exp(np.minimum(log_p, 0.0)), _MOST_P))

    def _reaching(self, level: float) -> Rule:
        """Return the rule that takes the labels that reach a level, with their log(P/p^alpha)."""

        def rule(labels: Labels, margins: Scores) -> tuple[npt.NDArray[np.bool_], Scores]:
            values = self._values(labels, margins, level).astype(np.float32)
            if level < self._lowest:
                return np.ones(labels.shape, np.bool_), values
            return margins >= -_ROUNDING, values

        return rule

    def _values(self, labels: Labels, margins: Scores, level: float) -> Floats:
        """Return log(P/p^alpha) of labels, given their margins; −inf for empty places."""
        there = labels >= 0
        of = np.where(there, labels, 0)
        z = np.where(there, margins, 0) + self._least(level)[of]
        values = np.log(self._calibration.of_logits(z).astype(np.float64)) + self._bonus[of]
        return np.where(there, values, -np.inf)


class Reranked(TopkModel):
    """A view of a model that ranks rare labels higher; created by `Model.reranked`.

    `among` returns the ranking for the allowed labels and a number of rows, and what to pass to it
    as `allowed`.
    """

    def __init__(
        self,
        model: TopkModel,
        among: Callable[[Allowed | None, int], tuple[Ranking | Gains, Allowed | None]],
    ) -> None:
        super().__init__(model.manifest, model.transform, model._parts)
        self._among = among
        self._nnz = model.nnz

    @property
    def nnz(self) -> int:  # noqa: D102
        return self._nnz

    def _topk(
        self, rows: Any, k: int, threads: int | None, allowed: Allowed | None
    ) -> tuple[Labels, Scores]:
        rows = self.transform.take(rows)
        ranking, left = self._among(allowed, rows.shape[0])
        return ranking.topk(rows, k, threads, left)
