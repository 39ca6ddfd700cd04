"""What the requests and answers of the HTTP interface hold, stated once: request → checked request.

The statement is in the words of OpenAPI: `Contract.check` holds requests against it, and
`dismec.serve.description` publishes it.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dismec.errors import DataError

__all__ = ["HIGHLIGHTED", "HIGHLIGHTS", "LARGEST", "Contract", "Limits"]

HIGHLIGHTS = 2000  # pieces of a text that are marked, at most: those that weigh most
HIGHLIGHTED = 1_000_000  # characters of a text that is marked at all: a longer one takes seconds
LARGEST = float(np.finfo(np.float32).max)  # in magnitude, of the numbers of a request
_MOST_LABELS_NAMED = 100_000  # that a request chooses from, or leaves out

_Schema = dict[str, Any]
_TYPES = {"integer": (int,), "number": (int, float), "string": (str,), "boolean": (bool,)}


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may ask of the server."""

    body: int = 10_000_000  # bytes of a body
    rows: int = 1000  # rows per request
    k: int = 100  # labels per row
    queue: int = 100  # requests that may wait while every worker is busy


class Contract:
    """What may be asked of a server, and what it answers."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.schemas = _schemas(limits)  # of all requests and answers, by name
        self.bodies = {  # what a request holds, by path
            "/predict": _either("OneRow", "OneText", "ManyRows", "OneDense")
            | {"title": 'either "features", "text" or "dense" (a row), or "rows" (many)'},
            "/explain": _either("RowAndLabel", "TextAndLabel", "DenseAndLabel")
            | {"title": 'either "features", "text" or "dense"'},
        }
        self.queries = {"/labels": _SEARCH}  # what stands behind the "?", by path
        self.answers = {  # by path
            "/predict": _either("Best", "BestOfRows"),
            "/explain": _ref("Explanation"),
            "/labels": _ref("Labels"),
            "/example": _ref("Example"),
            "/model": _ref("Model"),
            "/metrics": _STRING,
            "/health": _ref("Health"),
            "/reload": _ref("Model"),
        }
        self._kinds = {path: self._alternatives(body) for path, body in self.bodies.items()}

    def check(self, path: str, request: Any) -> dict[str, Any]:
        """The request with defaults for what it leaves out; `DataError` if `path` does not take it.

        Pairs of features are passed on as they are: `dismec.serve.queries` reads and checks them.
        """
        if not isinstance(request, dict):
            raise DataError("the body is not a JSON object")
        kinds = self._kinds[path]
        _check_keys(request, {key for kind in kinds.values() for key in kind["properties"]})
        given = [key for key in kinds if key in request]
        if len(given) > 1:  # dense features are a row of their own only where there is nothing else
            given = [key for key in given if key not in _DENSE]
        if len(given) != 1:
            raise DataError(f"the request needs {self.bodies[path]['title']}")
        return self._checked_object(kinds[given[0]], request)

    def check_query(self, path: str, given: Mapping[str, str]) -> dict[str, Any]:
        """The same for what stands behind the "?" of an address."""
        known = self.queries[path]
        _check_keys(given, known)
        read: dict[str, Any] = dict(given)
        for key, value in given.items():
            if known[key]["type"] == "integer" and re.fullmatch(r"\d{1,9}", value):
                read[key] = int(value)
        return self._checked_object(_of("object", properties=known, required=[]), read)

    def _alternatives(self, schema: _Schema) -> dict[str, _Schema]:
        """The objects that a schema leaves the choice of, by the key that only one of them has."""
        kinds = [self.schemas[kind["$ref"].rpartition("/")[2]] for kind in schema["oneOf"]]
        return {kind["required"][0]: kind for kind in kinds}

    def _checked_object(self, schema: _Schema, given: dict[str, Any]) -> dict[str, Any]:
        _check_keys(given, schema["properties"])
        required = schema["required"]  # none is nullable: what is missing is refused as null is
        return {
            key: self._checked(key, value, given.get(key))
            if key in given or key in required
            else value.get("default")
            for key, value in schema["properties"].items()
        }

    def _checked(self, key: str, schema: _Schema, value: Any, row: int = 0) -> Any:
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
        kind = next((key for key in kinds if key in first), "features")  # that of all rows
        properties = kinds[kind]["properties"]
        for number, item in enumerate(value):
            if not isinstance(item, dict) or kind not in item:
                raise DataError(f'row {number} is not an object with "{kind}"')
            _check_keys(item, properties, number)
            for key, given in item.items():
                self._checked(key, properties[key], given, number)
        return value


def _check_keys(given: Mapping[str, Any], known: Collection[str], row: int | None = None) -> None:
    for key in given:
        if key not in known:
            where = "the request" if row is None else f"row {row}"
            raise DataError(f"{where} has an unknown key {reprlib.repr(key)}")


def _named(key: str, row: int) -> str:
    return f'row {row}: "{key}"' if key in ("features", "text", "dense") else f'"{key}"'


def _allows(schema: _Schema, value: Any) -> bool:
    if "oneOf" in schema:
        return any(_allows(one, value) for one in schema["oneOf"])
    if type(value) not in _TYPES[schema["type"]]:
        return value is None and "nullable" in schema
    if "enum" in schema:
        return value in schema["enum"]
    return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))


def _expected(schema: _Schema) -> str:
    if "enum" in schema:
        return " or ".join(f'"{value}"' for value in schema["enum"])
    if schema.get("type") == "integer":
        return f"{schema['minimum']} to {schema['maximum']}"
    return str(schema.get("title") or f"a {schema['type']}")


def _of(kind: str, description: str | None = None, **more: Any) -> _Schema:
    """The schema of a JSON type; its `title` is what an error calls it."""
    return {"type": kind, **more} | ({} if description is None else {"description": description})


def _count(description: str, most: int, default: int) -> _Schema:
    return _of("integer", description, minimum=1, maximum=most, default=default)


def _object(properties: dict[str, _Schema], *required: str) -> _Schema:
    closed: _Schema = (
        {"required": list(required), "additionalProperties": False} if required else {}
    )
    return _of("object", properties=properties, **closed)


def _ref(name: str) -> _Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _either(*names: str) -> _Schema:
    return {"oneOf": [_ref(name) for name in names]}


_NUMERIC = {
    "numeric": _of(
        "boolean",
        "A model of texts takes features only if this is true: their ids are then the numbers of "
        "its terms, and their values how often these occur.",
        default=False,
    )
}
_INTEGER, _NUMBER, _STRING = _of("integer"), _of("number"), _of("string")
_FLOAT32 = _of("number", minimum=-LARGEST, maximum=LARGEST)
_ROW = {
    "features": _of(
        "array",
        "Pairs [feature id, value]; ids from 0, each once, in any order.",
        title="a list of pairs [id, value]",
        format="pairs",
        items=_of("array", items=_FLOAT32, minItems=2, maxItems=2),
        example=[[3, 0.5], [17, 1.0]],
    )
}
_TEXT_ROW = {"text": _of("string", "Only if the model takes texts.")}
_DENSE = {
    "dense": _of(
        "array",
        "Only if the model takes dense features, such as an embedding: all of them, in order; "
        '/model says how many ("dense").',
        title="a list of numbers",
        format="numbers",
        items=_FLOAT32,
    )
}
_QUESTION = {
    "label": {
        "title": "the id or name of a label",
        "oneOf": [_INTEGER, _STRING],
        "description": "Its id, or its name (of equal names, the first), or its id as a string; "
        "white space around a name does not count.",
    },
    "limit": _count("Terms that are named: those that weigh most.", most=1000, default=20),
}
_TERM = {
    "feature": _INTEGER,
    "term": _of("string", "Only if the model takes texts."),
    "value": _of("number", "After the model's transform."),
    "weight": _NUMBER,
    "contribution": _of("number", "value × weight"),
}
_REASON = {
    "label": _INTEGER,
    "name": _of("string", "Only if the label has one."),
    "value": _of("number", "How likely the first stage finds it."),
    "weight": _NUMBER,
    "contribution": _of("number", "value × weight"),
    "terms": _of("array", "What speaks most for it, or against.", items=_object(_TERM)),
}
_EXPLANATION = {
    "label": _INTEGER,
    "name": _of("string", "Only if the label has one."),
    "score": _of("number", "The bias and all contributions, added up."),
    "probability": _of("number", "Only if the model is calibrated."),
    "rank": _of("integer", "Its place among all labels for this row; that of the best is 1."),
    "bias": _of("number", "The score of a row without features."),
    "embedding": _of("number", "What the dense features add together; only if there are any."),
    "terms": _of("array", "Those that weigh most first, for or against.", items=_object(_TERM)),
    "reasons": _of(
        "array",
        "Of a refined model: labels that are likely for the row and speak for this one or "
        "against it.",
        items=_object(_REASON),
    ),
    "highlights": _of(
        "array",
        "Of a text: [begin, end, contribution] of its pieces in order, counted in characters "
        f"(code points); at most {HIGHLIGHTS}, of the words that weigh most. Only if the "
        f"text has {HIGHLIGHTED} characters or fewer.",
        items=_of("array", items=_NUMBER, minItems=3, maxItems=3),
    ),
}
_BEST = {
    "labels": _of("array", "Best first.", items=_INTEGER),
    "scores": _of("array", "Only if they rank.", items=_NUMBER),
    "probabilities": _of("array", "Only if the model is calibrated.", items=_NUMBER),
    "names": _of("array", "Only if the model has names.", items=_STRING),
}
_EXAMPLE = {
    "text": _STRING,
    "training": _of("boolean", "Whether it is the beginning of a training text."),
}
_SEARCH = {
    "search": _of("string", "Part of a name, whatever its case; all labels if empty.", default=""),
    "limit": _count("Labels that are named at most.", most=100, default=10),
}
_FOUND_LABEL = {
    "label": _INTEGER,
    "name": _of("string", "Only if the label has one."),
    "rows": _of("integer", "Training rows that have it; without any it is never predicted."),
}
_LABELS = {
    "labels": _of(
        "array",
        "Names that are equal first, then those that begin with it, then others that contain it.",
        items=_object(_FOUND_LABEL),
    ),
    "more": _of("boolean", "Whether there are more."),
}
_THRESHOLD = {
    "rank": _of("string", "What it is of.", enum=["score", "probability"]),
    "value": _NUMBER,
    "chosen": _of(
        "string",
        "Of a calibrated model the probability with the highest micro-F1 on rows held out, "
        "otherwise a score of 0.",
        enum=["micro-f1", "zero"],
    ),
}
_MODEL = {
    "name": _of("string", "Name of its directory."),
    "labels": _INTEGER,
    "features": _of("integer", "Sparse ones, or terms."),
    "dense": _of("integer", "Dense features that a row must have; 0 for most models."),
    "names": _of("boolean", "Whether labels have names."),
    "text": _of("boolean", "Whether it takes texts."),
    "calibrated": _of("boolean", "Whether it gives probabilities."),
    "explanations": _of("boolean", "Whether it explains them; always true."),
    "threshold": {**_object(_THRESHOLD), "description": "From which labels are assigned."},
    "examples": _of("integer", "Training texts that it keeps as examples."),
    "weights": _INTEGER,
    "params": _of("object", "Parameters of the training."),
    "training_rows": _INTEGER,
    "training_data": _of("string", "SHA-256.", nullable=True),
    "trained_by": _of("string", "Version of dismec."),
    "version": _of("string", "Version of the server."),
    "limits": _of("object", "Most bytes, rows and k of a request."),
}


def _label_list(description: str) -> _Schema:
    return _of(
        "array",
        description,
        title="a list of labels",
        format="labels",
        maxItems=_MOST_LABELS_NAMED,
        items={"oneOf": [_INTEGER, _STRING]},
        nullable=True,
    )


def _schemas(limits: Limits) -> dict[str, _Schema]:
    options = {
        "k": _count("Labels per row.", most=limits.k, default=5),
        "threshold": {
            **_FLOAT32,
            "nullable": True,
            "description": "Leave out labels that rank below this score, or probability, which is "
            "from 0 to 1.",
        },
        "rank": _of(
            "string",
            "What orders the labels; by default probability if the model is calibrated, as it "
            "must be for that, otherwise score.",
            enum=["score", "probability"],
        ),
        "only": _label_list("Choose only from these labels, given by their ids or names."),
        "exclude": _label_list("Never choose these labels."),
        "prefix": _of(
            "string",
            "Choose only from labels whose names begin with this, whatever the case (whose numbers "
            "do, if the model has no names).",
            default="",
        ),
    }
    kinds = _either("TextRow", "Row", "DenseRow")
    rows = _of("array", "All of one kind.", maxItems=limits.rows, items=kinds)
    return {
        "Row": _object(_ROW | _DENSE, "features"),
        "TextRow": _object(_TEXT_ROW | _DENSE, "text"),
        "DenseRow": _object(_DENSE, "dense"),
        "OneRow": _object(_ROW | _DENSE | options | _NUMERIC, "features"),
        "OneText": _object(_TEXT_ROW | _DENSE | options, "text"),
        "OneDense": _object(_DENSE | options, "dense"),
        "ManyRows": _object(options | _NUMERIC | {"rows": rows}, "rows"),
        "Best": _object(_BEST, "labels"),
        "BestOfRows": _object({"rows": _of("array", items=_ref("Best"))}, "rows"),
        "RowAndLabel": _object(_QUESTION | _ROW | _DENSE | _NUMERIC, "features", "label"),
        "TextAndLabel": _object(_QUESTION | _TEXT_ROW | _DENSE, "text", "label"),
        "DenseAndLabel": _object(_QUESTION | _DENSE, "dense", "label"),
        "Explanation": _object(_EXPLANATION, "label", "score", "rank", "bias", "terms"),
        "Labels": _object(_LABELS, "labels", "more"),
        "Example": _object(_EXAMPLE, "text", "training"),
        "Model": _object(_MODEL),
        "Health": _object({"status": _of("string", enum=["ok"])}, "status"),
        "Error": _object({"error": _of("string", "One line.")}, "error"),
    }
