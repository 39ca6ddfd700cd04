"""Labels → receipts of their blocks, on the workers of a cluster.

The client decides which worker solves which block (`cluster.schedule`). Every worker has a few at a
time, the costly ones first; one call sends it more and returns those that are done. If a worker
dies or is late, its blocks go to the others; a worker that joins late is sent the data and takes
part. The cluster decides nothing, so killing any of its processes, or the client, costs only the
work in progress.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.cluster import training_worker
from dismec.cluster.connection import Cluster
from dismec.cluster.placed import PlacedData
from dismec.cluster.pool import Member, Pool, Steps, Work
from dismec.cluster.schedule import Schedule
from dismec.cluster.shipping import Sender, hand_over
from dismec.cluster.task import Task
from dismec.data.counts import counted
from dismec.errors import ClusterError, WorkerLost
from dismec.features.transform import Transform
from dismec.model import weight_files
from dismec.model.directory import make_run_folder
from dismec.model.manifest import BlockReceipt
from dismec.solve.partition import BlockCutter
from dismec.solve.problem import SolverParams

__all__ = ["ClusterJob", "Report", "solve_on_cluster"]

_CALLS = 2  # concurrent calls to a worker: one that waits there, and one that sends more
_NOBODY_SECONDS = 60.0
_STUCK_SECONDS = 30.0  # after which data that do not arrive are sent through another worker

_log = logging.getLogger("dismec")


@dataclass(frozen=True, eq=False)
class ClusterJob:
    """The data, parameters and labels of a training run on a cluster."""

    directory: Path  # the model directory
    data: Path  # a binary dataset (``.xmc``) with the rows
    fingerprint: str  # of the data
    params: SolverParams
    transform: Transform
    cutter: BlockCutter  # for the labels to solve
    first: int = 0  # number of the first block
    placed: PlacedData | None = None  # if the data are on a worker instead of here


@dataclass
class Report:
    """The result of a run on a cluster."""

    blocks: int = 0  # blocks solved
    workers: int = 0  # workers that took part
    busy: float = 0.0  # core-seconds spent on solving
    present: float = 0.0  # core-seconds for which workers were ready
    sent: int = 0  # bytes of data sent
    received: int = 0  # bytes of blocks returned to the client
    repeated: int = 0  # blocks given to a second worker

    @property
    def idle(self) -> float:
        """The share of the workers' time that was not spent on solving."""
        return max(0.0, 1 - self.busy / self.present) if self.present else 0.0

    def __str__(self) -> str:
        sent, received = self.sent / 1e6, self.received / 1e6
        twice = f", {self.repeated} of them given to two" if self.repeated else ""
        return (
            f"{counted(self.blocks, 'block')} on {counted(self.workers, 'worker')}{twice}, idle "
            f"{100 * self.idle:.1f} %; "
            f"{sent:.1f} MB of data sent, {received:.1f} MB of blocks received"
        )


def solve_on_cluster(
    cluster: Cluster, job: ClusterJob, progress: Callable[[int, npt.NDArray[np.int64]], None]
) -> Generator[list[BlockReceipt], None, None]:
    """Solve labels and yield receipts of blocks, whose files are then in the directory.

    Closing the generator stops the workers. At the end a `Report` is logged. `progress` is called
    with the number of labels just solved, and the labels. Raises `ClusterError` if there is no
    scheduler or no worker for a while, workers die of a block, or a disk is full; and the error of
    a block that has failed on three workers, or on all of them.
    """
    if not job.cutter.n_left:
        return
    run = _ClusterRun(cluster, job)
    try:
        for solved in run.receipts():
            yield [receipt for receipt, _ in solved]
            for receipt, labels in solved:
                progress(receipt.n_labels, labels)
        run.complete_report()
        _log.info("%s", run.report)
    finally:
        run.end()


@dataclass(eq=False)
class _BlockWorker(Member[None]):
    """A worker, and the calls that send it blocks and return results."""

    since: float | None = None  # when it became ready
    folder: Path | None = None  # where it writes blocks, if it can access the model directory


_Solved = tuple[BlockReceipt, npt.NDArray[np.int64]]  # with the block's labels


def _data_of(job: ClusterJob) -> training_worker.Data:
    """Return how workers identify the data."""
    if job.placed is not None:
        size = job.placed.facts.size
        return training_worker.Data(job.placed.path, size, job.fingerprint)
    path = job.data.resolve()
    return training_worker.Data(str(path), path.stat().st_size, job.fingerprint)


