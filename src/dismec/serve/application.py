"""HTTP: requests → a `Service` → responses. The one importer of the web framework."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dismec.cpu import thread_count
from dismec.errors import DataError, NotReady
from dismec.serve import prometheus
from dismec.serve.answers import NoExplanations, Service
from dismec.serve.connections import ConnectionLimits, connection_class
from dismec.serve.contract import Limits
from dismec.serve.description import openapi
from dismec.serve.page import docs_page, page
from dismec.serve.queries import NumericRows

__all__ = ["serve"]

_BODY_SECONDS = 30  # for a body to arrive
_BODIES_BYTES = 1 << 28  # of all bodies together, or four of the largest
_IDLE_SECONDS = 75  # longer than load balancers keep an idle connection, so that they close first
_CLUSTER_THREADS = 32
_SHUTDOWN_SECONDS = 60  # for what is in flight when the server is told to end
# Of what a `Service` raises; the first that fits.
_STATUSES = {NumericRows: 422, DataError: 400, NoExplanations: 501, NotReady: 503}

_MEND_SECONDS = 1.0

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


def serve(
    path: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    threads: int | None = None,
    limits: Limits | None = None,
    token: str | None = None,
    cluster: str | None = None,
    ready: Callable[[str], None] = _log.info,
) -> None:
    """Serve a model until SIGTERM or SIGINT; what is in flight then is finished.

    Must be called from the main thread. SIGHUP opens the model directory again. `threads` is how
    many predictions are computed at a time, by default one per available CPU, and 32 on a cluster,
    where threads only wait. Requests must carry `token` as ``Authorization: Bearer``; None lets
    everybody in, and there is no ``/reload``. The workers of `cluster`, an address or a scheduler
    file, hold the weights. `ready` is called with the address once requests are answered.
    """
    if token is not None and not token.strip():
        raise DataError("the token is empty; set DISMEC_TOKEN to a secret, or unset it")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # while the model is being opened anyway
    with _bind(host, port) as listener:
        if threads is None and cluster is not None:
            threads = _CLUSTER_THREADS
        service = Service(Path(path), cluster, limits or Limits())
        endpoints = _Endpoints(service, thread_count(threads), token)
        config = uvicorn.Config(
            _application(endpoints),
            http=connection_class(ConnectionLimits(), _trusted(listener, host, token)),
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        server = _Server(config, endpoints, ready)
        # uvicorn raises the signal that ended it once more for whoever had its handler before.
        signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
        try:
            server.run(sockets=[listener])
        finally:
            service.model.close()


def _trusted(listener: socket.socket, host: str, token: str | None) -> Callable[[str], bool] | None:
    """Which Host headers are answered; None for all.

    A web page of somebody else can make its own name point to this machine, and a browser here
    send requests under that name: without a token, a server that is for this machine alone answers
    only to the names of this machine.
    """
    address = listener.getsockname()[0]
    if token is not None or not ipaddress.ip_address(address).is_loopback:
        return None
    names = {"localhost", host.lower(), address}

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
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    return listener


class _Server(uvicorn.Server):
    """uvicorn's, which says when it is ready and listens to SIGHUP."""

    def __init__(
        self, config: uvicorn.Config, endpoints: _Endpoints, ready: Callable[[str], None]
    ) -> None:
        super().__init__(config)
        self._endpoints = endpoints
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGHUP, self._endpoints.reload_in_background
        )
        await super().startup(sockets)
        if not self.started or not sockets:
            return
        host, port = sockets[0].getsockname()[:2]
        if not ipaddress.ip_address(host).is_loopback and not self._endpoints.guarded:
            _log.warning("other machines can reach this server, and DISMEC_TOKEN is not set")
        self._ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")


class _DamagedModel(NotReady):
    """A file of the model was cut off or written to while it was in use."""


