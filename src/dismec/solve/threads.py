"""Where block tasks run: the threads of this process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Condition
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import available_cpus
from dismec.solve.block import Block, BlockStats, sum_counts
from dismec.solve.costs import Costs
from dismec.solve.problem import Cancel, Problem, Solution, SolverParams, Worker, empty_array

__all__ = ["BlockSolver", "Kept", "solve_blocks", "solve_path"]

T = TypeVar("T")

# Labels that a thread takes at a time: few enough for the last ones of a run to be shared out.
_PART = 64
_NONE = np.empty(0, np.int64)


def solve_blocks(
    problem: Problem,
    params: SolverParams,
    blocks: Mapping[int, npt.NDArray[np.int64]],
    keep: Callable[[Block], T],
    *,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Generator[T, None, None]:
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
    with BlockSolver(problem, params, keep, threads) as solver:
        for number, labels in blocks.items():
            solver.add(number, labels)
        solver.end()
        kept = 0
        while kept < len(blocks):
            event = solver.wait(0.2)  # the time-out lets the main thread see Ctrl-C
            if isinstance(event, Kept):
                kept += 1
                yield event.get()
            elif event and progress:
                progress(event)


def solve_path(
    problem: Problem,
    params: SolverParams,
    path: Sequence[float],
    labels: npt.NDArray[np.int64],
    *,
    threads: int | None = None,
) -> Generator[Solution, None, None]:
    """Solve labels at every C of a path, and yield what is done, in no order.

    See `Worker`. The labels have rows. Closing the generator stops the threads.
    """
    threads = threads or available_cpus()
    parts, cancel = _Parts(), Cancel()
    parts.add(_cut(labels, problem.label_counts[labels]))
    parts.end()
    results: SimpleQueue[Any] = SimpleQueue()
    missing = len(labels) * len(path)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="dismec")
    try:
        costs = params.weighting.costs(problem.label_counts, problem.n_rows)
        for _ in range(threads):
            pool.submit(_work, problem, params, costs, cancel, parts, results, path)
        while missing:
            try:
                result = results.get(timeout=0.2)
            except Empty:
                continue
            if isinstance(result, BaseException):
                raise result
            solution, _ = result
            missing -= len(solution.labels)
            yield solution
    finally:
        cancel.set()
        pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class Kept(Generic[T]):
    """A block that is done: what `keep` has made of it, or what it has raised instead."""

    number: int
    value: T | None
    error: BaseException | None = None

    def get(self) -> T:
        """The value, or raise the error."""
        if self.error is not None:
            raise self.error
        return cast(T, self.value)


class BlockSolver(Generic[T]):
    """Threads that solve blocks, to which more may be added while they do.

    As long as there are labels to begin, no thread waits for the last ones of a block. Leaving the
    ``with`` statement stops the threads within milliseconds.
    """

    def __init__(
        self,
        problem: Problem,
        params: SolverParams,
        keep: Callable[[Block], T],
        threads: int | None = None,
    ) -> None:
        threads = threads or available_cpus()
        self._problem = problem
        self._keep = keep
        self._cancel = Cancel()
        self._open: dict[int, _OpenBlock] = {}
        self._owner = np.full(problem.n_labels, -1, dtype=np.int64)
        self._parts = _Parts()
        self._results: SimpleQueue[Any] = SimpleQueue()
        self._pool = ThreadPoolExecutor(threads + 1, thread_name_prefix="dismec")
        costs = params.weighting.costs(problem.label_counts, problem.n_rows)
        for _ in range(threads):
            self._pool.submit(
                _work, problem, params, costs, self._cancel, self._parts, self._results
            )

    def __enter__(self) -> BlockSolver[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self._cancel.set()
        self._parts.end()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def add(self, number: int, labels: npt.NDArray[np.int64]) -> None:
        """Begin a block, none of whose labels is in another that is not done; from any thread."""
        block = _OpenBlock(number, labels, self._problem)
        self._open[number] = block
        self._owner[block.distinct] = number
        self._parts.add(block.cut())

    def end(self) -> None:
        """Say that no more blocks will be added."""
        self._parts.end()

    def wait(self, timeout: float) -> Kept[T] | int | None:
        """A block that is done, a number of labels just solved, or None after `timeout` seconds.

        What goes wrong with a block is said by `Kept`; what goes wrong elsewhere is raised.
        """
        try:
            result = self._results.get(timeout=timeout)
        except Empty:
            return None
        if isinstance(result, BaseException):
            raise result
        if isinstance(result, Kept):
            return result
        return self._add(*result)

    def _add(self, solution: Solution, seconds: float) -> int:
        """Bring solved labels to their blocks; returns how many labels they stand for."""
        share = seconds / max(len(solution.labels), 1)
        owners = self._owner[solution.labels]
        numbers = np.unique(owners)
        n_labels = 0
        for number in numbers.tolist():
            block = self._open[number]
            part = solution if len(numbers) == 1 else solution[np.flatnonzero(owners == number)]
            n_labels += block.add(part, share * len(part.labels))
            if block.complete:
                del self._open[number]
                self._pool.submit(_keep_block, self._keep, block.close(), self._results)
        return n_labels


class _Parts:
    """Labels to solve, in the order in which they were added, for threads to take."""

    def __init__(self) -> None:
        self._parts: deque[npt.NDArray[np.int64]] = deque()
        self._changed = Condition()
        self._ended = False

    def add(self, parts: Iterable[npt.NDArray[np.int64]]) -> None:
        with self._changed:
            self._parts.extend(parts)
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def next(self) -> npt.NDArray[np.int64] | None:
        """Some labels, or None if there are none now."""
        with self._changed:
            return self._parts.popleft() if self._parts else None

    def wait(self) -> bool:
        """Wait until there are labels; False if there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._parts or self._ended)
            return bool(self._parts)


