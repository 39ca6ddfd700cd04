"""Prediction time, size and precision of models; exits with 1 if a bound is missed.

Peers as in `training.py`, in the same run: every system trains on Eurlex-4K and predicts the test
rows with one thread, all at once (best of several) and one at a time (median). The systems take
turns, and the fastest run of each counts.

Bounds: a batch takes dismec at most 1/4 of napkinXC PLT's time a row and 1/10 of XR-Linear's, with
delta auto 1/8 and 1/20; one row at a time takes at most 0.1 ms more than in a batch, and less than
PLT's; two threads are 1.8 times as fast as one. A weight takes at most 4.6 bytes on disk in float16
and 3.3 in int8, and P@k and PSP@k are those of float32 to 0.05 and 0.1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import data
from dismec import Model, open_model, train
from dismec.measure.metrics import evaluate
from dismec.training.params import TrainingParams
from machine import print_heading
from systems import PREDICTING
from training import peers_python, prepare, run

DEPTHS = (1, 3, 5)
TIMES_FASTER = {
    "dismec": {"napkinXC PLT": 4, "PECOS XR-Linear": 10},
    "dismec, delta auto": {"napkinXC PLT": 8, "PECOS XR-Linear": 20},
}
SINGLE_ABOVE_BATCH = 0.1e-3  # seconds
THREADS_RATIO = 1.8
BYTES = {"float16": 4.6, "int8": 3.3}
NEAR = {"float16": 0.05, "int8": 0.1}  # percent


def compare(name: str, python: Path, args: argparse.Namespace) -> list[str]:
    """Print the table of systems and return the bounds that were missed."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _, truth = prepare(name, folder)
        runs: dict[str, list[dict[str, Any]]] = {system: [] for system in PREDICTING}
        for _ in range(args.repeats):
            for system, reports in runs.items():
                reports.append(run(system, python, folder, args.threads))
    batch, single = (
        {system: min(r[what] for r in reports) for system, reports in runs.items()}
        for what in ("predict", "single")
    )
    print(f"{name}: 1 thread, ms a row; best of {args.repeats}")
    print(f"{'system':18} {'batch':>7} {'/ dismec':>9} {'one row':>8}   P@1/3/5")
    for system, reports in runs.items():
        quality = evaluate(truth, np.array(reports[-1]["top"]), DEPTHS)
        shown = " / ".join(f"{quality[f'P@{k}']:.2f}" for k in DEPTHS)
        ratio = batch[system] / batch["dismec"]
        print(f"{system:18} {batch[system] * 1e3:7.3f} {ratio:9.2f} ", end="")
        print(f"{single[system] * 1e3:8.3f}   {shown}   {reports[0]['version']}")
    missed = [
        f"{ours}: less than {times} times {peer}'s speed"
        for ours, peers in TIMES_FASTER.items()
        for peer, times in peers.items()
        if batch[peer] < times * batch[ours]
    ]
    if single["dismec"] > batch["dismec"] + SINGLE_ABOVE_BATCH:
        missed.append("one row takes more than 0.1 ms above its share of a batch")
    if single["dismec"] > single["napkinXC PLT"]:
        missed.append("one row takes longer than napkinXC PLT's")
    return missed


def seconds_a_row(model: Model, X: Any, threads: int) -> float:
    begin = time.perf_counter()
    model.predict_topk(X, threads=threads)
    return (time.perf_counter() - begin) / X.shape[0]


def precisions(name: str, repeats: int) -> list[str]:
    """Print what each precision costs and gives, and return the bounds that were missed."""
    test = data.load(name, "test")
    missed = []
    found: dict[str, dict[str, float]] = {}
    print(f"\n{name}: threads 1 and 2 in ms a row; P@k and PSP@k less those of float32")
    print(
        f"{'precision':9} {'MB':>6} {'bytes a weight':>15} {'open ms':>8} {'1':>6} {'2':>6}", end=""
    )
    print("   " + " ".join(f"{m}@{k}".rjust(6) for m in ("P", "PSP") for k in DEPTHS))
    with tempfile.TemporaryDirectory() as scratch:
        exact = Path(scratch) / "exact"
        train(*data.load(name)[:2], exact, TrainingParams(precision="float32"))
        for precision in ("float32", "float16", "int8"):
            path = Path(scratch) / precision
            open_model(exact).pruned(precision=precision).save(path)
            begin = time.perf_counter()
            model = open_model(path)
            opened = time.perf_counter() - begin
            pairs = [[seconds_a_row(model, test.X, n) for n in (1, 2)] for _ in range(repeats + 3)]
            one, two = np.min(pairs, axis=0)
            found[precision] = quality = model.evaluate(test.X, test.Y, DEPTHS)
            size = sum(receipt.bytes for receipt in model.manifest.files)
            change = {
                f"{metric}@{k}": quality[f"{metric}@{k}"] - found["float32"][f"{metric}@{k}"]
                for metric in ("P", "PSP")
                for k in DEPTHS
            }
            print(f"{precision:9} {size / 1e6:6.1f} {size / model.nnz:15.2f} ", end="")
            print(f"{opened * 1e3:8.1f} {one * 1e3:6.3f} {two * 1e3:6.3f}   ", end="")
            print(" ".join(f"{value:6.2f}" for value in change.values()))
            if size > BYTES.get(precision, np.inf) * model.nnz:
                missed.append(f"{precision}: more than {BYTES[precision]} bytes a weight")
            if max(map(abs, change.values())) > NEAR.get(precision, 0):
                missed.append(f"{precision}: P@k or PSP@k changed by more than {NEAR[precision]}")
            if one < THREADS_RATIO * two:
                missed.append(f"{precision}: two threads are only {one / two:.2f} times as fast")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=data.SETS, default="eurlex-4k")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="to train")
    parser.add_argument("--peers-python", type=Path, help="of an environment that has the peers")
    args = parser.parse_args()

    python = args.peers_python or peers_python()
    print_heading()
    missed = compare(args.set, python, args) + precisions(args.set, args.repeats)
    print("\n".join(missed) or "every bound is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
