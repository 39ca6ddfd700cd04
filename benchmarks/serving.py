"""Throughput, latency and memory of `dismec serve`; exits with 1 if a bound is broken.

One row per request, k = 5, with load from wrk (Debian: apt install wrk) on the same machine. The
numbers of connections take turns, and the best round of each is shown. No request may fail, and the
server's memory may not grow. With `--workers`, one process on one core is compared with that many
processes on as many cores, wrk on the same cores in both cases: throughput must grow by 0.85 per
core. With `--long`, texts of the maximum length are sent to a model of character n-grams.
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
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import data
import dismec
from machine import print_heading

CONNECTIONS = (1, 8, 64)
SAMPLE_SECONDS = 10
WARM_UP = 0.2  # share of a soak
GROWTH_MB = 1.0  # allowed after the warm-up
SHARE = 0.85  # of a core that each process must add: 1.7 times with two
LONG_SECONDS = 3.0  # allowed for the longest text

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


def prepare(folder: Path, name: str) -> None:
    """Train a model, and write requests as one JSON line each."""
    if name == "generated":
        train, test = dismec.generate(10_000, 20_000, 1000)
    else:
        train, test = data.load(name), data.load(name, "test")
    dismec.train(train.X, train.Y, folder / "model")
    X = test.X[:1000]
    with (folder / "bodies").open("w") as file:
        for start, stop in zip(X.indptr[:-1], X.indptr[1:], strict=True):
            ids, values = X.indices[start:stop].tolist(), X.data[start:stop].tolist()
            pairs = [[i, round(v, 4)] for i, v in zip(ids, values, strict=True)]
            file.write(json.dumps({"features": pairs, "k": 5}) + "\n")
    (folder / "load.lua").write_text(SCRIPT)
    print(f"{name}: {X.nnz / X.shape[0]:.0f} features per row, {train.Y.shape[1]:,} labels\n")


@contextmanager
def server(folder: Path, *options: str) -> Iterator[tuple[str, int]]:
    """Start a server; yield its address and process id."""
    command = [sys.executable, "-m", "dismec", "serve", str(folder / "model"), "--port", "0"]
    command += options
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1], process.pid
        process.terminate()


def start_load(
    folder: Path, address: str, connections: int, seconds: float
) -> subprocess.Popen[str]:
    command = [
        "wrk",
        "-t1",
        f"-c{connections}",
        f"-d{seconds:.0f}s",
        "-s",
        str(folder / "load.lua"),
    ]
    env = {**os.environ, "BODIES": str(folder / "bodies")}
    return subprocess.Popen([*command, address], env=env, stdout=subprocess.PIPE, text=True)


def finish_load(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate()
    found = re.search(r"^RESULT (.*)$", out, re.MULTILINE)
    assert found, out
    result: dict[str, Any] = json.loads(found[1])
    return result


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024 / 1e6


def measure(folder: Path, address: str, seconds: float, rounds: int) -> bool:
    """Print a table; return whether no request failed."""
    results: dict[int, list[dict[str, Any]]] = {n: [] for n in CONNECTIONS}
    for _ in range(rounds):
        for n in CONNECTIONS:
            results[n].append(finish_load(start_load(folder, address, n, seconds)))
    print(f"{'connections':>11} {'requests/s':>10} {'p50 ms':>7} {'p99 ms':>7} failed")
    for n, measured in results.items():
        best = max(measured, key=lambda r: float(r["requests"] / r["seconds"]))
        failed = sum(r["failed"] for r in measured)
        rate = best["requests"] / best["seconds"]
        print(f"{n:11} {rate:10,.0f} {best['p50']:7.2f} {best['p99']:7.2f} {failed}")
    return all(r["failed"] == 0 for measured in results.values() for r in measured)


def _runs(address: str, processes: int) -> bool:
    """Return whether so many processes have opened the model."""
    with urllib.request.urlopen(f"{address}/metrics") as answer:
        return f"\ndismec_processes {processes}.0\n" in answer.read().decode()


def compare_workers(folder: Path, workers: int, seconds: float, rounds: int) -> bool:
    """Print the throughput of one process and of several; return whether it grows enough."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < workers:
        sys.exit(f"{workers} processes need {workers} cores; this machine has {len(cpus)}")
    rates: dict[int, list[float]] = {1: [], workers: []}
    failed = 0
    for _ in range(rounds):
        for n, measured in rates.items():
            os.sched_setaffinity(0, cpus[:n])
            with server(folder, "--workers", str(n), "--threads", "1") as (address, _):
                while not _runs(address, n):
                    time.sleep(0.1)
                finish_load(start_load(folder, address, 8 * n, 1))  # warm-up
                result = finish_load(start_load(folder, address, 8 * n, seconds))
            measured.append(result["requests"] / result["seconds"])
            failed += result["failed"]
    os.sched_setaffinity(0, cpus)
    growth = max(rates[workers]) / max(rates[1])
    good = failed == 0 and growth >= SHARE * workers
    for n, measured in rates.items():
        print(f"{n} processes on {n} cores: {max(measured):,.0f} requests/s")
    print(f"{'good' if good else 'BAD'}: {growth:.2f} times, {failed} failed")
    return good


