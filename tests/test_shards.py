from __future__ import annotations

import pickle
from dataclasses import fields, replace
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
from dismec.model.scoring import Predictor
from dismec.model.shards import Shard, gather, pack
from test_predictor import by_bounds, random_csr

pytestmark = pytest.mark.native

# Error of a weight: relative, and absolute as a share of the power of two above the largest.
ROUNDING = {"float32": (0, 0), "float16": (2**-11, 2**-25), "float8": (2**-5, 2**-9)}


def pack_all(W, precision):
    return list(pack([(np.arange(W.shape[0]), W)], W.shape[1] - 1, precision))


def some_shard(precision="float16", n_labels=100, n_features=50, density=0.2, bounded=False):
    W = random_csr(np.random.default_rng(0), n_labels, n_features + 1, density)
    with mock.patch.object(kernels, "bounded_rows", 0 if bounded else n_labels):
        (shard,) = pack_all(W, precision)
    assert (shard.ceilings is not None) == bounded
    return shard


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e3, 1e30])
def test_weights_round_trip_except_for_rounding(precision, size):
    rng = np.random.default_rng(1)
    W = random_csr(rng, 200, 31, 0.4)
    W.data *= np.float32(size) * rng.choice([1, 0.01, 1e-4], W.nnz).astype(np.float32)
    shards = pack_all(W, precision)
    back = gather(shards, 200, 30)
    relative, least = ROUNDING[precision]
    largest = abs(W[:, :30].toarray()).max(axis=1)[:, None]
    error = abs(back - W).toarray()
    bound = np.maximum(relative * abs(W.toarray()), least * 2 * largest)
    assert (error[:, :30] <= bound[:, :30] * (1 + 1e-6)).all()
    np.testing.assert_array_equal(back.toarray()[:, 30], W.toarray()[:, 30])  # the bias
    assert back.dtype == np.float32


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("bounded", [False, True])
def test_rounded_weights_are_not_changed_again(precision, bounded):
    shard = some_shard(precision, bounded=bounded)
    again = shard.repacked(shard.unpack(), precision)
    for field in fields(Shard):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(shard, field.name))


def test_float16_codes_are_ieee_half_precision():
    W = random_csr(np.random.default_rng(2), 50, 20, 0.7)
    numbers = sp.csr_array(np.arange(1, 51, dtype=np.float32)[:, None])  # all different
    W = sp.hstack([W, numbers], format="csr")
    (shard,) = pack_all(W, "float16")
    assert shard.weights.dtype == np.float16
    for i in range(50):
        row = W[[i], :20]
        if row.nnz:
            scale = 2.0 ** (np.floor(np.log2(abs(row.data).max())) + 1)
            assert shard.scales[i] == scale
    expected = (W[:, :20].multiply(1 / shard.scales[:, None])).tocsc().data.astype(np.float16)
    np.testing.assert_array_equal(shard.weights[:-16], expected)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_labels=st.integers(0, 200),
    block_size=st.integers(1, 200),
)
def test_shards_do_not_depend_on_the_blocks(seed, n_labels, block_size):
    rng = np.random.default_rng(seed)
    W = random_csr(rng, n_labels, 9, 0.3, [-1, 1])
    whole = pack_all(W, "float8")
    order = rng.permutation(n_labels)
    blocks = [np.sort(order[i : i + block_size]) for i in range(0, n_labels, block_size)]
    parts = list(pack([(labels, W[labels]) for labels in blocks], 8, "float8"))
    assert len(whole) == len(parts)
    for a, b in zip(whole, parts, strict=True):
        for field in fields(Shard):
            np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))
    np.testing.assert_array_equal(gather(parts, n_labels, 8).toarray(), W.toarray())


def test_labels_with_the_same_weights_are_stored_once():
    W = random_csr(np.random.default_rng(3), 4, 30, 0.9)
    order = np.array([2, 0, 2, 1, 0, 2])
    (shard,) = pack_all(W[order], "float16")
    np.testing.assert_array_equal(shard.labels, [0, 2, 5, 1, 4, 3])
    np.testing.assert_array_equal(shard.label_starts, [0, 3, 5, 6])
    assert len(shard.weights) - 16 == W[:3, :29].nnz
    np.testing.assert_allclose(gather([shard], 6, 29).toarray(), W[order].toarray(), rtol=1e-3)


def test_a_feature_of_many_labels_takes_one_bit_per_label():
    dense, sparse = np.ones((1600, 1), np.float32), np.zeros((1600, 1), np.float32)
    sparse[:100] = 1
    numbers = np.arange(1, 1601, dtype=np.float32)[:, None]  # the bias distinguishes labels
    (shard,) = pack_all(sp.csr_array(np.hstack([dense, sparse, numbers])), "float16")
    np.testing.assert_array_equal(shard.starts, [[0, 0], [1600, 103], [1700, 203]])
    assert (shard.places[:100] == 0xFFFF).all()
    np.testing.assert_array_equal(shard.places[103:], np.arange(100))
    assert shard.nnz == 3300


