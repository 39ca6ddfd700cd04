"""One model → what each Δ leaves of it: P@k, weights, bytes, time of a prediction.

This is Figure 5 of the DiSMEC paper. A model pruned at a larger Δ is what training at that Δ gives,
so that a single training, at the smallest, serves for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from time import process_time
from typing import Any

import numpy as np

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
    X: Any,
    Y: Any,
    test: tuple[Any, Any],
    deltas: Sequence[float] = DELTAS,
    params: TrainingParams | None = None,
    *,
    ks: Sequence[int] = (1, 3, 5),
    threads: int | None = None,
    progress: Progress | None = None,
    cluster: Any = None,
    client: Any = None,
) -> list[Row]:
    """Train once at the smallest Δ, and evaluate on other rows what each Δ leaves.

    Parameters
    ----------
    X, Y, params, threads, progress, cluster, client
        As for `dismec.train`; the delta of `params` counts for nothing. The model is in memory.
    test
        X and Y to evaluate on.
    deltas
        In any order; 0 keeps all weights.
    ks
        The depths of P@k, nDCG@k and so on.

    Returns
    -------
    list
        As of `sweep_model`.

    Raises
    ------
    DataError
        For a delta that is below 0 or no number, and as `dismec.train` does.
    """
    ordered = check_deltas(deltas)
    params = replace(params or TrainingParams(), delta=ordered[0], calibrate=False)
    where = client if cluster is None else cluster
    model = fit(X, Y, params, threads=threads, progress=progress, cluster=where)
    return sweep_model(model, test, ordered, ks=ks, threads=threads)


def sweep_model(
    model: Model,
    test: tuple[Any, Any],
    deltas: Sequence[float] = DELTAS,
    *,
    ks: Sequence[int] = (1, 3, 5),
    threads: int | None = None,
) -> list[Row]:
    """Evaluate what each Δ leaves of a model; none may be below its own.

    Returns
    -------
    list
        A row for each Δ, ascending: ``{"delta": …, "weights": …, "bytes": …, "ms per row": …,
        "P@1": …}`` and all else that `Model.evaluate` has. Bytes are those of the weights with
        their places, as they are stored and held in memory; the time is that of a core to predict
        all test rows at once, divided by their number, the best of three runs.
    """
    table: list[Row] = []
    for delta in check_deltas(deltas):
        model = model.pruned(delta)  # of the last one, which has fewer weights to go through
        X, Y = test
        seconds = []
        for _ in range(3):  # the first finds nothing in the caches
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
    """The Δ, each once, ascending.

    Raises
    ------
    DataError
        If there are none, or one is below 0 or no number.
    """
    found = set()
    for delta in deltas:
        try:
            value = float(delta)
        except (TypeError, ValueError):
            value = math.nan
        if not 0 <= value <= _MOST_DELTA:
            raise DataError(f"delta is {delta!r}; expected a number of at least 0")
        found.add(value)
    if not found:
        raise DataError("there is no delta to try; name at least one")
    return sorted(found)
