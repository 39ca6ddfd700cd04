"""Row weights in every way of training, and in metrics."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import GridSearchCV
from sklearn.svm import LinearSVC

import naive
from conftest import random_problem, related, train_unfinished, tune, tune_text, weight_files
from dismec import (
    DataError,
    DiSMECClassifier,
    DiSMECTextClassifier,
    ModelError,
    TrainingParams,
    add_labels,
    evaluate,
    load_data,
    open_model,
    save_data,
    train,
    train_text,
    update_labels,
)
from dismec.cli import main
from dismec.data.dataset import Dataset
from dismec.data.text_format import TextFormat
from dismec.data.training_file import TrainingData, fingerprint
from dismec.features.transform import Transform
from dismec.measure.metrics import expected_calibration_error, f1_scores
from dismec.solve.costs import Weighting, split_weights
from dismec.solve.problem import Problem, SolverParams
from dismec.solve.threads import solve_blocks
from dismec.training.params import TrainOptions
from dismec.training.train import fit
from test_work_sharing import KINDS, frequent_labels

pytestmark = pytest.mark.native(needs="liblinear pandas sklearn")

EXACT = TrainingParams(precision="float32", delta=0)
TEXTS = ["boil the egg", "fry the egg", "bake bread", "slice bread", "a pan of eggs", "rye bread"]
NAMES = [["egg"], ["egg", "pan"], ["bread"], ["bread"], ["egg", "pan"], ["bread", "rye"]]


def some_weights(n_rows, seed=0):
    return np.random.default_rng(seed).uniform(0.1, 3.0, n_rows)


def weights_of(model):
    return model.weights.data.tobytes(), model.weights.indices.tobytes()


def objective(rows, s, w, C, v):
    slack = np.maximum(0, 1 - s * (rows @ w))
    return 0.5 * w @ w + C * v @ slack**2


def excess(X, Y, v, labels, C=1.0):
    """Return each label's objective relative to LIBLINEAR's, minus 1."""
    transform = Transform.fit(X)
    solution = Problem(X, Y, transform, v).solve(labels, SolverParams(C, 0.0))
    assert (solution.stop_ratio <= 1).all()
    rows = sp.csr_array(transform.apply(X).astype(np.float64))
    found = []
    for place, label in enumerate(labels):
        s = np.where(Y[:, [label]].toarray().ravel(), 1.0, -1.0)
        theirs = LinearSVC(dual=False, fit_intercept=False, C=C, tol=0.01)
        theirs.fit(rows, s, sample_weight=v)
        w = solution.weights[[place]].toarray().ravel().astype(np.float64)
        ours = objective(rows, s, w, C, v)
        assert solution.objective[place] == pytest.approx(ours, rel=1e-4)
        found.append(ours / objective(rows, s, theirs.coef_.ravel(), C, v) - 1)
    return np.array(found)


# The solver


def test_weighted_labels_are_as_close_to_the_optimum_as_liblinear():
    X, Y = random_problem(rows=2000, features=300, labels=60, density=0.05)
    labels = np.flatnonzero(Y.sum(axis=0))
    found = excess(X, Y, some_weights(2000), labels)
    assert found.max() <= 1e-3
    assert np.maximum(found, 0).mean() <= 2e-4


@pytest.mark.parametrize("exponent", [3, 6])
def test_very_unequal_weights_are_solved(exponent):
    X, Y = random_problem(rows=400, labels=8)
    v = 10.0 ** np.random.default_rng(1).uniform(-exponent, exponent, 400)
    assert excess(X, Y, v, np.arange(8)).max() <= 1e-3


def test_a_label_of_heavy_rows_among_rows_of_next_to_no_weight_is_solved():
    X, Y = random_problem(rows=1500, features=400, labels=20, density=0.05)
    Y = Y[:, [19]]
    v = np.where(Y.toarray().ravel(), 1e4, 1e-4)
    solution = Problem(X, Y, Transform.fit(X), v).solve([0], SolverParams(1.0, 0.0))
    assert solution.stop_ratio[0] <= 1


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), C=st.floats(-1.5, 1.5), spread=st.floats(0, 2))
def test_weighted_minimum_equals_the_reference(seed, C, spread):
    rng = np.random.default_rng(seed)
    n, d, C = rng.integers(4, 60), rng.integers(1, 12), 10.0**C
    X = sp.csr_array(rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.5), dtype=np.float32)
    Y = sp.csr_array(np.arange(n)[:, None] % 3 == 0, dtype=np.uint8)
    v = 10.0 ** rng.uniform(-spread, spread, n)
    transform = Transform.fit(X)
    solution = Problem(X, Y, transform, v).solve([0], SolverParams(C, 0.0))
    rows, s = transform.apply(X).astype(np.float64), np.where(Y.toarray().ravel(), 1.0, -1.0)
    w = solution.weights.toarray().ravel().astype(np.float64)
    # Weight v scales the slack of a row by √v: Newton's method on that is exact.
    best = weighted_minimum(rows, s, C, v)
    assert objective(rows, s, w, C, v) <= objective(rows, s, best, C, v) * (1 + 1e-3)


def weighted_minimum(rows, s, C, v):
    """Minimize by Newton's method with backtracking, in double precision."""
    X = rows.toarray() if sp.issparse(rows) else rows
    w = np.zeros(X.shape[1])
    for _ in range(100):
        inside = s * (X @ w) < 1
        A, of_inside = X[inside], v[inside]
        gradient = w + 2 * C * A.T @ (of_inside * (A @ w - s[inside]))
        step = np.linalg.solve(np.eye(len(w)) + 2 * C * (A.T * of_inside) @ A, gradient)
        size = 1.0
        while objective(X, s, w - size * step, C, v) > objective(X, s, w, C, v) and size > 1e-9:
            size /= 2
        w = w - size * step
        if np.linalg.norm(step) <= 1e-9 * (1 + np.linalg.norm(w)):
            break
    return w


