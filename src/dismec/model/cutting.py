"""Shards and some of their labels → shards of just these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dismec.cpu import kernels
from dismec.errors import ModelError
from dismec.model.format import MOST_WEIGHTS, PRECISIONS
from dismec.model.shards import Shard

__all__ = ["cut_down", "selected"]


def selected(shards: Sequence[Shard], inside: npt.NDArray[np.bool_]) -> list[Shard]:
    """What shards have of the labels that are inside, to be stored.

    A shard all of whose labels are inside is returned as it is. What is left of others goes into
    few new ones, none of which is larger than shards may be.
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
    """The shards of the labels that are inside, (n_labels,): as few as hold their classifiers.

    Codes, scales and biases stay as they are, and so does every bit of a score. All weights are
    read once for each new shard.
    """
    kept = [_kept_labels(number, shard, inside) for number, shard in enumerate(shards)]
    none = np.empty((0, 3), np.int64)
    # A row per label: its shard, its classifier there, itself.
    table = np.concatenate([none, *kept])
    _, first, group = np.unique(table[:, :2], axis=0, return_index=True, return_inverse=True)
    # Classifiers are numbered by the first of their labels that is left.
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
    at = np.flatnonzero(inside[shard.labels])
    classifier = np.searchsorted(shard.label_starts, at, side="right") - 1
    return np.column_stack([np.full(len(at), number), classifier, shard.labels[at]])


def _cut_shard(
    shards: Sequence[Shard],
    table: npt.NDArray[np.int64],
    new: npt.NDArray[np.int64],
    n_rows: int,
) -> Shard:
    """The shard of some classifiers, given their labels with their old and new numbers."""
    used = np.unique(table[:, 0]).tolist()
    to = []
    for number in used:
        goes = np.full(len(shards[number].scales), -1, np.int32)
        own = table[:, 0] == number
        goes[table[own, 1]] = new[own]
        to.append(goes)
    split = n_rows > kernels.split_rows
    try:
        cut = kernels.cut([shards[number].native for number in used], to, n_rows, split)
    except ValueError as error:
        raise ModelError(f"the model is damaged: {error}") from None
    scales, bias, feature_starts, places, weights = cut
    order = np.lexsort([table[:, 2], new])
    starts = np.zeros(n_rows + 1, np.int32)
    np.cumsum(np.bincount(new, minlength=n_rows), out=starts[1:])
    labels = table[order, 2].astype(np.int32)
    weights = weights.view(PRECISIONS[shards[used[0]].precision])
    return Shard(labels, starts, scales, bias, feature_starts, places, weights)
