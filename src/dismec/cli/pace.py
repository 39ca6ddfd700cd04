"""Labels and work that are done → how many per second, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable

from dismec.training.request import WorkProgress

__all__ = ["Pace"]


class Pace(WorkProgress):
    """Calls ``show(pace, done, total)`` whenever there is news.

    Time goes by the work that is done, not by labels: frequent labels come first, and one of them
    may take as long as a hundred others. What an earlier run has done does not count.
    """

    def __init__(
        self,
        show: Callable[[Pace, int, int], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.rate = 0.0  # labels per second
        self.seconds_left: float | None = None  # None if that cannot be told yet
        self._show, self._clock = show, clock
        self._first: tuple[int, float, float] | None = None

    def update(self, done: int, total: int, share: float) -> None:
        """So many labels of `total` are done, which is this share of the work."""
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
        """The time left as the end of a sentence; empty if there is none, or it is not known."""
        if not self.seconds_left:
            return ""
        minutes, seconds = divmod(round(self.seconds_left), 60)
        hours, minutes = divmod(minutes, 60)
        if hours:
            return f", {hours} h {minutes:02} min left"
        return f", {minutes} min {seconds:02} s left" if minutes else f", {seconds} s left"
