"""The scikit-learn estimator of texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.columns import text_column
from dismec.data.row_weights import RowWeights, check_row_weights, kept_rows
from dismec.data.targets import Target
from dismec.data.types import LabeledRows, LabelsLike, RowsLike, WeightsLike
from dismec.errors import DataError
from dismec.estimators.class_weights import class_costs
from dismec.estimators.scorers import check_scorer
from dismec.estimators.shared import NOT_ROUTED, check_none_empty, constructor
from dismec.estimators.stored_texts import TextEstimator, check_lengths, split_dense
from dismec.features.vocabulary import TextParams, VocabularyBuilder
from dismec.measure.metrics import hits
from dismec.model.allowed import LabelsAllowed
from dismec.model.orders import check_dense
from dismec.model.thresholds import ranked
from dismec.training.params import TrainingParams
from dismec.training.recipe import fit

__all__ = ["DiSMECTextClassifier"]

_TEXT = tuple(f.name for f in fields(TextParams))


class DiSMECTextClassifier(TextEstimator):
    """Linear classifiers for texts: a vocabulary, tf-idf, and one classifier per label.

    Parameters
    ----------
    C, delta, tol, precision, penalty, refine, weighting
        As for `TrainingParams`.
    positive_weight, propensity_a, propensity_b
        As for `TrainingParams`.
    dense_scale : float, default=1.0
        As for `TrainingParams`, for dense features in addition to texts.
    class_weight, n_jobs, cluster, engine
        As for `DiSMECClassifier`; the keys of `class_weight` are labels.
    calibrate : bool, default=False
        Whether to learn probabilities, on a tenth of the texts; the final model is trained on all.
    word_ngrams, char_ngrams, lowercase, min_df, max_df, max_features, sublinear
        The terms of a text that become features, as for `TextParams`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_labels,)
        The labels, in order: names, or numbers if labels were numbers.
    target_ : {"lists", "classes", "indicator", "sparse"}
        The form of the labels passed to `fit`; "classes" is one label per text.
    coef_ : csr_array of shape (n_labels, n_features)
        The weights.
    intercept_ : ndarray of shape (n_labels,)
        The intercepts.
    model_ : Model
        The fitted model.

    Examples
    --------
    >>> from dismec import DiSMECTextClassifier
    >>> texts = ["boil the egg", "fry the egg", "bake the bread", "slice the bread"]
    >>> clf = DiSMECTextClassifier().fit(texts, [["egg"], ["egg"], ["bread"], ["bread"]])
    >>> clf.predict_topk(["a fried egg"], k=1)[0].tolist()
    [['egg']]
    >>> clf.predict(["toast the bread"])
    [('bread',)]
    """

    __init__ = constructor(
        f"C delta tol calibrate {' '.join(_TEXT)} precision n_jobs engine penalty",
        TrainingParams,
        TextParams,
        without="block_size tfidf normalize bias",
    )

    # The first arguments have other names than X and y, and are not metadata for routing.
    __metadata_request__fit: ClassVar = {"texts": NOT_ROUTED, "labels": NOT_ROUTED}
    __metadata_request__score: ClassVar = {"texts": NOT_ROUTED, "labels": NOT_ROUTED}
    __metadata_request__predict: ClassVar = {"texts": NOT_ROUTED, "allowed": NOT_ROUTED}
    __metadata_request__decision_function: ClassVar = {"texts": NOT_ROUTED}

    def fit(
        self,
        texts: RowsLike,
        labels: LabelsLike,
        validation: LabeledRows | None = None,
        classes: Iterable[str | int] | None = None,
        sample_weight: WeightsLike | None = None,
    ) -> DiSMECTextClassifier:
        """Fit one classifier per label.

        Parameters
        ----------
        texts : array-like of str, shape (n_texts,)
            A list, an array, a Series of pandas or polars, an Arrow array or a generator. For texts
            with dense features, a list ``[texts, E]`` (``docs/tutorial/embeddings.md``), also in
            the other methods.
        labels : lists of labels, array-like of shape (n_texts,), or indicator matrix
            A list or set of labels for each text, or one label for each text, as strings or
            integers; or an indicator matrix of shape (n_texts, n_labels), dense, sparse or a frame.
            `predict` returns the same form. White space around a name is ignored.
        validation : tuple of texts and labels, default=None
            Texts for choosing ``delta="auto"`` and learning probabilities. To use it in a search or
            a pipeline, call ``set_fit_request(validation=True)``.
        classes : iterable of str or int, default=None
            The labels of the columns of an indicator matrix, such as
            ``MultiLabelBinarizer.classes_``. By default the columns of a frame, or their numbers.
        sample_weight : array-like of shape (n_texts,), default=None
            Text weights, at least 0, that multiply the losses. Texts of weight 0 are ignored, with
            all words and labels that only they have.

        Returns
        -------
        DiSMECTextClassifier
            The fitted estimator.

        Raises
        ------
        DataError
            If the texts or labels are invalid.
        """
        target = Target.of(labels, classes)
        texts, dense = split_dense(texts)
        rows = text_column(texts)
        check_lengths(rows, target)
        check_scorer(target.kind)
        weights: RowWeights | None = None
        if sample_weight is not None:
            found = check_row_weights(sample_weight, len(rows), "sample_weight")
            keep, weights = kept_rows(found)
            if keep is not None:
                rows, target = [rows[row] for row in keep.tolist()], target.of_rows(keep)
        if not rows or not target.Y.nnz:
            raise DataError("no texts to train on" if not rows else "no text has a label")
        names = [str(label) for label in target.classes]
        builder = VocabularyBuilder(
            TextParams(**{name: getattr(self, name) for name in _TEXT}), threads=self._threads()
        )
        builder.add(rows)
        vocabulary = builder.finish()
        judge = None
        if validation is not None:
            judge = self._aligned(vocabulary, *validation, target.classes)
        costs = class_costs(
            self.class_weight,
            target.Y,
            target.classes,
            exclusive=target.kind == "classes",
            weights=weights,
        )
        self.model_ = fit(
            self._with_dense(vocabulary.rows(rows, threads=self._threads()), dense),
            target.Y,
            self._params(tfidf=True),
            names=names,
            validation=judge,
            weights=weights,
            costs=costs,
            vocabulary=vocabulary,
            threads=self._threads(),
            cluster=self._where,
        )
        self.target_ = target.kind
        self._label_type = type(target.classes[0]).__name__
        return self

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """The labels, in order."""
        labels = self._as_labels(np.arange(self._fitted().n_labels))
        return np.array(labels.tolist()) if self._are_classes else labels

    def predict_topk(
        self, texts: RowsLike, k: int = 5, *, allowed: LabelsAllowed | None = None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """Predict the k best labels of each text.

        Parameters
        ----------
        texts : array-like of str, shape (n_texts,)
            The texts, or a list ``[texts, E]``, as passed to `fit`.
        k : int, default=5
            Number of labels per text.
        allowed : labels or indicator matrix, default=None
            Labels that may be predicted, as passed to `fit`; or an indicator matrix of shape
            (n_texts, n_labels) with a set for each text. By default all.

        Returns
        -------
        labels : ndarray of shape (n_texts, k)
            The labels, best first; None marks an empty place.
        values : ndarray of float32, shape (n_texts, k)
            Scores or, with `calibrate`, probabilities; labels are ranked by these. −inf or 0 at
            empty places.
        """
        how = {"allowed": self._allowed(allowed), "threads": self._threads()}
        found, scores = self.model_.predict_topk(self._rows(texts), k, **how)
        return self._as_labels(found), scores

    def predict_proba_topk(
        self, texts: RowsLike, k: int = 5, *, allowed: LabelsAllowed | None = None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """Predict the k most probable labels of each text.

        Requires ``calibrate=True``.

        Parameters
        ----------
        texts : array-like of str, shape (n_texts,)
            The texts, or a list ``[texts, E]``, as passed to `fit`.
        k : int, default=5
            Number of labels per text.
        allowed : labels or indicator matrix, default=None
            Labels that may be predicted, as passed to `fit`; or an indicator matrix of shape
            (n_texts, n_labels) with a set for each text. By default all.

        Returns
        -------
        labels : ndarray of shape (n_texts, k)
            The labels, most probable first; None marks an empty place.
        probabilities : ndarray of float32, shape (n_texts, k)
            Their probabilities; 0 at empty places.
        """
        how = {"allowed": self._allowed(allowed), "threads": self._threads()}
        found, p = self.model_.predict_proba_topk(self._rows(texts), k, **how)
        return self._as_labels(found), p

    def decision_function(self, texts: RowsLike) -> npt.NDArray[np.float32]:
        """Compute the scores of all labels.

        Parameters
        ----------
        texts : array-like of str, shape (n_texts,)
            The texts, or a list ``[texts, E]``, as passed to `fit`.

        Returns
        -------
        ndarray of float32, shape (n_texts, n_labels)
            The scores. If there is one label per text and two in all, shape (n_texts,): above 0 for
            the second label.

        Raises
        ------
        DataError
            If the result does not fit in memory; `predict_topk` needs far less.
        """
        scores = self._fitted().decision_function(self._rows(texts), threads=self._threads())
        if self.target_ == "classes" and scores.shape[1] == 2:
            return (scores[:, 1] - scores[:, 0]) / np.float32(2)
        return scores

    def predict(
        self, texts: RowsLike, *, allowed: LabelsAllowed | None = None
    ) -> list[tuple[Any, ...]] | npt.NDArray[Any] | sp.csr_array:
        """Predict the labels of each text, in the form of the labels passed to `fit`.

        For lists and indicators, a text gets the labels with scores above 0 or, with `calibrate`,
        those whose probability reaches the threshold with the best micro-F1.

        Parameters
        ----------
        texts : array-like of str, shape (n_texts,)
            The texts, or a list ``[texts, E]``, as passed to `fit`.
        allowed : labels or indicator matrix, default=None
            Labels that may be predicted, as passed to `fit`; or an indicator matrix of shape
            (n_texts, n_labels) with a set for each text. By default all.

        Returns
        -------
        list of tuple, ndarray or csr_array
            For lists, a tuple of labels for each text, best first; for one label per text, an array
            of the best labels; for an indicator matrix, one of the same kind.
        """
        model, rows = self._fitted(), self._rows(texts)
        how = {"allowed": self._allowed(allowed), "threads": self._threads()}
        if self.target_ == "classes":
            best = model.predict_topk(rows, 1, **how)[0][:, 0]
            check_none_empty(best)
            return np.array(self._as_labels(best).tolist())
        if self.target_ == "indicator":
            instead = "fit on sparse labels to get a sparse result"
            check_dense("predict", rows.shape[0], model.n_labels, 8, instead)
        sets: Any = model.assign(rows, **how)
        if self.target_ == "lists":
            named = self._as_labels(ranked(sets)[0])
            return [tuple(label for label in row if label is not None) for row in named]
        sets.data = np.ones(sets.nnz, np.uint8)
        found: npt.NDArray[Any] | sp.csr_array = sets
        if self.target_ == "indicator":
            found = sets.toarray().astype(int)
        return found

    def score(
        self, texts: RowsLike, labels: LabelsLike, sample_weight: WeightsLike | None = None
    ) -> float:
        """Compute P@1, the share of texts whose best label is right.

        Parameters
        ----------
        texts : array-like of str, shape (n_texts,)
            The texts, or a list ``[texts, E]``, as passed to `fit`.
        labels : lists of labels, array-like of shape (n_texts,), or indicator matrix
            Their true labels, as for `fit`.
        sample_weight : array-like of shape (n_texts,), default=None
            Weight of each text. By default all have the same weight.

        Returns
        -------
        float
            P@1, from 0 to 1.
        """
        rows, Y = self.rows_and_truth(texts, labels)
        top = self.model_.predict_topk(rows, 1, threads=self._threads())[0]
        if sample_weight is not None:
            sample_weight = check_row_weights(sample_weight, len(top), "sample_weight")
        return float(np.average(hits(Y, top)[:, 0], weights=sample_weight))

    def rows_and_truth(self, X: RowsLike, y: LabelsLike) -> tuple[Any, Any]:
        """Prepare texts and labels for a scorer.

        Parameters
        ----------
        X : array-like of str, shape (n_texts,)
            The texts.
        y : lists of labels, array-like of shape (n_texts,), or indicator matrix
            Their labels, as for `fit`.

        Returns
        -------
        rows : TextRows or MixedRows
            The texts in the form that `model_` scores.
        truth : csr_array of shape (n_texts, n_columns)
            An indicator matrix whose first columns are the labels of the model.
        """
        vocabulary = self._fitted().vocabulary
        assert vocabulary is not None
        return self._aligned(vocabulary, X, y, self.classes_.tolist())
