"""A model → what a browser shows at ``/``, and the headers that keep it to itself."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from functools import cache
from importlib.resources import files

from dismec.model.topk_model import TopkModel

__all__ = ["page"]


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
