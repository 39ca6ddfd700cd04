"""A finished model: weights and names in; top k, sets of labels and explanations out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.counts import check_ks
from dismec.data.row_weights import check_row_weights
from dismec.errors import DataError, ModelError
from dismec.model.allowed import Allowed
from dismec.model.calibration import Calibration
from dismec.model.explaining import explain
from dismec.model.explanation import Explanation
from dismec.model.orders import Orders, ShardOrders, check_dense
from dismec.model.pruning import pruned_params, repacked
from dismec.model.reliability import reliability
from dismec.model.reranking import Gains, Reranked
from dismec.model.scoring import Labels, Ranking, Scores
from dismec.model.stored import StoredModel
from dismec.model.subsets import parts_in_use, subset_parts
from dismec.model.thresholds import assigned, ranked
from dismec.model.topk_model import TopkModel

__all__ = ["RANKS", "Model", "RankingModel"]

RANKS = ("score", "probability")  # what labels can be ranked by


class RankingModel(TopkModel):
    """A model that ranks, assigns and explains its labels, wherever its weights are."""

    def predict_topk(
        self,
        X: Any,
        k: int = 5,
        *,
        rank: str | None = None,
        allowed: Any = None,
        threads: int | None = None,
    ) -> tuple[Labels, Scores]:
        """The k best labels of each row, best first, with what they are ranked by.

        Parameters
        ----------
        X, k, allowed, threads
            As for `TopkModel.predict_topk`.
        rank
            "probability", by default if the model is calibrated, or "score". Ties go to the
            smaller label. None of all labels that are allowed ranks before those returned.

        Returns
        -------
        labels, values
            int32 and float32 (n_rows, k): probabilities, or scores. Empty places hold label −1,
            and probability 0 or score −inf.

        Raises
        ------
        DataError
            As `TopkModel.predict_topk` does, and for another `rank`.
        ModelError
            If probabilities are asked for and the model has no calibration.
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
        self, X: Any, allowed: Any, threads: int | None
    ) -> tuple[Any, Orders, Allowed | None]:
        """The rows of X, the orders to rank them in, and what is left to keep to there."""
        chosen = self.allowed_labels(allowed)
        rows = self.rows_of(X, threads=threads)
        if chosen is None:
            return rows, self._orders, None
        n_rows = rows.shape[0] if hasattr(rows, "shape") else len(rows)
        return rows, *self._orders.among(chosen, n_rows)

    def predict(
        self, X: Any, *, allowed: Any = None, threads: int | None = None
    ) -> list[tuple[str | int, ...]]:
        """The labels that each row or text is given, best first: names, or numbers without names.

        Those with scores above 0; of a calibrated model those more probable than the threshold that
        was best for micro-F1. `assign` takes other thresholds. X, `allowed`, `threads` and errors
        are as for `predict_topk`.
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

    def decision_function(self, X: Any, *, threads: int | None = None) -> npt.NDArray[np.float32]:
        """Scores of all labels, dense float32 (n_rows, n_labels): for few labels or rows.

        `DataError` if that does not fit memory; otherwise as for `predict_topk`. A label that no
        training row had has score −1.
        """
        rows = self._dense_rows("decision_function", X, threads)
        return self._orders.by_score.decision_function(rows, threads)

    def predict_proba(self, X: Any, *, threads: int | None = None) -> npt.NDArray[np.float32]:
        """Probabilities of all labels, dense float32 (n_rows, n_labels), as `decision_function`.

        Each label is judged by itself. One that no training row had has probability 0.
        `ModelError` if the model has no calibration.
        """
        rows = self._dense_rows("predict_proba", X, threads)
        result = self._orders.dense_probabilities(rows, threads)
        result[:, self.label_counts == 0] = 0
        return result

    def _dense_rows(self, what: str, X: Any, threads: int | None) -> Any:
        rows = self.transform.take(self.rows_of(X, threads=threads))
        instead = "predict_topk or assign give the best labels of each row"
        check_dense(what, rows.shape[0], self.n_labels, 4, instead)
        return rows

    @cached_property
    def calibration(self) -> Calibration | None:
        """What makes probabilities of its scores, or None.

        Labels that share their weights have what the first of them has.
        """
        given = self._parts.calibration
        return None if given is None else given.taken_from(self.first_labels)

    def predict_proba_topk(
        self, X: Any, k: int = 5, *, allowed: Any = None, threads: int | None = None
    ) -> tuple[Labels, Scores]:
        """`predict_topk` by probability."""
        return self.predict_topk(X, k, rank="probability", allowed=allowed, threads=threads)

    def assign(
        self,
        X: Any,
        threshold: float | str | None = None,
        *,
        probabilities: bool = True,
        most: int | None = None,
        allowed: Any = None,
        threads: int | None = None,
    ) -> sp.csr_array:
        """All labels of each row that reach a threshold.

        Parameters
        ----------
        X, allowed
            As for `predict_topk`.
        threshold
            A probability; or "micro-f1" or "macro-f1", for what was chosen to maximize them when
            the model was calibrated: one probability for all labels, or one per label. Without
            `probabilities` a score. By default "micro-f1" if the model is calibrated, and else all
            scores above 0.
        probabilities
            Whether it is about probabilities, or scores, which need no calibration.
        most
            Labels that a row is given at most: those with the highest probabilities or scores, or
            for "macro-f1" those farthest above their thresholds.
        threads
            All available CPUs by default.

        Returns
        -------
        csr_array
            float32 (n_rows, n_labels): an entry for each label assigned, its probability or score,
            which may be 0.

        Raises
        ------
        DataError
            For other thresholds, `most` < 1, and as `predict_topk` does.
        ModelError
            If probabilities are asked for and the model has no calibration.
        """
        if most is not None and most < 1:
            raise DataError(f"most is {most}; expected at least 1")
        rows, orders, among = self._among(X, allowed, threads)
        ranking, rule = orders.rule(threshold, probabilities)
        return assigned(ranking, rows, rule, most, threads, among)

    def explain(self, X: Any, label: int, *, terms: Sequence[str] | None = None) -> Explanation:
        """What each feature of a row adds to the score of a label.

        Parameters
        ----------
        X
            One row, (1, up to n_features), or a list of one text, as for `predict_topk`.
        label
            Its number.
        terms
            What each feature stands for, one per feature, for the explanation to repeat; by default
            the terms of the model's vocabulary, if it has one.

        Raises
        ------
        DataError
            If X is not one row, the label was never trained, and as `predict_topk` does.
        """
        if terms is None and self.vocabulary is not None:
            terms = self.vocabulary.terms
        return explain(self._orders, self.rows_of(X), label, self.names, terms)

    def place(self, X: Any, label: int) -> int:
        """The place of a label for one row, from 1, as `predict_topk` ranks all labels."""
        orders = self._orders
        order = orders.by_score if self.calibration is None else orders.by_logit
        return order.place(self.rows_of(X), label)

    def reranked(
        self, alpha: float = 1.0, A: float = 0.55, B: float = 1.5, *, probabilities: bool = True
    ) -> Reranked:
        """A view of the model that ranks rare labels higher, by their propensities p.

        Its `predict_topk` and `evaluate` are as those of the model. Labels are ranked by P/p^alpha,
        where P is the probability of a label, and that is what they have for scores. At alpha = 1
        it is what a label is expected to add to PSP@k, so that no other ranking by the same
        probabilities is expected to have a higher one; at 0 it is the probability. None of all
        labels has more than those returned.

        Parameters
        ----------
        alpha
            How much propensities count, at least 0.
        A, B
            Their constants, as for `evaluate`.
        probabilities
            Without, labels are ranked by score + alpha·log(1/p), which needs no calibration.

        Raises
        ------
        DataError
            For other values of `alpha`, `A` and `B`.
        ModelError
            If probabilities are asked for and the model has no calibration.
        """
        if not 0 <= alpha <= 100:
            raise DataError(f"alpha is {alpha}; expected a number from 0 to 100")
        # Labels that share their weights have what the first of them has.
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
        X: Any,
        Y: Any,
        ks: Sequence[int] = (1, 3, 5),
        *,
        A: float = 0.55,
        B: float = 1.5,
        rank: str | None = None,
        weights: Any = None,
        allowed: Any = None,
        threads: int | None = None,
    ) -> dict[str, float]:
        """As `TopkModel.evaluate`, of labels ranked as by `predict_topk`.

        A calibrated model has four entries more: "ECE" of the probabilities of the first max(ks)
        places, "ECE uncalibrated" if they were the logistic function of the scores, and "micro-F1"
        and "macro-F1" of the sets that `assign` gives at the thresholds chosen for them.
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
        trust = reliability(self.calibration, truth, top, values, by_score, assign, weights)
        return metrics | trust

    @property
    @abstractmethod
    def first_labels(self) -> npt.NDArray[np.int64]:
        """int64 (n_labels,): for each label the first that has the same weights; itself, mostly."""

    @abstractmethod
    def _make_orders(self) -> Orders:
        """The orders in which its labels can be ranked."""

    @cached_property
    def _orders(self) -> Orders:
        return self._make_orders()

    def __getstate__(self) -> dict[str, Any]:
        cached = [k for k, v in vars(RankingModel).items() if isinstance(v, cached_property)]
        return {key: value for key, value in self.__dict__.items() if key not in cached}


