from __future__ import annotations

import pickle
from dataclasses import replace
from functools import cache
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st

import naive
from conftest import random_problem, with_calibration
from dismec import DataError, ModelError
from dismec.cpu import kernels
from dismec.features.transform import Transform
from dismec.measure.metrics import Truth, f1_scores
from dismec.model.calibration import Calibration, logistic
from dismec.model.manifest import PRECISIONS
from dismec.model.model import Model
from dismec.model.scoring import Predictor
from dismec.model.shards import first_labels, pack
from dismec.model.sidecar_files import LabelTable, Parts
from dismec.training.calibrate import fit_calibration
from dismec.training.params import TrainingParams
from dismec.training.train import fit as train
from test_predictor import by_bounds, random_csr

pytestmark = pytest.mark.native

STRAIGHT = [0, 1, 0, 0, 0]
BENT = [0.2, 1.5, -0.5, -0.3, 0.1]


def random_calibration(rng, n_labels, bend=BENT):
    return Calibration(
        rng.uniform(0.3, 8, n_labels).astype(np.float32),
        rng.normal(0, 2, n_labels).astype(np.float32),
        np.array([1, 3, -0.2, -0.1, *bend, 0.25]),
        0.3,
        rng.uniform(0.05, 0.9, n_labels).astype(np.float32),
    )


@cache
def some_manifest():
    return train(*random_problem(rows=20)).manifest


def model_of(shards, transform, counts, calibration=None):
    head = replace(some_manifest(), n_labels=len(counts), n_features=transform.n_features)
    table = LabelTable(np.asarray(counts, np.int64), None, None)
    return Model.from_shards(head, transform, Parts(table, calibration=calibration), shards)


def random_model(rng, n_labels, n_features, transform=None, precision="float32", values=None):
    """Return a model with weights of both signs, some shared by labels, and a calibration."""
    transform = transform or Transform(n_features)
    W = random_csr(rng, n_labels, n_features + 1, 0.6, values)
    W = W[np.sort(rng.integers(0, n_labels, n_labels))]
    shards = list(pack([(np.arange(n_labels), W)], n_features, precision))
    return model_of(shards, transform, np.ones(n_labels), random_calibration(rng, n_labels))


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_labels=st.integers(1, 70),
    n_features=st.integers(0, 12),
    k=st.integers(1, 80),
    bounded_rows=st.sampled_from([0, 1 << 16]),
    ties=st.booleans(),
    bias=st.sampled_from([0.0, 1.0, -0.5]),
    precision=st.sampled_from(list(PRECISIONS)),
)
def test_most_probable_labels_equal_brute_force(
    seed, n_labels, n_features, k, bounded_rows, ties, bias, precision
):
    rng = np.random.default_rng(seed)
    values = [-1, 1, 2] if ties else None
    with mock.patch.object(kernels, "bounded_rows", bounded_rows):
        model = random_model(
            rng, n_labels, n_features, Transform(n_features, True, bias), precision, values
        )
    X = random_csr(rng, 9, n_features, 0.5, values)
    calibration = model.calibration
    all_labels = np.broadcast_to(np.arange(n_labels), (9, n_labels))
    expected = calibration.probabilities(all_labels, model.decision_function(X))
    with by_bounds():
        labels, p = model.predict_topk(X, k, rank="probability")
    filled = min(k, n_labels)
    np.testing.assert_allclose(p[:, :filled], -np.sort(-expected)[:, :filled], rtol=1e-5)
    own = np.take_along_axis(expected, labels[:, :filled].astype(np.int64), 1)
    np.testing.assert_allclose(p[:, :filled], own, rtol=1e-5)
    assert (labels[:, filled:] == -1).all()
    assert (p[:, filled:] == 0).all()
    # Which labels are left out must not depend on rounding: those of the view are exact.
    z = model._rankings.by_logit.decision_function(X)
    np.testing.assert_array_equal(labels, naive.topk(z, k)[0])


