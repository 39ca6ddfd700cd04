"""Files ⇄ matrices: the only access to data files.

Ids within a row are sorted when they are read. A zero that is written explicitly in a file is an
entry of X and is preserved in every format.
"""

from __future__ import annotations

import gzip
import hashlib
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import scipy.sparse
from scipy.sparse import csr_array

from dismec.data.binary import read_xmc, write_xmc
from dismec.data.counts import counted
from dismec.data.files import StrPath, whole_file
from dismec.data.formats import detect
from dismec.data.matrices import (
    NPY_ERRORS,
    Rows,
    canonical,
    check_entries,
    checked_arrays,
    csr_on,
    indicator,
    sealed,
)
from dismec.data.mixed import MixedRows
from dismec.data.names import check_names
from dismec.data.row_weights import RowWeights
from dismec.data.xmc_text import read_xmc_text, write_xmc_text, xmc_text_batches
from dismec.errors import DataError

__all__ = [
    "Dataset",
    "feature_batches",
    "fingerprint",
    "load_data",
    "load_features",
    "read_npz",
    "save_data",
]

_BATCH_ROWS = 1 << 14
# Rows, and bytes of arrays, that any .npz file may declare, whatever its size.
_ALWAYS_ROWS, _ALWAYS_UNPACKED = 1 << 24, 1 << 26


class Dataset(NamedTuple):
    """Rows with their labels.

    A named tuple, so that ``X, Y, names = load_data(path)`` works. Column numbers within a row are
    sorted and unique in both matrices.

    Examples
    --------
    >>> from dismec import generate
    >>> train, test = generate(rows=10, features=20, labels=3)
    >>> train.X.shape, train.Y.shape, train.names
    ((10, 20), (10, 3), None)
    """

    X: csr_array[np.float32]
    """Features, n_rows × n_features, finite."""
    Y: csr_array[np.uint8]
    """Indicator matrix of the labels, n_rows × n_labels: every stored entry is 1."""
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
    """Read rows and labels from a file.

    The format is recognized by the content of the file.

    Parameters
    ----------
    path : str or path-like
        XMC text (with a header ``N D L``) or multi-label svmlight text (without), both also
        gzipped; a binary dataset (``.xmc``), which is mapped into memory; or X as a scipy ``.npz``
        file.
    labels : str or path-like, default=None
        Y as a scipy ``.npz`` file. Needed if `path` is a ``.npz`` file.
    n_features, n_labels : int, default=None
        The sizes that the file must have. svmlight text does not state its sizes: by default they
        are the largest numbers in the file plus one.
    threads : int, default=None
        Number of threads that parse text. By default all available CPUs.

    Returns
    -------
    Dataset
        The rows, their labels, and the names of the labels if the file has them.

    Raises
    ------
    DataError
        If there is no such file or it cannot be used: ``path:line: reason`` for text.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from dismec import load_data
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "train.svm"
    ...     _ = file.write_text("0,2 0:1.5 3:2")
    ...     data = load_data(file)
    >>> data.X.toarray().tolist()
    [[1.5, 0.0, 0.0, 2.0]]
    >>> data.Y.toarray().tolist()
    [[1, 0, 1]]
    """
    return _loaded(path, labels, (n_features, n_labels), threads)


def load_features(path: StrPath, *, threads: int | None = None) -> csr_array[np.float32]:
    """Return X of a data file, as `load_data` reads it; a ``.npz`` file needs no labels here."""
    return _loaded(path, None, (None, None), threads, needs_labels=False).X


def feature_batches(
    path: StrPath, *, threads: int | None = None
) -> Iterator[csr_array[np.float32]]:
    """Yield X of a data file in batches of rows, without holding all of the text in memory.

    A batch of text without a header has as many columns as its largest feature requires.
    """
    with detect(path) as data:
        if data.kind != "XMC text":
            X = load_features(data, threads=threads)
            for begin in range(0, X.shape[0], _BATCH_ROWS):
                yield X[begin : begin + _BATCH_ROWS]
            return
        with data.open() as file:
            for x, n_columns in xmc_text_batches(data.path, file, threads):
                yield csr_on(x.data, x.indices, x.indptr, (x.n_rows, n_columns), canonical=True)


