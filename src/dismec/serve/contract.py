"""The requests and answers of the HTTP interface, stated once: request → checked request.

They are stated for the served model, as OpenAPI schemas: `Contract.check` validates requests
against them, and `dismec.serve.description` publishes them.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dismec.data.counts import counted
from dismec.errors import DataError
from dismec.model.model import Model

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


def _typed(kind: str, description: str | None = None, **more: Any) -> Schema:
    """Return the schema of a JSON type; errors refer to it by its `title`."""
    return {"type": kind, **more} | ({} if description is None else {"description": description})


def _nullable(schema: Schema) -> Schema:
    return schema | {"type": [schema["type"], "null"]}


def _count_of(description: str, most: int, default: int) -> Schema:
    """Return the schema of a number from 1."""
    return _typed("integer", description, minimum=1, maximum=most, default=default)


def _object_of(properties: dict[str, Schema], *required: str) -> Schema:
    """Return the schema of an object; with required keys, no other keys are allowed."""
    closed: Schema = {"required": list(required), "additionalProperties": False} if required else {}
    return _typed("object", properties=properties, **closed)


def _answer(description: str | None = None) -> Schema:
    """Return the schema of a number in an answer; null if it is not finite."""
    return _nullable(_typed("number", description))


def ref(name: str) -> Schema:
    """Return a reference to a schema by name."""
    return {"$ref": f"#/components/schemas/{name}"}


def _either(names: Collection[str]) -> Schema:
    """Return a choice between schemas by name."""
    return {"oneOf": [ref(name) for name in names]}


_INTEGER, _STRING = _typed("integer"), _typed("string")
_ID_OR_NAME = {"oneOf": [_INTEGER, _STRING]}
_FLOAT32 = _typed("number", minimum=-LARGEST, maximum=LARGEST)
_NUMERIC = _typed(
    "boolean",
    "A text model accepts features only if this is true: their ids are then the numbers of its "
    "terms, and their values are counts.",
    default=False,
)
_PATH = _typed(
    "array",
    "Names above the label in the hierarchy, from the top; of several parents, the first.",
    items=_STRING,
)
_BELOW = _ID_OR_NAME | {
    "title": "the number or name of a node of the hierarchy",
    "description": "Predict only labels below this node of the hierarchy, or the node itself if it "
    "is a label; by number or name.",
}
_PLACE = _typed("integer", minimum=0, maximum=2**31 - 1)
_TREE_QUERY = {
    "node": _PLACE
    | {
        "description": "The node whose children are returned; by default, all nodes without "
        "parents are returned."
    },
    "start": _PLACE | {"default": 0, "description": "Number of children to skip."},
    "limit": _count_of("Maximum number of nodes.", most=500, default=50),
    "search": _typed(
        "string",
        "Part of a name, ignoring case: return matching nodes from the whole hierarchy; node and "
        "start are ignored.",
        default="",
    ),
}
_NODE = {
    "node": _typed("integer", "Number of the node; for a label, its id."),
    "name": _STRING,
    "is_label": _typed("boolean", "Whether it can be predicted; otherwise it is a group."),
    "children": _INTEGER,
    "labels": _typed("integer", "Number of labels below it, without itself."),
    "rows": _typed("integer", "Number of training rows; only for labels."),
    "path": _typed("array", "Names above it, from the top; only in a search.", items=_STRING),
}
_NODES = {
    "nodes": _typed("array", items=ref("Node")),
    "more": _typed("boolean", "Whether there are more."),
}
_QUESTION = {
    "label": _ID_OR_NAME
    | {
        "title": "the id or name of a label",
        "description": "Label id, or name (the first of equal names), or id as a string; "
        "white space around a name is ignored.",
    },
    "limit": _count_of(
        "Maximum number of terms, the largest contributions first.", most=1000, default=20
    ),
}
_TERM = {
    "feature": _INTEGER,
    "term": _typed("string", "Only if the model takes texts."),
    "value": _answer("After the model's transform."),
    "weight": _answer(),
    "contribution": _answer("value × weight"),
}
_REASON = {
    "label": _INTEGER,
    "name": _typed("string", "Only if the label has one."),
    "value": _answer("Probability of the label in the first stage."),
    "weight": _answer(),
    "contribution": _answer("value × weight"),
    "terms": _typed(
        "array", "Largest contributions to it, for or against.", items=_object_of(_TERM)
    ),
}
_EXPLANATION = {
    "label": _INTEGER,
    "name": _STRING,
    "path": _PATH,
    "score": _answer("Sum of the bias and all contributions."),
    "probability": _answer(),
    "rank": _typed("integer", "Rank among all labels for this row, from 1."),
    "bias": _answer("Score of a row without features."),
    "embedding": _answer("Total contribution of the dense features."),
    "terms": _typed(
        "array", "Largest contributions first, for or against.", items=_object_of(_TERM)
    ),
    "reasons": _typed(
        "array",
        "For a refined model: labels that are likely for the row and count for or against "
        "this one.",
        items=_object_of(_REASON),
    ),
    "highlights": _typed(
        "array",
        "For a text: [begin, end, contribution] of its pieces in order, in characters "
        f"(code points); at most {HIGHLIGHTS}, of the words with the largest contributions. Only "
        f"if the text has at most {HIGHLIGHTED} characters, or {HIGHLIGHTED_BY_CHARACTERS} if "
        "character n-grams are terms.",
        items=_typed("array", items=_answer(), minItems=3, maxItems=3),
    ),
}
_BEST = {
    "labels": _typed("array", "Best first.", items=_INTEGER),
    "scores": _typed("array", "Only if labels are ranked by score.", items=_answer()),
    "probabilities": _typed("array", items=_answer()),
    "names": _typed("array", items=_STRING),
    "paths": _typed("array", items=_PATH),
}
_EXAMPLE = {
    "text": _STRING,
    "training": _typed("boolean", "Whether it is the beginning of a training text."),
}
_SEARCH = {
    "search": _typed("string", "Part of a name, in any case; all labels if empty.", default=""),
    "limit": _count_of("Maximum number of labels.", most=100, default=10),
}
_FOUND_LABEL = {
    "label": _INTEGER,
    "name": _typed("string", "Only if the label has one."),
    "rows": _typed("integer", "Number of training rows; a label without any is never predicted."),
}
_LABELS = {
    "labels": _typed(
        "array",
        "Exact matches first, then names that start with it, then others that contain it.",
        items=_object_of(_FOUND_LABEL),
    ),
    "more": _typed("boolean", "Whether there are more."),
}
_THRESHOLD = {
    "rank": _typed("string", "The value it applies to.", enum=["score", "probability"]),
    "value": _answer(),
    "chosen": _typed(
        "string",
        "For a calibrated model, the probability with the highest micro-F1 on held-out rows; "
        "otherwise a score of 0.",
        enum=["micro-f1", "zero"],
    ),
}
_MODEL = {
    "name": _typed("string", "Name of its directory."),
    "labels": _INTEGER,
    "features": _typed("integer", "Number of sparse features, or terms."),
    "dense": _typed("integer", "Number of dense features that a row must have; mostly 0."),
    "encoder": _nullable(_typed("string", "Name of the encoder of texts, if there is one.")),
    "names": _typed("boolean", "Whether labels have names."),
    "hierarchy": _nullable(
        _typed("object", "Numbers of nodes, groups and levels of the hierarchy, if there is one.")
    ),
    "text": _typed("boolean", "Whether it takes texts."),
    "calibrated": _typed("boolean", "Whether it predicts probabilities."),
    "threshold": {**_object_of(_THRESHOLD), "description": "Labels that reach it are assigned."},
    "examples": _typed("integer", "Number of stored training texts."),
    "weights": _INTEGER,
    "params": _typed("object", "Training parameters."),
    "training_rows": _INTEGER,
    "training_data": _nullable(_typed("string", "SHA-256.")),
    "trained_by": _typed("string", "Version of dismec that trained it."),
    "version": _typed("string", "Version of the server."),
    "limits": _typed("object", "Maximum bytes, rows, characters and k per request."),
}


def _label_list(description: str) -> Schema:
    return _nullable(
        _typed(
            "array",
            description,
            title="a list of labels",
            format="labels",
            maxItems=_MOST_LABELS_NAMED,
            items=_ID_OR_NAME,
        )
    )


def _options_of(limits: Limits, model: Model, hierarchy: bool) -> dict[str, Schema]:
    """Return the options of a prediction, besides the row."""
    ranks = ["score"] if model.calibration is None else ["score", "probability"]
    options = {
        "k": _count_of("Labels per row.", most=limits.k, default=5),
        "threshold": _nullable(_FLOAT32)
        | {
            "title": "a number",
            "description": "Omit labels whose score is below this; or whose probability, from 0 to "
            "1, if labels are ranked by it.",
        },
        "rank": _typed(
            "string",
            "How labels are ranked; by default by probability if the model is calibrated, "
            "otherwise by score.",
            enum=ranks,
            default=ranks[-1],
        ),
        "only": _label_list("Predict only these labels, given by id or name."),
        "exclude": _label_list("Never predict these labels."),
        "prefix": _typed(
            "string",
            "Predict only labels whose names start with this, ignoring case (or whose numbers do, "
            "if the model has no names).",
            default="",
        ),
    }
    return options | ({"below": _BELOW} if hierarchy else {})


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


def _answer_of(properties: Schema, parts: dict[str, bool], *always: str) -> Schema:
    """Return the schema of an answer; each of the `parts` is always in it, or never."""
    kept = {key: value for key, value in properties.items() if parts.get(key, True)}
    return _object_of(kept, *always, *(key for key, there in parts.items() if there))


_TYPES = {"integer": (int,), "number": (int, float), "string": (str,), "boolean": (bool,)}


class Contract:
    """The requests and answers of a server; with a `hierarchy`, also those about it."""

    def __init__(self, limits: Limits, model: Model, *, hierarchy: bool = False) -> None:
        self.limits, self.model, self.hierarchy = limits, model, hierarchy
        kinds, options = _rows_of(limits, model), _options_of(limits, model, hierarchy)
        numeric = {"numeric": _NUMERIC} if "Row" in kinds else {}
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
                f"{kind}AndLabel": _object_of(_QUESTION | parts | more, *parts, "label"),
            }
        self.schemas["ManyRows"] = _object_of(options | numeric | {"rows": many}, "rows")
        self.bodies = {  # request bodies, by path
            "/predict": _either([*(f"One{kind}" for kind in kinds), "ManyRows"]),
            "/explain": _either([f"{kind}AndLabel" for kind in kinds]),
        }
        self.queries = {"/labels": _SEARCH, "/tree": _TREE_QUERY}  # query parameters, by path
        self.answers = {  # by path
            "/predict": _either(["Best", "BestOfRows"]),
            "/explain": ref("Explanation"),
            "/labels": ref("Labels"),
            "/example": ref("Example"),
            "/tree": ref("Nodes"),
            "/model": ref("Model"),
            "/metrics": _STRING,
            "/health": ref("Health"),
            "/health/live": ref("Health"),
            "/health/ready": ref("Health"),
            "/reload": ref("Model"),
        }
        named, calibrated = model.names is not None, model.calibration is not None
        best = {"names": named, "probabilities": calibrated, "paths": hierarchy}
        explanation = {"name": named, "embedding": model.n_dense > 0}
        explanation |= {"probability": calibrated, "path": hierarchy}
        scores = [] if calibrated else ["scores"]
        self.schemas |= {
            "Best": _answer_of(_BEST, best, "labels", *scores),
            "BestOfRows": _object_of({"rows": _typed("array", items=ref("Best"))}, "rows"),
            "Explanation": _answer_of(
                _EXPLANATION, explanation, "label", "score", "rank", "bias", "terms"
            ),
            "Labels": _object_of(_LABELS, "labels", "more"),
            "Example": _object_of(_EXAMPLE, "text", "training"),
            "Model": _object_of(_MODEL),
            "Health": _object_of({"status": _typed("string", enum=["ok"])}, "status"),
            "Error": _object_of({"error": _typed("string", "The reason, in one line.")}, "error"),
            "Node": _object_of(_NODE, "node", "name", "is_label", "children", "labels"),
            "Nodes": _object_of(_NODES, "nodes", "more"),
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
