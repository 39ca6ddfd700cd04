"""The contract → the OpenAPI document, with examples that can be sent."""

from __future__ import annotations

from typing import Any

from dismec.serve.contract import Contract

__all__ = ["openapi"]

_QUERY = {"search": "a", "limit": 5, "node": 0, "start": 0}


def openapi(
    contract: Contract,
    version: str,
    guarded: bool,
    texts: bool = True,
    sparse: bool = True,
    dense: int = 0,
    hierarchy: bool = False,
) -> dict[str, Any]:
    """The OpenAPI description.

    `guarded` says that a token is requested, `texts` that the model takes texts, `sparse` that it
    takes texts or sparse features, and `dense` how many dense ones: the examples are such as it
    answers. `hierarchy` says that the server has a hierarchy of the labels.
    """
    refused = {
        "400": "The request is malformed.",
        "408": "The body did not arrive in time.",
        "413": f"The body has more than {contract.limits.body} bytes.",
        "503": "The queue is full, or as for /health; try again after Retry-After seconds.",
    }
    unready = {"503": "Workers of the cluster that hold weights are missing; there is no answer."}
    numeric = {"422": 'The model takes texts, and the request has features without "numeric".'}
    locked = {"401": "The token is missing or wrong."} if guarded else {}
    no_texts = {"400": "The model takes no texts.", "503": refused["503"], **locked}
    failed = {"500": "The model could not be opened; the old one stays.", **locked}
    busy = {"400": refused["400"], "503": refused["503"], **locked}
    a_text = "A training text that the model keeps, or one made of words that raise some scores."
    operations = [
        (
            "/predict",
            "post",
            "The best labels for one row or for many.",
            refused | numeric | locked,
        ),
        (
            "/explain",
            "post",
            "What adds to the score of a label, and its rank.",
            refused | numeric | locked,
        ),
        ("/labels", "get", "Labels by part of their names.", busy),
        ("/example", "get", a_text, no_texts),
        ("/model", "get", "What is served.", locked),
        ("/metrics", "get", "Counters as Prometheus text.", locked),
        ("/health", "get", "Whether the server answers.", unready),
    ]
    if hierarchy:
        operations.append(("/tree", "get", "Nodes of the hierarchy of labels.", busy))
    components: dict[str, Any] = {"schemas": contract.schemas}
    if guarded:
        operations.append(("/reload", "post", "Open the model directory again.", failed))
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    paths: dict[str, Any] = {}
    for path, method, summary, errors in operations:
        answer = contract.answers[path]
        content = {"text/plain": {"schema": answer}} if "type" in answer else _json(answer)
        responses = {"200": {"description": "Done.", "content": content}}
        for status, reason in sorted(errors.items()):
            responses[status] = {
                "description": reason,
                "content": _json({"$ref": "#/components/schemas/Error"}),
            }
        operation: dict[str, Any] = {"summary": summary, "responses": responses}
        if path in contract.bodies:
            content = _json(contract.bodies[path])
            content["application/json"]["examples"] = _examples(path, texts, sparse, dense)
            operation["requestBody"] = {"required": True, "content": content}
        if path in contract.queries:
            operation["parameters"] = [
                {"name": key, "in": "query", "schema": schema, "example": _QUERY[key]}
                for key, schema in contract.queries[path].items()
            ]
        if guarded and path != "/health":
            operation["security"] = [{"token": []}]
        paths[path] = {method: operation}
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "dismec",
            "version": version,
            "description": "Predict the best labels for texts or sparse rows.",
        },
        "paths": paths,
        "components": components,
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _examples(path: str, texts: bool, sparse: bool, dense: int) -> dict[str, Any]:
    """Bodies that can be sent as they are, by what they ask."""
    row: dict[str, Any] = {"features": [[0, 1.0], [1, 0.5]]}
    other: dict[str, Any] = {"features": [[2, 1.0]]}
    if texts:
        row, other = {"text": "What is this about?"}, {"text": "And this one?"}
    if not sparse:
        row, other = {}, {}
    if dense:
        row, other = row | {"dense": [0.5] * dense}, other | {"dense": [-0.5] * dense}
    bodies = {"Explain a label": row | {"label": 0, "limit": 5}}
    if path == "/predict":
        bodies = {
            "One row": row | {"k": 3},
            "Many rows": {"rows": [row, other], "k": 3},
            "By score": row | {"k": 3, "rank": "score"},
            "Among some labels": row | {"k": 3, "exclude": [0]},
        }
    return {name: {"value": body} for name, body in bodies.items()}
