"""The requests and answers of the HTTP interface, stated once: request → checked request.

They are stated for any model, as OpenAPI schemas: `Contract.check` validates requests against them,
and `dismec.serve.description` publishes them.
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

__all__ = [
    "HIGHLIGHTED",
    "HIGHLIGHTED_BY_CHARACTERS",
    "HIGHLIGHTS",
    "LARGEST",
    "Contract",
    "Limits",
    "Schema",
    "either",
    "object_of",
    "ref",
    "typed",
]

HIGHLIGHTS = 2000  # maximum number of highlighted pieces of a text: those with the largest weights
HIGHLIGHTED = 1_000_000  # maximum length of a highlighted text: a longer one takes seconds
HIGHLIGHTED_BY_CHARACTERS = 100_000  # the same if character n-grams are terms
LARGEST = float(np.finfo(np.float32).max)  # largest magnitude of a number in a request
_MOST_LABELS_NAMED = 100_000  # labels that a request allows or excludes

Schema = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """Limits on one request, and on all of them together."""

    body: int = 10_000_000  # bytes of a body
    rows: int = 1000  # rows per request
    characters: int = 1_000_000  # in all texts of a request
    k: int = 100  # labels per row
    queue: int = 100  # requests that may wait while all workers are busy


def typed(kind: str, description: str | None = None, **more: Any) -> Schema:
    """Return the schema of a JSON type; errors refer to it by its `title`."""
    return {"type": kind, **more} | ({} if description is None else {"description": description})


def _count_of(description: str, most: int, default: int) -> Schema:
    """Return the schema of a number from 1."""
    return typed("integer", description, minimum=1, maximum=most, default=default)


def object_of(properties: dict[str, Schema], *required: str) -> Schema:
    """Return the schema of an object; with required keys, no other keys are allowed."""
    closed: Schema = {"required": list(required), "additionalProperties": False} if required else {}
    return typed("object", properties=properties, **closed)


def _nullable_number(description: str | None = None) -> Schema:
    """Return the schema of a number in an answer; null if it is not finite."""
    return typed("number", description, nullable=True)


def ref(name: str) -> Schema:
    """Return a reference to a schema by name."""
    return {"$ref": f"#/components/schemas/{name}"}


def either(*names: str) -> Schema:
    """Return a choice between schemas by name."""
    return {"oneOf": [ref(name) for name in names]}


_NUMERIC = {
    "numeric": typed(
        "boolean",
        "A text model accepts features only if this is true: their ids are then the numbers of "
        "its terms, and their values are counts.",
        default=False,
    )
}
_INTEGER, _STRING = typed("integer"), typed("string")
_NAMES_ABOVE = "from the top; only if there is a hierarchy."
_PATH = typed(
    "array",
    f"Names above the label in the hierarchy, {_NAMES_ABOVE} With several parents, through the "
    "first.",
    items=_STRING,
)
_BELOW = {
    "title": "the number or name of a node of the hierarchy",
    "oneOf": [_INTEGER, _STRING],
    "description": "Predict only labels below this node of the hierarchy, or the node itself if it "
    "is a label; by number or name.",
}
_PLACE = typed("integer", minimum=0, maximum=2**31 - 1)
_TREE_QUERY = {
    "node": _PLACE
    | {
        "description": "The node whose children are returned; by default, all nodes without "
        "parents are returned."
    },
    "start": _PLACE | {"default": 0, "description": "Number of children to skip."},
    "limit": _count_of("Maximum number of nodes.", most=500, default=50),
    "search": typed(
        "string",
        "Part of a name, ignoring case: return matching nodes from the whole hierarchy; node and "
        "start are ignored.",
        default="",
    ),
}
_NODE = {
    "node": typed("integer", "Number of the node; for a label, its id."),
    "name": _STRING,
    "is_label": typed("boolean", "Whether it can be predicted; otherwise it is a group."),
    "children": _INTEGER,
    "labels": typed("integer", "Number of labels below it, without itself."),
    "rows": typed("integer", "Number of training rows; only for labels."),
    "path": typed("array", "Names above it, from the top; only in a search.", items=_STRING),
}
_NODES = {
    "nodes": typed("array", items=ref("Node")),
    "more": typed("boolean", "Whether there are more."),
}
_FLOAT32 = typed("number", minimum=-LARGEST, maximum=LARGEST)
_ROW = {
    "features": typed(
        "array",
        "Pairs [feature id, value]; ids from 0, each once, in any order.",
        title="a list of pairs [id, value]",
        format="pairs",
        items=typed("array", items=_FLOAT32, minItems=2, maxItems=2),
        example=[[3, 0.5], [17, 1.0]],
    )
}
_DENSE = {
    "dense": typed(
        "array",
        "For a model with dense features, such as embeddings: all of them, in order; "
        '/model returns their number ("dense").',
        title="a list of numbers",
        format="numbers",
        items=_FLOAT32,
    )
}
_QUESTION = {
    "label": {
        "title": "the id or name of a label",
        "oneOf": [_INTEGER, _STRING],
        "description": "Label id, or name (the first of equal names), or id as a string; "
        "white space around a name is ignored.",
    },
    "limit": _count_of(
        "Maximum number of terms, the largest contributions first.", most=1000, default=20
    ),
}
_TERM = {
    "feature": _INTEGER,
    "term": typed("string", "Only if the model takes texts."),
    "value": _nullable_number("After the model's transform."),
    "weight": _nullable_number(),
    "contribution": _nullable_number("value × weight"),
}
_REASON = {
    "label": _INTEGER,
    "name": typed("string", "Only if the label has one."),
    "value": _nullable_number("Probability of the label in the first stage."),
    "weight": _nullable_number(),
    "contribution": _nullable_number("value × weight"),
    "terms": typed("array", "Largest contributions to it, for or against.", items=object_of(_TERM)),
}
_EXPLANATION = {
    "label": _INTEGER,
    "name": typed("string", "Only if the label has one."),
    "path": _PATH,
    "score": _nullable_number("Sum of the bias and all contributions."),
    "probability": _nullable_number("Only if the model is calibrated."),
    "rank": typed("integer", "Rank among all labels for this row, from 1."),
    "bias": _nullable_number("Score of a row without features."),
    "embedding": _nullable_number(
        "Total contribution of the dense features; only if there are any."
    ),
    "terms": typed("array", "Largest contributions first, for or against.", items=object_of(_TERM)),
    "reasons": typed(
        "array",
        "For a refined model: labels that are likely for the row and count for or against "
        "this one.",
        items=object_of(_REASON),
    ),
    "highlights": typed(
        "array",
        "For a text: [begin, end, contribution] of its pieces in order, in characters "
        f"(code points); at most {HIGHLIGHTS}, of the words with the largest contributions. Only "
        f"if the text has at most {HIGHLIGHTED} characters, or {HIGHLIGHTED_BY_CHARACTERS} if "
        "character n-grams are terms.",
        items=typed("array", items=_nullable_number(), minItems=3, maxItems=3),
    ),
}
_BEST = {
    "labels": typed("array", "Best first.", items=_INTEGER),
    "scores": typed("array", "Only if labels are ranked by score.", items=_nullable_number()),
    "probabilities": typed("array", "Only if the model is calibrated.", items=_nullable_number()),
    "names": typed("array", "Only if the model has names.", items=_STRING),
    "paths": typed(
        "array",
        f"Names above each label in the hierarchy, {_NAMES_ABOVE}",
        items=typed("array", items=_STRING),
    ),
}
_EXAMPLE = {
    "text": _STRING,
    "training": typed("boolean", "Whether it is the beginning of a training text."),
}
_SEARCH = {
    "search": typed("string", "Part of a name, in any case; all labels if empty.", default=""),
    "limit": _count_of("Maximum number of labels.", most=100, default=10),
}
_FOUND_LABEL = {
    "label": _INTEGER,
    "name": typed("string", "Only if the label has one."),
    "rows": typed("integer", "Number of training rows; a label without any is never predicted."),
}
_LABELS = {
    "labels": typed(
        "array",
        "Exact matches first, then names that start with it, then others that contain it.",
        items=object_of(_FOUND_LABEL),
    ),
    "more": typed("boolean", "Whether there are more."),
}
_THRESHOLD = {
    "rank": typed("string", "The value it applies to.", enum=["score", "probability"]),
    "value": _nullable_number(),
    "chosen": typed(
        "string",
        "For a calibrated model, the probability with the highest micro-F1 on held-out rows; "
        "otherwise a score of 0.",
        enum=["micro-f1", "zero"],
    ),
}
_MODEL = {
    "name": typed("string", "Name of its directory."),
    "labels": _INTEGER,
    "features": typed("integer", "Number of sparse features, or terms."),
    "dense": typed("integer", "Number of dense features per row; 0 for most models."),
    "names": typed("boolean", "Whether labels have names."),
    "hierarchy": typed(
        "object",
        "Numbers of nodes, groups and levels of the hierarchy, if there is one.",
        nullable=True,
    ),
    "text": typed("boolean", "Whether it takes texts."),
    "calibrated": typed("boolean", "Whether it predicts probabilities."),
    "threshold": {**object_of(_THRESHOLD), "description": "Labels that reach it are assigned."},
    "examples": typed("integer", "Number of stored training texts."),
    "weights": _INTEGER,
    "params": typed("object", "Training parameters."),
    "training_rows": _INTEGER,
    "training_data": typed("string", "SHA-256.", nullable=True),
    "trained_by": typed("string", "Version of dismec that trained it."),
    "version": typed("string", "Version of the server."),
    "limits": typed("object", "Maximum bytes, rows, characters and k per request."),
}


def _label_list(description: str) -> Schema:
    return typed(
        "array",
        description,
        title="a list of labels",
        format="labels",
        maxItems=_MOST_LABELS_NAMED,
        items={"oneOf": [_INTEGER, _STRING]},
        nullable=True,
    )


def _schemas_of(limits: Limits, *, hierarchy: bool) -> dict[str, Schema]:
    """Return the schemas of all requests and answers by name."""
    text = {"text": typed("string", "Only if the model takes texts.", maxLength=limits.characters)}
    options = {
        "k": _count_of("Labels per row.", most=limits.k, default=5),
        "threshold": {
            **_FLOAT32,
            "nullable": True,
            "description": "Omit labels whose score is below this; or whose probability, from 0 to "
            "1, if labels are ranked by it.",
        },
        "rank": typed(
            "string",
            "How labels are ranked; by default by probability if the model is calibrated, "
            "otherwise by score.",
            enum=["score", "probability"],
        ),
        "only": _label_list("Predict only these labels, given by id or name."),
        "exclude": _label_list("Never predict these labels."),
        "prefix": typed(
            "string",
            "Predict only labels whose names start with this, ignoring case (or whose numbers do, "
            "if the model has no names).",
            default="",
        ),
        **({"below": _BELOW} if hierarchy else {}),
    }
    kinds = either("TextRow", "Row", "DenseRow")
    rows = typed("array", "The rows, all of one kind.", maxItems=limits.rows, items=kinds)
    return {
        "Row": object_of(_ROW | _DENSE, "features"),
        "TextRow": object_of(text | _DENSE, "text"),
        "DenseRow": object_of(_DENSE, "dense"),
        "OneRow": object_of(_ROW | _DENSE | options | _NUMERIC, "features"),
        "OneText": object_of(text | _DENSE | options, "text"),
        "OneDense": object_of(_DENSE | options, "dense"),
        "ManyRows": object_of(options | _NUMERIC | {"rows": rows}, "rows"),
        "Best": object_of(_BEST, "labels"),
        "BestOfRows": object_of({"rows": typed("array", items=ref("Best"))}, "rows"),
        "RowAndLabel": object_of(_QUESTION | _ROW | _DENSE | _NUMERIC, "features", "label"),
        "TextAndLabel": object_of(_QUESTION | text | _DENSE, "text", "label"),
        "DenseAndLabel": object_of(_QUESTION | _DENSE, "dense", "label"),
        "Explanation": object_of(_EXPLANATION, "label", "score", "rank", "bias", "terms"),
        "Labels": object_of(_LABELS, "labels", "more"),
        "Example": object_of(_EXAMPLE, "text", "training"),
        "Model": object_of(_MODEL),
        "Health": object_of({"status": typed("string", enum=["ok"])}, "status"),
        "Error": object_of({"error": typed("string", "The reason, in one line.")}, "error"),
        "Node": object_of(_NODE, "node", "name", "is_label", "children", "labels"),
        "Nodes": object_of(_NODES, "nodes", "more"),
    }


_TYPES = {"integer": (int,), "number": (int, float), "string": (str,), "boolean": (bool,)}


class Contract:
    """The requests and answers of a server; with a `hierarchy`, also those about it."""

    def __init__(self, limits: Limits, *, hierarchy: bool = False) -> None:
        self.limits = limits
        self.schemas = _schemas_of(limits, hierarchy=hierarchy)  # requests and answers, by name
        self.bodies = {  # request bodies, by path
            "/predict": either("OneRow", "OneText", "ManyRows", "OneDense")
            | {"title": 'either "features", "text" or "dense" (a row), or "rows" (many)'},
            "/explain": either("RowAndLabel", "TextAndLabel", "DenseAndLabel")
            | {"title": 'either "features", "text" or "dense"'},
        }
        self.queries = {"/labels": _SEARCH, "/tree": _TREE_QUERY}  # query parameters, by path
        self.answers = {  # by path
            "/predict": either("Best", "BestOfRows"),
            "/explain": ref("Explanation"),
            "/labels": ref("Labels"),
            "/tree": ref("Nodes"),
            "/example": ref("Example"),
            "/model": ref("Model"),
            "/metrics": _STRING,
            "/health": ref("Health"),
            "/health/live": ref("Health"),
            "/health/ready": ref("Health"),
            "/reload": ref("Model"),
        }
        self._kinds = {path: self._alternatives(body) for path, body in self.bodies.items()}

    def check(self, path: str, request: Any) -> dict[str, Any]:
        """Return the request with defaults; raise `DataError` if `path` does not accept it.

        Feature pairs are passed on unchanged: `dismec.serve.request_rows` reads and checks them.
        """
        if not isinstance(request, dict):
            raise DataError("the body is not a JSON object")
        kinds = self._kinds[path]
        _check_keys(request, {key for kind in kinds.values() for key in kind["properties"]})
        given = [key for key in kinds if key in request]
        if len(given) > 1:  # dense features are a row of their own only without other features
            given = [key for key in given if key != "dense"]
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
