"""Weights of rows, and of (row, label) pairs: from a caller or a file → arrays.

Rows have an array with one weight each; pairs a sparse matrix of the weights other than 1.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.counts import counted
from dismec.data.files import StrPath, decode_utf8, read_bytes
from dismec.data.matrices import (
    NPY_ERRORS,
    canonical,
    check_csr,
    csr_on,
    indicator,
    read_npz,
    refuse_mask,
)
from dismec.errors import DataError

RowWeights: TypeAlias = npt.NDArray[np.float64]

_NPY = b"\x93NUMPY"  # how a .npy file starts


def check_row_weights(
    weights: Any, n_rows: int, name: str = "weights", *, of_file: bool = False
) -> RowWeights:
    """Check weights from a list, array, Series or column: one number of at least 0 per row.

    Errors name the index of a row, or its number from 1 if the weights come from a file.

    Raises `DataError` if the number of rows differs, or a weight is not a number, negative or not
    finite.
    """
    refuse_mask(weights, name)
    try:
        found = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{name} must be numbers, one per row") from None
    if found.ndim != 1:
        raise DataError(f"{name} is {found.ndim}-d; expected one number per row")
    if len(found) != n_rows:
        raise DataError(f"{name}: {counted(len(found), 'number')} for {counted(n_rows, 'row')}")
    at = "row {}" if of_file else "row index {}"
    _check_numbers(found, lambda row: f"{name}: {at.format(row + of_file)}")
    return found


def load_row_weights(path: StrPath) -> RowWeights:
    """Read weights from a file: text with one number per line, or a NumPy array (``.npy``).

    Raises `DataError` ``path:line: reason`` for anything but a number of at least 0.
    """
    content = read_bytes(path)
    if content.startswith(_NPY):
        try:
            array = np.load(io.BytesIO(content), allow_pickle=False)
        except NPY_ERRORS as error:
            reason = " ".join(str(error).split())
            raise DataError(f"{path}: not an array that can be read: {reason}") from None
        return check_row_weights(
            array, array.shape[0] if array.ndim else 0, str(path), of_file=True
        )
    lines = decode_utf8(path, content).rstrip().split("\n")
    found = np.empty(len(lines))
    for row, line in enumerate(lines):
        try:
            found[row] = float(line)
        except ValueError:
            raise DataError(f"{path}:{row + 1}: {line[:40]!r} is not a number") from None
    _check_numbers(found, lambda row: f"{path}:{row + 1}")
    return found


def kept_rows(weights: RowWeights | None) -> tuple[npt.NDArray[np.int64] | None, RowWeights | None]:
    """Return the rows with nonzero weight (None for all), and their weights (None if all are 1).

    Rows with weight 0 are left out before anything is counted or learned.
    """
    if weights is None:
        return None, None
    keep = None
    if not weights.all():
        keep = np.flatnonzero(weights)
        weights = weights[keep]
        if not len(keep):
            raise DataError("all weights are zero: there are no rows to train on")
    return keep, None if (weights == 1).all() else weights


def _check_numbers(weights: RowWeights, where: Callable[[int], str]) -> None:
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if wrong.size:
        row = int(wrong[0])
        raise DataError(
            f"{where(row)}: the weight is {weights[row]:g}; expected a finite number of at least 0"
        )


# float32 (n_rows, n_labels), canonical, with an entry per pair whose weight is not 1. Zeros are
# stored, too.
PairWeights: TypeAlias = sp.csr_array

LARGEST_PAIR_WEIGHT = 1e30  # the square of its root, times C, must not overflow float32
_SMALLEST = 1e-30  # smaller weights above 0 are raised to this, which makes no difference
_ZIP = b"PK"  # the first bytes of a .npz file


@dataclass(frozen=True, eq=False)
class PairFile:
    """The pairs of a file, whose rows and labels are checked once the data are known."""

    path: Path
    matrix: Any = None  # of a .npz file
    # Otherwise its lines that are not blank: number, row from 0, label (a name, or a number if
    # labels have no names) and weight.
    pairs: Sequence[tuple[int, int, str, float]] = ()

    def pairs_of(
        self, n_rows: int, n_labels: int, names: Sequence[str] | None
    ) -> PairWeights | None:
        """Return the pairs as `check_pair_weights` does, for data with these labels."""
        if self.matrix is not None:
            shape = n_rows, n_labels
            return check_pair_weights(self.matrix, shape, str(self.path), of_file=True)
        known = map(str, range(n_labels)) if names is None else names
        numbers = {name: number for number, name in reversed(list(enumerate(known)))}
        columns = np.array([numbers.get(label, -1) for _, _, label, _ in self.pairs], np.int64)
        if len(unknown := np.flatnonzero(columns < 0)):
            label = self.pairs[unknown[0]][2]
            raise self._error(unknown[0], f"the data have no label {label!r}")
        rows = np.array([row for _, row, _, _ in self.pairs], np.int64)
        if len(beyond := np.flatnonzero(rows >= n_rows)):
            row = rows[beyond[0]] + 1
            present = counted(n_rows, "row")
            raise self._error(beyond[0], f"there is no row {row}: the data have {present}")
        keys = rows * n_labels + columns
        order = np.argsort(keys, kind="stable")
        if len(again := np.flatnonzero(np.diff(keys[order]) == 0)):
            place = order[again[0] + 1]
            _, row, label, _ = self.pairs[place]
            raise self._error(place, f"row {row + 1} has label {label} twice")
        values = np.array([weight for *_, weight in self.pairs], np.float64)[order]
        indptr = np.searchsorted(rows[order], np.arange(n_rows + 1))
        matrix = csr_on(values, columns[order], indptr, (n_rows, n_labels), canonical=True)
        return _other_than_1(matrix)

    def _error(self, place: Any, reason: str) -> DataError:
        return DataError(f"{self.path}:{self.pairs[place][0]}: {reason}")


def load_pair_weights(path: StrPath) -> PairFile:
    """Read a file of pairs: a scipy sparse matrix (``.npz``), or lines ``row label weight``.

    In lines, rows are counted from 1, like lines of data files. Labels are names, or numbers from 0
    if they have no names.

    Raises `DataError` if a line is not a row, a label and a weight of at least 0; the message names
    the line.
    """
    path = Path(path)
    content = read_bytes(path)
    if content.startswith(_ZIP):
        return PairFile(path, read_npz(path, io.BytesIO(content)))
    text = decode_utf8(path, content)
    lines = enumerate(text.split("\n"), 1)
    pairs = [(n, *_parsed(f"{path}:{n}", line)) for n, line in lines if line.strip()]
    return PairFile(path, None, pairs)


def _parsed(where: str, line: str) -> tuple[int, str, float]:
    """Parse a line as row index, label and weight; a label may contain white space."""
    row, *rest = line.split(None, 1)
    parts = rest[0].rsplit(None, 1) if rest else []
    if len(parts) < 2:
        raise DataError(f"{where}: {line[:40]!r} is not a row, a label and a weight")
    if not re.fullmatch("0*[1-9][0-9]{0,9}", row):
        raise DataError(f"{where}: {row[:40]!r} is not a row number, counted from 1")
    try:
        weight = float(parts[1])
    except ValueError:
        raise DataError(f"{where}: {parts[1][:40]!r} is not a number") from None
    if not 0 <= weight <= LARGEST_PAIR_WEIGHT:
        raise DataError(f"{where}: {_wrong_weight(weight)}")
    return int(row) - 1, parts[0], weight


def check_pair_weights(
    pairs: Any, shape: tuple[int, int], name: str = "pair_weights", *, of_file: bool = False
) -> PairWeights | None:
    """Check a sparse matrix of pair weights; return its entries other than 1, or None.

    With a stored 0, the row is ignored for the label. Errors name a row by its index, or by its
    number from 1 if the matrix comes from a file.

    Raises `DataError` if it is not a sparse matrix of this shape, or if a weight is negative, too
    large or NaN.
    """
    if not sp.issparse(pairs):
        raise DataError(
            f"{name} is a {type(pairs).__name__}; expected a scipy sparse matrix with an entry for "
            "every (row, label) pair that has a weight"
        )
    matrix: Any = check_csr(pairs, name, "labels")
    if matrix.shape != shape:
        raise DataError(
            f"{name} has shape {matrix.shape}; expected {shape}, {counted(shape[0], 'row')} and "
            f"{counted(shape[1], 'label')}"
        )
    given: Any = pairs
    # Conversion from COO has already summed duplicates.
    n_entries = given.nnz if given.format == "coo" else matrix.nnz
    matrix = canonical(matrix)
    if matrix.nnz < n_entries:
        raise DataError(f"{name}: {counted(n_entries - matrix.nnz, 'pair')} given twice")
    values = matrix.data.astype(np.float64, copy=False)
    wrong = np.flatnonzero(~((values >= 0) & (values <= LARGEST_PAIR_WEIGHT)))
    if len(wrong):
        entry = int(wrong[0])
        row = int(np.searchsorted(matrix.indptr, entry, side="right")) - 1
        at = f"row {row + 1}" if of_file else f"row index {row}"
        label = matrix.indices[entry]
        raise DataError(f"{name}: {at}, label {label}: {_wrong_weight(values[entry])}")
    return _other_than_1(matrix)


def find_pairs(
    given: Any, shape: tuple[int, int], names: Sequence[str] | None = None
) -> PairWeights | None:
    """Return the pair weights other than 1 for data of this shape and these labels, or None.

    `given` is a matrix, a `PairFile`, the path of a file for `load_pair_weights`, or None.
    """
    if isinstance(given, str | os.PathLike):
        given = load_pair_weights(given)
    if isinstance(given, PairFile):
        return given.pairs_of(*shape, names)
    return None if given is None else check_pair_weights(given, shape)


def pairs_at(pairs: PairWeights | None, rows: npt.NDArray[Any] | None) -> PairWeights | None:
    """Return the pairs of some rows, or of all if `rows` is None; None if there are no pairs."""
    if pairs is None or rows is None:
        return pairs
    some: Any = pairs[rows]
    return some if some.nnz else None


def known_labels(Y: Any, pairs: PairWeights | None) -> Any:
    """Return Y without the entries whose pairs have weight 0.

    The row of such a pair is neither positive nor negative for the label.
    """
    if pairs is None or pairs.data.all():
        return Y
    unknown = pairs.data == 0
    mark = csr_on(unknown, pairs.indices, pairs.indptr, pairs.shape, canonical=True)
    left_out = Y.astype(np.bool_).multiply(indicator(mark))
    return indicator((Y.astype(np.int8) - left_out.astype(np.int8)).tocsr())


def check_relevances(pairs: PairWeights | None, Y: Any) -> None:
    """Raise `DataError` unless the pairs are relevances, from 0 to 1, of labels that rows have."""
    if pairs is None:
        raise DataError("soft labels need relevances: weights of (row, label) pairs below 1")
    marked: Any = csr_on(pairs.data > 0, pairs.indices, pairs.indptr, pairs.shape, canonical=True)
    wrong = (marked > marked.multiply(Y.astype(np.bool_))).tocoo()
    if not wrong.nnz:
        wrong = (pairs > 1).tocoo()
    if wrong.nnz:
        row, label = wrong.row[0], wrong.col[0]
        raise DataError(
            f"row index {row}, label {label}: relevance {pairs[row, label]:g}; expected a number "
            "from 0 to 1, above 0 only for labels that the row has"
        )


def _other_than_1(matrix: Any) -> PairWeights | None:
    """Return the entries that are not 1 as float32, or None if there are none."""
    values = matrix.data.astype(np.float64)
    values = np.where(values > 0, np.maximum(values, _SMALLEST), 0.0).astype(np.float32)
    keep = values != 1
    if not keep.any():
        return None
    before = np.concatenate([[0], np.cumsum(keep)])
    indptr, columns = before[matrix.indptr], matrix.indices[keep].astype(np.int32, copy=False)
    return csr_on(values[keep], columns, indptr, matrix.shape, canonical=True)


def _wrong_weight(weight: float) -> str:
    return f"the weight is {weight:g}; expected a number from 0 to {LARGEST_PAIR_WEIGHT:g}"