def test_ranks_are_behind_the_bits():
    n = 1600  # 100 words, with a rank before every 32nd
    W = np.zeros((n, 3), np.float32)
    W[7:, 0], W[::16, 1] = 1, 2
    W[:, 2] = np.arange(1, n + 1)  # the bias distinguishes labels
    (shard,) = pack_all(sp.csr_array(W), "float32")
    np.testing.assert_array_equal(shard.starts, [[0, 0], [1593, 103], [1693, 203]])
    assert shard.places[0] == 0xFF80
    assert (shard.places[1:100] == 0xFFFF).all()
    np.testing.assert_array_equal(shard.places[100:103], np.arange(1, 4) * 512 - 7)
    np.testing.assert_array_equal(shard.places[103:], np.arange(0, n, 16))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("density", [0.01, 0.2, 1.0])
def test_no_weight_is_above_its_ceiling(precision, density):
    shard = some_shard(precision, 1000, 30, density, bounded=True)
    n = len(shard.scales)
    for feature, own in enumerate(shard.unpack()[:, :30].toarray().T):
        least, step = shard.ceiling_ranges[feature].astype(np.float64)
        begin, end = shard.ceiling_starts[feature : feature + 2]
        ceilings = least + step * shard.ceilings[begin[0] : end[0]]
        if 2 * np.count_nonzero(own) > n or 12 * np.count_nonzero(own > 0) > n:
            assert (len(ceilings), begin[1]) == (n, end[1])
        else:
            places = shard.ceiling_places[begin[1] : end[1]]
            np.testing.assert_array_equal(places, np.flatnonzero(own > 0))
            assert least == 0
            own = own[places]
        assert (ceilings >= own - 1e-12).all()
        assert (ceilings <= own + step * 1.001).all()


def test_blocks_that_cannot_be_packed_are_refused():
    W = np.ones((2, 3), dtype=np.float32)
    labels = np.arange(2)
    with pytest.raises(ModelError, match="block of 2 labels holds 2 × 3 weights; expected 5"):
        list(pack([(labels, sp.csr_array(W))], 4, "float16"))
    with pytest.raises(ModelError, match="label 1 is in two blocks"):
        list(pack([(labels, sp.csr_array(W)), (labels[1:], sp.csr_array(W[1:]))], 2, "float16"))
    with pytest.raises(DataError, match="precision is 'float64'"):
        list(pack([(labels, sp.csr_array(W))], 2, "float64"))
    W[1, 2] = np.nan
    with pytest.raises(ModelError, match="a block's weights: row index 1, feature 2: nan"):
        list(pack([(labels, sp.csr_array(W))], 2, "float16"))


def test_a_shard_survives_pickling():
    shard = some_shard()
    _ = shard.native
    again = pickle.loads(pickle.dumps(shard))
    np.testing.assert_array_equal(again.unpack().toarray(), shard.unpack().toarray())


def test_arrays_of_inconsistent_sizes_are_refused():
    shard = some_shard()
    swapped = shard.labels.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    for change in [
        {"labels": swapped},
        {"labels": -shard.labels},
        {"labels": shard.labels[:-1]},
        {"label_starts": shard.label_starts[:-1]},
        {"label_starts": shard.label_starts + 1},
        {"label_starts": 0 * shard.label_starts},
        {"scales": shard.scales[:-1]},
        {"bias": shard.bias[:-1]},
        {"starts": shard.starts[:0]},
        {"starts": shard.starts.reshape(1, -1)},
        {"starts": shard.starts.reshape(-1, 1)},
        {"starts": shard.starts.astype(np.int64)},
        {"weights": shard.weights.astype(np.float64)},
        {"places": shard.places.astype(np.int32)},
        {"slopes": shard.scales[:-1]},
        {"ceilings": np.zeros(0, np.uint8)},
    ]:
        with pytest.raises(ModelError, match="do not fit together"):
            _ = replace(shard, **change).native


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("density", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("bounded", [False, True])
def test_damaged_arrays_cause_no_access_out_of_bounds(precision, density, bounded):
    """Flips bits in data that is read without a check; a sanitizer watches the accesses."""
    rng = np.random.default_rng(4)
    shard = some_shard(precision, density=density, bounded=bounded)
    X = random_csr(rng, 20, 50, 0.5)
    refused = 0
    for _ in range(200):
        arrays = {}
        for name, array in shard.arrays.items():
            if name.startswith("label"):
                arrays[name] = array
                continue
            array = array.copy()
            raw = array.view(np.uint8).reshape(-1)
            if len(raw):
                raw[rng.integers(0, len(raw), 3)] ^= np.uint8(1 << rng.integers(0, 8))
            arrays[name] = array
        with np.errstate(all="ignore"), by_bounds():
            damaged = replace(shard, **arrays)
            predictor = Predictor([damaged], 100, Transform(50))
            for use in (
                predictor.topk,
                predictor.decision_function,
                lambda _, d=damaged: d.unpack(),
            ):
                try:
                    use(X)
                except ModelError:
                    refused += 1
    assert refused
    # No trace of this is left in the memory of the sums.
    sound = Predictor([shard], 100, Transform(50))
    expected = naive.brute_force_scores(sound.transform.apply(X), gather([shard], 100, 50))
    np.testing.assert_array_equal(sound.decision_function(X), expected)
