"""The contract → what the interface is, for programs (OpenAPI) and for people."""

from __future__ import annotations

import html
import json
from typing import Any

from dismec.serve.contract import Contract, Schema, ref

__all__ = ["docs_page", "openapi"]


def openapi(contract: Contract, version: str, guarded: bool) -> dict[str, Any]:
    """The OpenAPI description; `guarded` says that a token is asked for."""
    refused = {
        "400": "The request is malformed.",
        "408": "The body did not arrive in time.",
        "413": f"The body has more than {contract.limits.body} bytes.",
        "503": "The queue is full, or as for /health; try again after Retry-After seconds.",
    }
    unready = {"503": "Workers of the cluster that hold weights are missing; there is no answer."}
    locked = {"401": "The token is missing or wrong."} if guarded else {}
    elsewhere = {"501": "The weights are on a cluster.", **locked}
    no_texts = {"400": "The model takes no texts.", "503": refused["503"], **elsewhere}
    failed = {"500": "The model could not be opened; the old one stays.", **locked}
    a_text = "A text of words that speak for some labels, other ones each time."
    operations = [
        ("/predict", "post", "The best labels of one row or of many.", refused | locked),
        ("/explain", "post", "What carried the score of a label.", refused | elsewhere),
        ("/example", "get", a_text, no_texts),
        ("/model", "get", "What is served.", locked),
        ("/metrics", "get", "Counters as Prometheus text.", locked),
        ("/health", "get", "Whether the server answers.", unready),
    ]
    components: dict[str, Any] = {"schemas": contract.schemas}
    if guarded:
        operations.append(("/reload", "post", "Open the model directory anew.", failed))
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    paths: dict[str, Any] = {}
    for path, method, summary, errors in operations:
        answer = contract.answers[path]
        content = {"text/plain": {"schema": answer}} if "type" in answer else _json(answer)
        responses = {"200": {"description": "Done.", "content": content}}
        for status, reason in sorted(errors.items()):
            responses[status] = {"description": reason, "content": _json(ref("Error"))}
        operation: dict[str, Any] = {"summary": summary, "responses": responses}
        if path in contract.bodies:
            operation["requestBody"] = {"required": True, "content": _json(contract.bodies[path])}
        if guarded and path != "/health":
            operation["security"] = [{"token": []}]
        paths[path] = {method: operation}
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


def _json(schema: Schema) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


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
