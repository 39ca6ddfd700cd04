"""Weights of single pairs of a row and a label, through every way of training."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import GridSearchCV
from sklearn.svm import LinearSVC

from conftest import random_problem, train_unfinished, tune, weight_files
from dismec import (
    DataError,
    DiSMECClassifier,
    ModelError,
    TrainingParams,
    open_model,
    save_data,
    train,
    train_text,
)
from dismec.cli import main
from dismec.data.container import open_arrays, write_arrays
from dismec.data.dataset import Dataset
from dismec.data.text_format import TextFormat
from dismec.data.training_file import TrainingData, fingerprint
from dismec.data.weights import find_pairs, known_labels
from dismec.features.transform import Transform
from dismec.solve.problem import Problem, SolverParams
from dismec.solve.threads import solve_blocks
from dismec.training.train import fit
from test_weights import NAMES, TEXTS, objective, some_weights, text_lines, weighted_minimum
from test_work_sharing import KINDS, frequent_labels

pytestmark = pytest.mark.native(needs="liblinear pandas sklearn")

EXACT = TrainingParams(precision="float32", delta=0)


def some_pairs(Y, share=0.05, seed=0, zeros=0.3):
    """Weights from 0.1 to 3, or 0, of pairs at random, and of a third of the positive ones."""
    rng = np.random.default_rng(seed)
    listed = rng.random(Y.shape) < np.where(Y.toarray() > 0, 0.3, share)
    rows, labels = np.nonzero(listed)
    weights = np.where(rng.random(len(rows)) < zeros, 0.0, rng.uniform(0.1, 3.0, len(rows)))
    return sp.csr_array((weights, (rows, labels)), shape=Y.shape)


def dense_pairs(pairs):
    """The weight of every pair."""
    found = np.ones(pairs.shape)
    entries = pairs.tocoo()
    found[entries.row, entries.col] = entries.data
    return found


def pairs_problem(X, Y, pairs, weights=None, transform=None):
    """The problem, and its transform, as a training makes them."""
    found = find_pairs(pairs, Y.shape)
    transform = transform or Transform.fit(X)
    return Problem(X, known_labels(Y, found), transform, weights, None, found), transform


def excess(X, Y, pairs, labels, C=1.0, v=None):
    """How much each label's objective is above that of LIBLINEAR, relative to it."""
    problem, transform = pairs_problem(X, Y, pairs, v)
    solution = problem.solve(labels, SolverParams(C, 0.0))
    assert (solution.stop_ratio <= 1).all()
    rows = sp.csr_array(transform.apply(X).astype(np.float64))
    of_pairs, found = dense_pairs(pairs), []
    for place, label in enumerate(labels):
        u = of_pairs[:, label] * (1.0 if v is None else v)
        s = np.where(Y[:, [label]].toarray().ravel(), 1.0, -1.0)
        theirs = LinearSVC(dual=False, fit_intercept=False, C=C, tol=0.01)
        theirs.fit(rows, s, sample_weight=u)
        w = solution.weights[[place]].toarray().ravel().astype(np.float64)
        ours = objective(rows, s, w, C, u)
        assert solution.objective[place] == pytest.approx(ours, rel=1e-4)
        found.append(ours / objective(rows, s, theirs.coef_.ravel(), C, u) - 1)
    return np.array(found)


def weights_of(model):
    return model.weights.data.tobytes(), model.weights.indices.tobytes()


# The solver


@pytest.mark.parametrize("weighted", [False, True])
def test_labels_are_as_near_the_optimum_as_liblinear(weighted):
    X, Y = random_problem(rows=2000, features=300, labels=60, density=0.05)
    pairs = some_pairs(Y)
    labels = np.flatnonzero(known_labels(Y, find_pairs(pairs, Y.shape)).sum(axis=0))
    found = excess(X, Y, pairs, labels, v=some_weights(2000) if weighted else None)
    assert found.max() <= 1e-3
    assert np.maximum(found, 0).mean() <= 2e-4


