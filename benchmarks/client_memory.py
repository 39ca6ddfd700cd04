"""Client memory when the data is on the workers; exits with 1 if it grows with the data.

Rows are generated on two workers on this machine and trained on there, once with some rows and once
with four times as many, each time from a new client process. The peak memory of the client may
grow by at most a twentieth of what the data files grow by.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import scipy.sparse as sp
from distributed import Client, LocalCluster

import dismec
from machine import print_heading

BLOCK, FEATURES, LABELS, PER_ROW = 20_000, 20_000, 50, 60
MOST = 0.05


def collections(n_rows: int) -> tuple[Any, Any]:
    """Return X and Y as Dask arrays; the functions are sent to the workers by value."""

    def features(number: Any) -> Any:
        rng = np.random.default_rng(int(number[0]))
        columns = rng.integers(0, FEATURES, (BLOCK, PER_ROW))
        starts = np.arange(0, columns.size + 1, PER_ROW)
        values = rng.random(columns.size, dtype=np.float32)
        return sp.csr_array((values, columns.reshape(-1), starts), shape=(BLOCK, FEATURES))

    def labels(number: Any) -> Any:
        rng = np.random.default_rng([1, int(number[0])])
        one = rng.integers(0, LABELS, BLOCK)
        places = one, np.arange(BLOCK + 1)
        return sp.csr_array((np.ones(BLOCK, np.uint8), *places), shape=(BLOCK, LABELS))

    numbers = da.arange(n_rows // BLOCK, chunks=1)
    rows, meta = (BLOCK,) * (n_rows // BLOCK), sp.csr_array((0, 0), dtype=np.float32)
    return tuple(
        numbers.map_blocks(part, new_axis=1, chunks=(rows, (width,)), meta=meta)
        for part, width in ((features, FEATURES), (labels, LABELS))
    )


def client(address: str, n_rows: int) -> None:
    """Train, and print the peak memory of this process in bytes."""
    with tempfile.TemporaryDirectory() as folder, Client(address) as connected:
        params = dismec.TrainingParams(C=0.01, tol=1.0)  # the result does not matter here
        X, Y = collections(n_rows)
        dismec.train(X, Y, Path(folder) / "model", params, cluster=connected)
    print(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--client", metavar="ADDRESS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        client(args.client, args.rows)
        return 0
    print_heading("distributed")
    peaks, sizes = [], []
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=0
    ) as cluster:
        for n_rows in (args.rows, 4 * args.rows):
            run = [sys.executable, __file__, "--client", cluster.scheduler_address]
            run += ["--rows", str(n_rows)]
            peaks.append(int(subprocess.run(run, check=True, stdout=subprocess.PIPE).stdout))
            sizes.append(8 * n_rows * (PER_ROW + 2))
            print(f"{n_rows:10,} rows, {sizes[-1] / 1e6:6.0f} MB: client {peaks[-1] / 1e6:.0f} MB")
    growth = (peaks[1] - peaks[0]) / (sizes[1] - sizes[0])
    print(f"\nthe client grows by {growth:.3f} of the data; the bound is {MOST}")
    return 0 if growth <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
