"""Rows or texts → top-k labels and metrics, for models in memory and on clusters alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dismec.data.columns import is_matrix, is_texts, text_column
from dismec.data.counts import check_k, check_ks, counted
from dismec.data.labels import propensities
from dismec.data.mapped_files import WatchedFiles
from dismec.data.mixed import MixedRows, is_parts, mixed_rows
from dismec.data.targets import matrix_of_labels
from dismec.data.types import LabelsLike, RowsLike, WeightsLike
from dismec.errors import DataError
from dismec.features.text_rows import TextRows
from dismec.measure.metrics import Truth
from dismec.model.allowed import Allowed, LabelsAllowed
from dismec.model.calibration import Calibration
from dismec.model.label_lookup import LabelLookup
from dismec.model.manifest import Manifest
from dismec.model.parts import Parts
from dismec.model.scoring import Labels, RowTransform, Scores

__all__ = ["Capabilities", "TopkModel"]


class Capabilities(NamedTuple):
    """Optional abilities of a model."""

    texts: bool  # accepts texts: it has a vocabulary
    probabilities: bool  # computes probabilities: it is calibrated


class TopkModel(LabelLookup, ABC):
    """A model that ranks labels, whether its weights are in memory or on a cluster.

    Attributes
    ----------
    manifest
        Shape, parameters and files of the model.
    transform
        Transform applied to rows before scoring.
    label_counts
        int64 (n_labels,): number of training rows of each label.
    names
        One name per label, or None.
    vocabulary
        The `dismec.features.vocabulary.Vocabulary` that turns texts into rows, or None.
    """

    def __init__(self, manifest: Manifest, transform: RowTransform, parts: Parts) -> None:
        self.manifest = manifest
        self.transform = transform
        self.label_counts = parts.labels.counts
        self.names = parts.labels.names
        self.vocabulary = parts.vocabulary
        self._parts = parts
        self.files = WatchedFiles()  # empty, except in a server

    @property
    def n_labels(self) -> int:
        """Number of labels."""
        return self.manifest.n_labels

    @property
    def n_features(self) -> int:
        """Number of sparse features, without the bias."""
        return self.manifest.n_features

    @property
    def n_dense(self) -> int:
        """Number of dense features per row; 0 for most models."""
        return self.transform.dense

    @property
    def params(self) -> dict[str, Any]:
        """Training parameters by name."""
        return dict(self.manifest.params)

    @property
    def damage(self) -> str | None:
        """How a file of the model has changed since it was opened, or None.

        Only servers check this (`dismec.data.mapped_files.watching`).
        """
        return self.files.damage

    @property
    def not_ready(self) -> str | None:
        """Why the model cannot predict at the moment, or None."""
        return self.damage

    def ready(self) -> bool:
        """Return whether the model can predict at the moment.

        Returns
        -------
        bool
            False if the files of the model have changed, or if it has lost its cluster.
        """
        return self.not_ready is None

    @property
    def capabilities(self) -> Capabilities:
        """Whether the model accepts texts, and whether it computes probabilities."""
        return Capabilities(self.vocabulary is not None, self.calibration is not None)

    @property
    def calibration(self) -> Calibration | None:
        """Mapping of scores to probabilities, or None if the model is not calibrated."""
        return None

    def close(self) -> None:
        """Release the resources of the model on a cluster, if any."""

    @property
    @abstractmethod
    def nnz(self) -> int:
        """Number of stored weights. Labels with equal weights share them."""

    def __repr__(self) -> str:
        facts = [
            counted(self.n_labels, "label"),
            *(
                []
                if self.n_dense and not self.n_features
                else [counted(self.n_features, "feature")]
            ),
            *([counted(self.n_dense, "dense feature")] if self.n_dense else []),
            f"{_rounded(self.nnz)} weights",
            *self._facts(),
        ]
        kind = "; of texts" if self.vocabulary is not None else ""
        return f"{type(self).__name__}({', '.join(facts)}{kind})"

    def _facts(self) -> list[str]:
        """Return further facts for `repr`."""
        return []

    def rows_of(self, X: RowsLike, *, threads: int | None = None) -> Any:
        """Turn texts into rows, and check that other rows are of the kind that the model accepts.

        Parameters
        ----------
        X : matrix of shape (n_rows, n_features), or texts
            A text model accepts texts or `TextRows`, but no other matrix, as the meaning of
            its columns is unknown. A model with dense features accepts a list ``[X, E]``.
        threads : int, default=None
            Number of threads. By default all available CPUs.

        Returns
        -------
        matrix or MixedRows
            The rows to score: `TextRows` for texts, X itself otherwise.

        Raises
        ------
        DataError
            If X is texts and the model needs numbers, or the other way round, or if X lacks dense
            features that the model needs or has features that it does not have.
        """
        if isinstance(X, MixedRows) or is_parts(X):
            return self._mixed_rows_of(X, threads)
        if self.n_dense and (self.n_features or is_texts(X)):
            raise DataError(
                f"X has no dense features, but the model takes {self.n_dense} in addition to "
                f"{self.n_features} sparse ones: pass [X, E]"
            )
        if self.vocabulary is None:
            if is_texts(X):
                raise DataError("the model was trained on numeric features, but X is texts")
            return X
        if isinstance(X, TextRows):
            return X
        if is_matrix(X):
            raise DataError(
                "the model takes texts, but X is a matrix; if its columns are the terms of the "
                "model's vocabulary, pass dismec.TextRows(X)"
            )
        return self.vocabulary.rows(text_column(X), threads=threads)

    def _mixed_rows_of(self, X: Any, threads: int | None) -> MixedRows:
        """Do the work of `rows_of` for X with dense features."""
        if not isinstance(X, MixedRows):
            sparse = X[0] if len(X) == 2 else None
            if (
                sparse is not None
                and self.vocabulary is not None
                and not isinstance(sparse, TextRows)
            ):
                if is_matrix(sparse):
                    raise DataError(
                        "the model takes texts and dense features, but the first part of X is a "
                        "matrix; if its columns are the terms of the model's vocabulary, pass "
                        "[dismec.TextRows(X), E]"
                    )
                sparse = self.vocabulary.rows(text_column(sparse), threads=threads)
            elif sparse is not None and is_texts(sparse):
                raise DataError("the model was trained on numeric features, but X has texts")
            X = mixed_rows(sparse, X[-1])
        return self.transform.take(X)  # type: ignore[no-any-return]

    def predict_topk(
        self,
        X: RowsLike,
        k: int = 5,
        *,
        allowed: LabelsAllowed | None = None,
        threads: int | None = None,
    ) -> tuple[Labels, Scores]:
        """Predict the k best labels of each row.

        Parameters
        ----------
        X : matrix of shape (n_rows, n_features), or texts
            As for `Model.predict_topk`.
        k : int, default=5
            Number of labels per row.
        allowed : labels or indicator matrix, default=None
            The only labels that may be predicted. By default all.
        threads : int, default=None
            Number of threads. By default all available CPUs.

        Returns
        -------
        labels : ndarray of int32, shape (n_rows, k)
            Numbers of the labels, best first; −1 marks an empty place.
        scores : ndarray of float32, shape (n_rows, k)
            Their scores; −inf at empty places.

        Raises
        ------
        DataError
            If X or `allowed` does not fit the model.
        """
        chosen = self.allowed_labels(allowed)
        return self._topk(self.rows_of(X, threads=threads), check_k(k), threads, chosen)

    @abstractmethod
    def _topk(
        self, rows: Any, k: int, threads: int | None, allowed: Allowed | None
    ) -> tuple[Labels, Scores]:
        """Do the work of `predict_topk` for rows returned by `rows_of`."""

    def evaluate(
        self,
        X: RowsLike,
        Y: LabelsLike,
        ks: Sequence[int] = (1, 3, 5),
        *,
        A: float = 0.55,
        B: float = 1.5,
        weights: WeightsLike | None = None,
        allowed: LabelsAllowed | None = None,
        threads: int | None = None,
    ) -> dict[str, float]:
        """Evaluate the model on rows with known labels.

        Parameters
        ----------
        X : matrix of shape (n_rows, n_features), or texts
            As for `predict_topk`.
        Y : indicator matrix of shape (n_rows, n_labels), or lists of labels
            The true labels. Columns of a frame and labels in lists are matched by name. Labels that
            the model does not have count as missed.
        ks : sequence of int, default=(1, 3, 5)
            The values of k for P@k, nDCG@k and so on.
        A, B : float, default=0.55 and 1.5
            Constants of the propensities, as for `dismec.propensities`.
        weights : array-like of shape (n_rows,), default=None
            How much each row counts: numbers of at least 0. By default all rows count the same.
        allowed : labels or indicator matrix, default=None
            The only labels that may be predicted. True labels that are not allowed are ignored;
            rows that have no others still count, as rows without correct predictions.
        threads : int, default=None
            Number of threads. By default all available CPUs.

        Returns
        -------
        dict of str to float
            P@k, nDCG@k, PSP@k, PSnDCG@k, R@k and Coverage@k in percent for each k, and the number
            of "rows".
        """
        chosen = self.allowed_labels(allowed)
        truth = self.truth_of(Y, A, B, allowed=chosen)
        ks = check_ks(ks)
        depth = max(1, min(max(ks), self.n_labels))
        top, _ = self.predict_topk(X, depth, allowed=chosen, threads=threads)
        return truth.metrics(top, ks, weights)

    def truth_of(
        self,
        Y: LabelsLike,
        A: float = 0.55,
        B: float = 1.5,
        *,
        allowed: LabelsAllowed | None = None,
    ) -> Truth:
        """Align the true labels of rows with the labels of the model.

        Parameters
        ----------
        Y : indicator matrix of shape (n_rows, n_labels), or lists of labels
            As for `evaluate`.
        A, B : float, default=0.55 and 1.5
            Constants of the propensities.
        allowed : labels or indicator matrix, default=None
            The labels that count. By default all.

        Returns
        -------
        Truth
            The true labels, and the propensities of all labels.
        """
        matrix = matrix_of_labels(Y, self.names)
        chosen = self.allowed_labels(allowed)
        if chosen is not None:
            matrix, _ = chosen.filter(matrix)
        return Truth.align(matrix, self.label_counts, self.manifest.n_rows, A, B)

    def propensities(self, A: float = 0.55, B: float = 1.5) -> npt.NDArray[np.float64]:
        """Compute how likely each label is to be recorded where it is true.

        Parameters
        ----------
        A, B : float, default=0.55 and 1.5
            Constants of the propensities, as for `dismec.propensities`.

        Returns
        -------
        ndarray of float64, shape (n_labels,)
            The propensities, computed from the number of training rows of each label.
        """
        return propensities(self.label_counts, self.manifest.n_rows, A, B)


def _rounded(n: int) -> str:
    """Format a number for people: 950, 12.3 k, 5.3 M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if n >= size:
            return f"{n / (1e3 if unit == 'k' else size):.1f} {unit}"
    return f"{n:,}"
