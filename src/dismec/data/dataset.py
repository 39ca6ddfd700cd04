"""Files ⇄ matrices: the only access to data files.

Ids within a row are sorted when they are read. A zero that is written explicitly in a file is an
entry of X and is preserved in every format.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from dismec.data.counts import counted
from dismec.data.files import StrPath, whole_file
from dismec.data.formats import detect
from dismec.data.matrices import (
    Rows,
    checked_arrays,
    csr_on,
    read_npz,
)
from dismec.data.mixed import MixedRows
from dismec.data.names import check_names
from dismec.data.training_file import TrainingData, write_xmc
from dismec.data.xmc_text import read_xmc_text, write_xmc_text, xmc_text_batches
from dismec.errors import DataError, located

_BATCH_ROWS = 1 << 14


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


def feature_batches(
    path: StrPath, *, threads: int | None = None
) -> Iterator[csr_array[np.float32]]:
    """Yield X of a data file in batches of rows, without holding all of the text in memory.

    A batch of text without a header has as many columns as its largest feature requires.
    """
    with detect(path) as data:
        if data.kind != "XMC text":
            X = _loaded(data, None, (None, None), threads, needs_labels=False).X
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
        if data.kind == "npz":
            dataset = _load_npz(path, file, labels, needs_labels)
        else:
            mapped: Any = TrainingData.map(path)
            X = mapped.X.sparse if isinstance(mapped.X, MixedRows) else mapped.X
            dataset = Dataset(X, mapped.Y, mapped.names)
    found_sizes = dataset.X.shape[1], dataset.Y.shape[1]
    for what, wanted, found in zip(("feature", "label"), sizes, found_sizes, strict=True):
        if wanted is not None and wanted != found:
            raise DataError(f"{path}: {counted(found, what)}; expected {wanted:,}")
    return dataset


def save_data(dataset: Dataset, path: StrPath) -> None:
    """Write rows and labels to a file.

    The file appears only when it is complete; if writing fails, a file that was there is unchanged.

    Parameters
    ----------
    dataset : Dataset
        The rows and labels to write.
    path : str or path-like
        The file. Its extension determines the format: ``.xmc`` for a binary dataset, ``.txt`` for
        XMC text, ``.svm`` or ``.svmlight`` for text without a header and so without the sizes, a
        further ``.gz`` for gzipped text. Only ``.xmc`` keeps the names of labels.

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
    if name.endswith(".xmc"):
        x, y = (X.indptr, X.indices, X.data), (Y.indptr, Y.indices)
        write_xmc(path, x, y, (X.shape[1], Y.shape[1]), names)
    elif kind.endswith((".txt", ".svm", ".svmlight")):
        with whole_file(path) as file:
            packed = gzip.GzipFile("", "wb", 6, file, mtime=0) if kind != name else None
            with packed or nullcontext():
                write_xmc_text(X, Y, packed or file, header=kind.endswith(".txt"))
    else:
        raise DataError(
            f"{path}: unknown extension; use .xmc, .txt, .svm, .svmlight, or text with .gz"
        )


def _check_dataset(path: Path, dataset: Dataset) -> Dataset:
    """Check everything, and return the dataset with the types that ``Dataset`` promises."""
    x, y, columns = checked_arrays(path, dataset.X, dataset.Y)
    with located(path, DataError):
        return _dataset(x, y, columns, check_names(dataset.names, columns[1]))


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
