"""The overhead of blocks on a cluster; exits with 1 if a bound is missed.

Labels that take next to no time are trained in blocks of one label on a scheduler and two workers
on this machine. The measure is the CPU time of this process, which is the client, the scheduler and
Dask's two nannies, between the first and the last block reported done: at most 2 ms per block with
20,000 blocks, and at most 1.5 times the time per block with 2,000.

Then the same with one worker of 100 threads: while it solves, its process has a bounded number of
threads, and its event loop answers within a second.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import scipy.sparse as sp
from distributed import Client, LocalCluster

import dismec
from machine import print_heading

MOST_SECONDS = 2e-3  # CPU time per block
MOST_TIMES = 1.5  # growth per block, with ten times the blocks
MANY_THREADS = 100
MOST_THREADS = 2 * MANY_THREADS + 8  # added during the training
MOST_PAUSE = 1.0  # seconds


@contextmanager
def workers(number: int, threads: int) -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=number, threads_per_worker=threads, dashboard_address=None, memory_limit=0
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(number)
        yield client


def train(client: Client, n_labels: int, rows: int = 300) -> tuple[float, float]:
    """Return CPU seconds of this process and elapsed seconds, per block."""
    rng = np.random.default_rng(0)
    X = sp.random(rows, 100, 0.05, format="csr", dtype=np.float32, random_state=rng)
    Y = sp.csr_array((rng.random((rows, n_labels)) < 0.02).astype(np.uint8))
    times: list[tuple[int, float, float]] = []

    def note(done: int, total: int) -> None:
        times.append((done, time.process_time(), time.perf_counter()))

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "train.xmc"
        dismec.save_data(dismec.Dataset(X, Y), source)
        params = dismec.TrainingParams(block_size=1)
        model = Path(folder) / "model"
        dismec.train(X, Y, model, params, cluster=client, source=source, progress=note)
    (first, *begin), (last, *end) = times[1], times[-1]
    cpu, wall = ((b - a) / (last - first) for a, b in zip(begin, end, strict=True))
    return cpu, wall


class Watch(threading.Thread):
    """Counts the threads of a worker process and times its event loop."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self._client = client
        (pid,) = client.run(os.getpid).values()
        self._process = psutil.Process(pid)
        self.before = self._process.num_threads()
        self.threads, self.pause = self.before, 0.0
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.wait(0.1):
            begin = time.perf_counter()
            self._client.run(os.getpid)  # on the event loop
            self.pause = max(self.pause, time.perf_counter() - begin)
            self.threads = max(self.threads, self._process.num_threads())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=20_000)
    args = parser.parse_args()
    print_heading("distributed")
    found = []
    with workers(2, 1) as client:
        train(client, 200)  # warm-up
        for blocks in (args.blocks // 10, args.blocks):
            cpu, wall = train(client, blocks)
            found.append(cpu)
            print(
                f"{blocks:7,} blocks: {1e3 * cpu:.2f} ms of client and scheduler CPU per block",
                end="",
            )
            print(f", {1e3 * wall:.2f} ms elapsed", flush=True)
    few, many = found
    missed = many > MOST_SECONDS or many > MOST_TIMES * few
    with workers(1, MANY_THREADS) as client:
        watch = Watch(client)
        watch.start()
        train(client, args.blocks // 4, rows=3000)
        watch.stop.set()
        watch.join()
    more = watch.threads - watch.before
    print(f"a worker of {MANY_THREADS} threads: {more} more threads while it solves, ", end="")
    print(f"its event loop answers within {watch.pause:.2f} s")
    missed |= more > MOST_THREADS or watch.pause > MOST_PAUSE
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
