"""The estimator of rows apart from fitting and predicting: checks of rows, saving, loading."""

from __future__ import annotations

import os
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted, validate_data

from dismec.data.matrices import refuse_mask
from dismec.data.mixed import is_parts
from dismec.errors import DataError, ModelError
from dismec.estimators.class_weights import stored_class_weight
from dismec.estimators.shared import Estimator
from dismec.model.opening import open_model

__all__ = ["RowEstimator"]


class RowEstimator(Estimator):
    """An estimator of rows that can be saved and loaded."""

    classes_: npt.NDArray[Any]
    multilabel_: bool
    _sparse_output: bool

    @property
    def _multilabel(self) -> bool:
        return bool(self.multilabel_)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the fitted model to a directory, or to a single file.

        `dismec.open_model` and the command line can read it, too. The classes of a 1-d y are stored
        as the names of the labels.

        Parameters
        ----------
        path : str or path-like
            The directory, or a file whose name ends in ``.zip``.
        overwrite : bool, default=False
            Whether to overwrite an existing model.
        """
        check_is_fitted(self)
        about = {
            "multilabel": self.multilabel_,
            "sparse_output": self._sparse_output,
            "classes": None if self.multilabel_ else self.classes_.tolist(),
            "named": self.classes_.dtype.kind == "U",
            "feature_names": getattr(self, "feature_names_in_", np.empty(0)).tolist(),
            **stored_class_weight(self.class_weight),
        }
        self.model_.save(path, estimator=about, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str] | bytes | BinaryIO) -> Self:
        """Load a saved estimator.

        Parameters
        ----------
        path : str, path-like, bytes or binary file
            A model, as for `dismec.open_model`. A model that was not saved by an estimator is
            loaded as an estimator for indicator matrices.

        Returns
        -------
        DiSMECClassifier
            The fitted estimator.

        Raises
        ------
        ModelError
            If there is no model, or it is a text model.
        """
        model = open_model(path)
        if missing := {"C", "delta", "tol", "tfidf", "normalize", "bias"} - model.params.keys():
            raise ModelError(f"the manifest of the model lacks the parameter {min(missing)!r}")
        if model.vocabulary is not None:
            raise ModelError("the model was trained on texts; load it with DiSMECTextClassifier")
        self: Self = cls._with_params_of(model)
        about = model.manifest.estimator or {}
        classes = about.get("classes")
        self.multilabel_ = about.get("multilabel", True)
        self._sparse_output = about.get("sparse_output", True)
        if self.multilabel_ and about.get("named"):
            classes = list(model.names or ())
        self.classes_ = np.arange(model.n_labels) if classes is None else np.array(classes)
        self.n_features_in_ = model.n_features + model.n_dense
        if features := about.get("feature_names"):
            self.feature_names_in_ = np.array(features, object)
        return self

    def _rows(self, X: Any) -> Any:
        check_is_fitted(self)
        if is_parts(X) or (self.model_.n_dense and self.model_.n_features):
            return self.model_.rows_of(X)
        refuse_mask(X, "X")
        return validate_data(self, X, accept_sparse="csr", dtype=np.float32, reset=False)

    def _allowed(self, allowed: Any) -> Any:
        if allowed is not None and self._is_binary():
            raise DataError("allowed is not supported with two classes")
        return super()._allowed(allowed)

    def _number_of(self, label: Any) -> int:
        if self.multilabel_:
            return self.model_.find_label(label)
        at = np.flatnonzero(self.classes_ == label)
        if len(at) != 1:
            raise DataError(f"{label!r} is not one of the classes")
        return int(at[0])

    def _is_binary(self) -> bool:
        check_is_fitted(self)
        return not self.multilabel_ and len(self.classes_) == 2

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return tags
