"""Classes of rows → a matrix with a column per class, and weights of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.utils.validation import column_or_1d

from dismec.data.row_weights import RowWeights, check_row_weights, kept_rows
from dismec.errors import DataError

__all__ = ["among_classes", "one_hot", "refuse_missing", "weighed_rows"]


def one_hot(y: Any) -> tuple[npt.NDArray[Any], sp.csr_array]:
    """The classes of rows, and a column per class; for two classes only the second has one."""
    classes, codes = np.unique(column_or_1d(y, warn=True), return_inverse=True)
    if len(classes) == 2:
        return classes, sp.csr_array(codes[:, None].astype(np.uint8))
    rows = np.arange(len(codes) + 1)
    ones = np.ones(len(codes), dtype=np.uint8)
    return classes, sp.csr_array((ones, codes, rows), shape=(len(codes), len(classes)))


def among_classes(y: Any, classes: npt.NDArray[Any]) -> sp.csr_array:
    """A column per class that training has seen; other classes have none."""
    y = column_or_1d(y)
    rows, columns = np.nonzero(y[:, None] == classes[None, :])
    shape = (len(y), len(classes))
    return sp.csr_array((np.ones(len(rows), np.uint8), (rows, columns)), shape=shape)


def weighed_rows(sample_weight: Any, n_rows: int) -> tuple[Any, RowWeights | None]:
    """The rows to fit, None for all, and their weights."""
    if sample_weight is None:
        return None, None
    return kept_rows(check_row_weights(sample_weight, n_rows, "sample_weight"))


def refuse_missing(y: Any) -> None:
    """Refuse a None among classes, which cannot be put in order with others."""
    if y.dtype == object and y.ndim == 1:
        for row, value in enumerate(y.tolist()):
            if value is None:
                raise DataError(
                    f"row index {row}: the class is None; leave the row out, or give it one"
                )
