"""Where block tasks run: the threads of this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
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
    blocks: Sequence[range],
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
    waiting = ((block, part) for block in map(_OpenBlock, blocks) for part in block.cut(problem))
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
                if progress:
                    progress(owner.add(*result))
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

    def __init__(self, labels: range) -> None:
        self.labels = labels
        self.missing = len(labels)
        self.parts: list[tuple[npt.NDArray[np.int64], Solution]] = []
        self.seconds = 0.0

    def cut(self, problem: Problem) -> Iterator[npt.NDArray[np.int64]]:
        """Frequent labels first: labels that are solved side by side should take equally long."""
        counts = problem.label_counts[self.labels.start : self.labels.stop]
        ordered = self.labels.start + np.argsort(-counts, kind="stable")
        yield from (ordered[i : i + _PART] for i in range(0, len(ordered), _PART))

    def add(self, labels: npt.NDArray[np.int64], solution: Solution, seconds: float) -> int:
        self.parts.append((labels, solution))
        self.missing -= len(labels)
        self.seconds += seconds
        return len(labels)

    @property
    def complete(self) -> bool:
        return self.missing == 0

    def close(self) -> Block:
        """The block with its labels in order."""
        labels = np.concatenate([labels for labels, _ in self.parts])
        solutions = [solution for _, solution in self.parts]
        weights = sp.csr_array(sp.vstack([s.weights for s in solutions], format="csr"))
        stats = BlockStats.of(solutions, self.seconds)
        return Block(self.labels, weights[np.argsort(labels)], stats)
