"""The OpenAPI document and the checks of requests agree, and answers conform to it."""

from __future__ import annotations

import copy
import json
import re
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import random_problem
from dismec import DataError, TrainingParams, open_model
from dismec.serve.contract import Contract, Limits, openapi
from dismec.serve.request_rows import LongTexts, parse
from dismec.training.train import fit
from servers import serving

LIMITS = Limits(rows=3, characters=20, k=7)
PATHS = ["/predict", "/explain"]
KINDS = ["texts", "numbers", "dense", "both"]
TYPES = {
    "integer": int,
    "number": (int, float),
    "string": str,
    "boolean": bool,
    "array": list,
    "object": dict,
}
ABOUT = {"description", "title", "format", "example", "default"}  # keywords that reject nothing


class Described:
    """A model and its OpenAPI document."""

    def __init__(self, model):
        self.model = model
        self.contract = Contract(LIMITS, model)
        self.document = json.loads(json.dumps(openapi(self.contract, "1", True)))

    def body(self, path):
        content = self.document["paths"][path]["post"]["requestBody"]["content"]
        return content["application/json"]["schema"]

    def resolved(self, schema):
        return self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]

    def satisfies(self, schema, value):
        """Whether a value satisfies a schema; keywords that are unknown here are an error."""
        if "$ref" in schema:
            return self.satisfies(self.resolved(schema), value)
        if "oneOf" in schema:
            assert schema.keys() <= {"oneOf"} | ABOUT
            return sum(self.satisfies(one, value) for one in schema["oneOf"]) == 1
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if value is None:
            return "null" in kinds
        kind = kinds[0]
        if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
            return False
        properties = schema.get("properties", {})
        tests = {
            "type": lambda _: True,
            "enum": lambda allowed: value in allowed,
            "minimum": lambda least: value >= least,
            "maximum": lambda most: value <= most,
            "minItems": lambda least: len(value) >= least,
            "maxItems": lambda most: len(value) <= most,
            "maxLength": lambda most: len(value) <= most,
            "items": lambda items: all(self.satisfies(items, item) for item in value),
            "prefixItems": lambda parts: all(map(self.satisfies, parts, value)),
            "required": lambda keys: value.keys() >= set(keys),
            "additionalProperties": lambda more: more or value.keys() <= properties.keys(),
            "properties": lambda _: all(
                self.satisfies(properties[key], value[key])
                for key in value.keys() & properties.keys()
            ),
        }
        return all(tests[word](schema[word]) for word in schema.keys() - ABOUT)

    def is_as_said_in_words(self, request):
        """Check what only descriptions say: ids, kinds, lengths, labels and probabilities."""
        rows = request.get("rows", [request])
        kinds = {"text" if "text" in row else "features" for row in rows}
        if len(kinds) > 1 or ("text" in kinds and request.get("numeric")):
            return False
        if self.model.vocabulary and "features" in kinds and not request.get("numeric"):
            return False
        for row in rows:
            ids = [pair[0] for pair in row.get("features", [])]
            if len(set(ids)) < len(ids):
                return False
        if sum(len(row.get("text", "")) for row in rows) > LIMITS.characters:
            return False
        named = [*(request.get("only") or ()), *(request.get("exclude") or ())]
        named += [request["label"]] if "label" in request else []
        if not all(self.knows(label) for label in named):
            return False
        if request.get("rank") == "score" or self.model.calibration is None:
            return True
        least = request.get("threshold")
        return least is None or 0 <= least <= 1

    def knows(self, label):
        if isinstance(label, int):
            return 0 <= label < self.model.n_labels
        label = label.strip()
        if self.model.names is not None:
            return label in [*self.model.names]
        return bool(re.fullmatch(r"\d{1,20}", label)) and int(label) < self.model.n_labels

    def accepts(self, path, request):
        """Whether the server accepts the request."""
        try:
            _, checked = parse(path, json.dumps(request).encode(), self.contract)
            if path == "/explain":
                self.model.find_label(checked["label"])
            else:
                self.model.select_labels(checked["only"], checked["exclude"])
        except DataError:
            return False
        return True

    def instances(self, schema):
        """Generate JSON that satisfies a schema, and what descriptions say about pairs."""
        if "$ref" in schema:
            return self.instances(self.resolved(schema))
        if "oneOf" in schema:
            return st.one_of([self.instances(one) for one in schema["oneOf"]])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        least, most = schema.get("minimum"), schema.get("maximum")
        match kinds[0]:
            case "integer":
                found = st.integers(least, most)
            case "number":
                found = st.floats(least, most, allow_nan=False) | st.integers(-9, 9)
            case "boolean":
                found = st.booleans()
            case "string":
                found = st.text(max_size=5)
            case "array" if schema.get("format") == "pairs":
                number, value = map(self.instances, schema["items"]["prefixItems"])
                found = st.dictionaries(number, value, max_size=3).map(
                    lambda row: [list(pair) for pair in row.items()]
                )
            case "array":
                sizes = schema.get("minItems", 0), min(schema["maxItems"], 5)
                items = self.instances(schema["items"])
                found = st.lists(items, min_size=sizes[0], max_size=sizes[1])
            case "object":
                parts = {key: self.instances(part) for key, part in schema["properties"].items()}
                required = {key: parts.pop(key) for key in schema["required"]}
                found = st.fixed_dictionaries(required, optional=parts)
        return found | st.none() if "null" in kinds else found


