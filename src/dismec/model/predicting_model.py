"""Predictions of a model: top k, sets of labels, scores and probabilities of all labels."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.types import RowsLike
from dismec.errors import DataError
from dismec.model.allowed import Allowed, LabelsAllowed
from dismec.model.calibration import Calibration
from dismec.model.orders import Orders, check_dense
from dismec.model.scoring import Labels, Scores
from dismec.model.thresholds import assigned, ranked
from dismec.model.topk_model import TopkModel

__all__ = ["RANKS", "PredictingModel"]

RANKS = ("score", "probability")  # what labels can be ranked by


class PredictingModel(TopkModel):
    """A model that predicts labels in every way, wherever its weights are."""

    def predict_topk(
        self,
        X: RowsLike,
        k: int = 5,
        *,
        rank: str | None = None,
        allowed: LabelsAllowed | None = None,
        threads: int | None = None,
    ) -> tuple[Labels, Scores]:
        """Predict the k best labels of each row.

        The result is exact: no other label that is allowed ranks before those returned. Of labels
        with the same score, the one with the smaller number comes first.

        Parameters
        ----------
        X : matrix of shape (n_rows, n_features), or texts
            Sparse, dense or a frame, as it was read: the model applies its own transform. There may
            be fewer features than the model has. A text model takes one text per row, or
            `TextRows`; a model with dense features takes a list ``[X, E]``.
        k : int, default=5
            Number of labels per row.
        rank : {"probability", "score"}, default=None
            What labels are ranked by. By default probabilities if the model is calibrated, and
            otherwise scores.
        allowed : labels or indicator matrix, default=None
            The only labels that may be predicted: numbers, names, the result of `select_labels`, or
            an indicator of shape (n_rows, n_labels) with a set for each row. By default all.
        threads : int, default=None
            Number of threads. By default all available CPUs.

        Returns
        -------
        labels : ndarray of int32, shape (n_rows, k)
            Numbers of the labels, best first. −1 marks an empty place, where fewer than k labels
            had training rows or are allowed.
        values : ndarray of float32, shape (n_rows, k)
            Their probabilities or scores; 0 or −inf at empty places.

        Raises
        ------
        DataError
            If X has more features than the model or values that are not finite, is a matrix where
            the model takes texts or the other way round, or if a parameter has a wrong value.
        ModelError
            If probabilities are requested and the model is not calibrated.
        """
        by_score = self._rank(rank) == "score"
        rows, orders, among = self._among(X, allowed, threads)
        if by_score:
            return orders.by_score.topk(rows, k, threads, among)
        labels, z = orders.by_logit.topk(rows, k, threads, among)
        p = orders.calibration.of_logits(z)
        return labels, np.where(labels < 0, np.float32(0), p)

    def _topk(
        self, rows: Any, k: int, threads: int | None, allowed: Allowed | None
    ) -> tuple[Labels, Scores]:
        return self.predict_topk(rows, k, allowed=allowed, threads=threads)

    def _among(
        self, X: RowsLike, allowed: LabelsAllowed | None, threads: int | None
    ) -> tuple[Any, Orders, Allowed | None]:
        """Return the rows of X, the orders to rank them in, and what to pass as `allowed` there."""
        chosen = self.allowed_labels(allowed)
        rows = self.rows_of(X, threads=threads)
        if chosen is None:
            return rows, self._orders, None
        n_rows = rows.shape[0] if hasattr(rows, "shape") else len(rows)
        return rows, *self._orders.among(chosen, n_rows)

    def predict(
        self, X: RowsLike, *, allowed: LabelsAllowed | None = None, threads: int | None = None
    ) -> list[tuple[str | int, ...]]:
        """Predict the set of labels of each row.

        A row gets the labels with scores above 0. With a calibrated model it gets those whose
        probability reaches the threshold that was best for micro-F1. `assign` takes other
        thresholds.

        Parameters
        ----------
        X : matrix of shape (n_rows, n_features), or texts
            As for `predict_topk`.
        allowed : labels or indicator matrix, default=None
            The only labels that may be predicted: numbers, names, the result of `select_labels`, or
            an indicator of shape (n_rows, n_labels) with a set for each row. By default all.
        threads : int, default=None
            Number of threads. By default all available CPUs.

        Returns
        -------
        list of tuple
            The labels of each row, best first: names, or numbers if the labels have no names.
        """
        found = ranked(self.assign(X, allowed=allowed, threads=threads))[0]
        known = self.names
        return [
            tuple(label if known is None else known[label] for label in row if label >= 0)
            for row in found.tolist()
        ]

    def _rank(self, rank: str | None) -> str:
        if rank not in (None, *RANKS):
            raise DataError(f"rank is {rank!r}; expected {' or '.join(RANKS)}")
        return rank or RANKS[self.calibration is not None]

    def decision_function(
        self, X: RowsLike, *, threads: int | None = None
    ) -> npt.NDArray[np.float32]:
        """Compute the scores of all labels.

        For many rows and labels use `predict_topk` or `assign`, which need far less memory.

        Parameters
        ----------
        X : matrix of shape (n_rows, n_features), or texts
            As for `predict_topk`.
        threads : int, default=None
            Number of threads. By default all available CPUs.

        Returns
        -------
        ndarray of float32, shape (n_rows, n_labels)
            The scores. A label without training rows has score −1.

        Raises
        ------
        DataError
            If X cannot be used, or the result does not fit in memory.
        """
        rows = self._dense_rows("decision_function", X, threads)
        return self._orders.by_score.decision_function(rows, threads)

    def predict_proba(self, X: RowsLike, *, threads: int | None = None) -> npt.NDArray[np.float32]:
        """Compute the probabilities of all labels.

        Each label is predicted independently, so the probabilities of a row need not sum to 1.

        Parameters
        ----------
        X : matrix of shape (n_rows, n_features), or texts
            As for `predict_topk`.
        threads : int, default=None
            Number of threads. By default all available CPUs.

        Returns
        -------
        ndarray of float32, shape (n_rows, n_labels)
            The probabilities. A label without training rows has probability 0.

        Raises
        ------
        DataError
            If X cannot be used, or the result does not fit in memory.
        ModelError
            If the model is not calibrated.
        """
        rows = self._dense_rows("predict_proba", X, threads)
        result = self._orders.dense_probabilities(rows, threads)
        result[:, self.label_counts == 0] = 0
        return result

    def _dense_rows(self, what: str, X: RowsLike, threads: int | None) -> Any:
        rows = self.transform.take(self.rows_of(X, threads=threads))
        instead = "predict_topk or assign give the best labels of each row"
        check_dense(what, rows.shape[0], self.n_labels, 4, instead)
        return rows

    @cached_property
    def calibration(self) -> Calibration | None:
        """How scores become probabilities, or None if the model is not calibrated.

        Labels that share their weights have the calibration of the first of them.
        """
        given = self._parts.calibration
        return None if given is None else given.taken_from(self.first_labels)

    def predict_proba_topk(
        self,
        X: RowsLike,
        k: int = 5,
        *,
        allowed: LabelsAllowed | None = None,
        threads: int | None = None,
    ) -> tuple[Labels, Scores]:
        """Predict the k most probable labels of each row.

        The same as `predict_topk` with ``rank="probability"``.

        Parameters
        ----------
        X : matrix of shape (n_rows, n_features), or texts
            As for `predict_topk`.
        k : int, default=5
            Number of labels per row.
        allowed : labels or indicator matrix, default=None
            The only labels that may be predicted: numbers, names, the result of `select_labels`, or
            an indicator of shape (n_rows, n_labels) with a set for each row. By default all.
        threads : int, default=None
            Number of threads. By default all available CPUs.

        Returns
        -------
        labels : ndarray of int32, shape (n_rows, k)
            Numbers of the labels, most probable first; −1 marks an empty place.
        probabilities : ndarray of float32, shape (n_rows, k)
            Their probabilities; 0 at empty places.

        Raises
        ------
        ModelError
            If the model is not calibrated.
        """
        return self.predict_topk(X, k, rank="probability", allowed=allowed, threads=threads)

    def assign(
        self,
        X: RowsLike,
        threshold: float | str | None = None,
        *,
        probabilities: bool = True,
        most: int | None = None,
        allowed: LabelsAllowed | None = None,
        threads: int | None = None,
    ) -> sp.csr_array:
        """Find all labels of each row that reach a threshold.

        Parameters
        ----------
        X : matrix of shape (n_rows, n_features), or texts
            As for `predict_topk`.
        threshold : float, "micro-f1" or "macro-f1", default=None
            A probability, or a score if `probabilities` is False. "micro-f1" and "macro-f1" are the
            thresholds that calibration found best for these metrics: one for all labels, or one for
            each label. By default "micro-f1" if the model is calibrated, and otherwise all scores
            above 0.
        probabilities : bool, default=True
            Whether the threshold is a probability. Scores need no calibration.
        most : int, default=None
            The largest number of labels per row. The best are kept: those with the highest
            probabilities or scores, or for "macro-f1" those farthest above their thresholds.
        allowed : labels or indicator matrix, default=None
            The only labels that may be predicted: numbers, names, the result of `select_labels`, or
            an indicator of shape (n_rows, n_labels) with a set for each row. By default all.
        threads : int, default=None
            Number of threads. By default all available CPUs.

        Returns
        -------
        csr_array of float32, shape (n_rows, n_labels)
            An entry for each label assigned: its probability or score, which may be 0.

        Raises
        ------
        DataError
            If X, `threshold` or `most` cannot be used.
        ModelError
            If probabilities are requested and the model is not calibrated.
        """
        if most is not None and most < 1:
            raise DataError(f"most is {most}; expected at least 1")
        rows, orders, among = self._among(X, allowed, threads)
        ranking, rule = orders.rule(threshold, probabilities)
        return assigned(ranking, rows, rule, most, threads, among)

    @property
    @abstractmethod
    def first_labels(self) -> npt.NDArray[np.int64]:
        """For each label the first label with the same weights, int64 of shape (n_labels,)."""

    @abstractmethod
    def _make_orders(self) -> Orders:
        """Create the orders in which labels can be ranked."""

    @cached_property
    def _orders(self) -> Orders:
        return self._make_orders()

    def __getstate__(self) -> dict[str, Any]:
        cached = [k for k, v in vars(PredictingModel).items() if isinstance(v, cached_property)]
        return {key: value for key, value in self.__dict__.items() if key not in cached}
