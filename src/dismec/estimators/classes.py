"""Convert classes of rows to a matrix with a column per class, and check row weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.utils.validation import column_or_1d

from dismec.data.row_weights import RowWeights, check_row_weights, kept_rows
from dismec.errors import DataError

__all__ = ["among_classes", "check_no_missing", "one_hot", "rows_to_fit"]


def one_hot(y: Any) -> tuple[npt.NDArray[Any], sp.csr_array]:
    """Return the classes, and a matrix with a column per class, or one for the second of two."""
    classes, codes = np.unique(column_or_1d(y, warn=True), return_inverse=True)
    if len(classes) == 2:
        return classes, sp.csr_array(codes[:, None].astype(np.uint8))
    rows = np.arange(len(codes) + 1)
    ones = np.ones(len(codes), dtype=np.uint8)
    return classes, sp.csr_array((ones, codes, rows), shape=(len(codes), len(classes)))


def among_classes(y: Any, classes: npt.NDArray[Any]) -> sp.csr_array:
    """Return a matrix with a column per class of the training data; others have no column."""
    y = column_or_1d(y)
    rows, columns = np.nonzero(y[:, None] == classes[None, :])
    shape = (len(y), len(classes))
    return sp.csr_array((np.ones(len(rows), np.uint8), (rows, columns)), shape=shape)


def rows_to_fit(sample_weight: Any, n_rows: int) -> tuple[Any, RowWeights | None]:
    """Return the rows to fit (None for all) and their weights."""
    if sample_weight is None:
        return None, None
    return kept_rows(check_row_weights(sample_weight, n_rows, "sample_weight"))


def check_no_missing(y: Any) -> None:
    """Raise `DataError` for a class of None, which cannot be sorted."""
    if y.dtype == object and y.ndim == 1:
        for row, value in enumerate(y.tolist()):
            if value is None:
                raise DataError(
                    f"row index {row}: the class is None; drop the row, or give it a class"
                )
