"""The scikit-learn estimators, of rows and of texts; the only importer of scikit-learn."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassifierMixin, _clone_parametrized
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from dismec.cpu import available_cpus
from dismec.errors import DataError, ModelError
from dismec.features.vocabulary import TextParams
from dismec.model.model import Model
from dismec.model.opening import open_model
from dismec.model.thresholds import MICRO_F1, ranked
from dismec.training.params import TrainingParams
from dismec.training.recipe import fit
from dismec.training.texts import Texts, fit_text

__all__ = ["DiSMECClassifier", "DiSMECTextClassifier"]

_WEIGHTING = ("positive_weight", "weighting", "propensity_a", "propensity_b")
_DENSE_SCORES = 1 << 24  # scores that predict holds at a time on its way to a sparse indicator


def threads_of(n_jobs: int | None) -> int | None:
    """Threads, by scikit-learn's way of counting them; None for all."""
    if n_jobs is None or n_jobs >= 0:
        return n_jobs
    return max(1, available_cpus() + 1 + n_jobs)


class DiSMECClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """One-vs-rest linear classifiers with squared hinge loss, pruned.

    Parameters
    ----------
    C
        Weight of the losses against the regulariser.
    delta
        Weights with |w| < delta are dropped; 0 keeps all, "auto" chooses it on a tenth of the rows,
        which are held out for this, or on the `validation` of `fit`. None stands for 0.01 under the
        L2 penalty and 0 under L1.
    tol
        LIBLINEAR's ε in the stopping rule; under L1 a hundred times the relative gap.
    tfidf
        Multiply features by their inverse document frequency in the training data.
    normalize
        Scale rows to Euclidean norm 1.
    bias
        Value of the bias feature; 0 for none.
    precision
        How weights are stored: "float16", "float32", or "int8" for eight bits each.
    calibrate
        Learn on a tenth of the rows, or on the `validation` of `fit`, what probability a score
        stands for: for `predict_proba_topk`.
    n_jobs
        Threads; None or −1 for all available CPUs, −2 for all but one, and so on.
    engine
        Where to fit: None for here; a client of Dask, or the address or scheduler file of a
        cluster.
    positive_weight
        What the losses of positive rows are multiplied by.
    weighting
        "propensity" to multiply the losses of a label's positive rows the more, the rarer it is.
    propensity_a, propensity_b
        The constants A and B of the propensities that this rests on.
    penalty
        "l2", or "l1" for classifiers of few weights.

    Attributes
    ----------
    classes_
        The classes of a 1-d y, or the label numbers 0 … n_labels − 1.
    model_
        The fitted `Model`: its weights, names and top k.
    multilabel_
        Whether Y was an indicator matrix.

    Examples
    --------
    >>> import numpy as np
    >>> from dismec import DiSMECClassifier
    >>> X = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> Y = np.array([[1, 0], [1, 0], [0, 1], [1, 1]])
    >>> clf = DiSMECClassifier(C=10).fit(X, Y)
    >>> clf.predict_topk(X, k=1)[0].ravel().tolist()
    [0, 0, 1, 1]
    """

    def __init__(
        self,
        C: float = 1.0,
        delta: float | str | None = None,
        tol: float = 0.01,
        tfidf: bool = False,
        normalize: bool = True,
        bias: float = 1.0,
        precision: str = "float16",
        calibrate: bool = False,
        n_jobs: int | None = None,
        engine: Any = None,
        positive_weight: float = 1.0,
        weighting: str | None = None,
        propensity_a: float = 0.55,
        propensity_b: float = 1.5,
        penalty: str = "l2",
    ) -> None:
        self.C = C
        self.delta = delta
        self.tol = tol
        self.tfidf = tfidf
        self.normalize = normalize
        self.bias = bias
        self.precision = precision
        self.calibrate = calibrate
        self.n_jobs = n_jobs
        self.engine = engine
        self.positive_weight = positive_weight
        self.weighting = weighting
        self.propensity_a = propensity_a
        self.propensity_b = propensity_b
        self.penalty = penalty

    def fit(self, X: Any, y: Any, validation: tuple[Any, Any] | None = None) -> DiSMECClassifier:
        """Train one classifier a label.

        Parameters
        ----------
        X
            (n_rows, n_features) sparse or dense.
        y
            Indicator (n_rows, n_labels), sparse or dense, or (n_rows,) classes.
        validation
            Other X and y to choose `delta="auto"` and to calibrate on.
        """
        self._sparse_output = sp.issparse(y)
        if self._sparse_output:
            X = validate_data(self, X, accept_sparse="csr", dtype=np.float32)
            self.multilabel_ = True
            Y = y
        else:
            X, y = validate_data(
                self, X, y, accept_sparse="csr", dtype=np.float32, multi_output=True
            )
            check_classification_targets(y)
            self.multilabel_ = type_of_target(y).startswith("multilabel")
            Y = y if self.multilabel_ else self._one_hot(y)
        if self.multilabel_:
            self.classes_ = np.arange(Y.shape[1])
        params = TrainingParams(
            self.C,
            self.delta,
            self.tol,
            self.tfidf,
            self.normalize,
            self.bias,
            precision=self.precision,
            calibrate=self.calibrate,
            positive_weight=self.positive_weight,
            weighting=self.weighting,
            propensity_a=self.propensity_a,
            propensity_b=self.propensity_b,
            penalty=self.penalty,
        )
        names = None if self.multilabel_ else [str(c) for c in self.classes_[-Y.shape[1] :]]
        if validation is not None and not self.multilabel_:
            validation = validation[0], self._among_classes(validation[1])
        self.model_ = fit(
            *(X, Y, params),
            names=names,
            validation=validation,
            threads=self._threads(),
            client=self.engine,
        )
        return self

    def _one_hot(self, y: Any) -> sp.csr_array:
        """A column a class; for two classes only the second has one."""
        self.classes_, codes = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) == 2:
            return sp.csr_array(codes[:, None].astype(np.uint8))
        rows = np.arange(len(codes) + 1)
        ones = np.ones(len(codes), dtype=np.uint8)
        return sp.csr_array((ones, codes, rows), shape=(len(codes), len(self.classes_)))

    def _among_classes(self, y: Any) -> sp.csr_array:
        """A column a class that training has seen; other classes have none."""
        y = column_or_1d(y)
        rows, columns = np.nonzero(y[:, None] == self.classes_[None, :])
        shape = (len(y), len(self.classes_))
        return sp.csr_array((np.ones(len(rows), np.uint8), (rows, columns)), shape=shape)

    def predict_topk(
        self, X: Any, k: int = 5
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The k best labels of each row, as positions in `classes_`, with their scores."""
        if self._is_binary():
            if k < 1:
                raise DataError(f"k is {k}; expected at least 1")
            scores = self.decision_function(X)[:, None]
            both = np.hstack([-scores, scores])
            order = np.argsort(-both, axis=1, kind="stable").astype(np.int32)
            ranked = np.take_along_axis(both, order, axis=1)
            pad = ((0, 0), (0, max(0, k - 2)))
            return (
                np.pad(order, pad, constant_values=-1)[:, :k],
                np.pad(ranked, pad, constant_values=-np.inf)[:, :k],
            )
        return self.model_.predict_topk(self._rows(X), k, threads=self._threads())

    def predict_proba_topk(
        self, X: Any, k: int = 5
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The k most probable labels of each row, as positions in `classes_`, with probabilities.

        It needs `calibrate`. Each label is judged by itself: probabilities need not sum to 1.
        """
        rows = self._rows(X)
        if self._is_binary():
            raise DataError("of two classes only one has a score: there is no top k")
        return self.model_.predict_proba_topk(rows, k, threads=self._threads())

    def decision_function(self, X: Any) -> npt.NDArray[np.float32]:
        """Scores, dense (n_rows, n_labels); (n_rows,) for two classes."""
        rows = self._rows(X)
        scores = self.model_.decision_function(rows, threads=self._threads())
        return scores[:, 0] if self._is_binary() else scores

    def predict(self, X: Any) -> Any:
        """Classes; for multi-label data an indicator of the labels that score above 0.

        The indicator is sparse (CSR) if Y was.
        """
        if self._is_binary():
            return self.classes_[(self.decision_function(X) > 0).astype(int)]
        if not self.multilabel_:
            return self.classes_[self.predict_topk(X, k=1)[0][:, 0]]
        if not self._sparse_output:
            return (self.decision_function(X) > 0).astype(int)
        rows = sp.csr_array(self._rows(X))
        threads = self._threads()
        step = max(1, _DENSE_SCORES // max(1, self.model_.n_labels))
        parts = [
            sp.csr_array(self.model_.decision_function(rows[i : i + step], threads=threads) > 0)
            for i in range(0, rows.shape[0], step)
        ]
        return sp.vstack(parts, format="csr").astype(np.uint8)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a directory that `open_model` and the command line read.

        The classes of a 1-d y become the label names there.
        """
        check_is_fitted(self)
        about = {
            "multilabel": self.multilabel_,
            "sparse_output": self._sparse_output,
            "classes": None if self.multilabel_ else self.classes_.tolist(),
        }
        self.model_.save(path, estimator=about, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DiSMECClassifier:
        """The estimator that was saved, or one for multi-label data around any other model."""
        model = open_model(path)
        keys = {"C", "delta", "tol", "tfidf", "normalize", "bias"}
        if missing := keys - model.params.keys():
            raise ModelError(f"{path}: parameter {min(missing)!r} is missing in its manifest")
        # Models from before there were weightings do not say that they have none.
        keys |= model.params.keys() & set(_WEIGHTING)
        self = cls(**{key: model.params[key] for key in keys}, precision=model.precision)
        self.calibrate = model.params.get("calibrate", False)
        self.penalty = model.params.get("penalty", "l2")  # older models do not say
        if "delta_auto" in model.params:
            self.delta = "auto"
        about = model.manifest.estimator or {}
        classes = about.get("classes")
        self.model_ = model
        self.multilabel_ = about.get("multilabel", True)
        self._sparse_output = about.get("sparse_output", True)
        self.classes_ = np.arange(model.n_labels) if classes is None else np.array(classes)
        self.n_features_in_ = model.n_features
        return self

    def _rows(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, accept_sparse="csr", dtype=np.float32, reset=False)

    def _is_binary(self) -> bool:
        check_is_fitted(self)
        return not self.multilabel_ and len(self.classes_) == 2

    def _threads(self) -> int | None:
        return threads_of(self.n_jobs)

    def __sklearn_clone__(self) -> DiSMECClassifier:
        # A client cannot be copied, and one is enough.
        engine, self.engine = self.engine, None
        try:
            copy: DiSMECClassifier = _clone_parametrized(self)
        finally:
            self.engine = engine
        return copy.set_params(engine=engine)  # type: ignore[no-any-return]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return tags


class DiSMECTextClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Texts in, label names out: a vocabulary, tf-idf, and one linear classifier a label.

    Parameters
    ----------
    C, delta, tol, precision, n_jobs, engine, penalty
        As for `DiSMECClassifier`.
    positive_weight, weighting, propensity_a, propensity_b
        As for `DiSMECClassifier`.
    calibrate
        Learn on a tenth of the texts what probability a score stands for; the final model is
        trained on all of them.
    word_ngrams, char_ngrams, lowercase, min_df, max_df, max_features, sublinear
        Which terms of a text are features, as for `dismec.TextParams`.

    Attributes
    ----------
    classes_
        The names of the labels, in order.
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

    def __init__(
        self,
        C: float = 1.0,
        delta: float | str | None = None,
        tol: float = 0.01,
        calibrate: bool = False,
        word_ngrams: tuple[int, int] = (1, 1),
        char_ngrams: tuple[int, int] = (0, 0),
        lowercase: bool = True,
        min_df: int = 1,
        max_df: float = 1.0,
        max_features: int | None = None,
        sublinear: bool = True,
        precision: str = "float16",
        n_jobs: int | None = None,
        engine: Any = None,
        penalty: str = "l2",
        positive_weight: float = 1.0,
        weighting: str | None = None,
        propensity_a: float = 0.55,
        propensity_b: float = 1.5,
    ) -> None:
        self.C = C
        self.delta = delta
        self.tol = tol
        self.calibrate = calibrate
        self.word_ngrams = word_ngrams
        self.char_ngrams = char_ngrams
        self.lowercase = lowercase
        self.min_df = min_df
        self.max_df = max_df
        self.max_features = max_features
        self.sublinear = sublinear
        self.precision = precision
        self.n_jobs = n_jobs
        self.engine = engine
        self.penalty = penalty
        self.positive_weight = positive_weight
        self.weighting = weighting
        self.propensity_a = propensity_a
        self.propensity_b = propensity_b

    def fit(self, texts: Iterable[str], labels: Iterable[str | Iterable[str]]) -> Any:
        """Train one classifier a label.

        Parameters
        ----------
        texts
            One a row.
        labels
            The names of the labels of each row; a row with one label may have just its name.
        """
        rows = [[row] if isinstance(row, str) else list(row) for row in labels]
        params = TrainingParams(
            C=self.C,
            delta=self.delta,
            tol=self.tol,
            tfidf=True,
            precision=self.precision,
            calibrate=self.calibrate,
            penalty=self.penalty,
            positive_weight=self.positive_weight,
            weighting=self.weighting,
            propensity_a=self.propensity_a,
            propensity_b=self.propensity_b,
        )
        text = TextParams(**{name: getattr(self, name) for name in TextParams.__dataclass_fields__})
        self.model_: Model = fit_text(
            Texts.of_lists(_listed(texts), rows),
            params,
            text,
            threads=threads_of(self.n_jobs),
            client=self.engine,
        )
        return self

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """The names of the labels, in order."""
        check_is_fitted(self, "model_")
        return np.array(self.model_.names or (), object)

    def predict_topk(
        self, texts: Iterable[str], k: int = 5
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """The names of the k best labels of each text, and their scores; best first.

        Places beyond the labels that there are hold None and −inf.
        """
        found, scores = self.model_.predict_topk(self._rows(texts), k, threads=self._threads())
        return self._named(found), scores

    def predict_proba_topk(
        self, texts: Iterable[str], k: int = 5
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """The names of the k most probable labels of each text, and their probabilities.

        It needs `calibrate`. Places beyond the labels that there are hold None and 0.
        """
        found, p = self.model_.predict_proba_topk(self._rows(texts), k, threads=self._threads())
        return self._named(found), p

    def predict(self, texts: Iterable[str]) -> list[tuple[str, ...]]:
        """The names of the labels that each text is given, best first.

        Those with scores above 0; with `calibrate` those more probable than the threshold that was
        best for micro-F1.
        """
        calibrated = self._fitted().calibration is not None
        sets = self.model_.assign(
            self._rows(texts),
            MICRO_F1 if calibrated else float(np.nextafter(np.float32(0), np.float32(1))),
            probabilities=calibrated,
            threads=self._threads(),
        )
        named = self._named(ranked(sets)[0])
        return [tuple(name for name in row if name is not None) for row in named]

    def score(self, texts: Iterable[str], labels: Iterable[str | Iterable[str]]) -> float:
        """P@1: the share of texts whose best label is one of theirs."""
        rows = [{row} if isinstance(row, str) else set(row) for row in labels]
        best = self.predict_topk(texts, k=1)[0][:, 0]
        if len(best) != len(rows):
            raise DataError(f"there are {len(best)} texts and labels for {len(rows)}")
        return float(np.mean([name in row for name, row in zip(best, rows, strict=True)]))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a directory that `open_model` and the command line read."""
        self._fitted().save(path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DiSMECTextClassifier:
        """The estimator around a model of texts."""
        model = open_model(path)
        if model.vocabulary is None:
            raise ModelError(f"{path}: not a model of texts; DiSMECClassifier loads it")
        known = cls()._get_param_names()
        self = cls(
            **{name: value for name, value in model.params.items() if name in known},
            **{
                name: getattr(model.vocabulary.params, name)
                for name in known
                if hasattr(model.vocabulary.params, name)
            },
        )
        if "delta_auto" in model.params:
            self.delta = "auto"
        self.model_ = model
        return self

    def _fitted(self) -> Model:
        check_is_fitted(self, "model_")
        return self.model_

    def _rows(self, texts: Iterable[str]) -> Any:
        vocabulary = self._fitted().vocabulary
        assert vocabulary is not None
        return vocabulary.rows(_listed(texts), threads=self._threads())

    def _named(self, labels: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
        names = np.array([*(self.model_.names or ()), None], object)
        return names[labels]  # −1, an empty place, is the last

    def _threads(self) -> int | None:
        return threads_of(self.n_jobs)

    __sklearn_clone__ = DiSMECClassifier.__sklearn_clone__

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.classifier_tags.multi_label = True
        return tags


def _listed(texts: Iterable[str]) -> Sequence[str]:
    if isinstance(texts, str):
        raise DataError("expected a list of texts, not one text")
    return list(texts)
