"""Blocks → receipts, on the workers of a cluster.

The client decides which worker solves which block. Every worker has a few blocks at a time, the
costly ones first, and gets the next one when it is through with one. A block whose worker dies goes
back to the others; a worker that joins late is brought the data and takes part. Nothing is decided
by the cluster, so that killing any of its processes, or the client, costs only what was under way.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
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
from dismec.cluster.pool import MOST_LOSSES, Member, Pool, Steps, Work
from dismec.cluster.shipping import Sender, hand_over
from dismec.cluster.task import Task
from dismec.errors import ClusterError, WorkerLost
from dismec.features.transform import Transform
from dismec.model import weight_files
from dismec.model.directory import make_run_folder
from dismec.model.manifest import BlockReceipt
from dismec.solve.problem import SolverParams

__all__ = ["BLOCKS_A_THREAD", "ClusterJob", "Report", "solve_on_cluster"]

BLOCKS_A_THREAD = 24  # so that the last ones are a small share of the work
_LABELS_A_THREAD = 128  # given to a worker at a time, at least: what is being solved, and the next
_MOST_FAILURES = 3
_NOBODY_SECONDS = 60.0

_log = logging.getLogger("dismec")

_BlockLabels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ClusterJob:
    """What is trained."""

    directory: Path  # of the model
    data: Path  # a binary dataset (``.xmc``) of the rows
    fingerprint: str  # of the data
    params: SolverParams
    transform: Transform
    label_costs: npt.NDArray[np.int64]  # as `blocks.effort` gives them
    placed: PlacedData | None = None  # if the data are not here, but with a worker


@dataclass
class Report:
    """What a run on a cluster has come to."""

    blocks: int = 0  # solved
    workers: int = 0  # that took part
    busy: float = 0.0  # core-seconds spent on solving
    present: float = 0.0  # core-seconds that workers were ready for it
    sent: int = 0  # bytes of data
    received: int = 0  # bytes of blocks that came back to the client

    @property
    def idle(self) -> float:
        """The share of the workers' time that was not spent on solving."""
        return max(0.0, 1 - self.busy / self.present) if self.present else 0.0

    def __str__(self) -> str:
        sent, received = self.sent / 1e6, self.received / 1e6
        return (
            f"{self.blocks} blocks on {self.workers} workers, idle {100 * self.idle:.1f} %; "
            f"{sent:.1f} MB of data sent, {received:.1f} MB of blocks received"
        )


def solve_on_cluster(
    cluster: Cluster,
    job: ClusterJob,
    blocks: Mapping[int, _BlockLabels],
    progress: Callable[[int, _BlockLabels], None],
) -> Generator[BlockReceipt, None, None]:
    """Solve blocks of labels and yield their receipts; the files are in the model directory then.

    Closing the generator stops the workers. In the end a `Report` is logged. `progress` is called
    with how many labels have just been solved, and which. Raises `ClusterError` if there is no
    scheduler or no worker for a while, or workers die of a block; and what a block has raised on
    three workers, or on all there are.
    """
    if not blocks:
        return
    run = _ClusterRun(cluster, job, blocks)
    try:
        for receipt in run.receipts():
            yield receipt
            progress(receipt.n_labels, blocks[receipt.number])
        run.sum_up()
        _log.info("%s", run.report)
    finally:
        run.end()


@dataclass(eq=False)
class _BlockWorker(Member[int]):
    """A worker, and the numbers of the blocks that it is solving."""

    since: float | None = None  # when it became ready


def _data_of(job: ClusterJob) -> training_worker.Data:
    """What workers know the data by."""
    if job.placed is not None:
        size = job.placed.facts.size
        return training_worker.Data(job.placed.path, size, job.fingerprint)
    path = job.data.resolve()
    return training_worker.Data(str(path), path.stat().st_size, job.fingerprint)


