"""What both estimators share: parameters, threads, where to fit, dense answers.

Parameters of the estimators are the fields of `TrainingParams` and `TextParams`: one that is added
there is one of theirs, too.
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
from dismec.estimators.class_weights import kept_class_weight
from dismec.model.allowed import Allowed
from dismec.model.model import Model
from dismec.training.params import AUTO, TrainingParams

__all__ = ["NOT_ROUTED", "Estimator", "constructor", "refuse_empty"]

NOT_ROUTED = UNUSED  # marks a parameter that is no metadata
_OWN = {"n_jobs": None, "engine": None, "cluster": None, "class_weight": None}


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


def refuse_empty(best: npt.NDArray[np.int32]) -> None:
    """Refuse best classes some of which are missing, as none is allowed there."""
    if (best < 0).any():
        raise DataError(f"row index {np.argmax(best < 0)}: allowed leaves no class to choose from")


class Estimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """What both estimators do: parameters, threads, where to fit, dense answers."""

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
        """An estimator with the parameters that a model was trained with, as far as it says."""
        known = dict(model.params)
        if model.vocabulary is not None:
            known |= asdict(model.vocabulary.params)
        self = cls(**{name: known[name] for name in cls._get_param_names() if name in known})
        self.precision = model.precision
        if "delta_auto" in known:
            self.delta = AUTO
        self.class_weight = kept_class_weight(model.manifest.estimator or {})
        self.model_ = model
        return self

    @property
    def coef_(self) -> sp.csr_array:
        """The weights, a sparse matrix of shape (n_labels, n_features).

        For two classes in a 1-d y the shape is (1, n_features). A score is the row, transformed as
        the model does it (tf-idf, norm), times these weights, plus `intercept_`. A refined model
        has further columns, for the labels that inform others.
        """
        model = self._fitted()
        weights: Any = model.weights
        return cast(sp.csr_array, weights[:, : model.transform.n_columns])

    @property
    def intercept_(self) -> npt.NDArray[np.float32]:
        """What is added to the score of each label; −1 for a label without training rows."""
        model = self._fitted()
        weights: Any = model.weights
        last = weights[:, [model.transform.n_columns]].toarray()[:, 0]
        added: npt.NDArray[np.float32] = last * np.float32(model.transform.bias)
        added[model.label_counts == 0] = -1
        return added

    @property
    def predict_proba(self) -> Callable[[RowsLike], npt.NDArray[np.float32]]:
        """A method that computes probabilities; it only exists with ``calibrate=True``.

        ``predict_proba(X)`` takes what `decision_function` takes, and returns a float32 array of
        shape (n_rows, n_labels). Each label is judged on its own, but the classes of a 1-d y sum to
        1 in each row. It raises `DataError` if the result does not fit in memory;
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
        shares: npt.NDArray[np.float32] = p / p.sum(axis=1, keepdims=True)  # none is 0
        return shares

    @property
    def _multilabel(self) -> bool:
        raise NotImplementedError

    def _rows(self, X: Any) -> Any:
        raise NotImplementedError

    def _allowed(self, allowed: Any) -> Any:
        """What the model takes for labels that a caller allows, given as in `classes_`."""
        model = self._fitted()
        sets = sp.issparse(allowed) or getattr(allowed, "ndim", 1) == 2
        if allowed is None or sets or isinstance(allowed, Allowed | str | bytes):
            return model.allowed_labels(allowed)
        return model.allowed_labels([self._number_of(label) for label in allowed])

    def _number_of(self, label: Any) -> int:
        """The number of a label in the model; `DataError` if it is not one of `classes_`."""
        raise NotImplementedError

    def rows_and_truth(self, X: RowsLike, y: LabelsLike) -> tuple[Any, sp.csr_array]:
        """What the model scores of X, and y as a matrix whose first columns are its labels."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        # A client is a connection of this process: what is pickled goes without.
        state: dict[str, Any] = super().__getstate__()
        where = {name: state.get(name) for name in ("engine", "cluster")}
        kept = {n: v if isinstance(v, str | os.PathLike) else None for n, v in where.items()}
        return state | kept

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
