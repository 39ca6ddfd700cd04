"""Row weights: how close the solver comes to LIBLINEAR, and what they cost in time.

Gives the rows of Eurlex-4K random weights from 0.1 to 3. Solves 200 labels, equally many of every
frequency, and compares the objectives before pruning with what LIBLINEAR's instance weights
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


def excesses(X: Any, Y: Any, v: np.ndarray, labels: np.ndarray, C: float) -> np.ndarray:
    """Return (ours − LIBLINEAR's) / LIBLINEAR's for every label."""
    transform = Transform.fit(X)
    ours = Problem(X, Y, transform, v).solve(labels, SolverParams(C=C, delta=0)).weights
    rows, by_label = transform.apply(X).astype(np.float64), sp.csc_array(Y)
    found = np.empty(len(labels))
    for place, label in enumerate(labels):
        s = signs(by_label, label)
        theirs = LinearSVC(dual=False, fit_intercept=False, C=C, tol=0.01)
        theirs.fit(rows, s, sample_weight=v)
        w = ours[[place]].toarray().ravel().astype(np.float64)
        found[place] = objective(rows, s, w, C, v) / objective(rows, s, theirs.coef_[0], C, v) - 1
    return found


def ratio(X: Any, Y: Any, v: np.ndarray, labels: np.ndarray, C: float, runs: int) -> float:
    """Return the best time of one thread with weights, relative to that without."""
    transform = Transform.fit(X)
    problems = Problem(X, Y, transform, v), Problem(X, Y, transform)
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
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    print_heading("scikit-learn")
    X, Y, _ = data.load(args.set)
    v = np.random.default_rng(args.seed).uniform(0.1, 3.0, X.shape[0])
    excess = excesses(X, Y, v, data.stratified_sample(Y, args.labels, args.seed), args.C)
    worst, mean = excess.max(), np.maximum(excess, 0).mean()
    slower = ratio(X, Y, v, data.spread_sample(Y, args.timed, args.seed), args.C, args.runs)
    print(f"{args.set}, {len(excess)} labels: excess at worst {worst:.1e}, on average {mean:.1e}")
    print(f"time with weights: {slower:.2f} times that without")
    good = worst <= WORST_EXCESS and mean <= MEAN_EXCESS and slower <= SLOWER
    print(f"bounds: {WORST_EXCESS:g}, {MEAN_EXCESS:g}, {SLOWER:g}: {'met' if good else 'missed'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
