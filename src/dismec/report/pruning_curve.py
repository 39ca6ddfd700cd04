"""What each Δ costs and saves: P@k, weights, bytes and prediction time of one model.

This is Figure 5 of the DiSMEC paper. A model pruned at a larger Δ is the model that training at
that Δ gives, so one model is enough for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import process_time
from typing import Any

import numpy as np

from dismec.data.types import LabelsLike, RowsLike
from dismec.errors import DataError
from dismec.model.model import Model

DELTAS = (0.0, 0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2, 0.3)
_MOST_DELTA = float(np.finfo(np.float32).max)


def pruning_curve(
    model: Model,
    X: RowsLike,
    Y: LabelsLike,
    deltas: Sequence[float] | None = None,
    *,
    ks: Sequence[int] = (1, 3, 5),
    threads: int | None = None,
) -> list[dict[str, float]]:
    """Evaluate a model for several values of delta.

    Parameters
    ----------
    model : Model
        The model to prune.
    X, Y
        Rows and labels to evaluate on, as for `Model.evaluate`.
    deltas : sequence of float, default=None
        The values of delta, in any order; none may be below that of the model. By default that of
        the model, and larger ones up to 0.3.
    ks, threads
        As for `Model.evaluate`.

    Returns
    -------
    list of dict
        A row for each delta, ascending: ``{"delta": …, "weights": …, "bytes": …, "ms per row": …,
        "P@1": …}`` and all other metrics of `Model.evaluate`. "bytes" is the size of the weights in
        memory and in files. "ms per row" is the time to predict a row on one core, the best of
        three runs over all rows.

    Examples
    --------
    >>> import numpy as np
    >>> from dismec import DiSMECClassifier, pruning_curve
    >>> X, Y = np.eye(4), np.eye(4, dtype=int)
    >>> model = DiSMECClassifier().fit(X, Y).model_
    >>> [row["P@1"] for row in pruning_curve(model, X, Y, [0.01, 0.1])]
    [100.0, 100.0]
    """
    if deltas is None:
        own = float(model.params.get("delta", 0))
        deltas = [own, *(delta for delta in DELTAS if delta > own)]
    table: list[dict[str, float]] = []
    for delta in _checked(deltas):
        model = model.pruned(delta)  # the previous model has fewer weights left to prune
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


def _checked(deltas: Sequence[Any]) -> list[float]:
    """Return the distinct Δ, ascending; raise `DataError` for an invalid one, or none."""
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
