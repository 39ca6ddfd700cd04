"""The cost of choosing C; exits with 1 if the grid takes more than three training runs.

Both are measured in CPU seconds, so that other work on the machine changes little. The final
training at the chosen C is not counted. `--curve FILE` also draws delta against P@k and size for
the first set.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import data
from dismec import TrainingParams, pruning_curve, train
from dismec.report.figures import draw_sweep
from machine import print_heading

MOST = 3.0  # training runs
AUTO = TrainingParams(C="auto")


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def compare(name: str, threads: int) -> float:
    """Print the table of a set; return the cost of the grid in training runs at C = 1."""
    X, Y, _ = data.load(name)
    test = data.load(name, "test")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        one, _ = cpu_seconds(lambda: train(X, Y, folder / "one", threads=threads))
        both, tuned = cpu_seconds(lambda: train(X, Y, folder / "tuned", AUTO, threads=threads))
        C, table = tuned.params["C"], tuned.params["C_table"]
        params = TrainingParams(C=C)
        last, _ = cpu_seconds(lambda: train(X, Y, folder / "last", params, threads=threads))
    ratio = (both - last) / one
    print(f"{name}: C {C:g} by {AUTO.metric} from {AUTO.grid}")
    for row in table:
        quality = " / ".join(f"{row[f'P@{k}']:.2f}" for k in (1, 3, 5))
        line = f"{row['C']:5g}  P@k {quality}  {AUTO.metric} {row[AUTO.metric]:.2f}"
        print(f"{line}  PSP@5 {row['PSP@5']:.2f}  {row['weights']:,} weights")
    found = tuned.evaluate(test.X, test.Y)
    print("test rows, P@1/3/5:", " / ".join(f"{found[f'P@{k}']:.2f}" for k in (1, 3, 5)))
    print(f"one training {one:.1f} s of CPU, the grid {both - last:.1f}: {ratio:.2f} times\n")
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sets", nargs="+", choices=data.SETS, default=["eurlex-4k", "citeulike-t"]
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--curve", type=Path, help="a file to draw, .svg or .png")
    args = parser.parse_args()
    print_heading()
    ratios = {name: compare(name, args.threads) for name in args.sets}
    if args.curve:
        train_part, test = data.load(args.sets[0]), data.load(args.sets[0], "test")
        with tempfile.TemporaryDirectory() as scratch:
            everything = TrainingParams(delta=0)
            model = train(*train_part[:2], f"{scratch}/model", everything, threads=args.threads)
            table = pruning_curve(model, *test[:2], threads=args.threads)
        for row in table:
            quality = " / ".join(f"{row[f'P@{k}']:.2f}" for k in (1, 3, 5))
            size = f"{row['weights']:>10,} weights {row['bytes'] / 1e6:6.2f} MB"
            print(f"{row['delta']:6g}  P@k {quality}  {size}  {row['ms per row']:.3f} ms per row")
        draw_sweep(table, args.curve)
    missed = {name: ratio for name, ratio in ratios.items() if ratio > MOST}
    for name, ratio in missed.items():
        print(f"{name}: the grid takes {ratio:.2f} times one training run, more than {MOST:g}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
