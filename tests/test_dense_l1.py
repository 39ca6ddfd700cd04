"""The L1 penalty with dense features: solved as exactly as with sparse ones, and as certainly."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import naive
from clusters import Processes
from conftest import train_unfinished, tune, weight_files
from dismec import DiSMECClassifier, TrainingParams, open_model, save_data, train
from dismec.data.dataset import Dataset
from dismec.features.transform import Transform
from dismec.solve.partition import cut
from dismec.solve.problem import Cancel, LabelSolver, Problem, SolverParams, WorkSharing
from dismec.solve.threads import solve_blocks
from dismec.training.train import fit
from test_cli import ok
from test_dense import dense_problem
from test_l1 import L1, check, liblinear_objective, signs, solve

pytestmark = pytest.mark.native(needs="distributed sklearn liblinear")


@pytest.mark.parametrize("C", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_objective_is_no_worse_than_liblinears(C, bias):
    E, Y = dense_problem()
    check(*solve([E], Y, C=C, bias=bias), Y, C)
    X, E, Y = dense_problem(features=60, seed=1)
    check(*solve([X, E], Y, C=C, bias=bias, tfidf=True, dense_scale=0.7), Y, C)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_problem_is_solved_as_liblinear_solves_it(data):
    """With rows that are empty or twice there, labels of all rows or none, and any widths."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    n_rows, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 20))
    n_features = data.draw(st.integers(0, 10))
    E = rng.standard_normal((n_rows, width)) * rng.gamma(1, 1, (n_rows, width))
    X = rng.standard_normal((n_rows, n_features)) * (rng.random((n_rows, n_features)) < 0.3)
    rows = rng.integers(0, n_rows, n_rows)
    E[rng.random(n_rows) < 0.1] = 0
    parts = [sp.csr_array(X[rows], dtype=np.float32), E[rows].astype(np.float32)]
    share = rng.choice([0.0, 0.05, 0.3, 0.7, 1.0], 6)
    Y = sp.csr_array(rng.random((n_rows, 6)) < share, dtype=np.uint8)
    C = data.draw(st.sampled_from([0.01, 0.1, 1.0, 10.0, 100.0]))
    solution, Xt = solve(
        parts if n_features else parts[1:],
        Y,
        C=C,
        bias=data.draw(st.sampled_from([0.0, 1.0, 0.3])),
        normalize=data.draw(st.booleans()),
        tfidf=data.draw(st.booleans()) and n_features > 0,
    )
    check(solution, Xt, Y, C)


@pytest.mark.parametrize("C", [0.03, 1.0, 10.0])
def test_dense_features_are_solved_as_the_same_numbers_in_a_sparse_matrix(C):
    E, Y = dense_problem(rows=2000, width=60, labels=6)
    dense, Xt = solve([E], Y, C=C)
    sparse, _ = solve(sp.csr_array(E), Y, C=C)
    assert (dense.stop_ratio <= 1).all()
    assert (sparse.stop_ratio <= 1).all()
    np.testing.assert_allclose(dense.objective, sparse.objective, rtol=2e-4)
    for label in range(Y.shape[1]):
        w = dense.weights[[label]].toarray().ravel().astype(np.float64)
        assert naive.l1_objective(Xt, signs(Y, label), w, C) == pytest.approx(
            dense.objective[label], rel=2e-5
        )


def test_the_gap_is_what_double_precision_finds():
    X, E, Y = dense_problem(rows=800, features=40)
    for tol in (0.1, 0.01, 1e-3):
        solution, Xt = solve([X, E], Y, tol=tol)
        tight, _ = solve([X, E], Y, tol=1e-4)
        for label in range(Y.shape[1]):
            w = tight.weights[[label]].toarray().ravel().astype(np.float64)
            least = naive.l1_lower_bound(Xt, signs(Y, label), w, 1.0)
            assert solution.objective[label] <= least * (1 + 0.01 * tol + 1e-5)


def test_weights_of_dense_features_that_do_not_help_are_zero():
    E, Y = dense_problem(rows=600, width=10)
    noise = np.random.default_rng(5).standard_normal((600, 40)).astype(np.float32)
    solution, _ = solve([np.hstack([E, noise])], Y, C=0.3)
    W = solution.weights.toarray()
    assert (W[:, 10:-1] != 0).mean() < 0.5 * (W[:, :10] != 0).mean()


def test_delta_drops_weights_of_sparse_features_only():
    X, E, Y = dense_problem(rows=400, features=50)
    model = fit([X, E], Y, TrainingParams(penalty="l1", delta=0.5, precision="float32"))
    W = np.abs(model.weights.toarray())
    assert W[:, :50][W[:, :50] > 0].min() >= 0.5
    dense = W[:, 50:-1]
    assert 0 < dense[dense > 0].min() < 0.5


def test_rows_read_in_place_and_groups_of_many_rows_are_solved():
    rng = np.random.default_rng(0)
    _, E, Y = dense_problem(rows=120, features=5, labels=4)
    X = sp.random_array(
        (120, 12_000), density=0.9, random_state=rng, dtype=np.float32, format="csr"
    )
    assert np.diff(X.indptr).max() > 8192  # too long to be copied
    check(*solve([X, E], Y, tfidf=True), Y, 1.0)
    E = rng.standard_normal((20_000, 12)).astype(np.float32)
    Y = sp.csr_array((E[:, :2] + rng.standard_normal((20_000, 2)) > 1.5).astype(np.uint8))
    for C in (1e-3, 1.0):
        solution, Xt = solve([E], Y, C=C)
        assert (solution.stop_ratio <= 1).all()
        for label in range(2):
            theirs = liblinear_objective(Xt, signs(Y, label), C, 1e-3)
            assert solution.objective[label] <= theirs * (1 + 1.5e-4)


