"""A hierarchy of a model's labels → facts about its levels and nodes, for a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.data.label_tree import LabelTree

__all__ = ["describe_hierarchy"]


def describe_hierarchy(
    tree: LabelTree, counts: npt.NDArray[np.int64], test: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Describe the levels, and all nodes as one list per column: first labels, then groups.

    `counts` are the training rows of labels; groups have None. `test` is the hierarchy part of the
    result of `describe_test`: if given, levels have metrics, and nodes have "test rows",
    "precision" and "recall" in percent, None if there is nothing to measure.
    """
    rows: list[int | None] = [None] * tree.n_nodes
    rows[: tree.n_labels] = [0] * tree.n_labels
    rows[: len(counts)] = counts.tolist()
    parents: list[list[int]] = [[] for _ in range(tree.n_nodes)]
    for child, parent in zip(tree.child.tolist(), tree.parent.tolist(), strict=True):
        parents[child].append(parent)
    nodes: dict[str, list[Any]] = {
        "name": list(tree.names),
        "parents": parents,
        "level": tree.levels.tolist(),
        "is label": [number < tree.n_labels for number in range(tree.n_nodes)],
        "labels below": tree.labels_below.tolist(),
        "training rows": rows,
    }
    if test is not None:
        nodes |= {key: test["nodes"][key] for key in ("test rows", "precision", "recall")}
        return {"levels": test["levels"], "nodes": nodes}
    levels = [
        {
            "level": level,
            "nodes": int(np.count_nonzero(tree.levels == level)),
            "labels": int(np.count_nonzero(tree.levels[: tree.n_labels] == level)),
        }
        for level in range(1, 1 + int(tree.levels.max(initial=0)))
    ]
    return {"levels": levels, "nodes": nodes}
