"""LPSR: label partitioning for sublinear ranking; as LPSR-NB, on top of naive Bayes.

J. Weston, A. Makadia, H. Yee, "Label Partitioning For Sublinear Ranking", ICML 2013.

It speeds up a base scorer f_y(x) that was trained for all labels, and sometimes makes it more
precise, by scoring only a few labels per row:

1. base: train f for all labels;
2. partition the rows by hierarchical 2-means: at each node min Σ_t p_t min_c ‖x_t − c‖², where
   rows that the base ranks well weigh more (p_t is 0.1 plus the row's P@1);
3. for each leaf choose the D labels that serve its rows t best. With R_ty the rank of a label y of
   row t by the base, and α in [0, 1]ᴸ instead of a choice of labels, maximize

       Σ_t 1/|y_t| Σ_{y∈y_t} α_y/w(R_ty) · (1 − σ(Σ_{j∉y_t, R_tj<R_ty} α_j − k)),   w(R) = R^½:

   y is found if it is kept and fewer than k wrong labels that rank above it are; then keep the D
   labels with the largest α;
4. predict: route a row to the leaf with the nearest centers, and rank that leaf's labels by f.

Base "nb" is multinomial naive Bayes, one label against all other rows, with s·x as counts:

    f_y(x) = log n_y/(N − n_y) + s·Σ_f x_f·log P(f|y)/P(f|not y),   P smoothed by `smoothing`.

Base "ovr" is this package's one-vs-rest training, in memory; published results of LPSR on small
data sets probably used a one-vs-rest base, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.optimize import Bounds, minimize
from scipy.special import expit

from dismec.compare.baseline import Topk, best_by_weights, best_of, precision_at_1, some_at_a_time
from dismec.cpu import in_threads
from dismec.training.params import TrainingParams
from dismec.training.train import fit as train_one_vs_rest

_SMOOTHINGS = (1.0, 0.1, 0.01)
_SCALES = (1.0, 3.0, 10.0)
_DEPTH = 100  # labels of a row's ranking that can be above its own
_MEANS_ROUNDS = 20
_ASSIGNMENT_ROUNDS = 50

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LPSR:
    """The parameters of LPSR."""

    base: Literal["nb", "ovr"] = "nb"  # naive Bayes or one-vs-rest
    leaf_rows: int = 500  # at most
    leaf_labels: int | None = None  # D; None: a quarter of those with training rows, at least 100
    k: int = 5  # wrong labels above a label from which it counts as not found
    seed: int = 0

    def fit(self, X: Any, Y: Any, *, threads: int = 1) -> FittedLPSR:
        """Train on the rows of X and their labels Y."""
        X, Y = sp.csr_matrix(X), sp.csr_matrix(Y)
        labels = np.flatnonzero(np.bincount(Y.indices, minlength=Y.shape[1]))
        known = Y[:, labels]
        weights = self._base(X, known, threads)
        rankings = rank_rows(with_sums(X), known, weights)
        importance = np.where(rankings.wrong[:, :1].all(axis=1), 0.1, 1.1)
        tree = RowTree.grow(X, importance, self.leaf_rows, self.seed)
        leaf_labels = max(100, len(labels) // 4) if self.leaf_labels is None else self.leaf_labels

        def choose(rows: Ints) -> Ints:
            return choose_labels(rankings.pairs(rows), len(labels), leaf_labels, self.k)

        leaves = tree.leaf_rows(X)
        kept = dict(zip(leaves, in_threads(choose, leaves.values(), threads), strict=True))
        return FittedLPSR(tree, weights, kept, labels.astype(np.int32))

    def _base(self, X: Any, Y: Any, threads: int) -> Any:
        """Do step 1: return weights (CSC, columns of `with_sums` × labels)."""
        if self.base == "ovr" and Y.nnz:
            params = TrainingParams(normalize=False, precision="float32")
            by_label = train_one_vs_rest(X, Y, params, threads=threads).weights
            features, bias = by_label[:, :-1], by_label[:, -1:]
            none: Any = sp.csr_matrix(np.zeros((Y.shape[1], 1), np.float32))
            return sp.csc_matrix(sp.hstack((features, none, bias)).T)
        return naive_bayes(X, Y, *self._settle(X, Y))

    def _settle(self, X: Any, Y: Any) -> tuple[float, float]:
        """Choose the smoothing and the scale of naive Bayes, by P@1 on a tenth of the rows."""
        choices = [(smoothing, scale) for smoothing in _SMOOTHINGS for scale in _SCALES]
        order = np.random.default_rng(self.seed).permutation(X.shape[0])
        judged, others = np.split(order, [X.shape[0] // 10])
        if not Y[judged].nnz:
            return choices[-1]

        def precision(choice: tuple[float, float]) -> float:
            weights = naive_bayes(X[others], Y[others], *choice)
            return precision_at_1(with_sums(X[judged]), Y[judged], weights)

        return max(choices, key=precision)


def with_sums(X: Any) -> Any:
    """Return X with two more columns: the sum of each row, and 1."""
    more: Any = np.hstack((np.asarray(X.sum(axis=1)), np.ones((X.shape[0], 1))))
    return sp.csr_matrix(sp.hstack((X, sp.csr_matrix(more))), dtype=np.float32)


def naive_bayes(X: Any, Y: Any, smoothing: float, scale: float = 1.0) -> Any:
    """Return weights (CSC, columns of `with_sums` × labels) for f_y, up to a term in x alone.

    With c_fy the sum of feature f over the rows of label y, log P(f|y)/P(f|not y) is log (c_fy +
    a)/(s_f − c_fy + a) minus a term in y. It is the same for all labels with c_fy = 0 and is
    subtracted from the others, so the weights are as sparse as c.
    """
    a, n_features = smoothing / scale, X.shape[1]  # equivalent to scaling all sums
    sums = sp.csc_matrix(X.T.astype(np.float64) @ Y.astype(np.float64))
    of_feature = np.asarray(X.sum(axis=0, dtype=np.float64)).ravel()[sums.indices]
    others = np.maximum(of_feature - sums.data, 0)
    data = np.log(sums.data + a) - np.log(others + a) - np.log(a) + np.log(of_feature + a)
    weights = sp.csc_matrix((data, sums.indices, sums.indptr), sums.shape)
    own = np.asarray(sums.sum(axis=0)).ravel()
    slope = np.log(np.maximum(X.sum() - own, 0) + a * n_features) - np.log(own + a * n_features)
    counts = np.asarray(Y.sum(axis=0, dtype=np.float64)).ravel()
    prior = np.log(counts + smoothing) - np.log(X.shape[0] - counts + smoothing)
    rows = (scale * weights, scale * slope[None], prior[None])
    return sp.csc_matrix(sp.vstack(rows), dtype=np.float32)


class Pairs(NamedTuple):
    """Rows paired with each of their labels: the input of a leaf's assignment."""

    label: Ints
    value: Floats  # 1/(|y_t| w(R_ty))
    above: Any  # pairs × labels, CSR: 1 for labels that rank above and are not the row's


