from __future__ import annotations

import threading

import numpy as np
import pytest
import scipy.sparse as sp
from liblinear import liblinearutil

import naive
from conftest import random_problem
from dismec.data.dataset import load_data
from dismec.errors import DataError
from dismec.features.transform import Transform
from dismec.solve.costs import Costs
from dismec.solve.problem import Cancel, Problem, SolverParams

pytestmark = pytest.mark.native(needs="liblinear")


def solve(X, Y, C=1.0, tol=0.01, delta=0.0, labels=None, costs=None, **transform):
    fitted = Transform.fit(X, **transform)
    labels = range(Y.shape[1]) if labels is None else labels
    solution = Problem(X, Y, fitted).solve(labels, SolverParams(C, delta, tol), costs=costs)
    return solution, fitted.apply(X)


def equal_costs(Y, a, b):
    return Costs(np.full(Y.shape[1], float(a)), np.full(Y.shape[1], float(b)))


def signs(Y, label):
    return np.where(Y[:, [label]].toarray().ravel() > 0, 1.0, -1.0)


def liblinear_objective(Xt, s, C, a=1.0, b=1.0):
    """Return the objective of LIBLINEAR's Newton solver on rows with the bias as last feature."""
    problem = liblinearutil.problem(s, sp.csr_matrix(Xt, dtype=np.float64))
    options = liblinearutil.parameter(f"-s 2 -c {C} -w1 {a} -w-1 {b} -e 0.01 -q")
    model = liblinearutil.train(problem, options)
    w = np.array(model.w[: Xt.shape[1]]) * model.get_labels()[0]
    return naive.objective(Xt, s, w, C, a, b)


