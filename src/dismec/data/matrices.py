"""Any matrix from a caller → CSR that the kernels can use without checks.

A matrix is checked once, where it comes in. The result of `check_X` has read-only arrays and a mark
that identifies them, so the next `check_X` recognizes it without a pass over its entries. The mark
cannot silently become wrong: numpy prevents writing to such an array, a matrix that scipy makes
from it has no mark, and one whose arrays were exchanged or made writeable again is checked like any
other. The caller's arrays stay writeable: the read-only ones are views used inside the package.
`load_data` returns only marked matrices whose memory is mapped read-only.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import kernels
from dismec.data.counts import counted
from dismec.errors import DataError, located

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]

MAX_COLUMNS = 2**31 - 1  # a column id is an int32
# Rows, and bytes of arrays, that any .npz file may declare, whatever its size.
_ALWAYS_ROWS, _ALWAYS_UNPACKED = 1 << 24, 1 << 26
# Raised by NumPy for a damaged file of arrays; its header is a piece of Python.
NPY_ERRORS = (
    *(ValueError, TypeError, OverflowError, KeyError, IndexError, EOFError, MemoryError),
    *(SyntaxError, TokenError),
)


class Rows(NamedTuple):
    """The arrays of a CSR matrix from `check_X`, typed for the kernels."""

    indptr: Ints
    indices: Ids
    data: Floats

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1


def check_rows(X: Any, n_features: int) -> Rows:
    """Return the arrays of `check_X`: building a matrix takes longer than scoring a row."""
    rows = _rows_as_they_are(X, n_features)
    if rows is None:
        X = _converted(X, n_features)
        rows = Rows(X.indptr.astype(np.int64, copy=False), X.indices, X.data)
    return rows


def check_X(X: Any, n_features: int | None = None) -> sp.csr_array:
    """Check any matrix, sparse or dense, and return rows that the kernels can use without checks.

    The result has `n_features` columns, by default those of `X`: features that `X` lacks are 0 in
    all its rows, and additional ones are an error. Values are finite float32; column numbers are
    int32, ascending and unique in a row; ``indptr`` is int64 only if int32 cannot hold the number
    of nonzeros. Its arrays are read-only. `X` is never modified; the result shares its memory where
    nothing had to be converted, and is `X` itself if `X` was returned by this function and has
    `n_features` columns.
    """
    if is_checked(X) and n_features in (None, X.shape[1]):
        return X  # type: ignore[no-any-return]
    rows = _rows_as_they_are(X, n_features)
    if rows is None:
        return sealed(_converted(X, n_features))
    shape = (X.shape[0], X.shape[1] if n_features is None else n_features)
    return sealed(csr_on(rows.data, rows.indices, X.indptr, shape, canonical=True))


def is_checked(X: Any) -> bool:
    """Return whether `X` is an unchanged matrix returned by `sealed`."""
    mark = getattr(X, "_dismec_checked", None)
    return (
        mark is not None
        and mark[0] == X.shape
        and all(
            array is marked and not array.flags.writeable
            for array, marked in zip((X.data, X.indices, X.indptr), mark[1:], strict=True)
        )
    )


def sealed(X: sp.csr_array) -> sp.csr_array:
    """Mark a matrix as read-only and checked; the caller knows that it satisfies `check_X`."""
    for name in ("data", "indices", "indptr"):
        view = getattr(X, name).view()
        view.flags.writeable = False
        setattr(X, name, view)
    marked: Any = X
    marked._dismec_checked = (X.shape, X.data, X.indices, X.indptr)
    return X


def checked_arrays(
    path: Path, X: Any, Y: Any, first_row: int = 0
) -> tuple[Rows, tuple[Ints, Ids], tuple[int, int]]:
    """Check everything; return X, (indptr, indices) of Y, and their numbers of columns.

    Errors name the file `path`, and count its rows from 1 after `first_row` other rows.
    """
    X, Y = canonical(X), indicator(Y)
    if X.shape[0] != Y.shape[0]:
        raise DataError(f"{path}: X has {counted(X.shape[0], 'row')} and Y has {Y.shape[0]}")
    if max(X.shape[1], Y.shape[1]) > MAX_COLUMNS:
        raise DataError(f"{path}: more than {MAX_COLUMNS} features or labels")
    with np.errstate(over="ignore"):  # an overflow shows up as an infinity
        values = X.data.astype(np.float32, copy=False)
    x, y = (
        (matrix.indptr.astype(np.int64, copy=False), matrix.indices.astype(np.int32, copy=False))
        for matrix in (X, Y)
    )
    if not is_checked(X):
        check_entries("X", path, (*x, values), X.shape[1], first_row)
    check_entries("Y", path, y, Y.shape[1], first_row)
    return Rows(*x, values), y, (X.shape[1], Y.shape[1])


def check_entries(
    what: str, path: Path, arrays: Sequence[npt.NDArray[Any]], n_columns: int, first_row: int = 0
) -> None:
    """Reject invalid rows of a file, counted from 1: (indptr, indices), optionally with values."""
    if fault := first_fault(n_columns, *arrays):
        raise DataError(f"{path}: {what}, row {first_row + fault[0] + 1}: {fault[1]}")


def first_fault(
    n_columns: int, indptr: Ints, indices: Ids, data: Floats | None = None
) -> tuple[int, str] | None:
    """Find a row with unsorted or too large ids, or a value that is not finite, and the reason."""
    fault = kernels.check_rows(indptr, indices, n_columns)
    if fault is None and data is not None and (entry := kernels.first_non_finite(data)) >= 0:
        row = int(np.searchsorted(indptr, entry, side="right")) - 1
        fault = row, f"the value {data[entry]} is not finite"
    return fault


def _rows_as_they_are(X: Any, n_features: int | None) -> Rows | None:
    """Return the rows of a matrix that needs no conversion: checked before, or here natively."""
    if not (
        getattr(X, "format", None) == "csr"
        and X.dtype == np.float32
        and X.indices.dtype == np.int32
        and X.shape[1] <= (X.shape[1] if n_features is None else n_features) < MAX_COLUMNS
        and len(X.indptr) == X.shape[0] + 1
        and len(X.indices) == len(X.data)
        and X.data.flags.c_contiguous
        and X.indices.flags.c_contiguous
    ):
        return None
    rows = Rows(X.indptr.astype(np.int64), X.indices, X.data)
    return rows if is_checked(X) or first_fault(X.shape[1], *rows) is None else None


def _converted(X: Any, n_features: int | None) -> sp.csr_array:
    """Like `check_X`, for matrices that must be converted or rejected."""
    result = check_csr(X, "X", "features")
    n_rows, n_columns = result.shape
    wanted = n_columns if n_features is None else n_features
    if n_columns > wanted:
        raise DataError(f"X has {counted(n_columns, 'feature')}, the model has {wanted}")
    if wanted >= MAX_COLUMNS:
        raise DataError(f"X has {counted(wanted, 'feature')}; at most {MAX_COLUMNS - 1} fit")
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
            f"row index {row}, feature {result.indices[entry]}: {result.data[entry]:g} "
            "is not a finite float32"
        )
    columns = np.ascontiguousarray(result.indices, dtype=np.int32)
    return csr_on(values, columns, result.indptr, (n_rows, wanted), canonical=True)


def check_csr(matrix: Any, what: str, columns: str) -> sp.csr_array:
    """Return any matrix as CSR with all entries inside its shape, on its memory if possible.

    scipy trusts the arrays it is given, and would read and write out of bounds. `what` and
    `columns` name the matrix and its columns in errors.
    """
    refuse_mask(matrix, what)
    is_collection = hasattr(matrix, "__dask_graph__")
    if not sp.issparse(matrix):
        try:
            matrix = np.asarray(matrix)
        except ValueError:
            raise DataError(f"{what} holds lists of unequal lengths; expected a matrix") from None
    if is_collection and matrix.ndim == 0:
        raise DataError(f"{what} is a Dask collection of sparse blocks: pass its cluster=…")
    if matrix.ndim != 2:
        raise DataError(f"{what} is {matrix.ndim}-d; expected rows × {columns}")
    if matrix.dtype.kind not in "buif":
        raise DataError(f"{what} holds {matrix.dtype}; expected numbers")
    if matrix.dtype == np.float16:
        matrix = matrix.astype(np.float32)  # scipy's loops have no float16
    if getattr(matrix, "format", None) in ("csc", "bsr"):
        with located(what, DataError, ValueError):
            matrix.check_format(full_check=True)
    rows: Any = matrix if getattr(matrix, "format", None) == "csr" else sp.csr_array(matrix)
    nnz = _entry_count(what, columns, rows)
    # A new matrix on the same memory: the caller's own flags may be out of date and stay as they
    # are.
    return csr_on(rows.data[:nnz], rows.indices[:nnz], rows.indptr, rows.shape)


def refuse_mask(values: Any, what: str) -> None:
    """Reject an array with masked entries: numpy would pass on the values behind the mask."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        entry = tuple(int(i) for i in np.argwhere(np.ma.getmaskarray(values))[0])
        shown = ", ".join(map(str, entry))
        raise DataError(
            f"{what} is masked at [{shown}]: fill it with {what}.filled(0), or leave the row out"
        )


