"""Labels → which worker solves which of them, and when a block is given to a second one.

Blocks are cut when they are handed out, for the threads that are there by then. A worker has a few
at a time and gets more when it has finished some. A block is with one worker unless that one is
late, by what its blocks should take, or another one has nothing else to do: then it is with two,
and whoever is first counts. Nothing here talks to a cluster or reads a clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dismec.cluster.pool import MOST_LOSSES
from dismec.errors import ClusterError
from dismec.solve.blocks import BlockCutter

__all__ = ["BLOCKS_PER_THREAD", "Delay", "Schedule"]

BLOCKS_PER_THREAD = 24  # so that the last ones are a small share of the work
_FEW_THREADS = 8  # what fewer are given is cut as if there were as many: more may come
_MANY = 5000  # blocks; each takes the client's time, so more than these are cut per worker only
_LABELS_PER_THREAD = 128  # given to a worker at a time: what is being solved, and the next
_MOST_FAILURES = 3

# A worker that finishes nothing is late after so many seconds and so many times what its blocks
# should take, by what others have taken; and in any case if it has not answered for a minute.
_LATE_SECONDS = 5.0
_LATE_TIMES = 3.0
_SILENT_SECONDS = 60.0

_BlockLabels = npt.NDArray[np.int64]


class Delay(NamedTuple):
    """A worker that is late."""

    worker: str
    n_blocks: int  # that it has
    waited: float  # seconds since it last finished one, or was given some
    expected: float | None  # that its blocks should take, if any block is done yet


@dataclass(eq=False)
class _Pending:
    """A block that is not done."""

    labels: _BlockLabels
    cost: int
    holders: set[str] = field(default_factory=set)  # workers
    failures: dict[str, Exception] = field(default_factory=dict)  # by worker
    losses: int = 0  # workers that have died over it

    @property
    def suspect(self) -> bool:
        """Whether it may take its worker down: such blocks are solved alone, and last."""
        return bool(self.failures) or self.losses > 1


@dataclass(eq=False)
class _Hand:
    """What a worker has been given."""

    threads: int
    moved: float  # when it last finished a block, or was given some after it had none
    heard: float  # when it last answered
    blocks: dict[int, _Pending] = field(default_factory=dict)  # in the order of giving
    labels: int = 0
    cost: int = 0
    late: bool = False

    @property
    def alone(self) -> bool:
        """Whether it has a block that is to be solved alone."""
        return len(self.blocks) == 1 and next(iter(self.blocks.values())).suspect


class Schedule:
    """Who solves what. Workers are known by their addresses, blocks by their numbers from `first`.

    `present` are the workers that are there, those among them that are not ready yet; it may change
    by itself. Times are seconds by any clock that does not go back.
    """

    def __init__(self, cutter: BlockCutter, first: int, present: Collection[str]) -> None:
        self.n_blocks = 0  # cut so far
        self.repeated: set[int] = set()  # blocks that were given to a second worker
        self._cutter = cutter
        self._first = first
        self._present = present
        self._hands: dict[str, _Hand] = {}
        self._threads = 0
        self._open: dict[int, _Pending] = {}
        self._returned: dict[int, None] = {}  # of these, the ones to give to somebody
        self._returned_cost = 0
        self._suspects: dict[int, None] = {}  # the same, for those that are solved alone
        self._solved_seconds, self._solved_cost = 0.0, 0

    @property
    def finished(self) -> bool:
        """Whether all labels are solved."""
        return not self._open and not self._cutter.n_left

    def labels(self, number: int) -> _BlockLabels:
        """The labels of a block that is not done."""
        return self._open[number].labels

    def held(self, worker: str) -> int:
        """How many blocks a worker has."""
        return len(self._hands[worker].blocks) if worker in self._hands else 0

    def join(self, worker: str, threads: int, now: float) -> None:
        """A worker is ready for blocks. What is not cut yet is cut for all there are now."""
        self._hands[worker] = _Hand(threads, now, now)
        self._threads += threads
        most = max(BLOCKS_PER_THREAD * len(self._hands), _MANY)
        self._cutter.aim(min(BLOCKS_PER_THREAD * max(self._threads, _FEW_THREADS), most))

    def leave(self, worker: str) -> int:
        """A worker is gone; how many blocks it had.

        Raises `ClusterError` if too many have gone over the same block.
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
                    f"{MOST_LOSSES} workers have died while they solved block {number}, for want "
                    "of memory perhaps: give them more, or fewer threads; finished blocks are kept"
                )
            self._give_back(number, block)
        return len(hand.blocks)

    def answered(self, worker: str, now: float) -> None:
        """A worker has said something."""
        if worker in self._hands:
            self._hands[worker].heard = now

    def done(self, worker: str, number: int, seconds: float, now: float) -> _BlockLabels | None:
        """A worker has solved a block, in so many core-seconds.

        Returns the block's labels, or None if another worker was faster.
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
        """Solving a block has raised an error.

        Raises that if the block has failed on three workers, or on all there are.
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
        """The workers that are late and were not before: their blocks are given to others, too."""
        found = []
        for worker, hand in self._hands.items():
            waited = now - hand.moved
            if hand.late or not hand.blocks or waited <= _LATE_SECONDS:
                continue
            expected = self._expected(hand)
            if now - hand.heard > _SILENT_SECONDS or (
                expected is not None and waited > _LATE_SECONDS + _LATE_TIMES * expected
            ):
                hand.late = True
                found.append(Delay(worker, len(hand.blocks), waited, expected))
                for number, block in hand.blocks.items():
                    self._give_back(number, block)
        return found

    def hand_out(self, to: Collection[str], now: float) -> dict[str, list[int]]:
        """Which blocks some workers are given: enough to go on with, in turns."""
        hungry = [worker for worker in to if not self._has_enough(worker)]
        idle = {worker for worker in hungry if not self.held(worker)}
        repeats = self._repeats() if idle and not self._cutter.n_left else iter(())
        given: dict[str, list[int]] = {}
        # In turns, so that the last blocks do not all go to one worker.
        while hungry:
            still = []
            for worker in hungry:
                number = self._next(worker, repeats if worker in idle else iter(()))
                if number is None:
                    continue
                self._give(worker, number, now)
                given.setdefault(worker, []).append(number)
                if not self._has_enough(worker):
                    still.append(worker)
            hungry = still
        return given

    def _has_enough(self, worker: str) -> bool:
        """Whether blocks keep a worker busy until it can be given more.

        Its threads are the faster the more labels they have to choose from; but towards the end
        what one worker has in hand is what another one lacks.
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
        """The block to give to a worker, which is taken from where it was."""
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
        """Whether a block has failed on a worker, and not on all the others."""
        failures = self._open[number].failures
        return worker in failures and not failures.keys() >= set(self._present)

    def _is_single(self, worker: str, number: int) -> bool:
        """Whether a block is with one worker, and not with this one."""
        holders = self._open[number].holders
        return len(holders) == 1 and worker not in holders

    def _repeats(self) -> Iterator[int]:
        """Blocks of one worker that another may begin, too: those that would wait longest first."""
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
            hand.moved = hand.heard = now
        if block.holders:
            self.repeated.add(number)
        hand.blocks[number] = block
        hand.labels += len(block.labels)
        hand.cost += block.cost
        block.holders.add(worker)

    def _drop(self, worker: str, number: int, now: float) -> _Pending | None:
        """Take a block that a worker is through with out of its hand, if it is there."""
        hand = self._hands.get(worker)
        block = hand.blocks.pop(number, None) if hand else None
        if hand is None or block is None:
            return None
        block.holders.discard(worker)
        hand.labels -= len(block.labels)
        hand.cost -= block.cost
        hand.moved = hand.heard = now
        if hand.late:  # nobody else need begin what it has
            hand.late = False
            for other, pending in hand.blocks.items():
                self._take_back(other, pending)
        return block

    def _give_back(self, number: int, block: _Pending) -> None:
        """Have a block given to somebody, unless it is done or with a worker that is not late."""
        if number not in self._open or any(not self._hands[w].late for w in block.holders):
            return
        if block.suspect:
            self._suspects[number] = None
        elif number not in self._returned:
            self._returned[number] = None
            self._returned_cost += block.cost

    def _take_back(self, number: int, block: _Pending) -> None:
        """A block need not be given to anybody."""
        self._suspects.pop(number, None)
        if number in self._returned:
            del self._returned[number]
            self._returned_cost -= block.cost

    def _expected(self, hand: _Hand) -> float | None:
        """Seconds that a worker's blocks should take, by what those that are done have taken."""
        if not self._solved_cost:
            return None
        # A label is solved by one thread for the most part.
        largest = max(block.cost for block in hand.blocks.values())
        return self._solved_seconds / self._solved_cost * (hand.cost / hand.threads + largest)
