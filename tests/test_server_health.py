"""A server reports truthfully whether it is alive, and ready to predict."""

from __future__ import annotations

import os
import signal

import pytest

from clusters import Processes
from conftest import random_problem
from dismec import open_model, train
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