@pytest.mark.parametrize("exponent", [3, 6])
def test_very_unequal_pair_weights_are_solved(exponent):
    X, Y = random_problem(rows=400, labels=8)
    pairs = some_pairs(Y, share=0.2, zeros=0)
    pairs.data = 10.0 ** np.random.default_rng(1).uniform(-exponent, exponent, pairs.nnz)
    assert excess(X, Y, pairs, np.arange(1, 8)).max() <= 1e-3


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), C=st.floats(-1.5, 1.5), spread=st.floats(0, 2))
def test_minimum_equals_the_reference(seed, C, spread):
    rng = np.random.default_rng(seed)
    n, d, C = rng.integers(4, 60), rng.integers(1, 12), 10.0**C
    X = sp.csr_array(rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.5), dtype=np.float32)
    Y = sp.csr_array(np.arange(n)[:, None] % 3 == 0, dtype=np.uint8)
    rows = np.flatnonzero(rng.random(n) < rng.random())
    rows = rows[rows > 0]  # one positive stays
    values = np.where(
        rng.random(len(rows)) < 0.3, 0, 10.0 ** rng.uniform(-spread, spread, len(rows))
    )
    pairs = sp.csr_array((values, (rows, np.zeros_like(rows))), shape=(n, 1))
    v = 10.0 ** rng.uniform(-spread, spread, n) if rng.random() < 0.5 else None
    problem, transform = pairs_problem(X, Y, pairs, v)
    solution = problem.solve([0], SolverParams(C, 0.0))
    Xt, s = transform.apply(X).astype(np.float64), np.where(Y.toarray().ravel(), 1.0, -1.0)
    u = dense_pairs(pairs).ravel() * (1.0 if v is None else v)
    w = solution.weights.toarray().ravel().astype(np.float64)
    best = objective(Xt, s, weighted_minimum(Xt, s, C, u), C, u)
    assert objective(Xt, s, w, C, u) <= best * (1 + 1e-3)
    assert solution.objective[0] == pytest.approx(objective(Xt, s, w, C, u), rel=1e-4, abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), C=st.floats(-1.5, 1.5), weighted=st.booleans())
def test_soft_labels_are_positive_and_negative_at_once(seed, C, weighted):
    rng = np.random.default_rng(seed)
    n, d, C = rng.integers(6, 60), rng.integers(1, 12), 10.0**C
    X = sp.csr_array(rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.5), dtype=np.float32)
    y = np.arange(n) % 3 == 0
    soft = y & (rng.random(n) < 0.6) & (np.arange(n) > 0)
    r = np.where(soft, rng.random(n), y)
    pairs = sp.csr_array((r[soft], (np.flatnonzero(soft), np.zeros(soft.sum(), int))), (n, 1))
    v = rng.uniform(0.2, 3, n) if weighted else None
    problem, transform = pairs_problem(X, sp.csr_array(y[:, None], dtype=np.uint8), pairs, v)
    params = SolverParams(C, 0.0, soft_labels=True)
    w = problem.solve([0], params).weights.toarray().ravel().astype(np.float64)
    # Every row once as a positive of weight r, and once as a negative of weight 1 − r.
    rows = transform.apply(X).astype(np.float64)
    twice = sp.csr_array(sp.vstack([rows, rows]))
    s = np.repeat([1.0, -1.0], n)
    u = np.concatenate([r, 1 - r]) * (1.0 if v is None else np.tile(v, 2))
    best = objective(twice, s, weighted_minimum(twice, s, C, u), C, u)
    assert objective(twice, s, w, C, u) <= best * (1 + 1e-3)


def test_soft_labels_reach_training_from_files_and_python(tmp_path):
    X, Y = random_problem(labels=6)
    save_data(Dataset(X, Y), tmp_path / "data.xmc")
    rows, labels = Y.nonzero()
    r = np.random.default_rng(0).uniform(0, 1, len(rows)).round(3)
    pairs = sp.csr_array((r, (rows, labels)), shape=Y.shape)
    lines = zip(rows + 1, labels, r, strict=True)
    (tmp_path / "soft").write_text("".join(f"{i} {x} {w}\n" for i, x, w in lines))
    soft = TrainingParams(C=2.0, soft_labels=True, precision="float32", delta=0)
    model = train(X, Y, tmp_path / "model", soft, pair_weights=pairs)
    hard = fit(X, Y, TrainingParams(C=2.0, precision="float32", delta=0), pair_weights=pairs)
    assert weights_of(model) != weights_of(hard)
    scores = model.decision_function(X)[rows, labels]
    assert scores[r < 0.3].mean() < scores[r > 0.7].mean()
    run = ["train", tmp_path / "data.xmc", "-o", tmp_path / "other", "--C", "2", "--soft-labels"]
    run += ["--pair-weights", tmp_path / "soft", "--precision", "float32", "--delta", "0"]
    done = CliRunner().invoke(main, [*map(str, run)])
    assert done.exit_code == 0, done.output
    assert weights_of(open_model(tmp_path / "other")) == weights_of(model)


