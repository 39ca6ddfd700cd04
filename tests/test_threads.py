from __future__ import annotations

import threading
from itertools import chain
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import random_problem
from dismec.features.transform import Transform
from dismec.solve import threads as threads_module
from dismec.solve.partition import EqualLabels, by_frequency, cut, effort
from dismec.solve.problem import Cancel, LabelSolver, Problem, SolverParams
from dismec.solve.threads import solve_blocks

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def problem():
    X, Y = random_problem()
    return Problem(X, Y, Transform.fit(X))


def own_threads():
    """Return the threads of this package, including any that other tests left behind."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("dismec")}


def run(problem, block_size, threads, progress=None):
    blocks = dict(enumerate(cut(problem.equal_labels.groups, block_size)))
    solved = solve_blocks(
        problem, SolverParams(), blocks, lambda b: b, threads=threads, progress=progress
    )
    return sorted(solved, key=lambda block: block.number)


def rows_of(blocks):
    """Return each label's features and weights as bytes."""
    rows = {
        label: (block.weights[[row]].indices.tobytes(), block.weights[[row]].data.tobytes())
        for block in blocks
        for label, row in zip(block.labels.tolist(), block.rows.tolist(), strict=True)
    }
    return [rows[label] for label in sorted(rows)]


def test_blocks_hold_every_label_once_and_equal_ones_together():
    blocks = cut(np.arange(7), 3)
    assert [block.tolist() for block in blocks] == [[0, 1, 2], [3, 4, 5], [6]]
    blocks = cut(np.array([0, 1, 2, 0, 4, 1, 0]), 3)
    assert [block.tolist() for block in blocks] == [[0, 3, 6], [1, 2, 5], [4]]
    assert cut(np.empty(0, np.int64), 3) == []
    with pytest.raises(ValueError, match="at least 1"):
        cut(np.arange(7), 0)


def test_frequent_labels_come_first_and_no_block_takes_much_longer_than_others():
    counts = np.ones(200, np.int64)
    counts[[150, 20, 70]] = 1000, 1500, 1000
    groups = np.arange(200)
    groups[150] = 70  # the same rows
    blocks = cut(by_frequency(groups, counts), 10, np.where(np.arange(200) == 150, 0, counts))
    assert [block.tolist() for block in blocks[:2]] == [[20], [70, 150]]
    assert blocks[2].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert sorted(np.concatenate(blocks).tolist()) == list(range(200))
    assert len(cut(by_frequency(groups, counts), 10)) == 20
    none = np.empty(0, np.int64)
    assert cut(by_frequency(none, none), 4, none) == []


def test_labels_are_found_equal_by_their_rows_alone():
    rows = [[0, 2], [1], [], [0, 2], [1], [0, 1], [], [0, 2]]
    indptr = np.cumsum([0, *map(len, rows)])
    equal = EqualLabels.of(indptr, np.concatenate(rows).astype(np.int32), 3)
    assert equal.groups.tolist() == [0, 1, 2, 0, 1, 5, 2, 0]
    assert equal.distinct.tolist() == equal.first.tolist() == [0, 1, 2, 5]
    assert equal.sizes.tolist() == [3, 2, 2, 1]
    assert equal.find(np.array([5, 0])).tolist() == [3, 0]
    assert equal.copy_of.tolist() == [0, 1, 2, 0, 1, 3, 2, 0]
    some = equal.among(np.array([1, 3, 4, 7]))
    assert some.distinct.tolist() == [3, 1]
    assert some.first.tolist() == [1, 0]
    assert some.find(np.array([1, 3])).tolist() == [1, 0]
    assert some.copy_of.tolist() == [1, 0, 1, 0]


@settings(deadline=None)
@given(
    rows=st.lists(st.sets(st.integers(0, 3)), max_size=30),
    n_rows=st.sampled_from([4, 2**31 - 1]),
    at_once=st.integers(1, 9),
)
def test_labels_are_equal_to_the_first_with_the_same_rows(rows, n_rows, at_once):
    far = [sorted(n_rows - 1 - row for row in of_label) for of_label in rows]
    indptr = np.cumsum([0, *map(len, rows)])
    with mock.patch("dismec.solve.partition._ENTRIES_AT_ONCE", at_once):
        equal = EqualLabels.of(indptr, np.array(list(chain(*far)), np.int32), n_rows)
    assert equal.groups.tolist() == [far.index(of_label) for of_label in far]


def test_groups_of_all_labels_are_reused():
    equal = EqualLabels(np.arange(4), np.array([0, 1, 0, 3]))
    assert equal.among(np.arange(4)) is equal
    assert equal.among(np.array([3, 2, 1, 0])).distinct.tolist() == [2, 1, 3]
    for found in (equal, equal.among(np.array([0, 1, 2, 3]))):
        assert found.copy_of.tolist() == [0, 1, 0, 2]


