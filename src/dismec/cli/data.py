"""Commands that describe data and models, convert data or generate it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dismec.cli.console import (
    print_level_table,
    print_message,
    print_metrics,
    print_pairs,
    print_paragraphs,
    print_table,
    print_unknown,
)
from dismec.cli.label_options import hierarchy_option, tree_of_test
from dismec.cli.options import (
    PATH,
    F,
    Reading,
    check_new_files,
    data_options,
    json_option,
    threads_option,
)
from dismec.data.counts import counted

if TYPE_CHECKING:
    from dismec.report.sections import Section

_LISTED = 10  # entries of a table; pages and JSON have more

_overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Overwrite existing output files."
)


def _size_option(
    flag: str, default: float, text: str, least: int = 1, kind: Any = None
) -> Callable[[F], F]:
    """Create the option of a number: an integer of at least `least`, unless it has a `kind`."""
    kind = kind or click.IntRange(min=least)
    return click.option(flag, type=kind, default=default, help=text)


@click.command()
@click.argument("path", type=PATH)
@click.option("--html", "page", type=PATH, help="Write an HTML page with plots to this file.")
@click.option("--csv", "label_csv", type=PATH, help="Write a table of all labels to this file.")
@click.option(
    "--test", type=PATH, metavar="DATA", help="Test data to evaluate a model on, per label."
)
@hierarchy_option
@_overwrite_option
@data_options(model=True)
@threads_option
@json_option
def inspect(
    path: Path,
    page: Path | None,
    label_csv: Path | None,
    test: Path | None,
    hierarchy: Path | None,
    overwrite: bool,
    reading: Reading,
    threads: int | None,
    as_json: bool,
) -> None:
    """Describe a data file or a model.

    For data: frequent, rare, similar and co-occurring labels, duplicate rows, and an estimate of
    training time and memory (by solving a few labels). For a model, with --test: how good it is,
    overall and per label, compared with predicting the most frequent labels or random ones. With
    --hierarchy: the tree of its labels, and how good it is at each level.
    """
    is_model = path.is_dir() or path.suffix.lower() == ".zip"
    for option, given in (("--test", test), ("--hierarchy", hierarchy)):
        if given is not None and path.exists() and not is_model:
            raise click.UsageError(f"{option} needs a model; {path} is not one")
    if reading.dense is not None and test is None:
        raise click.UsageError("--dense requires --test")
    if is_model and test is None:
        if reading.names or reading.labels:
            raise click.UsageError("--label-names and --labels require --test for a model")
        if label_csv is not None:
            raise click.UsageError("--csv requires --test for a model")
    if page is not None:
        from dismec.report.figures import check_drawing

        check_drawing()
    check_new_files(page, label_csv, overwrite=overwrite, sources=(path, test, hierarchy))
    if is_model:
        facts = _facts_of_model(path, test, hierarchy, reading, threads)
    else:
        facts = _facts_of_data(path, reading, threads)
    if page is not None:
        from dismec.report.inspection import write_page

        write_page(page, path, facts)
    if label_csv is not None:
        from dismec.report.label_facts import write_label_csv

        write_label_csv(label_csv, facts.get("test", facts)["all labels"])
    if as_json:
        click.echo(json.dumps(facts, indent=1))
    else:
        _print_facts(facts)


def _facts_of_model(
    path: Path,
    test: Path | None,
    hierarchy: Path | None,
    reading: Reading,
    threads: int | None,
) -> dict[str, Any]:
    from dismec.model.saving import unpacked
    from dismec.report.facts import describe_model

    with unpacked(path) as folder:
        facts = describe_model(folder or path)
    if test is None and hierarchy is None:
        return facts
    from dismec.data.hierarchy import load_tree
    from dismec.model.opening import open_model

    model = open_model(path, check=False)  # it has just been checked
    tree = load_tree(hierarchy, model.names, model.n_labels) if hierarchy else None
    if test is not None:
        from dismec.report.evaluation import describe_test

        dataset = reading.rows_of(model, reading.look(test), threads)
        print_unknown(model, dataset)
        if hierarchy is not None:
            tree = tree_of_test(hierarchy, model, dataset)
        facts["test"] = {"data": str(test), **describe_test(model, dataset, threads, tree)}
    if tree is not None:
        from dismec.report.evaluation import describe_hierarchy

        measured = facts["test"].pop("hierarchy") if test is not None else None
        facts["hierarchy"] = {"file": str(hierarchy)}
        facts["hierarchy"] |= describe_hierarchy(tree, model.label_counts, measured)
    return facts


def _facts_of_data(path: Path, reading: Reading, threads: int | None) -> dict[str, Any]:
    from dismec.data.names import load_names
    from dismec.report.facts import describe_data, describe_texts

    data = reading.look(path)
    if data.is_texts:
        return describe_texts(data, reading.fmt, threads=threads)
    names = load_names(reading.names) if reading.names else None
    return describe_data(data, reading.labels, names=names, threads=threads)


def _print_facts(facts: Mapping[str, Any]) -> None:
    """Print facts about data or a model (`dismec.report.facts`)."""
    from dismec.report import sections
    from dismec.report.estimate import summarize_estimate
    from dismec.report.evaluation import KS
    from dismec.report.facts import plain_facts

    if "test" in facts:
        print_paragraphs([*sections.summarize_test(facts["test"]), ""])
    elif "all labels" in facts:
        anomalies = sections.list_anomalies(facts)
        worth = ["", "Check before training:", *(f"- {line}" for line in anomalies)]
        print_paragraphs([*sections.summarize_data(facts), *(worth if anomalies else []), ""])
    lines = plain_facts(facts) | _frequency_lines(facts["label frequencies"])
    print_pairs(lines)
    if "all labels" in facts:
        for section in sections.label_sections(facts):
            _print_section(section)
    if facts.get("training"):
        print_paragraphs(["", *summarize_estimate(facts["training"])])
    if len(facts.get("file sizes", ())) > 1:
        _print_section(sections.file_section(facts["file sizes"], _LISTED))
    if "test" in facts:
        print_metrics(facts["test"]["metrics"], KS)
        _print_section(sections.group_section(facts["test"]["groups"], KS[-1:]), left=0)
        for which in ("best", "worst"):
            _print_section(sections.extreme_section(facts["test"], which))
    if "hierarchy" in facts:
        print_level_table(facts["hierarchy"]["levels"], KS)


def _print_section(section: Section, left: int = 1) -> None:
    """Print a titled table, at most its first rows."""
    from dismec.report.facts import shown

    print_paragraphs(["", section.title, *([section.text] if section.text else [])])
    rows = [[shown(cell) for cell in row] for row in section.rows[:_LISTED]]
    print_table(section.heads, rows, section.note or None, left=left)


def _frequency_lines(found: Mapping[str, Any]) -> dict[str, str]:
    if not found["ranks"]:
        return {}
    lines = {}
    if found["beta"] is not None:
        last = found["fitted ranks"][1]
        r2 = "" if found["R2"] is None else f", R² {found['R2']:.3f} on log axes"
        lines["power law"] = f"exponent {found['beta']:.2f}{r2}, ranks 1 to {last:,}"
    for most, share in found["share with at most"].items():
        unit = "row" if most == "1" else "rows"
        lines[f"labels with at most {most} {unit}"] = f"{100 * share:.1f} %"
    return lines


@click.command()
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@click.option("--labels", type=PATH, help="Label matrix (.npz), if SOURCE is .npz.")
@_overwrite_option
@threads_option
@json_option
def convert(
    source: Path,
    target: Path,
    labels: Path | None,
    overwrite: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Convert SOURCE to the format of TARGET's extension.

    .xmc (binary, opens instantly), .txt or .txt.gz (XMC text), .svm or .svm.gz (no header). Only
    .xmc keeps label names.
    """
    from dismec.data.dataset import load_data, save_data
    from dismec.data.formats import detect

    check_new_files(target, overwrite=overwrite)
    found = click.get_current_context().with_resource(detect(source))
    if found.is_texts:
        raise click.UsageError(
            f"{source} holds texts ({found.kind}), which train and predict read as they are; "
            "convert needs numeric data: XMC text or svmlight, .npz, .xmc"
        )
    dataset = load_data(found, labels=labels, threads=threads)
    save_data(dataset, target)
    keeps_names = target.suffix.lower() == ".xmc"
    if dataset.names is not None and not keeps_names:
        print_message(
            f"{target} cannot hold the {counted(len(dataset.names), 'label name')}; .xmc files can"
        )
    n_rows, n_features = dataset.X.shape
    n_labels = dataset.Y.shape[1]
    if as_json:
        facts = {
            "file": str(target),
            "rows": n_rows,
            "features": n_features,
            "labels": n_labels,
            "label names": dataset.names is not None and keeps_names,
        }
        click.echo(json.dumps(facts, indent=1))
    else:
        print_message(
            f"{target}: {counted(n_rows, 'row')}, {counted(n_features, 'feature')}, "
            f"{counted(n_labels, 'label')}"
        )


