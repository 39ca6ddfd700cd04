"""Where block tasks run: the threads of this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.blocks import Block, BlockStats
from dismec.native import available_cpus
from dismec.solver import Cancel, Problem, Solution, SolverParams

__all__ = ["solve_blocks"]

T = TypeVar("T")

# Labels that a thread takes at a time: enough for the sixteen lanes of the solver to be refilled
# many times, few enough for the last ones of a run to be shared out.
_PART = 256


def solve_blocks(
    problem: Problem,
    params: SolverParams,
    blocks: Mapping[int, npt.NDArray[np.int64]],
    keep: Callable[[Block], T],
    *,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[T]:
    """Solve blocks of labels and yield what `keep` makes of each, as they are finished.

    An exception, or closing the generator, stops the threads within milliseconds; what has been
    kept by then stays.

    Parameters
    ----------
    blocks
        The labels of each block by its number.
    keep
        Called with each finished block, on one of the threads: writes it, say, and returns a
        receipt.
    threads
        All available CPUs by default.
    progress
        Called with a number of labels just solved, on the calling thread.
    """
    threads = threads or available_cpus()
    cancel = Cancel()
    opened = (_OpenBlock(number, labels, problem) for number, labels in blocks.items())
    waiting = ((block, part) for block in opened for part in block.cut())
    pending: dict[Future[Any], _OpenBlock | None] = {}  # None: a finished block being kept
    pool = ThreadPoolExecutor(threads, thread_name_prefix="dismec")
    try:
        while True:
            # One more than there are threads: whichever is done first finds work at once.
            while len(pending) <= threads and (task := next(waiting, None)):
                block, part = task
                future: Future[Any] = pool.submit(_solve, problem, part, params, cancel)
                pending[future] = block
            if not pending:
                return
            # The time-out lets the main thread see Ctrl-C.
            for future in wait(pending, timeout=0.2, return_when=FIRST_COMPLETED).done:
                owner = pending.pop(future)
                result = future.result()
                if owner is None:
                    yield result
                    continue
                n_labels = owner.add(*result)
                if progress:
                    progress(n_labels)
                if owner.complete:
                    pending[pool.submit(keep, owner.close())] = None
    finally:
        cancel.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _solve(
    problem: Problem, labels: npt.NDArray[np.int64], params: SolverParams, cancel: Cancel
) -> tuple[npt.NDArray[np.int64], Solution, float]:
    begin = time.perf_counter()
    return labels, problem.solve(labels, params, cancel), time.perf_counter() - begin


class _OpenBlock:
    """A block whose parts come in one by one."""

    def __init__(self, number: int, labels: npt.NDArray[np.int64], problem: Problem) -> None:
        self.number = number
        self.labels = labels
        # Labels with the same rows have the same solution: one of them is solved for all.
        _, first, self.copy_of = np.unique(
            problem.groups[labels], return_index=True, return_inverse=True
        )
        self.distinct = labels[first]
        self.counts = problem.label_counts[self.distinct]
        self.copies = np.bincount(self.copy_of)
        self.missing = len(self.distinct)
        self.parts: list[tuple[npt.NDArray[np.int64], Solution]] = []
        self.seconds = 0.0

    def cut(self) -> Iterator[npt.NDArray[np.int64]]:
        """Frequent labels first: labels that are solved side by side should take equally long."""
        ordered = self.distinct[np.argsort(-self.counts, kind="stable")]
        yield from (ordered[i : i + _PART] for i in range(0, len(ordered), _PART))

    def add(self, labels: npt.NDArray[np.int64], solution: Solution, seconds: float) -> int:
        """Take a part in; returns how many labels it solves."""
        self.parts.append((labels, solution))
        self.missing -= len(labels)
        self.seconds += seconds
        return int(self.copies[np.isin(self.distinct, labels)].sum())

    @property
    def complete(self) -> bool:
        return self.missing == 0

    def close(self) -> Block:
        """The block with its labels in order."""
        solved = np.concatenate([labels for labels, _ in self.parts])
        solutions = [solution for _, solution in self.parts]
        weights = sp.csr_array(sp.vstack([s.weights for s in solutions], format="csr"))
        # The row of each distinct label among the solved ones, then of each label of the block.
        order = np.argsort(solved)
        rows = order[np.searchsorted(solved[order], self.distinct)]
        stats = BlockStats.of(solutions, self.seconds)
        return Block(self.number, self.labels, weights[rows[self.copy_of]], stats)
