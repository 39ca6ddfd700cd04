"""A model → one of some of its labels, with the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dismec.errors import DataError, ModelError
from dismec.model.cutting import selected
from dismec.model.manifest import Manifest
from dismec.model.parts import LabelTable, Parts
from dismec.model.provenance import history_entry, ranges
from dismec.model.shards import Shard
from dismec.model.topk_model import TopkModel

__all__ = ["check_separable", "parts_in_use", "parts_of", "renumbered", "subset_parts"]


def subset_parts(
    manifest: Manifest, parts: Parts, shards: Sequence[Shard], labels: npt.NDArray[np.int64]
) -> tuple[Manifest, Parts, list[Shard]]:
    """Manifest, parts and shards of a model of these labels, ascending; as `Model.subset`.

    The calibration of the parts is the one that the model uses: what labels with the same weights
    share has been given to each.
    """
    check_separable(manifest, "the model")
    if not len(labels):
        raise DataError("no label is named")
    entry = history_entry(
        "kept", labels=len(labels), of=manifest.n_labels, numbers=ranges(labels), data=manifest.data
    )
    made = replace(
        manifest.finished(()),
        n_labels=len(labels),
        history=(*manifest.history, entry),
        stats=None,  # they are of all labels
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
    """Refuse models whose labels depend on each other."""
    if manifest.refined:
        raise ModelError(
            f"{name} is refined: its labels inform each other and cannot be taken apart; "
            "train it without refining"
        )
    if (manifest.estimator or {}).get("classes") is not None:
        raise ModelError(
            f"the classes of {name} exclude each other and cannot be taken apart; "
            "train it with lists of labels"
        )


def parts_in_use(model: TopkModel) -> Parts:
    """What a model has besides weights, with the curves that labels share given to each."""
    table = LabelTable(model.label_counts, model.names, model.transform.idf)
    return Parts(table, model.vocabulary, model.calibration)


def parts_of(parts: Parts, labels: npt.NDArray[np.int64]) -> Parts:
    """Names, counts and curves of some labels."""
    table = parts.labels
    names = None if table.names is None else [table.names[label] for label in labels.tolist()]
    calibration = parts.calibration and parts.calibration.taken_from(labels)
    return replace(
        parts, labels=LabelTable(table.counts[labels], names, table.idf), calibration=calibration
    )


def renumbered(shard: Shard, numbers: npt.NDArray[np.int64]) -> Shard:
    """The shard with a new number for each label, in the same order."""
    return replace(shard, labels=numbers[shard.labels].astype(np.int32))
