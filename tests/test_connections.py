"""Silent, slow and greedy clients: every complete request is still answered."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import uvicorn

from conftest import random_problem
from dismec import TrainingParams, train
from dismec.serve.connections import Connection, _Limits
from servers import TIMEOUT, serving, wait_until


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("connections")
    train(*random_problem(), folder / "model")
    return folder


@pytest.fixture(scope="module")
def server(files):
    with serving(files, files / "model") as server:
        yield server


def connected(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT)


def answer_of(connection):
    data = b""
    while part := connection.recv(1 << 16):
        data += part
    return data


def said(server, *parts):
    with closing(connected(server)) as connection:
        for part in parts:
            try:
                connection.sendall(part)
            except OSError:
                break
        try:
            return answer_of(connection)
        except ConnectionResetError:
            return b""


HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"


def test_a_large_header_is_refused(server):
    found = said(server, HEAD + b"X: ", *[b"a" * (1 << 16)] * 100)
    assert found == b"" or found.startswith(b"HTTP/1.1 431 ")
    assert said(server, HEAD + b"X: " + b"a" * 40_000 + b"\r\n\r\n").startswith(b"HTTP/1.1 431 ")
    many = b"".join(b"X-%d: 1\r\n" % i for i in range(200))
    assert said(server, HEAD + many + b"\r\n").startswith(b"HTTP/1.1 431 ")
    assert server.predict({"features": []})[0] == 200


def test_an_upgrade_is_refused_and_what_follows_is_not_a_request(server):
    inner = b"GET /model HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    found = said(server, head + b"Content-Length: %d\r\n\r\n" % len(inner) + inner)
    assert found.startswith(b"HTTP/1.1 400 ")
    assert found.count(b"HTTP/1.1") == 1
    assert b"n_labels" not in found


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""]
)
def test_another_host_is_refused_on_loopback_without_a_token(server, host):
    found = said(server, f"GET /model HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert found.startswith(b"HTTP/1.1 403 ")
    for good in ("localhost", "127.0.0.1", f"localhost:{server.port}", "[::1]:1", "127.0.0.1:9"):
        request = f"GET /health HTTP/1.1\r\nHost: {good}\r\nConnection: close\r\n\r\n"
        assert said(server, request.encode()).startswith(b"HTTP/1.1 200 ")


def test_with_a_token_any_host_is_answered(files):
    with serving(files, files / "model", token="secret") as server:
        request = b"GET /health HTTP/1.1\r\nHost: models.example\r\nConnection: close\r\n\r\n"
        assert said(server, request).startswith(b"HTTP/1.1 200 ")


@pytest.mark.slow
def test_silent_connections_make_room_for_others_without_a_flood_of_log_lines(files):
    with serving(files, files / "model") as server, ExitStack() as held:
        for i in range(1300):
            connection = held.enter_context(closing(connected(server)))
            if i % 3 == 0:
                connection.sendall(HEAD[: i % 30])
            if i % 100 == 0:
                assert server.predict({"features": []})[0] == 200
        assert server.predict({"features": []})[0] == 200
        files_open = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
        assert files_open < 600
        assert len(server.log.read_text()) < 10_000


@pytest.mark.slow
def test_an_incomplete_header_times_out(server):
    begin = time.monotonic()
    with closing(connected(server)) as silent, closing(connected(server)) as slow:
        slow.sendall(HEAD)
        assert answer_of(silent) == b""
        assert answer_of(slow).startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - begin > 8


@pytest.mark.slow
def test_answers_that_nobody_reads_do_not_fill_the_memory(files):
    row = {"features": [[i, 1.0] for i in range(40)]}
    body = json.dumps({"rows": [row] * 1000, "k": 40}).encode()
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with serving(files, files / "model", "--threads", "2") as server, ExitStack() as held:
        before = server.memory()
        for _ in range(150):
            connection = held.enter_context(closing(connected(server)))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(request)
        wait_until(lambda: server.metric("dismec_pending_requests") == 0)
        assert server.predict({"features": []})[0] == 200
        assert server.memory() - before < 400_000_000


def test_answers_are_json_whatever_the_scores_are(files):
    train(*random_problem(), files / "raw", TrainingParams(normalize=False))
    huge = {"features": [[i, 3e38] for i in range(30)]}
    with serving(files, files / "raw") as server:
        for path, body in (("/predict", huge), ("/explain", huge | {"label": 0})):
            with server.connect() as connection:
                connection.request("POST", path, json.dumps(body))
                text = connection.getresponse().read().decode()
            assert "null" in text
            assert not re.search("Infinity|NaN", text)


CHUNKED = b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("first", [b"POST /health", b"GET /nothing", b"POST /predict"])
def test_what_follows_the_last_chunk_of_a_body_is_limited_like_a_header(server, first):
    before = server.memory()
    with ExitStack() as held:
        for _ in range(20):
            connection = held.enter_context(closing(connected(server)))
            connection.sendall(first + b" HTTP/1.1\r\n" + CHUNKED + b"1\r\n{\r\n0\r\nX: ")
            with pytest.raises(ConnectionError):
                connection.sendall(b"a" * 10_000_000)
    assert server.memory() - before < 20_000_000
    assert server.predict({"features": []})[0] == 200


def test_chunks_may_be_small_and_have_trailers(server):
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in b'{"features": []}'.ljust(100_000))
    found = said(
        server,
        b"POST /predict HTTP/1.1\r\nConnection: close\r\n" + CHUNKED,
        body + b"0\r\nX: 1\r\n\r\n",
    )
    assert found.startswith(b"HTTP/1.1 200 ")


@pytest.mark.slow
def test_a_body_that_nobody_reads_must_arrive_in_time(server):
    begin = time.monotonic()
    with closing(connected(server)) as connection:
        connection.sendall(
            b"POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"
        )
        found = answer_of(connection)
    assert found.startswith(b"HTTP/1.1 405 ")
    assert found.count(b"HTTP/1.1") == 1
    assert 5 < time.monotonic() - begin < 30


def test_slow_bodies_make_room_for_others(files):
    with serving(files, files / "model") as server, ExitStack() as held:
        for i in range(520):  # more than there may be from one address
            connection = held.enter_context(closing(connected(server)))
            connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
            if i > 500:
                time.sleep(0.05)  # until it has arrived
        for _ in range(10):
            assert server.ask("GET", "/health/live")[0] == 200
            assert server.predict({"features": []})[0] == 200


def test_idle_connections_are_closed_before_a_body_that_arrives(files):
    with serving(files, files / "model") as server, ExitStack() as held:
        opened = [held.enter_context(closing(connected(server))) for _ in range(512)]
        for connection in opened[:2]:
            connection.sendall(HEAD + b"Content-Length: 16\r\n\r\n" + b'{"features": []')
        time.sleep(0.5)
        held.enter_context(closing(connected(server)))
        time.sleep(0.5)
        for connection in opened[:2]:
            connection.sendall(b"}")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_liveness_is_answered_when_there_is_no_room(files, tmp_path):
    """Every connection has a complete request that waits for an answer."""

    class Full(Connection):
        limits = _Limits(per_address=0)

        @property
        def _is_idle(self):
            return False

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def ask(path):
        server = uvicorn.Server(uvicorn.Config(app, http=Full, lifespan="off", port=0))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path)
        found = await reader.read()
        writer.close()
        server.should_exit = True
        await serving
        return found

    assert asyncio.run(ask(b"/health/live")).startswith(b"HTTP/1.1 200 ")
    assert b"too many connections from this address" in asyncio.run(ask(b"/health"))


def test_malformed_requests_write_nothing_to_the_log(files):
    with serving(files, files / "model") as server:
        for _ in range(20):
            found = said(server, b"nonsense\r\n\r\n")
            assert found.startswith(b"HTTP/1.1 400 ")
            assert b"not valid HTTP" in found
        assert server.log.read_text() == ""
