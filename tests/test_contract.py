"""The OpenAPI document and the check of requests say the same, and answers keep to it."""

from __future__ import annotations

import copy
import json
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from dismec import DataError, TrainingParams, open_model
from dismec.serve.contract import Contract, Limits
from dismec.serve.description import openapi
from dismec.serve.queries import parse
from dismec.training.recipe import fit
from servers import serving

CONTRACT = Contract(Limits(rows=3, k=7))
DOCUMENT = json.loads(json.dumps(openapi(CONTRACT, "1", guarded=True)))
PATHS = ["/predict", "/explain"]
N_FEATURES = 20  # at least, of the model
TYPES = {
    "integer": int,
    "number": (int, float),
    "string": str,
    "boolean": bool,
    "array": list,
    "object": dict,
}
ABOUT = {"description", "title", "format", "example", "default"}  # words that refuse nothing


def body_schema(path):
    return DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]


def resolved(schema):
    return DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]


def satisfies(schema, value):
    """Whether JSON is as the schema says; a word that is not known here is an error."""
    if "$ref" in schema:
        return satisfies(resolved(schema), value)
    if "oneOf" in schema:
        assert schema.keys() <= {"oneOf"} | ABOUT
        return sum(satisfies(one, value) for one in schema["oneOf"]) == 1
    if value is None:
        return schema.get("nullable", False)
    kind = schema["type"]
    if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    properties = schema.get("properties", {})
    tests = {
        "type": lambda _: True,
        "nullable": lambda _: True,
        "enum": lambda allowed: value in allowed,
        "minimum": lambda least: value >= least,
        "maximum": lambda most: value <= most,
        "minItems": lambda least: len(value) >= least,
        "maxItems": lambda most: len(value) <= most,
        "items": lambda items: all(satisfies(items, item) for item in value),
        "required": lambda keys: value.keys() >= set(keys),
        "additionalProperties": lambda more: more or value.keys() <= properties.keys(),
        "properties": lambda _: all(
            satisfies(properties[key], value[key]) for key in value.keys() & properties.keys()
        ),
    }
    return all(tests[word](schema[word]) for word in schema.keys() - ABOUT)


def is_as_said_in_words(request, n_features):
    """What descriptions say and schemas cannot: of ids, kinds of rows, and probabilities.

    The model is one of texts, without dense features.
    """
    rows = request.get("rows", [request])
    if any("dense" in row for row in rows):
        return False
    if len({"text" in row for row in rows}) > 1:
        return False
    if rows and request.get("numeric", False) == ("text" in rows[0]):
        return False
    for row in rows:
        ids = [pair[0] for pair in row.get("features", [])]
        known = all(type(i) is int and 0 <= i < n_features for i in ids)
        if not known or len(set(ids)) < len(ids):
            return False
    least = request.get("threshold")
    return request.get("rank") == "score" or least is None or 0 <= least <= 1


