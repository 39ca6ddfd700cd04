"""Pages for the browser: a model at ``/``, the OpenAPI description at ``/docs``."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from dismec.data.printable import html_text
from dismec.model.model import Model


def page(model: Model) -> tuple[str, dict[str, str]]:
    """Return the page and its headers, with fields for the model's input."""
    sparse = "text" if model.vocabulary is not None else "features"
    takes = [sparse] if model.n_features or not model.n_dense else []
    takes += ["dense"] if model.n_dense and not model.encoder else []
    text = _assembled("page.html").replace("{takes}", " ".join(takes))
    return text, _headers(text)


def docs_page(name: str) -> tuple[str, dict[str, str]]:
    """Return the page that shows the OpenAPI description of a model, and its headers."""
    text = _assembled("docs.html").replace("{name}", html_text(name))
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
