from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from conftest import random_problem
from dismec.compare.leml import LEML, LowRank, NormalEquations, RobustXML, alternate, sparse_part
from dismec.features.transform import Transform

TOPICS, HEAD, TAIL = 3, 12, 40


def unit_rows(X):
    return sp.csr_matrix(Transform.fit(X, bias=0).apply(X)[:, :-1])


@pytest.fixture(scope="module")
def small():
    X, Y = random_problem(rows=200, features=60, labels=25)
    return unit_rows(X), sp.csr_matrix(Y)


def with_tail(rows, seed):
    """Generate labels that come four at a time with a topic, and rare ones with their own word."""
    rng = np.random.default_rng(seed)
    X = np.zeros((rows, TOPICS * 5 + TAIL), np.float32)
    Y = np.zeros((rows, HEAD + TAIL), np.uint8)
    for row in range(rows):
        topic = rng.integers(TOPICS)
        X[row, topic * 5 + rng.integers(0, 5, 3)] = 1
        Y[row, topic * 4 : topic * 4 + 4] = 1
        rare = rng.integers(TAIL)
        X[row, TOPICS * 5 + rare] = 1
        Y[row, HEAD + rare] = 1
    return unit_rows(sp.csr_array(X)), sp.csr_matrix(Y)


def test_rare_labels_are_found_by_the_sparse_part():
    (X, Y), (X_test, Y_test) = with_tail(240, 0), with_tail(100, 1)
    plain = LEML(rank=TOPICS, lambda_=0.3).fit(X, Y)
    robust = RobustXML(rank=TOPICS, lambda_=0.3, nu=0.1, threshold=0.1).fit(X, Y)
    hits = {}
    for name, fitted in (("plain", plain), ("robust", robust)):
        labels, _ = fitted.predict_topk(X_test, 5)
        rare = Y_test.toarray()[:, HEAD:].argmax(axis=1) + HEAD
        hits[name] = np.mean((labels == rare[:, None]).any(axis=1))
    assert hits["plain"] < 0.3
    assert hits["robust"] > 0.9
    weight = np.abs(robust.V.toarray()).sum(axis=0)
    assert weight[HEAD:].min() > weight[:HEAD].max()
    assert robust.V.nnz < 0.2 * np.prod(robust.V.shape)


@pytest.mark.parametrize("most_dense", [0, 10_000])
def test_sparse_part_is_that_of_dense_algebra(small, monkeypatch, most_dense):
    monkeypatch.setattr("dismec.compare.leml._MOST_DENSE", most_dense)
    monkeypatch.setattr("dismec.compare.leml._BLOCK", 4)
    rng = np.random.default_rng(0)
    W, H = (0.3 * rng.standard_normal((n, 3)).astype(np.float32) for n in (60, 25))
    equations = NormalEquations.prepare(*small, 1)
    # With a large ν the regression is precise after a few steps.
    V = sparse_part(equations, LowRank(W, H), 200.0, 0.004, 100).toarray()
    X, Y = (M.toarray().astype(np.float64) for M in small)
    ridge = np.linalg.solve(X.T @ X + 200.0 * np.eye(60), X.T @ (Y - X @ W @ H.T))
    expected = np.sign(ridge) * np.maximum(np.abs(ridge) - 0.004, 0)
    assert 0.1 < np.mean(expected != 0) < 0.9
    np.testing.assert_allclose(V, expected, atol=0.05 * np.abs(ridge).max())


def test_sparse_part_is_the_minimum_where_features_do_not_meet():
    """X has one feature per row, each in four rows, so XᵀX = 4I and μ = θ·(4 + ν)."""
    rng = np.random.default_rng(0)
    X = sp.csr_matrix(np.tile(np.eye(10, dtype=np.float32), (4, 1)))
    Y = sp.csr_matrix(rng.random((40, 6)) < 0.3, dtype=np.uint8)
    low_rank = LowRank(*(0.1 * rng.standard_normal((n, 2)).astype(np.float32) for n in (10, 6)))
    nu, mu = 1.0, 0.5
    V = sparse_part(NormalEquations.prepare(X, Y, 1), low_rank, nu, mu / (4 + nu), 20).toarray()

    def objective(V):
        loss = np.sum((Y.toarray() - X @ (low_rank.W @ low_rank.H.T + V)) ** 2)
        return loss / 2 + nu / 2 * np.sum(V**2) + mu * np.sum(np.abs(V))

    least = objective(V)
    assert 0 < np.count_nonzero(V) < V.size
    for feature, label in np.ndindex(V.shape):
        for change in (-1e-2, 1e-2):
            moved = V.copy()
            moved[feature, label] += change
            assert objective(moved) > least


