"""The command that explains why a row has a label."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dismec.cli.console import print_explanation, print_message
from dismec.cli.opening import model_at
from dismec.cli.options import (
    PATH,
    Reading,
    cluster_option,
    data_options,
    json_option,
    no_features,
)
from dismec.data.counts import counted
from dismec.errors import DismecError

if TYPE_CHECKING:
    from dismec.model.model import RankingModel


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
    show_default=True,
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
    with model_at(model, cluster) as opened:
        text, x = _row_to_explain(opened, row, number, reading)
        if opened.vocabulary and not x.nnz:
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
    model: RankingModel, x: Any, label: int, text: str | None, limit: int, as_json: bool
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
    model: RankingModel, row: str, number: int | None, reading: Reading
) -> tuple[str | None, Any]:
    """Return the given row without its dense features, and its text, if any."""
    if number is None and len(row) < 1000 and Path(row).is_file():
        raise click.UsageError(f"{row} is a file: choose a row of it (--row 1)")
    if model.n_dense and not model.n_features:
        return None, no_features(1)
    if number is None:
        return (row if model.vocabulary is not None else None), _row_of(model, row)
    return _row_in(model, Path(row), number, reading)


def _row_with_dense(model: RankingModel, x: Any, reading: Reading, number: int | None) -> Any:
    """Return the row with its dense features, if the model uses them."""
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


def _row_in(
    model: RankingModel, data: Path, number: int, reading: Reading
) -> tuple[str | None, Any]:
    """Return a row of a data file, and its text, if any."""
    from dismec.data.corpus import read_texts
    from dismec.data.dataset import load_features
    from dismec.training.texts import vocabulary_of

    found, seen = reading.look(data), 0
    if found.is_texts:
        vocabulary = vocabulary_of(model)
        for batch in read_texts(found, reading.fmt_for(model, found), needs_labels=False):
            seen = batch.first_row + len(batch.texts)
            if number <= seen:
                text = batch.texts[number - 1 - batch.first_row]
                return text, vocabulary.rows([text])
    else:
        rows = load_features(found)
        seen = rows.shape[0]
        if number <= seen:
            return None, reading.terms(model, found, rows[[number - 1]])
    raise DismecError(f"row {number} requested, but {data} has {counted(seen, 'row')}")


def _row_of(model: RankingModel, given: str) -> Any:
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
