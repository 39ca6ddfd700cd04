"""Raw rows → the rows that are trained on and scored; travels with the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import kernels
from dismec.data.matrices import Rows, check_rows, check_X, csr_on
from dismec.errors import DataError, ModelError

__all__ = ["Transform"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Transform:
    """What a row x goes through before training and before prediction.

    x∘idf (if there is an `idf`), divided by its Euclidean norm (if `normalize`), then `bias` as one
    more feature, the last. A row without features has norm 0 and stays zero but for the bias.
    """

    n_features: int  # without the bias
    normalize: bool = True
    bias: float = 1.0  # with 0, the last of the n_features + 1 columns is there and empty
    idf: Floats | None = None  # (n_features,), positive

    def __post_init__(self) -> None:
        if self.n_features < 0:
            raise DataError(f"n_features is {self.n_features}; expected at least 0")
        if not abs(self.bias) <= float(np.finfo(np.float32).max):
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

    @property
    def n_columns(self) -> int:
        """Features that a row is scored by, without the bias: its own."""
        return self.n_features

    def with_bias(self, bias: float) -> Transform:
        """The same with another bias."""
        return replace(self, bias=bias)

    def row_scale(self, X: Any) -> Floats:
        """1/‖x∘idf‖₂ per row, computed in float64; 1 for rows of zeros, and without `normalize`."""
        rows = check_rows(X, self.n_features)
        if not self.normalize:
            return np.ones(rows.n_rows, dtype=np.float32)
        return kernels.row_scale(*rows, self.idf, self.n_features)

    def apply(self, X: Any) -> sp.csr_array:
        """Transform rows that `check_X` would take, with up to n_features features.

        The result is float32 (n_rows, n_features + 1), canonical, in memory of its own. A value is
        x·scale, then ·idf, each product rounded to float32, with scale as in `row_scale`.
        """
        rows = check_rows(X, self.n_features)
        indptr, indices, data = self.apply_between(rows, 0, rows.n_rows)
        return csr_on(data, indices, indptr, (rows.n_rows, self.n_features + 1), canonical=True)

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
        """The inverse of `to_dict`; `idf` must be there exactly when ``d["tfidf"]`` says so."""
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
        except (DataError, OverflowError) as error:
            raise ModelError(f"transform: {error}") from None
