from __future__ import annotations

import platform
import threading
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import naive
from dismec.errors import DataError, ModelError
from dismec.features import Transform
from dismec.native import kernels
from dismec.predictor import Predictor


def random_csr(rng, n_rows, n_columns, density, values=None):
    """CSR float32 with empty rows; `values` to draw from makes ties."""
    mask = rng.random((n_rows, n_columns)) < density
    mask[rng.random(n_rows) < 0.2] = False
    drawn = (
        rng.standard_normal(mask.shape) if values is None else rng.choice(values, size=mask.shape)
    )
    return sp.csr_array((mask * drawn).astype(np.float32))


def pack(indptr, indices, data, n_features, labels=None):
    """A shard of labels that may all be predicted."""
    labels = np.arange(max(len(indptr) - 1, 0)) if labels is None else labels
    ranks = np.ones(len(labels), np.uint8)
    rows = np.arange(len(labels), dtype=np.int32)
    ids = np.asarray(labels, np.int32)
    return kernels.pack([(indptr, indices, data)], 0 * rows, rows, n_features, ids, ranks)


def cut(W, size):
    return [
        (np.arange(W.shape[0])[first : first + size], W[first : first + size])
        for first in range(0, W.shape[0], size)
    ]


def assert_same(result, expected):
    np.testing.assert_array_equal(result[0], expected[0])
    np.testing.assert_array_equal(result[1], expected[1])


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_labels=st.integers(1, 70),
    n_features=st.integers(0, 12),
    k=st.integers(1, 80),
    block_size=st.integers(1, 70),
    shard_labels=st.sampled_from([7, 32, 1 << 16]),
    ties=st.booleans(),
    normalize=st.booleans(),
    bias=st.sampled_from([0.0, 1.0, -0.5]),
)
def test_topk_equals_brute_force(
    seed, n_labels, n_features, k, block_size, shard_labels, ties, normalize, bias
):
    rng = np.random.default_rng(seed)
    values = [-1, 1, 2] if ties else None
    X = random_csr(rng, 9, n_features, 0.5, values)
    W = random_csr(rng, n_labels, n_features + 1, rng.choice([0.1, 0.5, 1.0]), values)
    transform = Transform(n_features, normalize, bias)
    order = rng.permutation(n_labels)  # blocks need not hold consecutive labels
    blocks = [np.sort(order[i : i + block_size]) for i in range(0, n_labels, block_size)]
    with mock.patch.object(kernels, "shard_labels", shard_labels):
        predictor = Predictor([(labels, W[labels]) for labels in blocks], n_labels, transform)
    scores = naive.brute_force_scores(transform.apply(X), W)
    labels, best = predictor.topk(X, k)
    assert labels.dtype == np.int32
    assert best.dtype == np.float32
    assert_same((labels, best), naive.topk(scores, k))
    np.testing.assert_array_equal(predictor.decision_function(X), scores)


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"),
    reason="elsewhere scipy may be built with fused multiply-add",
)
@pytest.mark.parametrize("density", [0.02, 0.25, 0.9])
def test_scores_are_bit_equal_to_the_sparse_product(density):
    rng = np.random.default_rng(5)
    X, W = random_csr(rng, 60, 300, 0.2), random_csr(rng, 500, 301, density)
    predictor = Predictor(cut(W, 128), 500, Transform(300))
    scores = (predictor.transform.apply(X) @ W.T).toarray()
    np.testing.assert_array_equal(predictor.decision_function(X), scores)
    for k in (1, 5, 499, 500, 501):
        assert_same(predictor.topk(X, k), naive.topk(scores, k))


def test_threads_chunks_and_blocks_do_not_change_the_result(monkeypatch):
    rng = np.random.default_rng(6)
    X, W = random_csr(rng, 101, 50, 0.3), random_csr(rng, 230, 51, 0.3, [-1, 1])
    expected = Predictor([(range(230), W)], 230, Transform(50)).topk(X, 7, threads=1)
    for size in (1, 17, 100):
        blocks = cut(W, size)
        rng.shuffle(blocks)
        predictor = Predictor(blocks, 230, Transform(50))
        for threads in (None, 1, 2, 5):
            for rows in (1, 13, 256):
                monkeypatch.setattr("dismec.predictor._MIN_CHUNK_ROWS", 1)
                monkeypatch.setattr("dismec.predictor._CHUNK_ROWS", rows)
                assert_same(predictor.topk(X, 7, threads=threads), expected)
                np.testing.assert_array_equal(
                    predictor.decision_function(X, threads), predictor.decision_function(X, 1)
                )


