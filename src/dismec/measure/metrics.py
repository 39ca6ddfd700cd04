"""(true labels, ranked labels) → numbers.

``docs/reference/metrics.md`` defines the metrics: those of the XMC Repository, as computed by its
MATLAB scripts (``precision_wt_k.m``, ``nDCG_wt_k.m``), F1 and the calibration error. A *hit* is a
place of a row's ranking with one of its true labels; an empty place (−1) never is. P, nDCG and R
are means over rows, PSP and PSnDCG ratios of two sums over rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.counts import check_k, check_ks, counted
from dismec.data.matrices import check_csr, indicator
from dismec.data.targets import propensities as propensities_of
from dismec.data.types import MatrixLike, WeightsLike
from dismec.data.weights import RowWeights, check_row_weights
from dismec.errors import DataError

DRAWS = 1000
_MIDDLE = (2.5, 97.5)  # percent
_AT_A_TIME = 4_000_000  # numbers drawn at a time

Draws = npt.NDArray[np.float64]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def evaluate(
    Y_true: MatrixLike,
    top: npt.ArrayLike,
    ks: Sequence[int] = (1, 3, 5),
    propensities: npt.ArrayLike | None = None,
    weights: WeightsLike | None = None,
) -> dict[str, float]:
    """Compute P@k, nDCG@k and other metrics of ranked labels, in percent.

    Parameters
    ----------
    Y_true : indicator matrix of shape (n_rows, n_labels)
        The true labels, sparse or dense: entries other than 0.
    top : array-like of int, shape (n_rows, n_places)
        Predicted labels, best first; −1 is an empty place. There must be at least max(ks) places,
        or n_labels if that is less.
    ks : sequence of int, default=(1, 3, 5)
        The values of k to report.
    propensities : array-like of shape (n_labels,), default=None
        Propensities of the labels in the training data (`dismec.propensities`). They are needed for
        PSP@k and PSnDCG@k.
    weights : array-like of shape (n_rows,), default=None
        How much each row counts: numbers of at least 0. By default all rows count the same.

    Returns
    -------
    dict of str to float
        ``{"P@1": …, "P@3": …, "nDCG@1": …, "PSP@1": …, "PSnDCG@1": …, "R@1": …, "Coverage@1": …,
        "macro-F1@1": …, "rows": n_rows}``. "rows" is the number of rows whose weight is not 0.

    Raises
    ------
    DataError
        If shapes do not fit, there are no rows, or a row of `top` holds a label twice or one that
        `Y_true` has no column for.

    Examples
    --------
    >>> from dismec import evaluate
    >>> Y_true = [[1, 1, 0], [0, 0, 1]]
    >>> top = [[0, 1], [0, 2]]
    >>> found = evaluate(Y_true, top, ks=[1, 2])
    >>> found["P@1"], found["P@2"], found["R@2"]
    (50.0, 75.0, 100.0)
    """
    ks = check_ks(ks)
    judged = _judge(Y_true, top, max(ks), propensities, weights)
    of_rows = np.ones(len(judged.hits)) if judged.weights is None else judged.weights
    result: dict[str, float] = {}
    for name, (reached, attainable) in _shares(judged, ks).items():
        most = float(of_rows @ attainable)
        result[name] = 100.0 * float(of_rows @ reached) / most if most > 0 else 0.0
    for k in ks:
        found = np.unique(judged.top[:, :k][judged.hits[:, :k]])
        result[f"Coverage@{k}"] = 100.0 * len(found) / max(int((judged.true_rows > 0).sum()), 1)
    for k in ks:
        result[f"macro-F1@{k}"] = 100.0 * _macro_f1(judged, k, of_rows)
    result["rows"] = len(judged.hits)
    return result


def hits(Y_true: Any, top: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return which places of `top` hold a true label; see `evaluate` for arguments and errors."""
    places = np.asarray(top)
    found = np.zeros(places.shape, dtype=np.bool_)
    if places.ndim == 2 and places.shape[1] == 0:
        return found
    judged = _judge(Y_true, places, max(places.shape[1:], default=1)).hits
    found[:, : judged.shape[1]] = judged
    return found


