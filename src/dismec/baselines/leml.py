"""LEML: one low-rank linear map for all labels.

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

As in the authors' code: 10 iterations, at most 20 steps of conjugate gradients, and a tolerance of
a tenth, here of each gradient's norm. Differences: their code starts from uniform random W and H
and first trains on a hundredth of the rows; here W starts at 0 and H from a normal distribution, on
all rows. The rotation is our addition; it allows the columns to be solved in parallel.

The authors leave rank and λ open and vary both (their code's defaults are 10 and 0.1). The rank is
0.8·L, as others have run LEML, but at most 500. λ = 2 was chosen on held-out tenths of the training
rows: on bibtex (mean of five) it has the best P@1 and P@3 of 0.3, 1, 2, 3 and 4, and on Eurlex-4K
its P@1 is 0.2 points below that of 1 and 0.5 above that of 3. The rank matters more: on held-out
rows of Eurlex-4K, rank 100 has a P@1 of 64, near the published 63.40, and rank 500 of 76.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

from dismec.baselines.fitted import best_of

__all__ = ["LEML", "FittedLEML", "LowRank", "NormalEquations", "alternate", "best_of_rows"]

Floats = npt.NDArray[np.float32]

_BLOCK = 64  # columns at a time, so results do not depend on the number of threads
_MOST_SCORES = 1 << 23  # rows × labels, at a time
# A dense XᵀX is used up to this number of features, if it has at most this many entries per entry
# of X: dense products are faster by this factor.
_MOST_DENSE, _DENSE_PER_SPARSE = 10_000, 12
_TINY = np.float32(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class LEML:
    """LEML and its parameters."""

    rank: int | None = None  # None: 0.8 times the number of labels, at most 500
    lambda_: float = 2.0
    iterations: int = 10
    cg_steps: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"rank is {self.rank}; expected at least 1")
        if not self.lambda_ > 0:
            raise ValueError(f"lambda_ is {self.lambda_}; expected a positive number")

    def fit(self, X: Any, Y: Any, *, threads: int = 1) -> FittedLEML:
        """Train on the rows of X and their labels Y."""
        equations = NormalEquations.prepare(X, Y, threads)
        low_rank = self.start(equations)
        for _ in range(self.iterations):
            low_rank = alternate(equations, low_rank, self.lambda_, self.cg_steps)
        return FittedLEML(low_rank)

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


class FittedLEML(NamedTuple):
    """A trained LEML."""

    low_rank: LowRank

    def predict_topk(self, X: Any, k: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return the best k labels per row, best first, and their scores."""
        W, H = self.low_rank
        return best_of_rows(X, k, len(H), lambda rows: (rows @ W) @ H.T)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return W and H."""
        return {"W": self.low_rank.W, "H": self.low_rank.H}


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """Products with XᵀX and XᵀY, and ridge regressions with them, by blocks of columns."""

    X: Any
    Y: Any
    XT: Any
    YT: Any
    gram: Floats | None  # XᵀX, if worthwhile
    threads: int

    @classmethod
    def prepare(cls, X: Any, Y: Any, threads: int) -> NormalEquations:
        """Prepare the products for the rows of X and their labels Y."""
        X, Y = sp.csr_matrix(X, dtype=np.float32), sp.csr_matrix(Y, dtype=np.float32)
        XT = X.T.tocsr()
        equations = cls(X, Y, XT, Y.T.tocsr(), None, threads)
        n_features = X.shape[1]
        if n_features > _MOST_DENSE or n_features**2 > _DENSE_PER_SPARSE * X.nnz:
            return equations
        by_columns = X.tocsc()
        gram = equations.by_blocks(n_features, lambda at: XT @ by_columns[:, at].toarray())
        return cls(X, Y, XT, equations.YT, gram, threads)

    def in_blocks(self, n_columns: int, compute: Callable[[slice], Any]) -> list[Any]:
        """Return the result of `compute` for each block of columns, in order."""
        blocks = [slice(at, min(at + _BLOCK, n_columns)) for at in range(0, n_columns, _BLOCK)]
        with ThreadPoolExecutor(self.threads) as pool:
            return list(pool.map(compute, blocks))

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
        S = start
        gradient = target - self.XTX(S) * d - lambda_ * S
        direction = gradient
        squares = np.einsum("ij,ij->j", gradient, gradient)
        enough = squares / 100
        for _ in range(steps):
            if (squares <= enough).all():
                break
            curved = self.XTX(direction) * d + lambda_ * direction
            step = squares / np.maximum(np.einsum("ij,ij->j", direction, curved), _TINY)
            S = S + direction * step
            gradient = gradient - curved * step
            before, squares = squares, np.einsum("ij,ij->j", gradient, gradient)
            direction = gradient + direction * (squares / np.maximum(before, _TINY))
        return S


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


def best_of_rows(
    X: Any, k: int, n_labels: int, score: Callable[[Any], Floats]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Return the best k labels per row by dense scores, computed for some rows at a time."""
    X = sp.csr_matrix(X, dtype=np.float32)
    labels = np.empty((X.shape[0], k), np.int32)
    values = np.empty((X.shape[0], k), np.float32)
    n_rows = max(1, _MOST_SCORES // max(n_labels, 1))
    for at in range(0, X.shape[0], n_rows):
        some = slice(at, at + n_rows)
        labels[some], values[some] = best_of(score(X[some]), k)
    return labels, values
