"""SLEEC: nearest neighbors in local embeddings of the labels.

Bhatia, Jain, Kar, Varma and Jain, "Sparse Local Embeddings for Extreme Multi-label
Classification", NIPS 2015.

Label vectors y are embedded as short vectors z that preserve only the inner products of each row
with its nearest rows Ω, so rare labels need not share one low-dimensional space with all others. A
linear map V predicts z from the features x, and a row gets the labels of the training rows whose
predicted embeddings are nearest to its own:

    min over M of low rank, M ⪰ 0:  ½‖P_Ω(YYᵀ − M)‖²              then M = ZZᵀ
    min over V:                     ½‖V‖² + C·(‖Z − XV‖² + μ‖XV‖₁)

1. k-means splits the rows into clusters of about 6,000. Each cluster is trained on its own.
2. Ω: for each row, the n̄ rows of its cluster with the largest inner products of label vectors.
3. Singular value projection: M ← the positive part of rank L̂ of M + P_Ω(YYᵀ − M).
4. V by the method of multipliers (ADMM), with XV = B as the constraint.
5. Prediction: the cluster with the nearest center, the k nearest rows of XV, their labels added
   up. An ensemble repeats all this from other starts of k-means and adds up the votes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.compare.baseline import (
    Topk,
    best_of_rows,
    conjugate_gradients,
    settled,
    some_at_a_time,
)
from dismec.cpu import in_threads

Dense = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int32]

_EXTRA = 10  # directions that are tracked in addition to those that are kept


@dataclass(frozen=True)
class SLEEC:
    """The parameters of SLEEC; None depends on the number of rows (see `resolved`)."""

    n_learners: Any = None
    rows_per_cluster: int = 6000
    most_clusters: int = 300
    svp_neighbors: Any = None  # n̄
    dimension: Any = None  # L̂
    cost: Any = None  # C
    l1: float = 0.01  # μ
    neighbors: Any = None  # k
    svp_steps: int = 100
    svp_tolerance: float = 0.05
    seed: int = 0

    def resolved(self, n_rows: int) -> SLEEC:
        """Return the parameters for data with `n_rows` rows.

        With enough rows for two clusters, these are the defaults of the authors' code, except for C
        and k (see the module docstring). With fewer rows, they are their settings for bibtex; a
        single cluster is the same for all learners, so one learner is enough.
        """
        if n_rows >= 2 * self.rows_per_cluster:
            values = {"n_learners": 10, "svp_neighbors": 15, "dimension": 50, "neighbors": 5}
            return settled(self, cost=0.5, **values)
        values = {"n_learners": 1, "svp_neighbors": 250, "dimension": 100, "neighbors": 25}
        return settled(self, cost=0.2, **values)

    def fit(self, X: Any, Y: Any, *, threads: int = 1) -> FittedSLEEC:
        """Train on the rows of X and their labels Y."""
        X, Y = sp.csr_matrix(X, dtype=np.float32), sp.csr_matrix(Y, dtype=np.float32)
        params = self.resolved(X.shape[0])
        n_clusters = min(max(X.shape[0] // self.rows_per_cluster, 1), self.most_clusters)
        splits = [
            k_means(X, n_clusters, np.random.default_rng([self.seed, learner]))
            for learner in range(params.n_learners)
        ]
        tasks = [
            (learner, cluster)
            for learner, (centers, _) in enumerate(splits)
            for cluster in range(len(centers))
        ]

        def train(task: tuple[int, int]) -> Region:
            rows = np.flatnonzero(splits[task[0]][1] == task[1]).astype(np.int32)
            return params.fit_region(X, Y, rows, np.random.default_rng([self.seed, *task]))

        regions = iter(in_threads(train, tasks, threads))
        learners = [Learner(centers, [next(regions) for _ in centers]) for centers, _ in splits]
        return FittedSLEEC(learners, Y, params.neighbors)

    def fit_region(self, X: Any, Y: Any, rows: Rows, rng: np.random.Generator) -> Region:
        """Do steps 2 to 4 for the rows of one cluster; no parameter may be None."""
        products = nearest_products(unit_rows(Y[rows]), self.svp_neighbors, rng)
        Z = singular_value_projection(
            products, self.dimension, self.svp_steps, self.svp_tolerance, rng
        )
        V = regress(X[rows], Z, self.cost, self.l1)
        return Region(rows, V, X[rows] @ V)


class Region(NamedTuple):
    """A trained cluster."""

    rows: Rows  # training rows of the cluster
    V: Dense  # features × dimension
    embedded: Dense  # rows × dimension: XV


class Learner(NamedTuple):
    """A member of the ensemble: clusters with their trained regions."""

    centers: Dense
    regions: list[Region]


class FittedSLEEC(NamedTuple):
    """A trained ensemble."""

    learners: list[Learner]
    Y: Any  # labels of the training rows
    neighbors: int

    def predict_topk(self, X: Any, k: int) -> Topk:
        """Return the best k labels per row, and their share of the neighbors' votes."""
        largest = max(len(region.rows) for learner in self.learners for region in learner.regions)
        return best_of_rows(sp.csr_matrix(X, dtype=np.float32), k, largest, self._votes)

    def _votes(self, X: Any) -> Any:
        """Add up the labels of the nearest training rows in each learner, as CSR."""
        asking, found = [], []
        for centers, regions in self.learners:
            home = nearest_center(X, centers)
            for cluster in np.unique(home):
                here = np.flatnonzero(home == cluster)
                rows, V, embedded = regions[cluster]
                k = min(self.neighbors, len(rows))
                closeness = (X[here] @ V) @ embedded.T - np.sum(embedded**2, axis=1) / 2
                nearest = np.argpartition(closeness, -k, axis=1)[:, -k:]
                asking.append(np.repeat(here, k))
                found.append(rows[nearest].ravel())
        pairs = np.concatenate(asking), np.concatenate(found)
        each = np.full(len(pairs[0]), 1 / (self.neighbors * len(self.learners)), np.float32)
        return sp.csr_matrix((each, pairs), (X.shape[0], self.Y.shape[0])) @ self.Y