@pytest.fixture(scope="module")
def described(text_files):
    """All kinds of models, with all of their abilities."""
    X, Y = random_problem()
    E = np.random.default_rng(0).standard_normal((60, 2)).astype(np.float32)
    calibrated = TrainingParams(calibrate=True)
    models = {
        "texts": open_model(text_files / "calibrated"),
        "numbers": fit(X, Y),
        "dense": fit([E], sp.csr_array(E > 0.5), calibrated),
        "both": fit([X[:60], E], sp.csr_array(E > 0.5)),
    }
    return {kind: Described(model) for kind, model in models.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", PATHS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_every_request_that_the_document_allows_is_accepted(described, path, kind, data):
    one = described[kind]
    request = data.draw(one.instances(one.body(path)))
    assert one.satisfies(one.body(path), request)
    assert one.accepts(path, request) == one.is_as_said_in_words(request)


DENSE = {"dense": [0.5, 1]}
ROW, TEXT_ROW = {"features": [[0, 1.5], [3, 2]]}, {"text": "apple"}
OPTIONS = {"k": 2, "threshold": 0.5, "only": [0, 1], "exclude": [], "prefix": "f"}
QUESTION = {"label": 1, "limit": 3}
NUMERIC = {"numeric": True}
COMPLETE = [
    (kind, path, request)
    for kind, row, said in (
        ("texts", TEXT_ROW, {}),
        ("texts", ROW, NUMERIC),
        ("numbers", ROW, {}),
        ("dense", DENSE, {}),
        ("both", ROW | DENSE, {}),
    )
    for path, request in (
        ("/predict", row | OPTIONS | said),
        ("/predict", {"rows": [row, row]} | OPTIONS | said),
        ("/explain", row | QUESTION | said),
    )
]
KEYS = {"features", "text", "rows", "k", "threshold", "rank", "label", "limit", "numeric", "K"}
KEYS |= {"only", "exclude", "prefix", "below", "dense"}
ODD = [None, True, False, 0, -1, 1, 8, 1001, 2.0, 0.5, 1e39, -1e39, 10**400, "score", "luck", ""]
ODD += [[], {}, [[0, 1]], [[0.5, 1]], [[0, 1], [0, 2]], [[9999, 1]], [[0]], [[0, 1, 2]], [0, 1]]
ODD += [TEXT_ROW, ROW, TEXT_ROW | ROW, [TEXT_ROW], [ROW], [ROW, TEXT_ROW], [ROW] * 4, "x" * 21]
ODD += [[TEXT_ROW | DENSE], [DENSE], [ROW | DENSE], [0.5], [0.5, "1"], ["fruit"]]
MISSING = object()


def places(value):
    """Yield where a request can be changed: every list and object, with an index or key."""
    keys = KEYS | value.keys() if isinstance(value, dict) else range(len(value))
    for key in sorted(keys):
        yield value, key
        if isinstance(value, list) or key in value:
            inner = value[key]
            yield from places(inner) if isinstance(inner, dict | list) else ()


@pytest.mark.parametrize(("kind", "path", "complete"), COMPLETE)
def test_a_request_with_one_change_is_accepted_only_if_the_document_allows_it(
    described, kind, path, complete
):
    one = described[kind]
    request = copy.deepcopy(complete)
    accepted = []
    for container, key in list(places(request)):
        before = copy.copy(container)
        for value in [MISSING, *ODD]:
            if value is not MISSING:
                container[key] = value
            elif key in container or isinstance(container, list):
                del container[key]
            allowed = one.satisfies(one.body(path), request) and one.is_as_said_in_words(request)
            assert one.accepts(path, request) == allowed, request
            accepted.append(allowed)
            container.clear()
            container.update(before) if isinstance(before, dict) else container.extend(before)
    assert request == complete
    assert {*accepted} == {True, False}


@pytest.mark.parametrize(("kind", "path", "complete"), COMPLETE)
def test_missing_values_get_the_defaults_of_the_document(described, kind, path, complete):
    contract = described[kind].contract
    row = {key: complete[key] for key in ("text", "features", "dense", "rows") if key in complete}
    given = row | ({"label": 0} if path == "/explain" else {})
    schema = next(
        schema
        for name, schema in contract.schemas.items()
        if name.startswith(("One", "Many")) == (path == "/predict")
        and {*schema["required"]} == given.keys()
        and name not in ("Row", "TextRow", "DenseRow", "BestOfRows")
    )
    checked = contract.check(path, given)
    assert checked.keys() == schema["properties"].keys()
    for key in checked.keys() - given.keys():
        assert checked[key] == schema["properties"][key].get("default")


def test_texts_that_are_too_long_together_are_refused_with_both_numbers(described):
    one, reason = described["texts"], "the texts have 21 characters; at most 20 per request"
    for path, request in (
        ("/predict", {"text": "é" * 21}),
        ("/predict", {"rows": [{"text": "🎉" * 10}, {"text": "a" * 11}]}),
        ("/explain", {"text": "a" * 21, "label": 0}),
    ):
        with pytest.raises(LongTexts, match=reason):
            parse(path, json.dumps(request).encode(), one.contract)
    parse("/predict", json.dumps({"text": "🎉" * 20}).encode(), one.contract)


def test_the_document_describes_the_model_that_is_served(described):
    schemas = {kind: one.document["components"]["schemas"] for kind, one in described.items()}
    assert {
        kind: sorted(name for name in found if name.endswith("Row"))
        for kind, found in schemas.items()
    } == {
        "texts": ["OneRow", "Row", "TextRow"],
        "numbers": ["OneRow", "Row"],
        "dense": ["DenseRow"],
        "both": ["OneRow", "Row"],
    }
    pair = schemas["numbers"]["Row"]["properties"]["features"]["items"]["prefixItems"]
    assert (pair[0]["minimum"], pair[0]["maximum"]) == (0, 79)
    assert schemas["both"]["Row"]["required"] == ["features", "dense"]
    dense = schemas["dense"]["OneDense"]["properties"]["dense"]
    assert (dense["minItems"], dense["maxItems"]) == (2, 2)
    assert schemas["texts"]["OneText"]["properties"]["k"]["maximum"] == LIMITS.k
    assert schemas["texts"]["Best"]["required"] == ["labels", "names", "probabilities"]
    assert schemas["numbers"]["Best"]["required"] == ["labels", "scores"]
    assert "probabilities" not in schemas["numbers"]["Best"]["properties"]
    assert "/example" in described["texts"].document["paths"]
    assert "/example" not in described["numbers"].document["paths"]
    about = {kind: one.document["info"]["description"] for kind, one in described.items()}
    assert about["texts"] == "Predict the best of 6 labels for texts."
    assert about["both"].endswith("for rows of 80 sparse features with 2 dense features.")


def test_a_hierarchy_is_in_the_document_if_the_server_has_one(described):
    for hierarchy in (True, False):
        contract = Contract(Limits(), described["numbers"].model, hierarchy=hierarchy)
        document = openapi(contract, "1", False)
        schemas = document["components"]["schemas"]
        assert ("below" in schemas["OneRow"]["properties"]) == hierarchy
        assert ("paths" in schemas["Best"]["required"]) == hierarchy
        assert ("/tree" in document["paths"]) == hierarchy


@pytest.mark.parametrize("features", [1, 2, 3])
def test_examples_fit_small_models_and_tight_limits(features):
    X, Y = random_problem(features=features)
    model = fit(X, Y)
    contract = Contract(Limits(rows=1, characters=1, k=1), model)
    document = openapi(contract, "1", False)
    for path in PATHS:
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        for example in content["examples"].values():
            parse(path, json.dumps(example["value"]).encode(), contract)


@pytest.mark.parametrize("hierarchy", [True, False])
def test_answers_conform_to_the_document(text_files, tmp_path, hierarchy):
    (tmp_path / "tree.tsv").write_text("fruit\tfood\n")
    options = ["--hierarchy", str(tmp_path / "tree.tsv")] if hierarchy else []
    body = json.dumps({"text": "One apple", "label": 0})
    asked = {
        "/predict": ['{"text": "apple"}', '{"rows": [{"text": ""}, {"text": "pear"}]}', "{}", body],
        "/explain": [body, '{"text": ""}', "[]"],
    }
    token = {"Authorization": "Bearer a secret"}
    seen = set()
    one = Described(open_model(text_files / "calibrated"))
    with serving(text_files, text_files / "calibrated", *options, token="a secret") as server:
        document = one.document = server.ask("GET", "/openapi.json")[2]
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                for headers, given_body in product((token, {}), asked.get(path, [None])):
                    answer = server.ask(method.upper(), path, given_body, headers)
                    content = operation["responses"][str(answer[0])]["content"]
                    kind = answer[1]["Content-Type"].partition(";")[0]
                    assert one.satisfies(content[kind]["schema"], answer[2]), answer
                    seen.add((path, answer[0]))
    assert ("/tree" in document["paths"]) == hierarchy
    assert {path for path, status in seen if status == 200} == document["paths"].keys()
    assert {status for _, status in seen} == {200, 400, 401}
