"""What a browser shows: of a model at ``/``, of the OpenAPI description at ``/docs``."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from dismec.model.topk_model import TopkModel

__all__ = ["docs_page", "page"]


def page(model: TopkModel, name: str) -> tuple[str, dict[str, str]]:
    """The page and its headers: for texts if the model takes them, else what is served."""
    text = _text_page() if model.vocabulary is not None else _plain_page(model, name)
    return text, {
        "Content-Security-Policy": _policy(text),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }


@cache
def _text_page() -> str:
    return (files("dismec.serve") / "page.html").read_text("utf-8")


def _plain_page(model: TopkModel, name: str) -> str:
    return (
        '<!doctype html><html lang=en><meta charset=utf-8><link rel=icon href="data:,">'
        '<meta name=viewport content="width=device-width"><meta name=color-scheme '
        'content="light dark"><title>dismec</title><style>body{font:1.1rem/1.6 system-ui;'
        "max-width:40rem;margin:4rem auto;padding:0 1rem}</style>"
        f"<h1>{html.escape(name)}</h1><p>A model of {model.n_labels:,} labels and "
        f"{model.n_features:,} features. It takes rows of numbers, not texts: "
        "<a href=docs>how to ask it</a>.</p></html>"
    )


@cache
def _policy(text: str) -> str:
    """Nothing but this server is asked, and no script or style runs but the page's own."""
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
