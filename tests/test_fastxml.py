"""FastXML against slow node-by-node computations."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize

from conftest import random_problem
from dismec.compare.fastxml import Blocks, FastXML, partition, separators

FEW = FastXML(n_trees=3)


def problem(rows=300, seed=0):
    X, Y = random_problem(rows=rows, seed=seed)
    X = sp.csr_matrix(X)
    lengths = np.sqrt(X.multiply(X).sum(axis=1))
    X = sp.csr_matrix(X.multiply(1 / np.maximum(lengths, 1e-9)), dtype=np.float32)
    return X, sp.csr_matrix(Y, dtype=np.float32)


def level(data, parts=((0, 0), (0, 1), (1, 0), (1, 1)), seed=1):
    """Split the rows of a matrix twice into up to four nodes; also return the rows of each."""
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, 2, (2, data.shape[0]))
    once = np.argsort(first, kind="stable")
    blocks = Blocks.whole(data).split(once, first[once], first[once])
    # Nodes of the second level are ordered by (second, first).
    again = np.flatnonzero(np.isin(2 * first[once] + second[once], [2 * a + b for a, b in parts]))
    again = again[np.argsort(second[once][again], kind="stable")]
    rows = once[again]
    _, node = np.unique(2 * second[rows] + first[rows], return_inverse=True)
    return blocks.split(again, second[rows], node), rows, node


def test_split_blocks_have_the_rows_of_their_nodes():
    X, _ = problem()
    blocks, rows, node = level(X, parts=((0, 0), (0, 1), (1, 1)))
    assert np.all(np.diff(node) >= 0)
    assert np.all(np.diff(blocks.node) >= 0)
    assert node[-1] == 2
    for each in range(3):
        columns = blocks.node == each
        block = blocks.matrix[node == each][:, columns].toarray()
        mine = X[rows[node == each]].toarray()
        assert np.array_equal(blocks.column[columns], np.flatnonzero(mine.any(axis=0)))
        assert np.array_equal(block, mine[:, blocks.column[columns]])
        assert blocks.matrix[node == each][:, ~columns].nnz == 0


def ndcg_by_side(Y, side):
    """Return nDCG of every row under either side's ranking (rows × 2); Y is dense."""
    discount = 1 / np.log2(2 + np.arange(Y.shape[1]))
    ideal = np.array([discount[: int(y.sum())].sum() if y.any() else 1 for y in Y])
    gains = np.empty((len(Y), 2))
    for which in (0, 1):
        votes = sum((Y[i] / ideal[i] for i in np.flatnonzero(side == which)), np.zeros(Y.shape[1]))
        ranking = np.argsort(-votes, kind="stable")
        for i, y in enumerate(Y):
            gains[i, which] = (y[ranking] * discount).sum() / ideal[i]
    return gains


def slow_partition(Y, side):
    objective = []
    while True:
        gains = ndcg_by_side(Y, side)
        objective.append(gains[np.arange(len(Y)), side.astype(int)].sum())
        difference = gains[:, 1] - gains[:, 0]
        after = np.where(np.abs(difference) < 1e-9, side, difference > 0)
        if np.array_equal(after, side):
            return side, objective
        side = after


def test_partitioning_a_level_equals_partitioning_its_nodes_one_by_one():
    _, Y = problem()
    blocks, rows, node = level(Y)
    start = np.random.default_rng(3).random(len(rows)) < 0.5
    found = partition(blocks, start)
    for each in range(4):
        mine = Y[rows[node == each]].toarray()
        mine = mine[:, mine.any(axis=0)]
        expected, objective = slow_partition(mine, start[node == each])
        assert len(objective) > 2  # it did make steps
        assert np.all(np.diff(objective) >= -1e-9)  # nDCG never falls
        assert np.array_equal(found[node == each], expected)


def test_a_row_without_labels_keeps_its_side():
    Y = sp.csr_matrix(np.array([[1, 0], [0, 0], [0, 1], [0, 0]], np.float32))
    start = np.array([True, True, False, False])
    assert np.array_equal(partition(Blocks.whole(Y), start), start)


def objective_of(A, sign, cost, w):
    return np.abs(w).sum() + (cost * np.logaddexp(0, -sign * (A @ w))).sum()


def least_objective(A, sign, cost):
    """Minimize ‖w‖₁ + Σ cost · log loss, with w as a difference of two positive vectors."""

    def value_and_slope(halves):
        w = halves[: A.shape[1]] - halves[A.shape[1] :]
        slope = A.T @ (-cost * sign / (1 + np.exp(sign * (A @ w))))
        value = halves.sum() + (cost * np.logaddexp(0, -sign * (A @ w))).sum()
        return value, np.concatenate([1 + slope, 1 - slope])

    bounds = [(0, None)] * (2 * A.shape[1])
    options = {"maxiter": 10_000, "maxfun": 100_000, "ftol": 1e-13, "gtol": 1e-8}
    start = np.zeros(2 * A.shape[1])
    return minimize(value_and_slope, start, jac=True, bounds=bounds, options=options).fun


