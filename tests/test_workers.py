"""Several server processes on one port, which are reloaded, killed and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from http.client import HTTPException
from pathlib import Path

import pytest

from conftest import random_problem
from dismec import TrainingParams, train
from dismec.serve.channel import Channel
from dismec.serve.prometheus import Metrics
from servers import TIMEOUT, exchange, serving, wait_until

ROW = {"features": [[1, 1.0], [5, 2.0]]}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers")
    X, Y = random_problem()
    train(X, Y, folder / "named", names=[f"tag {i}" for i in range(Y.shape[1])])
    train(X, Y, folder / "other", TrainingParams(C=0.1))
    return folder


def children(pid):
    """Return the child processes of a process."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                stat = (folder / "stat").read_text()
                state, parent = stat.rpartition(")")[2].split()[:2]
                if int(parent) == pid and state != "Z":
                    found.append(int(folder.name))
    return sorted(found)


def is_running(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def point(link, target):
    new = link.with_name("next")
    new.symlink_to(target)
    new.replace(link)


@pytest.fixture(scope="module")
def server(files):
    with serving(files, files / "named", "--workers", "2", token="secret") as running:
        running.token = {"Authorization": "Bearer secret"}
        yield running


def test_connections_are_spread_evenly_and_counts_are_of_all_processes(server):
    def counted(name):
        text = server.ask("GET", "/metrics", headers=server.token)[2]
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        return float(lines.get(name, 0))

    def connections():
        """Return the number of connections per process."""
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        ends = [line.split() for line in lines]
        ours = {end[9] for end in ends if end[1].endswith(f":{server.port:04X}")}
        found = []
        for pid in workers:
            links = []
            for file in (Path("/proc") / str(pid) / "fd").iterdir():
                with suppress(OSError):
                    links.append(str(file.readlink()))
            found.append(len(ours & {link.removeprefix("socket:[")[:-1] for link in links}))
        return found

    workers = children(server.process.pid)
    assert len(workers) == 2
    answered = 'dismec_requests_total{path="/predict",status="200"}'
    before = counted(answered)
    wait_until(lambda: connections() == [0, 0])
    with ExitStack() as held:
        for _ in range(10):
            connection = held.enter_context(server.connect())
            status, _, answer = exchange(
                connection, "POST", "/predict", json.dumps(ROW), server.token
            )
            assert status == 200
            assert len(answer["labels"]) == 5
        assert connections() == [5, 5]
    assert counted(answered) == before + 10
    assert counted("dismec_processes") == 2
    assert counted('dismec_request_seconds_count{path="/predict"}') >= before + 10


def test_all_processes_map_the_files_of_one_model(files, server):
    def mapped(pid):
        lines = (Path("/proc") / str(pid) / "maps").read_text().splitlines()
        return {line.split()[-1] for line in lines if str(files / "named") in line}

    found = [mapped(pid) for pid in children(server.process.pid)]
    assert found[0] == found[1]
    assert any("shard-" in name for name in found[0])


def test_post_reload_reaches_all_processes_and_a_bad_model_none(files, tmp_path):
    link = tmp_path / "current"
    link.symlink_to(files / "named")
    token = {"Authorization": "Bearer secret"}
    with serving(tmp_path, link, "--workers", "2", token="secret") as server, ExitStack() as held:
        clients = [held.enter_context(server.connect()) for _ in range(4)]

        def answers():
            """Return what each process answers; connections alternate between them."""
            asked = ("POST", "/predict", json.dumps(ROW), token)
            return [exchange(client, *asked)[2] for client in clients]

        named = answers()
        point(link, files / "other")
        status, _, told = server.ask("POST", "/reload", headers=token)
        assert (status, told["names"]) == (200, False)
        other = answers()
        assert all("names" in answer for answer in named)
        assert all("names" not in answer for answer in other)
        (tmp_path / "broken").mkdir()
        point(link, tmp_path / "broken")
        status, _, told = server.ask("POST", "/reload", headers=token)
        assert status == 500
        assert answers() == other
        text = server.ask("GET", "/metrics", headers=token)[2]
        assert 'dismec_reloads_total{result="ok"} 1' in text
        assert 'dismec_reloads_total{result="failed"} 1' in text
        log = server.log.read_text().splitlines()
        assert len(log) == 2  # one line per reload, not one per process
        assert "still serving the old model" in log[1]


def test_sighup_switches_all_processes_without_losing_a_request(files, tmp_path):
    link = tmp_path / "current"
    link.symlink_to(files / "named")
    with serving(tmp_path, link, "--workers", "2") as server:
        answers, stop = [], threading.Event()

        def ask_on():
            with server.connect() as connection:
                while not stop.is_set():
                    answers.append(exchange(connection, "POST", "/predict", json.dumps(ROW)))

        clients = [threading.Thread(target=ask_on) for _ in range(4)]
        for client in clients:
            client.start()
        try:
            point(link, files / "other")
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: server.metric('dismec_reloads_total{result="ok"}') == 1)
            seen = len(answers)
            wait_until(lambda: len(answers) > seen + 20)
        finally:
            stop.set()
            for client in clients:
                client.join()
        assert {status for status, _, _ in answers} == {200}
        assert "names" in answers[0][2]
        assert not any("names" in answer for _, _, answer in answers[-4:])


def wait_until_answered(check):
    """Wait for a check that asks the server; a process that dies may take a connection with it."""

    def holds():
        with suppress(ConnectionError, HTTPException):
            return check()
        return False

    wait_until(holds)


