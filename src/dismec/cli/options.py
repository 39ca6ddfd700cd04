"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
MOST_PLACES = 2**31 - 1


def data_options(command: F) -> F:
    """Options for reading DATA."""
    return click.option(
        "--labels", type=PATH, help="The label matrix that goes with DATA if that is an .npz file."
    )(command)


def parse_delta(_: click.Context, __: click.Parameter, value: str) -> float | str:
    """A number, or "auto"."""
    try:
        return "auto" if value == "auto" else float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number nor auto") from None


def precision_option(default: str | None, **more: Any) -> Callable[[F], F]:
    """``--precision``."""
    return click.option(
        "--precision",
        type=click.Choice(["float16", "float32", "int8"]),
        default=default,
        help="How weights are stored; int8: eight bits each.",
        **more,
    )


def number_option(
    name: str, least: int, most: int | None, default: int, text: str
) -> Callable[[F], F]:
    """An option that is a whole number from `least` to `most`."""
    kind = click.IntRange(least, most)
    return click.option(name, type=kind, default=default, show_default=True, help=text)


def parse_ks(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    """Numbers joined by commas, in order."""
    try:
        ks = tuple(sorted({int(part) for part in value.split(",")}))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 1,3,5") from None
    if not 1 <= ks[0] <= ks[-1] <= MOST_PLACES:
        raise click.BadParameter(f"places count from 1 to {MOST_PLACES}")
    return ks


threads_option = click.option(
    "--threads", type=click.IntRange(1, 1024), help="Threads [default: all available CPUs]."
)
cluster_option = click.option(
    "--cluster",
    metavar="ADDRESS|FILE",
    help="Run on the Dask cluster of this scheduler: tcp://host:8786, or its scheduler file.",
)
quiet_option = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
