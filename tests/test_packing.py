"""Blocks → shards: the same bytes whatever the threads, in memory that does not grow with them."""

from __future__ import annotations

import threading
import tracemalloc
from dataclasses import fields
from itertools import pairwise
from mmap import mmap
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import random_problem, train_unfinished, weight_files
from dismec import TrainingParams, train
from dismec.cpu import in_threads, kernels
from dismec.data.container import forget
from dismec.features.transform import Transform
from dismec.model import shards
from dismec.model.directory import commit, read_manifest
from dismec.model.manifest import Manifest
from dismec.model.shards import Classifiers, Packing, Shard, gather, pack
from dismec.model.sidecar_files import LabelTable, Parts, read_parts, write_parts
from dismec.model.weight_files import finish, read_block, read_shards, write_block
from dismec.solve.block import Block
from test_predictor import random_csr

pytestmark = pytest.mark.native


def write_model(path, blocks, n_labels, n_features):
    """Write an unfinished model of these (labels, weights)."""
    path.mkdir()
    parts = write_parts(path, Parts(LabelTable(np.ones(n_labels, np.int64))))
    transform = Transform(n_features).to_dict()
    manifest = Manifest(1, n_features, n_labels, {}, transform, "", "", parts)
    manifest = manifest.with_blocks(
        write_block(path, Block(number, labels, np.arange(len(labels)), weights))
        for number, (labels, weights) in enumerate(blocks)
    )
    commit(path, manifest)
    return manifest


def cut_up(W, bounds):
    return [(np.arange(a, b), W[a:b]) for a, b in pairwise(bounds)]


def strided(W, n):
    """Return blocks that each span all labels."""
    return [(np.arange(i, W.shape[0], n), W[i::n]) for i in range(n)]


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_pack_the_same_bytes(tmp_path, threads):
    found = []
    for name, n in ("serial", 1), ("parallel", threads):
        path = tmp_path / name
        train_unfinished(*random_problem(labels=200), path, TrainingParams(block_size=13))
        manifest = read_manifest(path)
        with mock.patch.object(kernels, "shard_rows", 9):
            finish(path, manifest, "float16", read_parts(path, manifest).labels.counts, n)
        found.append(weight_files(path))
    assert len(found[0]) > 20
    assert found[0] == found[1]


def test_the_threads_of_a_training_pack(tmp_path):
    with mock.patch.object(Packing, "each", autospec=True, side_effect=Packing.each) as packed:
        train(*random_problem(), tmp_path / "model", TrainingParams(), threads=3)
    assert packed.call_args.args[2] == 3


@pytest.mark.parametrize(
    ("threads", "most", "at_once", "helpers"), [(8, 300, 3, 6), (2, 10**6, 2, 2), (1, 300, 1, 1)]
)
def test_threads_together_hold_no_more_than_two_full_shards(threads, most, at_once, helpers):
    W = random_csr(np.random.default_rng(0), 60, 41, 0.5)
    with mock.patch.object(shards, "MOST_WEIGHTS", 200):
        packing = Packing(cut_up(W, [0, 25, 60]), 40, "float16")
    assert len(packing) > 4
    made = mock.Mock(wraps=packing.shard)
    with (
        mock.patch.object(shards, "MOST_WEIGHTS", most),
        mock.patch.object(packing, "shard", made),
        mock.patch.object(shards, "in_threads", wraps=in_threads) as packed,
    ):
        packing.each(lambda number, _: number, threads)
    assert packed.call_args.args[2] == at_once
    assert {call.args[1] for call in made.call_args_list} == {helpers}


