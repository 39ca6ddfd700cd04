"""Measure what each Δ costs and saves: P@k, weights, bytes and prediction time of one model.

This is Figure 5 of the DiSMEC paper. A model pruned at a larger Δ is the model that training at
that Δ gives, so a single training at the smallest Δ is enough for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from time import process_time
from typing import Any

import numpy as np

from dismec.data.types import LabeledRows, LabelsLike, RowsLike
from dismec.errors import DataError
from dismec.model.model import Model
from dismec.training.params import TrainingParams
from dismec.training.recipe import fit
from dismec.training.request import Progress

__all__ = ["DELTAS", "check_deltas", "sweep", "sweep_model"]

DELTAS = (0.0, 0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2, 0.3)
_MOST_DELTA = float(np.finfo(np.float32).max)

Row = dict[str, float]


def sweep(
    X: RowsLike,
    Y: LabelsLike,
    test: LabeledRows,
    deltas: Sequence[float] = DELTAS,
    params: TrainingParams | None = None,
    *,
    ks: Sequence[int] = (1, 3, 5),
    threads: int | None = None,
    progress: Progress | None = None,
    cluster: Any = None,
    client: Any = None,
) -> list[Row]:
    """Train a model and evaluate it for several values of delta.

    The model is trained once, in memory, with the smallest delta, and pruned for the others.

    Parameters
    ----------
    X : matrix of shape (n_rows, n_features)
        The training rows, as for `dismec.train`.
    Y : indicator matrix of shape (n_rows, n_labels), or lists of labels
        The labels of the training rows.
    test : tuple of X and Y
        Rows and labels to evaluate on.
    deltas : sequence of float, default=(0.0, 0.001, …, 0.3)
        The values of delta, in any order; 0 keeps all weights.
    params : TrainingParams, default=None
        Training parameters, except delta.
    ks : sequence of int, default=(1, 3, 5)
        The values of k for P@k, nDCG@k and so on.
    threads : int, default=None
        Number of threads. By default all available CPUs.
    progress : callable, default=None
        Called periodically as ``progress(labels_done, labels_total)``.
    cluster : Dask client or str, default=None
        Dask cluster to train on: a client, a scheduler address or a scheduler file.
    client
        Former name of `cluster`.

    Returns
    -------
    list of dict
        A row for each delta, ascending: ``{"delta": …, "weights": …, "bytes": …, "ms per row": …,
        "P@1": …}`` and all other metrics of `Model.evaluate`. "bytes" is the size of the weights in
        memory and in files. "ms per row" is the time to predict a test row on one core, the best of
        three runs over all test rows.

    Raises
    ------
    DataError
        If a delta is negative or not a number, or if the data are invalid.

    Examples
    --------
    >>> from dismec import generate, sweep
    >>> data, test = generate(rows=100, features=50, labels=5, seed=1)
    >>> table = sweep(data.X, data.Y, (test.X, test.Y), deltas=[0.0, 0.1])
    >>> table[0]["weights"] > table[1]["weights"]
    True
    """
    ordered = check_deltas(deltas)
    params = replace(params or TrainingParams(), delta=ordered[0], calibrate=False)
    where = client if cluster is None else cluster
    model = fit(X, Y, params, threads=threads, progress=progress, cluster=where)
    return sweep_model(model, test, ordered, ks=ks, threads=threads)


def sweep_model(
    model: Model,
    test: LabeledRows,
    deltas: Sequence[float] = DELTAS,
    *,
    ks: Sequence[int] = (1, 3, 5),
    threads: int | None = None,
) -> list[Row]:
    """Evaluate a model for several values of delta.

    Parameters
    ----------
    model : Model
        The model to prune.
    test : tuple of X and Y
        Rows and labels to evaluate on.
    deltas : sequence of float, default=(0.0, 0.001, …, 0.3)
        The values of delta, in any order; none may be below that of the model.
    ks : sequence of int, default=(1, 3, 5)
        The values of k for P@k, nDCG@k and so on.
    threads : int, default=None
        Number of threads. By default all available CPUs.

    Returns
    -------
    list of dict
        A row for each delta, ascending: ``{"delta": …, "weights": …, "bytes": …, "ms per row": …,
        "P@1": …}`` and all other metrics of `Model.evaluate`. "bytes" is the size of the weights in
        memory and in files. "ms per row" is the time to predict a test row on one core, the best of
        three runs over all test rows.

    Raises
    ------
    DataError
        If a delta is not a number or below that of the model.

    Examples
    --------
    >>> import numpy as np
    >>> from dismec import DiSMECClassifier, sweep_model
    >>> X, Y = np.eye(4), np.eye(4, dtype=int)
    >>> model = DiSMECClassifier().fit(X, Y).model_
    >>> [row["P@1"] for row in sweep_model(model, (X, Y), [0.01, 0.1])]
    [100.0, 100.0]
    """
    table: list[Row] = []
    for delta in check_deltas(deltas):
        model = model.pruned(delta)  # the previous model has fewer weights left to prune
        X, Y = test
        seconds = []
        for _ in range(3):  # the first has cold caches
            begin = process_time()
            model.predict_topk(X, max(ks, default=1), threads=threads)
            seconds.append(process_time() - begin)
        found = model.evaluate(X, Y, ks, threads=threads)
        table.append(
            {
                "delta": delta,
                "weights": model.nnz,
                "bytes": sum(a.nbytes for shard in model.shards for a in shard.arrays.values()),
                "ms per row": 1e3 * min(seconds) / found["rows"],
                **found,
            }
        )
    return table


def check_deltas(deltas: Sequence[float]) -> list[float]:
    """Return the distinct Δ, ascending.

    Raises
    ------
    DataError
        If there are none, or one is negative or not a number.
    """
    found = set()
    for delta in deltas:
        try:
            value = float(delta)
        except (TypeError, ValueError):
            value = math.nan
        if not 0 <= value <= _MOST_DELTA:
            raise DataError(f"delta is {delta!r}; expected a number ≥ 0")
        found.add(value)
    if not found:
        raise DataError("no delta to try; give at least one")
    return sorted(found)
