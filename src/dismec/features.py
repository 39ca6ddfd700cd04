"""What is done to a row; travels with the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.errors import DataError, ModelError
from dismec.native import kernels

__all__ = ["Rows", "Transform", "check_X", "check_csr", "check_rows"]

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
    return _csr(values, columns, result.indptr, (n_rows, wanted), canonical=True)


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
    return _csr(rows.data[:nnz], rows.indices[:nnz], rows.indptr, rows.shape)


@dataclass(frozen=True, eq=False)
class Transform:
    """What a row x goes through before training and before prediction.

    x∘idf (if there is an `idf`), divided by its Euclidean norm (if `normalize`), then `bias` as one
    more feature, the last. A row without features has norm 0 and stays zero but for the bias.

    Attributes
    ----------
    n_features
        D, without the bias.
    normalize
        Whether rows are scaled to norm 1.
    bias
        Value of the bias feature. Transformed rows have D + 1 columns in any case; with 0 the last
        one is empty.
    idf
        float32 (D,), a positive factor per feature, or None.
    """

    n_features: int
    normalize: bool = True
    bias: float = 1.0
    idf: Floats | None = None

    def __post_init__(self) -> None:
        if self.n_features < 0:
            raise DataError(f"n_features is {self.n_features}; expected at least 0")
        if not abs(self.bias) <= np.finfo(np.float32).max:
            raise DataError(f"bias is {self.bias}; expected a finite float32")
        if self.idf is None:
            return
        idf = np.array(self.idf, dtype=np.float32)
        if idf.shape != (self.n_features,):
            raise DataError(f"idf has shape {idf.shape}; expected ({self.n_features},)")
        if not (np.isfinite(idf) & (idf > 0)).all():
            raise DataError("idf holds values that are not positive and finite")
        idf.flags.writeable = False
        object.__setattr__(self, "idf", idf)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Transform):
            return NotImplemented
        if (self.idf is None) != (other.idf is None):
            return False
        same_idf = self.idf is None or np.array_equal(self.idf, cast(Floats, other.idf))
        return same_idf and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]  # the idf makes it a value too large to hash

    @classmethod
    def fit(
        cls, X: Any, *, tfidf: bool = False, normalize: bool = True, bias: float = 1.0
    ) -> Transform:
        """The transform of a model trained on `X` (n_rows × n_features, as for `check_X`).

        With `tfidf` the factors are idf_f = ln((1 + N)/(1 + df_f)) + 1, where N is the number of
        rows and df_f the number of rows in which feature f is not 0. They come from the training
        data alone, and stay as they are when other rows are transformed.
        """
        X = check_X(X)
        n_rows, n_features = X.shape
        idf = None
        if tfidf:
            df = np.bincount(X.indices[X.data != 0], minlength=n_features)
            idf = (np.log((1.0 + n_rows) / (1.0 + df)) + 1.0).astype(np.float32)
        return cls(n_features, normalize, bias, idf)

    def row_scale(self, X: Any) -> Floats:
        """1/‖x∘idf‖₂ per row, computed in float64; 1 for rows of zeros, and without `normalize`."""
        rows = check_rows(X, self.n_features)
        if not self.normalize:
            return np.ones(rows.n_rows, dtype=np.float32)
        return kernels.row_scale(*rows, self.idf, self.n_features)

    def apply(self, X: Any) -> sp.csr_array:
        """Transform rows.

        Parameters
        ----------
        X
            (n_rows, up to n_features), as for `check_X`; more features are refused.

        Returns
        -------
        csr_array
            float32 (n_rows, n_features + 1), canonical, in memory of its own. A value is x·scale,
            then ·idf, each product rounded to float32, with scale as in `row_scale`.
        """
        rows = check_rows(X, self.n_features)
        indptr, indices, data = self.apply_between(rows, 0, rows.n_rows)
        return _csr(data, indices, indptr, (rows.n_rows, self.n_features + 1), canonical=True)

    def apply_between(self, rows: Rows, begin: int, end: int) -> Rows:
        """Rows begin … end of those that have been through `check_rows`, transformed."""
        result = Rows(
            *kernels.apply(*rows, self.idf, self.normalize, self.bias, self.n_features, begin, end)
        )
        if self.idf is not None and not self.normalize:  # else |value| ≤ 1
            entry = kernels.first_non_finite(result.data)
            if entry >= 0:
                row = begin + int(np.searchsorted(result.indptr, entry, side="right")) - 1
                raise DataError(f"row {row}: a value times its idf is too large for float32")
        return result

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold; ``tfidf`` says that there is an `idf`, to be stored as an array."""
        return {
            "n_features": int(self.n_features),
            "normalize": bool(self.normalize),
            "bias": float(self.bias),
            "tfidf": self.idf is not None,
        }

    @classmethod
    def from_dict(cls, d: Mapping[str, Any], idf: npt.ArrayLike | None = None) -> Transform:
        """The inverse of `to_dict`; `idf` must be there exactly when ``d["tfidf"]`` says so.

        Raises
        ------
        ModelError
            For a missing or an unknown key, or a value of the wrong kind.
        """
        kinds: dict[str, tuple[type, ...]] = {
            "n_features": (int,),
            "normalize": (bool,),
            "bias": (int, float),
            "tfidf": (bool,),
        }
        for key in d:
            if key not in kinds:
                raise ModelError(f"transform: unknown entry {key!r}")
        for key, kind in kinds.items():
            if key not in d:
                raise ModelError(f"transform: {key!r} is missing")
            if not isinstance(d[key], kind) or (bool not in kind and isinstance(d[key], bool)):
                raise ModelError(f"transform: {key!r} is {d[key]!r}; expected {kind[-1].__name__}")
        if d["tfidf"] != (idf is not None):
            raise ModelError(
                "transform: tf-idf factors are " + ("missing" if d["tfidf"] else "not expected")
            )
        factors = None if idf is None else np.asarray(idf, dtype=np.float32)
        try:
            return cls(d["n_features"], d["normalize"], float(d["bias"]), factors)
        except DataError as error:
            raise ModelError(f"transform: {error}") from None


def _csr(
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