@pytest.mark.parametrize("precision", ["float32", "float16", "float8"])
@pytest.mark.parametrize("n_rows", [60, 300])
def test_threads_that_share_a_shard_pack_the_same_bytes(precision, n_rows):
    dense = random_csr(np.random.default_rng(5), n_rows, 10_001, 0.02).toarray()
    dense[:, 7] = 1  # a feature that all labels have
    W = sp.csr_array(dense)
    with (
        mock.patch.object(kernels, "bounded_rows", 200),
        mock.patch.object(shards, "_PIECE_WEIGHTS", 999),
    ):
        packing = Packing(strided(W, 7), 10_000, precision)
        one, several = packing.shard(0), packing.shard(0, 5)
    assert (one.ceilings is not None) == (n_rows == 300)
    for field in fields(Shard):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(several, field.name))
    expected = W.toarray() if precision == "float32" else gather([one], n_rows, 10_000).toarray()
    np.testing.assert_array_equal(gather([several], n_rows, 10_000).toarray(), expected)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_labels=st.integers(1, 120),
    block_size=st.integers(1, 120),
    piece=st.sampled_from([1, 7, 40, 1 << 21]),
)
def test_pieces_and_interleaved_blocks_do_not_change_a_shard(seed, n_labels, block_size, piece):
    rng = np.random.default_rng(seed)
    W = random_csr(rng, n_labels, 9, 0.3, [-1, 1])
    counts = rng.integers(0, 3, n_labels)
    kept = np.flatnonzero(counts)
    with mock.patch.object(kernels, "shard_rows", 17):
        whole = list(pack([(kept, W[kept])], 8, "float16"))
        order = rng.permutation(n_labels)
        parts = [np.sort(order[i : i + block_size]) for i in range(0, n_labels, block_size)]
        with mock.patch.object(shards, "_PIECE_WEIGHTS", piece):
            found = list(pack([(p, W[p]) for p in parts], 8, "float16", counts))
    assert len(whole) == len(found)
    for a, b in zip(whole, found, strict=True):
        for field in fields(Shard):
            np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))


def test_labels_of_a_block_may_be_in_any_order():
    W = random_csr(np.random.default_rng(1), 50, 9, 0.6)
    order = np.random.default_rng(2).permutation(50)
    (shard,) = pack([(order, W[order])], 8, "float32")
    np.testing.assert_array_equal(gather([shard], 50, 8).toarray(), W.toarray())


def test_rows_that_differ_in_one_weight_are_different_classifiers():
    row = np.arange(1, 10, dtype=np.float32)
    rows = [row] + [np.where(np.arange(9) == i, row + 1, row) for i in range(9)] + [row]
    found = Classifiers.find([(np.arange(11), sp.csr_array(np.array(rows)))], 8)
    labels, starts = found.labels(0, 10)
    assert labels.tolist() == [0, 10, *range(1, 10)]
    assert starts.tolist() == [0, 2, *range(3, 12)]


def test_equal_rows_are_found_within_and_between_blocks():
    """A, B, A with one signature, and A again elsewhere: neighbors are not always equal."""
    a, b, c = (np.arange(1, 10, dtype=np.float32) for _ in range(3))
    b[1], c[5] = 99, 98  # not at the first, middle or last entry
    rows = np.array([a, b, a, c, c, a, b, 0 * a, 0 * a])
    blocks = [(np.array(p), sp.csr_array(rows[p])) for p in ([0, 1, 2, 3, 7], [4, 5], [6, 8])]
    found = Classifiers.find(blocks, 8)
    labels, starts = found.labels(0, 4)
    assert labels.tolist() == [0, 2, 5, 1, 6, 3, 4, 7, 8]
    assert starts.tolist() == [0, 3, 5, 7, 9]


def test_weights_that_need_conversion_are_packed():
    """Other types, and entries out of order."""
    W = random_csr(np.random.default_rng(6), 30, 9, 0.6)
    wide = W.astype(np.float64)
    shuffled = sp.csr_array(
        (W.data[::-1].copy(), W.indices[::-1].copy(), W.nnz - W.indptr[::-1]), W.shape
    )
    expected, *_ = pack([(np.arange(30), W)], 8, "float16")
    for blocks in (
        [(np.arange(30), wide)],
        [(np.arange(29, -1, -1), shuffled)],
        [(np.arange(10), W[:10]), (np.arange(10, 30), wide[10:])],
    ):
        (found,) = pack(blocks, 8, "float16")
        for field in fields(Shard):
            np.testing.assert_array_equal(getattr(found, field.name), getattr(expected, field.name))


