"""Predictions and true labels → metrics, and how reliable the probabilities are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dismec.data.counts import check_ks
from dismec.data.types import WeightsLike
from dismec.data.weights import check_row_weights
from dismec.measure.metrics import Truth, expected_calibration_error, f1_scores, hits
from dismec.model.calibration import Calibration, logistic
from dismec.model.rankings import MACRO_F1, MICRO_F1
from dismec.model.scoring import Labels, Scores


def metrics_of_predictions(
    truth: Truth,
    ks: Sequence[int],
    weights: WeightsLike | None,
    topk: Callable[[int], tuple[Labels, Scores]],
    assign: Callable[[str], Any],
    calibration: Calibration | None,
    by_score: bool,
) -> dict[str, float]:
    """Return the metrics of `Model.evaluate`, in percent.

    `topk` returns the k best labels of each row with their scores (if `by_score`) or probabilities,
    and `assign` the labels that reach a threshold.
    """
    ks = check_ks(ks)
    top, values = topk(max(1, min(max(ks), truth.Y.shape[1])))
    metrics = truth.metrics(top, ks, weights)
    if calibration is None:
        return metrics
    row_weights = None if weights is None else check_row_weights(weights, len(top))
    there = top >= 0
    found, of = hits(truth.Y, top)[there], top[there]
    p = scores = values[there]
    if by_score:
        p = calibration.probabilities(of, scores)
    else:
        scores = calibration.scores(of, p)
    v = None if row_weights is None else np.broadcast_to(row_weights[:, None], top.shape)[there]
    result = {
        "ECE": expected_calibration_error(p, found, weights=v),
        "ECE uncalibrated": expected_calibration_error(logistic(scores), found, weights=v),
    }
    for name, threshold in (("micro-F1", MICRO_F1), ("macro-F1", MACRO_F1)):
        sets = assign(threshold)
        sets.resize(truth.Y.shape)
        result[name] = f1_scores(truth.Y, sets, row_weights)[name]
    return metrics | {name: 100 * value for name, value in result.items()}
