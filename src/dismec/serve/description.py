"""The contract → the OpenAPI document, with examples to send."""

from __future__ import annotations

from typing import Any

from dismec.data.counts import counted
from dismec.model.model import Model
from dismec.serve.contract import STATED, Contract, Schema, ref

_QUERY = {"search": "a", "limit": 5, "node": 0, "start": 0}


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
    if model.n_dense:
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
    if model.n_dense:
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