def test_bounds_are_exact_for_scales_other_than_powers_of_two():
    rng = np.random.default_rng(1)
    n_labels, n_features = 3000, 40
    W = -abs(random_csr(rng, n_labels, n_features + 1, 0.2))
    W.data[rng.random(W.nnz) < 0.1] *= -1
    with mock.patch.object(kernels, "bounded_rows", 0):
        shards = list(pack([(np.arange(n_labels), W)], n_features, "float16"))
    c = random_calibration(rng, n_labels)
    c = c.taken_from(first_labels(shards, n_labels))
    viewed = [
        shard.rescaled(c.slopes[shard.leaders], c.intercepts[shard.leaders], -0.7)
        for shard in shards
    ]
    predictor = Predictor(viewed, n_labels, Transform(n_features))
    X = abs(random_csr(rng, 12, n_features, 0.5))
    z = predictor.decision_function(X)
    plain = Predictor(shards, n_labels, Transform(n_features, bias=-0.7)).decision_function(X)
    np.testing.assert_allclose(z, c.slopes * plain + c.intercepts, rtol=1e-4, atol=1e-4)
    for k in (1, 5, 300, n_labels):
        with by_bounds():
            np.testing.assert_array_equal(predictor.topk(X, k)[0], naive.topk(z, k)[0])


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_labels=st.integers(0, 90),
    most=st.sampled_from([None, 1, 3, 20, 1000]),
    threshold=st.sampled_from([0.0, 0.02, 0.5, 0.97, 1.0, "micro-f1", "macro-f1", "score"]),
)
def test_assigned_labels_equal_brute_force(seed, n_labels, most, threshold):
    rng = np.random.default_rng(seed)
    model = random_model(rng, n_labels, 6) if n_labels else random_model(rng, 1, 6)
    n_labels = model.n_labels
    X = random_csr(rng, 7, 6, 0.5)
    c = model.calibration
    if threshold == "score":
        order = value = model.decision_function(X)
        result, least = model.assign(X, -0.2, probabilities=False, most=most), -0.2
    else:
        result = model.assign(X, threshold, most=most)
        if threshold == "macro-f1":
            order, least = model._rankings.by_margin.decision_function(X), 0
            value = c.of_logits(order + c.logits(c.macro_thresholds))
        else:
            order = value = c.of_logits(model._rankings.by_logit.decision_function(X))
            least = c.micro_threshold if threshold == "micro-f1" else threshold
    expected = order >= np.float32(least)
    if most is not None:
        top = naive.topk(order, most)[0]
        if threshold not in ("macro-f1", "score"):  # ties are in the order of z
            top = model.predict_topk(X, most, rank="probability")[0]
        allowed = np.zeros_like(expected)
        for row, labels in enumerate(top):
            allowed[row, labels[labels >= 0]] = True
        expected &= allowed
    assert result.shape == (7, n_labels)
    assert result.dtype == np.float32
    assert result.has_canonical_format
    rows = np.repeat(np.arange(7), np.diff(result.indptr))
    np.testing.assert_array_equal(np.argwhere(expected), np.stack([rows, result.indices], 1))
    np.testing.assert_allclose(result.data, value[expected], rtol=1e-6)


def test_probabilities_follow_the_formula_and_empty_places_have_none():
    c = random_calibration(np.random.default_rng(0), 3, STRAIGHT)
    scores = np.array([[0.5, -1.0, -np.inf]], np.float32)
    p = c.probabilities([[2, 0, -1]], scores)
    z = c.slopes[[2, 0]] * scores[0, :2] + c.intercepts[[2, 0]]
    np.testing.assert_allclose(p, [[*(1 / (1 + np.exp(-z))), 0]], rtol=1e-6)
    assert p.dtype == np.float32


def test_bend_is_undone_by_its_inverse_and_never_falls():
    c = random_calibration(np.random.default_rng(0), 1)
    z = np.linspace(-9, 9, 999)
    p = c.of_logits(z)
    assert (np.diff(p) > 0).all()
    np.testing.assert_allclose(c.logits(logistic(np.interp(z, *c._nodes))), z, atol=1e-6)
    assert 0 < c.of_logits(-50) < 1e-9
    assert 0.999999 < c.of_logits(1e30) < 1


def scoring(counts, columns=None):
    """Return a model in which label i has score ``x[columns[i]]``; untrained without rows."""
    counts = np.asarray(counts, np.int64)
    n_labels = len(counts)
    W = sp.eye_array(n_labels, n_labels + 1, dtype=np.float32, format="csr")
    W = W[np.arange(n_labels) if columns is None else columns]
    trained = np.flatnonzero(counts)
    shards = list(pack([(trained, W[trained])], n_labels, "float32")) if len(trained) else []
    return model_of(shards, Transform(n_labels, normalize=False, bias=0.0), counts)


