"""Replacing the finished model of a directory by another one, in one atomic step.

The new model is written to a folder inside the directory, so the old one can be opened until the
new one is complete. Its files are then linked into the directory under unused names, and its
manifest replaces the old one: at every moment the directory is either the old model or the new one.
Files that are no longer needed are removed afterwards.
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
from dismec.model.manifest import ARRAYS, NEW, PartReceipt, ShardReceipt

R = TypeVar("R", PartReceipt, ShardReceipt)


def replacement_folder(directory: Path) -> Path | None:
    """Return where to write a replacement for a directory's model; None if it has none."""
    with suppress(ModelError):
        if read_manifest(directory).complete:
            return directory / NEW
    return None


def install_replacement(directory: Path) -> None:
    """Make the finished model in the folder given by `replacement_folder` the directory's model."""
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
    """Link a file of a model to an unused name; return its receipt with that name."""
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
