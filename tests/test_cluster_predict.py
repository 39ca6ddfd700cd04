"""Prediction on a cluster of real processes gives the answers of one machine, or none."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client

from clusters import Processes, wait_until
from conftest import random_problem
from dismec import DataError, ModelError, TrainingParams, open_model, train
from dismec.cluster.client import Cluster
from dismec.cluster.cluster_model import ClusterModel
from dismec.cpu import kernels
from dismec.data.matrices import Rows
from dismec.errors import ClusterError
from dismec.features.transform import Transform
from dismec.model.scoring import Predictor, best_labels, merge_topk
from dismec.model.shards import pack
from test_cluster import blind

pytestmark = pytest.mark.cluster

SHARDS = 6


@pytest.fixture(scope="module")
def X():
    return problem()[0]


def problem():
    return random_problem(rows=1500, features=200, labels=150, density=0.15)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model with several shards, with labels that no row has, in its own directory."""
    path = tmp_path_factory.mktemp("models") / "model"
    X, Y = problem()
    Y = sp.hstack([Y, sp.csr_array((Y.shape[0], 4), dtype=Y.dtype)], format="csr")
    with mock.patch.object(kernels, "shard_rows", 25):
        train(X, Y, path, TrainingParams(tfidf=True), names=[f"tag {i}" for i in range(154)])
    assert len(open_model(path).manifest.files) == SHARDS
    return path


@pytest.fixture(scope="module")
def local(model, X):
    labels, scores = open_model(model).predict_topk(X, 160)
    return lambda k: (labels[:, :k], scores[:, :k])


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A cluster of two workers that share the tests' file system."""
    with Processes(tmp_path_factory.mktemp("dask")) as processes:
        processes.scheduler()
        processes.worker()
        processes.worker(threads=2)
        with connect(processes, 2):
            yield processes


def connect(processes, n_workers):
    client = Client(scheduler_file=str(processes.file), set_as_default=False)
    client.wait_for_workers(n_workers, timeout=60)
    return client


def assert_same(found, expected):
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


def holders(client):
    """Return how many shards each worker holds."""
    held = client.has_what()
    return sorted(sum("load_shard" in str(key) for key in keys) for keys in held.values())


@pytest.mark.parametrize("k", [1, 3, 30, 50])
def test_merged_parts_are_the_best_of_all(k):
    rng = np.random.default_rng(k)
    W = sp.csr_array(rng.choice(np.float32([0, 1, 2, -3e38]), (40, 6)))
    transform = Transform(5, normalize=False)
    with mock.patch.object(kernels, "shard_rows", 7):
        shards = list(pack([(np.arange(40), W)], 5, "float32"))
    assert len(shards) > 3
    X = sp.csr_array(rng.choice([0, 1, 2], (30, 5)).astype(np.float32))
    expected = Predictor(shards, 45, transform).topk(X, k)
    if k >= 30:  # scores that overflow still rank before an empty place
        assert (np.isneginf(expected[1]) & (expected[0] >= 0)).any()
    applied = transform.apply(X)
    rows = Rows(applied.indptr.astype(np.int64), applied.indices, applied.data)
    parts = []
    for group in (shards[:2], shards[2:3], shards[3:]):
        held = sum(len(shard.labels) for shard in group)
        parts.append(best_labels([shard.native for shard in group], rows, min(k, held)))
    assert_same(merge_topk(parts, 30, k), expected)


def test_answers_are_those_of_one_machine_and_workers_release_the_model(shared, model, local, X):
    with connect(shared, 2) as client:
        with ClusterModel(model, client) as there:
            for k in (1, 5, 160):
                assert_same(there.predict_topk(X, k), local(k))
            # Dask may copy a small shard to an idle worker.
            assert min(holders(client)) >= SHARDS // 2
            assert there.predict_topk(X[:0], 3)[0].shape == (0, 3)
            with pytest.raises(DataError, match="201 features"):
                there.predict_topk(np.ones((1, 201)))
            assert_same(there.predict_topk(X, 5), local(5))
        wait_until(lambda: holders(client) == [0, 0])


def test_workers_that_cannot_see_the_model_are_sent_it(tmp_path, model, local, X):
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        for host in ("127.0.0.1", "127.0.0.2"):
            blind(processes, model.parent, host=host, local_directory=tmp_path / host)
        with connect(processes, 2) as client, ClusterModel(model, client) as there:
            for k in (5, 160):
                assert_same(there.predict_topk(X, k), local(k))
        wait_until(lambda: not list(tmp_path.glob("127*/dask-scratch-space/dismec-*")))


def test_fewer_shards_than_workers_keep_all_of_them_busy(tmp_path, shared, X):
    train(*problem(), tmp_path / "model")
    expected = open_model(tmp_path / "model").predict_topk(X, 5)
    with connect(shared, 2) as client, ClusterModel(tmp_path / "model", client) as there:
        assert_same(there.predict_topk(X, 5), expected)
        assert holders(client) == [1, 1]


def test_a_model_without_weights_predicts_nothing(tmp_path, shared):
    train(sp.csr_array((3, 5)), sp.csr_array((3, 2)), tmp_path / "model")
    with ClusterModel(tmp_path / "model", shared.file) as there:
        labels, scores = there.predict_topk(np.ones((2, 5)), 3)
        assert (labels == -1).all()
        assert np.isneginf(scores).all()


@pytest.mark.slow
def test_workers_that_die_cost_nothing_but_time(tmp_path, model, local, X):
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        workers = [processes.worker() for _ in range(2)]
        with connect(processes, 2) as client, ClusterModel(model, client) as there:
            assert_same(there.predict_topk(X, 5), local(5))
            killer = threading.Timer(0.2, processes.kill, [workers[0]])
            killer.start()
            for _ in range(5):
                assert_same(there.predict_topk(X, 5), local(5))
            killer.join()
            processes.kill(workers[1])
            threading.Timer(1.0, processes.worker).start()
            assert_same(there.predict_topk(X, 5), local(5))


def test_missing_workers_are_reported_after_a_while(tmp_path, model, X):
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        with Cluster.connect(processes.file, patience=1) as cluster:
            with pytest.raises(ClusterError, match="no worker has joined"):
                ClusterModel(model, cluster)
            worker = processes.worker()
            cluster.client.wait_for_workers(1, timeout=60)
            with ClusterModel(model, cluster) as there:
                there.predict_topk(X[:1])
                processes.kill(worker)
                with pytest.raises(ClusterError, match=r"there has been no worker for \d s"):
                    there.predict_topk(X)


def test_a_damaged_shard_is_never_used(tmp_path, shared, model, X):
    damaged = tmp_path / "model"
    shutil.copytree(model, damaged)
    path = next(damaged.glob("shard-*3*"))
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)
    with (
        ClusterModel(damaged, shared.file) as there,
        pytest.raises(ModelError, match=f"{path.name}: altered"),
    ):
        there.predict_topk(X)
    path.unlink()
    with (
        ClusterModel(damaged, shared.file) as there,
        pytest.raises(ModelError, match=f"{path.name}: missing"),
    ):
        there.predict_topk(X)


def test_commands_report_errors_in_one_line(tmp_path, shared):
    found = subprocess.run(
        [
            sys.executable, "-m", "dismec", "predict", tmp_path / "nothing", tmp_path / "data",
            "--cluster", shared.file,
        ],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert found.returncode == 2
    assert "no such directory" in found.stderr
    assert found.stderr.count("\n") == 1
