"""Which worker solves which block: late and hanging workers, by a simulated clock."""

from __future__ import annotations

import heapq
import sys
from collections import defaultdict
from itertools import count

import numpy as np
import pytest

from dismec.cluster import schedule as module
from dismec.cluster.pool import MOST_LOSSES
from dismec.cluster.schedule import BLOCKS_PER_THREAD, Schedule
from dismec.errors import ClusterError
from dismec.solve.partition import BlockCutter

PACE = 1e-3  # core-seconds per unit of cost


def cutter(n_labels=2000, block_size=1000):
    """Return labels whose costs decrease as from frequent to rare labels."""
    work = 30 + (3e5 / (10 + np.arange(n_labels))).astype(np.int64)
    return BlockCutter(np.arange(n_labels), np.arange(n_labels), work, block_size)


class Simulated:
    """Workers that solve one block after the other; `slow` multiplies the time they take."""

    def __init__(self, to_cut, latency=0.01):
        self.total = PACE * to_cut.left
        self.n_labels = to_cut.n_left
        self.present = {}
        self.schedule = Schedule(to_cut, 0, self.present)
        self.now = 0.0
        self.delays = []
        self.given = {}  # when each block was given, by worker and number
        self.counted = {}  # labels of the blocks that counted, by number
        self.solved = defaultdict(list)  # numbers of these blocks, by worker
        self.busy = defaultdict(float)
        self._latency = latency
        self._events, self._order = [], count()
        self._free = {}  # when each worker becomes free
        self._stopped = {}  # what stopped workers would have answered

    def at(self, when, action, *args):
        heapq.heappush(self._events, (when, next(self._order), action, args))

    def join(self, worker, threads=1, slow=1.0):
        self.present[worker] = threads, slow
        self._free[worker] = self.now
        self.schedule.join(worker, threads, self.now)

    def stop(self, worker):
        self._stopped[worker] = []

    def go_on(self, worker):
        for answer in self._stopped.pop(worker):
            self.answer(worker, *answer)

    def leave(self, worker):
        del self.present[worker]
        self.schedule.leave(worker)

    def answer(self, worker, number, seconds):
        if worker in self._stopped:
            self._stopped[worker].append((number, seconds))
            return
        if worker not in self.present:
            return
        labels = self.schedule.done(worker, number, seconds, self.now)
        if labels is not None:
            assert number not in self.counted
            self.counted[number] = labels
            self.solved[worker].append(number)
            self.busy[worker] += seconds

    def hand_out(self):
        for worker, numbers in self.schedule.hand_out(list(self.present), self.now).items():
            threads, slow = self.present[worker]
            for number in numbers:
                assert (worker, number) not in self.given
                self.given[worker, number] = self.now
                begin = max(self._free[worker], self.now + self._latency)
                seconds = slow * PACE * self.schedule._open[number].cost
                self._free[worker] = begin + seconds / threads
                self.at(self._free[worker] + self._latency, self.answer, worker, number, seconds)

    def look(self):
        """Do what the client does twice a second; workers answer even if nothing is done."""
        for worker in self.present.keys() - self._stopped.keys():
            self.schedule.answered(worker, self.now)
        self.delays += [(self.now, delay) for delay in self.schedule.delays(self.now)]
        self.at(self.now + 0.5, self.look)

    def run(self):
        """Run until all labels are solved; return the time."""
        self.at(self.now, self.look)
        while not self.schedule.finished:
            self.now, _, action, args = heapq.heappop(self._events)
            action(*args)
            self.hand_out()
        labels = np.concatenate(list(self.counted.values()))
        assert sorted(labels.tolist()) == list(range(self.n_labels))
        return self.now


def simulated(workers, **options):
    found = Simulated(cutter(**options))
    for worker in workers:
        found.join(worker)
    return found


