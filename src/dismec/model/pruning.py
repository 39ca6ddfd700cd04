"""A model → what a larger delta, or another precision, leaves of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dismec.errors import DataError, ModelError
from dismec.model.informed import Informed
from dismec.model.manifest import Manifest
from dismec.model.scoring import RowTransform
from dismec.model.shards import Shard, gather, pack, prune

__all__ = ["pruned_params", "repacked"]


def pruned_params(params: Mapping[str, Any], delta: float | None, precision: str) -> dict[str, Any]:
    """The parameters of the smaller model; errors as of `Model.pruned`."""
    changed = dict(params)
    if delta is not None:
        own = changed.get("delta")
        if not isinstance(own, int | float):
            raise ModelError("the model does not say at which delta it was pruned")
        # What is left of any weights at infinity is nothing, but JSON has no word for it.
        if not own <= delta <= np.finfo(np.float32).max:
            raise DataError(
                f"delta is {delta}; expected at least {own}, that of the model: "
                "dropped weights cannot be recovered"
            )
        changed = {k: v for k, v in changed.items() if k not in ("delta_auto", "delta_effect")}
        changed["delta"] = float(delta)
    return changed | {"precision": precision}


def repacked(
    manifest: Manifest,
    transform: RowTransform,
    shards: Sequence[Shard],
    delta: float,
    precision: str,
) -> list[Shard]:
    """The shards without the weights below `delta`, at a precision."""
    more = [transform.pruned_more(delta)] if isinstance(transform, Informed) else []
    if transform.dense:  # dense features keep all of their weights
        more.append((transform.first_dense, 0.0))
    if not manifest.history:
        return [s.repacked(prune(s.unpack(), delta, more), precision) for s in shards]
    # Labels that came and went have left small shards behind: all go into as few as possible.
    labels = np.sort(np.concatenate([np.empty(0, np.int64), *(s.labels for s in shards)]))
    labels = labels.astype(np.int64)
    weights: Any = gather(shards, manifest.n_labels, transform.n_columns)
    kept = prune(weights, delta, more)
    return list(pack([(labels, kept[labels])], transform.n_columns, precision))
