"""Any matrix of a caller → CSR that the kernels can walk without looking."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import kernels
from dismec.errors import DataError

__all__ = ["Rows", "check_X", "check_csr", "check_rows", "csr_on"]

Floats = npt.NDArray[np.float32]


class Rows(NamedTuple):
    """The arrays of a CSR matrix as `check_X` gives it, typed as the kernels take them."""

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    data: Floats

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1


def check_rows(X: Any, n_features: int) -> Rows:
    """As `check_X`; rows that need no conversion are looked at once, in native code.

    What scipy does to check and build a matrix takes longer than to score a row.
    """
    if (
        getattr(X, "format", None) == "csr"
        and X.dtype == np.float32
        and X.indices.dtype == np.int32
        and X.shape[1] <= n_features
        and len(X.indptr) == X.shape[0] + 1
        and len(X.indices) == len(X.data)
        and X.data.flags.c_contiguous
        and X.indices.flags.c_contiguous
    ):
        rows = Rows(X.indptr.astype(np.int64), X.indices, X.data)
        if kernels.check_rows(rows.indptr, rows.indices, X.shape[1]) is None and (
            kernels.first_non_finite(rows.data) < 0
        ):
            return rows
    X = check_X(X, n_features)
    return Rows(X.indptr.astype(np.int64, copy=False), X.indices, X.data)


def check_X(X: Any, n_features: int | None = None) -> sp.csr_array:
    """Any matrix of a caller as rows that the kernels can walk without looking.

    Parameters
    ----------
    X
        (n_rows, up to n_features): scipy sparse of any format, or a dense array. Never changed;
        the result shares its memory where nothing had to be converted.
    n_features
        Number of columns of the result; by default that of `X`. Fewer columns in `X` stand for
        features that are 0 in all its rows.

    Returns
    -------
    csr_array
        float32, finite; column numbers int32, ascending and unique in a row. ``indptr`` is int64
        only where int32 does not hold the number of non-zeros.

    Raises
    ------
    DataError
        For more than `n_features` columns, values that are not finite in float32, or arrays that
        do not form a matrix.
    """
    result = check_csr(X, "X", "features")
    n_rows, n_columns = result.shape
    wanted = n_columns if n_features is None else n_features
    if n_columns > wanted:
        raise DataError(f"X has {n_columns} features, the model has {wanted}")
    if wanted >= np.iinfo(np.int32).max:
        raise DataError(f"X has {wanted} features; at most {np.iinfo(np.int32).max - 1} fit")
    if not result.has_canonical_format:
        if result.dtype.kind != "f":
            result.data = result.data.astype(np.float64)  # a sum must not wrap around
        result = result.copy()
        with np.errstate(over="ignore", invalid="ignore"):
            result.sum_duplicates()
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(result.data, dtype=np.float32)
    finite = np.isfinite(values)
    if not finite.all():
        entry = int(np.argmin(finite))
        row = int(np.searchsorted(result.indptr, entry, side="right")) - 1
        raise DataError(
            f"row {row}, feature {result.indices[entry]}: {result.data[entry]:g} "
            "is not a finite float32"
        )
    columns = np.ascontiguousarray(result.indices, dtype=np.int32)
    return csr_on(values, columns, result.indptr, (n_rows, wanted), canonical=True)


def check_csr(matrix: Any, what: str, columns: str) -> sp.csr_array:
    """Any matrix of a caller as CSR with all entries inside its shape, on its memory if possible.

    scipy believes the arrays it is given, and would read and write beyond others. `what` and
    `columns` name the matrix and its columns in errors.

    Raises
    ------
    DataError
        For what is no matrix of numbers, or arrays that do not form one.
    """
    matrix = matrix if sp.issparse(matrix) else np.asarray(matrix)
    if matrix.ndim != 2:
        raise DataError(f"{what} is {matrix.ndim}-d; expected rows × {columns}")
    if matrix.dtype.kind not in "buif":
        raise DataError(f"{what} holds {matrix.dtype}; expected numbers")
    if matrix.dtype == np.float16:
        matrix = matrix.astype(np.float32)  # scipy's loops have no float16
    if getattr(matrix, "format", None) in ("csc", "bsr"):
        try:
            matrix.check_format(full_check=True)
        except ValueError as error:
            raise DataError(f"{what}: {error}") from None
    rows: Any = matrix if getattr(matrix, "format", None) == "csr" else sp.csr_array(matrix)
    nnz = _check_structure(what, columns, rows.indptr, rows.indices, rows.data, rows.shape)
    # A new matrix on the same memory: the caller's own flags may be out of date, and stay as they
    # are.
    return csr_on(rows.data[:nnz], rows.indices[:nnz], rows.indptr, rows.shape)


def csr_on(
    data: npt.NDArray[Any],
    indices: npt.NDArray[Any],
    indptr: npt.NDArray[Any],
    shape: tuple[int, int],
    *,
    canonical: bool = False,
) -> sp.csr_array:
    """A csr_array on just these arrays: its constructor would look at all of them, or copy some."""
    if indptr[-1] <= np.iinfo(indices.dtype).max:
        indptr = indptr.astype(indices.dtype, copy=False)  # scipy is at ease with one type
    result = sp.csr_array(shape, dtype=data.dtype)
    result.data, result.indices, result.indptr = data, indices, indptr
    if canonical:
        result.has_canonical_format = True
    return result


def _check_structure(
    what: str,
    columns: str,
    indptr: npt.NDArray[Any],
    indices: npt.NDArray[Any],
    data: npt.NDArray[Any],
    shape: tuple[int, int],
) -> int:
    """The number of entries, all of them within `shape`."""
    if indptr.shape != (shape[0] + 1,) or indptr[0] != 0 or (np.diff(indptr) < 0).any():
        raise DataError(f"{what}: indptr does not describe {shape[0]} rows")
    nnz = int(indptr[-1])
    stored = min(len(indices), len(data))
    if nnz > stored:
        raise DataError(f"{what}: indptr names {nnz} entries, {stored} are there")
    if nnz:
        low, high = indices[:nnz].min(), indices[:nnz].max()
        if low < 0 or high >= shape[1]:
            wrong = low if low < 0 else high
            raise DataError(f"{what}: column {wrong} is outside {shape[1]} {columns}")
    return nnz
