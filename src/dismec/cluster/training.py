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
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.cluster import training_worker as cluster_worker
from dismec.cluster.connection import Cluster, Task, WorkerInfo
from dismec.cluster.training_worker import Data, Run
from dismec.errors import ClusterError, WorkerLost
from dismec.features.transform import Transform
from dismec.model import directory as store
from dismec.model.manifest import BlockReceipt
from dismec.solve.problem import SolverParams

__all__ = ["BLOCKS_A_THREAD", "Report", "Training", "check_workers", "solve_on_cluster"]

BLOCKS_A_THREAD = 24  # so that the last ones are a small share of the work
_PIECE = 8_000_000  # bytes of data in a task; Dask warns above 10 MB
_LABELS_A_THREAD = 128  # given to a worker at a time, at least: what is being solved, and the next
_MOST_FAILURES, _MOST_LOSSES = 3, 10
_NOBODY_SECONDS, _DISMISS_SECONDS = 60.0, 5.0

_log = logging.getLogger("dismec")

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Training:
    """What is trained.

    Attributes
    ----------
    directory
        The model directory.
    data
        A binary dataset (``.xmc``) of the rows.
    fingerprint
        Of the data.
    costs
        Of each label, as `dismec.solve.blocks.effort` gives them.
    """

    directory: Path
    data: Path
    fingerprint: str
    params: SolverParams
    transform: Transform
    costs: Labels


@dataclass
class Report:
    """What a run on a cluster has come to.

    Attributes
    ----------
    blocks, workers
        Blocks solved; workers that took part.
    busy, present
        Core-seconds that were spent on solving, and that workers were ready for it.
    sent, received
        Bytes of data that the client has sent, and of blocks that came back to it.
    """

    blocks: int = 0
    workers: int = 0
    busy: float = 0.0
    present: float = 0.0
    sent: int = 0
    received: int = 0

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


def check_workers(cluster: Cluster) -> dict[str, WorkerInfo]:
    """The workers to begin with.

    Raises
    ------
    ClusterError
        If there is none, or one has another version of dismec.
    """
    workers = cluster.wait_for_workers()
    ours = version("dismec")
    for address, info in workers.items():
        if info.version != ours:
            raise ClusterError(f"worker {address} has {_dismec(info)}, this is {ours}")
    return workers


def solve_on_cluster(
    cluster: Cluster,
    training: Training,
    blocks: Mapping[int, Labels],
    progress: Callable[[int], None],
) -> Generator[BlockReceipt, None, None]:
    """Solve blocks of labels and yield their receipts; the files are in the model directory then.

    Closing the generator stops the workers. In the end a `Report` is logged.

    Parameters
    ----------
    blocks
        The labels of each block by its number.
    progress
        Called with a number of labels just solved.

    Raises
    ------
    ClusterError
        If there is no scheduler or no worker for a while, or workers die of a block.
    Exception
        Whatever a block has raised on three workers, or on all there are.
    """
    if not blocks:
        return
    run = _ClusterRun(cluster, training, blocks)
    try:
        for receipt in run.receipts():
            yield receipt
            progress(receipt.n_labels)
        run.leave()
        _log.info("%s", run.report)
    finally:
        run.end()


@dataclass
class _Member:
    """A worker that takes part: what it is doing, and since when it is ready."""

    info: WorkerInfo
    writes: bool = False  # blocks to the run's folder
    since: float | None = None
    tasks: dict[Task, int] = field(default_factory=dict)


# What it takes to get a worker ready, step by step: tasks to wait for, or None to be called again.
_Steps = Generator[Task | None, Any, None]


