"""The remaining time that progress shows."""

from __future__ import annotations

import re

import numpy as np

from conftest import random_problem
from dismec import TrainingParams, train
from dismec.cli import console
from dismec.solve.partition import effort
from dismec.training.params import WorkProgress, share_of


class Shares(WorkProgress):
    def __init__(self):
        self.seen = []

    def update(self, done, total, share):
        self.seen.append((done, total, share))


def test_a_log_shows_the_time_left_by_work_and_without_that_of_an_earlier_run(capsys, monkeypatch):
    now = iter([float(second) for second in range(100, 200, 5) for _ in range(3)])
    monkeypatch.setattr("rich.progress.Progress.get_time", lambda _: next(now), raising=False)
    monkeypatch.setattr(console, "_SILENT_SECONDS", 0.0)
    with console.shown_progress(False, "training") as progress:
        progress.update(500, 1000, 0.8)
        progress.update(505, 1000, 0.85)
        progress.update(510, 1000, 0.9)
        progress.update(1000, 1000, 1.0)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "training: resuming after 500 of 1,000 labels"
    assert said[1] == "training: 500 of 1,000 labels"
    assert re.fullmatch(r"training: 510 of 1,000 labels, 0:00:\d\d left", said[3])
    assert said[4] == "training: 1,000 of 1,000 labels"


def test_a_stage_counts_as_its_part_of_the_work():
    whole = Shares()
    share_of(whole, 0.5, 1.0, 100).update(10, 50, 0.5)
    assert whole.seen == [(75, 100, 0.75)]
    plain = []
    share_of(lambda done, total: plain.append((done, total)), 0.5, 1.0, 100)(10, 50)
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