@pytest.mark.parametrize("C", [0.5, 4.0])
def test_separators_of_a_level_are_the_optima_of_its_nodes(C):
    X, _ = problem()
    X.data[::7] *= -1  # features may be negative, too
    blocks, rows, node = level(X)
    rng = np.random.default_rng(2)
    side = X[rows] @ rng.standard_normal(X.shape[1]) + 0.2 * rng.standard_normal(len(rows)) > 0.1
    found = separators(blocks, node, side, C, 1e-4)
    assert 0 < np.count_nonzero(found) < 0.9 * len(found)
    for each in range(4):
        mine = node == each
        A = blocks.matrix[mine][:, blocks.node == each].toarray().astype(np.float64)
        sign = np.where(side[mine], 1, -1)
        cost = C * len(sign) / np.where(side[mine], (sign > 0).sum(), (sign < 0).sum())
        value = objective_of(A, sign, cost, found[blocks.node == each])
        assert value == pytest.approx(least_objective(A, sign, cost), rel=1e-4)


def test_a_node_with_all_rows_on_one_side_gets_no_weights():
    X, _ = problem()
    blocks, _, node = level(X)
    side = np.random.default_rng(0).random(len(node)) < 0.5
    side[node == 1] = True
    found = separators(blocks, node, side, 20.0, 0.01)
    assert not found[blocks.node == 1].any()
    assert all(found[blocks.node == each].any() for each in (0, 2, 3))


def leaf_of(tree, X):
    return tree.leaf_of(sp.hstack([X, np.ones((X.shape[0], 1), np.float32)], "csr"))


def test_leaves_hold_the_mean_labels_of_the_rows_that_reach_them():
    X, Y = problem()
    for tree in FEW.fit(X, Y).trees:
        found = leaf_of(tree, X)
        for leaf in np.unique(found):
            mean = np.asarray(Y[found == leaf].mean(axis=0)).ravel()
            assert np.allclose(tree.leaves[[leaf]].toarray().ravel(), mean, atol=1e-6)
            assert (tree.children[leaf] == -1).all()
            assert tree.weights[[leaf]].nnz == 0


def test_nodes_are_split_down_to_the_allowed_leaf_size():
    X, Y = problem()
    for most in (10, 40):
        forest = FastXML(n_trees=2, max_leaf=most, C=100.0).fit(X, Y)
        sizes = np.bincount(leaf_of(forest.trees[1], X))
        assert most / 4 < sizes.max() <= most


def test_a_leaf_keeps_its_most_frequent_labels():
    X, Y = problem()
    every, some = (
        FastXML(n_trees=1, labels_per_leaf=n).fit(X, Y).trees[0].leaves for n in (100, 2)
    )
    assert np.diff(every.indptr).max() > 2
    for node in range(every.shape[0]):
        expected = np.sort(every[[node]].data)[::-1][:2]
        assert np.array_equal(np.sort(some[[node]].data)[::-1], expected)


def test_prediction_is_the_mean_of_leaves(monkeypatch):
    monkeypatch.setattr("dismec.compare.baseline._MOST_CELLS", 2**14)  # several chunks
    X, Y = problem()
    forest = FEW.fit(X, Y)
    labels, scores = forest.predict_topk(X, 4)
    means = np.mean([tree.leaves[leaf_of(tree, X)].toarray() for tree in forest.trees], axis=0)
    best = np.argsort(-means, axis=1, kind="stable")[:, :4]
    expected = np.take_along_axis(means, best, axis=1)
    assert np.allclose(np.where(labels < 0, 0, scores), expected, atol=1e-6)
    at = np.take_along_axis(means, np.maximum(labels, 0), axis=1)
    assert np.allclose(np.where(labels < 0, 0, at), expected, atol=1e-6)
    assert np.array_equal(labels < 0, np.isneginf(scores))


def test_few_rows_are_one_leaf():
    X, Y = problem()
    forest = FEW.fit(X[:8], Y[:8])
    assert [len(tree.children) for tree in forest.trees] == [1, 1, 1]
    labels, scores = forest.predict_topk(X[:1], Y.shape[1] + 1)
    mean = np.asarray(Y[:8].mean(axis=0)).ravel()
    assert np.count_nonzero(labels[0] >= 0) == np.count_nonzero(mean)
    assert scores[0, 0] == pytest.approx(mean.max())


def test_rows_without_features_are_one_leaf():
    _, Y = problem()
    X = sp.csr_matrix((Y.shape[0], 6), dtype=np.float32)
    forest = FEW.fit(X, Y)
    labels, _ = forest.predict_topk(X, 1)
    assert (labels == np.asarray(Y.sum(axis=0)).argmax()).all()
