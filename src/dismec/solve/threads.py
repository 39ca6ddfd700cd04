"""Blocks of labels → their weights, on the threads of this process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from dismec.cpu import available_cpus, kernels
from dismec.data.matrices import csr_on
from dismec.solve.block import Block, BlockStats, sum_counts
from dismec.solve.costs import Costs
from dismec.solve.partition import EqualLabels
from dismec.solve.problem import (
    Cancel,
    LabelSolver,
    Problem,
    Solution,
    SolverParams,
    WorkSharing,
    empty_array,
)

__all__ = ["BlockSolver", "Kept", "solve_blocks", "solve_path"]

T = TypeVar("T")

# Labels per thread and step: few enough to share out the last ones of a run.
_LABELS_AT_ONCE = 64
_MOST_TIMES = 4  # times as many if X is small: labels then take less time than handing them over
_NON_ZEROS = 1 << 22  # an X with fewer is small
_ROWS_AT_ONCE = 1 << 16  # rows with labels of a portion
_NONE = np.empty(0, np.int64)


def solve_blocks(
    problem: Problem,
    params: SolverParams,
    blocks: Mapping[int, npt.NDArray[np.int64]],
    keep: Callable[[Block], T],
    *,
    threads: int | None = None,
    progress: Callable[[int, npt.NDArray[np.int64]], None] | None = None,
) -> Generator[T, None, None]:
    """Solve blocks of labels and yield the result of `keep` for each as it finishes.

    `blocks` maps block numbers to labels. `keep` is called on one of the threads; it may, for
    example, write the block and return a receipt. `progress` is called on the calling thread with
    the number of labels just finished and the labels that were solved for them. An exception, or
    closing the generator, stops the threads within milliseconds; blocks kept by then stay.
    """
    with BlockSolver(problem, params, keep, threads) as solver:
        for number, labels in blocks.items():
            solver.add(number, labels)
        solver.end()
        kept = 0
        while kept < len(blocks):
            event = solver.wait(0.2)  # the timeout lets the main thread see Ctrl-C
            if isinstance(event, Kept):
                kept += 1
                yield event.get()
            elif event and progress:
                progress(*event)


def solve_path(
    problem: Problem,
    params: SolverParams,
    path: Sequence[float],
    labels: npt.NDArray[np.int64],
    *,
    threads: int | None = None,
) -> Generator[Solution, None, None]:
    """Solve labels at every C of a path and yield solutions in arbitrary order.

    See `LabelSolver`. All labels must have rows. Closing the generator stops the threads.
    """
    threads = threads or available_cpus()
    queue, cancel = _LabelQueue(), Cancel()
    queue.add(_portions(problem, labels))
    queue.end()
    results: SimpleQueue[Any] = SimpleQueue()
    missing = len(labels) * len(path)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="dismec-solve")
    try:
        costs = params.weighting.costs(problem.label_counts, problem.n_rows)
        for _ in range(threads):
            pool.submit(_work, problem, params, costs, cancel, queue, results, path)
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
        queue.end()
        pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class Kept(Generic[T]):
    """A finished block: the result of `keep`, or the exception it raised."""

    number: int
    value: T | None
    error: BaseException | None = None

    def get(self) -> T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return cast(T, self.value)


class BlockSolver(Generic[T]):
    """Threads that solve blocks; blocks may be added while they run.

    While there are labels left to start, no thread waits for the last ones of a block. Leaving the
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
        self._queue = _LabelQueue()
        self._results: SimpleQueue[Any] = SimpleQueue()
        self._pool = ThreadPoolExecutor(threads + 1, thread_name_prefix="dismec-solve")
        costs = params.weighting.costs(problem.label_counts, problem.n_rows)
        for _ in range(threads):
            self._pool.submit(
                _work, problem, params, costs, self._cancel, self._queue, self._results
            )

    def __enter__(self) -> BlockSolver[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self._cancel.set()
        self._queue.end()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def add(self, number: int, labels: npt.NDArray[np.int64]) -> None:
        """Start a block; its labels must not be in another unfinished block. Thread-safe."""
        block = _OpenBlock(number, self._problem.equal_labels.among(labels))
        self._open[number] = block
        distinct = block.equal.distinct
        self._owner[distinct] = number
        self._queue.add(_portions(self._problem, distinct))

    def end(self) -> None:
        """Declare that no more blocks will be added."""
        self._queue.end()

    def wait(self, timeout: float) -> Kept[T] | tuple[int, npt.NDArray[np.int64]] | None:
        """Return a finished block, labels just solved, or None after `timeout` seconds.

        Solved labels come with the number of labels they stand for, including those with the same
        rows.

        Errors in a block are in its `Kept`; other errors are raised.
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

    def _add(self, solution: Solution, seconds: float) -> tuple[int, npt.NDArray[np.int64]]:
        """Add solved labels to their blocks; return how many they stand for, and themselves."""
        share = seconds / max(len(solution.labels), 1)
        owners = self._owner[solution.labels]
        numbers = np.unique(owners)
        n_labels = 0
        for number in numbers.tolist():
            block = self._open[number]
            n_labels += block.add(solution, np.flatnonzero(owners == number), share)
            if block.complete:
                del self._open[number]
                self._pool.submit(_keep_block, self._keep, block.close(), self._results)
        return n_labels, solution.labels


class _OpenBlock:
    """A block whose distinct labels arrive a few at a time."""

    def __init__(self, number: int, equal: EqualLabels) -> None:
        self.number = number
        self.equal = equal
        self._missing = len(equal.distinct)
        self._parts: list[tuple[Solution, npt.NDArray[np.int64]]] = []
        self._seconds = 0.0

    def add(self, solution: Solution, which: npt.NDArray[np.int64], seconds: float) -> int:
        """Add some labels of a solution, at `seconds` seconds each.

        Return the number of labels they stand for.
        """
        self._parts.append((solution, which))
        self._missing -= len(which)
        self._seconds += seconds * len(which)
        return int(self.equal.sizes[self.equal.find(solution.labels[which])].sum())

    @property
    def complete(self) -> bool:
        return self._missing == 0

    def close(self) -> Block:
        """Return the block with all its labels."""
        parts, equal = self._parts, self.equal
        stats = BlockStats(
            solved=sum(int(np.count_nonzero(s.passes[which])) for s, which in parts),
            unsolved=sum(int(np.count_nonzero(~(s.stop_ratio[which] <= 1))) for s, which in parts),
            passes=sum(int(s.passes[which].sum(dtype=np.int64)) for s, which in parts),
            steps=sum(int(s.steps[which].sum(dtype=np.int64)) for s, which in parts),
            set_rows=sum(int(s.set_size[which].sum()) for s, which in parts),
            seconds=round(self._seconds, 3),
            weight_counts=sum_counts([s.weight_counts[which] for s, which in parts]),
        )
        places = [equal.find(solution.labels[which]) for solution, which in parts]
        lengths = np.zeros(len(equal.distinct), dtype=np.int64)
        for (solution, which), to in zip(parts, places, strict=True):
            lengths[to] = np.diff(solution.weights.indptr)[which]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        indices = empty_array(indptr[-1], np.int32)
        data = empty_array(indptr[-1], np.float32)
        while parts:  # free each part once it is copied
            solution, which = parts.pop()
            source = solution.weights
            begins = source.indptr.astype(np.int64, copy=False)
            of_source = begins, source.indices, source.data
            kernels.copy_rows(which, places.pop(), *of_source, indptr, indices, data)
        weights = csr_on(data, indices, indptr, (len(lengths), source.shape[1]))
        return Block(self.number, equal.labels, equal.copy_of, weights, stats)


class _LabelQueue:
    """A queue of labels to solve, in the order they were added, shared by threads.

    A thread that finds no labels helps those that still have some.
    """

    def __init__(self) -> None:
        self.sharing = WorkSharing()
        self._portions: deque[npt.NDArray[np.int64]] = deque()
        self._lock = Lock()
        self._ended = False
        self._solving = 0  # threads that hold labels and are not done with them

    def add(self, portions: Iterable[npt.NDArray[np.int64]]) -> None:
        with self._lock:
            self._portions.extend(portions)
        self.sharing.call_back()

    def end(self) -> None:
        with self._lock:
            self._ended = True
        self.sharing.call_back()

    def next(self) -> npt.NDArray[np.int64] | None:
        """Return some labels, or None if there are none at the moment."""
        with self._lock:
            return self._portions.popleft() if self._portions else None

    def begin(self) -> bool:
        """Wait for labels, helping others meanwhile; return False if no more will come.

        A thread that gets True must call `done` when it has finished.
        """
        while True:
            calls = self.sharing.calls
            with self._lock:
                if self._portions:
                    self._solving += 1
                    return True
                if self._ended:
                    return False
            self.sharing.help(calls)

    def done(self) -> None:
        with self._lock:
            self._solving -= 1
            last = not self._solving
        if last:
            self.sharing.call_back()

    def help(self) -> None:
        """Help until no thread has labels left."""
        while True:
            calls = self.sharing.calls
            with self._lock:
                if not self._solving:
                    return
            self.sharing.help(calls)


def _work(
    problem: Problem,
    params: SolverParams,
    costs: Costs,
    cancel: Cancel,
    queue: _LabelQueue,
    results: SimpleQueue[Any],
    path: Sequence[float] = (),
) -> None:
    """Solve the labels in the queue until it ends, passing on each result."""
    try:
        solver = LabelSolver(problem, params, cancel, costs, path, queue.sharing)
        while not cancel and queue.begin():
            try:
                labels: npt.NDArray[np.int64] | None = _NONE
                while labels is not None and not cancel:
                    labels = queue.next()
                    begin = time.perf_counter()
                    some = _NONE if labels is None else labels
                    solution = solver.solve(some, drain=labels is None)
                    if not cancel:
                        results.put((solution, time.perf_counter() - begin))
            finally:
                queue.done()
        del solver  # frees its memory
        queue.help()
    except BaseException as error:
        results.put(error)


def _keep_block(keep: Callable[[Block], Any], block: Block, results: SimpleQueue[Any]) -> None:
    try:
        results.put(Kept(block.number, keep(block)))
    except BaseException as error:
        results.put(Kept(block.number, None, error))


def _portions(problem: Problem, labels: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield frequent labels first: labels solved side by side should take equally long.

    Portions of frequent labels are smaller, because results are passed on only once all labels of a
    portion have started, and the weights of frequent labels take memory.
    """
    at_once = _LABELS_AT_ONCE * min(max(_NON_ZEROS // max(problem.nnz, 1), 1), _MOST_TIMES)
    counts = problem.label_counts[labels]
    order = np.argsort(-counts, kind="stable")
    ordered = labels[order]
    before = np.concatenate([[0], np.cumsum(counts[order])])
    begin = 0
    while begin < len(ordered):
        full = int(np.searchsorted(before, before[begin] + _ROWS_AT_ONCE, side="right")) - 1
        end = max(begin + 1, min(full, begin + at_once))
        yield ordered[begin:end]
        begin = end
