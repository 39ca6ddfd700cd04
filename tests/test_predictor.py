from __future__ import annotations

import platform
import threading
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import naive
from dismec.cpu import kernels
from dismec.errors import DataError, ModelError
from dismec.features.transform import Transform
from dismec.model.manifest import PRECISIONS
from dismec.model.scoring import Predictor, empty_topk
from dismec.model.shards import gather, pack

pytestmark = pytest.mark.native


def random_csr(rng, n_rows, n_columns, density, values=None):
    """Generate CSR float32 with empty rows; few distinct `values` give ties."""
    mask = rng.random((n_rows, n_columns)) < density
    mask[rng.random(n_rows) < 0.2] = False
    drawn = (
        rng.standard_normal(mask.shape) if values is None else rng.choice(values, size=mask.shape)
    )
    return sp.csr_array((mask * drawn).astype(np.float32))


def predictor_of(blocks, n_labels, transform, precision="float32"):
    """Return a predictor of weights given in blocks."""
    blocks = [(np.asarray(labels, np.int64), W) for labels, W in blocks]
    return Predictor(list(pack(blocks, transform.n_features, precision)), n_labels, transform)


def stored(W, precision):
    """Return the weights as a model stores them."""
    labels = np.arange(W.shape[0])
    return gather(list(pack([(labels, W)], W.shape[1] - 1, precision)), *W.shape - np.array([0, 1]))


def cut(W, size):
    return [
        (np.arange(W.shape[0])[first : first + size], W[first : first + size])
        for first in range(0, W.shape[0], size)
    ]


def by_bounds():
    """Make shards with ceilings look up classifiers, as large ones do, however many that takes."""
    return mock.patch.object(kernels, "merge_topk", partial(kernels.merge_topk, lookup=0))


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
    shard_rows=st.sampled_from([7, 32, 1 << 16]),
    bounded_rows=st.sampled_from([0, 20, 1 << 16]),
    ties=st.booleans(),
    normalize=st.booleans(),
    bias=st.sampled_from([0.0, 1.0, -0.5]),
    precision=st.sampled_from(list(PRECISIONS)),
)
def test_topk_equals_brute_force(
    seed,
    n_labels,
    n_features,
    k,
    block_size,
    shard_rows,
    bounded_rows,
    ties,
    normalize,
    bias,
    precision,
):
    rng = np.random.default_rng(seed)
    values = [-1, 1, 2] if ties else None
    X = random_csr(rng, 9, n_features, 0.5, values)
    W = random_csr(rng, n_labels, n_features + 1, rng.choice([0.1, 0.5, 1.0]), values)
    transform = Transform(n_features, normalize, bias)
    order = rng.permutation(n_labels)  # blocks need not hold consecutive labels
    blocks = [np.sort(order[i : i + block_size]) for i in range(0, n_labels, block_size)]
    if ties:
        W = W[np.sort(rng.integers(0, n_labels, n_labels))]  # some labels share their weights
    with (
        mock.patch.object(kernels, "shard_rows", shard_rows),
        mock.patch.object(kernels, "bounded_rows", bounded_rows),
    ):
        predictor = predictor_of(
            [(labels, W[labels]) for labels in blocks], n_labels, transform, precision
        )
    scores = naive.brute_force_scores(transform.apply(X), stored(W, precision))
    with by_bounds():
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
@pytest.mark.parametrize("precision", PRECISIONS)
def test_scores_are_bit_equal_to_the_sparse_product(density, precision):
    rng = np.random.default_rng(5)
    X, W = random_csr(rng, 60, 300, 0.2), random_csr(rng, 500, 301, density)
    predictor = predictor_of(cut(W, 128), 500, Transform(300), precision)
    scores = (predictor.transform.apply(X) @ stored(W, precision).T).toarray()
    np.testing.assert_array_equal(predictor.decision_function(X), scores)
    for k in (1, 5, 499, 500, 501):
        assert_same(predictor.topk(X, k), naive.topk(scores, k))


