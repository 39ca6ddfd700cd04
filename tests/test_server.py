"""A real `dismec serve` process, and real requests."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from itertools import pairwise
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from conftest import LABELS, random_problem
from dismec import DataError, TextParams, TrainingParams, open_model, train, train_text
from dismec.serve.answers import Service
from dismec.serve.application import Settings, application
from dismec.serve.contract import Contract, Limits
from dismec.serve.request_rows import parse
from servers import TIMEOUT, exchange, received, serving, wait_until


def features(X, i):
    row = slice(X.indptr[i], X.indptr[i + 1])
    return [list(pair) for pair in zip(X.indices[row].tolist(), X.data[row].tolist(), strict=True)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A directory with a model that has label names, and one that has none."""
    directory = tmp_path_factory.mktemp("serving")
    X, Y = random_problem()
    train(X, Y, directory / "named", names=[f"tag {i} é" for i in range(Y.shape[1])])
    train(X, Y, directory / "other", TrainingParams(C=0.1))
    return directory


@pytest.fixture(scope="module")
def named(files):
    return open_model(files / "named")


@pytest.fixture(scope="module")
def server(files):
    with serving(files, files / "named", "--max-rows", "400", "--max-k", "50") as running:
        yield running


def test_predictions_are_those_of_the_library(files, server):
    X, _ = random_problem()
    model = open_model(files / "named")
    labels, scores = model.predict_topk(X, 7)
    rows = [{"features": features(X, i)[::-1]} for i in range(X.shape[0])]
    status, _, many = server.predict({"rows": rows, "k": 7})
    assert status == 200
    np.testing.assert_array_equal([row["labels"] for row in many["rows"]], labels)
    np.testing.assert_array_equal(np.float32([row["scores"] for row in many["rows"]]), scores)
    assert many["rows"][3]["names"] == [model.names[label] for label in labels[3]]
    for i in (0, 3):
        assert server.predict({**rows[i], "k": 7})[2] == many["rows"][i]
    assert server.predict(rows[3])[2]["labels"] == labels[3, :5].tolist()


def test_threshold_leaves_out_lower_scores(server):
    X, _ = random_problem()
    row = {"features": features(X, 3), "k": 10}
    every = server.predict(row)[2]
    some = server.predict({**row, "threshold": every["scores"][3]})[2]
    assert some == {key: values[:4] for key, values in every.items()}
    assert server.predict({**row, "threshold": 1e9})[2]["labels"] == []
    assert server.predict({**row, "threshold": None})[2] == every


def test_predictions_are_restricted_to_the_labels_of_the_request(files, server):
    X, _ = random_problem()
    model = open_model(files / "named")
    names = model.names
    rows = [{"features": features(X, i)} for i in range(5)]
    begin = "tag 3"
    beginning = [i for i, name in enumerate(names) if name.startswith(begin)]
    assert len(beginning) == 11
    for choice, allowed in (
        ({"only": [3, names[8], 9]}, [3, 8, 9]),
        ({"exclude": [3, names[8]]}, sorted({*range(len(names))} - {3, 8})),
        ({"only": [3, 8, 9], "exclude": [names[8]]}, [3, 9]),
        ({"prefix": f" {begin.upper()} "}, beginning),
        ({"prefix": begin, "exclude": [3]}, [label for label in beginning if label != 3]),
        ({"only": []}, []),
        ({"only": None, "exclude": [], "prefix": " "}, range(len(names))),
    ):
        labels, scores = model.predict_topk(X[:5], 7, allowed=list(allowed))
        for _ in range(2):  # the second time it comes from the cache
            answer = server.predict({"rows": rows, "k": 7, **choice})[2]["rows"]
            for i, row in enumerate(answer):
                n = int((labels[i] >= 0).sum())
                assert row["labels"] == labels[i, :n].tolist()
                assert np.float32(row["scores"]).tolist() == scores[i, :n].tolist()


