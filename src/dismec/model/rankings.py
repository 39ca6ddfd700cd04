"""Weights, here or on a cluster → rankings of labels, and the sets that reach a threshold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.counts import check_k
from dismec.data.matrices import csr_on
from dismec.errors import DataError, ModelError
from dismec.model.allowed import Allowed
from dismec.model.calibration import Calibration, Float32s, Floats
from dismec.model.scoring import (
    Labels,
    Predictor,
    Ranking,
    RowTransform,
    Scores,
    empty_topk,
)
from dismec.model.select_labels import cut_down
from dismec.model.shards import Shard, first_labels

MICRO_F1, MACRO_F1 = "micro-f1", "macro-f1"  # names of the thresholds found by calibration

_ABOVE_ZERO = float(np.nextafter(np.float32(0), np.float32(1)))
_CHUNK_SCORES = 1 << 22  # scores converted to probabilities at a time
_FIRST_LEVEL, _STEP = -1.0, 0.25  # levels of log(P/p^alpha) are multiples of the step
_LEAST_LOG_P, _MOST_P = -80.0, 1 - 1e-7  # limits of log P and P for a level
_ROUNDING = 1e-4  # largest rounding error of z
_VIEWS = 16  # rankings that are kept, one per level
_FIRST_PLACES = 16  # places ranked at first: few rows have more labels

# Labels and their scores → which of them are assigned, and with which values. For each row, these
# must be the first labels of the ranking, down to some place.
Rule = Callable[[Labels, Scores], tuple[npt.NDArray[np.bool_], Scores]]


class Rankings(ABC):
    """The rankings of a model's labels, each created when it is first needed.

    Methods that need the `calibration` raise `ModelError` if it is None.
    """

    def __init__(
        self, n_labels: int, transform: RowTransform, calibration: Calibration | None
    ) -> None:
        self.n_labels, self.transform = n_labels, transform
        self._own_calibration = calibration
        self._by_gain: dict[float, Ranking | Gains] = {}  # the last one

    @property
    def shards(self) -> Sequence[Shard]:
        """The weights; raises `ModelError` if they are not in this process."""
        raise ModelError(
            "this needs the weights, which are not in this process: use dismec.open_model"
        )

    @property
    @abstractmethod
    def first_labels(self) -> npt.NDArray[np.int64]:
        """For each label the first label with the same weights, int64 (n_labels,)."""

    @abstractmethod
    def _by_score(self) -> Ranking:
        """Create the ranking by score."""

    @abstractmethod
    def _rescaled(self, slopes: Float32s, offsets: Float32s) -> Ranking:
        """Create the ranking by slope·score + offset, with one of each per label."""

    def among(self, allowed: Allowed | None, n_rows: int) -> tuple[Rankings, Allowed | None]:
        """Return the rankings to use for `n_rows` rows, and what to pass as `allowed` to them."""
        return self, allowed

    @cached_property
    def calibration(self) -> Calibration | None:
        """The calibration; labels that share their weights have that of the first of them."""
        own = self._own_calibration
        return None if own is None else own.taken_from(self.first_labels)

    def _calibrated(self) -> Calibration:
        if self.calibration is None:
            raise ModelError(
                "the model gives no probabilities: train it with calibration", "calibrate=True"
            )
        return self.calibration

    @cached_property
    def by_score(self) -> Ranking:
        """The ranking by score."""
        return self._by_score()

    @cached_property
    def by_logit(self) -> Ranking:
        """The ranking by slope·score + intercept, which is the order of probabilities."""
        calibration = self._calibrated()
        return self._rescaled(calibration.slopes, calibration.intercepts)

    @cached_property
    def by_margin(self) -> Ranking:
        """The ranking by how far this logit is above the label's threshold for macro-F1."""
        calibration = self._calibrated()
        least = calibration.logits(calibration.macro_thresholds).astype(np.float32)
        return self._rescaled(calibration.slopes, calibration.intercepts - least)

    def by_gain(self, alpha: float, log_p: Floats) -> Ranking | Gains:
        """Return the ranking by P/p^alpha or, without calibration, by score − alpha·log p."""
        found, bonus = self._by_gain.get(alpha), -alpha * log_p
        if found is None and self.calibration is None:
            found = self._rescaled(np.ones(self.n_labels, np.float32), bonus.astype(np.float32))
        elif found is None:
            found = Gains(self._rescaled, self._calibrated(), bonus)
        self._by_gain = {alpha: found}
        return found

    def topk(
        self, X: Any, k: int, probabilities: bool, threads: int | None, allowed: Allowed | None
    ) -> tuple[Labels, Scores]:
        """Return the k best labels and their probabilities or scores, as `Model.predict_topk`."""
        if not probabilities:
            return self.by_score.topk(X, k, threads, allowed)
        labels, z = self.by_logit.topk(X, k, threads, allowed)
        return labels, np.where(labels < 0, np.float32(0), self._calibrated().of_logits(z))

    def rule(self, threshold: Any, probabilities: bool) -> tuple[Ranking, Rule]:
        """Return the ranking and the rule that select labels at a threshold; see `Model.assign`."""
        if threshold is None:
            probabilities = probabilities and self.calibration is not None
            threshold = MICRO_F1 if probabilities else _ABOVE_ZERO
        named = (MICRO_F1, MACRO_F1) if probabilities else ()
        if isinstance(threshold, str) and threshold not in named:
            wanted = " or ".join(["a number", *named])
            raise DataError(f"threshold is {threshold!r}; expected {wanted}")
        if not probabilities:
            lowest = _checked_threshold(threshold)
            return self.by_score, lambda _, scores: (scores >= lowest, scores)
        calibration = self._calibrated()
        if threshold == MACRO_F1:
            margin = calibration.logits(calibration.macro_thresholds)
            p_of = calibration.of_logits
            return self.by_margin, lambda labels, z: (z >= 0, p_of(z + margin[labels]))
        least = calibration.micro_threshold if threshold == MICRO_F1 else threshold
        return self.by_logit, _rule_by_probability(least, calibration)

    def dense_probabilities(self, X: Any, threads: int | None) -> Scores:
        """Return the probabilities of all labels, float32 (n_rows, n_labels)."""
        result = self.by_logit.decision_function(X, threads)
        step = max(1, _CHUNK_SCORES // max(1, self.n_labels))
        for begin in range(0, len(result), step):
            part = result[begin : begin + step]
            part[:] = self._calibrated().of_logits(part)
        return result


class ShardRankings(Rankings):
    """The rankings of a model whose weights are in this process; `shards` as in `Predictor`."""

    def __init__(
        self,
        shards: Sequence[Shard],
        n_labels: int,
        transform: RowTransform,
        calibration: Calibration | None,
    ) -> None:
        super().__init__(n_labels, transform, calibration)
        self._shards = tuple(shards)

    @property
    def shards(self) -> Sequence[Shard]:
        """The weights."""
        return self._shards

    @property
    def first_labels(self) -> npt.NDArray[np.int64]:
        """For each label the first label with the same weights, int64 (n_labels,)."""
        return first_labels(self._shards, self.n_labels)

    def among(self, allowed: Allowed | None, n_rows: int) -> tuple[Rankings, Allowed | None]:
        """Like `Rankings.among`; for many rows and few labels, use shards of only these labels."""
        if allowed is None or not allowed.is_few_for(n_rows):
            return self, allowed

        def cut() -> ShardRankings:
            shards = cut_down(self._shards, allowed.anywhere)
            return ShardRankings(shards, self.n_labels, self.transform, self.calibration)

        few = allowed.prepared(self, cut)
        return few, None if allowed.mask is not None else allowed

    def _by_score(self) -> Predictor:
        return Predictor(self._shards, self.n_labels, self.transform)

    def _rescaled(self, slopes: Float32s, offsets: Float32s) -> Predictor:
        bias = self.transform.bias
        shards = [s.rescaled(slopes[s.leaders], offsets[s.leaders], bias) for s in self._shards]
        return Predictor(shards, self.n_labels, self.transform.with_bias(1.0))


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
        self.n_labels = calibration.n_labels
        self._bonus = bonus
        self._lowest = _LEAST_LOG_P + float(bonus.max(initial=0.0))
        self._margins = lru_cache(_VIEWS)(self._make_margins)

    @property
    def transform(self) -> RowTransform:
        """Transform applied to rows before scoring."""
        return self._margins(_FIRST_LEVEL).transform

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


def _rule_by_probability(threshold: Any, calibration: Calibration) -> Rule:
    """Return the rule that takes labels whose probabilities are at or above a threshold.

    It expects the scores of `Rankings.by_logit`.
    """
    least = _checked_threshold(threshold)
    if not 0 <= least <= 1:
        raise DataError(f"threshold is {least:g}; a probability is between 0 and 1")

    def rule(_: Labels, z: Scores) -> tuple[npt.NDArray[np.bool_], Scores]:
        p = calibration.of_logits(z)
        return p >= least, p

    return rule


def assigned(
    predictor: Ranking,
    X: Any,
    rule: Rule,
    most: int | None = None,
    threads: int | None = None,
    allowed: Allowed | None = None,
) -> sp.csr_array:
    """Return the labels that a rule takes, as CSR float32 (n_rows, n_labels) of its values.

    Each row is ranked among the allowed labels as far down as the rule takes labels, and at most
    down to place `most`.
    """
    rows = predictor.transform.take(X)
    n_rows, limit = rows.shape[0], predictor.n_labels
    limit = limit if most is None else min(most, limit)
    found: list[tuple[npt.NDArray[Any], ...]] = []
    left, k = np.arange(n_rows), min(_FIRST_PLACES, limit)
    while len(left) and k:
        every = len(left) == n_rows
        among = allowed if allowed is None or every else allowed.take(left)
        labels, scores = predictor.topk(rows if every else rows[left], k, threads, among)
        taken, values = rule(labels, scores)
        taken &= labels >= 0
        further = taken[:, -1] & (k < limit)
        taken[further] = False
        found.append((np.repeat(left, taken.sum(axis=1)), labels[taken], values[taken]))
        left, k = left[further], min(4 * k, limit)
    none = (np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    row, label, value = map(np.concatenate, zip(none, *found, strict=True))
    order = np.lexsort([label, row])
    indptr = np.searchsorted(row[order], np.arange(n_rows + 1))
    return csr_on(value[order], label[order], indptr, (n_rows, predictor.n_labels))


def ranked(sets: sp.csr_array) -> tuple[Labels, Scores]:
    """Return the labels of each row and their values, int32 and float32 (n_rows, places).

    Highest values first, ties to the smaller label; empty places hold −1 and −inf.
    """
    lengths = np.diff(sets.indptr)
    row = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort([sets.indices, -sets.data, row])
    place = np.arange(len(order)) - np.repeat(sets.indptr[:-1], lengths)
    labels, values = empty_topk(len(lengths), int(lengths.max(initial=0)))
    labels[row, place], values[row, place] = sets.indices[order], sets.data[order]
    return labels, values


def _checked_threshold(threshold: Any) -> float:
    if not isinstance(threshold, int | float | np.number) or np.isnan(threshold):
        raise DataError(f"threshold is {threshold!r}; expected a number")
    return float(threshold)
