"""Connections → requests, with limits on what silent, slow and greedy clients can occupy.

A connection that sends nothing, sends a request slowly or does not read its answer costs a file
descriptor and some memory. If there are too many, the one that has been idle, or sending, longest
is closed for a new one, so a client that sends a complete request is always answered.
"""

# ruff: noqa: D102  the methods are those of uvicorn and asyncio

from __future__ import annotations

import asyncio
import http
import json
import logging
import sys
import time
from dataclasses import dataclass
from typing import cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_log = logging.getLogger(__name__)
_SPARE_FILES = 64  # descriptors reserved for other uses than connections


@dataclass(frozen=True)
class _Limits:
    """Limits on connections."""

    connections: int = 1024  # in total; fewer if the process may not open that many files
    per_address: int = 512
    header_bytes: int = 1 << 15  # also of what is between and after the chunks of a body
    headers: int = 100
    header_seconds: float = 10.0  # for a header to arrive, or a body that nobody reads
    write_seconds: float = 30.0  # for a client to read some of its answer
    answer_bytes: int = 1 << 27  # answers waiting to be read, in total

    @property
    def most(self) -> int:
        """Maximum number of connections."""
        if sys.platform == "win32":  # no such limit
            return self.connections
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = self.connections if soft == resource.RLIM_INFINITY else soft - _SPARE_FILES
        return max(8, min(self.connections, files))


class Connection(HttpToolsProtocol, asyncio.BufferedProtocol):
    """uvicorn's protocol, with limits, reading through one shared buffer.

    asyncio's own reads allocate 256 KB and return all but the bytes that arrived. The rest is
    scattered over the heap, and the next read finds no free 256 KB in between, so the heap grows.
    """

    limits = _Limits()
    _buffer = memoryview(bytearray(1 << 18))  # shared by all connections: empty between two reads

    _quiet_since: float  # when it last finished something, or a header was complete
    _header_bytes = 0  # received since the last header or piece of a body was complete
    _crowded = ""  # why there is no place for this connection, except for asking about liveness
    _in_message = False  # between a header and the end of its body
    _unread = False  # after an answer, while the body still arrives
    _timer: asyncio.TimerHandle | None = None  # timeout for a header
    _write_timer: asyncio.TimerHandle | None = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._buffer[:nbytes]))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if "stopping" in self.app_state:  # accepted in the moment in which the server stopped
            self.shutdown()
            return
        self._quiet_since = time.monotonic()
        self._await_header()
        near = [other for other in self._all if other._address == self._address]
        if len(near) > self.limits.per_address:
            self._make_room(near, "too many connections from this address")
        elif len(self._all) > self.limits.most:
            self._make_room(list(self._all), "too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        self.app_state["stopping"] = True  # shared by all connections
        super().shutdown()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        if self._timer is None and not self._in_message:
            self._await_header()
        self._header_bytes += len(data)
        if self._header_bytes <= self.limits.header_bytes + len(self._buffer):
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade:
                return  # the request has been answered
            except httptools.HttpParserError:
                self._refuse(400, "the request is not valid HTTP")
        if self._header_bytes > self.limits.header_bytes:
            self._refuse(431, "the header is too large")

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= self.limits.headers:
            self._refuse(431, "too many header fields")
            return
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._crowded and self.url != b"/health/live":
            self._refuse(503, self._crowded)
        if self.transport.is_closing():
            return
        self._cancel_header_timer()
        self._header_bytes = 0
        self._in_message, self._quiet_since = True, time.monotonic()
        if self.parser.should_upgrade():
            # Data after such a header belongs to another protocol and must not become a request.
            self._refuse(400, "this server does not switch protocols: leave out Upgrade")
            return
        if sum(len(name) + len(value) for name, value in self.headers) > self.limits.header_bytes:
            self._refuse(431, "the header is too large")
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._header_bytes = 0
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._cancel_header_timer()
        self._in_message = self._unread = False
        if not self.transport.is_closing():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._quiet_since = time.monotonic()
        if self._in_message and self.cycle.response_complete:
            self._unread = True
            self._await_header()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self._write_timer or self.loop.call_later(
            self.limits.write_seconds, self._give_up_writing
        )
        waiting = [other for other in self._all if other._write_timer is not None]
        sizes = {c: c.transport.get_write_buffer_size() for c in waiting}
        if sum(sizes.values()) > self.limits.answer_bytes:
            # The connection with the most data is not reading, or requests more than its share.
            max(waiting, key=lambda c: sizes[c])._give_up_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_write_timer()

    @property
    def _all(self) -> set[Connection]:
        return cast("set[Connection]", self.connections)

    @property
    def _address(self) -> str | None:
        return self.client[0] if self.client else None

    @property
    def _is_idle(self) -> bool:
        """Return whether no complete request is being answered."""
        return self.cycle is None or self.cycle.response_complete or self._in_message

    def _await_header(self) -> None:
        self._header_bytes = 0
        self._timer = self.loop.call_later(self.limits.header_seconds, self._give_up_header)

    def _give_up_header(self) -> None:
        self._timer = None
        if self._header_bytes:
            self._refuse(408, "the header did not arrive in time")
        self.transport.close()

    def _give_up_writing(self) -> None:
        self._write_timer = None
        self.transport.abort()

    def _make_room(self, among: list[Connection], reason: str) -> None:
        """Close the connection that has been idle longest; if there is none, refuse this one."""
        idle = [c for c in among if c is not self and c._is_idle and not c.transport.is_closing()]
        if idle:
            min(idle, key=lambda c: c._quiet_since).transport.abort()
        else:
            self._crowded = reason

    def _refuse(self, status: int, reason: str) -> None:
        if self.transport.is_closing():
            return
        self._cancel_timers()
        body = json.dumps({"error": reason}).encode()
        head = (
            f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        if not self._unread:  # otherwise it would be a second answer
            self.transport.write(head.encode() + body)
        self.transport.close()

    def _cancel_header_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _cancel_timers(self) -> None:
        self._cancel_header_timer()
        self._cancel_write_timer()