def test_rows_without_features_and_no_rows_are_answered(files, server):
    labels, _ = open_model(files / "named").predict_topk(np.zeros((1, 80)), 50)
    empty = server.predict({"features": [], "k": 50})[2]
    assert empty["labels"] == [label for label in labels[0].tolist() if label >= 0]
    assert server.predict({"rows": []})[2] == {"rows": []}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "not JSON"),
        ('{"features": [[1, 2]]', "not JSON"),
        (b'{"features": "\xff"}', "not UTF-8"),
        ("[" * 200_000, "nested too deeply"),
        ("[]", "not a JSON object"),
        ("{}", 'either "features" or "rows"'),
        ('{"features": [], "rows": []}', 'either "features"'),
        ('{"features": [], "features": []}', "same key twice"),
        (
            '{"features": [], "K": 3}',
            "unknown key 'K'; known: exclude, features, k, ",
        ),
        ('{"features": [[1, NaN]]}', "NaN is not JSON"),
        ('{"features": [[1, -Infinity]]}', "-Infinity is not JSON"),
        ('{"features": [[1, 1e999]]}', "not a finite float32"),
        ('{"features": [[1, 1e39]]}', "not a finite float32"),
        ('{"features": [[1, 1' + 400 * "0" + "]]}", "not a finite float32"),
        ('{"features": [[1, 1' + 9000 * "0" + "]]}", "not JSON"),
        ('{"features": [[1, "2"]]}', "not a finite float32"),
        ('{"features": [[1, true]]}', "not a finite float32"),
        ('{"features": [[1, null]]}', "not a finite float32"),
        ('{"features": [[80, 1]]}', "outside 0 … 79"),
        ('{"features": [[-1, 1]]}', "outside 0 … 79"),
        ('{"features": [[1.0, 1]]}', "not an integer"),
        ('{"features": [[true, 1]]}', "not an integer"),
        ('{"features": [[1, 1], [2, 1], [1, 3]]}', "feature 1 occurs twice"),
        ('{"features": [[1]]}', "not a pair"),
        ('{"features": [1, 2]}', "not a pair"),
        ('{"features": {"1": 2}}', "not a list of pairs"),
        ('{"features": null}', "not a list of pairs"),
        ('{"rows": {}}', "not a list"),
        ('{"rows": [{"features": []}, [[1, 2]]]}', "row index 1 is not an object"),
        (
            '{"rows": [{"features": [], "k": 1}]}',
            "row index 0 has an unknown key 'k'; known: features",
        ),
        ('{"rows": [' + ",".join(["{}"] * 401) + "]}", "at most 400"),
        ('{"features": [], "k": 0}', "expected 1 to 50"),
        ('{"features": [], "k": 51}', "expected 1 to 50"),
        ('{"features": [], "k": 2.0}', "expected 1 to 50"),
        ('{"features": [], "k": true}', "expected 1 to 50"),
        ('{"features": [], "k": null}', "expected 1 to 50"),
        ('{"features": [], "threshold": "0"}', "expected a number"),
        ('{"features": [], "threshold": 1e999}', "expected a number"),
        ('{"text": "apple"}', "unknown key 'text'"),
        ('{"rows": [{"text": "apple"}]}', 'not an object with "features"'),
        ('{"features": [], "dense": [1.0]}', "unknown key 'dense'"),
        ('{"features": [], "rank": "probability"}', 'expected "score"'),
        ('{"features": [], "rank": "luck"}', 'expected "score"'),
        ('{"features": [], "only": ["nobody"]}', "the model has no label 'nobody'"),
        ('{"features": [], "exclude": [99]}', "label 99 is outside"),
        (r'{"features": [], "only": ["\ud83c"]}', "the model has no label"),
        ('{"features": [], "only": "label 1"}', '"only" is not a list of labels'),
        ('{"features": [], "only": [1.5]}', '"only" has 1.5; expected ids or names of labels'),
        ('{"features": [], "exclude": [[1]]}', '"exclude" has [1]; expected ids or names'),
        ('{"features": [], "only": [' + "1," * 100_000 + "1]}", '100001 labels in "only"; at most'),
        ('{"features": [], "prefix": null}', '"prefix" is None; expected a string'),
        ('{"rows": [{"features": [], "only": [1]}]}', "row index 0 has an unknown key 'only'"),
        ('{"features": [], "rank": ["score"]}', 'expected "score"'),
    ],
)
def test_malformed_bodies_get_400_and_one_line(server, body, reason):
    status, _, answer = server.ask("POST", "/predict", body)
    assert status == 400
    assert answer.keys() == {"error"}
    assert reason in answer["error"]
    assert "\n" not in answer["error"]
    assert len(answer["error"]) < 200


@pytest.fixture(scope="module")
def text_server(text_files):
    with serving(text_files, text_files / "calibrated") as running:
        yield running


TEXTS = ["An apple and a pear.", "", "vessel vessel cargo 🎉 cake", "Nothing that is known\0"]


def test_texts_get_the_predictions_of_the_library(text_files, text_server):
    model = open_model(text_files / "calibrated")
    X = model.vocabulary.rows(TEXTS)
    rows = [{"text": text} for text in TEXTS]
    labels, scores = model.predict_topk(X, 4, rank="score")
    probabilities = model.calibration.probabilities(labels, scores)
    by_score = {"labels": labels, "scores": scores, "probabilities": probabilities}
    by_default = dict(zip(("labels", "probabilities"), model.predict_topk(X, 4), strict=True))
    for rank, expected in (({"rank": "score"}, by_score), ({}, by_default)):
        status, _, many = text_server.predict({"rows": rows, "k": 4, **rank})
        assert status == 200
        assert many["rows"][0].keys() - {"names"} == expected.keys()
        for key, values in expected.items():
            np.testing.assert_array_equal(np.float32([row[key] for row in many["rows"]]), values)
    for i, text in enumerate(TEXTS):
        assert text_server.predict({"text": text, "k": 4})[2] == many["rows"][i]
        given = {"features": features(X, i), "k": 4, "numeric": True}
        assert text_server.predict(given)[2] == many["rows"][i]


