"""Weights of rows and pairs: how near the solver comes to LIBLINEAR, and what they cost in time.

Gives the rows of Eurlex-4K weights from 0.1 to 3 at random; and instead, in a second run, 1 % of
the negative pairs of a row and a label, of which half get weight 0. Solves 200 labels, as many rare
as frequent ones, and compares the objectives before pruning with what LIBLINEAR's instance weights
(scikit-learn's LinearSVC) reach at its tolerance of 0.01: the excess may be 1e-3 for any label and
2e-4 on average, as without weights. Then solves the labels with and without weights in turn: the
best time with weights may be 1.3 times that without. Exits with 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.svm import LinearSVC

import data
from dismec.features.transform import Transform
from dismec.solve.problem import Problem, SolverParams
from machine import print_heading
from reference import signs

WORST_EXCESS, MEAN_EXCESS, SLOWER = 1e-3, 2e-4, 1.3


def objective(Xt: Any, s: np.ndarray, w: np.ndarray, C: float, v: np.ndarray) -> float:
    """Return ½‖w‖² + C·Σ v·max(0, 1 − s·Xt·w)², in double precision."""
    slack = np.maximum(0, 1 - s * (Xt @ w))
    return float(0.5 * w @ w + C * v @ slack**2)


def some_pairs(Y: Any, labels: np.ndarray, share: float, rng: np.random.Generator) -> sp.csr_array:
    """Weights of that share of the negative pairs of some labels: 0, or from 0.1 to 3."""
    n_rows, by_label = Y.shape[0], sp.csc_array(Y)
    listed = {label: rng.choice(n_rows, round(share * n_rows), replace=False) for label in labels}
    for label in labels:
        positives = by_label.indices[by_label.indptr[label] : by_label.indptr[label + 1]]
        listed[label] = np.setdiff1d(listed[label], positives)
    rows = np.concatenate(list(listed.values()))
    columns = np.repeat(labels, [len(of_label) for of_label in listed.values()])
    weights = np.where(rng.random(len(rows)) < 0.5, 0, rng.uniform(0.1, 3.0, len(rows)))
    return sp.csr_array((weights.astype(np.float32), (rows, columns)), shape=Y.shape)


def excesses(X: Any, Y: Any, weights: tuple[Any, Any], labels: np.ndarray, C: float) -> np.ndarray:
    """(ours − LIBLINEAR's) / LIBLINEAR's of every label, with weights of rows or of pairs."""
    transform = Transform.fit(X)
    of_rows, pairs = weights
    problem = Problem(X, Y, transform, of_rows, None, pairs)
    ours = problem.solve(labels, SolverParams(C=C, delta=0)).weights
    rows, by_label = transform.apply(X).astype(np.float64), sp.csc_array(Y)
    found = np.empty(len(labels))
    for place, label in enumerate(labels):
        s = signs(by_label, label)
        v = np.ones(X.shape[0]) if of_rows is None else of_rows
        if pairs is not None:
            column = sp.csc_array(pairs[:, [label]])
            v[column.indices] = column.data
        theirs = LinearSVC(dual=False, fit_intercept=False, C=C, tol=0.01)
        theirs.fit(rows, s, sample_weight=v)
        w = ours[[place]].toarray().ravel().astype(np.float64)
        found[place] = objective(rows, s, w, C, v) / objective(rows, s, theirs.coef_[0], C, v) - 1
    return found


def ratio(
    X: Any, Y: Any, weights: tuple[Any, Any], labels: np.ndarray, C: float, runs: int
) -> float:
    """The best time of one thread with weights of rows or of pairs, over that without."""
    transform = Transform.fit(X)
    of_rows, pairs = weights
    problems = Problem(X, Y, transform, of_rows, None, pairs), Problem(X, Y, transform)
    seconds = np.empty((runs, 2))
    for run in range(runs):
        for which, problem in enumerate(problems):
            begin = time.process_time()
            problem.solve(labels, SolverParams(C=C, delta=0))
            seconds[run, which] = time.process_time() - begin
    weighted, plain = seconds.min(axis=0)
    return float(weighted / plain)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=data.SETS, default="eurlex-4k")
    parser.add_argument("--labels", type=int, default=200)
    parser.add_argument("--timed", type=int, default=1000, help="number of labels timed")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--C", type=float, default=1.0)
    parser.add_argument("--share", type=float, default=0.01, help="of negative pairs listed")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    print_heading("scikit-learn")
    X, Y, _ = data.load(args.set)
    rng = np.random.default_rng(args.seed)
    of_rows = rng.uniform(0.1, 3.0, X.shape[0])
    compared = data.stratified_sample(Y, args.labels, args.seed)
    timed = data.spread_sample(Y, args.timed, args.seed)
    pairs = some_pairs(Y, np.union1d(compared, timed), args.share, rng)
    met = True
    kinds = {"rows": (of_rows, None), f"{100 * args.share:g} % of negative pairs": (None, pairs)}
    for kind, weights in kinds.items():
        excess = excesses(X, Y, weights, compared, args.C)
        worst, mean = excess.max(), np.maximum(excess, 0).mean()
        slower = ratio(X, Y, weights, timed, args.C, args.runs)
        print(f"{args.set}, weights of {kind}, {len(excess)} labels: ", end="")
        print(f"excess at worst {worst:.1e}, on average {mean:.1e}")
        print(f"time with weights of {kind}: {slower:.2f} of that without")
        met = met and worst <= WORST_EXCESS and mean <= MEAN_EXCESS and slower <= SLOWER
    print(f"bounds: {WORST_EXCESS:g}, {MEAN_EXCESS:g}, {SLOWER:g}: {'met' if met else 'missed'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
