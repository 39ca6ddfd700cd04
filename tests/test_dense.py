"""Dense features alone or with sparse ones: solved and scored exactly, checked on input."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import dismec
import naive
from conftest import dense_problem, tune, tune_text
from dismec import DataError, TrainingParams, open_model
from dismec.data.mixed import MixedRows, check_features, is_mostly_full, load_dense
from dismec.features.transform import Transform
from dismec.solve.problem import Problem, SolverParams
from dismec.training.train import fit
from test_solver import liblinear_objective, signs

pytestmark = pytest.mark.native(needs="liblinear")


def solved(parts, Y, params=None, weights=None, labels=None, **transform):
    transform = Transform.fit(parts, **transform)
    problem = Problem(parts, Y, transform, weights)
    labels = range(Y.shape[1]) if labels is None else labels
    return problem.solve(labels, params or SolverParams(delta=0.0)), transform.apply(parts)


@pytest.mark.parametrize("width", [1, 7, 16, 20, 100])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_dense_labels_are_solved_to_the_optimum_and_no_worse_than_by_liblinear(width, bias):
    E, Y = dense_problem(width=width)
    solution, Xt = solved([E], Y, bias=bias)
    assert (solution.stop_ratio <= 1).all()
    Xt = Xt.toarray().astype(np.float64)
    for label, w in enumerate(solution.weights.toarray().astype(np.float64)):
        s = signs(Y, label)
        reached = naive.objective(Xt, s, w, 1.0)
        assert reached == pytest.approx(solution.objective[label], rel=1e-5)
        assert reached <= 1.001 * liblinear_objective(Xt, s, 1.0)
        best = naive.objective(Xt, s, naive.minimum(Xt, s, 1.0), 1.0)
        assert reached <= 1.001 * best


@pytest.mark.parametrize("C", [0.1, 30.0])
@pytest.mark.parametrize("tfidf", [False, True])
def test_both_kinds_of_features_are_solved_to_the_optimum(C, tfidf):
    X, E, Y = dense_problem(rows=500, features=60)
    solution, Xt = solved([X, E], Y, SolverParams(C=C, delta=0.0), tfidf=tfidf, dense_scale=0.7)
    Xt = Xt.toarray().astype(np.float64)
    for label, w in enumerate(solution.weights.toarray().astype(np.float64)):
        s = signs(Y, label)
        best = naive.objective(Xt, s, naive.minimum(Xt, s, C), C)
        assert naive.objective(Xt, s, w, C) <= 1.001 * best


def test_rows_that_are_too_long_to_copy_are_read_in_place_beside_dense_ones():
    rng = np.random.default_rng(0)
    _, E, Y = dense_problem(rows=120, features=5, labels=4)
    X = sp.random_array(
        (120, 12_000), density=0.9, random_state=rng, dtype=np.float32, format="csr"
    )
    assert np.diff(X.indptr).max() > 8192
    solution, Xt = solved([X, E], Y, tfidf=True)
    for label, w in enumerate(solution.weights.toarray().astype(np.float64)):
        s = signs(Y, label)
        assert naive.objective(Xt, s, w, 1.0) == pytest.approx(solution.objective[label], rel=1e-4)
        assert naive.objective(Xt, s, w, 1.0) <= 1.001 * liblinear_objective(Xt, s, 1.0)


def test_row_weights_with_dense_features_equal_repeated_rows():
    E, Y = dense_problem()
    twice = np.random.default_rng(1).integers(1, 3, len(E))
    weighted, _ = solved([E], Y, SolverParams(delta=0, tol=1e-4), twice.astype(np.float32))
    repeated = np.repeat(np.arange(len(E)), twice)
    plain, _ = solved([E[repeated]], Y[repeated], SolverParams(delta=0, tol=1e-4))
    np.testing.assert_allclose(weighted.weights.toarray(), plain.weights.toarray(), atol=2e-3)


def test_dense_features_get_the_same_weights_as_the_same_sparse_features():
    E, Y = dense_problem(rows=800)
    params = SolverParams(delta=0.0, tol=1e-4)
    dense, _ = solved([E], Y, params)
    sparse, _ = solved(sp.csr_array(E), Y, params)
    np.testing.assert_allclose(dense.weights.toarray(), sparse.weights.toarray(), atol=1e-3)


def test_a_labels_weights_do_not_depend_on_the_labels_beside_it():
    X, E, Y = dense_problem(rows=600, features=40, labels=40)
    together, _ = solved([X, E], Y)
    for label in (0, 17, 39):
        alone, _ = solved([X, E], Y, labels=[label])
        np.testing.assert_array_equal(
            alone.weights.toarray()[0], together.weights.toarray()[label], strict=True
        )


def test_threads_do_not_change_the_weights_of_large_dense_sets():
    rng = np.random.default_rng(0)
    E = rng.standard_normal((70_000, 18)).astype(np.float32)
    Y = sp.csr_array((E[:, :2] + rng.standard_normal((70_000, 2)) > 0.2).astype(np.uint8))
    one, several = (fit([E], Y, TrainingParams(delta=0.0), threads=n) for n in (1, 3))
    np.testing.assert_array_equal(one.weights.toarray(), several.weights.toarray(), strict=True)
    solution, Xt = solved([E], Y)
    assert (solution.stop_ratio <= 1).all()
    assert solution.set_size.min() > 1 << 14
    s = signs(Y, 0)
    w = solution.weights.toarray()[0].astype(np.float64)
    Xt = Xt.toarray().astype(np.float64)
    assert naive.objective(Xt, s, w, 1.0) <= 1.001 * liblinear_objective(Xt, s, 1.0)


def test_float32_rows_are_read_in_place_and_others_converted_once():
    E, _ = dense_problem()
    assert np.shares_memory(check_features([E]).dense, E)
    again = check_features(check_features([E]))
    assert np.shares_memory(again.dense, E)
    assert check_features([E.astype(np.float64)]).dense.dtype == np.float32
    columns = np.asfortranarray(E)
    np.testing.assert_array_equal(check_features([columns]).dense, E)


MEASURED = """
import numpy as np, scipy.sparse as sp
from dismec.training.train import fit
E = np.random.default_rng(0).random((100_000, 200), dtype=np.float32)
Y = sp.csr_array(E[:, :2] > 0.995)
fit([E], Y, threads=1)
print(*(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="it has memory of its own")
def test_training_needs_little_memory_beyond_the_matrix():
    found = subprocess.run([sys.executable, "-c", MEASURED], check=True, stdout=subprocess.PIPE)
    assert int(found.stdout) * 1024 <= 1.3 * 4 * 100_000 * 200 + 300e6


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A model with both kinds of features, its rows and labels."""
    X, E, Y = dense_problem(rows=400, features=50)
    path = tmp_path_factory.mktemp("both") / "model"
    return dismec.train([X, E], Y, path), X, E, Y


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    E, Y = dense_problem(rows=400)
    return dismec.train([E], Y, tmp_path_factory.mktemp("alone") / "model"), E, Y


def test_predictions_equal_brute_force_on_the_stored_weights(both):
    model, X, E, _ = both
    scores = naive.brute_force_scores(model.transform.apply([X, E]), model.weights)
    labels, values = model.predict_topk([X, E], 4)
    wanted = naive.topk(scores, 4)
    np.testing.assert_array_equal(labels, wanted[0])
    np.testing.assert_array_equal(values, wanted[1])
    np.testing.assert_array_equal(model.decision_function([X, E]), scores)
    one_by_one = [model.predict_topk([X[[i]], E[i : i + 1]], 4)[1][0] for i in range(20)]
    np.testing.assert_array_equal(values[:20], one_by_one)


def test_each_kind_is_scaled_to_norm_1_and_the_dense_one_by_its_scale():
    X, E, _ = dense_problem(features=50)
    Xt = Transform.fit([X, E], dense_scale=0.5).apply([X, E]).toarray()
    empty = np.diff(X.indptr) == 0
    np.testing.assert_allclose(np.linalg.norm(Xt[~empty, :50], axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(Xt[:, 50:-1], axis=1), 0.5, rtol=1e-6)
    assert (Xt[:, -1] == 1).all()
    as_it_is = Transform.fit([X, E], normalize=False, bias=0).apply([X, E]).toarray()
    np.testing.assert_array_equal(as_it_is, np.hstack([X.toarray(), E, np.zeros((len(E), 1))]))


def test_a_row_of_zeros_stays_zero():
    E, Y = dense_problem()
    E[3] = 0
    model = fit([E], Y)
    intercepts = model.weights.toarray()[:, -1]
    np.testing.assert_allclose(model.decision_function([E[3:4]])[0], intercepts, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            lambda X, E: X,
            "X has no dense features, but the model takes 20 in addition to 50 sparse",
        ),
        (
            lambda X, E: [E],
            "X has no sparse features, but the model takes 50 in addition to 20 dense",
        ),
        (lambda X, E: [X, E[:, :7]], "X has 7 dense features; the model takes 20"),
        (lambda X, E: [X[:9], E], "X has 9 rows, but the dense features have 400"),
        (
            lambda X, E: ["a text"],
            "X has no dense features, but the model takes 20 in addition to 50",
        ),
        (lambda X, E: [sp.hstack([X, X]), E], "X has 100 features, the model has 50"),
    ],
)
def test_rows_without_a_kind_or_of_another_width_are_refused_with_both_numbers(both, given, reason):
    model, X, E, _ = both
    with pytest.raises(DataError, match=reason) as caught:
        model.predict_topk(given(X, E))
    assert "\n" not in str(caught.value)


def test_a_model_without_dense_features_refuses_them(problem_data):
    X, Y = problem_data
    model = fit(X, Y)
    E = np.ones((X.shape[0], 3), np.float32)
    with pytest.raises(DataError, match="X has 3 dense features; the model takes none"):
        model.predict_topk([X, E])


def test_a_model_of_dense_features_alone_takes_them_in_any_form(alone):
    model, E, _ = alone
    wanted = model.predict_topk([E], 3)
    for given in (E, E.astype(np.float64), sp.csr_array(E), E.tolist()):
        for found, right in zip(model.predict_topk(given, 3), wanted, strict=True):
            np.testing.assert_array_equal(found, right)
    with pytest.raises(DataError, match="X has 19 dense features; the model takes 20"):
        model.predict_topk(E[:, :19])


@pytest.mark.parametrize(
    ("E", "reason"),
    [
        (
            np.full((300, 4), np.nan, np.float32),
            "row index 0, dense feature 0: nan is not a finite",
        ),
        (
            np.full((300, 4), 1e300),
            "row index 0, dense feature 0: 1e\\+300 is not a finite float32",
        ),
        (np.ones((300, 0), np.float32), "there are 0 dense features; expected at least 1"),
        (np.ones((299, 4), np.float32), "X has 299 rows, Y has shape"),
        (np.ma.masked_equal(np.ones((300, 4)), 1), "masked"),
        (np.full((300, 4), 1e-38, np.float32), "row index 0: all dense features are next to 0"),
    ],
)
def test_unusable_dense_features_are_refused(E, reason):
    _, Y = dense_problem()
    with pytest.raises(DataError, match=reason):
        fit([E], Y)


def test_a_model_reports_which_kinds_of_features_it_takes(both, alone):
    model = both[0]
    assert (model.n_features, model.n_dense) == (50, 20)
    assert "50 features, 20 dense features" in repr(model)
    assert model.manifest.transform["dense"] == {"width": 20, "scale": 1.0}
    assert alone[0].n_features == 0
    assert repr(alone[0]).startswith("Model(12 labels, 20 dense features,")


def test_models_without_dense_features_do_not_mention_them(problem_data):
    manifest = json.loads(fit(*problem_data).manifest.to_json())
    assert "dense" not in manifest["transform"]
    assert "dense_scale" not in manifest["params"]


def test_a_model_answers_the_same_after_it_was_saved_packed_or_pickled(both, tmp_path):
    model, X, E, _ = both
    wanted = model.predict_topk([X, E])
    model.save(tmp_path / "copy")
    for other in (
        open_model(tmp_path / "copy", check=True),
        open_model(model.to_bytes()),
        pickle.loads(pickle.dumps(model)),
    ):
        for found, right in zip(other.predict_topk([X, E]), wanted, strict=True):
            np.testing.assert_array_equal(found, right)
        assert other.n_dense == 20


@pytest.mark.parametrize(
    "entry", [{"width": 0, "scale": 1.0}, {"width": 20}, 5, {"width": 20, "scale": -1.0}]
)
def test_a_manifest_with_other_dense_features_is_refused(alone, tmp_path, entry):
    model, _, _ = alone
    model.save(tmp_path / "model")
    path = tmp_path / "model" / "manifest.json"
    content = json.loads(path.read_text())
    content["transform"]["dense"] = entry
    path.write_text(json.dumps(content))
    with pytest.raises(dismec.ModelError):
        open_model(tmp_path / "model")


def test_delta_drops_weights_of_sparse_features_only(both):
    _, X, E, Y = both
    model = fit([X, E], Y, TrainingParams(delta=0.3))
    for pruned in (model, fit([X, E], Y).pruned(0.3)):
        W = np.abs(pruned.weights.toarray())
        assert (W[:, 50:-1] > 0).all()
        assert W[:, :50][W[:, :50] > 0].min() >= 0.299
        assert (W[:, 50:-1] < 0.3).any()


def test_the_dense_features_count_more_the_larger_their_scale(both):
    _, X, E, Y = both
    shares = []
    for scale in (0.1, 1.0, 3.0):
        model = fit([X, E], Y, TrainingParams(dense_scale=scale, delta=0.0))
        told = [model.explain([X[[i]], E[[i]]], 3) for i in range(40)]
        dense = sum(abs(e.embedding) for e in told)
        shares.append(dense / sum(abs(t.contribution) for e in told for t in e.terms))
    assert shares[0] < shares[1] < shares[2]


@pytest.mark.parametrize("scale", [0, -1, float("nan"), 1e9])
def test_a_scale_that_is_not_a_positive_number_is_refused(scale):
    with pytest.raises(ValueError, match=r"dense_scale is .*; expected a number above 0"):
        TrainingParams(dense_scale=scale)


def test_an_explanation_has_the_embedding_as_one_part_of_the_score(both, alone):
    model, X, E, _ = both
    told = model.explain([X[[5]], E[[5]]], 2)
    assert all(term.feature < 50 for term in told.terms)
    parts = told.bias + told.embedding + sum(term.contribution for term in told.terms)
    assert parts == pytest.approx(told.score, abs=1e-5)
    assert told.score == model.decision_function([X[[5]], E[[5]]])[0, 2]
    Xt = model.transform.apply([X[[5]], E[[5]]]).toarray()[0]
    of_dense = Xt[50:-1] @ model.weights.toarray()[2, 50:-1]
    assert told.embedding == pytest.approx(of_dense, abs=1e-5)
    assert told.to_dict()["embedding"] == told.embedding
    assert alone[0].explain([E[:1]], 0).terms == []


def test_explanations_of_other_models_have_no_embedding(problem_data):
    X, Y = problem_data
    told = fit(X, Y).explain(X[[0]], int(Y.indices[0]))
    assert told.embedding is None
    assert "embedding" not in told.to_dict()


def test_calibration_delta_and_C_are_learned_with_dense_features(tmp_path):
    X, E, Y = dense_problem(rows=900, features=40)
    params = TrainingParams(calibrate=True, delta="auto")
    model = dismec.train([X, E], Y, tmp_path / "model", params)
    p = model.predict_topk([X, E], 3, rank="probability")[1]
    assert ((p >= 0) & (p <= 1)).all()
    assert model.params["delta"] >= 0.01
    given = fit([X, E], Y, params, validation=([X, E], Y))
    assert given.calibration is not None
    assert model.assign([X, E]).nnz
    assert model.predict_topk([X, E], 3, aim="psp:0.5")[0].shape == (900, 3)
    tuned = tune([X, E], Y, tmp_path / "tuned")
    assert tuned.model.n_dense == 20


def test_labels_are_added_with_the_weights_that_training_them_together_gives(tmp_path):
    X, E, Y = dense_problem(rows=400, features=50)
    whole = dismec.train([X, E], Y, tmp_path / "whole", TrainingParams(dense_scale=0.5))
    dismec.train([X, E], Y[:, :8], tmp_path / "grown", TrainingParams(dense_scale=0.5))
    grown = dismec.add_labels(tmp_path / "grown", [X, E], Y)
    np.testing.assert_array_equal(grown.weights.toarray(), whole.weights.toarray())
    removed = dismec.remove_labels(tmp_path / "grown", [3])
    np.testing.assert_array_equal(removed.weights.toarray()[4:], whole.weights.toarray()[4:])


def test_an_interrupted_dense_training_resumes_to_the_same_bytes(tmp_path):
    X, E, Y = dense_problem(rows=400, features=50)

    def stop(done, total):
        if done > total // 2:
            raise KeyboardInterrupt

    params = TrainingParams(block_size=3)
    with pytest.raises(KeyboardInterrupt):
        dismec.train([X, E], Y, tmp_path / "model", params, threads=1, progress=stop)
    model = dismec.train([X, E], Y, tmp_path / "model", params)
    whole = dismec.train([X, E], Y, tmp_path / "whole", params)
    np.testing.assert_array_equal(model.weights.toarray(), whole.weights.toarray())


def test_other_dense_features_start_a_new_training(tmp_path):
    X, E, Y = dense_problem(rows=200, features=30)
    dismec.train([X, E], Y, tmp_path / "model")
    other = E.copy()
    other[7, 3] += 1
    with pytest.raises(dismec.ModelError):
        dismec.train([X, other], Y, tmp_path / "model")


def test_a_file_of_dense_features_is_mapped(tmp_path):
    E, _ = dense_problem()
    np.save(tmp_path / "E.npy", E)
    found = load_dense(tmp_path / "E.npy")
    np.testing.assert_array_equal(found, E)
    assert not found.flags.owndata
    np.savez(tmp_path / "several.npz", E=E, F=E)
    (tmp_path / "text.npy").write_text("not an array")
    np.save(tmp_path / "line.npy", E[0])
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    for name in ("several.npz", "text.npy", "line.npy", "objects.npy", "missing.npy"):
        with pytest.raises(DataError, match=name) as caught:
            load_dense(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_selected_rows_have_both_kinds():
    X, E, _ = dense_problem(features=30)
    rows = check_features([X, E])[np.array([5, 2])]
    assert isinstance(rows, MixedRows)
    assert rows.shape == (2, 50)
    np.testing.assert_array_equal(rows.dense, E[[5, 2]])
    np.testing.assert_array_equal(rows.sparse.toarray(), X[[5, 2]].toarray())


def test_a_large_full_array_is_taken_as_dense_and_a_small_or_sparse_one_is_not(monkeypatch):
    assert is_mostly_full(np.ones((1 << 10, 1 << 10), np.float32))
    assert not is_mostly_full(np.ones((1 << 10, 1 << 10), np.int32))
    monkeypatch.setattr("dismec.data.mixed._LARGE", 4000)
    rng = np.random.default_rng(0)
    E = rng.standard_normal((200, 20))
    Y = sp.csr_array((E[:, :3] > 1).astype(np.uint8))
    assert fit(E, Y).n_dense == 20
    assert fit(E[:100], Y[:100]).n_dense == 0
    thin = E * (rng.random(E.shape) < 0.1)
    assert fit(thin, Y).n_dense == 0
    assert fit(np.abs(E), Y, TrainingParams(tfidf=True)).n_dense == 0
    for params in (TrainingParams(penalty="l1"), TrainingParams(refine=True)):
        assert fit(E, Y, params).n_dense == 20
    assert fit(sp.csr_array(E), Y).n_dense == 0


def test_the_estimator_takes_both_kinds(tmp_path):
    X, E, Y = dense_problem(rows=400, features=50)
    clf = dismec.DiSMECClassifier().fit([X, E], Y)
    assert clf.n_features_in_ == 70
    assert clf.coef_.shape == (12, 70)
    wanted = fit([X, E], Y).predict_topk([X, E], 3)
    for found, right in zip(clf.predict_topk([X, E], 3), wanted, strict=True):
        np.testing.assert_array_equal(found, right)
    scores = clf.decision_function([X, E])
    np.testing.assert_array_equal(clf.predict([X, E]).toarray(), scores > 0)
    clf.save(tmp_path / "model")
    loaded = dismec.DiSMECClassifier.load(tmp_path / "model")
    assert loaded.n_features_in_ == 70
    np.testing.assert_array_equal(loaded.decision_function([X, E]), scores)
    for wrong in (X, [E], [X, E[:, :3]]):
        with pytest.raises(DataError):
            clf.predict(wrong)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        dismec.DiSMECClassifier().fit([X, E], Y.toarray()[:-1])


def test_the_estimator_of_dense_features_alone_takes_classes_and_arrays():
    E, _ = dense_problem(rows=400)
    y = np.where(E[:, 0] > 0, "up", "down")
    clf = dismec.DiSMECClassifier(calibrate=True).fit([E], y)
    assert clf.score([E], y) > 0.9
    np.testing.assert_array_equal(clf.predict(E), clf.predict([E]))
    np.testing.assert_allclose(clf.predict_proba(E).sum(axis=1), 1, rtol=1e-5)


TEXTS = ["boil the egg", "fry the egg", "bake the bread", "slice the bread"] * 5
NAMES = [["egg"], ["egg", "pan"], ["bread"], ["bread", "knife"]] * 5


def embeddings_of(n=20, seed=0):
    return np.random.default_rng(seed).standard_normal((n, 6)).astype(np.float32)


def test_texts_are_classified_with_dense_features_beside_them(tmp_path):
    E = embeddings_of()
    clf = dismec.DiSMECTextClassifier().fit([TEXTS, E], NAMES)
    assert clf.score([TEXTS, E], NAMES) == 1
    model = clf.model_
    assert model.n_dense == 6
    assert model.n_features == len(model.vocabulary.terms)
    rows = model.vocabulary.rows(TEXTS[:2])
    for given in ([TEXTS[:2], E[:2]], [rows, E[:2]], (TEXTS[:2], E[:2])):
        np.testing.assert_array_equal(
            model.predict_topk(given, 2)[1], clf.predict_topk([TEXTS, E], 2)[1][:2]
        )
    told = model.explain([TEXTS[:1], E[:1]], 1)
    assert {term.term for term in told.terms} <= {"boil", "the", "egg"}
    assert told.embedding is not None
    for wrong, reason in (
        (TEXTS, "X has no dense features, but the model takes 6 in addition to"),
        ([E], "X has no sparse features"),
        ([sp.csr_array(rows.toarray()), E[:2]], r"pass \[dismec.TextRows\(X\), E\]"),
        ([TEXTS[:3], E], "X has 3 rows, but the dense features have 20"),
    ):
        with pytest.raises(DataError, match=reason):
            model.predict_topk(wrong)
    path = tmp_path / "texts.jsonl"
    lines = [{"text": t, "labels": n} for t, n in zip(TEXTS, NAMES, strict=True)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    trained = dismec.train_text(path, tmp_path / "model", dense=E)
    np.testing.assert_array_equal(trained.weights.toarray(), model.weights.toarray())
    tuned = tune_text(path, tmp_path / "tuned", dense=E)
    assert tuned.model.n_dense == 6
    given = {"validation": path, "validation_dense": E}
    judged = dismec.train_text(
        path, tmp_path / "judged", TrainingParams(tfidf=True, calibrate=True), dense=E, **given
    )
    assert judged.calibration is not None
    assert [p.name for p in (tmp_path / "model").iterdir() if p.name.startswith(".data")] == []