@pytest.mark.parametrize("weight", [2.0, 0.3, 1e-7, 1e5])
def test_equal_weights_equal_another_C(problem_data, weight):
    X, Y = problem_data
    weighted = fit(X, Y, EXACT, weights=np.full(300, weight))
    plain = fit(X, Y, TrainingParams(C=weight, precision="float32", delta=0))
    assert weights_of(weighted) == weights_of(plain)


def test_doubling_the_weights_equals_doubling_C(problem_data):
    X, Y = problem_data
    v = some_weights(300)
    doubled = fit(X, Y, EXACT, weights=2 * v)
    other_C = fit(X, Y, TrainingParams(C=2, precision="float32", delta=0), weights=v)
    assert weights_of(doubled) == weights_of(other_C)


def test_integer_weights_equal_repeated_rows(problem_data):
    X, Y = problem_data
    counts = np.random.default_rng(0).integers(0, 4, 300)
    rows = np.repeat(np.arange(300), counts)
    params = TrainingParams(precision="float32", delta=0, tol=1e-5)
    weighted, repeated = fit(X, Y, params, weights=counts), fit(X[rows], Y[rows], params)
    assert np.abs((weighted.weights - repeated.weights).toarray()).max() < 2e-4


def test_the_factor_of_C_is_a_power_of_two_near_the_mean():
    assert split_weights(None) == (1.0, None)
    assert split_weights(np.full(3, 0.3)) == (0.3, None)
    scale, rest = split_weights(np.array([1e-40, 300.0, 500.0]))
    assert scale == 256.0
    np.testing.assert_allclose(rest, [1e-30, 300 / 256, 500 / 256], rtol=1e-6)
    assert split_weights(np.array([1e300, 1e308]))[0] == pytest.approx(5e307, rel=1)


@pytest.mark.parametrize("kind", KINDS)
def test_large_weighted_sets_are_solved_with_the_same_bytes_on_any_number_of_threads(kind):
    X, Y = frequent_labels(**KINDS[kind])
    Y = Y[:, [0]]
    v, transform = some_weights(X.shape[0]), Transform.fit(X, tfidf=True)
    problem, params = Problem(X, Y, transform, v), SolverParams(delta=0.0)
    found = []
    for threads in (1, 3):
        (block,) = solve_blocks(problem, params, {0: np.array([0])}, lambda b: b, threads=threads)
        assert block.stats.set_rows > 1 << 14
        found.append(block.weights.toarray().ravel())
    assert found[0].tobytes() == found[1].tobytes()
    rows, s = transform.apply(X).astype(np.float64), np.where(Y.toarray().ravel(), 1.0, -1.0)
    w = found[0].astype(np.float64)
    slack = np.maximum(0, 1 - s * (rows @ w))
    gradient = w - 2 * rows.T @ (v * slack * s)
    # f is 1-strongly convex: this bounds the gap to the minimum.
    assert gradient @ gradient / 2 <= 1e-3 * objective(rows, s, w, 1.0, v)


# Training


def test_rows_of_weight_0_leave_no_trace(tmp_path, problem_data):
    X, Y = problem_data
    v = (np.random.default_rng(0).random(300) < 0.8).astype(float)
    keep = np.flatnonzero(v)
    for name, params in {
        "plain": TrainingParams(tfidf=True),
        "learned": TrainingParams(delta="auto", calibrate=True),
        "costs": TrainingParams(weighting="propensity"),
    }.items():
        weighted = train(X, Y, tmp_path / f"{name} weighted", params, weights=v)
        without = train(X[keep], Y[keep], tmp_path / f"{name} without", params)
        assert weight_files(tmp_path / f"{name} weighted") == weight_files(
            tmp_path / f"{name} without"
        )
        assert weighted.params == without.params
        assert weighted.manifest.data == without.manifest.data
        assert weighted.manifest.n_rows == len(keep)


def test_labels_only_in_rows_of_weight_0_are_not_trained(tmp_path):
    X = sp.csr_array(np.eye(6, dtype=np.float32))
    model = train(X, NAMES, tmp_path / "model", weights=[1, 1, 1, 1, 1, 0])
    assert model.names == ["bread", "egg", "pan"]


