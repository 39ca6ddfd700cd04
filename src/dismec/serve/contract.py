"""The requests and answers of the HTTP interface, stated once: a check and an OpenAPI document.

They are stated for the served model, as OpenAPI schemas, which begin with those of `schemas.json`:
`Contract.check` validates requests against them, and `openapi` publishes them.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from dismec.data.counts import counted
from dismec.errors import DataError
from dismec.model.model import Model

LARGEST = float(np.finfo(np.float32).max)  # largest magnitude of a number in a request

Schema = dict[str, Any]
_QUERY = {"search": "a", "limit": 5, "node": 0, "start": 0}  # examples

# What does not depend on the model: schemas of answers and queries, operations and their errors.
STATED: Schema = json.loads((files("dismec.serve") / "schemas.json").read_text("utf-8"))


@dataclass(frozen=True)
class Limits:
    """Limits on one request, and on all of them together."""

    body: int = 10_000_000  # bytes of a body
    rows: int = 1000  # rows per request
    characters: int = 1_000_000  # in all texts of a request
    k: int = 100  # labels per row
    queue: int = 100  # requests that may wait while all workers are busy


def _typed(kind: str, description: str | None = None, **more: Any) -> Schema:
    """Return the schema of a JSON type; errors refer to it by its `title`."""
    return {"type": kind, **more} | ({} if description is None else {"description": description})


def _object_of(properties: dict[str, Schema], *required: str) -> Schema:
    """Return the schema of an object; with required keys, no other keys are allowed."""
    closed: Schema = {"required": list(required), "additionalProperties": False} if required else {}
    return _typed("object", properties=properties, **closed)


def ref(name: str) -> Schema:
    """Return a reference to a schema by name."""
    return {"$ref": f"#/components/schemas/{name}"}


def _either(names: Collection[str]) -> Schema:
    """Return a choice between schemas by name."""
    return {"oneOf": [ref(name) for name in names]}


_FLOAT32 = _typed("number", minimum=-LARGEST, maximum=LARGEST)


def _options_of(limits: Limits, model: Model, hierarchy: bool) -> dict[str, Schema]:
    """Return the options of a prediction, besides the row."""
    ranks = ["score"] if model.calibration is None else ["score", "probability"]
    known = {"k": {"maximum": limits.k}, "rank": {"enum": ranks, "default": ranks[-1]}}
    return {
        key: schema | known.get(key, {})
        for key, schema in STATED["options"].items()
        if key != "below" or hierarchy
    }


def _rows_of(limits: Limits, model: Model) -> dict[str, dict[str, Schema]]:
    """Return the properties of a row, for each kind of row that the model accepts."""
    feature = _typed("integer", minimum=0, maximum=max(model.n_features - 1, 0))
    features = _typed(
        "array",
        f"Pairs [id, value]; ids from 0 to {model.n_features - 1}, each once, in any order.",
        title="a list of pairs [id, value]",
        format="pairs",
        items=_typed("array", prefixItems=[feature, _FLOAT32], minItems=2, maxItems=2),
        maxItems=model.n_features,
    )
    dense = _typed(
        "array",
        f"All of the {model.n_dense:,} dense features, in order.",
        title="a list of numbers",
        format="numbers",
        items=_FLOAT32,
        minItems=model.n_dense,
        maxItems=model.n_dense,
    )
    beside = {"dense": dense} if model.n_dense else {}
    kinds = {}
    if model.vocabulary is not None:
        kinds["Text"] = {"text": _typed("string", maxLength=limits.characters)}
        kinds["Text"] |= {} if model.encoder else beside
    if model.n_features or not model.n_dense:
        kinds["Row"] = {"features": features} | beside
    return kinds or {"Dense": beside}


def _with_parts(schema: Schema, parts: dict[str, bool]) -> Schema:
    """Return the schema of an answer in which each of the `parts` is always, or never."""
    kept = {key: v for key, v in schema["properties"].items() if parts.get(key, True)}
    always = [*schema["required"], *(key for key, there in parts.items() if there)]
    return schema | {"properties": kept, "required": always}


_TYPES = {"integer": (int,), "number": (int, float), "string": (str,), "boolean": (bool,)}


class Contract:
    """The requests and answers of a server; with a `hierarchy`, also those about it."""

    def __init__(self, limits: Limits, model: Model, *, hierarchy: bool = False) -> None:
        self.limits, self.model, self.hierarchy = limits, model, hierarchy
        kinds, options = _rows_of(limits, model), _options_of(limits, model, hierarchy)
        numeric = {"numeric": STATED["numeric"]} if "Row" in kinds else {}
        rows = [kind if kind == "Row" else f"{kind}Row" for kind in kinds]
        many = _typed(
            "array", "The rows, all of one kind.", maxItems=limits.rows, items=_either(rows)
        )
        self.schemas: dict[str, Schema] = {}  # requests and answers, by name
        for row, (kind, parts) in zip(rows, kinds.items(), strict=True):
            more = numeric if kind == "Row" else {}
            self.schemas |= {
                row: _object_of(parts, *parts),
                f"One{kind}": _object_of(parts | options | more, *parts),
                f"{kind}AndLabel": _object_of(STATED["question"] | parts | more, *parts, "label"),
            }
        self.schemas["ManyRows"] = _object_of(options | numeric | {"rows": many}, "rows")
        self.bodies = {  # request bodies, by path
            "/predict": _either([*(f"One{kind}" for kind in kinds), "ManyRows"]),
            "/explain": _either([f"{kind}AndLabel" for kind in kinds]),
        }
        self.queries = STATED["queries"]  # query parameters, by path
        named, calibrated = model.names is not None, model.calibration is not None
        best = {"names": named, "probabilities": calibrated, "paths": hierarchy}
        best |= {} if calibrated else {"scores": True}
        explanation = {"name": named, "embedding": model.n_dense > 0}
        explanation["own_text"] = model.parts.labels.texts is not None
        explanation |= {"probability": calibrated, "path": hierarchy}
        answers = STATED["answers"]
        self.schemas |= answers | {
            "Best": _with_parts(answers["Best"], best),
            "Explanation": _with_parts(answers["Explanation"], explanation),
        }
        self._kinds = {path: self._alternatives(body) for path, body in self.bodies.items()}

    def check(self, path: str, request: Any) -> dict[str, Any]:
        """Return the request with defaults; raise `DataError` if `path` does not accept it.

        Features are passed on unchanged: `dismec.serve.request_rows` reads and checks them.
        """
        if not isinstance(request, dict):
            raise DataError("the body is not a JSON object")
        kinds = self._kinds[path]
        _check_keys(request, {key for kind in kinds.values() for key in kind["properties"]})
        given = [key for key in kinds if key in request]
        if len(given) != 1:
            wanted = " or ".join(f'"{key}"' for key in kinds)
            raise DataError(f"the request needs {'either ' if len(kinds) > 1 else ''}{wanted}")
        return self._checked_object(kinds[given[0]], request)

    def check_query(self, path: str, given: Mapping[str, str]) -> dict[str, Any]:
        """Check the query parameters of an address in the same way."""
        known = self.queries[path]
        _check_keys(given, known)
        read: dict[str, Any] = dict(given)
        for key, value in given.items():
            if known[key]["type"] == "integer" and re.fullmatch(r"\d{1,9}", value):
                read[key] = int(value)
        return self._checked_object(_typed("object", properties=known, required=[]), read)

    def _alternatives(self, schema: Schema) -> dict[str, Schema]:
        """Return the alternatives of a schema by the key that only one of them has."""
        kinds = [self.schemas[kind["$ref"].rpartition("/")[2]] for kind in schema["oneOf"]]
        return {kind["required"][0]: kind for kind in kinds}

    def _checked_object(
        self, schema: Schema, given: dict[str, Any], row: int | None = None
    ) -> dict[str, Any]:
        _check_keys(given, schema["properties"], row)
        required = schema["required"]  # none is nullable: a missing value is rejected like null
        return {
            key: self._checked(key, value, given.get(key), row)
            if key in given or key in required
            else value.get("default")
            for key, value in schema["properties"].items()
        }

    def _checked(self, key: str, schema: Schema, value: Any, row: int | None) -> Any:
        if "array" not in schema.get("type", ()):
            if not _allows(schema, value):
                wanted = _expected(schema)
                raise DataError(f"{_named(key, row)} is {reprlib.repr(value)}; expected {wanted}")
            return value
        if value is None and "null" in schema["type"]:
            return None
        if not isinstance(value, list):
            raise DataError(f"{_named(key, row)} is not {schema.get('title', 'a list')}")
        kind, most = schema.get("format", "rows"), schema["maxItems"]
        if kind == "numbers" and len(value) != most:
            found = counted(len(value), "number")
            raise DataError(f"{_named(key, row)} has {found}; expected {most}")
        if kind in ("numbers", "pairs"):
            return value
        if len(value) > most:
            where = "" if kind == key else f' in "{key}"'
            raise DataError(f"{len(value)} {kind}{where}; at most {most} per request")
        if kind == "labels":
            for item in value:
                if not _allows(schema["items"], item):
                    shown = reprlib.repr(item)
                    raise DataError(f'"{key}" has {shown}; expected ids or names of labels')
            return value
        kinds = self._alternatives(schema["items"])
        first = value[0] if value and isinstance(value[0], dict) else {}
        one = next((key for key in kinds if key in first), next(iter(kinds)))  # all are of one kind
        for number, item in enumerate(value):
            if not isinstance(item, dict) or one not in item:
                raise DataError(f'row index {number} is not an object with "{one}"')
            self._checked_object(kinds[one], item, number)
        return value


def _check_keys(given: Mapping[str, Any], known: Collection[str], row: int | None = None) -> None:
    for key in given:
        if key not in known:
            where = "the request" if row is None else f"row index {row}"
            keys = ", ".join(sorted(known))
            raise DataError(f"{where} has an unknown key {reprlib.repr(key)}; known: {keys}")


def _named(key: str, row: int | None) -> str:
    return f'"{key}"' if row is None else f'row index {row}: "{key}"'


def _allows(schema: Schema, value: Any) -> bool:
    if "oneOf" in schema:
        return any(_allows(one, value) for one in schema["oneOf"])
    kind, *null = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if type(value) not in _TYPES[kind]:
        return value is None and bool(null)
    if "enum" in schema:
        return value in schema["enum"]
    return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))


def _expected(schema: Schema) -> str:
    if "enum" in schema:
        return " or ".join(f'"{value}"' for value in schema["enum"])
    if schema.get("type") == "integer":
        return f"{schema['minimum']} to {schema['maximum']}"
    return str(schema.get("title") or f"a {schema['type']}")


def openapi(contract: Contract, version: str, guarded: bool) -> dict[str, Any]:
    """Return the OpenAPI description of a model; `guarded` means that a token is required."""
    components: dict[str, Any] = {"schemas": contract.schemas}
    if guarded:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    model, paths = contract.model, {}
    lacking = {"/reload": not guarded, "/tree": not contract.hierarchy}
    lacking |= {"/example": model.vocabulary is None}
    for path, stated in STATED["operations"].items():
        if lacking.get(path):
            continue
        answer = stated["answer"]
        content = {"text/plain": {"schema": answer}} if "type" in answer else _json(answer)
        responses = {"200": {"description": "Done.", "content": content}}
        for status in stated["errors"]:
            if (status != "401" or guarded) and (status != "422" or model.vocabulary is not None):
                reason = {"description": STATED["errors"][status], "content": _json(ref("Error"))}
                responses[status] = reason
        operation: dict[str, Any] = {"summary": stated["summary"], "responses": responses}
        if path in contract.bodies:
            content = _json(contract.bodies[path])
            content["application/json"]["examples"] = _examples(path, contract)
            operation["requestBody"] = {"required": True, "content": content}
        if path in contract.queries:
            operation["parameters"] = [
                {"name": key, "in": "query", "schema": schema, "example": _QUERY[key]}
                for key, schema in contract.queries[path].items()
            ]
        if guarded and not path.startswith("/health"):
            operation["security"] = [{"token": []}]
        paths[path] = {stated["method"]: operation}
    about = f"Predict the best of {model.n_labels:,} labels for {_rows_in_words(model)}."
    return {
        "openapi": "3.1.0",
        "info": {"title": "dismec", "version": version, "description": about},
        "paths": paths,
        "components": components,
    }


def _rows_in_words(model: Model) -> str:
    parts = []
    if model.vocabulary is not None:
        parts.append("texts")
    elif model.n_features:
        parts.append(f"rows of {model.n_features:,} sparse features")
    if model.n_dense and not model.encoder:
        parts.append(counted(model.n_dense, "dense feature"))
    return " with ".join(parts)


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _examples(path: str, contract: Contract) -> dict[str, Any]:
    """Return bodies that can be sent as they are, by purpose."""
    limits, model = contract.limits, contract.model
    row: dict[str, Any] = {}
    other: dict[str, Any] = {}
    if model.vocabulary is not None:
        half = limits.characters // 2
        row, other = {"text": "What is this about?"[:half]}, {"text": "And this one?"[:half]}
    elif model.n_features:
        row = {"features": [[0, 1.0], [1, 0.5]][: model.n_features]}
        other = {"features": [[model.n_features - 1, 1.0]]}
    if model.n_dense and not model.encoder:
        row |= {"dense": [0.5] * model.n_dense}
        other |= {"dense": [-0.5] * model.n_dense}
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