def test_pairs_that_are_not_relevances_are_refused(problem_data):
    X, Y = problem_data
    soft = TrainingParams(soft_labels=True)
    row, label = (place[0] for place in Y.nonzero())
    free = int(np.flatnonzero(Y.toarray()[row] == 0)[0])
    for value, of, reason in (
        (1.5, label, "relevance 1.5"),
        (0.5, free, "labels that the row has"),
    ):
        pairs = sp.csr_array(([value], ([row], [of])), shape=Y.shape)
        with pytest.raises(DataError, match=reason):
            fit(X, Y, soft, pair_weights=pairs)
    with pytest.raises(DataError, match="soft labels need relevances"):
        fit(X, Y, soft)
    none = sp.csr_array(([0.0], ([row], [label])), shape=Y.shape)
    without = Y.tolil()
    without[row, label] = 0
    found, plain = fit(X, Y, soft, pair_weights=none), fit(X, without.tocsr(), TrainingParams())
    np.testing.assert_allclose(found.decision_function(X), plain.decision_function(X), atol=1e-2)


def test_pairs_of_weight_1_change_no_byte(problem_data):
    X, Y = problem_data
    ones = some_pairs(Y)
    ones.data[:] = 1
    model, plain = fit(X, Y, EXACT, pair_weights=ones), fit(X, Y, EXACT)
    assert weights_of(model) == weights_of(plain)
    assert model.manifest.data == plain.manifest.data
    assert "pair_weights" not in model.params


def test_pairs_near_1_are_solved_like_those_of_weight_1():
    X, Y = random_problem(rows=500, labels=10)
    near = sp.csr_array(np.full(Y.shape, 1 + 1e-6))
    solution = pairs_problem(X, Y, near)[0].solve(np.arange(10), SolverParams(1.0, 0.0))
    plain = Problem(X, Y, Transform.fit(X)).solve(np.arange(10), SolverParams(1.0, 0.0))
    np.testing.assert_allclose(solution.objective, plain.objective, rtol=1e-3)


def test_a_pair_of_weight_0_leaves_the_row_out_for_the_label():
    X, Y = random_problem(rows=500, labels=10)
    label, transform = 6, Transform.fit(X)
    rng = np.random.default_rng(0)
    out = rng.choice(500, 100, replace=False)
    assert Y[out][:, [label]].sum() > 5
    pairs = sp.csr_array((np.zeros(100), (out, np.full(100, label))), shape=Y.shape)
    problem, _ = pairs_problem(X, Y, pairs)
    keep = np.delete(np.arange(500), out)
    assert problem.label_counts[label] == Y[keep][:, [label]].sum()
    params = SolverParams(1.0, 0.0, tol=1e-5)
    with_pairs = problem.solve([label], params).weights.toarray().ravel()
    without = Problem(X[keep], Y[keep], transform).solve([label], params).weights.toarray().ravel()
    np.testing.assert_allclose(with_pairs, without, atol=2e-4)


def test_a_label_whose_positives_are_all_left_out_has_no_weights():
    X, Y = random_problem(rows=100, labels=5)
    rows = Y[:, [2]].toarray().ravel().nonzero()[0]
    pairs = sp.csr_array((np.zeros(len(rows)), (rows, np.full(len(rows), 2))), shape=Y.shape)
    model = fit(X, Y, EXACT, pair_weights=pairs)
    assert model.label_counts[2] == 0
    assert model.weights[[2]].nnz == 0


def test_weight_2_for_all_pairs_of_a_label_doubles_its_C():
    X, Y = random_problem(rows=400, labels=6)
    pairs = sp.csr_array((np.full(400, 2.0), (np.arange(400), np.full(400, 4))), shape=Y.shape)
    problem, transform = pairs_problem(X, Y, pairs)
    doubled = problem.solve([4], SolverParams(1.0, 0.0))
    other_C = Problem(X, Y, transform).solve([4], SolverParams(2.0, 0.0))
    assert doubled.objective[0] == pytest.approx(other_C.objective[0], rel=1e-3)


