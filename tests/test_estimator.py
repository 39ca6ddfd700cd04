from __future__ import annotations

import inspect
import pickle
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from conftest import random_problem
from dismec import (
    DataError,
    DiSMECClassifier,
    DiSMECTextClassifier,
    ModelError,
    TextParams,
    TrainingParams,
    open_model,
    train,
)
from dismec import cpu as native
from dismec.estimators import shared as estimator
from dismec.model import scoring as predictor


def few_digits(_):
    """Compare scores of repeated rows in single precision, not to ten digits.

    `test_weights` makes these checks to the digits that are meaningful.
    """
    name = "check_sample_weight_equivalence_on"
    return dict.fromkeys((f"{name}_dense_data", f"{name}_sparse_data"), "single precision")


@parametrize_with_checks([DiSMECClassifier(n_jobs=1)], expected_failed_checks=few_digits)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


def test_sparse_and_dense_inputs_give_the_same_model(problem_data):
    X, Y = problem_data
    expected = DiSMECClassifier().fit(X, Y).model_.weights
    for x, y in [
        (X.toarray(), Y),
        (X, Y.toarray()),
        (X.tocsc(), Y.tocsc()),
        (sp.csr_matrix(X), Y.tolil()),
    ]:
        weights = DiSMECClassifier().fit(x, y).model_.weights
        assert weights.data.tobytes() == expected.data.tobytes()


def test_multilabel_prediction_is_the_sign_of_the_score(problem_data):
    X, Y = problem_data
    for y, kind in [(Y, sp.csr_array), (Y.toarray(), np.ndarray)]:
        clf = DiSMECClassifier(C=10).fit(X, y)
        predicted = clf.predict(X)
        assert isinstance(predicted, kind)
        dense = predicted.toarray() if sp.issparse(predicted) else predicted
        np.testing.assert_array_equal(dense, clf.decision_function(X) > 0)
        scores = clf.predict_topk(X, k=3)[1]
        np.testing.assert_array_equal(scores[:, 0], clf.decision_function(X).max(axis=1))
    np.testing.assert_array_equal(clf.classes_, np.arange(40))


@pytest.mark.parametrize("classes", [["cat", "dog"], ["cat", "dog", "eel"], [3, 5, 9]])
def test_classes_survive_prediction_saving_and_pickling(problem_data, tmp_path, classes):
    X, _ = problem_data
    rng = np.random.default_rng(0)
    y = np.array(classes)[rng.integers(0, len(classes), X.shape[0])]
    clf = DiSMECClassifier(C=100, delta=0).fit(X, y)
    predicted = clf.predict(X)
    assert set(predicted) <= set(classes)
    clf.save(tmp_path / "model")
    for other in (DiSMECClassifier.load(tmp_path / "model"), pickle.loads(pickle.dumps(clf))):
        np.testing.assert_array_equal(other.classes_, clf.classes_)
        np.testing.assert_array_equal(other.predict(X), predicted)
        np.testing.assert_array_equal(other.decision_function(X), clf.decision_function(X))
        np.testing.assert_array_equal(other.predict_topk(X, 4)[0], clf.predict_topk(X, 4)[0])
        assert other.get_params()["C"] == 100
    names = open_model(tmp_path / "model").names
    assert names == [str(c) for c in (classes[1:] if len(classes) == 2 else classes)]


def test_binary_top_k_ranks_both_classes(problem_data):
    X, Y = problem_data
    y = Y[:, [30]].toarray().ravel()
    clf = DiSMECClassifier().fit(X, y)
    labels, scores = clf.predict_topk(X, k=3)
    np.testing.assert_array_equal(clf.classes_[labels[:, 0]], clf.predict(X))
    np.testing.assert_array_equal(labels[:, 2], -1)
    with pytest.raises(DataError, match="k is 0"):
        clf.predict_topk(X, k=0)
    np.testing.assert_array_equal(scores[:, 0], np.abs(clf.decision_function(X)))


def test_works_in_pipelines_grid_searches_and_clones():
    texts = ["red apple pie", "apple tart", "fast red car", "car race", "apple juice", "car wheel"]
    y = ["food", "food", "cars", "cars", "food", "cars"]
    search = GridSearchCV(
        make_pipeline(TfidfVectorizer(), DiSMECClassifier()),
        {"dismecclassifier__C": [0.1, 1.0], "dismecclassifier__delta": [0.0, 0.01]},
        cv=3,
    ).fit(texts, y)
    assert list(search.predict(["an apple", "a car"])) == ["food", "cars"]
    assert clone(DiSMECClassifier(C=7, n_jobs=2)).get_params()["C"] == 7


