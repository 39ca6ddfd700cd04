"""Raw rows → the rows for training and scoring; stored with the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import kernels
from dismec.data.matrices import Rows, check_rows, csr_on
from dismec.data.mixed import MixedArrays, MixedRows, arrays_of, check_features
from dismec.errors import DataError, ModelError

Floats = npt.NDArray[np.float32]
_MOST_SCALE = 1e6
_CHUNK_ROWS = 4096  # rows whose norms are computed in float64 at a time


@dataclass(frozen=True, eq=False)
class Transform:
    """The transformation of a row x before training and before prediction.

    The square roots of its values (if `sqrt`; signs stay), times `idf` (if given), divided by their
    Euclidean norm (if `normalize`); the dense features of a row, if any, divided by their own norm
    and multiplied by `dense_scale`; then `bias` as the last feature. A row without features has
    norm 0 and stays zero except for the bias.

    `normalize_dense` says whether dense features are divided by their norm where that differs from
    `normalize`: sparse features of a second stage are not normalized again.
    """

    n_features: int  # sparse features, without the bias
    normalize: bool = True
    bias: float = 1.0  # if 0, the last of the n_features + 1 columns exists but is empty
    idf: Floats | None = None  # (n_features,), positive
    dense: int = 0  # dense features per row
    dense_scale: float = 1.0
    normalize_dense: bool | None = None  # None: as `normalize`
    sqrt: bool = False

    def __post_init__(self) -> None:
        if self.n_features < 0:
            raise DataError(f"n_features is {self.n_features}; expected at least 0")
        if not abs(self.bias) <= float(np.finfo(np.float32).max):
            raise DataError(f"bias is {self.bias}; expected a finite float32")
        if self.dense < 0:
            raise DataError(f"dense is {self.dense}; expected at least 0")
        if not 0 < self.dense_scale <= _MOST_SCALE:
            raise DataError(
                f"dense_scale is {self.dense_scale}; expected a number above 0 "
                f"and at most {_MOST_SCALE:g}"
            )
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
        cls,
        X: Any,
        *,
        tfidf: bool = False,
        normalize: bool = True,
        bias: float = 1.0,
        dense_scale: float = 1.0,
        sqrt: bool = False,
    ) -> Transform:
        """Create the transform for a model trained on `X` (as in `check_features`).

        With `tfidf` the factors are idf_f = ln((1 + N)/(1 + df_f)) + 1, where N is the number of
        rows and df_f the number of rows in which feature f is not 0. They are computed from the
        training data only and do not change when other rows are transformed.
        """
        found = check_features(X)
        width = found.width if isinstance(found, MixedRows) else 0
        X = found.sparse if isinstance(found, MixedRows) else found
        n_rows, n_features = X.shape
        idf = None
        if tfidf:
            df = np.bincount(X.indices[X.data != 0], minlength=n_features)
            idf = (np.log((1.0 + n_rows) / (1.0 + df)) + 1.0).astype(np.float32)
        scale = dense_scale if width else 1.0
        return cls(n_features, normalize, bias, idf, width, scale, sqrt=sqrt)

    @property
    def first_dense(self) -> int:
        """Number of the first dense feature, if there are any."""
        return self.n_features

    @property
    def n_columns(self) -> int:
        """Number of features of a row, sparse and dense, without the bias."""
        return self.n_features + self.dense

    def take(self, X: Any) -> sp.csr_array | MixedRows:
        """Check rows and return them; raise `DataError` if their kind or width is wrong."""
        return check_features(X, self.n_features, self.dense)

    def arrays(self, X: Any) -> Rows | MixedArrays:
        """Return the arrays of the rows that `take` returns."""
        return arrays_of(X, self.n_features, self.dense)

    def with_bias(self, bias: float) -> Transform:
        """Return the same transform with another bias."""
        return replace(self, bias=bias)

    def row_scale(self, X: Any) -> Floats:
        """Return 1/norm per row, computed in float64; 1 for zero rows or if not `normalize`."""
        rows = check_rows(X, self.n_features)
        if not self.normalize:
            return np.ones(rows.n_rows, dtype=np.float32)
        return kernels.row_scale(*rows, self.idf, self.sqrt, self.n_features)

    def values(self, X: sp.csr_array) -> Floats:
        """Return the values of rows, not copied unless square roots are taken."""
        return np.copysign(np.sqrt(np.abs(X.data)), X.data) if self.sqrt else X.data

    @property
    def _normalizes_dense(self) -> bool:
        return self.normalize if self.normalize_dense is None else self.normalize_dense

    def dense_scales(self, dense: Floats) -> Floats:
        """Return the factor for the dense features of each row, computed in float64."""
        scales = np.full(len(dense), self.dense_scale)
        if self._normalizes_dense:
            for begin in range(0, len(dense), _CHUNK_ROWS):
                part = dense[begin : begin + _CHUNK_ROWS].astype(np.float64)
                norms = np.sqrt(np.einsum("ij,ij->i", part, part))
                scales[begin : begin + _CHUNK_ROWS] /= np.where(norms > 0, norms, 1.0)
        most = float(np.finfo(np.float32).max)
        result: Floats = np.minimum(scales, most).astype(np.float32)
        return result

    def apply(self, X: Any) -> sp.csr_array:
        """Transform rows that `take` accepts.

        The result is a canonical float32 (n_rows, n_columns + 1) matrix that shares no memory with
        `X`. A value is x·scale, then ·idf, each product rounded to float32, with x as in `values`,
        scale as in `row_scale`, and as in `dense_scales` for dense features.
        """
        rows = self.arrays(X)
        indptr, indices, data = self.apply_between(rows, 0, rows.n_rows)
        return csr_on(data, indices, indptr, (rows.n_rows, self.n_columns + 1), canonical=True)

    def apply_between(self, rows: Rows | MixedArrays, begin: int, end: int) -> Rows:
        """Transform rows begin … end − 1 of the result of `arrays`."""
        if isinstance(rows, MixedArrays):
            sparse = self._apply_sparse(rows.rows, 0.0, begin, end)
            return self._beside(sparse, rows.dense[begin:end])
        return self._apply_sparse(rows, self.bias, begin, end)

    def _beside(self, sparse: Rows, dense: Floats) -> Rows:
        """Append the dense features and then the bias to transformed sparse rows."""
        columns = np.arange(self.n_features, self.n_columns + 1, dtype=np.int32)
        if not self.bias:
            columns = columns[:-1]
        n_rows, n_more = len(dense), len(columns)
        more = np.full((n_rows, n_more), np.float32(self.bias))
        np.multiply(dense, self.dense_scales(dense)[:, None], out=more[:, : self.dense])
        indptr = sparse.indptr + n_more * np.arange(n_rows + 1)
        if not len(sparse.data):
            return Rows(indptr, np.tile(columns, n_rows), more.reshape(-1))
        data, indices = np.empty(indptr[-1], np.float32), np.empty(indptr[-1], np.int32)
        lengths = np.diff(sparse.indptr)
        own = np.arange(len(sparse.data)) + n_more * np.repeat(np.arange(n_rows), lengths)
        data[own], indices[own] = sparse.data, sparse.indices
        later = (indptr[1:] - n_more)[:, None] + np.arange(n_more)
        data[later], indices[later] = more, columns
        return Rows(indptr, indices, data)

    def _apply_sparse(self, rows: Rows, bias: float, begin: int, end: int) -> Rows:
        values = self.idf, self.sqrt, self.normalize
        result = Rows(*kernels.apply(*rows, *values, bias, self.n_features, begin, end))
        if self.idf is not None and not self.normalize:  # otherwise |value| ≤ 1
            entry = kernels.first_non_finite(result.data)
            if entry >= 0:
                row = begin + int(np.searchsorted(result.indptr, entry, side="right")) - 1
                raise DataError(f"row index {row}: a value times its idf is too large for float32")
        return result

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON; ``tfidf`` says whether there is an `idf`, stored elsewhere."""
        facts: dict[str, Any] = {
            "n_features": int(self.n_features),
            "normalize": bool(self.normalize),
            "bias": float(self.bias),
            "tfidf": self.idf is not None,
        }
        if self.sqrt:
            facts["sqrt"] = True
        if self.dense:
            facts["dense"] = {"width": int(self.dense), "scale": float(self.dense_scale)}
            if self._normalizes_dense != self.normalize:
                facts["dense"]["normalize"] = self._normalizes_dense
        return facts

    @classmethod
    def from_dict(cls, d: Mapping[str, Any], idf: npt.ArrayLike | None = None) -> Transform:
        """Invert `to_dict`; `idf` must be given exactly if ``d["tfidf"]`` is true."""
        kinds: dict[str, tuple[type, ...]] = {
            "n_features": (int,),
            "normalize": (bool,),
            "bias": (int, float),
            "tfidf": (bool,),
            "sqrt": (bool,),
        }
        d = {"sqrt": False, **d}
        for key in d:
            if key not in (*kinds, "dense"):
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
            beside = _parse_dense(d["dense"]) if "dense" in d else (0, 1.0, None)
            scalars = d["n_features"], d["normalize"], float(d["bias"])
            return cls(*scalars, factors, *beside, sqrt=d["sqrt"])
        except (DataError, OverflowError) as error:
            raise ModelError(f"transform: {error}") from None


def _parse_dense(entry: Any) -> tuple[int, float, bool | None]:
    """Return the dense features' width, scale and normalization from a manifest entry."""
    if not isinstance(entry, Mapping) or entry.keys() - {"normalize"} != {"width", "scale"}:
        raise ModelError("transform: 'dense' does not have the entries 'width' and 'scale'")
    normalize = entry.get("normalize")
    if not isinstance(normalize, bool | None):
        raise ModelError(f"transform: 'normalize' of dense features is {normalize!r}")
    width, scale = entry["width"], entry["scale"]
    if type(width) is not int or width < 1 or type(scale) not in (int, float):
        raise ModelError(f"transform: {width!r} dense features of scale {scale!r}")
    return width, float(scale), normalize