def test_pairs_multiply_row_weights_and_costs():
    X, Y = random_problem(rows=400, labels=8)
    label, v, pairs = 6, some_weights(400), some_pairs(Y)
    params = TrainingParams(precision="float32", delta=0, positive_weight=3)
    model = fit(X, Y, params, weights=v, pair_weights=pairs)
    s = np.where(Y[:, [label]].toarray().ravel(), 1.0, -1.0)
    u = dense_pairs(pairs)[:, label] * v * np.where(s > 0, 3.0, 1.0)
    rows = sp.csr_array(Transform.fit(X).apply(X).astype(np.float64))
    w = model.weights[[label]].toarray().ravel().astype(np.float64)
    best = objective(rows, s, weighted_minimum(rows, s, 1.0, u), 1.0, u)
    assert objective(rows, s, w, 1.0, u) == pytest.approx(best, rel=1e-3)


def test_labels_without_pairs_keep_their_bytes(problem_data):
    X, Y = problem_data
    pairs = sp.lil_array(some_pairs(Y))
    pairs[:, ::2] = 0
    pairs = sp.csr_array(pairs)
    pairs.eliminate_zeros()
    weighed, plain = fit(X, Y, EXACT, pair_weights=pairs), fit(X, Y, EXACT)
    listed = np.unique(pairs.indices)
    others = np.setdiff1d(np.arange(40), listed)
    assert len(listed) > 15
    assert weighed.weights[others].data.tobytes() == plain.weights[others].data.tobytes()
    for label in listed:
        if plain.weights[[label]].nnz:
            assert (weighed.weights[[label]] != plain.weights[[label]]).nnz


def test_labels_with_the_same_rows_but_other_pairs_are_solved_separately():
    X, Y = random_problem(rows=200, labels=6)
    Y = sp.csr_array(sp.hstack([Y[:, [4]]] * 4))
    pairs = sp.csr_array(
        ([0.5, 0.5, 2.0], ([7, 7, 7], [1, 2, 3])),
        shape=Y.shape,
    )
    problem, _ = pairs_problem(X, Y, pairs)
    assert problem.equal_labels.groups.tolist() == [0, 1, 1, 3]
    weights = fit(X, Y, EXACT, pair_weights=pairs).weights.toarray()
    assert (weights[1] == weights[2]).all()
    assert (weights[0] != weights[1]).any()
    assert (weights[1] != weights[3]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_large_sets_with_pairs_have_the_same_bytes_on_any_number_of_threads(kind):
    X, Y = frequent_labels(**KINDS[kind])
    Y = Y[:, [0, 2]]
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(X.shape[0], 3000, replace=False))
    values = np.where(rng.random(3000) < 0.3, 0, rng.uniform(0.1, 3, 3000))
    values, rows = np.tile(values, 2), np.tile(rows, 2)
    pairs = sp.csr_array((values, (rows, np.repeat([0, 1], 3000))), shape=Y.shape)
    problem, transform = pairs_problem(X, Y, pairs, transform=Transform.fit(X, tfidf=True))
    params, found = SolverParams(delta=0.0), []
    for threads in (1, 3):
        blocks = {0: np.array([0, 1])}
        (block,) = solve_blocks(problem, params, blocks, lambda b: b, threads=threads)
        assert block.stats.set_rows > 1 << 14
        assert block.stats.unsolved == 0
        found.append(block.weights.toarray())
    assert found[0].tobytes() == found[1].tobytes()
    Xt = transform.apply(X).astype(np.float64)
    for label in (0, 1):
        s = np.where(Y[:, [label]].toarray().ravel(), 1.0, -1.0)
        u, w = dense_pairs(pairs)[:, label], found[0][label].astype(np.float64)
        slack = np.maximum(0, 1 - s * (Xt @ w))
        gradient = w - 2 * Xt.T @ (u * slack * s)
        # f is 1-strongly convex: this bounds the gap to its minimum.
        assert gradient @ gradient / 2 <= 1e-3 * objective(Xt, s, w, 1.0, u)


