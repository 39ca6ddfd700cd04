"""Commands that derive models from finished ones: smaller, with fewer labels, or merged."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dismec.cli.console import (
    print_message,
    print_table,
    print_trained,
    print_unknown,
    trained_facts,
)
from dismec.cli.options import (
    PATH,
    Reading,
    added,
    check_new_files,
    data_options,
    json_option,
    listed_labels,
    parse_ks,
    parse_numbers,
    quiet_option,
    threads_option,
)

if TYPE_CHECKING:
    from dismec.model.model import Model


_output_options = added(
    click.option("-o", "--output", type=PATH, required=True, help="Directory for the new model."),
    click.option("--overwrite", is_flag=True, help="Overwrite an existing model."),
    json_option,
    quiet_option,
)


@click.command()
@click.argument("model", type=PATH)
@click.option("-o", "--output", type=PATH, help="Directory for the new model.")
@click.option("--overwrite", is_flag=True, help="Overwrite an existing model.")
@json_option
@quiet_option
@click.option(
    "--delta",
    "deltas",
    callback=parse_numbers,
    metavar="NUMBER",
    help="Drop weights closer to 0 than this; with --curve, values separated by commas.",
)
@click.option(
    "--precision",
    type=click.Choice(["float16", "float32", "float8"]),
    help="Storage of weights; float8 takes one byte each.",
)
@click.option(
    "--curve",
    type=PATH,
    metavar="DATA",
    help="Write no model; print accuracy on DATA, size and speed for values of delta.",
)
@click.option("-k", "ks", default="1,3,5", callback=parse_ks, help="Values of k for --curve.")
@click.option("--plot", type=PATH, help="Draw --curve in this SVG file; needs dismec[plots].")
@data_options(model=True)
@threads_option
def prune(
    model: Path,
    output: Path | None,
    deltas: tuple[float, ...] | None,
    precision: str | None,
    curve: Path | None,
    ks: tuple[int, ...],
    plot: Path | None,
    reading: Reading,
    threads: int | None,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write a smaller copy of a model.

    A larger delta drops more weights; another precision changes their storage. --curve shows which
    delta the model can afford.
    """
    from dismec.model.opening import open_model

    if (curve is None) == (output is None):
        raise click.UsageError("pass -o for a smaller model, or --curve to compare values of delta")
    if curve is not None:
        check_new_files(plot, overwrite=overwrite)
        _print_curve(model, curve, deltas, ks, plot, reading, threads, as_json)
        return
    if deltas is not None and len(deltas) > 1:
        raise click.UsageError("--delta takes several values only with --curve")
    assert output is not None

    def make() -> Model:
        delta = deltas[0] if deltas else None
        return open_model(model, check=True).pruned(delta, precision=precision)

    _write((model,), output, make, overwrite=overwrite, as_json=as_json, quiet=quiet)


def _print_curve(
    path: Path,
    data: Path,
    deltas: tuple[float, ...] | None,
    ks: tuple[int, ...],
    plot: Path | None,
    reading: Reading,
    threads: int | None,
    as_json: bool,
) -> None:
    from dismec.model.opening import open_model
    from dismec.report.figures import draw_pruning
    from dismec.report.pruning_curve import pruning_curve

    model = open_model(path)
    X, Y, _ = reading.rows_of(model, reading.look(data), threads)
    table = pruning_curve(model, X, Y, deltas, ks=ks, threads=threads)
    if plot:
        plot.write_bytes(draw_pruning(table))
    if as_json:
        click.echo(json.dumps(table))
        return
    names = [f"P@{k}" for k in ks]
    print_table(
        ["delta", *names, "weights", "MB", "ms per row"],
        [
            [
                f"{row['delta']:g}",
                *(f"{row[name]:.2f}" for name in names),
                f"{row['weights']:,}",
                f"{row['bytes'] / 1e6:.2f}",
                f"{row['ms per row']:.3f}",
            ]
            for row in table
        ],
        left=0,
    )


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
    **how: bool,
) -> None:
    """Write a model with only some LABELS of MODEL.

    Labels are given by name or number. They keep their order and are numbered from 0. MODEL is not
    changed.
    """
    from dismec.model.opening import open_model

    wanted = listed_labels(labels, listed)

    def make() -> Model:
        return open_model(model, check=True).subset(wanted)

    _write((model,), output, make, **how)


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
    quiet: bool,
    **how: bool,
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

    _write(models, output, make, quiet=quiet, **how)


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