def test_a_label_does_not_depend_on_neighbors_threads_or_blocks():
    X, E, Y = dense_problem(rows=600, features=40, labels=40)
    problem = Problem([X, E], Y, Transform.fit([X, E]))
    whole = problem.solve(range(40), L1).weights
    for label in (0, 17, 39):
        alone = problem.solve([label], L1).weights
        assert alone.indices.tobytes() == whole[[label]].indices.tobytes()
        assert alone.data.tobytes() == whole[[label]].data.tobytes()
    for size, threads in ((1, 3), (7, 2), (100, 1)):
        blocks = dict(enumerate(cut(problem.equal_labels.groups, size)))
        for block in solve_blocks(problem, L1, blocks, lambda b: b, threads=threads):
            expected = whole[block.labels]
            assert block.weights.indices.tobytes() == expected.indices.tobytes()
            assert block.weights.data.tobytes() == expected.data.tobytes()


def test_a_path_of_several_C_ends_at_the_optimum_of_each():
    X, E, Y = dense_problem(features=30)
    transform = Transform.fit([X, E])
    problem = Problem([X, E], Y, transform)
    grid = (1.0, 4.0, 0.25)
    solver = LabelSolver(
        problem, SolverParams(delta=0, penalty="l1"), Cancel(), None, grid, WorkSharing()
    )
    solution = solver.solve(np.arange(Y.shape[1]), drain=True)
    for label, place, objective in zip(
        solution.labels, solution.path_index, solution.objective, strict=True
    ):
        alone, _ = solve([X, E], Y, C=grid[place], labels=[label])
        assert objective == pytest.approx(alone.objective[0], rel=2e-4)


def test_an_interrupted_run_resumes_to_the_same_bytes(tmp_path):
    X, E, Y = dense_problem(features=50)
    params = TrainingParams(penalty="l1", block_size=3)
    train([X, E], Y, tmp_path / "whole", params, threads=1)
    train_unfinished([X, E], Y, tmp_path / "model", params)
    (tmp_path / "model" / "block-000002.safetensors").unlink()
    train([X, E], Y, tmp_path / "model", params, threads=2)
    assert weight_files(tmp_path / "model") == weight_files(tmp_path / "whole")


def test_answers_are_those_of_brute_force_after_saving(tmp_path):
    X, E, Y = dense_problem(features=50)
    model = train([X, E], Y, tmp_path / "model", TrainingParams(penalty="l1"))
    scores = naive.brute_force_scores(model.transform.apply([X, E]), model.weights)
    wanted = naive.topk(scores, 4)
    for found in (model, open_model(model.to_bytes())):
        labels, values = found.predict_topk([X, E], 4)
        np.testing.assert_array_equal(labels, wanted[0])
        np.testing.assert_array_equal(values, wanted[1])
    why = model.explain([X[[0]], E[:1]], 3)
    parts = why.bias + why.embedding + sum(term.contribution for term in why.terms)
    assert parts == pytest.approx(why.score, abs=1e-5)


def test_estimators_tuning_and_the_command_line_take_both(tmp_path):
    X, E, Y = dense_problem(features=40)
    expected = fit([X, E], Y, TrainingParams(penalty="l1")).weights.toarray()
    clf = DiSMECClassifier(penalty="l1").fit([X, E], Y)
    np.testing.assert_array_equal(clf.model_.weights.toarray(), expected)
    tuned = tune([X, E], Y, tmp_path / "tuned", [0.5, 2.0], TrainingParams(penalty="l1"))
    assert tuned.model.params["penalty"] == "l1"
    save_data(Dataset(X, Y, None), tmp_path / "data.txt")
    np.save(tmp_path / "E.npy", E)
    given = (tmp_path / "data.txt", "--dense", tmp_path / "E.npy", "--penalty", "l1")
    ok("train", *given, "-o", tmp_path / "model")
    np.testing.assert_array_equal(open_model(tmp_path / "model").weights.toarray(), expected)
    ok("train", *given, "--dense-only", "-o", tmp_path / "alone")
    assert open_model(tmp_path / "alone").n_features == 0


def test_models_are_refined_under_l1_with_dense_features():
    X, E, Y = dense_problem(rows=900, features=60, width=30, labels=30)
    params = TrainingParams(penalty="l1", refine=True)
    one, other = (fit([X, E], Y, params, threads=n) for n in (1, 3))
    np.testing.assert_array_equal(one.weights.toarray(), other.weights.toarray())
    assert "refine_effect" in one.params


@pytest.mark.cluster
def test_a_cluster_trains_the_same_bytes(tmp_path):
    X, E, Y = dense_problem(features=50)
    params = TrainingParams(penalty="l1", block_size=3)
    train([X, E], Y, tmp_path / "here", params)
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        for _ in range(2):
            processes.worker()
        train([X, E], Y, tmp_path / "there", params, cluster=processes.file)
    assert weight_files(tmp_path / "there") == weight_files(tmp_path / "here")