def test_rank_selects_the_order_and_the_meaning_of_the_threshold(text_files, text_server):
    model = open_model(text_files / "calibrated")
    labels, probabilities = model.predict_topk(
        model.vocabulary.rows(TEXTS[:1]), 6, rank="probability"
    )
    request = {"text": TEXTS[0], "k": 6, "rank": "probability"}
    found = text_server.predict(request)[2]
    assert found["labels"] == labels[0].tolist()
    assert np.float32(found["probabilities"]).tolist() == probabilities[0].tolist()
    assert found["names"][0] == "fruit"
    some = text_server.predict({**request, "threshold": found["probabilities"][2]})[2]
    assert some["labels"] == found["labels"][:3]
    by_score = text_server.predict({**request, "rank": "score"})[2]
    some = text_server.predict({**request, "rank": "score", "threshold": by_score["scores"][1]})[2]
    assert some == {key: values[:2] for key, values in by_score.items()}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"text": null}', '"text" is None; expected a string'),
        ('{"text": ["apple"]}', "expected a string"),
        ('{"text": "apple", "rank": "luck"}', 'expected "score" or "probability"'),
        ('{"rows": [{"text": "apple"}, {"text": 1}]}', "row index 1"),
        (
            '{"rows": [{"text": "apple"}, {"features": []}]}',
            'row index 1 is not an object with "t',
        ),
        (
            '{"rows": [{"features": []}, {"text": ""}]}',
            'row index 1 is not an object with "f',
        ),
        ('{"rows": [{"text": "", "features": []}]}', "row index 0 has an unknown key 'features'"),
        (r'{"text": "\ud83c"}', "0"),
    ],
)
def test_malformed_texts_get_400_and_one_line(text_server, body, reason):
    status, _, answer = text_server.ask("POST", "/predict", body)
    assert (status, answer.keys()) == (400, {"error"})
    assert reason in answer["error"]


def explain(server, **question):
    status, _, answer = server.ask("POST", "/explain", json.dumps(question))
    assert status == 200, answer
    return answer


def test_explanation_adds_up_to_the_score_and_marks_the_text(text_files, text_server):
    text = "🎉 One apple, one PEAR, one vessel. 🍐 One Pear!"
    best = text_server.predict({"text": text})[2]
    why = explain(text_server, text=text, label=best["labels"][0], limit=1000)
    assert (why["label"], why["name"]) == (best["labels"][0], "fruit")
    assert why["probability"] == pytest.approx(best["probabilities"][0], rel=1e-5)
    by_score = text_server.predict({"text": text, "rank": "score"})[2]
    assert why["score"] == by_score["scores"][by_score["labels"].index(best["labels"][0])]
    parts = [term["contribution"] for term in why["terms"]]
    assert sum(parts) + why["bias"] == pytest.approx(why["score"], abs=1e-5)
    assert parts == sorted(parts, key=abs, reverse=True)
    for term in why["terms"]:
        assert term["contribution"] == pytest.approx(term["value"] * term["weight"])
    assert sum(part for _, _, part in why["highlights"]) == pytest.approx(sum(parts))
    speaking = [text[begin:end] for begin, end, part in why["highlights"] if part > 0.05]
    assert speaking == ["apple", "PEAR", "Pear"]
    assert explain(text_server, text=text, label="fruit", limit=1000) == why
    assert explain(text_server, text=text, label="fruit", limit=2)["terms"] == why["terms"][:2]
    X = open_model(text_files / "calibrated").vocabulary.rows([text])
    row = {"features": features(X, 0), "numeric": True}
    by_features = explain(text_server, **row, label="fruit", limit=1000)
    assert by_features == {key: why[key] for key in why if key != "highlights"}


def test_rows_of_numbers_are_explained_too(files, server):
    X, _ = random_problem()
    row = features(X, 3)
    best = server.predict({"features": row})[2]
    why = explain(server, features=row, label=best["names"][0])
    assert (why["label"], why["score"]) == (best["labels"][0], best["scores"][0])
    assert {"probability", "highlights"}.isdisjoint(why)
    assert {term["feature"] for term in why["terms"]} <= {feature for feature, _ in row}


