"""Dask collections, or a file that workers can read → a data file on a worker, and its facts.

One worker writes the blocks of collections to a file, in order, so that only a few are in memory.
Other machines fetch the file from that worker (`cluster.file_copies`).
"""

from __future__ import annotations

import os
import secrets
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from dismec.cluster.client import Cluster, Tasks, this_worker
from dismec.cluster.file_copies import LocalCopy, report_full_disk
from dismec.cluster.remote_data import DataFacts, RemoteData, as_parts, is_collection, is_path
from dismec.data.dataset import load_data
from dismec.data.formats import detect
from dismec.data.matrices import check_X, check_Y, rows_of_pairs
from dismec.data.mixed import mixed_rows
from dismec.data.training_file import TrainingData, XmcWriter
from dismec.errors import DataError
from dismec.features.transform import Transform
from dismec.solve.partition import EqualLabels

_AHEAD = 4  # blocks computed while one is appended
_ROWS = "rows"  # the kind of a block whose rows include their labels


@contextmanager
def gathered(
    cluster: Cluster, X: Any, Y: Any, transform: Mapping[str, Any], n_labels: int | None = None
) -> Iterator[RemoteData]:
    """Gather the workers' data in a file on one of them, for the duration of the context.

    X and Y are Dask arrays whose blocks are whole rows; or a bag of rows, or the path of a file,
    and None. `transform` holds options of `Transform.fit`. By default the largest label of a bag
    determines its number of labels. Raises `DataError` if the data cannot be used; the message
    names the block.
    """
    if is_path(X) and Y is not None:
        raise DataError("X is the path of a file, which includes the labels: Y must be None")
    kinds, blocks = ((), []) if is_path(X) else _blocks_of(X, Y)
    cluster.check_workers()
    home = _reader(cluster, os.fspath(X)) if is_path(X) else next(iter(cluster.workers()))
    # If this worker dies, Dask repeats everything on another one.
    submit = partial(cluster.client.submit, workers=[home], allow_other_workers=True, pure=False)
    if is_path(X):
        file = submit(_read_file, secrets.token_hex(8), os.fspath(X))
    else:
        file = submit(_GrowingFile, secrets.token_hex(8), kinds)
        left = iter(blocks)
        ahead: deque[list[Any]] = deque()
        for _ in blocks:
            while len(ahead) <= _AHEAD and (block := next(left, None)) is not None:
                ahead.append(list(cluster.client.compute(list(block))))
            file = submit(_GrowingFile.append, file, *ahead.popleft())
            _outcome(cluster, submit(bool, file))  # the file itself stays there
        file = submit(_GrowingFile.finish, file, n_labels)
    facts = submit(_facts_of, file, transform)
    _outcome(cluster, facts)
    yield RemoteData(*facts.result())
    del file  # the worker removes its copy


def _outcome(cluster: Cluster, future: Any) -> None:
    """Wait for a task, and raise its error."""
    tasks = Tasks(cluster)
    tasks.add(future)
    while not (done := tasks.finished()):
        pass
    if isinstance(done[0][1], Exception):
        raise done[0][1]


def _reader(cluster: Cluster, path: str) -> str:
    """Return a worker that can read a file."""
    found = cluster.client.run(os.path.isfile, path, on_error="return")
    reader = next((worker for worker, sees in found.items() if sees is True), None)
    if reader is None:
        raise DataError(f"{path}: no worker of the cluster can read this file")
    return str(reader)