def test_threads_blocks_and_a_kill_do_not_change_weighted_bytes(tmp_path, problem_data):
    X, Y = problem_data
    v = some_weights(300)
    train(X, Y, tmp_path / "whole", weights=v, threads=1)
    small = TrainingParams(block_size=7)
    train_unfinished(X, Y, tmp_path / "killed", small, weights=v)
    block = sorted((tmp_path / "killed").glob("block-*"))[1]
    block.unlink()
    train(X, Y, tmp_path / "killed", small, weights=v, threads=3)
    whole, killed = (open_model(tmp_path / name) for name in ("whole", "killed"))
    assert weights_of(whole) == weights_of(killed)
    assert weights_of(whole) != weights_of(train(X, Y, tmp_path / "plain"))


def test_other_weights_start_a_new_training(tmp_path, problem_data):
    X, Y = problem_data
    v = some_weights(300)
    train_unfinished(X, Y, tmp_path / "model", weights=v)
    for other in (None, some_weights(300, seed=1), v[::-1]):
        with pytest.raises(ModelError, match=r"different model.*other data"):
            train(X, Y, tmp_path / "model", weights=other)
    with pytest.raises(ModelError, match=r"row_weights from .* to .*, .* in all instead of None"):
        train(X, Y, tmp_path / "model")
    model = train(X, Y, tmp_path / "model", weights=v)
    assert model.params["row_weights"]["sum"] == pytest.approx(v.sum())
    facts = run("inspect", tmp_path / "model").output
    assert f"from {v.min():g} to {v.max():g}, {v.sum():g} in all" in facts


def test_weights_of_one_change_nothing(tmp_path, problem_data):
    X, Y = problem_data
    train_unfinished(X, Y, tmp_path / "model")
    model = train(X, Y, tmp_path / "model", weights=np.ones(300, np.int8))
    assert model.manifest.data == fingerprint(X, Y)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0] * 299, "weights: 299 numbers for 300 rows"),
        ([1.0] * 7 + [-2.0] + [1.0] * 292, "weights: row index 7: the weight is -2; expected"),
        ([1.0] * 299 + [float("nan")], "weights: row index 299: the weight is nan"),
        ([float("inf")] * 300, "weights: row index 0: the weight is inf"),
        (np.zeros(300), "all weights are zero"),
        (np.ones((300, 1)), "weights is 2-d; expected one number per row"),
        (["a"] * 300, "weights must be numbers"),
        (np.full(300, 1e-60), "scale the weights so that they are near 1"),
    ],
)
def test_unusable_weights_are_refused_in_one_line(tmp_path, problem_data, weights, message):
    with pytest.raises(DataError, match=message) as caught:
        train(*problem_data, tmp_path / "model", weights=weights)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_weights_under_l1_are_refused(problem_data):
    with pytest.raises(DataError, match="not supported with penalty='l1'"):
        fit(*problem_data, TrainingParams(penalty="l1"), weights=some_weights(300))


def test_C_is_not_chosen_if_the_weights_are_out_of_range(tmp_path, problem_data):
    with pytest.raises(DataError, match="out of range"):
        tune(*problem_data, tmp_path / "m", weights=np.full(300, 1e-39))


def test_a_tuned_model_is_the_one_of_its_C_and_rows_held_out_count_by_weight(tmp_path):
    X, Y = random_problem(rows=400, labels=30)
    v = some_weights(400)
    found = tune(X, Y, tmp_path / "tuned", metric="P@1", weights=v)
    train(X, Y, tmp_path / "plain", TrainingParams(C=found.C), weights=v)
    assert weight_files(tmp_path / "tuned") == weight_files(tmp_path / "plain")
    held = np.sort(np.random.default_rng(0).choice(400, 40, replace=False))
    others = np.delete(np.arange(400), held)
    for row in found.table:
        model = fit(X[others], Y[others], TrainingParams(C=row["C"]), weights=v[others])
        judged = model.evaluate(X[held], Y[held], weights=v[held])
        assert row["P@1"] == pytest.approx(judged["P@1"], abs=3)
        plain = model.evaluate(X[held], Y[held])
        assert judged["P@1"] != pytest.approx(plain["P@1"], abs=1e-3)


def test_refined_models_are_trained_with_row_weights(tmp_path):
    X, Y = related(rows=600)
    params = TrainingParams(refine=True, calibrate=True)
    v = (np.random.default_rng(0).random(600) < 0.8).astype(float)
    keep = np.flatnonzero(v)
    train(X, Y, tmp_path / "weighted", params, weights=v)
    train(X[keep], Y[keep], tmp_path / "without", params)
    assert weight_files(tmp_path / "weighted") == weight_files(tmp_path / "without")
    model = train(X, Y, tmp_path / "unequal", params, weights=some_weights(600))
    assert model.manifest.refined
    assert weight_files(tmp_path / "unequal") != weight_files(tmp_path / "without")


