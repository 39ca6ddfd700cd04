"""Training on the workers of a cluster: functions that `cluster.training` calls there.

A worker process memory-maps the rows, so all processes of a machine share one copy, and has threads
that solve blocks for each active run. It outlives the run: what a killed client has left behind is
removed when the next run starts.
"""

from __future__ import annotations

import errno
import secrets
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dismec.cluster.connection import scratch_directory, step_aside
from dismec.cluster.shipping import arrived, discard_parcels
from dismec.cluster.task import portable
from dismec.data.training_file import TrainingData
from dismec.errors import DataError, WorkerLost
from dismec.features.transform import Transform
from dismec.model import weight_files
from dismec.model.manifest import BlockReceipt
from dismec.solve.block import Block
from dismec.solve.problem import Problem, SolverParams
from dismec.solve.threads import BlockSolver, Kept

__all__ = [
    "NO_ROOM",
    "Answer",
    "Data",
    "Run",
    "adopt_data",
    "begin",
    "drop_data",
    "end",
    "exchange",
    "find_data",
]

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # errors for a full disk

_BEAT_SECONDS = 30.0  # between answers if no block has been finished
_LINGER_SECONDS = 0.2  # that an answer waits for more blocks
_MOST_BYTES = 8_000_000  # size of the blocks in an answer, not counting the last one


class Data(NamedTuple):
    """The rows and labels of a training run: a binary dataset (``.xmc``), and its identity."""

    path: str
    size: int
    fingerprint: str


class Run(NamedTuple):
    """A training run: everything that solving its blocks needs, except the data.

    Blocks are written to `folder` if this process can access it: a folder for this run alone, in
    the model directory. Once it is gone, no process writes blocks of the run anymore.
    """

    folder: str
    params: SolverParams
    transform: Transform
    threads: int


class Answer(NamedTuple):
    """The outcome of a block: a receipt, or an error.

    `content` is that of its file, unless the file is in the folder created by `begin`.
    """

    number: int
    receipt: BlockReceipt | None = None
    content: bytes | None = None
    error: Exception | None = None


_datasets: dict[str, TrainingData] = {}  # checked, and not yet part of a run
_runs: dict[str, _ActiveRun] = {}
_runs_lock = threading.Lock()


def find_data(data: Data) -> str | None:
    """Return the path at which this process can read the data: the client's, or a local copy."""
    for path in (Path(data.path), _copy(data)):
        with suppress(OSError, DataError):
            if path.stat().st_size == data.size:
                _datasets[str(path)] = _check(path, data)
                return str(path)
    return None


def adopt_data(parcel: str, data: Data) -> str:
    """Check data that were sent here and keep them as this machine's copy; return its path."""
    copy = _copy(data)
    with arrived(parcel) as path:
        _datasets[str(copy)] = _check(path, data)
        path.replace(copy)
    return str(copy)


