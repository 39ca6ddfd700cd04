"""A model on a cluster for many concurrent threads: every request is answered or refused soon.

One thread owns the connection. The others give it their rows, and it combines those that wait for
the same order among the same labels into one batch. While a shard has no worker, all requests are
refused: an answer must cover all labels.
"""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from concurrent import futures
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from dismec.cluster.batches import RowBatch
from dismec.cluster.connection import Cluster
from dismec.cluster.prediction import ClusterPredictor
from dismec.cluster.questions import Ask, Best
from dismec.cluster.ranking import Layout, RemoteModel
from dismec.cluster.task import Task
from dismec.data.matrices import Rows
from dismec.errors import DismecError, NotReady

__all__ = ["ServedModel", "serve_on_cluster"]

_BATCH_ROWS = 256  # requests are combined up to this size
_REQUEST_SECONDS = 30.0  # after which a request fails, whatever the reason
_SILENT_SECONDS = 3.0  # that the thread may wait for the scheduler before requests are refused
_TURN_SECONDS = 0.5
_STOP_SECONDS = 10.0

_log = logging.getLogger("dismec")


class ServedModel(RemoteModel):
    """A model on a cluster for any number of threads; created by `serve_on_cluster`.

    The workers release it when it is closed or no longer referenced.
    """

    def __init__(self, dispatcher: _Dispatcher) -> None:
        predictor = dispatcher.opened.result()
        super().__init__(predictor.manifest, predictor.transform, predictor.parts, dispatcher)
        self._dispatcher = dispatcher
        weakref.finalize(self, dispatcher.stop)

    @property
    def not_ready(self) -> str | None:  # noqa: D102
        return self._dispatcher.not_ready or self.damage

    def close(self) -> None:  # noqa: D102
        self._dispatcher.close()


def serve_on_cluster(
    where: str, directory: str | os.PathLike[str], *, patience: float = 60.0
) -> ServedModel:
    """Distribute a model over the workers of a cluster (`Cluster.connect`), and keep it there.

    The model is read again when a worker has died. `patience` is the number of seconds to wait for
    the scheduler, and for workers with room for the model, before raising `ClusterError`.
    """
    return ServedModel(_Dispatcher(where, directory, patience))


class _Request(futures.Future[Any]):
    """A question about rows that a caller waits for."""

    def __init__(self, rows: Rows, ask: Ask) -> None:
        super().__init__()
        self.rows = rows
        self.ask = ask

    def answer(self, found: Any) -> None:
        with suppress(futures.InvalidStateError):  # the caller has gone
            if isinstance(found, Exception):
                self.set_exception(found)
            else:
                self.set_result(found)


