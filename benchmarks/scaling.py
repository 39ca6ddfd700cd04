"""How long large sets take on many cores: measured label costs, simulated schedules.

Measured: the cost of a label by the number of its rows, on generated data with 42 features per row,
in strata of frequency, with all threads busy. For a larger set this is assumed to grow with the
non-zeros of X, and then multiplied by one factor for all labels and sets, so that WikiLSHTC-325K
takes the core-hours that `paper_scale.py` found (`--core-hours`). The label frequencies of a set
follow a power law with exponent 1 that adds up to its labels per row, with at most a tenth of the
rows per label.

Simulated: a cluster run, with blocks cut as in a real run. A thread that is free solves the next
block. A message takes `--call-seconds` each way (`cluster.py` measures it), and every block takes
`--block-seconds` of client and scheduler, which handle one block at a time (`cluster_blocks.py`
measures it). Every machine first gets X and Y: from shared storage over its own network link, or
from one worker, one machine after another over a single link.
"""

from __future__ import annotations

import argparse
import heapq
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

import data
from dismec.cluster.solve_tasks import block_count
from dismec.cpu import available_cpus
from dismec.data.synthetic import generate
from dismec.features.transform import Transform
from dismec.solve.partition import EqualLabels, by_frequency, cut, effort
from dismec.solve.problem import Problem, SolverParams
from machine import print_heading

CORES = (10, 100, 1000)
BYTES_A_NONZERO = 8


@dataclass(frozen=True)
class Set:
    """The shape of a dataset from the Extreme Classification Repository."""

    name: str
    rows: int
    labels: int
    features_per_row: float
    labels_per_row: float

    @property
    def nnz(self) -> float:
        return self.rows * self.features_per_row


SETS = (
    Set("WikiLSHTC-325K", 1_778_351, 325_056, 42, 3.19),
    Set("3 million labels, as Amazon-3M", 1_717_899, 2_812_281, 50, 36.2),
)


def measure(rows: int, threads: int, sample: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return rows per label and core-seconds per label, by stratum, and the non-zeros of X."""
    train, _ = generate(rows, rows, rows // 10, features_per_row=42, seed=0, test_rows=0)
    problem = Problem(train.X, train.Y, Transform.fit(train.X))
    counts = data.label_counts(train.Y)
    strata = np.floor(np.log2(np.maximum(counts, 1))).astype(int)
    frequency, cost = [], []
    print(f"{rows:,} rows, {train.X.nnz:,} non-zeros: core-ms per label by the number of its rows")
    for stratum in range(strata.max() + 1):
        labels = np.flatnonzero((strata == stratum) & (counts > 0))
        labels = np.random.default_rng(stratum).permutation(labels)[: sample * threads]
        if len(labels) < threads:
            continue
        with ThreadPoolExecutor(threads) as pool:
            parts = [labels[i::threads] for i in range(threads)]
            seconds = sum(pool.map(lambda part: timed(problem, part), parts)) / len(labels)
        frequency.append(counts[labels].mean())
        cost.append(seconds)
        print(f"{frequency[-1]:10.1f} {seconds * 1e3:10.3f}", flush=True)
    return np.array(frequency), np.array(cost), train.X.nnz


def timed(problem: Problem, labels: np.ndarray) -> float:
    begin = time.perf_counter()
    problem.solve(labels, SolverParams())
    return time.perf_counter() - begin


def label_costs(
    of: Set, frequency: np.ndarray, cost: np.ndarray, nnz: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and core-seconds of every label."""
    ranks = np.arange(1, of.labels + 1)
    total = of.rows * of.labels_per_row
    counts = np.clip(total / (1 / ranks).sum() / ranks, 1, of.rows / 10)
    # Beyond the measured range, extrapolate from the frequent strata.
    frequent = frequency > 100
    slope, _ = np.polyfit(np.log(frequency[frequent]), np.log(cost[frequent]), 1)
    beyond = np.maximum(counts / frequency[-1], 1) ** slope
    known = np.exp(np.interp(np.log(counts), np.log(frequency), np.log(cost)))
    return counts.round().astype(np.int64), known * beyond * of.nnz / nnz


def run(
    counts: np.ndarray, costs: np.ndarray, cores: int, args: argparse.Namespace
) -> tuple[int, float]:
    """Return the number of blocks, and the seconds until the client knows all of them."""
    labels = np.arange(len(counts))
    work = effort(EqualLabels(labels, labels), counts)
    order = by_frequency(labels, counts)
    cuts = cut(order, args.block_size, work, block_count(cores))
    blocks = [costs[places].sum() for places in cuts]
    free = [0.0] * cores  # when each thread becomes free
    answers = []
    for seconds in blocks:
        done = heapq.heappop(free) + args.call_seconds + seconds
        heapq.heappush(free, done)
        answers.append(done + args.call_seconds)
    now = 0.0
    for arrived in sorted(answers):
        now = max(now, arrived) + args.block_seconds
    return len(blocks), now


def simulate(of: Set, counts: np.ndarray, costs: np.ndarray, args: argparse.Namespace) -> None:
    hours = costs.sum() / 3600
    megabytes = of.nnz * BYTES_A_NONZERO / 1e6
    print(
        f"\n{of.name}: {hours:,.1f} core-hours, X {megabytes:,.0f} MB; the costliest label", end=""
    )
    print(f" takes {costs.max():.1f} s, the median one {np.median(costs):.3f} s")
    print(f"{'cores':>6} {'workers':>8} {'blocks':>7} {'wall s':>9}", end="")
    print(f" {'idle':>6} {'data, shared s':>15} {'data, sent s':>13}")
    for cores in CORES:
        workers = max(1, cores // args.threads_a_worker)
        blocks, wall = run(counts, costs, cores, args)
        idle = 1 - costs.sum() / (wall * cores)
        load = megabytes / args.megabytes_per_second
        print(f"{cores:6} {workers:8} {blocks:7,} {wall:9,.1f}", end="")
        print(f" {idle:6.1%} {load:15,.0f} {load * workers:13,.0f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000, help="of the data that is measured")
    parser.add_argument("--sample", type=int, default=96, help="labels per stratum and thread")
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--threads-a-worker", type=int, default=10)
    parser.add_argument("--core-hours", type=float, default=0.99, help=f"of {SETS[0].name}")
    parser.add_argument("--block-size", type=int, default=1000, help="labels, at most")
    parser.add_argument("--block-seconds", type=float, default=0.0016)
    parser.add_argument("--call-seconds", type=float, default=0.02)
    parser.add_argument(
        "--megabytes-per-second", type=float, default=110, help="of a link: 1 Gbit/s"
    )
    args = parser.parse_args()
    print_heading()
    measured = measure(args.rows, args.threads, args.sample)
    found = label_costs(SETS[0], *measured)[1].sum() / 3600
    times = args.core_hours / found
    print(f"\n{SETS[0].name} by these costs: {found:.2f} core-hours; scaled by {times:.2f}")
    for of in SETS:
        counts, costs = label_costs(of, *measured)
        simulate(of, counts, times * costs, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
