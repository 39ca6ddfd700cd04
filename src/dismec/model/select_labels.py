"""Shards, and some of their labels → shards with only these labels, and the same scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dismec.cpu import kernels
from dismec.errors import ModelError, located
from dismec.model.manifest import MOST_WEIGHTS, PRECISIONS
from dismec.model.shards import Shard


def renumbered(shard: Shard, numbers: npt.NDArray[np.int64]) -> Shard:
    """Return the shard with a new number for each label, in the same order."""
    return replace(shard, labels=numbers[shard.labels].astype(np.int32))


def selected(shards: Sequence[Shard], inside: npt.NDArray[np.bool_]) -> list[Shard]:
    """Return shards of the labels selected by the mask `inside` (n_labels,), for storage.

    A shard whose labels are all selected is returned unchanged. The others are merged into few new
    shards, none of which exceeds the maximum size.
    """
    whole: list[Shard] = []
    groups: list[list[Shard]] = [[]]
    for shard in shards:
        if inside[shard.labels].all():
            whole.append(shard)
            continue
        if sum(held.nnz for held in groups[-1]) + shard.nnz > MOST_WEIGHTS:
            groups.append([])
        groups[-1].append(shard)
    return [*whole, *(made for group in groups for made in cut_down(group, inside))]


def cut_down(shards: Sequence[Shard], inside: npt.NDArray[np.bool_]) -> list[Shard]:
    """Return as few shards as can hold the labels selected by the mask `inside` (n_labels,).

    Codes, scales and biases are copied, so scores stay the same bit for bit. All weights are read
    once per new shard.
    """
    kept = [_kept_labels(number, shard, inside) for number, shard in enumerate(shards)]
    none = np.empty((0, 3), np.int64)
    # One row per label: its shard, its classifier there, its number.
    table = np.concatenate([none, *kept])
    _, first, group = np.unique(table[:, :2], axis=0, return_index=True, return_inverse=True)
    # A shard's classifiers are in the order of their first labels.
    order = np.argsort(table[first, 2])
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    new = number[group.ravel()]
    made = []
    for begin in range(0, len(order), kernels.shard_rows):
        end = min(begin + kernels.shard_rows, len(order))
        of = (new >= begin) & (new < end)
        made.append(_cut_shard(shards, table[of], new[of] - begin, end - begin))
    return made


def _kept_labels(number: int, shard: Shard, inside: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the selected labels of a shard as rows (shard, classifier, label)."""
    at = np.flatnonzero(inside[shard.labels])
    classifier = np.searchsorted(shard.label_starts, at, side="right") - 1
    return np.column_stack([np.full(len(at), number), classifier, shard.labels[at]])


def _cut_shard(
    shards: Sequence[Shard],
    table: npt.NDArray[np.int64],
    new: npt.NDArray[np.int64],
    n_rows: int,
) -> Shard:
    """Return the shard of some classifiers, given their labels in `table` and new numbers."""
    used = np.unique(table[:, 0]).tolist()
    to = []
    for number in used:
        goes = np.full(len(shards[number].scales), -1, np.int32)
        own = table[:, 0] == number
        goes[table[own, 1]] = new[own]
        to.append(goes)
    with located("the model is damaged", ModelError, ValueError):
        cut = kernels.cut([shards[number].native for number in used], to, n_rows)
    scales, bias, feature_starts, places, weights = cut
    order = np.lexsort([table[:, 2], new])
    starts = np.zeros(n_rows + 1, np.int32)
    np.cumsum(np.bincount(new, minlength=n_rows), out=starts[1:])
    labels = table[order, 2].astype(np.int32)
    weights = weights.view(PRECISIONS[shards[used[0]].precision])
    made = Shard(labels, starts, scales, bias, feature_starts, places, weights)
    return made.bounded(kernels.bounded_rows)