def drop_data(data: Data, token: str) -> None:
    """Remove this machine's copy of the data, if any, and what is left of the sender's files."""
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

    Return the name of a new folder for its blocks inside the run's folder, or None if this process
    cannot access that.
    """
    end(run.folder)
    with _runs_lock:
        here = Path(run.folder).parent
        for folder, other in list(_runs.items()):
            if other.idle or Path(folder).parent == here:
                _runs.pop(folder).close()
    own = _make_own(Path(run.folder))
    loaded = _datasets.pop(path, None) or TrainingData.map(Path(path))
    active = _ActiveRun(run, loaded, own)
    with _runs_lock:
        _runs[run.folder] = active
    return own.name if own else None


def _make_own(folder: Path) -> Path | None:
    """Create a folder for the blocks of this process: another one may solve the same blocks."""
    own = folder / f"worker-{secrets.token_hex(8)}"
    try:
        own.mkdir()
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        return None
    return own


def exchange(folder: str, blocks: Sequence[tuple[int, npt.NDArray[np.int64]]]) -> list[Answer]:
    """Accept blocks of a run, by number and labels, and return the results so far.

    Waits until there is a result; after half a minute the answer is empty. Raises `WorkerLost` if
    this process is not the one that started the run. Errors in a block are part of the answer;
    other errors are raised.
    """
    with _runs_lock:
        active = _runs.get(folder)
        if active is None:
            raise WorkerLost("this worker has been restarted")
        active.add(blocks)
    if not active.ready:
        step_aside()
    return active.answers()


def end(folder: str) -> None:
    """Stop a run, and all solving for it."""
    with _runs_lock:
        active = _runs.pop(folder, None)
    if active:
        active.close()


class _ActiveRun:
    """The threads that solve a run's blocks, and their results.

    Regardless of the number of blocks, there are the run's threads, one that writes and one that
    collects.
    """

    def __init__(self, run: Run, loaded: TrainingData, folder: Path | None) -> None:
        costs = run.params.weighting.factors
        problem = Problem(loaded.X, loaded.Y, run.transform, loaded.weights, costs, loaded.pairs)
        problem.equal_labels  # noqa: B018  before there are threads
        self._folder = folder
        self._scratch = scratch_directory()
        self._changed = threading.Condition()
        self._unsolved: set[int] = set()
        self._ready: deque[Answer] = deque()
        self._over: Exception | None = None  # why there will be no more results
        self._closed = False
        self._solver = BlockSolver(problem, run.params, self._keep, run.threads)
        self._thread = threading.Thread(target=self._collect, name="dismec-collect", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        return not self._unsolved

    @property
    def ready(self) -> bool:
        """Whether `answers` will return soon."""
        return bool(self._ready or self._over)

    def add(self, blocks: Sequence[tuple[int, npt.NDArray[np.int64]]]) -> None:
        with self._changed:
            self._unsolved.update(number for number, _ in blocks)
        for number, labels in blocks:
            self._solver.add(number, labels)

    def answers(self) -> list[Answer]:
        """Return results that have not been returned yet; see `exchange`."""
        with self._changed:
            self._changed.wait_for(lambda: self.ready, _BEAT_SECONDS)
            if self._ready:  # several at a time, but before threads run out of labels
                self._changed.wait_for(self._is_half, _LINGER_SECONDS)
            if self._over and not self._ready:
                raise self._over
            found, n_bytes = [], 0
            while self._ready and n_bytes < _MOST_BYTES:
                found.append(self._ready.popleft())
                n_bytes += len(found[-1].content or b"")
            return found

    def _is_half(self) -> bool:
        return len(self._ready) >= len(self._unsolved) or self._over is not None

    def close(self) -> None:
        self._closed = True
        self._thread.join()

    def _keep(self, block: Block) -> tuple[BlockReceipt, bytes | None]:
        if self._folder:
            return weight_files.write_block(self._folder, block), None
        with TemporaryDirectory(prefix="dismec-", dir=self._scratch) as folder:
            receipt = weight_files.write_block(Path(folder), block)
            return receipt, (Path(folder) / receipt.file).read_bytes()

    def _collect(self) -> None:
        over: Exception = WorkerLost("the run has been ended")
        # A thread that waits for more blocks would keep the process from exiting.
        with self._solver:
            try:
                while not self._closed and threading.main_thread().is_alive():
                    event = self._solver.wait(0.5)
                    if isinstance(event, Kept):
                        self._put(event)
            except BaseException as error:
                over = error if isinstance(error, Exception) else WorkerLost(repr(error))
        with self._changed:
            self._over = over
            self._changed.notify_all()

    def _put(self, kept: Kept[tuple[BlockReceipt, bytes | None]]) -> None:
        if isinstance(kept.error, Exception):
            answer = Answer(kept.number, error=portable(kept.error))
        else:
            answer = Answer(kept.number, *kept.get())
        with self._changed:
            self._unsolved.discard(kept.number)
            self._ready.append(answer)
            self._changed.notify_all()