class LeafRankings(NamedTuple):
    """The base's ranking of labels for each training row."""

    rank: Any  # rows × labels, CSR: the ranks of a row's own labels, from 1
    top: npt.NDArray[np.int32]  # rows × depth: the first labels
    wrong: npt.NDArray[np.bool_]  # which of these are not the row's own

    def pairs(self, rows: Ints) -> Pairs:
        """Return the pairs of some rows."""
        own = self.rank[rows]
        counts = np.diff(own.indptr)
        of_row = np.repeat(rows, counts)
        above = self.wrong[of_row] & (np.arange(1, self.top.shape[1] + 1) < own.data[:, None])
        indptr = np.concatenate(([0], np.cumsum(above.sum(axis=1))))
        ones, labels = np.ones(indptr[-1]), self.top[of_row][above]
        matrix = sp.csr_matrix((ones, labels, indptr), (len(of_row), own.shape[1]))
        value = 1 / (np.repeat(counts, counts) * np.sqrt(own.data))
        return Pairs(own.indices.astype(np.int64), value, matrix)


def rank_rows(X: Any, Y: Any, weights: Any) -> LeafRankings:
    """Rank all labels for each row of X, which must have the columns of `with_sums`."""
    depth = min(_DEPTH, Y.shape[1])
    rank = np.ones(Y.nnz, np.int64)
    top = np.zeros((Y.shape[0], depth), np.int32)
    wrong = np.ones((Y.shape[0], depth), np.bool_)

    by_feature = sp.csr_matrix(weights)
    for some in some_at_a_time(X.shape[0], Y.shape[1]):
        scores = (X[some] @ by_feature).toarray()
        top[some] = best_of(scores, depth)[0]
        for row, z in enumerate(scores, some.start):
            entries = slice(*Y.indptr[[row, row + 1]])
            own = Y.indices[entries]
            rank[entries] = 1 + (z > z[own, None]).sum(axis=1)
            wrong[row] = ~np.isin(top[row], own)
    return LeafRankings(sp.csr_matrix((rank, Y.indices, Y.indptr), Y.shape), top, wrong)


def assignment_objective(alpha: Floats, pairs: Pairs, k: int) -> tuple[float, Floats]:
    """Return the relaxed objective for a leaf's labels, and its gradient."""
    wrong = expit(pairs.above @ alpha - k)
    own = alpha[pairs.label]
    gradient: Floats = np.bincount(pairs.label, pairs.value * (1 - wrong), len(alpha)).astype(float)
    gradient -= pairs.above.T @ (pairs.value * own * wrong * (1 - wrong))
    return float((pairs.value * own * (1 - wrong)).sum()), gradient


