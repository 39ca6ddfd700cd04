"""A model → the same, in which only some labels are ranked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dismec.model.model import Model
from dismec.model.selection import selected
from dismec.model.subsets import parts_in_use

__all__ = ["limited"]


def limited(model: Model, labels: npt.NDArray[np.bool_]) -> Model:
    """A model in memory that ranks these labels alone, with their numbers and scores.

    `labels` is a flag per label. Others are as if they had no training rows.
    """
    parts = parts_in_use(model)
    counts = np.where(labels, model.label_counts, 0)
    parts = replace(parts, labels=replace(parts.labels, counts=counts))
    return Model(model.manifest, model.transform, parts, selected(model.shards, labels))
