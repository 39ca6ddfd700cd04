"""Labels from a caller → a label matrix: names, numbers, lists of them, or an indicator matrix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.columns import column_values, frame_columns, is_missing, label_names_of
from dismec.data.counts import counted
from dismec.data.matrices import check_Y, indicator_of
from dismec.errors import DataError

Floats = npt.NDArray[np.float64]

# How labels were given: lists of labels, one class per row, a dense or sparse indicator matrix.
Kind = Literal["lists", "classes", "indicator", "sparse"]


@dataclass(frozen=True, eq=False)
class Target:
    """The labels of some rows.

    Attributes
    ----------
    Y
        CSR (n_rows, n_labels), 1 if a row has a label.
    classes
        The label of each column, ascending unless Y was an indicator matrix: text or numbers.
    kind
        How labels were given.
    named
        Whether the columns have labels of their own rather than just numbers.
    """

    Y: sp.csr_array
    classes: list[Any]
    kind: Kind
    named: bool = True

    @classmethod
    def of(cls, labels: Any, classes: Iterable[Any] | None = None) -> Target:
        """Create the target from labels in any form.

        `classes` are the labels of the columns of an indicator matrix: by default the columns of a
        frame, or their numbers.
        """
        columns = frame_columns(labels)
        is_array = sp.issparse(labels) or isinstance(labels, np.ndarray)
        if (columns is not None and len(columns) != 1) or (is_array and _is_indicator(labels)):
            return cls._of_indicator(labels, columns, classes)
        if classes is not None:
            raise DataError("classes are for an indicator matrix, but labels is a list")
        return cls._of_rows(column_values(labels, "labels", "entry"))

    def of_rows(self, keep: npt.NDArray[np.int64]) -> Target:
        """Return the labels of some of the rows, as if these were all."""
        Y: Any = self.Y
        Y = Y[keep]
        if self.kind in ("indicator", "sparse"):
            return replace(self, Y=Y)
        there = np.flatnonzero(np.bincount(Y.indices, minlength=Y.shape[1]))
        return replace(self, Y=Y[:, there], classes=[self.classes[place] for place in there])

    @classmethod
    def _of_indicator(
        cls, labels: Any, columns: list[Any] | None, classes: Iterable[Any] | None
    ) -> Target:
        Y: Any = check_Y(labels)
        kind: Kind = "sparse" if sp.issparse(labels) else "indicator"
        given = columns if classes is None else column_values(classes, "classes", "class")
        if given is None or given == list(range(Y.shape[1])):
            return cls(Y, list(range(Y.shape[1])), kind, named=classes is not None)
        if len(given) != Y.shape[1]:
            raise DataError(
                f"{counted(len(given), 'class')} for {counted(Y.shape[1], 'column')} of labels"
            )
        where = "the columns of labels" if classes is None else "classes"
        return cls(Y, _of_one_type([_checked_label(label, where) for label in given]), kind)

    @classmethod
    def _of_rows(cls, values: list[Any]) -> Target:
        rows = [_label_row(number, value) for number, value in enumerate(values)]
        alone = all(not _is_several(value) for value in values) and bool(values)
        if not alone:
            _refuse_indicator_lists(values)
        ordered = sorted(_of_one_type(list({label for row in rows for label in row})))
        numbers = {label: number for number, label in enumerate(ordered)}
        ids = [[numbers[label] for label in row] for row in rows]
        return cls(indicator_of(ids, len(ordered)), ordered, "classes" if alone else "lists")

    def among(self, classes: Sequence[Any]) -> sp.csr_array:
        """Return the matrix with a column for each of these labels, followed by any others."""
        Y: Any = self.Y
        if not self.named:  # columns are identified by number
            width = max(len(classes), Y.shape[1])
            return sp.csr_array((Y.data, Y.indices, Y.indptr), shape=(Y.shape[0], width))
        numbers = {label: number for number, label in reversed(list(enumerate(classes)))}
        further = len(classes)
        places = np.zeros(len(self.classes), np.int32)
        for column, label in enumerate(self.classes):
            if label not in numbers:
                numbers[label], further = further, further + 1
            places[column] = numbers[label]
        moved = sp.csr_array(
            (np.ones(Y.nnz, np.uint8), places[Y.indices], Y.indptr), shape=(Y.shape[0], further)
        )
        moved.sum_duplicates()
        moved.data[:] = 1
        return moved


def named_matrix(Y: Any, names: Sequence[str] | None) -> tuple[Any, Sequence[str] | None]:
    """Return a label matrix and the names of its columns, by default taken from Y.

    Lists of labels become a matrix; any other Y is returned unchanged and unchecked.
    """
    if is_label_lists(Y):
        target = Target.of(Y)
        if names is None:
            return target.Y, [str(label) for label in target.classes]
        return _by_name(target, names), names
    return Y, label_names_of(Y) if names is None else names


def matrix_of_labels(Y: Any, names: Sequence[str] | None) -> Any:
    """Return labels as a matrix with a column per label of a model, followed by any others.

    Lists of labels, one label per row, and the columns of a frame are matched with the model's
    labels by name; any other matrix is returned unchanged and unchecked.
    """
    if is_label_lists(Y) or _is_one_per_row(Y):
        return _by_name(Target.of(Y), names)
    if names is None or label_names_of(Y) is None:
        return Y
    columns = [str(name).strip() for name in frame_columns(Y) or ()]
    return _by_name(Target(check_Y(Y), columns, "indicator"), names)


def _by_name(target: Target, names: Sequence[str] | None) -> sp.csr_array:
    if names is None:
        texts = [label for label in target.classes if not isinstance(label, int)]
        if texts:
            raise DataError(f"the label {texts[0]!r} is text, but labels have numbers, not names")
        if (least := min(target.classes, default=0)) < 0:
            raise DataError(f"the label {least} is negative; label numbers start at 0")
        return target.among(range(1 + max(target.classes, default=-1)))
    as_text = [str(label) for label in target.classes]
    return Target(target.Y, as_text, target.kind).among(names)


def is_label_lists(labels: Any) -> bool:
    """Return whether labels are lists or sets of labels rather than a matrix."""
    if sp.issparse(labels) or frame_columns(labels) is not None or getattr(labels, "ndim", 1) != 1:
        return False
    if isinstance(labels, np.ndarray) and labels.dtype != object:
        return False
    if not hasattr(labels, "__len__") or isinstance(labels, str | bytes):
        return False
    rows = [row for row in labels if _is_several(row)]
    widths = {len(row) for row in rows}
    return bool(rows) and (
        len(rows) < len(labels)
        or len(widths) > 1
        or not all(isinstance(value, Real) for row in rows for value in row)
        or any(isinstance(row, set | frozenset) for row in rows)
    )


def _is_one_per_row(labels: Any) -> bool:
    """Return whether labels are one per row: a list, an array or a Series."""
    if sp.issparse(labels) or isinstance(labels, str | bytes) or not hasattr(labels, "__len__"):
        return False
    if hasattr(labels, "ndim"):
        return bool(labels.ndim == 1)
    return len(labels) > 0 and not any(map(_is_several, labels))


def columns_by_name(
    Y: Any, names: Sequence[str], known: Sequence[str]
) -> tuple[sp.csr_array, list[str]]:
    """Return a label matrix with the known labels' columns first, and the names of all columns.

    `names` are those of the columns of Y. Columns with other names follow the known ones.
    """
    there = set(known)
    further = dict.fromkeys(name for name in names if name not in there)
    return Target(Y, list(names), "indicator").among(known), [*known, *further]


def _is_indicator(labels: Any) -> bool:
    return labels.ndim == 2 and (sp.issparse(labels) or labels.dtype.kind in "buif")


def _is_several(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | dict)


def _label_row(number: int, value: Any) -> list[Any]:
    where = f"row index {number}"
    if not _is_several(value):
        return [_checked_label(value, where)]
    if hasattr(value, "tolist"):
        value = value.tolist()
    return list(dict.fromkeys(_checked_label(label, where) for label in value))


def _checked_label(label: Any, where: str) -> Any:
    """Return a label as text without surrounding white space, or as a number."""
    if isinstance(label, str):
        name = label.strip()
        if not name:
            raise DataError(f"{where}: a label without a name")
        return name
    if isinstance(label, bool | np.bool_):
        return bool(label)
    if isinstance(label, Integral) or (isinstance(label, Real) and float(label).is_integer()):
        return int(float(label)) if not isinstance(label, Integral) else int(label)
    if is_missing(label):
        raise DataError(
            f"{where}: a label is {label}; leave it out, a row may have an empty list of labels"
        )
    raise DataError(
        f"{where}: a label is {str(label)[:40]!r}, a {type(label).__name__}; "
        "expected text or a whole number"
    )


def _of_one_type(labels: list[Any]) -> list[Any]:
    kinds = {type(label) for label in labels}
    if len(kinds) > 1:
        raise DataError("some labels are text and some are numbers: make all of them text")
    return labels


def _refuse_indicator_lists(values: list[Any]) -> None:
    """Reject lists of 0 and 1 of equal length: they could be labels or an indicator matrix."""
    widths = {len(row) if isinstance(row, list | tuple) else -1 for row in values}
    if len(widths) == 1 and widths.pop() > 1:
        found = {value for row in values for value in row if isinstance(value, int | float)}
        if found <= {0, 1} and all(not isinstance(value, str) for row in values for value in row):
            raise DataError(
                "labels are lists of 0 and 1: for an indicator matrix, pass numpy.array(labels); "
                "for labels named 0 and 1, convert them to text"
            )


def propensities(
    label_counts: npt.ArrayLike, n_rows: int, A: float = 0.55, B: float = 1.5
) -> Floats:
    """Estimate how likely each label is to be recorded where it is true.

    This is the model of Jain et al. (2016): p_l = 1 / (1 + C·(N_l + B)^(−A)) with
    C = (ln N − 1)·(B + 1)^A. The rarer a label is, the more often it is assumed to be missing.

    Parameters
    ----------
    label_counts : array-like of shape (n_labels,)
        N_l, the number of training rows of each label.
    n_rows : int
        N, the number of training rows. With fewer than three rows every propensity is 1.
    A, B : float, default=0.55 and 1.5
        The constants of the XMC Repository: 0.5 and 0.4 for the large Wikipedia sets, 0.6 and 2.6
        for the Amazon sets, 0.55 and 1.5 for all others.

    Returns
    -------
    ndarray of float64, shape (n_labels,)
        The propensities, above 0 and at most 1.

    Raises
    ------
    DataError
        If a count is not between 0 and `n_rows`, or `A` or `B` is out of range.

    Examples
    --------
    >>> from dismec import propensities
    >>> propensities([1, 10, 100], n_rows=1000).round(2).tolist()
    [0.14, 0.28, 0.56]
    """
    counts = np.asarray(label_counts, dtype=np.float64)
    if counts.ndim != 1:
        raise DataError(f"label_counts is {counts.ndim}-d; expected one count per label")
    if n_rows < 1:
        raise DataError(f"n_rows is {n_rows}; propensities need at least one training row")
    numbers = isinstance(A, int | float | np.number) and isinstance(B, int | float | np.number)
    if not (numbers and abs(A) <= 10 and 0 < B <= 1e6):
        raise DataError(
            f"propensity constants A = {A}, B = {B}; expected −10 ≤ A ≤ 10 and 0 < B ≤ 1e6"
        )
    wrong = np.flatnonzero(~((counts >= 0) & (counts <= n_rows)))
    if wrong.size:
        label = wrong[0]
        raise DataError(
            f"label {label}: count {counts[label]:g}; expected between 0 and n_rows = {n_rows}"
        )
    C = max(np.log(n_rows) - 1.0, 0.0) * (B + 1.0) ** A
    result: Floats = 1.0 / (1.0 + C * (counts + B) ** -A)
    return result
