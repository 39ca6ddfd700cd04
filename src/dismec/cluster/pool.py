"""The workers that take part in a computation, and the client's loop around them.

A new worker becomes a member, is prepared step by step, and gets tasks. When it leaves, its tasks
are dropped and its preparation is closed before the owner of the pool is notified.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Generic, TypeVar

from dismec.cluster.connection import Cluster, WorkerInfo
from dismec.cluster.task import Task
from dismec.errors import ClusterError, ModelError, WorkerLost

__all__ = ["MOST_LOSSES", "Member", "Pool", "Steps", "Work", "check_workers"]

MOST_LOSSES = 10  # workers that may die while working on the same task
_AGAIN_SECONDS = 0.05  # before steps that yielded None are called again
_CLOSE_SECONDS = 5.0

_log = logging.getLogger("dismec")

# The preparation of a worker: yields a task, to be sent its result or thrown its exception, or
# None, to be called again a little later. Closed when the worker leaves.
Steps = Generator[Task | None, Any, None]

W = TypeVar("W")


@dataclass(eq=False)
class Member(Generic[W]):
    """A worker that takes part, and its tasks, with the purpose of each."""

    address: str
    info: WorkerInfo
    tasks: dict[Task, W] = field(default_factory=dict)


M = TypeVar("M", bound=Member[Any])


@dataclass(frozen=True)
class Work(Generic[M]):
    """The callbacks by which the owner of a pool uses its workers."""

    join: Callable[[str, WorkerInfo], M]  # creates a member for a worker
    prepare: Callable[[M], Steps]  # prepares a new member
    hand_out: Callable[[], None]  # adds tasks to `Member.tasks` of those that are ready
    lost: Callable[[M, str], None]  # takes back the tasks of a member that has left, and why


def check_workers(cluster: Cluster) -> dict[str, WorkerInfo]:
    """Return the initial workers; raise `ClusterError` if there are none or versions differ."""
    workers = cluster.wait_for_workers()
    ours = version("dismec")
    for address, info in workers.items():
        if info.version != ours:
            raise ClusterError(
                f"worker {address} has {info.software}, but the client has dismec {ours}: "
                "install the same version on both"
            )
    return workers


class Pool(Generic[M, W]):
    """The workers of a cluster that take part in a computation; for use by one thread."""

    def __init__(self, cluster: Cluster, work: Work[M]) -> None:
        self.members: dict[str, M] = {}  # by address, in the order of joining
        self._cluster = cluster
        self._work = work
        self._refused: set[str] = set()
        self._steps: dict[Steps, tuple[M, Task | None]] = {}
        self.last_answer = time.monotonic()  # when any worker last answered

    @property
    def preparing(self) -> bool:
        """Whether any worker is being prepared."""
        return bool(self._steps)

    def begin(self, member: M, steps: Steps) -> None:
        """Run further steps for a member, starting with the next `turn`."""
        self._steps[steps] = member, None

    def turn(self, timeout: float = 0.5, wake: Task | None = None) -> Iterator[tuple[M, W, Any]]:
        """Do what is due, wait until something happens, and yield finished tasks.

        A finished task is given as its member, its purpose, and what it returned or raised. The
        wait also ends when `wake` is done, and after `timeout` seconds.

        Raises a `ModelError` from preparing a worker (no other worker would do better), the error
        that excluded the last worker (see `refuse`), and errors from `Work.lost`.
        """
        self._meet()
        self._work.hand_out()
        for steps in [steps for steps, (_, task) in self._steps.items() if task is None]:
            self._advance(steps)
        prepared = {task: steps for steps, (_, task) in self._steps.items() if task is not None}
        tasks = [*prepared, *(task for m in self.members.values() for task in m.tasks)]
        if wake is not None:
            tasks.append(wake)
        if len(prepared) < len(self._steps):
            timeout = min(timeout, _AGAIN_SECONDS)
        if not tasks:
            time.sleep(min(timeout, 0.1))
        for task in self._cluster.wait(tasks, timeout) if tasks else ():
            self.last_answer = time.monotonic()
            if task in prepared:
                self._advance(prepared[task])
            else:
                yield from self._finished(task)

    def refuse(self, member: M, error: Exception) -> None:
        """Exclude a worker from now on.

        If there is no other, raise the error; an ``OSError`` becomes a `ClusterError` that names
        the worker and the file.
        """
        reason = f"cannot take part: {_reason(error)}"
        self._refused.add(member.address)
        self._lose(member, reason)
        if self.members:
            return
        if isinstance(error, OSError):
            raise ClusterError(f"worker {member.address} {reason}") from error
        raise error

    def drop(self) -> None:
        """Drop all tasks."""
        for member in self.members.values():
            for task in member.tasks:
                self._cluster.forget(task)
            member.tasks.clear()

    def close(self, *calls: tuple[Any, ...]) -> None:
        """Release the members, and wait a few seconds for every worker to make these calls."""
        for member in list(self.members.values()):
            self._leave(member)
        with suppress(ClusterError):
            if not self._cluster.connected:
                return
            there = [address for address in self._cluster.workers() if address not in self._refused]
            tasks = {self._cluster.submit(address, *call) for address in there for call in calls}
            end = time.monotonic() + _CLOSE_SECONDS
            while tasks and time.monotonic() < end:
                tasks.difference_update(self._cluster.wait(tasks, 0.5))
            for task in tasks:
                self._cluster.forget(task)

    def _meet(self) -> None:
        """Register workers that have joined or left."""
        there = self._cluster.workers()
        for member in [m for address, m in self.members.items() if address not in there]:
            self._lose(member, "is gone")
        for address, info in there.items():
            if address in self.members or address in self._refused:
                continue
            if info.version != version("dismec"):
                _log.warning("worker %s has %s: it is not used", address, info.software)
                self._refused.add(address)
                continue
            member = self.members[address] = self._work.join(address, info)
            self.begin(member, self._work.prepare(member))

    def _advance(self, steps: Steps) -> None:
        """Continue to prepare a worker, unless it has left."""
        if steps not in self._steps:
            return
        member, finished = self._steps.pop(steps)
        try:
            self._steps[steps] = member, _resume(steps, finished)
        except StopIteration:
            pass
        except WorkerLost:
            self._lose(member, "is gone")
        except ModelError:
            self._lose(member, "is gone")
            raise
        except Exception as error:
            self.refuse(member, error)

    def _finished(self, task: Task) -> Iterator[tuple[M, W, Any]]:
        member = self.members.get(task.worker)
        if member is None or task not in member.tasks:
            return
        try:
            found = task.result()
        except WorkerLost:
            self._lose(member, "is gone")
            return
        except Exception as error:
            found = error
        yield member, member.tasks.pop(task), found

    def _lose(self, member: M, why: str) -> None:
        self._leave(member)
        self._work.lost(member, why)

    def _leave(self, member: M) -> None:
        del self.members[member.address]
        for steps, (owner, task) in list(self._steps.items()):
            if owner is member:
                del self._steps[steps]
                if task is not None:
                    self._cluster.forget(task)
                steps.close()
        for task in member.tasks:
            self._cluster.forget(task)


def _reason(error: Exception) -> str:
    """Return an error as one line, with the file if it concerns one."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _resume(steps: Steps, finished: Task | None) -> Task | None:
    """Return the next step, given the result of the last one."""
    if finished is None:
        return next(steps)
    try:
        found = finished.result()
    except Exception as error:
        return steps.throw(error)
    return steps.send(found)
