from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from liblinear import liblinearutil

import naive
from conftest import dense_problem, random_problem, train_unfinished, tune, weight_files
from dismec import DiSMECClassifier, TrainingParams, open_model, train
from dismec.data.dataset import load_data
from dismec.features.transform import Transform
from dismec.solve.partition import cut
from dismec.solve.problem import Problem, SolverParams
from dismec.solve.threads import solve_blocks
from dismec.training.train import fit

pytestmark = pytest.mark.native(needs="liblinear sklearn")

L1 = SolverParams(delta=0, penalty="l1")


def solve(X, Y, C=1.0, tol=0.01, labels=None, **transform):
    fitted = Transform.fit(X, **transform)
    labels = range(Y.shape[1]) if labels is None else labels
    params = SolverParams(C, 0.0, tol, "l1")
    return Problem(X, Y, fitted).solve(labels, params), fitted.apply(X).astype(np.float64)


def signs(Y, label):
    return np.where(Y[:, [label]].toarray().ravel() > 0, 1.0, -1.0)


def liblinear_objective(Xt, s, C, eps):
    """Return the objective of LIBLINEAR -s 5 on rows with the bias as their last feature."""
    problem = liblinearutil.problem(s, sp.csr_matrix(Xt))
    model = liblinearutil.train(problem, liblinearutil.parameter(f"-s 5 -c {C} -e {eps} -q"))
    w = np.array(model.w[: Xt.shape[1]]) * model.get_labels()[0]
    return naive.l1_objective(Xt, s, w, C)


def check(solution, Xt, Y, C, labels=None):
    """Check that labels meet their certificates, and are no worse than a tight LIBLINEAR run."""
    for i, label in enumerate(range(Y.shape[1]) if labels is None else labels):
        s = signs(Y, label)
        if (s < 0).all():
            assert solution.weights[[i]].nnz == 0
            continue
        w = solution.weights[[i]].toarray().ravel().astype(np.float64)
        found = naive.l1_objective(Xt, s, w, C)
        assert solution.objective[i] == pytest.approx(found, rel=2e-5)
        assert solution.stop_ratio[i] <= 1
        assert found <= liblinear_objective(Xt, s, C, 1e-5) * (1 + 1.5e-4)