class _ClusterRun:
    """A training run on the workers of a cluster."""

    def __init__(self, cluster: Cluster, job: ClusterJob) -> None:
        self.report = Report()
        self._cluster = cluster
        self._job = job
        self._data = _data_of(job)
        # Workers that have the data, if they are not here, and their paths there.
        self._holders = {job.placed.home: job.placed.path} if job.placed else {}
        self._folder = make_run_folder(job.directory.resolve())
        self._sender = Sender(cluster)
        self._sending: set[str] = set()  # hosts
        self._pool: Pool[_BlockWorker, None] = Pool(
            cluster, Work(_BlockWorker, self._prepare, self._hand_out, self._lost)
        )
        self._schedule = Schedule(job.cutter, job.first, self._pool.members)
        self._solved: list[_Solved] = []  # not yet passed on
        self._last_present = self._warned = time.monotonic()

    def receipts(self) -> Iterator[list[_Solved]]:
        """Yield receipts as they arrive."""
        while not self._schedule.finished:
            try:
                for member, _, outcome in self._pool.turn():
                    self._take(member, outcome)
                self._check_late()
            finally:  # finished blocks are kept, whatever else has failed
                solved, self._solved = self._solved, []
                if solved:
                    yield solved
            self._check_workers()

    def complete_report(self) -> None:
        """Fill in the entries of the report that are known only at the end."""
        for member in self._pool.members.values():
            self._count_time(member)
        self.report.sent = self._sender.n_bytes
        self.report.repeated = len(self._schedule.repeated)

    def end(self) -> None:
        """Stop the workers and remove what they were sent."""
        self._pool.close(
            (training_worker.end, str(self._folder)),
            (training_worker.drop_data, self._data, self._sender.token),
        )
        rmtree(self._folder, ignore_errors=True)

    def _prepare(self, member: _BlockWorker) -> Steps:
        """Send a worker the data, unless it can read them, and prepare it for solving."""
        self._warn_of_other_kernels(member)
        self.report.workers += 1
        submit, info = self._cluster.submit, member.info
        path = yield submit(member.address, training_worker.find_data, self._data)
        while path is None and info.host in self._sending:
            yield from self._await_data(info.host)
            path = yield submit(member.address, training_worker.find_data, self._data)
        if path is None:
            path = yield from self._send_data(member)
        self._holders[member.address] = path
        job = self._job
        run = training_worker.Run(str(self._folder), job.params, job.transform, info.threads)
        own = yield submit(member.address, training_worker.begin, run, path)
        if own is not None:
            member.folder = self._folder / own
            if not member.folder.exists():
                raise ClusterError(
                    f"worker {member.address} has another directory at {self._folder} than this "
                    "machine: choose a path that is shared by all machines, or exists only here"
                )
        member.since = time.monotonic()
        self._schedule.join(member.address, info.threads, member.since)

    def _await_data(self, host: str) -> Steps:
        """Wait until the data have been sent to a machine, or stop arriving there."""
        sent, moved = self._sender.n_bytes, time.monotonic()
        while host in self._sending:
            yield None
            if self._sender.n_bytes != sent:
                sent, moved = self._sender.n_bytes, time.monotonic()
            elif time.monotonic() - moved > _STUCK_SECONDS:
                self._sending.discard(host)  # the receiving worker may hang

    def _warn_of_other_kernels(self, member: _BlockWorker) -> None:
        """Warn about a worker whose kernels differ from those of earlier workers."""
        before = takewhile(lambda other: other is not member, self._pool.members.values())
        kinds = {other.info.isa for other in before}
        if kinds and member.info.isa not in kinds:
            _log.warning(
                "worker %s runs %s kernels, others %s: weights are equally accurate, but their "
                "last bits differ from those of a model trained on one kind of CPU",
                member.address,
                member.info.isa,
                ", ".join(sorted(kinds)),
            )

    def _send_data(self, member: _BlockWorker) -> Generator[Task | None, Any, Any]:
        """Send the data to a machine through one of its workers; return their path there."""
        host = member.info.host
        self._sending.add(host)
        try:
            adopt, path = training_worker.adopt_data, Path(self._data.path)
            if self._job.placed is None:
                return (yield from self._sender.send(member.address, path, adopt, self._data))
            return (yield from self._hand_over(member))
        finally:
            self._sending.discard(host)

    def _hand_over(self, member: _BlockWorker) -> Generator[Task | None, Any, Any]:
        """Send a worker data that other workers have; return their path there."""
        begin = time.monotonic()
        while time.monotonic() - begin < _NOBODY_SECONDS:
            there = self._cluster.workers()
            holders = [h for h in self._holders.items() if h[0] in there]
            if not holders:
                yield None
                continue
            holder, parcel = secrets.choice(holders), self._sender.parcel()
            try:
                size, worker = self._data.size, member.address
                yield from hand_over(self._cluster, holder, worker, parcel, size)
                adopt = training_worker.adopt_data, parcel, self._data
                return (yield self._cluster.submit(worker, *adopt))
            except WorkerLost:
                if holder[0] in self._cluster.workers():
                    raise  # the other worker is at fault
        raise ClusterError(
            "no worker has the data anymore; run the same command again: finished blocks are kept"
        )

    def _lost(self, member: _BlockWorker, why: str) -> None:
        """Let other workers solve the blocks of a worker that has left."""
        self._count_time(member)
        others = "; others solve its blocks" if self._schedule.held(member.address) else ""
        _log.warning("worker %s %s%s", member.address, why, others)
        self._schedule.leave(member.address)

    def _count_time(self, member: _BlockWorker) -> None:
        if member.since is not None:
            now = time.monotonic()
            self.report.present += member.info.threads * (now - member.since)
            member.since = now

    def _check_workers(self) -> None:
        """Raise `ClusterError` if there has been no worker for a while."""
        waited = time.monotonic() - self._last_present
        if self._pool.members:
            self._last_present = time.monotonic()
        elif waited > _NOBODY_SECONDS:
            raise ClusterError(
                f"there has been no worker for {waited:.0f} s; finished blocks are kept, and the "
                "same command resumes"
            )

    def _check_late(self) -> None:
        """Report workers that make no progress; their blocks are given to others."""
        now = time.monotonic()
        for delay in self._schedule.delays(now):
            should = f", which should take {delay.expected:.1f} s" if delay.expected else ""
            _log.warning(
                "worker %s has finished no block for %.0f s and holds %s%s: other workers solve "
                "the same labels, and the first result counts",
                delay.worker,
                delay.waited,
                counted(delay.n_blocks, "block"),
                should,
            )
        quiet = now - self._pool.last_answer
        if self._pool.members and min(quiet, now - self._warned) > _NOBODY_SECONDS:
            self._warned = now
            some = ", ".join(list(self._pool.members)[:3])
            _log.warning("no worker has answered for %.0f s: %s", quiet, some)

    def _hand_out(self) -> None:
        """Give every worker enough blocks, and ask it for results."""
        ready = {a: m for a, m in self._pool.members.items() if m.since is not None}
        free = [address for address, member in ready.items() if len(member.tasks) < _CALLS]
        given = self._schedule.hand_out(free, time.monotonic())
        for address, member in ready.items():
            numbers = given.get(address, [])
            if numbers or (not member.tasks and self._schedule.held(address)):
                blocks = [(number, self._schedule.labels(number)) for number in numbers]
                exchange = training_worker.exchange, str(self._folder), blocks
                member.tasks[self._cluster.submit(address, *exchange)] = None

    def _take(self, member: _BlockWorker, outcome: Any) -> None:
        """Handle the outcome of a call to a worker: answers, or an error."""
        if isinstance(outcome, Exception):
            self._pool.refuse(member, outcome)
            return
        self._schedule.answered(member.address, time.monotonic())
        for answer in outcome:
            if answer.error is not None:
                self._fail(member, answer.number, answer.error)
            else:
                self._adopt(member, answer)

    def _adopt(self, member: _BlockWorker, answer: training_worker.Answer) -> None:
        """Accept a solved block, unless another worker was faster."""
        receipt, now = answer.receipt, time.monotonic()
        assert receipt is not None
        seconds = receipt.stats.seconds if receipt.stats else 0.0
        labels = self._schedule.done(member.address, answer.number, seconds, now)
        if labels is None:
            return
        source = answer.content if answer.content is not None else member.folder
        assert source is not None
        weight_files.adopt_block(self._job.directory, receipt, source)
        self._solved.append((receipt, labels))
        self.report.blocks += 1
        self.report.received += len(answer.content or b"")
        self.report.busy += seconds

    def _fail(self, member: _BlockWorker, number: int, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno in training_worker.NO_ROOM:
            if member.folder is None:  # on its own disk
                if member.address in self._pool.members:
                    self._pool.refuse(member, error)
                return
            raise ClusterError(
                f"worker {member.address}: {error.filename}: {error.strerror}; finished blocks "
                "are kept, and the same command resumes"
            )
        _log.warning("block %d has failed on worker %s: %s", number, member.address, error)
        self._schedule.failed(member.address, number, error, time.monotonic())
