"""The connection to a cluster, on real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent import futures
from operator import add, truediv
from pathlib import Path
from unittest import mock

import pytest
from distributed import Client

from clusters import Processes, wait_until, with_version
from dismec.cluster.connection import Cluster, WorkerInfo, describe_worker, scratch_directory
from dismec.cluster.task import Task
from dismec.errors import ClusterError, WorkerLost

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with Processes(tmp_path_factory.mktemp("dask")) as started:
        started.scheduler()
        started.worker(threads=2)
        yield started


@pytest.fixture
def cluster(processes):
    with Cluster.connect(processes.file) as connected:
        connected.wait_for_workers()
        yield connected


def finish(cluster, task, timeout=20):
    assert cluster.wait([task], timeout) == [task]
    return task.result()


def only(workers):
    (found,) = workers
    return found


def test_workers_say_what_they_are(cluster):
    version, isa = describe_worker()
    assert list(cluster.workers().values()) == [WorkerInfo("127.0.0.1", 2, version, isa)]


def test_a_task_runs_on_its_worker(cluster):
    worker = only(cluster.workers())
    assert finish(cluster, cluster.submit(worker, add, 2, 3)) == 5
    assert finish(cluster, cluster.submit(worker, os.getpid)) != os.getpid()


def test_equal_calls_are_made_twice(cluster):
    worker = only(cluster.workers())
    times = [finish(cluster, cluster.submit(worker, time.monotonic_ns)) for _ in range(2)]
    assert times[0] < times[1]


def test_an_exception_in_a_task_is_raised_locally(cluster):
    task = cluster.submit(only(cluster.workers()), truediv, 1, 0)
    with pytest.raises(ZeroDivisionError) as caught:
        finish(cluster, task)
    assert "Traceback" in caught.value.__notes__[0]


def test_waiting_ends_with_the_timeout_and_the_task_goes_on(cluster, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    task = cluster.submit(only(cluster.workers()), Path.read_bytes, pipe)  # blocks until written to
    rescue = threading.Timer(60, pipe.write_bytes, [b"too late"])
    rescue.start()
    begin = time.monotonic()
    try:
        assert cluster.wait([task], 0.2) == []
        assert time.monotonic() - begin >= 0.2
    finally:
        rescue.cancel()
    pipe.write_bytes(b"now")
    assert finish(cluster, task) == b"now"


def test_a_client_of_the_caller_stays_open(processes):
    with Client(scheduler_file=str(processes.file), set_as_default=False) as client:
        with Cluster.connect(client) as cluster:
            worker = only(cluster.wait_for_workers())
            assert finish(cluster, cluster.submit(worker, add, 1, 1)) == 2
        assert client.submit(add, 1, 1).result() == 2


def sum_on(client):
    """Compute 1 + 1 on a worker; return the sum and whether the client itself was used."""
    with Cluster.connect(client) as cluster:
        worker = only(cluster.wait_for_workers())
        return finish(cluster, cluster.submit(worker, add, 1, 1)), cluster._client is client


def test_an_asynchronous_client_works_in_its_coroutine_and_in_a_thread(processes):
    async def main():
        file = str(processes.file)
        async with Client(scheduler_file=file, asynchronous=True, set_as_default=False) as client:
            assert sum_on(client) == (2, False)
            assert await asyncio.to_thread(sum_on, client) == (2, True)
            assert await client.submit(add, 2, 2, pure=False) == 4  # the client stays open

    asyncio.run(main())


def test_an_asynchronous_client_that_is_not_connected_is_refused(processes):
    async def main():
        client = Client(scheduler_file=str(processes.file), asynchronous=True, set_as_default=False)
        with pytest.raises(ClusterError, match="await it first"):
            Cluster.connect(client)
        await client
        await client.close()
        with pytest.raises(ClusterError, match="await it first"):
            Cluster.connect(client)

    asyncio.run(main())


# In a separate process, because an in-process scheduler leaves threads behind.
BLOCKED = """
import asyncio
from operator import add

from distributed import Client, LocalCluster

from dismec.cluster.connection import Cluster
from dismec.errors import ClusterError


def sum_on(client):
    with Cluster.connect(client) as cluster:
        (worker,) = cluster.wait_for_workers()
        task = cluster.submit(worker, add, 1, 1)
        assert cluster.wait([task], 60) == [task]
        return task.result()


async def main():
    how = {"asynchronous": True, "dashboard_address": None, "processes": False}
    async with (
        LocalCluster(n_workers=1, threads_per_worker=1, **how) as local,
        Client(local, asynchronous=True, set_as_default=False) as client,
    ):
        try:
            Cluster.connect(client)
        except ClusterError as error:
            print(error)
        print(await asyncio.to_thread(sum_on, client))


