"""Speed and memory of parsing text; exits with 1 if below the target.

Uses generated text, and Eurlex-4K too if the environment variable DISMEC_DATA names the folder that
holds eurlex-4k. The text is in the page cache, so this measures parsing and not the disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dismec.data.dataset import Dataset, load_data, save_data
from dismec.data.synthetic import generate

MB_PER_SECOND = 150  # on one core, at least
MEMORY_RATIO = 2.5  # peak to result, at most

# Peak minus what the interpreter and the libraries use before loading. VmHWM instead of ru_maxrss,
# which starts at the peak of the parent process.
MEASURE_MEMORY = """
import sys
import dismec.data.dataset

def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024

before = peak()
X, Y, _ = dismec.data.dataset.load_data(sys.argv[1])
arrays = [a for matrix in (X, Y) for a in (matrix.indptr, matrix.indices, matrix.data)]
print((peak() - before) / sum(a.nbytes for a in arrays))
"""


def megabytes_per_second(path: Path, size: int, threads: int | None) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        load_data(path, threads=threads)
        times.append(time.perf_counter() - start)
    return size / 1e6 / min(times)


def memory_ratio(path: Path) -> float:
    command = [sys.executable, "-c", MEASURE_MEMORY, str(path)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def datasets() -> dict[str, Dataset]:
    found = {"generated": generate(200_000, 100_000, 50_000, test_rows=0)[0]}
    eurlex = Path(os.environ.get("DISMEC_DATA", "")) / "eurlex-4k" / "train.txt.gz"
    if "DISMEC_DATA" in os.environ and eurlex.exists():
        found["eurlex-4k"] = load_data(eurlex)
    return found


def main() -> int:
    good = True
    print(f"{'text':20} {'MB':>6} {'MB/s, 1 thread':>15} {'MB/s, all':>10} {'peak/result':>12}")
    with tempfile.TemporaryDirectory() as directory:
        for name, dataset in datasets().items():
            size = 0
            for ending in (".txt", ".txt.gz"):
                path = Path(directory) / f"{name}{ending}"
                save_data(dataset, path)
                size = size or path.stat().st_size
                one, every = (megabytes_per_second(path, size, n) for n in (1, None))
                ratio = memory_ratio(path)
                print(f"{path.name:20} {size / 1e6:6.0f} {one:15.0f} {every:10.0f} {ratio:12.2f}")
                good &= ratio <= MEMORY_RATIO
                # The target is for parsing: gunzip alone takes about as long.
                good &= ending == ".txt.gz" or one >= MB_PER_SECOND
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