def test_a_process_that_dies_is_replaced_and_the_port_keeps_answering(files):
    with serving(files, files / "named", "--workers", "2") as server:
        expected = server.predict(ROW)[2]
        rows = server.metric("dismec_rows_predicted_total")
        before = children(server.process.pid)
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: not is_running(before[0]))

        def is_replaced():
            status, _, answer = server.predict(ROW)
            assert (status, answer) == (200, expected)
            return server.metric("dismec_processes") == 2

        wait_until_answered(is_replaced)
        after = children(server.process.pid)
        assert before[1] in after
        assert len({*before, *after}) == 3
        assert server.metric("dismec_restarts_total") == 1
        assert server.metric("dismec_rows_predicted_total") > rows  # counts are kept
        assert "was ended by signal 9; starting another" in server.log.read_text()


def test_a_replacement_process_gets_the_model_of_the_others(files, tmp_path):
    """The link was moved without a reload: the new process must not follow it on its own."""
    link = tmp_path / "current"
    link.symlink_to(files / "named")
    with serving(tmp_path, link, "--workers", "2") as server:
        expected = server.predict(ROW)[2]
        point(link, files / "other")
        old = children(server.process.pid)[0]
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: not is_running(old))
        wait_until_answered(lambda: server.metric("dismec_processes") == 2)
        with ExitStack() as held:
            for _ in range(4):
                client = held.enter_context(server.connect())
                assert exchange(client, "POST", "/predict", json.dumps(ROW))[2] == expected


def test_processes_have_one_model_after_it_was_replaced_in_place(files, tmp_path):
    """A new process can only open what is on disk now, so the others switch to that too."""
    train(*random_problem(), tmp_path / "model", TrainingParams(C=0.1))
    with serving(tmp_path, tmp_path / "model", "--workers", "2") as server:
        train(*random_problem(), tmp_path / "model", overwrite=True)
        os.kill(children(server.process.pid)[0], signal.SIGKILL)
        wait_until_answered(lambda: server.metric('dismec_reloads_total{result="ok"}') == 1)
        with ExitStack() as held:
            clients = [held.enter_context(server.connect()) for _ in range(4)]
            found = [exchange(c, "GET", "/model")[2]["params"]["C"] for c in clients]
        assert found == [1.0] * 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_processes_when_requests_are_finished(files, number):
    with serving(files, files / "named", "--workers", "2") as server:
        workers = children(server.process.pid)
        with server.half_sent(ROW) as finish:
            # Like Ctrl-C in a terminal, which reaches all processes at once.
            for pid in (server.process.pid, *(workers if number == signal.SIGINT else ())):
                os.kill(pid, number)
            wait_until(lambda: sum(map(is_running, workers)) == 1)
            status, _, answer = finish()
        assert status == 200
        assert len(answer["labels"]) == 5
        assert server.process.wait(TIMEOUT) == (0 if number == signal.SIGTERM else 130)
        assert not any(map(is_running, workers))
        assert server.log.read_text() == ("" if number == signal.SIGTERM else "dismec: stopped\n")


def test_processes_end_when_the_first_one_is_killed(files):
    with serving(files, files / "named", "--workers", "2") as server:
        workers = children(server.process.pid)
        server.process.kill()
        wait_until(lambda: not any(map(is_running, workers)))


def refused(*arguments):
    out = subprocess.run(
        [sys.executable, "-m", "dismec", "serve", *map(str, arguments), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert (out.returncode, out.stdout) == (2, "")
    assert out.stderr.count("\n") == 1, out.stderr
    return out.stderr


def test_options_not_supported_by_several_processes_are_refused_in_one_line(files):
    alone, several = (refused(files / "nothing", "--workers", n) for n in (1, 2))
    assert alone == several
    assert "no such directory" in several
    line = refused(files / "named", "--workers", "2", "--cluster", "tcp://127.0.0.1:1")
    assert "--workers is not supported with --cluster" in line


def test_a_channel_reports_when_the_other_end_is_full_or_gone():
    here, there = Channel.pair()
    sent = 0
    while here.send({"number": sent}):
        sent += 1
    assert [there.receive() for _ in range(sent)] == [({"number": i}, None) for i in range(sent)]
    assert there.receive() is None
    assert here.send({})
    here.close()
    assert there.receive() == ({}, None)
    with pytest.raises(EOFError):
        there.receive()
    assert not there.send({})
    there.close()


def test_counts_of_processes_add_up():
    parts = [Metrics(), Metrics()]
    for part, seconds in zip(parts, (0.0001, 20.0), strict=True):
        part.count("/predict", 200, seconds)
        part.rows += 2
        part.pending += 1
        part.reloads["ok"] += 1
    total = Metrics()
    total.processes = 0
    total.add(json.loads(json.dumps(parts[0].to_dict())))
    total.add(json.loads(json.dumps(parts[1].to_dict())), ended=True)
    lines = total.text().splitlines()
    assert 'dismec_requests_total{path="/predict",status="200"} 2' in lines
    assert 'dismec_request_seconds_bucket{path="/predict",le="0.001"} 1' in lines
    assert 'dismec_request_seconds_bucket{path="/predict",le="+Inf"} 2' in lines
    assert 'dismec_request_seconds_sum{path="/predict"} 20.000100' in lines
    assert "dismec_rows_predicted_total 4" in lines
    assert "dismec_pending_requests 1" in lines  # a process that has ended computes nothing
    assert "dismec_processes 1" in lines
