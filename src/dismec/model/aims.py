"""A metric, and the probable labels of all rows of a batch → the labels to predict for the metric.

The metrics are those of `dismec.measure.metrics`, as expected from the probabilities. What is best
for one row depends on the labels of the others.
"""

from __future__ import annotations

import re

import numpy as np

from dismec.cpu import kernels
from dismec.errors import DataError
from dismec.model.scoring import Labels, Scores

AIMS = ("macro-f1", "coverage")  # those for which the labels of rows depend on other rows
_CANDIDATES, _PER_PLACE = 50, 10  # labels per row to choose from: so many, or so many times k
_MOST_ALPHA = 100.0
_ROUNDS, _LEAST_GAIN = 50, 1e-5  # until a round makes the metric so much larger, as a share


def psp_exponent(aim: str) -> float | None:
    """Return alpha for an aim "psp" or "psp:alpha", and None for the other aims.

    Raises `DataError` for anything else.
    """
    if aim in AIMS:
        return None
    found = re.fullmatch(r"psp(?::(\d+(?:\.\d+)?))?", aim)
    alpha = float(found[1] or 1) if found else np.inf
    if not alpha <= _MOST_ALPHA:
        raise DataError(
            f"aim is {aim!r}; expected {', '.join(AIMS)}, psp, or psp:ALPHA up to {_MOST_ALPHA:g}"
        )
    return alpha


def candidates(k: int) -> int:
    """Return how many of a row's most probable labels to choose k from."""
    return max(_CANDIDATES, _PER_PLACE * k)


def aimed(
    aim: str, labels: Labels, probabilities: Scores, k: int, n_labels: int
) -> tuple[Labels, Scores]:
    """Choose k labels for each row; return them and their probabilities, the most probable first.

    The arrays are those of `Model.predict_topk`, ranked by probability, with `candidates` places.
    """
    places = np.empty((len(labels), k), np.int32)
    batch, reached = kernels.Aim(aim, labels, probabilities, places, n_labels), 0.0
    for _ in range(_ROUNDS):
        before, reached = reached, batch.round()
        if reached <= before * (1 + _LEAST_GAIN):
            break
    return np.take_along_axis(labels, places, 1), np.take_along_axis(probabilities, places, 1)
