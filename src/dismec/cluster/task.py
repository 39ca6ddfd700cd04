"""A call on a worker: bytes to send, and a `Task` for the result."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from typing import Any

from dismec.errors import ClusterError, WorkerLost

__all__ = ["Receiver", "Task", "call_directly", "collect", "outcome", "packed", "portable"]


class Task:
    """A call on the worker at an address, created by `Cluster.submit`."""

    def __init__(
        self, worker: str, remote: Any, future: futures.Future[Any], needs: tuple[str, ...] = ()
    ) -> None:
        self.worker = worker
        self.needs = needs  # other workers that it is lost with
        self.future = future
        self._remote = remote  # the worker keeps the result as long as we hold this

    def done(self) -> bool:
        """Return whether `result` is available, or never will be."""
        return self.future.done()

    def result(self) -> Any:
        """Return the result of a finished call, or raise its exception.

        Raise `WorkerLost` if the worker or the scheduler was lost before the result arrived.
        """
        self._remote = None
        try:
            answer = self.future.result(timeout=0)
        except (futures.CancelledError, asyncio.CancelledError):
            raise WorkerLost(f"{self.worker} is gone") from None
        if isinstance(answer, _Raised):
            raise answer.error
        return answer

    def lose(self) -> None:
        """Give up the result: `result` raises `WorkerLost` unless it is already available."""
        self.future.cancel()
        self._remote = None


def packed(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Return a call as bytes; unpickling them performs it."""
    return pickle.dumps(_Call(function, args), protocol=5)


class _Call:
    """Performs a call when it is unpickled.

    The scheduler, which may not have dismec, sees only bytes, and what a worker cannot import is an
    error of the task. Sent directly, such a function would end the worker.
    """

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._content = function, args

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _perform, self._content


@dataclass(frozen=True)
class _Raised:
    error: Exception


def _perform(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Make a call, and return what it raises: Dask loses tasks with unpicklable tracebacks."""
    try:
        return function(*args)
    except Exception as error:
        return _Raised(portable(error))


def portable(error: Exception) -> Exception:
    """Return an error that can be sent, with its traceback as a note."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return ClusterError(f"{type(error).__name__}: {error}")
    return error


class Receiver:
    """A function on a worker with its first arguments; others come from tasks of any worker.

    If such a task has raised, its exception is the result.
    """

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._function, self._args = function, args

    def __call__(self, *found: Any) -> Any:
        """Call the function with these results."""
        raised = next((part for part in found if isinstance(part, _Raised)), None)
        return raised or _perform(self._function, (*self._args, *found))


def outcome(call: bytes) -> bytes:
    """Perform a packed call; return (result, None) or (None, exception), pickled."""
    try:
        return pickle.dumps((pickle.loads(call), None), protocol=5)
    except Exception as error:
        return pickle.dumps((None, error), protocol=5)


async def call_directly(rpc: Any, function: str, worker: str, call: bytes) -> Any:
    """Return a worker's answer to a packed call of one of its handlers."""
    try:
        answer = await getattr(rpc(worker), function)(call=call)
    except (OSError, RuntimeError) as error:  # RuntimeError: from a closed client
        raise WorkerLost(f"{worker} does not answer: {error}") from None
    result, raised = pickle.loads(answer)
    if raised is not None:
        raise raised
    return result


async def collect(remote: Any) -> Any:
    """Return the result of a Dask task."""
    return await remote
