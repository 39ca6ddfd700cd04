"""What the server's interface is, for programs (OpenAPI) and for people."""

from __future__ import annotations

import html
import json
from typing import Any

from dismec.serve.api import DEFAULT_K, DEFAULT_TERMS, HIGHLIGHTED, HIGHLIGHTS, MOST_TERMS, Limits

__all__ = ["docs_page", "openapi"]


_NUMBER = {"type": "number"}
_EXPLANATION: dict[str, Any] = {
    "label": {"type": "integer"},
    "name": {"type": "string", "description": "Only if the label has one."},
    "score": {"type": "number", "description": "The bias and all contributions, added up."},
    "probability": {"type": "number", "description": "Only if the model is calibrated."},
    "bias": {"type": "number", "description": "The score of a row without features."},
    "terms": {
        "type": "array",
        "description": "Those that weigh most first, for or against.",
        "items": {
            "type": "object",
            "properties": {
                "feature": {"type": "integer"},
                "term": {"type": "string", "description": "Only if the model takes texts."},
                "value": {"type": "number", "description": "After the model's transform."},
                "weight": _NUMBER,
                "contribution": {"type": "number", "description": "value × weight"},
            },
        },
    },
    "highlights": {
        "type": "array",
        "description": (
            "Of a text: [begin, end, contribution] of its pieces in order, counted in characters "
            f"(code points); at most {HIGHLIGHTS}, of the words that weigh most. Only if the "
            f"text has {HIGHLIGHTED} characters or fewer."
        ),
        "items": {"type": "array", "items": _NUMBER, "minItems": 3, "maxItems": 3},
    },
}


def openapi(version: str, limits: Limits, guarded: bool) -> dict[str, Any]:
    """The OpenAPI description; `guarded` says that a token is asked for."""
    features = {
        "type": "array",
        "description": "Pairs [feature id, value]; ids from 0, each once, in any order.",
        "items": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
        "example": [[3, 0.5], [17, 1.0]],
    }
    text = {"type": "string", "description": "Only if the model takes texts."}
    options = {
        "k": {
            "type": "integer",
            "minimum": 1,
            "maximum": limits.k,
            "default": DEFAULT_K,
            "description": "Labels a row.",
        },
        "threshold": {
            "type": "number",
            "nullable": True,
            "description": "Leave out labels that rank below this score or probability.",
        },
        "rank": {
            "type": "string",
            "enum": ["score", "probability"],
            "default": "score",
            "description": "What orders the labels; probability only if the model is calibrated.",
        },
    }
    question = {
        "label": {
            "oneOf": [{"type": "integer"}, {"type": "string"}],
            "description": "Its id, or its name; the first one if several have it.",
        },
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": MOST_TERMS,
            "default": DEFAULT_TERMS,
            "description": "Terms that are named: those that weigh most.",
        },
    }
    best = {
        "labels": {"type": "array", "items": {"type": "integer"}, "description": "Best first."},
        "scores": {
            "type": "array",
            "items": {"type": "number"},
            "description": "Only if they rank.",
        },
        "probabilities": {
            "type": "array",
            "items": {"type": "number"},
            "description": "Only if the model is calibrated.",
        },
        "names": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Only if the model has names.",
        },
    }
    schemas = {
        "Row": _object({"features": features}, "features"),
        "TextRow": _object({"text": text}, "text"),
        "OneRow": _object({"features": features, **options}, "features"),
        "OneText": _object({"text": text, **options}, "text"),
        "ManyRows": _object(
            {
                "rows": {
                    "description": "All of one kind.",
                    "type": "array",
                    "maxItems": limits.rows,
                    "items": _either("Row", "TextRow"),
                },
                **options,
            },
            "rows",
        ),
        "Best": _object(best, "labels"),
        "BestOfRows": _object({"rows": {"type": "array", "items": _ref("Best")}}, "rows"),
        "RowAndLabel": _object({"features": features, **question}, "features", "label"),
        "TextAndLabel": _object({"text": text, **question}, "text", "label"),
        "Explanation": _object(_EXPLANATION, "label", "score", "bias", "terms"),
        "Example": _object({"text": {"type": "string"}}, "text"),
        "Model": _object(
            {
                "name": {"type": "string", "description": "Name of its directory."},
                "labels": {"type": "integer"},
                "features": {"type": "integer"},
                "names": {"type": "boolean", "description": "Whether labels have names."},
                "text": {"type": "boolean", "description": "Whether it takes texts."},
                "calibrated": {"type": "boolean", "description": "Whether it gives probabilities."},
                "explanations": {"type": "boolean", "description": "Whether it explains them."},
                "weights": {"type": "integer"},
                "params": {"type": "object", "description": "Parameters of the training."},
                "training_rows": {"type": "integer"},
                "training_data": {"type": "string", "nullable": True, "description": "SHA-256."},
                "trained_by": {"type": "string", "description": "Version of dismec."},
                "version": {"type": "string", "description": "Version of the server."},
                "limits": {"type": "object", "description": "Most bytes, rows and k of a request."},
            }
        ),
        "Health": _object({"status": {"type": "string", "enum": ["ok"]}}, "status"),
        "Error": _object({"error": {"type": "string", "description": "One line."}}, "error"),
    }
    refused = {
        "400": "The request is malformed.",
        "408": "The body did not arrive in time.",
        "413": f"The body has more than {limits.body} bytes.",
        "503": "The queue is full, or as for /health; try again after Retry-After seconds.",
    }
    unready = {"503": "Workers of the cluster that hold weights are missing; there is no answer."}
    locked = {"401": "The token is missing or wrong."} if guarded else {}
    predict = _operation(
        "The best labels of one row or of many.",
        _either("Best", "BestOfRows"),
        {**refused, **locked},
    )
    predict["requestBody"] = _body("OneRow", "OneText", "ManyRows")
    elsewhere = {"501": "The weights are on a cluster."}
    explain = _operation(
        "What carried the score of a label.",
        _ref("Explanation"),
        {**refused, **elsewhere, **locked},
    )
    explain["requestBody"] = _body("RowAndLabel", "TextAndLabel")
    example = _operation(
        "A text of words that speak for some labels, other ones each time.",
        _ref("Example"),
        {"400": "The model takes no texts.", "503": refused["503"], **elsewhere, **locked},
    )
    paths: dict[str, Any] = {
        "/predict": {"post": predict},
        "/explain": {"post": explain},
        "/example": {"get": example},
        "/model": {"get": _operation("What is served.", _ref("Model"), locked)},
        "/metrics": {"get": _operation("Counters as Prometheus text.", None, locked)},
        "/health": {"get": _operation("Whether the server answers.", _ref("Health"), unready)},
    }
    if guarded:
        failed = {"500": "The model could not be opened; the old one stays.", **locked}
        paths["/reload"] = {
            "post": _operation("Open the model directory anew.", _ref("Model"), failed)
        }
    for path, methods in paths.items():
        if guarded and path != "/health":
            for operation in methods.values():
                operation["security"] = [{"token": []}]
    components: dict[str, Any] = {"schemas": schemas}
    if guarded:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "dismec",
            "version": version,
            "description": "The best labels of sparse rows or texts by a one-vs-rest model.",
        },
        "paths": paths,
        "components": components,
    }


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema |= {"required": list(required), "additionalProperties": False}
    return schema


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _either(*names: str) -> dict[str, Any]:
    return {"oneOf": [_ref(name) for name in names]}


