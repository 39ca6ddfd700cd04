"""Commands that look at data, convert it or make it up."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dismec.cli.console import print_metrics, print_table, say_trained, say_unknown, shown_progress
from dismec.cli.options import PATH, Reading, data_options, json_option, threads_option

if TYPE_CHECKING:
    from dismec.data.dataset import Dataset
    from dismec.model.model import Model


@click.command()
@click.argument("path", type=PATH)
@click.option("--html", "page", type=PATH, help="Write a page with drawings to this file.")
@click.option(
    "--test", type=PATH, metavar="DATA", help="Measure the model at PATH on this, label by label."
)
@data_options()
@threads_option
@json_option
def inspect(
    path: Path,
    page: Path | None,
    test: Path | None,
    reading: Reading,
    threads: int | None,
    as_json: bool,
) -> None:
    """Say what a data file or a model directory holds.

    Of data also what training would take here: a few labels are solved to find out.
    """
    from dismec.report.facts import describe_data, describe_model, describe_test, describe_texts

    if page is not None:
        for source in (path, test):
            if source is not None and page.resolve().is_relative_to(source.resolve()):
                raise click.UsageError(f"{page} would take the place of {source}: choose another")
    if test is None and (reading.names or (path.is_dir() and reading.labels)):
        raise click.UsageError("--label-names, and --labels of a model, go with --test")
    if path.is_dir():
        facts = describe_model(path)
        if test is not None:
            from dismec.model.opening import open_model

            model = open_model(path, check=False)  # it has just been
            dataset = reading.rows_of(model, reading.look(test), threads)
            say_unknown(model, dataset)
            facts["test"] = describe_test(model, dataset, threads)
    elif test is not None:
        raise click.UsageError(f"--test is for models, and {path} is none")
    elif (data := reading.look(path)).is_texts:
        facts = describe_texts(data, reading.fmt)
    else:
        facts = describe_data(data, reading.labels, threads=threads)
    if page is not None:
        from dismec.report.page import write_page

        write_page(page, path, facts)
    if as_json:
        click.echo(json.dumps(facts, indent=1))
    else:
        from dismec.cli.inspection import print_facts

        print_facts(facts)


@click.command()
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@click.option(
    "--labels", type=PATH, help="The label matrix that goes with SOURCE if that is an .npz file."
)
@click.option("--labels-to", type=PATH, help="Where the labels go if TARGET is an .npz file.")
@threads_option
def convert(
    source: Path, target: Path, labels: Path | None, labels_to: Path | None, threads: int | None
) -> None:
    """Write the data of SOURCE to TARGET in the format of its ending.

    .xmc (binary, opens at once), .txt or .txt.gz (XMC text), .svm or .svm.gz (no header), .npz.
    """
    from dismec.data.dataset import load_data, save_data

    save_data(load_data(source, labels=labels, threads=threads), target, labels=labels_to)


@click.command()
@click.option("-o", "--output", "directory", type=PATH, required=True, help="Where files go.")
@click.option("--rows", type=click.IntRange(min=1), default=10_000, show_default=True)
@click.option("--features", type=click.IntRange(min=1), default=20_000, show_default=True)
@click.option("--labels", type=click.IntRange(min=1), default=1_000, show_default=True)
@click.option("--labels-per-row", type=float, default=3.0, show_default=True)
@click.option("--features-per-row", type=float, default=42, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--format",
    "ending",
    type=click.Choice(["txt", "txt.gz", "svm", "xmc"]),
    help="Of numeric data [default: txt].",
)
@click.option("--text", "as_text", is_flag=True, help="Texts with label names, as JSON lines.")
def generate(directory: Path, ending: str | None, as_text: bool, **shape: Any) -> None:
    """Make data of the shape that extreme classification has: train and test file in a directory.

    Zipf features, power-law labels, topics; the same for the same seed.
    """
    if as_text:
        from dismec.data.synthetic_text import generate_text, write_text

        if ending is not None:
            raise click.UsageError("--format is for numeric data, and --text makes JSON lines")
        write_text(directory, *generate_text(**shape))
        return
    from dismec.data.synthetic import generate as make
    from dismec.data.synthetic import write

    write(directory, *make(**shape), ending=f".{ending or 'txt'}")


@click.command()
@click.option("--rows", type=click.IntRange(min=10), default=10_000, show_default=True)
@click.option("--labels", type=click.IntRange(min=1), default=1_000, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "-o", "--output", "keep", type=PATH, help="Keep data and model here [default: nowhere]."
)
@threads_option
def demo(rows: int, labels: int, seed: int, keep: Path | None, threads: int | None) -> None:
    """Generate data, train on it, evaluate, and predict a few rows."""
    from dismec.data.dataset import load_data
    from dismec.data.synthetic import generate as make
    from dismec.data.synthetic import write
    from dismec.training.recipe import train as run

    with tempfile.TemporaryDirectory(prefix="dismec-demo-") as scratch:
        directory = keep or Path(scratch)
        click.echo(f"Generating {rows:,} rows with {labels:,} labels …")
        write(directory, *make(rows=rows, features=2 * rows, labels=labels, seed=seed))
        data = load_data(directory / "train.txt", threads=threads)
        test = load_data(directory / "test.txt", threads=threads)
        click.echo(f"Training one classifier for each of {data.Y.shape[1]:,} labels …")
        begin = time.perf_counter()
        with shown_progress(not sys.stderr.isatty(), "training") as progress:
            model = run(
                data.X,
                data.Y,
                directory / "model",
                threads=threads,
                overwrite=True,
                progress=progress,
            )
        say_trained(model, directory / "model", time.perf_counter() - begin)
        print_metrics(model.evaluate(test.X, test.Y, threads=threads), (1, 3, 5))
        _print_examples(model, test)


def _print_examples(model: Model, test: Dataset, n_rows: int = 5) -> None:
    top, scores = model.predict_topk(test.X[:n_rows], k=3)
    rows = []
    for i in range(len(top)):
        truth = set(test.Y.indices[test.Y.indptr[i] : test.Y.indptr[i + 1]].tolist())
        predicted = "  ".join(
            f"{label}:{score:.2f}{' ✓' if label in truth else ''}"
            for label, score in zip(top[i].tolist(), scores[i].tolist(), strict=True)
            if label >= 0
        )
        rows.append([str(i), " ".join(map(str, sorted(truth))), predicted])
    print_table(["row", "true labels", "predicted label:score (✓ true)"], rows, left=3)
