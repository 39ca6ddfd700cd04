"""The remaining time that progress shows."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import random_problem
from dismec import TrainingParams, train
from dismec.cli.pace import Pace
from dismec.solve.partition import effort
from dismec.training.params import WorkProgress, part_of


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Shares(WorkProgress):
    def __init__(self):
        self.seen = []

    def update(self, done, total, share):
        self.seen.append((done, total, share))


def test_time_left_depends_on_work_not_on_labels():
    # The first twenty labels take a hundred times as long as each of the 9,980 others.
    clock, costs = Clock(), [100.0] * 20 + [1.0] * 9_980
    pace, worst = Pace(lambda *_: None, clock), 0.0
    pace.update(0, len(costs), 0.0)
    work, everything = 0.0, sum(costs)
    for done, cost in enumerate(costs, 1):
        work += cost
        clock.now += cost
        pace.update(done, len(costs), work / everything)
        worst = max(worst, abs(pace.seconds_left - (everything - work)))
    assert worst < 1e-6 * everything
    assert pace.left == ""


def test_what_an_earlier_run_did_does_not_count():
    clock = Clock()
    pace = Pace(lambda *_: None, clock)
    pace.update(500, 1000, 0.8)
    assert pace.left == ""
    clock.now += 10
    pace.update(550, 1000, 0.9)
    assert pace.rate == pytest.approx(5)
    assert pace.seconds_left == pytest.approx(10)
    assert pace.left == ", 10 s left"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(59, ", 59 s left"), (61, ", 1 min 01 s left"), (7262, ", 2 h 01 min left")],
)
def test_times_are_formatted_for_people(seconds, shown):
    pace = Pace(lambda *_: None)
    pace.seconds_left = seconds
    assert pace.left == shown


def test_one_of_several_rounds_counts_as_its_part_of_the_work():
    whole = Shares()
    part_of(whole, 50, 100).update(10, 50, 0.5)
    assert whole.seen == [(60, 100, 0.75)]
    plain = []
    part_of(lambda done, total: plain.append((done, total)), 50, 100)(10, 50)
    assert plain == [(60, 100)]


def test_a_training_reports_the_share_of_work_done(tmp_path):
    X, Y = random_problem(rows=300, labels=80)
    shares = Shares()
    train(X, Y, tmp_path / "model", TrainingParams(block_size=10), progress=shares, threads=1)
    done, totals, share = map(np.array, zip(*shares.seen, strict=True))
    assert done[0] == 0
    assert share[0] == 0
    assert done[-1] == 80
    assert share[-1] == 1
    assert (np.diff(share) >= 0).all()
    assert (totals == 80).all()
    # Frequent labels come first, so the share of work is never behind the share of labels.
    assert (share >= done / 80 - 1e-9).all()


def test_effort_grows_with_the_rows_of_a_label():
    from dismec.solve.partition import EqualLabels

    indptr = np.array([0, 1, 4, 4])
    equal = EqualLabels.of(indptr, np.array([0, 0, 1, 2], np.int32), 3)
    first, second, none = effort(equal, np.diff(indptr)).tolist()
    assert 0 == none < first < second
