"""The scikit-learn estimator of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from dismec.data.columns import label_names_of
from dismec.data.counts import check_k
from dismec.data.matrices import check_Y, refuse_mask
from dismec.data.mixed import check_features, is_parts
from dismec.data.targets import is_label_lists, matrix_of_labels
from dismec.data.types import LabeledRows, LabelsLike, RowsLike, WeightsLike
from dismec.data.weights import (
    RowWeights,
    check_pair_weights,
    check_row_weights,
    kept_rows,
    pairs_at,
)
from dismec.errors import DataError, ModelError
from dismec.estimators.shared import Estimator, check_none_empty
from dismec.model.allowed import LabelsAllowed
from dismec.model.model import check_dense


class DiSMECClassifier(Estimator):
    """One-vs-rest linear classifiers with squared hinge loss, for many labels.

    For rows of numbers; use `DiSMECTextClassifier` for texts.

    Parameters
    ----------
    C, delta, tfidf, normalize, refine
        As for `TrainingParams`. "auto" for C or delta chooses on a tenth of the rows, which is held
        out, or on the `validation` rows of `fit`.
    calibrate : bool, default=False
        Whether to learn probabilities, on the same rows. Required by `predict_proba`;
        `predict_topk` returns them.
    class_weight : dict or "balanced", default=None
        Weights of the classes, or of the columns of an indicator. As in LIBLINEAR, the weight of a
        class multiplies the losses of its positive rows; with two classes in a 1-d y, of all its
        rows. "balanced" is n/(k·n_c) for n rows, k classes and n_c rows of class c; each column of
        an indicator counts as two classes, rows with and without the label.
    n_jobs : int, default=None
        Number of threads; None or −1 for all available CPUs, −2 for all but one, and so on.
    cluster : Dask client or str, default=None
        Dask cluster to fit on: a client, a scheduler address or a scheduler file.
    tol, bias, sqrt, penalty, precision, metric, best
        Advanced, by keyword only, as for `TrainingParams`.
    positive_weight, weighting, soft_labels, propensity_a, propensity_b, dense_scale
        Advanced, by keyword only, as for `TrainingParams`: weights of the losses of positive rows,
        and of dense features.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes of a 1-d y, the columns of a frame of labels, or the numbers of the labels.
    coef_ : csr_array of shape (n_labels, n_features)
        The weights.
    intercept_ : ndarray of shape (n_labels,)
        The intercepts.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of str
        Names of the features, if X was a frame.
    model_ : Model
        The fitted model.
    multilabel_ : bool
        Whether y was an indicator matrix.

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

    classes_: npt.NDArray[Any]
    multilabel_: bool
    _sparse_output: bool

    def __init__(
        self,
        C: float | str = 1.0,
        delta: float | str | None = None,
        tfidf: bool = False,
        normalize: bool = True,
        calibrate: bool = False,
        refine: bool = False,
        class_weight: Mapping[Any, float] | str | None = None,
        n_jobs: int | None = None,
        cluster: Any = None,
        *,
        tol: float = 0.01,
        bias: float = 1.0,
        sqrt: bool = False,
        penalty: str = "l2",
        precision: str = "float16",
        positive_weight: float = 1.0,
        weighting: str | None = None,
        soft_labels: bool = False,
        propensity_a: float = 0.55,
        propensity_b: float = 1.5,
        dense_scale: float | None = None,
        metric: str = "nDCG@5",
        best: bool = False,
    ) -> None:
        self.C = C
        self.delta = delta
        self.tfidf = tfidf
        self.normalize = normalize
        self.calibrate = calibrate
        self.refine = refine
        self.class_weight = class_weight
        self.n_jobs = n_jobs
        self.cluster = cluster
        self.tol = tol
        self.bias = bias
        self.sqrt = sqrt
        self.penalty = penalty
        self.precision = precision
        self.positive_weight = positive_weight
        self.weighting = weighting
        self.soft_labels = soft_labels
        self.propensity_a = propensity_a
        self.propensity_b = propensity_b
        self.dense_scale = dense_scale
        self.metric = metric
        self.best = best

    def fit(
        self,
        X: RowsLike,
        y: LabelsLike,
        validation: LabeledRows | None = None,
        sample_weight: WeightsLike | None = None,
        pair_weight: sp.sparray | sp.spmatrix | None = None,
    ) -> DiSMECClassifier:
        """Fit one classifier per label.

        Parameters
        ----------
        X : matrix of shape (n_rows, n_features)
            Sparse, dense or a frame, whose columns become `feature_names_in_`. For dense features,
            such as embeddings, a list ``[X, E]`` of a matrix and an array, or ``[E]``
            (``docs/tutorial/embeddings.md``), also in the other methods.
        y : indicator matrix of shape (n_rows, n_labels), or array-like of shape (n_rows,)
            Labels as an indicator, sparse, dense or a frame, whose columns become the names of the
            labels; or the class of each row.
        validation : tuple of X and y, default=None
            Rows for choosing a C or delta that is "auto" and learning probabilities. To use it in
            a search or a pipeline, call ``set_fit_request(validation=True)``.
        sample_weight : array-like of shape (n_rows,), default=None
            Row weights, at least 0, that multiply the losses. Rows of weight 0 are ignored.
        pair_weight : sparse matrix of shape (n_rows, n_labels), default=None
            If y is an indicator, weights of single (row, label) pairs, at least 0, as the stored
            entries of the matrix. They multiply `sample_weight`. With a stored 0, the row is
            neither positive nor negative for this label. Pairs that are not stored have weight 1.

        Returns
        -------
        DiSMECClassifier
            The fitted estimator.
        """
        mixed: Any = check_features(X) if is_parts(X) else None
        # The checks below see the dense part together with the labels.
        rows: Any = X if mixed is None else mixed.dense
        refuse_mask(rows, "X")
        refuse_mask(y, "y")
        if is_label_lists(y):
            raise DataError(
                "y holds lists of labels, but DiSMECClassifier needs an indicator matrix: pass "
                "sklearn.preprocessing.MultiLabelBinarizer(sparse_output=True).fit_transform(y)"
            )
        names = label_names_of(y)
        self._sparse_output = sp.issparse(y)
        if self._sparse_output:
            rows = validate_data(self, rows, accept_sparse="csr", dtype=np.float32)
            self.multilabel_ = True
            keep, weights = _rows_to_fit(sample_weight, rows.shape[0])
            Y = check_Y(y, rows.shape[0])
        else:
            rows, target = validate_data(
                self, rows, y, accept_sparse="csr", dtype=np.float32, multi_output=True
            )
            keep, weights = _rows_to_fit(sample_weight, rows.shape[0])
            if keep is not None:
                target = target[keep]
            _check_no_missing(target)
            check_classification_targets(target)
            self.multilabel_ = type_of_target(target).startswith("multilabel")
            Y = target
            if not self.multilabel_:
                self.classes_, Y = _one_hot(target)
        pairs = None
        if pair_weight is not None:
            if not self.multilabel_:
                raise DataError("pair_weight needs an indicator y; for classes use sample_weight")
            n_rows = rows.shape[0]
            pairs = check_pair_weights(pair_weight, (n_rows, Y.shape[1]), "pair_weight")
            pairs = pairs_at(pairs, keep)
        if self.multilabel_:
            self.classes_ = np.arange(Y.shape[1]) if names is None else np.array(names)
        else:
            names = [str(c) for c in self.classes_[-Y.shape[1] :]]
        if mixed is not None:
            rows, self.n_features_in_ = mixed, mixed.shape[1]
        if keep is not None:
            rows, Y = rows[keep], Y[keep] if self._sparse_output else Y
        judge = None
        if validation is not None:
            judge = validation[0], self._truth(validation[1])
        self._fit(
            rows,
            Y,
            self._params(),
            self.classes_.tolist(),
            exclusive=not self.multilabel_,
            names=names,
            validation=judge,
            weights=weights,
            pair_weights=pairs,
        )
        return self

    def _truth(self, y: Any) -> Any:
        """Return other labels as a matrix with the columns of the training labels."""
        if not self.multilabel_:
            return _among_classes(y, self.classes_)
        classes: Any = self.classes_
        return matrix_of_labels(y, classes.tolist() if classes.dtype.kind == "U" else None)

    def _topk(self, X: Any, k: int, allowed: Any) -> Any:
        if not self._is_binary():
            return super()._topk(X, k, allowed)
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

    def predict(
        self, X: RowsLike, *, allowed: LabelsAllowed | None = None
    ) -> npt.NDArray[Any] | sp.csr_array:
        """Predict the class or the labels of each row.

        Parameters
        ----------
        X, allowed
            As for `predict_topk`.

        Returns
        -------
        ndarray of shape (n_rows,), or indicator matrix of shape (n_rows, n_labels)
            Classes if y was 1-d. Otherwise an indicator matrix of the labels that score above 0,
            sparse if y was sparse.
        """
        if self._is_binary():
            self._allowed(allowed)
            either: npt.NDArray[Any] = self.classes_[(self.decision_function(X) > 0).astype(int)]
            return either
        if not self.multilabel_:
            best = self.predict_topk(X, k=1, allowed=allowed)[0][:, 0]
            check_none_empty(best)
            chosen: npt.NDArray[Any] = self.classes_[best]
            return chosen
        rows = self._rows(X)
        if not self._sparse_output:
            instead = "fit on a sparse Y to get a sparse result"
            check_dense("predict", rows.shape[0], len(self.classes_), 8, instead)
        sets = self.model_.assign(rows, probabilities=False, **self._how(allowed))
        sets.data = np.ones(sets.nnz, np.uint8)
        return sets if self._sparse_output else sets.toarray().astype(int)

    def _rows_and_truth(self, X: Any, y: Any) -> tuple[Any, sp.csr_array]:
        rows = self._rows(X)
        if not self.multilabel_:
            raise DataError("y has one class per row: use one of scikit-learn's scorers")
        return rows, check_Y(self._truth(y), rows.shape[0])

    @property
    def _multilabel(self) -> bool:
        return bool(self.multilabel_)

    def _about(self) -> dict[str, Any]:
        return {
            "multilabel": self.multilabel_,
            "sparse_output": self._sparse_output,
            "classes": None if self.multilabel_ else self.classes_.tolist(),
            "named": self.classes_.dtype.kind == "U",
            "feature_names": getattr(self, "feature_names_in_", np.empty(0)).tolist(),
        }

    def _restore(self, about: Mapping[str, Any]) -> None:
        model = self.model_
        if model.vocabulary is not None:
            raise ModelError("the model was trained on texts; load it with DiSMECTextClassifier")
        if missing := {"C", "delta", "tol", "tfidf", "normalize", "bias"} - model.params.keys():
            raise ModelError(f"the manifest of the model lacks the parameter {min(missing)!r}")
        classes = about.get("classes")
        self.multilabel_ = about.get("multilabel", True)
        self._sparse_output = about.get("sparse_output", True)
        if self.multilabel_ and about.get("named"):
            classes = list(model.names or ())
        self.classes_ = np.arange(model.n_labels) if classes is None else np.array(classes)
        self.n_features_in_ = model.n_features + model.n_dense
        if features := about.get("feature_names"):
            self.feature_names_in_ = np.array(features, object)

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


