"""A server reports truthfully whether it is alive, and ready to predict."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest

from clusters import Processes
from conftest import random_problem
from dismec import open_model, train
from dismec.serve.answers import Service
from dismec.serve.application import application
from dismec.serve.peers import Alone
from dismec.serve.prometheus import Metrics
from dismec.serve.schemas import Limits
from servers import serving, wait_until

ROW = {"features": [[1, 1.0]]}


def test_a_model_in_this_process_is_ready(tmp_path):
    train(*random_problem(), tmp_path / "model")
    assert open_model(tmp_path / "model").ready()


@pytest.mark.cluster
def test_health_is_503_while_the_cluster_answers_no_prediction(tmp_path):
    """A worker that hangs is not missing: only a prediction detects it."""
    train(*random_problem(), tmp_path / "model")
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        worker = processes.worker()
        with serving(tmp_path, tmp_path / "model", "--cluster", str(processes.file)) as server:
            assert server.predict(ROW)[0] == 200
            for path in ("/health", "/health/ready", "/health/live"):
                assert server.ask("GET", path)[::2] == (200, {"status": "ok"})
            os.kill(worker.pid, signal.SIGSTOP)
            try:
                wait_until(lambda: server.ask("GET", "/health/ready")[0] == 503)
                status, headers, answer = server.ask("GET", "/health")
                assert (status, answer.keys()) == (503, {"error"})
                assert int(headers["Retry-After"]) >= 1
                assert server.ask("GET", "/health/live")[::2] == (200, {"status": "ok"})
            finally:
                os.kill(worker.pid, signal.SIGCONT)
            wait_until(lambda: server.ask("GET", "/health/ready")[0] == 200)
            assert server.predict(ROW)[0] == 200


async def answered(app, path: str, body: bytes) -> int:
    """Send a POST request to an ASGI application, and return the status of its answer."""
    statuses = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        statuses.append(message.get("status"))

    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": [], "http_version": "1.1", "scheme": "http",
        "root_path": "", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    await app(scope, receive, send)
    return statuses[0]


def test_only_quick_requests_are_computed_in_the_event_loop(tmp_path, monkeypatch):
    """Others would keep health checks waiting; a quick one costs less than changing threads."""
    train(*random_problem(), tmp_path / "model")
    service, metrics = Service(tmp_path / "model", None, Limits()), Metrics()
    app = application(service, metrics, Alone(service, metrics), 2, None)
    where: list[bool] = []  # whether each request was computed in the event loop's thread
    seconds = 0.0

    def predict(body: bytes) -> tuple[bytes, int]:
        where.append(threading.current_thread() is threading.main_thread())
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass
        return b"{}", 1

    async def ask(times: int, size: int) -> list[bool]:
        where.clear()
        for _ in range(times):
            assert await answered(app, "/predict", b" " * size) == 200
        return where.copy()

    monkeypatch.setattr(service, "predict", predict)
    assert asyncio.run(ask(5, 100)) == [True] * 5
    assert asyncio.run(ask(2, 1 << 15)) == [False] * 2  # large ones may take long
    seconds = 0.05
    assert asyncio.run(ask(5, 100)) == [True] + [False] * 4
    seconds = 0.0
    assert asyncio.run(ask(100, 100))[-1]  # quick again
