"""Files ⇄ matrices: the only door to data files.

Ids within a row are sorted as they are read. A value of zero that is written in a file is an entry
of X and stays one through every format.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dismec.cpu import kernels
from dismec.data.container import ContainerError, Spooled, open_arrays, write_arrays
from dismec.data.corpus import is_text
from dismec.data.files import whole_file
from dismec.data.names import check_names, pack_names, unpack_names
from dismec.data.xmc_text import MAX_COLUMNS, read_text, write_text
from dismec.errors import DataError

__all__ = [
    "Dataset",
    "check_dataset",
    "fingerprint",
    "indicator",
    "is_binary",
    "load_data",
    "load_features",
    "save_data",
    "write_xmc",
]

StrPath: TypeAlias = str | os.PathLike[str]

_FORMAT, _VERSION = "dismec-dataset", "1"
_XMC_ARRAYS = {
    "x.indptr": np.dtype("<i8"),
    "x.indices": np.dtype("<i4"),
    "x.data": np.dtype("<f4"),
    "y.indptr": np.dtype("<i8"),
    "y.indices": np.dtype("<i4"),
}
_NAME_ARRAYS = {"names.offsets": np.dtype("<i8"), "names.utf8": np.dtype("u1")}


class Dataset(NamedTuple):
    """Rows with their labels. Ids within a row are sorted and unique in both matrices."""

    X: csr_array[np.float32]
    """Features, n_rows × n_features, finite."""
    Y: csr_array[np.uint8]
    """Indicator of the labels, n_rows × n_labels: every stored entry is 1."""
    names: list[str] | None = None
    """Names of the labels, if the file has them."""


def load_data(
    path: StrPath,
    *,
    labels: StrPath | None = None,
    n_features: int | None = None,
    n_labels: int | None = None,
    threads: int | None = None,
) -> Dataset:
    """Read a data file of any supported format, told by its content.

    Parameters
    ----------
    path
        XMC text (header ``N D L``) or multi-label svmlight text (no header), either of them
        gzipped; a binary dataset (``.xmc``), which is mapped into memory and not copied; or X as
        a scipy ``.npz`` file.
    labels
        Y as a scipy ``.npz`` file, where ``path`` is one.
    n_features, n_labels
        The sizes the file must have. svmlight text does not state its own; without these they are
        the largest ids plus one.
    threads
        How many threads parse text; all CPUs by default.

    Raises
    ------
    DataError
        If there is no such file or it is unsound: ``path:line: reason`` for text.
    """
    return _load(Path(path), labels, (n_features, n_labels), threads)


def is_binary(path: StrPath) -> bool:
    """Whether a data file is a binary dataset, which is mapped into memory."""
    with Path(path).open("rb") as file:
        return _is_container(file.read(9))


def _is_container(start: bytes) -> bool:
    return start[4:] == b"\0\0\0\0{"


def load_features(path: StrPath, *, threads: int | None = None) -> csr_array[np.float32]:
    """X of a data file, as `load_data` reads it; a ``.npz`` file needs no labels here."""
    return _load(Path(path), None, (None, None), threads, needs_labels=False).X


def _load(
    path: Path,
    labels: StrPath | None,
    sizes: tuple[int | None, int | None],
    threads: int | None,
    needs_labels: bool = True,
) -> Dataset:
    try:
        with path.open("rb") as file:
            start = file.peek(9)[:9]
            is_npz = start.startswith(b"PK\x03\x04")
            is_xmc = _is_container(start) or path.suffix == ".xmc"
            if labels is not None and not is_npz:
                raise DataError(f"{path}: labels apart from the data go only with .npz files")
            if not is_npz and not is_xmc:
                if is_text(path):
                    raise DataError(
                        f"{path}:1: texts, not features; dismec.train_text and the command "
                        "line read such files"
                    )
                x, y, columns = read_text(path, file, sizes, threads)
                return Dataset(_csr(*x, columns[0]), _csr(*y, _ones(y[1]), columns[1]))
        dataset = _load_npz(path, labels, needs_labels) if is_npz else _load_xmc(path)
    except OSError as error:
        raise DataError(f"{error.filename or path}: {error.strerror or error}") from error
    found_sizes = dataset.X.shape[1], dataset.Y.shape[1]
    for what, wanted, found in zip(("features", "labels"), sizes, found_sizes, strict=True):
        if wanted is not None and wanted != found:
            raise DataError(f"{path}: {found} {what}, but {wanted} are wanted")
    return dataset


def save_data(dataset: Dataset, path: StrPath, *, labels: StrPath | None = None) -> None:
    """Write a data file, its format told by its ending, atomically.

    ``.xmc`` keeps everything. ``.txt`` is XMC text and ``.svm`` or ``.svmlight`` the same without
    the header, so without the sizes; values read back to the same float32, and with a further
    ``.gz`` the text is gzipped. ``.npz`` holds X and needs ``labels=`` for Y. Only ``.xmc`` keeps
    label names.

    Raises
    ------
    DataError
        If the ending is unknown or the dataset is unsound.
    OSError
        If the file cannot be written; what was there before is left as it was.
    """
    path = Path(path)
    X, Y, names = check_dataset(path, dataset)
    name = path.name.lower()
    kind = name.removesuffix(".gz")
    if labels is not None and not name.endswith(".npz"):
        raise DataError(f"{path}: labels apart from the data go only with .npz files")
    if name.endswith(".xmc"):
        x, y = (X.indptr, X.indices, X.data), (Y.indptr, Y.indices)
        write_xmc(path, x, y, (X.shape[1], Y.shape[1]), names)
    elif kind.endswith((".txt", ".svm", ".svmlight")):
        with whole_file(path) as file:
            packed = gzip.GzipFile("", "wb", 6, file, mtime=0) if kind != name else None
            with packed or nullcontext():
                write_text(X, Y, packed or file, header=kind.endswith(".txt"))
    elif name.endswith(".npz"):
        if labels is None:
            raise DataError(
                f"{path}: a .npz file holds one matrix; name another for the labels "
                "(labels=, --labels-to)"
            )
        if Path(labels).resolve() == path.resolve():
            raise DataError(f"{path}: X and the labels cannot be in the same .npz file")
        for target, matrix in ((path, X), (Path(labels), Y)):
            with whole_file(target) as file:
                scipy.sparse.save_npz(cast(Any, file), matrix)
    else:
        raise DataError(
            f"{path}: unknown ending; use .xmc, .txt, .svm, .svmlight, .npz, or text with .gz"
        )


def fingerprint(X: Any, Y: Any) -> str:
    """SHA-256 of what the matrices hold, in hex: the same for any index type or storage order."""
    digest = hashlib.sha256()
    X, Y = _canonical(X), indicator(Y)
    arrays = ((X.indptr, "<i8"), (X.indices, "<i4"), (X.data, "<f4"))
    digest.update(repr((X.shape, Y.shape)).encode())
    for array, dtype in (*arrays, (Y.indptr, "<i8"), (Y.indices, "<i4")):
        digest.update(len(array).to_bytes(8, "little"))
        for begin in range(0, len(array), 1 << 20):
            part = np.ascontiguousarray(array[begin : begin + (1 << 20)], dtype=dtype)
            digest.update(part.data)
    return digest.hexdigest()


# Matrices


def _csr(indptr: NDArray[Any], indices: NDArray[Any], data: NDArray[Any], columns: int) -> Any:
    """A CSR matrix of arrays known to be sound, none of them copied but a short indptr.

    scipy's own constructor would widen the indices of more than 2^31 entries to int64. Below that
    scipy works best with one index type, so indptr is narrowed to int32.
    """
    matrix: Any = csr_array((len(indptr) - 1, columns), dtype=data.dtype)
    matrix.indptr = indptr.astype(np.int32) if len(indices) <= MAX_COLUMNS else indptr
    matrix.indices, matrix.data = indices, data
    matrix.has_sorted_indices = matrix.has_canonical_format = True
    return matrix


def _canonical(matrix: Any) -> Any:
    """The matrix as CSR with sorted, unique ids; itself if it is so already."""
    if not isinstance(matrix, csr_array):
        matrix = csr_array(matrix)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


def indicator(Y: Any) -> Any:
    """A canonical matrix with an entry wherever Y is not zero; Y itself if it is so already."""
    if not isinstance(Y, csr_array):
        Y = csr_array(Y)
    if not (Y.has_canonical_format and np.all(Y.data)):
        Y = Y.astype(np.bool_)  # 256 ones of a uint8 would add up to 0
        Y.sum_duplicates()
        Y.eliminate_zeros()
    return Y


def check_dataset(path: Path, dataset: Dataset, first_row: int = 0) -> Dataset:
    """The dataset in the types that ``Dataset`` promises, with everything checked.

    In errors the file is called ``path`` and its rows are counted from ``first_row``.
    """
    X, Y = _canonical(dataset.X), indicator(dataset.Y)
    if X.shape[0] != Y.shape[0]:
        raise DataError(f"{path}: X has {X.shape[0]} rows and Y has {Y.shape[0]}")
    if max(X.shape[1], Y.shape[1]) > MAX_COLUMNS:
        raise DataError(f"{path}: more than {MAX_COLUMNS} features or labels")
    with np.errstate(over="ignore"):  # an overflow is found as an infinity
        values = X.data.astype(np.float32, copy=False)
    rows = [
        (matrix.indptr.astype(np.int64, copy=False), matrix.indices.astype(np.int32, copy=False))
        for matrix in (X, Y)
    ]
    try:
        names = check_names(dataset.names, Y.shape[1])
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    columns = (X.shape[1], Y.shape[1])
    return _checked(path, (*rows[0], values), rows[1], columns, names, first_row)


def _checked(
    path: Path,
    x: tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]],
    y: tuple[NDArray[np.int64], NDArray[np.int32]],
    columns: tuple[int, int],
    names: list[str] | None,
    first_row: int = 0,
) -> Dataset:
    """A dataset of arrays that nobody has vouched for: checked in full, before scipy sees them."""
    for what, (indptr, indices), width in zip("XY", (x[:2], y), columns, strict=True):
        problem = kernels.check_rows(indptr, indices, width)
        if problem:
            raise DataError(f"{path}: {what}, row {first_row + problem[0]}: {problem[1]}")
    place = kernels.first_non_finite(x[2])
    if place >= 0:
        row = first_row + int(np.searchsorted(x[0], place, side="right")) - 1
        raise DataError(f"{path}: X, row {row}: the value {x[2][place]} is not finite")
    if names is not None and len(names) != columns[1]:
        raise DataError(f"{path}: {len(names)} names for {columns[1]} labels")
    return Dataset(_csr(*x, columns[0]), _csr(*y, _ones(y[1]), columns[1]), names)


def _ones(indices: NDArray[np.int32]) -> NDArray[np.uint8]:
    return np.ones(len(indices), np.uint8)


# Binary datasets


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


def _load_xmc(path: Path) -> Dataset:
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
    x = (arrays["x.indptr"], arrays["x.indices"], arrays["x.data"])
    y = (arrays["y.indptr"], arrays["y.indices"])
    return _checked(path, x, y, (n_features, n_labels), names)


def _load_npz(path: Path, labels: StrPath | None, needs_labels: bool) -> Dataset:
    if labels is None and needs_labels:
        raise DataError(
            f"{path}: a .npz file holds X alone; name the file of the labels (labels=, --labels)"
        )
    X = _read_npz(path)
    Y: Any = csr_array((X.shape[0], 0)) if labels is None else _read_npz(Path(labels))
    if np.any((Y.data != 0) & (Y.data != 1)):
        raise DataError(f"{labels}: labels are given by 0 and 1, and there is another value")
    return check_dataset(path, Dataset(X, Y))


def _read_npz(path: Path) -> Any:
    """A scipy matrix whose indices may be trusted: scipy does not check them by itself."""
    try:
        with path.open("rb") as file:  # numpy leaves a damaged file open
            matrix: Any = scipy.sparse.load_npz(cast(Any, file))
        if matrix.format not in ("csr", "csc", "coo"):
            raise DataError(f"{path}: a matrix in {matrix.format} format; save it as csr")
        if matrix.format != "coo":
            matrix.check_format(full_check=True)
        found = _canonical(matrix)
    except (ValueError, TypeError, KeyError, IndexError, EOFError, MemoryError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: not a scipy sparse matrix: {_one_line(error)}") from error
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, AttributeError) as error:
        raise DataError(f"{path}: not a scipy sparse matrix: {_one_line(error)}") from error
    if found.nnz < matrix.nnz:
        raise DataError(f"{path}: {matrix.nnz - found.nnz} entries occur twice in their row")
    if found.dtype.kind not in "biuf":
        raise DataError(f"{path}: the values are not real numbers")
    return found


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
