"""The serial steps of training, however many cores solve its labels; exits with 1 if too slow.

A generated training of 3 million labels: power-law label counts, one label in twenty with the same
rows as another, a name per label, a few weights per label. Each step is timed separately, with the
functions that training calls. The yardstick is the time in which 100 cores solve that many
labels (``--training-minutes``, 6): no step may take more than 5 % of it, 18 s, on this machine.
A step must also be linear: at most 13 times the CPU time that it takes with a tenth of the labels,
unless that is less than two seconds. (CPU time, because other work may share the machine.)

"packing, interleaved" packs blocks whose label ranges overlap, like those of a run that was resumed
with different blocks.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from dismec import open_model
from dismec.cpu import available_cpus
from dismec.data.names import check_names, load_names
from dismec.features.transform import Transform
from dismec.model import weight_files
from dismec.model.directory import commit, make_directory, read_manifest, tidy
from dismec.model.manifest import BlockReceipt, Journal, Manifest, make_journal
from dismec.model.sidecar_files import LabelTable, Parts, read_parts, write_parts
from dismec.solve.block import BINS, Block, BlockStats
from dismec.solve.partition import EqualLabels, cut, effort
from machine import print_heading

CORES = 100
SHARE = 0.05  # of the training time, per step
GROWTH = 13  # factor of CPU time, with ten times the labels
SHORT = 2.0  # seconds below which growth is ignored
LABELS_PER_ROW = 36
LABELS_PER_BLOCK = 1000
COPIES = 0.05  # share of labels with the same rows as another


@dataclass(frozen=True)
class Labels:
    """Labels to train, without the features of their rows."""

    n_rows: int
    indptr: np.ndarray  # of Y by label
    rows: np.ndarray
    names: list[str]

    @property
    def counts(self) -> np.ndarray:
        return np.diff(self.indptr)


class Clock:
    """Elapsed and CPU seconds by step."""

    def __init__(self) -> None:
        self.steps: dict[str, np.ndarray] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        begin = self._now()
        yield
        self.steps[name] = self.steps.get(name, np.zeros(2)) + self._now() - begin

    @staticmethod
    def _now() -> np.ndarray:
        return np.array([time.perf_counter(), time.process_time()])


def make_labels(n_labels: int, seed: int = 0) -> Labels:
    rng = np.random.default_rng(seed)
    n_rows = int(n_labels * 0.57)
    n_distinct = n_labels - int(COPIES * n_labels)
    shares = 1 / (np.arange(n_distinct) + 20.0) ** 0.9
    sizes = rng.permutation(np.maximum(LABELS_PER_ROW * n_rows * shares / shares.sum(), 1))
    sizes = np.minimum(sizes, n_rows // 4).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    distinct = rng.integers(0, n_rows, starts[-1], dtype=np.int32)
    # The rows of a copied label occur twice; labels are in random order.
    rare = np.flatnonzero(sizes <= np.median(sizes))
    sources = np.concatenate([np.arange(n_distinct), rng.choice(rare, n_labels - n_distinct)])
    sources = rng.permutation(sources)
    indptr = np.concatenate([[0], np.cumsum(sizes[sources])])
    rows = np.empty(indptr[-1], np.int32)
    for begin in range(0, n_labels, 100_000):
        part = slice(begin, min(begin + 100_000, n_labels))
        places = np.arange(indptr[part.start], indptr[part.stop])
        shift = starts[sources[part]] - indptr[part.start : part.stop]
        rows[places] = distinct[places + np.repeat(shift, sizes[sources[part]])]
    kinds = np.array(["mountain", "rivière", "城", "history of the county"])[
        rng.integers(0, 4, n_labels)
    ]
    names = [f"{kind} {number}" for number, kind in enumerate(kinds.tolist())]
    return Labels(n_rows, indptr, rows, names)


def make_weights(labels: np.ndarray, groups: np.ndarray, n_features: int) -> sp.csr_array:
    """Generate 3 to 10 weights per label, bias last; equal for labels of one group."""
    same = groups[labels].astype(np.uint64)
    sizes = 3 + (same % np.uint64(8)).astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    place = np.arange(indptr[-1]) - np.repeat(indptr[:-1], sizes)
    mixed = np.repeat(same, sizes) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    step = n_features // 10
    indices = place * step + (mixed % np.uint64(step)).astype(np.int64)
    indices[indptr[1:] - 1] = n_features
    data = ((mixed >> np.uint64(11)) % np.uint64(1000)).astype(np.float32) / 500 - 1.0005
    data *= 1 + place
    shape = (len(labels), n_features + 1)
    return sp.csr_array((data.astype(np.float32), indices.astype(np.int32), indptr), shape)


def write_blocks(
    directory: Path, blocks: list[np.ndarray], groups: np.ndarray, n_features: int
) -> list[BlockReceipt]:
    counted = tuple(range(1000, 1000 + BINS))
    receipts = []
    for number, labels in enumerate(blocks):
        stats = BlockStats(len(labels), 0, 50_000, 400_000, 9_000_000, 4.321, counted)
        weights = make_weights(labels, groups, n_features)
        block = Block(number, labels, np.arange(len(labels)), weights, stats)
        receipts.append(weight_files.write_block(directory, block))
    return receipts


def interleaved(blocks: list[np.ndarray]) -> list[np.ndarray]:
    """Return the same labels in as many blocks; the ranges of sixteen at a time overlap."""
    result = []
    for begin in range(0, len(blocks), 16):
        together = blocks[begin : begin + 16]
        labels = np.sort(np.concatenate(together))
        result += [labels[i :: len(together)] for i in range(len(together))]
    return result


def measure(folder: Path, n_labels: int, n_features: int) -> dict[str, np.ndarray]:
    """Time every step; return the seconds of `Clock`."""
    clock = Clock()
    labels = make_labels(n_labels)
    with clock.step("labels with equal rows"):
        equal = EqualLabels.of(labels.indptr, labels.rows, labels.n_rows)
    with clock.step("cutting into blocks"):
        everything = equal.among(np.arange(n_labels))
        work = effort(everything, labels.counts)
        cut(everything.groups, LABELS_PER_BLOCK, work, 24 * CORES)
        blocks = cut(everything.groups, LABELS_PER_BLOCK)

    text = folder / "names.txt"
    text.write_text("".join(f"{name}\n" for name in labels.names))
    with clock.step("label names: read, checked, written"):
        names = check_names(load_names(text), n_labels)
        make_directory(folder / "model")
        table = Parts(LabelTable(labels.counts, names))
        receipts = write_parts(folder / "model", table)
    transform = Transform(n_features).to_dict()
    manifest = Manifest(labels.n_rows, n_features, n_labels, {}, transform, "", "", receipts)
    for name, cuts in ("", blocks), (", interleaved", interleaved(blocks)):
        pack(clock, name, folder / "model", manifest, labels, cuts, equal.groups)
    with clock.step("opening the model"):
        model = open_model(folder / "model")
    assert model.names is not None
    with clock.step("label names: compared, looked up"):
        same = model.names == names
        found = model.find_label(labels.names[-1])
    assert (same, found) == (True, n_labels - 1)
    return clock.steps


def pack(
    clock: Clock,
    name: str,
    directory: Path,
    manifest: Manifest,
    labels: Labels,
    cuts: list[np.ndarray],
    groups: np.ndarray,
) -> None:
    """Time receipts, resuming and packing for blocks written here."""
    commit(directory, manifest)
    tidy(directory, manifest)
    receipts = write_blocks(directory, cuts, groups, manifest.n_features)
    begun = replace(manifest, journal=make_journal(directory))
    commit(directory, begun)
    with clock.step("receipts of blocks"):
        with Journal(directory / str(begun.journal)) as journal:
            for receipt in receipts:
                journal.append(receipt)
        commit(directory, begun.with_journal(receipts))
    commit(directory, begun)
    with clock.step("what a resumed run checks"):
        found = read_manifest(directory)
        for receipt in found.blocks:
            weight_files.read_block(directory, found, receipt)
        read_parts(directory, found)
    with clock.step(f"packing{name}"):
        weight_files.finish(directory, found, "float16", labels.counts, available_cpus())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--labels", type=int, default=3_000_000)
    parser.add_argument("--features", type=int, default=100_000)
    parser.add_argument("--training-minutes", type=float, default=6)
    args = parser.parse_args()

    print_heading()
    most = SHARE * args.training_minutes * 60
    print(f"a step may take {most:.0f} s, and {GROWTH} times the CPU time of a tenth of the labels")
    found = []
    for n_labels in (args.labels // 10, args.labels):
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(Path(folder), n_labels, args.features))
    small, large = found
    print(f"\n{'labels':38} {args.labels // 10:>18,} {args.labels:>18,}")
    print(f"{'':38} {'seconds':>9}{'CPU':>9} {'seconds':>9}{'CPU':>9} {'times':>6}")
    missed = []
    for name, (seconds, cpu) in large.items():
        times = cpu / small[name][1]
        fault = bool(seconds > most or (times > GROWTH and cpu > SHORT))
        figures = " ".join(f"{a:9.3f}{b:9.3f}" for a, b in (small[name], (seconds, cpu)))
        print(f"{name:38} {figures} {times:6.1f}{' too slow' * fault}")
        missed += [name] * fault
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
