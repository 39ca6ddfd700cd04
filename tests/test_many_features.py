"""Solving with far more features than non-zeros per row, where passes read lists of rows."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from dismec.cpu import kernels
from dismec.data.synthetic import generate
from dismec.features.transform import Transform
from dismec.solve.costs import Costs
from dismec.solve.problem import Problem, SolverParams

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def data():
    train, _ = generate(4000, 8000, 300, features_per_row=10, seed=3, test_rows=0)
    X, Y = train.X, train.Y
    assert X.shape[1] * X.shape[0] > kernels.features_per_non_zero * X.nnz
    return X, Y


def gradient_over_allowed(rows, s, w, C=1.0, a=1.0, b=1.0, tol=0.01):
    """Return ‖∇f(w)‖ over all rows, relative to what LIBLINEAR's rule and the gap allow."""
    cost = np.where(s > 0, a, b)

    def gradient(w):
        slack = np.maximum(0, 1 - s * (rows @ w))
        return w - 2 * C * (rows.T @ (cost * s * slack)), 0.5 * w @ w + C * cost @ slack**2

    found, objective = gradient(w)
    rarer = max(min((s > 0).sum(), (s < 0).sum()), 1)
    liblinear = tol * rarer / len(s) * np.linalg.norm(gradient(np.zeros_like(w))[0])
    return np.linalg.norm(found) / min(liblinear, np.sqrt(2 * 0.1 * tol * objective))


def check_gradients(X, Y, labels, *, C=1.0, a=1.0, b=1.0, **transform):
    fitted = Transform.fit(X, **transform)
    costs = Costs(np.full(Y.shape[1], a), np.full(Y.shape[1], b))
    solution = Problem(X, Y, fitted).solve(labels, SolverParams(C, delta=0), costs=costs)
    rows, of_label = fitted.apply(X).astype(np.float64), sp.csc_array(Y)
    normalized = transform.get("normalize", True)
    for place, label in enumerate(labels):
        s = np.full(X.shape[0], -1.0)
        s[of_label.indices[of_label.indptr[label] : of_label.indptr[label + 1]]] = 1
        w = solution.weights[[place]].toarray().ravel().astype(np.float64)
        share = gradient_over_allowed(rows, s, w, C, a, b)
        # Single precision leaves a larger gap if rows are long.
        assert share <= solution.stop_ratio[place] * (1.01 if normalized else 1.1) + 1e-3
        assert solution.stop_ratio[place] <= 1
    return solution


def some_labels(Y, n):
    """Return labels of all frequencies, the most frequent first."""
    counts = np.bincount(Y.indices, minlength=Y.shape[1])
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    return order[np.linspace(0, len(order) - 1, n).astype(int)]


@pytest.mark.parametrize("transform", [{}, {"bias": 0.0}, {"tfidf": True}, {"normalize": False}])
def test_the_true_gradient_over_all_rows_is_small_enough(data, transform):
    X, Y = data
    check_gradients(X, Y, some_labels(Y, 60), **transform)


@pytest.mark.parametrize(("C", "a", "b"), [(0.1, 1, 1), (10, 1, 1), (1, 25, 1), (1, 1, 0.05)])
def test_the_true_gradient_is_small_for_any_c_and_costs(data, C, a, b):
    X, Y = data
    check_gradients(X, Y, some_labels(Y, 20), C=C, a=float(a), b=float(b))


def test_the_true_gradient_is_small_with_negative_values(data):
    X, Y = data
    signs = np.random.default_rng(0).choice([-1, 1], X.nnz).astype(np.float32)
    signed = sp.csr_array((X.data * signs, X.indices, X.indptr), X.shape)
    check_gradients(signed, Y, some_labels(Y, 40))


@pytest.mark.parametrize("factor", [30.0, 1e4])
def test_the_true_gradient_is_small_with_one_very_long_row(data, factor):
    X, Y = data
    values = X.data.copy()
    values[: X.indptr[1]] *= factor
    longer = sp.csr_array((values, X.indices, X.indptr), X.shape)
    check_gradients(longer, Y, some_labels(Y, 20), normalize=False)


def test_the_true_gradient_is_small_if_a_label_s_features_are_in_similar_rows():
    # Passes visit rows ordered by their number of frequent features, and reserve room for a label's
    # contributions by the share of all lists. Here nearly all contributions are to one row in four.
    random = np.random.default_rng(2)
    n_rows, n_frequent, n_features = 4096, 40, 6000
    columns = []
    for row in range(n_rows):
        of_kind = row % 4 == 0
        frequent = random.choice(n_frequent, 8 if of_kind else 2, replace=False)
        own = (0, 2000) if of_kind else (2000, n_features - n_frequent)
        columns.append(np.sort(np.r_[frequent, n_frequent + random.choice(np.arange(*own), 6)]))
    indices = np.concatenate([np.unique(c) for c in columns]).astype(np.int32)
    indptr = np.cumsum([0, *(len(np.unique(c)) for c in columns)])
    values = random.random(len(indices)).astype(np.float32) + 0.1
    X = sp.csr_array((values, indices, indptr), (n_rows, n_features))
    Y = sp.csr_array((random.random((n_rows, 12)) < 0.05) & (np.arange(n_rows) % 4 == 0)[:, None])
    assert n_features * n_rows > kernels.features_per_non_zero * X.nnz
    check_gradients(X, Y.astype(np.uint8), np.arange(12))


