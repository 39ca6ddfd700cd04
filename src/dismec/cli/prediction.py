"""Commands that use models: predictions, their evaluation and their explanation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dismec.cli.console import (
    cluster_messages,
    print_explanation,
    print_message,
    print_unknown,
)
from dismec.cli.label_options import (
    allowed_labels,
    exclude_option,
    hierarchy_option,
    measure_levels,
    only_option,
    print_levels,
    print_not_allowed,
    rounded,
)
from dismec.cli.options import (
    MOST_PLACES,
    PATH,
    DataBatch,
    Reading,
    check_new_files,
    cluster_option,
    data_options,
    json_option,
    parse_ks,
    parse_number,
    propensity_options,
    threads_option,
)
from dismec.cli.output import ENDINGS, FORMATS, STANDARD, checked_format, opened_writer
from dismec.data.counts import counted
from dismec.data.printable import can_encode
from dismec.errors import DismecError

if TYPE_CHECKING:
    from dismec.model.model import Model

Ranking = Callable[[Any], tuple[Any, Any]]
Predictions = Iterator[tuple[tuple[Any, Any], list[str] | None]]  # of rows, and their ids
_BATCH_AIMS = ("macro-f1", "coverage")  # `dismec.model.aims.AIMS`, without loading it
_ROWS_AT_ONCE = 1 << 14
_PLACES_AT_ONCE = 1 << 22  # labels and scores, 8 bytes each


def _check_aim(_: click.Context, __: click.Parameter, aim: str | None) -> str | None:
    from dismec.model.aims import psp_exponent

    if aim is not None:
        try:
            psp_exponent(aim)
        except DismecError as error:
            raise click.BadParameter(str(error)) from None
    return aim


def _check_texts(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    for number, text in enumerate(texts, 1):
        if not can_encode(text):
            raise click.BadParameter(f"text {number} is not UTF-8")
    return texts


@contextmanager
def _opened(model: Path, cluster: str | None) -> Iterator[Model]:
    """Open the model locally or on a cluster (``--cluster``); workers release it at the end."""
    from dismec.model.opening import open_model

    if cluster is None:
        yield open_model(model, check=True)
        return
    with cluster_messages(cluster, quiet=False):
        from dismec.cluster.cluster_model import ClusterModel

        with ClusterModel(model, cluster) as opened:
            yield opened


_aim_option = click.option(
    "--aim",
    callback=_check_aim,
    metavar="macro-f1|coverage|psp[:ALPHA]",
    help="Predict the labels with which this metric of all rows together is expected to be highest "
    "at k. psp ranks by P/p^ALPHA (P: probability of a label, p: its propensity; ALPHA: 1), or by "
    "score + ALPHA·log(1/p) if the model is not calibrated.",
)


_rank_option = click.option(
    "--rank",
    type=click.Choice(["score", "probability"]),
    help="Order of labels [default: probability if the model is calibrated].",
)


@click.command()
@click.argument("model", type=PATH)
@click.argument("data", type=PATH, required=False)
@click.option(
    "--text",
    "texts",
    multiple=True,
    callback=_check_texts,
    help="A text to predict, instead of DATA; may be repeated.",
)
@click.option(
    "-k",
    type=click.IntRange(1, MOST_PLACES),
    help="Labels per row [default: 5, or all that reach the threshold].",
)
@_rank_option
@click.option(
    "--threshold",
    callback=parse_number("micro-f1", "macro-f1"),
    metavar="NUMBER|micro-f1|macro-f1",
    help="Predict all labels with at least this score or probability; micro-f1, macro-f1: the "
    "thresholds that calibration chose for this metric.",
)
@hierarchy_option
@click.option(
    "--add-ancestors",
    is_flag=True,
    help="Add the ancestors of predicted labels, scored by their best descendant.",
)
@click.option("--leaves-only", is_flag=True, help="Predict only labels without children.")
@only_option
@exclude_option
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="FILE",
    default=STANDARD,
    show_default=False,
    help="Output file; the format follows from its extension: "
    f"{', '.join(ENDINGS)}; text formats also with .gz [default: -, standard output].",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Output format, overriding the file extension [default: text]; xmc is XMC text of "
    "scores; npz is held in memory until the end, other formats are written row by row.",
)
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@click.option("--escape-formulas", is_flag=True, help="Make ids safe to open in a spreadsheet.")
@click.option("--overwrite", is_flag=True, help="Overwrite an existing output file.")
@_aim_option
@data_options(model=True, ids=True)
@cluster_option
@threads_option
def predict(
    model: Path,
    data: Path | None,
    texts: tuple[str, ...],
    k: int | None,
    rank: str | None,
    threshold: float | str | None,
    hierarchy: Path | None,
    add_ancestors: bool,
    leaves_only: bool,
    only: Path | None,
    exclude: Path | None,
    output: Path,
    form: str | None,
    as_json: bool,
    escape_formulas: bool,
    overwrite: bool,
    aim: str | None,
    reading: Reading,
    cluster: str | None,
    threads: int | None,
) -> None:
    """Predict the best labels for each row of DATA.

    DATA may be - for standard input. Labels come with scores or probabilities. The text format has
    one line per row, best label first: label:score label:score. A name that is a number, or that
    contains spaces, colons, quotes or backslashes, is written as a JSON string: "cast iron":0.53.
    If rows have ids, a line starts with the id and a tab.
    """
    from dismec.data.hierarchy import load_tree
    from dismec.data.names import load_names
    from dismec.data.predictions import Columns

    if as_json and form not in (None, "json"):
        raise click.UsageError(f"--json cannot be combined with --format {form}")
    if output != STANDARD:
        sources = (model, data, hierarchy, only, exclude, *reading.files)
        check_new_files(output, overwrite=overwrite, sources=sources)
    form = checked_format(output, "json" if as_json else form)
    if (hierarchy is not None) != (add_ancestors or leaves_only):
        raise click.UsageError(
            "--hierarchy requires --add-ancestors or --leaves-only"
            if hierarchy
            else "--add-ancestors and --leaves-only require --hierarchy"
        )
    if rank == "score" and isinstance(threshold, str):
        raise click.UsageError("--rank score cannot be combined with F1 thresholds")
    if aim is not None and (rank is not None or threshold is not None):
        raise click.UsageError("--aim cannot be combined with --rank or --threshold")
    probabilities = rank == "probability" or isinstance(threshold, str)
    if data is not None and texts:
        raise click.UsageError("give either DATA or --text")
    if data is None and not texts and reading.dense is None:
        raise click.UsageError("give either DATA or --text")
    if texts and (reading.columns or reading.labels or reading.names):
        raise click.UsageError("options for reading DATA cannot be combined with --text")
    if form == "xmc" and reading.columns.get("id_column"):
        raise click.UsageError("--format xmc cannot hold ids: omit --id-column")
    names = load_names(reading.names) if reading.names else None
    with _opened(model, cluster) as opened:
        tree = load_tree(hierarchy, names or opened.names, opened.n_labels) if hierarchy else None
        allowed = allowed_labels(opened, only, exclude, tree if leaves_only else None)
        if names is not None and len(names) != opened.n_labels:
            raise DismecError(
                f"{counted(len(names), 'name')} for a model of {counted(opened.n_labels, 'label')}"
            )
        if rank is None and (aim is None or aim in _BATCH_AIMS):
            probabilities = probabilities or opened.calibration is not None
        places = opened.n_labels if k is None and threshold is not None else k or 5
        places = min(places, max(opened.n_labels, 1))  # further places would be empty
        how = {"allowed": allowed, "threads": threads}
        rank_rows = _ranking(opened, places, threshold, probabilities, aim, how)
        if data is None:
            rows = (
                _rows_of_texts(opened, texts, threads) if texts else _no_other_rows(opened, reading)
            )
            batches = reading.with_dense(opened, [rows], "--text", lambda: rows.X.shape[0])
        else:
            batches = reading.batches(opened, reading.look(data), threads)
        what = "probabilities" if probabilities else "scores"
        marked = frozenset(opened.without_rows.nonzero()[0].tolist())
        columns = Columns(opened.n_labels, names or opened.names, what, marked)
        slices = _slices(batches, 1 if threshold is not None else places)
        found_labels: Predictions = ((rank_rows(X), ids) for X, ids, _ in slices)
        if aim in _BATCH_AIMS:
            found_labels = _aimed(opened, aim, places, slices, how)
        with opened_writer(output, form, columns) as writer:
            for (top, values), ids in found_labels:
                if tree is not None and add_ancestors:
                    top, values = tree.add_ancestors(top, values)
                if escape_formulas and ids is not None:
                    ids = [re.sub(r"\A(?=[=+@\t\r-])", "'", row_id) for row_id in ids]
                writer.write(top, values, ids)
                del top, values  # before the next ones are made


def _ranking(
    model: Model,
    places: int,
    threshold: float | str | None,
    probabilities: bool,
    aim: str | None,
    how: dict[str, Any],
) -> Ranking:
    """Return the function that ranks labels for rows."""
    from dismec.model.rankings import ranked

    if threshold is not None:
        how = {"probabilities": probabilities, "most": places, **how}
        return lambda X: ranked(model.assign(X, threshold, **how))
    if aim is not None:
        return lambda X: model.predict_topk(X, places, aim=aim, **how)
    rank = "probability" if probabilities else "score"
    return lambda X: model.predict_topk(X, places, rank=rank, **how)


def _aimed(
    model: Model, aim: str, places: int, slices: Iterable[DataBatch], how: dict[str, Any]
) -> Predictions:
    """Yield the labels of slices of rows, chosen after all have been scored, and their ids."""
    import numpy as np

    from dismec.model.aims import aimed, candidates

    most, how = candidates(places), {"rank": "probability", **how}
    scored = [(model.predict_topk(X, most, **how), ids) for X, ids, _ in slices]
    labels, values = (
        np.concatenate(parts) for parts in zip(*(top for top, _ in scored), strict=True)
    )
    labels, values = aimed(aim, labels, values, places, model.n_labels)
    begin = 0
    for (top, _), ids in scored:
        part = slice(begin, begin + len(top))
        yield (labels[part], values[part]), ids
        begin += len(top)


def _rows_of_texts(model: Model, texts: tuple[str, ...], threads: int | None) -> DataBatch:
    if model.vocabulary is None:
        raise click.UsageError("the model was trained on numeric features: give DATA, not --text")
    return DataBatch(model.vocabulary.rows(texts, threads=threads))


def _no_other_rows(model: Model, reading: Reading) -> DataBatch:
    """Return as many rows without sparse features as there are dense rows."""
    from dismec.data.mixed import no_features

    dense = reading.dense_for(model)
    if model.n_features:
        raise click.UsageError(
            f"the model needs {counted(model.n_features, 'feature')} in addition to dense ones: "
            "give DATA or --text"
        )
    return DataBatch(no_features(len(dense)))


def _slices(batches: Iterable[DataBatch], places: int) -> Iterator[DataBatch]:
    """Yield the same rows in batches whose predictions take little memory; at least one batch."""
    most = max(1, min(_ROWS_AT_ONCE, _PLACES_AT_ONCE // places))
    for X, ids, _ in batches:
        n_rows: int = X.shape[0]
        if n_rows <= most:
            yield DataBatch(X, ids)
            continue
        for begin in range(0, n_rows, most):
            part = slice(begin, begin + most)
            yield DataBatch(X[part], None if ids is None else ids[part])


@click.command()
@click.argument("model", type=PATH)
@click.argument("data", type=PATH)
@click.option(
    "-k",
    "ks",
    default="1,3,5",
    callback=parse_ks,
    help="Values of k to report, separated by commas.",
)
@only_option
@exclude_option
@_rank_option
@_aim_option
@hierarchy_option
@propensity_options
@data_options(model=True, weights=True)
@cluster_option
@threads_option
@json_option
def evaluate(
    model: Path,
    data: Path,
    ks: tuple[int, ...],
    only: Path | None,
    exclude: Path | None,
    rank: str | None,
    aim: str | None,
    hierarchy: Path | None,
    A: float | None,
    B: float | None,
    reading: Reading,
    cluster: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Evaluate a model on DATA.

    Prints P@k, nDCG@k, PSP@k and more, in percent. Propensities are computed from the label counts
    of the training data with the constants A and B (0.5 and 0.4 for Wikipedia, 0.6 and 2.6 for
    Amazon data, otherwise 0.55 and 1.5). For a calibrated model, the output includes the error of
    its probabilities (ECE), also for scores taken as log odds, and F1 at the stored thresholds.
    With --hierarchy, it includes hP@k and hR@k: precision and recall of labels together with their
    ancestors, overall and per level.

    With --only or --exclude, true labels that may not be predicted are ignored.
    """
    with _opened(model, cluster) as opened:
        allowed = allowed_labels(opened, only, exclude)
        dataset, weights = reading.weighted_rows_of(opened, reading.look(data), threads)
        print_unknown(opened, dataset)
        how: dict[str, Any] = {"weights": weights, "allowed": allowed}
        if allowed is not None:
            print_not_allowed(allowed, dataset.Y)
        if rank is not None and aim is not None:
            raise click.UsageError("--aim cannot be combined with --rank")
        how |= {"rank": rank, "aim": aim}
        levels: dict[str, Any] = {}
        if hierarchy is not None:  # first, because the file may be invalid
            levels = measure_levels(hierarchy, opened, dataset, ks, threads, **how)
        result = opened.evaluate(dataset.X, dataset.Y, ks, A=A, B=B, threads=threads, **how)
    if as_json:
        click.echo(json.dumps(rounded(result | levels)))
    else:
        print_levels(result | levels, ks)