def test_blocks_may_be_merged_in_any_order():
    rng = np.random.default_rng(7)
    X, W = random_csr(rng, 20, 10, 0.5, [-1, 1]), random_csr(rng, 64, 10, 0.5, [-1, 1])
    rows = X.indptr.astype(np.int64), X.indices, X.data
    expected = naive.topk(naive.brute_force_scores(X, W), 5)
    for _ in range(10):
        blocks = cut(W, 16)
        rng.shuffle(blocks)
        labels = np.full((20, 5), -1, dtype=np.int32)
        scores = np.full((20, 5), -np.inf, dtype=np.float32)
        for numbers, block in blocks:
            shard = pack(block.indptr.astype(np.int64), block.indices, block.data, 10, numbers)
            kernels.merge_topk(shard, *rows, labels, scores)
        assert_same((labels, scores), expected)


def test_labels_without_weights_compete_with_score_0():
    W = sp.csr_array(np.array([[-1, 0], [0, 0], [-2, 0], [0, 0]], dtype=np.float32))
    labels, scores = Predictor([(range(4), W)], 4, Transform(1)).topk([[1.0]], 3)
    np.testing.assert_array_equal(labels, [[1, 3, 0]])
    np.testing.assert_array_equal(scores, [[0, 0, -1]])


def test_untrained_labels_are_never_predicted():
    W = sp.csr_array(np.array([[-1, 0], [0, 0], [-2, 0], [0, 0]], dtype=np.float32))
    untrained = np.array([False, True, False, True])
    predictor = Predictor(cut(W, 3), 4, Transform(1), untrained)
    labels, scores = predictor.topk([[1.0]], 4)
    np.testing.assert_array_equal(labels, [[0, 2, -1, -1]])
    np.testing.assert_array_equal(scores, [[-1, -2, -np.inf, -np.inf]])
    np.testing.assert_array_equal(predictor.decision_function([[1.0]]), [[-1, -1, -2, -1]])


def test_ties_go_to_the_smaller_label():
    W = sp.csr_array(np.ones((40, 2), dtype=np.float32))
    labels, scores = Predictor(cut(W, 7), 40, Transform(1)).topk([[1.0], [0.0]], 4)
    np.testing.assert_array_equal(labels, [[0, 1, 2, 3]] * 2)
    np.testing.assert_array_equal(scores, [[2.0] * 4, [1.0] * 4])


def test_places_beyond_the_labels_are_empty_and_cost_nothing():
    W = sp.csr_array(np.array([[1, 0], [2, 0]], dtype=np.float32))
    labels, scores = Predictor([(range(2), W)], 2, Transform(1)).topk([[1.0]], 1000)
    np.testing.assert_array_equal(labels[0], [1, 0] + [-1] * 998)
    np.testing.assert_array_equal(scores[0], [2, 1] + [-np.inf] * 998)


def test_a_label_with_score_minus_infinity_still_beats_an_empty_place():
    W = sp.csr_array(np.full((2, 3), -3e38, dtype=np.float32))
    labels, scores = Predictor([(range(2), W)], 2, Transform(2)).topk([[1.0, 1.0]], 3)
    np.testing.assert_array_equal(labels, [[0, 1, -1]])
    assert (scores == -np.inf).all()


def test_no_rows_and_no_labels_are_fine():
    W = sp.csr_array(np.ones((3, 2), dtype=np.float32))
    labels, scores = Predictor([(range(3), W)], 3, Transform(1)).topk(np.empty((0, 1)), 2)
    assert labels.shape == scores.shape == (0, 2)
    labels, scores = Predictor([], 0, Transform(1)).topk([[1.0]], 2)
    np.testing.assert_array_equal(labels, [[-1, -1]])
    assert Predictor([], 0, Transform(1)).decision_function([[1.0]]).shape == (1, 0)


