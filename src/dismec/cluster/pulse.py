"""Detecting workers that hang: the scheduler still lists them, but they no longer answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from dismec.cluster.task import Task

__all__ = ["SILENT_SECONDS", "Pulse"]

SILENT_SECONDS = 20.0  # without an answer before a worker counts as silent
_EVERY_SECONDS = 4.0  # between pings
_GAP_SECONDS = 5.0  # between two calls of `Pulse.check`: longer gaps do not count


class Pulse:
    """Regular pings of one worker, which it answers at once, however busy its threads are."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._since: float | None = None  # when the first unanswered ping was sent
        self._next = 0.0
        self._checked = time.monotonic()

    @property
    def silent(self) -> bool:
        """Whether the worker has not answered for a while."""
        return self._since is not None and time.monotonic() - self._since > SILENT_SECONDS

    def check(self, ping: Callable[[], Task]) -> None:
        """Read the answer to the last ping, and send the next one when it is due.

        Long gaps between two calls do not count, because no answers were read then.
        """
        now = time.monotonic()
        if self._since is not None and now - self._checked > _GAP_SECONDS:
            self._since += now - self._checked
        self._checked = now
        if self._task is not None and self._task.done():
            with suppress(Exception):  # if the scheduler cannot reach the worker
                self._task.result()
                self._since = None
            self._task = None
        if self._task is None and now >= self._next:
            self._task, self._next = ping(), now + _EVERY_SECONDS
            self._since = now if self._since is None else self._since
