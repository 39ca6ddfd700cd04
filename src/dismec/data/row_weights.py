"""Row weights: numbers from a caller or a file → an array, one weight per row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dismec.data.counts import counted
from dismec.data.files import StrPath
from dismec.data.matrices import NPY_ERRORS, refuse_mask
from dismec.errors import DataError

__all__ = [
    "RowWeights",
    "check_row_weights",
    "kept_rows",
    "load_row_weights",
    "weights_at",
]

RowWeights: TypeAlias = npt.NDArray[np.float64]

_NPY = b"\x93NUMPY"  # how a .npy file starts


def check_row_weights(
    weights: Any, n_rows: int, name: str = "weights", *, of_file: bool = False
) -> RowWeights:
    """Check weights from a list, array, Series or column: one number of at least 0 per row.

    Errors name the index of a row, or its number from 1 if the weights come from a file.

    Raises
    ------
    DataError
        If the number of rows differs, or a weight is not a number, negative or not finite.
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

    Raises
    ------
    DataError
        ``path:line: reason`` for anything but a number of at least 0.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            if file.read(len(_NPY)) == _NPY:
                file.seek(0)
                return _loaded_array(path, file)
            file.seek(0)
            lines = file.read().decode().rstrip().split("\n")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: neither text with one number per line nor .npy") from None
    try:
        found = np.array(lines, dtype=np.float64)
    except ValueError:
        number, line = next((n, s) for n, s in enumerate(lines, 1) if not _parses(s))
        raise DataError(f"{path}:{number}: {line[:40]!r} is not a number") from None
    _check_numbers(found, lambda row: f"{path}:{row + 1}")
    return found


def _loaded_array(path: Path, file: Any) -> RowWeights:
    try:
        array = np.load(file, allow_pickle=False)
    except NPY_ERRORS as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: not an array that can be read: {reason}") from None
    return check_row_weights(array, array.shape[0] if array.ndim else 0, str(path), of_file=True)


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


def weights_at(weights: RowWeights | None, rows: npt.NDArray[np.int64]) -> RowWeights | None:
    """Return the weights of some rows; None if rows have no weights."""
    return None if weights is None else weights[rows]


def _check_numbers(weights: RowWeights, where: Callable[[int], str]) -> None:
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if wrong.size:
        row = int(wrong[0])
        raise DataError(
            f"{where(row)}: the weight is {weights[row]:g}; expected a finite number of at least 0"
        )


def _parses(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
