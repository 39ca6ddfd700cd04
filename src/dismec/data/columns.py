"""Columns from callers → lists: texts from lists, arrays, Series, frames, Arrow, generators.

No data frame library is imported: pandas, polars and pyarrow are recognized by their methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import scipy.sparse as sp

from dismec.data.matrices import refuse_mask
from dismec.errors import DataError

_SHOWN = 5  # columns of a frame named in an error


def frame_columns(data: Any) -> list[Any] | None:
    """Return the column names of a frame (pandas, polars, Arrow); None for anything else."""
    if sp.issparse(data) or isinstance(data, np.ndarray) or not hasattr(data, "shape"):
        return None
    names = getattr(data, "column_names", None)
    if names is None:
        names = getattr(data, "columns", None)
    return None if names is None else list(names)


def label_names_of(Y: Any) -> list[str] | None:
    """Return the label names given by the columns of a frame; None if they are just 0, 1, 2 …."""
    names = frame_columns(Y)
    if names is None or names == list(range(len(names))):
        return None
    return [str(name).strip() for name in names]


def column_values(data: Any, what: str, one: str) -> list[Any]:
    """Return the values of one column; `what` and `one` name it and a value in errors."""
    if isinstance(data, str | bytes | Mapping | AbstractSet):
        kind = "one text" if isinstance(data, str) else f"a {type(data).__name__}"
        raise DataError(f"expected a list of {what}, not {kind}")
    if sp.issparse(data):
        raise DataError(f"expected a list of {what}, not a sparse matrix")
    names = frame_columns(data)
    if names is not None:
        if len(names) != 1:
            shown = ", ".join(map(repr, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")
            example = f", such as frame[{names[0]!r}]" if names else ""
            raise DataError(f"{what} is a frame with columns {shown}: pass one column{example}")
        data = data[names[0]]
    refuse_mask(data, what)
    for listed in ("to_pylist", "to_list"):  # Arrow; pandas and polars
        if hasattr(data, listed):
            return list(getattr(data, listed)())
    if isinstance(data, np.ndarray):
        if data.ndim == 2 and data.shape[1] == 1:
            data = data[:, 0]
        if data.ndim != 1:
            raise DataError(f"{what} is {data.ndim}-d; expected one {one} per row")
        return list(data.tolist())
    if not isinstance(data, Iterable):
        raise DataError(f"expected a list of {what}, not {type(data).__name__}")
    return list(data)


def text_column(texts: Any) -> list[str]:
    """Return texts, one per row, from any container; raise `DataError` if one is not text."""
    values = column_values(texts, "texts", "text")
    for row, value in enumerate(values):
        if not isinstance(value, str):
            shown = "missing" if is_missing(value) else f"of type {type(value).__name__}"
            raise DataError(
                f"row index {row}: the text is {shown}; expected text, which may be empty"
            )
    return values


def is_missing(value: Any) -> bool:
    """Return whether a value is missing: None, NaN, or the pandas equivalent."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


def is_matrix(data: Any) -> bool:
    """Return whether data is rows of numbers rather than a column of texts."""
    if sp.issparse(data):
        return True
    if isinstance(data, np.ndarray):
        return data.ndim == 2 and data.dtype.kind in "buifc"
    return isinstance(data, list | tuple) and bool(data) and not isinstance(data[0], str | None)


def is_texts(data: Any) -> bool:
    """Return whether data is a text or starts with one."""
    if isinstance(data, list | tuple | str):
        return isinstance(data, str) or (bool(data) and isinstance(data[0], str))
    if sp.issparse(data) or getattr(data, "ndim", 1) != 1 or frame_columns(data) is not None:
        return False
    return hasattr(data, "__len__") and isinstance(next(iter(data), None), str)
