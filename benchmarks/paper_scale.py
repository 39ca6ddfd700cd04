"""A whole training at the size of WikiLSHTC-325K; exits with 1 if a bound is missed.

Generated data with that set's shape: 1,778,351 rows, 1,617,899 features, 42 per row, 325,056
labels, 3.2 per row, by a power law. `dismec train` runs with all cores, is killed by SIGKILL when
half of the labels are done, and runs again to the end; the model is then opened and evaluated on
unseen rows. Bounds: an hour for both runs together; a peak memory of the arrays of X and Y plus two
gigabytes; and the time left, as the first run shows it after a tenth of the way, and the time and
memory that `dismec inspect` estimates are right within a factor of 1.5.
`--scale 0.01` tries everything on data of a hundredth of that size, where startup dominates and
estimates miss.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import dismec
from dismec.model.directory import read_manifest
from dismec.report.estimate import estimate_training
from machine import print_heading

ROWS, FEATURES, LABELS = 1_778_351, 1_617_899, 325_056
FEATURES_PER_ROW, LABELS_PER_ROW = 42, 3.2
MOST_SECONDS, MOST_EXTRA_BYTES = 3600, 2 << 30
MOST_TIMES = 1.5  # error factor of estimates


def labels_done(model: Path) -> int:
    """Return the number of labels in the blocks that an unfinished training has written."""
    try:
        return read_manifest(model).labels_done
    except (OSError, dismec.DismecError):
        return 0


def train(
    data: Path, model: Path, threads: int, until: int | None
) -> tuple[float, int, list[tuple[float, float]]]:
    """Run training, killed once that many labels are done; return seconds and peak bytes.

    Also return its estimates of the time left: pairs of seconds since the start and seconds left.
    """
    options = ["train", data, "-o", model, "--C", "1", "--no-calibrate", "--threads", threads]
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "dismec", *map(str, options)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    told: list[tuple[float, float]] = []

    def listen() -> None:
        assert process.stderr
        for line in process.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            if line.rstrip().endswith(" left"):
                told.append((time.monotonic() - begin, seconds_left(line)))

    listener = threading.Thread(target=listen)
    listener.start()
    peak = 0
    while process.poll() is None:
        peak = max(peak, resident_peak(process.pid))
        if until is not None and labels_done(model) >= until:
            process.send_signal(signal.SIGKILL)
        time.sleep(0.5)
    listener.join()
    if process.returncode not in (0, -signal.SIGKILL):
        sys.exit(f"dismec train ended with {process.returncode}")
    return time.monotonic() - begin, peak, told


def seconds_left(line: str) -> float:
    """Return the end of a line such as "…, 1 h 02 min left" in seconds."""
    units = {"h": 3600, "min": 60, "s": 1}
    parts = re.findall(r"(\d+) (h|min|s)\b", line.rsplit(",", 1)[1])
    return float(sum(int(number) * units[unit] for number, unit in parts))


def resident_peak(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    lines = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(lines[0].split()[1]) << 10 if lines else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--folder", type=Path, help="for data and model; kept if given")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print_heading()
    with tempfile.TemporaryDirectory() as scratch:
        return measure(args, args.folder or Path(scratch))


def measure(args: argparse.Namespace, folder: Path) -> int:
    n_labels = int(LABELS * args.scale)
    data, model = folder / "data", folder / "model"
    if not (data / "train.xmc").exists():
        shape = {"rows": ROWS * args.scale, "features": FEATURES * args.scale, "labels": n_labels}
        options = [f"--{name}={int(size)}" for name, size in shape.items()]
        options += [f"--features-per-row={FEATURES_PER_ROW}", f"--labels-per-row={LABELS_PER_ROW}"]
        generate = [sys.executable, "-m", "dismec", "generate", "-o", str(data), "--format=xmc"]
        subprocess.run([*generate, *options, f"--seed={args.seed}"], check=True, stdout=sys.stderr)
    X, Y, _ = dismec.load_data(data / "train.xmc")
    arrays = sum(a.nbytes for m in (X, Y) for a in (m.indptr, m.indices, m.data))
    print(
        f"{X.shape[0]:,} rows, {X.shape[1]:,} features, {X.nnz:,} non-zeros, {Y.shape[1]:,} labels,"
    )
    print(f"{Y.nnz / X.shape[0]:.2f} per row; arrays {arrays / 1e9:.2f} GB\n", flush=True)
    expected = estimate_training(X, Y, threads=args.threads)
    del X, Y

    killed, first_peak, told = train(data / "train.xmc", model, args.threads, until=n_labels // 2)
    done = labels_done(model)
    print(f"killed after {killed:.0f} s with {done:,} labels done", flush=True)
    resumed, second_peak, _ = train(data / "train.xmc", model, args.threads, until=None)
    print(f"resumed, and finished after {resumed:.0f} s more", flush=True)
    peak = max(first_peak, second_peak)
    command = [sys.executable, "-m", "dismec", "evaluate", str(model), str(data / "test.xmc")]
    begin = time.monotonic()
    answer = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True)
    quality = json.loads(answer.stdout)
    size = sum(file.stat().st_size for file in model.rglob("*") if file.is_file())
    print(f"model of {size / 1e9:.2f} GB evaluated in {time.monotonic() - begin:.0f} s: ", end="")
    print(", ".join(f"{name} {quality[name]}" for name in ("P@1", "P@3", "P@5", "rows")))
    seconds = killed + resumed
    print(f"training: {seconds:.0f} s with {args.threads} threads;", end="")
    print(f" peak memory {peak / 1e9:.2f} GB, {(peak - arrays) / 1e9:.2f} GB more than the arrays")
    later = [(when, left) for when, left in told if when >= seconds / 10]
    off = [(when + left) / seconds for when, left in later]
    if off:
        print(
            f"time left from a tenth of the way on: {min(off):.2f} to {max(off):.2f} times", end=""
        )
        print(f" the total of {seconds:.0f} s, {off[0]:.2f} at first")
    missed = []
    for key, found in (("seconds", seconds), ("peak bytes", float(peak))):
        times = expected[key] / found
        print(f"inspect estimates {times:.2f} times these {key}")
        if not 1 / MOST_TIMES <= times <= MOST_TIMES:
            missed.append(f"expected {key} off by more than a factor of {MOST_TIMES}")
    if any(not 1 / MOST_TIMES <= times <= MOST_TIMES for times in off):
        missed.append(f"the time left was off by more than a factor of {MOST_TIMES}")
    if seconds > MOST_SECONDS:
        missed.append(f"more than {MOST_SECONDS} s")
    if peak > arrays + MOST_EXTRA_BYTES:
        missed.append("more memory than the arrays plus two gigabytes")
    if not 0 < done < n_labels:
        missed.append("it was not killed in the middle")
    print("MISSED: " + "; ".join(missed) if missed else "every bound is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