def test_gradient_of_the_reference_equals_finite_differences():
    X, Y = random_problem(rows=40, features=12)
    X, s = X.toarray().astype(np.float64), signs(Y, 20)
    rng = np.random.default_rng(0)
    w = rng.standard_normal(X.shape[1])
    for direction in np.eye(X.shape[1]):
        h = 1e-6
        slope = naive.objective(X, s, w + h * direction, 2.0)
        slope = (slope - naive.objective(X, s, w - h * direction, 2.0)) / (2 * h)
        assert slope == pytest.approx(direction @ naive.gradient(X, s, w, 2.0), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("C", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_objective_is_the_optimum_and_no_worse_than_liblinears(problem_data, C, bias):
    X, Y = problem_data
    solution, Xt = solve(X, Y, C=C, bias=bias)
    rows = Xt.astype(np.float64)
    for label in range(Y.shape[1]):
        s = signs(Y, label)
        w = solution.weights[[label]].toarray().ravel().astype(np.float64)
        found = naive.objective(rows, s, w, C)
        assert solution.objective[label] == pytest.approx(found, rel=1e-5)
        assert found <= liblinear_objective(Xt, s, C) * (1 + 1e-3)
        assert found <= naive.objective(rows, s, naive.minimum(rows, s, C), C) * (1 + 1e-3)


@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize(("a", "b"), [(25.0, 1.0), (0.1, 1.0), (1.0, 0.02), (3.0, 7.0)])
def test_weighted_objective_is_the_optimum_and_no_worse_than_liblinears(problem_data, a, b, bias):
    X, Y = problem_data
    solution, Xt = solve(X, Y, costs=equal_costs(Y, a, b), bias=bias)
    rows = Xt.astype(np.float64)
    for label in range(Y.shape[1]):
        s = signs(Y, label)
        w = solution.weights[[label]].toarray().ravel().astype(np.float64)
        found = naive.objective(rows, s, w, 1.0, a, b)
        assert solution.objective[label] == pytest.approx(found, rel=1e-5)
        assert found <= liblinear_objective(Xt, s, 1.0, a, b) * (1 + 1e-3)
        best = naive.objective(rows, s, naive.minimum(rows, s, 1.0, a, b), 1.0, a, b)
        assert found <= best * (1 + 1e-3)
        norm = np.linalg.norm(naive.gradient(rows, s, w, 1.0, a, b))
        allowed = naive.gradient_allowed(rows, s, 1.0, 0.01, a, b)
        assert norm <= solution.stop_ratio[label] * allowed * (1 + 1e-3) + 1e-5 * max(a, b)
        assert solution.stop_ratio[label] <= 1


def test_costs_of_one_change_nothing(problem_data):
    X, Y = problem_data
    plain, _ = solve(X, Y)
    weighted, _ = solve(X, Y, costs=equal_costs(Y, 1, 1))
    assert plain.weights.data.tobytes() == weighted.weights.data.tobytes()
    assert plain.objective.tobytes() == weighted.objective.tobytes()


def test_equal_cost_factors_equal_a_factor_of_C(problem_data):
    X, Y = problem_data
    larger, _ = solve(X, Y, C=4.0)
    weighted, _ = solve(X, Y, costs=equal_costs(Y, 4, 4))
    np.testing.assert_allclose(larger.objective, weighted.objective, rtol=1e-3)


def test_a_positive_cost_of_three_equals_repeating_positive_rows_three_times(problem_data):
    X, Y = problem_data
    Y = sp.csr_array(Y[:, [30]])
    rows = np.repeat(np.arange(X.shape[0]), np.where(signs(Y, 0) > 0, 3, 1))
    repeated, _ = solve(X[rows], Y[rows], tol=1e-3)
    weighted, _ = solve(X, Y, tol=1e-3, costs=equal_costs(Y, 3, 1))
    np.testing.assert_allclose(repeated.objective, weighted.objective, rtol=2e-4)


def test_costs_belong_to_their_labels(problem_data):
    X, Y = problem_data
    some = np.geomspace(0.1, 10, Y.shape[1])
    together, _ = solve(X, Y, costs=Costs(some, some[::-1].copy()))
    for label in (0, 17, 39):
        alone, _ = solve(X, Y, labels=[label], costs=equal_costs(Y, some[label], some[::-1][label]))
        assert together.weights[[label]].data.tobytes() == alone.weights.data.tobytes()


def test_impossible_costs_are_refused(problem_data):
    X, Y = problem_data
    for bad in (0.0, -1.0, np.nan, np.inf):
        for costs in (equal_costs(Y, bad, 1), equal_costs(Y, 1, bad)):
            with pytest.raises(ValueError, match="costs: out of range"):
                solve(X, Y, costs=costs)
    with pytest.raises(ValueError, match="one number per label"):
        solve(X, Y, costs=Costs(np.ones(3), np.ones(3)))


@pytest.mark.parametrize("tol", [0.1, 0.01, 1e-4])
def test_stopping_rule_holds_for_the_true_gradient(problem_data, tol):
    X, Y = problem_data
    solution, Xt = solve(X, Y, tol=tol)
    rows = Xt.astype(np.float64)
    for label in range(Y.shape[1]):
        s = signs(Y, label)
        w = solution.weights[[label]].toarray().ravel()
        norm = np.linalg.norm(naive.gradient(rows, s, w, 1.0))
        allowed = naive.gradient_allowed(rows, s, 1.0, tol)
        assert norm <= solution.stop_ratio[label] * allowed * (1 + 1e-3) + 1e-5
        assert solution.stop_ratio[label] <= 1


def test_label_does_not_depend_on_its_neighbors(problem_data):
    X, Y = problem_data
    problem = Problem(X, Y, Transform.fit(X))
    together = problem.solve(range(Y.shape[1]), SolverParams()).weights
    order = np.random.default_rng(1).permutation(Y.shape[1])
    shuffled = problem.solve(order, SolverParams()).weights[np.argsort(order)]
    for label in range(Y.shape[1]):
        alone = problem.solve([label], SolverParams()).weights
        for other in (shuffled[[label]], alone):
            assert together[[label]].indices.tobytes() == other.indices.tobytes()
            assert together[[label]].data.tobytes() == other.data.tobytes()


def test_a_label_does_not_depend_on_other_labels_of_the_problem(problem_data):
    X, Y = problem_data
    whole, _ = solve(X, Y)
    some, _ = solve(X, sp.csr_array(Y[:, [7, 31]]))
    assert some.weights[[0]].data.tobytes() == whole.weights[[7]].data.tobytes()
    assert some.weights[[1]].data.tobytes() == whole.weights[[31]].data.tobytes()


def test_labels_with_no_rows_are_empty_and_with_all_rows_are_solved():
    X, _ = random_problem()
    n = X.shape[0]
    Y = sp.csr_array(np.column_stack([np.zeros(n), np.ones(n), np.arange(n) != 5]).astype(np.uint8))
    solution, Xt = solve(X, Y)
    assert solution.weights[[0]].nnz == 0
    for label in (1, 2):
        s = signs(Y, label)
        best = naive.objective(Xt, s, naive.minimum(Xt, s, 1.0), 1.0)
        assert solution.objective[label] <= best * (1 + 1e-3)
    assert (Xt @ solution.weights[[1]].T).toarray().min() > 0.5


def test_weights_below_delta_are_dropped_and_the_others_untouched(problem_data):
    X, Y = problem_data
    whole, _ = solve(X, Y)
    pruned, _ = solve(X, Y, delta=0.1)
    expected = whole.weights.copy()
    expected.data[np.abs(expected.data) < np.float32(0.1)] = 0
    expected.eliminate_zeros()
    assert 0 < pruned.weights.nnz < whole.weights.nnz
    assert (pruned.weights != expected).nnz == 0
    assert pruned.weights.has_sorted_indices


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("tfidf", [True, False])
def test_transform_inside_the_loops_equals_transformed_rows(problem_data, tfidf, normalize):
    X, Y = problem_data
    folded, Xt = solve(X, Y, tol=1e-4, tfidf=tfidf, normalize=normalize, bias=0.7)
    explicit, _ = solve(Xt, Y, tol=1e-4, normalize=False, bias=0.0)
    np.testing.assert_allclose(folded.objective, explicit.objective, rtol=1e-4)


@pytest.mark.parametrize("a", [1.0, 5.0])
@pytest.mark.parametrize("tfidf", [True, False])
def test_working_sets_too_large_to_copy_are_solved_in_place(tfidf, a):
    X, Y = random_problem(rows=14_000, features=400, labels=6, density=0.15, seed=3)
    costs = equal_costs(Y, a, 1)
    solution, Xt = solve(X, Y, labels=[5], tfidf=tfidf, bias=0.0, costs=costs)
    assert Xt[: solution.set_size[0]].nnz > 1 << 19  # otherwise the sets were copied after all
    s = signs(Y, 5)
    w = solution.weights.toarray().ravel().astype(np.float64)
    rows = Xt.astype(np.float64)
    norm = np.linalg.norm(naive.gradient(rows, s, w, 1.0, a))
    assert norm <= naive.gradient_allowed(rows, s, 1.0, 0.01, a)
    assert naive.objective(rows, s, w, 1.0, a) <= liblinear_objective(Xt, s, 1.0, a) * (1 + 1e-3)


@pytest.mark.parametrize("longest", [600, 30_000])
def test_sets_of_very_many_features_are_solved(longest):
    """More than 65,536 features in a set, and rows too long for the memory of copies."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(400, 600, 400)
    lengths[::7] = longest
    X = sp.csr_array(
        (
            rng.random(lengths.sum(), dtype=np.float32),
            np.concatenate([np.sort(rng.choice(200_000, n, replace=False)) for n in lengths]),
            np.concatenate([[0], np.cumsum(lengths)]),
        ),
        shape=(400, 200_000),
    )
    Y = sp.csr_array(rng.random((400, 4)) < [0.01, 0.1, 0.3, 0.6], dtype=np.uint8)
    solution, Xt = solve(X, Y)
    rows = Xt.astype(np.float64)
    for label in range(Y.shape[1]):
        s = signs(Y, label)
        w = solution.weights[[label]].toarray().ravel().astype(np.float64)
        assert solution.objective[label] == pytest.approx(naive.objective(rows, s, w, 1), rel=1e-5)
        gradient = np.linalg.norm(naive.gradient(rows, s, w, 1.0))
        assert gradient <= naive.gradient_allowed(rows, s, 1.0, 0.01) * 1.01
        assert solution.stop_ratio[label] <= 1


def test_rows_without_features_and_a_single_row_are_solved():
    X = sp.csr_array(np.array([[0, 0], [0, 0], [1, 2]], dtype=np.float32))
    Y = sp.csr_array(np.array([[1, 0], [0, 0], [0, 1]], dtype=np.uint8))
    for bias in (0.0, 1.0):
        solution, Xt = solve(X, Y, bias=bias)
        for label in range(2):
            s = signs(Y, label)
            best = naive.objective(Xt, s, naive.minimum(Xt, s, 1.0), 1.0)
            assert solution.objective[label] <= best * (1 + 1e-3)
    solution, _ = solve(X[[2]], Y[[2]])
    assert np.isfinite(solution.objective).all()


def test_rows_without_any_feature_are_solved_however_many_labels_there_are():
    """Their working sets take no memory, but are still counted."""
    X = sp.csr_array((40, 5), dtype=np.float32)
    Y = sp.csr_array(np.random.default_rng(0).random((40, 300)) < 0.3, dtype=np.uint8)
    solution, _ = solve(X, Y)
    np.testing.assert_array_equal(solution.labels, np.arange(300))
    assert (solution.passes > 0).all()


def test_tolerance_beyond_single_precision_is_reported_not_hidden(problem_data):
    X, Y = problem_data
    solution, _ = solve(X, Y, tol=1e-9, labels=range(0, Y.shape[1], 10))
    assert (solution.stop_ratio > 1).any()
    assert np.isfinite(solution.weights.data).all()


def test_cancel_stops_a_run_that_would_take_very_long():
    X, Y = random_problem(rows=20_000, features=300, labels=200, density=0.2)
    problem, cancel = Problem(X, Y, Transform.fit(X, bias=0.0)), Cancel()
    labels = np.tile(np.arange(200), 200)  # would take many minutes
    begun, solved = threading.Event(), []

    def run():
        problem.solve(labels[:10], SolverParams(tol=1e-4), cancel)
        begun.set()
        solved.extend(problem.solve(labels, SolverParams(tol=1e-4), cancel).labels)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    cancel.set()
    thread.join()
    assert len(solved) < len(labels) / 2
    assert len(problem.solve(range(3), SolverParams(), cancel).labels) < 3


def test_impossible_parameters_and_shapes_are_refused(problem_data):
    X, Y = problem_data
    for bad in ({"C": 0}, {"C": float("nan")}, {"tol": 0}, {"delta": -1}, {"delta": float("inf")}):
        with pytest.raises(ValueError, match="expected a number"):
            SolverParams(**bad)
    with pytest.raises(DataError, match="300 rows, Y has 299"):
        Problem(X, Y[:299], Transform.fit(X))
    with pytest.raises(ValueError, match="out of range"):
        Problem(X, Y, Transform.fit(X)).solve([Y.shape[1]], SolverParams())


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(("C", "a"), [(0.1, 1.0), (1.0, 1.0), (10.0, 1.0), (0.3, 20.0)])
def test_eurlex_objectives_are_within_a_thousandth_of_liblinears(real_data, C, a):
    X, Y, _ = load_data(real_data / "eurlex-4k" / "train.txt.gz")
    counts = np.asarray(Y.sum(axis=0)).ravel()
    by_frequency = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    labels = by_frequency[np.linspace(0, len(by_frequency) - 1, 12).astype(int)]
    solution, Xt = solve(X, Y, C=C, labels=labels, costs=equal_costs(Y, a, 1))
    for i, label in enumerate(labels):
        best = liblinear_objective(Xt, signs(Y, label), C, a)
        assert solution.objective[i] <= best * (1 + 1e-3)