def test_threads_chunks_and_blocks_do_not_change_the_result(monkeypatch):
    rng = np.random.default_rng(6)
    X, W = random_csr(rng, 101, 50, 0.3), random_csr(rng, 230, 51, 0.3, [-1, 1])
    expected = predictor_of([(range(230), W)], 230, Transform(50)).topk(X, 7, threads=1)
    for size in (1, 17, 100):
        blocks = cut(W, size)
        rng.shuffle(blocks)
        predictor = predictor_of(blocks, 230, Transform(50))
        for threads in (None, 1, 2, 5):
            for rows in (1, 13, 256):
                monkeypatch.setattr("dismec.model.scoring._MIN_CHUNK_ROWS", 1)
                monkeypatch.setattr("dismec.model.scoring._CHUNK_ROWS", rows)
                assert_same(predictor.topk(X, 7, threads=threads), expected)
                np.testing.assert_array_equal(
                    predictor.decision_function(X, threads), predictor.decision_function(X, 1)
                )


def test_shards_may_be_merged_in_any_order():
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
            for shard in pack([(numbers, block)], 9, "float32"):
                kernels.merge_topk(shard.native, *rows, labels, scores)
        assert_same((labels, scores), expected)


def test_labels_without_weights_compete_with_score_0():
    W = sp.csr_array(np.array([[-1, 0], [0, 0], [-2, 0], [0, 0]], dtype=np.float32))
    labels, scores = predictor_of([(range(4), W)], 4, Transform(1)).topk([[1.0]], 3)
    np.testing.assert_array_equal(labels, [[1, 3, 0]])
    np.testing.assert_array_equal(scores, [[0, 0, -1]])


def test_untrained_labels_are_never_predicted():
    W = sp.csr_array(np.array([[-1, 0], [0, 0], [-2, 0], [0, 0]], dtype=np.float32))
    seen = np.array([0, 2])
    predictor = predictor_of([(seen, W[seen])], 4, Transform(1))
    labels, scores = predictor.topk([[1.0]], 4)
    np.testing.assert_array_equal(labels, [[0, 2, -1, -1]])
    np.testing.assert_array_equal(scores, [[-1, -2, -np.inf, -np.inf]])
    np.testing.assert_array_equal(predictor.decision_function([[1.0]]), [[-1, -1, -2, -1]])


def test_ties_go_to_the_smaller_label():
    W = sp.csr_array(np.ones((40, 2), dtype=np.float32))
    labels, scores = predictor_of(cut(W, 7), 40, Transform(1)).topk([[1.0], [0.0]], 4)
    np.testing.assert_array_equal(labels, [[0, 1, 2, 3]] * 2)
    np.testing.assert_array_equal(scores, [[2.0] * 4, [1.0] * 4])


def test_places_beyond_the_labels_are_empty_and_cost_nothing():
    W = sp.csr_array(np.array([[1, 0], [2, 0]], dtype=np.float32))
    labels, scores = predictor_of([(range(2), W)], 2, Transform(1)).topk([[1.0]], 1000)
    np.testing.assert_array_equal(labels[0], [1, 0] + [-1] * 998)
    np.testing.assert_array_equal(scores[0], [2, 1] + [-np.inf] * 998)


def test_a_label_with_score_minus_infinity_still_beats_an_empty_place():
    W = sp.csr_array(np.full((2, 3), -3e38, dtype=np.float32))
    labels, scores = predictor_of([(range(2), W)], 2, Transform(2)).topk([[1.0, 1.0]], 3)
    np.testing.assert_array_equal(labels, [[0, 1, -1]])
    assert (scores == -np.inf).all()


def test_no_rows_and_no_labels_are_fine():
    W = sp.csr_array(np.ones((3, 2), dtype=np.float32))
    labels, scores = predictor_of([(range(3), W)], 3, Transform(1)).topk(np.empty((0, 1)), 2)
    assert labels.shape == scores.shape == (0, 2)
    labels, scores = predictor_of([], 0, Transform(1)).topk([[1.0]], 2)
    np.testing.assert_array_equal(labels, [[-1, -1]])
    assert predictor_of([], 0, Transform(1)).decision_function([[1.0]]).shape == (1, 0)


