"""Binary datasets ⇄ the arrays of CSR matrices, whole or in pieces of rows; files are mapped."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dismec.data.container import ContainerError, Spooled, open_arrays, write_arrays
from dismec.data.counts import counted
from dismec.data.matrices import MAX_COLUMNS, Rows, checked_arrays, csr_on, row_pointers
from dismec.data.names import check_names, pack_names, unpack_names
from dismec.data.row_weights import RowWeights, check_row_weights
from dismec.errors import DataError

__all__ = ["XmcWriter", "read_xmc", "read_xmc_extras", "write_xmc"]

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
# Optional arrays for training on a cluster.
_EXTRAS = {  # type, dimensions
    "weights": (np.dtype("<f8"), 1),
    "dense": (np.dtype("<f4"), 2),
    "pairs.indptr": (np.dtype("<i8"), 1),
    "pairs.indices": (np.dtype("<i4"), 1),
    "pairs.data": (np.dtype("<f4"), 1),
}


def write_xmc(
    path: Path,
    x: tuple[NDArray[Any], NDArray[np.int32] | Spooled, NDArray[np.float32] | Spooled],
    y: tuple[NDArray[Any], NDArray[np.int32] | Spooled],
    columns: tuple[int, int],
    names: Sequence[str] | None,
    weights: RowWeights | None = None,
    dense: NDArray[np.float32] | Spooled | None = None,
    pairs: csr_array[Any] | None = None,
) -> None:
    """Write arrays that are known to be valid as a binary dataset, atomically.

    Row `weights`, `dense` features and the weights of `pairs` can be read with `read_xmc_extras`.
    """
    arrays: dict[str, NDArray[Any] | Spooled] = {
        "x.indptr": x[0].astype(np.int64, copy=False),
        "x.indices": x[1],
        "x.data": x[2],
        "y.indptr": y[0].astype(np.int64, copy=False),
        "y.indices": y[1],
    }
    if names is not None:
        arrays["names.utf8"], arrays["names.offsets"] = pack_names(names)
    extras: dict[str, NDArray[Any] | Spooled | None] = {"weights": weights, "dense": dense}
    if pairs is not None:
        extras["pairs.indptr"] = pairs.indptr.astype(np.int64, copy=False)
        extras["pairs.indices"] = pairs.indices.astype(np.int32, copy=False)
        extras["pairs.data"] = pairs.data
    arrays |= {name: extra for name, extra in extras.items() if extra is not None}
    sizes = {"n_rows": len(x[0]) - 1, "n_features": columns[0], "n_labels": columns[1]}
    metadata = {key: str(size) for key, size in sizes.items()}
    write_arrays(path, arrays, {"format": _FORMAT, "version": _VERSION} | metadata)


def read_xmc(path: Path) -> tuple[Rows, tuple[Ints, Ids], tuple[int, int], list[str] | None]:
    """Return X, (indptr, indices) of Y, their numbers of columns, and the label names, if any.

    The entries are not checked yet. The arrays are read-only.
    """
    try:
        arrays, metadata = open_arrays(path)
    except ContainerError as error:
        raise DataError(f"{path}: {error}") from error
    if metadata.get("format") != _FORMAT:
        raise DataError(f"{path}: a safetensors file, but not a dataset")
    if metadata.get("version") != _VERSION:
        raise DataError(f"{path}: not version {_VERSION} of the dataset format; update dismec")
    expected = _XMC_ARRAYS | (_NAME_ARRAYS if "names.utf8" in arrays else {})
    kinds = {name: (dtype, 1) for name, dtype in expected.items()}
    kinds |= {name: kind for name, kind in _EXTRAS.items() if name in arrays}
    if {name: (array.dtype, array.ndim) for name, array in arrays.items()} != kinds:
        raise DataError(f"{path}: does not contain the arrays of a dataset")
    sizes = [metadata.get(key, "") for key in ("n_rows", "n_features", "n_labels")]
    if not all(re.fullmatch("[0-9]{1,18}", size) for size in sizes):
        raise DataError(f"{path}: the numbers of rows, features and labels are not numbers")
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
        if len(names) != n_labels:
            raise DataError(
                f"{path}: {counted(len(names), 'name')} for {counted(n_labels, 'label')}"
            )
    X = Rows(arrays["x.indptr"], arrays["x.indices"], arrays["x.data"])
    return X, (arrays["y.indptr"], arrays["y.indices"]), (n_features, n_labels), names


def read_xmc_extras(
    path: Path,
) -> tuple[RowWeights | None, NDArray[np.float32] | None, csr_array[Any] | None]:
    """Return row weights, dense features and pair weights of a file that `read_xmc` accepts.

    Each may be None. The dense features and the weights of pairs are not checked yet.
    """
    arrays, metadata = open_arrays(path)
    weights, n_rows = arrays.get("weights"), len(arrays["x.indptr"]) - 1
    if weights is not None:
        weights = check_row_weights(weights, n_rows, f"{path}: weights", of_file=True)
    of_pairs = [name for name in _EXTRAS if name.startswith("pairs.") and name in arrays]
    if not of_pairs:
        return weights, arrays.get("dense"), None
    if len(of_pairs) < 3:
        raise DataError(f"{path}: not the arrays of a dataset")
    data, indices, indptr = (arrays[f"pairs.{part}"] for part in ("data", "indices", "indptr"))
    if not len(indptr):
        raise DataError(f"{path}: the arrays disagree with the number of rows")
    pairs = csr_on(data, indices, indptr, (n_rows, int(metadata["n_labels"])))
    return weights, arrays.get("dense"), pairs


class XmcWriter:
    """Writes a ``.xmc`` file whose rows arrive in pieces; use it in a ``with`` statement.

    `append` pieces, then `finish`. The file at ``path`` appears only then, complete and with the
    same bytes that `save_data` would have written; without `finish`, an existing file stays as it
    is.

    The file starts with the row pointers of all rows, which are known last, so ids and values are
    kept in temporary files. Memory holds one piece, plus 16 bytes per row. The unlinked temporary
    files next to ``path`` take the same disk space again until the end and vanish with the process.
    An ``OSError`` from any of them has ``path`` as its ``filename``.

    If `n_features` is not given, the largest feature of all rows determines it. With a `width`,
    every row also has that many dense features.
    """

    def __init__(
        self, path: str | os.PathLike[str], n_features: int | None, width: int | None = None
    ) -> None:
        self._path = Path(path)
        self._n_features = n_features
        self._n_rows = 0
        self._largest_feature = self._largest_label = -1
        self._x_lengths: list[NDArray[np.int64]] = []
        self._y_lengths: list[NDArray[np.int64]] = []
        with ExitStack() as stack, _naming(self._path):
            if self._path.is_dir():
                raise IsADirectoryError(errno.EISDIR, "is a directory")
            kinds = [("<i4", None), ("<f4", None), ("<i4", None)]
            self._spooled = [
                Spooled(
                    stack.enter_context(tempfile.TemporaryFile(dir=self._path.parent)),
                    np.dtype(dtype),
                    columns,
                )
                for dtype, columns in (kinds if width is None else [*kinds, ("<f4", width)])
            ]
            self._files = stack.pop_all()

    def __enter__(self) -> XmcWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        with _naming(self._path):
            self._files.close()

    def append(
        self,
        X: csr_array[Any],
        labels: Sequence[Sequence[int]] | csr_array[Any],
        dense: NDArray[np.float32] | None = None,
    ) -> None:
        """Add rows, with the label ids of each in any order, or with their indicator matrix.

        `dense` features must be valid, and are required if the writer has a width.

        If the piece is invalid, the `DataError` gives the number of the row in the whole file, and
        no row of the piece is added.
        """
        if self._n_features not in (None, X.shape[1]):
            raise DataError(
                f"{self._path}: rows with {counted(X.shape[1], 'feature')}, not {self._n_features}"
            )
        Y: Any = self._indicator(labels) if isinstance(labels, Sequence) else labels
        x, (y_indptr, y_indices), _ = checked_arrays(self._path, X, Y, self._n_rows)
        pieces = (x.indices, x.data, y_indices, *(() if dense is None else (dense,)))
        with _naming(self._path):
            for spooled, piece in zip(self._spooled, pieces, strict=True):
                spooled.file.write(np.ascontiguousarray(piece, spooled.dtype).data)
        self._x_lengths.append(np.diff(x.indptr))
        self._y_lengths.append(np.diff(y_indptr))
        self._largest_feature = max(self._largest_feature, int(x.indices.max(initial=-1)))
        self._largest_label = max(self._largest_label, int(y_indices.max(initial=-1)))
        self._n_rows += x.n_rows

    def finish(
        self,
        n_labels: int | None,
        names: Sequence[str] | None = None,
        weights: RowWeights | None = None,
    ) -> None:
        """Write the file; by default the largest label determines the number of labels."""
        n_labels = 1 + self._largest_label if n_labels is None else n_labels
        n_features = self._n_features
        n_features = 1 + self._largest_feature if n_features is None else n_features
        if n_labels > MAX_COLUMNS:
            raise DataError(f"{self._path}: more than {MAX_COLUMNS} labels")
        if n_labels <= self._largest_label:
            raise DataError(
                f"{self._path}: {counted(n_labels, 'label')}, but a row has label "
                f"{self._largest_label}"
            )
        try:
            names = check_names(names, n_labels)
        except DataError as error:
            raise DataError(f"{self._path}: {error}") from None
        x_indices, x_data, y_indices, *others = self._spooled
        dense = others[0] if others else None
        x = (row_pointers(self._x_lengths), x_indices, x_data)
        y = (row_pointers(self._y_lengths), y_indices)
        with _naming(self._path):
            write_xmc(self._path, x, y, (n_features, n_labels), names, weights, dense)

    def _indicator(self, labels: Sequence[Sequence[int]]) -> csr_array[Any]:
        indptr = np.cumsum([0, *map(len, labels)])
        ids = np.fromiter(chain.from_iterable(labels), np.int64, indptr[-1])
        wrong = np.flatnonzero((ids < 0) | (ids >= MAX_COLUMNS))
        if len(wrong):
            row = self._n_rows + int(np.searchsorted(indptr, wrong[0], side="right"))  # from 1
            raise DataError(f"{self._path}: row {row}: {ids[wrong[0]]} is not a label id")
        ones = np.ones(len(ids), np.uint8)
        return csr_array((ones, ids, indptr), shape=(len(labels), MAX_COLUMNS))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Give errors of temporary files the name of the file they are for."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
