"""The estimates of `dismec inspect` against real training runs; and plots of both.

Times are CPU times over all cores, which other work on the machine changes little. The training
time covers the whole process, including reading and writing. Exits with 1 if time or peak memory is
more than 1.5 times the estimate, or less than two thirds of it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import data
from dismec.data.dataset import save_data
from dismec.data.synthetic import generate
from dismec.report.estimate import estimate_training
from dismec.report.facts import describe_model, describe_texts
from dismec.report.figures import draw_frequencies, draw_weights
from machine import print_heading

MOST = 1.5  # largest ratio, in either direction

# VmHWM instead of ru_maxrss, which starts at the peak of the parent process.
TRAIN = """
import sys, time
from dismec.cli import main

main(["train", *sys.argv[1:], "--C", "1", "--no-calibrate", "--quiet"], standalone_mode=False)
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(int(line.split()[1]) * 1024, time.process_time())
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="*", default=[*data.SETS, "wordnet-text"])
    parser.add_argument("--rows", type=int, nargs="*", default=[100_000], help="of generated data")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--figures", type=Path, help="folder for drawings of the sets")
    args = parser.parse_args()

    print_heading()
    print(f"{args.threads} threads; expected, found, expected/found")
    print(f"{'set':12} {'core-seconds':>20} {'peak, MB':>20} {'model, MB':>20}")
    missed = []
    for name in [*args.sets, *args.rows]:
        with tempfile.TemporaryDirectory() as folder:
            source, model = Path(folder) / "train.xmc", Path(folder) / "model"
            if str(name).endswith("-text"):
                source = data.find(name, "train")
                expected = describe_texts(source, threads=args.threads)["training"]
            else:
                dataset = (
                    generate(name, name, name // 10, features_per_row=42, test_rows=0)[0]
                    if isinstance(name, int)
                    else data.load(name)
                )
                expected = estimate_training(dataset.X, dataset.Y, threads=args.threads)
                save_data(dataset, source)
            command = [sys.executable, "-c", TRAIN, source, "-o", model]
            command += ["--threads", str(args.threads)]
            out = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            peak, seconds = map(float, out.split())
            facts = describe_model(model)
        print(f"{name:<12}", end="")
        for key, found, unit in (
            ("core-seconds", seconds, 1),
            ("peak bytes", peak, 1e6),
            ("model bytes", facts["bytes"], 1e6),
        ):
            ratio = expected[key] / found
            print(f" {expected[key] / unit:7.1f} {found / unit:7.1f} {ratio:5.2f}", end="")
            if key != "model bytes" and not 1 / MOST <= ratio <= MOST:
                missed.append(f"{name}: {key}")
        print(flush=True)
        if args.figures:
            for what, svg in (
                ("frequencies", draw_frequencies(facts["label frequencies"])),
                ("weights", draw_weights(facts["weight counts"], facts["delta"])),
            ):
                (args.figures / f"{name}-{what}.svg").write_bytes(svg)
    print("MISSED: " + ", ".join(missed) if missed else "every bound is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