@click.command()
@click.argument("model", type=PATH)
@click.argument("row")
@click.option(
    "--label",
    "labels",
    multiple=True,
    help="Name or number of a label; may be repeated [default: the best one].",
)
@click.option(
    "--row",
    "number",
    type=click.IntRange(min=1),
    help="Explain this row, counted from 1, of a data file given as ROW.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    default=20,
    help="Number of features to show.",
)
@data_options(model=True)
@cluster_option
@json_option
def explain(
    model: Path,
    row: str,
    labels: tuple[str, ...],
    number: int | None,
    limit: int,
    reading: Reading,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Show which features raised or lowered the score of a label.

    ROW is a text, or for a model of numeric data a row such as "3:0.5 17:1"; or, with --row, a data
    file. If the model uses dense features, they come from that row of --dense; if it uses only
    those, ROW is ignored.
    """
    from dismec.data.mixed import sparse_part

    with _opened(model, cluster) as opened:
        text, x = _row_to_explain(opened, row, number, reading)
        if opened.vocabulary and not sparse_part(x).nnz:
            print_message("the model knows no word of this text: only the bias contributes")
        x = _row_with_dense(opened, x, reading, number)
        wanted = [opened.find_label(label) for label in labels]
        if not wanted:
            best = int(opened.predict_topk(x, 1)[0][0, 0])
            if best < 0:
                raise DismecError("the model has no labels to explain")
            wanted = [best]
        for label in wanted:
            _print_why(opened, x, label, text, limit, as_json)


def _print_why(
    model: Model, x: Any, label: int, text: str | None, limit: int, as_json: bool
) -> None:
    """Print the explanation of a label for a row, and the words of a text that contributed most."""
    from dismec.model.explanation import highlights

    vocabulary = model.vocabulary
    explanation = model.explain(x, label)
    words = None
    if vocabulary is not None and text is not None:
        words = highlights(explanation, vocabulary.spans(text))
    if not as_json:
        print_explanation(explanation, text, words, limit)
        return
    said = explanation.to_dict()
    said["terms"] = said["terms"][:limit]
    if words is not None:
        said["highlights"] = words
    click.echo(json.dumps(said, ensure_ascii=False))


def _row_to_explain(
    model: Model, row: str, number: int | None, reading: Reading
) -> tuple[str | None, Any]:
    """Return the given row without the features of --dense, and its text, if any."""
    from dismec.data.mixed import no_features

    if number is None and len(row) < 1000 and Path(row).is_file():
        raise click.UsageError(f"{row} is a file: choose a row of it (--row 1)")
    if model.n_dense and not model.n_features:
        return None, no_features(1)
    if number is None:
        return (row if model.vocabulary is not None else None), _row_of(model, row)
    return _row_in(model, Path(row), number, reading)


def _row_with_dense(model: Model, x: Any, reading: Reading, number: int | None) -> Any:
    """Return the row with its dense features, if the model needs them."""
    dense = reading.dense_for(model)
    if dense is None:
        return x
    if number is None and len(dense) != 1:
        raise DismecError(f"{reading.dense} has {counted(len(dense), 'row')}: choose one (--row 1)")
    place = (number or 1) - 1
    if place >= len(dense):
        raise DismecError(
            f"row {number} requested, but {reading.dense} has {counted(len(dense), 'row')}"
        )
    return [x, dense[place : place + 1]] if model.n_features else [dense[place : place + 1]]


def _row_in(model: Model, data: Path, number: int, reading: Reading) -> tuple[str | None, Any]:
    """Return a row of a data file, and its text, if any."""
    seen = 0
    for X, _, texts in reading.own_batches(model, reading.look(data)):
        place, seen = number - 1 - seen, seen + X.shape[0]
        if number <= seen:
            return (None if texts is None else texts[place]), X[[place]]
    raise DismecError(f"row {number} requested, but {data} has {counted(seen, 'row')}")


def _row_of(model: Model, given: str) -> Any:
    """Return a text, or feature:value pairs, as one row."""
    import scipy.sparse as sp

    if model.vocabulary is not None:
        return model.vocabulary.rows([given])
    pairs = [pair.partition(":") for pair in given.split()]
    try:
        ids, values = [int(f) for f, _, _ in pairs], [float(v) for _, _, v in pairs]
    except ValueError:
        raise DismecError(
            f"{given[:40]!r} is not a row of numeric data: give feature:value pairs"
        ) from None
    if not all(0 <= f < model.n_features for f in ids) or len(set(ids)) < len(ids):
        raise DismecError(
            f"feature numbers must be from 0 to {model.n_features - 1}, each at most once"
        )
    return sp.csr_array((values, ([0] * len(ids), ids)), shape=(1, model.n_features))