def k_means(X: Any, n_clusters: int, rng: np.random.Generator) -> tuple[Dense, Rows]:
    """Run one round of k-means from random rows; return the centers, and the cluster of each row.

    Empty clusters are left out, so there may be fewer.
    """
    centers = X[np.sort(rng.choice(X.shape[0], n_clusters, replace=False))].toarray()
    home = nearest_center(X, centers)
    member = sp.csr_matrix((np.ones(len(home), np.float32), (home, np.arange(len(home)))))
    sizes = np.bincount(home, minlength=member.shape[0])
    centers = (member @ X).toarray()[sizes > 0] / sizes[sizes > 0, None].astype(np.float32)
    kept, numbered = np.unique(nearest_center(X, centers), return_inverse=True)
    return centers[kept], numbered.astype(np.int32)


def nearest_center(X: Any, centers: Dense) -> Rows:
    """Return the nearest center of each row."""
    closeness = X @ centers.T - np.sum(centers**2, axis=1) / 2
    nearest: Rows = np.argmax(closeness, axis=1).astype(np.int32)
    return nearest


def unit_rows(Y: Any) -> Any:
    """Return the label vectors with norm 1; empty ones stay zero."""
    counts = np.maximum(Y.sum(axis=1, dtype=np.float32), 1)
    return sp.csr_matrix(Y.multiply(1 / np.sqrt(counts)), dtype=np.float32)


