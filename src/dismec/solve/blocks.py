"""How labels are cut into blocks, and the values that travel between engine and store."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["costs", "cut", "cut_evenly"]


def cut(groups: npt.NDArray[np.int64], block_size: int) -> list[npt.NDArray[np.int64]]:
    """Blocks of `block_size` labels; the last may be shorter.

    Labels of one group come together, at the place of the first: they have the same solution, and
    a block is solved by itself. Without such groups a block holds consecutive labels. Within a
    block labels ascend.
    """
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; expected at least 1")
    order = np.argsort(groups, kind="stable")
    return [np.sort(order[i : i + block_size]) for i in range(0, len(order), block_size)]


def costs(groups: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """About how long each label takes to solve, in no unit.

    Parameters
    ----------
    groups
        For each label the first one with the same rows; of these only the first costs anything.
    counts
        Rows that have each label.

    A pass over all rows costs the same for every label, steps on the working set grow with the
    positives: measured on Eurlex-4K, 2 ms and 0.1 ms a positive.
    """
    first = np.zeros(len(groups), dtype=np.bool_)
    first[np.unique(groups, return_index=True)[1]] = True
    return np.where(first & (counts > 0), 20 + counts, 0)


def cut_evenly(
    groups: npt.NDArray[np.int64], block_size: int, costs: npt.NDArray[np.int64], n_blocks: int
) -> list[npt.NDArray[np.int64]]:
    """As `cut`, with at least `n_blocks` blocks of about equal cost where there are labels enough.

    A label that costs more than that has a block of its own, or nearly so.
    """
    order = np.argsort(groups, kind="stable")
    before = np.cumsum(costs[order]) - costs[order]
    share = before // max(1, -(-int(costs.sum()) // max(n_blocks, 1)))
    bounds = np.flatnonzero(np.diff(share)) + 1
    return [
        np.sort(part[i : i + block_size])
        for part in np.split(order, bounds)
        for i in range(0, len(part), block_size)
    ]