def test_one_row_starts_no_thread(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
    W = sp.csr_array(np.ones((3, 2), dtype=np.float32))
    Predictor([(range(3), W)], 3, Transform(1)).topk([[1.0]], 2)


@pytest.mark.parametrize(
    ("starts", "n_labels"),
    [([0, 5, 10], 20), ([0, 5, 15], 20), ([0, 3], 8), ([5], 10), ([0, 0], 5)],
)
def test_blocks_that_are_not_all_labels_are_refused(starts, n_labels):
    block = sp.csr_array(np.ones((5, 2), dtype=np.float32))
    with pytest.raises(ModelError, match=f"each of {n_labels} labels once"):
        Predictor([(range(i, i + 5), block) for i in starts], n_labels, Transform(1))


def test_weights_that_do_not_fit_are_refused():
    W = np.ones((2, 3), dtype=np.float32)
    with pytest.raises(
        ModelError, match="block of 2 labels holds 2 × 3 weights; expected 5 a label"
    ):
        Predictor([(range(2), sp.csr_array(W))], 2, Transform(4))
    W[1, 2] = np.nan
    with pytest.raises(ModelError, match="a block's weights: row 1, feature 2: nan"):
        Predictor([(range(2), sp.csr_array(W))], 2, Transform(2))


def test_wrong_arguments_are_refused():
    predictor = Predictor([(range(2), sp.csr_array(np.ones((2, 3), np.float32)))], 2, Transform(2))
    with pytest.raises(DataError, match="k is 0; expected at least 1"):
        predictor.topk([[1.0, 1.0]], 0)
    with pytest.raises(DataError, match="threads is 0; expected at least 1"):
        predictor.topk([[1.0, 1.0]], 1, threads=0)
    with pytest.raises(DataError, match="X has 3 features, the model has 2"):
        predictor.topk([[1.0, 1.0, 1.0]])
    with pytest.raises(DataError, match="row 300, feature 1: nan"):
        predictor.topk(np.vstack([np.ones((300, 2)), [[1.0, np.nan]]]))


# --- what the binding refuses, whatever Python code is above it


def integers(*values, dtype=np.int64):
    return np.array(values, dtype=dtype)


def floats(*values):
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize(
    ("indptr", "indices", "data"),
    [
        ([], [], []),
        ([1, 2], [0, 0], [1, 1]),
        ([0, 2, 1], [0, 1], [1, 1]),
        ([0, 3], [0, 1], [1, 1]),
        ([0, 1], [0, 1], [1, 1]),
        ([0, 2], [0, 1], [1]),
        ([0, 1], [3], [1]),
        ([0, 1], [-1], [1]),
    ],
)
def test_binding_refuses_arrays_that_form_no_matrix(indptr, indices, data):
    rows = integers(*indptr), integers(*indices, dtype=np.int32), floats(*data)
    with pytest.raises(ValueError):
        pack(*rows, 3)
    shard = pack(integers(0, 1), integers(2, dtype=np.int32), floats(1), 3)
    n_rows = max(len(indptr) - 1, 0)
    labels, scores = np.full((n_rows, 2), -1, np.int32), np.zeros((n_rows, 2), np.float32)
    with pytest.raises(ValueError):
        kernels.merge_topk(shard, *rows, labels, scores)
    with pytest.raises(ValueError):
        kernels.dense_scores(shard, *rows, scores)


def test_binding_refuses_results_of_the_wrong_shape():
    rows = integers(0, 1), integers(2, dtype=np.int32), floats(1)
    shard = pack(*rows, 3)
    assert (shard.n_labels, shard.n_features, shard.nnz) == (1, 3, 1)

    def merge(label_shape, score_shape):
        labels, scores = np.zeros(label_shape, np.int32), np.zeros(score_shape, np.float32)
        kernels.merge_topk(shard, *rows, labels, scores)

    merge((1, 2), (1, 2))
    for shapes in [((1, 0), (1, 0)), ((1, 2), (1, 3)), ((2, 2), (2, 2)), ((1, 2), (2, 2))]:
        with pytest.raises(ValueError):
            merge(*shapes)
    for wrong in ([-1], [2**31 - 1], [0, 1]):
        with pytest.raises(ValueError):
            pack(*rows, 3, wrong)
    two = integers(0, 1, 2), integers(2, 1, dtype=np.int32), floats(1, 1)
    for wrong in ([1, 0], [1, 1]):
        with pytest.raises(ValueError):
            pack(*two, 3, wrong)
    for n_features in (-1, 2**31, 2**63 - 1):
        with pytest.raises(ValueError):
            pack(*rows, n_features)
    for label, shape in [(2, (1, 2)), (0, (2, 2))]:
        with pytest.raises(ValueError):
            kernels.dense_scores(pack(*rows, 3, [label]), *rows, np.zeros(shape, np.float32))
