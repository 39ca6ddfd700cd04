"""(true labels, ranked labels, hierarchy) → precision and recall per level.

The true labels of a row and its first k predicted labels are each extended by all their ancestors;
``docs/howto/hierarchy.md`` defines hP@k, hR@k and hF1@k of these sets. If nothing is predicted, or
nothing is true, the ratio is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.hierarchy import LabelTree
from dismec.data.types import MatrixLike, WeightsLike
from dismec.data.weights import RowWeights, check_row_weights

Counts = npt.NDArray[Any]  # int64, or float64 with row weights


def by_level(
    Y_true: MatrixLike,
    top: npt.NDArray[np.int32] | npt.NDArray[np.int64],
    tree: LabelTree,
    ks: Sequence[int] = (1, 3, 5),
    weights: WeightsLike | None = None,
) -> dict[str, Any]:
    """Compute hierarchical precision and recall, overall and for each level, in percent.

    Labels, true and predicted, are extended by all their ancestors before they are compared.

    Parameters
    ----------
    Y_true : indicator matrix of shape (n_rows, n_labels)
        The true labels, sparse: entries other than 0.
    top : ndarray of int, shape (n_rows, n_places)
        Predicted labels, best first; −1 is an empty place.
    tree : LabelTree
        The hierarchy of the labels, from `Hierarchy.over`.
    ks, weights
        As for `evaluate`.

    Returns
    -------
    dict
        ``{"hP@1": …, "hR@1": …, "hF1@1": …, …, "levels": [{"level": 1, "nodes": …, "labels": …,
        "true pairs": …, "hP@1": …, …}, …]}``. "true pairs" counts pairs of a row and a true node.

    Examples
    --------
    >>> import numpy as np
    >>> from dismec import Hierarchy, by_level
    >>> tree = Hierarchy([("pug", "dogs"), ("poodle", "dogs")]).over(["pug", "poodle", "dogs"])
    >>> Y_true = np.array([[1, 0, 0]])
    >>> found = by_level(Y_true, np.array([[1]]), tree, ks=[1])  # a poodle is a dog, not a pug
    >>> found["hP@1"], [level["hP@1"] for level in found["levels"]]
    (50.0, [100.0, 0.0])
    """
    truth: Any = tree.closed(Y_true)
    if weights is not None:
        weights = check_row_weights(weights, truth.shape[0])
        if not (counted := weights > 0).all():
            truth, top, weights = truth[counted], top[counted], weights[counted]
    levels: list[dict[str, Any]] = [
        {
            "level": level,
            "nodes": int(np.count_nonzero(tree.levels == level)),
            "labels": int(np.count_nonzero(tree.levels[: tree.n_labels] == level)),
            "true pairs": int(np.count_nonzero(tree.levels[truth.indices] == level)),
        }
        for level in range(1, 1 + int(tree.levels.max(initial=0)))
    ]
    result: dict[str, Any] = {}
    for k in ks:
        counts = _node_counts(truth, top[:, :k], tree, weights)
        result |= _ratios(counts, slice(None), k)
        for entry in levels:
            entry |= _ratios(counts, tree.levels == entry["level"], k)
    return result | {"levels": levels}


def by_node(Y_true: Any, top: npt.NDArray[Any], tree: LabelTree) -> dict[str, Counts]:
    """Count per node: "rows" with it or a label below it, "predicted" rows, and "hits" (both)."""
    rows, predicted, both = _node_counts(tree.closed(Y_true), top, tree)
    return {"rows": rows, "predicted": predicted, "hits": both}


def _node_counts(
    truth: Any, top: npt.NDArray[Any], tree: LabelTree, weights: RowWeights | None = None
) -> tuple[Counts, ...]:
    """Count the rows, or add up their weights, in which each node is true, predicted, and both."""
    there = top >= 0
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(there.sum(axis=1))])
    shape = len(top), tree.n_labels
    found = sp.csr_array((np.ones(indptr[-1], np.uint8), top[there], indptr), shape=shape)
    predicted: Any = tree.closed(found)
    both = predicted.multiply(truth).tocsr()
    return tuple(
        np.bincount(
            matrix.indices,
            None if weights is None else np.repeat(weights, np.diff(matrix.indptr)),
            minlength=tree.n_nodes,
        )
        for matrix in (truth, predicted, both)
    )


def _ratios(counts: tuple[Counts, ...], nodes: Any, k: int) -> dict[str, float]:
    true, predicted, both = (float(count[nodes].sum()) for count in counts)
    return {
        f"hP@{k}": 100.0 * both / (predicted or 1.0),
        f"hR@{k}": 100.0 * both / (true or 1.0),
        f"hF1@{k}": 200.0 * both / ((predicted + true) or 1.0),
    }