def labels_by_curve(rng, scores, slopes, intercepts):
    return sp.csr_array((rng.random(scores.shape) < logistic(slopes * scores + intercepts)) * 1.0)


def test_the_curves_that_generated_the_labels_are_recovered():
    rng = np.random.default_rng(2)
    scores = rng.normal(-0.3, 0.6, (20_000, 6)).astype(np.float32)
    counts = np.array([3, 10, 30, 100, 300, 1000])
    slopes, intercepts = 2 + 0.4 * np.log1p(counts), -1 + 0.2 * np.log1p(counts)
    Y = labels_by_curve(rng, scores, slopes, intercepts)
    c = fit_calibration(scoring(counts), scores, Y)
    labels = np.broadcast_to(np.arange(6), scores.shape)
    truth = logistic(slopes * scores + intercepts)
    np.testing.assert_allclose(c.probabilities(labels, scores), truth, atol=0.03)
    for got, expected in zip(c.for_labels(counts)[:2], (slopes, intercepts), strict=True):
        np.testing.assert_allclose(got, expected, atol=0.4)


def test_zeros_and_repetitions_among_true_labels_do_not_count():
    rng = np.random.default_rng(12)
    scores = rng.normal(-0.3, 0.6, (200, 3)).astype(np.float32)
    Y = labels_by_curve(rng, scores, 3.0, 0.0)
    zeros = sp.csr_array(np.ones(Y.shape))
    zeros.data = Y.toarray().ravel()
    half = sp.csr_array((np.repeat(Y.data / 2, 2), np.repeat(Y.indices, 2), 2 * Y.indptr), Y.shape)
    expected = fit_calibration(scoring([9, 9, 9]), scores, Y).to_arrays()
    for same in (zeros, half):
        for name, array in fit_calibration(scoring([9, 9, 9]), scores, same).to_arrays().items():
            np.testing.assert_array_equal(array, expected[name])


def test_labels_that_share_a_classifier_share_their_curve():
    rng = np.random.default_rng(4)
    scores = rng.normal(-0.3, 0.6, (500, 4)).astype(np.float32)
    scores[:, 3] = scores[:, 1]
    Y = labels_by_curve(rng, scores, 3.0, np.array([0, 1, 0, -1.0]))
    c = fit_calibration(scoring(np.array([9, 30, 9, 3]), [0, 1, 2, 1]), scores, Y)
    for values in (c.slopes, c.intercepts, c.macro_thresholds):
        assert values[1] == values[3]
    assert c.slopes[1] != c.slopes[0]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_rows=st.integers(1, 5),
    n_labels=st.integers(1, 40),
    share=st.sampled_from([0, 0.2, 1]),
    size=st.sampled_from([0, 1e-3, 1, 1e4, 1e37]),
)
@example(seed=3148085, n_rows=5, n_labels=31, share=0.2, size=0.001)
def test_any_rows_give_a_sane_calibration(seed, n_rows, n_labels, share, size):
    rng = np.random.default_rng(seed)
    scores = (rng.normal(-0.5, 1, (n_rows, n_labels)) * size).astype(np.float32)
    Y = sp.csr_array((rng.random(scores.shape) < share) * 1.0)
    counts = rng.choice([0, 1, 5, 10**6], n_labels)
    c = fit_calibration(scoring(counts), scores, Y)  # raises if a value is out of range
    labels = np.broadcast_to(np.arange(n_labels), scores.shape)
    p = c.probabilities(labels, scores)
    assert ((p >= 0) & (p <= 1)).all()
    rising = c.of_logits(np.linspace(-5, 5, 9))
    most = np.nextafter(np.float32(1), np.float32(0))  # learned probabilities are never 1
    assert (np.diff(rising)[rising[1:] < most] > 0).all()
    assert (np.diff(rising) >= 0).all()


