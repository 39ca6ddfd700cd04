"""Data → what training on it will take, before anything is trained.

Time: some labels are really solved. The sample is systematic (every m-th of the labels ranked by
frequency), so that it has its share of each frequency, and its time is scaled up by what
`dismec.solve.blocks.effort` says of it and of all labels. Memory: a formula, whose constants come
from the peaks that ``benchmarks/memory.py`` measures.
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
from dismec.model.format import PRECISIONS
from dismec.solve.blocks import effort
from dismec.solve.problem import Problem
from dismec.solve.threads import solve_blocks
from dismec.training.params import TrainingParams

__all__ = ["estimate_training", "tell_estimate"]

_PILOT = 32  # labels that the solver takes through one pass together

# Peaks of benchmarks/memory.py: the interpreter with its libraries, the working sets and slots of a
# thread (at least, and per row and feature, as native/solve/solver.hpp limits them), its vectors
# over rows and features, and how often a block's weights exist at a time.
_PROCESS = 90e6
_THREAD = 50e6
_SETS_ROW_OR_FEATURE = 50
_ROW_OR_FEATURE = 100
_WEIGHT = 8 * 3
# Where there are many features per non-zero of a row, the solver keeps the numbers of X in other
# orders as well, and a thread's vectors are shorter (docs/explanation/solver.md).
_TIER_NON_ZERO = 6
_TIER_ROW_OR_FEATURE = 20
_COLUMNS_TRIED = 4  # per entry: of more, those without entries are left out of what is tried


def estimate_training(
    X: sp.csr_array,
    Y: sp.csr_array,
    params: TrainingParams | None = None,
    *,
    seconds: float = 1.5,
    threads: int | None = None,
) -> dict[str, Any] | None:
    """About how long `dismec train` will take on this machine, and how much memory.

    It tries for about `seconds`, or for as long as it takes to prepare large data: passes over all
    rows are shared by many labels, and a few would seem to cost more than they do. Of a training
    that holds rows out, only the second, longer part is estimated. The result is None if no label
    has rows, else "seconds" and "core-seconds" of solving, "peak bytes" of memory, "model bytes" on
    the disk, and on what they rest: "sampled labels", "sampled seconds", "labels to solve",
    "threads", "memory bytes" of this machine (or None). Where memory is short already without
    weights nothing is tried, and there are only "peak bytes" and "memory bytes".
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
    transform = Transform.fit(X, tfidf=params.tfidf, normalize=params.normalize, bias=params.bias)
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
    share = kept / len(sample)  # of labels that have a weight for a feature
    return {
        "seconds": core_seconds / threads,
        "core-seconds": core_seconds,
        "peak bytes": _peak(*whole, params, threads, float(share.sum())),
        "model bytes": _model_bytes(share, len(ranked), params.precision),
        "sampled labels": len(sample),
        "sampled seconds": spent,
        "labels to solve": len(ranked),
        "threads": threads,
        "memory bytes": memory,
    }


def _every(ranked: npt.NDArray[np.int64], wanted: int) -> npt.NDArray[np.int64]:
    """So many labels at even distances, beginning in the middle of the first."""
    n = min(max(wanted, 1), len(ranked))
    places = ((np.arange(n) + 0.5) * len(ranked) / n).astype(np.int64)
    return ranked[places]


def _solved(
    problem: Problem, params: TrainingParams, labels: npt.NDArray[np.int64], threads: int
) -> tuple[npt.NDArray[np.int64], float, npt.NDArray[np.int64]]:
    """Labels, the core-seconds it took to solve them, and how many of them keep each feature."""
    begin = time.process_time()  # other processes' share of the machine does not count
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


def _model_bytes(share: npt.NDArray[np.float64], n_labels: int, precision: str) -> int:
    """Values, and their places: two bytes each, or a bit a label where that is less."""
    weights = share * n_labels
    places = np.minimum(2 * weights, n_labels / 8)
    return int(weights.sum() * PRECISIONS[precision].itemsize + places.sum())


def tell_estimate(training: dict[str, Any]) -> list[str]:
    """An estimate in sentences, with how it was got."""
    peak, memory = training["peak bytes"], training["memory bytes"]
    lines = []
    if "seconds" in training:
        lines.append(
            f"Solving takes about {_duration(training['seconds'])} with "
            f"{counted(training['threads'], 'thread')} ({_duration(training['core-seconds'])} of "
            "one core) if nothing else runs, at "
            "the default parameters; reading the data and writing the model come on top."
        )
    there = f" of the {_size(memory)} that this machine has" if memory else ""
    lines.append(f"Memory: about {_size(peak)} at the peak{there}.")
    if memory and peak > memory:
        lines.append("This is more memory than there is: expect the training to fail here.")
    if "seconds" in training:
        lines.append(f"The model will have about {_size(training['model bytes'])}.")
        lines.append(
            f"Time comes from {training['sampled labels']:,} of the "
            f"{counted(training['labels to solve'], 'label')} to solve, evenly spread over the "
            "frequencies, "
            f"which were solved just now in {training['sampled seconds']:.2g} core-seconds; memory "
            "from a formula for the arrays of the data, the threads and the weights of a block."
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
