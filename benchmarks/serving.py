"""Throughput and latency of `dismec serve`; exits with 1 on any request that failed.

One row a request, k = 5, a model of generated data, load from wrk (Debian: apt install wrk) on the
same machine. With --soak the server is kept busy for some minutes first, and must not grow.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dismec
from machine import print_heading

CONNECTIONS = (1, 8, 64)
ROUND_SECONDS = 20  # of a soak: the memory is looked at after each
GROWTH = 0.03  # of the resident size, from a third of the soak to its end

SCRIPT = """
local bodies = {}
for line in io.lines(os.getenv("BODIES")) do bodies[#bodies + 1] = line end
local headers = {["Content-Type"] = "application/json"}
local token = os.getenv("DISMEC_TOKEN")
if token then headers["Authorization"] = "Bearer " .. token end
local i = 0
function request()
  i = i % #bodies + 1
  return wrk.format("POST", "/predict", headers, bodies[i])
end
function done(summary, latency)
  local e = summary.errors
  io.write(string.format(
    '\\nRESULT {"requests": %d, "seconds": %f, "failed": %d, "p50": %f, "p99": %f}\\n',
    summary.requests, summary.duration / 1e6,
    e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
"""


def prepare(folder: Path, rows: int, labels: int) -> None:
    """A trained model, and the requests as one JSON line each."""
    train, test = dismec.generate(rows, 2 * rows, labels)
    dismec.train(train.X, train.Y, folder / "model")
    X = test.X[:1000]
    with (folder / "bodies").open("w") as file:
        for start, stop in zip(X.indptr[:-1], X.indptr[1:], strict=True):
            ids, values = X.indices[start:stop].tolist(), X.data[start:stop].tolist()
            pairs = [[i, round(v, 4)] for i, v in zip(ids, values, strict=True)]
            file.write(json.dumps({"features": pairs, "k": 5}) + "\n")
    (folder / "load.lua").write_text(SCRIPT)


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, int]]:
    """Address and process id of a running server."""
    command = [sys.executable, "-m", "dismec", "serve", str(folder / "model"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1], process.pid
        process.terminate()


def load(folder: Path, address: str, connections: int, seconds: int) -> dict[str, Any]:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(folder / "load.lua")]
    env = {**os.environ, "BODIES": str(folder / "bodies")}
    out = subprocess.run([*command, address], env=env, capture_output=True, text=True, check=True)
    found = re.search(r"^RESULT (.*)$", out.stdout, re.MULTILINE)
    assert found, out.stdout
    result: dict[str, Any] = json.loads(found[1])
    return result


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) / 1000


def soak(folder: Path, address: str, pid: int, minutes: float) -> bool:
    """Whether nothing failed and the resident size stayed what it was."""
    sizes, requests, failed = [], 0, 0
    for _ in range(max(3, round(minutes * 60 / ROUND_SECONDS))):
        result = load(folder, address, 8, ROUND_SECONDS)
        requests += result["requests"]
        failed += result["failed"]
        sizes.append(resident_mb(pid))
    early = sizes[len(sizes) // 3]
    print(
        f"soak: {len(sizes) * ROUND_SECONDS / 60:.1f} minutes, {requests:,} requests, {failed} "
        f"failed; resident MB {sizes[0]:.1f} at first, {early:.1f} after a third, "
        f"{sizes[-1]:.1f} at the end\n"
    )
    return failed == 0 and sizes[-1] <= early * (1 + GROWTH)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--labels", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=10, help="a number of connections")
    parser.add_argument("--soak", type=float, metavar="MINUTES", default=0)
    args = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("this needs wrk: apt install wrk")

    print_heading("starlette", "uvicorn", "httptools")
    good = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, args.rows, args.labels)
        with server(folder) as (address, pid):
            load(folder, address, 8, 1)
            if args.soak:
                good = soak(folder, address, pid, args.soak)
            print(f"{args.rows:,} rows, {args.labels:,} labels; one row a request, k = 5")
            print(f"{'connections':>11} {'requests/s':>10} {'p50 ms':>7} {'p99 ms':>7} failed")
            for connections in CONNECTIONS:
                r = load(folder, address, connections, args.seconds)
                rate = r["requests"] / r["seconds"]
                print(
                    f"{connections:11} {rate:10,.0f} {r['p50']:7.2f} {r['p99']:7.2f} {r['failed']}"
                )
                good = good and r["failed"] == 0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
