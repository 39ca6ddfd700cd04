"""A Dask cluster: who is there, and tasks that run on one worker and no other.

Dask moves a task whose worker dies to another one, or lets it wait for ever if it may not move.
What dismec runs on a worker rests on what that process holds already, rows or weights, so that it
is for the caller to say where a task goes next: here a task belongs to one worker and is lost with
it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import time
import traceback
from collections.abc import Callable, Collection
from concurrent import futures
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

from dismec.cpu import kernels
from dismec.errors import ClusterError, WorkerLost

try:
    import distributed
    from distributed.comm.addressing import get_address_host, get_address_host_port
except ImportError:
    raise ClusterError(
        "a cluster needs the package distributed: pip install 'dismec[dask]'"
    ) from None

__all__ = [
    "Cluster",
    "Task",
    "WorkerInfo",
    "listen",
    "memory_limit",
    "private_directory",
    "scratch_directory",
    "step_aside",
]

_DIRECT = "dismec_call"
_LOOK_SECONDS = 0.5  # between looks at who is there
_PAUSED_SECONDS = 20.0  # a worker that Dask has paused for so long counts as gone
_ANSWER_SECONDS = 10.0

_log = logging.getLogger("dismec")


@dataclass(frozen=True)
class WorkerInfo:
    """What is known of a worker process.

    Attributes
    ----------
    host
        Its machine, by the address under which it is reached.
    threads
        How many it was given.
    version
        Of the dismec it runs; empty if it has none, or one that knows nothing of clusters.
    isa
        Instruction set of its kernels.
    """

    host: str
    threads: int
    version: str
    isa: str


class Task:
    """A call on a worker; `Cluster.submit` makes it."""

    def __init__(self, worker: str, remote: Any, local: futures.Future[Any]) -> None:
        self.worker = worker
        self._remote = remote  # the worker keeps the result for as long as we have this
        self._local = local

    def done(self) -> bool:
        """Whether `result` is there, or never will be."""
        return self._local.done()

    def result(self) -> Any:
        """What the call returned, for a task that is done.

        Raises
        ------
        WorkerLost
            If the worker, or the scheduler, has gone before the result had come here.
        Exception
            Whatever the call raised.
        """
        self._remote = None
        try:
            answer = self._local.result(timeout=0)
        except (futures.CancelledError, asyncio.CancelledError):
            raise WorkerLost(f"{self.worker} is gone") from None
        if isinstance(answer, _Raised):
            raise answer.error
        return answer

    def _lose(self) -> None:
        self._local.cancel()
        self._remote = None


class Cluster:
    """A connection to a cluster; use it in a ``with`` statement, from one thread.

    A scheduler that stops answering is waited for, for `patience` seconds, by every method that
    needs it; all tasks are lost then, and workers may turn up again.
    """

    def __init__(self, client: Any, where: str | None, patience: float) -> None:
        self._client = client
        self._where = where  # to connect again; None for a client that is not ours
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
            stays open in the end, or a cluster, which is returned as it is.
        patience
            Seconds to wait for a scheduler that does not answer, now and later.

        Raises
        ------
        ClusterError
            If there is no scheduler.
        """
        if isinstance(where, Cluster):
            return where
        if isinstance(where, distributed.Client):
            if where.asynchronous:
                raise ClusterError("the client is asynchronous; make one with asynchronous=False")
            return cls(where, None, patience)
        return cls(_open(os.fspath(where), patience), os.fspath(where), patience)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Forget all tasks, and disconnect if the client is ours."""
        for task in self._tasks:
            task._lose()
        self._tasks.clear()
        if self._where is not None:
            self._client.close()

    @property
    def connected(self) -> bool:
        """Whether there is a scheduler now."""
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
        """The workers that are there and have answered, by their address.

        A new one is in it a second or so after it has joined.
        """
        self._look()
        return dict(self._infos)

    def wait_for_workers(self) -> dict[str, WorkerInfo]:
        """As `workers`, once every worker that is there has answered, or some at least.

        Raises
        ------
        ClusterError
            If there is none for `patience` seconds.
        """
        begin = time.monotonic()
        self._look(now=True)
        while not (self._infos and self._infos.keys() == self._threads.keys()):
            waited = time.monotonic() - begin
            if waited > self._patience:
                raise ClusterError(f"no worker has joined the cluster for {waited:.0f} s")
            if waited > _ANSWER_SECONDS and self._infos:
                break
            time.sleep(0.05)
            self._look(now=True)
        return dict(self._infos)

    def submit(self, worker: str, function: Callable[..., Any], *args: Any) -> Task:
        """Call a function of an installed module on one worker.

        Calls run in the order of their submission, as many at a time as the worker has threads.
        Arguments and results travel by way of the scheduler; keep each below some megabytes.
        """
        call = pickle.dumps(_Call(function, args), protocol=5)
        try:
            remote = self._client.submit(
                pickle.loads,
                call,
                key=f"{function.__name__}-{uuid4()}",
                workers=[worker],
                allow_other_workers=False,
            )
            local = asyncio.run_coroutine_threadsafe(
                _collect(remote), self._client.loop.asyncio_loop
            )
        except (OSError, RuntimeError, ValueError):  # of a client that is closed
            if self._client.status != "closed":
                raise
            lost = Task(worker, None, futures.Future())
            lost._lose()
            return lost
        task = Task(worker, remote, local)
        self._tasks.add(task)
        return task

    def call(self, worker: str, function: Callable[..., Any], *args: Any) -> Task:
        """As `submit`, straight to a worker that listens (`listen`), and not by the scheduler.

        That takes a tenth of the time, but for a worker that this machine cannot reach.
        """
        call = pickle.dumps(_Call(function, args), protocol=5)
        answer = _call_directly(self._client.rpc, worker, call)
        local = asyncio.run_coroutine_threadsafe(answer, self._client.loop.asyncio_loop)
        task = Task(worker, None, local)
        self._tasks.add(task)
        return task

    def wait(self, tasks: Collection[Task], timeout: float = 1.0) -> list[Task]:
        """Those of the tasks that are done, as soon as there is one, or none after the time-out."""
        end = time.monotonic() + timeout
        while True:
            done = [task for task in tasks if task.done()]
            left = end - time.monotonic()
            if done or left <= 0:
                self._tasks.difference_update(done)
                return done
            local = [task._local for task in tasks]
            futures.wait(local, min(left, _LOOK_SECONDS), futures.FIRST_COMPLETED)
            self._look()

    def forget(self, task: Task) -> None:
        """Give up a task: it does not begin if it has not begun, and its result is dropped."""
        task._lose()
        self._tasks.discard(task)

    # -- who is there ------------------------------------------------------------------------------

    def _look(self, now: bool = False) -> None:
        if not now and time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._threads = self._running_workers()
        self._looked = time.monotonic()
        for task in [task for task in self._tasks if task.worker not in self._threads]:
            self.forget(task)
        for gone in (self._infos.keys() | self._asked.keys()) - self._threads.keys():
            self._infos.pop(gone, None)
            self._asked.pop(gone, None)
        for address, threads in self._threads.items():
            if address not in self._infos:
                self._ask(address, threads)

    def _ask(self, address: str, threads: int) -> None:
        """Take the answer of a worker in, or put the question."""
        task = self._asked.get(address)
        if task is None:
            self._asked[address] = self.submit(address, describe)
        elif task.done():
            del self._asked[address]
            self._tasks.discard(task)
            try:
                answer = task.result()
            except WorkerLost:
                return
            except (ImportError, AttributeError):
                answer = ("", "")
            self._infos[address] = WorkerInfo(get_address_host(address), threads, *answer)

    def _running_workers(self) -> dict[str, int]:
        """Threads by worker, from the scheduler; waits for it if need be."""
        begin = time.monotonic()
        failed = False
        while True:
            if self._client.status == "closed":
                self._connect_again(begin)
                failed = True
            try:
                found = self._client.sync(self._everybody, callback_timeout=_ANSWER_SECONDS)
            except (OSError, RuntimeError, ValueError):
                found = None
            if found is not None:
                if failed:
                    _log.warning("the scheduler answers again")
                return self._without_paused(*found)
            if not failed:
                _log.warning("the scheduler does not answer; waiting for it")
                failed = True
            self._give_up_after(begin)
            time.sleep(0.2)

    async def _everybody(self) -> tuple[dict[str, int], dict[str, int]]:
        scheduler = self._client.scheduler
        if scheduler is None or self._client.status != "running":
            raise OSError("not connected")
        return await scheduler.ncores(), await scheduler.ncores_running()

    def _without_paused(self, everybody: dict[str, int], running: dict[str, int]) -> dict[str, int]:
        now = time.monotonic()
        self._paused = {
            address: self._paused.get(address, now) for address in everybody.keys() - running.keys()
        }
        return {
            address: threads
            for address, threads in everybody.items()
            if now - self._paused.get(address, now) < _PAUSED_SECONDS
        }

    def _connect_again(self, begin: float) -> None:
        for task in self._tasks:
            task._lose()
        self._tasks.clear()
        self._infos.clear()
        self._asked.clear()
        if self._where is None:
            raise _no_scheduler("the client's scheduler", time.monotonic() - begin)
        left = self._patience - (time.monotonic() - begin)
        self._client = _open(self._where, max(left, 1.0))

    def _give_up_after(self, begin: float) -> None:
        waited = time.monotonic() - begin
        if waited > self._patience:
            raise _no_scheduler(self._where or "the client's scheduler", waited)


class _Call:
    """Makes a call when it is unpickled.

    The scheduler, which may have no dismec, sees nothing of it but bytes, and what a worker cannot
    import is an error of the task. Sent as it is, such a function ends the worker.
    """

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._parts = function, args

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _perform, self._parts


@dataclass(frozen=True)
class _Raised:
    error: Exception


# -- on a worker -----------------------------------------------------------------------------------


def _perform(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Make a call, and return what it raises: Dask loses a task whose traceback it cannot pack."""
    try:
        return function(*args)
    except Exception as error:
        error.add_note("".join(traceback.format_exception(error)))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return _Raised(ClusterError(f"{type(error).__name__}: {error}"))
        return _Raised(error)


