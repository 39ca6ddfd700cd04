from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from conftest import random_problem
from dismec.compare.leml import LEML, NormalEquations, alternate
from dismec.features.transform import Transform


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
    equations = NormalEquations.prepare(*small, 1)
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
    equations = NormalEquations.prepare(X, Y, 1)
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
    equations = NormalEquations.prepare(*small, 1)
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


def test_threads_do_not_matter_and_the_seed_does(small, either, monkeypatch):
    monkeypatch.setattr("dismec.compare.leml._BLOCK", 4)
    one, two, again = (LEML(iterations=2).fit(*small, threads=n).arrays() for n in (1, 3, 1))
    other = LEML(iterations=2, seed=1).fit(*small).arrays()
    for name in ("W", "H"):
        assert one[name].dtype == np.float32
        assert np.array_equal(one[name], two[name])
        assert np.array_equal(one[name], again[name])
        assert not np.array_equal(one[name], other[name])


def test_prediction_is_the_best_of_all_scores(small, monkeypatch):
    X, Y = small
    fitted = LEML(iterations=2).fit(X, Y)
    arrays = fitted.arrays()
    scores = X.toarray() @ arrays["W"] @ arrays["H"].T
    monkeypatch.setattr("dismec.compare.baseline._MOST_CELLS", 7 * 25)
    labels, values = fitted.predict_topk(X, 3)
    assert labels.dtype == np.int32
    np.testing.assert_allclose(values, -np.sort(-scores, axis=1)[:, :3], atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(scores, labels, 1), values, atol=1e-5)


def test_empty_rows_features_and_labels_do_no_harm(small, either):
    X, Y = (M.tolil() for M in small)
    X[3], Y[5], Y[:, 7], X[:, 11] = 0, 0, 0, 0
    X, Y = X.tocsr(), Y.tocsr()
    fitted = LEML(iterations=3).fit(X, Y)
    labels, values = fitted.predict_topk(X, 30)
    assert np.isfinite(values[:, :25]).all()
    assert (labels[:, 25:] == -1).all()
    assert not fitted.arrays()["W"][11].any()
    assert not fitted.arrays()["H"][7].any()
    only = LEML().fit(X, Y[:, :1])
    assert only.low_rank.H.shape == (1, 1)
    nothing = LEML(iterations=2).fit(X, sp.csr_matrix(Y.shape, dtype=np.uint8))
    assert not nothing.predict_topk(X, 1)[1].any()


def test_rank_is_limited_by_the_labels(small):
    equations = NormalEquations.prepare(*small, 1)
    assert LEML().start(equations).H.shape == (25, 20)
    assert LEML(rank=90).start(equations).H.shape == (25, 25)


@pytest.mark.data
def test_bibtex_is_within_reach_of_the_published_figures(bibtex_precision):
    """With the defaults, except for fewer iterations, to save time."""
    measured = bibtex_precision(LEML(iterations=4))
    for name, published in {"P@1": 62.54, "P@3": 38.41, "P@5": 28.21}.items():
        assert measured[name] >= published - 1.5, name
