"""Rankings × thresholds → sets of labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.matrices import csr_on
from dismec.errors import DataError
from dismec.model.allowed import Allowed
from dismec.model.calibration import Calibration
from dismec.model.scoring import Labels, Ranking, Scores, empty_topk

__all__ = [
    "MACRO_F1",
    "MICRO_F1",
    "Rule",
    "assigned",
    "by_margin",
    "by_probability",
    "by_score",
    "ranked",
]

MICRO_F1, MACRO_F1 = "micro-f1", "macro-f1"  # names of the thresholds found by calibration
_FIRST_PLACES = 16  # places ranked at first: few rows have more labels

# Labels and their scores → which of them are assigned, and with which values. For each row, these
# must be the first labels of the ranking, down to some place.
Rule = Callable[[Labels, Scores], tuple[npt.NDArray[np.bool_], Scores]]


def by_score(threshold: Any) -> Rule:
    """Return the rule that takes labels whose scores are at or above a threshold."""
    least = _checked_threshold(threshold)
    return lambda _, scores: (scores >= least, scores)


def by_probability(threshold: Any, calibration: Calibration) -> Rule:
    """Return the rule that takes labels whose probabilities are at or above a threshold.

    It expects the scores of `Rankings.by_logit`.
    """
    least = _checked_threshold(threshold)
    if not 0 <= least <= 1:
        raise DataError(f"threshold is {least:g}; a probability is between 0 and 1")

    def rule(_: Labels, z: Scores) -> tuple[npt.NDArray[np.bool_], Scores]:
        p = calibration.of_logits(z)
        return p >= least, p

    return rule


def by_margin(calibration: Calibration) -> Rule:
    """Return the rule that takes labels above their thresholds for macro-F1.

    It expects the scores of `Rankings.by_margin`; its values are probabilities.
    """
    least = calibration.logits(calibration.macro_thresholds)
    return lambda labels, z: (z >= 0, calibration.of_logits(z + least[labels]))


def assigned(
    predictor: Ranking,
    X: Any,
    rule: Rule,
    most: int | None = None,
    threads: int | None = None,
    allowed: Allowed | None = None,
) -> sp.csr_array:
    """Return the labels that a rule takes, as CSR float32 (n_rows, n_labels) of its values.

    Each row is ranked among the allowed labels as far down as the rule takes labels, and at most
    down to place `most`.
    """
    rows = predictor.transform.take(X)
    n_rows, limit = rows.shape[0], predictor.n_labels
    limit = limit if most is None else min(most, limit)
    found: list[tuple[npt.NDArray[Any], ...]] = []
    left, k = np.arange(n_rows), min(_FIRST_PLACES, limit)
    while len(left) and k:
        every = len(left) == n_rows
        among = allowed if allowed is None or every else allowed.take(left)
        labels, scores = predictor.topk(rows if every else rows[left], k, threads, among)
        taken, values = rule(labels, scores)
        taken &= labels >= 0
        further = taken[:, -1] & (k < limit)
        taken[further] = False
        found.append((np.repeat(left, taken.sum(axis=1)), labels[taken], values[taken]))
        left, k = left[further], min(4 * k, limit)
    none = (np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    row, label, value = map(np.concatenate, zip(none, *found, strict=True))
    order = np.lexsort([label, row])
    indptr = np.searchsorted(row[order], np.arange(n_rows + 1))
    return csr_on(value[order], label[order], indptr, (n_rows, predictor.n_labels))


def ranked(sets: sp.csr_array) -> tuple[Labels, Scores]:
    """Return the labels of each row and their values, int32 and float32 (n_rows, places).

    Highest values first, ties to the smaller label; empty places hold −1 and −inf.
    """
    lengths = np.diff(sets.indptr)
    row = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort([sets.indices, -sets.data, row])
    place = np.arange(len(order)) - np.repeat(sets.indptr[:-1], lengths)
    labels, values = empty_topk(len(lengths), int(lengths.max(initial=0)))
    labels[row, place], values[row, place] = sets.indices[order], sets.data[order]
    return labels, values


def _checked_threshold(threshold: Any) -> float:
    if not isinstance(threshold, int | float | np.number) or np.isnan(threshold):
        raise DataError(f"threshold is {threshold!r}; expected a number")
    return float(threshold)