def test_one_row_starts_no_thread(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
    W = sp.csr_array(np.ones((3, 2), dtype=np.float32))
    predictor_of([(range(3), W)], 3, Transform(1)).topk([[1.0]], 2)


def test_shards_that_do_not_match_the_model_are_refused():
    W = sp.csr_array(np.ones((3, 3), np.float32))
    (one,) = pack([(np.arange(3), W)], 2, "float16")
    for shards, n_labels, n_features, reason in [
        ([one, one], 3, 2, "label 0 is in the shards 2 times"),
        ([one], 2, 2, "label 2 of 2 labels"),
        ([one], 3, 4, "a shard has 2 features; expected 4"),
    ]:
        with pytest.raises(ModelError, match=reason):
            Predictor(shards, n_labels, Transform(n_features))


def test_wrong_arguments_are_refused():
    predictor = predictor_of(
        [(range(2), sp.csr_array(np.ones((2, 3), np.float32)))], 2, Transform(2)
    )
    with pytest.raises(DataError, match="k is 0; expected at least 1"):
        predictor.topk([[1.0, 1.0]], 0)
    with pytest.raises(DataError, match="threads is 0; expected at least 1"):
        predictor.topk([[1.0, 1.0]], 1, threads=0)
    with pytest.raises(DataError, match="X has 3 features, the model has 2"):
        predictor.topk([[1.0, 1.0, 1.0]])
    with pytest.raises(DataError, match="row index 300, feature 1: nan"):
        predictor.topk(np.vstack([np.ones((300, 2)), [[1.0, np.nan]]]))


def test_labels_with_the_same_weights_tie_in_the_order_of_their_numbers():
    rng = np.random.default_rng(8)
    for _ in range(20):
        distinct = random_csr(rng, 5, 6, 0.6, [-1, 1])
        W = distinct[rng.integers(0, 5, 60)]
        X = random_csr(rng, 7, 5, 0.6, [-1, 1])
        predictor = predictor_of([(range(60), W)], 60, Transform(5, normalize=False))
        scores = naive.brute_force_scores(predictor.transform.apply(X), W)
        for k in (1, 7, 60, 61):
            assert_same(predictor.topk(X, k), naive.topk(scores, k))


@pytest.mark.parametrize("n_labels", [1, 31, 33, 257, 700])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_scored_together_get_the_same_scores_as_alone(n_labels, precision):
    rng = np.random.default_rng(13)
    n_features = 60
    density = rng.choice([0.0, 0.01, 0.05, 0.5, 1.0], n_features + 1)  # no weights, lists and bits
    W = rng.standard_normal((n_labels, n_features + 1)) * (
        rng.random((n_labels, n_features + 1)) < density
    )
    W *= np.exp2(rng.integers(-3, 4, (n_labels, 1)))  # scales differ
    W = sp.csr_array(W.astype(np.float32))[np.sort(rng.integers(0, n_labels, n_labels))]
    X = random_csr(rng, 1300, n_features, 0.6)  # more than can share a table
    X = sp.vstack([X, sp.csr_array((2, n_features), dtype=np.float32)], format="csr")
    predictor = predictor_of([(range(n_labels), W)], n_labels, Transform(n_features), precision)
    scores = naive.brute_force_scores(predictor.transform.apply(X), stored(W, precision))
    for k in (1, 5, 400):
        together = predictor.topk(X, k, threads=1)
        assert_same(together, naive.topk(scores, k))
        for row in (0, 700, 1301):
            assert_same(
                predictor.topk(X[row : row + 1], k),
                (together[0][row : row + 1], together[1][row : row + 1]),
            )


def test_rows_with_more_features_than_a_table_has_lines_are_cut_into_batches():
    rng = np.random.default_rng(14)
    n_features = 10_000
    W = random_csr(rng, 40, n_features + 1, 0.8)
    X = random_csr(rng, 60, n_features, 0.5)
    predictor = predictor_of([(range(40), W)], 40, Transform(n_features))
    scores = naive.brute_force_scores(predictor.transform.apply(X), stored(W, "float32"))
    assert_same(predictor.topk(X, 3, threads=1), naive.topk(scores, 3))


def test_a_damaged_list_leaves_nothing_for_the_next_shard():
    rng = np.random.default_rng(15)
    small, large = random_csr(rng, 400, 7, 0.03), random_csr(rng, 5000, 7, 0.5)
    for bounded_rows in (0, 1 << 16):
        with mock.patch.object(kernels, "bounded_rows", bounded_rows):
            (shard,) = pack([(np.arange(400), small)], 6, "float32")
        beyond = np.full_like(shard.places, 3000)  # classifiers that it does not have
        rows = integers(0, 6), integers(*range(6), dtype=np.int32), floats(1, 2, 3, 1, 2, 3)
        for lookup in (0, 8):
            kernels.merge_topk(
                replace(shard, places=beyond).native, *rows, *empty_topk(1, 5), lookup
            )
            predictor = predictor_of([(range(5000), large)], 5000, Transform(6, normalize=False))
            X = sp.csr_array(floats(1, 2, 3, 1, 2, 3)[None, :])
            scores = naive.brute_force_scores(predictor.transform.apply(X), large)
            assert_same(predictor.topk(X, 5000), naive.topk(scores, 5000))
            np.testing.assert_array_equal(predictor.decision_function(X), scores)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("positive", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("signed", [False, True])
def test_bounds_do_not_change_the_result(precision, positive, signed):
    rng = np.random.default_rng(10)
    n_labels, n_features = 3000, 40
    density = rng.choice([0.001, 0.03, 0.1, 0.9], n_features + 1)  # lists of all lengths, and bits
    W = abs(rng.standard_normal((n_labels, n_features + 1))).astype(np.float32)
    W *= np.where(rng.random(W.shape) < positive, 1, -1) * (rng.random(W.shape) < density)
    W *= np.exp2(rng.integers(-3, 4, (n_labels, 1)))  # scales differ
    W[:, n_features] -= 1
    W = sp.csr_array(W.astype(np.float32))[np.sort(rng.integers(0, n_labels, n_labels))]
    X = random_csr(rng, 12, n_features, 0.5)
    if not signed:
        X = abs(X)
    with mock.patch.object(kernels, "bounded_rows", 0):
        predictor = predictor_of([(range(n_labels), W)], n_labels, Transform(n_features), precision)
    scores = naive.brute_force_scores(predictor.transform.apply(X), stored(W, precision))
    np.testing.assert_array_equal(predictor.decision_function(X), scores)
    for k in (1, 5, 300, n_labels - 1, n_labels, n_labels + 1):
        expected = naive.topk(scores, k)
        assert_same(predictor.topk(X, k), expected)
        with by_bounds():
            assert_same(predictor.topk(X, k), expected)


@pytest.mark.parametrize("lookup", [0, 1, 2, 4, 8])
def test_giving_up_on_bounds_does_not_change_the_result(lookup):
    rng = np.random.default_rng(11)
    W = random_csr(rng, 2000, 9, 0.8, [-3, -2, -1, 1, 2, 3])
    X = random_csr(rng, 30, 8, 0.6, [1, 2])
    with mock.patch.object(kernels, "bounded_rows", 0):
        shards = [shard for block in cut(W, 500) for shard in pack([block], 8, "float16")]
    expected = naive.topk(naive.brute_force_scores(X, W), 6)
    rows = X.indptr.astype(np.int64), X.indices, X.data
    labels, scores = np.full((30, 6), -1, np.int32), np.full((30, 6), -np.inf, np.float32)
    for shard in shards:
        kernels.merge_topk(shard.native, *rows, labels, scores, lookup)
    assert_same((labels, scores), expected)


def test_sums_that_overflow_are_bounded_too():
    rng = np.random.default_rng(12)
    W = random_csr(rng, 200, 7, 0.7, [-3e38, -1e38, -1, 1, 1e38, 3e38])
    X = random_csr(rng, 50, 6, 0.7, [-2, -1, 1, 2])
    X = sp.vstack([X, abs(X), abs(X) * np.float32(1e-3)], format="csr")
    with mock.patch.object(kernels, "bounded_rows", 0):
        predictor = predictor_of([(range(200), W)], 200, Transform(6, normalize=False))
    scan = predictor_of([(range(200), W)], 200, Transform(6, normalize=False))
    for k in (1, 20, 200):
        with by_bounds():
            assert_same(predictor.topk(X, k), scan.topk(X, k))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_more_labels_than_a_shard_holds(precision):
    rng = np.random.default_rng(9)
    n_labels = 140_000
    W = sp.random_array(
        (n_labels, 40), density=0.03, random_state=rng, dtype=np.float32, format="csr"
    )
    dense = sp.csr_array(rng.standard_normal((n_labels, 3)).astype(np.float32))
    W = sp.hstack([dense, W], format="csr")
    X = sp.random_array((5, 42), density=0.4, random_state=rng, dtype=np.float32, format="csr")
    predictor = predictor_of([(range(n_labels), W)], n_labels, Transform(42), precision)
    assert len(predictor._shards) == 3
    scores = naive.brute_force_scores(predictor.transform.apply(X), stored(W, precision))
    np.testing.assert_array_equal(predictor.decision_function(X), scores)
    for k in (9, 300):
        assert_same(predictor.topk(X, k), naive.topk(scores, k))
        with by_bounds():
            assert_same(predictor.topk(X, k), naive.topk(scores, k))


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
def test_binding_refuses_arrays_that_do_not_form_a_matrix(indptr, indices, data):
    rows = integers(*indptr), integers(*indices, dtype=np.int32), floats(*data)
    n_rows = max(len(indptr) - 1, 0)
    shard = shard_of_one().native
    labels, scores = np.full((n_rows, 2), -1, np.int32), np.zeros((n_rows, 2), np.float32)
    with pytest.raises(ValueError):
        kernels.merge_topk(shard, *rows, labels, scores)
    with pytest.raises(ValueError):
        kernels.dense_scores(shard, *rows, scores)


def shard_of_one(label=0):
    W = sp.csr_array(np.array([[0, 1, 2]], np.float32))
    return next(pack([(np.array([label]), W)], 2, "float32"))


def test_binding_refuses_results_of_the_wrong_shape():
    rows = integers(0, 1), integers(2, dtype=np.int32), floats(1)
    shard = shard_of_one().native

    def merge(label_shape, score_shape):
        labels, scores = np.zeros(label_shape, np.int32), np.zeros(score_shape, np.float32)
        kernels.merge_topk(shard, *rows, labels, scores)

    merge((1, 2), (1, 2))
    labels, scores = np.zeros((1, 2), np.int32), np.zeros((1, 2), np.float32)
    for lookup in (-1, 2**16 + 1):
        with pytest.raises(ValueError, match="lookup out of range"):
            kernels.merge_topk(shard, *rows, labels, scores, lookup)
    for shapes in [((1, 0), (1, 0)), ((1, 2), (1, 3)), ((2, 2), (2, 2)), ((1, 2), (2, 2))]:
        with pytest.raises(ValueError):
            merge(*shapes)
    for label, shape in [(2, (1, 2)), (0, (2, 2))]:
        shard = shard_of_one(label).native
        with pytest.raises(ValueError):
            kernels.dense_scores(shard, *rows, np.zeros(shape, np.float32))


def test_binding_refuses_what_cannot_be_packed():
    rows = integers(0, 1, 2), integers(1, 1, dtype=np.int32), floats(1, 1)
    for precision, n_rows, n_features in [
        ("float64", 2, 2),
        ("float32", -1, 2),
        ("float32", 2**16 + 1, 2),
        ("float32", 2, -1),
        ("float32", 2, 2**31 - 1),
    ]:
        with pytest.raises(ValueError):
            kernels.Packer(precision, n_rows, n_features)
    first, both = integers(0, dtype=np.int32), integers(0, 1, dtype=np.int32)
    packer = kernels.Packer("float32", 2, 2)
    for begin, sizes in (-1, [1]), (0, [1, 1, 1]), (2, [1]), (2**62, [1]), (0, [-1]), (0, [4]):
        with pytest.raises(ValueError):
            packer.begin(begin, integers(*sizes))
    packer.begin(0, integers(1, 1))
    for to, of in ([0], [0, 1]), ([0, 2], [0, 1]), ([-1], [0]), ([0], [-1]), ([0], [2]):
        with pytest.raises(ValueError):
            packer.take_in(integers(*to, dtype=np.int32), integers(*of, dtype=np.int32), *rows)
    for step in (packer.take, lambda p=packer: p.place(0, 2)):
        with pytest.raises(ValueError, match="no room"):
            step()
    packer.take_in(both, both, *rows)
    for span in (-1, 2), (0, 3), (2, 1):
        with pytest.raises(ValueError, match="feature is out of range"):
            packer.count(*span)
    packer.count(0, 2)
    n_places, n_bytes = packer.measure()
    places, weights = np.zeros(n_places, np.uint16), np.zeros(n_bytes, np.uint8)
    for wrong in (places[1:], weights), (places, weights[1:]):
        with pytest.raises(ValueError, match="sizes"):
            packer.give(*wrong)
    packer.give(places, weights)
    packer.place(0, 2)
    with pytest.raises(ValueError, match="more weights than were counted"):
        packer.place(0, 2)
    for step in (packer.measure, lambda p=packer: p.count(0, 2)):
        with pytest.raises(ValueError, match="counting is over"):
            step()
    packer.take()
    with pytest.raises(ValueError):
        packer.begin(0, integers(1))
    with pytest.raises(ValueError):
        packer.take_in(first, first, *rows)


@pytest.mark.parametrize(
    ("indptr", "indices", "data"),
    [
        ([], [], []),
        ([0, 3], [0, 1], [1, 1]),
        ([-1, 1], [0, 1], [1, 1]),
        ([2, 1], [0, 1], [1, 1]),
        ([0, 2], [0, 1], [1]),
        ([0, 1], [3], [1]),
        ([0, 1], [-1], [1]),
        ([0, 2], [1, 1], [1, 1]),
        ([0, 2], [1, 0], [1, 1]),
        ([0, 3], [0, 1, 2], [1, 1, 1]),
    ],
)
def test_binding_refuses_rows_that_cannot_be_packed(indptr, indices, data):
    rows = integers(*indptr), integers(*indices, dtype=np.int32), floats(*data)
    packer = kernels.Packer("float32", 1, 2)
    packer.begin(0, integers(2))
    one = integers(0, dtype=np.int32)
    with pytest.raises(ValueError):
        packer.take_in(one, one, *rows)


def test_binding_refuses_rows_out_of_range():
    rows = integers(0, 1, 3), integers(5, 1, 2, dtype=np.int32), floats(1, 2, 3)
    to = integers(0, 2, 3), np.zeros(3, np.int32), np.zeros(3, np.float32)
    kernels.copy_rows(integers(1, 0), integers(0, 1), *rows, *to)
    assert (to[1].tolist(), to[2].tolist()) == ([1, 2, 5], [2, 3, 1])
    for of, places in ([0], [0]), ([2], [0]), ([-1], [1]), ([0], [2]), ([0], [-1]), ([0, 1], [1]):
        with pytest.raises(ValueError):
            kernels.copy_rows(integers(*of), integers(*places), *rows, *to)
    for wrong in (integers(0, 1, 4), *rows[1:]), (*rows[:2], floats(1)), (integers(), *rows[1:]):
        with pytest.raises(ValueError):
            kernels.copy_rows(integers(1), integers(0), *wrong, *to)
    pair = integers(0, 1, dtype=np.int32), integers(0, 0, dtype=np.int32)
    assert kernels.same_rows(*pair, *rows).tolist() == [1, 0]
    for left, right in ([0], [2]), ([-1], [0]), ([0], [0, 1]):
        with pytest.raises(ValueError):
            kernels.same_rows(*(integers(*p, dtype=np.int32) for p in (left, right)), *rows)