class _ClusterRun:
    def __init__(
        self, cluster: Cluster, job: ClusterJob, blocks: Mapping[int, _BlockLabels]
    ) -> None:
        self.report = Report()
        self._cluster = cluster
        self._job = job
        self._blocks = blocks
        self._data = _data_of(job)
        # Workers that the data can be had from, if not from here, and their paths there.
        self._holders = {job.placed.home: job.placed.path} if job.placed else {}
        self._folder = make_run_folder(job.directory.resolve())
        self._cost = {number: int(job.label_costs[b].sum()) for number, b in blocks.items()}
        self._queue = sorted(blocks, key=lambda number: self._cost[number])  # costliest last
        self._queued = sum(self._cost.values())
        self._done: set[int] = set()
        self._failures: dict[int, dict[str, Exception]] = {}
        self._losses: Counter[int] = Counter()
        self._sender = Sender(cluster)
        self._sending: set[str] = set()  # hosts
        self._pool: Pool[_BlockWorker, int] = Pool(
            cluster, Work(_BlockWorker, self._prepare, self._hand_out, self._lost)
        )
        self._met = time.monotonic()

    def receipts(self) -> Iterator[BlockReceipt]:
        """All of them, as they come."""
        while len(self._done) < len(self._blocks):
            for member, number, outcome in self._pool.turn():
                if isinstance(outcome, Exception):
                    self._fail(number, member.address, outcome)
                elif number not in self._done:
                    yield self._adopt(number, *outcome)
            self._check_alone()

    def sum_up(self) -> None:
        """Bring the report up to date."""
        for member in self._pool.members.values():
            self._count_time(member)
        self.report.sent = self._sender.n_bytes

    def end(self) -> None:
        """Stop the workers and remove what they were sent."""
        self._pool.close(
            (training_worker.end, str(self._folder)),
            (training_worker.drop_data, self._data, self._sender.token),
        )
        rmtree(self._folder, ignore_errors=True)

    def _prepare(self, member: _BlockWorker) -> Steps:
        """Bring a worker the data, unless it sees them, and what else solving takes."""
        self._compare(member)
        self.report.workers += 1
        submit, info = self._cluster.submit, member.info
        path = yield submit(member.address, training_worker.find_data, self._data)
        while path is None and info.host in self._sending:
            yield None
            if info.host not in self._sending:
                path = yield submit(member.address, training_worker.find_data, self._data)
        if path is None:
            path = yield from self._send_data(member)
        self._holders[member.address] = path
        job = self._job
        run = training_worker.Run(str(self._folder), job.params, job.transform, info.threads)
        probe = yield submit(member.address, training_worker.begin, run, path)
        if probe is not None and not (self._folder / probe).exists():
            raise ClusterError(
                f"worker {member.address} sees another {self._folder} than this machine"
            )
        member.since = time.monotonic()

    def _compare(self, member: _BlockWorker) -> None:
        """Warn of a worker whose kernels are not those of the ones that came before it."""
        before = takewhile(lambda other: other is not member, self._pool.members.values())
        kinds = {other.info.isa for other in before}
        if kinds and member.info.isa not in kinds:
            _log.warning(
                "worker %s runs %s kernels, others %s: weights are as exact, but their last bits "
                "are not those of a model trained on one kind of CPU",
                member.address,
                member.info.isa,
                ", ".join(sorted(kinds)),
            )

    def _send_data(self, member: _BlockWorker) -> Generator[Task | None, Any, Any]:
        """Bring the data to a machine by way of one of its workers; their path there."""
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
        """Bring a worker data that others have, from one of these; their path there."""
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
                    raise  # then it is the other one
        raise ClusterError(
            "no worker has the data any more; run the same command again: what is done stays"
        )

    def _lost(self, member: _BlockWorker, why: str) -> None:
        """Put the blocks of a worker that has left back."""
        self._count_time(member)
        others = "; others solve its blocks" if member.tasks else ""
        _log.warning("worker %s %s%s", member.address, why, others)
        for number in member.tasks.values():
            self._losses[number] += 1
            if self._losses[number] >= MOST_LOSSES:
                raise ClusterError(
                    f"{MOST_LOSSES} workers have died while they solved block {number}, for want "
                    "of memory perhaps: give them more, or fewer threads; what is done stays"
                )
            self._put_back(number)

    def _count_time(self, member: _BlockWorker) -> None:
        if member.since is not None:
            now = time.monotonic()
            self.report.present += member.info.threads * (now - member.since)
            member.since = now

    def _check_alone(self) -> None:
        waited = time.monotonic() - self._met
        if self._pool.members:
            self._met = time.monotonic()
        elif waited > _NOBODY_SECONDS:
            raise ClusterError(
                f"there has been no worker for {waited:.0f} s; what is done stays, and the same "
                "command goes on from there"
            )

    def _put_back(self, number: int) -> None:
        if number not in self._done:
            self._queue.append(number)
            self._queued += self._cost[number]
            self._queue.sort(key=lambda n: (not self._is_suspect(n), self._cost[n]))

    def _is_suspect(self, number: int) -> bool:
        """Whether a block may take its worker down; such blocks are solved alone, and last."""
        return number in self._failures or self._losses[number] > 1

    def _hand_out(self) -> None:
        """Give every worker that is ready enough blocks to go on with."""
        ready = [member for member in self._pool.members.values() if member.since is not None]
        # In turns, so that the last blocks do not all go to one worker.
        while sum(map(self._hand_one, ready)):
            pass

    def _hand_one(self, member: _BlockWorker) -> bool:
        given = list(member.tasks.values())
        if self._has_enough(member, given) or any(map(self._is_suspect, given)):
            return False
        for place in range(len(self._queue) - 1, -1, -1):
            number = self._queue[place]
            if self._is_suspect(number) and (given or self._better_elsewhere(number, member)):
                continue
            del self._queue[place]
            self._queued -= self._cost[number]
            work = str(self._folder), number, self._blocks[number]
            task = self._cluster.submit(member.address, training_worker.solve, *work)
            member.tasks[task] = number
            return True
        return False

    def _has_enough(self, member: _BlockWorker, given: list[int]) -> bool:
        """Whether blocks keep a worker busy until it can be given more.

        Its threads are the faster the more labels they have to choose from; but towards the end
        what one worker has in hand is what another one lacks.
        """
        if len(given) < 2:
            return False
        labels = sum(len(self._blocks[number]) for number in given)
        threads = sum(other.info.threads for other in self._pool.members.values())
        share = self._queued * member.info.threads / threads
        return (
            labels >= _LABELS_A_THREAD * member.info.threads
            or sum(self._cost[number] for number in given) >= share / 2
        )

    def _better_elsewhere(self, number: int, member: _BlockWorker) -> bool:
        """Whether a block has failed on a worker, and not on all the others."""
        failures = self._failures.get(number, {})
        return member.address in failures and not failures.keys() >= self._pool.members.keys()

    def _adopt(self, number: int, receipt: BlockReceipt, content: bytes | None) -> BlockReceipt:
        """Take in a block that has been solved."""
        weight_files.adopt_block(
            self._job.directory, receipt, self._folder if content is None else content
        )
        self._done.add(number)
        self.report.blocks += 1
        self.report.received += len(content or b"")
        self.report.busy += receipt.stats.seconds if receipt.stats else 0.0
        return receipt

    def _fail(self, number: int, address: str, error: Exception) -> None:
        failures = self._failures.setdefault(number, {})
        failures[address] = error
        _log.warning("block %d has failed on worker %s: %s", number, address, error)
        if len(failures) >= _MOST_FAILURES or failures.keys() >= self._pool.members.keys():
            error.add_note(
                f"block {number} has failed on {', '.join(failures)}; what is done stays"
            )
            raise error
        self._put_back(number)
