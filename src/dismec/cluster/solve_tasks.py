"""Labels → receipts of their blocks, on the workers of a cluster.

Blocks are Dask tasks, which Dask places and retries. The client adopts each block when its task is
done; killing any process of the cluster, or the client, costs only the work in progress. One rule
is added to those of Dask: a block that takes far longer than expected is solved by a second worker
as well, and the first result counts.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dismec.cluster.client import (
    Cluster,
    SchedulerLost,
    Tasks,
    own_version,
    scratch_directory,
    this_worker,
)
from dismec.cluster.file_copies import (
    FileSpec,
    LocalCopy,
    NeedsFile,
    open_file,
    report_full_disk,
    send,
)
from dismec.data.counts import counted
from dismec.data.training_file import TrainingData
from dismec.errors import ClusterError, DataError
from dismec.features.transform import Transform
from dismec.model import weight_files
from dismec.model.directory import make_run_folder
from dismec.model.manifest import BlockReceipt
from dismec.solve.problem import Problem, SolverParams
from dismec.solve.threads import solve_blocks

BLOCKS_PER_THREAD = 24  # so the last ones are a small share of the work
_FEW_THREADS = 2  # with fewer, blocks are cut as if there were this many: more may come
_MANY = 10_000  # blocks; each costs the client and the scheduler time
_RETRIES = 3  # of a task that raises an error

# A block is late if its worker has had it for this many seconds plus this multiple of the time that
# it should take, judged by the slowest block so far. A worker has the next block a little early.
_LATE_SECONDS = 5.0
_LATE_TIMES = 4.0
_LOOK_SECONDS = 1.0  # between checks

_log = logging.getLogger("dismec")

_BlockLabels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ClusterJob:
    """The data, parameters and labels of a training run on a cluster."""

    directory: Path  # the model directory
    file: FileSpec  # a binary dataset (``.xmc``) with the rows
    home: str | None  # the worker that has the file, if it is not on this machine
    params: SolverParams
    transform: Transform
    blocks: Callable[[int], Mapping[int, _BlockLabels]]  # cuts the labels into about so many
    work: npt.NDArray[np.int64]  # of each label


@dataclass
class Report:
    """The result of a run on a cluster."""

    blocks: int = 0  # blocks solved
    workers: set[str] = field(default_factory=set)  # that solved them
    sent: int = 0  # bytes of data sent
    received: int = 0  # bytes of blocks returned to the client
    repeated: int = 0  # blocks given to a second worker

    def __str__(self) -> str:
        twice = f", {self.repeated} of them given to two" if self.repeated else ""
        return (
            f"{counted(self.blocks, 'block')} on {counted(len(self.workers), 'worker')}{twice}; "
            f"{self.sent / 1e6:.1f} MB of data sent, {self.received / 1e6:.1f} MB of blocks "
            "received"
        )


def block_count(threads: int) -> int:
    """Return how many blocks labels are cut into for workers with this many threads in total."""
    return min(BLOCKS_PER_THREAD * max(threads, _FEW_THREADS), max(_MANY, threads))


def solve_on_cluster(
    cluster: Cluster, job: ClusterJob, progress: Callable[[int, _BlockLabels], None]
) -> Generator[list[BlockReceipt], None, None]:
    """Solve labels and yield receipts of blocks, whose files are then in the directory.

    Closing the generator cancels the tasks. At the end a `Report` is logged. `progress` is called
    with the number of labels just solved, and the labels. Raises `ClusterError` if there is no
    scheduler or no worker for a while, a block kills workers, or a disk is full; and the error of a
    block that has failed several times.
    """
    run = _ClusterRun(cluster, job)
    try:
        for solved in run.receipts():
            yield [receipt for receipt, _ in solved]
            for receipt, labels in solved:
                progress(receipt.n_labels, labels)
        _log.info("%s", run.report)
    finally:
        run.end()


class Run:
    """A training run: everything that solving its blocks needs.

    Blocks are written to `folder` if this process can: a folder with a random name for this run
    alone, in the model directory. Once it is gone, no process writes blocks of the run anymore.
    """

    def __init__(
        self, folder: str, data: FileSpec, params: SolverParams, transform: Transform
    ) -> None:
        self.folder, self.data, self.params, self.transform = folder, data, params, transform
        self._lock = threading.Lock()
        self._problem: Problem | None = None
        self._copy: LocalCopy | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Run, (self.folder, self.data, self.params, self.transform)

    def problem(self, home: str | None) -> Problem:
        """Return the problem of this process; `home` and errors as in `open_file`."""
        with self._lock:
            if self._problem is None:
                rows, self._copy = open_file(self.data, self._load, home)
                costs = self.params.weighting.factors
                self._problem = Problem(
                    rows.X, rows.Y, self.transform, rows.weights, costs, rows.pairs
                )
                self._problem.equal_labels  # noqa: B018  before there are threads
            return self._problem

    def _load(self, path: Path) -> TrainingData:
        rows = TrainingData.map(path)  # states its fingerprint if the client has written it
        if rows.fingerprint != self.data.digest:
            raise DataError(f"{path}: not the data of this training")
        return rows


class Solved(NamedTuple):
    """A solved block: its receipt, and the folder or the content of its file."""

    receipt: BlockReceipt
    file: str | bytes
    worker: str
    seconds: float  # that the task took, including the preparation of the problem


def solve_block(
    number: int, labels: npt.NDArray[np.int64], *, run: Run, software: str, home: str | None
) -> Solved | NeedsFile:
    """On a worker: solve a block with one thread, and write its file.

    `software` is the client's version of dismec, and `home` a worker to fetch the data from. Raises
    `ClusterError` if versions differ or a disk is full.
    """
    begin = time.monotonic()
    if software != own_version():
        raise ClusterError(f"the client has dismec {software}, a worker {own_version()}")
    try:
        problem = run.problem(home)
    except NeedsFile as error:  # returned, because a traceback would keep the run alive
        return error.with_traceback(None)
    folder = None
    with suppress(OSError), report_full_disk(Path(run.folder)):  # unless it is not shared
        folder = mkdtemp(dir=run.folder)  # another worker may be solving the same block
    scratch = TemporaryDirectory(prefix="dismec-", dir=scratch_directory())
    with nullcontext(folder) if folder else scratch as into, report_full_disk(Path(into)):
        write = partial(weight_files.write_block, Path(into))
        (receipt,) = solve_blocks(problem, run.params, {number: labels}, write, threads=1)
        file = folder or (Path(into) / receipt.file).read_bytes()
    return Solved(receipt, file, this_worker(), time.monotonic() - begin)


class _Block(NamedTuple):
    number: int
    labels: _BlockLabels
    cost: int


@dataclass(eq=False)
class _Attempt:
    """A submitted task: the block that it solves, and the worker that has it."""

    block: _Block
    future: Any
    worker: str | None = None
    since: float = 0.0  # when the worker was first seen to have it
    late: bool = False


class _ClusterRun:
    """A training run on the workers of a cluster."""

    def __init__(self, cluster: Cluster, job: ClusterJob) -> None:
        self.report = Report()
        self._cluster = cluster
        self._job = job
        self._home = job.home
        self._copy: Any = None  # keeps the data that were sent there
        self._folder = make_run_folder(job.directory.resolve())
        self._slowest = 0.0  # seconds per unit of cost
        self._looked = 0.0  # when late blocks were last looked for
        self._isa: set[str] = set()
        self._refused: set[str] = set()  # workers of another version
        blocks = job.blocks(block_count(sum(cluster.workers().values())))
        self._open = {n: _Block(n, some, int(job.work[some].sum())) for n, some in blocks.items()}
        self._attempts: dict[str, _Attempt] = {}  # by key of the task

    def receipts(self) -> Iterator[list[tuple[BlockReceipt, _BlockLabels]]]:
        """Yield receipts of blocks as they arrive, with the labels of each."""
        while self._open:
            try:
                yield from self._solve()
            except SchedulerLost:
                self._attempts.clear()
                self._home = self._job.home
                self._cluster.reconnect()

    def end(self) -> None:
        """Cancel what is left, and remove the folder of the run."""
        with suppress(OSError, RuntimeError, ValueError):  # from a closed client
            self._cluster.client.cancel([attempt.future for attempt in self._attempts.values()])
        rmtree(self._folder, ignore_errors=True)

    def _solve(self) -> Iterator[list[tuple[BlockReceipt, _BlockLabels]]]:
        """Yield receipts, for as long as the scheduler lives."""
        given = str(self._folder), self._job.file, self._job.params, self._job.transform
        self._run = self._cluster.client.submit(Run, *given, pure=False)
        self._tasks = Tasks(self._cluster)
        self._submit(self._open.values())
        while self._open:
            solved, failure = [], None
            for future, outcome in self._tasks.finished():
                attempt = self._attempts.pop(future.key, None)
                if attempt is None or attempt.block.number not in self._open:
                    continue  # another worker was faster
                try:
                    if isinstance(outcome, Exception):
                        self._submit_again(attempt.block, outcome)
                    else:
                        solved.append(self._adopt(attempt.block, outcome))
                except Exception as error:
                    failure = error  # but other blocks may have been finished
            if solved:
                yield solved
            if failure is not None:
                raise failure if isinstance(failure, SchedulerLost) else _with_advice(failure)
            self._repeat_late()

    def _submit(self, blocks: Iterable[_Block], workers: list[str] | None = None) -> None:
        """Submit blocks as tasks, to some workers if there are any of them left."""
        some, token = list(blocks), secrets.token_hex(8)
        futures = self._cluster.client.map(
            solve_block,
            [block.number for block in some],
            [block.labels for block in some],
            key=[f"solve_block-{token}-{block.number:06d}" for block in some],
            run=self._run,
            software=own_version(),
            home=self._home,
            retries=_RETRIES,
            priority=int(workers is not None),
            workers=workers,
            allow_other_workers=workers is not None,
        )
        for block, future in zip(some, futures, strict=True):
            self._attempts[future.key] = _Attempt(block, future)
        self._tasks.add(*futures)

    def _adopt(self, block: _Block, solved: Solved) -> tuple[BlockReceipt, _BlockLabels]:
        """Make a solved block part of the model."""
        receipt, file = solved.receipt, solved.file
        source = Path(file) if isinstance(file, str) else file
        weight_files.adopt_block(self._job.directory, receipt, source)
        del self._open[block.number]
        others = [a.future for a in self._attempts.values() if a.block is block]
        if others:
            self._cluster.client.cancel(others)
        self._slowest = max(self._slowest, solved.seconds / max(block.cost, 1))
        self._warn_of_other_kernels(solved)
        self.report.blocks += 1
        self.report.workers.add(solved.worker)
        self.report.received += 0 if isinstance(file, str) else len(file)
        return receipt, block.labels

    def _warn_of_other_kernels(self, solved: Solved) -> None:
        """Warn about a worker whose kernels differ from those of earlier blocks."""
        isa = solved.receipt.isa
        if self._isa and isa not in self._isa:
            _log.warning(
                "worker %s runs %s kernels, others %s: the last bits of weights differ",
                solved.worker,
                isa,
                ", ".join(sorted(self._isa)),
            )
        self._isa.add(isa)

    def _submit_again(self, block: _Block, error: Exception) -> None:
        """Submit a block again if that helps, or raise the error that it has failed with."""
        if isinstance(error, SchedulerLost):
            raise error
        if isinstance(error, NeedsFile):
            if error.home == self._home:
                self._send_data(error.worker)
            self._submit([block])
            return
        for worker, software in self._cluster.other_versions().items():
            if worker not in self._refused:
                self._refused.add(worker)
                _log.warning("worker %s has %s: it is not used", worker, software)
        suitable = self._workers_without()
        if self._refused and suitable:
            self._submit([block], suitable)
            return
        error.add_note(f"block {block.number} has failed")
        raise error

    def _workers_without(self, worker: str | None = None) -> list[str]:
        """Return the workers of this version, except one."""
        return [w for w in self._cluster.workers() if w != worker and w not in self._refused]

    def _send_data(self, worker: str) -> None:
        """Send the data to a worker that has asked for them; others fetch them from there."""
        self._home = None
        if self._job.home is not None:
            raise ClusterError("no worker has the data anymore")
        self._copy = send(self._cluster, self._job.file, worker)
        if self._copy is not None:
            self._home = worker
            self.report.sent += self._job.file.size

    def _repeat_late(self) -> None:
        """Submit blocks that are late a second time, to other workers."""
        now = time.monotonic()
        if not self._slowest or now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        for worker, keys in self._cluster.client.processing().items():
            for attempt in [self._attempts[key] for key in keys if key in self._attempts]:
                if attempt.worker != worker:
                    attempt.worker, attempt.since = worker, now
                expected, waited = self._slowest * attempt.block.cost, now - attempt.since
                others = self._workers_without(worker)
                if attempt.late or not others:
                    continue
                if waited > _LATE_SECONDS + _LATE_TIMES * expected:
                    attempt.late = True
                    self.report.repeated += 1
                    _log.warning(
                        "worker %s has been solving block %d for %.0f s, which should take %.1f s: "
                        "another worker solves it as well, and the first result counts",
                        worker,
                        attempt.block.number,
                        waited,
                        expected,
                    )
                    self._submit([attempt.block], others)


def _with_advice(error: Exception) -> Exception:
    """Return an error that says how to go on."""
    advice = "finished blocks are kept, and the same command resumes"
    if isinstance(error, ClusterError):
        return ClusterError(f"{error}; {advice}")
    error.add_note(advice)
    return error
