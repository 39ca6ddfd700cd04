"""HTTP: requests → a `Service` → responses. The only importer of the web framework."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import multiprocessing
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dismec.data.printable import printable
from dismec.errors import DataError
from dismec.serve.answers import Service
from dismec.serve.contract import openapi
from dismec.serve.page import docs_page, page
from dismec.serve.prometheus import CONTENT_TYPE, Metrics
from dismec.serve.request_rows import LongTexts, NumericRows

_BODY_SECONDS = 30  # for a body to arrive
_BODIES_BYTES = 1 << 28  # all bodies together, or four of the largest

# Requests this small are computed in the event loop's thread while they take this much CPU time on
# average: handing them to another thread would cost more than it gains.
_PROMPT_BYTES = 1 << 14
_PROMPT_SCORES = 100_000  # rows times labels
_PROMPT_SECONDS = 0.5e-3
_PROMPT_SHARE = 0.1  # of the latest request in the average

_WATCH_SECONDS = 1.0  # between two looks at the files of the model
_MOST_RETRY_SECONDS = 60.0  # between two attempts to open a model that cannot be opened

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """The settings of each process of a server."""

    threads: int  # predictions that it computes at a time
    token: str | None = None  # that requests must carry
    hosts: frozenset[str] | None = None  # allowed in Host besides loopback addresses; None: any


class _DamagedModel(Exception):  # noqa: N818  named after the state
    """A file of the model was truncated or written to while in use."""


# For exceptions of a task; the first match counts.
_STATUSES = {LongTexts: 413, NumericRows: 422, DataError: 400, _DamagedModel: 503}


class _Endpoints:
    """The handlers of all paths, run in the event loop's thread."""

    def __init__(self, service: Service, settings: Settings) -> None:
        self.metrics = Metrics()
        self.guarded = settings.token is not None
        self.has_hierarchy = service.has_hierarchy
        self._token = (settings.token or "").encode(errors="surrogateescape")
        self._service = service
        self._limits = service.limits
        self._pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="dismec-serve")
        self._pending = 0  # predictions waiting or being computed
        self._most_pending = settings.threads + self._limits.queue
        self._mean_seconds = 0.0  # CPU time of small requests
        self._reloading = asyncio.Lock()
        self._background: set[asyncio.Task[bool]] = set()
        self._next_reopen = 0.0  # on the monotonic clock
        self._held = 0  # bytes of bodies in memory
        self._most_held = max(_BODIES_BYTES, 4 * self._limits.body)

    async def predict(self, request: Request) -> Response:
        answer, rows = await self._work(request, self._service.predict)
        self.metrics.rows.inc(rows)
        return Response(answer, media_type="application/json")

    async def explain(self, request: Request) -> Response:
        answer = await self._work(request, self._service.explain)
        return Response(answer, media_type="application/json")

    async def example(self, request: Request) -> Response:
        return _answered(await self._work(request, lambda _: self._service.example()))

    async def search(self, request: Request) -> Response:
        """Answer a query for labels, or for nodes of the hierarchy."""
        find = self._service.tree if request.url.path == "/tree" else self._service.labels
        query = dict(request.query_params)
        return _answered(await self._work(request, lambda _: find(query)))

    async def _work(self, request: Request, task: Callable[[bytes], _T]) -> _T:
        """Return the result of `task` for the body of an authorized request."""
        self._authorise(request)
        self._check_ready()
        if int(request.headers.get("content-length", 0)) > self._limits.body:
            raise self._too_large()
        # A body that arrives slowly takes no slot from others; the total size of all bodies is
        # bounded.
        body = bytearray()
        try:
            await self._read(request, body)
            if self._pending >= self._most_pending:
                raise _busy("the queue is full")
            self._pending += 1
            self.metrics.pending.inc()
            try:
                return await self._computed(task, bytes(body))
            except _DamagedModel as error:
                self._reopen(error)
                raise
            finally:
                self._pending -= 1
                self.metrics.pending.dec()
        finally:
            self._held -= len(body)

    async def _computed(self, task: Callable[[bytes], _T], body: bytes) -> _T:
        """Return the result of a task: computed at once if that is quick, else in the pool."""
        scores = max(1, body.count(b"{") - 1) * self._service.model.n_labels  # a row is an object
        small = len(body) <= _PROMPT_BYTES and scores <= _PROMPT_SCORES
        if small and self._mean_seconds <= _PROMPT_SECONDS:
            return self._timed(task, body)
        run = self._timed if small else self._checked_result
        return await asyncio.get_running_loop().run_in_executor(self._pool, run, task, body)

    def _timed(self, task: Callable[[bytes], _T], body: bytes) -> _T:
        """Return the result of a small task, and note how long it takes."""
        begin = time.thread_time()
        try:
            return self._checked_result(task, body)
        finally:
            taken = time.thread_time() - begin
            self._mean_seconds += _PROMPT_SHARE * (taken - self._mean_seconds)

    async def _read(self, request: Request, body: bytearray) -> None:
        self.metrics.arriving.inc()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for chunk in request.stream():
                    if len(body) + len(chunk) > self._limits.body:
                        raise self._too_large()
                    if self._held + len(chunk) > self._most_held:
                        raise _busy("the bodies of other requests use all available memory")
                    self._held += len(chunk)
                    body += chunk
        except TimeoutError:
            reason = f"the body did not arrive within {_BODY_SECONDS} seconds"
            raise HTTPException(408, reason, {"Connection": "close"}) from None
        except ClientDisconnect:
            raise HTTPException(400, "the body was truncated") from None
        finally:
            self.metrics.arriving.dec()

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"the body has more than {self._limits.body} bytes")

    def _checked_result(self, task: Callable[[bytes], _T], body: bytes) -> _T:
        """Return the result of a task, unless a file of the model was damaged meanwhile."""
        models = {self._service.model}
        try:
            return task(body)
        finally:  # damage may also have caused an error
            models.add(self._service.model)  # it may have changed before the task started
            if reason := next(filter(None, (model.damage for model in models)), None):
                raise _DamagedModel(reason)

    def _check_ready(self) -> None:
        if (reason := self._service.model.damage) is not None:
            error = _DamagedModel(reason)
            self._reopen(error)
            raise error

    def _reopen(self, error: Exception) -> None:
        """Open the model again after damage to its files, retrying from time to time."""
        if not self._reloading.locked() and time.monotonic() >= self._next_reopen:
            self._next_reopen = time.monotonic() + _WATCH_SECONDS
            _log.error("%s; opening the model again", error)
            self._reload_in_background()

    async def _reload(self) -> bool:
        """Switch to the model on disk; return False if that is not possible."""
        async with self._reloading:
            done = await asyncio.to_thread(self._service.reload)
        self.metrics.reloads.labels("ok" if done else "failed").inc()
        return done

    def _reload_in_background(self) -> None:
        task = asyncio.create_task(self._reload())
        self._background.add(task)  # the loop itself keeps no reference
        task.add_done_callback(self._background.discard)

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Reload the model after SIGHUP, and when its files change."""
        if sys.platform != "win32":
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, self._reload_in_background)
        if multiprocessing.parent_process() is not None:
            # Ctrl-C reaches every process of a terminal, but the first one ends the others.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        watching = asyncio.create_task(self._watch())
        yield
        watching.cancel()

    async def _watch(self) -> None:
        failed, delay, due = None, 0.0, 0.0  # files that could not be opened, and when to retry
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            parent = multiprocessing.parent_process()
            if parent is not None and not parent.is_alive():
                signal.raise_signal(signal.SIGTERM)
            if self._service.is_current:
                continue
            files, now = self._service.files_on_disk(), time.monotonic()
            if files != failed:
                delay = _WATCH_SECONDS
            elif now < due:
                continue
            if not await self._reload():
                delay = min(2 * delay, _MOST_RETRY_SECONDS)
                failed, due = files, now + delay

    async def live(self, _: Request) -> Response:
        """Answer that the process is running, whether or not it can predict."""
        return _answered({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """Answer whether predictions are possible now."""
        self._check_ready()
        return _answered({"status": "ok"})

    async def page(self, _: Request) -> Response:
        text, headers = page(self._service.model)
        return HTMLResponse(text, headers=headers)

    async def model(self, request: Request) -> Response:
        self._authorise(request)
        return _answered(self._service.describe())

    async def show_metrics(self, request: Request) -> Response:
        self._authorise(request)
        return Response(self.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def openapi(self, _: Request) -> Response:
        service = self._service
        return _answered(openapi(service.contract, service.version, self.guarded))

    async def docs(self, _: Request) -> Response:
        text, headers = docs_page(self._service.name)
        return HTMLResponse(text, headers=headers)

    async def reload(self, request: Request) -> Response:
        self._authorise(request)
        self._service.reload_others()
        if not await self._reload():
            raise HTTPException(500, "the model could not be opened; the old one is still served")
        return _answered(self._service.describe())

    def _authorise(self, request: Request) -> None:
        if not self.guarded:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode("latin-1"), self._token)
        if scheme.lower() != "bearer" or not right:
            reason = 'the token is missing or wrong; send it as "Authorization: Bearer …"'
            raise HTTPException(401, reason, {"WWW-Authenticate": "Bearer"})


def application(service: Service, settings: Settings) -> ASGIApp:
    """Create the ASGI application of a server process."""
    endpoints = _Endpoints(service, settings)
    routes = [
        Route("/", endpoints.page),
        Route("/predict", endpoints.predict, methods=["POST"]),
        Route("/explain", endpoints.explain, methods=["POST"]),
        Route("/labels", endpoints.search),
        Route("/example", endpoints.example),
        Route("/health", endpoints.ready),
        Route("/health/live", endpoints.live),
        Route("/health/ready", endpoints.ready),
        Route("/model", endpoints.model),
        Route("/metrics", endpoints.show_metrics),
        Route("/openapi.json", endpoints.openapi),
        Route("/docs", endpoints.docs),
    ]
    if endpoints.has_hierarchy:
        routes.append(Route("/tree", endpoints.search))
    if endpoints.guarded:
        routes.append(Route("/reload", endpoints.reload, methods=["POST"]))
    handlers = dict.fromkeys((HTTPException, *_STATUSES), _refuse) | {Exception: _fail}
    starlette = Starlette(routes=routes, exception_handlers=handlers, lifespan=endpoints.lifespan)
    starlette.router.redirect_slashes = False
    paths = {route.path for route in routes}
    return _measured(_guarded(starlette, settings.hosts), paths, endpoints.metrics)


def _answered(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return JSON in which all terminal control characters are escaped."""
    text = printable(json.dumps(value, ensure_ascii=False, allow_nan=False))
    return Response(text, status, headers=headers, media_type="application/json")


