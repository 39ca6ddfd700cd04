"""FastXML: trees that split rows such that each side can rank its labels well.

Y. Prabhu, M. Varma: "FastXML: a fast, accurate and stable tree-classifier for extreme multi-label
learning", 2014. At every node of a tree, each row i gets a side δ_i = ±1, each side ranks its
labels (r⁺, r⁻), and a sparse hyperplane w learns the sides:

    min over w, δ, r⁺, r⁻ of  ‖w‖₁ + Σ_i C_i log(1 + exp(−δ_i w·x_i)) − Σ_i nDCG(r^{δ_i}, y_i)

1. δ is drawn at random, w = 0.
2. A side ranks labels by Σ_i I(y_i) y_i over its rows, 1 / I(y) being the ideal DCG of y.
3. A row goes to the side whose ranking has the higher nDCG for it; from 2. until no row moves.
4. w is fitted to δ once.
5. Rows part by the sign of w·x. Nodes of at most 10 rows, and those that w does not split, are
   leaves. A leaf keeps the mean of its rows' label vectors, and trees are averaged.

Step 3 always sees w = 0, so the log loss is the same on both sides and the weight of the nDCG
cancels. C_i is C times the number of rows of the node divided by that of the row's side, as in the
authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import expit

from dismec.compare.baseline import Topk, best_entries, best_of_rows
from dismec.cpu import in_threads

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]
Bools = npt.NDArray[np.bool_]

_MOST_ROUNDS = 100  # rounds of ranking; about ten are typical
_MOST_SETS = 10  # feature sets that weights are fitted to; about three are typical
_MOST_STEPS = 100  # steps for each of these; about fifty are typical
_TIE = 1e-9  # smaller differences of nDCG are rounding errors


@dataclass(frozen=True)
class FastXML:
    """The parameters of FastXML."""

    n_trees: int = 50
    max_leaf: int = 10  # rows
    labels_per_leaf: int = 100
    C: float = 4.0  # weight of the log loss
    tolerance: float = 0.05  # of the optimality conditions of w, relative to w = 0
    seed: int = 0

    def fit(self, X: Any, Y: Any, *, threads: int = 1) -> Forest:
        """Grow the trees, one per thread at a time."""
        X, Y = _with_bias(X), sp.csr_matrix(Y, dtype=np.float32)

        def grow(tree: int) -> Tree:
            return _grown(self, X, Y, np.random.default_rng((self.seed, tree)))

        return Forest(in_threads(grow, range(self.n_trees), threads))


class Tree(NamedTuple):
    """A tree; its root is node 0."""

    children: npt.NDArray[np.int32]  # nodes × 2: for w·x < 0, and otherwise; −1 at leaves
    weights: Any  # CSR, nodes × features, bias last; empty at leaves
    leaves: Any  # CSR, nodes × labels; empty at other nodes

    def leaf_of(self, X: Any) -> npt.NDArray[np.int32]:
        """Return the leaf of each row (with a bias), descending level by level."""
        found = np.zeros(X.shape[0], np.int32)
        moving = np.arange(len(found) if self.children[0, 0] >= 0 else 0)
        while len(moving):
            here = found[moving]
            margin = X[moving].multiply(self.weights[here]).sum(axis=1)
            side = (np.asarray(margin).ravel() >= 0).astype(np.intp)
            found[moving] = there = self.children[here, side]
            moving = moving[self.children[there, 0] >= 0]
        return found


class Forest(NamedTuple):
    """Several trees."""

    trees: list[Tree]

    def predict_topk(self, X: Any, k: int) -> Topk:
        """Return the best k labels per row by the mean of its leaves."""

        def mean(rows: Any) -> Any:
            rows = _with_bias(rows)
            return sum(tree.leaves[tree.leaf_of(rows)] for tree in self.trees) / len(self.trees)

        return best_of_rows(X, k, self.trees[0].leaves.shape[1] + X.shape[1], mean)


class Blocks(NamedTuple):
    """The rows of a level, grouped by node; each node has its own columns."""

    matrix: Any  # CSR, block-diagonal
    node: Ints  # node of each column, ascending
    column: Ints  # column of the data for each column

    @classmethod
    def whole(cls, data: Any) -> Blocks:
        """Put all rows into one node."""
        columns = np.arange(data.shape[1], dtype=np.int32)
        return cls(data, np.zeros_like(columns), columns)

    def split(self, rows: Ints, side: Ints, node: Ints) -> Blocks:
        """Select rows, those of side 0 first, with their new nodes, ascending.

        A column is copied to each side where it has entries.
        """
        part = self.matrix[rows]
        n_columns = part.shape[1]
        lengths = np.diff(part.indptr)
        place = part.indices + np.repeat((side * n_columns).astype(np.int32), lengths)
        taken = np.zeros(2 * n_columns, np.bool_)
        taken[place] = True
        old = np.flatnonzero(taken)
        indices = (np.cumsum(taken, dtype=np.int32) - 1)[place]
        nodes = np.empty(len(old), np.int32)
        nodes[indices] = np.repeat(node.astype(np.int32), lengths)
        matrix = sp.csr_matrix((part.data, indices, part.indptr), (len(rows), len(old)))
        return Blocks(matrix, nodes, np.concatenate([self.column, self.column])[old])


def partition(Y: Blocks, side: Bools) -> Bools:
    """Do steps 2 and 3: from initial sides, find sides whose rankings suit their rows.

    A row for which both rankings are equally good keeps its side.
    """
    rank = np.arange(len(Y.node)) - np.searchsorted(Y.node, Y.node)
    discount = 1 / np.log2(2 + rank)
    n_labels = np.maximum(np.diff(Y.matrix.indptr), 1)
    ideal = np.cumsum(1 / np.log2(2 + np.arange(n_labels.max(initial=1))))
    weight = 1 / ideal[n_labels - 1]
    gain = np.empty((2, len(Y.node)))
    for _ in range(_MOST_ROUNDS):
        for which in (0, 1):
            votes = Y.matrix.T @ (weight * (side == which))
            gain[which, np.lexsort((-votes, Y.node))] = discount
        better = Y.matrix @ (gain[1] - gain[0])
        after = np.where(np.abs(better) < _TIE, side, better > 0)
        if np.array_equal(after, side):
            break
        side = after
    return side


def separators(X: Blocks, node: Ints, side: Bools, C: float, tolerance: float) -> Floats:
    """Do step 4 for all nodes at once; return one weight per column of X.

    Fit the columns whose weight is nonzero or should be, in nodes that are not yet optimal, until
    all are: Σ_j |violation of j's optimality condition| ≤ tolerance · the same at w = 0.
    """
    sizes, two_sided = _sides_of(node, side)
    sign = np.where(side, 1, -1).astype(np.float32)
    cost = C * sizes.sum(axis=1)[node] / sizes[node, side.astype(np.intp)]
    cost[~two_sided[node]] = 0  # nothing to learn there
    pull = (cost * sign).astype(np.float32)
    w = np.zeros(len(X.node), np.float32)
    enough: Floats = np.zeros(len(sizes))
    for turn in range(_MOST_SETS):
        slope = X.matrix.T @ (pull * expit(-sign * (X.matrix @ w)))
        unmet = np.where(w == 0, np.maximum(np.abs(slope) - 1, 0), np.abs(slope - np.sign(w)))
        violation = np.bincount(X.node, unmet, len(sizes))
        if turn == 0:
            enough = tolerance * violation
        unfinished = violation > enough
        columns = np.flatnonzero(((unmet > 0) | (w != 0)) & unfinished[X.node])
        if not len(columns):
            break
        rows = np.flatnonzero(unfinished[node])
        part = Blocks(X.matrix[rows][:, columns], X.node[columns], X.column[columns])
        w[columns] = _descended(part, sign[rows], pull[rows], w[columns], enough)
    return w


def _sides_of(node: Ints, side: npt.NDArray[Any]) -> tuple[Ints, Bools]:
    """Count the rows on the two sides of each node (nodes × 2), and whether both have any."""
    sizes = np.bincount(2 * node + side, minlength=2 * (int(node[-1]) + 1)).reshape(-1, 2)
    return sizes, np.minimum(sizes[:, 0], sizes[:, 1]) > 0


def _descended(X: Blocks, sign: Floats, pull: Floats, w: Floats, enough: Floats) -> Floats:
    """Improve weights by accelerated proximal gradient steps; each node has its own momentum.

    The Hessian is at most ¼ |A|ᵀ diag(|pull|) |A|, which has no negative entries and is thus at
    most the diagonal matrix of its row sums; these bound the step sizes.
    """
    A, n_nodes = X.matrix, len(enough)
    size = abs(A)
    bound = size.T @ (np.abs(pull) * (size @ np.ones(len(w), np.float32))) / 4
    ahead, speed = w, np.ones(n_nodes, np.float32)
    for _ in range(_MOST_STEPS):
        free = ahead + A.T @ (pull * expit(-sign * (A @ ahead))) / bound
        after: Floats = free - np.clip(free, -1 / bound, 1 / bound)
        step = (after - ahead) * bound
        if (np.bincount(X.node, np.abs(step), n_nodes) <= enough).all():
            return after
        # Momentum restarts where it leads uphill (O'Donoghue and Candès).
        speed[np.bincount(X.node, step * (after - w), n_nodes) < 0] = 1
        faster = (1 + np.sqrt(1 + 4 * speed * speed)) / 2
        ahead = after + ((speed - 1) / faster)[X.node] * (after - w)
        w, speed = after, faster
    return w


def _grown(params: FastXML, X_all: Any, Y_all: Any, rng: np.random.Generator) -> Tree:
    """Grow a tree, level by level."""
    n_rows = X_all.shape[0]
    X, Y = Blocks.whole(X_all), Blocks.whole(Y_all)
    home = np.zeros(n_rows, np.int64)  # deepest node of each row so far
    rows = np.arange(n_rows if n_rows > params.max_leaf else 0)  # rows in nodes to split
    node = np.zeros(len(rows), np.int64)  # node of each of these rows, within the level
    number = np.zeros(1, np.int64)  # number in the tree of each node of the level
    n_nodes = 1
    branches: list[tuple[Ints, Ints]] = []  # numbers of nodes and of their children
    none: Any = np.empty(0, np.int32)
    entries = [(none.astype(np.float32), none, none)]  # weights, their nodes and features
    while len(rows):
        side = partition(Y, rng.random(len(rows)) < 0.5)
        w = separators(X, node, side, params.C, params.tolerance)
        which = (X.matrix @ w >= 0).astype(np.intp)
        sizes, splits = _sides_of(node, which)

        # Children are numbered as `Blocks.split` orders them: those of side 0 first.
        pair = np.full((len(number), 2), -1)
        n_children = 2 * int(np.count_nonzero(splits))
        pair[splits] = n_nodes + np.arange(n_children).reshape(2, -1).T
        n_nodes += n_children
        branches.append((number, pair))
        used = np.flatnonzero((w != 0) & splits[X.node])
        entries.append((w[used], number[X.node[used]], X.column[used]))

        home[rows] = np.where(splits[node], pair[node, which], home[rows])
        deeper = np.flatnonzero(splits[node] & (sizes[node, which] > params.max_leaf))
        deeper = deeper[np.argsort(which[deeper], kind="stable")]
        number, node = np.unique(home[rows[deeper]], return_inverse=True)
        X = X.split(deeper, which[deeper], node)
        Y = Y.split(deeper, which[deeper], node)
        rows = rows[deeper]

    children = np.full((n_nodes, 2), -1, np.int32)
    for numbers, pairs in branches:
        children[numbers] = pairs
    values, nodes, features = map(np.concatenate, zip(*entries, strict=True))
    weights = sp.csr_matrix((values, (nodes, features)), (n_nodes, X_all.shape[1]))
    leaves = _label_means(home, n_nodes, Y_all, params.labels_per_leaf)
    return Tree(children, weights, leaves)


def _label_means(home: Ints, n_nodes: int, Y: Any, most: int) -> Any:
    """Return the mean label vectors (CSR) of the rows of each node, keeping the largest entries."""
    share = (1 / np.bincount(home)[home]).astype(np.float32)
    mean = sp.csr_matrix((share, (home, np.arange(len(home)))), (n_nodes, len(home))) @ Y
    node, _, entry = best_entries(mean, most)
    return sp.csr_matrix((mean.data[entry], (node, mean.indices[entry])), mean.shape)


def _with_bias(X: Any) -> Any:
    """Return X with a column of ones."""
    return sp.hstack([X, sp.csr_matrix(np.ones((X.shape[0], 1)))], "csr", np.float32)
