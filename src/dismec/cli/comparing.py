"""The command that compares systems."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dismec.cli.console import print_message, print_paragraphs, print_table
from dismec.cli.options import (
    PATH,
    Reading,
    check_new_files,
    data_options,
    json_option,
    quiet_option,
    threads_option,
)
from dismec.data.counts import counted

if TYPE_CHECKING:
    from dismec.compare.comparison import Pair


@click.command()
@click.argument("data", metavar="TRAIN", type=PATH)
@click.option("--test", type=PATH, required=True, help="Test data.")
@click.option("--test-labels", type=PATH, help="Like --labels, for --test.")
@click.option(
    "--systems",
    metavar="NAMES",
    help="Systems to run, separated by commas (listed in docs/howto/comparing.md) [default: all].",
)
@click.option("--seeds", type=click.IntRange(min=1), default=1, help="Runs per system.")
@click.option(
    "--tuned",
    is_flag=True,
    help="Also run systems with their authors' tuning, and dismec with a tuned C.",
)
@click.option(
    "--limit",
    type=click.FloatRange(min=0, min_open=True),
    default=1800.0,
    help="Time limit per system, in seconds.",
)
@click.option(
    "--memory",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GB",
    help="Memory limit per system, in GB [default: 90 % of this machine's].",
)
@click.option(
    "--peers",
    type=PATH,
    metavar="DIR",
    help="Python environment with the packages of other systems; created with pip if missing "
    "[default: the environment of dismec].",
)
@click.option(
    "-o",
    "--output",
    "folder",
    type=PATH,
    default=Path("dismec-compare"),
    help="Directory for results; a second run resumes from there.",
)
@click.option("--html", "page", type=PATH, help="Write an HTML page with plots to this file.")
@click.option("--overwrite", is_flag=True, help="Overwrite the file of --html.")
@json_option
@data_options()
@threads_option
@quiet_option
def compare(
    data: Path,
    test: Path,
    test_labels: Path | None,
    systems: str | None,
    seeds: int,
    tuned: bool,
    limit: float,
    memory: float | None,
    peers: Path | None,
    folder: Path,
    page: Path | None,
    overwrite: bool,
    as_json: bool,
    reading: Reading,
    threads: int | None,
    quiet: bool,
) -> None:
    """Train systems on TRAIN and compare them on test data.

    Each system runs in a separate process. Systems that are not installed, fail, or exceed a limit
    are listed with the reason.
    """
    from dismec.compare.comparison import SYSTEMS, Comparison, check_folder, check_systems
    from dismec.compare.process import peers_python
    from dismec.cpu import available_cpus, cpu_name

    names = SYSTEMS if systems is None else [name.strip() for name in systems.split(",")]
    chosen = check_systems(names, tuned)
    check_folder(folder)
    check_new_files(page, overwrite=overwrite)
    if page is not None:
        from dismec.report.figures import check_drawing

        check_drawing()
    pair = _read_pair(data, test, reading, Reading(test_labels, None, reading.columns), threads)
    log: Callable[[str], None] = (lambda _: None) if quiet else print_message
    python = peers_python(peers, log) if peers else None
    comparison = Comparison(
        folder,
        seeds=seeds,
        threads=threads or available_cpus(),
        limit=limit,
        memory=None if memory is None else int(memory * 1e9),
        python=python,
    )
    found = comparison.run(pair, chosen, log)
    found["data"]["machine"] = f"{cpu_name()}, {available_cpus()} cores"
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        _print_comparison(found)
    if page is not None:
        from dismec.report.comparison_page import write_comparison

        write_comparison(page, data.name, found)


def _read_pair(
    data: Path, test: Path, reading: Reading, of_test: Reading, threads: int | None
) -> Pair:
    from dismec.compare.comparison import Pair, pair_of_texts
    from dismec.data.corpus import Texts

    files = reading.look(data), of_test.look(test)
    if files[0].is_texts != files[1].is_texts:
        kinds = ["texts" if file.is_texts else "numeric data" for file in files]
        raise click.UsageError(f"{data} holds {kinds[0]}, but {test} holds {kinds[1]}")
    if files[0].is_texts:
        texts = [Texts.of(file, r.fmt) for file, r in zip(files, (reading, of_test), strict=True)]
        return pair_of_texts(texts[0], texts[1], threads=threads)
    return Pair(reading.load(files[0], threads), of_test.load(files[1], threads))


def _print_comparison(found: dict[str, Any]) -> None:
    from dismec.report.comparison_page import accuracy_rows, cost_rows, failures, notes

    data = found["data"]
    heads, rows = accuracy_rows(found)
    print_table(heads, rows, f"{counted(data['test rows'], 'test row')}, %", left=0)
    if any(" ≈" in row[1] for row in rows):
        print_paragraphs(["≈ these rows cannot distinguish it from dismec (paired 95 % interval)"])
    heads, rows = cost_rows(found)
    caption = (
        f"{counted(data['threads'], 'thread')} to train, 1 to predict; best of {data['seeds']}"
    )
    print_table(heads, rows, caption, left=0)
    remarks = notes(found) | failures(found)
    print_paragraphs(f"{name}: {what}" for name, what in remarks.items())
