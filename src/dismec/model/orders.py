"""Weights, here or on a cluster → the orders in which a model can rank labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from dismec.cpu import available_memory
from dismec.data.counts import counted
from dismec.errors import DataError, ModelError
from dismec.model.allowed import Allowed
from dismec.model.by_label import WeightsByLabel
from dismec.model.calibration import Calibration, Float32s, Floats
from dismec.model.cutting import cut_down
from dismec.model.reranking import Gains
from dismec.model.scoring import Predictor, Ranking, RowTransform, Scores
from dismec.model.shards import Shard
from dismec.model.thresholds import MACRO_F1, MICRO_F1, Rule, by_margin, by_probability, by_score

__all__ = ["Orders", "ShardOrders", "check_dense"]

_ABOVE_ZERO = float(np.nextafter(np.float32(0), np.float32(1)))
_CHUNK_SCORES = 1 << 22  # scores converted to probabilities at a time

# If few labels are allowed for many rows, their weights are copied. A copy takes about as long as
# ranking _MANY_ROWS rows, and makes later rows as fast as in a model with only these labels.
_FEW = 1 / 8  # largest share of the labels that is copied
_MANY_ROWS = 256
_COPIES = 4  # copies that are kept
_WAITING = 16  # sets without a copy whose rows are counted
# By label, a row takes no longer than from such a copy if it is allowed fewer than _SMALL labels
# plus this share of the labels allowed for any row.
_SMALL, _SMALL_PART = 100, 1 / 200


class Orders(ABC):
    """The rankings of a model's labels, each created when it is first needed.

    Parameters
    ----------
    n_labels, transform
        As for `Predictor`.
    calibration
        Maps scores to probabilities. Methods that need it raise `ModelError` if it is None.
    """

    def __init__(
        self, n_labels: int, transform: RowTransform, calibration: Calibration | None
    ) -> None:
        self._n_labels, self.transform = n_labels, transform
        self._calibration = calibration

    def among(self, allowed: Allowed | None, n_rows: int) -> tuple[Orders, Allowed | None]:
        """Return orders for ranking `n_rows` rows, and what to pass as `allowed` to them."""
        return self, allowed

    @property
    def calibrated(self) -> bool:
        """Whether there is a calibration."""
        return self._calibration is not None

    @property
    def calibration(self) -> Calibration:
        """The calibration; raises `ModelError` if there is none."""
        if self._calibration is None:
            raise ModelError("the model gives no probabilities: train it with calibrate=True")
        return self._calibration

    @cached_property
    def by_score(self) -> Ranking:
        """The ranking by score."""
        return self._by_score()

    @cached_property
    def by_logit(self) -> Ranking:
        """The ranking by slope·score + intercept, which is the order of probabilities."""
        calibration = self.calibration
        return self._rescaled(calibration.slopes, calibration.intercepts)

    @cached_property
    def by_margin(self) -> Ranking:
        """The ranking by how far this logit is above the label's threshold for macro-F1."""
        calibration = self.calibration
        least = calibration.logits(calibration.macro_thresholds).astype(np.float32)
        return self._rescaled(calibration.slopes, calibration.intercepts - least)

    def by_gain(self, bonus: Floats, *, probabilities: bool) -> Ranking | Gains:
        """Return the ranking by log P + bonus, or by score + bonus."""
        if probabilities:
            return Gains(self._rescaled, self.calibration, bonus)
        return self._rescaled(np.ones(self._n_labels, np.float32), bonus.astype(np.float32))

    def rule(self, threshold: Any, probabilities: bool) -> tuple[Ranking, Rule]:
        """Return the ranking and the rule that select labels at a threshold; see `Model.assign`."""
        if threshold is None:
            probabilities = probabilities and self.calibrated
            threshold = MICRO_F1 if probabilities else _ABOVE_ZERO
        named = (MICRO_F1, MACRO_F1) if probabilities else ()
        if isinstance(threshold, str) and threshold not in named:
            wanted = " or ".join(["a number", *named])
            raise DataError(f"threshold is {threshold!r}; expected {wanted}")
        if not probabilities:
            return self.by_score, by_score(threshold)
        calibration = self.calibration
        if threshold == MACRO_F1:
            return self.by_margin, by_margin(calibration)
        least = calibration.micro_threshold if threshold == MICRO_F1 else threshold
        return self.by_logit, by_probability(least, calibration)

    def dense_probabilities(self, X: Any, threads: int | None) -> Scores:
        """Return the probabilities of all labels, float32 (n_rows, n_labels)."""
        result = self.by_logit.decision_function(X, threads)
        step = max(1, _CHUNK_SCORES // max(1, self._n_labels))
        for begin in range(0, len(result), step):
            result[begin : begin + step] = self.calibration.of_logits(result[begin : begin + step])
        return result

    @abstractmethod
    def _by_score(self) -> Ranking:
        """Create the ranking by score."""

    @abstractmethod
    def _rescaled(self, slopes: Float32s, offsets: Float32s) -> Ranking:
        """Create the ranking by slope·score + offset, with one of each per label."""


class ShardOrders(Orders):
    """The orders of a model whose weights are in this process; `shards` as in `Predictor`."""

    def __init__(
        self,
        shards: Sequence[Shard],
        n_labels: int,
        transform: RowTransform,
        calibration: Calibration | None,
    ) -> None:
        super().__init__(n_labels, transform, calibration)
        self._shards = shards
        self._recent: OrderedDict[bytes, tuple[int, Orders | None]] = OrderedDict()  # latest last
        self._recent_lock = Lock()
        self._by_label = WeightsByLabel(shards)

    def among(self, allowed: Allowed | None, n_rows: int) -> tuple[Orders, Allowed | None]:
        """Like `Orders.among`; for few labels, use a copy of their weights once that pays off.

        The copy holds the labels that are allowed for any row. It is made once many rows have been
        requested with these labels. Rows without such a copy count toward a copy of all weights by
        label, and so do rows with small sets of their own.
        """
        if allowed is None:
            return self, None
        n_some = len(allowed.labels)
        many = n_some > _FEW * self._n_labels
        small = allowed.by_row and allowed.mean_size < _SMALL + _SMALL_PART * n_some
        if many or small:
            self._by_label.count(allowed, n_rows)
            if many or self._by_label.copy_for(allowed) is not None:
                return self, allowed
        key = allowed.labels.tobytes()
        with self._recent_lock:
            rows, orders = self._recent.pop(key, (0, None))
            rows += n_rows
            if orders is None and rows >= _MANY_ROWS:
                shards = cut_down(self._shards, allowed.anywhere)
                orders = ShardOrders(shards, self._n_labels, self.transform, self._calibration)
            self._recent[key] = rows, orders
            copies = [key for key, (_, made) in self._recent.items() if made is not None]
            waiting = [key for key, (_, made) in self._recent.items() if made is None]
            for old in (*copies[:-_COPIES], *waiting[:-_WAITING]):
                del self._recent[old]
        if orders is None:
            if not small:
                self._by_label.count(allowed, n_rows)
            return self, allowed
        return orders, None if allowed.mask is not None else allowed

    def _by_score(self) -> Predictor:
        return Predictor(self._shards, self._n_labels, self.transform, self._by_label)

    def _rescaled(self, slopes: Float32s, offsets: Float32s) -> Predictor:
        bias = self.transform.bias
        shards = [s.rescaled(slopes[s.leaders], offsets[s.leaders], bias) for s in self._shards]
        transform = self.transform.with_bias(1.0)
        return Predictor(shards, self._n_labels, transform, self._by_label)


def check_dense(what: str, n_rows: int, n_labels: int, itemsize: int, instead: str) -> None:
    """Raise `DataError` if a dense result does not fit in memory; `instead` says what to do."""
    needed, free = itemsize * n_rows * n_labels, available_memory()
    if free is not None and needed > free:
        raise DataError(
            f"{what} of {counted(n_rows, 'row')} × {counted(n_labels, 'label')} would take "
            f"{needed / 2**30:,.1f} GiB, but only {free / 2**30:,.1f} GiB of memory are available: "
            f"{instead}"
        )
