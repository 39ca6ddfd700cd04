"""The requests and answers of the HTTP interface for any model, as OpenAPI schemas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dismec.serve.tree import BELOW, HIERARCHY, PATH, PATHS, TREE_SCHEMAS

__all__ = [
    "HIGHLIGHTED",
    "HIGHLIGHTED_BY_CHARACTERS",
    "HIGHLIGHTS",
    "LARGEST",
    "SEARCH",
    "STRING",
    "Limits",
    "Schema",
    "either",
    "object_of",
    "ref",
    "schemas_of",
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


def count_of(description: str, most: int, default: int) -> Schema:
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
INTEGER, STRING = typed("integer"), typed("string")
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
        "oneOf": [INTEGER, STRING],
        "description": "Label id, or name (the first of equal names), or id as a string; "
        "white space around a name is ignored.",
    },
    "limit": count_of(
        "Maximum number of terms, the largest contributions first.", most=1000, default=20
    ),
}
_TERM = {
    "feature": INTEGER,
    "term": typed("string", "Only if the model takes texts."),
    "value": _nullable_number("After the model's transform."),
    "weight": _nullable_number(),
    "contribution": _nullable_number("value × weight"),
}
_REASON = {
    "label": INTEGER,
    "name": typed("string", "Only if the label has one."),
    "value": _nullable_number("Probability of the label in the first stage."),
    "weight": _nullable_number(),
    "contribution": _nullable_number("value × weight"),
    "terms": typed("array", "Largest contributions to it, for or against.", items=object_of(_TERM)),
}
_EXPLANATION = {
    "label": INTEGER,
    "name": typed("string", "Only if the label has one."),
    "path": PATH,
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
    "labels": typed("array", "Best first.", items=INTEGER),
    "scores": typed("array", "Only if labels are ranked by score.", items=_nullable_number()),
    "probabilities": typed("array", "Only if the model is calibrated.", items=_nullable_number()),
    "names": typed("array", "Only if the model has names.", items=STRING),
    "paths": PATHS,
}
_EXAMPLE = {
    "text": STRING,
    "training": typed("boolean", "Whether it is the beginning of a training text."),
}
SEARCH = {
    "search": typed("string", "Part of a name, in any case; all labels if empty.", default=""),
    "limit": count_of("Maximum number of labels.", most=100, default=10),
}
_FOUND_LABEL = {
    "label": INTEGER,
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
    "labels": INTEGER,
    "features": typed("integer", "Number of sparse features, or terms."),
    "dense": typed("integer", "Number of dense features per row; 0 for most models."),
    "names": typed("boolean", "Whether labels have names."),
    "hierarchy": HIERARCHY,
    "text": typed("boolean", "Whether it takes texts."),
    "calibrated": typed("boolean", "Whether it predicts probabilities."),
    "explanations": typed("boolean", "Whether it explains predictions: always true."),
    "threshold": {**object_of(_THRESHOLD), "description": "Labels that reach it are assigned."},
    "examples": typed("integer", "Number of stored training texts."),
    "weights": INTEGER,
    "params": typed("object", "Training parameters."),
    "training_rows": INTEGER,
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
        items={"oneOf": [INTEGER, STRING]},
        nullable=True,
    )


def schemas_of(limits: Limits, *, hierarchy: bool) -> dict[str, Schema]:
    """Return the schemas of all requests and answers by name; with `hierarchy`, also of nodes."""
    text = {"text": typed("string", "Only if the model takes texts.", maxLength=limits.characters)}
    options = {
        "k": count_of("Labels per row.", most=limits.k, default=5),
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
        **({"below": BELOW} if hierarchy else {}),
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
        **TREE_SCHEMAS,
    }