def test_labels_are_added_and_updated_with_weights(tmp_path, problem_data):
    X, Y = problem_data
    v = some_weights(300)
    v[:5] = 0
    whole = train(X, Y, tmp_path / "whole", EXACT, weights=v)
    train(X, Y[:, :30], tmp_path / "grown", EXACT, weights=v)
    assert weights_of(add_labels(tmp_path / "grown", X, Y, weights=v)) == weights_of(whole)
    train(X, Y, tmp_path / "updated", EXACT)
    labels = np.flatnonzero(whole.label_counts).tolist()
    updated = update_labels(tmp_path / "updated", X, Y, labels, weights=v)
    assert weights_of(updated) == weights_of(whole)
    only = np.zeros((6, 1), np.uint8)
    only[5] = 1
    X = sp.csr_array(np.eye(6, dtype=np.float32))
    train(X, np.eye(6, dtype=np.uint8), tmp_path / "six")
    with pytest.raises(DataError, match="no row of the data has label 5"):
        update_labels(tmp_path / "six", X, np.eye(6), [5], weights=[1, 1, 1, 1, 1, 0])


def test_calibration_counts_rows_by_weight():
    X, Y = random_problem(rows=1200, labels=30)
    counts = np.random.default_rng(0).integers(0, 3, 200)
    rows = np.repeat(np.arange(1000, 1200), counts)
    from dismec.training.calibrate import fit_calibration

    model = fit(X[:1000], Y[:1000])
    weighted = fit_calibration(model, X[1000:], Y[1000:], weights=counts)
    repeated = fit_calibration(model, X[rows], Y[rows])
    for name, array in repeated.to_arrays().items():
        np.testing.assert_allclose(weighted.to_arrays()[name], array, rtol=1e-4, atol=1e-4)


@pytest.mark.cluster
def test_cluster_gives_the_same_bytes(tmp_path, problem_data, dask_cluster):
    X, Y = problem_data
    v = some_weights(300)
    v[3] = 0
    data = tmp_path / "data.xmc"
    save_data(Dataset(X, Y), data)
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(text_lines(TEXTS, NAMES, [1, 2, 0, 1, 3, 0.5])))
    fmt = TextFormat(weight_column="w")
    train(X, Y, tmp_path / "here", weights=v)
    train_text(texts, tmp_path / "texts here", fmt=fmt)
    address = str(dask_cluster)
    train(X, Y, tmp_path / "there", weights=v, cluster=address, source=data)
    train_text(texts, tmp_path / "texts there", fmt=fmt, cluster=address)
    assert weight_files(tmp_path / "here") == weight_files(tmp_path / "there")
    assert weight_files(tmp_path / "texts here") == weight_files(tmp_path / "texts there")
    assert not list((tmp_path / "texts there").glob("*.xmc"))


def test_the_training_file_holds_its_row_weights(tmp_path, problem_data):
    X, Y = problem_data
    v = some_weights(300)
    TrainingData(X, Y, v).save(tmp_path / "data.xmc")
    loaded = TrainingData.map(tmp_path / "data.xmc")
    np.testing.assert_array_equal(loaded.weights, v)
    assert loaded.fingerprint == fingerprint(X, Y, v) != fingerprint(X, Y)
    assert fingerprint(*load_data(tmp_path / "data.xmc")[:2]) == fingerprint(X, Y)
    save_data(Dataset(X, Y), tmp_path / "plain.xmc")
    assert TrainingData.map(tmp_path / "plain.xmc").weights is None


# Texts


def text_lines(texts, names, weights):
    for text, labels, weight in zip(texts, names, weights, strict=True):
        yield json.dumps({"text": text, "labels": labels, "w": weight}) + "\n"


def test_texts_of_weight_0_leave_no_word_and_no_label(tmp_path):
    weights = [1, 2, 0.5, 1, 1, 0]
    (tmp_path / "all.jsonl").write_text("".join(text_lines(TEXTS, NAMES, weights)))
    (tmp_path / "few.jsonl").write_text("".join(text_lines(TEXTS[:5], NAMES[:5], weights[:5])))
    fmt = TextFormat(weight_column="w")
    whole = train_text(tmp_path / "all.jsonl", tmp_path / "a", fmt=fmt, examples=True)
    train_text(tmp_path / "few.jsonl", tmp_path / "b", fmt=fmt, examples=True)
    assert weight_files(tmp_path / "a") == weight_files(tmp_path / "b")
    assert whole.names == ["bread", "egg", "pan"]
    assert "rye" not in whole.vocabulary.terms
    given = train_text(tmp_path / "all.jsonl", tmp_path / "c", weights=weights)
    assert weights_of(given) == weights_of(whole)
    tuned = tune_text(tmp_path / "all.jsonl", tmp_path / "d", fmt=fmt)
    again = train_text(
        tmp_path / "all.jsonl", tmp_path / "e", TrainingParams(C=tuned.C, tfidf=True), fmt=fmt
    )
    assert weights_of(tuned.model) == weights_of(again)


