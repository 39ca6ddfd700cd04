"""HTTP: requests → a `Service` → responses. The only importer of the web framework."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dismec.data.printable import printable
from dismec.errors import DataError, NotReady
from dismec.serve import prometheus
from dismec.serve.answers import Service
from dismec.serve.description import Interface, openapi
from dismec.serve.page import docs_page, page
from dismec.serve.peers import Peers
from dismec.serve.queries import LongTexts, NumericRows

__all__ = ["application"]

_BODY_SECONDS = 30  # for a body to arrive
_BODIES_BYTES = 1 << 28  # all bodies together, or four of the largest
# For exceptions of a `Service`; the first match counts.
_STATUSES = {
    LongTexts: 413,
    NumericRows: 422,
    DataError: 400,
    NotReady: 503,
}

# Requests this small are computed in the event loop's thread while they take this much CPU time on
# average: handing them to another thread would cost more than it gains.
_PROMPT_BYTES = 1 << 14
_PROMPT_SECONDS = 0.5e-3
_PROMPT_SHARE = 0.1  # of the latest request in the average

_REOPEN_SECONDS = 1.0

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class _DamagedModel(NotReady):
    """A file of the model was truncated or written to while in use."""


class _Endpoints:
    """The handlers of all paths, run in the event loop's thread."""

    def __init__(
        self,
        service: Service,
        metrics: prometheus.Metrics,
        peers: Peers,
        threads: int,
        token: str | None,
    ) -> None:
        self.metrics = metrics
        self.guarded = token is not None
        self.has_hierarchy = service.has_hierarchy
        self._token = (token or "").encode(errors="surrogateescape")
        self._service = service
        self._peers = peers
        self._limits = service.contract.limits
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="dismec-serve")
        self._places = threads + self._limits.queue
        self._prompt = not service.on_cluster  # there, requests wait for other machines
        self._mean_seconds = 0.0  # CPU time of small requests
        self._reopening: asyncio.Task[bool] | None = None
        self._next_reopen = 0.0  # on the monotonic clock
        self._held = 0  # bytes of bodies in memory
        self._most_held = max(_BODIES_BYTES, 4 * self._limits.body)

    async def predict(self, request: Request) -> Response:
        answer, rows = await self._work(request, self._service.predict)
        self.metrics.rows += rows
        return Response(answer, media_type="application/json")

    async def explain(self, request: Request) -> Response:
        answer = await self._work(request, self._service.explain)
        return Response(answer, media_type="application/json")

    async def example(self, request: Request) -> Response:
        return _answered(await self._work(request, lambda _: self._service.example()))

    async def labels(self, request: Request) -> Response:
        query = dict(request.query_params)
        return _answered(await self._work(request, lambda _: self._service.labels(query)))

    async def tree(self, request: Request) -> Response:
        query = dict(request.query_params)
        return _answered(await self._work(request, lambda _: self._service.tree(query)))

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
            if self.metrics.pending >= self._places:
                raise NotReady("the queue is full")
            self.metrics.pending += 1
            try:
                return await self._computed(task, bytes(body))
            except _DamagedModel as error:
                self._reopen(error)
                raise
            finally:
                self.metrics.pending -= 1
        finally:
            self._held -= len(body)

    async def _computed(self, task: Callable[[bytes], _T], body: bytes) -> _T:
        """Return the result of a task: computed at once if that is quick, else in the pool."""
        small = self._prompt and len(body) <= _PROMPT_BYTES
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
        self.metrics.arriving += 1
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for chunk in request.stream():
                    if len(body) + len(chunk) > self._limits.body:
                        raise self._too_large()
                    if self._held + len(chunk) > self._most_held:
                        raise NotReady("the bodies of other requests use all available memory")
                    self._held += len(chunk)
                    body += chunk
        except TimeoutError:
            reason = f"the body did not arrive within {_BODY_SECONDS} seconds"
            raise HTTPException(408, reason, {"Connection": "close"}) from None
        except ClientDisconnect:
            raise HTTPException(400, "the body was truncated") from None
        finally:
            self.metrics.arriving -= 1

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
        model = self._service.model
        if (reason := model.not_ready) is None:
            return
        error = NotReady(reason) if model.damage is None else _DamagedModel(reason)
        if isinstance(error, _DamagedModel):
            self._reopen(error)
        raise error

    def _reopen(self, error: Exception) -> None:
        """Open the model again after damage to its files, retrying from time to time."""
        busy = self._reopening is not None and not self._reopening.done()
        if busy or time.monotonic() < self._next_reopen:
            return
        self._next_reopen = time.monotonic() + _REOPEN_SECONDS
        _log.error("%s; opening the model again", error)
        self._reopening = asyncio.create_task(self._peers.reload())

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
        totals = await self._peers.totals()
        return Response(totals.text(), headers={"Content-Type": prometheus.CONTENT_TYPE})

    async def openapi(self, _: Request) -> Response:
        return _answered(self._description())

    async def docs(self, _: Request) -> Response:
        text, headers = docs_page(self._description(), self._service.name)
        return HTMLResponse(text, headers=headers)

    def _description(self) -> dict[str, Any]:
        service = self._service
        served = Interface.of(service.model, hierarchy=service.has_hierarchy)
        return openapi(service.contract, service.version, self.guarded, served)

    async def reload(self, request: Request) -> Response:
        self._authorise(request)
        if not await self._peers.reload():
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


def application(
    service: Service,
    metrics: prometheus.Metrics,
    peers: Peers,
    threads: int,
    token: str | None,
) -> ASGIApp:
    """Create the ASGI application.

    `threads` predictions are computed at a time. `metrics` are the counts of this process, and
    `peers` are all processes of the server. If `token` is given, requests must carry it.
    """
    endpoints = _Endpoints(service, metrics, peers, threads, token)
    routes = [
        Route("/", endpoints.page),
        Route("/predict", endpoints.predict, methods=["POST"]),
        Route("/explain", endpoints.explain, methods=["POST"]),
        Route("/labels", endpoints.labels),
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
        routes.append(Route("/tree", endpoints.tree))
    if endpoints.guarded:
        routes.append(Route("/reload", endpoints.reload, methods=["POST"]))
    handlers = dict.fromkeys((HTTPException, *_STATUSES), _refuse) | {Exception: _fail}
    starlette = Starlette(routes=routes, exception_handlers=handlers)
    starlette.router.redirect_slashes = False
    return _measured(starlette, {route.path for route in routes}, endpoints.metrics)


def _answered(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return JSON in which all terminal control characters are escaped."""
    text = printable(json.dumps(value, ensure_ascii=False, allow_nan=False))
    return Response(text, status, headers=headers, media_type="application/json")


async def _refuse(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        status = next(status for kind, status in _STATUSES.items() if isinstance(error, kind))
        headers = {"Retry-After": "1"} if status == 503 else None
        error = HTTPException(status, str(error), headers)
    reason = {"error": " ".join(error.detail.split())}
    return _answered(reason, error.status_code, error.headers)


async def _fail(_: Request, __: Exception) -> Response:
    return _answered({"error": "internal error; the server's log has the details"}, 500)


def _measured(answering: ASGIApp, paths: set[str], metrics: prometheus.Metrics) -> ASGIApp:
    """Wrap an application to count its answers."""

    async def measured(scope: Scope, receive: Receive, send: Send) -> None:
        begin = time.perf_counter()
        status = 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await answering(scope, receive, noted)
        finally:
            path = scope["path"] if scope["path"] in paths else "other"
            metrics.count(path, status, time.perf_counter() - begin)

    return measured