asyncio.run(main())
"""


def test_a_scheduler_that_the_caller_would_block_is_refused_at_once_and_not_in_a_thread(tmp_path):
    command = [sys.executable, "-c", BLOCKED]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    refusal, result = found.stdout.splitlines()
    assert "await asyncio.to_thread" in refusal
    assert result == "2"


def test_workers_of_a_machine_share_a_scratch_directory(processes, cluster):
    worker = only(cluster.workers())
    found = finish(cluster, cluster.submit(worker, scratch_directory))
    assert found.is_relative_to(processes.folder)


def test_tasks_of_a_killed_worker_are_lost_and_a_late_worker_is_seen(processes, cluster):
    (old,) = cluster.workers()
    late = processes.worker()
    wait_until(lambda: len(cluster.workers()) == 2)
    (new,) = cluster.workers().keys() - {old}
    running, queued = (cluster.submit(new, time.sleep, 60) for _ in range(2))
    assert cluster.wait([running, queued], 0.5) == []
    os.kill(late.pid, signal.SIGKILL)
    begin = time.monotonic()
    for task in (running, queued):
        with pytest.raises(WorkerLost, match="is gone"):
            finish(cluster, task)
    assert time.monotonic() - begin < 5
    assert list(cluster.workers()) == [old]
    with pytest.raises(WorkerLost):
        finish(cluster, cluster.submit(new, add, 1, 1))


def test_a_result_is_lost_with_its_worker(processes, cluster):
    before = set(cluster.workers())
    late = processes.worker()
    wait_until(lambda: len(cluster.workers()) == 2)
    (new,) = cluster.workers().keys() - before
    # The scheduler knows that the result exists, but has not fetched it.
    with mock.patch.object(cluster._client, "_gather", side_effect=_after(late)):
        task = cluster.submit(new, add, 1, 1)
        with pytest.raises(WorkerLost):
            finish(cluster, task)


def _after(process):
    async def gather(futures):
        process.kill()
        await asyncio.sleep(60)

    return gather


@pytest.mark.parametrize("there", ["", "0.0.1"])
def test_workers_report_another_version_of_dismec_or_none(processes, cluster, tmp_path, there):
    odd = processes.worker(env=with_version(tmp_path, there))
    wait_until(lambda: len(cluster.workers()) == 2)
    assert sorted(info.version for info in cluster.workers().values())[0] == there
    processes.kill(odd)
    wait_until(lambda: len(cluster.workers()) == 1)


def test_the_scheduler_needs_no_dismec(tmp_path):
    with Processes(tmp_path) as processes:
        processes.scheduler(env=with_version(tmp_path, ""))
        processes.worker()
        with Cluster.connect(processes.file) as cluster:
            worker = only(cluster.wait_for_workers())
            assert finish(cluster, cluster.submit(worker, describe_worker)) == describe_worker()


def test_a_missing_scheduler_is_reported_after_a_while():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ClusterError, match=r"127.0.0.1:\d+: no scheduler has answered"):
            Cluster.connect(address, patience=1)


@pytest.mark.parametrize("where", ["nowhere", "gopher://here:70", "missing.json"])
def test_invalid_addresses_are_refused(where):
    with pytest.raises(ClusterError, match=where):
        Cluster.connect(where, patience=0.5)


def test_a_file_that_is_not_a_scheduler_file_is_refused(tmp_path):
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(ClusterError, match="not a scheduler file"):
        Cluster.connect(path, patience=0.5)


def test_a_cluster_without_workers_is_reported(tmp_path):
    with Processes(tmp_path) as processes:
        processes.scheduler()
        with Cluster.connect(processes.file, patience=1) as cluster:
            assert cluster.workers() == {}
            with pytest.raises(ClusterError, match="no worker has joined"):
                cluster.wait_for_workers()


@pytest.mark.parametrize("same_port", [True, False])
def test_the_client_waits_for_a_scheduler_to_come_back(tmp_path, same_port):
    with Processes(tmp_path) as processes:
        first = processes.scheduler()
        processes.worker()
        with Cluster.connect(processes.file, patience=30) as cluster:
            task = cluster.submit(only(cluster.wait_for_workers()), time.sleep, 60)
            port = cluster._client.scheduler.address.rsplit(":", 1)[1] if same_port else 0
            processes.kill(first)
            processes.scheduler(port=port)
            with pytest.raises(WorkerLost):
                finish(cluster, task, 30)
            processes.worker()
            worker = only(cluster.wait_for_workers())
            assert finish(cluster, cluster.submit(worker, add, 2, 3)) == 5


def test_a_worker_that_stays_paused_counts_as_gone():
    client = mock.Mock(status="running")
    cluster = Cluster(client, None, 1.0)
    answer = Task("tcp://a:1", None, futures.Future())
    answer.future.set_result(describe_worker())
    there = {"tcp://a:1": 2}
    with (
        mock.patch("dismec.cluster.connection._LOOK_SECONDS", 0.0),
        mock.patch.object(cluster, "submit", return_value=answer),
    ):
        client.sync.return_value = there, there
        assert cluster.wait_for_workers().keys() == there.keys()
        client.sync.return_value = there, {}
        assert cluster.workers().keys() == there.keys()
        with mock.patch("dismec.cluster.connection._PAUSED_SECONDS", 0.0):
            assert cluster.workers() == {}
        assert cluster.workers() == {}  # it is inspected once more
        assert cluster.workers().keys() == there.keys()


def test_a_scheduler_that_stays_away_is_given_up(tmp_path):
    with Processes(tmp_path) as processes:
        scheduler = processes.scheduler()
        processes.worker()
        with Cluster.connect(processes.file, patience=2) as cluster:
            wait_until(cluster.workers)
            task = cluster.submit(only(cluster.workers()), time.sleep, 60)
            processes.kill(scheduler)
            with pytest.raises(WorkerLost):
                finish(cluster, task)
            with pytest.raises(ClusterError, match="training resumes where it stopped"):
                wait_until(lambda: not cluster.workers())


@pytest.mark.parametrize(
    ("where", "reason"),
    [("tls://127.0.0.1:8786", "TLS is not configured"), ("nowhere/x.json", "not the path of a")],
)
def test_unreachable_addresses_are_refused_immediately(where, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in (where, str(tmp_path)):
        with pytest.raises(ClusterError, match=reason if place == where else "not the path of a"):
            Cluster.connect(place)
