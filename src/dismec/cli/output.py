"""Where predictions are written, and in which format: a new file, or standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dismec.cli.console import unfiltered

if TYPE_CHECKING:
    from dismec.data.predictions import Columns, PredictionWriter

FORMATS = ("text", "csv", "tsv", "jsonl", "json", "parquet", "npz", "xmc")
BINARY_FORMATS = ("parquet", "npz")
# XMC text must be requested by name: the extension .xmc is used for binary datasets.
ENDINGS = {
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".npz": "npz",
}

STANDARD = Path("-")  # standard output; as DATA, standard input


@contextmanager
def opened_writer(path: Path, form: str, columns: Columns) -> Iterator[PredictionWriter]:
    """Open a writer for predictions; a file appears only when it is complete."""
    from dismec.data.predictions import prediction_file, prediction_writer

    if path != STANDARD:
        with prediction_file(path, form, columns) as writer:
            yield writer
        return
    sys.stdout.flush()
    encoding = sys.stdout.encoding or "utf-8"
    file = unfiltered(sys.stdout).buffer  # each format escapes characters in its own way
    with prediction_writer(file, form, columns, encoding) as writer:
        yield writer
    sys.stdout.flush()


def checked_format(path: Path, form: str | None) -> str:
    """Return the format of an output, given or from its extension; raise an error if unusable."""
    if path != STANDARD:
        # The names of devices and pipes have no extension.
        is_special = path.exists() and not path.is_file() and not path.is_dir()
        form = form or format_of(path) or ("text" if is_special else None)
        if form is None:
            known = ", ".join(ENDINGS)
            raise click.UsageError(
                f"{path}: unknown extension; use {known}, a text format with .gz, or --format"
            )
        if form in BINARY_FORMATS and path.suffix.lower() == ".gz":
            raise click.UsageError(f"{path}: {form} is already compressed: omit .gz")
    elif form in BINARY_FORMATS and sys.stdout.isatty():
        raise click.UsageError(f"{form} cannot be printed to a terminal: choose a file with -o")
    if form == "parquet":
        from dismec.data.formats import arrow_module

        arrow_module("Parquet is written")  # raises an error without pyarrow
    return form or "text"


def format_of(path: Path) -> str | None:
    """Return the format for a file's extension, ignoring ``.gz``; None if there is none."""
    name = path.name.lower()
    form = ENDINGS.get(Path(name.removesuffix(".gz")).suffix)
    return None if form in BINARY_FORMATS and name.endswith(".gz") else form
