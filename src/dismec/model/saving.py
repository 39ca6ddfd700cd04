"""A model in memory → a directory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dismec.errors import ModelError
from dismec.model import weight_files
from dismec.model.directory import commit, discard, holds_model, locked, make_directory
from dismec.model.format import FIRST
from dismec.model.informed import Informed
from dismec.model.manifest import Manifest
from dismec.model.parts import Parts, write_parts
from dismec.model.replacing import install_replacement, replacement_folder
from dismec.model.scoring import RowTransform
from dismec.model.shards import Shard

__all__ = ["write_model"]


def write_model(
    manifest: Manifest,
    transform: RowTransform,
    parts: Parts,
    shards: Sequence[Shard],
    directory: Path,
    *,
    overwrite: bool,
) -> None:
    """Write a model to a directory, as in `Model.save`."""
    make_directory(directory)
    with locked(directory):
        if holds_model(directory) and not overwrite:
            raise ModelError(
                f"{directory} already holds a model: "
                "choose another directory, or overwrite it (overwrite=True)"
            )
        new = replacement_folder(directory)
        folder = new or directory
        make_directory(folder)
        discard(folder)
        manifest = replace(manifest, parts=write_parts(folder, parts))
        receipts = [weight_files.write_shard(folder, i, s) for i, s in enumerate(shards)]
        if isinstance(transform, Informed):
            first = enumerate(transform.first)
            named = tuple(weight_files.write_shard(folder, i, s, FIRST) for i, s in first)
            manifest = replace(manifest, first=named)
        commit(folder, manifest.finished(receipts))
        if new:
            install_replacement(directory)
