"""Costs by propensity in every way of training, and rankings by propensity."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import naive
from conftest import random_problem, train_unfinished, weight_files
from dismec import (
    DataError,
    DiSMECClassifier,
    ModelError,
    TrainingParams,
    add_labels,
    open_model,
    train,
)
from dismec.features.transform import Transform
from dismec.measure import metrics
from dismec.solve.costs import Costs, Weighting
from dismec.solve.problem import Problem, SolverParams
from dismec.training.train import fit

pytestmark = pytest.mark.native(needs="sklearn")

PROPENSITY = TrainingParams(weighting="propensity", precision="float32", delta=0)


@st.composite
def weighted_problems(draw):
    """Draw rows with a few features, one label, costs and C."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, d = draw(st.integers(2, 60)), draw(st.integers(1, 12))
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.5)
    Y = rng.random((n, 1)) < draw(st.floats(0.05, 0.95))
    Y[0], Y[1] = True, False
    a, b, C = (10.0 ** draw(st.floats(-1.5, 1.5)) for _ in range(3))
    return sp.csr_array(X, dtype=np.float32), sp.csr_array(Y, dtype=np.uint8), a, b, C


@settings(max_examples=60, deadline=None)
@given(weighted_problems())
def test_weighted_minimum_equals_the_reference(problem):
    X, Y, a, b, C = problem
    transform = Transform.fit(X)
    costs = Costs(np.array([a]), np.array([b]))
    solution = Problem(X, Y, transform).solve([0], SolverParams(C, 0.0), costs=costs)
    rows, s = transform.apply(X).astype(np.float64), np.where(Y.toarray().ravel(), 1.0, -1.0)
    w = solution.weights.toarray().ravel().astype(np.float64)
    found = naive.objective(rows, s, w, C, a, b)
    assert solution.objective[0] == pytest.approx(found, rel=1e-4)
    best = naive.objective(rows, s, naive.minimum(rows, s, C, a, b), C, a, b)
    assert found <= best * (1 + 1e-3)
    norm = np.linalg.norm(naive.gradient(rows, s, w, C, a, b))
    allowed = naive.gradient_allowed(rows, s, C, 0.01, a, b)
    assert norm <= max(allowed, 1e-4 * C * max(a, b)) * (1 + 1e-3)


@settings(max_examples=60, deadline=None)
@given(weighted_problems())
def test_gradient_of_the_weighted_reference_equals_finite_differences(problem):
    X, Y, a, b, C = problem
    X, s = X.toarray().astype(np.float64), np.where(Y.toarray().ravel(), 1.0, -1.0)
    rng = np.random.default_rng(0)
    w, direction = rng.standard_normal((2, X.shape[1]))
    h = 1e-6
    rise = naive.objective(X, s, w + h * direction, C, a, b)
    rise -= naive.objective(X, s, w - h * direction, C, a, b)
    slope = direction @ naive.gradient(X, s, w, C, a, b)
    assert rise / (2 * h) == pytest.approx(slope, rel=1e-4, abs=1e-3 * max(1, C * max(a, b)))


def test_costs_by_propensity_are_the_published_weights():
    counts = np.array([1, 25])
    positive, negative = Weighting(kind="propensity").costs(counts, 50)
    p = np.array([0.25562221863533147, 0.5571545100089221])
    np.testing.assert_allclose(positive, 2 / p - 1)
    np.testing.assert_array_equal(negative, 1)
    heavier = Weighting(3.0, "propensity").costs(counts, 50)
    np.testing.assert_allclose(heavier.positive, 3 * positive)


def test_rarer_labels_cost_more():
    positive, _ = Weighting(kind="propensity").costs(np.arange(0, 100), 1000)
    assert (np.diff(positive) < 0).all()


def test_a_positive_weight_of_one_changes_no_byte(tmp_path, problem_data):
    train(*problem_data, tmp_path / "plain")
    train(*problem_data, tmp_path / "one", TrainingParams(positive_weight=1.0, propensity_a=0.5))
    assert weight_files(tmp_path / "plain") == weight_files(tmp_path / "one")


def test_training_solves_with_the_costs_of_each_labels_own_count(problem_data):
    X, Y = problem_data
    model = fit(X, Y, PROPENSITY)
    counts = np.diff(sp.csc_array(Y).indptr)
    costs = Weighting(kind="propensity").costs(counts, X.shape[0])
    transform = Transform.fit(X)
    solution = Problem(X, Y, transform).solve(
        range(Y.shape[1]), SolverParams(delta=0.0), costs=costs
    )
    assert (model.weights != solution.weights).nnz == 0


