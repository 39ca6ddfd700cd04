"""DiSMECTextClassifier: any form of labels in, the same form out, compatible with scikit-learn."""

from __future__ import annotations

import io
import pickle
import warnings

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
import sklearn
from sklearn.exceptions import NotFittedError
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MultiLabelBinarizer
from sklearn.utils import estimator_checks

from dismec import (
    DataError,
    DiSMECClassifier,
    DiSMECTextClassifier,
    ModelError,
    add_labels,
    label_scorer,
    open_model,
)

WORDS = ("egg", "car", "sea")
LISTS = [["food"], ["road"], ["road", "water"]]


def problem(rows=90):
    rng = np.random.default_rng(0)
    picked = rng.integers(0, 3, rows)
    texts = [" ".join(f"{WORDS[p]}{i}" for i in rng.integers(0, 5, 4)) for p in picked]
    return texts, [LISTS[p] for p in picked], picked


TEXTS, LABELS, PICKED = problem()
BINARY = MultiLabelBinarizer()
Y = BINARY.fit_transform(LABELS)
ONE = np.array(["food", "road", "water"])[PICKED]


def fitted(labels=LABELS, **params):
    return DiSMECTextClassifier(n_jobs=1, **params).fit(TEXTS, labels)


@pytest.mark.parametrize(
    "labels",
    [
        [tuple(row) for row in LABELS],
        [set(row) for row in LABELS],
        (row for row in LABELS),
        [np.array(row) for row in LABELS],
        [row if len(row) > 1 else row[0] for row in LABELS],
        [[f" {name}\t" for name in row * 2] for row in LABELS],
        pd.Series(LABELS),
        pd.DataFrame({"labels": LABELS}),
        pl.Series(LABELS),
        pl.DataFrame({"labels": LABELS}),
        pa.array(LABELS),
        pa.table({"labels": LABELS}),
        np.array([*LABELS, None], object)[:-1],
    ],
)
def test_lists_of_labels_may_be_in_any_column(labels):
    expected, clf = fitted(), fitted(labels)
    assert clf.target_ == "lists"
    assert list(clf.classes_) == ["food", "road", "water"]
    assert clf.predict(TEXTS) == expected.predict(TEXTS) != []
    assert clf.model_.weights.data.tobytes() == expected.model_.weights.data.tobytes()


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (Y, np.ndarray),
        (Y.astype(bool), np.ndarray),
        (sp.csr_array(Y), sp.csr_array),
        (sp.csc_matrix(Y), sp.csr_array),
        (pd.DataFrame(Y, columns=BINARY.classes_), np.ndarray),
        (pl.DataFrame(Y, schema=list(BINARY.classes_)), np.ndarray),
    ],
)
def test_an_indicator_is_answered_with_an_indicator(labels, kind):
    clf = fitted(labels)
    predicted = clf.predict(TEXTS)
    assert isinstance(predicted, kind)
    dense = predicted.toarray() if sp.issparse(predicted) else predicted
    np.testing.assert_array_equal(dense, clf.decision_function(TEXTS) > 0)
    assert f1_score(Y, dense, average="micro") > 0.9
    has_names = hasattr(labels, "columns")
    assert clf.classes_.tolist() == (list(BINARY.classes_) if has_names else [0, 1, 2])
    assert list(clf.model_.names) == [str(label) for label in clf.classes_]
    assert clf.score(TEXTS, labels) == clf.score(TEXTS, Y) > 0.9
    assert clf.score(TEXTS, LABELS) == (clf.score(TEXTS, Y) if has_names else 0)


def test_classes_name_the_columns_of_an_indicator():
    clf = DiSMECTextClassifier().fit(TEXTS, sp.csr_array(Y), classes=BINARY.classes_)
    assert clf.classes_.tolist() == ["food", "road", "water"]
    assert clf.predict_topk(["egg1"], 1)[0].tolist() == [["food"]]
    with pytest.raises(DataError, match="2 classes for 3 columns"):
        DiSMECTextClassifier().fit(TEXTS, Y, classes=["a", "b"])
    with pytest.raises(DataError, match="classes are for an indicator"):
        DiSMECTextClassifier().fit(TEXTS, LABELS, classes=["a", "b"])


