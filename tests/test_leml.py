from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from conftest import random_problem
from dismec.compare.leml import LEML, LowRank, NormalEquations, RobustXML, alternate, sparse_part
from dismec.features.transform import Transform

TOPICS, HEAD, TAIL = 3, 12, 40


def unit_rows(X):
    return sp.csr_matrix(Transform.fit(X, bias=0).apply(X)[:, :-1])


@pytest.fixture(scope="module")
def small():
    X, Y = random_problem(rows=200, features=60, labels=25)
    return unit_rows(X), sp.csr_matrix(Y)


@pytest.fixture(params=["dense XᵀX", "sparse X"])
def either(request, monkeypatch):
    """Run with both ways to multiply by XᵀX."""
    few = 0 if request.param == "sparse X" else 10_000
    monkeypatch.setattr("dismec.compare.leml._MOST_DENSE", few)
    return few > 0


def objective(X, Y, low_rank, lambda_):
    W, H = (part.astype(np.float64) for part in low_rank)
    loss = np.sum((Y.toarray() - X.toarray() @ W @ H.T) ** 2)
    return loss / 2 + lambda_ / 2 * (np.sum(W**2) + np.sum(H**2))


def test_objective_never_rises(small, either):
    equations = NormalEquations(*small, 1)
    assert (equations.gram is not None) == either
    low_rank = LEML(rank=8).start(equations)
    values = [objective(*small, low_rank, 0.3)]
    for _ in range(12):
        low_rank = alternate(equations, low_rank, 0.3, 3)
        values.append(objective(*small, low_rank, 0.3))
    assert (np.diff(values) <= 1e-5 * values[0]).all()
    assert values[-1] < 0.9 * values[1]


