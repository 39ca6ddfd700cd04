"""The command line: thin commands over the library; the only package that imports click.

In: arguments. Out: files, lines for people, JSON. May use: `data`, `features`, `measure`, `model`,
`cluster`, `training`, `report`, `compare`, `serve`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from dismec.cli import comparing, data, derive, prediction, serving, training
from dismec.cli.console import printable_streams
from dismec.errors import DismecError


class _Commands(click.Group):
    """Turns errors that users can act on into one line and exit code 2."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is None:  # closed by the parent process
                setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  until the end
            elif isinstance(stream, TextIOWrapper):
                # Label names may contain characters that the terminal's encoding lacks.
                stream.reconfigure(errors="backslashreplace")
        with printable_streams():
            return super().main(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _one_line_errors(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_line_errors(ctx):
            return super().invoke(ctx)


@contextmanager
def _one_line_errors(ctx: click.Context) -> Iterator[None]:
    def fail(message: str) -> None:
        try:
            sys.stdout.flush()
        except OSError:
            sys.stdout = None  # otherwise Python tries again, fails and complains at exit
        click.echo(f"dismec: {' '.join(message.split())}", err=True)
        ctx.exit(2)

    try:
        yield
    except DismecError as error:
        fail(f"{error.text} ({_flag_of(error.parameter)})" if error.parameter else str(error))
    except KeyboardInterrupt:
        click.echo("dismec: stopped", err=True)
        ctx.exit(130)
    except BrokenPipeError:
        # The reader of our output has closed it; there is nobody to report to.
        sys.stdout = None
        ctx.exit(141)
    except MemoryError:
        fail("out of memory")
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        fail(f"{place}{error.strerror or error}")


def _flag_of(parameter: str) -> str:
    """Return the option of a parameter, with its value: ``--overwrite`` for overwrite=True."""
    name, _, value = parameter.partition("=")
    flag = "--label-names" if name == "names" else f"--{name.replace('_', '-')}"
    return flag if value in ("True", "…") else f"{flag} {value[1:-1]}"


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    from dismec.cpu import kernels

    click.echo(f"dismec {version('dismec')} ({kernels.isa} kernels)")
    ctx.exit()


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and the instruction set in use.",
)
def main() -> None:
    """Train and use exact one-vs-rest classifiers for thousands to millions of labels.

    DATA is text with label names (JSON lines {"text": …, "labels": […]}, CSV, TSV or fastText), or
    numeric: XMC text (header "rows features labels", then "l1,l2 f:v f:v"), multi-label svmlight
    (no header), a binary dataset (.xmc), or a scipy matrix (.npz, with --labels). Text files of
    both kinds may be gzipped.
    """


for _group in (
    (training.train, training.add_labels, training.update, training.remove_labels),
    (derive.prune, derive.subset, derive.merge),
    (comparing.compare,),
    (prediction.predict, prediction.evaluate, prediction.explain, serving.serve),
    (data.inspect, data.convert, data.generate, data.demo),
):
    for _command in _group:
        main.add_command(_command)