def shares_of_rows(
    Y_true: Any, top: npt.ArrayLike, propensities: npt.ArrayLike, ks: Sequence[int] = (1, 3, 5)
) -> dict[str, tuple[Floats, Floats]]:
    """Return numerators and denominators of the metrics but Coverage@k, per row.

    A metric is Σ first / Σ second over rows. Arguments and errors are those of `evaluate`.
    """
    return _shares(_judge(Y_true, top, max(ks), propensities), ks)


def paired_margin(differences: Floats, most: Floats, weights: Any = None) -> float:
    """Return half of the 95 % interval of Σ differences / Σ most over rows, in points."""
    of_rows = np.ones(len(most)) if weights is None else np.asarray(weights, np.float64)
    total = max(float(of_rows @ most), 1e-300)
    spread = of_rows * (differences - float(of_rows @ differences) / total * most)
    return 196.0 * float(np.sqrt(spread @ spread)) / total


@dataclass(frozen=True, eq=False)
class Truth:
    """The true labels of rows, with columns for all labels of the data and of the model."""

    Y: sp.csr_array  # (n_rows, n_labels); labels unknown to the model count as missed
    label_counts: Ints  # (n_labels,): number of training rows per label
    propensities: Floats  # (n_labels,), computed from these counts

    @classmethod
    def align(
        cls, Y: Any, label_counts: Ints, n_rows: int, A: float = 0.55, B: float = 1.5
    ) -> Truth:
        """Build the truth for a model with these label counts and `n_rows` training rows.

        `Y` is sparse or dense and is not modified. `A` and `B` are as in `dismec.data.targets`.
        """
        truth: Any = check_csr(Y, "Y", "labels").copy()
        counts = np.zeros(max(len(label_counts), truth.shape[1]), np.int64)
        counts[: len(label_counts)] = label_counts
        truth.resize((truth.shape[0], len(counts)))
        return cls(truth, counts, propensities_of(counts, n_rows, A, B))

    def metrics(
        self, top: npt.NDArray[Any], ks: Sequence[int] = (1, 3, 5), weights: Any = None
    ) -> dict[str, float]:
        """Like `evaluate`; `top` holds the model's best labels, places beyond are empty."""
        return evaluate(self.Y, self._padded(top, ks), ks, self.propensities, weights)

    def shares(self, top: npt.NDArray[Any], ks: Sequence[int]) -> dict[str, tuple[Floats, Floats]]:
        """Like `shares_of_rows`, for the best labels as `metrics` takes them."""
        return shares_of_rows(self.Y, self._padded(top, ks), self.propensities, ks)

    def _padded(self, top: npt.NDArray[Any], ks: Sequence[int]) -> npt.NDArray[Any]:
        missing = min(max(ks, default=0), self.Y.shape[1]) - top.shape[1]
        if missing <= 0:
            return top
        return np.pad(top, ((0, 0), (0, missing)), constant_values=-1)


@dataclass(frozen=True)
class _Judged:
    """Predictions compared with the truth: everything the metrics are computed from."""

    top: Ints  # (n_rows, depth); there are no hits below min(k, n_labels)
    hits: npt.NDArray[np.bool_]  # (n_rows, depth)
    n_true: Ints  # (n_rows,)
    true_rows: Floats  # (n_labels,): weight of the rows in which a label is true
    gains: Floats | None  # (n_rows, depth): 1/p for a hit, otherwise 0
    best_gains: Floats | None  # (n_rows, depth): a row's largest 1/p, largest first, then 0
    weights: Floats | None = None  # (n_rows,), above 0; None means all 1


