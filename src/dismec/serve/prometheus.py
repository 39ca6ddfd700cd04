"""Counts of a server → Prometheus text."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Any

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counts of requests and answers. Use it from one thread."""

    def __init__(self) -> None:
        self.rows = 0  # rows predicted
        self.arriving = 0  # requests whose bodies are being read
        self.pending = 0  # prediction requests that are waiting or running
        self.processes = 1  # processes that answer
        self.restarts = 0  # restarts of processes that ended unexpectedly
        self.reloads = Counter({"ok": 0, "failed": 0})
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, float] = {}
        self._buckets: dict[str, list[int]] = {}

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count an answer. `path` is one of few, because each has its own histogram."""
        self._requests[path, status] += 1
        self._seconds[path] = self._seconds.get(path, 0.0) + seconds
        buckets = self._buckets.setdefault(path, [0] * (len(_BOUNDS) + 1))
        buckets[bisect_left(_BOUNDS, seconds)] += 1

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, which `add` accepts."""
        return {
            "numbers": [self.rows, self.arriving, self.pending, self.processes, self.restarts],
            "reloads": dict(self.reloads),
            "requests": [[*key, n] for key, n in self._requests.items()],
            "seconds": self._seconds,
            "buckets": self._buckets,
        }

    def add(self, counts: dict[str, Any], *, ended: bool = False) -> None:
        """Add the counts of another process; if it has ended, only those of its answers."""
        rows, arriving, pending, processes, restarts = counts["numbers"]
        self.rows += rows
        self.restarts += restarts
        if not ended:
            self.arriving += arriving
            self.pending += pending
            self.processes += processes
        self.reloads.update(counts["reloads"])
        for path, status, n in counts["requests"]:
            self._requests[path, status] += n
        for path, seconds in counts["seconds"].items():
            self._seconds[path] = self._seconds.get(path, 0.0) + seconds
        for path, buckets in counts["buckets"].items():
            known = self._buckets.setdefault(path, [0] * len(buckets))
            known[:] = map(sum, zip(known, buckets, strict=True))

    def text(self) -> str:
        """Return everything in the text format 0.0.4."""
        name = "dismec_request_seconds"
        lines = [
            *_head("dismec_requests_total", "counter", "Requests answered."),
            *(
                f'dismec_requests_total{{path="{path}",status="{status}"}} {n}'
                for (path, status), n in sorted(self._requests.items())
            ),
            *_head(name, "histogram", "From the request's head to the answer's last byte."),
        ]
        for path, buckets in sorted(self._buckets.items()):
            below = 0
            for bound, n in zip((*_BOUNDS, "+Inf"), buckets, strict=True):
                below += n
                lines.append(f'{name}_bucket{{path="{path}",le="{bound}"}} {below}')
            lines.append(f'{name}_sum{{path="{path}"}} {self._seconds[path]:.6f}')
            lines.append(f'{name}_count{{path="{path}"}} {below}')
        lines += _head("dismec_reloads_total", "counter", "Reloads of the model.")
        lines += [
            f'dismec_reloads_total{{result="{result}"}} {n}'
            for result, n in sorted(self.reloads.items())
        ]
        lines += _lines(
            ("rows_predicted_total", "counter", "Rows predicted.", self.rows),
            ("pending_requests", "gauge", "Predictions waiting or being computed.", self.pending),
            ("arriving_requests", "gauge", "Requests whose bodies are being read.", self.arriving),
            ("processes", "gauge", "Server processes that answer.", self.processes),
            ("restarts_total", "counter", "Server processes that were restarted.", self.restarts),
        )
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


def _lines(*values: tuple[str, str, str, int]) -> Iterable[str]:
    for name, kind, meaning, value in values:
        yield from _head(f"dismec_{name}", kind, meaning)
        yield f"dismec_{name} {value}"
