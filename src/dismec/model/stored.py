"""A model whose weights are in this process: access to them, and saving."""

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
    """A model whose weights are in this process."""

    def __init__(
        self, manifest: Manifest, transform: RowTransform, parts: Parts, shards: Sequence[Shard]
    ) -> None:
        super().__init__(manifest, transform, parts)
        self._shards = list(shards)

    @property
    def weights(self) -> sp.csr_array:
        """The weights as a float32 matrix of shape (n_labels, n_features + 1), with the bias last.

        Predictions are made with these, rounded to the precision of the model. In a refined model
        the labels used as features are further columns, before the bias. Each access makes a
        copy.
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
    def nnz(self) -> int:
        """Number of weights stored. Labels with the same weights share them."""
        return sum(shard.nnz for shard in self._shards)

    @property
    def first_labels(self) -> npt.NDArray[np.int64]:
        """For each label the first label with the same weights, int64 of shape (n_labels,)."""
        return first_labels(self._shards, self.n_labels)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        estimator: dict[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write the model to a directory, or to a single file.

        Parameters
        ----------
        path : str or path-like
            The directory. A path that ends in ``.zip`` becomes a single file, unless it is a
            directory. `dismec.open_model` reads both.
        estimator : dict, default=None
            What an estimator has to know to load the model. By default what the model holds.
        overwrite : bool, default=False
            Whether to overwrite an existing model.

        Raises
        ------
        ModelError
            If there is a model already and `overwrite` is False, or if other files are there.
        """
        write = self._writer(self.manifest.estimator if estimator is None else estimator)
        if is_archive_path(path):
            write_archive(Path(path), write, overwrite=overwrite)
        else:
            write(Path(path), overwrite=overwrite)

    def to_bytes(self) -> bytes:
        """Return the model as the bytes of a single file.

        Returns
        -------
        bytes
            The content of the ``.zip`` file that `save` would write; `dismec.open_model` takes it.
        """
        return archived(self._writer(self.manifest.estimator))

    def _writer(self, estimator: dict[str, Any] | None) -> Callable[..., None]:
        manifest = replace(self.manifest, estimator=estimator)
        return partial(write_model, manifest, self.transform, self._parts, self._shards)
