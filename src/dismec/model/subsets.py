"""A model → a model of some of its labels, with the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dismec.errors import DataError, ModelError
from dismec.model.cutting import selected
from dismec.model.manifest import Manifest
from dismec.model.parts import LabelTable, Parts
from dismec.model.provenance import format_ranges, history_entry
from dismec.model.shards import Shard
from dismec.model.topk_model import TopkModel

__all__ = ["check_separable", "parts_in_use", "parts_of", "renumbered", "subset_parts"]


def subset_parts(
    manifest: Manifest, parts: Parts, shards: Sequence[Shard], labels: npt.NDArray[np.int64]
) -> tuple[Manifest, Parts, list[Shard]]:
    """Return manifest, parts and shards of a model of these labels, which must be ascending.

    See `Model.subset`. `parts` must be the result of `parts_in_use`.
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


def parts_in_use(model: TopkModel) -> Parts:
    """Return the parts of a model as it uses them: with the calibration that equal labels share."""
    table = LabelTable(model.label_counts, model.names, model.transform.idf)
    return Parts(table, model.vocabulary, model.calibration)


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