def test_jobs_count_from_the_end_as_in_scikit_learn(problem_data, monkeypatch):
    used = []
    count = native.thread_count
    monkeypatch.setattr(native, "available_cpus", lambda: 8)
    monkeypatch.setattr(estimator, "available_cpus", lambda: 8)
    monkeypatch.setattr(predictor, "thread_count", lambda n: used.append(count(n)) or count(n))
    X, Y = problem_data
    clf = DiSMECClassifier(n_jobs=1).fit(X, Y)
    for n_jobs, threads in [(None, 8), (-1, 8), (-2, 7), (-99, 1), (3, 3)]:
        clf.set_params(n_jobs=n_jobs).predict(X)
        assert used.pop() == threads
    with pytest.raises(DataError, match="threads is 0"):
        clf.set_params(n_jobs=0).fit(X, Y)


def test_loading_a_model_without_its_parameters_is_refused(problem_data, tmp_path):
    model = DiSMECClassifier().fit(*problem_data).model_
    model.manifest = replace(model.manifest, params={"C": 1.0})
    model.save(tmp_path / "model")
    with pytest.raises(ModelError, match="lacks the parameter 'bias'"):
        DiSMECClassifier.load(tmp_path / "model")


def test_a_model_trained_by_the_command_line_loads_as_an_estimator(problem_data, tmp_path):
    X, Y = problem_data
    DiSMECClassifier(C=2).fit(X, Y).model_.save(tmp_path / "model")
    clf = DiSMECClassifier.load(tmp_path / "model")
    assert clf.C == 2
    assert sp.issparse(clf.predict(X))


def test_probabilities_need_calibration_and_are_saved(tmp_path):
    X, Y = random_problem(rows=600)
    clf = DiSMECClassifier(calibrate=True).fit(X, Y)
    labels, p = clf.predict_topk(X, k=3)
    assert labels.shape == p.shape == (600, 3)
    assert ((p > 0) & (p < 1) & (np.diff(p, axis=1, append=0) <= 0)).all()
    clf.save(tmp_path / "model")
    again = DiSMECClassifier.load(tmp_path / "model")
    assert again.calibrate
    np.testing.assert_array_equal(again.predict_topk(X, k=3)[1], p)


def test_names_of_features_and_labels_survive_saving(tmp_path):
    X, Y = random_problem(rows=80, labels=4)
    features = [f"f{i}" for i in range(X.shape[1])]
    for frame in (
        lambda data, names: pd.DataFrame(data, columns=names),
        lambda data, names: pl.DataFrame(data, schema=names),
    ):
        rows, labels = frame(X.toarray(), features), frame(Y.toarray(), list("abcd"))
        clf = DiSMECClassifier(C=10, n_jobs=1).fit(rows, labels)
        assert clf.classes_.tolist() == list("abcd")
        clf.save(tmp_path / "model", overwrite=True)
        assert list(open_model(tmp_path / "model").names) == list("abcd")
        again = DiSMECClassifier.load(tmp_path / "model")
        assert again.classes_.tolist() == list("abcd")
        assert again.feature_names_in_.tolist() == features
        assert clf.feature_names_in_.tolist() == features
        np.testing.assert_array_equal(again.predict_topk(rows)[0], clf.predict_topk(rows)[0])
        other = frame(X.toarray(), [f"x{i}" for i in range(X.shape[1])])
        with pytest.raises(ValueError, match="feature names should match"):
            again.predict(other)
    content = clf.model_.to_bytes()
    assert DiSMECClassifier.load(content).predict_topk(X, 1)[0].shape == (80, 1)


def test_a_library_training_takes_names_from_a_frame(tmp_path):
    X, Y = random_problem(rows=80, labels=4)
    frame = pd.DataFrame(Y.toarray(), columns=[" a", "b c", "ü", "d"])
    model = train(pd.DataFrame(X.toarray()), frame, tmp_path / "model")
    assert list(model.names) == ["a", "b c", "ü", "d"]
    plain = train(X, pd.DataFrame(Y.toarray()), tmp_path / "plain")
    assert plain.names is None


def test_validation_columns_of_a_frame_are_reordered_like_the_labels():
    X, Y = random_problem(rows=200, labels=4)
    frame = pd.DataFrame(Y.toarray(), columns=list("abcd"))
    models = [
        DiSMECClassifier(calibrate=True, n_jobs=1).fit(X, frame, validation=(X, other)).model_
        for other in (frame, frame[["c", "a", "d", "b"]])
    ]
    first, second = (model.calibration for model in models)
    np.testing.assert_array_equal(first.slopes, second.slopes)
    np.testing.assert_array_equal(first.intercepts, second.intercepts)


