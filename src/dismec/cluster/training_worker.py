"""What training runs on the workers of a cluster: functions that `cluster.training` calls there.

A worker process holds the rows by memory map, so that all processes of a machine share one copy,
and for each training under way threads that solve its blocks. It outlives the training: what a
client that was killed has left behind goes when the next one begins.
"""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dismec.cluster.connection import scratch_directory, step_aside
from dismec.cluster.shipping import arrived, discard_parcels
from dismec.data.training_file import TrainingData
from dismec.errors import DataError, WorkerLost
from dismec.features.transform import Transform
from dismec.model import weight_files
from dismec.model.manifest import BlockReceipt
from dismec.solve.block import Block
from dismec.solve.problem import Problem, SolverParams
from dismec.solve.threads import BlockSolver, Kept

__all__ = ["Data", "Run", "adopt_data", "begin", "drop_data", "end", "find_data", "solve"]

Answer = tuple[BlockReceipt, bytes | None]  # the file's content unless it is in the run's folder


class Data(NamedTuple):
    """The rows and labels of a training: a binary dataset (``.xmc``), and how to know it."""

    path: str
    size: int
    fingerprint: str


class Run(NamedTuple):
    """What solving blocks of a training takes, apart from the data.

    Blocks are put into `folder` if this process sees it: one of this run alone, in the model
    directory. Once it is gone nobody writes blocks of the run any more.
    """

    folder: str
    params: SolverParams
    transform: Transform
    threads: int


_datasets: dict[str, TrainingData] = {}  # checked, and not yet part of a run
_runs: dict[str, _ActiveRun] = {}
_runs_lock = threading.Lock()


def find_data(data: Data) -> str | None:
    """The path under which this process sees the data: the client's, or that of a copy here."""
    for path in (Path(data.path), _copy(data)):
        with suppress(OSError, DataError):
            if path.stat().st_size == data.size:
                _datasets[str(path)] = _check(path, data)
                return str(path)
    return None


def adopt_data(parcel: str, data: Data) -> str:
    """Make what has been sent here the copy of this machine, once checked; returns its path."""
    copy = _copy(data)
    with arrived(parcel) as path:
        _datasets[str(copy)] = _check(path, data)
        path.replace(copy)
    return str(copy)


def drop_data(data: Data, token: str) -> None:
    """Remove the copy that this machine has received, if any, and what is left of the sender's."""
    _copy(data).unlink(missing_ok=True)
    discard_parcels(token)


def _copy(data: Data) -> Path:
    return scratch_directory() / f"dismec-{data.fingerprint[:16]}.xmc"


def _check(path: Path, data: Data) -> TrainingData:
    loaded = TrainingData.map(path)
    if loaded.fingerprint != data.fingerprint:
        raise DataError(f"{path}: not the data of this training")
    return loaded


def begin(run: Run, path: str) -> str | None:
    """Prepare for blocks of a run on the data at `path`.

    Returns the name of a file that this has put into the run's folder, or None if it does not see
    that.
    """
    end(run.folder)
    with _runs_lock:
        here = Path(run.folder).parent
        for folder, other in list(_runs.items()):
            if other.idle or Path(folder).parent == here:
                _runs.pop(folder).close()
    probe = f"probe-{secrets.token_hex(8)}"
    try:
        (Path(run.folder) / probe).touch(exist_ok=False)
    except OSError:
        probe = ""
    loaded = _datasets.pop(path, None) or TrainingData.map(Path(path))
    active = _ActiveRun(run, loaded, writes=bool(probe))
    with _runs_lock:
        _runs[run.folder] = active
    return probe or None


def solve(folder: str, number: int, labels: npt.NDArray[np.int64]) -> Answer:
    """Solve a block of a run; `WorkerLost` if this process is not the one that began it."""
    with _runs_lock:
        active = _runs.get(folder)
        if active is None:
            raise WorkerLost("this worker has been restarted")
        future = active.add(number, labels)
    step_aside()
    return future.result()


def end(folder: str) -> None:
    """Stop a run, and whatever is solved for it."""
    with _runs_lock:
        active = _runs.pop(folder, None)
    if active:
        active.close()


class _ActiveRun:
    """The threads that solve a run's blocks, and who waits for which block."""

    def __init__(self, run: Run, loaded: TrainingData, writes: bool) -> None:
        costs = run.params.weighting.factors
        problem = Problem(loaded.X, loaded.Y, run.transform, loaded.weights, costs)
        problem.equal_labels  # noqa: B018  before there are threads
        self._folder = Path(run.folder) if writes else None
        self._scratch = scratch_directory()
        self._waiting: dict[int, Future[Answer]] = {}
        self._closed = False
        self._solver = BlockSolver(problem, run.params, self._keep, run.threads)
        self._thread = threading.Thread(target=self._collect, name="dismec-collect", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        return not self._waiting

    def add(self, number: int, labels: npt.NDArray[np.int64]) -> Future[Answer]:
        future: Future[Answer] = Future()
        self._waiting[number] = future
        self._solver.add(number, labels)
        return future

    def close(self) -> None:
        self._closed = True
        self._thread.join()

    def _keep(self, block: Block) -> Answer:
        if self._folder:
            return weight_files.write_block(self._folder, block), None
        with TemporaryDirectory(prefix="dismec-", dir=self._scratch) as folder:
            receipt = weight_files.write_block(Path(folder), block)
            return receipt, (Path(folder) / receipt.file).read_bytes()

    def _collect(self) -> None:
        reason: BaseException = WorkerLost("the run has been ended")
        # A thread that waits for more blocks would keep the process from ending.
        with self._solver:
            try:
                while not self._closed and threading.main_thread().is_alive():
                    event = self._solver.wait(0.5)
                    if isinstance(event, Kept):
                        self._answer(event)
            except BaseException as error:
                reason = error
        for number in list(self._waiting):
            self._answer(Kept(number, None, reason))

    def _answer(self, kept: Kept[Answer]) -> None:
        future = self._waiting.pop(kept.number)
        if kept.error is not None:
            future.set_exception(kept.error)
        else:
            future.set_result(kept.get())
