"""How much faster two threads train than one; exits with 1 below 1.8 times.

Eurlex-4K, from loaded data to committed model; runs alternate and the best of each counts. The
machine must be otherwise idle.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time

import data
import dismec
from dismec.cpu import available_cpus
from machine import print_heading

SPEEDUP = 1.8


def train_seconds(dataset: dismec.Dataset, threads: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        dismec.train(dataset.X, dataset.Y, folder, threads=threads)
        return time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=data.SETS, default="eurlex-4k")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if available_cpus() < 2:
        sys.exit("this needs two cores")

    print_heading()
    dataset = data.load(args.set)
    runs: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(args.repeats):
        for threads, seconds in runs.items():
            seconds.append(train_seconds(dataset, threads))
    print(f"{args.set}, best of {args.repeats}")
    print(f"{'threads':>7} {'train s':>8}   all runs")
    for threads, seconds in runs.items():
        print(f"{threads:7} {min(seconds):8.2f}   {' '.join(f'{s:.2f}' for s in seconds)}")
    speedup = min(runs[1]) / min(runs[2])
    print(f"\n{speedup:.2f} times as fast; the bound is {SPEEDUP}")
    return 0 if speedup >= SPEEDUP else 1


if __name__ == "__main__":
    sys.exit(main())
