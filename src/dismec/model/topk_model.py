"""What every model knows and does, wherever its weights are."""

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
    """What a model can do that others cannot."""

    texts: bool  # turn texts into rows: it has a vocabulary
    probabilities: bool  # make them of scores: it is calibrated


class TopkModel(LabelLookup, ABC):
    """What is known of a model wherever its weights are, and what it predicts.

    Attributes
    ----------
    manifest
        What the model is: shape, parameters, files.
    transform
        What is done to a row before it is scored.
    label_counts
        int64 (n_labels,): rows of the training data that have each label.
    names
        One name per label, or None.
    vocabulary
        What turns texts into rows (`dismec.features.vocabulary.Vocabulary`), or None.
    """

    def __init__(self, manifest: Manifest, transform: RowTransform, parts: Parts) -> None:
        self.manifest = manifest
        self.transform = transform
        self.label_counts = parts.labels.counts
        self.names = parts.labels.names
        self.vocabulary = parts.vocabulary
        self._parts = parts
        self.files = WatchedFiles()  # none, but for a server's

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
        """Number of dense features that a row comes with; 0 for most models."""
        return self.transform.dense

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the training, by name."""
        return dict(self.manifest.params)

    @property
    def damage(self) -> str | None:
        """What happened to a file of the model since it was opened, or None.

        Only servers look for this (`dismec.data.mapped_files.watching`).
        """
        return self.files.damage

    @property
    def not_ready(self) -> str | None:
        """Why the model cannot predict at the moment, or None."""
        return self.damage

    def ready(self) -> bool:
        """Tell whether the model can predict at the moment.

        Returns
        -------
        bool
            False if the files of the model have changed, or if it has lost its cluster.
        """
        return self.not_ready is None

    @property
    def capabilities(self) -> Capabilities:
        """Whether the model takes texts, and whether it has probabilities."""
        return Capabilities(self.vocabulary is not None, self.calibration is not None)

    @property
    def calibration(self) -> Calibration | None:
        """How scores become probabilities, or None if the model is not calibrated."""
        return None

    def close(self) -> None:
        """Release what the model holds on a cluster; otherwise do nothing."""

    @property
    @abstractmethod
    def nnz(self) -> int:
        """Number of weights stored. Labels with the same weights share them."""

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
        """What else `repr` says."""
        return []

    def rows_of(self, X: RowsLike, *, threads: int | None = None) -> Any:
        """Turn texts into rows, and check that rows are of the kind that the model takes.

        Parameters
        ----------
        X : matrix of shape (n_rows, n_features), or texts
            A model of texts takes texts or `TextRows`, but no other matrix, as its columns could
            stand for anything. A model with dense features takes a list ``[X, E]``.
        threads : int, default=None
            Number of threads. By default all available CPUs.

        Returns
        -------
        matrix or MixedRows
            What the model scores: `TextRows` for texts, and otherwise X as it is.

        Raises
        ------
        DataError
            If X is texts and the model takes numbers, or the other way round, or if it lacks
            features that the model takes or has some that it does not take.
        """
        if isinstance(X, MixedRows) or is_parts(X):
            return self._mixed_rows_of(X, threads)
        if self.n_dense and (self.n_features or is_texts(X)):
            raise DataError(
                f"X has no dense features, and the model takes {self.n_dense} beside "
                f"{self.n_features} sparse ones: pass [X, E]"
            )
        if self.vocabulary is None:
            if is_texts(X):
                raise DataError("the model was trained on numeric features, and X is texts")
            return X
        if isinstance(X, TextRows):
            return X
        if is_matrix(X):
            raise DataError(
                "the model takes texts, and X is a matrix; if its columns are the terms of the "
                "model's vocabulary, pass dismec.TextRows(X)"
            )
        return self.vocabulary.rows(text_column(X), threads=threads)

    def _mixed_rows_of(self, X: Any, threads: int | None) -> MixedRows:
        """`rows_of`, where X has dense features."""
        if not isinstance(X, MixedRows):
            sparse = X[0] if len(X) == 2 else None
            if (
                sparse is not None
                and self.vocabulary is not None
                and not isinstance(sparse, TextRows)
            ):
                if is_matrix(sparse):
                    raise DataError(
                        "the model takes texts beside dense features, and the first part of X is a "
                        "matrix; if its columns are the terms of the model's vocabulary, pass "
                        "[dismec.TextRows(X), E]"
                    )
                sparse = self.vocabulary.rows(text_column(sparse), threads=threads)
            elif sparse is not None and is_texts(sparse):
                raise DataError("the model was trained on numeric features, and X has texts")
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
        """`predict_topk` of rows that the model takes."""

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
            The depths k of P@k, nDCG@k and so on.
        A, B : float, default=0.55 and 1.5
            Constants of the propensities, as for `dismec.propensities`.
        weights : array-like of shape (n_rows,), default=None
            How much each row counts: numbers of at least 0. By default all rows count the same.
        allowed : labels or indicator matrix, default=None
            The only labels that may be predicted. True labels that are not allowed do not count as
            true; rows without any other label stay, and nothing is right for them.
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
        """Compute how likely each label is to be recorded where it holds.

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
    """A number as a person says it: 950, 12.3 k, 5.3 M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if n >= size:
            return f"{n / (1e3 if unit == 'k' else size):.1f} {unit}"
    return f"{n:,}"