def test_text_is_a_number_only_without_names_over_http_and_on_the_command_line(files, tmp_path):
    X, Y = random_problem()
    names = [f"tag {i}" for i in range(Y.shape[1])]
    names[3] = "12"
    train(X, Y, tmp_path / "numbered", names=names)
    row = {"features": [[1, 1.0], [5, 2.0]]}
    for model, found, wrong in (
        (tmp_path / "numbered", {"12": 3, "tag 5": 5}, ["13", "0"]),
        (files / "other", {"12": 12, "13": 13, "007": 7}, []),
    ):
        refused = [*wrong, "40", "-1", "1.0", "tag", "", "9" * 5000]
        command = [sys.executable, "-m", "dismec", "explain", model, "1:1 5:2", "--json"]
        given = [option for label in found for option in ("--label", label)]
        out = subprocess.run([*command, *given], capture_output=True, check=True).stdout
        said = [json.loads(line) for line in out.splitlines()]
        assert [one["label"] for one in said] == list(found.values())
        with serving(tmp_path, model) as server:
            answers = [explain(server, **row, label=label) for label in found]
            assert all(1 <= answer.pop("rank") <= Y.shape[1] for answer in answers)
            assert answers == said
            assert explain(server, **row, label=12)["label"] == 12
            for label in refused:
                status, _, answer = server.ask(
                    "POST", "/explain", json.dumps({**row, "label": label})
                )
                assert (status, answer["error"][:22]) == (400, "the model has no label")
                assert len(answer["error"]) < 100
        out = subprocess.run([*command, "--label", "40"], capture_output=True, text=True)
        assert (out.returncode, out.stderr) == (2, "dismec: the model has no label '40'\n")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("[]", "not a JSON object"),
        ('{"label": 1}', 'either "text" or "features"'),
        ('{"text": "", "features": [], "label": 1}', 'either "text" or "features"'),
        ('{"text": "apple"}', "id or name"),
        ('{"text": "apple", "label": null}', "id or name"),
        ('{"text": "apple", "label": true}', "id or name"),
        ('{"text": "apple", "label": -1}', "outside 0 … 5"),
        ('{"text": "apple", "label": 6}', "outside 0 … 5"),
        ('{"text": "apple", "label": "frui"}', "the model has no label 'frui'"),
        ('{"text": "apple", "label": 1, "k": 1}', "unknown key 'k'"),
        ('{"text": "apple", "label": 1, "limit": 0}', "expected 1 to 1000"),
        ('{"text": 1, "label": 1}', "expected a string"),
        ('{"features": [[1]], "label": 1, "numeric": true}', "not a pair"),
    ],
)
def test_malformed_questions_get_400_and_one_line(text_server, body, reason):
    status, _, answer = text_server.ask("POST", "/explain", body)
    assert (status, answer.keys()) == (400, {"error"})
    assert reason in answer["error"]
    assert "\n" not in answer["error"]


def test_long_text_gets_the_strongest_highlights_in_order(text_server):
    text = "apple " + "pear and some crates " * 3000
    pieces = explain(text_server, text=text, label="fruit")["highlights"]
    assert len(pieces) == 2000
    assert pieces[0][:2] == [0, 5]
    assert pieces[1][:2] == [6, 10]  # the first of 3000, each of which adds next to nothing
    assert all(a[1] <= b[0] for a, b in pairwise(pieces))


def test_example_is_a_training_text_that_the_model_keeps(text_files, files, text_server, server):
    kept = open_model(text_files / "calibrated").manifest.examples
    answers = [text_server.ask("GET", "/example")[2] for _ in range(20)]
    assert len({answer["text"] for answer in answers}) > 1
    assert all(answer["text"] in kept and answer["training"] for answer in answers)
    status, _, answer = server.ask("GET", "/example")
    assert status == 400
    assert "not trained on texts" in answer["error"]


def test_example_without_training_texts_is_of_words_that_raise_scores(text_files, tmp_path):
    train_text(text_files / "texts.jsonl", tmp_path / "model")
    with serving(tmp_path, tmp_path / "model") as running:
        assert running.ask("GET", "/model")[2]["examples"] == 0
        answers = [running.ask("GET", "/example")[2] for _ in range(20)]
    assert len({answer["text"] for answer in answers}) > 1
    known = {word for words in LABELS.values() for word in words}
    for answer in answers:
        assert answer["training"] is False
        assert known & set(re.findall(r"\w+", answer["text"].lower()))


def test_a_text_model_refuses_features_unless_requested(text_server):
    for path, body in (
        ("/predict", {"features": [[0, 1.0]]}),
        ("/predict", {"rows": [{"features": []}]}),
        ("/explain", {"features": [[0, 1.0]], "label": 0}),
    ):
        for said in ({}, {"numeric": False}):
            status, _, answer = text_server.ask("POST", path, json.dumps(body | said))
            assert status == 422
            assert answer["error"].startswith("the model takes texts, not features")
            assert "\n" not in answer["error"]
        assert text_server.ask("POST", path, json.dumps(body | {"numeric": True}))[0] == 200
    status, _, answer = text_server.predict({"rows": [{"text": "apple"}], "numeric": True})
    assert (status, answer["error"]) == (
        400,
        '"numeric" applies to "features", but the rows are texts',
    )


def test_white_space_around_the_name_of_a_label_does_not_count(text_server):
    why = explain(text_server, text="apple", label="fruit")
    assert explain(text_server, text="apple", label=" fruit\n") == why


def test_rank_of_every_label_is_its_place_among_all(files, text_files, text_server, server):
    X, _ = random_problem()
    numbers, texts = {"features": features(X, 3)}, {"text": "An apple, a vessel."}
    for running, row in ((server, numbers), (text_server, texts)):
        best = running.predict({**row, "k": 40})[2]["labels"]
        for place, label in enumerate(best, 1):
            assert explain(running, **row, label=label)["rank"] == place


def test_the_model_reports_its_threshold(text_files, text_server, server):
    told = text_server.ask("GET", "/model")[2]["threshold"]
    least = open_model(text_files / "calibrated").calibration.micro_threshold
    assert told == {"rank": "probability", "value": least, "chosen": "micro-f1"}
    told = server.ask("GET", "/model")[2]["threshold"]
    assert told == {"rank": "score", "value": 0.0, "chosen": "zero"}


