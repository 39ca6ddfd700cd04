"""Several server processes on one port, which are reloaded, killed and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from http.client import HTTPException
from pathlib import Path

import pytest

from conftest import random_problem
from dismec import TrainingParams, train
from servers import TIMEOUT, exchange, serving, wait_until

if sys.platform != "linux":
    pytest.skip("processes are found in /proc", allow_module_level=True)

ROW = {"features": [[1, 1.0], [5, 2.0]]}
ASK = ("POST", "/predict", json.dumps(ROW))
TOKEN = {"Authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers")
    X, Y = random_problem()
    train(X, Y, folder / "named", names=[f"tag {i}" for i in range(Y.shape[1])])
    train(X, Y, folder / "other", TrainingParams(C=0.1))
    return folder


def point(link, target):
    link.with_name("next").symlink_to(target)
    link.with_name("next").replace(link)


@pytest.fixture(scope="module")
def link(files):
    """The served link; each test makes it a link to the model with names."""
    return files / "current"


@pytest.fixture(scope="module")
def running(files, link):
    point(link, files / "named")
    with serving(files, link, "--workers", "2", token="secret") as server:
        wait_until(lambda: len(workers_of(server)) == 2)
        yield server


@pytest.fixture
def server(files, link, running):
    point(link, files / "named")
    wait_until(lambda: all("names" in answer for answer in answers_of_all(running)))
    return running


def is_running(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def workers_of(server, folder="shard-"):
    """Return the processes that have opened the model, or the one in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == server.process.pid and folder in (entry / "maps").read_text():
                    found.append(int(entry.name))
    return sorted(found)


def answers_of_all(server):
    """Return answers on enough connections that all processes are likely among them."""
    with ExitStack() as held:
        clients = [held.enter_context(server.connect()) for _ in range(12)]
        with suppress(ConnectionError, HTTPException):
            return [exchange(client, *ASK, TOKEN)[2] for client in clients]
    return [{}]


def metric(server, name):
    text = server.ask("GET", "/metrics", headers=TOKEN)[2]
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    return float(lines.get(name, 0))


def test_counts_are_of_all_processes(server):
    answered = 'dismec_requests_total{path="/predict",status="200"}'
    time.sleep(1)  # the last request of an earlier test may be counted only now
    before = metric(server, answered)
    assert all(len(answer["labels"]) == 5 for answer in answers_of_all(server))
    # A process counts a request after it has answered.
    seconds = 'dismec_request_seconds_count{path="/predict"}'
    wait_until(lambda: metric(server, seconds) == before + 12)
    assert metric(server, answered) == before + 12
    assert metric(server, "dismec_processes") == 2


def test_all_processes_map_the_files_of_one_model(files, server):
    def mapped(pid):
        lines = (Path("/proc") / str(pid) / "maps").read_text().splitlines()
        return {line.split()[-1] for line in lines if str(files / "named") in line}

    first, second = map(mapped, workers_of(server))
    assert first == second
    assert any("shard-" in name for name in first)


def test_the_token_is_not_among_the_arguments_of_a_process(server):
    for pid in (server.process.pid, *workers_of(server)):
        assert b"secret" not in (Path("/proc") / str(pid) / "cmdline").read_bytes()