def check_Y(Y: Any, n_rows: int | None = None) -> sp.csr_array:
    """Check a label matrix with `n_rows` rows; return canonical CSR without stored zeros."""
    Y = check_csr(Y, "Y", "labels")
    if n_rows is not None and Y.shape[0] != n_rows:
        raise DataError(f"X has {counted(n_rows, 'row')}, Y has shape {Y.shape}")
    if not np.isin(Y.data, (0, 1)).all():
        raise DataError("Y is not an indicator: it holds values other than 0 and 1")
    return indicator(Y)


def canonical(matrix: Any) -> sp.csr_array:
    """Return the matrix as CSR with sorted, unique ids; the same object if it already is."""
    rows: Any = matrix if isinstance(matrix, sp.csr_array) else sp.csr_array(matrix)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows  # type: ignore[no-any-return]


def indicator(Y: Any) -> sp.csr_array:
    """Return a canonical matrix with an entry wherever Y is nonzero; Y itself if it already is."""
    rows: Any = Y if isinstance(Y, sp.csr_array) else sp.csr_array(Y)
    if not (rows.has_canonical_format and np.all(rows.data)):
        rows = rows.astype(np.bool_)  # 256 ones of a uint8 would add up to 0
        rows.sum_duplicates()
        rows.eliminate_zeros()
    return rows  # type: ignore[no-any-return]