def test_positive_weight_is_a_cost_of_all_labels(problem_data):
    X, Y = problem_data
    model = fit(X, Y, TrainingParams(positive_weight=5, precision="float32", delta=0))
    costs = Costs(np.full(Y.shape[1], 5.0), np.ones(Y.shape[1]))
    transform = Transform.fit(X)
    solution = Problem(X, Y, transform).solve(
        range(Y.shape[1]), SolverParams(delta=0.0), costs=costs
    )
    assert (model.weights != solution.weights).nnz == 0


def test_manifest_says_how_rows_were_weighted_and_resuming_otherwise_is_refused(
    tmp_path, problem_data
):
    params = TrainingParams(weighting="propensity", positive_weight=2.0, propensity_b=2.6)
    train_unfinished(*problem_data, tmp_path / "model", params)
    with pytest.raises(ModelError, match="weighting propensity instead of None"):
        train(*problem_data, tmp_path / "model")
    other = TrainingParams(weighting="propensity", positive_weight=3.0, propensity_b=2.6)
    with pytest.raises(ModelError, match=r"positive_weight 2\.0 instead of 3\.0"):
        train(*problem_data, tmp_path / "model", other)
    model = train(*problem_data, tmp_path / "model", params)
    train(*problem_data, tmp_path / "at once", params)
    assert weight_files(tmp_path / "model") == weight_files(tmp_path / "at once")
    assert model.params["weighting"] == "propensity"
    assert model.params["propensity_b"] == 2.6


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"positive_weight": 0}, "positive_weight is 0"),
        ({"positive_weight": float("nan")}, "positive_weight is nan"),
        ({"positive_weight": "2"}, "expected a number"),
        ({"weighting": "inverse"}, "weighting is 'inverse'; expected None or propensity"),
        ({"propensity_a": 30}, "propensity constants"),
        ({"propensity_b": -1}, "propensity constants"),
    ],
)
def test_impossible_weightings_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        TrainingParams(**bad)


def test_labels_added_later_get_the_weights_of_training_all_together(tmp_path, problem_data):
    X, Y = problem_data
    whole = train(X, Y, tmp_path / "whole", PROPENSITY)
    train(X, Y[:, :30], tmp_path / "grown", PROPENSITY)
    grown = add_labels(tmp_path / "grown", X, Y)
    assert (whole.weights != grown.weights).nnz == 0


@pytest.mark.cluster
def test_cluster_gives_the_same_bytes(tmp_path, problem_data, dask_cluster):
    train(*problem_data, tmp_path / "here", PROPENSITY)
    train(*problem_data, tmp_path / "there", PROPENSITY, cluster=str(dask_cluster))
    assert weight_files(tmp_path / "here") == weight_files(tmp_path / "there")


def test_estimator_passes_weightings_on_and_loads_them(tmp_path, problem_data):
    X, Y = problem_data
    params = {"positive_weight": 2.0, "weighting": "propensity", "propensity_a": 0.5}
    clf = DiSMECClassifier(delta=0, precision="float32", **params).fit(X, Y)
    expected = fit(X, Y, TrainingParams(delta=0, precision="float32", **params))
    assert (clf.model_.weights != expected.weights).nnz == 0
    clf.save(tmp_path / "model")
    assert DiSMECClassifier.load(tmp_path / "model").get_params() == clf.get_params()


def test_weighting_finds_more_of_the_rare_labels():
    X, Y = random_problem(rows=1500, features=200, labels=120, seed=5)
    plain, weighted = (
        fit(X[:1000], Y[:1000], params).evaluate(X[1000:], Y[1000:])
        for params in (TrainingParams(), TrainingParams(weighting="propensity"))
    )
    assert weighted["PSP@5"] > plain["PSP@5"]


@pytest.fixture(scope="module")
def calibrated():
    X, Y = random_problem(rows=900, features=150, labels=120, seed=5)
    return fit(X[:600], Y[:600], TrainingParams(calibrate=True)), X[600:], Y[600:]


def log_gains(model, X, alpha, A=0.55, B=1.5):
    """Return log(P/p^alpha) of all labels, dense."""
    every = np.broadcast_to(np.arange(model.n_labels), (X.shape[0], model.n_labels))
    P = model.calibration.probabilities(every, model.decision_function(X)).astype(np.float64)
    values = np.log(P) - alpha * np.log(model.propensities(A, B))
    values[:, model.label_counts == 0] = -np.inf
    return values


