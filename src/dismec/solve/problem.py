"""Labels → pruned weights.

For each label, with s_i = +1 for the rows that have it and −1 for all others, under the L2
penalty::

    min_w  f(w) = ½‖w‖² + C·Σ_i c_i·v_i·u_i·max(0, 1 − s_i·w·x_i)²

    gradient            w + 2C·Σ_I c_i·v_i·u_i·(w·x_i − s_i)·x_i,   I = {i : s_i·w·x_i < 1}
    solved when         ‖∇f(w)‖ ≤ tol · max(min(pos, neg), 1)/N · ‖∇f(0)‖    (LIBLINEAR's rule)
                        and ½‖∇f(w)‖² ≤ 0.1·tol·f(w), which bounds the gap to the optimum

and under the L1 penalty::

    min_w  f(w) = ‖w‖₁ + C·Σ_i max(0, 1 − s_i·w·x_i)²

    solved when         f(w) − g(α) ≤ 0.01·tol·f(w)
                        where g is the dual function and α a feasible point made from w

c_i is the cost: a for positive rows, b for negative ones, 1 unless `dismec.solve.costs` says
otherwise. v_i is the row weight, and u_i the weight of the pair of this row and this label, both 1
by default. x_i is the transformed row (see `Transform`); its last feature is the bias, which is
regularized like any other. Weights with |w| < delta are dropped as soon as a label is solved. The
loops are native (``native/solve/``); a label's weights depend only on X, the row weights, its
positives, the weights of its pairs and the parameters.
"""

from __future__ import annotations

import math
import mmap
import sys
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import kernels
from dismec.data.counts import counted
from dismec.data.matrices import csr_on
from dismec.data.mixed import MixedRows
from dismec.data.weights import PairWeights, RowWeights
from dismec.errors import DataError
from dismec.features.transform import Transform
from dismec.solve.block import BINS
from dismec.solve.costs import Costs, Weighting, split_weights
from dismec.solve.partition import EqualLabels

PENALTIES = ("l2", "l1")
_TINY, _HUGE = (float(n) for n in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))
_MOST_DENSE_SCALE = 1e30  # a larger factor, times numbers near 1e8, would leave single precision


@dataclass(frozen=True)
class SolverParams:
    """The objective, the stopping tolerance, and the pruning threshold."""

    C: float = 1.0  # loss weight (inverse of regularization strength), > 0
    delta: float = 0.01  # weights with |w| < delta are dropped; 0 keeps all
    tol: float = 0.01  # > 0: LIBLINEAR's ε with L2, a hundred times the relative gap with L1
    penalty: str = "l2"  # "l2" for ½‖w‖², or "l1" for ‖w‖₁, which gives sparse weights
    weighting: Weighting = field(default_factory=Weighting)  # with L1 all costs are 1
    # A feature, and the delta of sparse features from there on; dense ones keep all their weights.
    pruned_more: tuple[int, float] | None = None
    soft_labels: bool = False  # a positive with pair weight u is also a negative of weight 1 − u
    added: sp.csr_array | None = None  # what is added to the weights of each label, of their shape

    def __post_init__(self) -> None:
        if self.penalty not in PENALTIES:
            raise ValueError(f"penalty is {self.penalty!r}; expected 'l2' or 'l1'")
        weighted = self.weighting.kind is not None or self.weighting.positive_weight != 1
        if self.penalty == "l1" and weighted:
            raise ValueError("positive_weight and weighting are not supported with penalty='l1'")
        for name, least in (("C", _TINY), ("tol", _TINY), ("delta", 0.0)):
            if not least <= getattr(self, name) <= _HUGE:
                numbers = f"{least:.2g} to {_HUGE:.2g}"
                raise ValueError(
                    f"{name} is {getattr(self, name)}; expected a number from {numbers}"
                )


@dataclass(frozen=True, eq=False)
class Solution:
    """The solution for some labels, one entry per label in each array."""

    labels: npt.NDArray[np.int64]
    weights: sp.csr_array  # float32 (len(labels), n_features + 1), bias last, pruned
    objective: npt.NDArray[np.float64]  # f(w) before pruning
    # Upper bound of ‖∇f(w)‖, or of the gap with L1, divided by what the stopping rule allows; at
    # most 1 means solved.
    stop_ratio: npt.NDArray[np.float64]
    passes: npt.NDArray[np.int32]  # passes over all rows
    steps: npt.NDArray[np.int32]  # steps on the working set
    set_size: npt.NDArray[np.int64]  # rows in the working set at the end
    seconds: npt.NDArray[np.float64]  # including a share of the work done for several labels
    weight_counts: npt.NDArray[np.int32]  # (len(labels), BINS): nonzero weights before pruning

    def __getitem__(self, which: npt.NDArray[Any]) -> Solution:
        """Select labels, in the order of `which`."""
        return Solution(*(getattr(self, part.name)[which] for part in fields(self)))


