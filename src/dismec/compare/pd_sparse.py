"""PD-Sparse: primal and dual sparse max-margin training of all labels at once.

I. E.-H. Yen, X. Huang, K. Zhong, P. Ravikumar, I. S. Dhillon, "PD-Sparse: A Primal and Dual Sparse
Approach to Extreme Multiclass and Multilabel Classification", ICML 2016.

One matrix W (features × labels) is trained such that the labels P of a row score higher than all
other labels N by a margin of 1, with an L1 penalty for sparse weights:

    min  λ‖W‖₁ + ½‖W‖² + C Σ_i max_{n∈N_i, p∈P_i} (1 + w_n·x_i − w_p·x_i)₊

The dual has a vector β_i per row, with few nonzero entries, and W is computed from all of them:

    min  G(β) = ½‖W(β)‖² + Σ_i Σ_{n∈N_i} β_in,   W(β) = prox(V),  V = Σ_i x_i β_iᵀ
    s.t. β_ip ≥ 0,  β_in ≤ 0,  Σ_p β_ip = −Σ_n β_in ≤ C;   prox(v) = sign(v)·(|v| − λ)₊

It is solved by block-coordinate Frank–Wolfe with active sets. For each row, in random order:

1. search: score all labels, and add those of N that violate the margin most to the active set;
2. step: minimize a quadratic bound of G over the active labels, which is one projection;
3. keep V and W up to date in the entries that change, and drop labels with β = 0 from the set.

After each epoch, P@1 is measured on a held-out tenth of the training rows; training ends after
three epochs without improvement. A refit then continues without L1, on the nonzero weights. The
best of all these W is the model.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.compare.baseline import Topk, best_by_weights, precision_at_1, settled
from dismec.errors import DataError

_FEW_LABELS = 1000  # below: the authors' settings for bibtex; otherwise those for Eurlex-4K
_CHUNK = 64  # rows per search
_LEAST_CHANGE = 1e-6  # minimum change of β, relative to C

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PDSparse:
    """The parameters of PD-Sparse; None depends on the number of labels."""

    C: Any = None
    l1: Any = None  # λ
    epochs: int = 10  # at most
    refit_epochs: Any = None  # epochs without L1 that follow
    select: int = 5  # labels that a search adds to a row's active set, at most
    held_out: float = 0.1  # share of the rows that choose the epoch; 0: all epochs on all rows
    patience: int = 3  # epochs without improvement on held-out rows after which training ends
    max_bytes: int = 1 << 31  # for dense features × labels arrays
    seed: int = 0

    def fit(self, X: Any, Y: Any, *, threads: int = 1) -> FittedPDSparse:
        """Train on the rows of X and their labels Y; raise `DataError` beyond `max_bytes`."""
        if Y.shape[1] < _FEW_LABELS:
            params = settled(self, C=10.0, l1=1.0, refit_epochs=0)
        else:
            params = settled(self, C=1.0, l1=0.001, refit_epochs=2)
        # Features and labels that occur in no row have no weights.
        features = np.flatnonzero(np.bincount(X.indices, minlength=X.shape[1]))
        labels = np.flatnonzero(np.bincount(Y.indices, minlength=Y.shape[1]))
        needed = 9 * len(features) * len(labels)
        if needed > self.max_bytes:
            raise DataError(
                f"PD-Sparse needs dense arrays of {len(features):,} features × {len(labels):,} "
                f"labels: {needed >> 20:,} MiB, but max_bytes allows {self.max_bytes >> 20:,} MiB"
            )
        inner = sp.csr_matrix(X)[:, features], sp.csr_matrix(Y)[:, labels]
        weights = _train_pd_sparse(params, *inner, threads).tocoo()
        shape = (X.shape[1], len(labels))
        full = sp.csr_matrix((weights.data, (features[weights.row], weights.col)), shape)
        return FittedPDSparse(full, labels.astype(np.int32))


def _train_pd_sparse(params: PDSparse, X: Any, Y: Any, threads: int) -> Any:
    """Return the best W of all epochs, as CSR."""
    rng = np.random.default_rng(params.seed)
    usable = rng.permutation(np.flatnonzero((np.diff(X.indptr) > 0) & (np.diff(Y.indptr) > 0)))
    judged, rows = np.split(usable, [int(params.held_out * len(usable))])
    solver = FrankWolfe(X, Y, params.C, params.l1)
    best, best_precision, since = solver.sparse_weights(), -1.0, 0
    with ThreadPoolExecutor(threads) as pool:
        for phase, epochs in enumerate((params.epochs, params.refit_epochs)):
            if phase == 1 and epochs:
                solver.drop_l1()
            since = 0
            for _ in range(epochs):
                order = rng.permutation(rows)
                for start in range(0, len(order), _CHUNK):
                    chunk = order[start : start + _CHUNK]
                    search = partial(solver.search, select=params.select)
                    found = pool.map(search, np.array_split(chunk, threads))
                    for row, added in zip(chunk.tolist(), chain(*found), strict=True):
                        solver.step(row, added)
                weights = solver.sparse_weights()
                if not len(judged):
                    best = weights
                    continue
                precision = precision_at_1(X[judged], Y[judged], weights)
                since = since + 1 if precision <= best_precision else 0
                if not since:
                    best, best_precision = weights, precision
                if since >= params.patience:
                    break
    return best


class FrankWolfe:
    """The dual variables of all rows, and the W computed from them.

    X (n_rows, n_features) and Y (n_rows, n_labels) are CSR. A row's active labels are its own,
    followed by those it is currently compared with.
    """

    def __init__(self, X: Any, Y: Any, C: float, l1: float) -> None:
        self.X, self.Y, self.C, self.l1 = X, Y, C, l1
        cuts = X.indptr[1:-1]
        self._features = np.split(X.indices.astype(np.int64), cuts)
        self._values = np.split(X.data, cuts)
        self._positives = np.split(Y.indices.astype(np.int64), Y.indptr[1:-1])
        self._squares = [float(x @ x) for x in self._values]
        self.active = list(self._positives)
        self.beta: list[Floats] = [np.zeros(len(p)) for p in self._positives]
        self.V = np.zeros((X.shape[1], Y.shape[1]), np.float32)
        self.W = np.zeros_like(self.V)
        self._support: npt.NDArray[np.bool_] | None = None  # weights that a refit may change

    def search(self, rows: Ints, select: int) -> list[Ints]:
        """Return the labels of each row that violate its margin most, at most `select`."""
        scores = self.X[rows] @ self.W
        width = min(select, scores.shape[1])
        found = []
        for row, z in zip(rows.tolist(), scores, strict=True):
            positives = self._positives[row]
            least = z[positives].min()
            z[positives] = -np.inf
            top = np.argpartition(z, len(z) - width)[len(z) - width :]
            found.append(np.sort(top[z[top] + 1 > least]))
        return found

    def step(self, row: int, added: Ints | None = None) -> None:
        """Add labels to a row's active set, and minimize the bound of G over that set.

        The gradient of ½‖prox(V)‖² changes no faster than V, so with g the gradient, G(β + Δ) ≤
        G(β) + g·Δ + ½‖x‖²‖Δ‖², whose minimum is the projection of β − g/‖x‖².
        """
        active, beta = self.active[row], self.beta[row]
        if added is not None and len(added):
            added = added[~np.isin(added, active)]
            active = np.concatenate((active, added))
            beta = np.concatenate((beta, np.zeros(len(added))))
        n_positive = len(self._positives[row])
        if len(active) == n_positive:
            return
        features, x = self._features[row][:, None], self._values[row]
        gradient = (x @ self.W[features, active]).astype(np.float64)
        gradient[n_positive:] += 1
        new = project_pairs(beta - gradient / self._squares[row], n_positive, self.C)
        change = new - beta
        changed = np.abs(change) > _LEAST_CHANGE * self.C
        new[~changed] = beta[~changed]
        if changed.any():
            self._add(features, active[changed], np.outer(x, change[changed].astype(np.float32)))
        kept = new != 0
        kept[:n_positive] = True
        self.active[row], self.beta[row] = active[kept], new[kept]

    def _add(self, features: Ints, labels: Ints, product: npt.NDArray[np.float32]) -> None:
        """Do V += x Δᵀ in the entries of a row's features and some labels, and update W."""
        if self._support is not None:
            self.W[features, labels] += product * self._support[features, labels]
            return
        v = self.V[features, labels] + product
        self.V[features, labels] = v
        self.W[features, labels] = v - np.clip(v, -self.l1, self.l1)

    def drop_l1(self) -> None:
        """Set λ to 0 from here on, and keep zero weights at zero."""
        self._support = self.W != 0
        self.W = np.where(self._support, self.V, np.float32(0))
        self.V = np.zeros((0, 0), np.float32)

    def sparse_weights(self) -> Any:
        """Return W as CSR (n_features, n_labels)."""
        return sp.csr_matrix(self.W)


