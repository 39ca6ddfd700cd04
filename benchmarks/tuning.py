"""The cost and the quality of choosing C; exits with 1 if it costs or loses more than it may.

Both are measured in CPU seconds, so that other work on the machine changes little. The final
training at the chosen C is counted. `--curve FILE` also draws delta against P@k and size for
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
from unittest import mock

import data
from dismec import TrainingParams, pruning_curve, train
from dismec.report.figures import draw_sweep
from dismec.training import choose_c
from machine import print_heading

MOST = 1.9  # training runs, including the one of the model
MOST_LOSS = 0.2  # points of nDCG@5
AUTO = TrainingParams(C="auto")


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def compare(name: str, threads: int) -> tuple[float, float]:
    """Print the results of a set; return the cost of choosing, and the loss of the chosen C.

    The cost is in training runs at the chosen C. The loss is in points of nDCG@5 on held-out rows,
    against the best C of the grid if all labels are tried.
    """
    X, Y, _ = data.load(name)
    test = data.load(name, "test")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        both, tuned = cpu_seconds(lambda: train(X, Y, folder / "tuned", AUTO, threads=threads))
        params = TrainingParams(C=tuned.params["C"])
        one, _ = cpu_seconds(lambda: train(X, Y, folder / "one", params, threads=threads))
        with mock.patch.object(choose_c, "_LEAST_LABELS", 1 << 40):
            table = train(X, Y, folder / "all", AUTO, threads=threads).params["C_table"]
    found = tuned.evaluate(test.X, test.Y)
    quality = {row["C"]: row[AUTO.metric] for row in table}
    loss = max(quality.values()) - quality[params.C]
    listed = ", ".join(f"{C:g}: {value:.2f}" for C, value in quality.items())
    print(f"{name}: C {params.C:g}; {AUTO.metric} of all labels on held-out rows: {listed}")
    print("test rows, P@1/3/5:", " / ".join(f"{found[f'P@{k}']:.2f}" for k in (1, 3, 5)))
    ratio = both / one
    print(
        f"training at this C {one:.1f} s of CPU, with choosing it {both:.1f}: {ratio:.2f} times\n"
    )
    return ratio, loss


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sets", nargs="+", choices=data.SETS, default=["eurlex-4k", "citeulike-t"]
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--curve", type=Path, help="a file to draw, .svg or .png")
    args = parser.parse_args()
    print_heading()
    results = {name: compare(name, args.threads) for name in args.sets}
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
    missed = {n: found for n, found in results.items() if found[0] > MOST or found[1] > MOST_LOSS}
    for name, (ratio, loss) in missed.items():
        print(f"{name}: {ratio:.2f} training runs, at most {MOST:g}; {loss:.2f} points lost")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
