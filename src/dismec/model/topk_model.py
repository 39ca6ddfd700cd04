"""What every model knows and does, wherever its weights are."""

from __future__ import annotations

import operator
import re
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.columns import is_matrix, is_texts, text_column
from dismec.data.counts import check_k, check_ks, counted
from dismec.data.labels import propensities
from dismec.data.mapped_files import WatchedFiles
from dismec.data.mixed import MixedRows, is_parts, mixed_rows
from dismec.data.names import Names
from dismec.data.targets import matrix_of_labels
from dismec.errors import DataError
from dismec.features.text_rows import TextRows
from dismec.measure.metrics import Truth
from dismec.model.allowed import Allowed
from dismec.model.calibration import Calibration
from dismec.model.manifest import Manifest
from dismec.model.parts import Parts
from dismec.model.scoring import Labels, RowTransform, Scores

__all__ = ["Capabilities", "TopkModel"]


class Capabilities(NamedTuple):
    """What a model can do that others cannot."""

    texts: bool  # turn texts into rows: it has a vocabulary
    probabilities: bool  # make them of scores: it is calibrated


class TopkModel(ABC):
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
        """The parameters of the training."""
        return dict(self.manifest.params)

    def find_label(self, label: str | int) -> int:
        """The id of a label, given by its id or as text.

        A text is a name (of equal names, that of the first label); if the model has no names, it
        is a number.

        Raises
        ------
        DataError
            If the model has no such label.
        """
        if isinstance(label, str):
            number = self.find_name(label)
            if number is None:  # white space around a name is not part of it
                number = self.find_name(label := label.strip())
            if self.names is None and re.fullmatch(r"\d{1,20}", label):
                number = int(label)
            if number is None or number >= self.n_labels:
                raise DataError(f"the model has no label {reprlib.repr(label)}")
            return number
        try:
            number = -1 if isinstance(label, bool) else operator.index(label)
        except TypeError:
            raise DataError(f"the model has no label {reprlib.repr(label)}") from None
        if not 0 <= number < self.n_labels:
            raise DataError(f"label {reprlib.repr(label)} is outside 0 … {self.n_labels - 1}")
        return number

    def find_name(self, name: str) -> int | None:
        """The id of the first label that has this name, or None."""
        known = self.names
        return known.find(name) if isinstance(known, Names) else self.label_numbers.get(name)

    def select_labels(self, only: Any = None, exclude: Any = None) -> Allowed:
        """Labels to choose from, for the `allowed` of predictions; it can be used many times.

        Parameters
        ----------
        only, exclude
            Labels by number or name: the only ones that rows may be given, and those that they may
            not. By default all, and none.

        Raises
        ------
        DataError
            If the model has no such label.
        """
        mask = np.full(self.n_labels, only is None, np.bool_)
        if only is not None:
            mask[self._find_labels(only, "only")] = True
        if exclude is not None:
            mask[self._find_labels(exclude, "exclude")] = False
        return Allowed(self.n_labels, np.flatnonzero(mask))

    def allowed_labels(self, allowed: Any) -> Allowed | None:
        """What `allowed` stands for; None for all labels. Errors as `select_labels`."""
        if allowed is None:
            return None
        if isinstance(allowed, Allowed):
            if allowed.n_labels != self.n_labels:
                raise DataError(
                    f"allowed is of a model of {counted(allowed.n_labels, 'label')}, "
                    f"not {self.n_labels}"
                )
            return allowed
        if sp.issparse(allowed) or getattr(allowed, "ndim", 1) == 2:
            return Allowed.of_rows(allowed, self.n_labels)
        return Allowed(self.n_labels, self._find_labels(allowed, "allowed"))

    def _find_labels(self, labels: Any, what: str) -> npt.NDArray[np.int64]:
        """The numbers of labels."""
        if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
            raise DataError(f"{what} is {reprlib.repr(labels)}; expected a list of labels")
        if isinstance(labels, np.ndarray) and labels.dtype.kind in "iu" and labels.ndim == 1:
            outside = (labels < 0) | (labels >= self.n_labels)
            if outside.any():
                self.find_label(int(labels[np.argmax(outside)]))
            return labels.astype(np.int64)
        given = list(labels)
        known = self.names
        found: list[int | None] = [None] * len(given)
        if isinstance(known, Names) and all(isinstance(label, str) for label in given):
            found = known.find_all(given)
        pairs = zip(found, given, strict=True)
        return np.array([self.find_label(x) if n is None else n for n, x in pairs], np.int64)

    @cached_property
    def label_numbers(self) -> dict[str, int]:
        """The labels by their names; of equal names, the first."""
        return {name: number for number, name in reversed(list(enumerate(self.names or ())))}

    @property
    def damage(self) -> str | None:
        """What has happened to a file of the model since it was opened, or None.

        Only a server has it found out (`dismec.data.mapped_files.watching`).
        """
        return self.files.damage

    @property
    def not_ready(self) -> str | None:
        """Why it cannot predict just now, or None."""
        return self.damage

    def ready(self) -> bool:
        """Whether it predicts now; takes no time to find out."""
        return self.not_ready is None

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return Capabilities(self.vocabulary is not None, self.calibration is not None)

    @property
    def calibration(self) -> Calibration | None:
        """What makes probabilities of its scores, or None."""
        return None

    def close(self) -> None:  # noqa: B027  most have nothing to give up
        """Give up what it holds on a cluster."""

    @property
    @abstractmethod
    def nnz(self) -> int:
        """Number of weights that are stored; labels with the same weights share them."""

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

    def rows_of(self, X: Any, *, threads: int | None = None) -> Any:
        """What the model scores: rows as they are, or the rows of texts.

        A model of texts takes texts (a list, an array, a Series, a generator …) and `TextRows`. It
        refuses any other matrix, as it cannot know whether columns are its own terms. A model that
        takes dense features beside others takes them as a list of both, ``[X, E]``.

        Raises
        ------
        DataError
            If X is texts and the model takes numbers, or the other way round; if it lacks a kind of
            features that the model takes, or has one that it does not take.
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
        self, X: Any, k: int = 5, *, allowed: Any = None, threads: int | None = None
    ) -> tuple[Labels, Scores]:
        """The k best labels of each row with their scores, best first; ties to the smaller label.

        Parameters
        ----------
        X
            (n_rows, up to n_features) sparse or dense, as read from a file: the model's own
            transform is applied. For a model of texts: texts, one per row, or `TextRows`. For a
            model that takes dense features beside these: a list of both, ``[X, E]``.
        k
            Places per row. Those beyond the labels that had training rows hold label −1 and score
            −inf: what was never seen is never predicted.
        allowed
            The labels to choose from: their numbers or names, or what `select_labels` gives; or
            one set for each row, as an indicator (n_rows, n_labels), sparse or dense. By default
            all. The others are left out, and scores are as they are without.
        threads
            All available CPUs by default.

        Returns
        -------
        labels, scores
            int32 and float32 (n_rows, k).

        Raises
        ------
        DataError
            If X has more features than the model, or values that are not finite; if it is a matrix
            and the model takes texts, or the other way round; if the model does not have a label
            that is allowed.
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
        X: Any,
        Y: Any,
        ks: Sequence[int] = (1, 3, 5),
        *,
        A: float = 0.55,
        B: float = 1.5,
        weights: Any = None,
        allowed: Any = None,
        threads: int | None = None,
    ) -> dict[str, float]:
        """P@k, nDCG@k, PSP@k and more on rows with known labels, in percent (`dismec.measure`).

        `Y` (n_rows, n_labels), sparse or dense, may have labels that the model does not have: they
        are never predicted, and count. The columns of a frame, lists of labels, and a list of one
        label per row are matched by their names. `weights`, one number of at least 0 per row, say
        how much each row counts.

        With `allowed`, as for `predict_topk`, the model is measured on these labels alone: true
        labels that are not allowed do not count as true, nor do those that the model does not have.
        Rows that have no other true labels stay, and nothing is right for them.
        """
        chosen = self.allowed_labels(allowed)
        truth = self.truth_of(Y, A, B, allowed=chosen)
        ks = check_ks(ks)
        depth = max(1, min(max(ks), self.n_labels))
        top, _ = self.predict_topk(X, depth, allowed=chosen, threads=threads)
        return truth.metrics(top, ks, weights)

    def truth_of(self, Y: Any, A: float = 0.55, B: float = 1.5, *, allowed: Any = None) -> Truth:
        """The true labels of rows, as `evaluate` takes them, aligned with the model's labels."""
        matrix = matrix_of_labels(Y, self.names)
        chosen = self.allowed_labels(allowed)
        if chosen is not None:
            matrix, _ = chosen.filter(matrix)
        return Truth.align(matrix, self.label_counts, self.manifest.n_rows, A, B)

    def propensities(self, A: float = 0.55, B: float = 1.5) -> npt.NDArray[np.float64]:
        """How likely each label is to be seen where it holds, by its training frequency."""
        return propensities(self.label_counts, self.manifest.n_rows, A, B)


def _rounded(n: int) -> str:
    """A number as a person says it: 950, 12.3 k, 5.3 M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if n >= size:
            return f"{n / (1e3 if unit == 'k' else size):.1f} {unit}"
    return f"{n:,}"
