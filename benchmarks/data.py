"""The real datasets, and samples of their labels.

The environment variable DISMEC_DATA names the folder with the datasets: one folder per set, with
train and test as XMC text.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dismec.data.dataset import Dataset, load_data
from dismec.data.synthetic import generate

SETS = ("eurlex-4k", "eurlex57k", "citeulike-t")


def find(name: str, part: str = "train") -> Path:
    """Return the file of a set's train or test part; exit if it does not exist."""
    folder = folder_of(name)
    for ending in ("txt", "txt.gz", "jsonl.gz"):
        if (path := folder / f"{part}.{ending}").exists():
            return path
    sys.exit(f"no {part}.txt, {part}.txt.gz or {part}.jsonl.gz in {folder}: set DISMEC_DATA")


def folder_of(name: str) -> Path:
    """Return the folder of a set."""
    return Path(os.environ.get("DISMEC_DATA", "data")) / name


def load(name: str, part: str = "train") -> Dataset:
    """Load a set's train or test part; "generated" has 10⁵ rows and features, and 10⁴ labels."""
    if name == "generated":
        return generate(100_000, 100_000, 10_000, features_per_row=42)[part == "test"]
    return load_data(find(name, part))


def label_counts(Y: Any) -> np.ndarray:
    return np.bincount(Y.indices, minlength=Y.shape[1])


def spread_sample(Y: Any, n: int, seed: int = 0) -> np.ndarray:
    """Draw about n labels that occur, evenly spaced by frequency, so that means are unbiased."""
    counts = label_counts(Y)
    by_frequency = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    step = max(1.0, len(by_frequency) / n)
    places = np.arange(np.random.default_rng(seed).random() * step, len(by_frequency), step)
    return by_frequency[places.astype(int)]


def stratified_sample(Y: Any, n: int, seed: int = 0) -> np.ndarray:
    """Draw n labels, equally many with 1, 2–3, 4–7, 8–15, … rows as far as there are enough."""
    counts = label_counts(Y)
    shuffled = np.random.default_rng(seed).permutation(np.flatnonzero(counts))
    strata = np.floor(np.log2(counts[shuffled]))
    place = np.empty(len(shuffled), dtype=np.int64)  # of a label within its stratum
    for stratum in np.unique(strata):
        inside = strata == stratum
        place[inside] = np.arange(np.count_nonzero(inside))
    return shuffled[np.argsort(place, kind="stable")[:n]]
