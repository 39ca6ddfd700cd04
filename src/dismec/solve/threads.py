"""Blocks of labels → their weights, on the threads of this process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import chain
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dismec.cpu import available_cpus, kernels
from dismec.data.matrices import csr_on, plus
from dismec.solve.block import Block, BlockStats, sum_counts
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
    equal, added = problem.equal_labels, params.added
    if added is not None:
        equal = equal.apart(np.diff(added.indptr) > 0)
    unfinished = {
        number: _OpenBlock(number, equal.among(labels)) for number, labels in blocks.items()
    }
    owner = np.full(problem.n_labels, -1, dtype=np.int64)
    for number, block in unfinished.items():
        owner[block.equal.distinct] = number
    groups = [block.equal.distinct for block in unfinished.values()]
    with _Threads(problem, params, groups, threads) as running:
        n_kept = 0
        while n_kept < len(blocks):
            result = running.wait()
            if isinstance(result, _Kept):
                n_kept += 1
                yield result.value
                continue
            solution, seconds = result
            share = seconds / max(len(solution.labels), 1)
            owners = owner[solution.labels]
            n_labels = 0
            for number in np.unique(owners).tolist():
                block = unfinished[number]
                n_labels += block.add(solution, np.flatnonzero(owners == number), share)
                if block.complete:
                    finished = unfinished.pop(number).close()
                    if added is not None:
                        more = added[block.equal.distinct]
                        weights = plus(finished.weights, more, params.delta)
                        finished = replace(finished, weights=weights)
                    running.keep(keep, finished)
            if progress:
                progress(n_labels, solution.labels)


class _Kept(NamedTuple):
    """What `keep` returned for a finished block."""

    value: Any


class _Threads(AbstractContextManager["_Threads"]):
    """Threads that solve groups of labels, in this order.

    While there are labels left to start, no thread waits for the last ones of a group; after that,
    it helps the other threads. Leaving the ``with`` statement stops them within milliseconds.
    """

    def __init__(
        self,
        problem: Problem,
        params: SolverParams,
        groups: Iterable[npt.NDArray[np.int64]],
        threads: int | None,
    ) -> None:
        threads = threads or available_cpus()
        self._cancel, self._sharing = Cancel(), WorkSharing()
        costs = params.weighting.costs(problem.label_counts, problem.n_rows)
        common = problem, params, self._cancel, costs, self._sharing
        self._new_solver = partial(LabelSolver, *common)
        self._portions = deque(chain.from_iterable(_portions(problem, g) for g in _joined(groups)))
        self._results: SimpleQueue[Any] = SimpleQueue()
        self._lock = Lock()
        self._solving = threads  # threads that are not done with their labels
        # One more thread, for `keep`.
        self._pool = ThreadPoolExecutor(threads + 1, thread_name_prefix="dismec-solve")
        for _ in range(threads):
            self._pool.submit(self._work)

    def __exit__(self, *_: object) -> None:
        self._cancel.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def wait(self) -> Any:
        """Return the next result, a `Solution` and its seconds or a `_Kept`; raise any error."""
        while True:
            try:
                result = self._results.get(timeout=0.2)  # lets the main thread see Ctrl-C
            except Empty:
                continue
            if isinstance(result, BaseException):
                raise result
            return result

    def keep(self, keep: Callable[[Block], Any], block: Block) -> None:
        """Call `keep` on one of the threads; `wait` returns what it returns."""

        def call() -> None:
            try:
                self._results.put(_Kept(keep(block)))
            except BaseException as error:
                self._results.put(error)

        self._pool.submit(call)

    def _work(self) -> None:
        try:
            self._solve()
        except BaseException as error:
            self._results.put(error)
        with self._lock:
            self._solving -= 1
            if not self._solving:
                self._sharing.call_back()
        while True:
            calls = self._sharing.calls
            if not self._solving:
                return
            self._sharing.help(calls)

    def _solve(self) -> None:
        """Solve labels until there are none left to start, passing on each result."""
        solver = self._new_solver()
        labels: npt.NDArray[np.int64] | None = _NONE
        while labels is not None and not self._cancel:
            with self._lock:
                labels = self._portions.popleft() if self._portions else None
            begin = time.perf_counter()
            some = _NONE if labels is None else labels
            solution = solver.solve(some, drain=labels is None)
            if not self._cancel:
                self._results.put((solution, time.perf_counter() - begin))


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


def _joined(groups: Iterable[npt.NDArray[np.int64]]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield small groups together, so that threads are handed as many labels as of large ones."""
    some: list[npt.NDArray[np.int64]] = []
    for group in groups:
        some.append(group)
        if sum(map(len, some)) >= _LABELS_AT_ONCE:
            yield np.concatenate(some)
            some = []
    if some:
        yield np.concatenate(some)


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
