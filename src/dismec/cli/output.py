"""Where a command writes: a new file, or standard output."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dismec.cli.console import unfiltered
from dismec.cli.options import PATH, F, check_new_files

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


@dataclass(frozen=True)
class Output:
    """Where predictions go, and in which format."""

    path: Path  # STANDARD or a file
    form: str  # one of FORMATS

    @contextmanager
    def writer(self, columns: Columns) -> Iterator[PredictionWriter]:
        """Open a writer for predictions; a file appears only when it is complete."""
        from dismec.data.predictions import prediction_file, prediction_writer

        if self.path != STANDARD:
            with prediction_file(self.path, self.form, columns) as writer:
                yield writer
            return
        sys.stdout.flush()
        encoding = sys.stdout.encoding or "utf-8"
        file = unfiltered(sys.stdout).buffer  # each format escapes characters in its own way
        with prediction_writer(file, self.form, columns, encoding) as writer:
            yield writer
        sys.stdout.flush()


def output_options(command: F) -> Callable[..., Any]:
    """Add ``-o``, ``--format``, ``--json`` and ``--overwrite``, passed as one `Output`.

    They are checked before the command starts: an existing file is an error before anything is
    read. Paths among the command's arguments are never overwritten.
    """
    options = (
        click.option(
            "-o",
            "--output",
            type=PATH,
            metavar="FILE",
            help="Output file; the format follows from its extension: "
            f"{', '.join(ENDINGS)}; text formats also with .gz [default: -, standard output].",
        ),
        click.option(
            "--format",
            "form",
            type=click.Choice(FORMATS),
            help="Output format, overriding the file extension [default: text]; xmc is XMC text of "
            "scores; npz is held in memory until the end, other formats are written row by row.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Same as --format json."),
        click.option("--overwrite", is_flag=True, help="Overwrite an existing output file."),
    )

    @functools.wraps(command)
    def gathered(
        *args: Any,
        output: Path | None,
        form: str | None,
        as_json: bool,
        overwrite: bool,
        **others: Any,
    ) -> Any:
        if as_json and form not in (None, "json"):
            raise click.UsageError(f"--json cannot be combined with --format {form}")
        output = output or STANDARD
        if output != STANDARD:
            read = [value for value in others.values() if isinstance(value, Path)]
            check_new_files(output, overwrite=overwrite, sources=read)
        found = _checked_output(output, "json" if as_json else form)
        return command(*args, output=found, **others)

    for option in reversed(options):
        gathered = option(gathered)
    return gathered


def _checked_output(path: Path, form: str | None) -> Output:
    if path != STANDARD:
        form = form or format_of(path) or ("text" if _is_special(path) else None)
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
        try:
            import dismec.data.arrow  # noqa: F401  checks that pyarrow is installed
        except ModuleNotFoundError:
            raise click.UsageError(
                "writing Parquet files needs pyarrow: pip install 'dismec[arrow]'"
            ) from None
    return Output(path, form or "text")


def _is_special(path: Path) -> bool:
    """Return whether it is a device or a pipe, whose name has no extension."""
    return path.exists() and not path.is_file() and not path.is_dir()


def format_of(path: Path) -> str | None:
    """Return the format for a file's extension, ignoring ``.gz``; None if there is none."""
    name = path.name.lower()
    form = ENDINGS.get(Path(name.removesuffix(".gz")).suffix)
    return None if form in BINARY_FORMATS and name.endswith(".gz") else form
