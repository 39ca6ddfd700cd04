"""Dask collections, or a file that workers can read → a data file on a worker, and its facts.

The client chooses the worker that assembles the file. Blocks go from worker to worker, in order,
and other machines get the file from that worker (`cluster.shipping.hand_over`).
"""

from __future__ import annotations

import logging
import operator
import os
import pickle
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from dismec.cluster import gathering_worker, training_worker
from dismec.cluster.connection import Cluster
from dismec.cluster.placed import DataFacts, PlacedData, as_parts, is_collection, is_path
from dismec.cluster.pool import check_workers
from dismec.cluster.task import Receiver, Task, packed
from dismec.errors import ClusterError, DataError, WorkerLost

__all__ = ["gathered"]

_ATTEMPTS = 3  # workers that may die while gathering the data
_AHEAD = 4  # blocks computed while one is appended
_DROP_SECONDS = 5.0

_log = logging.getLogger("dismec")


@contextmanager
def gathered(
    cluster: Cluster, X: Any, Y: Any, transform: Mapping[str, Any], n_labels: int | None = None
) -> Iterator[PlacedData]:
    """Gather the workers' data in a file on one of them, for the duration of the context.

    Parameters
    ----------
    cluster
        Where the data are, and where training runs.
    X, Y
        Dask arrays whose blocks are whole rows; or a bag of rows, or the path of a file, and None.
    transform
        Options of `Transform.fit`.
    n_labels
        Number of labels of a bag; by default the largest label of its rows determines it.

    Raises
    ------
    DataError
        If the data cannot be used; the message names the block.
    ClusterError
        If no worker can read the file, or workers die.
    """
    token = secrets.token_hex(8)
    gathering = _Gathering(cluster, token, transform, n_labels)
    data = None
    try:
        if is_path(X) and Y is not None:
            raise DataError("X is the path of a file, which includes the labels: Y must be None")
        data = gathering.of_file(os.fspath(X)) if is_path(X) else gathering.of_blocks(X, Y)
        yield data
    finally:
        calls: list[tuple[Any, ...]] = [(gathering_worker.discard, token)]
        if data is not None:
            copy = training_worker.Data(data.path, data.facts.size, data.facts.fingerprint)
            calls.append((training_worker.drop_data, copy, token))
        _everywhere(cluster, *calls)


@dataclass
class _Gathering:
    cluster: Cluster
    token: str
    transform: Mapping[str, Any]
    n_labels: int | None

    def of_file(self, path: str) -> PlacedData:
        """Return the data of a file that some worker can read."""
        for _ in range(_ATTEMPTS):
            there = check_workers(self.cluster)
            asked = {a: self.cluster.submit(a, gathering_worker.sees, path) for a in there}
            try:
                home = next((a for a, task in asked.items() if self._result(task)), None)
                if home is None:
                    raise DataError(f"{path}: no worker of the cluster can read this file")
                parcel = self._parcel()
                reading = gathering_worker.read, parcel, path, self.transform
                facts, is_xmc = self._call(home, *reading)
                if is_xmc:
                    return PlacedData(facts, home, path)
                return self._adopted(home, parcel, facts)
            except WorkerLost as error:
                self._lost(error)
        raise self._gave_up()

    def of_blocks(self, X: Any, Y: Any) -> PlacedData:
        """Return the data of Dask collections."""
        kinds, blocks = _blocks_of(X, Y)
        for _ in range(_ATTEMPTS):
            home = next(iter(check_workers(self.cluster)))
            parcel = self._parcel()
            try:
                self._append(home, parcel, kinds, blocks)
                finish = gathering_worker.finish, parcel, self.n_labels, self.transform
                return self._adopted(home, parcel, self._call(home, *finish))
            except WorkerLost as error:
                self._lost(error)
        raise self._gave_up()

    def _append(
        self, home: str, parcel: str, kinds: tuple[str, ...], blocks: list[tuple[Any, ...]]
    ) -> None:
        """Make a worker write all blocks to its parcel; some are computed ahead."""
        left = iter(blocks)
        ahead: deque[list[Any]] = deque()
        for number in range(len(blocks)):
            while len(ahead) <= _AHEAD and (block := next(left, None)) is not None:
                ahead.append(self.cluster.compute(list(block)))
            parts = ahead.popleft()
            into = packed(Receiver, (gathering_worker.append, (parcel, number, kinds)))

            def ask(into: bytes = into, parts: list[Any] = parts) -> Any:
                receiver = self.cluster.ask(home, Receiver.__name__, pickle.loads, into)
                return self.cluster.ask(home, "append", operator.call, receiver, *parts)

            self._result(self.cluster.watch(home, ask))

    def _adopted(self, home: str, parcel: str, facts: DataFacts) -> PlacedData:
        """Return the file of a parcel as the copy of its machine."""
        data = training_worker.Data("", facts.size, facts.fingerprint)
        path = self._call(home, training_worker.adopt_data, parcel, data)
        return PlacedData(facts, home, path)

    def _call(self, worker: str, *call: Any) -> Any:
        return self._result(self.cluster.submit(worker, *call))

    def _result(self, task: Task) -> Any:
        while not task.done():
            self.cluster.wait([task])
        return task.result()

    def _parcel(self) -> str:
        return f"{self.token}-{secrets.token_hex(8)}"

    def _lost(self, error: WorkerLost) -> None:
        _log.warning("%s; gathering the data again", error)

    def _gave_up(self) -> ClusterError:
        return ClusterError(
            f"{_ATTEMPTS} workers have died while gathering the data, perhaps out of memory: give "
            "them more memory, or make the blocks smaller"
        )


def _blocks_of(X: Any, Y: Any) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Return the kinds of the parts of a block, and the parts of each block, not yet computed."""
    if Y is None and hasattr(X, "numblocks"):
        raise DataError("Y is missing: a Dask array of features has no labels")
    if Y is None:
        return (gathering_worker.ROWS,), [(block,) for block in _row_blocks("X", X)]
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


def _everywhere(cluster: Cluster, *calls: tuple[Any, ...]) -> None:
    """Wait a few seconds for every worker to make these calls."""
    with suppress(ClusterError):
        if not cluster.connected:
            return
        tasks = {cluster.submit(worker, *call) for worker in cluster.workers() for call in calls}
        end = time.monotonic() + _DROP_SECONDS
        while tasks and time.monotonic() < end:
            tasks.difference_update(cluster.wait(tasks, 0.5))
        for task in tasks:
            cluster.forget(task)
