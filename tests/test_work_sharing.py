"""A label that several threads work on gets the same weights as on one thread."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
import scipy.sparse as sp

from dismec.cpu import kernels
from dismec.features.transform import Transform
from dismec.solve.problem import Cancel, LabelSolver, Problem, SolverParams, WorkSharing
from dismec.solve.threads import solve_blocks

pytestmark = pytest.mark.native

N_ROWS = 70_000  # enough for passes to be shared
FREQUENT = 20_000  # positives: enough rows for sets to be cut into pieces


def frequent_labels(n_features, *, n_rows=N_ROWS, long_row=0, seed=0):
    """Generate rows whose first features carry information about their labels, with noise.

    The first row has `long_row` features: a set that holds it is not copied.
    """
    rng = np.random.default_rng(seed)
    frequent = rng.integers(0, 40, (n_rows, 3))
    rare = rng.integers(40, n_features, (n_rows, 5))
    columns = np.hstack([frequent, rare]).ravel()
    rows = np.repeat(np.arange(n_rows), 8)
    X = sp.csr_array(
        (rng.random(len(rows), np.float32) + 0.1, (rows, columns)), (n_rows, n_features)
    )
    if long_row:
        first = sp.csr_array(rng.random((1, n_features), np.float32) + 0.1)
        first.data[long_row:] = 0
        first.eliminate_zeros()
        X = sp.csr_array(sp.vstack([first, X[1:]]))
    score = (frequent < 12).sum(axis=1) + rng.random(n_rows)
    score[0] = 9
    wide = np.argsort(-score, kind="stable")[:FREQUENT]
    narrow = np.argsort(-(frequent % 7 == 0).sum(axis=1) - rng.random(n_rows), kind="stable")[:4000]
    few = rng.choice(n_rows, 300, replace=False)
    labels = [wide, narrow, few]
    Y = sp.csr_array(
        (
            np.ones(sum(map(len, labels)), np.float32),
            (np.concatenate(labels), np.repeat(np.arange(3), [len(part) for part in labels])),
        ),
        (n_rows, 3),
    )
    return X, Y


KINDS = {
    "row by row": {"n_features": 1000},
    "in tiers": {"n_features": 3000},
    "read in place": {"n_features": 9000, "long_row": 8900},
}


@pytest.fixture(scope="module", params=KINDS)
def data(request):
    X, Y = frequent_labels(**KINDS[request.param])
    tiers = X.shape[1] * X.shape[0] > kernels.features_per_non_zero * X.nnz
    assert tiers == (request.param != "row by row")
    return X, Y


@contextmanager
def helpers(sharing, n):
    """Run threads that help until the end."""
    known = sharing.calls
    threads = [threading.Thread(target=sharing.help, args=(known,)) for _ in range(n)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        sharing.call_back()
        for thread in threads:
            thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


def solve(problem, n_threads, **params):
    sharing = WorkSharing()
    solver = LabelSolver(problem, SolverParams(**params), Cancel(), sharing=sharing)
    with helpers(sharing, n_threads - 1):
        found = solver.solve(np.arange(problem.n_labels), drain=True)
    return found[np.argsort(found.labels)], sharing


def bytes_of(solution):
    weights = solution.weights
    parts = (weights.indptr, weights.indices, weights.data, solution.objective, solution.stop_ratio)
    return [part.tobytes() for part in parts]


@pytest.mark.parametrize("transform", [{}, {"tfidf": True}], ids=["plain", "tfidf"])
def test_weights_are_the_same_on_any_number_of_threads(data, transform):
    X, Y = data
    problem = Problem(X, Y, Transform.fit(X, **transform))
    alone, sharing = solve(problem, 1)
    assert sharing.n_helped == 0
    assert alone.set_size.max() > FREQUENT
    assert (alone.stop_ratio <= 1).all()
    for n_threads in (2, 4):
        together, sharing = solve(problem, n_threads)
        assert sharing.n_helped > 0
        assert bytes_of(together) == bytes_of(alone)
        assert together.passes.tolist() == alone.passes.tolist()
        assert together.steps.tolist() == alone.steps.tolist()


def test_a_label_is_the_same_beside_others_and_by_itself(data):
    X, Y = data
    problem = Problem(X, Y, Transform.fit(X))
    together = problem.solve(np.arange(3), SolverParams())
    for label in range(3):
        alone = problem.solve(np.array([label]), SolverParams())
        assert bytes_of(alone) == bytes_of(together[np.array([label])])


def test_passes_are_shared_under_the_l1_penalty():
    X, Y = frequent_labels(**KINDS["in tiers"])
    problem = Problem(X, Y[:, [2]], Transform.fit(X))
    alone, _ = solve(problem, 1, penalty="l1")
    together, sharing = solve(problem, 3, penalty="l1")
    assert sharing.n_helped > 0
    assert bytes_of(together) == bytes_of(alone)


def test_a_shared_solution_is_the_optimum(data):
    X, Y = data
    transform = Transform.fit(X)
    found, _ = solve(Problem(X, Y, transform), 2, delta=0)
    rows = transform.apply(X).astype(np.float64)
    s = np.where(Y[:, [0]].toarray().ravel() > 0, 1.0, -1.0)
    w = found.weights[[0]].toarray().ravel().astype(np.float64)
    slack = np.maximum(0, 1 - s * (rows @ w))
    objective = 0.5 * w @ w + slack @ slack
    gradient = w - 2 * (rows.T @ (s * slack))
    assert objective == pytest.approx(found.objective[0], rel=1e-4)
    assert 0.5 * gradient @ gradient <= 1e-3 * objective


def run_blocks(problem, threads):
    blocks = {0: np.array([0]), 1: np.array([1, 2])}
    solved = solve_blocks(problem, SolverParams(), blocks, lambda block: block, threads=threads)
    return sorted(solved, key=lambda block: block.number)


def test_blocks_are_the_same_on_any_number_of_threads(data):
    X, Y = data
    problem = Problem(X, Y, Transform.fit(X))
    alone = run_blocks(problem, 1)
    for threads in (2, 4):
        for block, other in zip(alone, run_blocks(problem, threads), strict=True):
            assert block.weights.data.tobytes() == other.weights.data.tobytes()
            assert block.weights.indices.tobytes() == other.weights.indices.tobytes()


def test_shared_work_stops_when_it_is_cancelled():
    X, Y = frequent_labels(**KINDS["in tiers"])
    problem, cancel, sharing = Problem(X, Y, Transform.fit(X)), Cancel(), WorkSharing()
    solver = LabelSolver(problem, SolverParams(C=1000, tol=1e-5), cancel, sharing=sharing)
    labels, solved = np.full(100, 2), []
    thread = threading.Thread(target=lambda: solved.extend(solver.solve(labels, drain=True).labels))
    with helpers(sharing, 3):
        thread.start()
        while not sharing.n_helped:
            time.sleep(0.001)
        cancel.set()
        thread.join()
    assert len(solved) < len(labels) / 2