def project_pairs(b: Floats, n_positive: int, C: float) -> Floats:
    """Project b: β ≥ 0 in the first places, β ≤ 0 after them, Σ = 0, positive sum ≤ C.

    With p the first places and q the others, negated, the nearest β is (p − τ)₊ and (q + τ)₊ for
    the τ where their sums are equal; if these exceed C, each part is projected to the simplex of
    sum C.
    """
    p, q = b[:n_positive], -b[n_positive:]
    knots = np.sort(np.concatenate((p, -q)))
    excess = np.maximum(p[:, None] - knots, 0).sum(0) - np.maximum(q[:, None] + knots, 0).sum(0)
    # It decreases with τ, linearly between knots and beyond them.
    after = int(np.searchsorted(-excess, 0))
    if after == 0:
        tau = knots[0] + excess[0] / len(p)
    elif after == len(knots):
        tau = knots[-1] + excess[-1] / len(q)
    else:
        before = after - 1
        share = excess[before] / (excess[before] - excess[after])
        tau = knots[before] + share * (knots[after] - knots[before])
    p_new, q_new = np.maximum(p - tau, 0), np.maximum(q + tau, 0)
    if p_new.sum() > C:
        p_new, q_new = _on_simplex(p, C), _on_simplex(q, C)
    return np.concatenate((p_new, -q_new))


def _on_simplex(v: Floats, total: float) -> Floats:
    """Return the nearest vector to v with nonnegative entries and this sum."""
    falling = np.sort(v)[::-1]
    level = (np.cumsum(falling) - total) / np.arange(1, len(v) + 1)
    projected: Floats = np.maximum(v - level[np.count_nonzero(falling > level) - 1], 0)
    return projected


class FittedPDSparse(NamedTuple):
    """The weights (CSR, features × labels with training rows), and the numbers of these labels."""

    weights: Any
    labels: npt.NDArray[np.int32]

    def predict_topk(self, X: Any, k: int) -> Topk:
        """Return the best k labels per row, best first, and their scores."""
        return best_by_weights(sp.csr_matrix(X), k, self.weights, self.labels)