@pytest.mark.parametrize(
    ("y", "reason"),
    [
        ([["a"], ["a", "b"], []] * 10, "MultiLabelBinarizer"),
        ([{"a"}, {"b"}, {"c"}] * 10, "MultiLabelBinarizer"),
        (pd.Series([["a"], ["b"], ["c"]] * 10), "MultiLabelBinarizer"),
        ([["a", "b"], ["b", "c"], ["a", "c"]] * 10, "MultiLabelBinarizer"),
        ([[0], [1, 2], [0, 2]] * 10, "MultiLabelBinarizer"),
        (np.array(["a", None, "b"] * 10, object), "row index 1: the class is None"),
        (np.ma.array([0, 1, 2] * 10, mask=[0, 0, 1] * 10), r"y is masked at \[2\]"),
    ],
)
def test_unusable_classes_are_refused_in_one_line(y, reason):
    X, _ = random_problem(rows=30)
    with pytest.raises(DataError, match=reason) as caught:
        DiSMECClassifier().fit(X, y)
    assert "\n" not in str(caught.value)


def test_masked_rows_are_refused_by_the_estimator():
    X, Y = random_problem(rows=30, labels=3)
    masked = np.ma.masked_less(X.toarray(), 0.1)
    with pytest.raises(DataError, match="X is masked"):
        DiSMECClassifier().fit(masked, Y)
    with pytest.raises(DataError, match="X is masked"):
        DiSMECClassifier().fit(X, Y).predict(masked)


@pytest.mark.parametrize("classes", [2, 3, None])
def test_probabilities_of_rows(classes):
    X, Y = random_problem(rows=300, labels=5)
    y = Y if classes is None else np.arange(300) % classes
    clf = DiSMECClassifier(calibrate=True, n_jobs=1).fit(X, y)
    p = clf.predict_proba(X)
    assert p.shape == (300, classes or 5)
    assert ((p >= 0) & (p <= 1)).all()
    if classes is None:
        labels, best = clf.predict_topk(X, 5)
        np.testing.assert_array_equal(np.take_along_axis(p, labels, 1), best)
    else:
        np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)
    assert not hasattr(DiSMECClassifier(n_jobs=1).fit(X, y), "predict_proba")
    assert not hasattr(DiSMECClassifier(), "predict_proba")


@pytest.mark.parametrize("y", ["two", "three", "indicator"])
def test_weights_and_intercepts_of_rows_give_the_scores(y):
    X, Y = random_problem(rows=90, labels=5)
    target = {"two": np.arange(90) % 2, "three": np.arange(90) % 3, "indicator": Y}[y]
    clf = DiSMECClassifier(n_jobs=1, normalize=False, bias=2.0).fit(X, target)
    assert sp.issparse(clf.coef_)
    scores = X @ clf.coef_.T + clf.intercept_
    expected = clf.decision_function(X).reshape(90, -1)
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    with pytest.raises(NotFittedError):
        _ = DiSMECClassifier().coef_


def test_a_dense_answer_that_does_not_fit_memory_is_refused(problem_data, monkeypatch):
    X, Y = problem_data
    dense, sparse = (DiSMECClassifier(n_jobs=1).fit(X, y) for y in (Y.toarray(), Y))
    expected = sparse.predict(X)
    monkeypatch.setattr("dismec.model.model.available_memory", lambda: 1000)
    for method in (dense.decision_function, dense.predict):
        with pytest.raises(DataError, match=r"labels would take .* GiB"):
            method(X)
    assert (sparse.predict(X) != expected).nnz == 0


def test_validation_is_routed_as_metadata(problem_data):
    X, Y = problem_data
    with sklearn.config_context(enable_metadata_routing=True):
        clf = DiSMECClassifier(delta="auto", n_jobs=1).set_fit_request(validation=True)
        search = GridSearchCV(clf, {"C": [0.1, 1.0]}, cv=2, scoring="f1_micro")
        search.fit(X, Y, validation=(X[:50], Y[:50]))
    assert search.best_estimator_.model_.params["delta_auto"]["rows"] == 50


@pytest.mark.parametrize(
    ("estimator", "sources", "fixed"),
    [
        (DiSMECClassifier, [TrainingParams], {"block_size"}),
        (
            DiSMECTextClassifier,
            [TrainingParams, TextParams],
            {"block_size", "tfidf", "sqrt", "normalize", "bias", "soft_labels"},
        ),
    ],
)
def test_init_has_every_training_parameter_with_its_default(estimator, sources, fixed):
    expected = {f.name: f.default for source in sources for f in fields(source)}
    expected = {name: value for name, value in expected.items() if name not in fixed}
    own = {"class_weight": None, "n_jobs": None, "cluster": None}
    own |= {"encoder": None, "label_texts": None} if estimator is DiSMECTextClassifier else {}
    parameters = inspect.signature(estimator).parameters
    assert {name: p.default for name, p in parameters.items()} == expected | own
    assert all(p.annotation is not p.empty for p in parameters.values())
