"""The contract and the served model → the OpenAPI document, with examples to send."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from dismec.model.model import Model
from dismec.serve.contract import (
    LARGEST,
    Contract,
    Limits,
    Schema,
    either,
    object_of,
    ref,
    typed,
)

__all__ = ["Interface", "openapi"]

_QUERY = {"search": "a", "limit": 5, "node": 0, "start": 0}


@dataclass(frozen=True)
class Interface:
    """What the served model accepts and returns."""

    labels: int
    features: int  # sparse features, or terms
    dense: int = 0
    texts: bool = False
    names: bool = False  # whether labels have names
    probabilities: bool = False
    hierarchy: bool = False  # whether the server has a hierarchy of the labels

    @classmethod
    def of(cls, model: Model, *, hierarchy: bool = False) -> Interface:
        """Create the interface of a model."""
        texts, probabilities = model.vocabulary is not None, model.calibration is not None
        sizes = model.n_labels, model.n_features, model.n_dense
        return cls(*sizes, texts, model.names is not None, probabilities, hierarchy)

    @property
    def takes(self) -> str:
        """Describe a row in words."""
        parts = []
        if self.texts:
            parts.append("texts")
        elif self.features:
            parts.append(f"rows of {self.features:,} sparse features")
        if self.dense:
            parts.append(f"{self.dense:,} dense features")
        return " with ".join(parts)


def openapi(contract: Contract, version: str, guarded: bool, served: Interface) -> dict[str, Any]:
    """Return the OpenAPI description of a model; `guarded` means that a token is required."""
    schemas, bodies = _schemas_for(contract, served)
    components: dict[str, Any] = {"schemas": schemas}
    if guarded:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    paths: dict[str, Any] = {}
    for path, method, summary, errors in _operations(contract, guarded, served):
        answer = contract.answers[path]
        content = {"text/plain": {"schema": answer}} if "type" in answer else _json(answer)
        responses = {"200": {"description": "Done.", "content": content}}
        for status, reason in sorted(errors.items()):
            responses[status] = {"description": reason, "content": _json(ref("Error"))}
        operation: dict[str, Any] = {"summary": summary, "responses": responses}
        if path in bodies:
            content = _json(bodies[path])
            content["application/json"]["examples"] = _examples(path, served, contract.limits)
            operation["requestBody"] = {"required": True, "content": content}
        if path in contract.queries:
            operation["parameters"] = [
                {"name": key, "in": "query", "schema": schema, "example": _QUERY[key]}
                for key, schema in contract.queries[path].items()
            ]
        if guarded and not path.startswith("/health"):
            operation["security"] = [{"token": []}]
        paths[path] = {method: operation}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dismec",
            "version": version,
            "description": f"Predict the best of {served.labels:,} labels for {served.takes}.",
        },
        "paths": paths,
        "components": components,
    }


def _operations(
    contract: Contract, guarded: bool, served: Interface
) -> list[tuple[str, str, str, dict[str, str]]]:
    """Return path, method, summary and possible errors of all requests for this model."""
    limits = contract.limits
    unready = {"503": "Predictions are not available now; the answer has the reason."}
    busy = {"503": "Predictions are not available, or the queue is full: see Retry-After."}
    locked = {"401": "The token is missing or wrong."} if guarded else {}
    too_large = f"The body has more than {limits.body} bytes"
    refused = {
        "400": "The request is malformed.",
        "408": "The body did not arrive in time.",
        "413": f"{too_large}, or the texts more than {limits.characters} characters."
        if served.texts
        else f"{too_large}.",
        **busy,
        **locked,
    }
    if served.texts:
        refused["422"] = 'The model takes texts, but the request has features without "numeric".'
    a_text = "Get a stored training text, or one made of words that raise some scores."
    found = [("/predict", "post", "Predict the best labels for one or many rows.", refused)]
    what = "Explain the score and the rank of a label."
    found.append(("/explain", "post", what, refused))
    searched = {"400": refused["400"], **busy, **locked}
    found.append(("/labels", "get", "Search labels by part of their names.", searched))
    if served.texts:
        found.append(("/example", "get", a_text, busy | locked))
    if served.hierarchy:
        found.append(("/tree", "get", "Browse or search the hierarchy of labels.", searched))
    found += [
        ("/model", "get", "Describe the served model.", locked),
        ("/metrics", "get", "Get metrics in Prometheus text format.", locked),
        ("/health", "get", "Same as /health/ready.", unready),
        ("/health/live", "get", "Check that the server process is running.", {}),
        ("/health/ready", "get", "Check that predictions are possible now.", unready),
    ]
    if guarded:
        failed = {"500": "The model could not be opened; the old one is still served.", **locked}
        found.append(("/reload", "post", "Reload the model directory.", failed))
    return found


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _schemas_for(contract: Contract, served: Interface) -> tuple[Schema, dict[str, Schema]]:
    """Return the schemas of this model's requests and answers, and the bodies by path."""
    general = deepcopy(contract.schemas)
    row = {"features": _pairs_of(general["Row"]["properties"]["features"], served.features)}
    text = {"text": general["TextRow"]["properties"]["text"] | {"description": "The text."}}
    dense: Schema = {}
    if served.dense:
        exactly = {"minItems": served.dense, "maxItems": served.dense}
        about = f"All {served.dense:,} dense features, in order."
        given = general["DenseRow"]["properties"]["dense"]
        dense = {"dense": given | exactly | {"description": about}}
    options = _options_for(general, served)
    question = {key: general["RowAndLabel"]["properties"][key] for key in ("label", "limit")}
    question["label"] |= {"oneOf": _label_kinds(served)}
    numeric = general["OneRow"]["properties"]["numeric"]
    must = {"numeric": numeric | {"enum": [True]}} if served.texts else {"numeric": numeric}
    must_not = {"numeric": numeric | {"enum": [False]}}
    # The schemas of a row by name: alone, in a list, and with a label.
    kinds: list[tuple[str, Schema, Schema, Schema]] = []
    if served.texts:
        kinds.append(("Text", text | dense, {}, must_not))
    if served.features:
        kinds.append(("Row", row | dense, must, must))
    if not kinds:
        kinds.append(("Dense", dense, {}, {"numeric": numeric}))
    found: Schema = {}
    asked_by: dict[str, list[str]] = {"/predict": [], "/explain": []}
    for kind, parts, alone, many in kinds:
        one = kind if kind == "Row" else f"{kind}Row"
        asked = ["numeric"] if served.texts and kind == "Row" else []
        found[one] = object_of(parts, *parts)
        found[f"One{kind}"] = object_of(parts | options | alone, *parts, *asked)
        rows = general["ManyRows"]["properties"]["rows"] | {"items": ref(one)}
        rows = {key: value for key, value in rows.items() if key != "description"}
        found[f"Many{kind}s"] = object_of(options | many | {"rows": rows}, "rows", *asked)
        asked_by["/predict"] += f"One{kind}", f"Many{kind}s"
        found[f"{kind}AndLabel"] = object_of(question | parts | alone, *parts, "label", *asked)
        asked_by["/explain"].append(f"{kind}AndLabel")
    bodies = {path: either(*names) for path, names in asked_by.items()}
    others = ["Labels", "Example", "Model", "Health", "Error"]
    others += ["Node", "Nodes"] if served.hierarchy else []
    found |= {name: general[name] for name in others}
    found |= _answers_for(general, served)
    return {name: _in_json_schema(schema) for name, schema in found.items()}, bodies


