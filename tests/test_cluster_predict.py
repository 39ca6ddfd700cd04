"""Prediction on a cluster of real processes gives the answers of one machine, or none."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp

from clusters import Processes, wait_until
from conftest import random_problem
from dismec import DataError, ModelError, TrainingParams, open_model, save_data, train
from dismec.cluster import prediction_worker
from dismec.cluster.connection import Cluster
from dismec.cluster.placement import Place, plan
from dismec.cluster.prediction import ClusterModel, ClusterPredictor
from dismec.cluster.questions import merge
from dismec.cluster.serving import serve_on_cluster
from dismec.cpu import kernels
from dismec.data.dataset import Dataset
from dismec.data.matrices import Rows
from dismec.errors import ClusterError, NotReady
from dismec.features.transform import Transform
from dismec.model.scoring import Predictor, best_labels
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
        with Cluster.connect(processes.file) as cluster:
            wait_until(lambda: len(cluster.workers()) == 2)
        yield processes


@contextmanager
def predicting(processes, n_workers, model, **options):
    with Cluster.connect(processes.file) as cluster:
        wait_until(lambda: len(cluster.workers()) == n_workers)
        with ClusterPredictor(cluster, model, **options) as predictor:
            yield predictor


def assert_same(found, expected):
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


def holders(predictor):
    return sorted(len(member.held) for member in predictor._pool.members.values())


# -- without processes -----------------------------------------------------------------------------


def places(*workers):
    return {name: Place(set(held), room) for name, held, room in workers}


def test_shards_are_spread_by_size():
    brought = plan([1, 5, 2, 4, 3], places(("a", (), np.inf), ("b", (), np.inf)))
    assert dict.fromkeys(number for _, number in brought).keys() == {0, 1, 2, 3, 4}
    load = {a: sum([1, 5, 2, 4, 3][n] for w, n in brought if w == a) for a in "ab"}
    assert sorted(load.values()) == [7, 8]


def test_held_shards_stay_and_missing_ones_go_to_others():
    known = places(("a", (0, 1), np.inf), ("b", (3,), np.inf))
    assert plan([1, 1, 1, 1], known) == [("b", 2)]
    assert plan([1, 1, 1], places(("a", (0, 1, 2), np.inf))) == []


def test_workers_without_a_shard_get_copies():
    three = places(*((name, (), np.inf) for name in "abc"))
    assert sorted(plan([7], three)) == [("a", 0), ("b", 0), ("c", 0)]
    brought = plan([7, 7], three)
    assert [number for worker, number in brought if worker == "c"] == [0, 1]
    late = places(*((name, (i,), np.inf) for i, name in enumerate("abcd")), ("e", (), np.inf))
    assert [worker for worker, _ in plan([3] * 4, late)] == ["e", "e"]


def test_no_worker_gets_more_than_it_has_room_for():
    assert plan([5, 4, 3], places(("a", (), 7), ("b", (), 4.5))) == [("a", 0), ("b", 1)]
    assert plan([5], places(("a", (), 4))) == []
    assert plan([5], {}) == []


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
    assert_same(merge(parts, 30, k), expected)


# -- batches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_answers_are_those_of_one_machine(tmp_path, model, local, X, n_workers):
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        for _ in range(n_workers):
            processes.worker()
        with predicting(processes, n_workers, model) as predictor:
            for k in (1, 5, 160):
                assert_same(predictor.topk(X, k), local(k))
            assert holders(predictor) == [SHARDS // n_workers] * n_workers
            assert predictor.traffic.weights == 0
            assert predictor.topk(X[:0], 3)[0].shape == (0, 3)


@pytest.mark.parametrize("n_workers", [1, 2])
def test_workers_that_cannot_see_the_model_are_sent_it_once(tmp_path, model, local, X, n_workers):
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        for _ in range(n_workers):
            blind(processes, model.parent)
        with (
            mock.patch("dismec.cluster.shipping._PIECE", 1000),
            predicting(processes, n_workers, model) as predictor,
        ):
            for k in (5, 160):
                assert_same(predictor.topk(X, k), local(k))
            assert holders(predictor) == [SHARDS // n_workers] * n_workers
            size = sum(path.stat().st_size for path in model.glob("shard-*"))
            assert predictor.traffic.weights == size
        assert list((tmp_path / "dask").rglob("dismec-*")) == []


def test_fewer_shards_than_workers_keep_all_of_them_busy(tmp_path, shared, X):
    train(*problem(), tmp_path / "model")
    expected = open_model(tmp_path / "model").predict_topk(X, 5)
    with predicting(shared, 2, tmp_path / "model") as predictor:
        assert_same(predictor.topk(X, 5), expected)
        assert holders(predictor) == [1, 1]
        rows = sum(array.nbytes for array in (X.data, X.indices))
        assert predictor.traffic.rows < 1.5 * rows  # each row goes to one worker


def test_rows_go_through_the_scheduler_if_workers_cannot_be_reached(shared, model, local, X):
    for reachable in (True, False):
        name = "dismec_call" if reachable else "nothing"
        with (
            mock.patch("dismec.cluster.connection._DIRECT", name),
            predicting(shared, 2, model) as predictor,
        ):
            assert_same(predictor.topk(X, 5), local(5))
            members = predictor._pool.members.values()
            assert [member.call is not None for member in members] == [reachable] * 2


def test_a_model_evaluates_on_the_cluster_as_locally(shared, model):
    X, Y = problem()
    with predicting(shared, 2, model) as predictor:
        there = ClusterModel(predictor)
        here = open_model(model)
        assert there.evaluate(X, Y, (1, 4)) == here.evaluate(X, Y, (1, 4))
        assert (there.nnz, there.names, there.params) == (here.nnz, here.names, here.params)


def test_a_model_without_weights_predicts_nothing(tmp_path, shared):
    train(sp.csr_array((3, 5)), sp.csr_array((3, 2)), tmp_path / "model")
    with predicting(shared, 2, tmp_path / "model") as predictor:
        labels, scores = predictor.topk(np.ones((2, 5)), 3)
        assert (labels == -1).all()
        assert np.isneginf(scores).all()


def test_valid_rows_are_answered_after_invalid_ones_are_refused(shared, model, local, X):
    with predicting(shared, 2, model) as predictor:
        with pytest.raises(DataError, match="201 features"):
            predictor.topk(np.ones((1, 201)))
        with pytest.raises(DataError, match="not a finite float32"):
            predictor.topk(np.full((1, 200), np.inf))
        with pytest.raises(DataError, match="k is 0"):
            predictor.topk(X, 0)
        assert_same(predictor.topk(X, 5), local(5))


def long_predict(predictor, X, seconds):
    """Predict repeatedly for a while; return the answers."""
    end = time.monotonic() + seconds
    with mock.patch("dismec.cluster.batches._MOST_ROWS", 64):
        while time.monotonic() < end:
            yield predictor.topk(X, 5)


@pytest.mark.slow
def test_a_worker_that_dies_costs_nothing_but_time(tmp_path, model, local, X):
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        workers = [processes.worker() for _ in range(3)]
        with predicting(processes, 3, model) as predictor:
            assert_same(predictor.topk(X, 5), local(5))
            killers = [
                threading.Timer(after, processes.kill, [worker])
                for after, worker in zip((0.3, 0.8), workers, strict=False)
            ]
            for killer in killers:
                killer.start()
            for found in long_predict(predictor, X, 3):
                assert_same(found, local(5))
            assert holders(predictor) == [SHARDS]
            processes.worker()
            wait_until(lambda: len(predictor._cluster.workers()) == 2)
            for found in long_predict(predictor, X, 1):
                assert_same(found, local(5))
            wait_until(lambda: predictor.step(0.1) or holders(predictor) == [SHARDS, SHARDS])


def test_prediction_waits_for_the_only_worker(tmp_path, model, local, X):
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        worker = processes.worker()
        with predicting(processes, 1, model) as predictor:
            assert_same(predictor.topk(X, 5), local(5))
            processes.kill(worker)
            threading.Timer(1.0, processes.worker).start()
            assert_same(predictor.topk(X, 5), local(5))


def test_missing_workers_are_reported_after_a_while(tmp_path, model, X):
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        with Cluster.connect(processes.file, patience=1) as cluster:
            with pytest.raises(ClusterError, match="no worker has joined"):
                ClusterPredictor(cluster, model)
            worker = processes.worker()
            wait_until(cluster.workers)
            with ClusterPredictor(cluster, model, patience=1) as predictor:
                predictor.topk(X[:1])
                processes.kill(worker)
                with pytest.raises(ClusterError, match="there has been no worker for 1 s"):
                    predictor.topk(X)


def test_missing_memory_is_reported_after_a_while(tmp_path, model, X):
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        processes.worker()
        with (
            mock.patch("dismec.cluster.prediction._MEMORY_SHARE", 0.0),
            predicting(processes, 1, model, patience=0.5) as predictor,
            pytest.raises(ClusterError, match=f"{SHARDS} of the model's {SHARDS} shards"),
        ):
            predictor.topk(X)


def test_workers_forget_the_model_at_the_end(shared, model, X):
    with Cluster.connect(shared.file) as cluster:
        worker = next(iter(cluster.wait_for_workers()))
        with ClusterPredictor(cluster, model) as predictor:
            predictor.topk(X[:1])
            assert sessions(cluster, worker) == 1
        assert sessions(cluster, worker) == 0


def sessions(cluster, worker):
    found = "len(__import__('sys').modules['dismec.cluster.prediction_worker']._sessions)"
    task = cluster.submit(worker, eval, found)
    cluster.wait([task], 10)
    return task.result()


def test_sessions_of_clients_that_have_died_end():
    with (
        mock.patch.object(prediction_worker, "_EXPIRY_SECONDS", 0.01),
        mock.patch.object(prediction_worker, "LEASE_SECONDS", 0.1),
        mock.patch.dict(prediction_worker._sessions, clear=True) as sessions,
    ):
        sessions["dead"] = prediction_worker._Session(time.monotonic())
        prediction_worker._expire()
        assert not sessions


def test_a_damaged_shard_is_never_used(tmp_path, shared, model, X):
    damaged = tmp_path / "model"
    shutil.copytree(model, damaged)
    path = next(damaged.glob("shard-*3*"))
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)
    with (
        predicting(shared, 2, damaged) as predictor,
        pytest.raises(ModelError, match=f"{path.name}: altered"),
    ):
        predictor.topk(X)
    path.unlink()
    with (
        predicting(shared, 2, damaged) as predictor,
        pytest.raises(ModelError, match=f"{path.name}: missing"),
    ):
        predictor.topk(X)


# -- online ----------------------------------------------------------------------------------------


def test_many_threads_get_their_own_answers(shared, model, local, X):
    served = serve_on_cluster(str(shared.file), model)
    wrong = []

    def ask(seed):
        rng = np.random.default_rng(seed)
        for _ in range(15):
            start = rng.integers(X.shape[0] - 20)
            own, k = slice(start, start + rng.integers(1, 20)), int(rng.choice([1, 5, 160]))
            found = served.predict_topk(X[own], k)
            if not all(np.array_equal(f, e[own]) for f, e in zip(found, local(k), strict=True)):
                wrong.append((own, k))

    threads = [threading.Thread(target=ask, args=[seed]) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert served.predict_topk(X[:0], 3)[0].shape == (0, 3)
    assert served.not_ready is None
    served.close()
    assert served.not_ready is not None
    with pytest.raises(NotReady, match="closed"):
        served.predict_topk(X[:1])


# -- the command line ------------------------------------------------------------------------------


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "dismec", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_commands_print_the_same_with_a_cluster(tmp_path, shared, model):
    data = tmp_path / "data.xmc"
    save_data(Dataset(*problem()), data)
    for command in (("predict", model, data, "-k", 3), ("evaluate", model, data, "--json")):
        here, there = run(*command), run(*command, "--cluster", shared.file)
        assert (there.returncode, there.stderr) == (0, "")
        assert there.stdout == here.stdout
        assert there.stdout


def test_commands_report_errors_in_one_line(tmp_path, shared):
    found = run("predict", tmp_path / "nothing", tmp_path / "data", "--cluster", shared.file)
    assert found.returncode == 2
    assert "no such directory" in found.stderr
    assert found.stderr.count("\n") == 1


def test_dense_features_are_scored_on_a_cluster_as_on_one_machine(shared, tmp_path):
    X, Y = problem()
    E = np.random.default_rng(0).standard_normal((X.shape[0], 24)).astype(np.float32)
    with mock.patch.object(kernels, "shard_rows", 25):
        here = train([X, E], Y, tmp_path / "dense")
    with (
        Cluster.connect(shared.file) as cluster,
        ClusterPredictor(cluster, tmp_path / "dense") as predictor,
    ):
        there = ClusterModel(predictor)
        found = there.predict_topk([X, E], 5)
        with pytest.raises(DataError, match="X has no dense features, but the model takes 24"):
            there.predict_topk(X, 5)
    for one, other in zip(found, here.predict_topk([X, E], 5), strict=True):
        np.testing.assert_array_equal(one, other)
