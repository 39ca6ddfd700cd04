"""Real `dismec serve` processes, and a client for them."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path

TIMEOUT = 180  # seconds; generous, for busy machines


class Server:
    """A running server, with a client for it."""

    def __init__(self, process, log):
        self.process = process
        self.log = log
        line = process.stdout.readline()
        found = re.fullmatch(r"serving .* on http://127\.0\.0\.1:(\d+)\n", line)
        assert found, line + log.read_text()
        self.port = int(found[1])

    def connect(self):
        return closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT))

    def ask(self, method, path, body=None, headers=None):
        """Return the status, headers and parsed body of an answer."""
        with self.connect() as connection:
            return exchange(connection, method, path, body, headers)

    def predict(self, body, **headers):
        return self.ask("POST", "/predict", json.dumps(body), headers)

    def metric(self, name):
        text = self.ask("GET", "/metrics")[2]
        return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)[1])

    @contextmanager
    def half_sent(self, body):
        """Send half of a request; yield a function that sends the rest and returns the answer."""
        data = json.dumps(body).encode()
        arriving = self.metric("dismec_arriving_requests")
        with self.connect() as connection:
            connection.putrequest("POST", "/predict")
            connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data[: len(data) // 2])
            wait_until(lambda: self.metric("dismec_arriving_requests") == arriving + 1)

            def finish():
                connection.send(data[len(data) // 2 :])
                return received(connection)

            yield finish

    def memory(self):
        """Return the peak resident size in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def exchange(connection, method, path, body=None, headers=None):
    connection.request(method, path, body, headers or {})
    return received(connection)


def received(connection):
    response = connection.getresponse()
    data = response.read()
    is_json = response.headers["Content-Type"] == "application/json"
    return response.status, response.headers, json.loads(data) if is_json else data.decode()


def wait_until(holds):
    end = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def serving(directory, model, *options, token=None):
    env = {key: value for key, value in os.environ.items() if key != "DISMEC_TOKEN"}
    if token is not None:
        env["DISMEC_TOKEN"] = token
    command = [sys.executable, "-m", "dismec", "serve", str(model), "--port", "0", *options]
    log = directory / f"log-{time.monotonic_ns()}"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env
        ) as process,
    ):
        try:
            yield Server(process, log)
        finally:
            process.kill()