def test_workers_with_many_threads_get_more_blocks():
    simulation = simulated("")
    for worker, threads in (("a", 1), ("b", 10)):
        simulation.join(worker, threads)
    assert simulation.run() < 1.1 * simulation.total / 11
    assert simulation.busy["b"] > 8 * simulation.busy["a"]


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_seven_late_workers_of_eight_take_part_fully(share):
    simulation = simulated("a")
    begin = share * simulation.total
    for worker in "bcdefgh":
        simulation.at(begin, simulation.join, worker)
    end = simulation.run()
    assert end - begin < 1.1 * (simulation.total - begin) / 8
    for worker in "bcdefgh":
        assert simulation.busy[worker] > 0.85 * (end - begin)


def test_remaining_labels_are_cut_for_the_current_threads():
    few = simulated("a", n_labels=20_000)
    few.run()
    many = simulated("a", n_labels=20_000)
    many.hand_out()
    for i in range(99):
        many.join(f"late{i}")
    many.run()
    assert many.schedule.n_blocks > 5 * few.schedule.n_blocks


def test_workers_that_come_and_go_do_not_make_ever_smaller_blocks():
    schedule = Schedule(cutter(n_labels=20_000, block_size=20_000), 0, {})
    schedule.join("a", 1, 0.0)
    while not schedule.finished:
        schedule.join("b", 1, 0.0)
        schedule.leave("b")
        schedule.hand_out(["a"], 0.0)
        for number in list(schedule._hands["a"].blocks):
            schedule.done("a", number, 1.0, 0.0)
    assert schedule.n_blocks < 8 * 8 * BLOCKS_PER_THREAD


def test_a_worker_that_hangs_is_late_by_the_cost_of_its_blocks_and_others_solve_them():
    expected = []
    for slow in (0.02, 0.2):
        simulation = simulated("", n_labels=20_000)
        for worker in "abcd":
            simulation.join(worker, slow=slow)
        total = slow * simulation.total
        stop = 0.125 * total
        simulation.at(stop, simulation.stop, "b")
        end = simulation.run()
        ((when, delay),) = simulation.delays
        assert delay.worker == "b"
        assert delay.n_blocks > 1
        assert delay.waited > module._LATE_SECONDS + module._LATE_TIMES * delay.expected
        assert delay.waited < 60
        assert when < end
        # The other three do the rest, including what b was working on.
        assert end - stop < 1.1 * (total - 4 * stop) / 3
        expected.append(delay.expected)
    assert expected[1] == pytest.approx(10 * expected[0], rel=0.5)


@pytest.mark.parametrize("latency", [0.0, 0.3])
def test_no_worker_as_fast_as_the_others_is_late(latency):
    simulation = Simulated(cutter(), latency)
    for worker in "abcd":
        simulation.join(worker)
    simulation.run()
    assert simulation.delays == []


def test_a_worker_that_hangs_before_anything_is_done_is_late_after_a_minute_of_silence():
    simulation = simulated("a")
    simulation.stop("a")
    simulation.hand_out()
    simulation.at(100.0, simulation.join, "b")
    simulation.run()
    ((when, delay),) = simulation.delays
    assert 60 < when < 62
    assert delay.expected is None
    assert simulation.solved.keys() == {"b"}


def test_answers_without_a_block_keep_a_worker_from_being_late_while_no_time_is_known():
    simulation = simulated("a")
    simulation.hand_out()
    simulation.schedule.answered("a", 50.0)
    assert simulation.schedule.delays(100.0) == []
    assert [delay.worker for delay in simulation.schedule.delays(111.0)] == ["a"]
    assert simulation.schedule.delays(200.0) == []  # reported only once


def test_a_late_worker_that_resumes_gets_blocks_again():
    simulation = simulated("ab", n_labels=20_000)
    simulation.at(100.0, simulation.stop, "b")
    simulation.at(400.0, simulation.go_on, "b")
    simulation.run()
    assert [delay.worker for _, delay in simulation.delays] == ["b"]
    later = [number for number in simulation.solved["b"] if simulation.given["b", number] >= 400]
    assert len(later) > 20


def test_stragglers_at_the_end_are_run_twice_and_the_first_result_counts():
    simulation = simulated("abc")
    simulation.join("slow", slow=1000.0)
    end = simulation.run()
    assert end < 1.2 * simulation.total / 3
    assert simulation.solved["slow"] == []
    assert simulation.schedule.repeated


