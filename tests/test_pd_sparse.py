from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize

from conftest import random_problem
from dismec import evaluate
from dismec.compare.pd_sparse import FrankWolfe, PDSparse, project_pairs
from dismec.errors import DataError
from dismec.features.transform import Transform


def dual(solver):
    """Return G(β), which every step decreases; at the optimum it is −`primal`."""
    own = np.diff(solver.Y.indptr)
    linear = sum(beta[n:].sum() for beta, n in zip(solver.beta, own, strict=True))
    return 0.5 * (solver.W.astype(np.float64) ** 2).sum() + linear


def primal(solver):
    """Return the objective at W, before L1 is dropped."""
    W = solver.W.astype(np.float64)
    scores, own = solver.X @ W, solver.Y.toarray() > 0
    least = np.where(own, scores, np.inf).min(axis=1)
    most = np.where(own, -np.inf, scores).max(axis=1)
    losses = np.maximum(1 + most - least, 0)  # 0 for rows with no label or all labels
    return solver.l1 * np.abs(W).sum() + 0.5 * (W**2).sum() + solver.C * losses.sum()


def small_problem(rows=120, features=40, labels=15, seed=0):
    X, Y = random_problem(rows, features, labels, 0.15, seed)
    kept = (np.diff(X.indptr) > 0) & (np.diff(Y.indptr) > 0)
    return sp.csr_matrix(Transform.fit(X, bias=0).apply(X)[:, :-1])[kept], sp.csr_matrix(Y)[kept]


def run_epochs(solver, epochs, select=3):
    rows = np.arange(solver.X.shape[0])
    for _ in range(epochs):
        for row, found in enumerate(solver.search(rows, select)):
            solver.step(row, found)


def is_allowed(beta, n_positive, C):
    p, q = beta[:n_positive], -beta[n_positive:]
    return min(p.min(), q.min()) >= 0 and abs(p.sum() - q.sum()) < 1e-9 and p.sum() <= C + 1e-9


