"""One request for all entry points, one definition per hyper-parameter, one place for resuming."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from unittest import mock

import numpy as np
import pytest

from conftest import random_problem, weight_files
from dismec import (
    DiSMECClassifier,
    DiSMECTextClassifier,
    TextParams,
    TrainingParams,
    add_labels,
    open_model,
    train,
    train_text,
)
from dismec.cli import main
from dismec.data.training_file import fingerprint
from dismec.model.manifest import PRECISIONS
from dismec.solve.costs import WEIGHTINGS
from dismec.solve.problem import PENALTIES

PARAMS = TrainingParams(block_size=10, delta="auto", calibrate=True)


class Stopped(Exception):  # noqa: N818
    """Raised instead of training."""


ADVANCED = (
    *("tol", "bias", "penalty", "precision", "positive_weight", "weighting"),
    *("soft_labels", "propensity_a", "propensity_b", "dense_scale", "metric", "best"),
)


@pytest.fixture
def requests():
    """The options of trainings that would have been run."""
    seen = []

    def stop(_, options):
        seen.append(options.cluster)
        raise Stopped

    def stop_edit(where, _):
        seen.append(where)
        raise Stopped

    with (
        mock.patch("dismec.training.train.train_on", stop),
        mock.patch("dismec.training.edit_labels.opened_executor", stop_edit),
    ):
        yield seen


@pytest.fixture
def model_of_30(tmp_path, problem_data):
    X, Y = problem_data
    train(X, Y[:, :30], tmp_path / "model")
    return tmp_path / "model"


def test_where_to_train_is_one_parameter(requests, tmp_path, problem_data):
    X, Y = problem_data
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "some words", "labels": ["a"]}\n')
    where = {"cluster": "tcp://there:1"}
    for door in (
        lambda: train(X, Y, tmp_path / "model", **where),
        lambda: train_text(texts, tmp_path / "model", **where),
        lambda: DiSMECClassifier(**where).fit(X, Y),
        lambda: DiSMECTextClassifier(**where).fit(["some words"], ["a"]),
    ):
        with pytest.raises(Stopped):
            door()
        assert requests.pop() == "tcp://there:1"


def test_estimators_fit_where_requested(requests, problem_data):
    for clf, data in (
        (DiSMECClassifier, problem_data),
        (DiSMECTextClassifier, (["some words"], ["a"])),
    ):
        with pytest.raises(Stopped):
            clf(cluster="tcp://there:1").fit(*data)
        assert requests.pop() == "tcp://there:1"


def test_labels_are_added_where_requested(model_of_30, requests, problem_data):
    with pytest.raises(Stopped):
        add_labels(model_of_30, *problem_data, cluster="tcp://there:1")
    assert requests.pop() == "tcp://there:1"


def test_every_parameter_is_in_the_options_the_estimators_and_the_manifest(tmp_path, problem_data):
    names = {field.name for field in fields(TrainingParams)}
    options = {option.name.removeprefix("no_") for option in main.commands["train"].params}
    assert names <= options
    assert names - {"block_size"} <= set(DiSMECClassifier().get_params())
    texts = set(DiSMECTextClassifier().get_params())
    assert names - {"block_size", "tfidf", "normalize", "bias", "soft_labels"} <= texts
    assert {field.name for field in fields(TextParams)} <= texts
    X, Y = problem_data
    dense = train([np.ones((X.shape[0], 2), np.float32)], Y, tmp_path / "dense")
    assert dense.manifest.params.keys() == names - {"metric"}  # it is in C_auto
    # Parameters of dense features are omitted if there are none.
    plain = train(X, Y, tmp_path / "model")
    assert plain.manifest.params.keys() == names - {"dense_scale", "metric"}


def test_choices_of_the_command_line_match_the_library():
    choices = {f.name: f.metadata.get("choices") for f in fields(TrainingParams)}
    assert choices["precision"] == tuple(PRECISIONS)
    assert choices["penalty"] == PENALTIES
    assert choices["weighting"] == WEIGHTINGS


def test_rare_parameters_of_estimators_are_keyword_only():
    clf = DiSMECClassifier(2.0, 0.1, True, False, True)
    assert (clf.C, clf.delta, clf.tfidf, clf.normalize) == (2.0, 0.1, True, False)
    assert clf.calibrate is True
    text = DiSMECTextClassifier(2.0, None, True)
    assert (text.C, text.delta, text.calibrate) == (2.0, None, True)
    for name, parameter in inspect.signature(DiSMECClassifier).parameters.items():
        assert (parameter.kind is parameter.KEYWORD_ONLY) == (name in ADVANCED), name
    with pytest.raises(TypeError, match=r"DiSMECClassifier.__init__.*block_size"):
        DiSMECClassifier(block_size=10)


@pytest.fixture(scope="module")
def data():
    return random_problem(rows=600)


def test_the_data_are_hashed_once_however_many_stages_there_are(tmp_path, data):
    hashed = []

    def count(*arrays):
        hashed.append(arrays[0].shape)
        return fingerprint(*arrays)

    params = replace(PARAMS, C="auto", refine=True)
    with mock.patch("dismec.data.training_file.fingerprint", count):
        model = train(*data, tmp_path / "model", params)
    assert hashed == [data[0].shape]
    assert model.params.keys() >= {"C_table", "delta_effect", "refine_effect", "calibrated"}
    assert model.manifest.data == fingerprint(*data)


def test_texts_are_hashed_once(tmp_path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "some words", "labels": ["a"]}\n' * 20)
    with mock.patch("dismec.data.training_file.fingerprint", return_value="0" * 64) as hashing:
        train_text(texts, tmp_path / "model", TrainingParams(tfidf=True, calibrate=True))
    assert hashing.call_count == 1


def test_an_unfinished_edit_gives_way_to_another_one_with_a_warning(tmp_path, data, caplog):
    X, Y = data
    for name in ("model", "other"):
        train(X, Y[:, :30], tmp_path / name)
    model = tmp_path / "model"
    with (
        mock.patch("dismec.training.edit_labels._Edit.commit", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        add_labels(model, X, Y[:, :38])
    assert not caplog.records
    add_labels(model, X, Y)
    (record,) = caplog.records
    assert "dropping an unfinished edit" in record.getMessage()
    assert "other data" in record.getMessage()
    add_labels(tmp_path / "other", X, Y)
    assert weight_files(model) == weight_files(tmp_path / "other")
    assert open_model(model).n_labels == 40