def test_thresholds_are_those_of_the_highest_f1():
    rng = np.random.default_rng(5)
    scores = rng.normal(-0.5, 0.6, (3000, 12)).astype(np.float32)
    Y = labels_by_curve(rng, scores, 4.0, np.linspace(-2, 0.5, 12))
    c = fit_calibration(scoring(np.full(12, 40)), scores, Y)
    p = c.probabilities(np.broadcast_to(np.arange(12), scores.shape), scores)

    def f1(thresholds):
        return f1_scores(Y, sp.csr_array((p >= thresholds) * 1.0))

    best = max(f1(t)["micro-F1"] for t in np.linspace(0.01, 0.99, 99))
    assert f1(c.micro_threshold)["micro-F1"] >= best - 1e-3
    best = max(f1(t)["macro-F1"] for t in np.linspace(0.01, 0.99, 99))
    assert f1(c.macro_thresholds)["macro-F1"] >= best - 1e-3
    assert c.macro_thresholds.min() < c.macro_thresholds.max()


def test_thresholds_do_not_assign_every_candidate_label():
    rng = np.random.default_rng(11)
    scores = rng.normal(-0.5, 0.6, (300, 400)).astype(np.float32)
    Y = sp.csr_array((rng.random(scores.shape) < 0.01) * 1.0)  # scores carry no information
    model = scoring(np.full(400, 3))
    c = fit_calibration(model, scores, Y)
    for threshold in ("micro-f1", "macro-f1"):
        sizes = np.diff(with_calibration(model, c).assign(scores, threshold).indptr)
        assert np.count_nonzero(sizes >= 100) <= 9


def test_labels_added_later_use_the_shared_curve_for_their_count():
    c = random_calibration(np.random.default_rng(6), 3)
    more = c.extended([0, 7])
    assert more.n_labels == 5
    np.testing.assert_array_equal(more.slopes[:3], c.slopes)
    np.testing.assert_allclose(more.slopes[3:], 3 - 0.1 * np.log1p([0, 7]), rtol=1e-6)
    np.testing.assert_allclose(more.intercepts[3:], 1 - 0.2 * np.log1p([0, 7]), rtol=1e-6)
    np.testing.assert_allclose(more.macro_thresholds[3:], 0.25)


def test_curves_depend_on_the_final_counts():
    rng = np.random.default_rng(7)
    scores = rng.normal(-0.3, 0.6, (2000, 4)).astype(np.float32)
    Y = labels_by_curve(rng, scores, np.array([2, 4, 3, 6]), 0.0)
    trial = scoring([5, 50, 0, 500])
    counts = np.array([6, 55, 9, 550])
    c = fit_calibration(trial, scores, Y, counts=counts)
    without = fit_calibration(trial, scores, Y)
    np.testing.assert_array_equal(c.slopes, c.for_labels(counts)[0])
    np.testing.assert_array_equal(without.slopes, c.for_labels([5, 50, 0, 500])[0])


def test_arrays_round_trip_and_nonsense_is_refused():
    c = random_calibration(np.random.default_rng(8), 4)
    arrays = c.to_arrays()
    back = Calibration.from_arrays(arrays, 4)
    for name, array in back.to_arrays().items():
        np.testing.assert_array_equal(array, arrays[name])
    nan = np.array([1, np.nan, 1, 1], np.float32)
    fallen = c.shared.copy()
    fallen[5] = -1
    for change, n_labels, reason in [
        ({}, 5, "it has 4 labels, the model has 5"),
        ({"slopes": nan}, 4, "slopes contains a value that is not finite"),
        ({"slopes": np.zeros(4, np.float32)}, 4, "a slope is not positive"),
        ({"intercepts": np.zeros(3, np.float32)}, 4, r"intercepts has shape \(3,\)"),
        ({"intercepts": np.zeros(4)}, 4, "intercepts is float64, not float32"),
        ({"macro_thresholds": np.ones(4, np.float32)}, 4, "a threshold is not between 0 and 1"),
        ({"micro_threshold": np.array([np.nan])}, 4, "a threshold is not between 0 and 1"),
        ({"micro_threshold": np.array([0.5, 0.5])}, 4, "micro_threshold is not one number"),
        ({"shared": c.shared[:4]}, 4, r"shared has shape \(4,\)"),
        ({"shared": fallen}, 4, "the bend is not increasing"),
        ({"other": nan}, 4, "other is not expected"),
    ]:
        with pytest.raises(ModelError, match=reason):
            Calibration.from_arrays({**arrays, **change}, n_labels)
    del arrays["shared"]
    with pytest.raises(ModelError, match="shared is missing"):
        Calibration.from_arrays(arrays, 4)


