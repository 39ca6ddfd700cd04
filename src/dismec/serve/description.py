"""The contract → the OpenAPI document, with examples to send."""

from __future__ import annotations

from typing import Any

from dismec.data.counts import counted
from dismec.model.model import Model
from dismec.serve.contract import Contract, Schema, ref

_QUERY = {"search": "a", "limit": 5, "node": 0, "start": 0}


def openapi(contract: Contract, version: str, guarded: bool) -> dict[str, Any]:
    """Return the OpenAPI description of a model; `guarded` means that a token is required."""
    components: dict[str, Any] = {"schemas": contract.schemas}
    if guarded:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    paths: dict[str, Any] = {}
    for path, method, summary, errors in _operations(contract, guarded):
        answer = contract.answers[path]
        content = {"text/plain": {"schema": answer}} if "type" in answer else _json(answer)
        responses = {"200": {"description": "Done.", "content": content}}
        for status, reason in sorted(errors.items()):
            responses[status] = {"description": reason, "content": _json(ref("Error"))}
        operation: dict[str, Any] = {"summary": summary, "responses": responses}
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
        paths[path] = {method: operation}
    model = contract.model
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


def _operations(contract: Contract, guarded: bool) -> list[tuple[str, str, str, dict[str, str]]]:
    """Return path, method, summary and possible errors of all requests for this model."""
    limits, model = contract.limits, contract.model
    unready = {"503": "Predictions are not available now; the answer has the reason."}
    busy = {"503": "Predictions are not available, or the queue is full: see Retry-After."}
    locked = {"401": "The token is missing or wrong."} if guarded else {}
    too_large = f"The body has more than {limits.body} bytes"
    refused = {
        "400": "The request is malformed.",
        "408": "The body did not arrive in time.",
        "413": f"{too_large}, or the texts more than {limits.characters} characters."
        if model.vocabulary is not None
        else f"{too_large}.",
        **busy,
        **locked,
    }
    if model.vocabulary is not None:
        refused["422"] = 'The model takes texts, but the request has features without "numeric".'
    a_text = "Get a stored training text, or one made of words that raise some scores."
    found = [("/predict", "post", "Predict the best labels for one or many rows.", refused)]
    what = "Explain the score and the rank of a label."
    found.append(("/explain", "post", what, refused))
    searched = {"400": refused["400"], **busy, **locked}
    found.append(("/labels", "get", "Search labels by part of their names.", searched))
    if model.vocabulary is not None:
        found.append(("/example", "get", a_text, busy | locked))
    if contract.hierarchy:
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
