"""Data → an estimate of training time and memory, before training.

Time: some labels are actually solved. The sample is systematic (every m-th of the labels sorted by
frequency), so every frequency is represented, and its time is scaled up by the ratio of
`dismec.solve.partition.effort` for all labels to that of the sample. Memory: a formula whose
constants come from the peaks measured by ``benchmarks/memory.py``.
"""

from __future__ import annotations

import time
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import kernels, physical_memory, thread_count
from dismec.data.counts import counted
from dismec.data.matrices import without_unused
from dismec.features.transform import Transform
from dismec.model.manifest import PRECISIONS
from dismec.solve.partition import effort
from dismec.solve.problem import Problem
from dismec.solve.threads import solve_blocks
from dismec.training.params import TrainingParams

_PILOT = 32  # labels that the solver processes together in one pass

# Peaks of benchmarks/memory.py: the interpreter with its libraries, the working sets and slots of a
# thread (a minimum, and per row and feature, as limited by native/solve/solver.hpp), its vectors
# over rows and features, and how many copies of a block's weights exist at a time.
_PROCESS = 90e6
_THREAD = 50e6
_SETS_ROW_OR_FEATURE = 50
_ROW_OR_FEATURE = 100
_WEIGHT = 8 * 3
# If there are many features per nonzero of a row, the solver also stores X in other orders, and the
# vectors of a thread are shorter (docs/explanation/solver.md).
_TIER_NON_ZERO = 6
_TIER_ROW_OR_FEATURE = 20
_COLUMNS_TRIED = 4  # per entry: with more columns than this, the trial leaves out the empty ones


def estimate_training(
    X: sp.csr_array,
    Y: sp.csr_array,
    params: TrainingParams | None = None,
    *,
    seconds: float = 1.5,
    threads: int | None = None,
) -> dict[str, Any] | None:
    """Estimate how long `dismec train` will take on this machine, and how much memory.

    The trial takes about `seconds`, or as long as it takes to prepare large data; many labels share
    the passes over all rows, so a sample that is too small would overestimate the time. If training
    holds out rows, only the second, longer part is estimated. The result is None if no label has
    rows. Otherwise it contains "seconds" and "core-seconds" of solving, "peak bytes" of memory,
    "model bytes" on disk, and the basis of the estimate: "sampled labels", "sampled seconds",
    "labels to solve", "threads", "memory bytes" of this machine (or None). If memory is too small
    even without weights, nothing is tried, and the result contains only "peak bytes" and "memory
    bytes".
    """
    params = params or TrainingParams()
    threads = thread_count(threads)
    if X.shape[0] == 0 or Y.nnz == 0:
        return None
    memory = physical_memory()
    least = _peak(X, Y, params, threads, 0)
    if memory and least > memory:
        return {"peak bytes": least, "memory bytes": memory}
    begin = time.perf_counter()
    whole = X, Y
    if max(X.shape[1], Y.shape[1]) > _COLUMNS_TRIED * (X.nnz + Y.nnz):
        (X, _), (Y, _) = without_unused(X), without_unused(Y)
    transform = Transform.fit(X, **params.transform)
    problem = Problem(X, Y, transform)
    work = effort(problem.equal_labels, problem.label_counts)
    ranked = np.argsort(-problem.label_counts, kind="stable")
    ranked = ranked[work[ranked] > 0]
    seconds = max(seconds, time.perf_counter() - begin)

    sample, spent, kept = _solved(problem, params, _every(ranked, _PILOT), 1)
    rate = spent / work[sample].sum()
    wanted = int(len(ranked) * min(1.0, seconds * threads / (rate * work[ranked].sum())))
    if wanted > 2 * len(sample):
        sample, spent, kept = _solved(problem, params, _every(ranked, wanted), threads)
        rate = spent / work[sample].sum()
    core_seconds = float(rate * work[ranked].sum())
    share = kept / len(sample)  # share of labels with a weight for each feature
    weights = share * len(ranked)
    # Two bytes per index, or a bit per label if that is less.
    places = np.minimum(2 * weights, len(ranked) / 8)
    return {
        "seconds": core_seconds / threads,
        "core-seconds": core_seconds,
        "peak bytes": _peak(*whole, params, threads, float(share.sum())),
        "model bytes": int(weights.sum() * PRECISIONS[params.precision].itemsize + places.sum()),
        "sampled labels": len(sample),
        "sampled seconds": spent,
        "labels to solve": len(ranked),
        "threads": threads,
        "memory bytes": memory,
    }


