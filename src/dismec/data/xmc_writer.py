"""Pieces of rows → one binary dataset.

A binary dataset begins with the row pointers of all its rows, which are known last. So ids and
values wait in temporary files until then, and X is never in memory.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dismec.data.binary import write_xmc
from dismec.data.container import Spooled
from dismec.data.dataset import Dataset, check_dataset
from dismec.data.matrices import row_pointers
from dismec.data.names import check_names
from dismec.data.xmc_text import MAX_COLUMNS
from dismec.errors import DataError

__all__ = ["XmcWriter"]


class XmcWriter:
    """Writes a ``.xmc`` file whose rows come in pieces: to be used in a ``with`` statement.

    `append` pieces, then `finish`. Only then is there a file at ``path``, complete and with the
    bytes that `save_data` would have written; without `finish`, what was there before stays. What
    is kept in memory is one piece, and 16 bytes per row. The temporary files, beside ``path`` and
    of no name, take as much of the disk again until the end; they vanish with the process.

    Raises
    ------
    OSError
        If a file cannot be written; its ``filename`` is ``path``.
    """

    def __init__(self, path: str | os.PathLike[str], n_features: int) -> None:
        self._path = Path(path)
        self._n_features = n_features
        self._n_rows = 0
        self._largest_label = -1
        self._x_lengths: list[NDArray[np.int64]] = []
        self._y_lengths: list[NDArray[np.int64]] = []
        with ExitStack() as stack, _naming(self._path):
            if self._path.is_dir():
                raise IsADirectoryError(errno.EISDIR, "is a directory")
            self._x_indices, self._x_data, self._y_indices = (
                Spooled(stack.enter_context(tempfile.TemporaryFile(dir=self._path.parent)), dtype)
                for dtype in map(np.dtype, ("<i4", "<f4", "<i4"))
            )
            self._files = stack.pop_all()

    def __enter__(self) -> XmcWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        with _naming(self._path):
            self._files.close()

    def append(self, X: csr_array[Any], labels: Sequence[Sequence[int]] | csr_array[Any]) -> None:
        """Add rows.

        Parameters
        ----------
        X
            Some rows × n_features.
        labels
            The label ids of each of these rows, in any order, or their indicator matrix.

        Raises
        ------
        DataError
            If the piece is unsound, with the row's number in the whole file. No row of it is added.
        """
        if X.shape[1] != self._n_features:
            raise DataError(
                f"{self._path}: rows with {X.shape[1]} features, not {self._n_features}"
            )
        Y: Any = self._indicator(labels) if isinstance(labels, Sequence) else labels
        X, Y, _ = check_dataset(self._path, Dataset(X, Y), self._n_rows)
        with _naming(self._path):
            for spooled, array in (
                (self._x_indices, X.indices),
                (self._x_data, X.data),
                (self._y_indices, Y.indices),
            ):
                spooled.file.write(np.ascontiguousarray(array, spooled.dtype).data)
        self._x_lengths.append(np.diff(X.indptr).astype(np.int64))
        self._y_lengths.append(np.diff(Y.indptr).astype(np.int64))
        self._largest_label = max(self._largest_label, int(Y.indices.max(initial=-1)))
        self._n_rows += X.shape[0]

    def finish(self, n_labels: int, names: Sequence[str] | None = None) -> None:
        """Write the file, now that all rows and the number of labels are known.

        Raises
        ------
        DataError
            If a row has a label from ``n_labels`` on, or the names are not one for each label.
        """
        if n_labels > MAX_COLUMNS:
            raise DataError(f"{self._path}: more than {MAX_COLUMNS} labels")
        if n_labels <= self._largest_label:
            raise DataError(
                f"{self._path}: {n_labels} labels, but a row has label {self._largest_label}"
            )
        try:
            names = check_names(names, n_labels)
        except DataError as error:
            raise DataError(f"{self._path}: {error}") from None
        x = (row_pointers(self._x_lengths), self._x_indices, self._x_data)
        y = (row_pointers(self._y_lengths), self._y_indices)
        with _naming(self._path):
            write_xmc(self._path, x, y, (self._n_features, n_labels), names)

    def _indicator(self, labels: Sequence[Sequence[int]]) -> csr_array[Any]:
        indptr = np.cumsum([0, *map(len, labels)])
        ids = np.fromiter(chain.from_iterable(labels), np.int64, indptr[-1])
        wrong = np.flatnonzero((ids < 0) | (ids >= MAX_COLUMNS))
        if len(wrong):
            row = self._n_rows + int(np.searchsorted(indptr, wrong[0], side="right")) - 1
            raise DataError(f"{self._path}: row {row}: {ids[wrong[0]]} is not a label id")
        ones = np.ones(len(ids), np.uint8)
        return csr_array((ones, ids, indptr), shape=(len(labels), MAX_COLUMNS))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Give errors of temporary files the name of the file that they are for."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