def nearest_products(Y: Any, n_nearest: int, rng: np.random.Generator) -> Any:
    """Return P_Ω(YYᵀ) as a symmetric CSR matrix with stored zeros.

    (i, j) is in Ω if j has one of the n̄ largest inner products with i, or i with j. Each row is
    its own neighbor.
    """
    n_rows = Y.shape[0]
    width = min(n_nearest, n_rows)
    transposed = Y.T.tocsr()
    # Row i uses the noise from i on: as good as a full noise matrix, and nearly free.
    noise = np.lib.stride_tricks.sliding_window_view(
        (1e-4 * rng.random(2 * n_rows)).astype(np.float32), n_rows
    )
    nearest = np.empty((n_rows, width), np.int32)
    for some in some_at_a_time(n_rows, n_rows):
        inner = (Y[some] @ transposed).toarray() + noise[some.start : some.stop]
        nearest[some] = np.argpartition(inner, -width, axis=1)[:, -width:]
    row = np.repeat(np.arange(n_rows), width)
    omega = sp.csr_matrix((np.ones(row.size, np.float32), (row, nearest.ravel())), (n_rows, n_rows))
    omega = (omega + omega.T).tocsr()
    row = np.repeat(np.arange(n_rows), np.diff(omega.indptr))
    omega.data = np.asarray(Y[row].multiply(Y[omega.indices]).sum(axis=1)).ravel()
    return omega


def singular_value_projection(
    products: Any, dimension: int, steps: int, tolerance: float, rng: np.random.Generator
) -> Dense:
    """Return Z with ZZᵀ ≈ `products` at the stored entries.

    M is never formed: it is ZZᵀ, and the residual R = P_Ω(YYᵀ − M) is sparse.
    """
    n_rows = products.shape[0]
    rank = min(dimension, n_rows)
    Z = np.zeros((n_rows, rank), np.float32)
    R = products.copy()
    row = np.repeat(np.arange(n_rows, dtype=np.int32), np.diff(R.indptr))
    enough = tolerance * np.linalg.norm(products.data)
    start = rng.standard_normal((n_rows, min(rank + _EXTRA, n_rows))).astype(np.float32)
    basis = np.linalg.qr(R @ (R @ start))[0]
    for _ in range(steps):
        # Apply (M + R) to the basis twice: once to rotate it, once for its eigenvalues.
        basis = np.linalg.qr(R @ basis + Z @ (Z.T @ basis))[0]
        values, turn = np.linalg.eigh(basis.T @ (R @ basis + Z @ (Z.T @ basis)))
        basis = basis @ turn[:, ::-1]
        Z = basis[:, :rank] * np.sqrt(np.maximum(values[::-1][:rank], 0))
        for part in some_at_a_time(len(row), rank):
            met = np.einsum("ij,ij->i", Z[row[part]], Z[R.indices[part]])
            R.data[part] = products.data[part] - met
        if np.linalg.norm(R.data) <= enough:
            break
    return Z


def regress(X: Any, Z: Dense, cost: float, l1: float, rounds: int = 10) -> Dense:
    """Return the V that minimizes ½‖V‖² + C·(‖Z − XV‖² + μ‖XV‖₁).

    Uses the method of multipliers for XV = B, with 2C as the weight of the constraint; without l1
    it is a single ridge regression.
    """
    V = ridge(X, Z, 2 * cost, np.zeros((X.shape[1], Z.shape[1]), np.float32))
    if l1 == 0:
        return V
    U = np.zeros_like(Z)  # multipliers, divided by 2C
    for _ in range(rounds):
        XV = X @ V
        B = (Z + XV + U) / 2
        B = np.sign(B) * np.maximum(np.abs(B) - l1 / 4, 0)
        U += XV - B
        V = ridge(X, B - U, 2 * cost, V)
    return V


def ridge(X: Any, Z: Dense, weight: float, V: Dense, steps: int = 50) -> Dense:
    """Return the V that minimizes ½‖V‖² + ½·weight·‖Z − XV‖², by conjugate gradients from `V`.

    All columns are solved at once, until every residual is a thousandth of its right-hand side.
    """
    transposed = X.T.tocsr()
    wanted = transposed @ Z
    bound = 1e-6 * np.sum(wanted**2, axis=0)
    return conjugate_gradients(
        lambda S: transposed @ (X @ S) + S / weight, wanted, V, steps, lambda _: bound
    )