@pytest.mark.parametrize(
    "labels",
    [ONE, ONE.tolist(), pd.Series(ONE), pl.Series(ONE), pa.array(ONE), PICKED + 8, PICKED == 0],
)
def test_one_class_per_text_is_answered_with_one(labels):
    clf = fitted(labels, calibrate=True)
    assert clf.target_ == "classes"
    labels = np.array(labels.to_pylist() if isinstance(labels, pa.Array) else list(labels))
    classes = np.unique(labels)
    np.testing.assert_array_equal(clf.classes_, classes)
    assert clf.classes_.dtype.kind == classes.dtype.kind
    predicted = clf.predict(TEXTS)
    assert np.mean(predicted == labels) == clf.score(TEXTS, labels) > 0.9
    p = clf.predict_proba(TEXTS)
    assert p.shape == (90, len(classes))
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(classes[p.argmax(axis=1)], predicted)
    scores = clf.decision_function(TEXTS)
    if len(classes) == 2:
        np.testing.assert_array_equal(classes[(scores > 0).astype(int)], predicted)
    else:
        assert scores.shape == (90, 3)


def test_lists_of_numbers_come_back_as_numbers(tmp_path):
    numbers = [[10 * len(name) for name in row] for row in LABELS]
    clf = fitted(numbers)
    assert clf.classes_.tolist() == [40, 50]
    assert set(clf.predict(["sea1 sea2"])[0]) == {40, 50}
    clf.save(tmp_path / "model")
    assert DiSMECTextClassifier.load(tmp_path / "model").predict(["egg1"]) == [(40,)]
    add_labels(tmp_path / "model", TEXTS, Y[:, :1], names=["new"])
    again = DiSMECTextClassifier.load(tmp_path / "model")
    assert again.classes_.tolist() == ["40", "50", "new"]


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ([*LABELS[:-1], ["a", None]], "row index 89: a label is None; leave it out"),
        ([*LABELS[:-1], None], "row index 89: a label is None; leave it out"),
        (pd.Series([*ONE[:-1], np.nan], dtype=object), "row index 89: a label is nan"),
        (pd.Series([*ONE[:-1], pd.NA], dtype=object), "row index 89: a label is <NA>"),
        ([*LABELS[:-1], ["a", 1.5]], "row index 89: a label is '1.5', a float; expected text"),
        ([*LABELS[:-1], ["a", ["b"]]], "row index 89: a label is .*, a list; expected text"),
        ([*LABELS[:-1], {"a": 1}], "row index 89: a label is .*, a dict; expected text"),
        ([*LABELS[:-1], [" "]], "row index 89: a label without a name"),
        ([*LABELS[:-1], [5]], "some labels are text and some are numbers"),
        (Y.tolist(), r"lists of 0 and 1: for an indicator matrix, pass numpy.array\(labels\)"),
        (2 * Y, "values other than 0 and 1"),
        (np.ma.array(Y, mask=Y > 0), r"Y is masked at \["),
        ("food", "expected a list of labels, not one text"),
        ({"food": 1}, "expected a list of labels, not a dict"),
        (LABELS[:-1], "90 texts, but labels for 89"),
        ([[]] * 90, "no text has a label"),
        (np.array(LABELS[:1] * 90)[:, :, None], "labels is 3-d; expected one entry per row"),
    ],
)
def test_unusable_labels_are_refused_in_one_line(labels, reason):
    with pytest.raises(DataError, match=reason) as caught:
        fitted(labels)
    assert "\n" not in str(caught.value)
    assert "--" not in str(caught.value)


