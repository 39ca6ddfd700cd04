"""The scikit-learn estimator of rows, and what that of texts shares with it.

The only importer of scikit-learn. Parameters of the estimators are the fields of `TrainingParams`
and `TextParams`: one that is added there is one of theirs, too.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassifierMixin, _clone_parametrized
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from dismec.cpu import available_cpus
from dismec.errors import DataError, ModelError
from dismec.model.model import Model
from dismec.model.opening import open_model
from dismec.training.params import AUTO, TrainingParams
from dismec.training.recipe import fit

__all__ = ["DiSMECClassifier", "Estimator", "constructor"]

_DENSE_SCORES = 1 << 24  # scores that predict holds at a time on its way to a sparse indicator
_OWN = {"n_jobs": None, "engine": None, "cluster": None}


def constructor(first: str, *sources: type, without: str) -> Callable[..., None]:
    """An ``__init__`` that takes the fields of dataclasses, and keeps what it is given.

    Parameters come in the order of `first`; all others after these. scikit-learn reads their names
    and defaults off the signature.
    """
    defaults = {f.name: f.default for source in sources for f in fields(source)} | _OWN
    names = [n for n in dict.fromkeys([*first.split(), *defaults]) if n not in without.split()]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature(
        [
            inspect.Parameter("self", kind),
            *(inspect.Parameter(name, kind, default=defaults[name]) for name in names),
        ]
    )

    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: N807
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{type(args[0]).__name__}.__init__() {error}") from None
        bound.apply_defaults()
        self, *values = bound.arguments.values()
        for name, value in zip(names, values, strict=True):
            setattr(self, name, value)

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    return __init__


class Estimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """What both estimators do: parameters, threads, where to fit."""

    model_: Model
    n_jobs: int | None
    engine: Any
    cluster: Any

    def _fitted(self) -> Model:
        check_is_fitted(self, "model_")
        return self.model_

    def _params(self, **fixed: Any) -> TrainingParams:
        own = self.get_params(deep=False)
        given = {f.name: own[f.name] for f in fields(TrainingParams) if f.name in own}
        return TrainingParams(**given, **fixed)

    @classmethod
    def _with_params_of(cls, model: Model) -> Any:
        """An estimator with the parameters that a model was trained with, as far as it says."""
        known = dict(model.params)
        if model.vocabulary is not None:
            known |= asdict(model.vocabulary.params)
        self = cls(**{name: known[name] for name in cls._get_param_names() if name in known})
        self.precision = model.precision
        if "delta_auto" in known:
            self.delta = AUTO
        self.model_ = model
        return self

    @property
    def _where(self) -> Any:
        return self.engine if self.cluster is None else self.cluster

    def _threads(self) -> int | None:
        """Threads, by scikit-learn's way of counting them; None for all."""
        if self.n_jobs is None or self.n_jobs >= 0:
            return self.n_jobs
        return max(1, available_cpus() + 1 + self.n_jobs)

    def __sklearn_clone__(self) -> Any:
        # A client cannot be copied, and one is enough.
        where = {"engine": self.engine, "cluster": self.cluster}
        self.engine = self.cluster = None
        try:
            copy = _clone_parametrized(self)
        finally:
            self.set_params(**where)
        return copy.set_params(**where)


class DiSMECClassifier(Estimator):
    """One-vs-rest linear classifiers with squared hinge loss, pruned.

    Parameters
    ----------
    C, delta, tol, tfidf, normalize, bias, precision, penalty
        As for `TrainingParams`; `delta="auto"` is chosen on a tenth of the rows, which are held out
        for this, or on the `validation` of `fit`.
    calibrate
        Learn on the same rows what probability a score stands for: for `predict_proba_topk`.
    positive_weight, weighting, propensity_a, propensity_b
        As for `TrainingParams`: how much the losses of positive rows count.
    n_jobs
        Threads; None or −1 for all available CPUs, −2 for all but one, and so on.
    cluster
        Where to fit: None for here; a Dask client, or the address or scheduler file of a cluster.
    engine
        The former name of `cluster`.

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

    __init__ = constructor(
        "C delta tol tfidf normalize bias precision calibrate n_jobs engine",
        TrainingParams,
        without="block_size",
    )

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
        names = None if self.multilabel_ else [str(c) for c in self.classes_[-Y.shape[1] :]]
        if validation is not None and not self.multilabel_:
            validation = validation[0], self._among_classes(validation[1])
        self.model_ = fit(
            X,
            Y,
            self._params(),
            names=names,
            validation=validation,
            threads=self._threads(),
            cluster=self._where,
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
        if missing := {"C", "delta", "tol", "tfidf", "normalize", "bias"} - model.params.keys():
            raise ModelError(f"{path}: parameter {min(missing)!r} is missing in its manifest")
        self: DiSMECClassifier = cls._with_params_of(model)
        about = model.manifest.estimator or {}
        classes = about.get("classes")
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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return tags
