"""A finished model: weights and names in, top k out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.errors import DataError, ModelError
from dismec.measure.metrics import Truth
from dismec.model import thresholds
from dismec.model.calibration import Calibration, Float32s
from dismec.model.explanation import Explanation, contributions
from dismec.model.informed import Informed
from dismec.model.manifest import Manifest
from dismec.model.parts import Parts
from dismec.model.reliability import reliability
from dismec.model.reranking import Gains, Reranked
from dismec.model.saving import write_model
from dismec.model.scoring import Labels, Predictor, RowTransform, Scores
from dismec.model.shards import Shard, first_labels, gather, pack, prune
from dismec.model.thresholds import MACRO_F1, MICRO_F1
from dismec.model.topk_model import Capabilities, TopkModel

__all__ = ["RANKS", "Model"]

RANKS = ("score", "probability")  # what labels can be ranked by


class Model(TopkModel):
    """One linear classifier per label.

    Made by `dismec.train`, `dismec.open_model` or `DiSMECClassifier.fit`, not by hand. Attributes
    as those of `TopkModel`, and `calibration`.
    """

    def __init__(
        self, manifest: Manifest, transform: RowTransform, parts: Parts, shards: Sequence[Shard]
    ) -> None:
        super().__init__(manifest, transform, parts)
        self._shards = list(shards)

    @property
    def weights(self) -> sp.csr_array:
        """The weights as CSR float32 (n_labels, n_features + 1), bias last; a copy on each call.

        They are those that predictions are made with, rounded to the model's precision. In a
        refined model the labels that inform others are further features, before the bias.
        """
        return gather(self._shards, self.n_labels, self.transform.n_columns)

    @property
    def shards(self) -> Sequence[Shard]:
        """The weights as they are stored."""
        return tuple(self._shards)

    @property
    def precision(self) -> str:
        """How weights are stored: "float16", "float32" or "int8"."""
        return self._shards[0].precision if self._shards else str(self.params.get("precision"))

    @property
    def nnz(self) -> int:  # noqa: D102
        return sum(shard.nnz for shard in self._shards)

    def predict_topk(
        self, X: Any, k: int = 5, *, rank: str | None = None, threads: int | None = None
    ) -> tuple[Labels, Scores]:
        """The k best labels of each row, best first, with what they are ranked by.

        Parameters
        ----------
        X, k, threads
            As for `TopkModel.predict_topk`.
        rank
            "probability", by default if the model is calibrated, or "score". Ties go to the
            smaller label. None of all labels ranks before those returned.

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
        if self._rank(rank) == "score":
            return self._predictor.topk(X, k, threads)
        labels, z = self._logits.topk(X, k, threads)
        return labels, np.where(labels < 0, np.float32(0), self._calibrated.of_logits(z))

    def _rank(self, rank: str | None) -> str:
        if rank not in (None, *RANKS):
            raise DataError(f"rank is {rank!r}; expected {' or '.join(RANKS)}")
        return rank or RANKS[self.calibration is not None]

    def decision_function(self, X: Any, *, threads: int | None = None) -> npt.NDArray[np.float32]:
        """Scores of all labels, dense float32 (n_rows, n_labels): for few labels or rows."""
        return self._predictor.decision_function(X, threads)

    @property
    def capabilities(self) -> Capabilities:  # noqa: D102
        return Capabilities(
            texts=self.vocabulary is not None,
            probabilities=self.calibration is not None,
            explanations=True,
            rankings=True,
        )

    @cached_property
    def calibration(self) -> Calibration | None:
        """What makes probabilities of its scores, or None.

        Labels that share their weights have what the first of them has.
        """
        given = self._parts.calibration
        return None if given is None else given.taken_from(self.first_labels)

    def calibrated(self, calibration: Calibration | None) -> Model:
        """The same model with another calibration, on the same weights."""
        if calibration is not None and calibration.n_labels != self.n_labels:
            raise ModelError(
                f"the calibration is of {calibration.n_labels} labels, the model has "
                f"{self.n_labels}"
            )
        parts = replace(self._parts, calibration=calibration)
        return Model(self.manifest, self.transform, parts, self._shards)

    @property
    def first_labels(self) -> npt.NDArray[np.int64]:
        """int64 (n_labels,): for each label the first that has the same weights; itself, mostly."""
        return first_labels(self._shards, self.n_labels)

    def predict_proba_topk(
        self, X: Any, k: int = 5, *, threads: int | None = None
    ) -> tuple[Labels, Scores]:
        """`predict_topk` by probability."""
        return self.predict_topk(X, k, rank="probability", threads=threads)

    def assign(
        self,
        X: Any,
        threshold: float | str,
        *,
        probabilities: bool = True,
        most: int | None = None,
        threads: int | None = None,
    ) -> sp.csr_array:
        """All labels of each row that reach a threshold.

        Parameters
        ----------
        X
            As for `predict_topk`.
        threshold
            A probability; or "micro-f1" or "macro-f1", for what was chosen to maximise them when
            the model was calibrated: one probability for all labels, or one per label. Without
            `probabilities` a score.
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
        named = (MICRO_F1, MACRO_F1) if probabilities else ()
        if isinstance(threshold, str) and threshold not in named:
            wanted = " or ".join(["a number", *named])
            raise DataError(f"threshold is {threshold!r}; expected {wanted}")
        calibration = self._calibrated if probabilities else None
        if calibration is None:
            ranking, rule = self._predictor, thresholds.by_score(threshold)
        elif threshold == MACRO_F1:
            ranking, rule = self._margins, thresholds.by_margin(calibration)
        else:
            least = calibration.micro_threshold if threshold == MICRO_F1 else threshold
            ranking, rule = self._logits, thresholds.by_probability(least, calibration)
        return thresholds.assigned(ranking, X, rule, most, threads)

    def explain(self, X: Any, label: int, *, terms: Sequence[str] | None = None) -> Explanation:
        """What each feature of a row adds to the score of a label.

        Parameters
        ----------
        X
            One row, (1, up to n_features), as for `predict_topk`.
        label
            Its number.
        terms
            What each feature stands for, one per feature, for the explanation to repeat.

        Raises
        ------
        DataError
            If X is not one row, the label was never trained, and as `predict_topk` does.
        """
        if terms is not None and len(terms) != self.n_features:
            raise DataError(f"there are {len(terms)} terms for {self.n_features} features")
        row, weights, score = self._predictor.explain(X, label)
        probability = None
        if self.calibration is not None:
            probability = float(self.calibration.of_logits(self._logits.explain(X, label)[2]))
        bias, found = contributions(row, weights, self.transform.n_columns, terms)
        reasons = []
        if isinstance(self.transform, Informed):
            reasons = self.transform.reasons(X, found, self.names, terms)
        return Explanation(
            int(label),
            None if self.names is None else self.names[label],
            score,
            probability,
            bias,
            [term for term in found if term.feature < self.n_features],
            reasons,
        )

    def place(self, X: Any, label: int) -> int:
        """The place of a label for one row, from 1, as `predict_topk` ranks all labels."""
        return (self._predictor if self.calibration is None else self._logits).place(X, label)

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
        ranking: Predictor | Gains
        if probabilities:
            ranking = Gains(self._rescaled, self._calibrated, bonus)
        else:
            ranking = self._rescaled(np.ones(self.n_labels, np.float32), bonus.astype(np.float32))
        return Reranked(self, ranking)

    def pruned(self, delta: float | None = None, *, precision: str | None = None) -> Model:
        """A smaller model, in memory: without the weights below `delta`, at another precision.

        It is what training with these values would have given, but for weights that rounding has
        moved across `delta`. What is None stays as it is.

        Raises
        ------
        DataError
            If `delta` is below the model's own: what training has dropped does not come back.
        """
        params = dict(self.params)
        if delta is not None:
            own = params.get("delta")
            if not isinstance(own, int | float):
                raise ModelError("the model does not say at which delta it was pruned")
            # What is left of any weights at infinity is nothing, but JSON has no word for it.
            if not own <= delta <= np.finfo(np.float32).max:
                raise DataError(
                    f"delta is {delta}; expected at least {own}, that of the model: "
                    "weights that have been dropped do not come back"
                )
            params = {k: v for k, v in params.items() if k not in ("delta_auto", "delta_effect")}
            params["delta"] = float(delta)
        params["precision"] = precision or self.precision
        shards = self._repacked(delta or 0, params["precision"])
        return Model(replace(self.manifest, params=params), self.transform, self._parts, shards)

    def _repacked(self, delta: float, precision: str) -> list[Shard]:
        more = self.transform.pruned_more(delta) if isinstance(self.transform, Informed) else None
        if not self.manifest.history:
            return [s.repacked(prune(s.unpack(), delta, more), precision) for s in self._shards]
        # Labels that came and went have left small shards behind: all go into as few as possible.
        labels = np.flatnonzero(self.label_counts)
        weights: Any = prune(self.weights, delta, more)
        return list(pack([(labels, weights[labels])], self.transform.n_columns, precision))

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        estimator: dict[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write the model to a directory of its own, with what `estimator` or its manifest says.

        Raises
        ------
        ModelError
            If there is a model already and `overwrite` is not set, or other files are there.
        """
        parts = self.manifest, self.transform, self._parts, self._shards
        write_model(Path(path), *parts, estimator=estimator, overwrite=overwrite)

    def evaluate(
        self,
        X: Any,
        Y: Any,
        ks: Sequence[int] = (1, 3, 5),
        *,
        A: float = 0.55,
        B: float = 1.5,
        rank: str | None = None,
        threads: int | None = None,
    ) -> dict[str, float]:
        """As `TopkModel.evaluate`, of labels ranked as by `predict_topk`.

        A calibrated model has four entries more: "ECE" of the probabilities of the first max(ks)
        places, "ECE uncalibrated" if they were the logistic function of the scores, and "micro-F1"
        and "macro-F1" of the sets that `assign` gives at the thresholds chosen for them.
        """
        truth = Truth.align(Y, self.label_counts, self.manifest.n_rows, A, B)
        depth = max(1, min(max(ks, default=1), self.n_labels))
        top, values = self.predict_topk(X, depth, rank=rank, threads=threads)
        metrics = truth.metrics(top, ks)
        if self.calibration is None:
            return metrics
        by_score = self._rank(rank) == "score"
        assign = partial(self.assign, X, threads=threads)
        return metrics | reliability(self.calibration, truth, top, values, by_score, assign)

    @property
    def _calibrated(self) -> Calibration:
        if self.calibration is None:
            raise ModelError("the model gives no probabilities: train it with --calibrate")
        return self.calibration

    @cached_property
    def _predictor(self) -> Predictor:
        return Predictor(self._shards, self.n_labels, self.transform)

    @cached_property
    def _logits(self) -> Predictor:
        """Its scores are slope·score + intercept: their order is that of probabilities."""
        calibration = self._calibrated
        return self._rescaled(calibration.slopes, calibration.intercepts)

    @cached_property
    def _margins(self) -> Predictor:
        """Its scores are how far that is above the label's threshold for macro-F1."""
        calibration = self._calibrated
        least = calibration.logits(calibration.macro_thresholds).astype(np.float32)
        return self._rescaled(calibration.slopes, calibration.intercepts - least)

    def _rescaled(self, slopes: Float32s, offsets: Float32s) -> Predictor:
        shards = [s.rescaled(slopes, offsets, self.transform.bias) for s in self._shards]
        return Predictor(shards, self.n_labels, self.transform.with_bias(1.0))

    def __getstate__(self) -> dict[str, Any]:
        cached = [k for k, v in vars(Model).items() if isinstance(v, cached_property)]
        return {key: value for key, value in self.__dict__.items() if key not in cached}
