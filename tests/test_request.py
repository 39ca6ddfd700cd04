"""One request for all entry points, one definition per hyper-parameter, one place for resuming."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from unittest import mock

import numpy as np
import pytest

from conftest import random_problem, train_unfinished, weight_files
from dismec import (
    DiSMECClassifier,
    DiSMECTextClassifier,
    TextParams,
    TrainingParams,
    add_labels,
    open_model,
    train,
    train_text,
    tune,
    tune_text,
)
from dismec.cli import main
from dismec.model.format import PRECISIONS
from dismec.model.provenance import shown
from dismec.solve.costs import WEIGHTINGS
from dismec.solve.problem import PENALTIES
from dismec.training.sweep import sweep

PARAMS = TrainingParams(block_size=10, delta="auto", calibrate=True)


class Stopped(Exception):  # noqa: N818
    """Raised instead of training."""


@pytest.fixture
def requests():
    """Requests that would have been carried out."""
    seen = []

    def stop(request, *_):
        seen.append(request)
        raise Stopped

    with (
        mock.patch("dismec.training.recipe.train_requested", stop),
        mock.patch("dismec.training.tuning.train_requested", stop),
        mock.patch("dismec.training.texts.train_requested", stop),
        mock.patch("dismec.training.edit.workplace", stop),
    ):
        yield seen


@pytest.fixture
def model_of_30(tmp_path, problem_data):
    X, Y = problem_data
    train(X, Y[:, :30], tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("name", ["cluster", "client"])
def test_where_to_train_is_one_parameter_with_an_old_alias(requests, name, tmp_path, problem_data):
    X, Y = problem_data
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "some words", "labels": ["a"]}\n')
    where = {name: "tcp://there:1"}
    for door in (
        lambda: train(X, Y, tmp_path / "model", **where),
        lambda: tune(X, Y, tmp_path / "model", **where),
        lambda: sweep(X, Y, (X, Y), **where),
        lambda: train_text(texts, tmp_path / "model", **where),
        lambda: tune_text(texts, tmp_path / "model", **where),
    ):
        with pytest.raises(Stopped):
            door()
        assert requests.pop().cluster == "tcp://there:1"


@pytest.mark.parametrize("name", ["cluster", "engine"])
def test_estimators_accept_both_names_of_where_to_fit(requests, name, problem_data):
    for clf, data in (
        (DiSMECClassifier, problem_data),
        (DiSMECTextClassifier, (["some words"], ["a"])),
    ):
        with pytest.raises(Stopped):
            clf(**{name: "tcp://there:1"}).fit(*data)
        assert requests.pop().cluster == "tcp://there:1"


def test_labels_are_added_where_requested(model_of_30, requests, problem_data):
    X, Y = problem_data
    for name in ("cluster", "client"):
        with pytest.raises(Stopped):
            add_labels(model_of_30, X, Y, **{name: "tcp://there:1"})
        assert requests.pop().cluster == "tcp://there:1"


def test_every_parameter_is_in_the_options_the_estimators_and_the_manifest(tmp_path, problem_data):
    names = {field.name for field in fields(TrainingParams)}
    options = {option.name.removeprefix("no_") for option in main.commands["train"].params}
    assert names <= options
    assert names - {"block_size"} <= set(DiSMECClassifier().get_params())
    texts = set(DiSMECTextClassifier().get_params())
    assert names - {"block_size", "tfidf", "normalize", "bias"} <= texts
    assert {field.name for field in fields(TextParams)} <= texts
    X, Y = problem_data
    dense = train([np.ones((X.shape[0], 2), np.float32)], Y, tmp_path / "dense")
    assert dense.manifest.params.keys() == names
    # Parameters of dense features are omitted if there are none.
    plain = train(X, Y, tmp_path / "model")
    assert plain.manifest.params.keys() == names - {"dense_scale"}


def test_choices_of_the_command_line_match_the_library():
    choices = {f.name: f.metadata.get("choices") for f in fields(TrainingParams)}
    assert choices["precision"] == tuple(PRECISIONS)
    assert choices["penalty"] == PENALTIES
    assert choices["weighting"] == WEIGHTINGS


def test_estimators_keep_the_order_of_their_parameters():
    clf = DiSMECClassifier(2.0, 0.1, 0.001, True, False, 0.5, "int8", True, 3)
    assert (clf.C, clf.delta, clf.tol, clf.tfidf, clf.normalize) == (2.0, 0.1, 0.001, True, False)
    assert (clf.bias, clf.precision, clf.calibrate, clf.n_jobs) == (0.5, "int8", True, 3)
    text = DiSMECTextClassifier(2.0, None, 0.01, True, (1, 2))
    assert (text.calibrate, text.word_ngrams) == (True, (1, 2))
    with pytest.raises(TypeError, match=r"DiSMECClassifier.__init__.*block_size"):
        DiSMECClassifier(block_size=10)


def with_sentences(path):
    """Write an unfinished model's manifest with sentences, as older versions did."""
    file = path / "manifest.json"
    content = json.loads(file.read_text())
    content.pop("checksum", None)
    assert isinstance(content["params"]["calibrated"], dict)
    content["params"] = shown(content["params"])
    assert content["params"]["calibrated"] == "on 60 held-out rows"
    file.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def data():
    return random_problem(rows=600)


def test_a_run_whose_manifest_holds_sentences_resumes(tmp_path, data):
    train(*data, tmp_path / "whole", PARAMS)
    train_unfinished(*data, tmp_path / "model", PARAMS)
    with_sentences(tmp_path / "model")
    with mock.patch("dismec.training.trial.Split.fit", side_effect=AssertionError("learned again")):
        model = train(*data, tmp_path / "model", PARAMS)
    assert weight_files(tmp_path / "model") == weight_files(tmp_path / "whole")
    assert model.params["delta_auto"] == {"rows": 60}


def test_a_choice_of_C_whose_manifest_holds_sentences_resumes(tmp_path, data):
    params, grid = replace(PARAMS, delta=0.01), (0.5, 1.0)
    whole = tune(*data, tmp_path / "whole", grid, params)
    with (
        mock.patch("dismec.training.recipe.run_into", side_effect=begun),
        pytest.raises(KeyboardInterrupt),
    ):
        tune(*data, tmp_path / "model", grid, params)
    with_sentences(tmp_path / "model")
    with mock.patch("dismec.training.tuning.pick", side_effect=AssertionError("chosen again")):
        result = tune(*data, tmp_path / "model", grid, params)
    assert result.C == whole.C
    assert weight_files(tmp_path / "model") == weight_files(tmp_path / "whole")


def begun(directory, job, earlier, *_):
    from dismec.training import resume

    resume.begin(directory, job, earlier)
    raise KeyboardInterrupt


def test_an_unfinished_edit_gives_way_to_another_one_with_a_warning(tmp_path, data, caplog):
    X, Y = data
    for name in ("model", "other"):
        train(X, Y[:, :30], tmp_path / name)
    model = tmp_path / "model"
    with (
        mock.patch("dismec.training.edit.Edit.commit", side_effect=KeyboardInterrupt),
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
