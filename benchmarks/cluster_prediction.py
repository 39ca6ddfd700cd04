"""Prediction on two workers with one thread each, against two threads of one process.

Batch: all test rows, k = 5, best of several alternating runs; ranked by score, and in other ways
(rare labels higher, among 100 labels, all labels above a threshold, explanations). Ranking by score
is measured with the model in one shard, which both workers hold, and cut into shards of 500
classifiers, of which each worker holds half; everything else with the latter.
Exits with 1 if an answer differs from that of one machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from distributed import Client

import data
import dismec
from dismec.cluster.cluster_model import ClusterModel
from dismec.cpu import kernels
from machine import print_heading

K = 5
SMALL_SHARD = 500


@contextmanager
def running_cluster(folder: Path, n_workers: int = 2) -> Iterator[Path]:
    """Start a cluster of single-threaded workers and yield its scheduler file."""
    file = folder / "scheduler.json"
    module = [sys.executable, "-m"]
    where = ["--host=127.0.0.1", f"--scheduler-file={file}", "--no-dashboard"]
    worker = ["--nthreads=1", "--no-nanny", f"--local-directory={folder}"]
    commands = [[*module, "distributed.cli.dask_scheduler", "--port=0", *where]]
    commands += [[*module, "distributed.cli.dask_worker", *where, *worker]] * n_workers
    with ExitStack() as stack:
        for command in commands:
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            while not file.exists():
                time.sleep(0.05)
        with Client(scheduler_file=str(file), set_as_default=False) as client:
            client.wait_for_workers(n_workers)
        yield file


def compare(path: Path, X: object, file: Path, rounds: int) -> bool:
    """Print the times of a batch; return whether the answers are equal."""
    model = dismec.open_model(path)
    here, there = [], []
    with ClusterModel(path, file) as remote:
        remote.predict_topk(X, K)
        for _ in range(rounds):
            begin = time.perf_counter()
            expected = model.predict_topk(X, K, threads=2)
            middle = time.perf_counter()
            found = remote.predict_topk(X, K)
            here.append(middle - begin)
            there.append(time.perf_counter() - middle)
    n_rows = len(expected[0])
    print(
        f"{len(model.manifest.files):6} {1e3 * min(here) / n_rows:9.3f} "
        f"{1e3 * min(there) / n_rows:10.3f} {min(there) / min(here):6.2f}"
    )
    return all(np.array_equal(f, e) for f, e in zip(found, expected, strict=True))


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "rare labels higher": lambda m, X: m.predict_topk(X, K, aim="psp"),
    "among 100 labels": lambda m, X: m.predict_topk(X, K, allowed=range(100)),
    "above a threshold": lambda m, X: m.assign(X, -0.5, probabilities=False).data,
    "100 explanations": lambda m, X: [m.explain(X[[i]], 3).score for i in range(100)],
}


def compare_ways(path: Path, X: Any, file: Path, rounds: int) -> bool:
    """Print the times of other ways to rank; return whether the answers are equal."""
    here, same = dismec.open_model(path), True
    with ClusterModel(path, file) as there:
        for name, way in WAYS.items():
            expected, found = way(here, X), way(there, X)
            same = same and all(map(np.array_equal, found, expected))
            times: dict[Any, list[float]] = {here: [], there: []}
            for _ in range(rounds):
                for model, seconds in times.items():
                    begin = time.perf_counter()
                    way(model, X)
                    seconds.append(time.perf_counter() - begin)
            one, many = 1e3 * min(times[here]), 1e3 * min(times[there])
            print(f"{name:20} {one:9.1f} {many:10.1f} {many / one:6.2f}")
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=data.SETS, default="eurlex-4k")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print_heading("distributed")
    train, test = data.load(args.set), data.load(args.set, "test")
    X = test.X
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dismec.train(train.X, train.Y, folder / "one")
        with mock.patch.object(kernels, "shard_rows", SMALL_SHARD):
            dismec.train(train.X, train.Y, folder / "cut")
        with running_cluster(folder) as file:
            print(f"{args.set}, {X.shape[0]} rows in a batch, ms per row\n")
            print(f"{'shards':>6} {'2 threads':>9} {'2 workers':>10} {'ratio':>6}")
            same = [compare(folder / model, X, file, args.rounds) for model in ("one", "cut")]
            print(f"\n{'total ms':20} {'2 threads':>9} {'2 workers':>10} {'ratio':>6}")
            same.append(compare_ways(folder / "cut", X, file, args.rounds))
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