def test_unusable_texts_are_refused_in_one_line():
    frame = pd.DataFrame({"id": range(90), "text": TEXTS})
    with pytest.raises(DataError, match=r"frame with columns 'id', 'text': pass one column"):
        DiSMECTextClassifier().fit(frame, LABELS)
    with pytest.raises(DataError, match="row index 3: the text is missing"):
        DiSMECTextClassifier().fit([*TEXTS[:3], None, *TEXTS[4:]], LABELS)
    with pytest.raises(DataError, match="no texts to train on"):
        DiSMECTextClassifier().fit([], [])
    with pytest.raises(DataError, match=r"pass dismec.TextRows\(X\)"):
        fitted().predict(np.ones((1, 15)))


@pytest.mark.parametrize("labels", [LABELS, Y, sp.csr_array(Y), ONE, PICKED])
def test_pickles_joblib_and_saved_models_answer_the_same(labels, tmp_path):
    clf = fitted(labels, calibrate=True, sublinear=False)
    joblib.dump(clf, tmp_path / "clf.joblib")
    clf.save(tmp_path / "model")
    clf.save(tmp_path / "model.zip")
    content = (tmp_path / "model.zip").read_bytes()
    for other in (
        pickle.loads(pickle.dumps(clf)),
        joblib.load(tmp_path / "clf.joblib"),
        DiSMECTextClassifier.load(tmp_path / "model"),
        DiSMECTextClassifier.load(tmp_path / "model.zip"),
        DiSMECTextClassifier.load(content),
        DiSMECTextClassifier.load(io.BytesIO(content)),
    ):
        mine, its = other.predict(TEXTS), clf.predict(TEXTS)
        assert type(mine) is type(its)
        if sp.issparse(its):
            mine, its = mine.toarray(), its.toarray()
        assert np.array_equal(mine, its) if isinstance(its, np.ndarray) else mine == its
        np.testing.assert_array_equal(other.classes_, clf.classes_)
        np.testing.assert_array_equal(other.predict_proba(TEXTS), clf.predict_proba(TEXTS))
        params = {"n_jobs": other.n_jobs, "delta": other.delta}
        assert other.get_params() == clf.get_params() | params


def test_a_client_is_not_pickled():
    clf = fitted().set_params(cluster=(x for x in ()))
    assert pickle.loads(pickle.dumps(clf)).cluster is None
    assert clf.cluster is not None
    clf.set_params(cluster="tcp://here:1")
    assert pickle.loads(pickle.dumps(clf)).cluster == "tcp://here:1"


def test_fewer_labels_than_places_leave_places_empty():
    names, scores = fitted().predict_topk(["egg1"], k=5)
    assert names.shape == scores.shape == (1, 5)
    assert names[0, 3:].tolist() == [None, None]
    assert np.isneginf(scores[0, 3:]).all()
    names, p = fitted(calibrate=True).predict_topk(["egg1"], k=5)
    assert names[0, 3:].tolist() == [None, None]
    assert p[0, 3:].tolist() == [0, 0]


def test_probabilities_of_all_labels_are_those_of_the_best():
    clf = fitted(calibrate=True)
    p = clf.predict_proba(TEXTS)
    names, best = clf.predict_topk(TEXTS, 3)
    numbers = np.searchsorted(clf.classes_.astype(str), names.astype(str))
    np.testing.assert_array_equal(np.take_along_axis(p, numbers, 1), best)
    plain = fitted()
    assert not hasattr(plain, "predict_proba")
    assert hasattr(DiSMECTextClassifier(calibrate=True), "predict_proba")
    with pytest.raises(AttributeError, match=r"DiSMECTextClassifier\(calibrate=True\)"):
        plain.predict_proba(TEXTS)


