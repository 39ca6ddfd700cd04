"""Commands that look at data and models, convert data or make it up."""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dismec.cli.console import (
    print_metrics,
    print_pairs,
    print_paragraphs,
    print_table,
    say_trained,
    say_unknown,
    shown_progress,
)
from dismec.cli.options import PATH, Reading, data_options, json_option, threads_option

if TYPE_CHECKING:
    from dismec.data.dataset import Dataset
    from dismec.model.model import Model

_BARS = "▁▂▃▄▅▆▇█"


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
        _print_facts(facts)


def _print_facts(facts: Mapping[str, Any]) -> None:
    """The facts of data or a model (`dismec.report.facts`): lines, small bars and tables."""
    from dismec.report.estimate import tell_estimate
    from dismec.report.facts import plain_facts

    lines = plain_facts(facts) | _frequency_lines(facts["label frequencies"])
    for key in ("features of a row", "characters of a text"):
        if facts.get(key, {}).get("rows"):
            low, high = facts[key]["edges"][0], facts[key]["edges"][-1] - 1
            lines[key] = f"{_bars(facts[key]['rows'])}  {low:,} to {high:,}"
    for when in ("before", "after"):
        counts = facts.get("weight counts", {}).get(when)
        if counts is not None:
            lines[f"weights {when} pruning"] = f"{_bars(_logs(_coarse(counts)))}  −…0…+, log scales"
    print_pairs(lines)
    if facts.get("training"):
        print_paragraphs(["", *tell_estimate(facts["training"])])
    if len(facts.get("file sizes", ())) > 1:
        _print_files(facts["file sizes"])
    if "test" in facts:
        _print_test(facts["test"])


def _frequency_lines(found: Mapping[str, Any]) -> dict[str, str]:
    if not found["ranks"]:
        return {}
    rows = found["rows"][:: max(1, len(found["rows"]) // 30)]
    lines = {"rows of labels by rank": f"{_bars(_logs(rows))}  log scales"}
    if found["beta"] is not None:
        last = found["fitted ranks"][1]
        r2 = "" if found["R2"] is None else f", R² {found['R2']:.3f} on log axes"
        lines["power law"] = f"exponent {found['beta']:.2f}{r2}, ranks 1 to {last:,}"
    for most, share in found["share with at most"].items():
        unit = "row" if most == "1" else "rows"
        lines[f"labels with at most {most} {unit}"] = f"{100 * share:.1f} %"
    return lines


def _coarse(counts: Sequence[int], size: int = 4) -> list[int]:
    """Bins of weights, so many in one on either side of the middle one."""
    middle = len(counts) // 2
    below, above = counts[middle - 1 :: -1], counts[middle + 1 :]
    low, high = ([sum(c[i : i + size]) for i in range(0, len(c), size)] for c in (below, above))
    return [*low[::-1], counts[middle], *high]


def _print_files(files: Sequence[Mapping[str, Any]], most: int = 10) -> None:
    counts = ("labels", "weights", "bytes")
    rows = [[entry["file"], *(f"{entry[key]:,}" for key in counts)] for entry in files[:most]]
    more = f"… and {len(files) - most:,} more" if len(files) > most else ""
    print_table(["file", *counts], rows, more)


def _print_test(test: Mapping[str, Any]) -> None:
    from dismec.report.facts import KS, frequency_range

    k = max(KS)
    print_metrics(test["metrics"], KS)
    names = [f"P@{k}", f"nDCG@{k}", f"PSP@{k}", f"R@{k}", f"Coverage@{k}"]
    print_table(
        ["training rows", "labels", "pairs", *names[:-1], f"cover@{k}"],
        [
            [
                frequency_range(group["frequency"]),
                f"{group['labels']:,}",
                f"{group['true pairs']:,}",
                *(f"{group[name]:.2f}" for name in names),
            ]
            for group in test["groups"]
        ],
        f"By training frequency, %: parts of P, nDCG and PSP above; R@{k} and coverage of "
        "the group alone",
    )
    for which in ("best", "worst"):
        print_table(
            [f"{which} labels", "training rows", "test rows", "precision", "recall", "F1"],
            [
                [
                    entry["name"],
                    *(f"{entry[key]:,}" for key in ("training rows", "test rows")),
                    *(f"{entry[key]:.1f}" for key in ("precision", "recall", "F1")),
                ]
                for entry in test[f"{which} labels"]
            ],
            f"In the first {k} places, %, of {test['labels judged']:,} labels with 5 test rows",
        )


def _logs(counts: Sequence[float]) -> list[float]:
    return [math.log(count) + 1 if count else 0 for count in counts]


def _bars(heights: Sequence[float]) -> str:
    """A bar per number; none where it is 0."""
    most = max(heights, default=0) or 1
    return "".join(
        _BARS[min(int(len(_BARS) * h / most), len(_BARS) - 1)] if h else " " for h in heights
    )


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
        path = directory / "model"
        click.echo(f"Generating {rows:,} rows with {labels:,} labels …")
        write(directory, *make(rows=rows, features=2 * rows, labels=labels, seed=seed))
        data = load_data(directory / "train.txt", threads=threads)
        test = load_data(directory / "test.txt", threads=threads)
        click.echo(f"Training one classifier for each of {data.Y.shape[1]:,} labels …")
        begin = time.perf_counter()
        with shown_progress(not sys.stderr.isatty(), "training") as progress:
            model = run(data.X, data.Y, path, threads=threads, overwrite=True, progress=progress)
        say_trained(model, path, time.perf_counter() - begin)
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