def test_dense_features_are_solved_with_pairs():
    rng = np.random.default_rng(0)
    X, Y = random_problem(rows=400, labels=8)
    E, pairs = rng.standard_normal((400, 12)).astype(np.float32), some_pairs(Y)
    plain = TrainingParams(precision="float32", delta=0, normalize=False, dense_scale=0.5)
    for parts, sparse in (([E], np.empty((400, 0))), ([X, E], X.toarray())):
        model = fit(parts, Y, plain, pair_weights=pairs)
        dense = E * model.transform.dense_scales(E)[:, None]
        rows = np.hstack([sparse, dense, np.ones((400, 1))]).astype(np.float64)
        for label in (5, 6, 7):
            s = np.where(Y[:, [label]].toarray().ravel(), 1.0, -1.0)
            u, w = dense_pairs(pairs)[:, label], model.weights[[label]].toarray().ravel()
            best = objective(rows, s, weighted_minimum(rows, s, 1.0, u), 1.0, u)
            assert objective(rows, s, w.astype(np.float64), 1.0, u) == pytest.approx(best, rel=1e-3)


# Training


def test_threads_blocks_and_a_kill_do_not_change_a_byte(tmp_path, problem_data):
    X, Y = problem_data
    pairs = some_pairs(Y)
    train(X, Y, tmp_path / "whole", pair_weights=pairs, threads=1)
    small = TrainingParams(block_size=7)
    train_unfinished(X, Y, tmp_path / "killed", small, pair_weights=pairs)
    sorted((tmp_path / "killed").glob("block-*"))[1].unlink()
    train(X, Y, tmp_path / "killed", small, pair_weights=pairs, threads=3)
    whole, killed = (open_model(tmp_path / name) for name in ("whole", "killed"))
    assert weights_of(whole) == weights_of(killed)
    assert weights_of(whole) != weights_of(train(X, Y, tmp_path / "plain"))


def test_other_pair_weights_are_refused_when_resuming(tmp_path, problem_data):
    X, Y = problem_data
    pairs = some_pairs(Y)
    train_unfinished(X, Y, tmp_path / "model", pair_weights=pairs)
    for other in (None, some_pairs(Y, seed=1), pairs * 2):
        with pytest.raises(ModelError, match=r"different model.*other data"):
            train(X, Y, tmp_path / "model", pair_weights=other)
    with pytest.raises(ModelError, match=r"pair_weights .* pairs, .* left out instead of None"):
        train(X, Y, tmp_path / "model")
    model = train(X, Y, tmp_path / "model", pair_weights=pairs)
    left_out = int((pairs.data == 0).sum())
    assert model.params["pair_weights"] == {"pairs": pairs.nnz, "left_out": left_out}
    found = run("inspect", tmp_path / "model").output
    assert f"{left_out} pairs left out" in found


def test_rows_of_weight_0_take_their_pairs_with_them(problem_data):
    X, Y = problem_data
    pairs, v = some_pairs(Y), some_weights(300)
    v[::5] = 0
    keep = np.flatnonzero(v)
    weighed = fit(X, Y, EXACT, weights=v, pair_weights=pairs)
    without = fit(X[keep], Y[keep], EXACT, weights=v[keep], pair_weights=pairs[keep])
    assert weights_of(weighed) == weights_of(without)
    assert weighed.manifest.data == without.manifest.data


def test_lists_of_labels_take_pairs_in_the_order_of_names():
    X = sp.csr_array(np.eye(6, dtype=np.float32))
    pairs = sp.csr_array(([0.0], ([4], [1])), shape=(6, 4))
    model = fit(X, NAMES, EXACT, pair_weights=pairs)
    assert model.names == ["bread", "egg", "pan", "rye"]
    assert model.label_counts.tolist() == [3, 2, 2, 1]
    few = fit(X, NAMES, EXACT, weights=[1, 1, 1, 1, 1, 0], pair_weights=pairs[:, :3])
    assert few.names == ["bread", "egg", "pan"]
    assert few.label_counts.tolist() == [2, 2, 2]


