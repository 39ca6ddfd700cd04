"""A finished model beside another one → the model of the directory, in one step.

A model that is to replace another is written to a folder of its own within the directory, so that
the old one can be opened until the new one is whole. Its files are then linked into the directory,
under names that no file has, and the manifest is renamed over the old one: at every moment the
directory is the old model or the new one. What is left over is removed afterwards.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TypeVar

from dismec.data.files import sync_directory
from dismec.errors import ModelError
from dismec.model.directory import commit, read_manifest, tidy
from dismec.model.format import ARRAYS, NEW
from dismec.model.manifest import PartReceipt, ShardReceipt

__all__ = ["move_in", "replaces"]

R = TypeVar("R", PartReceipt, ShardReceipt)


def replaces(directory: Path) -> Path | None:
    """Where to write a model that replaces the one of a directory; None if none can be opened."""
    with suppress(ModelError):
        if read_manifest(directory).complete:
            return directory / NEW
    return None


def move_in(directory: Path) -> None:
    """Make the finished model that was written to `replaces` the one of the directory."""
    folder = directory / NEW
    manifest = read_manifest(folder)
    manifest = replace(
        manifest,
        parts={name: _linked(folder, part, directory) for name, part in manifest.parts.items()},
        shards=tuple(_linked(folder, shard, directory) for shard in manifest.shards or ()),
        first=manifest.first and tuple(_linked(folder, s, directory) for s in manifest.first),
    )
    sync_directory(directory)
    commit(directory, manifest)
    tidy(directory, manifest)
    shutil.rmtree(folder, ignore_errors=True)


def _linked(folder: Path, receipt: R, directory: Path) -> R:
    """A file of a model, linked to a name that is free."""
    source = folder / receipt.file
    base = re.sub(r"-\d+$", "", receipt.file.removesuffix(ARRAYS))
    for number in count():
        name = receipt.file if number == 0 else f"{base}-{number:06d}{ARRAYS}"
        try:
            _link(source, directory / name)
        except FileExistsError:
            continue
        return replace(receipt, file=name)
    raise AssertionError("there is always another number")


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        with source.open("rb") as file, target.open("xb") as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
