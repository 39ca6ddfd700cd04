"""A model → a smaller one, with a larger delta or another precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dismec.errors import DataError, ModelError
from dismec.model.manifest import Manifest
from dismec.model.refined_transform import RefinedTransform
from dismec.model.scoring import RowTransform
from dismec.model.shards import Shard, gather, pack, prune


def pruned_params(params: Mapping[str, Any], delta: float | None, precision: str) -> dict[str, Any]:
    """Return the parameters of the smaller model; errors are those of `Model.pruned`."""
    changed = dict(params)
    if delta is not None:
        own = changed.get("delta")
        if not isinstance(own, int | float):
            raise ModelError("the manifest does not say which delta the model was trained with")
        # An infinite delta would make sense, too, but JSON cannot express it.
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
    """Return the shards without weights below `delta`, stored with this precision."""
    more = [transform.pruned_more(delta)] if isinstance(transform, RefinedTransform) else []
    if transform.dense:  # dense features keep all of their weights
        more.append((transform.first_dense, 0.0))
    if not manifest.history:
        return [s.repacked(prune(s.unpack(), delta, more), precision) for s in shards]
    # Edits leave small shards behind, so all labels are packed into as few shards as possible.
    labels = np.sort(np.concatenate([np.empty(0, np.int64), *(s.labels for s in shards)]))
    labels = labels.astype(np.int64)
    weights: Any = gather(shards, manifest.n_labels, transform.n_columns)
    kept = prune(weights, delta, more)
    return list(pack([(labels, kept[labels])], transform.n_columns, precision))