def test_a_tuned_model_equals_one_trained_at_its_C(tmp_path):
    X, Y = random_problem(rows=400, labels=30)
    pairs = some_pairs(Y)
    found = tune(X, Y, tmp_path / "tuned", pair_weights=pairs)
    train(X, Y, tmp_path / "plain", TrainingParams(C=found.C), pair_weights=pairs)
    assert weight_files(tmp_path / "tuned") == weight_files(tmp_path / "plain")


def test_delta_and_probabilities_are_learned_with_pairs(tmp_path, problem_data):
    X, Y = problem_data
    params = TrainingParams(delta="auto", calibrate=True)
    model = train(X, Y, tmp_path / "model", params, pair_weights=some_pairs(Y))
    assert model.params["delta_auto"]
    assert model.params["pair_weights"]["pairs"]
    plain = train(X, Y, tmp_path / "plain", params)
    assert weights_of(model) != weights_of(plain)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (TrainingParams(penalty="l1"), "pair weights are not supported with penalty='l1'"),
        (TrainingParams(refine=True), "pair weights are not supported with refine=True"),
    ],
)
def test_l1_and_refining_refuse_pairs(problem_data, params, message):
    X, Y = problem_data
    with pytest.raises(DataError, match=message):
        fit(X, Y, params, pair_weights=some_pairs(Y))


def with_entry(value, row=7, label=3):
    return sp.csr_array(([1.0, value], ([0, row], [0, label])), shape=(300, 40))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (with_entry(-2.0), "pair_weights: row index 7, label 3: the weight is -2; expected a num"),
        (with_entry(float("nan")), "pair_weights: row index 7, label 3: the weight is nan"),
        (with_entry(float("inf")), "pair_weights: row index 7, label 3: the weight is inf"),
        (with_entry(1e31), "pair_weights: row index 7, label 3: the weight is 1e.31"),
        (with_entry(2.0)[:299], r"pair_weights has shape \(299, 40\); expected \(300, 40\)"),
        (np.ones((300, 40)), "pair_weights is a ndarray; expected a scipy sparse matrix"),
        (
            sp.coo_array(([2.0, 3.0], ([1, 1], [2, 2])), shape=(300, 40)),
            "pair_weights: 1 pair given twice",
        ),
        ("no such file", "no such file: No such file or directory"),
    ],
)
def test_pairs_that_cannot_be_used_are_refused_in_one_line(tmp_path, problem_data, pairs, message):
    with pytest.raises(DataError, match=message) as caught:
        train(*problem_data, tmp_path / "model", pair_weights=pairs)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_the_training_file_holds_the_pair_weights(tmp_path, problem_data):
    X, Y = problem_data
    pairs = find_pairs(some_pairs(Y), Y.shape)
    known = known_labels(Y, pairs)
    TrainingData(X, known, None, pairs).save(tmp_path / "data.xmc")
    loaded = TrainingData.map(tmp_path / "data.xmc")
    assert (loaded.pairs != pairs).nnz == 0
    assert loaded.pairs.nnz == pairs.nnz  # with zeros
    assert loaded.fingerprint == fingerprint(X, known, None, pairs) != fingerprint(X, known)
    save_data(Dataset(X, Y), tmp_path / "plain.xmc")
    assert TrainingData.map(tmp_path / "plain.xmc").pairs is None


def test_a_damaged_training_file_is_refused(tmp_path, problem_data):
    X, Y = problem_data
    pairs, file = find_pairs(some_pairs(Y), Y.shape), tmp_path / "data.xmc"
    TrainingData(X, known_labels(Y, pairs), None, pairs).save(file)
    arrays, metadata = open_arrays(file)
    wrong = {
        "pairs.indices": np.full(pairs.nnz, 40, np.int32),
        "pairs.indptr": np.empty(0, np.int64),
        "pairs.data": np.full(pairs.nnz, -1, np.float32),
    }
    for name, array in wrong.items():
        write_arrays(tmp_path / "damaged.xmc", {**arrays, name: array}, metadata)
        with pytest.raises(DataError, match=r"damaged\.xmc: "):
            TrainingData.map(tmp_path / "damaged.xmc")
        left = {other: kept for other, kept in arrays.items() if other != name}
        write_arrays(tmp_path / "damaged.xmc", left, metadata)
        with pytest.raises(DataError, match=r"damaged\.xmc: .* the arrays of a dataset"):
            TrainingData.map(tmp_path / "damaged.xmc")


