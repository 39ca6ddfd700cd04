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
REFINED_VERSION = 4  # of refined models, which earlier versions of the package cannot read
DENSE_VERSION = 5  # of models with dense features, likewise

MANIFEST = "manifest.json"
LOCK = ".lock"
PARTS = ("labels", "vocabulary", "calibration")  # what there may be besides weights
BLOCK, SHARD = "block-", "shard-"  # how the names of files of weights begin
FIRST = "first-"  # the same for shards of the first stage of a refined model
STAGE = ".stage-"  # how the names of what the stages of a training leave to the next one begin
JOURNAL = "blocks-", ".journal"  # how the name of the journal of a training begins and ends
ARRAYS = ".safetensors"  # how the names of all files of arrays end
EDIT = ".edit"  # labels of a finished model that are being trained
NEW = ".new"  # a model that is to replace a finished one
DATA, RUN = ".data-", ".run-"  # how the names of what a training on a cluster needs begin

PRECISIONS: dict[str, np.dtype[Any]] = {
    "float16": np.dtype("<f2"),
    "float32": np.dtype("<f4"),
    "int8": np.dtype("u1"),
}
PADDING = 16  # zeros behind the weights of a shard, so that vectors of them can be read
MOST_WEIGHTS = 1 << 26  # of a shard: it is put together in memory
QUICK_BYTES = 1 << 26  # files up to this size are compared with their SHA-256 in no time


def check_precision(precision: str) -> None:
    """Raise `DataError` unless it is the name of a precision."""
    if precision not in PRECISIONS:
        raise DataError(f"precision is {precision!r}; expected {', '.join(PRECISIONS)}")


def is_own(name: str) -> bool:
    """Whether a file of this name in a model directory is the model's."""
    return (
        name in (MANIFEST, LOCK, EDIT, NEW)
        or (name.startswith((*PARTS, BLOCK, SHARD, FIRST)) and name.endswith(ARRAYS))
        or (name.startswith(JOURNAL[0]) and name.endswith(JOURNAL[1]))
        or (name.startswith(".") and name.endswith(".tmp"))
        or name.startswith((DATA, RUN, STAGE))
    )