def _shares(judged: _Judged, ks: Sequence[int]) -> dict[str, tuple[Floats, Floats]]:
    """Return what each row has reached, and what it could reach at most, for each metric."""
    ones = np.ones(len(judged.hits))
    shares: dict[str, dict[str, tuple[Floats, Floats]]] = {}

    def add(metric: str, k: int, reached: Floats, attainable: Floats) -> None:
        shares.setdefault(metric, {})[f"{metric}@{k}"] = reached, attainable

    for k in ks:
        hits, places = judged.hits[:, :k], min(k, judged.hits.shape[1])
        n_found = np.count_nonzero(hits, axis=1)
        discount = 1.0 / np.log2(np.arange(2.0, places + 2.0))
        ideal = np.concatenate([[1.0], np.cumsum(discount)])  # no true label: 0/1
        add("P", k, n_found, k * ones)
        add("nDCG", k, (hits @ discount) / ideal[np.minimum(judged.n_true, places)], ones)
        if judged.gains is not None and judged.best_gains is not None:
            gains, best = judged.gains[:, :k], judged.best_gains[:, :k]
            add("PSP", k, gains.sum(axis=1), best.sum(axis=1))
            add("PSnDCG", k, gains @ discount, best @ discount)
        add("R", k, n_found / np.maximum(judged.n_true, 1), ones)
    return {name: pair for pairs in shares.values() for name, pair in pairs.items()}


def _judge(
    Y_true: Any,
    top: npt.ArrayLike,
    depth: int,
    propensities: npt.ArrayLike | None = None,
    weights: Any = None,
) -> _Judged:
    depth = check_k(depth)
    truth: Any = check_truth(Y_true)
    n_rows, n_labels = truth.shape
    depth = min(depth, n_labels)  # there are no labels further down
    places = _check_top(top, n_rows, n_labels, depth)
    if weights is not None:
        weights = check_row_weights(weights, n_rows)
        counted = np.flatnonzero(weights)
        if not len(counted):
            raise DataError("all weights are zero: no rows to evaluate")
        if len(counted) < n_rows:
            truth, places, weights = truth[counted], places[counted], weights[counted]
            n_rows = len(counted)

    # (row, label) as one number: those of the truth are ascending, so membership is a binary
    # search.
    n_true = np.diff(truth.indptr).astype(np.int64)
    rows = np.arange(n_rows, dtype=np.int64)
    true_keys = np.repeat(rows, n_true) * n_labels + truth.indices
    keys = rows[:, None] * n_labels + places
    found = np.searchsorted(true_keys, keys)
    hits = np.zeros(places.shape, dtype=np.bool_)
    if true_keys.size:
        np.equal(true_keys[np.minimum(found, true_keys.size - 1)], keys, out=hits)
    hits &= places >= 0  # an empty place has the key of the previous row's last label

    gains = best_gains = None
    if propensities is not None:
        inverse = 1.0 / _check_propensities(propensities, n_labels)
        gains = np.zeros(places.shape)
        gains[hits] = inverse[places[hits]]
        best_gains = _best_gains(truth, inverse, depth)
    true_rows = np.bincount(truth.indices, _of_entries(truth, weights), n_labels).astype(float)
    return _Judged(places, hits, n_true, true_rows, gains, best_gains, weights)


def _macro_f1(judged: _Judged, k: int, of_rows: Floats) -> float:
    """Return the mean F1 of the labels that are true, or in the first k places, of some row."""
    top, weights = judged.top[:, :k], np.broadcast_to(of_rows[:, None], judged.top[:, :k].shape)
    found, assigned = (
        np.bincount(top[some], weights[some], len(judged.true_rows))
        for some in (judged.hits[:, :k], top >= 0)
    )
    both = judged.true_rows + assigned
    return float((2 * found[both > 0] / both[both > 0]).mean()) if both.any() else 0.0


