"""LEML: one low-rank linear map for all labels; RobustXML: the same plus sparse weights.

Yu, Jain, Kar, Dhillon, "Large-scale Multi-label Learning with Missing Labels", 2014. The weights of
all labels form one matrix Z = WHᵀ of low rank: W maps a row to a few dimensions, and H, with one
vector per label, maps these to scores.

    min over W, H of  ½‖Y − XWHᵀ‖² + λ/2·(‖W‖² + ‖H‖²)

This is the paper's case of squared loss without missing labels, in which Y is never made dense.
From a random start, each iteration improves W and then H, so the objective never increases:

1. Rotate the dimensions so that HᵀH is diagonal (D). The objective does not change, and the
   columns of W become separate ridge regressions: (d_j·XᵀX + λI) w_j = XᵀYh_j.
2. Improve each column of W by conjugate gradients, from where it stands.
3. Solve for H: H = YᵀA(AᵀA + λI)⁻¹, where A = XW.

RobustXML adds sparse weights for the residual. It is written from the paper: Xu, Tao, Xu, "Robust
Extreme Multi-label Learning", 2016; its code was not published. Labels with few rows do not fit
into a few dimensions shared by all labels; they are outliers to a low-rank model. Here they need
not fit: the weights are WHᵀ + V, where WHᵀ has low rank and V is sparse.

    min over W, H, V of
        ½‖Y − X(WHᵀ + V)‖² + λ/2·(‖W‖² + ‖H‖²) + ν/2·‖V‖² + μ‖V‖₁

Each round:

1. LEML's iterations on Y − XV, from the W and H of the last round.
2. Regress the residual Y − XWHᵀ on X, label by label, by ridge regression with ν.
3. Soft-threshold these weights by θ, which makes them V.

Steps 2 and 3 approximate the exact minimum over V: they find it if XᵀX is diagonal and equal for
all features, with μ = θ·(XᵀX + ν), and otherwise only approach it. Neither Y − XV nor XWHᵀ is ever
formed: XᵀXV and XᵀXW are enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from dismec.compare.baseline import Floats, Topk, best_of_rows, conjugate_gradients
from dismec.cpu import in_threads

_BLOCK = 64  # columns at a time, so results do not depend on the number of threads
# A dense XᵀX is used up to this number of features, if it has at most this many entries per entry
# of X: dense products are faster by this factor.
_MOST_DENSE, _DENSE_PER_SPARSE = 10_000, 12


@dataclass(frozen=True)
class LEML:
    """LEML and its parameters."""

    rank: int | None = None  # None: 0.8 times the number of labels, at most 500
    lambda_: float = 2.0
    iterations: int = 10
    cg_steps: int = 20
    seed: int = 0

    def fit(self, X: Any, Y: Any, *, threads: int = 1) -> FittedLowRank:
        """Train on the rows of X and their labels Y."""
        equations = NormalEquations(X, Y, threads)
        low_rank = self.start(equations)
        for _ in range(self.iterations):
            low_rank = alternate(equations, low_rank, self.lambda_, self.cg_steps)
        return FittedLowRank(low_rank)

    def start(self, equations: NormalEquations) -> LowRank:
        """Return W = 0 and a random H."""
        n_features, n_labels = equations.XT.shape[0], equations.YT.shape[0]
        rank = min(500, round(0.8 * n_labels)) if self.rank is None else min(self.rank, n_labels)
        rank = max(rank, 1)
        rng = np.random.default_rng(self.seed)
        H = rng.standard_normal((n_labels, rank), np.float32)
        return LowRank(np.zeros((n_features, rank), np.float32), H)


class LowRank(NamedTuple):
    """Weights WHᵀ."""

    W: Floats  # (n_features, rank)
    H: Floats  # (n_labels, rank)


class FittedLowRank(NamedTuple):
    """A trained LEML or RobustXML."""

    low_rank: LowRank
    V: Any = None  # CSR (n_features, n_labels), for RobustXML only

    def predict_topk(self, X: Any, k: int) -> Topk:
        """Return the best k labels per row, best first, and their scores."""
        W, H = self.low_rank

        def score(rows: Any) -> Floats:
            scores: Floats = (rows @ W) @ H.T
            return scores if self.V is None else scores + (rows @ self.V).toarray()

        return best_of_rows(sp.csr_matrix(X, dtype=np.float32), k, len(H), score)


class NormalEquations:
    """Products with XᵀX and XᵀY, and ridge regressions with them, by blocks of columns."""

    def __init__(self, X: Any, Y: Any, threads: int) -> None:
        self.X, self.Y = (sp.csr_matrix(part, dtype=np.float32) for part in (X, Y))
        self.XT, self.YT = self.X.T.tocsr(), self.Y.T.tocsr()
        self.threads = threads
        self.gram: Floats | None = None  # XᵀX, if worthwhile
        n_features = X.shape[1]
        if n_features <= _MOST_DENSE and n_features**2 <= _DENSE_PER_SPARSE * self.X.nnz:
            by_columns = self.X.tocsc()
            self.gram = self.by_blocks(n_features, lambda at: self.XT @ by_columns[:, at].toarray())

    def in_blocks(self, n_columns: int, compute: Callable[[slice], Any]) -> list[Any]:
        """Return the result of `compute` for each block of columns, in order."""
        blocks = [slice(at, min(at + _BLOCK, n_columns)) for at in range(0, n_columns, _BLOCK)]
        return in_threads(compute, blocks, self.threads)

    def by_blocks(self, n_columns: int, compute: Callable[[slice], Floats]) -> Floats:
        """Like `in_blocks`, joined into one matrix."""
        return np.concatenate(self.in_blocks(n_columns, compute), axis=1)

    def XTX(self, S: Floats) -> Floats:
        """Return XᵀXS for a block of columns."""
        product: Floats = self.XT @ (self.X @ S) if self.gram is None else self.gram @ S
        return product

    def ridge(self, d: Floats, lambda_: float, target: Floats, start: Floats, steps: int) -> Floats:
        """For each column j of a block, improve on start_j: (d_j·XᵀX + λI) s_j ≈ target_j.

        Uses conjugate gradients, separately per column, and stops after `steps`, or when all
        gradients have shrunk to a tenth of their norm.
        """
        return conjugate_gradients(
            lambda S: self.XTX(S) * d + np.float32(lambda_) * S,
            target,
            start,
            steps,
            lambda squares: squares / np.float32(100),
        )


def alternate(
    equations: NormalEquations, low_rank: LowRank, lambda_: float, steps: int, V: Any = None
) -> LowRank:
    """Improve W and then H for the targets Y, or Y − XV with additional weights V (CSR)."""
    # 1. Rotate.
    W, H = low_rank
    d, Q = np.linalg.eigh(H.T.astype(np.float64) @ H)
    d, Q = np.maximum(d, 0).astype(np.float32), Q.astype(np.float32)
    W, H = W @ Q, H @ Q

    # 2. W, by ridge regressions on targets Yh_j.
    def improved(at: slice) -> Floats:
        h = np.ascontiguousarray(H[:, at])
        target = equations.XT @ (equations.Y @ h)
        if V is not None:
            target -= equations.XTX(V @ h)
        start = np.ascontiguousarray(W[:, at])
        return equations.ridge(d[at], lambda_, target, start, steps)

    rank = H.shape[1]
    W = equations.by_blocks(rank, improved)

    # 3. H, by the normal equations of A = XW.
    XTA = equations.by_blocks(rank, lambda at: equations.XTX(np.ascontiguousarray(W[:, at])))
    YTA = equations.by_blocks(
        rank, lambda at: equations.YT @ (equations.X @ np.ascontiguousarray(W[:, at]))
    )
    if V is not None:
        YTA -= V.T @ XTA
    ATA = (W.T @ XTA).astype(np.float64)
    ATA = (ATA + ATA.T) / 2 + lambda_ * np.eye(rank)
    HT = scipy.linalg.solve(ATA, YTA.T.astype(np.float64), assume_a="pos")
    return LowRank(W, np.ascontiguousarray(HT.T, np.float32))


@dataclass(frozen=True)
class RobustXML(LEML):
    """RobustXML and its parameters; those of LEML are for the low-rank part."""

    iterations: int = 3  # per round
    nu: float = 1.0  # for the regression of the residual
    threshold: float = 0.03  # θ
    rounds: int = 2

    def fit(self, X: Any, Y: Any, *, threads: int = 1) -> FittedLowRank:
        """Train on the rows of X and their labels Y."""
        equations = NormalEquations(X, Y, threads)
        low_rank, V = self.start(equations), None
        for _ in range(self.rounds):
            for _ in range(self.iterations):
                low_rank = alternate(equations, low_rank, self.lambda_, self.cg_steps, V)
            V = sparse_part(equations, low_rank, self.nu, self.threshold, self.cg_steps)
        return FittedLowRank(low_rank, V)


def sparse_part(
    equations: NormalEquations, low_rank: LowRank, nu: float, threshold: float, steps: int
) -> Any:
    """Return V (CSR): the residual of the low-rank part, regressed on X and soft-thresholded."""
    W, H = low_rank
    XTA = equations.by_blocks(W.shape[1], lambda at: equations.XTX(np.ascontiguousarray(W[:, at])))
    by_label = equations.Y.tocsc()

    def regressed(at: slice) -> Any:
        target = equations.XT @ by_label[:, at].toarray() - XTA @ H[at].T
        d = np.ones(target.shape[1], np.float32)
        S = equations.ridge(d, nu, target, np.zeros_like(target), steps)
        shrunk = np.maximum(np.abs(S) - np.float32(threshold), 0)
        return sp.csc_matrix(np.copysign(shrunk, S))

    return sp.hstack(equations.in_blocks(len(H), regressed), format="csr")