def _pairs_of(given: Schema, features: int) -> Schema:
    feature = typed("integer", minimum=0, maximum=max(features - 1, 0))
    value = typed("number", minimum=-LARGEST, maximum=LARGEST)
    return {key: given[key] for key in given if key != "example"} | {
        "description": f"Pairs [feature id, value]; ids from 0 to {features - 1}, each once, in "
        "any order.",
        "items": typed("array", prefixItems=[feature, value], minItems=2, maxItems=2),
        "maxItems": features,
    }


def _label_kinds(served: Interface) -> list[Schema]:
    what = "The name of a label." if served.names else "The id of a label as text."
    number = typed("integer", "The id of a label.", minimum=0, maximum=served.labels - 1)
    return [number, typed("string", what)]


def _options_for(general: Schema, served: Interface) -> Schema:
    """Return the options of a prediction, besides the row."""
    known = general["OneText"]["properties"]
    options = {key: known[key] for key in ("k", "threshold", "rank")}
    if not served.probabilities:
        options["rank"] |= {"enum": ["score"], "description": "How labels are ranked."}
        options["threshold"] |= {"description": "Omit labels with a score below this."}
    options |= {key: known[key] for key in ("only", "exclude", "prefix")}
    for key in ("only", "exclude"):
        options[key] |= {"items": {"oneOf": _label_kinds(served)}}
    if served.hierarchy:
        options["below"] = known["below"]
    return options


def _answers_for(general: Schema, served: Interface) -> Schema:
    """Return predictions and explanations: fields that this model always or sometimes returns."""
    best, explanation = general["Best"], general["Explanation"]
    always = ["names"] if served.names else []
    always.append("probabilities" if served.probabilities else "scores")
    always += ["paths"] if served.hierarchy else []
    never = {"names", "probabilities", "paths"} - {*always}
    properties = {key: value for key, value in best["properties"].items() if key not in never}
    found = {"Best": object_of(properties, "labels", *always), "BestOfRows": general["BestOfRows"]}
    said = [*(["name"] if served.names else []), *(["embedding"] if served.dense else [])]
    said += ["probability"] if served.probabilities else []
    said += ["path"] if served.hierarchy else []
    never = {"name", "embedding", "probability", "path"} - {*said}
    never |= set() if served.texts else {"highlights"}
    given = explanation["properties"]
    properties = {key: value for key, value in given.items() if key not in never}
    found["Explanation"] = object_of(properties, *explanation["required"], *said)
    return found


def _in_json_schema(schema: Any) -> Any:
    """Replace ``nullable`` by its OpenAPI 3.1 equivalent."""
    if isinstance(schema, list):
        return [_in_json_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _in_json_schema(part) for key, part in schema.items() if key != "nullable"}
    if schema.get("nullable") is True:
        found["type"] = [schema["type"], "null"]
    return found


def _examples(path: str, served: Interface, limits: Limits) -> dict[str, Any]:
    """Return bodies that can be sent as they are, by purpose."""
    row: dict[str, Any] = {}
    other: dict[str, Any] = {}
    if served.texts:
        half = limits.characters // 2
        row, other = {"text": "What is this about?"[:half]}, {"text": "And this one?"[:half]}
    elif served.features:
        row = {"features": [[0, 1.0], [1, 0.5]][: served.features]}
        other = {"features": [[served.features - 1, 1.0]]}
    if served.dense:
        row |= {"dense": [0.5] * served.dense}
        other |= {"dense": [-0.5] * served.dense}
    if path == "/explain":
        bodies = {"Explain a label": row | {"label": 0, "limit": 5}}
    else:
        k = {"k": min(3, limits.k)}
        bodies = {
            "One row": row | k,
            "Many rows": {"rows": [row, other][: limits.rows]} | k,
            "By score": row | k | {"rank": "score"},
        }
        bodies["Among some labels"] = row | k | {"exclude": [0]}
    return {name: {"value": body} for name, body in bodies.items()}
