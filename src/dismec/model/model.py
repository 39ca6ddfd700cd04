"""A finished model: weights and names in; top k, sets of labels and explanations out."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial, reduce
from operator import or_
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import available_memory
from dismec.data.counts import check_k, check_ks, counted
from dismec.data.files import WatchedFiles
from dismec.data.targets import matrix_of_labels, propensities
from dismec.data.types import LabelsLike, RowsLike, WeightsLike
from dismec.data.weights import check_row_weights
from dismec.errors import DataError
from dismec.features.encoder import Encoder
from dismec.features.label_texts import ALONE, share_of_text
from dismec.measure.metrics import Truth, f1_scores, hits
from dismec.measure.metrics import expected_calibration_error as calibration_error
from dismec.model.aims import aimed, candidates, psp_exponent
from dismec.model.allowed import Allowed, LabelsAllowed
from dismec.model.calibration import Calibration, logistic
from dismec.model.explanation import Explanation, explain
from dismec.model.label_index import LabelNames
from dismec.model.manifest import Manifest
from dismec.model.provenance import format_ranges, history_entry
from dismec.model.pruning import pruned_params, repacked
from dismec.model.rankings import MACRO_F1, MICRO_F1, Rankings, ShardRankings, assigned, ranked
from dismec.model.saving import write_model
from dismec.model.scoring import Labels, RowTransform, Scores, input_rows
from dismec.model.select_labels import renumbered, selected
from dismec.model.shards import Shard, gather
from dismec.model.sidecar_files import Parts

RANKS = ("score", "probability")  # what labels can be ranked by


class Model:
    """A trained model: one linear classifier per label.

    Models are made by `dismec.train`, `dismec.train_text` and `dismec.open_model`, and the
    estimators keep theirs in `model_`. There is no need to call the constructor.

    Attributes
    ----------
    manifest : Manifest
        Shape, parameters, files and history of the model.
    transform : Transform
        The transform of each row before it is scored: tf-idf and scaling to length 1.
    label_counts : ndarray of int64, shape (n_labels,)
        Number of training rows of each label.
    names : sequence of str, or None
        The names of the labels, if they have names.
    vocabulary : Vocabulary or None
        Turns texts into rows, for a text model.

    Examples
    --------
    >>> from dismec import DiSMECTextClassifier
    >>> texts = ["boil the egg", "fry the egg", "bake the bread", "slice the bread"]
    >>> labels = [["egg"], ["egg"], ["bread"], ["bread"]]
    >>> model = DiSMECTextClassifier().fit(texts, labels).model_
    >>> model.predict(["a fried egg", "slice it"])
    [('egg',), ('bread',)]
    >>> numbers, scores = model.predict_topk(["a fried egg"], k=2)
    >>> [model.names[number] for number in numbers[0]]
    ['egg', 'bread']
    >>> model.evaluate(texts, labels, ks=[1])["P@1"]
    100.0
    >>> model.explain(["a fried egg"], model.find_label("egg")).terms[0].term
    'egg'
    """

    def __init__(
        self, manifest: Manifest, transform: RowTransform, parts: Parts, rankings: Rankings
    ) -> None:
        self.manifest = manifest
        self.transform = transform
        self.label_counts = parts.labels.counts
        self.names = parts.labels.names
        self.vocabulary = parts.vocabulary
        self.files = WatchedFiles()  # empty, except in a server
        self._parts = parts
        self._rankings = rankings

    @classmethod
    def from_shards(
        cls, manifest: Manifest, transform: RowTransform, parts: Parts, shards: Sequence[Shard]
    ) -> Model:
        """Create a model from what its files hold, with the weights in this process.

        Parameters
        ----------
        manifest, transform, parts, shards
            The contents of the files.

        Returns
        -------
        Model
            The model.
        """
        rankings = ShardRankings(shards, manifest.n_labels, transform, parts.calibration)
        return cls(manifest, transform, parts, rankings)

    @property
    def n_labels(self) -> int:
        """Number of labels."""
        return self.manifest.n_labels

    @property
    def n_features(self) -> int:
        """Number of sparse features, without the bias."""
        return self.manifest.n_features

    @property
    def n_dense(self) -> int:
        """Number of dense features per row; 0 for most models."""
        return self.transform.dense

    @property
    def encoder(self) -> Encoder | None:
        """The encoder that turns texts into the dense features, if there is one."""
        return None if self.vocabulary is None else self.vocabulary.encoder

    @property
    def params(self) -> dict[str, Any]:
        """Training parameters by name."""
        return dict(self.manifest.params)

    @property
    def calibration(self) -> Calibration | None:
        """How scores become probabilities, or None if the model is not calibrated.

        Labels that share their weights have the calibration of the first of them.
        """
        return self._rankings.calibration

    @property
    def weights(self) -> sp.csr_array:
        """The weights as a float32 matrix of shape (n_labels, n_features + 1), with the bias last.

        Predictions are made with these, rounded to the precision of the model. In a refined model
        the labels used as features are further columns, before the bias. Each access makes a
        copy.
        """
        return gather(self.shards, self.n_labels, self.transform.n_columns)

    @property
    def shards(self) -> Sequence[Shard]:
        """The weights as they are stored; raises `ModelError` if they are on a cluster."""
        return self._rankings.shards

    @property
    def parts(self) -> Parts:
        """Label names and counts, vocabulary and calibration, as the model uses them."""
        table = replace(self._parts.labels, idf=self.transform.idf)
        return Parts(table, self.vocabulary, self.calibration)

    @property
    def without_rows(self) -> npt.NDArray[np.bool_]:
        """Labels without training rows that are predicted by a text about them (n_labels,)."""
        return self._parts.labels.only_described

    @property
    def precision(self) -> str:
        """How weights are stored: "float16", "float32" or "float8"."""
        shards = self._rankings.shards if isinstance(self._rankings, ShardRankings) else ()
        return shards[0].precision if shards else str(self.params.get("precision"))

    @property
    def nnz(self) -> int:
        """Number of weights stored. Labels with the same weights share them."""
        if isinstance(self._rankings, ShardRankings):
            return sum(shard.nnz for shard in self.shards)
        return sum(receipt.nnz for receipt in self.manifest.classifier_files)

    @property
    def first_labels(self) -> npt.NDArray[np.int64]:
        """For each label the first label with the same weights, int64 of shape (n_labels,)."""
        return self._rankings.first_labels

    @property
    def damage(self) -> str | None:
        """How a file of the model has changed since it was opened, or None.

        Only servers check this (`dismec.data.files.watching`).
        """
        return self.files.damage

    def __repr__(self) -> str:
        marks = {"calibrated": self.calibration, "refined": self.manifest.refined}
        facts = [
            counted(self.n_labels, "label"),
            *([counted(self.n_features, "feature")] if self.n_features or not self.n_dense else []),
            *([counted(self.n_dense, "dense feature")] if self.n_dense else []),
            counted(self.nnz, "weight"),
            self.precision,
            *(word for word, there in marks.items() if there is not None),
        ]
        kind = "; of texts" if self.vocabulary is not None else ""
        return f"{type(self).__name__}({', '.join(facts)}{kind})"

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key != "_label_names"}
        return state | {"_rankings": self.shards}

    def __setstate__(self, state: dict[str, Any]) -> None:
        shards = state.pop("_rankings")
        self.__dict__.update(state)
        calibration = self._parts.calibration
        self._rankings = ShardRankings(shards, self.n_labels, self.transform, calibration)

    @cached_property
    def _label_names(self) -> LabelNames:
        return LabelNames(self.names, self.n_labels)

    @property
    def label_numbers(self) -> dict[str, int]:
        """Numbers of the labels by their names; of equal names, the first."""
        return self._label_names.numbers

    def find_label(self, label: str | int) -> int:
        """Return the number of a label.

        Parameters
        ----------
        label : str or int
            Its name or its number. Of several labels with the same name, the first is found. If the
            labels have no names, a text is read as a number.

        Returns
        -------
        int
            The number of the label, from 0.
        """
        return self._label_names.find(label)

    def select_labels(
        self,
        only: Iterable[str | int] | None = None,
        exclude: Iterable[str | int] | None = None,
    ) -> Allowed:
        """Choose the labels that may be predicted.

        Pass the result as `allowed` to `predict_topk` and other methods, as often as you like: it
        is prepared only once.

        Parameters
        ----------
        only : iterable of str or int, default=None
            The labels that may be predicted, by name or number. By default all.
        exclude : iterable of str or int, default=None
            Labels that may not be predicted. By default none.

        Returns
        -------
        Allowed
            The labels chosen.
        """
        mask = np.full(self.n_labels, only is None, np.bool_)
        if only is not None:
            mask[self._label_names.find_all(only, "only")] = True
        if exclude is not None:
            mask[self._label_names.find_all(exclude, "exclude")] = False
        return Allowed(self.n_labels, np.flatnonzero(mask))

    def allowed_labels(self, allowed: LabelsAllowed | None) -> Allowed | None:
        """Turn a value of `allowed` into the labels that it stands for.

        Parameters
        ----------
        allowed : labels, indicator matrix, or None
            As for `predict_topk`.

        Returns
        -------
        Allowed or None
            The labels, or None for all labels.
        """
        if allowed is None:
            return None
        if isinstance(allowed, Allowed):
            if allowed.n_labels != self.n_labels:
                raise DataError(
                    f"allowed is for a model with {counted(allowed.n_labels, 'label')}, "
                    f"not {self.n_labels:,}"
                )
            return allowed
        if sp.issparse(allowed) or getattr(allowed, "ndim", 1) == 2:
            return Allowed.of_rows(allowed, self.n_labels)
        return Allowed(self.n_labels, self._label_names.find_all(allowed, "allowed"))

    def rows_of(self, X: RowsLike, *, threads: int | None = None) -> Any:
        """Turn texts into rows, and check that other rows are of the kind that the model accepts.

        Parameters
        ----------
        X : matrix of shape (n_rows, n_features), or texts
            A text model accepts texts or `TextRows`, but no other matrix, as the meaning of
            its columns is unknown. A model with dense features accepts a list ``[X, E]``.
        threads : int, default=None
            Number of threads. By default all available CPUs.

        Returns
        -------
        matrix or MixedRows
            The rows to score: `TextRows` for texts, X itself otherwise.
        """
        return input_rows(X, self.transform, self.vocabulary, threads)

    def predict_topk(
        self,
        X: RowsLike,
        k: int = 5,
        *,
        rank: str | None = None,
        aim: str | None = None,
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
        aim : {"macro-f1", "coverage", "psp"}, default=None
            Instead of the most probable labels, predict those with which this metric of all rows
            together is expected to be highest at k. For "macro-f1" and "coverage", the labels of a
            row depend on the other rows. "psp" ranks by P/p, the probability divided by the
            propensity, and "psp:0.5" by P/√p; without calibration, by score + log(1/p).
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
            Their probabilities or scores, or P/p for "psp"; 0 or −inf at empty places.
        """
        k = check_k(k)
        if aim is not None:
            if rank is not None:
                raise DataError("rank cannot be combined with aim")
            return self._aimed(X, k, aim, allowed, threads)
        probabilities = self._ranks_by_probability(rank)
        rows, rankings, among = self._among(X, allowed, threads)
        return rankings.topk(rows, k, probabilities, threads, among)

    def _aimed(
        self, X: RowsLike, k: int, aim: str, allowed: LabelsAllowed | None, threads: int | None
    ) -> tuple[Labels, Scores]:
        alpha = psp_exponent(aim)
        rows, rankings, among = self._among(X, allowed, threads)
        if alpha is None:
            found = rankings.topk(rows, candidates(k), True, threads, among)
            return aimed(aim, *found, k, self.n_labels)
        # Labels with the same weights have the same scores, so they get the same bonus.
        log_p = np.log(self.propensities()[self.first_labels])
        return rankings.by_gain(alpha, log_p).topk(rows, k, threads, among)

    def _ranks_by_probability(self, rank: str | None) -> bool:
        if rank not in (None, *RANKS):
            raise DataError(f"rank is {rank!r}; expected {' or '.join(RANKS)}")
        return self.calibration is not None if rank is None else rank == "probability"

    def _among(
        self, X: RowsLike, allowed: LabelsAllowed | None, threads: int | None
    ) -> tuple[Any, Rankings, Allowed | None]:
        """Return the rows of X, the rankings for them, and what to pass as `allowed` there."""
        chosen = self.allowed_labels(allowed)
        rows = self.rows_of(X, threads=threads)
        n_rows = rows.shape[0] if hasattr(rows, "shape") else len(rows)
        return rows, *self._rankings.among(chosen, n_rows)

    def predict(
        self, X: RowsLike, *, allowed: LabelsAllowed | None = None, threads: int | None = None
    ) -> list[tuple[str | int, ...]]:
        """Predict the set of labels of each row.

        A row gets the labels with scores above 0. With a calibrated model it gets those whose
        probability reaches the threshold that was best for micro-F1. `assign` takes other
        thresholds.

        Parameters
        ----------
        X, allowed, threads
            As for `predict_topk`.

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
        X, allowed, threads
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

        Returns
        -------
        csr_array of float32, shape (n_rows, n_labels)
            An entry for each label assigned: its probability or score, which may be 0.
        """
        if most is not None and most < 1:
            raise DataError(f"most is {most}; expected at least 1")
        rows, rankings, among = self._among(X, allowed, threads)
        ranking, rule = rankings.rule(threshold, probabilities)
        return assigned(ranking, rows, rule, most, threads, among)

    def decision_function(
        self, X: RowsLike, *, threads: int | None = None
    ) -> npt.NDArray[np.float32]:
        """Compute the scores of all labels.

        For many rows and labels use `predict_topk` or `assign`, which need far less memory.

        Parameters
        ----------
        X, threads
            As for `predict_topk`.

        Returns
        -------
        ndarray of float32, shape (n_rows, n_labels)
            The scores. A label without training rows has score −1.
        """
        rows = self._dense_rows("decision_function", X, threads)
        return self._rankings.by_score.decision_function(rows, threads)

    def predict_proba(self, X: RowsLike, *, threads: int | None = None) -> npt.NDArray[np.float32]:
        """Compute the probabilities of all labels.

        Each label is predicted independently, so the probabilities of a row need not sum to 1.

        Parameters
        ----------
        X, threads
            As for `predict_topk`.

        Returns
        -------
        ndarray of float32, shape (n_rows, n_labels)
            The probabilities. A label without training rows has probability 0.
        """
        rows = self._dense_rows("predict_proba", X, threads)
        result = self._rankings.dense_probabilities(rows, threads)
        result[:, self.label_counts == 0] = 0
        return result

    def _dense_rows(self, what: str, X: RowsLike, threads: int | None) -> Any:
        rows = self.transform.take(self.rows_of(X, threads=threads))
        instead = "predict_topk or assign give the best labels of each row"
        check_dense(what, rows.shape[0], self.n_labels, 4, instead)
        return rows

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
        """
        if terms is None and self.vocabulary is not None:
            terms = self.vocabulary.terms
        rows, rankings, probability = self.rows_of(X), self._rankings, None
        if self.calibration is not None:
            z = rankings.by_logit.explain(rows, label)[2]
            probability = float(self.calibration.of_logits(z))
        texts = self._parts.labels.texts
        text = texts[label] if texts else None
        share = partial(self._share_of_text, label, text) if text else None
        return explain(rankings.by_score, rows, label, probability, self.names, terms, share)

    def _share_of_text(self, label: int, text: str, features: Any, values: Any) -> float:
        """Return what the text of a label adds to a score, given features and their values."""
        assert self.vocabulary is not None
        effect = self.params.get("label_texts_effect", {})
        weight = ALONE if self.without_rows[label] else effect.get("weight") or 0.0
        idf, count = self.transform.idf, int(self.label_counts[label])
        return share_of_text(self.vocabulary, idf, text, features, values, weight, count)

    def place(self, X: RowsLike, label: int) -> int:
        """Find the place of a label in the ranking of all labels for one row.

        Parameters
        ----------
        X, label
            As for `explain`.

        Returns
        -------
        int
            Its place, counted from 1, as `predict_topk` ranks labels.
        """
        rankings = self._rankings
        ranking = rankings.by_score if self.calibration is None else rankings.by_logit
        return ranking.place(self.rows_of(X), label)

    def evaluate(
        self,
        X: RowsLike,
        Y: LabelsLike,
        ks: Sequence[int] = (1, 3, 5),
        *,
        A: float | None = None,
        B: float | None = None,
        rank: str | None = None,
        aim: str | None = None,
        weights: WeightsLike | None = None,
        allowed: LabelsAllowed | None = None,
        threads: int | None = None,
    ) -> dict[str, float]:
        """Evaluate the model on rows with known labels.

        Parameters
        ----------
        X, rank, aim, allowed, threads
            As for `predict_topk`. True labels that are not allowed do not count as true.
        Y : indicator matrix of shape (n_rows, n_labels), or lists of labels
            The true labels. Columns of a frame and labels in lists are matched by name. Labels that
            the model does not have count as missed.
        ks, weights
            As for `dismec.evaluate`.
        A, B
            As for `propensities`.

        Returns
        -------
        dict of str to float
            P@k, nDCG@k, PSP@k, PSnDCG@k, R@k, Coverage@k and macro-F1@k in percent for each k, and
            the number of "rows". For a calibrated model, without `aim`, also "ECE" of the
            probabilities in the first max(ks) places, "ECE uncalibrated" for the logistic function
            of the scores, and "micro-F1" and "macro-F1" of the sets that `assign` finds with the
            thresholds for these metrics.
        """
        chosen = self.allowed_labels(allowed)
        matrix, rows = matrix_of_labels(Y, self.names), self.rows_of(X, threads=threads)
        if chosen is not None:
            matrix, _ = chosen.filter(matrix)
        constants = self._constants(A, B)
        truth = Truth.align(matrix, self.label_counts, self.manifest.n_rows, *constants)
        ks = check_ks(ks)
        how: dict[str, Any] = {"allowed": chosen, "threads": threads}
        if aim is not None:  # the best labels for one k need not be among those for another
            tops = {k: self.predict_topk(rows, k, rank=rank, aim=aim, **how)[0] for k in ks}
            return reduce(or_, (truth.metrics(top, [k], weights) for k, top in tops.items()))
        most = max(1, min(max(ks), truth.Y.shape[1]))
        top, values = self.predict_topk(rows, most, rank=rank, **how)
        metrics = truth.metrics(top, ks, weights)
        calibration = self.calibration
        if calibration is None:
            return metrics
        row_weights = None if weights is None else check_row_weights(weights, len(top))
        there = top >= 0
        found, p = hits(truth.Y, top)[there], values[there]
        if self._ranks_by_probability(rank):
            scores = calibration.scores(top[there], p)
        else:
            p, scores = calibration.probabilities(top[there], p), p
        v = None if row_weights is None else np.repeat(row_weights, there.sum(axis=1))
        metrics["ECE"] = 100 * calibration_error(p, found, weights=v)
        metrics["ECE uncalibrated"] = 100 * calibration_error(logistic(scores), found, weights=v)
        for name, threshold in (("micro-F1", MICRO_F1), ("macro-F1", MACRO_F1)):
            sets: Any = self.assign(rows, threshold, **how)
            sets.resize(truth.Y.shape)
            metrics[name] = 100 * f1_scores(truth.Y, sets, row_weights)[name]
        return metrics

    def propensities(
        self, A: float | None = None, B: float | None = None
    ) -> npt.NDArray[np.float64]:
        """Compute how likely each label is to be recorded where it is true.

        Parameters
        ----------
        A, B : float, default=None
            Constants of the propensities, as for `dismec.propensities`. By default those that the
            model was trained with.

        Returns
        -------
        ndarray of float64, shape (n_labels,)
            The propensities, computed from the number of training rows of each label.
        """
        return propensities(self.label_counts, self.manifest.n_rows, *self._constants(A, B))

    def _constants(self, A: float | None, B: float | None) -> tuple[float, float]:
        own = self.manifest.params
        return (
            own.get("propensity_a", 0.55) if A is None else A,
            own.get("propensity_b", 1.5) if B is None else B,
        )

    def pruned(self, delta: float | None = None, *, precision: str | None = None) -> Model:
        """Return a smaller model: without small weights, or with weights of another precision.

        The result is what training with these values would have given, except for weights that
        rounding has moved across `delta`.

        Parameters
        ----------
        delta : float, default=None
            Weights closer to 0 than this are dropped. None keeps all weights.
        precision : {"float16", "float32", "float8"}, default=None
            How weights are stored. None keeps the precision of the model.

        Returns
        -------
        Model
            The smaller model, in memory. `save` writes it to a directory.

        Raises
        ------
        DataError
            If `delta` is smaller than the delta of the model: the weights that training has
            dropped cannot be restored.
        """
        params = pruned_params(self.params, delta, precision or self.precision)
        kept = delta or 0.0, params["precision"]
        shards = repacked(self.manifest, self.transform, self.shards, *kept)
        manifest = replace(self.manifest, params=params)
        return Model.from_shards(manifest, self.transform, self._parts, shards)

    def subset(self, labels: Iterable[str | int]) -> Model:
        """Return a model of some of the labels, with the same scores.

        Parameters
        ----------
        labels : iterable of str or int
            The labels to keep, by name or number.

        Returns
        -------
        Model
            The model of these labels, in memory. They keep their order and are numbered from 0.
        """
        numbers = np.unique(self._label_names.find_all(labels, "labels"))
        self.manifest.check_separable("the model")
        if not len(numbers):
            raise DataError("no labels given")
        entry = history_entry(
            "kept",
            labels=len(numbers),
            of=self.n_labels,
            numbers=format_ranges(numbers),
            data=self.manifest.data,
        )
        manifest = replace(
            self.manifest.finished(()),
            n_labels=len(numbers),
            history=(*self.manifest.history, entry),
            stats=None,  # they cover all labels
        )
        wanted = np.isin(np.arange(self.n_labels), numbers)
        new = np.cumsum(wanted) - 1
        shards = [renumbered(shard, new) for shard in selected(self.shards, wanted)]
        return Model.from_shards(manifest, self.transform, self.parts.of_labels(numbers), shards)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        estimator: dict[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write the model to a directory, or to a single file.

        Parameters
        ----------
        path : str or path-like
            The directory. A path that ends in ``.zip`` becomes a single file, unless it is a
            directory. `dismec.open_model` reads both.
        estimator : dict, default=None
            What an estimator has to know to load the model. By default what the model holds.
        overwrite : bool, default=False
            Whether to overwrite an existing model.
        """
        manifest = self.manifest
        if estimator is not None:
            manifest = replace(manifest, estimator=estimator)
        write_model(manifest, self.transform, self._parts, self.shards, path, overwrite=overwrite)

    def to_bytes(self) -> bytes:
        """Return the model as the bytes of a single file.

        Returns
        -------
        bytes
            The content of the ``.zip`` file that `save` would write; `dismec.open_model` takes it.
        """
        buffer = io.BytesIO()
        write_model(self.manifest, self.transform, self._parts, self.shards, buffer)
        return buffer.getvalue()


def check_dense(what: str, n_rows: int, n_labels: int, itemsize: int, instead: str) -> None:
    """Raise `DataError` if a dense result does not fit in memory; `instead` says what to do."""
    needed, free = itemsize * n_rows * n_labels, available_memory()
    if free is not None and needed > free:
        raise DataError(
            f"{what} of {counted(n_rows, 'row')} × {counted(n_labels, 'label')} would take "
            f"{needed / 2**30:,.1f} GiB, but only {free / 2**30:,.1f} GiB of memory are available: "
            f"{instead}"
        )