def test_labels_are_found_by_part_of_their_names(text_server, server):
    def found(running, query):
        status, _, answer = running.ask("GET", "/labels" + query)
        assert status == 200, answer
        return [one["name"] for one in answer["labels"]], answer["more"]

    assert found(text_server, "?search=FRUIT") == (["fruit"], False)
    assert found(text_server, "?search=" + quote("ספרים")) == (["ספרים עתיקים"], False)
    assert found(server, "?search=tag%201&limit=3") == (["tag 1 é", "tag 10 é", "tag 11 é"], True)
    assert found(server, "?search=5+%C3%89")[0] == ["tag 5 é", "tag 15 é", "tag 25 é", "tag 35 é"]
    assert found(server, "?search=nothing") == ([], False)
    assert found(server, "?limit=2") == (["tag 0 é", "tag 1 é"], True)
    first = text_server.ask("GET", "/labels?search=fruit")[2]["labels"][0]
    assert first["rows"] > 0
    assert explain(text_server, text="apple", label=first["label"])["name"] == "fruit"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("limit=0", "expected 1 to 100"),
        ("limit=101", "expected 1 to 100"),
        ("limit=many", "expected 1 to 100"),
        ("limit=" + "9" * 5000, "expected 1 to 100"),
        ("find=a", "unknown key 'find'"),
    ],
)
def test_malformed_searches_get_400_and_one_line(server, query, reason):
    status, _, answer = server.ask("GET", f"/labels?{query}")
    assert status == 400
    assert reason in answer["error"]


def test_pages_have_strict_security_headers(text_server, server):
    for running, path, said in (
        (text_server, "/", '<body data-takes="text">'),
        (server, "/", '<body data-takes="features">'),
        (text_server, "/docs", '<h1 dir="auto">calibrated</h1>'),
        (server, "/docs", '<h1 dir="auto">named</h1>'),
    ):
        status, headers, page = running.ask("GET", path)
        assert status == 200
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-cache"
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; connect-src 'self'; ")
        assert "unsafe" not in policy
        assert said in page
        assert path == "/docs" or "href=docs" in page or 'href="docs"' in page
        assert len(page) < 90_000
        status, answered, body = running.ask("HEAD", path)
        assert (status, body) == (200, "")
        assert answered["Content-Length"] == str(len(page.encode()))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["features", "text", "rows", "k", "threshold", "rank", "label"]), inner
        )
    ),
)


@settings(deadline=None)
@given(st.binary() | anything.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_accepted_or_refused_with_a_reason(named, body):
    with suppress(DataError):
        assert parse("/predict", body, Contract(Limits(), named))[0].shape[1] == 80
    with suppress(DataError):
        assert parse("/explain", body, Contract(Limits(), named))[0].shape == (1, 80)


numbers = st.floats(-1e38, 1e38) | st.integers(-(10**20), 10**20)


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.integers(0, 79), numbers), max_size=3), st.randoms())
def test_order_and_spelling_of_a_request_do_not_change_its_rows(named, rows, random):
    lists = [list(row.items()) for row in rows]
    expected = np.zeros((len(rows), 80), np.float32)
    for i, row in enumerate(rows):
        expected[i, list(row)] = list(row.values())
    ordered = json.dumps({"rows": [{"features": sorted(pairs)} for pairs in lists]})
    for pairs in lists:
        random.shuffle(pairs)
    shuffled = json.dumps({"rows": [{"features": pairs} for pairs in lists]}, indent=1)
    escaped = ordered.replace("features", "feat\\u0075res", 1)
    compact = ordered.replace(" ", "").replace("e+", "E")
    for text in (ordered, shuffled, escaped, compact):
        X, _ = parse("/predict", text.encode(), Contract(Limits(), named))
        np.testing.assert_array_equal(X.toarray(), expected)


@pytest.mark.parametrize("number", ["+1", "01", "-01", ".5", "1.", "1.e3", "-", "1e", "0x1", "1_0"])
def test_numbers_that_json_does_not_allow_are_refused(named, number):
    for pair in (f"[1, {number}]", f"[{number}, 1]"):
        body = f'{{"features": [{pair}]}}'.encode()
        with pytest.raises(DataError, match="not JSON"):
            parse("/predict", body, Contract(Limits(), named))


@pytest.mark.parametrize("end", range(len('{"features": [[1, 2.5e1], [3, 4]]}')))
def test_every_truncated_request_is_refused(named, end):
    body = b'{"features": [[1, 2.5e1], [3, 4]]}'[:end]
    with pytest.raises(DataError, match="not JSON"):
        parse("/predict", body, Contract(Limits(), named))


def test_unknown_paths_and_methods_are_refused_in_json(server):
    for path in ("/predict/", "/predictions", "/reload", "/..", "/%00"):
        status, _, answer = server.ask("POST", path, "{}")
        assert (status, answer) == (404, {"error": "Not Found"})
    for method, path in [
        ("GET", "/predict"),
        ("POST", "/health"),
        ("DELETE", "/model"),
        ("POST", "/"),
    ]:
        status, headers, answer = server.ask(method, path)
        assert (status, answer) == (405, {"error": "Method Not Allowed"})
        assert headers["Allow"]


