"""A real server with models that use dense features."""

from __future__ import annotations

import json

import numpy as np
import pytest

import dismec
from dismec import open_model
from servers import serving
from test_dense import NAMES, TEXTS, dense_problem, embeddings_of
from test_server import features


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving dense")
    X, E, Y = dense_problem(rows=200, features=30)
    dismec.train([X, E], Y, folder / "both")
    dismec.train([E], Y, folder / "alone")
    clf = dismec.DiSMECTextClassifier().fit([TEXTS, embeddings_of()], NAMES)
    clf.save(folder / "texts")
    return folder


@pytest.fixture(scope="module")
def both(folder):
    with serving(folder, folder / "both") as running:
        yield running


@pytest.fixture(scope="module")
def texts(folder):
    with serving(folder, folder / "texts") as running:
        yield running


@pytest.fixture(scope="module")
def alone(folder):
    with serving(folder, folder / "alone") as running:
        yield running


def test_answers_equal_those_of_the_library(folder, both, texts, alone):
    X, E, _ = dense_problem(rows=200, features=30)
    T = embeddings_of()
    for server, name, parts, rows in (
        (both, "both", [X, E], [{"features": features(X, i)} for i in range(9)]),
        (alone, "alone", [E], [{} for _ in range(9)]),
        (texts, "texts", [TEXTS, T], [{"text": text} for text in TEXTS[:9]]),
    ):
        labels, scores = open_model(folder / name).predict_topk(parts, 3)
        rows = [row | {"dense": parts[-1][i].tolist()} for i, row in enumerate(rows)]
        status, _, many = server.predict({"rows": rows, "k": 3})
        assert status == 200, many
        np.testing.assert_array_equal([row["labels"] for row in many["rows"]], labels[:9])
        np.testing.assert_array_equal(
            np.float32([row["scores"] for row in many["rows"]]), scores[:9]
        )
        assert server.predict({**rows[4], "k": 3})[2] == many["rows"][4]
        assert server.predict({"rows": []})[2] == {"rows": []}


def test_an_explanation_names_the_embedding_as_one_group(folder, texts):
    row = {"text": TEXTS[0], "dense": embeddings_of()[0].tolist(), "label": "egg"}
    status, _, told = texts.ask("POST", "/explain", json.dumps(row))
    assert status == 200, told
    model = open_model(folder / "texts")
    wanted = model.explain([TEXTS[:1], embeddings_of()[:1]], model.find_label("egg"))
    assert told["embedding"] == pytest.approx(wanted.embedding)
    parts = told["bias"] + told["embedding"] + sum(t["contribution"] for t in told["terms"])
    assert parts == pytest.approx(told["score"], abs=1e-4)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, '"dense" is not a list of numbers'),
        ({"dense": [1.0]}, '"dense" has 1 number; expected 20'),
        ({"dense": [1.0] * 19 + ["x"]}, ", dense feature 19: 'x' is not a finite float32"),
        ({"dense": [1.0] * 19 + [1e300]}, ", dense feature 19: 1e+300 is not a finite"),
        ({"dense": 3}, '"dense" is not a list of numbers'),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_both_numbers(both, row, reason):
    status, _, answer = both.predict({"features": [[1, 1.0]], **row})
    assert status == 400
    assert reason in answer["error"]
    assert "index" not in answer["error"]
    fine = {"features": [], "dense": [0.5] * 20}
    status, _, answer = both.predict({"rows": [fine, {"features": [[1, 1.0]], **row}]})
    assert status == 400
    assert reason in answer["error"]
    assert answer["error"].startswith("row index 1")


def test_rows_that_lack_the_other_kind_are_refused(both, alone, texts):
    dense = {"dense": [0.5] * 20}
    for server, row, reason in (
        (
            both,
            dense,
            'the request needs either "features" or "rows"',
        ),
        (
            alone,
            {"features": [], **dense},
            "unknown key 'features'",
        ),
        (texts, {"dense": [0.5] * 6}, 'the request needs either "text" or'),
        (texts, {"text": "an egg"}, '"dense" is not a list of numbers'),
    ):
        status, _, answer = server.predict(row)
        assert status == 400
        assert reason in answer["error"]


def test_a_model_without_dense_features_refuses_them(folder, tmp_path, problem_data):
    dismec.train(*problem_data, tmp_path / "plain")
    with serving(tmp_path, tmp_path / "plain") as server:
        status, _, answer = server.predict({"features": [], "dense": [1.0, 2.0]})
    assert status == 400
    assert "unknown key 'dense'" in answer["error"]


def test_a_server_reports_which_features_it_takes(both, alone, texts):
    for server, expected, kinds in (
        (both, (30, 20), "features dense"),
        (alone, (0, 20), "dense"),
    ):
        about = server.ask("GET", "/model")[2]
        assert (about["features"], about["dense"]) == expected
        assert f'data-takes="{kinds}"' in server.ask("GET", "/")[2]
    assert 'data-takes="text dense"' in texts.ask("GET", "/")[2]


@pytest.mark.parametrize("name", ["both", "alone", "texts"])
def test_the_examples_of_the_description_can_be_sent(name, request):
    server = request.getfixturevalue(name)
    document = server.ask("GET", "/openapi.json")[2]
    for path in ("/predict", "/explain"):
        content = document["paths"][path]["post"]["requestBody"]["content"]
        for example in content["application/json"]["examples"].values():
            status, _, answer = server.ask("POST", path, json.dumps(example["value"]))
            assert status == 200, answer
    if name == "texts":
        assert server.ask("GET", "/example")[2]["text"]