def test_weights_are_read_from_tables_and_frames(tmp_path):
    weights = [1, 2, 0.5, 1, 1, 0]
    frame = pd.DataFrame({"text": TEXTS, "labels": [",".join(n) for n in NAMES], "w": weights})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    (tmp_path / "t.json").write_text(json.dumps(frame.assign(labels=NAMES).to_dict("records")))
    fmt = TextFormat(weight_column="w")
    found = {
        weights_of(train_text(source, tmp_path / f"model {i}", fmt=fmt))
        for i, source in enumerate(
            [*(tmp_path / f"t.{e}" for e in ("csv", "parquet", "json")), frame]
        )
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("-1", "1: the weight is '-1'; expected a finite number of at least 0"),
        ("NaN", "is not JSON"),
        ("null", "the weight is None"),
        ("true", "the weight is True"),
        ('"x"', "the weight is 'x'"),
        ("1e999", "the weight is '1e999'"),
    ],
)
def test_a_bad_weight_in_a_file_is_refused_with_its_line(tmp_path, value, message):
    file = tmp_path / "texts.jsonl"
    file.write_text(f'{{"text": "a", "labels": ["b"], "w": {value}}}\n')
    with pytest.raises(DataError, match=message):
        train_text(file, tmp_path / "model", fmt=TextFormat(weight_column="w"))
    file.write_text('{"text": "a", "labels": ["b"]}\n')
    with pytest.raises(DataError, match=r"no key 'v' \(weight_column\)"):
        train_text(file, tmp_path / "model", fmt=TextFormat(weight_column="v"))


def test_a_different_number_of_weights_than_texts_is_refused(tmp_path):
    texts = pd.DataFrame({"text": TEXTS, "labels": NAMES})
    for n in (5, 7):
        with pytest.raises(DataError, match=f"weights: {n} numbers for 6 texts"):
            train_text(texts, tmp_path / "model", weights=np.ones(n) * 2)


# Metrics


def ranked(seed=0, n_rows=60, n_labels=12):
    rng = np.random.default_rng(seed)
    Y = rng.random((n_rows, n_labels)) < 0.2
    top = np.array([rng.permutation(n_labels)[:5] for _ in range(n_rows)])
    return Y, top, rng.uniform(0.1, 1, n_labels), rng


@pytest.mark.parametrize("seed", range(5))
def test_weight_2_equals_repeating_the_row_in_every_metric(seed):
    Y, top, p, rng = ranked(seed)
    counts = rng.integers(0, 4, len(Y))
    rows = np.repeat(np.arange(len(Y)), counts)
    weighted = evaluate(Y, top, (1, 3, 5), p, weights=counts)
    repeated = evaluate(Y[rows], top[rows], (1, 3, 5), p)
    assert weighted.pop("rows") == np.count_nonzero(counts)
    repeated.pop("rows")
    assert weighted == pytest.approx(repeated)
    assert weighted != pytest.approx(evaluate(Y, top, (1, 3, 5), p))


def test_weighted_metrics_equal_the_slow_ones():
    Y, top, p, rng = ranked(7)
    v = rng.uniform(0, 3, len(Y))
    found = evaluate(Y, top, (1, 3), p, weights=v)
    sets, lists = [set(np.flatnonzero(row).tolist()) for row in Y], top.tolist()
    for k in (1, 3):
        for name, slow in {
            "P": naive.precision_at_k,
            "nDCG": naive.ndcg_at_k,
            "R": naive.recall_at_k,
        }.items():
            of_rows = [slow([t], [q], k) for t, q in zip(sets, lists, strict=True)]
            assert found[f"{name}@{k}"] == pytest.approx(100 * np.average(of_rows, weights=v))
        reached = attainable = 0.0
        for t, q, weight in zip(sets, lists, v, strict=True):
            reached += weight * sum(1 / p[label] for label in q[:k] if label in t)
            attainable += weight * sum(sorted((1 / p[label] for label in t), reverse=True)[:k])
        assert found[f"PSP@{k}"] == pytest.approx(100 * reached / attainable)


def test_equal_weights_do_not_change_metrics():
    Y, top, p, _ = ranked()
    assert evaluate(Y, top, propensities=p, weights=np.full(60, 0.3)) == pytest.approx(
        evaluate(Y, top, propensities=p)
    )


def test_bad_weights_of_metrics_are_refused():
    Y, top, _, _ = ranked()
    with pytest.raises(DataError, match="weights: 3 numbers for 60 rows"):
        evaluate(Y, top, weights=[1, 2, 3])
    with pytest.raises(DataError, match="all weights are zero"):
        evaluate(Y, top, weights=np.zeros(60))


def test_f1_and_calibration_error_count_rows_by_weight():
    rng = np.random.default_rng(0)
    Y, chosen = (sp.csr_array(rng.random((40, 8)) < 0.3) for _ in range(2))
    counts = rng.integers(0, 3, 40)
    rows = np.repeat(np.arange(40), counts)
    assert f1_scores(Y, chosen, counts.astype(float)) == pytest.approx(
        f1_scores(Y[rows], chosen[rows])
    )
    p, hit = rng.random(40), rng.random(40) < 0.5
    assert expected_calibration_error(p, hit, weights=counts) == pytest.approx(
        expected_calibration_error(p[rows], hit[rows])
    )


def test_a_calibrated_model_is_evaluated_by_weight():
    X, Y = random_problem(rows=500, labels=20)
    model = fit(X[:400], Y[:400], TrainingParams(calibrate=True))
    counts = np.random.default_rng(0).integers(0, 3, 100)
    rows = 400 + np.repeat(np.arange(100), counts)
    weighted = model.evaluate(X[400:], Y[400:], weights=counts)
    repeated = model.evaluate(X[rows], Y[rows])
    assert {"ECE", "micro-F1", "macro-F1"} <= weighted.keys()
    for found in (weighted, repeated):
        found.pop("rows")
    assert weighted == pytest.approx(repeated)