@pytest.mark.parametrize("how", ["signal", "request", "watch"])
def test_reload_reaches_all_processes_without_losing_a_request(files, link, server, how):
    answers, stop = [], threading.Event()
    reloads = 'dismec_reloads_total{result="ok"}'
    before = metric(server, reloads)

    def ask_on():
        with server.connect() as connection:
            while not stop.is_set():
                begun = time.monotonic()
                answers.append((begun, exchange(connection, *ASK, TOKEN)))

    clients = [threading.Thread(target=ask_on) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        point(link, files / "other")
        if how == "signal":
            server.process.send_signal(signal.SIGHUP)
        elif how == "request":
            status, _, told = server.ask("POST", "/reload", headers=TOKEN)
            assert (status, told["names"]) == (200, False)
        # A process opens the new model before it switches, and counts afterwards.
        wait_until(lambda: len(workers_of(server, f"{files / 'other'}/shard-")) == 2)
        wait_until(lambda: metric(server, reloads) >= before + 2)
        wait_until(lambda: not any("names" in answer for answer in answers_of_all(server)))
        switched, seen = time.monotonic(), len(answers)
        wait_until(lambda: len(answers) > seen + 20)
    finally:
        stop.set()
        for client in clients:
            client.join()
    assert {status for _, (status, _, _) in answers} == {200}
    assert "names" in answers[0][1][2]
    later = [answer for begun, (_, _, answer) in answers if begun > switched]
    assert later
    assert not any("names" in answer for answer in later)
    assert len(workers_of(server)) == 2


def test_a_request_to_reload_reaches_processes_that_have_the_model_on_disk(server):
    """Nothing has changed on disk, but the files may be wanted in memory again."""
    before = metric(server, 'dismec_reloads_total{result="ok"}')
    assert server.ask("POST", "/reload", headers=TOKEN)[0] == 200
    wait_until(lambda: metric(server, 'dismec_reloads_total{result="ok"}') >= before + 2)


def test_no_process_switches_to_a_bad_model(files, link, server):
    expected = answers_of_all(server)
    (files / "broken").mkdir()
    point(link, files / "broken")
    assert server.ask("POST", "/reload", headers=TOKEN)[0] == 500
    wait_until(lambda: metric(server, 'dismec_reloads_total{result="failed"}') >= 2)
    assert answers_of_all(server) == expected


def test_a_process_that_dies_is_replaced_and_the_port_keeps_answering(server):
    expected = answers_of_all(server)
    rows = metric(server, "dismec_rows_predicted_total")
    before = workers_of(server)
    os.kill(before[0], signal.SIGKILL)

    def is_replaced():
        with suppress(ConnectionError, HTTPException):  # it may take a connection with it
            assert server.ask(*ASK, TOKEN)[::2] == (200, expected[0])
        return len(workers_of(server)) == 2 and before[0] not in workers_of(server)

    wait_until(is_replaced)
    assert before[1] in workers_of(server)
    # A process opens the model before it counts itself.
    wait_until(lambda: metric(server, "dismec_processes_started_total") == 3)
    assert metric(server, "dismec_processes") == 2
    assert metric(server, "dismec_rows_predicted_total") > rows  # counts are kept
    assert f"server process {before[0]} died; starting another" in server.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_processes_when_requests_are_finished(files, number):
    with serving(files, files / "named", "--workers", "2") as server:
        wait_until(lambda: len(workers_of(server)) == 2)
        workers = workers_of(server)
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


@pytest.mark.slow
def test_clients_that_come_back_do_not_keep_the_processes_running(files):
    with serving(files, files / "named", "--workers", "2") as server:
        wait_until(lambda: len(workers_of(server)) == 2)
        statuses, stop = [], threading.Event()

        def ask_on():
            while not stop.is_set():
                with suppress(OSError, HTTPException), server.connect() as connection:
                    while not stop.is_set():
                        statuses.append(exchange(connection, *ASK)[0])

        clients = [threading.Thread(target=ask_on) for _ in range(8)]
        for client in clients:
            client.start()
        try:
            wait_until(lambda: len(statuses) > 50)
            server.process.terminate()
            assert server.process.wait(TIMEOUT) == 0
        finally:
            stop.set()
            server.process.kill()
            for client in clients:
                client.join()
        assert set(statuses) == {200}
        assert server.log.read_text() == ""  # no process has reached the time limit


def test_processes_end_when_the_first_one_is_killed(files):
    with serving(files, files / "named", "--workers", "2") as server:
        wait_until(lambda: len(workers_of(server)) == 2)
        workers = workers_of(server)
        server.process.kill()
        wait_until(lambda: not any(map(is_running, workers)))


def test_a_model_that_cannot_be_opened_is_refused_in_one_line(files):
    found = []
    for workers in ("1", "2"):
        command = [sys.executable, "-m", "dismec", "serve", files / "nothing", "--port", "0"]
        out = subprocess.run(
            [*command, "--workers", workers], capture_output=True, text=True, timeout=TIMEOUT
        )
        assert (out.returncode, out.stdout, out.stderr.count("\n")) == (2, "", 1)
        found.append(out.stderr)
    assert "no such directory" in found[0]
    assert found[0] == found[1]


def test_a_process_that_hangs_does_not_keep_the_server_running(files):
    with serving(files, files / "named", "--workers", "2") as server:
        wait_until(lambda: len(workers_of(server)) == 2)
        workers = workers_of(server)
        os.kill(workers[1], signal.SIGSTOP)
        try:
            begin = time.monotonic()
            server.process.terminate()
            assert server.process.wait(TIMEOUT) == 0
            assert time.monotonic() - begin < 40
            assert not any(map(is_running, workers))
        finally:
            for pid in filter(is_running, workers):
                os.kill(pid, signal.SIGKILL)
