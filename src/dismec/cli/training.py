"""Commands that make models."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from dismec.cli.console import cluster_news, say_trained, say_unsolved, shown_progress
from dismec.cli.options import (
    PATH,
    cluster_option,
    data_options,
    parse_delta,
    precision_option,
    quiet_option,
    threads_option,
)


@click.command()
@click.argument("data", type=PATH)
@click.option("-o", "--output", "model", type=PATH, required=True, help="The model directory.")
@click.option("--C", "C", type=float, default=1.0, show_default=True, help="Weight of the losses.")
@click.option(
    "--delta",
    default="0.01",
    show_default=True,
    callback=parse_delta,
    metavar="NUMBER|auto",
    help="Weights with |w| below this are dropped; auto: as many as P@k allows.",
)
@click.option(
    "--validation",
    type=PATH,
    help="Data to choose --delta auto on [default: a tenth of the rows of DATA].",
)
@click.option("--validation-labels", type=PATH, help="As --labels, for --validation.")
@click.option(
    "--tol", type=float, default=0.01, show_default=True, help="LIBLINEAR's stopping tolerance."
)
@click.option("--tfidf", is_flag=True, help="Multiply features by their idf in DATA.")
@click.option("--no-normalize", is_flag=True, help="Leave rows at the length they have.")
@click.option(
    "--bias", type=float, default=1.0, show_default=True, help="Value of the bias feature; 0: none."
)
@click.option("--block-size", type=int, default=1000, show_default=True, help="Labels a block.")
@precision_option("float16", show_default=True)
@click.option("--overwrite", is_flag=True, help="Replace a model that is there.")
@cluster_option
@data_options
@threads_option
@quiet_option
def train(
    data: Path,
    model: Path,
    labels: Path | None,
    validation: Path | None,
    validation_labels: Path | None,
    threads: int | None,
    cluster: str | None,
    overwrite: bool,
    quiet: bool,
    no_normalize: bool,
    **params: Any,
) -> None:
    """Train a model on DATA.

    On a directory that holds an unfinished run of the same training it goes on where that stopped.
    """
    from dismec.dataset import is_binary, load_data
    from dismec.training import TrainingParams
    from dismec.training import train as run

    try:
        chosen = TrainingParams(normalize=not no_normalize, **params)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if (validation or validation_labels) and not (validation and chosen.chooses_delta):
        raise click.UsageError("--validation goes with --delta auto, --validation-labels with both")
    dataset = load_data(data, labels=labels, threads=threads)
    judge = None
    if validation:
        judge = load_data(validation, labels=validation_labels, threads=threads)
    begin = time.perf_counter()
    try:
        with shown_progress(quiet, "training") as progress, cluster_news(cluster, quiet):
            trained = run(
                dataset.X,
                dataset.Y,
                model,
                chosen,
                names=dataset.names,
                validation=judge and judge[:2],
                threads=threads,
                overwrite=overwrite,
                progress=progress,
                client=cluster,
                source=data if is_binary(data) else None,
            )
    except KeyboardInterrupt:
        click.echo(f"{model}: run the same command again to go on where this stopped", err=True)
        raise
    if not quiet:
        if chosen.chooses_delta:
            said = trained.params
            click.echo(
                f"delta {said['delta']}, chosen {said['delta_auto']}: {said['delta_effect']}",
                err=True,
            )
        say_trained(trained, model, time.perf_counter() - begin)
    say_unsolved(trained)


@click.command()
@click.argument("model", type=PATH)
@click.option("-o", "--output", type=PATH, required=True, help="The new model directory.")
@click.option("--delta", type=float, help="Weights with |w| below this are dropped.")
@precision_option(None)
@click.option("--overwrite", is_flag=True, help="Replace a model that is there.")
@quiet_option
def prune(
    model: Path,
    output: Path,
    delta: float | None,
    precision: str | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Write a smaller model, as training with a larger delta or another precision would give it.

    A model of an older format is written in the one of today.
    """
    from dismec.model import open_model

    if output.exists() and model.exists() and output.samefile(model):
        raise click.UsageError(f"{output} is the model itself: choose another directory")
    begin = time.perf_counter()
    opened = open_model(model, check=True)
    opened.pruned(delta, precision=precision).save(output, overwrite=overwrite)
    if not quiet:
        say_trained(open_model(output, check=False), output, time.perf_counter() - begin)
