"""Additions to Annif's command line: the backend, and a command that locates its models."""

from __future__ import annotations

import click
from annif import cli_util
from flask.cli import with_appcontext

import annif_dismec

__all__ = ["main", "model_path"]


def main() -> None:
    """Run Annif's command line with the backend, also in the processes that it starts."""
    from annif.cli import cli

    annif_dismec.register()
    cli(prog_name="annif-dismec")


@click.command("dismec-model")
@cli_util.project_id
@cli_util.common_options
@with_appcontext
def model_path(project_id: str) -> None:
    """Print the path of a project's dismec model.

    It is an ordinary model directory, for `dismec inspect` and other commands.
    """
    from annif.exception import NotSupportedException

    from annif_dismec.backend import DismecBackend

    backend = cli_util.get_project(project_id).backend
    if not isinstance(backend, DismecBackend):
        raise NotSupportedException("the backend is not dismec", project_id=project_id)
    backend.initialize()
    click.echo(backend.model_directory)