class _ClusterRun:
    def __init__(self, cluster: Cluster, training: Training, blocks: Mapping[int, Labels]) -> None:
        self.report = Report()
        self._cluster = cluster
        self._training = training
        self._blocks = blocks
        path = training.data.resolve()
        self._data = Data(str(path), path.stat().st_size, training.fingerprint)
        self._folder = store.make_run_folder(training.directory.resolve())
        self._cost = {number: int(training.costs[b].sum()) for number, b in blocks.items()}
        self._queue = sorted(blocks, key=lambda number: self._cost[number])  # costliest last
        self._queued = sum(self._cost.values())
        self._done: set[int] = set()
        self._failures: dict[int, dict[str, Exception]] = {}
        self._losses: Counter[int] = Counter()
        self._members: dict[str, _Member] = {}
        self._refused: set[str] = set()
        self._steps: dict[Task, tuple[str, _Steps]] = {}
        self._later: list[tuple[str, _Steps]] = []
        self._sending: set[str] = set()  # hosts
        self._alone = time.monotonic()

    def receipts(self) -> Iterator[BlockReceipt]:
        """All of them, as they come."""
        while len(self._done) < len(self._blocks):
            self._meet(self._cluster.workers())
            later, self._later = self._later, []
            for address, steps in later:
                self._step(address, steps, None)
            self._hand_out()
            tasks = [*self._steps, *(t for m in self._members.values() for t in m.tasks)]
            for task in self._cluster.wait(tasks, 0.5) if tasks else self._nobody():
                if task in self._steps:
                    self._step(*self._steps.pop(task), task)
                elif receipt := self._take(task):
                    yield receipt

    def leave(self) -> None:
        """Count the workers' time up to now."""
        for address in list(self._members):
            self._leave(address)

    def end(self) -> None:
        """Stop the workers and remove what they were sent."""
        self.leave()
        with suppress(ClusterError):
            if self._cluster.connected:
                self._dismiss()
        rmtree(self._folder, ignore_errors=True)

    def _dismiss(self) -> None:
        tasks = [
            self._cluster.submit(address, function, argument)
            for address in self._cluster.workers()
            if address not in self._refused
            for function, argument in (
                (cluster_worker.end, str(self._folder)),
                (cluster_worker.drop_data, self._data),
            )
        ]
        until = time.monotonic() + _DISMISS_SECONDS
        while tasks and time.monotonic() < until:
            for task in self._cluster.wait(tasks, 0.5):
                tasks.remove(task)
        for task in tasks:
            self._cluster.forget(task)

    # -- workers -----------------------------------------------------------------------------------

    def _meet(self, workers: Mapping[str, WorkerInfo]) -> None:
        """Take note of who has come and gone."""
        for address in self._members.keys() - workers.keys():
            self._lose(address)
        for address, info in workers.items():
            if address in self._members or address in self._refused:
                continue
            if info.version != version("dismec"):
                _log.warning("worker %s has %s: it is left out", address, _dismec(info))
                self._refused.add(address)
                continue
            kinds = {member.info.isa for member in self._members.values()}
            if kinds and info.isa not in kinds:
                _log.warning(
                    "worker %s runs %s kernels, others %s: weights are as exact, but their last "
                    "bits are not those of a model trained on one kind of CPU",
                    *(address, info.isa, ", ".join(sorted(kinds))),
                )
            self._members[address] = _Member(info)
            self.report.workers += 1
            self._step(address, self._prepare(address, info), None)

    def _prepare(self, address: str, info: WorkerInfo) -> _Steps:
        submit = self._cluster.submit
        path = yield submit(address, cluster_worker.find_data, self._data)
        while path is None and info.host in self._sending:
            yield None
            if info.host not in self._sending:
                path = yield submit(address, cluster_worker.find_data, self._data)
        if path is None:
            path = yield from self._send_data(address, info.host)
        run = Run(str(self._folder), self._training.params, self._training.transform, info.threads)
        probe = yield submit(address, cluster_worker.begin, run, path)
        member = self._members[address]
        member.writes = probe is not None and (self._folder / probe).exists()
        if probe is not None and not member.writes:
            raise ClusterError(f"worker {address} sees another {self._folder} than this machine")
        member.since = time.monotonic()

    def _send_data(self, address: str, host: str) -> Generator[Task | None, Any, str]:
        """Bring the data to a machine by way of one of its workers."""
        token = secrets.token_hex(8)
        self._sending.add(host)
        try:
            with Path(self._data.path).open("rb") as file:
                while piece := file.read(_PIECE):
                    at = file.tell() - len(piece)
                    self.report.sent += len(piece)
                    yield self._cluster.submit(
                        address, cluster_worker.receive, self._data, token, at, piece
                    )
            return str((yield self._cluster.submit(
                address, cluster_worker.received, self._data, token
            )))  # fmt: skip
        finally:
            self._sending.discard(host)

    def _step(self, address: str, steps: _Steps, finished: Task | None) -> None:
        """Go on with getting a worker ready."""
        if address not in self._members:
            steps.close()
            return
        try:
            task = steps.send(finished and finished.result())
        except StopIteration:
            return
        except WorkerLost:
            self._lose(address)
            return
        except Exception as error:
            self._leave(address)
            self._refused.add(address)
            if not self._members:
                raise
            _log.warning("worker %s cannot take part: %s", address, error)
            return
        if task is None:
            self._later.append((address, steps))
        else:
            self._steps[task] = address, steps

    def _leave(self, address: str) -> _Member:
        member = self._members.pop(address)
        if member.since is not None:
            self.report.present += member.info.threads * (time.monotonic() - member.since)
        for task, (owner, steps) in list(self._steps.items()):
            if owner == address:
                del self._steps[task]
                steps.close()
        for task in member.tasks:
            self._cluster.forget(task)
        return member

    def _lose(self, address: str) -> None:
        """Put the blocks of a worker that is gone back."""
        if address not in self._members:
            return
        numbers = list(self._leave(address).tasks.values())
        if numbers:
            _log.warning("worker %s is gone; others solve its blocks", address)
        for number in numbers:
            self._losses[number] += 1
            if self._losses[number] >= _MOST_LOSSES:
                raise ClusterError(
                    f"{_MOST_LOSSES} workers have died while they solved block {number}, for want "
                    "of memory perhaps: give them more, or fewer threads; what is done stays"
                )
            self._put_back(number)

    def _nobody(self) -> list[Task]:
        waited = time.monotonic() - self._alone
        if waited > _NOBODY_SECONDS:
            raise ClusterError(
                f"there has been no worker for {waited:.0f} s; what is done stays, and the same "
                "command goes on from there"
            )
        time.sleep(0.2)
        return []

    # -- blocks ------------------------------------------------------------------------------------

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
        ready = {a: m for a, m in self._members.items() if m.since is not None}
        if self._members:
            self._alone = time.monotonic()
        # In turns, so that the last blocks do not all go to one worker.
        while sum(self._hand_one(a, m) for a, m in ready.items()):
            pass

    def _hand_one(self, address: str, member: _Member) -> bool:
        given = list(member.tasks.values())
        if self._has_enough(member, given) or any(map(self._is_suspect, given)):
            return False
        for place in range(len(self._queue) - 1, -1, -1):
            number = self._queue[place]
            if self._is_suspect(number) and (given or self._better_elsewhere(number, address)):
                continue
            del self._queue[place]
            self._queued -= self._cost[number]
            task = self._cluster.submit(
                address, cluster_worker.solve, str(self._folder), number, self._blocks[number]
            )
            member.tasks[task] = number
            return True
        return False

    def _has_enough(self, member: _Member, given: list[int]) -> bool:
        """Whether blocks keep a worker busy until it can be given more.

        Its threads are the faster the more labels they have to choose from; but towards the end
        what one worker has in hand is what another one lacks.
        """
        if len(given) < 2:
            return False
        labels = sum(len(self._blocks[number]) for number in given)
        threads = sum(other.info.threads for other in self._members.values())
        share = self._queued * member.info.threads / threads
        return (
            labels >= _LABELS_A_THREAD * member.info.threads
            or sum(self._cost[number] for number in given) >= share / 2
        )

    def _better_elsewhere(self, number: int, address: str) -> bool:
        """Whether a block has failed on a worker, and not on all the others."""
        failures = self._failures.get(number, {})
        return address in failures and not failures.keys() >= self._members.keys()

    def _take(self, task: Task) -> BlockReceipt | None:
        """What has come of a block; None if it has to be solved once more."""
        member = self._members.get(task.worker)
        if member is None or task not in member.tasks:
            return None
        number = member.tasks[task]
        try:
            receipt, content = task.result()
        except WorkerLost:
            self._lose(task.worker)
            return None
        except Exception as error:
            del member.tasks[task]
            self._fail(number, task.worker, error)
            return None
        del member.tasks[task]
        if number in self._done:
            return None
        source = self._folder if content is None else content
        store.adopt_block(self._training.directory, receipt, source)
        self._done.add(number)
        self.report.blocks += 1
        self.report.received += len(content or b"")
        self.report.busy += receipt.stats.seconds if receipt.stats else 0.0
        return receipt  # type: ignore[no-any-return]

    def _fail(self, number: int, address: str, error: Exception) -> None:
        failures = self._failures.setdefault(number, {})
        failures[address] = error
        _log.warning("block %d has failed on worker %s: %s", number, address, error)
        if len(failures) >= _MOST_FAILURES or failures.keys() >= self._members.keys():
            error.add_note(
                f"block {number} has failed on {', '.join(failures)}; what is done stays"
            )
            raise error
        self._put_back(number)


def _dismec(info: WorkerInfo) -> str:
    return f"dismec {info.version}" if info.version else "no dismec, or a very old one"
