"""Shards → those of some of their labels, with the weights bit for bit as they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.model.shards import Shard, cut_shards, shard_of

__all__ = ["selected"]

Flags = npt.NDArray[np.bool_]


def selected(shards: Sequence[Shard], wanted: Flags) -> list[Shard]:
    """What shards have of the labels that are wanted, one flag per label of the model.

    A shard all of whose labels are wanted is returned as it is. What is left of others goes into as
    few new ones as possible. Labels that share a classifier go on to do so, and no others.
    """
    whole = [shard for shard in shards if wanted[shard.labels].all()]
    kept = {id(shard) for shard in whole}
    parts = [_part(shard, wanted) for shard in shards if id(shard) not in kept]
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return whole
    lengths, weights, labels = zip(*parts, strict=True)
    rows: Any = sp.vstack(weights, format="csr")
    length, label = np.concatenate(lengths), np.concatenate(labels)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(length)])
    order = np.argsort(label[starts[:-1]])  # classifiers are in the order of their first labels
    precision = shards[0].precision
    found = []
    for begin, end in cut_shards(np.diff(rows.indptr)[order].astype(np.int64)):
        chosen = order[begin:end]
        held = np.concatenate([label[starts[i] : starts[i + 1]] for i in chosen])
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(length[chosen])])
        weights_of = _as_stored(rows[chosen], precision)
        found.append(shard_of(held, bounds.astype(np.int32), weights_of, precision))
    return [*whole, *found]


def _part(
    shard: Shard, wanted: Flags
) -> tuple[npt.NDArray[np.int64], sp.csr_array, npt.NDArray[np.int32]]:
    """Classifiers of a shard with a label that is wanted: how many, their weights, the labels."""
    keep = wanted[shard.labels]
    classifier = np.repeat(np.arange(len(shard.scales)), np.diff(shard.label_starts))
    n_labels = np.bincount(classifier[keep], minlength=len(shard.scales))
    left = np.flatnonzero(n_labels)
    rows: Any = shard.unpack() if len(left) else sp.csr_array((0, shard.n_features + 1))
    return n_labels[left], rows[left], shard.labels[keep]


def _as_stored(rows: Any, precision: str) -> Any:
    """The rows, from which packing gets the weights that they hold and no others.

    The scale of a classifier is the power of two above its largest weight. In float16 that weight
    may have been rounded up to the scale itself; with twice the scale, the smallest weights would
    lose a bit. One that is the least bit smaller gives the scale that was, and is rounded up again.
    """
    if precision != "float16":
        return rows
    own = rows.indices < rows.shape[1] - 1  # not the bias, which has no scale
    bits = rows.data.view(np.uint32)
    is_power = own & (bits & np.uint32(0x007FFFFF) == 0) & (rows.data != 0)
    largest = np.zeros(rows.shape[0], np.float32)
    row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    np.maximum.at(largest, row[own], np.abs(rows.data[own]))
    top = is_power & (np.abs(rows.data) == largest[row])
    rows.data[top] = np.nextafter(rows.data[top], np.float32(0))
    return rows
