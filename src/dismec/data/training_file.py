"""Rows with everything that is known about them for training ⇄ binary datasets (``.xmc``).

Files are mapped, so that processes share their memory, and written whole or in pieces of rows.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dismec.data.container import ContainerError, Spooled, open_arrays, write_arrays
from dismec.data.counts import counted
from dismec.data.files import StrPath, naming
from dismec.data.matrices import (
    MAX_COLUMNS,
    canonical,
    check_entries,
    check_Y,
    checked_arrays,
    csr_on,
    indicator,
    indicator_of,
    row_pointers,
    sealed,
)
from dismec.data.mixed import MixedRows, mixed_rows
from dismec.data.names import check_names, pack_names, unpack_names
from dismec.data.targets import is_label_lists, named_matrix
from dismec.data.weights import (
    RowWeights,
    check_pair_weights,
    check_row_weights,
    find_pairs,
    kept_rows,
    known_labels,
    pairs_at,
)
from dismec.errors import DataError, located

_FORMAT, _VERSION = "dismec-dataset", "1"
_ARRAYS = {
    "x.indptr": "<i8",
    "x.indices": "<i4",
    "x.data": "<f4",
    "y.indptr": "<i8",
    "y.indices": "<i4",
}
_OPTIONAL = (
    {"names.offsets": "<i8", "names.utf8": "u1"},
    # For training on a cluster.
    {"weights": "<f8"},
    {"dense": "<f4"},
    {"pairs.indptr": "<i8", "pairs.indices": "<i4", "pairs.data": "<f4"},
)


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Rows, labels and weights: as a caller passes them, or checked (`checked`).

    Checked, X is CSR or `MixedRows` (with dense features), Y an indicator matrix, `weights` are all
    above 0, `pairs` are other than 1, no positive has a pair of weight 0, and weights that would
    all be 1 are None. On a cluster, X and Y may be data that only workers have.
    """

    X: Any
    Y: Any
    weights: Any = None  # one per row, at least 0
    pairs: Any = None  # weights of (row, label) pairs: a sparse matrix, or a file
    names: Sequence[str] | None = None  # of labels
    source: StrPath | None = None  # the ``.xmc`` file that holds exactly these X and Y
    hashed: str | None = None  # the fingerprint, or what stands for it, if it is known
    n_described: int = 0  # so many rows, the last ones, are texts that describe a label

    def checked(self, X: Any) -> TrainingData:
        """Check everything but X, which has been, and leave out what has weight 0.

        Raises `DataError` if Y, the names or the weights are invalid.
        """
        keep = weights = None
        labels, n_rows = self.Y, X.shape[0]
        if self.weights is not None:
            keep, weights = kept_rows(check_row_weights(self.weights, n_rows))
        left = keep
        if keep is not None and is_label_lists(labels) and len(labels) == n_rows:
            # Rows of weight 0 are ignored, so labels that only they have do not exist.
            listed = list(labels)
            labels = [listed[row] for row in keep.tolist()]
            X, left = X[keep], None
        matrix, names = named_matrix(labels, self.names)
        Y: Any = check_Y(matrix, X.shape[0])
        if left is not None:
            X, Y = X[left], Y[left]
        pairs = pairs_at(find_pairs(self.pairs, (n_rows, Y.shape[1]), names), keep)
        # A file of X and Y holds neither weights nor dense features.
        plain = self.weights is None and self.pairs is None and not isinstance(X, MixedRows)
        return TrainingData(
            X,
            known_labels(Y, pairs),
            weights,
            pairs,
            check_names(names, Y.shape[1]),
            self.source if plain else None,
            self.hashed,
            self.n_described,
        )

    def at(self, rows: NDArray[np.int64]) -> TrainingData:
        """Return some rows of checked data, without the names."""
        weights = None if self.weights is None else self.weights[rows]
        return TrainingData(self.X[rows], self.Y[rows], weights, pairs_at(self.pairs, rows))

    @property
    def undescribed(self) -> TrainingData:
        """Checked data without the rows that describe labels, sharing memory with these."""
        if not self.n_described:
            return self
        n_rows = self.Y.shape[0] - self.n_described
        X, Y = self.X, self.Y
        if isinstance(X, MixedRows):
            X = MixedRows(_first_rows(X.sparse, n_rows), X.dense[:n_rows])
        else:
            X = _first_rows(X, n_rows)
        weights = None if self.weights is None else self.weights[:n_rows]
        pairs = None if self.pairs is None else _first_rows(self.pairs, n_rows)
        hashed = hashlib.sha256(f"{self.fingerprint} undescribed".encode()).hexdigest()
        return TrainingData(X, _first_rows(Y, n_rows), weights, pairs, self.names, hashed=hashed)

    @classmethod
    def map(cls, path: Path) -> TrainingData:
        """Map a file; nothing is copied, and processes that map it share its memory.

        Raises `DataError` if the file is not a binary dataset or is damaged.
        """
        arrays, n_rows, n_features, n_labels, identity = _open_xmc(path)
        x, y = ("x.indptr", "x.indices", "x.data"), ("y.indptr", "y.indices")
        check_entries("X", path, [arrays[name] for name in x], n_features)
        check_entries("Y", path, [arrays[name] for name in y], n_labels)
        X: Any = sealed(_matrix(arrays, "x", (n_rows, n_features)))
        ones = np.ones(len(arrays["y.indices"]), np.uint8)
        Y = _matrix(arrays | {"y.data": ones}, "y", (n_rows, n_labels))
        weights, pairs, names = arrays.get("weights"), None, None
        if weights is not None:
            weights = check_row_weights(weights, n_rows, f"{path}: weights", of_file=True)
        if "pairs.data" in arrays:
            if not len(arrays["pairs.indptr"]):
                raise DataError(f"{path}: the arrays disagree with the number of rows")
            pairs = _matrix(arrays, "pairs", Y.shape, canonical=False)
            pairs = check_pair_weights(pairs, Y.shape, f"{path}: pairs", of_file=True)
        try:
            if "dense" in arrays:
                X = mixed_rows(X, arrays["dense"])
            if "names.utf8" in arrays:
                stored = unpack_names(arrays["names.utf8"], arrays["names.offsets"])
                names = check_names(stored, n_labels)
        except (ContainerError, DataError) as error:
            raise DataError(f"{path}: {error}") from error
        return cls(X, Y, weights, pairs, names, hashed=identity)

    def save(self, path: Path) -> None:
        """Write checked data to a file that states the fingerprint if `hashed`, atomically."""
        X: Any = self.X
        sparse, dense = (X.sparse, X.dense) if isinstance(X, MixedRows) else (X, None)
        arrays = checked_arrays(path, sparse, self.Y)
        write_xmc(path, *arrays, None, self.weights, dense, self.pairs, self.hashed)

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of checked data (`fingerprint`)."""
        return self.hashed or fingerprint(self.X, self.Y, self.weights, self.pairs)


def fingerprint(
    X: Any, Y: Any, weights: RowWeights | None = None, pairs: csr_array[Any] | None = None
) -> str:
    """Return the SHA-256 of the matrices' contents in hex, for any index type or storage order.

    Weights of rows and of pairs are included, if given.
    """
    digest = hashlib.sha256()
    if isinstance(X, MixedRows):
        digest.update(repr(X.dense.shape).encode())
        for begin in range(0, len(X.dense), 1 << 10):
            digest.update(np.ascontiguousarray(X.dense[begin : begin + (1 << 10)], "<f4").data)
        X = X.sparse
    X, Y = canonical(X), indicator(Y)
    arrays = ((X.indptr, "<i8"), (X.indices, "<i4"), (X.data, "<f4"))
    digest.update(repr((X.shape, Y.shape)).encode())
    of_rows = () if weights is None else ((weights, "<f8"),)
    of_pairs: tuple[Any, ...] = ()
    if pairs is not None:
        of_pairs = (pairs.indptr, "<i8"), (pairs.indices, "<i4"), (pairs.data, "<f4")
    for array, dtype in (*arrays, (Y.indptr, "<i8"), (Y.indices, "<i4"), *of_rows, *of_pairs):
        digest.update(len(array).to_bytes(8, "little"))
        for begin in range(0, len(array), 1 << 20):
            part = np.ascontiguousarray(array[begin : begin + (1 << 20)], dtype=dtype)
            digest.update(part.data)
    return digest.hexdigest()


def write_xmc(
    path: Path,
    x: tuple[NDArray[Any], NDArray[np.int32] | Spooled, NDArray[np.float32] | Spooled],
    y: tuple[NDArray[Any], NDArray[np.int32] | Spooled],
    columns: tuple[int, int],
    names: Sequence[str] | None,
    weights: RowWeights | None = None,
    dense: NDArray[np.float32] | Spooled | None = None,
    pairs: csr_array[Any] | None = None,
    identity: str | None = None,
) -> None:
    """Write arrays that are known to be valid as a binary dataset, atomically.

    Row `weights`, `dense` features, `pairs` and `identity` are for training on a cluster.
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
    metadata |= {"identity": identity} if identity else {}
    write_arrays(path, arrays, {"format": _FORMAT, "version": _VERSION} | metadata)