def instances(schema):
    """JSON that satisfies a schema, and what is said in words of pairs and rows."""
    if "$ref" in schema:
        return instances(resolved(schema))
    if "oneOf" in schema:
        return st.one_of([instances(one) for one in schema["oneOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    least, most = schema.get("minimum"), schema.get("maximum")
    match schema["type"]:
        case "integer":
            found = st.integers(least, most)
        case "number":
            found = st.floats(least, most, allow_nan=False) | st.integers(-9, 9)
        case "boolean":
            found = st.booleans()
        case "string":
            found = st.text(max_size=5)
        case "array" if schema.get("format") == "pairs":
            value = instances(schema["items"]["items"])
            found = st.dictionaries(st.integers(0, N_FEATURES - 1), value, max_size=3).map(
                lambda row: [list(pair) for pair in row.items()]
            )
        case "array" if schema.get("format") == "numbers":
            found = st.lists(instances(schema["items"]), max_size=3)
        case "array":
            found = st.one_of(
                [
                    st.lists(instances(one), max_size=schema["maxItems"])
                    for one in schema["items"]["oneOf"]
                ]
            )
        case "object":
            parts = {key: instances(value) for key, value in schema["properties"].items()}
            required = {key: parts.pop(key) for key in schema["required"]}
            found = st.fixed_dictionaries(required, optional=parts)
    return found | st.none() if schema.get("nullable") else found


@pytest.fixture(scope="module")
def model(text_files):
    """One that does all that can be asked."""
    opened = open_model(text_files / "calibrated")
    assert opened.n_features >= N_FEATURES
    return opened


@pytest.fixture(scope="module")
def dense_model():
    """One that takes dense features only, and does all else."""
    E = np.random.default_rng(0).standard_normal((60, 2)).astype(np.float32)
    return fit([E], sp.csr_array(E > 0.5), TrainingParams(calibrate=True))


def is_accepted(path, request, model):
    try:
        parse(path, json.dumps(request).encode(), model, CONTRACT)
    except DataError:
        return False
    return True


INSTANCES = {path: instances(body_schema(path)) for path in PATHS}


@pytest.mark.parametrize("path", PATHS)
@settings(deadline=None)
@given(data=st.data())
def test_every_request_that_the_document_allows_is_accepted(model, path, data):
    request = data.draw(INSTANCES[path])
    assert satisfies(body_schema(path), request)
    assert is_accepted(path, request, model) == is_as_said_in_words(request, model.n_features)


ROW, TEXT_ROW = {"features": [[0, 1.5], [3, 2]]}, {"text": "apple"}
OPTIONS = {"k": 2, "threshold": 0.5, "rank": "probability"}
OPTIONS |= {"only": [0, "fruit"], "exclude": [], "prefix": "f", "below": "food"}
QUESTION = {"label": 1, "limit": 3}
KINDS = [(ROW, {"numeric": True}), (TEXT_ROW, {})]
COMPLETE = [
    *(("/predict", row | OPTIONS | numeric) for row, numeric in KINDS),
    *(("/predict", {"rows": [row, row]} | OPTIONS | numeric) for row, numeric in KINDS),
    *(("/explain", row | QUESTION | numeric) for row, numeric in KINDS),
]
KEYS = {"features", "text", "rows", "k", "threshold", "rank", "label", "limit", "numeric", "K"}
KEYS |= {"only", "exclude", "prefix", "below", "dense"}
ODD = [None, True, False, 0, -1, 1, 8, 1001, 2.0, 0.5, 1e39, -1e39, 10**400, "score", "luck", ""]
ODD += [[], {}, [[0, 1]], [[0.5, 1]], [[0, 1], [0, 2]], [[9999, 1]], [[0]], [[0, 1, 2]], [0, 1]]
ODD += [TEXT_ROW, ROW, TEXT_ROW | ROW, [TEXT_ROW], [ROW], [ROW, TEXT_ROW], [ROW] * 4]
MISSING = object()


def places(value):
    """Where a request can be changed: in every list and object, by an index or a key."""
    keys = KEYS | value.keys() if isinstance(value, dict) else range(len(value))
    for key in sorted(keys):
        yield value, key
        if isinstance(value, list) or key in value:
            inner = value[key]
            yield from places(inner) if isinstance(inner, dict | list) else ()


@pytest.mark.parametrize(("path", "complete"), COMPLETE)
def test_request_with_one_change_is_accepted_just_if_the_document_allows_it(model, path, complete):
    request = copy.deepcopy(complete)
    accepted = []
    for container, key in list(places(request)):
        before = copy.copy(container)
        for value in [MISSING, *ODD]:
            if value is not MISSING:
                container[key] = value
            elif key in container or isinstance(container, list):
                del container[key]
            allowed = satisfies(body_schema(path), request)
            allowed = allowed and is_as_said_in_words(request, model.n_features)
            assert is_accepted(path, request, model) == allowed, request
            accepted.append(allowed)
            container.clear()
            container.update(before) if isinstance(before, dict) else container.extend(before)
    assert request == complete
    assert {*accepted} == {True, False}


def kinds_with_keys():
    for path in PATHS:
        for kind in body_schema(path)["oneOf"]:
            for key in resolved(kind)["properties"]:
                yield path, kind["$ref"].rpartition("/")[2], key


@pytest.mark.parametrize(("path", "kind", "key"), [*kinds_with_keys()])
def test_check_has_the_bounds_and_defaults_of_the_document(model, dense_model, path, kind, key):
    model = dense_model if "Dense" in kind else model
    schema = DOCUMENT["components"]["schemas"][kind]
    full = {"features": [[0, 1]], "text": "apple", "rows": [{"text": "apple"}], "label": 0}
    full |= {"only": [0], "exclude": ["fruit"]}
    full["dense"] = [0.5, 1]
    request = {name: full[name] for name in schema["required"]}
    if key == "threshold":
        request["rank"] = "score"  # of which any number can be one
    if "features" in request and key != "numeric":
        request["numeric"] = True
    stated = schema["properties"][key]
    if key in request:
        del request[key]
        assert not is_accepted(path, request, model)
        request[key] = full[key]
    else:
        assert CONTRACT.check(path, request)[key] == stated.get("default")
    for word, beyond in (("minimum", -1), ("maximum", 1)):
        if word in stated:
            bound = stated[word]
            assert is_accepted(path, {**request, key: bound}, model)
            assert not is_accepted(path, {**request, key: bound + beyond * abs(bound)}, model)
    if "maxItems" in stated:
        assert is_accepted(path, {**request, key: full[key] * stated["maxItems"]}, model)
        assert not is_accepted(path, {**request, key: full[key] * (stated["maxItems"] + 1)}, model)


@pytest.mark.parametrize("hierarchy", [True, False])
def test_answers_are_as_the_document_says(text_files, tmp_path, hierarchy):
    (tmp_path / "tree.tsv").write_text("fruit\tfood\n")
    options = ["--hierarchy", str(tmp_path / "tree.tsv")] if hierarchy else []
    body = json.dumps({"text": "One apple", "label": 0})
    asked = {
        "/predict": ['{"text": "apple"}', '{"rows": [{"text": ""}, {"text": "pear"}]}', "{}", body],
        "/explain": [body, '{"text": ""}', "[]"],
    }
    token = {"Authorization": "Bearer a secret"}
    seen = set()
    with serving(tmp_path, text_files / "calibrated", *options, token="a secret") as server:
        document = server.ask("GET", "/openapi.json")[2]
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                for headers, given_body in product((token, {}), asked.get(path, [None])):
                    answer = server.ask(method.upper(), path, given_body, headers)
                    content = operation["responses"][str(answer[0])]["content"]
                    kind = answer[1]["Content-Type"].partition(";")[0]
                    assert satisfies(content[kind]["schema"], answer[2]), answer
                    seen.add((path, answer[0]))
    assert ("/tree" in document["paths"]) == hierarchy
    assert {path for path, status in seen if status == 200} == document["paths"].keys()
    assert {status for _, status in seen} == {200, 400, 401}
