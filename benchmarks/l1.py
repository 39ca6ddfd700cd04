"""The L1 penalty: time and precision against LIBLINEAR -s 5, and properties of whole models.

Labels are drawn evenly by frequency. LIBLINEAR (-e 0.01, its default) and dismec alternate, a few
labels at a time, on one core each; the optimum is what LIBLINEAR reaches at -e 0.0001, or dismec if
that is lower. Exits with 1 if a label's objective is more than a thousandth above the optimum or
above LIBLINEAR's, or if a label takes more than a fifth of LIBLINEAR's time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time

import numpy as np
import scipy.sparse as sp

import data
from dismec import TrainingParams, train
from dismec.features.transform import Transform
from dismec.measure.metrics import evaluate
from dismec.solve.problem import Problem, SolverParams
from machine import print_heading
from reference import Liblinear, l1_objective, signs

RATIO = 5
GAP = 1e-3


def compare(name: str, n_labels: int, C: float, tight: bool, seed: int) -> bool:
    """Print time and precision on a sample of labels; return whether both meet their bounds."""
    X, Y, _ = data.load(name)
    transform = Transform.fit(X)
    rows, by_label = transform.apply(X).astype(np.float64), sp.csc_array(Y)
    problem, liblinear = Problem(X, Y, transform), Liblinear(rows, by_label)
    params = SolverParams(C=C, delta=0, penalty="l1")
    sample = data.spread_sample(Y, n_labels, seed)
    ours, theirs = 0.0, 0.0
    above, above_theirs, their_gap = [], [], []
    # As many at a time as one pass over all rows serves, with mixed frequencies as in a block.
    for labels in np.array_split(sample, -(-len(sample) // 32)):
        begin = time.process_time()
        solution = problem.solve(labels, params)
        ours += time.process_time() - begin
        for label, w in zip(labels, solution.weights, strict=True):
            s = signs(by_label, label)
            found = l1_objective(rows, s, w.toarray().ravel().astype(np.float64), C)
            weights, seconds = liblinear.solve(label, C, kind=5)
            theirs += seconds
            default = l1_objective(rows, s, weights, C)
            best = min(found, default)
            if tight:
                weights, _ = liblinear.solve(label, C, kind=5, eps=1e-4)
                best = min(best, l1_objective(rows, s, weights, C))
            above.append(found / best - 1)
            above_theirs.append(found / default - 1)
            their_gap.append(default / best - 1)
    ratio = theirs / ours
    print(f"{name}, C = {C:g}, {len(sample)} labels: dismec {ours / len(sample) * 1e3:.2f} ms")
    print(f"  per label, LIBLINEAR {theirs / len(sample) * 1e3:.1f} ms: {ratio:.1f} times")
    print(f"  above the best objective known: dismec at most {max(above):.1e},", end=" ")
    print(f"LIBLINEAR {max(their_gap):.1e}; above LIBLINEAR's: {max(above_theirs):.1e}", flush=True)
    return ratio >= RATIO and max(above) <= GAP and max(above_theirs) <= GAP


def show_models(name: str, C: float, threads: int) -> None:
    """Train whole models and print time, size and P@k beside those of L2."""
    X, Y, _ = data.load(name)
    test_X, test_Y, _ = data.load(name, "test")
    print(f"{name}, whole, C = {C:g}, {threads} threads")
    print(f"{'penalty':8} {'train s':>8} {'CPU s':>8} {'weights':>10}   P@1/3/5 by precision")
    for penalty in ("l1", "l2"):
        params = TrainingParams(C=C, penalty=penalty, precision="float32")
        with tempfile.TemporaryDirectory() as folder:
            begin, cpu_begin = time.perf_counter(), time.process_time()
            exact = train(X, Y, f"{folder}/model", params, threads=threads)
            seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu_begin
            nnz = exact.weights.nnz
            print(f"{penalty:8} {seconds:8.2f} {cpu:8.2f} {nnz:10}", end="   ")
            for precision in ("float32", "float16"):
                model = exact.pruned(precision=precision)
                top, _ = model.predict_topk(test_X, 5, threads=threads)
                quality = evaluate(test_Y, top, (1, 3, 5))
                shown = " / ".join(f"{quality[f'P@{k}']:.2f}" for k in (1, 3, 5))
                print(f"{shown} ({precision})", end="  ", flush=True)
        print()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=data.SETS, default=["eurlex-4k"])
    parser.add_argument("--labels", type=int, default=64)
    parser.add_argument("--C", type=float, default=1.0)
    parser.add_argument("--tight", action="store_true", help="run LIBLINEAR at -e 0.0001 too")
    parser.add_argument("--whole", action="store_true", help="train whole models too")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print_heading("liblinear-official")
    good = True
    for name in args.sets:
        good &= compare(name, args.labels, args.C, args.tight, args.seed)
        if args.whole:
            show_models(name, args.C, args.threads)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