def _first_rows(matrix: Any, n_rows: int) -> csr_array[Any]:
    """Return the first rows of a CSR matrix, on the same arrays."""
    end = int(matrix.indptr[n_rows])
    parts = matrix.data[:end], matrix.indices[:end], matrix.indptr[: n_rows + 1]
    return csr_on(*parts, (n_rows, matrix.shape[1]), canonical=True)


def _open_xmc(path: Path) -> tuple[dict[str, NDArray[Any]], int, int, int, str | None]:
    """Return arrays of a binary dataset, numbers of rows, features and labels, and its identity.

    The entries of the arrays are not checked yet. They are read-only.
    """
    try:
        arrays, metadata = open_arrays(path)
    except ContainerError as error:
        raise DataError(f"{path}: {error}") from error
    if metadata.get("format") != _FORMAT:
        raise DataError(f"{path}: a safetensors file, but not a dataset")
    if metadata.get("version") != _VERSION:
        raise DataError(f"{path}: not version {_VERSION} of the dataset format; update dismec")
    kinds = dict(_ARRAYS)
    for some in _OPTIONAL:
        kinds |= some if some.keys() & arrays.keys() else {}
    expected = {name: (np.dtype(kind), 1 + (name == "dense")) for name, kind in kinds.items()}
    if {name: (array.dtype, array.ndim) for name, array in arrays.items()} != expected:
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
    return arrays, n_rows, n_features, n_labels, metadata.get("identity")