@pytest.mark.cluster
def test_cluster_gives_the_same_bytes(tmp_path, problem_data, dask_cluster):
    X, Y = problem_data
    pairs, v = some_pairs(Y), some_weights(300)
    v[3] = 0
    data = tmp_path / "data.xmc"
    save_data(Dataset(X, Y), data)
    texts, listed = tmp_path / "texts.jsonl", tmp_path / "pairs.txt"
    texts.write_text("".join(text_lines(TEXTS, NAMES, [1, 2, 0, 1, 3, 0.5])))
    listed.write_text("1 bread 0.5\n2 egg 0\n")
    fmt = TextFormat(weight_column="w")
    train(X, Y, tmp_path / "here", weights=v, pair_weights=pairs)
    train_text(texts, tmp_path / "texts here", fmt=fmt, pair_weights=listed)
    how = {"cluster": str(dask_cluster), "pair_weights": pairs, "source": data}
    train(X, Y, tmp_path / "there", weights=v, **how)
    how = {"cluster": str(dask_cluster), "pair_weights": listed}
    train_text(texts, tmp_path / "texts there", fmt=fmt, **how)
    with pytest.raises(DataError, match="pair_weights is not supported with data on the wo"):
        train(data, None, tmp_path / "placed", pair_weights=pairs, cluster=str(dask_cluster))
    assert weight_files(tmp_path / "here") == weight_files(tmp_path / "there")
    assert weight_files(tmp_path / "texts here") == weight_files(tmp_path / "texts there")
    assert not list((tmp_path / "texts there").glob("*.xmc"))


# Texts and the command line


def run(*args):
    return CliRunner().invoke(main, [str(arg) for arg in args])


def test_texts_have_pairs_by_name(tmp_path):
    data, listed = tmp_path / "texts.jsonl", tmp_path / "pairs.txt"
    data.write_text("".join(text_lines(TEXTS, NAMES, [1, 0, 1, 1, 2, 1])))
    listed.write_text("5 egg 0\n\n1\tpan\t0.5\n2 rye 7\n3 rye 3\n")
    fmt = TextFormat(weight_column="w")
    model = train_text(data, tmp_path / "file", EXACT, fmt=fmt, pair_weights=listed)
    assert model.names == ["bread", "egg", "pan", "rye"]
    assert model.label_counts.tolist() == [3, 1, 1, 1]
    rows, labels = [4, 0, 1, 2], [1, 2, 3, 3]
    pairs = sp.csr_array(([0, 0.5, 7, 3], (rows, labels)), shape=(6, 4))
    given = train_text(data, tmp_path / "matrix", EXACT, fmt=fmt, pair_weights=pairs)
    assert weights_of(model) == weights_of(given)
    weights = [1, 0, 1, 1, 2, 1]
    other = train_text(data, tmp_path / "array", EXACT, weights=weights, pair_weights=pairs)
    assert weights_of(model) == weights_of(other)
    assert weights_of(model) != weights_of(train_text(data, tmp_path / "plain", EXACT, fmt=fmt))
    assert not list((tmp_path / "file").glob("*.xmc"))


def test_the_command_line_takes_lines_and_matrices(tmp_path, problem_data):
    X, Y = problem_data
    pairs = some_pairs(Y)
    save_data(Dataset(X, Y), tmp_path / "data.txt")
    entries = pairs.tocoo()
    lines = zip(entries.row + 1, entries.col, entries.data.tolist(), strict=True)
    (tmp_path / "pairs.txt").write_text("".join(f"{r} {c} {w!r}\n" for r, c, w in lines))
    sp.save_npz(tmp_path / "pairs.npz", pairs)
    train(*load(tmp_path / "data.txt"), tmp_path / "expected", pair_weights=pairs)
    for kind in ("txt", "npz"):
        how = ("--pair-weights", tmp_path / f"pairs.{kind}", "--quiet")
        result = run("train", tmp_path / "data.txt", "-o", tmp_path / kind, *how)
        assert result.exit_code == 0, result.output
        assert weight_files(tmp_path / kind) == weight_files(tmp_path / "expected")
    how = ("--pair-weights", tmp_path / "pairs.txt", "--quiet")
    chosen = run("train", tmp_path / "data.txt", "-o", tmp_path / "tuned", "--C", "auto", *how)
    assert chosen.exit_code == 0, chosen.output
    assert open_model(tmp_path / "tuned").params["pair_weights"]["pairs"] == pairs.nnz