def _loaded(
    path: StrPath,
    labels: StrPath | None,
    sizes: tuple[int | None, int | None],
    threads: int | None,
    needs_labels: bool = True,
) -> Dataset:
    with detect(path) as data, data.open() as file:
        path = data.path
        if labels is not None and data.kind != "npz":
            raise DataError(f"{path}: a separate file of labels is supported only with .npz files")
        if data.is_texts:
            raise DataError(
                f"{path}:1: texts, not features; dismec.train_text and the command "
                "line read such files"
            )
        if data.kind == "XMC text":
            return _dataset(*read_xmc_text(path, file, sizes, threads))
        dataset = _load_npz(path, file, labels, needs_labels) if data.kind == "npz" else _map(path)
    found_sizes = dataset.X.shape[1], dataset.Y.shape[1]
    for what, wanted, found in zip(("feature", "label"), sizes, found_sizes, strict=True):
        if wanted is not None and wanted != found:
            raise DataError(f"{path}: {counted(found, what)}; expected {wanted:,}")
    return dataset


def save_data(
    dataset: Dataset,
    path: StrPath,
    *,
    labels: StrPath | None = None,
) -> None:
    """Write rows and labels to a file.

    The file appears only when it is complete; if writing fails, a file that was there is unchanged.

    Parameters
    ----------
    dataset : Dataset
        The rows and labels to write.
    path : str or path-like
        The file. Its extension determines the format: ``.xmc`` for a binary dataset, ``.txt`` for
        XMC text, ``.svm`` or ``.svmlight`` for text without a header and so without the sizes, a
        further ``.gz`` for gzipped text, or ``.npz`` for X alone. Only ``.xmc`` keeps the names of
        labels.
    labels : str or path-like, default=None
        The ``.npz`` file for Y. Needed if `path` is a ``.npz`` file.

    Raises
    ------
    DataError
        If the extension is unknown or the dataset cannot be used.
    OSError
        If the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from dismec import generate, load_data, save_data
    >>> train, test = generate(rows=10, features=20, labels=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_data(train, folder + "/train.xmc")
    ...     load_data(folder + "/train.xmc").X.shape
    (10, 20)
    """
    path = Path(path)
    X, Y, names = _check_dataset(path, dataset)
    name = path.name.lower()
    kind = name.removesuffix(".gz")
    if labels is not None and not name.endswith(".npz"):
        raise DataError(f"{path}: a separate file of labels is supported only with .npz files")
    if name.endswith(".xmc"):
        x, y = (X.indptr, X.indices, X.data), (Y.indptr, Y.indices)
        write_xmc(path, x, y, (X.shape[1], Y.shape[1]), names)
    elif kind.endswith((".txt", ".svm", ".svmlight")):
        with whole_file(path) as file:
            packed = gzip.GzipFile("", "wb", 6, file, mtime=0) if kind != name else None
            with packed or nullcontext():
                write_xmc_text(X, Y, packed or file, header=kind.endswith(".txt"))
    elif name.endswith(".npz"):
        if labels is None:
            raise DataError(
                f"{path}: a .npz file holds one matrix; name another for the labels", "labels=…"
            )
        if Path(labels).resolve() == path.resolve():
            raise DataError(f"{path}: X and the labels cannot be in the same .npz file")
        for target, matrix in ((path, X), (Path(labels), Y)):
            with whole_file(target) as file:
                scipy.sparse.save_npz(cast(Any, file), matrix)
    else:
        raise DataError(
            f"{path}: unknown extension; use .xmc, .txt, .svm, .svmlight, .npz, or text with .gz"
        )


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


