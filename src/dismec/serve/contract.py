"""The requests and answers of the HTTP interface, stated once: request → checked request.

They are stated in OpenAPI terms: `Contract.check` validates requests against them, and
`dismec.serve.description` publishes them.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Collection, Mapping
from typing import Any

from dismec.errors import DataError
from dismec.serve.schemas import SEARCH, STRING, Limits, Schema, either, ref, schemas_of, typed
from dismec.serve.tree import TREE_QUERY

__all__ = ["Contract", "Limits"]

_TYPES = {"integer": (int,), "number": (int, float), "string": (str,), "boolean": (bool,)}
_DENSE = "dense"


class Contract:
    """The requests and answers of a server; with a `hierarchy`, also those about it."""

    def __init__(self, limits: Limits, *, hierarchy: bool = False) -> None:
        self.limits = limits
        self.schemas = schemas_of(limits, hierarchy=hierarchy)  # requests and answers, by name
        self.bodies = {  # request bodies, by path
            "/predict": either("OneRow", "OneText", "ManyRows", "OneDense")
            | {"title": 'either "features", "text" or "dense" (a row), or "rows" (many)'},
            "/explain": either("RowAndLabel", "TextAndLabel", "DenseAndLabel")
            | {"title": 'either "features", "text" or "dense"'},
        }
        self.queries = {"/labels": SEARCH, "/tree": TREE_QUERY}  # query parameters, by path
        self.answers = {  # by path
            "/predict": either("Best", "BestOfRows"),
            "/explain": ref("Explanation"),
            "/labels": ref("Labels"),
            "/tree": ref("Nodes"),
            "/example": ref("Example"),
            "/model": ref("Model"),
            "/metrics": STRING,
            "/health": ref("Health"),
            "/health/live": ref("Health"),
            "/health/ready": ref("Health"),
            "/reload": ref("Model"),
        }
        self._kinds = {path: self._alternatives(body) for path, body in self.bodies.items()}

    def check(self, path: str, request: Any) -> dict[str, Any]:
        """Return the request with defaults; raise `DataError` if `path` does not accept it.

        Feature pairs are passed on unchanged: `dismec.serve.queries` reads and checks them.
        """
        if not isinstance(request, dict):
            raise DataError("the body is not a JSON object")
        kinds = self._kinds[path]
        _check_keys(request, {key for kind in kinds.values() for key in kind["properties"]})
        given = [key for key in kinds if key in request]
        if len(given) > 1:  # dense features are a row of their own only without other features
            given = [key for key in given if key != _DENSE]
        if len(given) != 1:
            raise DataError(f"the request needs {self.bodies[path]['title']}")
        return self._checked_object(kinds[given[0]], request)

    def check_query(self, path: str, given: Mapping[str, str]) -> dict[str, Any]:
        """Check the query parameters of an address in the same way."""
        known = self.queries[path]
        _check_keys(given, known)
        read: dict[str, Any] = dict(given)
        for key, value in given.items():
            if known[key]["type"] == "integer" and re.fullmatch(r"\d{1,9}", value):
                read[key] = int(value)
        return self._checked_object(typed("object", properties=known, required=[]), read)

    def _alternatives(self, schema: Schema) -> dict[str, Schema]:
        """Return the alternatives of a schema by the key that only one of them has."""
        kinds = [self.schemas[kind["$ref"].rpartition("/")[2]] for kind in schema["oneOf"]]
        return {kind["required"][0]: kind for kind in kinds}

    def _checked_object(self, schema: Schema, given: dict[str, Any]) -> dict[str, Any]:
        _check_keys(given, schema["properties"])
        required = schema["required"]  # none is nullable: a missing value is rejected like null
        return {
            key: self._checked(key, value, given.get(key))
            if key in given or key in required
            else value.get("default")
            for key, value in schema["properties"].items()
        }

    def _checked(self, key: str, schema: Schema, value: Any, row: int | None = None) -> Any:
        if schema.get("type") != "array":
            if not _allows(schema, value):
                wanted = _expected(schema)
                raise DataError(f"{_named(key, row)} is {reprlib.repr(value)}; expected {wanted}")
            return value
        if value is None and "nullable" in schema:
            return None
        if not isinstance(value, list):
            raise DataError(f"{_named(key, row)} is not {schema.get('title', 'a list')}")
        if len(value) > schema.get("maxItems", math.inf):
            counted = "labels" if schema.get("format") == "labels" else "rows"
            where = "" if counted == key else f' in "{key}"'
            most = schema["maxItems"]
            raise DataError(f"{len(value)} {counted}{where}; at most {most} per request")
        if schema.get("format") in ("pairs", "numbers"):
            return value
        if schema.get("format") == "labels":
            for item in value:
                if not _allows(schema["items"], item):
                    shown = reprlib.repr(item)
                    raise DataError(f'"{key}" has {shown}; expected ids or names of labels')
            return value
        kinds = self._alternatives(schema["items"])
        first = value[0] if value and isinstance(value[0], dict) else {}
        kind = next((key for key in kinds if key in first), "features")  # the kind of all rows
        properties = kinds[kind]["properties"]
        for number, item in enumerate(value):
            if not isinstance(item, dict) or kind not in item:
                raise DataError(f'row index {number} is not an object with "{kind}"')
            _check_keys(item, properties, number)
            for key, given in item.items():
                self._checked(key, properties[key], given, number)
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
    if type(value) not in _TYPES[schema["type"]]:
        return value is None and "nullable" in schema
    if "enum" in schema:
        return value in schema["enum"]
    return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))


def _expected(schema: Schema) -> str:
    if "enum" in schema:
        return " or ".join(f'"{value}"' for value in schema["enum"])
    if schema.get("type") == "integer":
        return f"{schema['minimum']} to {schema['maximum']}"
    return str(schema.get("title") or f"a {schema['type']}")
