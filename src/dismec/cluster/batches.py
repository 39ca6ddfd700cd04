"""Rows → batches for workers, and the answers found for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dismec.cluster.questions import Ask
from dismec.data.matrices import Rows
from dismec.data.mixed import MixedArrays
from dismec.model.allowed import Allowed

__all__ = ["RowBatch", "cut_rows"]

_MOST_ROWS, _LEAST_ROWS, _MOST_BYTES = 1024, 64, 4_000_000  # per batch
_BATCHES_PER_THREAD = 6  # at least, so the last ones are a small share of the work


@dataclass(eq=False)
class RowBatch:
    """Transformed rows to score, the question about them, and the answers so far.

    `done` is called with the answer, or with an exception.
    """

    rows: Rows
    ask: Ask
    done: Callable[[Any], None]
    todo: set[int] = field(default_factory=set)  # shards not yet given to a worker
    found: list[Any] = field(default_factory=list)  # answers, each from some shards
    scoring: int = 0  # workers that are scoring it
    losses: int = 0  # workers that died while scoring it

    @property
    def n_bytes(self) -> int:
        """Size of the rows."""
        return sum(array.nbytes for array in self.rows)


def cut_rows(
    rows: Rows | MixedArrays, threads: int | None, allowed: Allowed | None = None
) -> Iterator[tuple[int, int]]:
    """Yield where batches of rows start and end, for this total number of threads.

    If `threads` is None, batches are as large as possible. The size of a batch includes the label
    sets of its rows.
    """
    most = _MOST_ROWS
    if threads is not None:
        share = rows.n_rows // (_BATCHES_PER_THREAD * max(threads, 1))
        most = min(max(share, _LEAST_ROWS), _MOST_ROWS)
    before = (rows.indptr + np.arange(len(rows.indptr))) * 8
    if allowed is not None and allowed.starts is not None:
        before = before + allowed.starts * 4
    start = 0
    while start < rows.n_rows:
        full = int(np.searchsorted(before, before[start] + _MOST_BYTES, side="right")) - 1
        stop = min(max(start + 1, full), start + most, rows.n_rows)
        yield start, stop
        start = stop
