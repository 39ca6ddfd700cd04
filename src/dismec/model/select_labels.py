"""A model, or shards, and some of their labels → the same with only these labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dismec.cpu import kernels
from dismec.errors import DataError, ModelError
from dismec.model.manifest import MOST_WEIGHTS, PRECISIONS, Manifest
from dismec.model.provenance import format_ranges, history_entry
from dismec.model.shards import Shard
from dismec.model.sidecar_files import LabelTable, Parts

__all__ = ["check_separable", "cut_down", "parts_of", "renumbered", "selected", "subset_parts"]


def subset_parts(
    manifest: Manifest, parts: Parts, shards: Sequence[Shard], labels: npt.NDArray[np.int64]
) -> tuple[Manifest, Parts, list[Shard]]:
    """Return manifest, parts and shards of a model of these labels, which must be ascending.

    See `Model.subset`. `parts` are `Model.parts`.
    """
    check_separable(manifest, "the model")
    if not len(labels):
        raise DataError("no labels given")
    entry = history_entry(
        "kept",
        labels=len(labels),
        of=manifest.n_labels,
        numbers=format_ranges(labels),
        data=manifest.data,
    )
    made = replace(
        manifest.finished(()),
        n_labels=len(labels),
        history=(*manifest.history, entry),
        stats=None,  # they cover all labels
    )
    wanted = np.zeros(manifest.n_labels, np.bool_)
    wanted[labels] = True
    numbers = np.cumsum(wanted) - 1
    return (
        made,
        parts_of(parts, labels),
        [renumbered(shard, numbers) for shard in selected(shards, wanted)],
    )


def check_separable(manifest: Manifest, name: str) -> None:
    """Raise `ModelError` if the labels of a model depend on each other."""
    if manifest.refined:
        raise ModelError(
            f"{name} is refined: its labels depend on each other and cannot be separated; "
            "train it without refining"
        )
    if (manifest.estimator or {}).get("classes") is not None:
        raise ModelError(
            f"the classes of {name} exclude each other and cannot be separated; "
            "train it with lists of labels"
        )


def parts_of(parts: Parts, labels: npt.NDArray[np.int64]) -> Parts:
    """Return the parts of a model of some of the labels."""
    table = parts.labels
    names = None if table.names is None else [table.names[label] for label in labels.tolist()]
    calibration = parts.calibration and parts.calibration.taken_from(labels)
    return replace(
        parts, labels=LabelTable(table.counts[labels], names, table.idf), calibration=calibration
    )


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