@pytest.mark.parametrize("C", [0.05, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(8))
def test_the_projection_is_the_nearest_allowed_point(seed, C):
    rng = np.random.default_rng(seed)
    n_positive, n = int(rng.integers(1, 4)), 7
    b = rng.normal(0, 1, n)
    found = project_pairs(b, n_positive, C)
    assert is_allowed(found, n_positive, C)
    slow = minimize(
        lambda x: 0.5 * ((x - b) ** 2).sum(),
        np.zeros(n),
        jac=lambda x: x - b,
        method="SLSQP",
        bounds=[(0, None)] * n_positive + [(None, 0)] * (n - n_positive),
        constraints=[
            {"type": "eq", "fun": lambda x: x.sum()},
            {"type": "ineq", "fun": lambda x: C - x[:n_positive].sum()},
        ],
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert slow.success
    np.testing.assert_allclose(found, slow.x, atol=1e-5)


@pytest.mark.parametrize(
    ("b", "expected"),
    [
        ([-1.0, 2.0], [0, 0]),  # both would leave the allowed region
        ([3.0, 1.0], [1, -1]),  # the sums would be 1 apart from C
        ([0.0, 0.0], [0, 0]),
        ([0.5, -0.25, -0.25], [0.5, -0.25, -0.25]),  # already allowed
    ],
)
def test_known_projections_are_reproduced(b, expected):
    np.testing.assert_allclose(project_pairs(np.array(b), 1, 1.0), expected, atol=1e-12)


@pytest.mark.parametrize("l1", [0.0, 0.05, 0.5])
def test_no_step_raises_the_dual_objective(l1):
    solver = FrankWolfe(*small_problem(60), 1.0, l1)
    rows = np.arange(60)[: solver.X.shape[0]]
    before = dual(solver)
    for _ in range(3):
        for row, found in enumerate(solver.search(rows, 2)):
            solver.step(row, found)
            now = dual(solver)
            assert now <= before + 1e-5
            before = now
    assert before < -1


@pytest.mark.parametrize("l1", [0.0, 0.1])
def test_the_duality_gap_closes(l1):
    solver = FrankWolfe(*small_problem(60), 1.0, l1)
    run_epochs(solver, 2)
    early = primal(solver) + dual(solver)
    run_epochs(solver, 100)
    late = primal(solver) + dual(solver)
    assert -1e-3 < late < 0.01 * primal(solver)
    assert late < 0.2 * early


def test_weights_follow_from_the_dual_variables():
    X, Y = small_problem()
    solver = FrankWolfe(X, Y, 1.0, 0.1)
    run_epochs(solver, 5)
    beta = np.zeros(Y.shape)
    for row, (labels, values) in enumerate(zip(solver.active, solver.beta, strict=True)):
        beta[row, labels] = values
        own = Y[row].toarray().ravel() > 0
        assert is_allowed(np.concatenate((beta[row, own], beta[row, ~own])), own.sum(), 1.0)
    V = X.T @ beta
    np.testing.assert_allclose(solver.V, V, atol=1e-4)
    np.testing.assert_allclose(solver.W, np.sign(V) * np.maximum(np.abs(V) - 0.1, 0), atol=1e-4)


def test_the_search_finds_the_worst_violations():
    X, Y = small_problem()
    solver = FrankWolfe(X, Y, 1.0, 0.1)
    run_epochs(solver, 2)
    scores, own = X @ solver.W, Y.toarray() > 0
    found = solver.search(np.arange(X.shape[0]), 3)
    assert sum(map(len, found)) > 20
    for row, labels in enumerate(found):
        least = scores[row, own[row]].min()
        wrong = -np.sort(-scores[row, ~own[row]])[:3]  # ties may go to any label
        assert not own[row, labels].any()
        assert len(set(labels.tolist())) == len(labels)
        np.testing.assert_allclose(-np.sort(-scores[row, labels]), wrong[wrong + 1 > least])


def test_more_l1_leaves_fewer_weights():
    X, Y = small_problem()
    counts = [
        PDSparse(C=1.0, l1=l1, held_out=0, epochs=8).fit(X, Y).weights.nnz
        for l1 in (0.0, 0.1, 0.3, 1.0)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 3 * counts[-1] > 0


def test_a_refit_has_no_l1_and_stays_on_its_support():
    solver = FrankWolfe(*small_problem(), 1.0, 0.3)
    run_epochs(solver, 5)
    support = solver.W != 0
    V = solver.V.copy()
    solver.drop_l1()
    np.testing.assert_array_equal(solver.W, np.where(support, V, 0))
    before = dual(solver)
    run_epochs(solver, 5)
    assert dual(solver) < before
    assert not solver.W[~support].any()


def test_training_ranks_its_own_rows_well():
    X, Y = small_problem(300)
    fitted = PDSparse(l1=0.01, held_out=0, epochs=15).fit(X, Y)
    labels, scores = fitted.predict_topk(X, 3)
    assert evaluate(Y, labels, (1,))["P@1"] > 95
    dense = (X @ fitted.weights).toarray()
    np.testing.assert_allclose(scores, -np.sort(-dense, axis=1)[:, :3], atol=1e-6)
    known = np.flatnonzero(Y.toarray().any(axis=0))
    np.testing.assert_array_equal(labels[:, 0], known[dense.argmax(axis=1)])


def test_the_best_epoch_on_held_out_rows_is_kept():
    """With patience for all epochs, more epochs never make the choice worse."""
    X, Y = small_problem(300)
    rng = np.random.default_rng(0)
    judged = rng.permutation(X.shape[0])[: int(0.3 * X.shape[0])]  # the rows that fit draws
    precisions = []
    for epochs in (1, 3, 6, 10):
        fitted = PDSparse(l1=0.5, held_out=0.3, epochs=epochs, patience=99).fit(X, Y)
        labels, _ = fitted.predict_topk(X[judged], 1)
        precisions.append(evaluate(Y[judged], labels, (1,))["P@1"])
    assert precisions == sorted(precisions)
    assert precisions[0] < precisions[-1]


def test_data_with_one_label_predicts_it():
    X = sp.csr_matrix(np.eye(4, dtype=np.float32))
    Y = sp.csr_matrix(np.ones((4, 1), np.uint8))
    assert PDSparse().fit(X, Y).predict_topk(X, 2)[0].tolist() == [[0, -1]] * 4


def test_arrays_beyond_the_memory_bound_are_refused():
    X, Y = small_problem()
    with pytest.raises(DataError, match=r"features × [\d,]+ labels.*max_bytes") as caught:
        PDSparse(max_bytes=1000).fit(X, Y)
    assert "\n" not in str(caught.value)