def _one_hot(y: Any) -> tuple[npt.NDArray[Any], sp.csr_array]:
    """Return the classes, and a matrix with a column per class, or one for the second of two."""
    classes, codes = np.unique(column_or_1d(y, warn=True), return_inverse=True)
    if len(classes) == 2:
        return classes, sp.csr_array(codes[:, None].astype(np.uint8))
    rows = np.arange(len(codes) + 1)
    ones = np.ones(len(codes), dtype=np.uint8)
    return classes, sp.csr_array((ones, codes, rows), shape=(len(codes), len(classes)))


def _among_classes(y: Any, classes: npt.NDArray[Any]) -> sp.csr_array:
    """Return a matrix with a column per class of the training data; others have no column."""
    y = column_or_1d(y)
    rows, columns = np.nonzero(y[:, None] == classes[None, :])
    shape = (len(y), len(classes))
    return sp.csr_array((np.ones(len(rows), np.uint8), (rows, columns)), shape=shape)


def _rows_to_fit(sample_weight: Any, n_rows: int) -> tuple[Any, RowWeights | None]:
    """Return the rows to fit (None for all) and their weights."""
    if sample_weight is None:
        return None, None
    return kept_rows(check_row_weights(sample_weight, n_rows, "sample_weight"))


def _check_no_missing(y: Any) -> None:
    """Raise `DataError` for a class of None, which cannot be sorted."""
    if y.dtype == object and y.ndim == 1:
        for row, value in enumerate(y.tolist()):
            if value is None:
                raise DataError(
                    f"row index {row}: the class is None; drop the row, or give it a class"
                )
