"""Counts of requests and answers → Prometheus text. The only importer of prometheus_client.

If `FOLDER` is set in the environment before this module is imported, each process keeps its counts
in files of that folder, and `Metrics.text` adds up those of all processes.
"""

from __future__ import annotations

import os
from functools import cache

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    exposition,
    generate_latest,
    multiprocess,
)

CONTENT_TYPE: str = exposition.CONTENT_TYPE_LATEST
FOLDER = "PROMETHEUS_MULTIPROC_DIR"

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The counts of one process."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        to = self._registry = CollectorRegistry()
        requests = Counter("dismec_requests", "Requests answered.", ["path", "status"], registry=to)
        seconds = Histogram(
            "dismec_request_seconds",
            "From the request's head to the answer's last byte.",
            ["path"],
            buckets=_BOUNDS,
            registry=to,
        )
        # Finding the counter of a path takes longer than counting.
        self._requests, self._seconds = cache(requests.labels), cache(seconds.labels)
        self.rows = Counter("dismec_rows_predicted", "Rows predicted.", registry=to)
        self.reloads = Counter("dismec_reloads", "Reloads of the model.", ["result"], registry=to)
        for result in ("ok", "failed"):
            self.reloads.labels(result)
        self.pending = self._gauge("pending_requests", "Predictions waiting or being computed.")
        self.arriving = self._gauge("arriving_requests", "Requests whose bodies are being read.")
        self._gauge("processes", "Server processes that answer.").set(1)
        started = "Server processes started, including replacements of those that died."
        Counter("dismec_processes_started", started, registry=to).inc()

    def _gauge(self, name: str, meaning: str) -> Gauge:
        """Create a gauge whose value is the sum over processes that are alive."""
        to = self._registry
        return Gauge(f"dismec_{name}", meaning, registry=to, multiprocess_mode="livesum")

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count an answer. `path` is one of few, because each has its own histogram."""
        self._requests(path, status).inc()
        self._seconds(path).observe(seconds)

    def text(self) -> bytes:
        """Return the counts of all processes."""
        registry = self._registry
        if FOLDER in os.environ:
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


def forget_gauges(pid: int) -> None:
    """Remove the gauges of a process that has ended; its counters stay."""
    multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]
