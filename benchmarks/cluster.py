"""The overhead of a cluster: two workers against two threads; exits with 1 above 1.25 times.

Local runs alternate with runs on a scheduler and two workers on this machine, from loaded data to
committed model, and the best run of each counts; starting the cluster is timed separately. The
machine must be otherwise idle.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster

import data
import dismec
from dismec.cluster.client import own_version
from dismec.cluster.solve_tasks import Report
from dismec.cpu import available_cpus
from machine import print_heading

MOST = 1.25


class _Reports(logging.Handler):
    """Keeps the reports that cluster training runs log."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Report] = []

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple) and isinstance(record.args[0], Report):
            self.found.append(record.args[0])


def train_seconds(dataset: dismec.Dataset, **how: Any) -> float:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        dismec.train(dataset.X, dataset.Y, Path(folder) / "model", **how)
        return time.perf_counter() - begin


def task_seconds(client: Client, n_tasks: int = 200) -> float:
    """Seconds per empty task, one task after the other."""
    begin = time.perf_counter()
    for _ in range(n_tasks):
        client.submit(own_version, pure=False).result()
    return (time.perf_counter() - begin) / n_tasks


@contextmanager
def two_workers() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=0
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2)
        yield client


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=data.SETS, default="eurlex-4k")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if available_cpus() < 2:
        sys.exit("this needs two cores")

    print_heading("distributed")
    dataset = data.load(args.set)
    reports = _Reports()
    logger = logging.getLogger("dismec")
    logger.addHandler(reports)
    logger.setLevel(logging.INFO)
    here: list[float] = []
    there: list[float] = []
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, two_workers() as client:
        started = time.perf_counter() - begin
        source = Path(folder) / "train.xmc"
        dismec.save_data(dataset, source)
        for _ in range(args.repeats):
            here.append(train_seconds(dataset, threads=2))
            there.append(train_seconds(dataset, cluster=client, source=source))
        overhead = task_seconds(client)
    best = reports.found[there.index(min(there))]
    print(f"{args.set}, best of {args.repeats}")
    for name, seconds in (("two threads", here), ("two workers", there)):
        print(f"{name:14} {min(seconds):8.2f} s   all: {' '.join(f'{s:.2f}' for s in seconds)}")
    print(f"starting the cluster {started:.2f} s, an empty task {1e3 * overhead:.1f} ms")
    print(best)
    ratio = min(there) / min(here)
    print(f"\n{ratio:.2f} times the local time; the bound is {MOST}")
    return 0 if ratio <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
