"""A port → connections → an application, in one or several processes. Runs uvicorn."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.supervisors import Multiprocess

from dismec.cpu import available_cpus, thread_count
from dismec.data.printable import printable
from dismec.errors import DataError, DismecError
from dismec.serve.answers import Service
from dismec.serve.application import Settings, application
from dismec.serve.connections import Connection
from dismec.serve.contract import Limits
from dismec.serve.prometheus import FOLDER, forget_gauges

_BACKLOG = 2048  # connections waiting to be accepted
_IDLE_SECONDS = 75  # longer than load balancers keep idle connections, so they close first
_SHUTDOWN_SECONDS = 20  # for requests in flight at shutdown
_HUNG_SECONDS = 15  # for a process to start or to respond, before it is replaced
_RETRY_SECONDS = 1.0  # before a process that cannot open the model ends, and another is started

_log = logging.getLogger(__name__)

_Source = tuple[Path, Limits, Path | None]  # the model, limits of requests, and the hierarchy


class _LogLines(logging.Formatter):
    """Formats lines with the time and without terminal control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _start_log() -> None:
    """Make a server process log to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(_LogLines("%(asctime)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)


def serve(
    path: Path,
    *,
    host: str,
    port: int,
    workers: int,
    threads: int | None,
    limits: Limits,
    token: str | None,
    hierarchy: Path | None,
    ready: Callable[[str], None],
) -> None:
    """Serve a model until SIGTERM or SIGINT, then finish the requests in flight.

    Must be called from the main thread. `workers` is the number of processes that answer; they
    share the port and the memory of the weights. Each reloads the model when its directory changes,
    and after SIGHUP. `threads` is the number of predictions that each computes at a time, by
    default its share of the available CPUs. Requests must carry `token` as ``Authorization:
    Bearer``; None disables authentication and ``/reload``. `hierarchy` is a file with the parents
    of labels. `ready` is called with the address once connections are accepted.
    """
    _start_log()
    if token is not None and not token.strip():
        raise DataError("the token is empty; set DISMEC_TOKEN to a secret, or unset it")
    if threads is None:
        threads = max(1, available_cpus() // workers)
    if sys.platform != "win32":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the model is being opened anyway
    with _bind(host, port) as listener:
        source = path, limits, None if hierarchy is None else hierarchy.absolute()
        # Opened before any process is started, so that an invalid model is an error here.
        service = Service(*source)
        hosts = _trusted_hosts(listener, host, token)
        settings = Settings(thread_count(threads), token, hosts)

        def announce() -> None:
            listener.listen(_BACKLOG)
            address, number = listener.getsockname()[:2]
            if token is None and not ipaddress.ip_address(address).is_loopback:
                _log.warning("other machines can reach this server, but DISMEC_TOKEN is not set")
            shown = f"[{address}]" if ":" in address else address
            ready(f"http://{shown}:{number}")

        if workers == 1:
            _serve_alone(application(service, settings), listener, announce)
        else:
            del service
            _serve_together(source, settings, workers, listener, announce)


def _config(app: Any, **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        lifespan="on",
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        **more,
    )


def _serve_alone(app: Any, listener: socket.socket, announce: Callable[[], None]) -> None:
    server = uvicorn.Server(_config(app))
    # uvicorn raises the signal that ended it again, for the previous handler.
    signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
    announce()
    server.run(sockets=[listener])


def _serve_together(
    source: _Source,
    settings: Settings,
    workers: int,
    listener: socket.socket,
    announce: Callable[[], None],
) -> None:
    """Serve with several processes, which share counts and a marker through a folder."""
    with tempfile.TemporaryDirectory(prefix="dismec-serve-") as folder:
        marker = Path(folder) / "reload"
        marker.touch()
        os.environ[FOLDER] = folder
        try:
            # Processes receive the settings through a pipe: the token is not among their arguments.
            create = partial(_create_application, source, marker, settings)
            how = {"workers": workers, "timeout_worker_healthcheck": _HUNG_SECONDS}
            processes = _Processes(_config(create, factory=True, **how), [listener])
            processes.marker = marker
            announce()
            processes.run()
        finally:
            del os.environ[FOLDER]
    if processes.interrupted:
        raise KeyboardInterrupt


class _Processes(Multiprocess):
    """uvicorn's parent process, which makes the others reload, and reports those that died."""

    marker: Path
    interrupted = False

    def handle_hup(self) -> None:
        self.marker.touch()

    def handle_int(self) -> None:
        self.interrupted = True
        super().handle_int()

    def join_all(self) -> None:
        end = time.monotonic() + _SHUTDOWN_SECONDS + 1
        for process in self.processes:
            process.process.join(max(0.0, end - time.monotonic()))
            process.kill()  # if it is hung
        super().join_all()

    def keep_subprocess_alive(self) -> None:
        before = [process.pid for process in self.processes]
        super().keep_subprocess_alive()
        after = {process.pid for process in self.processes}
        for pid in before:
            if pid is not None and pid not in after:
                _log.error("server process %d died; starting another", pid)
                forget_gauges(pid)


def _create_application(source: _Source, marker: Path, settings: Settings) -> Any:
    """Create the application of one of several processes."""
    _start_log()
    try:
        return application(Service(*source, marker), settings)
    except (DismecError, OSError, MemoryError) as error:  # the model is being replaced
        _log.error("the model could not be opened: %s", " ".join(str(error).split()))
        time.sleep(_RETRY_SECONDS)
        sys.exit(1)


def _trusted_hosts(listener: socket.socket, host: str, token: str | None) -> frozenset[str] | None:
    """Return the names allowed in Host headers; None for all.

    A foreign web page can make its own name point to this machine, and a browser here would send
    requests under that name. Without a token, a server that is only for this machine therefore
    answers only to the names of this machine.
    """
    address = listener.getsockname()[0]
    if token is not None or not ipaddress.ip_address(address).is_loopback:
        return None
    return frozenset(("localhost", host.lower(), address))


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