def test_ridge_solves_the_equations_of_each_column(small, either):
    rng = np.random.default_rng(1)
    X, Y = small
    equations = NormalEquations(X, Y, 1)
    target = rng.standard_normal((60, 5)).astype(np.float32)
    start = rng.standard_normal((60, 5)).astype(np.float32)
    d = np.array([0, 0.1, 1, 2, 30], np.float32)
    # Each call reduces the gradient to a tenth, so continue from its result.
    found = start
    for _ in range(12):
        found = equations.ridge(d, 0.5, target, found, 100)
    gram = X.toarray().T.astype(np.float64) @ X.toarray()
    for j in range(5):
        right = np.linalg.solve(d[j] * gram + 0.5 * np.eye(60), target[:, j])
        np.testing.assert_allclose(found[:, j], right, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("besides", [False, True])
def test_one_iteration_is_that_of_dense_algebra(small, either, besides):
    equations = NormalEquations(*small, 1)
    start = LEML(rank=4, seed=3).start(equations)
    V = sp.random(60, 25, 0.1, format="csr", dtype=np.float32, random_state=0) if besides else None
    found = alternate(equations, start, 2.0, 500, V)
    X, Y = (M.toarray().astype(np.float64) for M in small)
    target = Y - X @ V.toarray() if besides else Y
    # At the first H, the gradient in W is a tenth of its initial norm in each rotated dimension.
    H = start.H @ np.linalg.eigh(start.H.T.astype(np.float64) @ start.H)[1]
    first = X.T @ target @ H
    left = np.linalg.norm(first - X.T @ X @ found.W @ H.T @ H - 2.0 * found.W, axis=0)
    assert (left <= 0.1 * np.linalg.norm(first, axis=0)).all()
    # H is the best for this W.
    A = X @ found.W
    best = np.linalg.solve(A.T @ A + 2.0 * np.eye(4), A.T @ target).T
    np.testing.assert_allclose(found.H, best, rtol=1e-3, atol=1e-4)


def test_minimum_is_that_of_the_nuclear_norm(small):
    """With enough dimensions, the minimum of λ/2·(‖W‖² + ‖H‖²) is λ times the nuclear norm."""
    X, Y = small
    fitted = LEML(rank=25, lambda_=3.0, iterations=200).fit(X, Y)
    Z = (fitted.low_rank.W @ fitted.low_rank.H.T).astype(np.float64)
    dense = X.toarray().astype(np.float64)
    G = dense.T @ (Y.toarray() - dense @ Z)
    # G is a subgradient: λUVᵀ on the range of Z, and of norm at most λ.
    U, s, Vt = np.linalg.svd(Z)
    rank = int(np.sum(s > 1e-2))
    assert 1 <= rank < 25
    assert np.linalg.norm(G, 2) <= 3.0 * 1.02
    np.testing.assert_allclose(U[:, :rank].T @ G @ Vt[:rank].T, 3.0 * np.eye(rank), atol=0.1)


@pytest.mark.parametrize("system", [LEML(iterations=2), RobustXML(iterations=2)])
def test_prediction_is_the_best_of_all_scores(small, monkeypatch, system):
    X, Y = small
    fitted = system.fit(X, Y)
    weights = fitted.low_rank.W @ fitted.low_rank.H.T
    scores = X.toarray() @ (weights if fitted.V is None else weights + fitted.V.toarray())
    monkeypatch.setattr("dismec.compare.baseline._MOST_CELLS", 7 * 25)
    labels, values = fitted.predict_topk(X, 3)
    np.testing.assert_allclose(values, -np.sort(-scores, axis=1)[:, :3], atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(scores, labels, 1), values, atol=1e-5)


def test_empty_features_and_labels_have_no_weights(small, either):
    X, Y = (M.tolil() for M in small)
    Y[:, 7], X[:, 11] = 0, 0
    X, Y = X.tocsr(), Y.tocsr()
    fitted = RobustXML(iterations=2).fit(X, Y)
    assert not fitted.low_rank.W[11].any()
    assert not fitted.low_rank.H[7].any()
    assert not fitted.V[11].nnz
    assert not fitted.V[:, 7].nnz
    assert RobustXML().fit(X, Y[:, :1]).low_rank.H.shape == (1, 1)
    nothing = RobustXML(iterations=2).fit(X, sp.csr_matrix(Y.shape, dtype=np.uint8))
    assert not nothing.predict_topk(X, 1)[1].any()


def test_rank_is_limited_by_the_labels(small):
    equations = NormalEquations(*small, 1)
    assert LEML().start(equations).H.shape == (25, 20)
    assert LEML(rank=90).start(equations).H.shape == (25, 25)


def with_tail(rows, seed):
    """Generate labels that come four at a time with a topic, and rare ones with their own word."""
    rng = np.random.default_rng(seed)
    X = np.zeros((rows, TOPICS * 5 + TAIL), np.float32)
    Y = np.zeros((rows, HEAD + TAIL), np.uint8)
    for row in range(rows):
        topic = rng.integers(TOPICS)
        X[row, topic * 5 + rng.integers(0, 5, 3)] = 1
        Y[row, topic * 4 : topic * 4 + 4] = 1
        rare = rng.integers(TAIL)
        X[row, TOPICS * 5 + rare] = 1
        Y[row, HEAD + rare] = 1
    return unit_rows(sp.csr_array(X)), sp.csr_matrix(Y)


def test_rare_labels_are_found_by_the_sparse_part():
    (X, Y), (X_test, Y_test) = with_tail(240, 0), with_tail(100, 1)
    plain = LEML(rank=TOPICS, lambda_=0.3).fit(X, Y)
    robust = RobustXML(rank=TOPICS, lambda_=0.3, nu=0.1, threshold=0.1).fit(X, Y)
    hits = {}
    for name, fitted in (("plain", plain), ("robust", robust)):
        labels, _ = fitted.predict_topk(X_test, 5)
        rare = Y_test.toarray()[:, HEAD:].argmax(axis=1) + HEAD
        hits[name] = np.mean((labels == rare[:, None]).any(axis=1))
    assert hits["plain"] < 0.3
    assert hits["robust"] > 0.9
    weight = np.abs(robust.V.toarray()).sum(axis=0)
    assert weight[HEAD:].min() > weight[:HEAD].max()
    assert robust.V.nnz < 0.2 * np.prod(robust.V.shape)


@pytest.mark.usefixtures("either")
def test_sparse_part_is_that_of_dense_algebra(small, monkeypatch):
    monkeypatch.setattr("dismec.compare.leml._BLOCK", 4)
    rng = np.random.default_rng(0)
    W, H = (0.3 * rng.standard_normal((n, 3)).astype(np.float32) for n in (60, 25))
    equations = NormalEquations(*small, 1)
    # With a large ν the regression is precise after a few steps.
    V = sparse_part(equations, LowRank(W, H), 200.0, 0.004, 100).toarray()
    X, Y = (M.toarray().astype(np.float64) for M in small)
    ridge = np.linalg.solve(X.T @ X + 200.0 * np.eye(60), X.T @ (Y - X @ W @ H.T))
    expected = np.sign(ridge) * np.maximum(np.abs(ridge) - 0.004, 0)
    assert 0.1 < np.mean(expected != 0) < 0.9
    np.testing.assert_allclose(V, expected, atol=0.05 * np.abs(ridge).max())


def test_sparse_part_is_the_minimum_where_features_do_not_meet():
    """X has one feature per row, each in four rows, so XᵀX = 4I and μ = θ·(4 + ν)."""
    rng = np.random.default_rng(0)
    X = sp.csr_matrix(np.tile(np.eye(10, dtype=np.float32), (4, 1)))
    Y = sp.csr_matrix(rng.random((40, 6)) < 0.3, dtype=np.uint8)
    low_rank = LowRank(*(0.1 * rng.standard_normal((n, 2)).astype(np.float32) for n in (10, 6)))
    nu, mu = 1.0, 0.5
    V = sparse_part(NormalEquations(X, Y, 1), low_rank, nu, mu / (4 + nu), 20).toarray()

    def objective(V):
        loss = np.sum((Y.toarray() - X @ (low_rank.W @ low_rank.H.T + V)) ** 2)
        return loss / 2 + nu / 2 * np.sum(V**2) + mu * np.sum(np.abs(V))

    least = objective(V)
    assert 0 < np.count_nonzero(V) < V.size
    for feature, label in np.ndindex(V.shape):
        for change in (-1e-2, 1e-2):
            moved = V.copy()
            moved[feature, label] += change
            assert objective(moved) > least


def test_without_a_sparse_part_it_equals_leml(small):
    robust = RobustXML(threshold=1e6, rounds=2, iterations=3).fit(*small)
    assert robust.V.nnz == 0
    plain = LEML(lambda_=2.0, iterations=6).fit(*small)
    assert np.array_equal(robust.low_rank.W, plain.low_rank.W)
    assert np.array_equal(robust.low_rank.H, plain.low_rank.H)


def test_a_later_round_fits_the_low_rank_part_to_what_the_sparse_part_leaves(small):
    first = RobustXML(rounds=1, iterations=1).fit(*small)
    second = RobustXML(rounds=2, iterations=1).fit(*small)
    expected = alternate(NormalEquations(*small, 1), first.low_rank, 2.0, 20, first.V)
    assert first.V.nnz
    assert np.array_equal(second.low_rank.W, expected.W)
    assert np.array_equal(second.low_rank.H, expected.H)