class Model(StoredModel, RankingModel):
    """One linear classifier per label.

    Made by `dismec.train`, `dismec.open_model` or `DiSMECClassifier.fit`, not by hand. Attributes
    as those of `TopkModel`, and `calibration`.
    """

    def _facts(self) -> list[str]:
        words = {"calibrated": self._parts.calibration, "refined": self.manifest.refined}
        return [self.precision, *(word for word, there in words.items() if there is not None)]

    def _make_orders(self) -> Orders:
        return ShardOrders(self._shards, self.n_labels, self.transform, self.calibration)

    def calibrated(self, calibration: Calibration | None) -> Model:
        """The same model with another calibration, on the same weights."""
        if calibration is not None and calibration.n_labels != self.n_labels:
            raise ModelError(
                f"the calibration is of {calibration.n_labels} labels, the model has "
                f"{self.n_labels}"
            )
        parts = replace(self._parts, calibration=calibration)
        return Model(self.manifest, self.transform, parts, self._shards)

    def pruned(self, delta: float | None = None, *, precision: str | None = None) -> Model:
        """A smaller model, in memory: without the weights below `delta`, at another precision.

        It is what training with these values would have given, but for weights that rounding has
        moved across `delta`. What is None stays as it is.

        Raises
        ------
        DataError
            If `delta` is below the model's own: what training has dropped does not come back.
        """
        params = pruned_params(self.params, delta, precision or self.precision)
        kept = delta or 0.0, params["precision"]
        shards = repacked(self.manifest, self.transform, self._shards, *kept)
        return Model(replace(self.manifest, params=params), self.transform, self._parts, shards)

    def subset(self, labels: Iterable[str | int]) -> Model:
        """A model of some labels, given by name or number, in memory; its scores are the same bits.

        Labels keep their order, and are numbered from 0. `ModelError` if the model is refined.
        """
        found = np.unique(self._find_labels(labels, "labels"))
        made = subset_parts(self.manifest, parts_in_use(self), self._shards, found)
        return Model(made[0], self.transform, *made[1:])