def test_without_a_sparse_part_it_equals_leml(small):
    robust = RobustXML(threshold=1e6, rounds=2, iterations=3).fit(*small)
    assert robust.V.nnz == 0
    plain = LEML(lambda_=2.0, iterations=6).fit(*small)
    assert np.array_equal(robust.arrays()["W"], plain.arrays()["W"])
    assert np.array_equal(robust.arrays()["H"], plain.arrays()["H"])


def test_a_later_round_fits_the_low_rank_part_to_what_the_sparse_part_leaves(small):
    first = RobustXML(rounds=1, iterations=1).fit(*small)
    second = RobustXML(rounds=2, iterations=1).fit(*small)
    expected = alternate(NormalEquations.prepare(*small, 1), first.low_rank, 2.0, 20, first.V)
    assert first.V.nnz
    assert np.array_equal(second.low_rank.W, expected.W)
    assert np.array_equal(second.low_rank.H, expected.H)


def test_threads_do_not_matter_and_the_seed_does(small, monkeypatch):
    monkeypatch.setattr("dismec.compare.leml._BLOCK", 4)
    one, two, again = (RobustXML(iterations=2).fit(*small, threads=n).arrays() for n in (1, 3, 1))
    other = RobustXML(iterations=2, seed=1).fit(*small).arrays()
    for name, array in one.items():
        assert array.dtype in (np.float32, np.int32)
        assert np.array_equal(array, two[name])
        assert np.array_equal(array, again[name])
    assert not np.array_equal(one["V_data"], other["V_data"])


def test_prediction_is_the_best_of_all_scores(small, monkeypatch):
    X, Y = small
    fitted = RobustXML(iterations=2).fit(X, Y)
    a = fitted.arrays()
    V = sp.csr_matrix((a["V_data"], a["V_indices"], a["V_indptr"]), shape=(60, 25))
    scores = X.toarray() @ (a["W"] @ a["H"].T + V.toarray())
    monkeypatch.setattr("dismec.compare.baseline._MOST_CELLS", 7 * 25)
    labels, values = fitted.predict_topk(X, 3)
    np.testing.assert_allclose(values, -np.sort(-scores, axis=1)[:, :3], atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(scores, labels, 1), values, atol=1e-5)


def test_empty_rows_features_and_labels_do_no_harm(small):
    X, Y = (M.tolil() for M in small)
    X[3], Y[5], Y[:, 7], X[:, 11] = 0, 0, 0, 0
    X, Y = X.tocsr(), Y.tocsr()
    fitted = RobustXML(iterations=2).fit(X, Y)
    labels, values = fitted.predict_topk(X, 30)
    assert np.isfinite(values[:, :25]).all()
    assert (labels[:, 25:] == -1).all()
    assert not fitted.V[11].nnz
    assert not fitted.V[:, 7].nnz
    assert RobustXML().fit(X, Y[:, :1]).V.shape == (60, 1)
    nothing = RobustXML(iterations=2).fit(X, sp.csr_matrix(Y.shape, dtype=np.uint8))
    assert nothing.V.nnz == 0


@pytest.mark.data
def test_bibtex_is_predicted_better_than_by_leml(bibtex_precision):
    """Both with their defaults, except for fewer iterations, to save time."""
    plain, robust = map(bibtex_precision, (LEML(iterations=4), RobustXML(iterations=2)))
    for name in ("P@1", "P@3", "P@5"):
        assert robust[name] > plain[name], name
