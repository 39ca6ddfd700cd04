"""The scikit-learn estimator of texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import thread_count
from dismec.data.columns import text_column
from dismec.data.counts import counted
from dismec.data.files import StrPath
from dismec.data.mixed import is_parts, with_dense
from dismec.data.targets import Kind, Target
from dismec.data.training_file import TrainingData
from dismec.data.types import LabeledRows, LabelsLike, RowsLike, WeightsLike
from dismec.data.weights import RowWeights, check_row_weights, kept_rows
from dismec.errors import DataError, ModelError
from dismec.estimators.shared import Estimator, check_none_empty
from dismec.features.encoder import Encoder
from dismec.features.label_texts import label_texts, own_text, with_own_rows
from dismec.features.vocabulary import TextParams, Vocabulary, VocabularyBuilder
from dismec.measure.metrics import hits
from dismec.model.allowed import LabelsAllowed
from dismec.model.model import check_dense
from dismec.model.rankings import ranked
from dismec.training.choose_terms import choose_terms
from dismec.training.params import TrainOptions

_TEXT = tuple(f.name for f in fields(TextParams))

# Labels that are not text, by their names in the model.
_TYPES: dict[str, Callable[[str], Any]] = {"int": int, "bool": "True".__eq__}
_TYPE_NAMES = {"int": re.compile(r"-?\d{1,19}"), "bool": re.compile("True|False")}


class DiSMECTextClassifier(Estimator):
    """Linear classifiers for texts: a vocabulary, tf-idf, and one classifier per label.

    Parameters
    ----------
    C, delta, refine
        As for `TrainingParams`.
    calibrate : bool, default=False
        Whether to learn probabilities, on a tenth of the texts; the final model is trained on all.
    word_ngrams, char_ngrams, min_df
        The terms of a text that become features, as for `TextParams`.
    class_weight, n_jobs, cluster
        As for `DiSMECClassifier`; the keys of `class_weight` are labels.
    lowercase, max_df, max_features, sublinear
        Advanced, by keyword only, as for `TextParams`.
    tol, penalty, precision, positive_weight, weighting, propensity_a, propensity_b
        Advanced, by keyword only, as for `TrainingParams`.
    dense_scale, metric
        The same.
    best : bool, default=False
        Whether to choose everything that pays on held-out texts, as for `TrainingParams`; also the
        terms, if all parameters that say which terms to use have their defaults, and the encoder.
    encoder : str or path-like, default=None
        A sentence encoder whose embeddings of texts become dense features: a name in the local
        cache of sentence-transformers, or a folder (``docs/tutorial/embeddings.md``).

    label_texts : dict of str to str, path or True, default=None
        Texts that describe labels, by name, or a file of them, as for `train_text`. Labels that
        only they have become classes, too.

    Attributes
    ----------
    classes_ : ndarray of shape (n_labels,)
        The labels, in order: names, or numbers if labels were numbers.
    target_ : {"lists", "classes", "indicator", "sparse"}
        The form of the labels passed to `fit`; "classes" is one label per text.
    coef_, intercept_, model_
        As for `DiSMECClassifier`.

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

    target_: Kind
    _label_type: str

    def __init__(
        self,
        C: float | str = 1.0,
        delta: float | str | None = None,
        calibrate: bool = False,
        refine: bool = False,
        word_ngrams: tuple[int, int] = (1, 1),
        char_ngrams: tuple[int, int] = (0, 0),
        min_df: int = 1,
        class_weight: Mapping[Any, float] | str | None = None,
        n_jobs: int | None = None,
        cluster: Any = None,
        *,
        prefix: int = 0,
        lowercase: bool = True,
        max_df: float = 1.0,
        max_features: int | None = None,
        sublinear: bool = True,
        tol: float = 0.01,
        penalty: str = "l2",
        precision: str = "float16",
        positive_weight: float = 1.0,
        weighting: str | None = None,
        propensity_a: float = 0.55,
        propensity_b: float = 1.5,
        dense_scale: float | None = None,
        metric: str = "nDCG@5",
        best: bool = False,
        label_texts: Mapping[str, str] | str | bool | None = None,
        encoder: StrPath | None = None,
    ) -> None:
        self.C = C
        self.delta = delta
        self.calibrate = calibrate
        self.refine = refine
        self.word_ngrams = word_ngrams
        self.char_ngrams = char_ngrams
        self.min_df = min_df
        self.class_weight = class_weight
        self.n_jobs = n_jobs
        self.cluster = cluster
        self.prefix = prefix
        self.lowercase = lowercase
        self.max_df = max_df
        self.max_features = max_features
        self.sublinear = sublinear
        self.tol = tol
        self.penalty = penalty
        self.precision = precision
        self.positive_weight = positive_weight
        self.weighting = weighting
        self.propensity_a = propensity_a
        self.propensity_b = propensity_b
        self.dense_scale = dense_scale
        self.metric = metric
        self.best = best
        self.label_texts = label_texts
        self.encoder = encoder

    def fit(
        self,
        X: RowsLike,
        y: LabelsLike,
        validation: LabeledRows | None = None,
        classes: Iterable[str | int] | None = None,
        sample_weight: WeightsLike | None = None,
    ) -> DiSMECTextClassifier:
        """Fit one classifier per label.

        Parameters
        ----------
        X : array-like of str, shape (n_texts,)
            The texts: a list, an array, a Series of pandas or polars, an Arrow array or a
            generator. For texts with dense features, a list ``[texts, E]``
            (``docs/tutorial/embeddings.md``), also in the other methods.
        y : lists of labels, array-like of shape (n_texts,), or indicator matrix
            A list or set of labels for each text, or one label for each text, as strings or
            integers; or an indicator matrix of shape (n_texts, n_labels), dense, sparse or a frame.
            `predict` returns the same form. White space around a name is ignored.
        validation
            As for `DiSMECClassifier.fit`, of texts.
        classes : iterable of str or int, default=None
            The labels of the columns of an indicator matrix, such as
            ``MultiLabelBinarizer.classes_``. By default the columns of a frame, or their numbers.
        sample_weight
            As for `DiSMECClassifier.fit`. Texts of weight 0 are ignored, with all words and labels
            that only they have.

        Returns
        -------
        DiSMECTextClassifier
            The fitted estimator.
        """
        target = Target.of(y, classes)
        texts, dense = _split_dense(X)
        rows = text_column(texts)
        _check_lengths(rows, target)
        weights: RowWeights | None = None
        if sample_weight is not None:
            keep, weights = kept_rows(check_row_weights(sample_weight, len(rows), "sample_weight"))
            if keep is not None:
                rows, target = [rows[row] for row in keep.tolist()], target.of_rows(keep)
        if not rows or not target.Y.nnz:
            raise DataError("no texts to train on" if not rows else "no text has a label")
        names = [str(label) for label in target.classes]
        if self.label_texts and (dense is not None or target.kind != "lists"):
            raise DataError("label_texts needs lists of labels, and no dense features")
        described = label_texts(self.label_texts or False)
        classes = [*target.classes, *(name for name in described if name not in set(names))]
        names = [str(label) for label in classes]
        params = self._params(tfidf=True)
        encoder = None if self.encoder is None else Encoder.find(self.encoder)
        if encoder and dense is not None:
            raise DataError("dense features cannot be combined with an encoder")

        @cache
        def embeddings(used: Encoder | None) -> Any:
            return used.encode(rows) if used else dense

        @contextmanager
        def read(
            terms: TextParams, used: Encoder | None
        ) -> Iterator[tuple[TrainingData, TrainOptions]]:
            builder = VocabularyBuilder(terms, threads=self._threads())
            builder.add(rows)
            vocabulary = builder.finish(used)
            judge = validation and self._aligned(vocabulary, *validation, target.classes)
            counts = vocabulary.counts(rows, threads=self._threads())
            found = with_dense(counts, embeddings(used))
            data = TrainingData(found, target.Y, weights, names=names)
            yield data, TrainOptions(params, validation=judge, vocabulary=vocabulary)

        text = TextParams(**{name: getattr(self, name) for name in _TEXT})
        table: tuple[dict[str, Any], ...] = ()
        given = None if text == TextParams() else text
        if self.best and (given is None or encoder):
            threads = thread_count(self._threads())
            text, table = choose_terms(read, threads, given=given, encoder=encoder)
        with read(text, encoder if not table or table[-1]["used"] else None) as (data, options):
            more: dict[str, Any] = {}
            X, Y = data.X, target.Y
            if self.label_texts and options.vocabulary is not None:
                texts = [described.get(name) or own_text(name) for name in names]
                X, Y, n_described = with_own_rows(X, Y, options.vocabulary, texts)
                more = {"label_texts": texts, "n_described": n_described}
                weights = None if weights is None else np.append(weights, np.ones(n_described))
            self._fit(
                X,
                Y,
                params,
                classes,
                exclusive=target.kind == "classes",
                names=names,
                validation=options.validation,
                weights=weights,
                vocabulary=options.vocabulary,
                terms_table=table,
                **more,
            )
        self.target_ = target.kind
        self._label_type = type(target.classes[0]).__name__
        return self

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """The labels, in order."""
        labels = self._as_labels(np.arange(self._fitted().n_labels))
        return np.array(labels.tolist()) if self._are_classes else labels

    def predict(
        self, X: RowsLike, *, allowed: LabelsAllowed | None = None
    ) -> list[tuple[Any, ...]] | npt.NDArray[Any] | sp.csr_array:
        """Predict the labels of each text, in the form of the labels passed to `fit`.

        For lists and indicators, a text gets the labels with scores above 0 or, with `calibrate`,
        those whose probability reaches the threshold with the best micro-F1.

        Parameters
        ----------
        X, allowed
            As for `predict_topk`.

        Returns
        -------
        list of tuple, ndarray or csr_array
            For lists, a tuple of labels for each text, best first; for one label per text, an array
            of the best labels; for an indicator matrix, one of the same kind.
        """
        model, rows, how = self._fitted(), self._rows(X), self._how(allowed)
        if self.target_ == "classes":
            best = model.predict_topk(rows, 1, **how)[0][:, 0]
            check_none_empty(best)
            return np.array(self._as_labels(best).tolist())
        if self.target_ == "indicator":
            instead = "fit on sparse labels to get a sparse result"
            check_dense("predict", rows.shape[0], model.n_labels, 8, instead)
        sets = model.assign(rows, **how)
        if self.target_ == "lists":
            named = self._as_labels(ranked(sets)[0])
            return [tuple(label for label in row if label is not None) for row in named]
        sets.data = np.ones(sets.nnz, np.uint8)
        return sets.toarray().astype(int) if self.target_ == "indicator" else sets

    def score(self, X: RowsLike, y: LabelsLike, sample_weight: WeightsLike | None = None) -> float:
        """Compute P@1, the share of texts whose best label is right.

        Parameters
        ----------
        X, y
            Texts and their true labels, as for `fit`.
        sample_weight : array-like of shape (n_texts,), default=None
            Weight of each text. By default all have the same weight.

        Returns
        -------
        float
            P@1, from 0 to 1.
        """
        rows, Y = self._rows_and_truth(X, y)
        top = self.model_.predict_topk(rows, 1, threads=self._threads())[0]
        if sample_weight is not None:
            sample_weight = check_row_weights(sample_weight, len(top), "sample_weight")
        return float(np.average(hits(Y, top)[:, 0], weights=sample_weight))

    def _rows_and_truth(self, X: Any, y: Any) -> tuple[Any, sp.csr_array]:
        vocabulary = self._fitted().vocabulary
        assert vocabulary is not None
        return self._aligned(vocabulary, X, y, self.classes_.tolist())

    def _about(self) -> dict[str, Any]:
        return {"target": self.target_, "label_type": self._label_type}

    def _restore(self, about: Mapping[str, Any]) -> None:
        model = self.model_
        if model.vocabulary is None:
            raise ModelError("the model was not trained on texts; load it with DiSMECClassifier")
        self.target_ = about.get("target", "lists")
        kind = about.get("label_type")
        # A label that was added later may have a name that is not a number.
        sound = kind in _TYPES and all(map(_TYPE_NAMES[kind].fullmatch, model.names or ()))
        self._label_type = str(kind) if sound else "str"

    def _aligned(
        self, vocabulary: Vocabulary, texts: Any, labels: Any, classes: list[Any]
    ) -> tuple[Any, Any]:
        """Return texts and labels as rows and a matrix whose first columns are these classes."""
        texts, dense = _split_dense(texts)
        target, rows = Target.of(labels), text_column(texts)
        _check_lengths(rows, target)
        found = vocabulary.rows(rows, threads=self._threads())
        return with_dense(found, dense), target.among(classes)

    def _rows(self, texts: Any) -> Any:
        return self._fitted().rows_of(texts, threads=self._threads())

    @property
    def _multilabel(self) -> bool:
        return self.target_ != "classes"

    @property
    def _are_classes(self) -> bool:
        """Whether labels are values that scikit-learn can sort."""
        return self.target_ == "classes" or self._label_type != "str"

    def _as_labels(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return labels as passed to `fit`, None for −1; only names that are needed are decoded."""
        found, places = np.unique(numbers, return_inverse=True)
        names = self.model_.names or ()
        labels = np.empty(len(found), object)
        given = _TYPES.get(self._label_type, str)
        labels[:] = [None if n < 0 else given(names[n]) for n in found.tolist()]
        return labels[places].reshape(numbers.shape)

    def _number_of(self, label: Any) -> int:
        try:
            return self.model_.find_label(str(label))
        except DataError:
            raise DataError(f"{label!r} is not one of the labels") from None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.classifier_tags.multi_label = True
        return tags


def _split_dense(texts: Any) -> tuple[Any, Any]:
    """Split texts from the dense features passed with them, or None."""
    if is_parts(texts) and len(texts) == 2:
        return texts[0], texts[1]
    return texts, None


def _check_lengths(texts: list[str], target: Target) -> None:
    """Raise `DataError` unless there are as many texts as labels."""
    if len(texts) != target.Y.shape[0]:
        raise DataError(f"{counted(len(texts), 'text')}, but labels for {target.Y.shape[0]}")