@click.command()
@click.option("-o", "--output", "directory", type=PATH, required=True, help="Output directory.")
@_size_option("--rows", 10_000, "Number of training rows.")
@_size_option("--features", 20_000, "Number of features.")
@_size_option("--labels", 1_000, "Number of labels.")
@_size_option("--labels-per-row", 3.0, "Labels per row, on average.", kind=float)
@_size_option("--features-per-row", 42, "Features per row, on average.", kind=float)
@_size_option("--seed", 0, "Seed of the random numbers.", least=0)
@click.option(
    "--format",
    "ending",
    type=click.Choice(["txt", "txt.gz", "svm", "xmc"]),
    help="Format of numeric data [default: txt].",
)
@click.option(
    "--text", "as_text", is_flag=True, help="Generate texts with label names, as JSON lines."
)
@_overwrite_option
@json_option
def generate(
    directory: Path,
    ending: str | None,
    as_text: bool,
    overwrite: bool,
    as_json: bool,
    **shape: Any,
) -> None:
    """Generate training and test data.

    As in real data, a few features and labels are frequent and most are rare, and labels have
    topics. There are a fifth as many test rows as training rows. The same seed gives the same data.
    """
    if as_text and ending is not None:
        raise click.UsageError("--format applies to numeric data; --text writes JSON lines")
    ending = "jsonl" if as_text else ending or "txt"
    paths = [directory / f"{name}.{ending}" for name in ("train", "test")]
    check_new_files(*paths, overwrite=overwrite, makes_folder=True)
    if as_text:
        from dismec.data.synthetic import generate_text, write_text

        write_text(directory, *generate_text(**shape))
    else:
        from dismec.data.synthetic import generate as make
        from dismec.data.synthetic import write

        write(directory, *make(**shape), ending=f".{ending}")
    if as_json:
        files = {name: str(path) for name, path in zip(("train", "test"), paths, strict=True)}
        click.echo(json.dumps(files | shape | {"test_rows": shape["rows"] // 5}, indent=1))


@click.command()
@_size_option("--rows", 10_000, "Number of training rows.", least=10)
@_size_option("--labels", 1_000, "Number of labels.")
@click.option("-o", "--output", "keep", type=PATH, help="Keep data and model in this directory.")
@_overwrite_option
def demo(rows: int, labels: int, keep: Path | None, overwrite: bool) -> None:
    """Generate data, train and evaluate, with the commands of these names."""
    main: Any = click.get_current_context().find_root().command
    with tempfile.TemporaryDirectory(prefix="dismec-demo-") as scratch:
        folder, again = keep or Path(scratch), ["--overwrite"] if overwrite else []
        shape = ["--rows", rows, "--features", 2 * rows, "--labels", labels]
        for command in (
            ["generate", "-o", folder, *shape, *again],
            ["train", folder / "train.txt", "-o", folder / "model", *again],
            ["evaluate", folder / "model", folder / "test.txt"],
        ):
            name, *arguments = map(str, command)
            main.commands[name].main(arguments, standalone_mode=False)
