"""Whether a worker that the scheduler knows still answers: one that hangs does not leave."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from dismec.cluster.task import Task

__all__ = ["SILENT_SECONDS", "Pulse"]

SILENT_SECONDS = 20.0  # without an answer, from when a worker counts as silent
_EVERY_SECONDS = 4.0  # there is a question
_GAP_SECONDS = 5.0  # between two calls of `Pulse.feel`: from there on nobody was listening


class Pulse:
    """Questions to one worker that it answers at once, however busy its threads are."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._since: float | None = None  # when the first was put that has not been answered
        self._next = 0.0
        self._felt = time.monotonic()

    @property
    def silent(self) -> bool:
        """Whether the worker has not answered for a while."""
        return self._since is not None and time.monotonic() - self._since > SILENT_SECONDS

    def feel(self, ping: Callable[[], Task]) -> None:
        """Take an answer in, and put the next question when it is time.

        What passes between two calls that are far apart, while nobody listens, does not count.
        """
        now = time.monotonic()
        if self._since is not None and now - self._felt > _GAP_SECONDS:
            self._since += now - self._felt
        self._felt = now
        if self._task is not None and self._task.done():
            with suppress(Exception):  # of a scheduler that cannot reach the worker
                self._task.result()
                self._since = None
            self._task = None
        if self._task is None and now >= self._next:
            self._task, self._next = ping(), now + _EVERY_SECONDS
            self._since = now if self._since is None else self._since
