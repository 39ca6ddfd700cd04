"""How the cost of a label grows with the data; exits with 1 if faster than the non-zeros of X.

Generated data of 10⁴, 10⁵ and 10⁶ rows: 42 features and 3 labels per row, as many features as rows,
a tenth as many labels. A sample of the labels that occur, evenly spaced by frequency, is solved
with all threads busy. `paper_scale.py` trains a complete set of the size of WikiLSHTC-325K.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

import data
from dismec.cpu import available_cpus
from dismec.data.synthetic import generate
from dismec.features.transform import Transform
from dismec.solve.problem import Problem, SolverParams
from machine import print_heading

FEATURES_PER_ROW = 42


def label_seconds(problem: Problem, labels: np.ndarray, threads: int) -> float:
    """Return the mean core time per label; labels come in order of falling frequency."""

    def solve(part: np.ndarray) -> float:
        begin = time.perf_counter()
        problem.solve(part, SolverParams())
        return time.perf_counter() - begin

    parts = [labels[i::threads] for i in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(solve, parts)) / len(labels)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--sample", type=int, nargs="+", default=[1_000, 1_000, 600])
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    print_heading()
    print(f"{args.threads} threads, C = 1, delta = 0.01")
    print(f"{'rows':>9} {'features':>9} {'labels':>7} {'solved':>7} {'non-zeros':>10}", end="")
    print(f" {'core-ms per label':>17} {'ns per label and non-zero':>26}")
    costs = []
    for rows, sample in zip(args.rows, args.sample, strict=True):
        train, _ = generate(
            rows, rows, rows // 10, features_per_row=FEATURES_PER_ROW, seed=args.seed, test_rows=0
        )
        problem = Problem(train.X, train.Y, Transform.fit(train.X))
        labels = data.spread_sample(train.Y, sample, args.seed)
        seconds = label_seconds(problem, labels, args.threads)
        costs.append(seconds / train.X.nnz)
        print(f"{rows:9} {rows:9} {rows // 10:7} {len(labels):7} {train.X.nnz:10}", end="")
        print(f" {seconds * 1e3:17.3f} {costs[-1] * 1e9:26.4f}", flush=True)

    good = all(larger <= smaller for smaller, larger in pairwise(costs))
    print(f"\ncost per label grows {'no faster' if good else 'FASTER'} than the non-zeros of X")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
