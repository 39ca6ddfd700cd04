"""Binary datasets ⇄ the arrays of CSR matrices; what is read is mapped into memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dismec.data.container import ContainerError, Spooled, open_arrays, write_arrays
from dismec.data.matrices import Rows
from dismec.data.names import pack_names, unpack_names
from dismec.data.xmc_text import MAX_COLUMNS
from dismec.errors import DataError

__all__ = ["read_xmc", "write_xmc"]

Ints: TypeAlias = NDArray[np.int64]
Ids: TypeAlias = NDArray[np.int32]

_FORMAT, _VERSION = "dismec-dataset", "1"
_XMC_ARRAYS = {
    "x.indptr": np.dtype("<i8"),
    "x.indices": np.dtype("<i4"),
    "x.data": np.dtype("<f4"),
    "y.indptr": np.dtype("<i8"),
    "y.indices": np.dtype("<i4"),
}
_NAME_ARRAYS = {"names.offsets": np.dtype("<i8"), "names.utf8": np.dtype("u1")}


def write_xmc(
    path: Path,
    x: tuple[NDArray[Any], NDArray[np.int32] | Spooled, NDArray[np.float32] | Spooled],
    y: tuple[NDArray[Any], NDArray[np.int32] | Spooled],
    columns: tuple[int, int],
    names: Sequence[str] | None,
) -> None:
    """Write arrays that are known to be sound as a binary dataset, atomically."""
    arrays: dict[str, NDArray[Any] | Spooled] = {
        "x.indptr": x[0].astype(np.int64, copy=False),
        "x.indices": x[1],
        "x.data": x[2],
        "y.indptr": y[0].astype(np.int64, copy=False),
        "y.indices": y[1],
    }
    if names is not None:
        arrays["names.utf8"], arrays["names.offsets"] = pack_names(names)
    sizes = {"n_rows": len(x[0]) - 1, "n_features": columns[0], "n_labels": columns[1]}
    metadata = {key: str(size) for key, size in sizes.items()}
    write_arrays(path, arrays, {"format": _FORMAT, "version": _VERSION} | metadata)


def read_xmc(path: Path) -> tuple[Rows, tuple[Ints, Ids], tuple[int, int], list[str] | None]:
    """X, (indptr, indices) of Y, how many columns they have, and the names of labels if any.

    Nobody has looked at the entries yet. The arrays are read-only.

    Raises
    ------
    DataError
        If the file is not a dataset, or its arrays have the wrong sizes or types.
    """
    try:
        arrays, metadata = open_arrays(path)
    except ContainerError as error:
        raise DataError(f"{path}: {error}") from error
    if metadata.get("format") != _FORMAT:
        raise DataError(f"{path}: a safetensors file, but not a dataset")
    if metadata.get("version") != _VERSION:
        raise DataError(f"{path}: a dataset of a version other than {_VERSION}; update dismec")
    expected = _XMC_ARRAYS | (_NAME_ARRAYS if "names.utf8" in arrays else {})
    found = {name: array.dtype for name, array in arrays.items()}
    if found != expected or any(array.ndim != 1 for array in arrays.values()):
        raise DataError(f"{path}: not the arrays of a dataset")
    sizes = [metadata.get(key, "") for key in ("n_rows", "n_features", "n_labels")]
    if not all(re.fullmatch("[0-9]{1,18}", size) for size in sizes):
        raise DataError(f"{path}: the sizes are not numbers")
    n_rows, n_features, n_labels = map(int, sizes)
    if max(n_features, n_labels) > MAX_COLUMNS:
        raise DataError(f"{path}: more than {MAX_COLUMNS} features or labels")
    if len(arrays["x.data"]) != len(arrays["x.indices"]) or any(
        len(arrays[name]) != n_rows + 1 for name in ("x.indptr", "y.indptr")
    ):
        raise DataError(f"{path}: the arrays disagree with the number of rows")
    names = None
    if "names.utf8" in arrays:
        try:
            names = list(unpack_names(arrays["names.utf8"], arrays["names.offsets"]))
        except ContainerError as error:
            raise DataError(f"{path}: {error}") from error
    if names is not None and len(names) != n_labels:
        raise DataError(f"{path}: {len(names)} names for {n_labels} labels")
    X = Rows(arrays["x.indptr"], arrays["x.indices"], arrays["x.data"])
    return X, (arrays["y.indptr"], arrays["y.indices"]), (n_features, n_labels), names
