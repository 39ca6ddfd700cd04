"""The command that serves predictions over HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dismec.cli.label_options import hierarchy_option
from dismec.cli.options import MOST_PLACES, PATH, F, threads_option
from dismec.errors import DismecError


def _number_option(
    *names: str, least: int = 1, most: int | None = None, **more: Any
) -> Callable[[F], F]:
    return click.option(*names, type=click.IntRange(least, most), **more)


@click.command()
@click.argument("model", type=PATH)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@_number_option(
    "--port", least=0, most=65535, default=8000, help="Port to listen on; 0 picks a free one."
)
@_number_option("--workers", default=1, help="Number of server processes that share the port.")
@_number_option("--max-body", most=1000, default=10, help="Maximum size of a request body, in MB.")
@_number_option("--max-rows", default=1000, help="Maximum number of rows per request.")
@_number_option(
    "--max-characters", default=1_000_000, help="Maximum number of characters of text per request."
)
@_number_option("--max-k", most=MOST_PLACES, default=100, help="Maximum number of labels per row.")
@_number_option(
    "--queue",
    least=0,
    default=100,
    help="Maximum number of waiting requests; further ones get 503.",
)
@hierarchy_option
@threads_option
def serve(
    model: Path,
    host: str,
    port: int,
    hierarchy: Path | None,
    workers: int,
    threads: int | None,
    max_body: int,
    max_rows: int,
    max_characters: int,
    max_k: int,
    queue: int,
) -> None:
    """Serve predictions of MODEL over HTTP.

    Endpoints: POST /predict; GET /health, /model, /metrics, /docs. If the environment variable
    DISMEC_TOKEN is set, requests must carry it ("Authorization: Bearer …"). MODEL is reloaded when
    it changes, and on SIGHUP; SIGTERM finishes the requests in progress and exits. With
    --hierarchy, the page at / shows the tree of labels, and GET /tree returns its nodes.
    """
    try:
        from dismec.serve.contract import Limits
        from dismec.serve.server import serve as serve_model
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dismec"):
            raise
        raise DismecError(
            f"serving needs {error.name}, which is not installed: pip install 'dismec[server]'"
        ) from None
    serve_model(
        model,
        host=host,
        port=port,
        workers=workers,
        threads=threads,
        limits=Limits(max_body * 1_000_000, max_rows, max_characters, max_k, queue),
        token=os.environ.get("DISMEC_TOKEN"),
        hierarchy=hierarchy,
        ready=lambda address: click.echo(f"serving {model} on {address}"),
    )