def _best_gains(truth: sp.csr_array, inverse: Floats, depth: int) -> Floats:
    """Return (n_rows, depth): the largest 1/p of each row's true labels, largest first, then 0."""
    # Renumbered by decreasing 1/p, a row's best labels are its smallest column numbers.
    by_gain = np.argsort(-inverse, kind="stable")
    number = np.empty(len(inverse), dtype=truth.indices.dtype)
    number[by_gain] = np.arange(len(inverse), dtype=number.dtype)
    ranked = sp.csr_array((truth.data, number[truth.indices], truth.indptr), shape=truth.shape)
    ranked.sort_indices()
    place = ranked.indptr[:-1, None].astype(np.int64) + np.arange(depth)
    exists = place < ranked.indptr[1:, None]
    best = np.zeros(place.shape)
    best[exists] = inverse[by_gain][ranked.indices[place[exists]]]
    return best


def check_truth(Y_true: Any) -> sp.csr_array:
    """Return the truth as a canonical CSR copy without stored zeros; it must have rows."""
    truth: Any = indicator(check_csr(Y_true, "Y_true", "labels")).astype(np.bool_)
    if truth.shape[0] == 0:
        raise DataError("no rows to evaluate")
    return truth  # type: ignore[no-any-return]


def _check_top(top: npt.ArrayLike, n_rows: int, n_labels: int, depth: int) -> Ints:
    """Return the first `depth` places; each must be −1 or a label, and no label twice in a row."""
    places = np.asarray(top)
    if places.ndim != 2 or not np.issubdtype(places.dtype, np.integer):
        raise DataError(
            f"top is a {places.ndim}-d array of {places.dtype}; expected rows × places of integers"
        )
    if places.shape[0] != n_rows:
        raise DataError(f"top has {counted(places.shape[0], 'row')}, Y_true has {n_rows}")
    if places.shape[1] < depth:
        raise DataError(
            f"top has {counted(places.shape[1], 'place')} per row; k = {depth} needs {depth}"
        )
    if places.size and (places.min() < -1 or places.max() >= n_labels):
        row, place = np.argwhere((places < -1) | (places >= n_labels))[0]
        raise DataError(
            f"row index {row}: predicted label {places[row, place]}; "
            f"expected −1 or a label below {n_labels}"
        )
    ordered = np.sort(places, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if twice.any():
        row, place = np.argwhere(twice)[0]
        raise DataError(f"row index {row}: label {ordered[row, place]} is predicted twice")
    return places[:, :depth].astype(np.int64)


def _check_propensities(propensities: npt.ArrayLike, n_labels: int) -> Floats:
    p = np.asarray(propensities, dtype=np.float64)
    if p.shape != (n_labels,):
        raise DataError(f"propensities have shape {p.shape}; expected ({n_labels},): one per label")
    wrong = np.flatnonzero(~((p > 0) & (p <= 1)))
    if wrong.size:
        raise DataError(f"label {wrong[0]}: propensity {p[wrong[0]]:g}; expected 0 < p ≤ 1")
    return p


def drawn(
    Y_true: Any,
    top: npt.ArrayLike,
    propensities: npt.ArrayLike,
    ks: Sequence[int] = (1, 3, 5),
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, Draws]:
    """Return P@k, nDCG@k and PSP@k in percent for each draw of the rows; see `evaluate`."""
    shares = {
        name: pair
        for name, pair in shares_of_rows(Y_true, top, propensities, ks).items()
        if name.startswith(("P@", "nDCG@", "PSP@"))
    }
    parts = np.array([part for pair in shares.values() for part in pair])
    n_rows = parts.shape[1]
    sums = np.empty((draws, len(parts)))
    rng = np.random.default_rng(seed)
    step = max(1, _AT_A_TIME // n_rows)
    for begin in range(0, draws, step):
        end = min(begin + step, draws)
        rows = rng.integers(n_rows, size=(end - begin, n_rows), dtype=np.int32)
        for place, some in enumerate(rows, begin):
            sums[place] = parts @ np.bincount(some, minlength=n_rows)
    above, below = sums[:, 0::2], sums[:, 1::2]
    values = 100 * np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return dict(zip(shares, values.T, strict=True))


def interval(values: Draws) -> tuple[float, float]:
    """Return the bounds of the middle 95 % of the values."""
    low, high = np.percentile(values, _MIDDLE)
    return float(low), float(high)


def f1_scores(Y_true: Any, assigned: Any, weights: RowWeights | None = None) -> dict[str, float]:
    """Return ``{"micro-F1": …, "macro-F1": …}``, between 0 and 1; 0 if nothing is true or assigned.

    Both matrices are sparse (n_rows, n_labels). Nonzero entries of `Y_true` are true labels; every
    stored entry of `assigned` is an assigned label, whatever its value. `weights` are row weights.
    """
    truth = check_truth(Y_true)
    chosen: Any = sp.csr_array(assigned)
    if chosen.shape != truth.shape:
        raise DataError(f"assigned is {chosen.shape}, Y_true is {truth.shape}: expected the same")
    chosen = sp.csr_array(
        (np.ones(chosen.nnz, np.bool_), chosen.indices, chosen.indptr), chosen.shape, copy=True
    )
    chosen.sum_duplicates()
    both: Any = truth.multiply(chosen)
    n_labels = truth.shape[1]
    found, of_true, of_chosen = (
        np.bincount(matrix.indices, _of_entries(matrix, weights), minlength=n_labels)
        for matrix in (both.tocsr(), truth, chosen)
    )
    total = of_true + of_chosen
    seen = total > 0
    macro = 2 * found[seen] / total[seen]
    return {
        "micro-F1": float(2 * found.sum() / total.sum()) if seen.any() else 0.0,
        "macro-F1": float(macro.mean()) if macro.size else 0.0,
    }


def _of_entries(matrix: Any, weights: RowWeights | None) -> RowWeights | None:
    """Return the weight of each entry's row."""
    return None if weights is None else np.repeat(weights, np.diff(matrix.indptr))


def expected_calibration_error(
    probabilities: npt.ArrayLike,
    hits: npt.ArrayLike,
    bins: int = 15,
    weights: npt.ArrayLike | None = None,
) -> float:
    """Return the ECE, between 0 and 1; 0 without pairs.

    The arrays have the same shape and hold the probability of each predicted pair, whether it is a
    hit, and its weight.
    """
    p, found = np.asarray(probabilities, np.float64), np.asarray(hits, np.float64)
    if p.shape != found.shape:
        raise DataError(f"probabilities are {p.shape}, hits are {found.shape}: expected the same")
    if not ((p >= 0) & (p <= 1)).all():
        raise DataError("a probability is not between 0 and 1")
    if bins < 1:
        raise DataError(f"bins is {bins}; expected at least 1")
    v = np.ones(p.shape) if weights is None else np.asarray(weights, np.float64)
    binned = reliability(p.ravel(), found.ravel(), bins, v.ravel())
    missed = sum(e["pairs"] * abs(e["probability"] - e["share of hits"]) for e in binned)
    return float(missed / max(v.sum(), 1e-300))


def reliability(
    probabilities: npt.NDArray[Any],
    hits: npt.NDArray[Any],
    bins: int = 10,
    weights: npt.NDArray[Any] | None = None,
) -> list[dict[str, float]]:
    """Bin pairs by probability in equal widths: "pairs", "probability", "share of hits".

    The latter two are means over the pairs in the bin; empty bins are left out. Pairs count by
    their weights, if given.
    """
    place = np.minimum((probabilities * bins).astype(np.int64), bins - 1)
    v = np.ones(len(place)) if weights is None else weights
    pairs, p, found = (
        np.bincount(place, values, minlength=bins) for values in (v, v * probabilities, v * hits)
    )
    return [
        {
            "pairs": float(pairs[i]) if weights is not None else int(pairs[i]),
            "probability": float(p[i] / pairs[i]),
            "share of hits": float(found[i] / pairs[i]),
        }
        for i in np.flatnonzero(pairs).tolist()
    ]