# scikit-learn


def test_sample_weight_sets_row_weights(problem_data):
    X, Y = problem_data
    v = some_weights(300)
    v[::7] = 0
    expected = fit(X, Y, EXACT, weights=v)
    for y in (Y, Y.toarray()):
        clf = DiSMECClassifier(precision="float32", delta=0).fit(X, y, sample_weight=v)
        assert weights_of(clf.model_) == weights_of(expected)


def test_repeated_rows_score_as_weights_do_to_single_precision():
    rng = np.random.RandomState(42)
    X, y = rng.rand(15, 30), rng.randint(0, 3, size=15)
    counts = rng.randint(0, 5, size=15)
    clf = DiSMECClassifier(precision="float32", delta=0, tol=1e-6, n_jobs=1)
    weighted = clf.fit(X, y, sample_weight=counts).decision_function(X)
    repeated = clf.fit(X.repeat(counts, axis=0), y.repeat(counts)).decision_function(X)
    np.testing.assert_allclose(weighted, repeated, rtol=1e-4, atol=1e-5)


def test_a_class_of_weight_0_is_dropped():
    X = np.eye(6)
    clf = DiSMECClassifier().fit(X, list("aabbcc"), sample_weight=[1, 1, 1, 1, 0, 0])
    assert clf.classes_.tolist() == ["a", "b"]


def test_texts_take_sample_weight():
    weights = [1, 2, 0.5, 1, 1, 0]
    whole = DiSMECTextClassifier().fit(TEXTS, NAMES, sample_weight=weights)
    few = DiSMECTextClassifier().fit(TEXTS[:5], NAMES[:5], sample_weight=weights[:5])
    assert whole.classes_.tolist() == ["bread", "egg", "pan"]
    assert weights_of(whole.model_) == weights_of(few.model_)
    assert whole.score(TEXTS, NAMES, sample_weight=[1, 0, 0, 0, 0, 0]) == 1.0
    with pytest.raises(DataError, match="sample_weight: 2 numbers for 6 rows"):
        DiSMECTextClassifier().fit(TEXTS, NAMES, sample_weight=[1, 2])


def test_searches_route_sample_weight():
    import sklearn

    X, Y = random_problem(rows=120, labels=6)
    y = np.asarray(Y.argmax(axis=1)).ravel()
    v = some_weights(120)
    with sklearn.config_context(enable_metadata_routing=True):
        clf = DiSMECClassifier().set_fit_request(sample_weight=True)
        clf = clf.set_score_request(sample_weight=True)
        search = GridSearchCV(clf, {"C": [0.5, 2.0]}, cv=3).fit(X, y, sample_weight=v)
    best = DiSMECClassifier(C=search.best_params_["C"]).fit(X, y, sample_weight=v)
    assert weights_of(search.best_estimator_.model_) == weights_of(best.model_)


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("kind", ["balanced", "dict"])
def test_class_weight_equals_that_of_liblinear(n_classes, kind):
    rng = np.random.default_rng(n_classes)
    y = np.minimum(rng.geometric(0.5, 200), n_classes) * 10
    X = rng.standard_normal((200, 8)) + 0.05 * y[:, None]
    class_weight = kind if kind == "balanced" else {10: 3.0, 20: 0.2}
    params = {"normalize": False, "delta": 0, "precision": "float32", "tol": 1e-5}
    ours = DiSMECClassifier(class_weight=class_weight, **params).fit(X, y)
    theirs = LinearSVC(dual=False, class_weight=class_weight, tol=1e-8).fit(X, y)
    np.testing.assert_allclose(ours.coef_.toarray(), theirs.coef_, atol=2e-4)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=2e-4)


@pytest.mark.parametrize("class_weight", ["balanced", {2: 5.0}])
def test_class_weight_of_columns_equals_training_each_alone(class_weight):
    X, Y = random_problem(rows=200, labels=5)
    params = {"normalize": False, "delta": 0, "precision": "float32", "tol": 1e-4}
    ours = DiSMECClassifier(class_weight=class_weight, **params).fit(X, Y)
    for label in range(5):
        y = Y[:, [label]].toarray().ravel()
        own = class_weight if class_weight == "balanced" else {1: class_weight.get(label, 1.0)}
        theirs = LinearSVC(dual=False, class_weight=own, tol=1e-8).fit(X, y)
        np.testing.assert_allclose(ours.coef_[[label]].toarray(), theirs.coef_, atol=2e-3)


def test_labels_of_the_same_rows_and_other_class_weights_have_other_weights():
    X, Y = random_problem(rows=100, labels=4)
    twice = sp.csr_array(sp.hstack([Y[:, [2]], Y[:, [2]], Y[:, [2]]]))
    clf = DiSMECClassifier(class_weight={1: 7.0}, precision="float32").fit(X, twice)
    coefficients = clf.coef_.toarray()
    np.testing.assert_array_equal(coefficients[0], coefficients[2])
    assert np.abs(coefficients[0] - coefficients[1]).max() > 0.1