def describe() -> tuple[str, str]:
    """Version of dismec and instruction set, where this runs."""
    return version("dismec"), str(kernels.isa)


def scratch_directory() -> Path:
    """A directory for temporary files that the workers of a machine share."""
    return Path(distributed.get_worker().local_directory).parent


def private_directory() -> Path:
    """A directory for temporary files of this worker; Dask removes it after the worker's end."""
    return Path(distributed.get_worker().local_directory)


def memory_limit() -> int | None:
    """Bytes that this worker may use, if it has a limit."""
    return distributed.get_worker().memory_manager.memory_limit or None


def listen() -> None:
    """Let this worker take calls of `Cluster.call`."""
    worker = distributed.get_worker()
    loop, pool = worker.loop.asyncio_loop, worker.executors["default"]

    async def answer(call: bytes) -> bytes:
        outcome: bytes = await loop.run_in_executor(pool, _outcome, call)
        return outcome

    worker.handlers[_DIRECT] = answer


def _outcome(call: bytes) -> bytes:
    """What has come of a call, as `_call_directly` takes it."""
    try:
        return pickle.dumps((pickle.loads(call), None), protocol=5)
    except Exception as error:
        return pickle.dumps((None, error), protocol=5)


def step_aside() -> None:
    """Let the worker begin its next task while the calling one waits for something."""
    distributed.secede()


