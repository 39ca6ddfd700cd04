"""The costliest label on one thread and on several; exits with 1 if its weights differ.

Generated data as in ``tree_cost.py``: 42 features per row, as many features as rows, a tenth as
many labels. The most frequent labels are solved one by one, by one thread with and without helpers.
The serial part is measured with helpers: the time that the thread with the label spends outside of
shared work. It bounds what more threads could achieve if memory keeps up: serial + (alone −
serial)/threads.

Runs alternate, and the fastest of each kind counts.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from dataclasses import dataclass

import numpy as np

from dismec.data.synthetic import generate
from dismec.features.transform import Transform
from dismec.solve.problem import Cancel, LabelSolver, Problem, SolverParams, WorkSharing
from machine import print_heading

MORE_THREADS = 8


@dataclass(frozen=True)
class Run:
    """One label, solved once."""

    seconds: float
    serial: float  # seconds outside of shared work
    weights: bytes
    set_rows: int
    passes: int
    steps: int


def solve(problem: Problem, label: int, threads: int) -> Run:
    sharing = WorkSharing()
    known = sharing.calls
    helpers = [threading.Thread(target=sharing.help, args=(known,)) for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    try:
        solver = LabelSolver(problem, SolverParams(), Cancel(), sharing=sharing)
        begin = time.perf_counter()
        found = solver.solve(np.array([label]), drain=True)
        seconds = time.perf_counter() - begin
    finally:
        sharing.call_back()
        for helper in helpers:
            helper.join()
    return Run(
        seconds,
        seconds - sharing.seconds,
        found.weights.indices.tobytes() + found.weights.data.tobytes(),
        int(found.set_size[0]),
        int(found.passes[0]),
        int(found.steps[0]),
    )


def compare(problem: Problem, label: int, args: argparse.Namespace) -> bool:
    """Print the line of a label; return whether its weights are equal in all runs."""
    kinds = (1, args.threads)
    runs: dict[int, list[Run]] = {threads: [] for threads in kinds}
    for _ in range(args.repeats):
        for threads in kinds:
            runs[threads].append(solve(problem, label, threads))
    alone, together = (min(run.seconds for run in runs[threads]) for threads in kinds)
    serial = min(run.serial for run in runs[args.threads])
    projected = serial + (alone - serial) / MORE_THREADS
    same = len({run.weights for done in runs.values() for run in done}) == 1
    run = runs[1][0]
    print(
        f"  {problem.label_counts[label]:7,} {run.set_rows:9,} {run.passes:7} {run.steps:6}"
        f" {alone:8.2f} {together:8.2f} {alone / together:8.2f} {serial:8.2f}"
        f" {projected:10.2f} {alone / projected:8.1f}   {'equal' if same else 'DIFFERENT'}",
        flush=True,
    )
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, nargs="*", default=[0, 10, 100])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    print_heading()
    rows = args.rows
    train, _ = generate(rows, rows, rows // 10, features_per_row=42, seed=args.seed, test_rows=0)
    problem = Problem(train.X, train.Y, Transform.fit(train.X))
    order = np.argsort(-problem.label_counts, kind="stable")
    print(
        f"{rows:,} rows, {train.X.nnz:,} non-zeros; seconds per label, best of {args.repeats};"
        f" {args.threads} threads\n"
        "     rows       set  passes  steps    alone together    times   serial"
        f"  on {MORE_THREADS}, at best    times   weights"
    )
    same = [compare(problem, int(order[rank]), args) for rank in args.ranks]
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
