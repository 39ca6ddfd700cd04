"""What both estimators share: parameters, threads, probabilities, class weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassifierMixin, _clone_parametrized
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted

from dismec.cpu import available_cpus
from dismec.data.matrices import check_Y
from dismec.data.types import LabelsLike, RowsLike
from dismec.data.weights import RowWeights
from dismec.errors import DataError
from dismec.model.allowed import Allowed
from dismec.model.model import Model
from dismec.solve.costs import LARGEST_COST, SMALLEST_COST, Costs
from dismec.training.params import AUTO, TrainingParams

__all__ = ["NOT_ROUTED", "Estimator", "check_none_empty", "class_costs", "stored_class_weight"]

NOT_ROUTED = UNUSED  # marks a parameter that is not metadata
_BALANCED = "balanced"
Floats = npt.NDArray[np.float64]


def check_none_empty(best: npt.NDArray[np.int32]) -> None:
    """Raise `DataError` if a row has no best class, because none is allowed there."""
    if (best < 0).any():
        raise DataError(f"row index {np.argmax(best < 0)}: no class is allowed")


class Estimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The base class of both estimators: parameters, threads, where to fit, dense results."""

    model_: Model
    calibrate: bool
    C: float | str
    delta: float | str | None
    grid: tuple[float, ...]
    metric: str
    class_weight: Any
    n_jobs: int | None
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
        if "C_auto" in known:
            self.C = AUTO
            self.grid, self.metric = tuple(known["C_auto"]["grid"]), known["C_auto"]["metric"]
        stored = (model.manifest.estimator or {}).get("class_weight")
        self.class_weight = dict(stored) if isinstance(stored, list) else stored
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
        kept = isinstance(self.cluster, str | os.PathLike)
        return state | {"cluster": self.cluster if kept else None}

    def _threads(self) -> int | None:
        """The number of threads for scikit-learn's ``n_jobs``; None for all."""
        if self.n_jobs is None or self.n_jobs >= 0:
            return self.n_jobs
        return max(1, available_cpus() + 1 + self.n_jobs)

    def __sklearn_clone__(self) -> Any:
        # A client cannot be copied; clones share it.
        cluster, self.cluster = self.cluster, None
        try:
            copy = _clone_parametrized(self)
        finally:
            self.cluster = cluster
        return copy.set_params(cluster=cluster)


def class_costs(
    class_weight: Any,
    Y: Any,
    classes: Sequence[Any],
    *,
    exclusive: bool,
    weights: RowWeights | None = None,
) -> Costs | None:
    """Return the costs of each label's positive and negative rows; None if all are 1.

    The weight of a class is the cost of its positive rows. With two `exclusive` classes, the
    negative rows of one are the positive rows of the other. "balanced" gives exclusive classes the
    weight n/(k·n_c), and the two sides of any other label n/(2·n_side), where n is the number of
    rows, k the number of classes, and n_c and n_side are the numbers of rows of the class and of
    the side.

    Parameters
    ----------
    class_weight
        None, "balanced", or the weights of some classes; others have weight 1.
    Y
        Indicator matrix (n_rows, n_columns) with a column per class; of two exclusive classes,
        there may be a column for the second only.
    classes
        The classes, in the order of the columns.
    exclusive
        Whether each row has exactly one class.
    weights
        Row weights, by which "balanced" counts rows.
    """
    if class_weight is None:
        return None
    Y = check_Y(Y)
    n_rows, n_columns = Y.shape
    of_row = np.ones(n_rows) if weights is None else weights
    n, positive = float(of_row.sum()), np.zeros(n_columns)
    np.add.at(positive, Y.indices, np.repeat(of_row, np.diff(Y.indptr)))
    both = exclusive and len(classes) == 2
    if isinstance(class_weight, Mapping):
        of_class = _explicit_weights(class_weight, classes)
    elif not isinstance(class_weight, str) or class_weight != _BALANCED:
        raise DataError(
            f"class_weight is {class_weight!r}; expected None, 'balanced', or a weight per class"
        )
    elif not exclusive:
        sides = _balanced(n, 2, positive), _balanced(n, 2, n - positive)
        return Costs(*sides)
    else:
        counts = np.array([n - positive[0], positive[0]]) if both else positive
        of_class = _balanced(n, len(classes), counts[: len(classes)])
    if both:
        return Costs(of_class[-n_columns:], of_class[::-1][-n_columns:].copy())
    return Costs(of_class, np.ones(n_columns))


def stored_class_weight(class_weight: Any) -> dict[str, Any]:
    """Return the class weights as stored with a saved estimator; empty if there are none."""
    if class_weight is None:
        return {}
    if isinstance(class_weight, str):
        return {"class_weight": class_weight}
    pairs = [[getattr(k, "item", lambda k=k: k)(), float(v)] for k, v in class_weight.items()]
    return {"class_weight": pairs}


def _explicit_weights(class_weight: Mapping[Any, Any], classes: Sequence[Any]) -> Floats:
    """Return the weights of all classes; raise `DataError` for an unknown class or bad weight."""
    places = {label: place for place, label in enumerate(classes)}
    found = np.ones(len(classes))
    for label, weight in class_weight.items():
        if label not in places:
            raise DataError(f"class_weight has {label!r}, which is not one of the classes")
        try:
            number = float(weight)
        except (TypeError, ValueError):
            number = np.nan
        if not SMALLEST_COST <= number <= LARGEST_COST:
            raise DataError(
                f"class_weight of {label!r} is {weight!r}; "
                f"expected a number from {SMALLEST_COST:g} to {LARGEST_COST:g}"
            )
        found[places[label]] = number
    return found


def _balanced(n: float, k: int, counts: Floats) -> Floats:
    """Return n/(k·count), clipped to valid costs, and 1 where the count is 0."""
    shares = np.divide(n, k * counts, out=np.ones(len(counts)), where=counts > 0)
    return np.clip(shares, SMALLEST_COST, LARGEST_COST)
