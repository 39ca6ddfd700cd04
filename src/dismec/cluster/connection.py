"""A Dask cluster: its workers, and tasks that run on one specific worker.

If a worker dies, Dask moves its task to another one, or lets it wait forever if it may not move.
The tasks of dismec need what a worker process already holds, rows or weights, so the caller must
decide where a task goes next: here a task belongs to one worker and is lost with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import time
from collections.abc import Callable, Collection, Coroutine
from concurrent import futures
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

from dismec.cluster.client import (
    ANSWER_SECONDS,
    distributed,
    new_client,
    no_scheduler,
    scheduler_of,
)
from dismec.cluster.task import Task, call_directly, collect, outcome, packed
from dismec.cpu import kernels
from dismec.errors import ClusterError, WorkerLost

__all__ = [
    "Cluster",
    "WorkerInfo",
    "describe_worker",
    "listen",
    "memory_limit",
    "private_directory",
    "scratch_directory",
    "step_aside",
]

_DIRECT = "dismec_call"
_LOOK_SECONDS = 0.5  # between checks for workers
_PAUSED_SECONDS = 20.0  # a worker that Dask has paused for this long counts as gone

_log = logging.getLogger("dismec")


@dataclass(frozen=True)
class WorkerInfo:
    """The host, threads and software of a worker process."""

    host: str  # its machine, by the address at which it is reached
    threads: int  # threads that it was given
    version: str  # its version of dismec; empty if it has none, or one without cluster support
    isa: str  # instruction set of its kernels

    @property
    def software(self) -> str:
        """Its version of dismec, in words."""
        return f"dismec {self.version}" if self.version else "no dismec, or a very old one"


class Cluster(AbstractContextManager["Cluster"]):
    """A connection to a cluster; use it in a ``with`` statement, from one thread.

    If the scheduler stops answering, every method that needs it waits for it, for `patience`
    seconds; all tasks are lost then, but workers may come back.
    """

    def __init__(
        self, client: Any, where: str | None, patience: float, security: Any = None
    ) -> None:
        self._client = client
        self._where = where  # to reconnect; None for a client that is not ours
        self._security = security
        self._patience = patience
        self._tasks: set[Task] = set()
        self._threads: dict[str, int] = {}
        self._infos: dict[str, WorkerInfo] = {}
        self._asked: dict[str, Task] = {}
        self._paused: dict[str, float] = {}
        self._looked = -_LOOK_SECONDS

    @classmethod
    def connect(
        cls, where: str | os.PathLike[str] | distributed.Client | Cluster, *, patience: float = 60.0
    ) -> Cluster:
        """Connect to a scheduler.

        Parameters
        ----------
        where
            An address such as ``tcp://host:8786``, the path of a scheduler file, a client, which
            stays open at the end, or a cluster, which is returned unchanged. In a coroutine of an
            asynchronous client, whose event loop is blocked meanwhile, the cluster opens its own
            connection to the same scheduler.
        patience
            Seconds to wait for a scheduler that does not answer, now and later.

        Raises
        ------
        ClusterError
            If there is no scheduler, or it runs in the event loop that this call blocks.
        """
        if isinstance(where, Cluster):
            return where
        if isinstance(where, distributed.Client):
            if not where.asynchronous:
                return cls(where, None, patience)
            address, security = scheduler_of(where), where.security
            return cls(new_client(address, patience, security), address, patience, security)
        return cls(new_client(os.fspath(where), patience), os.fspath(where), patience)

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop all tasks, and disconnect if the client is ours."""
        self._lose_all()
        if self._where is not None:
            self._client.close()

    @property
    def connected(self) -> bool:
        """Whether the client is connected to a scheduler."""
        return bool(self._client.status == "running")

    @property
    def dashboard(self) -> str | None:
        """Address of the dashboard, if the scheduler has one."""
        try:
            link = self._client.dashboard_link
        except (KeyError, OSError):
            return None
        return str(link) if link else None

    def workers(self) -> dict[str, WorkerInfo]:
        """Return the workers that have answered, by address.

        A new worker appears about a second after it has joined.
        """
        self._look()
        return dict(self._infos)

    def wait_for_workers(self) -> dict[str, WorkerInfo]:
        """Like `workers`, but wait until all known workers have answered, or at least some.

        Raise `ClusterError` if there is none for `patience` seconds.
        """
        begin = time.monotonic()
        self._look(now=True)
        while not (self._infos and self._infos.keys() == self._threads.keys()):
            waited = time.monotonic() - begin
            if waited > self._patience:
                raise ClusterError(f"no worker has joined the cluster for {waited:.0f} s")
            if waited > ANSWER_SECONDS and self._infos:
                break
            time.sleep(0.05)
            self._look(now=True)
        return dict(self._infos)

    def submit(self, worker: str, function: Callable[..., Any], *args: Any) -> Task:
        """Call a function of an installed module on one worker.

        Calls run in the order of submission, as many at a time as the worker has threads. Arguments
        and results travel through the scheduler; keep each below a few megabytes.
        """
        return self.watch(
            worker,
            lambda: self.ask(worker, function.__name__, pickle.loads, packed(function, args)),
        )

    def ask(self, worker: str, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Make Dask call a function that the scheduler can import, too; return its future.

        The future is for `watch`. Futures among the arguments stand for their results, which are
        sent from worker to worker.
        """
        where = {"workers": [worker], "allow_other_workers": False}
        return self._client.submit(function, *args, key=f"{name}-{uuid4()}", **where)

    def compute(self, collections: list[Any]) -> list[Any]:
        """Make Dask compute collections on workers of its choice; return their futures."""
        return list(self._client.compute(collections))

    def watch(self, worker: str, ask: Callable[[], Any], *needs: str) -> Task:
        """Watch the future that `ask` creates on a worker; it is also lost with its `needs`."""
        try:
            remote = ask()
            future = self._start(collect(remote))
        except (OSError, RuntimeError, ValueError):  # from a closed client
            if self._client.status != "closed":
                raise
            lost = Task(worker, None, futures.Future())
            lost.lose()
            return lost
        return self._keep(Task(worker, remote, future, needs))

    def call(self, worker: str, function: Callable[..., Any], *args: Any) -> Task:
        """Like `submit`, directly to a worker that listens (`listen`), without the scheduler.

        This takes a tenth of the time; a worker that this machine cannot reach counts as lost.
        """
        answer = call_directly(self._client.rpc, _DIRECT, worker, packed(function, args))
        return self._keep(Task(worker, None, self._start(answer)))

    def ping(self, worker: str) -> Task:
        """Return a task that is done once a worker's process answers, however busy it is."""
        return self._keep(Task(worker, None, self._start(_ping(self._client, worker))))

    def wait(self, tasks: Collection[Task], timeout: float = 1.0) -> list[Task]:
        """Return the finished tasks as soon as there is one, or none after the timeout."""
        end = time.monotonic() + timeout
        while True:
            done = [task for task in tasks if task.done()]
            left = end - time.monotonic()
            if done or left <= 0:
                self._tasks.difference_update(done)
                return done
            pending = [task.future for task in tasks]
            futures.wait(pending, min(left, _LOOK_SECONDS), futures.FIRST_COMPLETED)
            self._look()

    def forget(self, task: Task) -> None:
        """Drop a task: it does not start if it has not started, and its result is discarded."""
        task.lose()
        self._tasks.discard(task)

    def _start(self, coroutine: Coroutine[Any, Any, Any]) -> futures.Future[Any]:
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._client.loop.asyncio_loop)
        except RuntimeError:  # the client's event loop is closed
            coroutine.close()
            lost: futures.Future[Any] = futures.Future()
            lost.cancel()
            return lost

    def _keep(self, task: Task) -> Task:
        self._tasks.add(task)
        return task

    def _lose_all(self) -> None:
        for task in list(self._tasks):
            self.forget(task)

    def _look(self, now: bool = False) -> None:
        if not now and time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._threads = self._without_paused(*self._ask_for_threads())
        self._looked = time.monotonic()
        for task in list(self._tasks):
            if task.done() or not {task.worker, *task.needs} <= self._threads.keys():
                self.forget(task)
        for gone in (self._infos.keys() | self._asked.keys()) - self._threads.keys():
            self._infos.pop(gone, None)
            self._asked.pop(gone, None)
        for address in [address for address in self._threads if address not in self._infos]:
            self._ask(address)

    def _ask(self, address: str) -> None:
        """Read the answer of a worker, or send the question."""
        task = self._asked.get(address)
        if task is None:
            self._asked[address] = self.submit(address, describe_worker)
        elif task.done():
            del self._asked[address]
            try:
                answer = task.result()
            except WorkerLost:
                return
            except (ImportError, AttributeError):
                answer = "", ""
            host = distributed.comm.get_address_host(address)
            self._infos[address] = WorkerInfo(host, self._threads[address], *answer)

    def _without_paused(self, everybody: dict[str, int], running: dict[str, int]) -> dict[str, int]:
        now = time.monotonic()
        self._paused = {a: self._paused.get(a, now) for a in everybody.keys() - running.keys()}
        return {
            address: threads
            for address, threads in everybody.items()
            if now - self._paused.get(address, now) < _PAUSED_SECONDS
        }

    def _ask_for_threads(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the threads of all workers, and of unpaused ones; may wait for the scheduler."""
        begin = time.monotonic()
        failed = False
        while True:
            if self._client.status == "closed":
                self._connect_again(begin)
                failed = True
            with suppress(OSError, RuntimeError, ValueError):
                everybody, running = self._client.sync(
                    self._ask_scheduler, callback_timeout=ANSWER_SECONDS
                )
                if failed:
                    _log.warning("the scheduler answers again")
                return everybody, running
            if not failed:
                _log.warning("the scheduler does not answer; waiting for it")
                failed = True
            waited = time.monotonic() - begin
            if waited > self._patience:
                raise no_scheduler(self._where or "the client's scheduler", waited)
            time.sleep(0.2)

    async def _ask_scheduler(self) -> tuple[dict[str, int], dict[str, int]]:
        scheduler = self._client.scheduler
        if scheduler is None or self._client.status != "running":
            raise OSError("not connected")
        return await scheduler.ncores(), await scheduler.ncores_running()

    def _connect_again(self, begin: float) -> None:
        self._lose_all()
        self._infos.clear()
        self._asked.clear()
        waited = time.monotonic() - begin
        if self._where is None:
            raise no_scheduler("the client's scheduler", waited)
        left = max(self._patience - waited, 1.0)
        self._client = new_client(self._where, left, self._security)


def describe_worker() -> tuple[str, str]:
    """Return the version of dismec and the instruction set of this process."""
    return version("dismec"), str(kernels.isa)


def scratch_directory() -> Path:
    """Return a directory for temporary files shared by the workers of a machine."""
    return Path(distributed.get_worker().local_directory).parent


def private_directory() -> Path:
    """Return a directory for this worker's temporary files; Dask removes it after the end."""
    return Path(distributed.get_worker().local_directory)


def memory_limit() -> int | None:
    """Return the memory limit of this worker in bytes, if it has one."""
    return distributed.get_worker().memory_manager.memory_limit or None


def listen() -> None:
    """Let this worker accept calls from `Cluster.call`."""
    process = distributed.get_worker()
    loop, executor = process.loop.asyncio_loop, process.executors["default"]

    async def answer(call: bytes) -> bytes:
        found: bytes = await loop.run_in_executor(executor, outcome, call)
        return found

    process.handlers[_DIRECT] = answer


def step_aside() -> None:
    """Let the worker start its next task while the calling one waits."""
    distributed.secede()


async def _ping(client: Any, worker: str) -> None:
    if client.scheduler is None:
        raise WorkerLost(f"{worker} does not answer: there is no scheduler")
    await client.scheduler.broadcast(msg={"op": "ping"}, workers=[worker])
