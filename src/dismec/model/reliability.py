"""A calibrated model and rows with known labels → how reliable its probabilities are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dismec.data.row_weights import RowWeights
from dismec.measure.metrics import Truth, hits
from dismec.measure.probabilities import expected_calibration_error, f1_scores
from dismec.model.calibration import Calibration, logistic
from dismec.model.scoring import Labels, Scores
from dismec.model.thresholds import MACRO_F1, MICRO_F1

__all__ = ["reliability"]


def reliability(
    calibration: Calibration,
    truth: Truth,
    top: Labels,
    values: Scores,
    by_score: bool,
    assign: Callable[[str], Any],
    weights: RowWeights | None = None,
) -> dict[str, float]:
    """Return the metrics of probabilities for `Model.evaluate`, in percent.

    `top` are the best labels of each row, and `values` their scores (if `by_score`) or their
    probabilities. `assign` returns the labels that reach a threshold. `weights` are row weights.
    """
    there = top >= 0
    found, of = hits(truth.Y, top)[there], top[there]
    p = scores = values[there]
    if by_score:
        p = calibration.probabilities(of, scores)
    else:
        scores = calibration.scores(of, p)
    v = None if weights is None else np.broadcast_to(weights[:, None], top.shape)[there]
    result = {
        "ECE": expected_calibration_error(p, found, weights=v),
        "ECE uncalibrated": expected_calibration_error(logistic(scores), found, weights=v),
    }
    for name, threshold in (("micro-F1", MICRO_F1), ("macro-F1", MACRO_F1)):
        sets = assign(threshold)
        sets.resize(truth.Y.shape)
        result[name] = f1_scores(truth.Y, sets, weights)[name]
    return {name: 100 * value for name, value in result.items()}