def _every(ranked: npt.NDArray[np.int64], wanted: int) -> npt.NDArray[np.int64]:
    """Return `wanted` labels at even distances, starting in the middle of the first interval."""
    n = min(max(wanted, 1), len(ranked))
    places = ((np.arange(n) + 0.5) * len(ranked) / n).astype(np.int64)
    return ranked[places]


def _solved(
    problem: Problem, params: TrainingParams, labels: npt.NDArray[np.int64], threads: int
) -> tuple[npt.NDArray[np.int64], float, npt.NDArray[np.int64]]:
    """Solve labels; return them, the core-seconds spent, and how many of them keep each feature."""
    begin = time.process_time()  # ignores time taken by other processes
    (kept,) = solve_blocks(
        problem,
        params.solver,
        {0: np.sort(labels)},
        lambda block: np.bincount(
            cast(Any, block.weights)[block.rows].indices, minlength=problem.n_features + 1
        ),
        threads=threads,
    )
    return labels, max(time.process_time() - begin, 1e-4), kept


def _peak(
    X: sp.csr_array, Y: sp.csr_array, params: TrainingParams, threads: int, weights: float
) -> int:
    arrays = sum(a.nbytes for m in (X, Y) for a in (m.indptr, m.indices, m.data))
    block = weights * min(params.block_size, Y.shape[1])
    n_vector = X.shape[0] + X.shape[1]
    a_thread = max(_THREAD, _SETS_ROW_OR_FEATURE * n_vector) + _ROW_OR_FEATURE * n_vector
    if X.shape[0] * X.shape[1] > kernels.features_per_non_zero * X.nnz:
        arrays += _TIER_NON_ZERO * X.nnz + _TIER_ROW_OR_FEATURE * n_vector
        a_thread -= (_ROW_OR_FEATURE - _TIER_ROW_OR_FEATURE) * n_vector
    return int(arrays + _PROCESS + threads * a_thread + block * _WEIGHT)


def summarize_estimate(training: dict[str, Any]) -> list[str]:
    """Describe an estimate in sentences, including how it was made."""
    peak, memory = training["peak bytes"], training["memory bytes"]
    lines = []
    if "seconds" in training:
        lines.append(
            f"Solving takes about {_duration(training['seconds'])} with "
            f"{counted(training['threads'], 'thread')} ({_duration(training['core-seconds'])} of "
            "CPU time) at C = 1 if nothing else is running. Choosing C, reading the data "
            "and writing the model take additional time."
        )
    there = f" of the {_size(memory)} that this machine has" if memory else ""
    lines.append(f"Memory: about {_size(peak)} at the peak{there}.")
    if memory and peak > memory:
        lines.append("This machine has less memory: training will probably fail here.")
    if "seconds" in training:
        lines.append(f"The model will take about {_size(training['model bytes'])} on disk.")
        lines.append(
            f"The time was extrapolated from {training['sampled labels']:,} of the "
            f"{counted(training['labels to solve'], 'label')}, evenly spread over the frequencies, "
            f"which took {training['sampled seconds']:.2g} core-seconds to solve; the memory "
            "follows from the sizes of the data, of the threads' working sets and of a block's "
            "weights."
        )
    return lines


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def _size(n_bytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{n_bytes:.0f} bytes"
