"""Commands that derive models from finished ones: smaller, with fewer labels, or merged."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dismec.cli.console import print_message, print_trained, print_unknown, trained_facts
from dismec.cli.options import (
    PATH,
    F,
    Reading,
    data_options,
    json_option,
    precision_option,
    quiet_option,
    threads_option,
)

if TYPE_CHECKING:
    from dismec.model.model import Model


def _output_options(command: F) -> F:
    """Add options for the new model and for the output of the command."""
    for option in (
        quiet_option,
        json_option,
        click.option("--overwrite", is_flag=True, help="Overwrite an existing model."),
        click.option(
            "-o", "--output", type=PATH, required=True, help="Directory for the new model."
        ),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("model", type=PATH)
@_output_options
@click.option("--delta", type=float, help="Drop weights closer to 0 than this.")
@precision_option(None)
def prune(
    model: Path,
    output: Path,
    delta: float | None,
    precision: str | None,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write a smaller copy of a model.

    A larger delta drops more weights; another precision changes their storage. A model in an older
    format is converted to the current one.
    """
    from dismec.model.opening import open_model

    def make() -> Model:
        return open_model(model, check=True).pruned(delta, precision=precision)

    _write((model,), output, make, overwrite=overwrite, as_json=as_json, quiet=quiet)


@click.command()
@click.argument("model", type=PATH)
@click.argument("labels", nargs=-1)
@_output_options
@click.option(
    "--labels", "listed", type=PATH, help="More labels to keep: names or numbers, one per line."
)
def subset(
    model: Path,
    labels: tuple[str, ...],
    output: Path,
    listed: Path | None,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write a model with only some LABELS of MODEL.

    Labels are given by name or number. They keep their order and are numbered from 0. MODEL is not
    changed.
    """
    from dismec.data.names import load_names
    from dismec.model.opening import open_model

    wanted = [*labels, *filter(None, load_names(listed, blanks=True) if listed else ())]

    def make() -> Model:
        return open_model(model, check=True).subset(wanted)

    _write((model,), output, make, overwrite=overwrite, as_json=as_json, quiet=quiet)


@click.command()
@click.argument("models", type=PATH, nargs=-1, required=True)
@_output_options
@click.option(
    "--validation",
    type=PATH,
    metavar="DATA",
    help="Data to calibrate all labels on; no model may have been trained on it.",
)
@data_options(model=True)
@threads_option
def merge(
    models: tuple[Path, ...],
    output: Path,
    validation: Path | None,
    reading: Reading,
    threads: int | None,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Merge MODELS with different labels into one.

    The models must have the same features. Weights do not change. The labels of the first model
    come first. Probabilities are kept if all models have the same curves; otherwise --validation
    learns new ones.
    """
    from dismec.model.opening import open_model
    from dismec.training.merging import merge_models, with_probabilities

    if validation is None and (reading.labels or reading.names or reading.columns):
        raise click.UsageError("options for reading DATA require --validation")

    def make() -> Model:
        merged = merge_models(models)
        if validation is not None:
            data = reading.rows_of(merged, reading.look(validation), threads)
            print_unknown(merged, data)
            Y = data.Y[:, : merged.n_labels]
            return with_probabilities(merged, data.X, Y, threads=threads)
        if merged.calibration is None and not quiet:
            given = [open_model(path, check=False).calibration is not None for path in models]
            if any(given):
                print_message(
                    "probabilities left out: the models have different curves; "
                    "--validation DATA learns new ones"
                )
        return merged

    _write(models, output, make, overwrite=overwrite, as_json=as_json, quiet=quiet)


def _write(
    sources: tuple[Path, ...],
    output: Path,
    make: Callable[[], Model],
    *,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write a model derived from others, unless the output already exists."""
    from dismec.model.opening import open_model
    from dismec.training.resume import check_output

    for source in sources:
        if output.exists() and source.exists() and output.samefile(source):
            what = "the model itself" if len(sources) == 1 else "one of the models"
            raise click.UsageError(f"{output} is {what}: choose another directory")
    check_output(output, overwrite, resumes=False)
    begin = time.perf_counter()
    make().save(output, overwrite=overwrite)
    written, seconds = open_model(output, check=False), time.perf_counter() - begin
    if as_json:
        click.echo(json.dumps(trained_facts(written, output, seconds)))
    elif not quiet:
        print_trained(written, output, seconds)
