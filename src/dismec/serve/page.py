"""Pages for the browser: a model at ``/``, the OpenAPI description at ``/docs``."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from dismec.data.printable import html_text
from dismec.model.model import Model


def page(model: Model) -> tuple[str, dict[str, str]]:
    """Return the page and its headers, with fields for the model's input."""
    sparse = "text" if model.vocabulary is not None else "features"
    takes = [sparse] if model.n_features or not model.n_dense else []
    takes += ["dense"] if model.n_dense and not model.encoder else []
    text = _assembled("page.html").replace("{takes}", " ".join(takes))
    return text, _headers(text)


def docs_page(description: dict[str, Any], name: str) -> tuple[str, dict[str, str]]:
    """Return the OpenAPI description of a model as a page with examples, and its headers."""
    info, paths = description["info"], description["paths"]
    operations = [(path, *one) for path, methods in paths.items() for one in methods.items()]
    guarded = any("security" in operation for _, _, operation in operations)
    parts = {
        "name": html_text(name),
        "version": html_text(info["version"]),
        "description": html_text(info["description"]),
        "access": _ACCESS if guarded else "",
        "contents": " ".join(f'<a href="#{path[1:]}">{path}</a>' for path in paths),
        "operations": "".join(_article(*operation) for operation in operations),
        "schemas": "".join(
            f"<details><summary>{key}</summary>{_listing(schema)}</details>"
            for key, schema in description["components"]["schemas"].items()
        ),
    }
    text = re.sub(r"\{(\w+)\}", lambda m: parts.get(m[1], m[0]), _assembled("docs.html"))
    return text, _headers(text)


@cache
def _assembled(name: str) -> str:
    """Return a page with its styles and scripts inlined, so it is one response."""
    folder = files("dismec.serve")
    text = (folder / name).read_text("utf-8")
    return re.sub(
        r"\{(\w+\.(?:css|js))\}", lambda m: (folder / m[1]).read_text("utf-8").strip(), text
    )


def _headers(text: str) -> dict[str, str]:
    return {
        "Content-Security-Policy": _policy(text),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }


@cache
def _policy(text: str) -> str:
    """Return a policy that allows only this server and the page's own scripts and styles."""
    script, style = (
        " ".join(map(_source, re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL))) or "'none'"
        for tag in ("script", "style")
    )
    return (
        "default-src 'none'; connect-src 'self'; img-src data:; "
        f"script-src {script}; style-src {style}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _source(inline: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}'"


_ACCESS = (
    '<form id="access" class="note"><label for="token">Token</label><div class="row">'
    '<input id="token" type="password" autocomplete="off"></div></form>'
)


def _article(path: str, method: str, operation: dict[str, Any]) -> str:
    """Return one request: its purpose, an example to send, and possible answers."""
    lock = '<small class="lock">requires the token</small>' if "security" in operation else ""
    answers = "".join(
        f"<tr><th scope=row>{status}</th><td>{html_text(response['description'])}</td></tr>"
        for status, response in operation["responses"].items()
    )
    return (
        f'<article id="{path[1:]}"><h2><small>{method.upper()}</small>{path}{lock}</h2>'
        f"<p>{html_text(operation['summary'])}</p>"
        f'<form data-path="{path[1:]}" data-method="{method.upper()}">'
        f"{_query_fields(operation)}{_body_field(path, operation)}"
        '<div class="row"><button class="main">Send</button><span class="state" role="status">'
        "</span></div><pre tabindex=0 aria-label=Answer hidden></pre></form>"
        f"<details><summary>Answers</summary><table>{answers}</table></details></article>"
    )


def _query_fields(operation: dict[str, Any]) -> str:
    fields = "".join(
        f'<label>{one["name"]}<input name="{one["name"]}" value="{one["example"]}">'
        f"<small>{html_text(one['schema']['description'])}</small></label>"
        for one in operation.get("parameters", ())
    )
    return f'<div class="query">{fields}</div>' if fields else ""


def _body_field(path: str, operation: dict[str, Any]) -> str:
    if "requestBody" not in operation:
        return ""
    examples = operation["requestBody"]["content"]["application/json"]["examples"]
    bodies = {name: json.dumps(one["value"], ensure_ascii=False) for name, one in examples.items()}
    options = "".join(
        f'<option value="{html_text(body)}">{html_text(name)}</option>'
        for name, body in bodies.items()
    )
    identity = f"body-{path[1:]}"
    return (
        f'<label for="{identity}">Body</label>'
        f'<select aria-label="Example body">{options}</select>'
        f'<textarea id="{identity}" class="body" spellcheck=false>'
        f"{html_text(next(iter(bodies.values())))}</textarea>"
    )


def _listing(value: Any) -> str:
    return f"<pre>{html_text(json.dumps(value, indent=1, ensure_ascii=False))}</pre>"