def _body(*names: str) -> dict[str, Any]:
    return {"required": True, "content": _json(_either(*names))}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _operation(
    summary: str, schema: dict[str, Any] | None, errors: dict[str, str]
) -> dict[str, Any]:
    content = {"text/plain": {"schema": {"type": "string"}}} if schema is None else _json(schema)
    return {
        "summary": summary,
        "responses": {
            "200": {"description": "Done.", "content": content},
            **{
                status: {"description": reason, "content": _json(_ref("Error"))}
                for status, reason in sorted(errors.items())
            },
        },
    }


def docs_page(description: dict[str, Any]) -> str:
    """The OpenAPI description as a plain page that needs nothing from elsewhere."""
    parts = []
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            answers = "".join(
                f"<li>{status}: {html.escape(response['description'])}</li>"
                for status, response in operation["responses"].items()
            )
            lock = " (with the token)" if "security" in operation else ""
            body = operation.get("requestBody")
            takes = f"<p>Body:</p>{_listing(body['content'])}" if body else ""
            parts.append(
                f"<h2>{method.upper()} {path}</h2><p>{html.escape(operation['summary'])}{lock}</p>"
                f"{takes}<ul>{answers}</ul>"
            )
    schemas = _listing(description["components"]["schemas"])
    info = description["info"]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        f"<title>{info['title']}</title><h1>{info['title']} {info['version']}</h1>"
        f"<p>{info['description']} <a href=openapi.json>openapi.json</a></p>"
        f"{''.join(parts)}<h2>Schemas</h2>{schemas}</html>"
    )


def _listing(value: Any) -> str:
    return f"<pre>{html.escape(json.dumps(value, indent=1))}</pre>"