@pytest.mark.parametrize("C", [0.01, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_objective_is_no_worse_than_liblinears(each_kind, C, bias):
    X, Y = each_kind
    check(*solve(X, Y, C=C, bias=bias), Y, C)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_problem_is_solved_as_well_as_by_liblinear(data):
    """Includes empty and duplicate rows, labels of all or no rows, and values of both signs."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    n_rows, n_features = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 15))
    width = data.draw(st.integers(0 if n_features else 1, 20))
    values = rng.standard_normal((n_rows, n_features)) * rng.gamma(1, 1, (n_rows, n_features))
    if data.draw(st.booleans()):
        values = np.abs(values)
    values *= rng.random(values.shape) < data.draw(st.sampled_from([0.1, 0.4, 1.0]))
    E = rng.standard_normal((n_rows, width)) * rng.gamma(1, 1, (n_rows, width))
    E[rng.random(n_rows) < 0.1] = 0
    rows = rng.integers(0, n_rows, n_rows)
    X = sp.csr_array(values[rows], dtype=np.float32)
    if width:
        X = [X, E[rows].astype(np.float32)] if n_features else [E[rows].astype(np.float32)]
    share = rng.choice([0.0, 0.05, 0.3, 0.7, 1.0], 6)
    Y = sp.csr_array(rng.random((n_rows, 6)) < share, dtype=np.uint8)
    C = data.draw(st.sampled_from([0.01, 0.1, 1.0, 10.0, 100.0]))
    solution, Xt = solve(
        X,
        Y,
        C=C,
        bias=data.draw(st.sampled_from([0.0, 1.0, 0.3])),
        normalize=data.draw(st.booleans()),
        tfidf=data.draw(st.booleans()) and n_features > 0,
        dense_scale=data.draw(st.sampled_from([0.7, 1.0])),
    )
    check(solution, Xt, Y, C)


def test_a_violator_that_rounded_scores_hide_is_found():
    """All rounded scores were below the margin, and the label gave up after 1,000 passes."""
    rng = np.random.default_rng(1328)
    dense = rng.standard_normal((6, 11)) * rng.gamma(1, 1, (6, 11))
    dense *= rng.random(dense.shape) < 0.4
    X = sp.csr_array(dense[rng.integers(0, 6, 6)], dtype=np.float32)
    share = rng.choice([0.0, 0.05, 0.3, 0.7, 1.0], 6)
    Y = sp.csr_array(rng.random((6, 6)) < share, dtype=np.uint8)
    solution, Xt = solve(X, Y, C=100.0, bias=0.0, normalize=False)
    check(solution, Xt, Y, 100.0)
    assert solution.passes.max() < 10


@pytest.mark.parametrize("tol", [0.1, 0.01, 1e-3])
def test_the_gap_is_within_the_tolerance(each_kind, tol):
    X, Y = each_kind
    solution, Xt = solve(X, Y, tol=tol)
    tight, _ = solve(X, Y, tol=1e-4)
    for label in range(Y.shape[1]):
        s = signs(Y, label)
        w = tight.weights[[label]].toarray().ravel().astype(np.float64)
        least = naive.l1_lower_bound(Xt, s, w, 1.0)
        assert naive.l1_objective(Xt, s, w, 1.0) <= least * (1 + 1e-4)
        assert solution.objective[label] <= least * (1 + 0.01 * tol + 1e-5)


def test_optimality_conditions_hold_in_double_precision(problem_data):
    X, Y = problem_data
    solution, Xt = solve(X, Y, tol=1e-4)
    for label in range(Y.shape[1]):
        s = signs(Y, label)
        w = solution.weights[[label]].toarray().ravel().astype(np.float64)
        breach = naive.l1_breach(Xt, s, w, 1.0)
        assert breach.sum() <= naive.l1_breach_allowed(Xt, s, 1.0, 0.01)
        assert breach.max() <= 0.02


def test_violation_of_the_reference_vanishes_where_no_step_helps(problem_data):
    X, Y = problem_data
    solution, Xt = solve(X, Y, tol=1e-4)
    s = signs(Y, 30)
    w = solution.weights[[30]].toarray().ravel().astype(np.float64)
    best = naive.l1_objective(Xt, s, w, 1.0)
    for direction in np.eye(len(w)):
        for h in (1e-2, -1e-2):
            assert naive.l1_objective(Xt, s, w + h * direction, 1.0) >= best - 2e-6 * best
    assert naive.l1_lower_bound(Xt, s, w, 1.0) <= best


def test_models_have_few_weights(problem_data):
    X, Y = problem_data
    sparse, _ = solve(X, Y)
    dense = Problem(X, Y, Transform.fit(X)).solve(range(Y.shape[1]), SolverParams(delta=0))
    assert sparse.weights.nnz < 0.5 * dense.weights.nnz


def test_working_sets_too_large_to_copy_are_solved_in_place():
    X, Y = random_problem(rows=14_000, features=400, labels=6, density=0.15, seed=3)
    for transform in ({"tfidf": True, "bias": 0.0}, {"C": 0.01}):
        C = transform.get("C", 1.0)
        solution, Xt = solve(X, Y, labels=[5], **transform)
        assert Xt[: solution.set_size[0]].nnz > 1 << 19  # otherwise the sets were copied after all
        w = solution.weights.toarray().ravel().astype(np.float64)
        s = signs(Y, 5)
        assert solution.objective[0] == pytest.approx(naive.l1_objective(Xt, s, w, C), rel=2e-5)
        assert solution.stop_ratio[0] <= 1
        assert solution.objective[0] <= liblinear_objective(Xt, s, C, 0.01) * (1 + 1e-4)


def test_a_label_does_not_depend_on_its_neighbors(each_kind):
    X, Y = each_kind
    problem = Problem(X, Y, Transform.fit(X))
    together = problem.solve(range(Y.shape[1]), L1).weights
    order = np.random.default_rng(1).permutation(Y.shape[1])
    shuffled = problem.solve(order, L1).weights[np.argsort(order)]
    for label in range(Y.shape[1]):
        alone = problem.solve([label], L1).weights
        for other in (shuffled[[label]], alone):
            assert together[[label]].indices.tobytes() == other.indices.tobytes()
            assert together[[label]].data.tobytes() == other.data.tobytes()


@pytest.mark.parametrize("dense", [False, True])
def test_threads_and_block_size_do_not_change_a_weight(dense):
    if dense:
        X, E, Y = dense_problem(rows=600, features=40, labels=60)
        X = [X, E]
    else:
        X, Y = random_problem(rows=2000, features=300, labels=60, density=0.05, seed=2)
    problem = Problem(X, Y, Transform.fit(X))
    whole = problem.solve(range(60), L1).weights
    for size, threads in ((1, 3), (7, 2), (100, 1)):
        blocks = dict(enumerate(cut(problem.equal_labels.groups, size)))
        for block in solve_blocks(problem, L1, blocks, lambda b: b, threads=threads):
            expected = whole[block.labels]
            assert block.weights.indices.tobytes() == expected.indices.tobytes()
            assert block.weights.data.tobytes() == expected.data.tobytes()


def test_an_interrupted_l1_run_resumes_to_the_same_bytes(tmp_path, each_kind):
    params = TrainingParams(penalty="l1", block_size=4)
    model = train(*each_kind, tmp_path / "whole", params, threads=1)
    assert model.params["penalty"] == "l1"
    assert model.params["delta"] == 0
    train_unfinished(*each_kind, tmp_path / "model", params)
    (tmp_path / "model" / "block-000002.safetensors").unlink()
    train(*each_kind, tmp_path / "model", params, threads=2)
    assert weight_files(tmp_path / "model") == weight_files(tmp_path / "whole")


def test_answers_are_those_of_brute_force_after_saving(each_kind):
    X, Y = each_kind
    model = fit(X, Y, TrainingParams(penalty="l1"))
    scores = naive.brute_force_scores(model.transform.apply(X), model.weights)
    for found in (model, open_model(model.to_bytes())):
        for one, other in zip(found.predict_topk(X, 4), naive.topk(scores, 4), strict=True):
            np.testing.assert_array_equal(one, other)


def test_estimator_has_the_penalty_and_keeps_it(tmp_path, each_kind):
    X, Y = each_kind
    clf = DiSMECClassifier(penalty="l1", precision="float32").fit(X, Y)
    solution, _ = solve(X, Y)
    assert (clf.model_.weights != solution.weights).nnz == 0
    clf.save(tmp_path / "model")
    assert DiSMECClassifier.load(tmp_path / "model").penalty == "l1"
    assert open_model(tmp_path / "model").params["penalty"] == "l1"
    tuned = tune(X, Y, tmp_path / "tuned", TrainingParams(penalty="l1"))
    assert tuned.model.params["penalty"] == "l1"


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


def test_rows_read_in_place_and_groups_of_many_dense_rows_are_solved():
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


def test_delta_is_that_of_the_penalty_unless_it_is_given():
    assert TrainingParams().delta == 0.01
    assert TrainingParams(penalty="l1").delta == 0
    assert TrainingParams(penalty="l1", delta=0.1).solver == SolverParams(1, 0.1, 0.01, "l1")
    with pytest.raises(ValueError, match=r"penalty is 'l3'; expected 'l2' or 'l1'"):
        TrainingParams(penalty="l3")


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("C", [0.1, 1.0, 10.0])
def test_eurlex_objectives_are_those_of_liblinear(real_data, C):
    X, Y, _ = load_data(real_data / "eurlex-4k" / "train.txt.gz")
    counts = np.asarray(Y.sum(axis=0)).ravel()
    by_frequency = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    labels = by_frequency[np.linspace(0, len(by_frequency) - 1, 12).astype(int)]
    solution, Xt = solve(X, Y, C=C, labels=labels)
    assert (solution.stop_ratio <= 1).all()
    for i, label in enumerate(labels):
        theirs = liblinear_objective(Xt, signs(Y, label), C, 0.01)
        assert solution.objective[i] <= theirs * (1 + 1e-4)
