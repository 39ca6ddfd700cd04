from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from conftest import random_problem
from dismec import evaluate
from dismec.compare.lpsr import (
    LPSR,
    Pairs,
    RowTree,
    assignment_objective,
    choose_labels,
    naive_bayes,
    rank_rows,
    with_sums,
)
from dismec.features.transform import Transform


def small_problem(rows=300, features=40, labels=15, seed=0):
    X, Y = random_problem(rows, features, labels, 0.15, seed)
    return sp.csr_matrix(Transform.fit(X, bias=0).apply(X)[:, :-1]), sp.csr_matrix(Y)


@pytest.mark.parametrize("scale", [1.0, 5.0])
@pytest.mark.parametrize("smoothing", [1.0, 0.01])
def test_naive_bayes_is_that_of_its_formula(smoothing, scale):
    X, Y = small_problem()
    x, y = scale * X.toarray().astype(np.float64), Y.toarray()
    found = (with_sums(X) @ naive_bayes(X, Y, smoothing, scale)).toarray()

    def likelihood(rows):
        sums = x[rows].sum(axis=0) + smoothing
        return x @ np.log(sums / sums.sum())

    expected = np.empty_like(found)
    for label in range(Y.shape[1]):
        own = y[:, label] > 0
        odds = np.log((own.sum() + smoothing) / ((~own).sum() + smoothing))
        expected[:, label] = odds + likelihood(own) - likelihood(~own)
    # A term that depends only on the row does not change the order of labels.
    difference = expected - found
    np.testing.assert_allclose(difference, difference[:, :1].repeat(15, axis=1), atol=1e-3)


def test_ranks_and_pairs_are_those_of_sorted_scores():
    X, Y = small_problem(60)
    weights = naive_bayes(X, Y, 10.0)
    scores = (with_sums(X) @ weights).toarray()
    rankings = rank_rows(with_sums(X), Y, weights)
    rows = np.arange(59, 9, -1)
    pairs = rankings.pairs(rows)
    at = 0
    for row in rows:
        order = np.argsort(-scores[row], kind="stable").tolist()
        own = Y[row].indices.tolist()
        assert rankings.wrong[row].tolist() == [label not in own for label in order]
        for label in own:
            rank = order.index(label) + 1
            assert pairs.label[at] == label
            assert pairs.value[at] == pytest.approx(1 / (len(own) * rank**0.5))
            above = sorted(set(order[: rank - 1]) - set(own))
            assert sorted(pairs.above[at].indices.tolist()) == above
            at += 1
    assert at == len(pairs.label) > 3
    assert pairs.above.nnz > 3


def test_the_gradient_of_the_assignment_is_that_of_differences():
    X, Y = small_problem(80)
    pairs = rank_rows(with_sums(X), Y, naive_bayes(X, Y, 1.0)).pairs(np.arange(80))
    alpha = np.random.default_rng(0).random(Y.shape[1])
    _, gradient = assignment_objective(alpha, pairs, 2)
    for label, step in enumerate(np.eye(Y.shape[1]) * 1e-6):
        more, less = (assignment_objective(a, pairs, 2)[0] for a in (alpha + step, alpha - step))
        assert gradient[label] == pytest.approx((more - less) / 2e-6, abs=1e-4)


def test_a_label_that_only_displaces_others_is_not_kept():
    """Label 2 has one row and outranks label 0, which has many, with k = 1."""
    above = np.zeros((21, 3))
    above[:20, 2] = 1
    pairs = Pairs(np.array([0] * 20 + [2]), np.ones(21), sp.csr_matrix(above))
    assert choose_labels(pairs, 3, 3, 1).tolist() == [0]
    alone = Pairs(np.array([0] * 20 + [2]), np.ones(21), sp.csr_matrix((21, 3)))
    assert choose_labels(alone, 3, 3, 1).tolist() == [0, 2]
    assert choose_labels(alone, 3, 1, 1).tolist() == [0]


