from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from dismec import generate
from dismec.compare.sleec import (
    SLEEC,
    k_means,
    nearest_center,
    nearest_products,
    regress,
    ridge,
    singular_value_projection,
    unit_rows,
)
from dismec.features.transform import Transform


def normalized(train, test):
    transform = Transform.fit(train.X, bias=0)
    return [sp.csr_matrix(transform.apply(data.X)[:, :-1]) for data in (train, test)]


@pytest.fixture(scope="module")
def problem():
    train, test = generate(rows=600, features=300, labels=40, seed=3)
    X, X_test = normalized(train, test)
    return X, sp.csr_matrix(train.Y), X_test


SMALL = SLEEC(
    n_learners=3,
    rows_per_cluster=200,
    svp_neighbors=15,
    dimension=20,
    cost=1.0,
    neighbors=5,
    svp_steps=20,
)


@pytest.fixture(scope="module")
def fitted(problem):
    return SMALL.fit(*problem[:2])


def error(products, Z):
    """Return ‖P_Ω(YYᵀ − ZZᵀ)‖², with ZZᵀ in full."""
    return np.sum((products.toarray() - Z @ Z.T)[pattern(products)] ** 2, dtype=np.float64)


def pattern(products):
    return sp.csr_matrix((np.ones(products.nnz), products.indices, products.indptr)).toarray() > 0


def test_neighbors_have_the_largest_inner_products(problem):
    Y = unit_rows(problem[1])
    n, width = Y.shape[0], 15
    products = nearest_products(Y, width, np.random.default_rng(0))
    inner = (Y @ Y.T).toarray()
    inside = pattern(products)
    assert (inside == inside.T).all()
    np.testing.assert_allclose(products.toarray()[inside], inner[inside], atol=1e-6)
    kth = np.sort(inner, axis=1)[:, n - width]
    beyond = inner > kth[:, None] + 2e-4  # what the noise can change
    assert (inside | ~beyond).all()
    # Only pairs in which one is among the nearest of the other.
    asked = inner >= kth[:, None] - 2e-4
    assert (asked | asked.T)[inside].all()
    assert inside.sum(axis=1).min() >= width


def test_a_step_is_the_projection_to_low_rank(problem):
    Y = unit_rows(problem[1][:150])
    products = nearest_products(Y, 10, np.random.default_rng(0))
    M = np.zeros(products.shape)
    for steps in range(1, 5):
        values, vectors = np.linalg.eigh(M + np.where(pattern(products), products.toarray() - M, 0))
        best = np.argsort(-values)[:140]
        M = (vectors[:, best] * np.maximum(values[best], 0)) @ vectors[:, best].T
        # With 140 + 10 directions the subspace is the whole space, so the projection is exact.
        Z = singular_value_projection(products, 140, steps, 0.0, np.random.default_rng(0))
        np.testing.assert_allclose(Z @ Z.T, M, atol=1e-4)


def test_subspace_iteration_comes_near_the_exact_steps(problem):
    Y = unit_rows(problem[1][:250])
    products = nearest_products(Y, 15, np.random.default_rng(0))
    M = np.zeros(products.shape)
    for _ in range(30):
        values, vectors = np.linalg.eigh(M + np.where(pattern(products), products.toarray() - M, 0))
        best = np.argsort(-values)[:20]
        M = (vectors[:, best] * np.maximum(values[best], 0)) @ vectors[:, best].T
    exact = np.sum((products.toarray() - M)[pattern(products)] ** 2)
    Z = singular_value_projection(products, 20, 30, 0.0, np.random.default_rng(0))
    assert error(products, Z) <= 1.05 * exact


def test_error_never_rises(problem):
    products = nearest_products(unit_rows(problem[1][:250]), 15, np.random.default_rng(0))
    errors = [
        error(products, singular_value_projection(products, 20, s, 0.0, np.random.default_rng(0)))
        for s in range(1, 25, 3)
    ]
    assert (np.diff(errors) <= 1e-3 * errors[0]).all()
    assert errors[-1] < errors[0] / 3


def test_steps_end_at_the_tolerance(problem):
    products = nearest_products(unit_rows(problem[1]), 15, np.random.default_rng(0))
    rng = np.random.default_rng
    loose = singular_value_projection(products, 40, 100, 0.3, rng(0))
    share = np.sqrt(error(products, loose)) / np.linalg.norm(products.data)
    assert 0.1 < share <= 0.3
    tight = singular_value_projection(products, 40, 100, 0.1, rng(0))
    assert np.sqrt(error(products, tight)) <= 0.1 * np.linalg.norm(products.data)


