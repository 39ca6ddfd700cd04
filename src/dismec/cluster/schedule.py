"""Labels → which worker solves which, and when a block is given to a second worker.

Blocks are cut when they are handed out, for the threads available at that time. A worker has a few
at a time and gets more when it has finished some. A block is with one worker unless that worker is
late, compared with the expected time of its blocks, or another one is idle: then it is with two,
and the first result counts. Nothing here talks to a cluster or reads a clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dismec.cluster.pool import MOST_LOSSES
from dismec.errors import ClusterError
from dismec.solve.partition import BlockCutter

__all__ = ["BLOCKS_PER_THREAD", "Delay", "Schedule"]

BLOCKS_PER_THREAD = 24  # so the last ones are a small share of the work
_FEW_THREADS = 8  # with fewer, blocks are cut as if there were this many: more may come
_MANY = 5000  # blocks; each costs the client time, so more are cut only per worker
_LABELS_PER_THREAD = 128  # given to a worker at a time: those being solved, and the next
_MOST_FAILURES = 3

# A worker that finishes nothing is late after this many seconds and this multiple of the expected
# time of its blocks, judged by other blocks; and in any case if it has not answered for a minute.
_LATE_SECONDS = 5.0
_LATE_TIMES = 3.0
_SILENT_SECONDS = 60.0

_BlockLabels = npt.NDArray[np.int64]


class Delay(NamedTuple):
    """A worker that is late."""

    worker: str
    n_blocks: int  # blocks that it has
    waited: float  # seconds since it last finished a block, or got some
    expected: float | None  # expected seconds for its blocks, if any block is done yet


@dataclass(eq=False)
class _Pending:
    """An unfinished block."""

    labels: _BlockLabels
    cost: int
    holders: set[str] = field(default_factory=set)  # workers
    failures: dict[str, Exception] = field(default_factory=dict)  # by worker
    losses: int = 0  # workers that died while solving it

    @property
    def suspect(self) -> bool:
        """Whether it may kill its worker: such blocks are solved alone, and last."""
        return bool(self.failures) or self.losses > 1


@dataclass(eq=False)
class _Hand:
    """The blocks that a worker holds."""

    threads: int
    progressed: float  # when it last finished a block, or got some when it had none
    answered: float  # when it last answered
    blocks: dict[int, _Pending] = field(default_factory=dict)  # in the order given
    labels: int = 0
    cost: int = 0
    late: bool = False

    @property
    def alone(self) -> bool:
        """Whether it has a block that must be solved alone."""
        return len(self.blocks) == 1 and next(iter(self.blocks.values())).suspect


class Schedule:
    """Which worker solves what. Workers are identified by address, blocks by number from `first`.

    `present` contains all current workers, including those not ready yet, and may change. Times are
    in seconds of any monotonic clock.
    """

    def __init__(self, cutter: BlockCutter, first: int, present: Collection[str]) -> None:
        self.n_blocks = 0  # blocks cut so far
        self.repeated: set[int] = set()  # blocks given to a second worker
        self._cutter = cutter
        self._first = first
        self._present = present
        self._hands: dict[str, _Hand] = {}
        self._threads = 0
        self._open: dict[int, _Pending] = {}
        self._returned: dict[int, None] = {}  # of these, the ones to hand out
        self._returned_cost = 0
        self._suspects: dict[int, None] = {}  # likewise, those to be solved alone
        self._solved_seconds, self._solved_cost = 0.0, 0

    @property
    def finished(self) -> bool:
        """Whether all labels are solved."""
        return not self._open and not self._cutter.n_left

    def labels(self, number: int) -> _BlockLabels:
        """Return the labels of an unfinished block."""
        return self._open[number].labels

    def held(self, worker: str) -> int:
        """Return the number of blocks that a worker has."""
        return len(self._hands[worker].blocks) if worker in self._hands else 0

    def join(self, worker: str, threads: int, now: float) -> None:
        """Add a worker that is ready. Labels not cut yet are cut for all current workers."""
        self._hands[worker] = _Hand(threads, now, now)
        self._threads += threads
        most = max(BLOCKS_PER_THREAD * len(self._hands), _MANY)
        self._cutter.aim(min(BLOCKS_PER_THREAD * max(self._threads, _FEW_THREADS), most))

    def leave(self, worker: str) -> int:
        """Remove a worker; return how many blocks it had.

        Raise `ClusterError` if too many workers died while solving the same block.
        """
        hand = self._hands.pop(worker, None)
        if hand is None:
            return 0
        self._threads -= hand.threads
        for number, block in hand.blocks.items():
            block.holders.discard(worker)
            if number not in self._open:
                continue
            self._take_back(number, block)
            block.losses += 1
            if block.losses >= MOST_LOSSES:
                raise ClusterError(
                    f"{MOST_LOSSES} workers have died while solving block {number}, perhaps out of "
                    "memory: give them more memory or fewer threads; finished blocks are kept"
                )
            self._give_back(number, block)
        return len(hand.blocks)

    def answered(self, worker: str, now: float) -> None:
        """Record that a worker has answered."""
        if worker in self._hands:
            self._hands[worker].answered = now

    def done(self, worker: str, number: int, seconds: float, now: float) -> _BlockLabels | None:
        """Record that a worker has solved a block, in `seconds` core-seconds.

        Return the block's labels, or None if another worker was faster.
        """
        block = self._drop(worker, number, now)
        if block is None or number not in self._open:
            return None
        del self._open[number]
        self._take_back(number, block)
        self._solved_seconds += seconds
        self._solved_cost += block.cost
        return block.labels

    def failed(self, worker: str, number: int, error: Exception, now: float) -> None:
        """Record that solving a block has raised an error.

        Raise it if the block has failed on three workers, or on all of them.
        """
        block = self._drop(worker, number, now)
        if block is None or number not in self._open:
            return
        self._take_back(number, block)
        block.failures[worker] = error
        if len(block.failures) >= _MOST_FAILURES or block.failures.keys() >= set(self._present):
            error.add_note(
                f"block {number} has failed on {', '.join(block.failures)}; "
                "finished blocks are kept"
            )
            raise error
        self._give_back(number, block)

    def delays(self, now: float) -> list[Delay]:
        """Return workers that have become late: their blocks are also given to others."""
        found = []
        for worker, hand in self._hands.items():
            waited = now - hand.progressed
            if hand.late or not hand.blocks or waited <= _LATE_SECONDS:
                continue
            expected = self._expected(hand)
            if now - hand.answered > _SILENT_SECONDS or (
                expected is not None and waited > _LATE_SECONDS + _LATE_TIMES * expected
            ):
                hand.late = True
                found.append(Delay(worker, len(hand.blocks), waited, expected))
                for number, block in hand.blocks.items():
                    self._give_back(number, block)
        return found

    def hand_out(self, to: Collection[str], now: float) -> dict[str, list[int]]:
        """Choose blocks for some workers: enough to keep them busy, in turns."""
        waiting = [worker for worker in to if not self._has_enough(worker)]
        idle = {worker for worker in waiting if not self.held(worker)}
        repeats = self._repeats() if idle and not self._cutter.n_left else iter(())
        given: dict[str, list[int]] = {}
        # In turns, so the last blocks do not all go to one worker.
        while waiting:
            still = []
            for worker in waiting:
                number = self._next(worker, repeats if worker in idle else iter(()))
                if number is None:
                    continue
                self._give(worker, number, now)
                given.setdefault(worker, []).append(number)
                if not self._has_enough(worker):
                    still.append(worker)
            waiting = still
        return given

    def _has_enough(self, worker: str) -> bool:
        """Return whether its blocks keep a worker busy until it can get more.

        Threads are faster with more labels to choose from; but near the end, blocks held by one
        worker are missing for another.
        """
        hand = self._hands.get(worker)
        if hand is None or hand.late or hand.alone:
            return True
        if len(hand.blocks) < 2:
            return False
        share = (self._cutter.left + self._returned_cost) * hand.threads / self._threads
        return hand.labels >= _LABELS_PER_THREAD * hand.threads or (
            len(hand.blocks) >= hand.threads and hand.cost >= share / 2
        )

    def _next(self, worker: str, repeats: Iterator[int]) -> int | None:
        """Return the next block for a worker, and remove it from its queue."""
        for number in self._returned:
            if worker not in self._open[number].holders:
                self._take_back(number, self._open[number])
                return number
        cut = self._cutter.cut()
        if cut is not None:
            number = self._first + self.n_blocks
            self.n_blocks += 1
            self._open[number] = _Pending(*cut)
            return number
        if not self._hands[worker].blocks:
            for number in self._suspects:
                if worker not in self._open[number].holders and not self._avoids(worker, number):
                    self._take_back(number, self._open[number])
                    return number
        return next((number for number in repeats if self._is_single(worker, number)), None)

    def _avoids(self, worker: str, number: int) -> bool:
        """Return whether a block has failed on a worker, but not on all others."""
        failures = self._open[number].failures
        return worker in failures and not failures.keys() >= set(self._present)

    def _is_single(self, worker: str, number: int) -> bool:
        """Return whether exactly one worker, and not this one, has a block."""
        holders = self._open[number].holders
        return len(holders) == 1 and worker not in holders

    def _repeats(self) -> Iterator[int]:
        """Yield blocks of one worker that another may also start, the longest waiting first."""
        waiting = []
        for hand in self._hands.values():
            ahead = 0
            for number, block in hand.blocks.items():
                if number in self._open and len(block.holders) == 1 and not block.suspect:
                    waiting.append((ahead / hand.threads, number))
                ahead += block.cost
        return iter([number for _, number in sorted(waiting, reverse=True)])

    def _give(self, worker: str, number: int, now: float) -> None:
        hand, block = self._hands[worker], self._open[number]
        if not hand.blocks:
            hand.progressed = hand.answered = now
        if block.holders:
            self.repeated.add(number)
        hand.blocks[number] = block
        hand.labels += len(block.labels)
        hand.cost += block.cost
        block.holders.add(worker)

    def _drop(self, worker: str, number: int, now: float) -> _Pending | None:
        """Remove a block that a worker has finished from its hand, if it is there."""
        hand = self._hands.get(worker)
        block = hand.blocks.pop(number, None) if hand else None
        if hand is None or block is None:
            return None
        block.holders.discard(worker)
        hand.labels -= len(block.labels)
        hand.cost -= block.cost
        hand.progressed = hand.answered = now
        if hand.late:  # no other worker needs to start its blocks
            hand.late = False
            for other, pending in hand.blocks.items():
                self._take_back(other, pending)
        return block

    def _give_back(self, number: int, block: _Pending) -> None:
        """Hand out a block again, unless it is done or with a worker that is not late."""
        if number not in self._open or any(not self._hands[w].late for w in block.holders):
            return
        if block.suspect:
            self._suspects[number] = None
        elif number not in self._returned:
            self._returned[number] = None
            self._returned_cost += block.cost

    def _take_back(self, number: int, block: _Pending) -> None:
        """Stop handing out a block."""
        self._suspects.pop(number, None)
        if number in self._returned:
            del self._returned[number]
            self._returned_cost -= block.cost

    def _expected(self, hand: _Hand) -> float | None:
        """Return the expected seconds for a worker's blocks, judged by finished blocks."""
        if not self._solved_cost:
            return None
        # A label is mostly solved by one thread.
        largest = max(block.cost for block in hand.blocks.values())
        return self._solved_seconds / self._solved_cost * (hand.cost / hand.threads + largest)
