"""Labels → the blocks that they are solved in."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dismec.solve.labels import EqualLabels

__all__ = ["cut", "cut_evenly", "effort"]

Ints = npt.NDArray[np.int64]


def cut(groups: Ints, block_size: int) -> list[Ints]:
    """Blocks of `block_size` labels; the last may be shorter.

    Labels of one group come together, at the place of the first: they have the same solution, and
    a block is solved by itself. Without such groups a block holds consecutive labels. Within a
    block labels ascend.
    """
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; expected at least 1")
    order = np.argsort(groups, kind="stable")
    return [np.sort(order[i : i + block_size]) for i in range(0, len(order), block_size)]


def effort(equal: EqualLabels, counts: Ints) -> Ints:
    """About how long each of the labels takes to solve, in no unit.

    Parameters
    ----------
    equal
        The labels; of those with the same rows only the first takes any time.
    counts
        Rows that have each label.

    A pass over all rows takes the same time for every label, steps on the working set grow with the
    positives: measured on Eurlex-4K, 2 ms and 0.1 ms per positive.
    """
    solved = np.zeros(len(counts), dtype=np.bool_)
    solved[equal.first] = True
    return np.where(solved & (counts > 0), 20 + counts, 0)


def cut_evenly(groups: Ints, block_size: int, work: Ints, n_blocks: int) -> list[Ints]:
    """As `cut`, with at least `n_blocks` blocks of about equal `work` if there are labels enough.

    `work` is the `effort` of each label. One that takes more than a block's share has a block of
    its own, or nearly so.
    """
    order = np.argsort(groups, kind="stable")
    before = np.cumsum(work[order]) - work[order]
    share = before // max(1, -(-int(work.sum()) // max(n_blocks, 1)))
    bounds = np.flatnonzero(np.diff(share)) + 1
    return [
        np.sort(part[i : i + block_size])
        for part in np.split(order, bounds)
        for i in range(0, len(part), block_size)
    ]