class _Dispatcher:
    """A queue of requests, and the thread that answers them."""

    threads = None  # requests are concurrent: each is one batch, if it is not too large

    def __init__(self, where: str, directory: str | os.PathLike[str], patience: float) -> None:
        self.opened: futures.Future[ClusterPredictor] = futures.Future()
        self._where, self._directory, self._patience = where, directory, patience
        self._waiting: deque[_Request] = deque()
        self._asked: list[_Request] = []
        self._wake: futures.Future[None] = futures.Future()
        self._lock = threading.Lock()
        self._closing = False
        self._reason: str | None = None
        self._beat = time.monotonic()
        run = contextvars.copy_context().run  # so that the files it maps are watched, too
        self._thread = threading.Thread(
            target=run, args=(self._run,), name="dismec-cluster", daemon=True
        )
        self._thread.start()

    @property
    def not_ready(self) -> str | None:
        """The reason why requests cannot be answered now, or None."""
        if self._closing or not self._thread.is_alive():
            return "the model has been closed"
        if time.monotonic() - self._beat > _SILENT_SECONDS:
            return "the scheduler of the cluster does not answer"
        return self._reason

    @property
    def layout(self) -> Layout:
        """The layout of the model."""
        return self.opened.result().layout

    def run(self, batches: Iterable[RowBatch]) -> None:
        """Score batches, one after the other; raise `NotReady` if that is not possible now."""
        for batch in batches:
            batch.done(self._answer(batch.rows, batch.ask))

    def _answer(self, rows: Rows, ask: Ask) -> Any:
        request = _Request(rows, ask)
        end = time.monotonic() + _REQUEST_SECONDS
        if self.not_ready is None:
            self._waiting.append(request)
            self._wake_up()
        while (reason := self.not_ready) is None or request.done():
            try:
                return request.result(timeout=min(1.0, max(end - time.monotonic(), 0)))
            except TimeoutError:
                if time.monotonic() >= end:
                    reason = f"the cluster has not answered within {_REQUEST_SECONDS:.0f} s"
                    break
        request.answer(NotReady(reason))
        raise NotReady(reason)

    def stop(self) -> None:
        """Make the thread end, which makes the workers release the model."""
        self._closing = True
        self._wake_up()

    def close(self) -> None:
        """Like `stop`, and wait for it."""
        self.stop()
        self._thread.join(_STOP_SECONDS)

    def _wake_up(self) -> None:
        with self._lock:
            if not self._wake.done():
                self._wake.set_result(None)

    def _run(self) -> None:
        try:
            with (
                Cluster.connect(self._where, patience=self._patience) as cluster,
                ClusterPredictor(cluster, self._directory, patience=self._patience) as predictor,
            ):
                while predictor.missing and not self._closing:
                    predictor.step()
                self._beat = time.monotonic()
                self.opened.set_result(predictor)
                while not self._closing:
                    self._turn(predictor)
        except BaseException as error:
            if not self.opened.done():
                self.opened.set_exception(error)
            else:
                _log.exception("the connection to the cluster has ended")
        finally:
            self._closing = True
            self._refuse("the model has been closed")

    def _turn(self, predictor: ClusterPredictor) -> None:
        """Hand out waiting requests, and collect results."""
        with self._lock:
            wake = self._wake = futures.Future()
        try:
            while self._waiting and predictor.has_capacity and not predictor.missing:
                self._add(predictor)
            predictor.step(_TURN_SECONDS, Task("", None, wake))
        except DismecError as error:
            _log.warning("%s", error)
            self._reason = str(error)
            self._refuse(self._reason)
            predictor.drop()
            time.sleep(_TURN_SECONDS)
        else:
            self._update_reason(predictor)
        self._beat = time.monotonic()

    def _update_reason(self, predictor: ClusterPredictor) -> None:
        """Refuse all requests while shards are missing, and log when that changes."""
        reason = None
        if predictor.missing:
            reason = predictor.why_missing
            self._refuse(reason)
            predictor.drop()
        if (reason is None) != (self._reason is None):
            _log.warning("%s", "all shards are available again" if reason is None else reason)
        self._reason = reason

    def _add(self, predictor: ClusterPredictor) -> None:
        """Combine waiting requests into a batch."""
        requests = self._take()
        if not requests:
            return
        self._asked += requests

        def answer(found: Any) -> None:
            start = 0
            for request in requests:
                stop = start + request.rows.n_rows
                request.answer(_part(found, request, start, stop))
                self._asked.remove(request)
                start = stop

        asks = [request.ask for request in requests]
        places = [ask.question.places for ask in asks if isinstance(ask.question, Best)]
        ask = replace(asks[0], question=Best(max(places))) if len(asks) > 1 else asks[0]
        predictor.add(RowBatch(_stack([request.rows for request in requests]), ask, answer))

    def _take(self) -> list[_Request]:
        """Return the first waiting request, and others that can be answered with it."""
        taken: list[_Request] = []
        others: list[_Request] = []
        n_rows = 0
        while self._waiting and n_rows < _BATCH_ROWS:
            request = self._waiting.popleft()
            if request.done():  # the caller has gone
                continue
            key = request.ask.shared_key
            if taken and (key is None or key != taken[0].ask.shared_key):
                others.append(request)
                continue
            taken.append(request)
            n_rows += request.rows.n_rows
        self._waiting.extendleft(reversed(others))
        return taken

    def _refuse(self, reason: str) -> None:
        refused, self._asked = self._asked, []
        while self._waiting:
            refused.append(self._waiting.popleft())
        for request in refused:
            request.answer(NotReady(reason))


def _part(found: Any, request: _Request, start: int, stop: int) -> Any:
    """Return the part of a batch's answer that belongs to one of its requests."""
    question = request.ask.question
    if isinstance(found, Exception) or not isinstance(question, Best):
        return found
    own = np.s_[start:stop, : question.places]  # the best few are the first of the best many
    return found[0][own], found[1][own]


def _stack(rows: list[Rows]) -> Rows:
    if len(rows) == 1:
        return rows[0]
    lengths = np.concatenate([np.diff(some.indptr) for some in rows])
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    indices = np.concatenate([some.indices for some in rows])
    return Rows(indptr, indices, np.concatenate([some.data for some in rows]))