def test_weights_and_intercepts_give_the_scores():
    clf = fitted(sp.csr_array(np.hstack([Y, np.zeros((90, 1), int)])))  # one label without rows
    assert sp.issparse(clf.coef_)
    assert clf.coef_.shape == (4, clf.model_.n_features)
    model = clf.model_
    rows = model.transform.apply(model.vocabulary.rows(TEXTS))[:, : model.n_features]
    scores = rows @ clf.coef_.T + clf.intercept_
    np.testing.assert_allclose(scores, clf.decision_function(TEXTS), atol=1e-5)
    assert clf.intercept_[3] == -1


def test_a_dense_answer_that_does_not_fit_memory_names_the_sparse_way(monkeypatch):
    dense, sparse = fitted(Y, calibrate=True), fitted(sp.csr_array(Y), calibrate=True)
    monkeypatch.setattr("dismec.model.model.available_memory", lambda: 100)
    for method in (dense.decision_function, dense.predict_proba, dense.predict):
        with pytest.raises(
            DataError, match=r"90 rows × 3 labels would take .*(predict_topk|sparse)"
        ):
            method(TEXTS)
    assert sparse.predict(TEXTS).shape == (90, 3)


@pytest.mark.parametrize("scoring", ["f1_micro", "f1_samples", "average_precision"])
def test_scikit_learns_scorers_score_an_indicator(scoring):
    search = GridSearchCV(fitted(), {"C": [0.01, 1.0]}, scoring=scoring, cv=3, error_score="raise")
    scores = search.fit(TEXTS, Y).cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()
    assert search.best_score_ > 0.8


@pytest.mark.parametrize("scoring", ["f1_micro", "accuracy", "roc_auc_ovr", None])
def test_scikit_learns_scorers_score_one_class_per_text(scoring):
    clf = DiSMECTextClassifier(calibrate=True, n_jobs=1)
    assert cross_val_score(clf, TEXTS, ONE, scoring=scoring, cv=3).min() > 0.8


@pytest.mark.parametrize("labels", [LABELS, [set(row) for row in LABELS], pd.Series(LABELS)])
@pytest.mark.parametrize("pipeline", [False, True])
def test_label_scorers_and_the_default_score_lists_of_labels(labels, pipeline):
    clf, grid = DiSMECTextClassifier(n_jobs=1), {"C": [0.1, 1.0]}
    if pipeline:
        clf = make_pipeline(FunctionTransformer(), clf)
        grid = {f"dismectextclassifier__{name}": values for name, values in grid.items()}
    for scoring in (None, label_scorer("micro-F1"), {"p": label_scorer("P@1")}):
        search = GridSearchCV(clf, grid, scoring=scoring, cv=KFold(3), refit=False)
        results = search.fit(TEXTS, labels).cv_results_
        name = "mean_test_p" if isinstance(scoring, dict) else "mean_test_score"
        assert results[name].max() > 0.9


@pytest.mark.parametrize(
    "labels", [LABELS, Y, sp.csr_array(Y), pd.DataFrame(Y, columns=list("abc"))]
)
def test_a_label_scorer_agrees_with_the_model(labels):
    clf = fitted(labels, C=0.01)
    expected = clf.model_.evaluate(TEXTS, Y, (1, 2))
    for metric in ("P@1", "nDCG@2", "R@2", "PSP@1", "PSnDCG@2"):
        score = pickle.loads(pickle.dumps(label_scorer(metric)))(clf, TEXTS, labels)
        assert score == pytest.approx(expected[metric] / 100)
    sets = clf.model_.assign(TEXTS).toarray() != 0
    for average in ("micro", "macro"):
        score = label_scorer(f"{average}-F1")(clf, TEXTS, labels)
        assert score == pytest.approx(f1_score(Y, sets, average=average))
    assert label_scorer("P@9")(clf, TEXTS, labels) == pytest.approx(Y.sum(axis=1).mean() / 9)
    for wrong in ("f1", "P@0", "P@", None, "Coverage@1"):
        with pytest.raises(DataError, match="expected micro-F1"):
            label_scorer(wrong)
    with pytest.raises(DataError, match="not FunctionTransformer"):
        label_scorer()(FunctionTransformer(), TEXTS, labels)