@pytest.mark.cluster
def test_class_weight_on_a_cluster_gives_the_same_bytes(tmp_path, dask_cluster):
    X, Y = random_problem(rows=100, labels=4)
    Y = sp.csr_array(sp.hstack([Y, Y[:, [2]]]))
    here = DiSMECClassifier(class_weight={2: 7.0}).fit(X, Y, sample_weight=some_weights(100))
    there = DiSMECClassifier(class_weight={2: 7.0}, cluster=str(dask_cluster))
    there.fit(X, Y, sample_weight=some_weights(100))
    assert weights_of(here.model_) == weights_of(there.model_)


def test_balanced_counts_rows_by_weight():
    X, Y = random_problem(rows=200, labels=5)
    y = np.asarray(Y.argmax(axis=1)).ravel()
    counts = np.random.default_rng(0).integers(1, 4, 200)
    rows = np.repeat(np.arange(200), counts)
    clf = DiSMECClassifier(class_weight="balanced", tol=1e-5, delta=0, precision="float32")
    for target in (y, Y):
        weighted = clf.fit(X, target, sample_weight=counts).coef_.toarray()
        repeated = clf.fit(X[rows], target[rows]).coef_.toarray()
        np.testing.assert_allclose(weighted, repeated, atol=1e-3)


def test_class_weight_of_texts_is_by_label(tmp_path):
    clf = DiSMECTextClassifier(class_weight={"pan": 50.0, "egg": 0.01})
    plain = DiSMECTextClassifier().fit(TEXTS, NAMES)
    clf.fit(TEXTS, NAMES)
    pan, egg = (clf.classes_.tolist().index(name) for name in ("pan", "egg"))
    scores, before = clf.decision_function(["an egg"])[0], plain.decision_function(["an egg"])[0]
    assert scores[pan] > before[pan]
    assert scores[egg] < before[egg]
    clf.save(tmp_path / "model")
    assert DiSMECTextClassifier.load(tmp_path / "model").class_weight == clf.class_weight


@pytest.mark.parametrize(
    ("class_weight", "message"),
    [
        ("even", "class_weight is 'even'; expected None, 'balanced'"),
        ({9: 1.0}, "class_weight has 9, which is not one of the classes"),
        ({1: -1.0}, "class_weight of 1 is -1.0; expected a number from"),
        ({1: "x"}, "class_weight of 1 is 'x'"),
    ],
)
def test_bad_class_weights_are_refused(problem_data, class_weight, message):
    with pytest.raises(DataError, match=message):
        DiSMECClassifier(class_weight=class_weight).fit(np.eye(4), [0, 1, 0, 1])


def test_saved_estimators_keep_class_weight(tmp_path):
    for number, class_weight in enumerate((None, "balanced", {np.int64(1): 2.0})):
        clf = DiSMECClassifier(class_weight=class_weight).fit(np.eye(4), [0, 1, 0, 1])
        clf.save(tmp_path / str(number))
        assert DiSMECClassifier.load(tmp_path / str(number)).class_weight == class_weight


# The command line


def run(*args, code=0):
    result = CliRunner().invoke(main, [*map(str, args)])
    assert result.exit_code == code, result.output
    return result


def test_weights_come_from_a_file(tmp_path, problem_data):
    X, Y = problem_data
    v = some_weights(300)
    data = tmp_path / "data.xmc"
    save_data(Dataset(X, Y), data)
    (tmp_path / "w.txt").write_text("\n".join(map(repr, v.tolist())) + "\n")
    np.save(tmp_path / "w.npy", v)
    train(X, Y, tmp_path / "expected", weights=v)
    for name in ("w.txt", "w.npy"):
        run("train", data, "-o", tmp_path / f"m{name}", "--weights", tmp_path / name, "--quiet")
        assert weight_files(tmp_path / f"m{name}") == weight_files(tmp_path / "expected")
    out = tmp_path / "tuned"
    chosen = ("--C", "auto", "--quiet")
    run("train", data, "-o", out, *chosen, "--weights", tmp_path / "w.npy")
    tuned = tune(X, Y, tmp_path / "tuned here", weights=v)
    assert weights_of(open_model(out)) == weights_of(tuned.model)
    (tmp_path / "labels.txt").write_text("30\n31\n")
    model = tmp_path / "mw.txt"
    common = ("--weights", tmp_path / "w.txt", "--quiet")
    run("update", model, data, "--labels", tmp_path / "labels.txt", *common)
    assert weights_of(open_model(model)) == weights_of(open_model(tmp_path / "expected"))
    answer = json.loads(
        run("evaluate", model, data, "--weights", tmp_path / "w.txt", "--json").stdout
    )
    expected = open_model(model).evaluate(X, Y, weights=v)
    assert answer["P@3"] == round(expected["P@3"], 2)


