"""Finished labels and work → labels per second, and the remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable

from dismec.training.params import WorkProgress

__all__ = ["Pace"]


class Pace(WorkProgress):
    """Calls ``show(pace, done, total)`` on every update.

    Time is estimated from the work done, not from labels: frequent labels come first, and one of
    them may take as long as a hundred others. Work done by an earlier run does not count.
    """

    def __init__(
        self,
        show: Callable[[Pace, int, int], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.rate = 0.0  # labels per second
        self.seconds_left: float | None = None  # None if not known yet
        self._show, self._clock = show, clock
        self._first: tuple[int, float, float] | None = None

    def update(self, done: int, total: int, share: float) -> None:
        """Record that `done` of `total` labels are finished, which is this share of the work."""
        now = self._clock()
        if self._first is None:
            self._first = done, share, now
        labels, work, begin = self._first
        if share > work and now > begin:
            self.rate = (done - labels) / (now - begin)
            self.seconds_left = (now - begin) * (1 - share) / (share - work)
        self._show(self, done, total)

    @property
    def left(self) -> str:
        """Return the remaining time as the end of a sentence; empty if zero or unknown."""
        if not self.seconds_left:
            return ""
        minutes, seconds = divmod(round(self.seconds_left), 60)
        hours, minutes = divmod(minutes, 60)
        if hours:
            return f", {hours} h {minutes:02} min left"
        return f", {minutes} min {seconds:02} s left" if minutes else f", {seconds} s left"
