"""Commands that compare models: which C, which delta."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dismec.cli.console import (
    cluster_news,
    print_table,
    say_trained,
    say_unsolved,
    shown_progress,
)
from dismec.cli.options import (
    PATH,
    Reading,
    cluster_option,
    data_options,
    json_option,
    parse_ks,
    quiet_option,
    threads_option,
)
from dismec.cli.training_options import (
    on_data,
    params_options,
    resumable,
    text_options,
    text_params,
    training_params,
)

if TYPE_CHECKING:
    from dismec.model.model import Model
    from dismec.training.tuning import Tuned

_GRID = "0.25,0.5,1,2"
_DELTAS = "0,0.001,0.003,0.01,0.02,0.03,0.05,0.07,0.1,0.2,0.3"


def _parse_numbers(_: click.Context, __: click.Parameter, value: str) -> tuple[float, ...]:
    """Numbers joined by commas."""
    try:
        return tuple(float(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 0.3,1,3") from None


_plot_option = click.option(
    "--plot", type=PATH, help="Draw it: .svg, .png or .pdf; needs dismec[plots]."
)


@click.command()
@click.argument("data", type=PATH)
@click.option("-o", "--output", "model", type=PATH, required=True, help="The model directory.")
@click.option(
    "--grid",
    default=_GRID,
    show_default=True,
    callback=_parse_numbers,
    help="The values of C to choose from.",
)
@click.option(
    "--metric", default="nDCG@5", show_default=True, help="What to choose by: P@k, nDCG@k or PSP@k."
)
@click.option(
    "--validation", type=PATH, help="Data to choose on [default: a tenth of the rows of DATA]."
)
@click.option("--validation-labels", type=PATH, help="As --labels, for --validation.")
@params_options("C", "block_size")
@click.option("--overwrite", is_flag=True, help="Replace a model that is there.")
@_plot_option
@json_option
@data_options()
@text_options
@cluster_option
@threads_option
@quiet_option
def tune(
    data: Path,
    model: Path,
    reading: Reading,
    validation: Path | None,
    validation_labels: Path | None,
    threads: int | None,
    cluster: str | None,
    overwrite: bool,
    quiet: bool,
    plot: Path | None,
    as_json: bool,
    grid: tuple[float, ...],
    metric: str,
    **params: Any,
) -> None:
    """Choose C on rows held out, and train a model on all of DATA with it.

    The model is the one that train gives with this C. What was tried is printed, and kept in the
    model: inspect shows it.
    """
    from dismec.training import tuning

    tuning.check_grid(grid)
    tuning.check_metric(metric)
    _check_plot(plot)
    if validation_labels and not validation:
        raise click.UsageError("--validation-labels goes with --validation")
    found = reading.look(data)
    text = text_params(params, found)
    chosen = training_params(found.is_texts, params)
    begin = time.perf_counter()
    run: Callable[..., Tuned] = tuning.tune
    if text is not None:
        run = partial(tuning.tune_text, text=text)
    with (
        resumable(model),
        shown_progress(quiet, "tuning") as progress,
        cluster_news(cluster, quiet),
    ):
        tuned = on_data(
            *(found, reading, (validation, validation_labels), run, quiet),
            path=model,
            grid=grid,
            params=chosen,
            metric=metric,
            threads=threads,
            overwrite=overwrite,
            progress=progress,
            cluster=cluster,
        )
    if plot:
        from dismec.report.figures import draw_tuning

        draw_tuning(tuned.table, metric, tuned.C, plot)
    if as_json:
        click.echo(json.dumps({"C": tuned.C, "metric": metric, "table": tuned.table}))
    else:
        _print_tuned(tuned)
    if not quiet:
        say_trained(tuned.model, model, time.perf_counter() - begin)
    say_unsolved(tuned.model)


def _check_plot(plot: Path | None) -> None:
    if plot is not None:
        from dismec.report.figures import check_plot

        check_plot(plot)


def _print_tuned(tuned: Tuned) -> None:
    from dismec.model.provenance import sentence

    usual = ["P@1", "P@3", "P@5", "nDCG@5", "PSP@5"]  # what fits a terminal; JSON has all
    metrics = usual if tuned.metric in usual else [*usual, tuned.metric]
    rows = [
        [
            f"{row['C']:g}",
            *(f"{row[name]:.2f}" for name in metrics),
            f"{row['weights']:,}",
            f"{row['seconds']:.1f}",
        ]
        for row in tuned.table
    ]
    best = [row["C"] for row in tuned.table].index(tuned.C)
    print_table(["C", *metrics, "weights", "core-s"], rows, left=0, best=best)
    chosen = sentence("C_auto", tuned.model.params["C_auto"])
    click.echo(f"C {tuned.C:g}, chosen {chosen}")
    if best in (0, len(rows) - 1):
        click.echo("It is at the end of the grid: a wider one may have a better one.")


@click.command()
@click.argument("data", type=PATH)
@click.option("--test", type=PATH, required=True, help="Data to measure on.")
@click.option("--test-labels", type=PATH, help="As --labels, for --test.")
@click.option(
    "--delta",
    "deltas",
    default=_DELTAS,
    callback=_parse_numbers,
    help=f"The values of delta [default: {_DELTAS}; of a model those from its own up].",
)
@click.option(
    "-k", "ks", default="1,3,5", show_default=True, callback=parse_ks, help="Places to report."
)
@params_options("delta", "calibrate", "block_size")
@_plot_option
@json_option
@data_options()
@text_options
@cluster_option
@threads_option
@quiet_option
@click.pass_context
def sweep(
    ctx: click.Context,
    /,
    data: Path,
    test: Path,
    test_labels: Path | None,
    deltas: tuple[float, ...],
    ks: tuple[int, ...],
    plot: Path | None,
    as_json: bool,
    reading: Reading,
    cluster: str | None,
    threads: int | None,
    quiet: bool,
    **params: Any,
) -> None:
    """What each delta costs in P@k, and saves in weights and time.

    DATA is trained on once, in memory, at the smallest delta; or it is the directory of a model,
    whose own delta is then the smallest that can be measured.
    """
    from dismec.data.corpus import read_texts
    from dismec.training.sweep import check_deltas, sweep_model

    ordered = check_deltas(deltas)
    _check_plot(plot)
    of_test = Reading(test_labels, None, reading.columns)
    test_file = of_test.look(test)
    if test_file.is_texts:  # what cannot be read is an error before the training
        next(read_texts(test_file, reading.fmt))
    if data.is_dir():
        from dismec.model.opening import open_model

        for option in ctx.command.params:
            name = option.name or ""
            if name in ("cluster", *params) and _is_given(ctx, name):
                raise click.UsageError(f"{option.opts[0]} is for a training, and {data} is a model")
        model = open_model(data)
        if not _is_given(ctx, "deltas"):
            own = float(model.params.get("delta", 0))
            ordered = [own, *(delta for delta in ordered if delta > own)]
    else:
        with shown_progress(quiet, "training") as progress:
            common = {"threads": threads, "progress": progress, "cluster": cluster}
            with cluster_news(cluster, quiet):
                model = _fit(data, reading, params | {"delta": ordered[0]}, common)
    rows = of_test.rows_of(model, test_file, threads)
    table = sweep_model(model, rows[:2], ordered, ks=ks, threads=threads)
    if plot:
        from dismec.report.figures import draw_sweep

        draw_sweep(table, plot)
    if as_json:
        click.echo(json.dumps(table))
        return
    names = [f"P@{k}" for k in ks]
    print_table(
        ["delta", *names, "weights", "MB", "ms a row"],
        [
            [
                f"{row['delta']:g}",
                *(f"{row[name]:.2f}" for name in names),
                f"{row['weights']:,}",
                f"{row['bytes'] / 1e6:.2f}",
                f"{row['ms a row']:.3f}",
            ]
            for row in table
        ],
        left=0,
    )


def _is_given(ctx: click.Context, option: str) -> bool:
    return ctx.get_parameter_source(option) is not click.core.ParameterSource.DEFAULT


def _fit(
    data: Path,
    reading: Reading,
    params: dict[str, Any],
    common: dict[str, Any],
) -> Model:
    found = reading.look(data)
    text = text_params(params, found)
    chosen = training_params(found.is_texts, params)
    if text is not None:
        from dismec.training.texts import TextRequest, fit_text

        return fit_text(TextRequest(found, chosen, text=text, fmt=reading.fmt, **common))
    from dismec.training.recipe import fit

    dataset = reading.load(found, common["threads"])
    return fit(*dataset[:2], chosen, names=dataset.names, **common)