def choose_labels(pairs: Pairs, n_labels: int, most: int, k: int) -> Ints:
    """Do step 3 for one leaf: maximize, then keep the largest α, in ascending order."""
    if not n_labels:
        return np.empty(0, np.int64)

    def negative(alpha: Any) -> Any:
        value, gradient = assignment_objective(alpha, pairs, k)
        return -value, -gradient

    start = np.zeros(n_labels)
    start[pairs.label] = 0.5
    bounds: Any = Bounds(0, 1)
    rounds: Any = {"maxiter": _ASSIGNMENT_ROUNDS}
    found = minimize(negative, start, jac=True, bounds=bounds, options=rounds)
    # Many labels end at α = 1; among these, the gradient shows the value of a label.
    order = np.lexsort((found.jac, -found.x))
    return np.sort(order[found.x[order] > 0][:most])


class Split(NamedTuple):
    """A node of a tree of 2-means that sends rows with x·normal > offset to its second child."""

    normal: Any  # 1 × features, CSR: difference of the two centers
    offset: np.float32
    child: int  # number of the first child; the second follows


class RowTree(NamedTuple):
    """Step 2, a tree of 2-means: its nodes, parents first; None is a leaf."""

    nodes: list[Split | None]

    @classmethod
    def grow(cls, X: Any, row_weights: Floats, most: int, seed: int) -> RowTree:
        """Split nodes until none has more than `most` rows, or 2-means separates no rows."""
        rng = np.random.default_rng(seed)
        nodes: list[Split | None] = []
        parts = [np.arange(X.shape[0])]  # the rows of each node
        for rows in parts:
            split = _two_means(X[rows], row_weights[rows], rng) if len(rows) > most else None
            if split is None:
                nodes.append(None)
                continue
            normal, offset, second = split
            nodes.append(Split(normal, offset, len(parts)))
            parts += [rows[~second], rows[second]]
        return cls(nodes)

    def leaf_rows(self, X: Any) -> dict[int, Ints]:
        """Return the rows of X in each leaf, by its node number."""
        parts = {0: np.arange(X.shape[0])}
        for number, node in enumerate(self.nodes):
            if node is not None:
                rows = parts.pop(number)
                second = _is_second(X[rows], node.normal, node.offset)
                parts |= {node.child: rows[~second], node.child + 1: rows[second]}
        return parts


def _is_second(X: Any, normal: Any, offset: np.float32) -> npt.NDArray[np.bool_]:
    """Return which rows are nearer to the second center."""
    return np.asarray((X @ normal.T).toarray()).ravel() > offset


def _two_means(
    X: Any, weights: Floats, rng: np.random.Generator
) -> tuple[Any, np.float32, npt.NDArray[np.bool_]] | None:
    """Return the normal and offset between two centers, and which rows are nearer to the second."""
    n_rows = X.shape[0]
    first = X[int(rng.integers(n_rows))]
    # The second center starts at one of the rows that are farther away than most.
    near = np.asarray((X @ first.T).toarray()).ravel()
    centers = [first, X[int(rng.choice(np.argsort(near, kind="stable")[: -(-n_rows // 2)]))]]
    second = np.zeros(n_rows, np.bool_)
    for _ in range(_MEANS_ROUNDS):
        squares = [float(c.multiply(c).sum()) for c in centers]
        normal = sp.csr_matrix(centers[1] - centers[0], dtype=np.float32)
        offset = np.float32((squares[1] - squares[0]) / 2)
        nearer = _is_second(X, normal, offset)
        if nearer.all() or not nearer.any():
            return None
        if (nearer == second).all():
            break
        second = nearer
        shares = [np.where(side, weights, 0) for side in (~second, second)]
        centers = [sp.csr_matrix(share / share.sum()) @ X for share in shares]
    return normal, offset, nearer


class FittedLPSR(NamedTuple):
    """The tree over rows, the base's weights, and the labels of each leaf."""

    tree: RowTree
    weights: Any  # CSC, columns of `with_sums` × labels with training rows
    kept: dict[int, Ints]  # per leaf, places in `labels`
    labels: npt.NDArray[np.int32]

    def predict_topk(self, X: Any, k: int) -> Topk:
        """Return the best k labels of the leaf that each row is routed to, and their scores."""
        X = sp.csr_matrix(X)
        labels = np.full((X.shape[0], k), -1, np.int32)
        scores = np.full((X.shape[0], k), -np.inf, np.float32)
        extended = with_sums(X)
        for leaf, rows in self.tree.leaf_rows(X).items():
            if len(rows):
                kept = self.kept[leaf]
                labels[rows], scores[rows] = best_by_weights(
                    extended[rows], k, self.weights[:, kept], self.labels[kept]
                )
        return labels, scores
