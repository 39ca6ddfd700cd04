"""The command line with dense features, alone or with DATA."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager

import numpy as np
import pytest
import scipy.sparse as sp

import dismec
from dismec import open_model
from dismec.data.dataset import Dataset, save_data
from test_cli import ok, refused, run
from test_dense import NAMES, TEXTS, dense_problem, embeddings_of


@contextmanager
def standard_input(path):
    """Let file descriptor 0 be this file."""
    before = os.dup(0)
    with path.open("rb") as file:
        os.dup2(file.fileno(), 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Numeric data and texts, their dense features, and a model of each."""
    folder = tmp_path_factory.mktemp("dense files")
    X, E, Y = dense_problem(rows=300, features=40)
    save_data(Dataset(X, Y, None), folder / "data.txt")
    np.save(folder / "E.npy", E)
    lines = [{"text": t, "labels": n} for t, n in zip(TEXTS, NAMES, strict=True)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    np.save(folder / "T.npy", embeddings_of())
    ok("train", folder / "data.txt", "--dense", folder / "E.npy", "-o", folder / "both")
    ok("train", folder / "texts.jsonl", "--dense", folder / "T.npy", "-o", folder / "texts")
    ok("train", folder / "data.txt", "-o", folder / "plain")
    alone = ("--dense-only", "-o", folder / "alone")
    ok("train", folder / "texts.jsonl", "--dense", folder / "T.npy", *alone)
    return folder


def test_the_models_equal_those_trained_in_python(files, tmp_path):
    X, E, Y = dense_problem(rows=300, features=40)
    wanted = dismec.train([X, E], Y, tmp_path / "model").weights.toarray()
    np.testing.assert_array_equal(open_model(files / "both").weights.toarray(), wanted)
    clf = dismec.DiSMECTextClassifier().fit([TEXTS, embeddings_of()], NAMES)
    found = open_model(files / "texts")
    np.testing.assert_array_equal(found.weights.toarray(), clf.model_.weights.toarray())
    alone = open_model(files / "alone")
    assert (alone.n_features, alone.n_dense, alone.vocabulary) == (0, 6, None)
    assert list(alone.names) == ["bread", "egg", "knife", "pan"]


@pytest.mark.parametrize(
    ("model", "data", "dense"),
    [("both", "data.txt", "E.npy"), ("texts", "texts.jsonl", "T.npy"), ("alone", "", "T.npy")],
)
def test_predictions_equal_those_of_python(files, model, data, dense):
    given = [files / data] if data else []
    lines = ok("predict", files / model, *given, "--dense", files / dense, "-k", 1).splitlines()
    opened, E = open_model(files / model), np.load(files / dense)
    parts = {"both": [dense_problem(rows=300, features=40)[0]], "texts": [TEXTS], "alone": []}
    labels, scores = opened.predict_topk([*parts[model], E], 1)
    assert len(lines) == len(E)
    for line, label, score in zip(lines, labels[:, 0], scores[:, 0], strict=True):
        name, _, value = line.rpartition(":")
        assert name == str(label if opened.names is None else opened.names[label])
        assert float(value) == pytest.approx(score, abs=1e-4)


def test_models_are_evaluated_and_inspected_with_dense_features(files):
    texts = ("--dense", files / "T.npy", "--json")
    for model in ("texts", "alone"):
        result = json.loads(ok("evaluate", files / model, files / "texts.jsonl", *texts))
        assert result["P@1"] > 50
    facts = json.loads(ok("inspect", files / "both", "--json"))
    assert (facts["features"], facts["dense features"]) == (40, 20)
    test = ("--test", files / "texts.jsonl", "--dense", files / "T.npy", "--json")
    assert json.loads(ok("inspect", files / "texts", *test))["test"]["pairs"] == 30


def test_an_explanation_shows_the_embedding_as_one_line(files):
    rows = ("--row", 3, "--dense", files / "T.npy")
    shown = ok("explain", files / "texts", files / "texts.jsonl", *rows)
    assert sum("embedding" in line for line in shown.splitlines()) == 1
    told = json.loads(ok("explain", files / "texts", files / "texts.jsonl", *rows, "--json"))
    parts = told["bias"] + told["embedding"] + sum(t["contribution"] for t in told["terms"])
    assert parts == pytest.approx(told["score"], abs=1e-4)
    alone = json.loads(ok("explain", files / "alone", "-", *rows, "--json"))
    assert alone["terms"] == []


def test_command_line_texts_take_as_many_dense_rows(files, tmp_path):
    np.save(tmp_path / "two.npy", embeddings_of(2))
    texts = ("--text", "fry the egg", "--text", "bake the bread")
    given = ("--dense", tmp_path / "two.npy")
    assert len(ok("predict", files / "texts", *texts, *given).splitlines()) == 2
    reason = refused("predict", files / "texts", *texts[:2], *given)
    assert "two.npy has 2 rows, but --text has 1" in reason


@pytest.mark.parametrize(
    ("model", "data", "more", "piped"),
    [
        ("both", "data.txt", True, False),
        ("both", "data.txt", False, True),
        ("texts", "texts.jsonl", True, True),
        ("texts", "texts.jsonl", False, False),
    ],
)
def test_another_number_of_dense_rows_is_refused_before_anything_is_printed(
    files, tmp_path, model, data, more, piped
):
    E = np.load(files / ("E.npy" if model == "both" else "T.npy"))
    n = len(E)
    np.save(tmp_path / "E.npy", np.concatenate([E, E[:1]]) if more else E[:-1])
    given = "-" if piped else files / data
    arguments = ["predict", files / model, given, "--dense", tmp_path / "E.npy"]
    with standard_input(files / data):
        done = run(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    name = "<stdin>" if piped else files / data
    assert f"E.npy has {n + 1 if more else n - 1} rows, but {name} has {n}" in done.stderr


def test_dense_features_can_accompany_piped_rows(files):
    texts, options = files / "texts.jsonl", ("--dense", files / "T.npy", "-k", 1)
    with standard_input(texts):
        found = ok("predict", files / "texts", "-", *options)
    assert found == ok("predict", files / "texts", texts, *options)


def test_labels_are_added_with_dense_features(files, tmp_path):
    X, _, Y = dense_problem(rows=300, features=40)
    save_data(Dataset(X, sp.csr_array(Y[:, :8]), None), tmp_path / "some.txt")
    dense = ("--dense", files / "E.npy")
    ok("train", tmp_path / "some.txt", *dense, "-o", tmp_path / "model")
    ok("add-labels", tmp_path / "model", files / "data.txt", *dense)
    np.testing.assert_array_equal(
        open_model(tmp_path / "model").weights.toarray(),
        open_model(files / "both").weights.toarray(),
    )


def test_validation_data_has_its_own_dense_features(files, tmp_path):
    data = files / "data.txt"
    given = ("--dense", files / "E.npy", "--calibrate", "--validation", data)
    judge = ("--validation-dense", files / "E.npy")
    ok("train", data, *given, *judge, "-o", tmp_path / "model")
    assert open_model(tmp_path / "model").calibration is not None
    reason = refused("train", data, *given, "-o", tmp_path / "other")
    assert "with --dense, --validation requires --validation-dense" in reason
    texts, T = files / "texts.jsonl", files / "T.npy"
    tuned = ("--validation", texts, "--dense", T, "--validation-dense", T, "--dense-only")
    ok("train", texts, "--C", "auto", *tuned, "-o", tmp_path / "tuned")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["predict", "both", "data.txt"], "the model needs 20 dense features per row"),
        (
            ["predict", "both", "data.txt", "--dense", "T.npy"],
            "T.npy has 6 features per row, but the model needs 20",
        ),
        (
            ["predict", "both", "--dense", "E.npy"],
            "the model needs 40 features in addition to dense ones",
        ),
        (["predict", "both", "data.txt", "--dense", "data.txt"], "not a .npy file of numbers"),
        (["predict", "both", "data.txt", "--dense", "none.npy"], "No such file"),
        (["evaluate", "texts", "texts.jsonl"], "the model needs 6 dense features per row"),
        (["train", "data.txt", "--dense-only", "-o", "x"], "--dense-only requires --dense"),
        (["train", "data.txt", "--dense", "T.npy", "-o", "x"], "the dense features have 20"),
        (["inspect", "data.txt", "--dense", "E.npy"], "--dense requires --test"),
        (
            ["predict", "plain", "data.txt", "--dense", "E.npy"],
            "the model has no dense features: omit --dense",
        ),
        (["prune", "both", "--curve", "data.txt"], "the model needs 20 dense features per row"),
        (
            ["explain", "both", "1:1", "--dense", "E.npy"],
            "E.npy has 300 rows: choose one (--row 1)",
        ),
        (
            [
                "train",
                "texts.jsonl",
                "--dense",
                "T.npy",
                "--dense-only",
                "--min-df",
                "2",
                "-o",
                "x",
            ],
            "--min-df is for texts, which --dense-only ignores",
        ),
    ],
)
def test_dense_features_that_do_not_match_are_refused_in_one_line(
    files, arguments, reason, monkeypatch
):
    monkeypatch.chdir(files)
    assert reason in refused(*arguments)
    assert not (files / "x").exists() or not (files / "x" / "manifest.json").exists()


def test_a_pruning_curve_takes_dense_features(files):
    given = ("--curve", files / "data.txt", "--dense", files / "E.npy")
    table = json.loads(ok("prune", files / "both", *given, "--json"))
    assert table[0]["weights"] > table[-1]["weights"] > 20 * 12 - 1