def _check_dataset(path: Path, dataset: Dataset) -> Dataset:
    """Check everything, and return the dataset with the types that ``Dataset`` promises."""
    x, y, columns = checked_arrays(path, dataset.X, dataset.Y)
    try:
        return _dataset(x, y, columns, check_names(dataset.names, columns[1]))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _map(path: Path) -> Dataset:
    """Map a binary dataset; its X is read-only once it has been checked."""
    x, y, columns, names = read_xmc(path)
    check_entries("X", path, x, columns[0])
    check_entries("Y", path, y, columns[1])
    dataset = _dataset(x, y, columns, names)
    return dataset._replace(X=sealed(dataset.X))


def _dataset(
    x: Rows, y: tuple[Any, Any], columns: tuple[int, int], names: list[str] | None = None
) -> Dataset:
    """Return a dataset on arrays that are known to be valid."""
    X = csr_on(x.data, x.indices, x.indptr, (x.n_rows, columns[0]), canonical=True)
    ones = np.ones(len(y[1]), np.uint8)
    Y = csr_on(ones, y[1], y[0], (x.n_rows, columns[1]), canonical=True)
    return Dataset(X, Y, names)


def _load_npz(path: Path, file: BinaryIO, labels: StrPath | None, needs_labels: bool) -> Dataset:
    if labels is None and needs_labels:
        raise DataError(
            f"{path}: a .npz file holds X alone; name the file of the labels", "labels=…"
        )
    X = read_npz(path, file)
    if labels is None:
        return _check_dataset(path, Dataset(X, csr_array((X.shape[0], 0), dtype=np.uint8)))
    with detect(labels) as data, data.open() as file:
        Y = read_npz(data.path, file)
    if np.any((Y.data != 0) & (Y.data != 1)):
        raise DataError(f"{labels}: holds values other than 0 and 1; expected an indicator matrix")
    return _check_dataset(path, Dataset(X, Y))


def read_npz(path: Path, file: BinaryIO) -> Any:
    """Read a scipy matrix and check its indices, which scipy itself does not."""
    try:
        _check_packed_size(path, file)
        matrix: Any = scipy.sparse.load_npz(cast(Any, file))
        if matrix.format not in ("csr", "csc", "coo"):
            raise DataError(f"{path}: a matrix in {matrix.format} format; save it as csr")
        if matrix.format != "csr" and matrix.shape[0] > max(_ALWAYS_ROWS, 100 * matrix.nnz):
            raise DataError(
                f"{path}: {counted(matrix.shape[0], 'row')} and {counted(matrix.nnz, 'entry')} in "
                f"{matrix.format} format; save it as csr"
            )
        if matrix.format != "coo":
            matrix.check_format(full_check=True)
        found: Any = canonical(matrix)
    except NPY_ERRORS as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: not a scipy sparse matrix: {_one_line(error)}") from error
    # zipfile raises RuntimeError, or its subclass NotImplementedError, for an encrypted file.
    except (zipfile.BadZipFile, zlib.error, RuntimeError, AttributeError) as error:
        raise DataError(f"{path}: not a scipy sparse matrix: {_one_line(error)}") from error
    if found.nnz < matrix.nnz:
        raise DataError(
            f"{path}: {counted(matrix.nnz - found.nnz, 'entry')} given twice in the same row"
        )
    if found.dtype.kind not in "biuf":
        raise DataError(f"{path}: the values are not real numbers")
    return found


def _check_packed_size(path: Path, file: BinaryIO) -> None:
    """Reject an archive that would unpack to much more than matrices do."""
    with zipfile.ZipFile(file) as packed:
        entries = packed.infolist()
    held = sum(entry.file_size for entry in entries)
    stored = sum(entry.compress_size for entry in entries)
    if held > max(_ALWAYS_UNPACKED, 100 * stored):
        raise DataError(f"{path}: {stored:,} bytes that unpack to {held:,}: not a matrix of data")
    file.seek(0)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