async def _refuse(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        status = next(status for kind, status in _STATUSES.items() if isinstance(error, kind))
        error = HTTPException(status, str(error)) if status != 503 else _busy(str(error))
    reason = {"error": " ".join(error.detail.split())}
    return _answered(reason, error.status_code, error.headers)


def _busy(reason: str) -> HTTPException:
    return HTTPException(503, reason, {"Retry-After": "1"})


async def _fail(_: Request, __: Exception) -> Response:
    return _answered({"error": "internal error; the server's log has the details"}, 500)


def _guarded(answering: ASGIApp, hosts: frozenset[str] | None) -> ASGIApp:
    """Wrap an application to refuse requests for other hosts."""
    if hosts is None:
        return answering
    refusal = {"error": "the Host header does not name this server"}

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            named = [value.decode("latin-1") for key, value in scope["headers"] if key == b"host"]
            if len(named) != 1 or not _is_trusted(named[0], hosts):
                answer = _answered(refusal, 403, {"Connection": "close"})
                return await answer(scope, receive, send)
        return await answering(scope, receive, send)

    return guarded


def _is_trusted(header: str, hosts: frozenset[str]) -> bool:
    name = header.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    try:
        return name in hosts or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _measured(answering: ASGIApp, paths: set[str], metrics: Metrics) -> ASGIApp:
    """Wrap an application to count its answers."""

    async def measured(scope: Scope, receive: Receive, send: Send) -> None:
        begin = time.perf_counter()
        status = 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        if scope["type"] != "http":
            return await answering(scope, receive, send)
        try:
            await answering(scope, receive, noted)
        finally:
            path = scope["path"] if scope["path"] in paths else "other"
            metrics.count(path, status, time.perf_counter() - begin)

    return measured
