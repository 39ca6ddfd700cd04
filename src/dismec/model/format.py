"""The constants of the model format: names of files, precisions, limits.

``docs/reference/model-format.md`` specifies the format. How many classifiers a shard holds, and
from how many on it is split, are constants of the kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dismec.errors import DataError

FORMAT = "dismec-model"
FORMAT_VERSION = 3
REFINED_VERSION = 4  # version of refined models, which earlier releases cannot read
DENSE_VERSION = 5  # version of models with dense features, likewise

MANIFEST = "manifest.json"
LOCK = ".lock"
PARTS = ("labels", "vocabulary", "calibration")  # parts of a model other than its weights
BLOCK, SHARD = "block-", "shard-"  # prefixes of the files of weights
FIRST = "first-"  # prefix of the shards of the first stage of a refined model
STAGE = ".stage-"  # prefix of folders that a stage of training leaves for the next one
JOURNAL = "blocks-", ".journal"  # prefix and suffix of the journal of a training run
ARRAYS = ".safetensors"  # suffix of all files of arrays
EDIT = ".edit"  # folder for labels being trained for a finished model
NEW = ".new"  # folder for a model that will replace a finished one
DATA, RUN = ".data-", ".run-"  # prefixes of the data and folders of training on a cluster

PRECISIONS: dict[str, np.dtype[Any]] = {
    "float16": np.dtype("<f2"),
    "float32": np.dtype("<f4"),
    "int8": np.dtype("u1"),
}
PADDING = 16  # zeros after the weights of a shard, so that kernels can read whole vectors
MOST_WEIGHTS = 1 << 26  # weights per shard: it is assembled in memory
QUICK_BYTES = 1 << 26  # up to this size, comparing files with their SHA-256 takes little time


def check_precision(precision: str) -> None:
    """Raise `DataError` unless `precision` is one of `PRECISIONS`."""
    if precision not in PRECISIONS:
        raise DataError(f"precision is {precision!r}; expected {', '.join(PRECISIONS)}")


def is_own(name: str) -> bool:
    """Return whether a file with this name in a model directory belongs to the model."""
    return (
        name in (MANIFEST, LOCK, EDIT, NEW)
        or (name.startswith((*PARTS, BLOCK, SHARD, FIRST)) and name.endswith(ARRAYS))
        or (name.startswith(JOURNAL[0]) and name.endswith(JOURNAL[1]))
        or (name.startswith(".") and name.endswith(".tmp"))
        or name.startswith((DATA, RUN, STAGE))
    )