def test_a_label_scorer_scores_rows_and_counts_labels_that_are_new():
    X = fitted().model_.vocabulary.rows(TEXTS)
    rows = DiSMECClassifier(n_jobs=1).fit(X, sp.csr_array(Y))
    assert label_scorer("P@1")(rows, X, Y) > 0.9
    with pytest.raises(DataError, match="one class per row"):
        label_scorer()(DiSMECClassifier(n_jobs=1).fit(X, ONE), X, ONE)
    new = [["other"]] * 90
    assert label_scorer("P@1")(fitted(), TEXTS, new) == 0
    assert label_scorer("micro-F1")(fitted(), TEXTS, new) == 0


def test_validation_is_routed_as_metadata():
    other = TEXTS[:30], LABELS[:30]
    with sklearn.config_context(enable_metadata_routing=True):
        clf = DiSMECTextClassifier(delta="auto", n_jobs=1).set_fit_request(validation=True)
        assert not hasattr(clf, "set_predict_request")
        search = GridSearchCV(clf, {"C": [0.1, 1.0]}, cv=KFold(2))
        search.fit(TEXTS, LABELS, validation=other)
        assert search.best_estimator_.model_.params["delta_auto"]["rows"] == 30
        piped = make_pipeline(FunctionTransformer(), clf).fit(TEXTS, LABELS, validation=other)
        assert piped[-1].model_.params["delta_auto"]["rows"] == 30


def test_validation_may_have_labels_that_are_new_and_any_form():
    for labels in ([["new", *row] for row in LABELS], pd.Series(LABELS)):
        clf = DiSMECTextClassifier(calibrate=True, n_jobs=1)
        clf.fit(TEXTS[:60], LABELS[:60], validation=(TEXTS[60:], labels[60:]))
        assert clf.model_.params["calibrated"]["rows"] == 30
        assert list(clf.classes_) == ["food", "road", "water"]


def test_a_generator_of_texts_is_enough():
    clf = DiSMECTextClassifier(n_jobs=1).fit((text for text in TEXTS), (row for row in LABELS))
    assert clf.predict(text for text in TEXTS) == fitted().predict(TEXTS)


def test_loading_a_model_of_another_kind_is_refused(tmp_path):
    fitted().save(tmp_path / "texts")
    with pytest.raises(ModelError, match="load it with DiSMECTextClassifier"):
        DiSMECClassifier.load(tmp_path / "texts")
    DiSMECClassifier(n_jobs=1).fit(np.eye(3), Y[:3]).save(tmp_path / "rows")
    with pytest.raises(ModelError, match="load it with DiSMECClassifier"):
        DiSMECTextClassifier.load(tmp_path / "rows")


def test_one_name_per_row_trains_the_same_weights_as_a_list_of_one():
    one, lists = fitted(ONE), fitted([[name] for name in ONE])
    assert one.model_.weights.data.tobytes() == lists.model_.weights.data.tobytes()
    assert [(name,) for name in one.predict(TEXTS[:9])] == lists.predict(TEXTS[:9])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_model(one.model_.to_bytes()).predict(TEXTS[:9]) == lists.predict(TEXTS[:9])


@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_no_attributes_set_in_init,
        estimator_checks.check_parameters_default_constructible,
        estimator_checks.check_get_params_invariance,
        estimator_checks.check_set_params,
    ],
)
def test_scikit_learn_conventions_that_need_no_numbers(check):
    check("DiSMECTextClassifier", DiSMECTextClassifier(n_jobs=1))


def test_an_unfitted_estimator_is_reported():
    clf = DiSMECTextClassifier(calibrate=True)
    methods = (clf.predict, clf.predict_topk, clf.predict_proba, clf.decision_function)
    for method in (*methods, clf.save, lambda _: clf.coef_):
        with pytest.raises(NotFittedError):
            method(TEXTS)
    assert not hasattr(clf, "classes_")
