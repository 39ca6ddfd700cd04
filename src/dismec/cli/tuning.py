"""Commands that compare values of C or delta."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dismec.cli.console import print_table, print_trained, print_unsolved, trained_facts
from dismec.cli.former_keys import with_former_keys
from dismec.cli.new_files import check_new_files
from dismec.cli.options import PATH, Reading, json_option, parse_ks
from dismec.cli.training_options import Order, training_options

if TYPE_CHECKING:
    from dismec.training.tuning import Tuned

_GRID = "0.25,0.5,1,2"
_DELTAS = "0,0.001,0.003,0.01,0.02,0.03,0.05,0.07,0.1,0.2,0.3"


def _parse_numbers(_: click.Context, __: click.Parameter, value: str) -> tuple[float, ...]:
    """Parse comma-separated numbers."""
    try:
        return tuple(float(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 0.3,1,3") from None


_plot_option = click.option(
    "--plot", type=PATH, help="Save a plot (.svg, .png or .pdf); needs dismec[plots]."
)


@click.command()
@click.argument("data", type=PATH)
@click.option("-o", "--output", "model", type=PATH, required=True, help="Directory for the model.")
@click.option(
    "--grid",
    default=_GRID,
    show_default=True,
    callback=_parse_numbers,
    help="Values of C to try, separated by commas.",
)
@click.option(
    "--metric",
    default="nDCG@5",
    show_default=True,
    help="Metric to maximize: P@k, nDCG@k or PSP@k.",
)
@_plot_option
@json_option
@training_options(
    "C",
    "block_size",
    validation="Data to choose on [default: a tenth of the rows of DATA].",
)
def tune(
    data: Path,
    model: Path,
    order: Order,
    plot: Path | None,
    as_json: bool,
    grid: tuple[float, ...],
    metric: str,
) -> None:
    """Choose C on held-out rows, then train with it on DATA.

    The model is the one that train gives with this C. The results for each C are printed and stored
    in the model: inspect shows them.
    """
    from dismec.training.tuning import ChoiceOfC

    choice = ChoiceOfC.of(grid, metric)
    _check_plot(plot, order.overwrite)
    if order.validation_labels and not order.validation:
        raise click.UsageError("--validation-labels requires --validation")
    begin = time.perf_counter()
    with order.request(data, model, "tuning") as request:
        tuned = choice.carried_out(request)
    if plot:
        from dismec.report.figures import draw_tuning

        draw_tuning(tuned.table, metric, tuned.C, plot)
    seconds = time.perf_counter() - begin
    if as_json:
        facts = trained_facts(tuned.model, model, seconds)
        click.echo(json.dumps({**facts, "metric": metric, "table": tuned.table}))
    else:
        _print_tuned(tuned)
        if not order.quiet:
            print_trained(tuned.model, model, seconds)
    print_unsolved(tuned.model)


def _check_plot(plot: Path | None, overwrite: bool) -> None:
    check_new_files(plot, overwrite=overwrite)
    if plot is not None:
        from dismec.report.figures import check_plot

        check_plot(plot)


def _print_tuned(tuned: Tuned) -> None:
    from dismec.model.provenance import sentence

    usual = ["P@1", "P@3", "P@5", "nDCG@5", "PSP@5"]  # fits a terminal; JSON has all
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
        click.echo("This is the end of the grid: a wider grid may contain a better value.")


@click.command()
@click.argument("data", type=PATH)
@click.option("--test", type=PATH, required=True, help="Test data.")
@click.option("--test-labels", type=PATH, help="Like --labels, for --test.")
@click.option("--test-dense", type=PATH, help="Like --dense, for --test.")
@click.option(
    "--delta",
    "deltas",
    default=_DELTAS,
    callback=_parse_numbers,
    help=f"Values of delta [default: {_DELTAS}; for a model, those from its own delta].",
)
@click.option(
    "-k",
    "ks",
    default="1,3,5",
    show_default=True,
    callback=parse_ks,
    help="Values of k to report, separated by commas.",
)
@_plot_option
@click.option("--overwrite", is_flag=True, help="Overwrite the file of --plot.")
@json_option
@training_options("delta", "calibrate", "block_size")
@click.pass_context
def sweep(
    ctx: click.Context,
    /,
    data: Path,
    test: Path,
    test_labels: Path | None,
    test_dense: Path | None,
    deltas: tuple[float, ...],
    ks: tuple[int, ...],
    plot: Path | None,
    as_json: bool,
    order: Order,
) -> None:
    """Measure accuracy, size and speed for values of delta.

    If DATA is training data, one model is trained in memory, with the smallest delta. If it is a
    model directory, the smallest delta that can be measured is that of the model.
    """
    from dismec.data.corpus import read_texts
    from dismec.training.sweep import check_deltas, sweep_model

    ordered = check_deltas(deltas)
    _check_plot(plot, order.overwrite)
    # Row weights are for training.
    columns = {k: v for k, v in order.reading.columns.items() if k != "weight_column"}
    of_test = Reading(test_labels, None, columns, dense=test_dense)
    test_file = of_test.look(test)
    if test_file.is_texts:  # errors in the file appear before training
        next(read_texts(test_file, of_test.fmt))
    if data.is_dir():
        from dismec.model.opening import open_model

        for option in ctx.command.params:
            name = option.name or ""
            of_training = (
                *("cluster", "row_weights", "weight_column", "pair_weights"),
                *("dense", "dense_only"),
            )
            if name in (*of_training, *order.params, *order.text) and _is_given(ctx, name):
                raise click.UsageError(
                    f"{option.opts[0]} applies to training, but {data} is a model"
                )
        model = open_model(data)
        if not _is_given(ctx, "deltas"):
            own = float(model.params.get("delta", 0))
            ordered = [own, *(delta for delta in ordered if delta > own)]
    else:
        from dismec.training.recipe import train_requested

        with order.request(data, None, delta=ordered[0]) as request:
            model = train_requested(request)
    rows = of_test.rows_of(model, test_file, order.threads)
    table = sweep_model(model, rows[:2], ordered, ks=ks, threads=order.threads)
    if plot:
        from dismec.report.figures import draw_sweep

        draw_sweep(table, plot)
    if as_json:
        click.echo(json.dumps(with_former_keys(table)))
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


def _is_given(ctx: click.Context, option: str) -> bool:
    return ctx.get_parameter_source(option) is not click.core.ParameterSource.DEFAULT