def test_health_and_model_describe_what_is_served(files, server):
    for path in ("/health", "/health/live", "/health/ready"):
        assert server.ask("GET", path)[::2] == (200, {"status": "ok"})
    model = open_model(files / "named")
    told = server.ask("GET", "/model")[2]
    assert (told["labels"], told["features"], told["names"]) == (40, 80, True)
    assert (told["name"], told["text"], told["calibrated"]) == ("named", False, False)
    limits = {"body": 10_000_000, "rows": 400, "characters": 1_000_000, "k": 50}
    assert told["limits"] == limits
    assert told["params"] == model.params
    assert told["weights"] == model.weights.nnz
    assert told["version"]


def test_description_is_complete_and_needs_nothing_from_elsewhere(server):
    description = server.ask("GET", "/openapi.json")[2]
    asked = {"/predict", "/explain", "/labels", "/model", "/metrics"}
    asked |= {"/health", "/health/live", "/health/ready"}
    assert description["paths"].keys() == asked
    text = json.dumps(description)
    for name in re.findall(r'"#/components/schemas/(\w+)"', text):
        assert name in description["components"]["schemas"]
    assert description["components"]["schemas"]["OneRow"]["properties"]["k"]["maximum"] == 50
    _, _, page = server.ask("GET", "/docs")
    assert "//" not in page


def test_body_of_100_mb_gets_413_and_is_not_kept(server):
    server.predict({"features": []})
    before = server.memory()
    megabyte = b" " * 1_000_000
    with server.connect() as connection:
        connection.request("POST", "/predict", (megabyte for _ in range(100)))
        assert received(connection)[0] == 413
        # The connection still works: the rest of the body was discarded.
        assert exchange(connection, "GET", "/health")[0] == 200
    with server.connect() as connection:
        connection.putrequest("POST", "/predict")
        connection.putheader("Content-Length", "100000000")
        connection.endheaders()
        status, _, answer = received(connection)
        assert (status, answer) == (413, {"error": "the body has more than 10000000 bytes"})
    assert server.memory() - before < 50_000_000
    at_limit = b'{"features": []}'.ljust(10_000_000)
    assert server.ask("POST", "/predict", at_limit)[0] == 200
    assert server.ask("POST", "/predict", at_limit + b" ")[0] == 413


def test_texts_beyond_the_limit_get_413_with_both_numbers(text_files):
    with serving(text_files, text_files / "calibrated", "--max-characters", "30") as server:
        assert server.predict({"text": "é" * 30})[0] == 200
        for path, body in (
            ("/predict", {"text": "é" * 31}),
            ("/predict", {"rows": [{"text": "apple" * 3}, {"text": "pear" * 4}]}),
            ("/explain", {"text": "é" * 31, "label": 0}),
        ):
            status, _, answer = server.ask("POST", path, json.dumps(body))
            reason = "the texts have 31 characters; at most 30 per request"
            assert (status, answer) == (413, {"error": reason})
        assert server.ask("GET", "/model")[2]["limits"]["characters"] == 30


def test_a_truncated_body_does_no_harm(server):
    with server.half_sent({"features": []}):
        pass
    wait_until(lambda: server.metric("dismec_arriving_requests") == 0)
    assert server.predict({"features": []})[0] == 200
    assert "Traceback" not in server.log.read_text()


