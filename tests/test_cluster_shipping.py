"""Files sent to workers: they arrive as they were sent, or are refused."""

from __future__ import annotations

import inspect
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from clusters import PretendCluster
from conftest import random_problem
from dismec import DataError, ModelError, TrainingParams, open_model, save_data, train
from dismec.cluster import prediction_worker, shipping, training_worker
from dismec.cluster.pool import Pool
from dismec.cluster.prediction import ClusterPredictor
from dismec.cluster.shipping import Sender, arrived, discard_parcels, receive
from dismec.cluster.training import ClusterJob, _ClusterRun, solve_on_cluster
from dismec.data.dataset import Dataset
from dismec.data.training_file import fingerprint
from dismec.errors import ClusterError
from dismec.features.transform import Transform
from dismec.solve.partition import BlockCutter

PIECE = 1000


@pytest.fixture(autouse=True)
def scratch(tmp_path):
    """The folder in which the pretended workers of this process put files."""
    folder = tmp_path / "scratch" / "worker"
    folder.mkdir(parents=True)
    with (
        mock.patch.object(shipping, "_PIECE", PIECE),
        mock.patch.object(shipping, "private_directory", return_value=folder),
        mock.patch.object(training_worker, "scratch_directory", return_value=folder.parent),
        mock.patch.object(prediction_worker, "listen"),
        mock.patch.object(prediction_worker, "memory_limit", return_value=None),
    ):
        yield folder.parent