def indicator_of(rows: Sequence[Sequence[int]], n_labels: int) -> sp.csr_array:
    """Return the indicator matrix of rows that are lists of label numbers, each once."""
    indptr = np.cumsum([0, *map(len, rows)])
    labels = np.fromiter(chain.from_iterable(rows), np.int32, indptr[-1])
    Y = csr_on(np.ones(len(labels), np.uint8), labels, indptr, (len(rows), n_labels))
    Y.sort_indices()
    return Y


def csr_on(
    data: npt.NDArray[Any],
    indices: npt.NDArray[Any],
    indptr: npt.NDArray[Any],
    shape: tuple[int, int],
    *,
    canonical: bool = False,
    kind: type[sp.csr_array] = sp.csr_array,
) -> sp.csr_array:
    """Return a csr_array on these arrays; the constructor would check all and copy some of them."""
    if indptr[-1] <= np.iinfo(indices.dtype).max:
        indptr = indptr.astype(indices.dtype, copy=False)  # scipy works best with one type
    result = kind(shape, dtype=data.dtype)
    result.data, result.indices, result.indptr = data, indices, indptr
    if canonical:
        result.has_canonical_format = True
    return result


def plus(one: sp.csr_array, other: sp.csr_array, least: float = 0.0) -> sp.csr_array:
    """Return the sum of two float32 matrices, without entries that are closer to 0 than `least`."""
    result: Any = one + other
    result.data[np.abs(result.data) < np.float32(least)] = 0
    result.eliminate_zeros()
    return csr_on(result.data, result.indices, result.indptr, result.shape, canonical=True)


def without_unused(matrix: sp.csr_array) -> tuple[sp.csr_array, Ints]:
    """Return a matrix without its empty columns, and the numbers of the columns that remain.

    Memory and time depend only on the entries: a header may declare any number of columns.
    """
    indices, n_columns = matrix.indices, matrix.shape[1]
    if n_columns <= 4 * len(indices):
        used = np.zeros(n_columns, np.bool_)
        used[indices] = True
        kept = np.flatnonzero(used)
        places = (np.cumsum(used) - 1).astype(np.int32)[indices]
    else:
        kept, inverse = np.unique(indices, return_inverse=True)
        places = inverse.astype(np.int32)
    shape = (matrix.shape[0], len(kept))
    same_order = bool(matrix.has_canonical_format)
    found = csr_on(matrix.data, places, matrix.indptr, shape, canonical=same_order)
    return found, kept.astype(np.int64)