def test_metrics_count_requests_rows_and_time(server):
    answered = 'dismec_requests_total{path="/predict",status="200"}'
    refused = 'dismec_requests_total{path="/predict",status="400"}'
    server.predict({"features": []})
    server.predict({"features": 0})
    before = {name: server.metric(name) for name in (answered, refused)}
    rows = server.metric("dismec_rows_predicted_total")
    server.predict({"rows": [{"features": []}] * 3})
    server.predict({"features": 0})
    assert server.metric(answered) == before[answered] + 1
    assert server.metric(refused) == before[refused] + 1
    assert server.metric("dismec_rows_predicted_total") == rows + 3
    server.ask("GET", "/no/such/path")
    status, headers, text = server.ask("GET", "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert "/no/such" not in text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    kinds = {name: family.type for name, family in families.items()}
    assert kinds == {
        "dismec_requests": "counter",
        "dismec_request_seconds": "histogram",
        "dismec_rows_predicted": "counter",
        "dismec_reloads": "counter",
        "dismec_pending_requests": "gauge",
        "dismec_arriving_requests": "gauge",
        "dismec_processes": "gauge",
        "dismec_processes_started": "counter",
    }
    requests = [one.labels for one in families["dismec_requests"].samples]
    assert {"path": "other", "status": "404"} in requests
    of_predictions = [
        one
        for one in families["dismec_request_seconds"].samples
        if one.labels["path"] == "/predict"
    ]
    counts = [one.value for one in of_predictions if one.name.endswith("_bucket")]
    assert len(counts) == 14
    assert counts == sorted(counts)
    assert [counts[-1]] == [one.value for one in of_predictions if one.name.endswith("_count")]


def test_a_full_queue_answers_503_until_a_place_is_free(files):
    row = {"features": [[1, 1.0]]}
    many = {"rows": [{"features": [[f, 1.0] for f in range(40)]}] * 1000, "k": 30}
    with serving(files, files / "named", "--threads", "1", "--queue", "0") as server:
        seen = set()

        def work():
            seen.add(server.predict(many)[0])

        end = time.monotonic() + TIMEOUT
        while 503 not in seen and time.monotonic() < end:
            threads = [threading.Thread(target=work) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert seen == {200, 503}
        assert server.ask("GET", "/health")[0] == 200
        assert server.predict(row)[0] == 200


def test_incomplete_bodies_do_not_block_other_clients(files):
    row = {"features": [[1, 1.0]]}
    with (
        serving(files, files / "named", "--threads", "1", "--queue", "1") as server,
        ExitStack() as held,
    ):
        for _ in range(20):
            connection = held.enter_context(server.connect())
            connection.putrequest("POST", "/predict")
            connection.putheader("Content-Length", "100")
            connection.endheaders(b'{"fea')
        wait_until(lambda: server.metric("dismec_arriving_requests") == 20)
        assert server.predict(row)[0] == 200


def test_a_token_protects_all_but_health_and_permits_reload(files):
    with serving(files, files / "named", token="a secret") as server:
        guarded = [
            ("POST", "/predict"),
            ("POST", "/reload"),
            ("GET", "/model"),
            ("GET", "/metrics"),
        ]
        for method, path in guarded:
            for given_token in (None, "Bearer", "Bearer a secre", "Basic a secret", "Bearer é"):
                headers = {} if given_token is None else {"Authorization": given_token}
                status, answered, answer = server.ask(method, path, '{"features": []}', headers)
                assert status == 401
                assert "token" in answer["error"]
                assert answered["WWW-Authenticate"] == "Bearer"
            headers = {"Authorization": "Bearer a secret"}
            assert server.ask(method, path, '{"features": []}', headers)[0] == 200
        for path in ("/health", "/health/live", "/health/ready", "/"):
            assert server.ask("GET", path)[0] == 200
        for method, path in [("POST", "/explain"), ("GET", "/example")]:
            assert server.ask(method, path, "{}")[0] == 401
        assert "/reload" in server.ask("GET", "/openapi.json")[2]["paths"]
        assert "secret" not in server.log.read_text()


def test_sigterm_finishes_requests_in_flight(files):
    with serving(files, files / "named") as server:
        with server.half_sent({"features": [[1, 1.0]]}) as finish:
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: refuses_connections(server.port))
            status, _, answer = finish()
        assert status == 200
        assert len(answer["labels"]) == 5
        assert server.process.wait(TIMEOUT) == 0
        assert server.process.stdout.read() == ""
        assert server.log.read_text() == ""


def point(link, target):
    link.with_name("next").symlink_to(target)
    link.with_name("next").replace(link)


def refuses_connections(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("how", ["signal", "request", "watch"])
def test_reload_switches_models_without_losing_a_request(files, tmp_path, how):
    row = {"features": [[1, 1.0], [5, 2.0]]}
    link, token = tmp_path / "current", {"Authorization": "Bearer secret"}

    def reload(target):
        point(link, target)
        if how == "signal":
            server.process.send_signal(signal.SIGHUP)
        elif how == "request":
            server.ask("POST", "/reload", headers=token)

    point(link, files / "named")
    with serving(tmp_path, link, token="secret") as server:
        ask = ("POST", "/predict", json.dumps(row), token)
        named = server.ask(*ask)[2]
        answers, stop = [], threading.Event()

        def ask_on():
            with server.connect() as connection:
                while not stop.is_set():
                    begun = time.monotonic()
                    answers.append((begun, exchange(connection, *ask)))

        clients = [threading.Thread(target=ask_on) for _ in range(4)]
        for client in clients:
            client.start()
        try:
            reload(files / "other")
            wait_until(lambda: f"reloaded {link}" in server.log.read_text())
            switched = time.monotonic()
            (tmp_path / "broken").mkdir()
            reload(tmp_path / "broken")
            wait_until(lambda: "still serving the old model" in server.log.read_text())
            seen = len(answers)
            wait_until(lambda: len(answers) > seen + 8)
        finally:
            stop.set()
            for client in clients:
                client.join()
        other = server.ask(*ask)[2]
        assert "names" in named
        assert "names" not in other
        assert {status for _, (status, _, _) in answers} == {200}
        assert [a for _, (_, _, a) in answers if a not in (named, other)] == []
        later = [answer for begun, (_, _, answer) in answers if begun > switched]
        assert later
        assert all(answer == other for answer in later)
        assert str(tmp_path / "broken") in server.log.read_text()
        if how == "request":
            status, _, answer = server.ask("POST", "/reload", headers=token)
            assert (status, answer.keys()) == (500, {"error"})


def test_a_model_that_could_not_be_reloaded_is_tried_again(files, tmp_path):
    """Copied files arrive in any order: the manifest may be there before the weights."""
    shutil.copytree(files / "named", tmp_path / "model")
    with serving(tmp_path, tmp_path / "model") as server:
        new = tmp_path / "new"
        shutil.copytree(files / "other", new)
        weights = next(new.glob("shard-*"))
        weights.rename(tmp_path / "late")
        for file in (tmp_path / "model").iterdir():
            file.rename(tmp_path / f"old-{file.name}")
        for file in new.iterdir():
            file.rename(tmp_path / "model" / file.name)
        wait_until(lambda: "still serving the old model" in server.log.read_text())
        assert "names" in server.predict({"features": []})[2]
        (tmp_path / "late").rename(tmp_path / "model" / weights.name)
        wait_until(lambda: "names" not in server.predict({"features": []})[2])


def refused(*arguments, code="pass", **env):
    """Return the one line with which `dismec serve` exits; `code` runs before it."""
    script = f"import sys; {code}; from dismec.cli import main; main(sys.argv[1:])"
    out = subprocess.run(
        [sys.executable, "-c", script, "serve", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, **env},
    )
    assert (out.returncode, out.stdout) == (2, "")
    assert out.stderr.count("\n") == 1, out.stderr
    return out.stderr


def test_control_characters_reach_neither_the_log_nor_an_answer_nor_a_page(tmp_path):
    odd = "a\x1b]0;title\x07\x7f\x9b31m\u202e b"
    X, Y = random_problem(labels=2)
    model = tmp_path / "odd \x1b[31m"
    train(X, Y, model, names=[odd, "plain"])
    seen = []
    with serving(tmp_path, model) as server:
        for method, path, body in (
            ("POST", "/predict", '{"features": [[1, 1]]}'),
            ("POST", "/explain", '{"features": [[1, 1]], "label": 0}'),
            ("POST", "/explain", json.dumps({"features": [], "label": odd + "!"})),
            ("GET", "/labels", None),
            ("GET", "/model", None),
            ("GET", "/", None),
            ("GET", "/docs", None),
            ("GET", "/openapi.json", None),
        ):
            with server.connect() as connection:
                connection.request(method, path, body)
                seen.append(connection.getresponse().read().decode())
        assert json.loads(seen[3])["labels"][0]["name"] == odd
        (model / "manifest.json").rename(model / "gone")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.metric('dismec_reloads_total{result="failed"}') >= 1)
        seen.append(server.log.read_text())
    assert "odd \\u001b[31m" in seen[-1]
    assert "odd \\u001b[31m" in seen[6]
    for text in seen:
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text), text


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "prometheus_client"])
def test_a_missing_extra_is_reported_with_the_install_command(files, package):
    line = refused(files / "named", code=f"sys.modules['{package}'] = None")
    assert package in line
    assert "pip install 'dismec[server]'" in line


