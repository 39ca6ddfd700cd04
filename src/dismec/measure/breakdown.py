"""(true, predicted, training frequency or hierarchy) → metrics per label, group and level.

Labels with training rows are sorted by decreasing frequency (ties: the smaller number first) and
split into ten groups, as evenly as possible. P@k, nDCG@k and PSP@k of a group are its contributions
to the metrics over all labels, so the groups add up to the total; R@k and Coverage@k are those of
the group's own labels. ``docs/howto/inspecting.md`` describes them.

For levels of a hierarchy, the true labels of a row and its first k predicted labels are each
extended by all their ancestors; ``docs/howto/hierarchy.md`` defines hP@k, hR@k and hF1@k of these
sets. If nothing is predicted, or nothing is true, the ratio is 0.
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
from dismec.measure import metrics
from dismec.measure.metrics import Truth

POINTS = 200
RARE = (1, 5, 10)

GROUPS = 10
Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[Any]  # int64, or float64 with row weights


def frequency_groups(counts: npt.ArrayLike, n_groups: int = GROUPS) -> list[Ints]:
    """Return labels from the most to the least frequent, in non-empty groups of equal size.

    Labels without training rows are in no group.
    """
    n = np.asarray(counts, dtype=np.int64)
    ranked = np.argsort(-n, kind="stable")[: np.count_nonzero(n)]
    return [group for group in np.array_split(ranked, n_groups) if len(group)]


def by_group(
    Y_true: sp.csr_array,
    top: npt.NDArray[Any],
    counts: Ints,
    propensities: npt.NDArray[np.float64],
    ks: Sequence[int] = (1, 3, 5),
) -> list[dict[str, Any]]:
    """Return the metrics of each group in percent, as defined in the module docstring.

    The arguments are those of `dismec.measure.metrics.evaluate`, with at least max(ks) places, plus
    the number of training rows of each label (`counts`). If some true labels have no training rows,
    they form a last group whose "frequency" is [0, 0].
    """
    n_labels = Y_true.shape[1]
    hits = metrics.hits(Y_true, top)
    pairs = np.bincount(Y_true.indices, minlength=n_labels)
    groups = frequency_groups(counts)
    unseen = np.flatnonzero((counts == 0) & (pairs > 0))
    if len(unseen):
        groups.append(unseen)
    group_of = np.zeros(n_labels, np.int64)
    for number, group in enumerate(groups):
        group_of[group] = number
    result: list[dict[str, Any]] = [
        {
            "labels": len(group),
            "frequency": [int(counts[group].max()), int(counts[group].min())],
            "true pairs": int(pairs[group].sum()),
            "labels true": int(np.count_nonzero(pairs[group])),
        }
        for group in groups
    ]

    def add_sums(name: str, values: npt.NDArray[Any], found: npt.NDArray[Any]) -> None:
        """Add the sum of `values` over the labels `found` to each group."""
        sums = np.bincount(group_of[found], values, minlength=len(groups))
        for entry, value in zip(result, sums.tolist(), strict=True):
            entry[name] = 100 * value

    gain, total = 1 / propensities, metrics.evaluate(Y_true, top, ks, propensities)
    for k in ks:
        rows, places = np.nonzero(hits[:, :k])
        found = top[rows, places]
        gains = gain[found]
        psp = total[f"PSP@{k}"] / 100 / max(gains.sum(), 1e-300)
        add_sums(f"P@{k}", np.full(len(found), 1 / (k * len(top))), found)
        discount = 1 / np.log2(np.arange(2, k + 2))
        attainable = np.cumsum(discount)[np.minimum(np.diff(Y_true.indptr)[rows], k) - 1]
        add_sums(f"nDCG@{k}", discount[places] / attainable / len(top), found)
        add_sums(f"PSP@{k}", gains * psp, found)
        add_sums(f"R@{k}", 1 / _at_least_1(result, "true pairs")[group_of[found]], found)
        once = np.unique(found)
        add_sums(f"Coverage@{k}", 1 / _at_least_1(result, "labels true")[group_of[once]], once)
    return result


def _at_least_1(entries: list[dict[str, Any]], name: str) -> npt.NDArray[np.float64]:
    return np.maximum([entry[name] for entry in entries], 1.0)


def by_label(Y_true: sp.csr_array, top: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return "rows", "recall", "precision" and "F1" for each label.

    "rows" counts the rows in which the label is true, "predicted" the rows in which it is in `top`;
    all places of `top` count. 0/0 is taken as 0.
    """
    n_labels = Y_true.shape[1]
    true = np.bincount(Y_true.indices, minlength=n_labels)
    given = np.bincount(top[top >= 0], minlength=n_labels)
    hits = np.bincount(top[metrics.hits(Y_true, top)], minlength=n_labels)
    return {
        "rows": true,
        "predicted": given,
        "recall": hits / np.maximum(true, 1),
        "precision": hits / np.maximum(given, 1),
        "F1": 2 * hits / np.maximum(true + given, 1),
    }


def describe_frequencies(counts: npt.ArrayLike) -> dict[str, Any]:
    """Describe how the rows are distributed over the labels; labels without rows have no rank.

    The keys are "ranks" and "rows", at most `POINTS` points of the ranked counts; "beta", "n_1" and
    "R2" of the power law, with the same weights, None with fewer than two ranks (R2 also if all
    counts are equal); "fitted ranks", the first and the last rank; and "share with at most", the
    share of the labels with rows that have at most the given number of rows.
    """
    n = np.sort(np.asarray(counts, dtype=np.float64))[::-1]
    n = n[n > 0]
    ranks = spread_ranks(len(n))
    beta, first, r2 = _law(n)
    return {
        "ranks": ranks.tolist(),
        "rows": [round(value) for value in n[ranks - 1].tolist()],
        "beta": beta,
        "n_1": first,
        "R2": r2,
        "fitted ranks": [1, len(n)] if beta is not None else None,
        "share with at most": {
            str(most): float(np.mean(n <= most)) if len(n) else 0.0 for most in RARE
        },
    }


def spread_ranks(n: int) -> npt.NDArray[np.int64]:
    """Return up to `POINTS` of the ranks 1 … n, both ends included, even on a log axis."""
    if n <= POINTS:
        return np.arange(1, n + 1)
    return np.unique(np.rint(np.geomspace(1, n, POINTS)).astype(np.int64))


def _law(n: npt.NDArray[np.float64]) -> tuple[float | None, float | None, float | None]:
    """Return β, n_1 and R² of the fit on log axes."""
    if len(n) < 2:
        return None, None, None
    ranks = np.arange(1, len(n) + 1)
    x, y, weight = np.log(ranks), np.log(n), 1 / ranks
    slope, intercept = np.polyfit(x, y, 1, w=np.sqrt(weight))
    spread = float(weight @ (y - np.average(y, weights=weight)) ** 2)
    missed = float(weight @ (y - intercept - slope * x) ** 2)
    r2 = 1 - missed / spread if n[0] > n[-1] else None
    return -float(slope), float(np.exp(intercept)), r2


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


def frequency_range(frequency: Sequence[int]) -> str:
    """Format the range of training rows of a group of labels."""
    most, least = frequency
    return f"{most:,}" if most == least else f"{least:,}–{most:,}"


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
    result: dict[str, Any] = {}
    levels = tree.describe_levels()
    for entry in levels:
        entry["true pairs"] = int(np.count_nonzero(tree.levels[truth.indices] == entry["level"]))
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