@settings(max_examples=30, deadline=None)
@given(alpha=st.decimals(0, 3, places=3), k=st.integers(1, 130))
def test_gains_are_those_of_brute_force(calibrated, alpha, k):
    model, X, _ = calibrated
    X = X[:40]
    labels, gains = model.predict_topk(X, k, aim=f"psp:{alpha}")
    values = log_gains(model, X, float(alpha))
    best = -np.sort(-values, axis=1)[:, :k]
    there = labels[:, : best.shape[1]] >= 0
    np.testing.assert_array_equal(there, np.isfinite(best))
    of_found = np.take_along_axis(values, np.maximum(labels[:, : best.shape[1]], 0), axis=1)
    np.testing.assert_allclose(of_found[there], best[there], atol=2e-4)
    np.testing.assert_allclose(gains[labels >= 0], np.exp(best[there]), rtol=1e-3)
    for row in labels:
        assert len(np.unique(row[row >= 0])) == (row >= 0).sum()


def test_few_labels_and_none_are_ranked(calibrated):
    model, X, _ = calibrated
    labels, gains = model.predict_topk(X[:3], 500, aim="psp")
    trained = np.count_nonzero(model.label_counts)
    assert (np.sort(labels[:, :trained]) == np.flatnonzero(model.label_counts)).all()
    assert (labels[:, trained:] == -1).all()
    assert (gains[:, trained:] == 0).all()
    assert model.predict_topk(X[:0], 3, aim="psp")[0].shape == (0, 3)


def test_alpha_0_ranks_by_probability(calibrated):
    model, X, _ = calibrated
    labels, p = model.predict_topk(X, 5, rank="probability")
    found, gains = model.predict_topk(X, 5, aim="psp:0")
    np.testing.assert_allclose(gains, p, rtol=1e-4)
    assert (labels == found).mean() > 0.99  # except for ties


def test_without_calibration_scores_are_raised_by_the_documented_amount(problem_data):
    X, model = problem_data[0], fit(*problem_data)
    for alpha in (0.0, 0.3):
        labels, scores = model.predict_topk(X, 7, aim=f"psp:{alpha}")
        raised = model.decision_function(X) - alpha * np.log(model.propensities())
        raised[:, model.label_counts == 0] = -np.inf
        best = -np.sort(-raised, axis=1)[:, :7]
        np.testing.assert_allclose(scores, best, atol=1e-5)
        np.testing.assert_allclose(np.take_along_axis(raised, labels, axis=1), best, atol=1e-5)


def test_an_aim_is_evaluated_by_its_own_ranking(calibrated):
    model, X, Y = calibrated
    top, _ = model.predict_topk(X, 5, aim="psp")
    found = model.evaluate(X, Y, aim="psp")
    assert found == pytest.approx(metrics.evaluate(Y, top, (1, 3, 5), model.propensities()))
    assert found["PSP@1"] > model.evaluate(X, Y)["PSP@1"]


def test_propensities_have_the_constants_of_training(problem_data):
    X, Y = problem_data
    model = fit(X, Y, TrainingParams(propensity_a=0.5, propensity_b=0.4, calibrate=True))
    np.testing.assert_allclose(model.propensities(), model.propensities(0.5, 0.4))
    assert (model.propensities() != model.propensities(0.55, 1.5)).any()
    expected = log_gains(model, X[:20], 1.0, 0.5, 0.4).max(axis=1)
    found = np.log(model.predict_topk(X[:20], 1, aim="psp")[1][:, 0])
    np.testing.assert_allclose(found, expected, atol=2e-4)


def test_impossible_aims_are_refused(calibrated, problem_data):
    model, X, _ = calibrated
    for aim in ("psp:-1", "psp:nan", "psp:", "psp:101", "f1", "PSP"):
        with pytest.raises(DataError, match="aim is"):
            model.predict_topk(X, aim=aim)
    with pytest.raises(DataError, match="rank cannot be combined"):
        model.predict_topk(X, rank="score", aim="psp")
    with pytest.raises(DataError, match="propensity constants"):
        model.propensities(B=-1)
    with pytest.raises(DataError, match="k is 0"):
        model.predict_topk(X, 0, aim="psp")
    for aim in ("macro-f1", "coverage"):
        with pytest.raises(ModelError, match="gives no probabilities"):
            fit(*problem_data).predict_topk(X, aim=aim)


def test_stored_models_rank_like_models_in_memory(tmp_path, calibrated):
    model, X, _ = calibrated
    model.save(tmp_path / "model")
    for aim in ("psp", "psp:0.5", "macro-f1"):
        expected = model.predict_topk(X, 5, aim=aim)
        found = open_model(tmp_path / "model").predict_topk(X, 5, aim=aim)
        np.testing.assert_array_equal(found[0], expected[0])