def test_few_files_stay_open(tmp_path):
    W = random_csr(np.random.default_rng(7), 40, 9, 0.6)
    manifest = write_model(tmp_path / "model", strided(W, 20), 40, 8)
    opened = mock.Mock(wraps=read_block)
    with (
        mock.patch("dismec.model.weight_files._OPEN_BLOCKS", 3),
        mock.patch("dismec.model.weight_files.read_block", opened),
        mock.patch.object(shards, "_PIECE_WEIGHTS", 50),
    ):
        finish(tmp_path / "model", manifest, "float32", np.ones(40), 2)
    assert opened.call_count > 40  # each several times: they were closed in between
    found = gather(
        read_shards(tmp_path / "model", read_manifest(tmp_path / "model"), np.ones(40)), 40, 8
    )
    np.testing.assert_array_equal(found.toarray(), W.toarray())


def test_empty_rows_are_one_classifier():
    W = sp.csr_array((5, 4), dtype=np.float32)
    (shard,) = pack([(np.arange(3), W[:3]), (np.arange(3, 5), W[3:])], 3, "float16")
    assert shard.labels.tolist() == [0, 1, 2, 3, 4]
    assert len(shard.scales) == 1


@pytest.mark.parametrize("interleaved", [False, True])
def test_memory_of_packing_does_not_grow_with_the_weights(tmp_path, interleaved):
    """The native memory of a shard is not traced; what is collected and kept around it is."""
    n_labels, n_features = 4000, 600
    rng = np.random.default_rng(0)
    W = random_csr(rng, n_labels, n_features + 1, 0.9)
    blocks = strided(W, 20) if interleaved else cut_up(W, range(0, n_labels + 1, 100))
    manifest = write_model(tmp_path / "model", blocks, n_labels, n_features)
    stored = W.nnz * 8
    del W, blocks
    with (
        mock.patch.object(kernels, "shard_rows", 500),
        mock.patch.object(shards, "_PIECE_WEIGHTS", 1 << 14),
    ):
        tracemalloc.start()
        done = finish(tmp_path / "model", manifest, "float16", np.ones(n_labels))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(done.shards) >= 7
    assert stored > 10_000_000
    assert peak < 1_500_000  # about 100 bytes per label, and a few copies of a piece


def test_blocks_are_released_after_reading(tmp_path):
    W = random_csr(np.random.default_rng(8), 60, 9, 0.6)
    manifest = write_model(tmp_path / "model", strided(W, 6), 60, 8)
    with mock.patch("dismec.model.shards.forget", wraps=forget) as forgotten:
        finish(tmp_path / "model", manifest, "float16", np.ones(60), 2)
    arrays = [call.args[0] for call in forgotten.call_args_list]
    assert len(arrays) >= 12  # once to check a block, and once to take its rows
    assert all(isinstance(array.base, mmap) for array in arrays)


class Watched:
    """A sequence of blocks that counts how often blocks are requested."""

    def __init__(self, blocks):
        self.blocks, self.asked = blocks, 0

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, number):
        self.asked += 1
        return self.blocks[number]


def test_block_requests_are_proportional_to_the_number_of_blocks():
    W = random_csr(np.random.default_rng(3), 4000, 9, 0.6)
    asked = []
    for n_labels in (400, 4000):
        blocks = Watched(cut_up(W[:n_labels], range(0, n_labels + 1, 10)))
        with mock.patch.object(kernels, "shard_rows", 40):
            assert len(list(pack(blocks, 8, "float16"))) >= n_labels // 50
        asked.append(blocks.asked / len(blocks))
    assert asked[1] < 1.1 * asked[0] < 4


def test_stopping_a_packing_ends_work_in_progress():
    W = random_csr(np.random.default_rng(4), 100, 9, 0.6)
    packing = Packing([(np.arange(100), W)], 8, "float16")
    packing.stop()
    with pytest.raises(InterruptedError):
        packing.shard(0)


def test_after_an_error_no_more_items_are_started_and_others_are_stopped():
    begun, stopped = [], threading.Event()

    def work(item):
        begun.append(item)
        if item == 0:
            raise KeyboardInterrupt
        assert stopped.wait(10)

    with pytest.raises(KeyboardInterrupt):
        in_threads(work, range(100), 2, stopped.set)
    assert len(begun) < 10
    assert in_threads(str, range(5), 3) == in_threads(str, range(5), 1) == list("01234")
