"""A model for a command: opened locally, or distributed over the workers of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dismec.cli.console import cluster_messages

if TYPE_CHECKING:
    from dismec.model.model import Model

__all__ = ["model_at"]


@contextmanager
def model_at(model: Path, cluster: str | None) -> Iterator[Model]:
    """Open the model locally or on a cluster (``--cluster``); workers release it at the end."""
    from dismec.model.opening import open_model

    if cluster is None:
        yield open_model(model, check=True)
        return
    with cluster_messages(cluster, quiet=False):
        from dismec.cluster.prediction import ClusterModel

        with ClusterModel(model, cluster) as opened:
            yield opened
