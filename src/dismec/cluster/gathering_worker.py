"""Gathering on a worker: blocks of rows, or a file it can read → a data file and its facts.

Blocks are appended one after the other, so only one of them is in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from dismec.cluster.placed import DataFacts
from dismec.cluster.shipping import discard_parcels, parcel_file
from dismec.data.dataset import load_data
from dismec.data.formats import detect
from dismec.data.matrices import check_X, check_Y
from dismec.data.mixed import mixed_rows
from dismec.data.training_file import TrainingData, XmcWriter
from dismec.errors import DataError, WorkerLost
from dismec.features.transform import Transform
from dismec.solve.partition import EqualLabels

__all__ = ["ROWS", "append", "discard", "finish", "read", "sees"]

ROWS = "rows"  # the kind of a block whose rows include their labels

_growing: dict[str, _GrowingFile] = {}  # by parcel


@dataclass
class _GrowingFile:
    """A data file that blocks are appended to."""

    writer: XmcWriter
    n_labels: int | None  # None if the largest label determines it
    n_blocks: int = 0


def append(parcel: str, number: int, kinds: tuple[str, ...], *blocks: Any) -> None:
    """Append a block of rows: its parts have the `kinds` "X", "E" and "Y", or just `ROWS`.

    Raises
    ------
    DataError
        If the block is invalid, or does not match the blocks before it.
    """
    if number == 0:
        discard(parcel)
    try:
        block = _block_of(dict(zip(kinds, blocks, strict=True)))
        if number == 0:
            width = None if block.dense is None else block.dense.shape[1]
            n_features = None if ROWS in kinds else block.X.shape[1]
            writer = XmcWriter(parcel_file(parcel), n_features, width)
            _growing[parcel] = _GrowingFile(writer, block.n_labels)
        file = _growing.get(parcel)
        if file is None or file.n_blocks != number:
            raise WorkerLost("this worker has been restarted")
        if file.n_labels != block.n_labels:
            raise DataError(
                f"the number of labels is {block.n_labels}; blocks before have {file.n_labels}"
            )
        file.writer.append(block.X, block.labels, block.dense)
        file.n_blocks += 1
    except DataError as error:
        reason = str(error).removeprefix(f"{parcel_file(parcel)}: ")
        raise DataError(f"block {number}: {reason}") from None


def finish(parcel: str, n_labels: int | None, transform: Mapping[str, Any]) -> DataFacts:
    """Complete the file that blocks were appended to; return its facts.

    `transform` holds options of `Transform.fit`.
    """
    file = _growing.pop(parcel, None)
    if file is None:
        raise WorkerLost("this worker has been restarted")
    with file.writer:
        file.writer.finish(n_labels if file.n_labels is None else file.n_labels)
    return _facts_of(parcel_file(parcel), transform)


def sees(path: str) -> bool:
    """Return whether this worker can access a file."""
    return Path(path).is_file()


def read(parcel: str, path: str, transform: Mapping[str, Any]) -> tuple[DataFacts, bool]:
    """Return the facts of a file that this worker can read, and whether it is a ``.xmc`` file.

    For any other file, the parcel contains the same data as ``.xmc``.
    """
    with detect(path) as data:
        if data.kind == "xmc":
            return _facts_of(Path(path), transform, load_data(path).names), True
        dataset = load_data(data)
    file = parcel_file(parcel)
    TrainingData(dataset.X, dataset.Y).save(file)
    return _facts_of(file, transform, dataset.names), False


def discard(token: str) -> None:
    """Discard unfinished files: those whose parcel names start with `token`."""
    for parcel in [parcel for parcel in _growing if parcel.startswith(token)]:
        with _growing.pop(parcel).writer:
            pass
    discard_parcels(token)


def _facts_of(
    path: Path, transform: Mapping[str, Any], names: list[str] | None = None
) -> DataFacts:
    data = TrainingData.map(path)
    by_label = sp.csc_array(data.Y)
    indptr, n_rows = by_label.indptr.astype(np.int64), data.X.shape[0]
    equal = EqualLabels.of(indptr, by_label.indices.astype(np.int32), n_rows)
    return DataFacts(
        path.stat().st_size,
        data.fingerprint,
        n_rows,
        Transform.fit(data.X, **transform),
        np.diff(indptr),
        equal.groups,
        names,
    )


@dataclass(frozen=True)
class _RowBlock:
    """Rows for a writer."""

    X: Any
    labels: Any
    dense: Any = None
    n_labels: int | None = None


def _block_of(parts: Mapping[str, Any]) -> _RowBlock:
    if ROWS in parts:
        return _of_rows(parts[ROWS])
    given = _as_matrix(parts["X"]) if "X" in parts else None
    if "E" in parts:
        rows = mixed_rows(given, _as_matrix(parts["E"]))
        X, dense = rows.sparse, rows.dense
    else:
        X, dense = check_X(given), None
    Y = check_Y(_as_matrix(parts["Y"]), X.shape[0])
    return _RowBlock(X, Y, dense, Y.shape[1])


def _as_matrix(block: Any) -> Any:
    """Convert matrices of other packages that can become scipy matrices."""
    return block.tocsr() if hasattr(block, "tocsr") else block


def _of_rows(rows: Iterable[Any]) -> _RowBlock:
    """Convert rows that are pairs: a map from feature numbers to values, and label numbers."""
    starts, columns, values, labels = [0], [], [], []
    for number, row in enumerate(rows):
        try:
            features, of_row = row
            pairs = features.items() if isinstance(features, Mapping) else features
            for column, value in pairs:
                columns.append(int(column))
                values.append(float(value))
            labels.append([int(label) for label in of_row])
        except (TypeError, ValueError):
            raise DataError(
                f"row {number} is not a pair of features {{number: value}} and label numbers"
            ) from None
        starts.append(len(columns))
    n_columns = 1 + max(columns, default=-1)
    matrix = (np.array(values), np.array(columns, np.int64), np.array(starts))
    try:
        X: Any = sp.csr_array(matrix, shape=(len(labels), n_columns))
    except ValueError as error:
        raise DataError(f"features of the rows: {error}") from None
    return _RowBlock(check_X(X), labels)