def test_blocks_of_equal_effort_hold_every_label_once():
    rng = np.random.default_rng(0)
    groups = np.minimum(np.arange(500), rng.integers(0, 500, 500))
    counts = rng.zipf(1.5, 500).clip(max=3000)
    work = effort(EqualLabels(np.arange(500), groups), counts)
    some = EqualLabels(np.arange(3), np.array([0, 1, 0]))
    assert effort(some, np.array([5, 0, 5])).tolist() == [35, 0, 0]
    for n_blocks in (1, 7, 40):
        blocks = cut(groups, 60, work, n_blocks)
        assert len(blocks) >= min(n_blocks, 25)
        assert max(map(len, blocks)) <= 60
        assert sorted(np.concatenate(blocks).tolist()) == list(range(500))
        share = work.sum() / n_blocks + 1
        assert all(work[block].sum() <= share + work[block].max() for block in blocks)
        assert all((np.diff(block) > 0).all() for block in blocks)
    none = np.empty(0, np.int64)
    assert cut(none, 3, none, 5) == []


def test_labels_of_one_group_are_in_one_block():
    groups = np.repeat(np.arange(100), 5)
    work = np.where(np.arange(500) % 5 == 0, 31, 0)
    blocks = cut(groups, 60, work, 40)
    assert sum(len(np.unique(groups[block])) for block in blocks) == 100


def test_labels_with_the_same_rows_are_solved_once():
    X, Y = random_problem()
    doubled = sp.csr_array(sp.hstack([Y, Y[:, ::-1], Y]))
    problem = Problem(X, doubled, Transform.fit(X))
    n = Y.shape[1]
    groups = problem.equal_labels.groups
    np.testing.assert_array_equal(groups[:n], groups[2 * n :])
    np.testing.assert_array_equal(groups[:n][::-1], groups[n : 2 * n])
    counted = []
    blocks = run(problem, 25, 2, lambda n, _: counted.append(n))
    assert sum(counted) == 3 * n
    assert sum(block.stats.solved for block in blocks) <= n + len(blocks)
    # Labels with the same rows share one classifier per block.
    assert sum(block.weights.shape[0] for block in blocks) <= n + len(blocks)
    rows = rows_of(blocks)
    assert rows[:n] == rows[2 * n :] == rows[n : 2 * n][::-1]
    assert rows[:n] == rows_of(run(Problem(X, Y, Transform.fit(X)), 1000, 1))


def test_threads_and_block_size_do_not_change_weights(problem, monkeypatch):
    expected = rows_of(run(problem, 1000, 1))
    assert len(expected) == problem.n_labels
    for block_size, threads, part in [(1000, 2, 256), (7, 1, 256), (7, 3, 2), (1, 2, 256)]:
        monkeypatch.setattr(threads_module, "_LABELS_AT_ONCE", part)
        monkeypatch.setattr(threads_module, "_MOST_TIMES", 1)
        assert rows_of(run(problem, block_size, threads)) == expected


def test_labels_of_small_blocks_are_handed_over_together(problem):
    handed = []
    run(problem, 1, 2, lambda _, labels: handed.append(len(labels)))
    assert sum(handed) == problem.n_labels
    assert len(handed) <= 2 + 2 * problem.n_labels / threads_module._LABELS_AT_ONCE


def test_progress_counts_every_label_once(problem):
    counted, solved = [], []

    def progress(n_labels, labels):
        counted.append(n_labels)
        solved.extend(labels.tolist())

    run(problem, 9, 2, progress)
    assert sum(counted) == problem.n_labels
    assert sorted(solved) == list(range(problem.n_labels))


def test_statistics_add_up(problem):
    block = run(problem, 1000, 1)[0]
    whole = problem.solve(range(problem.n_labels), SolverParams())
    assert len(np.unique(problem.equal_labels.groups)) == problem.n_labels
    assert block.stats.passes == whole.passes.sum()
    assert block.stats.set_rows == whole.set_size.sum()
    assert block.stats.solved == np.count_nonzero(problem.label_counts)
    assert block.stats.unsolved == 0


def test_error_in_keep_ends_the_run_and_its_threads(problem):
    before = own_threads()

    def fail(block):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        list(
            solve_blocks(
                problem, SolverParams(), dict(enumerate(cut(np.arange(40), 10))), fail, threads=2
            )
        )
    assert own_threads() <= before


def test_closing_the_run_stops_its_threads_before_they_take_more_labels():
    before = own_threads()
    X, Y = random_problem(labels=300)
    problem = Problem(X, Y, Transform.fit(X))
    some_solved, closed = threading.Event(), threading.Event()
    taken = []

    class Held(LabelSolver):
        """Takes no labels between its first solutions and the end of the run."""

        def solve(self, labels, *, drain=False):
            if some_solved.is_set():
                closed.wait()
                taken.extend(labels)
            solution = super().solve(labels, drain=drain)
            if len(solution.labels):
                some_solved.set()
            return solution

    def set_and_release(cancel):
        cancel.byte[0] = 1
        closed.set()

    blocks = dict(enumerate(cut(np.arange(300), 1)))
    with (
        mock.patch.object(threads_module, "LabelSolver", Held),
        mock.patch.object(threads_module, "_LABELS_AT_ONCE", 1),
        mock.patch.object(threads_module, "_MOST_TIMES", 1),
        mock.patch.object(Cancel, "set", set_and_release),
    ):
        run = solve_blocks(problem, SolverParams(), blocks, lambda b: b, threads=2)
        next(run)
        run.close()
    assert len(taken) <= 2  # what each thread was working on
    assert own_threads() <= before