def measure_long(folder: Path) -> bool:
    """Print the time of the longest texts; return whether it is within the bound."""
    train = folder / "texts.jsonl"
    words = [f"{a}{b}{c}ing" for a in "abcdefgh" for b in "aeiou" for c in "klmnprst"]
    with train.open("w") as file:
        for i in range(2000):
            text = " ".join(words[(i * 7 + j * j) % len(words)] for j in range(40))
            file.write(json.dumps({"text": text, "labels": [words[i % 50]]}) + "\n")
    terms = dismec.TextParams(char_ngrams=(1, 8))
    dismec.train_text(train, folder / "model", text=terms, overwrite=True)
    good = True
    with server(folder) as (address, _):
        for path, size in (("predict", 1_000_000), ("explain", 100_000), ("explain", 1_000_000)):
            text = (" ".join(words) + " ") * (size // 1000)
            body = json.dumps({"text": text[:size]} | ({"label": 0} if path == "explain" else {}))
            begin = time.perf_counter()
            with urllib.request.urlopen(f"{address}/{path}", data=body.encode()) as response:
                response.read()
            taken = time.perf_counter() - begin
            good = good and taken < LONG_SECONDS
            print(f"/{path}, {size:,} characters: {taken:.2f} s")
    print("good" if good else f"BAD: more than {LONG_SECONDS:g} s")
    return good


def soak(folder: Path, address: str, pid: int, minutes: float) -> bool:
    """Keep the server busy; return whether no request failed and its memory did not grow."""
    begin = time.monotonic()
    load = start_load(folder, address, 8, minutes * 60)
    sizes = []
    while load.poll() is None:
        time.sleep(min(SAMPLE_SECONDS, minutes * 6))
        sizes.append(resident_mb(pid))
        print(f"{time.monotonic() - begin:6.0f} s {sizes[-1]:8.2f} MB", flush=True)
    result = finish_load(load)
    warm = sizes[int(len(sizes) * WARM_UP) :]
    growth = max(warm) - warm[0]
    good = result["failed"] == 0 and growth < GROWTH_MB
    print(
        f"{'good' if good else 'BAD'}: {minutes:g} minutes, {result['requests']:,} requests, "
        f"{result['failed']} failed; resident MB {sizes[0]:.2f} at the start, {warm[0]:.2f} after "
        f"the warm-up, at most {max(warm):.2f} after that"
    )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=[*data.SETS, "generated"], default="eurlex-4k")
    parser.add_argument("--seconds", type=float, default=10, help="per number of connections")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, help="compare one process with this many")
    parser.add_argument("--long", action="store_true", help="measure the longest texts")
    parser.add_argument("--soak", type=float, metavar="MINUTES", default=0)
    args = parser.parse_args()
    if shutil.which("wrk") is None and not args.long:
        sys.exit("this needs wrk: apt install wrk")

    print_heading("starlette", "uvicorn", "httptools")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.long:
            return 0 if measure_long(folder) else 1
        prepare(folder, args.set)
        if args.workers:
            return 0 if compare_workers(folder, args.workers, args.seconds, args.rounds) else 1
        with server(folder) as (address, pid):
            good = measure(folder, address, args.seconds, args.rounds)
            if args.soak:
                print()
                good = soak(folder, address, pid, args.soak) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
