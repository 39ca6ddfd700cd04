"""Whether a worker known to the scheduler still answers: a worker that hangs does not leave."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from dismec.cluster.task import Task

__all__ = ["SILENT_SECONDS", "Pulse"]

SILENT_SECONDS = 20.0  # without an answer before a worker counts as silent
_EVERY_SECONDS = 4.0  # between questions
_GAP_SECONDS = 5.0  # between two calls of `Pulse.feel`: longer gaps do not count


class Pulse:
    """Questions to one worker that it answers at once, however busy its threads are."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._since: float | None = None  # when the first unanswered question was sent
        self._next = 0.0
        self._felt = time.monotonic()

    @property
    def silent(self) -> bool:
        """Whether the worker has not answered for a while."""
        return self._since is not None and time.monotonic() - self._since > SILENT_SECONDS

    def feel(self, ping: Callable[[], Task]) -> None:
        """Read an answer, and send the next question when it is due.

        Long gaps between two calls do not count, because no answers were read then.
        """
        now = time.monotonic()
        if self._since is not None and now - self._felt > _GAP_SECONDS:
            self._since += now - self._felt
        self._felt = now
        if self._task is not None and self._task.done():
            with suppress(Exception):  # if the scheduler cannot reach the worker
                self._task.result()
                self._since = None
            self._task = None
        if self._task is None and now >= self._next:
            self._task, self._next = ping(), now + _EVERY_SECONDS
            self._since = now if self._since is None else self._since