def test_models_that_cannot_be_served_are_reported_in_one_line(files, server):
    assert "no such directory" in refused(files / "nothing", "--port", 0)
    in_use = refused(files / "named", "--port", server.port)
    assert f"127.0.0.1:{server.port}" in in_use
    assert "DISMEC_TOKEN" in refused(files / "named", "--port", 0, DISMEC_TOKEN=" ")


def test_long_texts_of_character_terms_are_not_marked(tmp_path):
    params, text = TrainingParams(tfidf=True), TextParams(char_ngrams=(2, 3))
    fruit = [{"text": "one apple", "labels": ["fruit"]}, {"text": "a ship", "labels": ["ships"]}]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in fruit * 5))
    train_text(tmp_path / "texts.jsonl", tmp_path / "model", params, text)
    with serving(tmp_path, tmp_path / "model") as server:
        assert explain(server, text="apple " * 100, label="fruit")["highlights"]
        longer = explain(server, text="apple " * 17_000, label="fruit")
    assert longer["terms"]
    assert "highlights" not in longer


async def answered(app, path: str, body: bytes) -> int:
    """Send a POST request to an ASGI application, and return the status of its answer."""
    statuses = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        statuses.append(message.get("status"))

    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": [], "http_version": "1.1", "scheme": "http",
        "root_path": "", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    await app(scope, receive, send)
    return statuses[0]


def test_only_quick_requests_are_computed_in_the_event_loop(files, monkeypatch):
    """Others would keep health checks waiting; a quick one costs less than changing threads."""
    service = Service(files / "named", Limits())
    app = application(service, Settings(threads=2))
    where: list[bool] = []  # whether each request was computed in the event loop's thread
    seconds = 0.0

    def predict(body: bytes) -> tuple[bytes, int]:
        where.append(threading.current_thread() is threading.main_thread())
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass
        return b"{}", 1

    async def ask(times: int, body: int | bytes) -> list[bool]:
        where.clear()
        for _ in range(times):
            content = b" " * body if isinstance(body, int) else body
            assert await answered(app, "/predict", content) == 200
        return where.copy()

    monkeypatch.setattr(service, "predict", predict)
    assert asyncio.run(ask(5, 100)) == [True] * 5
    assert asyncio.run(ask(2, 1 << 15)) == [False] * 2  # large ones may take long
    seconds = 0.05
    assert asyncio.run(ask(5, 100)) == [True] + [False] * 4
    seconds = 0.0
    assert asyncio.run(ask(100, 100))[-1]  # quick again
    rows = b'{"rows": [' + b"{}, " * 3000
    assert asyncio.run(ask(1, rows[:100])) == [True]
    assert asyncio.run(ask(1, rows)) == [False]  # though short
