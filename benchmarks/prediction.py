"""Prediction time, size and precision of models; exits with 1 if a bound is missed.

Peers as in `training.py`, in the same run: the systems take turns, several times; each trains, and
predicts the test rows with one thread, all at once and one at a time (median). The best run of each
counts. Eurlex-4K has all systems; citeulike-t and generated data (10⁵ rows and
features, 42 of them per row, 10⁴ labels) have dismec and PECOS XR-Linear. XR-Linear's model is
loaded for prediction only, which is its fast path, with its default beam.

Bounds: in a batch, dismec is faster than its peers by the factors in TIMES_FASTER; on Eurlex-4K one
row at a time takes at most 0.1 ms more than in a batch, and less than with PLT; two threads are 1.8
times as fast as one. A weight takes at most 4.6 bytes on disk in float16 and 3.3 in float8, and P@k
and PSP@k are within 0.05 and 0.1 of those of float32.
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
from training import SYSTEMS as TRAINED
from training import default_peers, prepare, run

DEPTHS = (1, 3, 5)
XR_LINEAR = "xr-linear"
SYSTEMS = {
    "eurlex-4k": ("dismec-auto", *TRAINED),
    "citeulike-t": ("dismec", XR_LINEAR),
    "generated": ("dismec", XR_LINEAR),
}
TIMES_FASTER = {
    "eurlex-4k": {
        "dismec": {"plt": 4, XR_LINEAR: 4},
        "dismec-auto": {"plt": 8, XR_LINEAR: 4},
    },
    "citeulike-t": {"dismec": {XR_LINEAR: 2}},
    "generated": {"dismec": {XR_LINEAR: 3}},
}
SINGLE_ABOVE_BATCH = 0.1e-3  # seconds
THREADS_RATIO = 1.8
BYTES = {"float16": 4.6, "float8": 3.3}
NEAR = {"float16": 0.05, "float8": 0.1}  # percent


def compare(name: str, python: Path, args: argparse.Namespace) -> list[str]:
    """Print the table of systems and return the bounds that were missed."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _, truth = prepare(name, folder)
        runs: dict[str, list[dict[str, Any]]] = {system: [] for system in SYSTEMS[name]}
        for _ in range(args.repeats):
            for system, reports in runs.items():
                reports.append(run(system, python, folder, args.threads))
    batch, single = (
        {system: min(r[what] for r in reports) for system, reports in runs.items()}
        for what in ("predict", "single")
    )
    print(f"{name}: 1 thread, ms per row; best of {args.repeats}")
    print(f"{'system':18} {'batch':>7} {'/ dismec':>9} {'one row':>8} {'/ dismec':>9}   P@1/3/5")
    for system, reports in runs.items():
        quality = evaluate(truth, np.array(reports[-1]["top"]), DEPTHS)
        shown = " / ".join(f"{quality[f'P@{k}']:.2f}" for k in DEPTHS)
        print(f"{system:18}", end="")
        for times in (batch, single):
            print(f" {times[system] * 1e3:8.3f} {times[system] / times['dismec']:8.2f}", end="")
        print(f"   {shown}   {reports[0]['version']}")
    missed = [
        f"{ours}: {batch[peer] / batch[ours]:.2f} times {peer}'s speed, not {times}"
        for ours, peers in TIMES_FASTER[name].items()
        for peer, times in peers.items()
        if batch[peer] < times * batch[ours]
    ]
    if name == "eurlex-4k" and single["dismec"] > batch["dismec"] + SINGLE_ABOVE_BATCH:
        missed.append("one row takes more than 0.1 ms above its share of a batch")
    if single["dismec"] > single.get("plt", np.inf):
        missed.append("one row takes longer than plt's")
    return [f"{name}: {bound}" for bound in missed]


def seconds_per_row(model: Model, X: Any, threads: int) -> float:
    begin = time.perf_counter()
    model.predict_topk(X, threads=threads)
    return (time.perf_counter() - begin) / X.shape[0]


def precisions(name: str, repeats: int) -> list[str]:
    """Print the cost and quality of each precision, and return the bounds that were missed."""
    test = data.load(name, "test")
    missed = []
    found: dict[str, dict[str, float]] = {}
    print(f"\n{name}: threads 1 and 2 in ms per row; P@k and PSP@k minus those of float32")
    print(
        f"{'precision':9} {'MB':>6} {'bytes/weight':>15} {'open ms':>8} {'1':>6} {'2':>6}", end=""
    )
    print("   " + " ".join(f"{m}@{k}".rjust(6) for m in ("P", "PSP") for k in DEPTHS))
    with tempfile.TemporaryDirectory() as scratch:
        exact = Path(scratch) / "exact"
        train(*data.load(name)[:2], exact, TrainingParams(precision="float32"))
        for precision in ("float32", "float16", "float8"):
            path = Path(scratch) / precision
            open_model(exact).pruned(precision=precision).save(path)
            begin = time.perf_counter()
            model = open_model(path)
            opened = time.perf_counter() - begin
            pairs = [
                [seconds_per_row(model, test.X, n) for n in (1, 2)] for _ in range(repeats + 3)
            ]
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
                missed.append(f"{precision}: more than {BYTES[precision]} bytes per weight")
            if max(map(abs, change.values())) > NEAR.get(precision, 0):
                missed.append(f"{precision}: P@k or PSP@k changed by more than {NEAR[precision]}")
            if one < THREADS_RATIO * two:
                missed.append(f"{precision}: two threads are only {one / two:.2f} times as fast")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="to train")
    parser.add_argument("--peers-python", type=Path, help="Python of an environment with the peers")
    args = parser.parse_args()

    python = args.peers_python or default_peers()
    print_heading()
    missed = [bound for name in args.sets for bound in compare(name, python, args)]
    missed += precisions("eurlex-4k", args.repeats)
    print("\n".join(missed) or "every bound is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
