"""A refined model → which labels inform which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from dismec.model.informed import Informed
from dismec.model.model import Model

__all__ = ["strongest_pairs"]


def strongest_pairs(model: Model, n_pairs: int = 10) -> dict[str, list[dict[str, Any]]]:
    """Return the pairs of labels with the largest weights, at most `n_pairs` "for" and "against".

    Pairs of a label with itself are left out. A model that is not refined has no pairs.
    """
    transform = model.transform
    if not isinstance(transform, Informed):
        return {"for": [], "against": []}
    n_features, found = model.n_features, []
    for shard in model.shards:
        weights: Any = shard.unpack()
        part: Any = sp.coo_array(weights[:, n_features : transform.first_dense])
        of = shard.labels[shard.label_starts[:-1]][part.row]  # the first label that shares it
        informing = transform.informing[part.col]
        others = of != informing
        found.append((part.data[others], of[others], informing[others]))
    weight, label, informing = (np.concatenate(column) for column in zip(*found, strict=True))

    def listed(order: Any) -> list[dict[str, Any]]:
        return [
            {
                "label": _name_or_number(model.names, int(label[i])),
                "informed by": _name_or_number(model.names, int(informing[i])),
                "weight": round(float(weight[i]), 4),
            }
            for i in order
        ]

    order = np.lexsort((informing, label, -weight))
    pros = [i for i in order[:n_pairs] if weight[i] > 0]
    cons = [i for i in order[::-1][:n_pairs] if weight[i] < 0]
    return {"for": listed(pros), "against": listed(cons)}


def _name_or_number(names: Sequence[str] | None, label: int) -> str | int:
    return label if names is None else names[label]