def _matrix(
    arrays: Mapping[str, NDArray[Any]], name: str, shape: tuple[int, int], canonical: bool = True
) -> csr_array[Any]:
    data, indices, indptr = (arrays[f"{name}.{part}"] for part in ("data", "indices", "indptr"))
    return csr_on(data, indices, indptr, shape, canonical=canonical)


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
        with ExitStack() as stack, naming(self._path):
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
        with naming(self._path):
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
        with naming(self._path):
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
        with located(self._path, DataError):
            names = check_names(names, n_labels)
        x_indices, x_data, y_indices, *others = self._spooled
        dense = others[0] if others else None
        x = (row_pointers(self._x_lengths), x_indices, x_data)
        y = (row_pointers(self._y_lengths), y_indices)
        with naming(self._path):
            write_xmc(self._path, x, y, (n_features, n_labels), names, weights, dense)

    def _indicator(self, labels: Sequence[Sequence[int]]) -> csr_array[Any]:
        for row, ids in enumerate(labels, self._n_rows + 1):
            if ids and not 0 <= min(ids) <= max(ids) < MAX_COLUMNS:
                wrong = next(label for label in ids if not 0 <= label < MAX_COLUMNS)
                raise DataError(f"{self._path}: row {row}: {wrong} is not a label id")
        return indicator_of(labels, MAX_COLUMNS)
