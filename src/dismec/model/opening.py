"""A model directory, or a single file → a `Model`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, cast

from dismec.data.counts import counted
from dismec.errors import ModelError, located
from dismec.features.transform import Transform
from dismec.model import weight_files
from dismec.model.directory import read_manifest, unfinished
from dismec.model.manifest import Manifest
from dismec.model.model import Model
from dismec.model.refined_transform import RefinedTransform, Refinement
from dismec.model.saving import unpacked
from dismec.model.scoring import RowTransform
from dismec.model.sidecar_files import Parts, read_parts


def open_model(
    path: str | os.PathLike[str] | bytes | BinaryIO, *, check: bool | None = None
) -> Model:
    """Open a model that was trained or saved before.

    The weights of a model directory stay in its files until they are used, and processes that open
    the same model share them in memory. A single file, as `Model.save` and `Model.to_bytes` make
    it, is first unpacked into a temporary directory.

    Parameters
    ----------
    path : str, path-like, bytes or binary file
        The model directory, or a single file: its path, its bytes, or a file object in binary mode.
    check : bool, default=None
        Whether to compare every file with its checksum. By default models of up to 64 MB and single
        files are checked. Damage of a model that was not checked is mostly noticed when its weights
        are used.

    Returns
    -------
    Model
        The model.

    Examples
    --------
    >>> import numpy as np
    >>> from dismec import DiSMECClassifier, open_model
    >>> X, Y = np.eye(3), np.eye(3, dtype=int)
    >>> stored = DiSMECClassifier().fit(X, Y).model_.to_bytes()
    >>> open_model(stored).predict(X)
    [(0,), (1,), (2,)]
    """
    with unpacked(path) as folder:
        if folder is not None:
            # Mapped files stay readable after they have been removed.
            return _open_directory(folder, check=check is not False)
    return _open_directory(Path(cast(str, path)), check=check)


def _open_directory(directory: Path, *, check: bool | None) -> Model:
    while True:
        before = read_manifest(directory)
        try:
            manifest, transform, parts = read_head(directory, check=check)
            shards = weight_files.read_shards(directory, manifest, parts.labels.counts, check=check)
            return Model.from_shards(manifest, transform, parts, shards)
        except ModelError:
            # A concurrent edit may have removed files that the manifest named: then there is a new
            # manifest, to be read instead.
            if read_manifest(directory) == before:
                raise


def read_head(
    directory: Path, *, check: bool | None = None
) -> tuple[Manifest, RowTransform, Parts]:
    """Read everything of a finished model except its weights; see `open_model` for errors.

    The transform of a refined model includes the weights of its first stage.
    """
    manifest = read_manifest(directory)
    if not manifest.complete:
        raise ModelError(f"{directory}: {unfinished(directory, manifest)}")
    parts = read_parts(directory, manifest, check=check)
    with located(directory, ModelError):
        transform = Transform.from_dict(manifest.transform, parts.labels.idf)
    if not manifest.refined:
        return manifest, transform, parts
    first = weight_files.read_first(directory, manifest, check=check)
    with located(directory, ModelError):
        refinement = Refinement.from_dict(manifest.refined)
        refined = RefinedTransform(transform, first, refinement, transform.bias)
    if refined.n_columns != manifest.n_columns:
        informing = counted(manifest.refined["informing"], "label")
        raise ModelError(
            f"{directory}: the first stage does not hold the {informing} used as features"
        )
    return manifest, refined, parts
