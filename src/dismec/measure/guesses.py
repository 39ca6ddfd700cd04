"""(true labels, training frequency) → what P@k is without looking at a row.

Both guesses name labels that have training rows, as a model does.

- By frequency: the k labels with the most training rows (ties go to the smallest number), the same
  for every row.
- By chance: k different labels drawn at random, each as likely as any other. The expected share of
  hits is the same in every place: pairs of a row and a true label / (rows · labels to draw from).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dismec.measure.metrics import Truth

__all__ = ["precision_of_guesses"]


def precision_of_guesses(
    truth: Truth, ks: Sequence[int] = (1, 3, 5)
) -> dict[str, dict[str, float]]:
    """P@k in percent of "most frequent labels", and of "random labels" in expectation.

    Places for which there are no labels are empty, and count as places.
    """
    n_rows = max(truth.Y.shape[0], 1)
    counts = truth.label_counts
    pairs = np.bincount(truth.Y.indices, minlength=len(counts))
    n_trained = int(np.count_nonzero(counts))
    ranked = np.argsort(-counts, kind="stable")[:n_trained]
    hit = pairs[counts > 0].sum() / (n_rows * max(n_trained, 1))
    return {
        "most frequent labels": {
            f"P@{k}": 100 * float(pairs[ranked[:k]].sum() / (n_rows * k)) for k in ks
        },
        "random labels": {f"P@{k}": 100 * float(hit) * min(k, n_trained) / k for k in ks},
    }