# -- connecting ------------------------------------------------------------------------------------


def _open(where: str, patience: float) -> distributed.Client:
    begin = time.monotonic()
    told = False
    while True:
        try:
            left = patience - (time.monotonic() - begin)
            return distributed.Client(
                _address(where), timeout=max(min(left, _ANSWER_SECONDS), 1.0), set_as_default=False
            )
        except OSError:
            waited = time.monotonic() - begin
            if waited >= patience:
                raise _no_scheduler(where, waited) from None
            if not told:
                there = "" if "://" in where or Path(where).exists() else " (there is no such file)"
                _log.warning("%s: no scheduler yet%s; waiting %.0f s", where, there, patience)
                told = True
            time.sleep(0.2)


def _address(where: str) -> str:
    """The address itself, or the one in a scheduler file."""
    if "://" in where or not (where.endswith(".json") or Path(where).exists()):
        try:
            get_address_host_port(where)
        except ValueError as error:
            raise ClusterError(f"{where}: {error}") from None
        return where
    try:
        content = json.loads(Path(where).read_bytes())
    except json.JSONDecodeError:
        raise OSError("not complete yet") from None
    if not (isinstance(content, dict) and isinstance(content.get("address"), str)):
        raise ClusterError(f"{where}: not a scheduler file of Dask")
    return str(content["address"])


def _no_scheduler(where: str, seconds: float) -> ClusterError:
    return ClusterError(
        f"{where}: no scheduler has answered for {seconds:.0f} s; run the same command again when "
        "one does: a training goes on where it stopped"
    )


async def _call_directly(rpc: Any, worker: str, call: bytes) -> Any:
    try:
        outcome = await getattr(rpc(worker), _DIRECT)(call=call)
    except (OSError, RuntimeError) as error:  # RuntimeError: of a client that is closed
        raise WorkerLost(f"{worker} does not answer: {error}") from None
    result, raised = pickle.loads(outcome)
    if raised is not None:
        raise raised
    return result


async def _collect(remote: Any) -> Any:
    return await remote