def _work(
    problem: Problem,
    params: SolverParams,
    costs: Costs,
    cancel: Cancel,
    parts: _Parts,
    results: SimpleQueue[Any],
    path: Sequence[float] = (),
) -> None:
    """Solve parts until there are none, handing on whatever gets done."""
    try:
        worker = Worker(problem, params, cancel, costs, path)
        while parts.wait() and not cancel:
            part: npt.NDArray[np.int64] | None = _NONE
            while part is not None and not cancel:
                part = parts.next()
                begin = time.perf_counter()
                solution = worker.solve(_NONE if part is None else part, drain=part is None)
                if not cancel:
                    results.put((solution, time.perf_counter() - begin))
    except BaseException as error:
        results.put(error)


def _keep_block(keep: Callable[[Block], Any], block: Block, results: SimpleQueue[Any]) -> None:
    try:
        results.put(Kept(block.number, keep(block)))
    except BaseException as error:
        results.put(Kept(block.number, None, error))


def _cut(
    labels: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> Iterator[npt.NDArray[np.int64]]:
    """Frequent labels first: labels that are solved side by side should take equally long."""
    ordered = labels[np.argsort(-counts, kind="stable")]
    yield from (ordered[i : i + _PART] for i in range(0, len(ordered), _PART))


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
        return _cut(self.distinct, self.counts)

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
        stats = _stats(self.parts, self.seconds)
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


def _stats(solutions: Sequence[Solution], seconds: float) -> BlockStats:
    """What it took to solve the parts of a block."""
    return BlockStats(
        solved=sum(int(np.count_nonzero(s.passes)) for s in solutions),
        unsolved=sum(int(np.count_nonzero(~(s.gradient <= 1))) for s in solutions),
        passes=sum(int(s.passes.sum(dtype=np.int64)) for s in solutions),
        steps=sum(int(s.steps.sum(dtype=np.int64)) for s in solutions),
        set_rows=sum(int(s.set_size.sum()) for s in solutions),
        seconds=round(seconds, 3),
        weight_counts=sum_counts([s.weight_counts for s in solutions]),
    )