def _blocks_of(X: Any, Y: Any) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Return the kinds of the parts of a block, and the parts of each block, not yet computed."""
    if Y is None and hasattr(X, "numblocks"):
        raise DataError("Y is missing: a Dask array of features has no labels")
    if Y is None:
        return (_ROWS,), [(block,) for block in _row_blocks("X", X)]
    parts = as_parts(X)
    if not all(map(is_collection, [*parts, Y])):
        raise DataError("X and Y must both be Dask collections, or neither of them")
    dense = isinstance(X, list | tuple)
    kinds = ("X", "E")[-len(parts) :] if dense else ("X",)
    columns = [_row_blocks(kind, part) for kind, part in zip(kinds, parts, strict=True)]
    columns.append(_row_blocks("Y", Y))
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        kinds_found = ", ".join(f"{k} {n}" for k, n in zip((*kinds, "Y"), lengths, strict=True))
        raise DataError(f"numbers of blocks differ ({kinds_found}): rechunk them alike")
    return (*kinds, "Y"), list(zip(*columns, strict=True))


def _row_blocks(what: str, collection: Any) -> list[Any]:
    if not is_collection(collection):
        raise DataError(f"{what} is not a Dask collection of rows")
    blocks: Any = collection.to_delayed()
    # The blocks of an array are in an array, others in a list.
    shape: tuple[int, ...] = getattr(blocks, "shape", (len(blocks),))
    if len(shape) != (2 if hasattr(collection, "numblocks") else 1):
        raise DataError(f"{what} is {len(shape)}-d; expected rows × columns")
    if shape[1:] not in ((), (1,)):
        raise DataError(
            f"{what} has several blocks side by side: rechunk it so that blocks contain whole "
            f"rows ({what}.rechunk({{1: -1}}))"
        )
    if shape[0] == 0:
        raise DataError("there are no rows to train on")
    return list(blocks if len(shape) == 1 else blocks[:, 0])


class _GrowingFile(LocalCopy):
    """A data file that blocks are appended to; their parts are X, E and Y, or rows."""

    def __init__(self, name: str, kinds: tuple[str, ...]) -> None:
        super().__init__(name)
        self._kinds = kinds
        self._writer: XmcWriter | None = None
        self._n_labels: int | None = None  # None if the largest label determines it
        self._n_blocks = 0

    def append(self, *parts: Any) -> _GrowingFile:
        """Append a block; raise `DataError` if it is invalid or does not match those before."""
        try:
            block = _block_of(dict(zip(self._kinds, parts, strict=True)))
            if self._writer is None:
                width = None if block.dense is None else block.dense.shape[1]
                n_features = None if _ROWS in self._kinds else block.X.shape[1]
                self._writer = XmcWriter(self.path, n_features, width)
                weakref.finalize(self, self._writer.__exit__)
                self._n_labels = block.n_labels
            if self._n_labels != block.n_labels:
                raise DataError(
                    f"the number of labels is {block.n_labels}; blocks before have {self._n_labels}"
                )
            with report_full_disk(self.path):
                self._writer.append(block.X, block.labels, block.dense)
        except DataError as error:
            reason = str(error).removeprefix(f"{self.path}: ")
            raise DataError(f"block {self._n_blocks}: {reason}") from None
        self._n_blocks += 1
        return self

    def finish(self, n_labels: int | None) -> _GrowingFile:
        """Complete the file."""
        assert self._writer is not None
        with report_full_disk(self.path), self._writer:
            self._writer.finish(n_labels if self._n_labels is None else self._n_labels)
        return self


def _read_file(name: str, path: str) -> tuple[str | LocalCopy, list[str] | None]:
    """Return a file that this worker can read, or a copy of its data as ``.xmc``; and its names."""
    with detect(path) as data:
        if data.kind == "xmc":
            return path, load_data(path).names
        dataset = load_data(data)
    copy = LocalCopy(name)
    with report_full_disk(copy.path):
        TrainingData(dataset.X, dataset.Y).save(copy.path)
    return copy, dataset.names


def _facts_of(found: Any, transform: Mapping[str, Any]) -> tuple[DataFacts, str, str]:
    """Return the facts of a file, this worker, and the path."""
    file, names = found if isinstance(found, tuple) else (found, None)
    path = Path(file if isinstance(file, str) else file.path)
    data = TrainingData.map(path)
    by_label = sp.csc_array(data.Y)
    indptr, n_rows = by_label.indptr.astype(np.int64), data.X.shape[0]
    equal = EqualLabels.of(indptr, by_label.indices.astype(np.int32), n_rows)
    facts = DataFacts(
        path.stat().st_size,
        data.fingerprint,
        n_rows,
        Transform.fit(data.X, **transform),
        np.diff(indptr),
        equal.groups,
        names,
    )
    return facts, this_worker(), str(path)


class _RowBlock(NamedTuple):
    """Rows for a writer."""

    X: Any
    labels: Any
    dense: Any = None
    n_labels: int | None = None


def _block_of(parts: Mapping[str, Any]) -> _RowBlock:
    if _ROWS in parts:
        return _RowBlock(*rows_of_pairs(parts[_ROWS]))
    X, dense = _as_matrix(parts.get("X")), None
    if "E" in parts:
        rows = mixed_rows(X, _as_matrix(parts["E"]))
        X, dense = rows.sparse, rows.dense
    else:
        X = check_X(X)
    Y = check_Y(_as_matrix(parts["Y"]), X.shape[0])
    return _RowBlock(X, Y, dense, Y.shape[1])


def _as_matrix(block: Any) -> Any:
    """Convert matrices of other packages that can become scipy matrices."""
    return block.tocsr() if hasattr(block, "tocsr") else block
