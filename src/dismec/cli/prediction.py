"""Commands that use models."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dismec.cli.console import cluster_news, print_metrics
from dismec.cli.options import (
    MOST_PLACES,
    PATH,
    cluster_option,
    data_options,
    json_option,
    parse_ks,
    threads_option,
)

if TYPE_CHECKING:
    from dismec.model import TopkModel


@click.command()
@click.argument("model", type=PATH)
@click.argument("data", type=PATH)
@click.option(
    "-k", type=click.IntRange(1, MOST_PLACES), default=5, show_default=True, help="Labels a row."
)
@click.option(
    "-o",
    "--output",
    type=PATH,
    help='File to write [default: print]. By its ending: .jsonl, .npz, or text "label:score …".',
)
@cluster_option
@threads_option
def predict(
    model: Path,
    data: Path,
    k: int,
    output: Path | None,
    cluster: str | None,
    threads: int | None,
) -> None:
    """Print the k best labels of every row of DATA with their scores."""
    from dismec.dataset import load_features
    from dismec.predictions import print_text, write_predictions

    with _opened(model, cluster) as opened:
        rows = load_features(data, threads=threads)
        if output is None or output.suffix != ".npz":
            k = min(k, max(opened.n_labels, 1))  # empty places are not written
        top, scores = opened.predict_topk(rows, k, threads=threads)
    if output is None:
        print_text(top, scores, opened.names, sys.stdout)
        sys.stdout.flush()
    else:
        write_predictions(top, scores, opened.names, output)


@click.command()
@click.argument("model", type=PATH)
@click.argument("data", type=PATH)
@click.option(
    "-k", "ks", default="1,3,5", show_default=True, callback=parse_ks, help="Places to report."
)
@click.option("--propensity-a", "A", type=float, default=0.55, show_default=True)
@click.option("--propensity-b", "B", type=float, default=1.5, show_default=True)
@cluster_option
@data_options
@threads_option
@json_option
def evaluate(
    model: Path,
    data: Path,
    ks: tuple[int, ...],
    A: float,
    B: float,
    cluster: str | None,
    labels: Path | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Measure a model on DATA: P@k, nDCG@k, PSP@k and more, in percent.

    The propensities come from the label counts of the training data with the constants A and B
    (0.5 and 0.4 for Wikipedia, 0.6 and 2.6 for Amazon data, else 0.55 and 1.5).
    """
    from dismec.dataset import load_data

    with _opened(model, cluster) as opened:
        dataset = load_data(data, labels=labels, threads=threads)
        result = opened.evaluate(dataset.X, dataset.Y, ks, A=A, B=B, threads=threads)
    if as_json:
        click.echo(json.dumps({key: round(value, 2) for key, value in result.items()}))
    else:
        print_metrics(result, ks)


@contextmanager
def _opened(model: Path, cluster: str | None) -> Iterator[TopkModel]:
    """A model, here or on a cluster."""
    from dismec.model import open_model

    if cluster is None:
        yield open_model(model, check=True)
        return
    with cluster_news(cluster, quiet=False):
        from dismec.cluster_predictor import ClusterModel, ClusterPredictor
        from dismec.dask_engine import Cluster

        with (
            Cluster.connect(cluster) as connection,
            ClusterPredictor(connection, model) as predictor,
        ):
            yield ClusterModel(predictor)
