"""One request for all entry points, one definition per hyper-parameter, one place for resuming."""

from __future__ import annotations

import inspect
import json
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
from dismec.cluster.file_copies import FileSpec, NeedsFile
from dismec.cluster.solve_tasks import Run
from dismec.data.training_file import TrainingData, fingerprint
from dismec.features.transform import Transform
from dismec.model.manifest import PRECISIONS
from dismec.solve.costs import WEIGHTINGS
from dismec.solve.problem import PENALTIES, SolverParams
from dismec.training.train import fit

PARAMS = TrainingParams(block_size=10, delta="auto", calibrate=True)


class Stopped(Exception):  # noqa: N818
    """Raised instead of training."""


ADVANCED = (
    *("tol", "bias", "sqrt", "penalty", "precision", "positive_weight", "weighting"),
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
    assert names - {"block_size", "tfidf", "sqrt", "normalize", "bias", "soft_labels"} <= texts
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


@pytest.fixture
def hashed():
    """The shapes of the rows that this process hashes."""
    shapes = []

    def count(*arrays):
        shapes.append(arrays[0].shape)
        return fingerprint(*arrays)

    with mock.patch("dismec.data.training_file.fingerprint", count):
        yield shapes


def test_the_data_are_hashed_once_however_many_stages_there_are(tmp_path, data, hashed):
    params = replace(PARAMS, C="auto", refine=True)
    model = train(*data, tmp_path / "model", params)
    assert hashed == [data[0].shape]
    assert model.params.keys() >= {"C_table", "delta_effect", "refine_effect", "calibrated"}
    assert model.manifest.data == fingerprint(*data)


@pytest.mark.cluster
@pytest.mark.parametrize("in_memory", [False, True])
def test_the_data_are_hashed_once_on_a_cluster(tmp_path, data, hashed, dask_cluster, in_memory):
    params = replace(PARAMS, refine=True)
    if in_memory:
        model = fit(*data, params, cluster=str(dask_cluster))
    else:
        model = train(*data, tmp_path / "model", params, cluster=str(dask_cluster))
    assert hashed == [data[0].shape]
    assert model.params.keys() >= {"delta_effect", "refine_effect", "calibrated"}
    assert model.manifest.data == fingerprint(*data)
    here = train(*data, tmp_path / "here", params)
    assert (model.weights != here.weights).nnz == 0


def test_workers_refuse_the_rows_of_another_stage(tmp_path, data, monkeypatch):
    """Rows of a stage are not hashed, neither here nor there: their file says what they are."""
    X, Y = data
    transform, path = Transform.fit(X), tmp_path / "data.xmc"
    monkeypatch.setattr("dismec.cluster.file_copies.this_worker", lambda: "here")
    monkeypatch.setattr("dismec.cluster.file_copies.scratch_directory", lambda _: tmp_path)
    with mock.patch("dismec.data.training_file.fingerprint", side_effect=AssertionError):
        for rows in (TrainingData(X, Y, hashed="one"), TrainingData(X[::-1], Y, hashed="two")):
            rows.save(path)
            file = FileSpec(str(path), path.stat().st_size, "one")
            run = Run(str(tmp_path), file, SolverParams(), transform)
            if rows.hashed == "one":
                assert run.problem(None).n_rows == X.shape[0]
            else:
                with pytest.raises(NeedsFile):
                    run.problem(None)


@pytest.mark.parametrize("into", ["directory", "memory"])
@pytest.mark.parametrize("validation", [False, True])
def test_texts_are_hashed_once(tmp_path, hashed, into, validation):
    rows = [(f"some words {i % 5} word{i % 7}", [f"label {i % 5}"]) for i in range(40)]
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": t, "labels": y}) + "\n" for t, y in rows))
    params = TrainingParams(tfidf=True, best=True)
    if into == "directory":
        judge = texts if validation else None
        model = train_text(texts, tmp_path / "model", params, validation=judge)
    else:
        judge = tuple(zip(*rows, strict=True)) if validation else None
        model = DiSMECTextClassifier(best=True).fit(*zip(*rows, strict=True), judge).model_
    assert sum(row["entries"] > 0 for row in model.params["terms_table"]) > 1
    # The rows to judge by are hashed as well, if they are not taken from the texts.
    assert hashed == [(40, model.n_features)] * (1 + validation)


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
