"""Training time against PECOS XR-Linear as rows and labels grow; exits with 1 if a bound is missed.

Generated data: 42 features and 3 labels per row, as many features as rows, a tenth as many labels;
and citeulike-t. All labels are trained, from loaded data, and P@k is measured on the same test
rows. The systems take turns, each run in its own process, and the fastest run of each counts. Both
use their defaults. dismec must be faster on every set, although its time includes writing the model
to disk; the time that XR-Linear takes for that is shown separately.

`--rows 1000000` takes half an hour or more per turn. `--texts` names sets of texts, which are
trained on twice: with tf-idf, and with term frequencies alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import data
from dismec.compare.comparison import Pair, pair_of_texts, write_rows
from dismec.data.corpus import Texts
from dismec.data.synthetic import generate
from dismec.measure.metrics import evaluate
from machine import print_heading
from training import default_peers, run

SYSTEMS = ("dismec", "xr-linear")
TEST_ROWS = 2_000


def generated(rows: int, seed: int) -> Pair:
    parts = generate(
        rows, rows, rows // 10, features_per_row=42, seed=seed, test_rows=min(TEST_ROWS, rows)
    )
    return Pair(*parts)


def of_texts(name: str) -> Pair:
    """Return the rows of texts, for tf-idf."""
    pair = pair_of_texts(Texts.of(data.find(name)), Texts.of(data.find(name, "test")))
    return pair._replace(texts=None)


def compare(name: str, pair: Pair, args: argparse.Namespace) -> bool:
    """Print the table of a set; return whether dismec is the fastest."""
    python = args.peers_python or default_peers()
    reports: dict[str, list[dict[str, Any]]] = {system: [] for system in SYSTEMS}
    with tempfile.TemporaryDirectory() as scratch:
        write_rows(Path(scratch), pair)
        for _ in range(args.repeats):
            for system, done in reports.items():
                done.append(run(system, python, Path(scratch), args.threads))
    fastest = {system: min(r["train"] for r in done) for system, done in reports.items()}
    train, test = pair.train, pair.test
    n_labels = np.count_nonzero(data.label_counts(train.Y))
    print(
        f"{name}: {train.X.shape[0]:,} rows, {n_labels:,} labels, {train.X.nnz:,} non-zeros;",
        end="",
    )
    print(f" {args.threads} threads, best of {args.repeats}")
    for system, done in reports.items():
        quality = evaluate(test.Y, np.array(done[-1]["top"]), (1, 3, 5))
        shown = " / ".join(f"{quality[f'P@{k}']:.2f}" for k in (1, 3, 5))
        all_runs = ", ".join(f"{r['train']:.1f}" for r in done)
        cpu = min(r["cpu"] for r in done)
        print(f"  {system:16} {fastest[system]:8.1f} s ({all_runs}), CPU {cpu:.1f} s", end="")
        print(f"   P@1/3/5 {shown}", end="")
        if done[0]["save"]:
            print(f"   and {min(r['save'] for r in done):.1f} s to write the model", end="")
        print(f"   {done[0]['version']}")
    ratio = fastest["dismec"] / fastest["xr-linear"]
    print(f"  dismec takes {ratio:.2f} times as long\n", flush=True)
    return ratio <= 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[100_000])
    parser.add_argument("--sets", nargs="*", choices=data.SETS, default=["citeulike-t"])
    parser.add_argument("--texts", nargs="*", default=[])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peers-python", type=Path, help="Python of an environment with the peers")
    args = parser.parse_args()

    print_heading()
    met = [
        compare(name, Pair(data.load(name), data.load(name, "test")), args) for name in args.sets
    ]
    met += [
        compare(f"generated, {rows:,} rows", generated(rows, args.seed), args) for rows in args.rows
    ]
    for name in args.texts:
        pair = of_texts(name)
        met.append(compare(f"{name}, tf-idf", pair, args))
        met.append(compare(f"{name}, term frequencies", pair._replace(tfidf=False), args))
    print("every bound is met" if all(met) else "MISSED: slower than XR-Linear")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
