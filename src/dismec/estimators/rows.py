"""The scikit-learn estimator of rows."""

from __future__ import annotations

import os
from typing import Any, BinaryIO, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from dismec.data.columns import label_names_of
from dismec.data.counts import check_k
from dismec.data.matrices import check_Y, refuse_mask
from dismec.data.mixed import MixedRows, check_features, is_parts
from dismec.data.row_weights import RowWeights, check_row_weights, kept_rows
from dismec.data.targets import is_label_lists, matrix_of_labels
from dismec.errors import DataError, ModelError
from dismec.estimators.class_weights import class_costs, stored_class_weight
from dismec.estimators.shared import NOT_ROUTED, Estimator, constructor, refuse_empty
from dismec.model.opening import open_model
from dismec.model.orders import check_dense
from dismec.training.params import TrainingParams
from dismec.training.recipe import fit

__all__ = ["DiSMECClassifier"]

_DENSE_SCORES = 1 << 24  # scores that predict holds at a time on its way to a sparse indicator


class DiSMECClassifier(Estimator):
    """One-vs-rest linear classifiers with squared hinge loss, pruned.

    Parameters
    ----------
    C, delta, tol, tfidf, normalize, bias, dense_scale, precision, penalty
        As for `TrainingParams`; `delta="auto"` is chosen on a tenth of the rows, which are held out
        for this, or on the `validation` of `fit`.
    calibrate
        Learn on the same rows what probability a score stands for: for `predict_proba` and
        `predict_proba_topk`.
    positive_weight, weighting, propensity_a, propensity_b
        As for `TrainingParams`: how much the losses of positive rows count.
    class_weight
        None; "balanced"; or a dict of weights for some of the classes, or of the columns of an
        indicator. As in LIBLINEAR, a class's weight is a factor of the losses of its rows where
        they are the positive ones; of two classes in a 1-d y, of its rows on either side.
        "balanced" is n/(k·n_c) for n rows, of which class c of k has n_c; each column of an
        indicator has two classes, those with the label and those without.
    n_jobs
        Threads; None or −1 for all available CPUs, −2 for all but one, and so on.
    cluster
        Where to fit: None for here; a Dask client, or the address or scheduler file of a cluster.
    engine
        The former name of `cluster`.

    Attributes
    ----------
    classes_
        The classes of a 1-d y, the columns of a frame of labels, or the label numbers
        0 … n_labels − 1.
    coef_, intercept_
        The weights, sparse, and what is added to each score.
    n_features_in_, feature_names_in_
        Number of features, and their names if X was a frame.
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
    __metadata_request__predict: ClassVar = {"allowed": NOT_ROUTED}

    def fit(
        self,
        X: Any,
        y: Any,
        validation: tuple[Any, Any] | None = None,
        sample_weight: Any = None,
    ) -> DiSMECClassifier:
        """Train one classifier per label.

        Parameters
        ----------
        X
            (n_rows, n_features) sparse or dense, or a frame, whose columns become
            `feature_names_in_`. Or a list ``[X, E]`` with an array of dense features, such as
            embeddings, beside these, or ``[E]`` with dense ones alone
            (``docs/tutorial/embeddings.md``): the other methods then take the same.
        y
            Indicator (n_rows, n_labels), sparse, dense or a frame, whose columns become the names
            of the labels; or (n_rows,) classes.
        validation
            Other X and y to choose `delta="auto"` and to calibrate on. In a search or a pipeline
            it is routed after ``set_fit_request(validation=True)``.
        sample_weight
            How much each row counts, one number of at least 0 per row: a factor of its losses. A
            row of weight 0 is left out.
        """
        mixed = check_features(X) if is_parts(X) else None
        # What is checked below is the dense part, with the labels.
        X = X if mixed is None else mixed.dense  # type: ignore[union-attr]
        refuse_mask(X, "X")
        refuse_mask(y, "y")
        if is_label_lists(y):
            raise DataError(
                "y is lists of labels; DiSMECClassifier takes an indicator matrix: pass "
                "sklearn.preprocessing.MultiLabelBinarizer(sparse_output=True).fit_transform(y)"
            )
        names = label_names_of(y)
        self._sparse_output = sp.issparse(y)
        if self._sparse_output:
            X = validate_data(self, X, accept_sparse="csr", dtype=np.float32)
            self.multilabel_ = True
            keep, weights = _weighed(sample_weight, X.shape[0])
            Y = check_Y(y, X.shape[0])
        else:
            X, y = validate_data(
                self, X, y, accept_sparse="csr", dtype=np.float32, multi_output=True
            )
            keep, weights = _weighed(sample_weight, X.shape[0])
            if keep is not None:
                y = y[keep]
            _refuse_missing(y)
            check_classification_targets(y)
            self.multilabel_ = type_of_target(y).startswith("multilabel")
            Y = y if self.multilabel_ else self._one_hot(y)
        if self.multilabel_:
            self.classes_ = np.arange(Y.shape[1]) if names is None else np.array(names)
        else:
            names = [str(c) for c in self.classes_[-Y.shape[1] :]]
        if mixed is not None:
            X, self.n_features_in_ = mixed, mixed.shape[1]
        if keep is not None:
            X, Y = X[keep], Y[keep] if self._sparse_output else Y
        if validation is not None:
            validation = validation[0], self._truth(validation[1])
        costs = class_costs(
            self.class_weight,
            Y,
            self.classes_.tolist(),
            exclusive=not self.multilabel_,
            weights=weights,
        )
        self.model_ = fit(
            X,
            Y,
            self._params(),
            names=names,
            validation=validation,
            weights=weights,
            costs=costs,
            threads=self._threads(),
            cluster=self._where,
        )
        return self

    def _truth(self, y: Any) -> Any:
        """Other labels as a matrix whose columns are those that were trained."""
        if not self.multilabel_:
            return self._among_classes(y)
        classes: Any = self.classes_
        return matrix_of_labels(y, classes.tolist() if classes.dtype.kind == "U" else None)

    def _one_hot(self, y: Any) -> sp.csr_array:
        """A column per class; for two classes only the second has one."""
        self.classes_, codes = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) == 2:
            return sp.csr_array(codes[:, None].astype(np.uint8))
        rows = np.arange(len(codes) + 1)
        ones = np.ones(len(codes), dtype=np.uint8)
        return sp.csr_array((ones, codes, rows), shape=(len(codes), len(self.classes_)))

    def _among_classes(self, y: Any) -> sp.csr_array:
        """A column per class that training has seen; other classes have none."""
        y = column_or_1d(y)
        rows, columns = np.nonzero(y[:, None] == self.classes_[None, :])
        shape = (len(y), len(self.classes_))
        return sp.csr_array((np.ones(len(rows), np.uint8), (rows, columns)), shape=shape)

    def predict_topk(
        self, X: Any, k: int = 5, *, allowed: Any = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The k best labels of each row, as positions in `classes_`, with their scores.

        `allowed` are the labels to choose from, given as in `classes_`; or one set for each row, as
        an indicator (n_rows, n_labels). Places that are left empty hold −1.
        """
        if self._is_binary():
            self._allowed(allowed)
            k = check_k(k)
            scores = self.decision_function(X)[:, None]
            both = np.hstack([-scores, scores])
            order = np.argsort(-both, axis=1, kind="stable").astype(np.int32)
            ranked = np.take_along_axis(both, order, axis=1)
            pad = ((0, 0), (0, max(0, k - 2)))
            return (
                np.pad(order, pad, constant_values=-1)[:, :k],
                np.pad(ranked, pad, constant_values=-np.inf)[:, :k],
            )
        how = {"allowed": self._allowed(allowed), "threads": self._threads()}
        return self.model_.predict_topk(self._rows(X), k, **how)

    def predict_proba_topk(
        self, X: Any, k: int = 5, *, allowed: Any = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The k most probable labels of each row, as positions in `classes_`, with probabilities.

        It needs `calibrate`. Each label is judged by itself: probabilities need not sum to 1.
        `allowed` is as for `predict_topk`.
        """
        rows = self._rows(X)
        if self._is_binary():
            raise DataError("of two classes only one has a score: there is no top k")
        how = {"allowed": self._allowed(allowed), "threads": self._threads()}
        return self.model_.predict_proba_topk(rows, k, **how)

    def decision_function(self, X: Any) -> npt.NDArray[np.float32]:
        """Scores, dense (n_rows, n_labels); (n_rows,) for two classes."""
        rows = self._rows(X)
        scores = self.model_.decision_function(rows, threads=self._threads())
        return scores[:, 0] if self._is_binary() else scores

    def predict(self, X: Any, *, allowed: Any = None) -> Any:
        """Classes; for multi-label data an indicator of the labels that score above 0.

        The indicator is sparse (CSR) if Y was. `allowed` is as for `predict_topk`.
        """
        if self._is_binary():
            self._allowed(allowed)
            return self.classes_[(self.decision_function(X) > 0).astype(int)]
        if not self.multilabel_:
            best = self.predict_topk(X, k=1, allowed=allowed)[0][:, 0]
            refuse_empty(best)
            return self.classes_[best]
        if not self._sparse_output:
            rows = self._rows(X)
            instead = "fit on a sparse Y, and predict is sparse too"
            check_dense("predict", rows.shape[0], len(self.classes_), 8, instead)
            return self._indicator(rows, allowed).toarray().astype(int)
        return self._indicator(self._rows(X), allowed)

    def _indicator(self, X: Any, allowed: Any) -> sp.csr_array:
        if allowed is not None:
            how = {"allowed": self._allowed(allowed), "threads": self._threads()}
            sets = self.model_.assign(X, probabilities=False, **how)
            sets.data = np.ones(sets.nnz, np.uint8)
            return sets
        rows: Any = X if isinstance(X, MixedRows) else sp.csr_array(X)
        threads = self._threads()
        step = max(1, _DENSE_SCORES // max(1, self.model_.n_labels))
        parts = [
            sp.csr_array(self.model_.decision_function(rows[i : i + step], threads=threads) > 0)
            for i in range(0, rows.shape[0], step)
        ]
        return sp.vstack(parts, format="csr").astype(np.uint8)

    def rows_and_truth(self, X: Any, y: Any) -> tuple[Any, sp.csr_array]:  # noqa: D102
        rows = self._rows(X)
        if not self.multilabel_:
            raise DataError("y has one class per row: scikit-learn's scorers are for that")
        return rows, check_Y(self._truth(y), rows.shape[0])

    @property
    def _multilabel(self) -> bool:
        return bool(self.multilabel_)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a directory that `open_model` and the command line read, or a .zip.

        The classes of a 1-d y become the label names there.
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
    def load(cls, path: str | os.PathLike[str] | bytes | BinaryIO) -> DiSMECClassifier:
        """The estimator that was saved, or one for multi-label data around any other model.

        `path` is as for `open_model`.
        """
        model = open_model(path)
        if missing := {"C", "delta", "tol", "tfidf", "normalize", "bias"} - model.params.keys():
            raise ModelError(f"parameter {min(missing)!r} is missing in the manifest of the model")
        if model.vocabulary is not None:
            raise ModelError("the model is one of texts; DiSMECTextClassifier loads it")
        self: DiSMECClassifier = cls._with_params_of(model)
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
            raise DataError("allowed needs more than two classes, or labels, to choose from")
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


def _weighed(sample_weight: Any, n_rows: int) -> tuple[Any, RowWeights | None]:
    """The rows to fit, None for all, and their weights."""
    if sample_weight is None:
        return None, None
    return kept_rows(check_row_weights(sample_weight, n_rows, "sample_weight"))


def _refuse_missing(y: Any) -> None:
    """Refuse a None among classes, which cannot be put in order with others."""
    if y.dtype == object and y.ndim == 1:
        for row, value in enumerate(y.tolist()):
            if value is None:
                raise DataError(
                    f"row index {row}: the class is None; leave the row out, or give it one"
                )
