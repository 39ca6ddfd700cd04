"""Where block tasks run: the threads of this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.blocks import Block, BlockStats
from dismec.native import available_cpus
from dismec.solver import Cancel, Problem, Solution, SolverParams, Worker, empty_array

__all__ = ["solve_blocks"]

T = TypeVar("T")

# Labels that a thread takes at a time: few enough for the last ones of a run to be shared out.
_PART = 64


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
    opened = {number: _OpenBlock(number, labels, problem) for number, labels in blocks.items()}
    owner = np.full(problem.n_labels, -1, dtype=np.int64)
    for block in opened.values():
        owner[block.distinct] = block.number
    # By number: a block that has been kept must not live on in the iterator.
    parts = _Shared(part for number in blocks for part in opened[number].cut())
    results: SimpleQueue[Any] = SimpleQueue()
    pool = ThreadPoolExecutor(threads + 1, thread_name_prefix="dismec")
    try:
        for _ in range(threads):
            pool.submit(_work, problem, params, cancel, parts, results)
        kept = 0
        while kept < len(blocks):
            try:
                # The time-out lets the main thread see Ctrl-C.
                result = results.get(timeout=0.2)
            except Empty:
                continue
            if isinstance(result, BaseException):
                raise result
            if isinstance(result, _Kept):
                kept += 1
                yield result.value
                continue
            solution, seconds = result
            share = seconds / max(len(solution.labels), 1)
            owners = owner[solution.labels]
            numbers = np.unique(owners)
            for number in numbers:
                block = opened[int(number)]
                part = solution if len(numbers) == 1 else solution[np.flatnonzero(owners == number)]
                n_labels = block.add(part, share * len(part.labels))
                if progress:
                    progress(n_labels)
                if block.complete:
                    pool.submit(_keep, keep, block.close(), results)
                    del opened[block.number]
    finally:
        cancel.set()
        pool.shutdown(wait=True, cancel_futures=True)


class _Shared:
    """An iterator that threads share."""

    def __init__(self, iterable: Iterable[npt.NDArray[np.int64]]) -> None:
        self._iterator = iter(iterable)
        self._lock = Lock()

    def next(self) -> npt.NDArray[np.int64] | None:
        with self._lock:
            return next(self._iterator, None)


def _work(
    problem: Problem,
    params: SolverParams,
    cancel: Cancel,
    parts: _Shared,
    results: SimpleQueue[Any],
) -> None:
    """Solve parts until there are none, handing on whatever gets done."""
    try:
        worker = Worker(problem, params, cancel)
        last = False
        while not (last or cancel):
            part = parts.next()
            last = part is None
            begin = time.perf_counter()
            solution = worker.solve(np.empty(0, np.int64) if part is None else part, drain=last)
            if not cancel:
                results.put((solution, time.perf_counter() - begin))
    except BaseException as error:
        results.put(error)


@dataclass(frozen=True)
class _Kept:
    value: Any


def _keep(keep: Callable[[Block], Any], block: Block, results: SimpleQueue[Any]) -> None:
    try:
        results.put(_Kept(keep(block)))
    except BaseException as error:
        results.put(error)


class _OpenBlock:
    """A block whose labels come in bit by bit."""

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
        self.parts: list[Solution] = []
        self.seconds = 0.0

    def cut(self) -> Iterator[npt.NDArray[np.int64]]:
        """Frequent labels first: labels that are solved side by side should take equally long."""
        ordered = self.distinct[np.argsort(-self.counts, kind="stable")]
        yield from (ordered[i : i + _PART] for i in range(0, len(ordered), _PART))

    def add(self, solution: Solution, seconds: float) -> int:
        """Take some labels in; returns how many they stand for."""
        self.parts.append(solution)
        self.missing -= len(solution.labels)
        self.seconds += seconds
        return int(self.copies[np.isin(self.distinct, solution.labels)].sum())

    @property
    def complete(self) -> bool:
        return self.missing == 0

    def close(self) -> Block:
        """The block with its labels in order."""
        stats = BlockStats.of(self.parts, self.seconds)
        counts = np.zeros(len(self.distinct), dtype=np.int64)
        sorter = np.argsort(self.distinct)
        rows = [
            sorter[np.searchsorted(self.distinct, part.labels, sorter=sorter)]
            for part in self.parts
        ]
        for part, into in zip(self.parts, rows, strict=True):
            counts[into] = np.diff(part.weights.indptr)
        indptr = np.concatenate([[0], np.cumsum(counts[self.copy_of])])
        indices = empty_array(indptr[-1], np.int32)
        data = empty_array(indptr[-1], np.float32)
        # Where each distinct label goes: the labels of the block that are copies of it.
        order = np.argsort(self.copy_of, kind="stable")
        goes_to = np.split(order, np.cumsum(self.copies)[:-1])
        starts = indptr.tolist()
        while self.parts:  # what has been copied need not stay
            source, into = self.parts.pop().weights, rows.pop()
            ends = source.indptr.tolist()
            for i, row in enumerate(into.tolist()):
                span = slice(ends[i], ends[i + 1])
                for copy in goes_to[row].tolist():
                    target = slice(starts[copy], starts[copy + 1])
                    indices[target] = source.indices[span]
                    data[target] = source.data[span]
        shape = (len(self.labels), source.shape[1])
        return Block(
            self.number, self.labels, sp.csr_array((data, indices, indptr), shape=shape), stats
        )
