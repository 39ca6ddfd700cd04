"""(true labels, training frequency) → P@k of guesses that ignore the rows.

Both guesses use only labels that have training rows, as a model does.

- By frequency: the k labels with the most training rows (ties go to the smallest number), the same
  for every row.
- By chance: k different labels drawn uniformly at random. The expected share of hits is the same in
  every place: pairs of a row and a true label / (rows · labels to draw from).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dismec.measure.metrics import Truth

__all__ = ["precision_of_guesses"]


def precision_of_guesses(
    truth: Truth, ks: Sequence[int] = (1, 3, 5)
) -> dict[str, dict[str, float]]:
    """Return P@k in percent for "most frequent labels" and, in expectation, "random labels".

    If there are fewer labels than places, the remaining places are empty but still count.
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
