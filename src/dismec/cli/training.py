"""Commands that train and edit models."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dismec.cli.console import (
    cluster_messages,
    print_table,
    print_trained,
    print_unsolved,
    shown_progress,
    trained_facts,
)
from dismec.cli.options import (
    PATH,
    Reading,
    check_plot,
    cluster_option,
    data_options,
    json_option,
    plot_option,
    quiet_option,
    threads_option,
)
from dismec.cli.training_options import Arguments, resumable, training_options
from dismec.data.counts import counted
from dismec.training.params import AUTO, TrainingParams

if TYPE_CHECKING:
    from dismec.model.model import Model

_FEW_ROWS = 100  # fewer rows give rough probabilities


@click.command()
@click.argument("data", type=PATH)
@click.option("-o", "--output", "model", type=PATH, required=True, help="Directory for the model.")
@plot_option
@json_option
@training_options
@click.option(
    "--data-on-workers",
    is_flag=True,
    help="DATA is a file on the workers of --cluster; this machine need not have it.",
)
def train(
    data: Path,
    model: Path,
    arguments: Arguments,
    plot: Path | None,
    as_json: bool,
    data_on_workers: bool,
) -> None:
    """Train a model on DATA.

    If the directory holds an unfinished run with the same data and options, it is resumed. With --C
    auto, --plot draws how C was chosen.
    """
    from dismec.training.train import train_on

    if plot and arguments.params["C"] != AUTO:
        raise click.UsageError("--plot requires --C auto")
    check_plot(plot, arguments.overwrite)
    begin = time.perf_counter()
    with arguments.opened(data, model, data_on_workers) as (rows, options):
        trained = train_on(rows, options)
    if plot:
        from dismec.report.figures import draw_tuning

        params = trained.params
        draw_tuning(params["C_table"], params["C_auto"]["metric"], params["C"], plot)
    seconds = time.perf_counter() - begin
    if as_json:
        facts = trained_facts(trained, model, seconds)
        if options.params.chooses_C:
            table = {"metric": options.params.metric, "table": trained.params["C_table"]}
            facts |= {"C": trained.params["C"], **table}
        click.echo(json.dumps(facts))
    else:
        if options.params.chooses_C:
            _print_chosen_C(trained)
        if not arguments.quiet:
            _print_learned(trained, options.params)
            print_trained(trained, model, seconds)
    if not arguments.quiet:
        _warn_of_few_rows(trained)
    print_unsolved(trained)


def _print_chosen_C(model: Model) -> None:
    """Print the results for each C, which were asked for."""
    from dismec.model.provenance import sentence

    C, how, table = (model.params[key] for key in ("C", "C_auto", "C_table"))
    usual = ["P@1", "P@3", "P@5", "nDCG@5", "PSP@5"]  # fits a terminal; JSON has all
    metrics = usual if how["metric"] in usual else [*usual, how["metric"]]
    rows = [
        [
            f"{row['C']:g}",
            *(f"{row[name]:.2f}" for name in metrics),
            f"{row['weights']:,}",
            f"{row['seconds']:.1f}",
        ]
        for row in table
    ]
    best = [row["C"] for row in table].index(C)
    print_table(["C", *metrics, "weights", "core-s"], rows, left=0, best=best)
    click.echo(f"C {C:g}, chosen {sentence('C_auto', how)}")
    if best in (0, len(rows) - 1):
        click.echo("This is the end of the grid: a wider grid may contain a better value.")


def _print_learned(model: Model, params: TrainingParams) -> None:
    from dismec.model.provenance import shown

    described = shown(model.params)
    if params.chooses_delta:
        click.echo(
            f"delta {model.params['delta']}, chosen {described['delta_auto']}: "
            f"{described['delta_effect']}",
            err=True,
        )
    if params.refine:
        helped = "refined" if model.manifest.refined else "not refined"
        click.echo(f"{helped}: {described['refine_effect']}", err=True)
    if params.calibrate:
        click.echo(f"probabilities learned {described['calibrated']}", err=True)


def _warn_of_few_rows(model: Model) -> None:
    learned_on = model.params.get("calibrated")
    if learned_on and learned_on["rows"] < _FEW_ROWS:
        click.echo(
            f"dismec: probabilities may be inaccurate: learned on fewer than {_FEW_ROWS} rows",
            err=True,
        )


@click.command("add-labels")
@click.argument("model", type=PATH)
@click.argument("data", type=PATH)
@data_options(model=True, weights=True)
@cluster_option
@threads_option
@json_option
@quiet_option
def add_labels(model: Path, data: Path, **how: Any) -> None:
    """Add the new labels of DATA to MODEL.

    Labels that MODEL already has do not change. DATA must include negative examples: use the rows
    the model was trained on, or newer ones, with the new labels added.
    """
    from dismec.training.edit_labels import add_labels as run

    _edit(model, data, "added", run, **how)


@click.command()
@click.argument("model", type=PATH)
@click.argument("data", type=PATH)
@click.option(
    "--labels",
    "listed",
    type=PATH,
    required=True,
    help="File of labels to retrain: names, or numbers if there are no names, one per line.",
)
@data_options("--label-matrix", model=True, weights=True)
@cluster_option
@threads_option
@json_option
@quiet_option
def update(model: Path, data: Path, listed: Path, **how: Any) -> None:
    """Retrain some labels of MODEL on DATA.

    The other labels do not change.
    """
    from dismec.data.names import load_names
    from dismec.training.edit_labels import update_labels

    labels = list(filter(None, load_names(listed, blanks=True)))

    def run(model: Path, X: Any, Y: Any, names: Any, **common: Any) -> Model:
        return update_labels(model, X, Y, labels, names, **common)

    _edit(model, data, "updated", run, **how)


def _edit(
    model: Path,
    data: Path,
    done: str,
    run: Callable[..., Model],
    reading: Reading,
    threads: int | None,
    cluster: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    from dismec.model.opening import open_model

    begin = time.perf_counter()
    found = reading.look(data)
    dataset, weights = reading.weighted_rows_of(open_model(model), found, threads, trains=True)
    with (
        resumable(model),
        shown_progress(quiet, "training") as progress,
        cluster_messages(cluster, quiet),
    ):
        changed = run(
            model,
            dataset.X,
            dataset.Y,
            dataset.names,
            weights=weights,
            threads=threads,
            progress=progress,
            cluster=cluster,
            source=found.path if found.kind == "xmc" else None,
        )
    seconds = time.perf_counter() - begin
    if as_json:
        click.echo(json.dumps(_changed_facts(changed, model, seconds)))
    elif not quiet:
        _print_changed(changed, done)
        print_trained(changed, model, seconds)
    if not quiet:
        _warn_of_no_negatives(changed)


def _changed_facts(model: Model, path: Path, seconds: float) -> dict[str, Any]:
    from dismec.model.provenance import parse_ranges

    entry = model.manifest.history[-1]
    numbers = list(parse_ranges(entry["numbers"]))
    return {
        **trained_facts(model, path, seconds),
        "action": entry["action"],
        "numbers": numbers,
        "names": None if model.names is None else [model.names[number] for number in numbers],
    }


def _print_changed(model: Model, done: str) -> None:
    click.echo(f"{counted(model.manifest.history[-1]['labels'], 'label')} {done}", err=True)


def _warn_of_no_negatives(model: Model) -> None:
    from dismec.model.provenance import parse_ranges

    entry = model.manifest.history[-1]
    everywhere = [
        n for n in parse_ranges(entry["numbers"]) if model.label_counts[n] == entry.get("rows")
    ]
    if everywhere:
        name = everywhere[0] if model.names is None else repr(model.names[everywhere[0]])
        click.echo(
            f"dismec: every row has label {name}: it has no negative examples",
            err=True,
        )


@click.command("remove-labels")
@click.argument("model", type=PATH)
@click.argument("labels", nargs=-1)
@click.option(
    "--labels", "listed", type=PATH, help="More labels to remove: names or numbers, one per line."
)
@json_option
@quiet_option
def remove_labels(
    model: Path, labels: tuple[str, ...], listed: Path | None, as_json: bool, quiet: bool
) -> None:
    """Remove LABELS, given by name or number, from MODEL."""
    from dismec.data.names import load_names
    from dismec.training.edit_labels import remove_labels as run

    begin = time.perf_counter()
    changed = run(
        model, [*labels, *filter(None, load_names(listed, blanks=True) if listed else ())]
    )
    if as_json:
        click.echo(json.dumps(_changed_facts(changed, model, time.perf_counter() - begin)))
    elif not quiet:
        _print_changed(changed, "removed")
