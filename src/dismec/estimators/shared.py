"""What both estimators share: parameters, predictions, saving, class weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, BinaryIO, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassifierMixin, _clone_parametrized
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted

from dismec.cpu import available_cpus
from dismec.data.matrices import check_Y
from dismec.data.types import RowsLike
from dismec.data.weights import RowWeights
from dismec.errors import DataError
from dismec.model.allowed import Allowed, LabelsAllowed
from dismec.model.model import Model
from dismec.model.opening import open_model
from dismec.solve.costs import LARGEST_COST, SMALLEST_COST, Costs
from dismec.training.params import AUTO, TrainingParams
from dismec.training.train import fit

_BALANCED = "balanced"
Floats = npt.NDArray[np.float64]


def check_none_empty(best: npt.NDArray[np.int32]) -> None:
    """Raise `DataError` if a row has no best class, because none is allowed there."""
    if (best < 0).any():
        raise DataError(f"row index {np.argmax(best < 0)}: no class is allowed")


class Estimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The base class of both estimators; X are rows or texts, as passed to `fit`."""

    model_: Model
    calibrate: bool
    best: bool
    C: float | str
    delta: float | str | None
    metric: str
    class_weight: Any
    n_jobs: int | None
    cluster: Any
    __metadata_request__predict: ClassVar = {"allowed": UNUSED}  # not metadata for routing

    def predict_topk(
        self, X: RowsLike, k: int = 5, *, allowed: LabelsAllowed | None = None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """Predict the k best labels of each row or text.

        Parameters
        ----------
        X : rows or texts
            As passed to `fit`.
        k : int, default=5
            Number of labels per row.
        allowed : labels or indicator matrix, default=None
            Labels that may be predicted, as in `classes_`; or an indicator matrix of shape
            (n_rows, n_labels) with a set for each row. By default all.

        Returns
        -------
        labels : ndarray of shape (n_rows, k)
            Best first. `DiSMECClassifier` returns positions in `classes_`, and −1 for an empty
            place; `DiSMECTextClassifier` returns labels, and None for an empty place.
        values : ndarray of float32, shape (n_rows, k)
            Scores or, with `calibrate`, probabilities; labels are ranked by these. −inf or 0 at
            empty places.
        """
        found, values = self._topk(X, k, allowed)
        return self._as_labels(found), values

    def decision_function(self, X: RowsLike) -> npt.NDArray[np.float32]:
        """Compute the scores of all labels.

        Parameters
        ----------
        X : rows or texts
            As passed to `fit`.

        Returns
        -------
        ndarray of float32, shape (n_rows, n_labels)
            The scores. For two classes, with one class per row, shape (n_rows,): above 0 for the
            second class.

        Raises
        ------
        DataError
            If the result does not fit in memory; `predict_topk` needs far less.
        """
        scores = self._fitted().decision_function(self._rows(X), threads=self._threads())
        if self._is_binary():
            return scores[:, 0]
        if not self._multilabel and scores.shape[1] == 2:
            return (scores[:, 1] - scores[:, 0]) / np.float32(2)
        return scores

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the fitted model to a directory, or to a single file.

        `dismec.open_model` and the command line can read it, too. Classes are stored as the names
        of the labels.

        Parameters
        ----------
        path : str or path-like
            The directory, or a file whose name ends in ``.zip``.
        overwrite : bool, default=False
            Whether to overwrite an existing model.
        """
        model = self._fitted()
        about = self._about() | _stored_class_weight(self.class_weight)
        model.save(path, estimator=about, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str] | bytes | BinaryIO) -> Self:
        """Load a saved estimator.

        Parameters
        ----------
        path : str, path-like, bytes or binary file
            A model, as for `dismec.open_model`. One that was not saved by an estimator is loaded as
            an estimator for indicator matrices, or for lists of labels if it was trained on texts.

        Returns
        -------
        estimator
            The fitted estimator.
        """
        model = open_model(path)
        self: Self = cls._with_params_of(model)
        self._restore(model.manifest.estimator or {})
        return self

    def _fit(
        self,
        rows: Any,
        Y: Any,
        params: TrainingParams,
        classes: Sequence[Any],
        *,
        exclusive: bool,
        weights: RowWeights | None,
        **data: Any,
    ) -> None:
        """Fit the model on checked data, with the class weights."""
        self.model_ = fit(
            rows,
            Y,
            params,
            weights=weights,
            costs=_class_costs(self.class_weight, Y, classes, exclusive, weights),
            threads=self._threads(),
            cluster=self.cluster,
            **data,
        )

    def _topk(self, X: Any, k: int, allowed: Any) -> Any:
        """Return the numbers of the k best labels, and their values."""
        return self._fitted().predict_topk(self._rows(X), k, **self._how(allowed))

    def _how(self, allowed: Any) -> dict[str, Any]:
        return {"allowed": self._allowed(allowed), "threads": self._threads()}

    def _is_binary(self) -> bool:
        """Whether there are two classes that share one score."""
        return False

    def _as_labels(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the labels with these numbers, as predictions name them."""
        return numbers

    def _about(self) -> dict[str, Any]:
        """Return what a saved model stores for `_restore`."""
        raise NotImplementedError

    def _restore(self, about: Mapping[str, Any]) -> None:
        """Set what a fitted estimator has besides its model and its parameters."""
        raise NotImplementedError

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
        if known.get("best"):
            del known["positive_weight"]  # it was chosen, and so were the terms of texts
        elif model.vocabulary is not None:
            known |= asdict(model.vocabulary.params)
        if model.encoder is not None:
            known["encoder"] = model.encoder.name
        self = cls(**{name: known[name] for name in cls._get_param_names() if name in known})
        self.precision = model.precision
        if "delta_auto" in known:
            self.delta = AUTO
        if "dense_scale_auto" in known:
            self.dense_scale = None
        if "C_auto" in known:
            self.C = AUTO
            self.metric = known["C_auto"]["metric"]
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
        `predict_topk` needs far less.
        """
        model: Model | None = getattr(self, "model_", None)
        if not (self.calibrate or self.best if model is None else model.calibration is not None):
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

    def _rows_and_truth(self, X: Any, y: Any) -> tuple[Any, sp.csr_array]:
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


def _class_costs(
    class_weight: Any,
    Y: Any,
    classes: Sequence[Any],
    exclusive: bool,
    weights: RowWeights | None,
) -> Costs | None:
    """Return the costs of each label's positive and negative rows; None if all are 1.

    The weight of a class is the cost of its positive rows. With two `exclusive` classes, the
    negative rows of one are the positive rows of the other. "balanced" gives exclusive classes the
    weight n/(k·n_c), and the two sides of any other label n/(2·n_side), where n is the number of
    rows, k the number of classes, and n_c and n_side are the numbers of rows of the class and of
    the side.

    `class_weight` is None, "balanced", or the weights of some classes; others have weight 1. Y has
    a column per class; of two exclusive classes, there may be a column for the second only.
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


def _stored_class_weight(class_weight: Any) -> dict[str, Any]:
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
