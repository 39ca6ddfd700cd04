"""The base class of both estimators: parameters, threads, where to fit, dense results.

The parameters of the estimators are the fields of `TrainingParams` and `TextParams`: a field added
there becomes a parameter here.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassifierMixin, _clone_parametrized
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted

from dismec.cpu import available_cpus
from dismec.data.types import LabelsLike, RowsLike
from dismec.errors import DataError
from dismec.estimators.class_weights import loaded_class_weight
from dismec.model.allowed import Allowed
from dismec.model.model import Model
from dismec.training.params import AUTO, TrainingParams

__all__ = ["NOT_ROUTED", "Estimator", "check_none_empty", "constructor"]

NOT_ROUTED = UNUSED  # marks a parameter that is not metadata
_OWN = {"n_jobs": None, "engine": None, "cluster": None, "class_weight": None}


def constructor(first: str, *sources: type, without: str) -> Callable[..., None]:
    """Return an ``__init__`` whose parameters are the fields of dataclasses; it stores them.

    The names in `first` come first, in this order. scikit-learn reads names and defaults from the
    signature.
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


def check_none_empty(best: npt.NDArray[np.int32]) -> None:
    """Raise `DataError` if a row has no best class, because none is allowed there."""
    if (best < 0).any():
        raise DataError(f"row index {np.argmax(best < 0)}: no class is allowed")


class Estimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The base class of both estimators: parameters, threads, where to fit, dense results."""

    model_: Model
    calibrate: bool
    class_weight: Any
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
        """Return an estimator with the parameters that a model was trained with, if stored."""
        known = dict(model.params)
        if model.vocabulary is not None:
            known |= asdict(model.vocabulary.params)
        self = cls(**{name: known[name] for name in cls._get_param_names() if name in known})
        self.precision = model.precision
        if "delta_auto" in known:
            self.delta = AUTO
        self.class_weight = loaded_class_weight(model.manifest.estimator or {})
        self.model_ = model
        return self

    @property
    def coef_(self) -> sp.csr_array:
        """The weights, a sparse matrix of shape (n_labels, n_features).

        For two classes in a 1-d y, the shape is (1, n_features). A score is the product of the row,
        after the model's transform (tf-idf, norm), and these weights, plus `intercept_`. A refined
        model has further columns, for the labels used as features.
        """
        model = self._fitted()
        weights: Any = model.weights
        return cast(sp.csr_array, weights[:, : model.transform.n_columns])

    @property
    def intercept_(self) -> npt.NDArray[np.float32]:
        """The intercept of each label; −1 for a label without training rows."""
        model = self._fitted()
        weights: Any = model.weights
        last = weights[:, [model.transform.n_columns]].toarray()[:, 0]
        added: npt.NDArray[np.float32] = last * np.float32(model.transform.bias)
        added[model.label_counts == 0] = -1
        return added

    @property
    def predict_proba(self) -> Callable[[RowsLike], npt.NDArray[np.float32]]:
        """A method that computes probabilities; it exists only with ``calibrate=True``.

        ``predict_proba(X)`` takes the same rows as `decision_function`, and returns a float32 array
        of shape (n_rows, n_labels). Each label is predicted independently, but the classes of a 1-d
        y sum to 1 in each row. It raises `DataError` if the result does not fit in memory;
        `predict_proba_topk` needs far less.
        """
        model: Model | None = getattr(self, "model_", None)
        if not (self.calibrate if model is None else model.calibration is not None):
            name = type(self).__name__
            raise AttributeError(f"predict_proba needs a calibrated model: {name}(calibrate=True)")
        return self._probabilities

    def _probabilities(self, X: Any) -> npt.NDArray[np.float32]:
        p = self._fitted().predict_proba(self._rows(X), threads=self._threads())
        if self._multilabel:
            return p
        if p.shape[1] == 1:
            return np.hstack([1 - p, p])
        shares: npt.NDArray[np.float32] = p / p.sum(axis=1, keepdims=True)  # no sum is 0
        return shares

    @property
    def _multilabel(self) -> bool:
        raise NotImplementedError

    def _rows(self, X: Any) -> Any:
        raise NotImplementedError

    def _allowed(self, allowed: Any) -> Any:
        """Convert labels that a caller allows, given as in `classes_`, to the model's labels."""
        model = self._fitted()
        sets = sp.issparse(allowed) or getattr(allowed, "ndim", 1) == 2
        if allowed is None or sets or isinstance(allowed, Allowed | str | bytes):
            return model.allowed_labels(allowed)
        return model.allowed_labels([self._number_of(label) for label in allowed])

    def _number_of(self, label: Any) -> int:
        """Return the model's number of a label; raise `DataError` if it is not in `classes_`."""
        raise NotImplementedError

    def rows_and_truth(self, X: RowsLike, y: LabelsLike) -> tuple[Any, sp.csr_array]:
        """Return X as the model scores it, and y as a matrix with the model's labels first."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        # A client is a connection of this process and cannot be pickled.
        state: dict[str, Any] = super().__getstate__()
        where = {name: state.get(name) for name in ("engine", "cluster")}
        kept = {n: v if isinstance(v, str | os.PathLike) else None for n, v in where.items()}
        return state | kept

    @property
    def _where(self) -> Any:
        return self.engine if self.cluster is None else self.cluster

    def _threads(self) -> int | None:
        """The number of threads for scikit-learn's ``n_jobs``; None for all."""
        if self.n_jobs is None or self.n_jobs >= 0:
            return self.n_jobs
        return max(1, available_cpus() + 1 + self.n_jobs)

    def __sklearn_clone__(self) -> Any:
        # A client cannot be copied; clones share it.
        where = {"engine": self.engine, "cluster": self.cluster}
        self.engine = self.cluster = None
        try:
            copy = _clone_parametrized(self)
        finally:
            self.set_params(**where)
        return copy.set_params(**where)
