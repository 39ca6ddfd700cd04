"""Rows → batches for workers; what was found among some labels → the best of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dismec.data.matrices import Rows
from dismec.data.mixed import MixedArrays
from dismec.errors import DataError
from dismec.model.allowed import Allowed
from dismec.model.scoring import Labels, Scores, empty_topk

__all__ = ["Ranked", "RowBatch", "cut_rows", "merge", "refuse_choice"]

_MOST_ROWS, _LEAST_ROWS, _MOST_BYTES = 1024, 64, 4_000_000  # of a batch
_BATCHES_A_THREAD = 6  # at least, so that the last ones are a small share of the work

Ranked = tuple[Labels, Scores]


@dataclass(eq=False)
class RowBatch:
    """Transformed rows on their way, and what has been found for them.

    `done` is called with labels and scores, (n_rows, places), or with an exception.
    """

    rows: Rows
    places: int  # labels per row
    done: Callable[[Ranked | Exception], None]
    todo: set[int] = field(default_factory=set)  # shards that nobody is scoring it against
    found: list[Ranked] = field(default_factory=list)  # the best labels of some shards each
    scoring: int = 0  # workers that are at it
    losses: int = 0  # workers that have died over it

    @property
    def n_bytes(self) -> int:
        """Of the rows."""
        return sum(array.nbytes for array in self.rows)


def cut_rows(rows: Rows | MixedArrays, threads: int) -> Iterator[tuple[int, int]]:
    """Where batches of rows begin and end, for so many threads in all."""
    share = rows.n_rows // (_BATCHES_A_THREAD * max(threads, 1))
    most = min(max(share, _LEAST_ROWS), _MOST_ROWS)
    before = (rows.indptr + np.arange(len(rows.indptr))) * 8
    start = 0
    while start < rows.n_rows:
        full = int(np.searchsorted(before, before[start] + _MOST_BYTES, side="right")) - 1
        stop = min(max(start + 1, full), start + most, rows.n_rows)
        yield start, stop
        start = stop


def refuse_choice(allowed: Allowed | None) -> None:
    """Refuse to rank some labels only: workers rank all that they hold."""
    if allowed is not None:
        raise DataError(
            "allowed is not supported on a cluster: open the model with open_model to choose labels"
        )


def merge(found: Sequence[Ranked], n_rows: int, places: int) -> Ranked:
    """The best of what has been found among disjoint sets of labels, as `Predictor.topk` ranks."""
    candidates = zip(*found, empty_topk(n_rows, places), strict=True)
    labels, scores = (np.concatenate(arrays, axis=1) for arrays in candidates)
    # An empty place, −1, is the largest unsigned number: it loses to a label of score −inf.
    order: npt.NDArray[np.intp] = np.lexsort((labels.view(np.uint32), -scores), axis=1)
    order = order[:, :places]
    return np.take_along_axis(labels, order, 1), np.take_along_axis(scores, order, 1)