def empty_array(size: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Like np.empty, but the memory of a large array returns to the system when it is dropped.

    Memory that one thread allocates and another frees would otherwise stay in the first thread's
    heap, and training passes weights from threads to blocks to files.
    """
    n_bytes = int(size) * np.dtype(dtype).itemsize
    if n_bytes < 1 << 16:
        return np.empty(size, dtype)
    if sys.platform == "win32":
        return np.frombuffer(mmap.mmap(-1, n_bytes), dtype)
    # Shareable memory would take twice as long to allocate. No huge pages: the rows of a block
    # arrive in any order, so the whole block would be resident before its sources are freed.
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return np.frombuffer(mmap.mmap(-1, n_bytes, private), dtype)


class Cancel:
    """A flag that one thread sets and the native loops of other threads check."""

    def __init__(self) -> None:
        self.byte = np.zeros(1, dtype=np.uint8)

    def set(self) -> None:
        """Make every `Problem.solve` with this flag return within milliseconds."""
        self.byte[0] = 1

    def __bool__(self) -> bool:
        return bool(self.byte[0])


WorkSharing = kernels.WorkSharing  # threads that help each other: see `LabelSolver`


class Problem:
    """Rows and labels to solve, checked once; `solve` may then be called from any thread.

    `X` is anything that `Transform.take` accepts. CSR float32 is used in place, and so are dense
    features: the transform is applied inside the loops, which avoids a second copy. `Y` is a sparse
    indicator matrix. `weights`, one number above 0 per row, multiply the losses of rows, with L2
    only; their common factor is `C_factor`, which multiplies C. `costs`, if given, are the factors
    of individual labels: labels with the same rows are one problem only if their costs are equal,
    too. `pairs` are the weights of pairs of a row and a label, with L2 only; a pair of weight 0 is
    not an entry of Y.
    """

    def __init__(
        self,
        X: Any,
        Y: Any,
        transform: Transform,
        weights: RowWeights | None = None,
        costs: Costs | None = None,
        pairs: PairWeights | None = None,
    ) -> None:
        X = transform.take(X)
        dense, scales = None, None
        if isinstance(X, MixedRows):
            dense, scales = X.dense, transform.dense_scales(X.dense)
            if len(scales) and scales.max() > _MOST_DENSE_SCALE:
                raise DataError(
                    f"row index {scales.argmax()}: all dense features are next to 0; multiply the "
                    "dense features of all rows by a large number"
                )
        self.nnz: int = X.nnz
        if isinstance(X, MixedRows):
            X = X.sparse
        if Y.shape[0] != X.shape[0]:
            raise DataError(f"X has {counted(X.shape[0], 'row')}, Y has {Y.shape[0]}")
        self.n_rows, self.n_features = X.shape
        self.n_columns = transform.n_columns  # including dense features
        self.n_labels: int = Y.shape[1]
        by_label = sp.csc_array(Y)
        self._indptr = by_label.indptr.astype(np.int64, copy=False)
        self._rows = by_label.indices.astype(np.int32, copy=False)
        self._costs = costs
        self._pairs: Any = None if pairs is None else sp.csc_array(pairs)
        self.C_factor, relative = split_weights(weights)
        self._heaviest = 1.0 if relative is None else float(relative.max(initial=1))
        self._native = kernels.Problem(
            X.indptr.astype(np.int64, copy=False),
            X.indices,
            transform.values(X),
            transform.row_scale(X),
            transform.idf,
            self.n_features,
            transform.bias,
            relative,
            dense,
            scales,
            self._indptr,
            self._rows,
            *_pair_arrays(self._pairs),
        )

    def check_C(self, params: SolverParams, costs: Costs | None = None) -> None:
        """Raise `DataError` if C, times weights and costs, leaves the range of single precision.

        With K = Σ c_i·v_i and Q = Σ c_i·v_i·‖x_i‖², a gradient g has a norm of at most 2C·√(K·Q),
        and the solver sums c_i·v_i·(g·x_i)², at most (2C)²·K·Q².
        """
        costs = costs or params.weighting.costs(self.label_counts, self.n_rows)
        rows = self._native
        share = self._heaviest * rows.longest**2 / max(rows.squares, _TINY)
        u = 1.0 if self._pairs is None else float(self._pairs.data.max(initial=1))
        n_own = self.label_counts + (0 if self._pairs is None else np.diff(self._pairs.indptr))
        shares = u * np.minimum(n_own * share, 1)  # of these rows in K and Q
        every = costs.negative + np.maximum(*costs) * shares
        cost = float(every.max(initial=0, where=shares > 0))
        root = 2 * self.C_factor * math.sqrt(cost * rows.weight) * cost * rows.squares
        most = math.sqrt(_HUGE) / max(root, _TINY)
        if not _TINY / self.C_factor <= params.C <= most:
            raise DataError(
                f"C is {params.C:g} and rows have weights near {self.C_factor:g}: out of range; on "
                f"these rows, single precision can solve C up to {0.95 * most:.1e}; scale the "
                "weights so that they are near 1"
            )

    @cached_property
    def equal_labels(self) -> EqualLabels:
        """Labels with the same rows, costs and pair weights; call this before starting threads."""
        costs = self._costs or ()
        return EqualLabels.of(self._indptr, self._rows, self.n_rows, costs, self._pairs)

    @property
    def label_counts(self) -> npt.NDArray[np.int64]:
        """Number of rows per label."""
        return np.diff(self._indptr)

    def solve(
        self,
        labels: npt.NDArray[np.int64] | range,
        params: SolverParams,
        cancel: Cancel | None = None,
        costs: Costs | None = None,
    ) -> Solution:
        """Solve `labels` on the calling thread, with the GIL released.

        A label without positives gets an empty row. Labels with similar numbers of positives should
        be solved together because they finish together. `costs`, for all labels of the problem,
        override those given by `params`.
        """
        labels = np.asarray(labels, dtype=np.int64)
        solver = LabelSolver(self, params, Cancel() if cancel is None else cancel, costs)
        solution = solver.solve(labels, drain=True)
        if len(solution.labels) < len(labels):
            return solution  # canceled
        place = np.argsort(np.argsort(labels, kind="stable"), kind="stable")
        return solution[np.argsort(solution.labels, kind="stable")[place]]


@dataclass(frozen=True, eq=False)
class ProblemFacts:
    """The dimensions of a problem whose rows are elsewhere and have no weights."""

    n_rows: int
    n_features: int  # sparse features
    n_columns: int  # including dense features
    label_counts: npt.NDArray[np.int64]
    equal_labels: EqualLabels

    @property
    def n_labels(self) -> int:
        """Number of labels."""
        return len(self.label_counts)


def _pair_arrays(pairs: Any) -> tuple[npt.NDArray[Any], ...]:
    """Return the pairs by label as the kernels take them; without any, the arrays are empty."""
    if pairs is None:
        return np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float32)
    rows = pairs.indices.astype(np.int32, copy=False)
    return pairs.indptr.astype(np.int64, copy=False), rows, pairs.data


class LabelSolver:
    """Solves labels of a problem over several calls, on one thread at a time.

    Labels that are unfinished when `solve` has no more labels to start are kept until the next
    call, so the solver's slots do not run empty in between.

    Threads in ``sharing.help`` do part of the work, which does not change the weights.
    """

    def __init__(
        self,
        problem: Problem,
        params: SolverParams,
        cancel: Cancel,
        costs: Costs | None = None,
        sharing: WorkSharing | None = None,
    ) -> None:
        self._n_columns = problem.n_columns + 1
        if costs is None:
            costs = params.weighting.costs(problem.label_counts, problem.n_rows)
        self._native = kernels.Worker(
            problem._native,
            params.C * problem.C_factor,
            params.tol,
            params.delta,
            *(params.pruned_more or (np.iinfo(np.int32).max, params.delta)),
            params.penalty == "l1",
            params.soft_labels,
            *costs,
            cancel.byte,
            WorkSharing() if sharing is None else sharing,
        )
        problem.check_C(params, costs)

    def solve(self, labels: npt.NDArray[np.int64], *, drain: bool = False) -> Solution:
        """Add labels, and return those that are done; with `drain`, all of them.

        The GIL is released. Once the cancel flag is set, the result is incomplete.
        """
        done, indptr, *statistics = self._native.solve(labels, drain)
        features, weights = empty_array(indptr[-1], np.int32), empty_array(indptr[-1], np.float32)
        self._native.take(features, weights)
        matrix = csr_on(weights, features, indptr, (len(done), self._n_columns))
        statistics[-1] = statistics[-1].reshape(len(done), BINS)
        return Solution(done, matrix, *statistics)