def test_a_block_that_waits_longest_is_the_first_to_be_run_twice():
    simulation = simulated("a", n_labels=2, block_size=1)
    hand_out = simulation.schedule.hand_out
    assert hand_out(["a"], 0.0) == {"a": [0, 1]}
    simulation.join("b")
    assert hand_out(["a", "b"], 0.0) == {"b": [1, 0]}
    assert simulation.schedule.repeated == {0, 1}
    simulation.join("c")
    assert hand_out(["a", "b", "c"], 0.0) == {}  # two workers are enough


def test_nothing_is_run_twice_while_there_are_unassigned_blocks():
    simulation = simulated("abc", n_labels=500)
    simulation.hand_out()
    assert simulation.schedule._cutter.n_left
    simulation.join("d")
    simulation.hand_out()
    assert simulation.schedule.repeated == set()


def test_blocks_of_a_worker_that_dies_go_to_the_others():
    simulation = simulated("abc")
    simulation.at(0.1 * simulation.total, simulation.leave, "b")
    end = simulation.run()
    assert end < 1.1 * (0.1 + 0.7 / 2) * simulation.total
    assert simulation.delays == []


def test_blocks_that_kill_workers_are_solved_alone_and_end_the_run_after_ten():
    schedule = Schedule(cutter(n_labels=2, block_size=1), 7, {})
    given = []

    def die():
        schedule.join("a", 1, 0.0)
        given.append(schedule.hand_out(["a"], 0.0)["a"])
        schedule.leave("a")

    deaths = 2 + 2 * (MOST_LOSSES - 2) - 1
    for _ in range(deaths - 1):
        die()
    with pytest.raises(ClusterError, match="10 workers have died while solving block 7"):
        die()
    assert given[:2] == [[7, 8], [7, 8]]
    assert given[2:] == [[7], [8]] * (MOST_LOSSES - 3) + [[7]]


def test_a_block_that_fails_goes_to_others_and_is_raised_after_three():
    schedule = Schedule(cutter(n_labels=1), 0, dict.fromkeys("abcd"))
    for worker in "abcd":
        schedule.join(worker, 1, 0.0)
    for tried in "ab":
        assert schedule.hand_out(list("abcd"), 0.0) == {tried: [0]}
        schedule.failed(tried, 0, OSError(f"broken on {tried}"), 0.0)
    assert schedule.hand_out(list("abcd"), 0.0) == {"c": [0]}
    with pytest.raises(OSError, match="broken on c") as caught:
        schedule.failed("c", 0, OSError("broken on c"), 0.0)
    assert caught.value.__notes__ == ["block 0 has failed on a, b, c; finished blocks are kept"]


def test_a_failed_block_waits_for_a_worker_that_is_not_ready_yet():
    schedule = Schedule(cutter(n_labels=1), 0, dict.fromkeys("ab"))
    schedule.join("a", 1, 0.0)
    assert schedule.hand_out(["a"], 0.0) == {"a": [0]}
    schedule.failed("a", 0, OSError("broken"), 0.0)
    assert schedule.hand_out(["a"], 0.0) == {}
    schedule.join("b", 1, 0.0)
    assert schedule.hand_out(["a", "b"], 0.0) == {"b": [0]}
    assert schedule.done("b", 0, 1.0, 0.0).tolist() == [0]
    assert schedule.finished


def steps_per_block(n_blocks):
    """Return the byte codes of the module under test per block, in a run of this many blocks."""
    steps = 0

    def trace(frame, event, _):
        nonlocal steps
        if frame.f_code.co_filename != module.__file__:
            return None
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return trace

    simulation = simulated("abcd", n_labels=n_blocks, block_size=1)
    sys.settrace(trace)
    try:
        simulation.run()
    finally:
        sys.settrace(None)
    assert simulation.schedule.n_blocks == n_blocks
    return steps / n_blocks


def test_a_block_takes_as_many_steps_among_many_as_among_few():
    assert steps_per_block(1000) < 1.3 * steps_per_block(250)
