"""Explaining, reranking and evaluating the predictions of a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from dismec.data.counts import check_ks
from dismec.data.row_weights import check_row_weights
from dismec.data.types import LabelsLike, RowsLike, WeightsLike
from dismec.errors import DataError
from dismec.model.allowed import Allowed, LabelsAllowed
from dismec.model.explaining import explain
from dismec.model.explanation import Explanation
from dismec.model.predicting_model import RANKS, PredictingModel
from dismec.model.reliability import reliability
from dismec.model.reranking import Gains, Reranked
from dismec.model.scoring import Ranking

__all__ = ["RANKS", "RankingModel"]


class RankingModel(PredictingModel):
    """A model that ranks, assigns and explains its labels, wherever its weights are."""

    def explain(
        self, X: RowsLike, label: int, *, terms: Sequence[str] | None = None
    ) -> Explanation:
        """Show what each feature of a row adds to the score of a label.

        Parameters
        ----------
        X : matrix of shape (1, n_features), or a list of one text
            One row, as for `predict_topk`.
        label : int
            Number of the label; `find_label` gives it for a name.
        terms : sequence of str, default=None
            What each feature stands for. By default the terms of the vocabulary, if there is one.

        Returns
        -------
        Explanation
            The score, the probability if the model is calibrated, and what each feature adds.

        Raises
        ------
        DataError
            If X is not one row, or the label has no training rows.
        """
        if terms is None and self.vocabulary is not None:
            terms = self.vocabulary.terms
        return explain(self._orders, self.rows_of(X), label, self.names, terms)

    def place(self, X: RowsLike, label: int) -> int:
        """Find the place of a label in the ranking of all labels for one row.

        Parameters
        ----------
        X : matrix of shape (1, n_features), or a list of one text
            One row, as for `predict_topk`.
        label : int
            Number of the label.

        Returns
        -------
        int
            Its place, counted from 1, as `predict_topk` ranks labels.
        """
        orders = self._orders
        order = orders.by_score if self.calibration is None else orders.by_logit
        return order.place(self.rows_of(X), label)

    def reranked(
        self, alpha: float = 1.0, A: float = 0.55, B: float = 1.5, *, probabilities: bool = True
    ) -> Reranked:
        """Return a view of the model that ranks rare labels higher.

        Labels are ranked by P/p^alpha, where P is the probability of a label and p its propensity.
        With alpha = 1 this is what a label is expected to add to PSP@k, and with alpha = 0 it is
        the probability. The ranking is exact, like that of `predict_topk`.

        Parameters
        ----------
        alpha : float, default=1.0
            How much propensities count, from 0 to 100.
        A, B : float, default=0.55 and 1.5
            Constants of the propensities, as for `dismec.propensities`.
        probabilities : bool, default=True
            If False, labels are ranked by score + alpha·log(1/p), which needs no calibration.

        Returns
        -------
        Reranked
            A view with the methods `predict_topk` and `evaluate`. The values that it returns are
            those that labels are ranked by.

        Raises
        ------
        DataError
            If `alpha`, `A` or `B` is out of range.
        ModelError
            If probabilities are requested and the model is not calibrated.
        """
        if not 0 <= alpha <= 100:
            raise DataError(f"alpha is {alpha}; expected a number from 0 to 100")
        # Labels with the same weights have the same scores, so they get the same bonus.
        bonus = -alpha * np.log(self.propensities(A, B)[self.first_labels])
        ranking = self._orders.by_gain(bonus, probabilities=probabilities)

        def among(allowed: Allowed | None, n_rows: int) -> tuple[Ranking | Gains, Allowed | None]:
            orders, left = self._orders.among(allowed, n_rows)
            if orders is self._orders:
                return ranking, left
            return orders.by_gain(bonus, probabilities=probabilities), left

        return Reranked(self, among)

    def evaluate(
        self,
        X: RowsLike,
        Y: LabelsLike,
        ks: Sequence[int] = (1, 3, 5),
        *,
        A: float = 0.55,
        B: float = 1.5,
        rank: str | None = None,
        weights: WeightsLike | None = None,
        allowed: LabelsAllowed | None = None,
        threads: int | None = None,
    ) -> dict[str, float]:
        """Evaluate the model on rows with known labels.

        Parameters
        ----------
        X : matrix of shape (n_rows, n_features), or texts
            As for `predict_topk`.
        Y : indicator matrix of shape (n_rows, n_labels), or lists of labels
            The true labels. Columns of a frame and labels in lists are matched by name. Labels that
            the model does not have count as missed.
        ks : sequence of int, default=(1, 3, 5)
            The values of k for P@k, nDCG@k and so on.
        A, B : float, default=0.55 and 1.5
            Constants of the propensities, as for `dismec.propensities`.
        rank : {"probability", "score"}, default=None
            What labels are ranked by, as for `predict_topk`.
        weights : array-like of shape (n_rows,), default=None
            How much each row counts: numbers of at least 0. By default all rows count the same.
        allowed : labels or indicator matrix, default=None
            The only labels that may be predicted: numbers, names, the result of `select_labels`, or
            an indicator of shape (n_rows, n_labels) with a set for each row. By default all.
            True labels that are not allowed do not count as true.
        threads : int, default=None
            Number of threads. By default all available CPUs.

        Returns
        -------
        dict of str to float
            P@k, nDCG@k, PSP@k, PSnDCG@k, R@k and Coverage@k in percent for each k, and the number
            of "rows". For a calibrated model also "ECE" of the probabilities in the first max(ks)
            places, "ECE uncalibrated" for the logistic function of the scores, and "micro-F1" and
            "macro-F1" of the sets that `assign` finds with the thresholds for these metrics.
        """
        chosen = self.allowed_labels(allowed)
        truth = self.truth_of(Y, A, B, allowed=chosen)
        ks = check_ks(ks)
        depth = max(1, min(max(ks), self.n_labels))
        X = self.rows_of(X, threads=threads)
        top, values = self.predict_topk(X, depth, rank=rank, allowed=chosen, threads=threads)
        metrics = truth.metrics(top, ks, weights)
        if self.calibration is None:
            return metrics
        if weights is not None:
            weights = check_row_weights(weights, len(top))
        by_score = self._rank(rank) == "score"
        assign = partial(self.assign, X, allowed=chosen, threads=threads)
        return metrics | reliability(
            self.calibration, truth, top, values, by_score, assign, weights
        )