def test_weights_of_texts_come_from_a_column(tmp_path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(text_lines(TEXTS, NAMES, [1, 2, 0.5, 1, 1, 0])))
    model = tmp_path / "model"
    run("train", texts, "-o", model, "--weight-column", "w", "--quiet")
    expected = train_text(texts, tmp_path / "expected", fmt=TextFormat(weight_column="w"))
    assert weights_of(open_model(model)) == weights_of(expected)
    assert open_model(model).manifest.columns == {"weight_column": "w"}
    plain = tmp_path / "plain.jsonl"
    plain.write_text('{"text": "an egg", "labels": ["egg"]}\n')
    run("predict", model, plain)
    run("evaluate", model, plain)
    weighted = run("evaluate", model, texts, "--weight-column", "w", "--json").stdout
    assert json.loads(weighted)["rows"] == 5
    (tmp_path / "labels.txt").write_text("egg\n")
    run("update", model, texts, "--labels", tmp_path / "labels.txt", "--quiet")
    assert weights_of(open_model(model)) == weights_of(expected)
    refused = run("update", model, plain, "--labels", tmp_path / "labels.txt", code=2)
    assert "no key 'w'" in refused.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1\ntwo\n", "w.txt:2: 'two' is not a number"),
        ("1\n-3\n", "w.txt:2: the weight is -3"),
        ("1\n\n2\n", "w.txt:2: '' is not a number"),
        ("1\n2\n", "weights: 2 numbers for 300 rows"),
    ],
)
def test_a_bad_file_of_weights_is_refused_in_one_line(tmp_path, problem_data, content, message):
    save_data(Dataset(*problem_data), tmp_path / "data.xmc")
    (tmp_path / "w.txt").write_text(content)
    command = ("train", tmp_path / "data.xmc", "-o", tmp_path / "m", "--quiet")
    result = run(*command, "--weights", tmp_path / "w.txt", code=2)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_weights_that_contradict_each_other_are_refused(tmp_path, problem_data):
    save_data(Dataset(*problem_data), tmp_path / "data.xmc")
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(text_lines(TEXTS, NAMES, [1] * 6)))
    np.save(tmp_path / "w.npy", np.ones(300))
    weights = ("--weights", tmp_path / "w.npy")
    both = run("train", texts, "-o", tmp_path / "m", *weights, "--weight-column", "w", code=2)
    assert "--weights cannot be combined with --weight-column" in both.stderr
    numeric = run("train", tmp_path / "data.xmc", "-o", "m", "--weight-column", "w", code=2)
    assert "--weight-column is for texts" in numeric.stderr
    under_l1 = run(
        "train", tmp_path / "data.xmc", "-o", tmp_path / "m", "--penalty", "l1", *weights, code=2
    )
    assert "not supported with penalty='l1'" in under_l1.stderr


def test_a_request_is_checked_before_anything_is_written(tmp_path, problem_data):
    from dismec.training.job import Job

    X, Y = problem_data
    job = Job.prepare(TrainingData(X, Y, np.r_[0.0, np.ones(299)]), TrainOptions(EXACT))
    assert job.data.weights is None
    assert job.data.X.shape[0] == 299


# The range of single precision


@pytest.mark.parametrize(
    "kind", ["dense", "sparse", "many", "positives", "values", "weights", "pairs"]
)
def test_a_C_that_cannot_be_solved_is_refused_with_the_largest_that_can(kind):
    X, Y = random_problem(rows=3000 if kind == "many" else 300)
    v, parts, transform, costs = None, X, {}, Weighting()
    if kind == "dense":
        parts = [np.random.default_rng(0).standard_normal((300, 30)).astype(np.float32)]
    if kind == "positives":
        costs = Weighting(positive_weight=1e6)
    if kind == "values":
        parts, transform = X * np.float32(1e6), {"normalize": False}
    if kind == "weights":
        v = some_weights(300) * 1e30
    pairs = Y.astype(np.float32) * np.float32(1e12) if kind == "pairs" else None
    transform = Transform.fit(parts, **transform)
    problem = Problem(parts, Y, transform, v, pairs=pairs)
    rows = transform.apply(parts).astype(np.float64)

    def solve(C):
        params = SolverParams(C, 0.0, weighting=costs)
        return problem.solve([np.argmax(problem.label_counts)], params)

    with pytest.raises(DataError, match=r"single precision can solve C up to \S+; scale") as caught:
        solve(1e30)
    assert "\n" not in str(caught.value)
    largest = float(re.search(r"up to (\S+);", str(caught.value))[1])
    found = [solve(C) for C in (largest, largest / 1e4)]
    s = np.where(Y[:, [int(found[0].labels[0])]].toarray().ravel(), 1.0, -1.0)
    c = np.where(s > 0, costs.positive_weight, 1.0) * (1.0 if v is None else v)
    c *= np.where(s > 0, 1e12, 1.0) if kind == "pairs" else 1.0
    reached, other = (
        objective(rows, s, one.weights.toarray().ravel().astype(np.float64), largest, c)
        for one in found
    )
    assert reached <= 2 * other < 1.9 * objective(rows, s, np.zeros(rows.shape[1]), largest, c)
    with pytest.raises(DataError, match="C is"):
        solve(2 * largest)


@pytest.mark.parametrize(("C", "weights"), [(1e18, None), (1.0, np.full(300, 1e30))])
def test_a_C_that_cannot_be_solved_is_refused_before_a_directory_is_made(
    tmp_path, problem_data, C, weights
):
    with pytest.raises(DataError, match="single precision can solve C up to"):
        train(*problem_data, tmp_path / "model", TrainingParams(C=C), weights=weights)
    assert not (tmp_path / "model").exists()