@pytest.fixture(scope="module")
def X():
    return random_problem()[0]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.xmc"
    save_data(Dataset(*random_problem()), path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model"
    train(*random_problem(), path, TrainingParams())
    return path


def job(data, directory):
    X, Y = random_problem()
    directory.mkdir()
    labels = np.arange(Y.shape[1])
    cutter = BlockCutter(labels, labels, np.ones(len(labels), np.int64), 1000)
    params, transform = TrainingParams().solver, Transform(X.shape[1])
    return ClusterJob(directory, data, fingerprint(X, Y), params, transform, cutter)


def blind_cluster():
    """A cluster whose workers run in this process and see none of the client's files."""
    own = (receive, training_worker.adopt_data, training_worker.drop_data, training_worker.end)
    own += tuple(getattr(prediction_worker, name) for name in prediction_worker.__all__[2:])
    hidden = {
        training_worker.find_data: lambda data: None,
        prediction_worker.hold: lambda *_: False,
    }
    cluster = PretendCluster({function: function for function in own} | hidden)
    cluster.join("a")
    return cluster


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def open_files():
    """Return the files that this process has open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(link.readlink())
    return found


def run(steps):
    """Return the result of steps whose tasks finish as soon as they are submitted."""
    try:
        task = next(steps)
        while True:
            task = steps.send(task.result())
    except StopIteration as end:
        return end.value


def damage(offset, piece):
    return bytes([piece[0] ^ 1]) + piece[1:] if offset == PIECE else piece


def cut_off(offset, piece):
    return b"" if offset == PIECE else piece


# A hole is zeros in the middle; if the last piece never arrives, the file is too short.
def never_sent(offset, piece):
    return piece if offset <= PIECE else b""


def altered(change):
    return lambda parcel, offset, piece: receive(parcel, offset, change(offset, piece))


def test_a_file_arrives_as_it_was_and_is_counted(tmp_path, scratch):
    content = os.urandom(4 * PIECE + 17)
    (tmp_path / "file").write_bytes(content)
    got = []

    def adopt(parcel, note):
        with arrived(parcel) as path:
            got.append(path.read_bytes())
        return note

    sender = Sender(PretendCluster({receive: receive, adopt: adopt}))
    assert run(sender.send("a", tmp_path / "file", adopt, "kept")) == "kept"
    assert got == [content]
    assert sender.n_bytes == len(content)
    assert files(scratch) == []


def test_pieces_may_come_in_any_order(scratch):
    for offset, piece in ((4, b"ef"), (0, b"ab"), (2, b"cd")):
        receive("parcel", offset, piece)
    with arrived("parcel") as path:
        assert path.read_bytes() == b"abcdef"
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_sender_can_discard_only_what_it_has_begun(scratch):
    for parcel in ("mine-1", "mine-2", "other-1"):
        receive(parcel, 0, b"x")
    discard_parcels("mine")
    assert [path.name for path in files(scratch)] == ["dismec-other-1.part"]
    discard_parcels("other")


@pytest.mark.parametrize("change", [damage, cut_off, never_sent])
def test_data_damaged_or_truncated_in_transit_is_refused(tmp_path, data, scratch, change):
    cluster = blind_cluster()
    cluster.answers[receive] = altered(change)
    cluster.answers[training_worker.begin] = lambda *_: pytest.fail("damaged data are used")
    with pytest.raises(DataError):
        list(solve_on_cluster(cluster, job(data, tmp_path / "model"), lambda n: None))
    assert files(scratch) == []


@pytest.mark.parametrize("change", [damage, cut_off, never_sent])
def test_a_shard_damaged_or_truncated_in_transit_is_refused(model, X, scratch, change):
    cluster = blind_cluster()
    cluster.answers[receive] = altered(change)
    with ClusterPredictor(cluster, model) as predictor:
        with pytest.raises(ModelError, match="altered since it was written"):
            predictor.topk(X)
        assert predictor.missing == [0]
    assert files(scratch) == []


def test_a_sent_shard_answers_predictions(model, X, scratch):
    with ClusterPredictor(blind_cluster(), model) as predictor:
        labels, scores = predictor.topk(X)
        assert predictor.traffic.weights == sum(f.stat().st_size for f in model.glob("shard-*"))
    expected = open_model(model).predict_topk(X)
    np.testing.assert_array_equal(labels, expected[0])
    np.testing.assert_array_equal(scores, expected[1])
    assert files(scratch) == []


def test_few_files_are_sent_at_once_and_a_finished_one_makes_room(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * (3 * PIECE))
    sender = Sender(PretendCluster())
    sending = [sender.send("a", tmp_path / "file", print) for _ in range(shipping._MOST_FILES)]
    assert all(next(steps) is not None for steps in sending)
    late = sender.send("a", tmp_path / "file", print)
    assert next(late) is None
    assert next(late) is None
    with pytest.raises(OSError, match="disk full"):
        sending[0].throw(OSError("disk full"))
    assert next(late) is not None
    assert open_files().count(tmp_path / "file") == shipping._MOST_FILES
    for steps in (*sending, late):
        steps.close()
    assert open_files().count(tmp_path / "file") == 0
    assert sender._sending == 0


def test_a_piece_without_room_leaves_nothing_and_is_reported_with_its_path(scratch):
    receive("mine-1", 0, b"x")
    (path,) = files(scratch)
    with mock.patch("os.fdopen", return_value=Path("/dev/full").open("wb", buffering=0)) as opened:
        with pytest.raises(OSError, match="No space left on device") as caught:
            receive("mine-1", 1, b"y")
        os.close(opened.call_args[0][0])
    assert caught.value.filename == str(path)
    assert files(scratch) == []


def test_data_that_does_not_arrive_at_one_worker_is_sent_to_another_of_its_machine(
    tmp_path, data, scratch
):
    cluster = blind_cluster()
    cluster.join("b", host="here")
    del cluster.answers[receive]
    run = _ClusterRun(cluster, job(data, tmp_path / "model"))
    for _ in range(5):
        list(run._pool.turn())
    assert [task.worker for task in cluster.calls] == ["a"]  # which hangs
    with mock.patch("dismec.cluster.training._STUCK_SECONDS", 0.0):
        for _ in range(5):
            list(run._pool.turn())
    assert {task.worker for task in cluster.calls} == {"a", "b"}
    run.end()


@contextmanager
def witness():
    """Keep all steps that are started, so that none is freed merely for being unreachable."""
    begun, real = [], Pool.begin

    def begin(pool, member, steps):
        begun.append(steps)
        real(pool, member, steps)

    with mock.patch.object(Pool, "begin", begin):
        yield begun


def is_closed(steps):
    return inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED


@pytest.mark.parametrize("how", ["leaves", "fails"])
def test_training_frees_file_and_machine_of_a_worker_lost_during_sending(
    tmp_path, data, scratch, how
):
    cluster = blind_cluster()
    cluster.join("b", host="here")
    del cluster.answers[receive]
    run = _ClusterRun(cluster, job(data, tmp_path / "model"))
    with witness() as begun:
        list(run._pool.turn())
        list(run._pool.turn())  # a is sent the data, b waits for them on the same machine
        (piece,) = cluster.calls
        assert piece.worker == "a"
        assert data in open_files()
        assert run._sending == {"here"}
        lose(cluster, piece, how)
        with mock.patch.object(cluster, "answers", {}):
            list(run._pool.turn())
        assert is_closed(begun[0])
        assert piece in cluster.forgotten or how == "fails"
        assert data not in open_files()
        assert run._sender._sending == 0
        assert run._sending == set()
        cluster.answers[receive] = receive
        for task in list(cluster.calls):  # b finds that no copy has come, and is sent the data
            cluster.finish(task, cluster.answers[training_worker.find_data])
        for _ in range(100):
            list(run._pool.turn())
        assert [function for function, _ in cluster.calls.values()] == [training_worker.begin]
        assert run._sender.n_bytes == PIECE + data.stat().st_size
        run.end()
        assert all(map(is_closed, begun))
    assert files(scratch) == []


@pytest.mark.parametrize("how", ["leaves", "fails"])
def test_prediction_frees_file_and_place_of_a_worker_lost_during_sending(model, how):
    (shard,) = model.glob("shard-*")
    cluster = blind_cluster()
    del cluster.answers[receive]
    with witness() as begun, ClusterPredictor(cluster, model) as predictor:
        while shard not in open_files():
            predictor.step()
        (piece,) = cluster.calls
        assert predictor._sender._sending == 1
        lose(cluster, piece, how)
        with suppress(ClusterError):
            predictor.step()
        assert all(map(is_closed, begun))
        assert piece in cluster.forgotten or how == "fails"
        assert shard not in open_files()
        assert predictor._sender._sending == 0
        assert not predictor._pool.preparing


def lose(cluster, piece, how):
    """Make a worker leave, or its disk fill up, while a piece is being sent to it."""
    if how == "leaves":
        del cluster.there[piece.worker]
    else:
        cluster.finish(piece, full_disk)


def full_disk(*_):
    raise OSError("disk full")