def split_problem():
    X, Y = random_problem(rows=400, labels=12)
    trial = train(X[:300], Y[:300])
    return train(X, Y), fit_calibration(trial, X[300:], Y[300:]), X, Y


def test_calibration_adds_probabilities_and_changes_nothing_else():
    model, calibration, X, Y = split_problem()
    plain = model.evaluate(X, Y)
    assert "ECE" not in plain
    calibrated = with_calibration(model, calibration)
    told = calibrated.evaluate(X, Y, rank="score")
    assert {name: told[name] for name in plain} == plain
    by_default = calibrated.evaluate(X, Y)
    assert by_default.keys() == told.keys()
    assert by_default == calibrated.evaluate(X, Y, rank="probability")
    by_probability = Truth.align(Y, model.label_counts, model.manifest.n_rows).metrics(
        calibrated.predict_topk(X, rank="probability")[0], (1, 3, 5)
    )
    assert {name: by_default[name] for name in plain} == by_probability
    assert told.keys() - plain.keys() == {"ECE", "ECE uncalibrated", "micro-F1", "macro-F1"}
    assert all(0 <= told[name] <= 100 for name in told.keys() - {"rows"})
    wider = sp.csr_array((Y.data, Y.indices, Y.indptr), shape=(Y.shape[0], Y.shape[1] + 3))
    assert calibrated.evaluate(X, wider)["micro-F1"] == told["micro-F1"]
    again = pickle.loads(pickle.dumps(calibrated))
    assert again.evaluate(X, Y) == by_default
    for made in (calibrated.pruned(0.02), calibrated.pruned(precision="float8")):
        assert made.calibration is not None


def test_an_uncalibrated_model_has_scores_but_no_probabilities():
    model, _, X, _ = split_problem()
    probable = {"rank": "probability"}
    for ask in (lambda: model.predict_topk(X, **probable), lambda: model.assign(X, 0.5)):
        with pytest.raises(ModelError, match=r"no probabilities: .* \(calibrate=True\)"):
            ask()
    assert (model.assign(X, 0.0, probabilities=False).data >= 0).all()


def test_wrong_arguments_are_refused():
    model, calibration, X, Y = split_problem()
    calibrated = with_calibration(model, calibration)
    for arguments, reason in [
        ({"threshold": "f2"}, "threshold is 'f2'; expected a number or micro-f1 or macro-f1"),
        ({"threshold": "micro-f1", "probabilities": False}, "expected a number$"),
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"threshold": 0.5, "most": 0}, "most is 0; expected at least 1"),
    ]:
        with pytest.raises(DataError, match=reason):
            calibrated.assign(X, **arguments)
    with pytest.raises(DataError, match="no rows to calibrate on"):
        fit_calibration(model, X[:0], Y[:0])
    with pytest.raises(DataError, match="Y_true has 5"):
        fit_calibration(model, X, Y[:5])
    with pytest.raises(DataError, match="Y has 13 labels, the model has 12"):
        fit_calibration(model, X, np.ones((X.shape[0], 13)))


def test_weights_too_large_for_a_curve_are_reported():
    W = sp.csr_array(np.array([[3e38, 1]], np.float32))
    (shard,) = pack([(np.arange(1), W)], 1, "float16")
    with pytest.raises(ModelError, match="too large or too small"):
        shard.rescaled(np.full(1, 9, np.float32), np.zeros(1, np.float32), 1.0)


@pytest.mark.parametrize("bias", [1.0, 0.0])
def test_probabilities_of_a_trained_model_are_near_the_share_of_hits(bias):
    rng = np.random.default_rng(9)
    topics = rng.random((12, 40)) ** 8
    which = rng.random((1500, 12)) < 0.12
    X = sp.csr_array(rng.poisson((which @ topics + 0.02) * 2).astype(np.float32))
    Y = sp.csr_array(which * np.float32(1))
    params = TrainingParams(bias=bias)
    trial, final = train(X[:700], Y[:700], params), train(X[:1000], Y[:1000], params)
    model = with_calibration(final, fit_calibration(trial, X[700:1000], Y[700:1000]))
    told = model.evaluate(X[1000:], Y[1000:])
    assert told["ECE"] < 8
    assert told["ECE"] < told["ECE uncalibrated"]
