"""A model whose weights are in this process: what they are, and writing them down."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.model.archive import archived, is_archive_path, write_archive
from dismec.model.manifest import Manifest
from dismec.model.parts import Parts
from dismec.model.saving import write_model
from dismec.model.scoring import RowTransform
from dismec.model.shards import Shard, first_labels, gather
from dismec.model.topk_model import TopkModel

__all__ = ["StoredModel"]


class StoredModel(TopkModel):
    """A model that has its weights here."""

    def __init__(
        self, manifest: Manifest, transform: RowTransform, parts: Parts, shards: Sequence[Shard]
    ) -> None:
        super().__init__(manifest, transform, parts)
        self._shards = list(shards)

    @property
    def weights(self) -> sp.csr_array:
        """The weights as CSR float32 (n_labels, n_features + 1), bias last; a copy on each call.

        They are those that predictions are made with, rounded to the model's precision. In a
        refined model the labels that inform others are further features, before the bias.
        """
        return gather(self._shards, self.n_labels, self.transform.n_columns)

    @property
    def shards(self) -> Sequence[Shard]:
        """The weights as they are stored."""
        return tuple(self._shards)

    @property
    def precision(self) -> str:
        """How weights are stored: "float16", "float32" or "int8"."""
        return self._shards[0].precision if self._shards else str(self.params.get("precision"))

    @property
    def nnz(self) -> int:  # noqa: D102
        return sum(shard.nnz for shard in self._shards)

    @property
    def first_labels(self) -> npt.NDArray[np.int64]:
        """int64 (n_labels,): for each label the first that has the same weights; itself, mostly."""
        return first_labels(self._shards, self.n_labels)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        estimator: dict[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write the model to a directory of its own, with what `estimator` or its manifest says.

        If the path ends in .zip and is not a directory, it becomes a single file there, which
        `open_model` reads as well.

        Raises
        ------
        ModelError
            If there is a model already and `overwrite` is not set, or other files are there.
        """
        write = self._writer(self.manifest.estimator if estimator is None else estimator)
        if is_archive_path(path):
            write_archive(Path(path), write, overwrite=overwrite)
        else:
            write(Path(path), overwrite=overwrite)

    def to_bytes(self) -> bytes:
        """The model as the bytes of a single file, for `open_model`; as `save` to a .zip file."""
        return archived(self._writer(self.manifest.estimator))

    def _writer(self, estimator: dict[str, Any] | None) -> Callable[..., None]:
        manifest = replace(self.manifest, estimator=estimator)
        return partial(write_model, manifest, self.transform, self._parts, self._shards)