def row_pointers(lengths: Sequence[npt.NDArray[Any]], dtype: Any = np.int64) -> npt.NDArray[Any]:
    """Return where rows start, and where the last ends, from their lengths in pieces.

    Without a `dtype`, 32 bits if possible: for nearly empty rows they dominate memory.
    """
    if dtype is None:
        n_entries = sum(int(piece.sum(dtype=np.int64)) for piece in lengths)
        dtype = np.int32 if n_entries <= np.iinfo(np.int32).max else np.int64
    indptr = np.zeros(sum(map(len, lengths)) + 1, dtype)
    place = 0
    for piece in lengths:
        part = indptr[place + 1 : place + 1 + len(piece)]
        np.cumsum(piece, out=part)
        part += indptr[place]
        place += len(piece)
    return indptr


def _entry_count(what: str, columns: str, rows: Any) -> int:
    """Return the number of entries after checking that all of them are within the shape."""
    indptr, indices, shape = rows.indptr, rows.indices, rows.shape
    if indptr.shape != (shape[0] + 1,) or indptr[0] != 0 or (np.diff(indptr) < 0).any():
        raise DataError(f"{what}: indptr does not describe {counted(shape[0], 'row')}")
    nnz = int(indptr[-1])
    stored = min(len(indices), len(rows.data))
    if nnz > stored:
        raise DataError(f"{what}: indptr declares {counted(nnz, 'entry')}, but there are {stored}")
    if nnz:
        low, high = indices[:nnz].min(), indices[:nnz].max()
        if low < 0 or high >= shape[1]:
            wrong = low if low < 0 else high
            raise DataError(f"{what}: column {wrong} is outside {shape[1]} {columns}")
    return nnz


def read_npz(path: Path, file: BinaryIO) -> Any:
    """Read a scipy matrix and check its indices, which scipy itself does not."""
    try:
        _check_packed_size(path, file)
        matrix: Any = sp.load_npz(cast(Any, file))
        if matrix.format not in ("csr", "csc", "coo"):
            raise DataError(f"{path}: a matrix in {matrix.format} format; save it as csr")
        if matrix.format != "csr" and matrix.shape[0] > max(_ALWAYS_ROWS, 100 * matrix.nnz):
            raise DataError(
                f"{path}: {counted(matrix.shape[0], 'row')} and {counted(matrix.nnz, 'entry')} in "
                f"{matrix.format} format; save it as csr"
            )
        if matrix.format != "coo":
            matrix.check_format(full_check=True)
        found: Any = canonical(matrix)
    except NPY_ERRORS as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: not a scipy sparse matrix: {_one_line(error)}") from error
    # zipfile raises RuntimeError, or its subclass NotImplementedError, for an encrypted file.
    except (zipfile.BadZipFile, zlib.error, RuntimeError, AttributeError) as error:
        raise DataError(f"{path}: not a scipy sparse matrix: {_one_line(error)}") from error
    if found.nnz < matrix.nnz:
        raise DataError(
            f"{path}: {counted(matrix.nnz - found.nnz, 'entry')} given twice in the same row"
        )
    if found.dtype.kind not in "biuf":
        raise DataError(f"{path}: the values are not real numbers")
    return found


def _check_packed_size(path: Path, file: BinaryIO) -> None:
    """Reject an archive that would unpack to much more than matrices do."""
    with zipfile.ZipFile(file) as packed:
        entries = packed.infolist()
    held = sum(entry.file_size for entry in entries)
    stored = sum(entry.compress_size for entry in entries)
    if held > max(_ALWAYS_UNPACKED, 100 * stored):
        raise DataError(f"{path}: {stored:,} bytes that unpack to {held:,}: not a matrix of data")
    file.seek(0)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def rows_of_pairs(rows: Iterable[Any]) -> tuple[sp.csr_array, list[list[int]]]:
    """Convert rows that are pairs: a map from feature numbers to values, and label numbers."""
    starts, columns, values, labels = [0], [], [], []
    for number, row in enumerate(rows):
        try:
            features, of_row = row
            pairs = features.items() if isinstance(features, Mapping) else features
            for column, value in pairs:
                columns.append(int(column))
                values.append(float(value))
            labels.append([int(label) for label in of_row])
        except (TypeError, ValueError):
            raise DataError(
                f"row {number} is not a pair of features {{number: value}} and label numbers"
            ) from None
        starts.append(len(columns))
    n_columns = 1 + max(columns, default=-1)
    matrix = (np.array(values), np.array(columns, np.int64), np.array(starts))
    with located("features of the rows", DataError, ValueError):
        X: Any = sp.csr_array(matrix, shape=(len(labels), n_columns))
    return check_X(X), labels