def test_the_choice_is_better_than_the_same_number_of_frequent_labels():
    X, Y = small_problem(200)
    pairs = rank_rows(with_sums(X), Y, naive_bayes(X, Y, 1.0)).pairs(np.arange(200))

    def objective(labels):
        alpha = np.zeros(Y.shape[1])
        alpha[labels] = 1
        return assignment_objective(alpha, pairs, 3)[0]

    for most in (3, 6, 9):
        frequent = np.argsort(-np.bincount(pairs.label, minlength=Y.shape[1]))[:most]
        chosen = choose_labels(pairs, Y.shape[1], most, 3)
        assert len(chosen) == most
        assert objective(chosen) >= objective(frequent)


def test_leaves_are_small_and_rows_go_to_the_nearer_center():
    X, _ = small_problem(400)
    tree = RowTree.grow(X, np.ones(400), 50, 0)
    leaves = tree.leaf_rows(X)
    assert len(leaves) > 8
    assert all(0 < len(rows) <= 50 for rows in leaves.values())
    assert sorted(np.concatenate([*leaves.values()]).tolist()) == list(range(400))
    dense = X.toarray()
    for row in range(400):  # one row at a time
        number = 0
        while (node := tree.nodes[number]) is not None:
            number = node.child + int(dense[row] @ node.normal.toarray().ravel() > node.offset)
        assert row in leaves[number]


def test_two_distant_groups_are_separated():
    rng = np.random.default_rng(0)
    x = np.zeros((40, 10), np.float32)
    x[:20, :5] = rng.random((20, 5)) + 0.5
    x[20:, 5:] = rng.random((20, 5)) + 0.5
    tree = RowTree.grow(sp.csr_matrix(x), np.ones(40), 20, 0)
    leaves = [rows.tolist() for rows in tree.leaf_rows(sp.csr_matrix(x)).values()]
    assert sorted(leaves) == [list(range(20)), list(range(20, 40))]


def test_rows_that_are_alike_stay_in_one_leaf():
    X = sp.csr_matrix(np.ones((30, 4), np.float32) / 2)
    assert RowTree.grow(X, np.ones(30), 5, 0).nodes == [None]


@pytest.mark.parametrize("base", ["nb", "ovr"])
def test_predictions_are_the_best_of_the_labels_of_a_leaf(base):
    X, Y = small_problem(300)
    fitted = LPSR(base=base, leaf_rows=80, leaf_labels=6).fit(X, Y)
    labels, scores = fitted.predict_topk(X, 8)
    dense = (with_sums(X) @ fitted.weights).toarray()
    leaf_of = {row: leaf for leaf, rows in fitted.tree.leaf_rows(X).items() for row in rows}
    for row in range(X.shape[0]):
        kept = fitted.kept[leaf_of[row]]
        order = kept[np.argsort(-dense[row, kept], kind="stable")]
        n_found = len(kept)
        assert n_found <= 6
        assert labels[row, :n_found].tolist() == fitted.labels[order].tolist()
        np.testing.assert_allclose(scores[row, :n_found], dense[row, order], atol=1e-5)
        assert (labels[row, n_found:] == -1).all()
        assert np.isneginf(scores[row, n_found:]).all()


def test_one_leaf_with_all_labels_equals_the_base():
    X, Y = small_problem(300)
    fitted = LPSR(leaf_rows=300, k=10**6).fit(X, Y)
    labels, _ = fitted.predict_topk(X, 1)
    scores = (with_sums(X) @ fitted.weights).toarray()
    np.testing.assert_array_equal(labels[:, 0], scores.argmax(axis=1))


def test_one_vs_rest_ranks_its_own_rows_better_than_naive_bayes():
    X, Y = small_problem(300)
    found = [
        evaluate(Y, LPSR(base=base).fit(X, Y).predict_topk(X, 1)[0], (1,))["P@1"]
        for base in ("nb", "ovr")
    ]
    assert 50 < found[0] < found[1]
