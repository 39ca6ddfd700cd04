"""A port → connections → an application, in one or several processes. Runs uvicorn."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvicorn

from dismec.cpu import available_cpus, thread_count
from dismec.data.printable import printable
from dismec.errors import DataError
from dismec.serve.answers import Service
from dismec.serve.application import application
from dismec.serve.connections import ConnectionLimits, connection_class
from dismec.serve.peers import Alone, Peers
from dismec.serve.prometheus import Metrics
from dismec.serve.schemas import Limits

__all__ = ["HttpServer", "Settings", "serve", "start_log"]

_IDLE_SECONDS = 75  # longer than load balancers keep idle connections, so they close first
_CLUSTER_THREADS = 32
_SHUTDOWN_SECONDS = 60  # for requests in flight at shutdown

_log = logging.getLogger(__name__)


class _LogLines(logging.Formatter):
    """Formats lines with the time and without terminal control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def start_log() -> None:
    """Make a server process log to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(_LogLines("%(asctime)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)


@dataclass(frozen=True)
class Settings:
    """The settings of all processes of a server."""

    threads: int  # predictions that a process computes at a time
    limits: Limits
    token: str | None
    hosts: list[str] | None  # allowed in Host, besides the machine's own addresses; None: any
    hierarchy: str | None = None  # file with the parents of labels

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> Settings:
        """Invert `to_dict`."""
        return cls(**d | {"limits": Limits(**d["limits"])})


def serve(
    path: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    threads: int | None = None,
    limits: Limits | None = None,
    token: str | None = None,
    cluster: str | None = None,
    hierarchy: str | os.PathLike[str] | None = None,
    ready: Callable[[str], None] = _log.info,
) -> None:
    """Serve a model until SIGTERM or SIGINT, then finish the requests in flight.

    Must be called from the main thread. SIGHUP opens the model directory again. `workers` is the
    number of processes that answer; they share the port and the memory of the weights. `threads` is
    the number of predictions that each of them computes at a time, by default its share of the
    available CPUs, and 32 on a cluster, where threads only wait. Requests must carry `token` as
    ``Authorization: Bearer``; None disables authentication and ``/reload``. The workers of
    `cluster`, an address or a scheduler file, hold the weights. `hierarchy` is a file with the
    parents of labels. `ready` is called with the address once requests are answered.
    """
    if token is not None and not token.strip():
        raise DataError("the token is empty; set DISMEC_TOKEN to a secret, or unset it")
    if workers < 1:
        raise DataError(f"workers is {workers}; expected at least 1")
    if workers > 1 and cluster is not None:
        raise DataError("more than 1 worker is not supported with a cluster")
    if workers > 1 and sys.platform != "linux":
        raise DataError("more than 1 worker is supported on Linux only")
    if threads is None:
        threads = max(1, available_cpus() // workers) if cluster is None else _CLUSTER_THREADS
    if sys.platform != "win32":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the model is being opened anyway
    with _bind(host, port) as listener:
        hosts = _trusted_hosts(listener, host, token)
        tree = None if hierarchy is None else str(Path(hierarchy).absolute())
        settings = Settings(thread_count(threads), limits or Limits(), token, hosts, tree)

        def announce() -> None:
            address, number = listener.getsockname()[:2]
            if token is None and not ipaddress.ip_address(address).is_loopback:
                _log.warning("other machines can reach this server, but DISMEC_TOKEN is not set")
            shown = f"[{address}]" if ":" in address else address
            ready(f"http://{shown}:{number}")

        if sys.platform == "linux" and workers > 1:
            from dismec.serve.supervisor import Supervisor

            Supervisor(Path(path), settings.to_dict(), workers, listener).run(announce)
        else:
            file = None if tree is None else Path(tree)
            service = Service(Path(path), cluster, settings.limits, hierarchy=file)
            _serve_alone(service, settings, listener, announce)


def _serve_alone(
    service: Service, settings: Settings, listener: socket.socket, announce: Callable[[], None]
) -> None:
    metrics = Metrics()
    peers = Alone(service, metrics)

    def begin() -> None:
        if sys.platform != "win32":
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, peers.reload_in_background)
        announce()

    server = HttpServer(service, metrics, peers, settings, begin)
    # uvicorn raises the signal that ended it again, for the previous handler.
    signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
    try:
        server.run(sockets=[listener])
    finally:
        service.model.close()


class HttpServer(uvicorn.Server):
    """uvicorn's server, with limits on connections; `begin` is called when it is ready."""

    def __init__(
        self,
        service: Service,
        metrics: Metrics,
        peers: Peers,
        settings: Settings,
        begin: Callable[[], None],
        closed: Callable[[], None] | None = None,
    ) -> None:
        trusted = None if settings.hosts is None else _trusted(frozenset(settings.hosts))
        config = uvicorn.Config(
            application(service, metrics, peers, settings.threads, settings.token),
            http=connection_class(ConnectionLimits(), trusted, closed),
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        super().__init__(config)
        self._begin = begin

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and call `begin`."""
        await super().startup(sockets)
        if self.started:
            self._begin()

    async def take(self, connection: socket.socket) -> None:
        """Serve a connection that another process has accepted."""
        loop = asyncio.get_running_loop()
        kind: Any = self.config.http_protocol_class
        state = {"server_state": self.server_state, "app_state": self.lifespan.state}
        await loop.connect_accepted_socket(
            lambda: kind(config=self.config, _loop=loop, **state), connection
        )


def _trusted_hosts(listener: socket.socket, host: str, token: str | None) -> list[str] | None:
    """Return the names allowed in Host headers; None for all.

    A foreign web page can make its own name point to this machine, and a browser here would send
    requests under that name. Without a token, a server that is only for this machine therefore
    answers only to the names of this machine.
    """
    address = listener.getsockname()[0]
    if token is not None or not ipaddress.ip_address(address).is_loopback:
        return None
    return ["localhost", host.lower(), address]


def _trusted(names: frozenset[str]) -> Callable[[str], bool]:
    def trusted(header: str) -> bool:
        name = header.strip().lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
        try:
            return name in names or ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    return trusted


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        if sys.platform == "win32":  # SO_REUSEADDR would let others take over the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    return listener
