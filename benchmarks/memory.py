"""Peak memory of `dismec train`; exits with 1 if it is above the bound.

The bound: the CSR arrays of X and Y, 300 MB, and 200 bytes × (rows + features) × threads. The data
is read from binary datasets (.xmc). Besides the real sets there is generated data of 10⁶ rows with
42 features per row, 10⁵ features and 10⁵ labels, of which the first 2,000 are trained: peak memory
does not depend on the number of labels, and fewer make the bound tighter.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import data
from dismec.data.dataset import Dataset, save_data
from dismec.data.synthetic import generate
from machine import print_heading

FIXED, PER_ROW_OR_FEATURE = 300e6, 200

# VmHWM instead of ru_maxrss, which starts at the peak of the parent process.
TRAIN = """
import sys
from dismec.cli import main

main(["train", *sys.argv[1:], "--C", "1", "--no-calibrate", "--quiet"], standalone_mode=False)
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(int(line.split()[1]) * 1024)
"""


def peak_bytes(dataset: Dataset, threads: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.xmc"
        save_data(dataset, path)
        arguments = [path, "-o", Path(folder) / "model", "--threads", str(threads)]
        command = [sys.executable, "-c", TRAIN, *arguments]
        return int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def array_bytes(dataset: Dataset) -> int:
    return sum(a.nbytes for m in (dataset.X, dataset.Y) for a in (m.indptr, m.indices, m.data))


def load(name: str, args: argparse.Namespace) -> Dataset:
    if name != "generated":
        return data.load(name)
    whole, _ = generate(args.rows, args.rows // 10, args.rows // 10, test_rows=0, seed=args.seed)
    return Dataset(whole.X, whole.Y[:, : args.labels])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = [*data.SETS, "generated"]
    parser.add_argument("--sets", nargs="+", choices=every, default=every)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the generated data")
    parser.add_argument("--labels", type=int, default=2_000, help="of the generated data, trained")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    print_heading()
    print(f"{args.threads} threads, MB (10⁶ bytes)")
    print(f"{'set':12} {'rows':>9} {'features':>9} {'labels':>7}", end="")
    print(f" {'X and Y':>8} {'peak':>7} {'bound':>7} {'peak/bound':>11}")
    good = True
    for name in args.sets:
        dataset = load(name, args)
        n_rows, n_features = dataset.X.shape
        arrays = array_bytes(dataset)
        bound = arrays + FIXED + PER_ROW_OR_FEATURE * (n_rows + n_features) * args.threads
        peak = peak_bytes(dataset, args.threads)
        good &= peak <= bound
        print(f"{name:12} {n_rows:9} {n_features:9} {dataset.Y.shape[1]:7}", end="")
        print(f" {arrays / 1e6:8.0f} {peak / 1e6:7.0f} {bound / 1e6:7.0f} {peak / bound:11.2f}")
        sys.stdout.flush()
    print("\n" + ("the bound is met" if good else "the bound is missed"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