def test_ridge_is_the_closed_form(problem):
    X = problem[0]
    Z = np.random.default_rng(0).standard_normal((X.shape[0], 6)).astype(np.float32)
    dense = X.toarray().astype(np.float64)
    expected = np.linalg.solve(dense.T @ dense + np.eye(X.shape[1]) / 0.7, dense.T @ Z)
    for start in (0, 1):
        V = ridge(X, Z, 0.7, np.full(expected.shape, start, np.float32))
        np.testing.assert_allclose(V, expected, atol=2e-3 * np.abs(expected).max())


def test_regression_reaches_the_minimum_with_l1(problem):
    X = problem[0]
    Z = np.random.default_rng(0).standard_normal((X.shape[0], 4)).astype(np.float32)
    cost, l1 = 2.0, 0.5

    def objective(V):
        XV = (X @ V).astype(np.float64)
        return np.sum(V**2) / 2 + cost * (np.sum((Z - XV) ** 2) + l1 * np.abs(XV).sum())

    V = regress(X, Z, cost, l1, rounds=60).astype(np.float64)
    assert objective(V) < objective(regress(X, Z, cost, 0.0)) - 1
    rng = np.random.default_rng(1)
    for size in (1e-3, 1e-2, 1e-1):
        for _ in range(20):
            other = V + size * rng.standard_normal(V.shape)
            assert objective(V) <= objective(other) * (1 + 1e-5)
        # The most important directions are no better either: shrinking, and plain ridge.
        assert objective(V) <= objective((1 - size) * V) * (1 + 1e-5)
        assert objective(V) <= objective((1 + size) * V) * (1 + 1e-5)


def test_clusters_are_of_the_nearest_centers(problem):
    X = problem[0]
    centers, home = k_means(X, 5, np.random.default_rng(0))
    distance = ((X.toarray()[:, None, :] - centers[None]) ** 2).sum(axis=2)
    chosen = distance[np.arange(len(home)), home]
    assert (chosen <= distance.min(axis=1) + 1e-5).all()
    assert (np.bincount(home, minlength=len(centers)) > 0).all()


def test_prediction_adds_up_the_labels_of_the_nearest_rows(problem, fitted):
    _, Y, X_test = problem
    labels, values = fitted.predict_topk(X_test, 4)
    Y = Y.toarray()
    for i in range(X_test.shape[0]):
        votes = np.zeros(Y.shape[1])
        for learner in fitted.learners:
            region = learner.regions[nearest_center(X_test[i], learner.centers)[0]]
            z = X_test[i] @ region.V
            distance = ((region.embedded - z) ** 2).sum(axis=1)
            votes += Y[region.rows[np.argsort(distance)[: SMALL.neighbors]]].sum(axis=0)
        votes /= SMALL.neighbors * len(fitted.learners)
        found = labels[i] >= 0
        np.testing.assert_allclose(values[i][found], votes[labels[i][found]], atol=1e-5)
        np.testing.assert_allclose(values[i][found], np.sort(votes)[::-1][:4][found], atol=1e-5)
        assert np.count_nonzero(votes) >= found.sum()
        assert found.sum() == min(4, np.count_nonzero(votes))


def test_each_row_is_in_one_region_of_each_learner(problem, fitted):
    X = problem[0]
    for learner in fitted.learners:
        rows = np.concatenate([region.rows for region in learner.regions])
        assert (np.sort(rows) == np.arange(X.shape[0])).all()
        assert len(learner.regions) > 1
        for region in learner.regions:
            np.testing.assert_allclose(region.embedded, X[region.rows] @ region.V)


def test_learners_differ(fitted):
    first, second, _ = fitted.learners
    assert not np.array_equal(first.centers, second.centers)


def test_settings_depend_on_the_number_of_rows():
    small, large = SLEEC().resolved(4880), SLEEC().resolved(15539)
    assert (small.n_learners, small.dimension, small.neighbors) == (1, 100, 25)
    assert (large.n_learners, large.dimension, large.svp_neighbors) == (10, 50, 15)
    assert SLEEC(dimension=7).resolved(15539).dimension == 7
