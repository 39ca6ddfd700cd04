"""Sparse and dense features of the same rows: `[X, E]` from a caller → rows for the kernels.

Dense features are float32 in row-major order; arrays that are in this form already are not copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import kernels
from dismec.data.counts import counted
from dismec.data.matrices import NPY_ERRORS, Rows, check_rows, check_X, refuse_mask
from dismec.errors import DataError, located

Floats = npt.NDArray[np.float32]
_LARGE = 1 << 20  # values from which an array counts as large
_SAMPLED = 1000  # rows examined


class MixedArrays(NamedTuple):
    """The arrays of `MixedRows`, typed for the kernels."""

    rows: Rows
    dense: Floats

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.rows.n_rows

    @property
    def indptr(self) -> npt.NDArray[np.int64]:
        """Row pointers that count dense features as entries."""
        before: npt.NDArray[np.int64] = np.arange(self.n_rows + 1) * self.dense.shape[1]
        return self.rows.indptr + before


@dataclass(frozen=True, eq=False)
class MixedRows:
    """Rows with sparse features, possibly none, followed by dense ones.

    Created by `check_features`, which checks both parts; a selection of rows has the same class.
    """

    sparse: sp.csr_array  # as returned by `check_X`
    dense: Floats  # (n_rows, width), row-major, finite

    @property
    def n_features(self) -> int:
        """Number of sparse features."""
        return int(self.sparse.shape[1])

    @property
    def width(self) -> int:
        """Number of dense features."""
        return int(self.dense.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of all features."""
        return self.dense.shape[0], self.n_features + self.width

    @property
    def nnz(self) -> int:
        """Number of sparse entries plus all dense ones."""
        return int(self.sparse.nnz) + self.dense.size

    def __getitem__(self, rows: Any) -> MixedRows:
        sparse: Any = self.sparse
        return MixedRows(sparse[rows], np.ascontiguousarray(self.dense[rows]))

    def with_sparse(self, sparse: sp.csr_array) -> MixedRows:
        """Return the same dense features with other sparse ones."""
        return MixedRows(sparse, self.dense)


def is_parts(X: Any) -> bool:
    """Return whether X is a list of matrices: `[E]`, or `[X, E]` with sparse rows or texts in X."""
    return isinstance(X, list | tuple) and 1 <= len(X) <= 2 and _is_dense(X[-1])


def is_mostly_full(X: Any) -> bool:
    """Return whether X is a large float array with mostly nonzero values, such as embeddings.

    These take less time and memory when solved as dense features.
    """
    if not (_is_dense(X) and X.dtype.kind == "f" and X.size >= _LARGE):
        return False
    some = X[:: max(1, len(X) // _SAMPLED)]
    return bool(np.count_nonzero(some) > some.size / 2)


def mixed_rows(sparse: Any, dense: Any) -> MixedRows:
    """Combine sparse features, or None, with dense ones.

    Raises `DataError` if either cannot be used, or their numbers of rows differ.
    """
    dense = _check_dense(dense)
    if isinstance(sparse, MixedRows):  # texts that were encoded
        raise DataError("dense features cannot be combined with an encoder")
    if sparse is None:
        sparse = no_features(len(dense))
    sparse = check_X(sparse)
    if sparse.shape[0] != len(dense):
        raise DataError(
            f"X has {counted(sparse.shape[0], 'row')}, but the dense features have {len(dense)}"
        )
    return MixedRows(sparse, dense)


def no_features(n_rows: int) -> Any:
    """Return rows without sparse features."""
    return sp.csr_array((n_rows, 0), dtype=np.float32)


def stacked(parts: list[Any], kind: type[sp.csr_array]) -> Any:
    """Stack rows, sparse or mixed; the sparse features become this kind of matrix."""
    sparse = kind(sp.vstack([sparse_part(part) for part in parts], format="csr"))
    if not isinstance(parts[0], MixedRows):
        return sparse
    return mixed_rows(sparse, np.concatenate([part.dense for part in parts]))


def with_dense(X: Any, dense: Any) -> Any:
    """Return sparse rows, with dense features beside them if there are any."""
    return X if dense is None else mixed_rows(X, dense)


def sparse_part(X: Any) -> Any:
    """Return the sparse features of rows."""
    return X.sparse if isinstance(X, MixedRows) else X


def check_features(
    X: Any, n_features: int | None = None, width: int | None = None
) -> sp.csr_array | MixedRows:
    """Check any features: a matrix as in `check_X`, or `[X, E]` or `[E]` with dense ones.

    With `width`, they are for a model with that many dense and `n_features` sparse features; other
    kinds or widths are an error. A model with only dense features accepts a matrix.
    """
    if width and not n_features and not isinstance(X, MixedRows) and not is_parts(X):
        matrix: Any = X
        X = mixed_rows(None, matrix.toarray() if sp.issparse(X) else X)
    if not isinstance(X, MixedRows):
        if not is_parts(X):
            if width:
                raise DataError(
                    f"X has no dense features, but the model takes {width} in addition to "
                    f"{n_features} sparse ones: pass [X, E]"
                )
            return check_X(X, n_features)
        X = mixed_rows(X[0] if len(X) == 2 else None, X[-1])
    if width is not None and X.width != width:
        takes = f"the model takes {width}" if width else "the model takes none"
        raise DataError(f"X has {counted(X.width, 'dense feature')}; {takes}")
    if width and n_features and not X.n_features:
        raise DataError(
            f"X has no sparse features, but the model takes {n_features} in addition to {width} "
            "dense ones: pass [X, E]"
        )
    rows: MixedRows = X
    return rows if n_features is None else rows.with_sparse(check_X(rows.sparse, n_features))


def arrays_of(X: Any, n_features: int, width: int) -> Rows | MixedArrays:
    """Return the arrays of `check_features`; without dense features, as fast as `check_rows`."""
    if not width and not isinstance(X, list | tuple | MixedRows):
        return check_rows(X, n_features)
    checked = check_features(X, n_features, width)
    if not isinstance(checked, MixedRows):
        return check_rows(checked, n_features)
    return MixedArrays(check_rows(checked.sparse, n_features), checked.dense)


def load_dense(path: Any) -> Floats:
    """Load dense features from a ``.npy`` file, one row per row; float32 is mapped.

    Raises `DataError` if the file does not exist or contains something else.
    """
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or 'not a .npy file'}") from None
    except NPY_ERRORS:
        raise DataError(f"{path}: not a .npy file of numbers") from None
    if not isinstance(found, np.ndarray):
        raise DataError(f"{path}: holds several arrays; expected a .npy file of one matrix")
    with located(path, DataError):
        return _check_dense(found)


def _is_dense(part: Any) -> bool:
    return isinstance(part, np.ndarray) and part.ndim == 2 and part.dtype.kind in "buif"


def _check_dense(dense: Any) -> Floats:
    refuse_mask(dense, "E")
    try:
        array = np.asarray(dense)
    except ValueError:
        raise DataError("dense features are lists of unequal lengths") from None
    if array.ndim != 2 or array.dtype.kind not in "buif":
        raise DataError(
            f"dense features are {array.ndim}-d of {array.dtype}; expected a matrix of numbers"
        )
    if array.shape[1] == 0:
        raise DataError("there are 0 dense features; expected at least 1")
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(array, dtype=np.float32)
    entry = kernels.first_non_finite(values.reshape(-1))
    if entry >= 0:
        row, column = divmod(entry, values.shape[1])
        raise DataError(
            f"row index {row}, dense feature {column}: {array[row, column]:g} is not a finite "
            "float32"
        )
    return values
