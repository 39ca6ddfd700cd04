"""The scikit-learn estimator of texts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, BinaryIO, ClassVar

import numpy as np
import numpy.typing as npt

from dismec.data.columns import text_column
from dismec.data.counts import counted
from dismec.data.mixed import is_parts, mixed_rows
from dismec.data.row_weights import RowWeights, check_row_weights, kept_rows
from dismec.data.targets import Kind, Target
from dismec.errors import DataError, ModelError
from dismec.estimators.class_weights import class_costs, stored_class_weight
from dismec.estimators.scorers import refuse_matrix_scorer
from dismec.estimators.shared import NOT_ROUTED, Estimator, constructor, refuse_empty
from dismec.features.text_rows import TextRows
from dismec.features.vocabulary import TextParams, Vocabulary, VocabularyBuilder
from dismec.measure.metrics import hits
from dismec.model.opening import open_model
from dismec.model.orders import check_dense
from dismec.model.thresholds import ranked
from dismec.training.params import TrainingParams
from dismec.training.recipe import fit

__all__ = ["DiSMECTextClassifier"]

_TEXT = tuple(f.name for f in fields(TextParams))
# Labels that are not text, by the names that they have in the model.
_TYPES: dict[str, Callable[[str], Any]] = {"int": int, "bool": "True".__eq__}
_TYPE_NAMES = {"int": re.compile(r"-?\d{1,19}"), "bool": re.compile("True|False")}


class DiSMECTextClassifier(Estimator):
    """Texts in, label names out: a vocabulary, tf-idf, and one linear classifier per label.

    Parameters
    ----------
    C, delta, tol, precision, penalty, positive_weight, weighting, propensity_a, propensity_b
        As for `TrainingParams`.
    dense_scale
        As there, for dense features beside texts.
    class_weight, n_jobs, cluster, engine
        As for `DiSMECClassifier`; the keys of `class_weight` are labels.
    calibrate
        Learn on a tenth of the texts what probability a score stands for; the final model is
        trained on all of them.
    word_ngrams, char_ngrams, lowercase, min_df, max_df, max_features, sublinear
        Which terms of a text are features, as for `dismec.TextParams`.

    Attributes
    ----------
    classes_
        The labels, in order: names, or numbers if labels were numbers.
    target_
        How labels were given: "lists", "classes" (one per text), "indicator" or "sparse".
    coef_, intercept_
        The weights, sparse, and what is added to each score.
    model_
        The fitted `Model`.

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

    # Their first arguments have names of their own, and are not metadata for routing.
    __metadata_request__fit: ClassVar = {"texts": NOT_ROUTED, "labels": NOT_ROUTED}
    __metadata_request__score: ClassVar = {"texts": NOT_ROUTED, "labels": NOT_ROUTED}
    __metadata_request__predict: ClassVar = {"texts": NOT_ROUTED, "allowed": NOT_ROUTED}
    __metadata_request__decision_function: ClassVar = {"texts": NOT_ROUTED}

    def fit(
        self,
        texts: Any,
        labels: Any,
        validation: tuple[Any, Any] | None = None,
        classes: Iterable[Any] | None = None,
        sample_weight: Any = None,
    ) -> DiSMECTextClassifier:
        """Train one classifier per label.

        Parameters
        ----------
        texts
            One per row: a list, an array, a Series (pandas, polars), an Arrow array, a generator.
            Or a list ``[texts, E]`` with an array of dense features beside them
            (``docs/tutorial/embeddings.md``): the other methods then take the same.
        labels
            For each row its label or a list or set of labels, as text or whole numbers; or an
            indicator matrix (n_rows, n_labels), dense, sparse or a frame. `predict` answers in the
            same form. White space around a name is not part of it.
        validation
            Other texts and labels to choose `delta="auto"` and to calibrate on. In a search or a
            pipeline it is routed after ``set_fit_request(validation=True)``.
        classes
            What the columns of an indicator stand for, such as ``MultiLabelBinarizer.classes_``: by
            default the columns of a frame, or their numbers.
        sample_weight
            How much each text counts, one number of at least 0 per text: a factor of its losses. A
            text of weight 0 is left out, words and labels that only such texts have included.

        Raises
        ------
        DataError
            If texts or labels cannot be used: one line says what to do.
        """
        target = Target.of(labels, classes)
        texts, dense = _apart(texts)
        rows = text_column(texts)
        _check_lengths(rows, target)
        refuse_matrix_scorer(target.kind)
        weights: RowWeights | None = None
        if sample_weight is not None:
            found = check_row_weights(sample_weight, len(rows), "sample_weight")
            keep, weights = kept_rows(found)
            if keep is not None:
                rows, target = [rows[row] for row in keep.tolist()], target.of_rows(keep)
        if not rows or not target.Y.nnz:
            raise DataError("there are no texts to train on" if not rows else "no text has a label")
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
            self._beside(vocabulary.rows(rows, threads=self._threads()), dense),
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
        self.target_: Kind = target.kind
        self._label_type = type(target.classes[0]).__name__
        return self

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """The labels, in order."""
        labels = self._as_labels(np.arange(self._fitted().n_labels))
        return np.array(labels.tolist()) if self._are_classes else labels

    def predict_topk(
        self, texts: Any, k: int = 5, *, allowed: Any = None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """The k best labels of each text with their scores, best first; arrays (n_texts, k).

        With `calibrate` they are ranked by their probabilities, and these take the place of scores.
        If the model has fewer labels than k, the places beyond hold None and −inf (probability 0).
        `allowed` are the labels to choose from, given as to `fit`; or one set for each text, as an
        indicator (n_texts, n_labels).
        """
        how = {"allowed": self._allowed(allowed), "threads": self._threads()}
        found, scores = self.model_.predict_topk(self._rows(texts), k, **how)
        return self._as_labels(found), scores

    def predict_proba_topk(
        self, texts: Any, k: int = 5, *, allowed: Any = None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """The k most probable labels of each text, and their probabilities.

        It needs `calibrate`. If the model has fewer labels than k, the places beyond hold None and
        probability 0. `allowed` is as for `predict_topk`.
        """
        how = {"allowed": self._allowed(allowed), "threads": self._threads()}
        found, p = self.model_.predict_proba_topk(self._rows(texts), k, **how)
        return self._as_labels(found), p

    def decision_function(self, texts: Any) -> npt.NDArray[np.float32]:
        """Scores, dense (n_texts, n_labels).

        If labels were given as one of two classes per text: (n_texts,), above 0 for the second.
        `DataError` if the result does not fit memory: `predict_topk` gives the best labels.
        """
        scores = self._fitted().decision_function(self._rows(texts), threads=self._threads())
        if self.target_ == "classes" and scores.shape[1] == 2:
            return (scores[:, 1] - scores[:, 0]) / np.float32(2)
        return scores

    def predict(self, texts: Any, *, allowed: Any = None) -> Any:
        """The labels that each text is given, in the form in which `fit` was given labels.

        Lists: a list of tuples, best label first. One class per text: an array of the best ones. An
        indicator: one of the same kind, dense or sparse. In lists and indicators are the labels
        with scores above 0; with `calibrate` those more probable than the threshold that was best
        for micro-F1. `allowed` is as for `predict_topk`.
        """
        model, rows = self._fitted(), self._rows(texts)
        how = {"allowed": self._allowed(allowed), "threads": self._threads()}
        if self.target_ == "classes":
            best = model.predict_topk(rows, 1, **how)[0][:, 0]
            refuse_empty(best)
            return np.array(self._as_labels(best).tolist())
        if self.target_ == "indicator":
            instead = "fit on sparse labels, and predict is sparse too"
            check_dense("predict", rows.shape[0], model.n_labels, 8, instead)
        sets: Any = model.assign(rows, **how)
        if self.target_ == "lists":
            named = self._as_labels(ranked(sets)[0])
            return [tuple(label for label in row if label is not None) for row in named]
        sets.data = np.ones(sets.nnz, np.uint8)
        return sets if self.target_ == "sparse" else sets.toarray().astype(int)

    def score(self, texts: Any, labels: Any, sample_weight: Any = None) -> float:
        """P@1: the share of texts whose best label is one of theirs; texts count by weight."""
        rows, Y = self.rows_and_truth(texts, labels)
        top = self.model_.predict_topk(rows, 1, threads=self._threads())[0]
        if sample_weight is not None:
            sample_weight = check_row_weights(sample_weight, len(top), "sample_weight")
        return float(np.average(hits(Y, top)[:, 0], weights=sample_weight))

    def rows_and_truth(self, X: Any, y: Any) -> tuple[Any, Any]:  # noqa: D102
        vocabulary = self._fitted().vocabulary
        assert vocabulary is not None
        return self._aligned(vocabulary, X, y, self.classes_.tolist())

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a directory that `open_model` and the command line read, or a .zip."""
        model = self._fitted()
        about = {"target": self.target_, "label_type": self._label_type}
        about |= stored_class_weight(self.class_weight)
        model.save(path, estimator=about, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str] | bytes | BinaryIO) -> DiSMECTextClassifier:
        """The estimator around a model of texts; `path` is as for `open_model`."""
        model = open_model(path)
        if model.vocabulary is None:
            raise ModelError("the model is not one of texts; DiSMECClassifier loads it")
        self: DiSMECTextClassifier = cls._with_params_of(model)
        about = model.manifest.estimator or {}
        self.target_ = about.get("target", "lists")
        kind = about.get("label_type")
        # A label that was added later may have a name that is not a number.
        sound = kind in _TYPES and all(map(_TYPE_NAMES[kind].fullmatch, model.names or ()))
        self._label_type = str(kind) if sound else "str"
        return self

    def _aligned(
        self, vocabulary: Vocabulary, texts: Any, labels: Any, classes: list[Any]
    ) -> tuple[Any, Any]:
        """Other texts and labels as rows and a matrix whose first columns are these classes."""
        texts, dense = _apart(texts)
        target, rows = Target.of(labels), text_column(texts)
        _check_lengths(rows, target)
        found = vocabulary.rows(rows, threads=self._threads())
        return self._beside(found, dense), target.among(classes)

    @staticmethod
    def _beside(rows: TextRows, dense: Any) -> Any:
        """Rows of texts, with their dense features if there are some."""
        return rows if dense is None else mixed_rows(rows, dense)

    def _rows(self, texts: Any) -> Any:
        return self._fitted().rows_of(texts, threads=self._threads())

    @property
    def _multilabel(self) -> bool:
        return self.target_ != "classes"

    @property
    def _are_classes(self) -> bool:
        """Whether labels are values that scikit-learn can put in order."""
        return self.target_ == "classes" or self._label_type != "str"

    def _as_labels(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Labels by their numbers, None for an empty place; of millions of names few are made."""
        found, places = np.unique(numbers, return_inverse=True)
        names = self.model_.names or ()
        labels = np.empty(len(found), object)
        labels[:] = [None if n < 0 else self._label(names[n]) for n in found.tolist()]
        return labels[places].reshape(numbers.shape)

    def _number_of(self, label: Any) -> int:
        number = self.model_.find_name(str(label))
        if number is None:
            raise DataError(f"{label!r} is not one of the labels")
        return number

    def _label(self, name: str) -> Any:
        """The label as it was given, by its name in the model."""
        return name if self._label_type == "str" else _TYPES[self._label_type](name)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.classifier_tags.multi_label = True
        return tags


def _apart(texts: Any) -> tuple[Any, Any]:
    """Texts, and the dense features that came with them or None."""
    if is_parts(texts) and len(texts) == 2:
        return texts[0], texts[1]
    return texts, None


def _check_lengths(texts: list[str], target: Target) -> None:
    if len(texts) != target.Y.shape[0]:
        raise DataError(f"{counted(len(texts), 'text')} and labels for {target.Y.shape[0]}")