def load(path):
    from dismec import load_data

    return load_data(path)[:2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("3 egg", "pairs.txt:2: '3 egg' is not a row, a label and a weight"),
        ("0 egg 1", "pairs.txt:2: '0' is not a row number, counted from 1"),
        ("x egg 1", "pairs.txt:2: 'x' is not a row number, counted from 1"),
        ("3 egg many", "pairs.txt:2: 'many' is not a number"),
        ("3 egg -1", "pairs.txt:2: the weight is -1; expected a number from 0 to 1e+30"),
        ("3 egg nan", "pairs.txt:2: the weight is nan; expected a number from 0 to 1e+30"),
        ("7 egg 1", "pairs.txt:2: there is no row 7: the data have 6 rows"),
        ("3 milk 1", "pairs.txt:2: the data have no label 'milk'"),
        ("3 0 1", "pairs.txt:2: the data have no label '0'"),
        ("1 egg 2", "pairs.txt:2: row 1 has label egg twice"),
    ],
)
def test_bad_lines_are_refused_with_file_and_line(tmp_path, line, message):
    data, listed = tmp_path / "texts.jsonl", tmp_path / "pairs.txt"
    data.write_text("".join(text_lines(TEXTS, NAMES, [1] * 6)))
    listed.write_text(f"1 egg 0.5\n{line}\n")
    result = run("train", data, "-o", tmp_path / "model", "--pair-weights", listed, "--quiet")
    assert result.exit_code == 2
    assert message in result.output
    assert result.output.strip().count("\n") == 0


def test_bad_matrices_of_files_are_refused_with_the_file(tmp_path, problem_data):
    X, Y = problem_data
    save_data(Dataset(X, Y), tmp_path / "data.txt")
    how = ("train", tmp_path / "data.txt", "-o", tmp_path / "model", "--quiet", "--pair-weights")
    sp.save_npz(tmp_path / "bad.npz", with_entry(-1.0))
    assert "bad.npz: row 8, label 3: the weight is -1" in run(*how, tmp_path / "bad.npz").output
    (tmp_path / "other.npz").write_bytes(b"PK and nothing else")
    assert "other.npz: not a scipy sparse matrix" in run(*how, tmp_path / "other.npz").output
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "binary:1: not UTF-8" in run(*how, tmp_path / "binary").output
    assert "No such file" in run(*how, tmp_path / "nothing").output
    refused = run(*how[:4], "--data-on-workers", "--cluster", "x", "--pair-weights", "y")
    assert "--pair-weights is not supported with --data-on-workers" in refused.output


# scikit-learn


def test_pair_weight_is_the_weight_of_pairs(problem_data):
    X, Y = problem_data
    pairs, v = some_pairs(Y), some_weights(300)
    v[::7] = 0
    expected = fit(X, Y, EXACT, weights=v, pair_weights=pairs)
    clf = DiSMECClassifier(precision="float32", delta=0)
    for y in (Y, Y.toarray()):
        clf.fit(X, y, sample_weight=v, pair_weight=pairs)
        assert weights_of(clf.model_) == weights_of(expected)
    with pytest.raises(DataError, match="pair_weight needs an indicator y"):
        clf.fit(X, np.arange(300) % 3, pair_weight=pairs)
    with pytest.raises(DataError, match=r"pair_weight has shape \(300, 40\); expected \(300, 7\)"):
        clf.fit(X, Y[:, :7], pair_weight=pairs)


def test_searches_route_pair_weight():
    import sklearn

    X, Y = random_problem(rows=120, labels=6)
    pairs = some_pairs(Y)
    with sklearn.config_context(enable_metadata_routing=True):
        clf = DiSMECClassifier().set_fit_request(pair_weight=True)
        search = GridSearchCV(clf, {"C": [0.5, 2.0]}, cv=3).fit(X, Y, pair_weight=pairs)
    best = DiSMECClassifier(C=search.best_params_["C"]).fit(X, Y, pair_weight=pairs)
    assert weights_of(search.best_estimator_.model_) == weights_of(best.model_)
