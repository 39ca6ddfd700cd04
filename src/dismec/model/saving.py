"""A model → a directory of its own, or a single file: a zip archive of its files, not compressed.

An archive is untrusted input. It may contain only uncompressed model files under plain names, and
their total size must not exceed that of the archive. The extracted files then pass the same checks
as those of any model directory.
"""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from dismec.data.files import whole_file
from dismec.errors import ModelError
from dismec.model import weight_files
from dismec.model.atomic_replace import install_replacement, replacement_folder
from dismec.model.directory import commit, discard, holds_model, locked, make_directory
from dismec.model.manifest import FIRST, LOCK, MANIFEST, Manifest, is_own
from dismec.model.refined_transform import RefinedTransform
from dismec.model.scoring import RowTransform
from dismec.model.shards import Shard
from dismec.model.sidecar_files import Parts, write_parts

_ENDING = ".zip"
_DAMAGE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError)


def write_model(
    manifest: Manifest,
    transform: RowTransform,
    parts: Parts,
    shards: Sequence[Shard],
    target: str | os.PathLike[str] | BinaryIO,
    *,
    overwrite: bool = False,
) -> None:
    """Write a model to a directory or a single file, as in `Model.save`.

    The target may also be a file object, which becomes a single file. The same model always has the
    same bytes.
    """
    write = partial(_write_directory, manifest, transform, parts, shards)
    if not isinstance(target, str | os.PathLike):
        _pack_into(target, write)
        return
    path = Path(target)
    if path.suffix.lower() != _ENDING or path.is_dir():
        write(path, overwrite=overwrite)
        return
    if path.exists() and not overwrite:
        raise ModelError(
            f"{path} already exists: choose another name, or overwrite it", "overwrite=True"
        )
    with whole_file(path) as file:
        _pack_into(file, write)


def _write_directory(
    manifest: Manifest,
    transform: RowTransform,
    parts: Parts,
    shards: Sequence[Shard],
    directory: Path,
    *,
    overwrite: bool = False,
) -> None:
    make_directory(directory)
    with locked(directory):
        if holds_model(directory) and not overwrite:
            raise ModelError(
                f"{directory} already holds a model: choose another directory, or overwrite it",
                "overwrite=True",
            )
        new = replacement_folder(directory)
        folder = new or directory
        make_directory(folder)
        discard(folder)
        try:
            manifest = replace(manifest, parts=write_parts(folder, parts))
            receipts = [weight_files.write_shard(folder, i, s) for i, s in enumerate(shards)]
            if isinstance(transform, RefinedTransform):
                first = enumerate(transform.first)
                named = tuple(weight_files.write_shard(folder, i, s, FIRST) for i, s in first)
                manifest = replace(manifest, first=named)
            commit(folder, manifest.finished(receipts))
            if new:
                install_replacement(directory)
        except BaseException:  # for example a full disk
            shutil.rmtree(new, ignore_errors=True) if new else discard(folder)
            raise


def _pack_into(file: BinaryIO, write: Callable[[Path], None]) -> None:
    with TemporaryDirectory(prefix="dismec-") as folder, zipfile.ZipFile(file, "w") as packed:
        directory = Path(folder) / "model"
        write(directory)
        for path in sorted(directory.iterdir()):
            if path.name != LOCK:
                entry = zipfile.ZipInfo(path.name)  # has a constant date, so bytes are the same
                with packed.open(entry, "w", force_zip64=True) as target, path.open("rb") as source:
                    shutil.copyfileobj(source, target, 1 << 20)


@contextmanager
def unpacked(source: Any) -> Iterator[Path | None]:
    """Extract a single file to a temporary model directory, for the duration of the context.

    `source` is a path, bytes, or a file object opened in binary mode. Yield None if it is a path
    that is not such a file. A `ModelError` raised in the body names the source instead of the
    temporary directory.
    """
    file: Any
    with ExitStack() as stack:
        if isinstance(source, bytes | bytearray | memoryview):
            name, file = f"{len(source):,} bytes", io.BytesIO(source)
        elif hasattr(source, "read"):
            name, file = str(getattr(source, "name", "the file object")), source
            if isinstance(file.read(0), str):
                raise ModelError("the file object is open in text mode: open it in binary mode")
            file = file if file.seekable() else io.BytesIO(file.read())
        elif Path(source).is_file() and zipfile.is_zipfile(source):
            name, file = str(source), stack.enter_context(Path(source).open("rb"))
        else:
            yield None
            return
        folder = stack.enter_context(TemporaryDirectory(prefix="dismec-"))
        try:
            _unpack(name, file, Path(folder))
            yield Path(folder)
        except ModelError as error:
            raise ModelError(str(error).replace(folder, name)) from None


def _unpack(name: str, file: Any, folder: Path) -> None:
    size = file.seek(0, os.SEEK_END)
    try:
        with zipfile.ZipFile(file) as packed:
            entries = packed.infolist()
            _check_packed(name, entries, size)
            named = {MANIFEST, *Manifest.from_bytes(packed.read(MANIFEST)).names}
            for entry in entries:
                if entry.filename not in named:
                    raise ModelError(f"{name}: the manifest does not name {entry.filename[:80]!r}")
                with packed.open(entry) as stored, (folder / entry.filename).open("xb") as target:
                    shutil.copyfileobj(stored, target, 1 << 20)
    except _DAMAGE as error:
        raise ModelError(f"{name}: not a model in a single file, or damaged: {error}") from None


def _check_packed(name: str, entries: list[zipfile.ZipInfo], size: int) -> None:
    """Reject an archive that `write_model` cannot have created."""
    for entry in entries:
        file = entry.filename
        if PurePath(file).name != file or "\\" in file or file[:1] == "." or not is_own(file):
            raise ModelError(f"{name}: {file[:80]!r} is not a file of a model")
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise ModelError(f"{name}: {file!r} is compressed; model files are stored uncompressed")
    if not any(entry.filename == MANIFEST for entry in entries):
        raise ModelError(f"{name} is not a dismec model: no {MANIFEST} in it")
    if len({entry.filename for entry in entries}) < len(entries):
        raise ModelError(f"{name}: two files have the same name")
    if sum(entry.file_size for entry in entries) > size:
        raise ModelError(f"{name}: its files would be larger than the archive")
