"""Sparse features and dense ones of the same rows: `[X, E]` of a caller → rows the kernels take.

Dense features are float32, row after row, and are read where they are: nothing is copied if a
caller has them so.
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
from dismec.errors import DataError

__all__ = [
    "MixedArrays",
    "MixedRows",
    "arrays_of",
    "check_features",
    "is_mostly_full",
    "is_parts",
    "load_dense",
    "mixed_rows",
]

Floats = npt.NDArray[np.float32]
_LARGE = 1 << 20  # numbers
_SAMPLED = 1000  # rows


class MixedArrays(NamedTuple):
    """The arrays of `MixedRows`, typed as the kernels take them."""

    rows: Rows
    dense: Floats

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.rows.n_rows

    @property
    def indptr(self) -> npt.NDArray[np.int64]:
        """Where rows begin among all entries, if dense features count as such."""
        before: npt.NDArray[np.int64] = np.arange(self.n_rows + 1) * self.dense.shape[1]
        return self.rows.indptr + before


@dataclass(frozen=True, eq=False)
class MixedRows:
    """Rows with sparse features, possibly none, and dense ones after them.

    Made by `check_features`, which has checked both; a selection of rows is of the same class.
    """

    sparse: sp.csr_array  # as `check_X` returns it
    dense: Floats  # (n_rows, width), row after row, finite

    @property
    def n_features(self) -> int:
        """Sparse features of a row."""
        return int(self.sparse.shape[1])

    @property
    def width(self) -> int:
        """Dense features of a row."""
        return int(self.dense.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of all features."""
        return self.dense.shape[0], self.n_features + self.width

    @property
    def nnz(self) -> int:
        """Sparse entries, and all dense ones."""
        return int(self.sparse.nnz) + self.dense.size

    def __getitem__(self, rows: Any) -> MixedRows:
        sparse: Any = self.sparse
        return MixedRows(sparse[rows], np.ascontiguousarray(self.dense[rows]))

    def with_sparse(self, sparse: sp.csr_array) -> MixedRows:
        """The same dense features beside other sparse ones."""
        return MixedRows(sparse, self.dense)


def is_parts(X: Any) -> bool:
    """Whether X is a list of matrices: `[E]`, or sparse rows or texts and dense ones, `[X, E]`."""
    return isinstance(X, list | tuple) and 1 <= len(X) <= 2 and _is_dense(X[-1])


def is_mostly_full(X: Any) -> bool:
    """Whether X is a large array of floats, most of which are not 0: embeddings, say.

    Solved as dense features these take less time and memory.
    """
    if not (_is_dense(X) and X.dtype.kind == "f" and X.size >= _LARGE):
        return False
    some = X[:: max(1, len(X) // _SAMPLED)]
    return bool(np.count_nonzero(some) > some.size / 2)


def mixed_rows(sparse: Any, dense: Any) -> MixedRows:
    """Rows of sparse features, None for none, and of dense ones.

    Raises
    ------
    DataError
        If one of them cannot be used, or they have different numbers of rows.
    """
    dense = _check_dense(dense)
    if sparse is None:
        sparse = sp.csr_array((len(dense), 0), dtype=np.float32)
    sparse = check_X(sparse)
    if sparse.shape[0] != len(dense):
        raise DataError(
            f"X has {counted(sparse.shape[0], 'row')}, and there are {len(dense)} dense ones"
        )
    return MixedRows(sparse, dense)


def check_features(
    X: Any, n_features: int | None = None, width: int | None = None
) -> sp.csr_array | MixedRows:
    """Any features of a caller: a matrix as for `check_X`, or `[X, E]` or `[E]` with dense ones.

    With `width` they are for a model of so many dense features and `n_features` sparse ones; it is
    refused if they are of another kind or width. A model of dense features alone takes a matrix.
    """
    if width and not n_features and not isinstance(X, MixedRows) and not is_parts(X):
        matrix: Any = X
        X = mixed_rows(None, matrix.toarray() if sp.issparse(X) else X)
    if not isinstance(X, MixedRows):
        if not is_parts(X):
            if width:
                raise DataError(
                    f"X has no dense features, and the model takes {width} beside "
                    f"{n_features} sparse ones: pass [X, E]"
                )
            return check_X(X, n_features)
        X = mixed_rows(X[0] if len(X) == 2 else None, X[-1])
    if width is not None and X.width != width:
        takes = f"the model takes {width}" if width else "the model takes none"
        raise DataError(f"X has {counted(X.width, 'dense feature')}; {takes}")
    if width and n_features and not X.n_features:
        raise DataError(
            f"X has no sparse features, and the model takes {n_features} beside {width} dense "
            "ones: pass [X, E]"
        )
    rows: MixedRows = X
    return rows if n_features is None else rows.with_sparse(check_X(rows.sparse, n_features))


def arrays_of(X: Any, n_features: int, width: int) -> Rows | MixedArrays:
    """The arrays of `check_features`; without dense features as quickly as by `check_rows`."""
    if not width and not isinstance(X, list | tuple | MixedRows):
        return check_rows(X, n_features)
    checked = check_features(X, n_features, width)
    if not isinstance(checked, MixedRows):
        return check_rows(checked, n_features)
    return MixedArrays(check_rows(checked.sparse, n_features), checked.dense)


def load_dense(path: Any) -> Floats:
    """Dense features of a ``.npy`` file: a matrix with one row per row; float32 is mapped.

    Raises
    ------
    DataError
        If there is no such file, or it holds something else.
    """
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or 'not a .npy file'}") from None
    except NPY_ERRORS:
        raise DataError(f"{path}: not a .npy file of numbers") from None
    if not isinstance(found, np.ndarray):
        raise DataError(f"{path}: holds several arrays; expected a .npy file of one matrix")
    try:
        return _check_dense(found)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


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
