"""The connection to a cluster, on real processes."""

from __future__ import annotations

import asyncio
import socket
import time
from operator import add

import pytest
from distributed import Client

from clusters import Processes, wait_until, with_version
from dismec.cluster.client import Cluster, SchedulerLost, Tasks, own_version
from dismec.errors import ClusterError

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with Processes(tmp_path_factory.mktemp("dask")) as started:
        started.scheduler()
        started.worker(threads=2)
        yield started


def sum_on(client):
    """Compute 1 + 1 on a worker; return the sum and whether the client itself was used."""
    with Cluster.connect(client) as cluster:
        cluster.check_workers()
        return cluster.client.submit(add, 1, 1).result(), cluster.client is client


def test_a_client_of_the_caller_stays_open(processes):
    with Client(scheduler_file=str(processes.file), set_as_default=False) as client:
        assert sum_on(client) == (2, True)
        assert client.submit(add, 1, 1).result() == 2


def test_an_asynchronous_client_works_in_a_thread_and_not_in_its_coroutine(processes):
    async def main():
        file = str(processes.file)
        async with Client(scheduler_file=file, asynchronous=True, set_as_default=False) as client:
            with pytest.raises(ClusterError, match=r"await asyncio\.to_thread"):
                sum_on(client)
            assert await asyncio.to_thread(sum_on, client) == (2, True)
            assert await client.submit(add, 2, 2, pure=False) == 4  # the client stays open

    asyncio.run(main())


def test_tasks_return_results_and_errors_as_they_finish(processes):
    with Cluster.connect(processes.file) as cluster:
        cluster.check_workers()
        tasks = Tasks(cluster)
        good = cluster.client.submit(add, 1, 1, pure=False)
        bad = cluster.client.submit(add, 1, "1", pure=False)
        tasks.add(good, bad)
        found = {}
        wait_until(lambda: found.update(tasks.finished()) or len(found) == 2)
        assert found[good] == 2
        assert isinstance(found[bad], TypeError)
        assert tasks.finished(timeout=0.1) == []


@pytest.mark.parametrize("there", ["", "0.0.1"])
def test_workers_report_another_version_of_dismec_or_none(processes, tmp_path, there):
    odd = processes.worker(env=with_version(tmp_path, there))
    with Cluster.connect(processes.file) as cluster:
        cluster.client.wait_for_workers(2, timeout=60)
        (found,) = cluster.other_versions().values()
        assert found == ("dismec 0.0.1" if there else "no dismec, or a very old one")
        processes.kill(odd)
        wait_until(lambda: len(cluster.workers()) == 1)
        assert cluster.other_versions() == {}


def test_a_scheduler_without_dismec_is_reported(tmp_path):
    with Processes(tmp_path) as processes:
        processes.scheduler(env=with_version(tmp_path, ""))
        processes.worker()
        with Cluster.connect(processes.file) as cluster:
            cluster.check_workers()
            tasks = Tasks(cluster)
            future = cluster.client.submit(own_version, pure=False)
            tasks.add(future)
            ((_, error),) = tasks.finished(timeout=60)
            assert "the scheduler cannot import dismec" in str(error)


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
                cluster.check_workers()
            time.sleep(1.1)
            with pytest.raises(ClusterError, match="there has been no worker for"):
                cluster.workers()


def raise_errors(tasks):
    """Wait for the first task that ends, and raise its error."""
    found = []
    wait_until(lambda: found.extend(tasks.finished()) or found)
    raise found[0][1]


@pytest.mark.parametrize("same_port", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_client_waits_for_a_scheduler_to_come_back(tmp_path, same_port):
    with Processes(tmp_path) as processes:
        first = processes.scheduler()
        processes.worker()
        with Cluster.connect(processes.file, patience=30) as cluster:
            cluster.check_workers()
            tasks = Tasks(cluster)
            tasks.add(cluster.client.submit(time.sleep, 60))
            port = cluster.client.scheduler.address.rsplit(":", 1)[1] if same_port else 0
            processes.kill(first)
            processes.scheduler(port=port)
            with pytest.raises(SchedulerLost):
                raise_errors(tasks)
            cluster.reconnect()
            processes.worker()
            cluster.check_workers()
            assert cluster.client.submit(add, 2, 3).result() == 5


def test_a_scheduler_that_stays_away_is_given_up(tmp_path):
    with Processes(tmp_path) as processes:
        scheduler = processes.scheduler()
        with Cluster.connect(processes.file, patience=2) as cluster:
            processes.kill(scheduler)
            with pytest.raises(SchedulerLost):
                wait_until(lambda: cluster.workers() is None)
            with pytest.raises(ClusterError, match="training resumes where it stopped"):
                cluster.reconnect()


@pytest.mark.parametrize(
    ("where", "reason"),
    [("tls://127.0.0.1:8786", "TLS is not configured"), ("nowhere/x.json", "not the path of a")],
)
def test_unreachable_addresses_are_refused_immediately(where, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in (where, str(tmp_path)):
        with pytest.raises(ClusterError, match=reason if place == where else "not the path of a"):
            Cluster.connect(place)