def rows_that_look_alike(n_rows=5000, n_patterns=50, n_features=9000):
    """Return rows with one of a few sets of frequent features, but several rare ones each."""
    random = np.random.default_rng(4)
    patterns = [random.choice(60, random.integers(0, 8), replace=False) for _ in range(n_patterns)]
    of_row = random.choice(n_patterns, n_rows, p=random.dirichlet(np.full(n_patterns, 0.5)))
    own = np.arange(60, n_features)
    columns = [np.r_[patterns[p], random.choice(own, random.integers(0, 6))] for p in of_row]
    columns = [np.unique(c) for c in columns]
    indptr = np.cumsum([0, *map(len, columns)])
    ones = np.ones(indptr[-1], dtype=np.float32)
    X = sp.csr_array((ones, np.concatenate(columns).astype(np.int32), indptr), (n_rows, n_features))
    assert n_features * n_rows > kernels.features_per_non_zero * X.nnz
    labels = np.where(random.random(n_rows) < 0.5, of_row, random.integers(0, 900, n_rows))
    Y = sp.csr_array((np.ones(n_rows, np.uint8), (np.arange(n_rows), labels)))
    return X, Y


@pytest.mark.parametrize("transform", [{}, {"tfidf": True}, {"normalize": False, "bias": 0.0}])
def test_the_true_gradient_is_small_if_rows_share_their_frequent_features(transform):
    X, Y = rows_that_look_alike()
    check_gradients(X, Y, some_labels(Y, 70), **transform)


def test_the_true_gradient_is_small_if_rows_share_features_of_both_signs():
    X, Y = rows_that_look_alike()
    signs = np.random.default_rng(0).choice(np.array([-1, 1], np.float32), X.shape[1])
    signed = sp.csr_array((X.data * signs[X.indices], X.indices, X.indptr), X.shape)
    check_gradients(signed, Y, some_labels(Y, 40), tfidf=True)


def test_the_true_gradient_is_small_for_a_label_of_most_rows(data):
    X, _ = data
    random = np.random.default_rng(1)
    Y = sp.csr_array(random.random((X.shape[0], 3)) < [0.9, 0.5, 0.1], dtype=np.uint8)
    check_gradients(X, Y, np.arange(3))


def test_a_label_does_not_depend_on_its_neighbors(data):
    X, Y = data
    problem = Problem(X, Y, Transform.fit(X))
    labels = some_labels(Y, 70)
    together = problem.solve(labels, SolverParams()).weights
    shuffled = problem.solve(labels[::-1], SolverParams()).weights[np.arange(70)[::-1]]
    assert together.data.tobytes() == shuffled.data.tobytes()
    for place in (0, 30, 69):
        alone = problem.solve(labels[place : place + 1], SolverParams()).weights
        assert together[[place]].data.tobytes() == alone.data.tobytes()


def test_l1_reaches_its_gap(data):
    X, Y = data
    labels = some_labels(Y, 20)
    solution = Problem(X, Y, Transform.fit(X)).solve(labels, SolverParams(penalty="l1"))
    assert (solution.stop_ratio <= 1).all()


@pytest.mark.slow
def test_rare_labels_of_medium_data_begin_near_their_positives_and_end_exact():
    train, _ = generate(100_000, 100_000, 10_000, features_per_row=42, seed=6, test_rows=0)
    assert 256 << 14 < train.X.nnz < 256 << 15
    labels = some_labels(train.Y, 32)
    solution = check_gradients(train.X, train.Y, labels)
    rare = labels[-1:]
    assert np.bincount(train.Y.indices)[rare] <= 32
    problem = Problem(train.X, train.Y, Transform.fit(train.X))
    alone = problem.solve(rare, SolverParams(delta=0)).weights
    assert solution.weights[[31]].data.tobytes() == alone.data.tobytes()


@pytest.mark.slow
def test_labels_of_large_data_begin_near_their_positives_and_end_exact():
    train, _ = generate(220_000, 220_000, 22_000, features_per_row=42, seed=5, test_rows=0)
    assert train.X.nnz > 256 << 15  # from here on labels start without a pass
    labels = some_labels(train.Y, 48)
    solution = check_gradients(train.X, train.Y, labels)
    problem = Problem(train.X, train.Y, Transform.fit(train.X))
    for place in (0, 24, 47):
        alone = problem.solve(labels[place : place + 1], SolverParams(delta=0)).weights
        assert solution.weights[[place]].data.tobytes() == alone.data.tobytes()