class _Endpoints:
    """What is done for each path, in the event loop's thread."""

    def __init__(self, service: Service, threads: int, token: str | None) -> None:
        self.metrics = prometheus.Metrics()
        self.guarded = token is not None
        self._token = (token or "").encode(errors="surrogateescape")
        self._service = service
        self._limits = service.contract.limits
        self._reloading = asyncio.Lock()
        self._reloads: set[asyncio.Task[bool]] = set()
        self._next_mend = 0.0  # by the monotonic clock
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="dismec-serve")
        self._places = threads + self._limits.queue
        self._held = 0  # bytes of bodies
        self._most_held = max(_BODIES_BYTES, 4 * self._limits.body)

    async def predict(self, request: Request) -> Response:
        answer, rows = await self._work(request, self._service.predict)
        self.metrics.rows += rows
        return Response(answer, media_type="application/json")

    async def explain(self, request: Request) -> Response:
        answer = await self._work(request, self._service.explain)
        return Response(answer, media_type="application/json")

    async def example(self, request: Request) -> Response:
        return JSONResponse(await self._work(request, lambda _: self._service.example()))

    async def labels(self, request: Request) -> Response:
        query = dict(request.query_params)
        return JSONResponse(await self._work(request, lambda _: self._service.labels(query)))

    async def _work(self, request: Request, task: Callable[[bytes], _T]) -> _T:
        """What `task` makes of the request's body, in a thread of the pool."""
        self._authorise(request)
        self._check_ready()
        if int(request.headers.get("content-length", 0)) > self._limits.body:
            raise self._too_large()
        # A body that arrives slowly takes no place of others; what is held of all is bounded.
        body = bytearray()
        try:
            await self._read(request, body)
            if self.metrics.pending >= self._places:
                raise NotReady("the queue is full")
            self.metrics.pending += 1
            try:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._pool, self._sound, task, bytes(body))
            except _DamagedModel as error:
                self._mend(error)
                raise
            finally:
                self.metrics.pending -= 1
        finally:
            self._held -= len(body)

    async def _read(self, request: Request, body: bytearray) -> None:
        self.metrics.arriving += 1
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for chunk in request.stream():
                    if len(body) + len(chunk) > self._limits.body:
                        raise self._too_large()
                    if self._held + len(chunk) > self._most_held:
                        raise NotReady("the bodies of other requests take all memory there is")
                    self._held += len(chunk)
                    body += chunk
        except TimeoutError:
            reason = f"the body did not arrive within {_BODY_SECONDS} seconds"
            raise HTTPException(408, reason, {"Connection": "close"}) from None
        except ClientDisconnect:
            raise HTTPException(400, "the body was cut off") from None
        finally:
            self.metrics.arriving -= 1

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"the body has more than {self._limits.body} bytes")

    def _sound(self, task: Callable[[bytes], _T], body: bytes) -> _T:
        """What a task returns, unless a file of the model was damaged meanwhile."""
        models = {self._service.model}
        try:
            return task(body)
        finally:  # what came of damage may be an error as well
            models.add(self._service.model)  # it may have been changed before the task took it
            if reason := next(filter(None, (model.damage for model in models)), None):
                raise _DamagedModel(reason)

    def _check_ready(self) -> None:
        model = self._service.model
        if (reason := model.not_ready) is None:
            return
        error = NotReady(reason) if model.damage is None else _DamagedModel(reason)
        if isinstance(error, _DamagedModel):
            self._mend(error)
        raise error

    def _mend(self, error: Exception) -> None:
        """Open the model again after damage to its files, from time to time until there is one."""
        if self._reloads or time.monotonic() < self._next_mend:
            return
        self._next_mend = time.monotonic() + _MEND_SECONDS
        _log.error("%s; opening the model again", error)
        self.reload_in_background()

    async def health(self, _: Request) -> Response:
        self._check_ready()
        return JSONResponse({"status": "ok"})

    async def page(self, _: Request) -> Response:
        text, headers = page(self._service.model, self._service.name)
        return HTMLResponse(text, headers=headers)

    async def model(self, request: Request) -> Response:
        self._authorise(request)
        return JSONResponse(self._service.describe())

    async def show_metrics(self, request: Request) -> Response:
        self._authorise(request)
        return Response(self.metrics.text(), headers={"Content-Type": prometheus.CONTENT_TYPE})

    async def openapi(self, _: Request) -> Response:
        return JSONResponse(self._description())

    async def docs(self, _: Request) -> Response:
        text, headers = docs_page(self._description(), self._service.name)
        return HTMLResponse(text, headers=headers)

    def _description(self) -> dict[str, Any]:
        model, service = self._service.model, self._service
        takes = model.capabilities.texts, bool(model.n_features), model.n_dense
        return openapi(service.contract, service.version, self.guarded, *takes)

    async def reload(self, request: Request) -> Response:
        self._authorise(request)
        if not await self._reload():
            raise HTTPException(500, "the model could not be opened; the old one stays")
        return JSONResponse(self._service.describe())

    def reload_in_background(self) -> None:
        """Open the model again without waiting for it."""
        task = asyncio.create_task(self._reload())
        self._reloads.add(task)  # the loop itself keeps no reference
        task.add_done_callback(self._reloads.discard)

    async def _reload(self) -> bool:
        async with self._reloading:
            done = await asyncio.to_thread(self._service.reload)
        self.metrics.reloads["ok" if done else "failed"] += 1
        return done

    def _authorise(self, request: Request) -> None:
        if not self.guarded:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode("latin-1"), self._token)
        if scheme.lower() != "bearer" or not right:
            reason = "the token is missing or wrong: Authorization: Bearer …"
            raise HTTPException(401, reason, {"WWW-Authenticate": "Bearer"})


def _application(endpoints: _Endpoints) -> ASGIApp:
    routes = [
        Route("/", endpoints.page),
        Route("/predict", endpoints.predict, methods=["POST"]),
        Route("/explain", endpoints.explain, methods=["POST"]),
        Route("/labels", endpoints.labels),
        Route("/example", endpoints.example),
        Route("/health", endpoints.health),
        Route("/model", endpoints.model),
        Route("/metrics", endpoints.show_metrics),
        Route("/openapi.json", endpoints.openapi),
        Route("/docs", endpoints.docs),
    ]
    if endpoints.guarded:
        routes.append(Route("/reload", endpoints.reload, methods=["POST"]))
    handlers = dict.fromkeys((HTTPException, *_STATUSES), _refuse) | {Exception: _fail}
    application = Starlette(routes=routes, exception_handlers=handlers)
    application.router.redirect_slashes = False
    return _measured(application, {route.path for route in routes}, endpoints.metrics)


async def _refuse(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        status = next(status for kind, status in _STATUSES.items() if isinstance(error, kind))
        headers = {"Retry-After": "1"} if status == 503 else None
        error = HTTPException(status, str(error), headers)
    reason = json.dumps({"error": " ".join(error.detail.split())}, ensure_ascii=False)
    return Response(reason, error.status_code, headers=error.headers, media_type="application/json")


async def _fail(_: Request, __: Exception) -> Response:
    return JSONResponse({"error": "internal error; the server's log has the details"}, 500)


def _measured(application: ASGIApp, paths: set[str], metrics: prometheus.Metrics) -> ASGIApp:
    """The application, with its answers counted."""

    async def measured(scope: Scope, receive: Receive, send: Send) -> None:
        begin = time.perf_counter()
        status = 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await application(scope, receive, noted)
        finally:
            path = scope["path"] if scope["path"] in paths else "other"
            metrics.count(path, status, time.perf_counter() - begin)

    return measured
