"""Counts of a server → Prometheus text."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """What has been asked and answered. To be used from one thread."""

    def __init__(self) -> None:
        self.rows = 0  # predicted
        self.arriving = 0  # requests whose bodies are being read
        self.pending = 0  # prediction requests that wait or run
        self.reloads = Counter({"ok": 0, "failed": 0})
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, float] = {}
        self._buckets: dict[str, list[int]] = {}

    def count(self, path: str, status: int, seconds: float) -> None:
        """Note an answer. `path` is one of few: each has a histogram of its own."""
        self._requests[path, status] += 1
        self._seconds[path] = self._seconds.get(path, 0.0) + seconds
        buckets = self._buckets.setdefault(path, [0] * (len(_BOUNDS) + 1))
        buckets[bisect_left(_BOUNDS, seconds)] += 1

    def text(self) -> str:
        """All of it in the text format 0.0.4."""
        lines = _head("dismec_requests_total", "counter", "Requests answered.")
        lines += [
            f'dismec_requests_total{{path="{path}",status="{status}"}} {n}'
            for (path, status), n in sorted(self._requests.items())
        ]
        name = "dismec_request_seconds"
        lines += _head(name, "histogram", "From the request's head to the answer's last byte.")
        for path, buckets in sorted(self._buckets.items()):
            below = 0
            for bound, n in zip((*_BOUNDS, "+Inf"), buckets, strict=True):
                below += n
                lines.append(f'{name}_bucket{{path="{path}",le="{bound}"}} {below}')
            lines.append(f'{name}_sum{{path="{path}"}} {self._seconds[path]:.6f}')
            lines.append(f'{name}_count{{path="{path}"}} {below}')
        lines += _head("dismec_rows_predicted_total", "counter", "Rows predicted.")
        lines.append(f"dismec_rows_predicted_total {self.rows}")
        lines += _head("dismec_pending_requests", "gauge", "Predictions waiting or being computed.")
        lines.append(f"dismec_pending_requests {self.pending}")
        lines += _head("dismec_arriving_requests", "gauge", "Requests whose bodies are being read.")
        lines.append(f"dismec_arriving_requests {self.arriving}")
        lines += _head("dismec_reloads_total", "counter", "Reloads of the model.")
        lines += [
            f'dismec_reloads_total{{result="{result}"}} {n}'
            for result, n in sorted(self.reloads.items())
        ]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
