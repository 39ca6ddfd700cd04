"""The model directory: creating, locking, committing to and cleaning it; its files of arrays.

``manifest.json`` describes the model and names its files; a journal names the blocks that have been
finished during training. Each file is written under a temporary name, flushed and renamed before it
is named, so at any moment the directory is a model, finished or not, whose named files are
complete.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy.typing as npt

from dismec.data.container import ContainerError, open_arrays, write_arrays
from dismec.data.counts import counted
from dismec.data.files import regular_size, sync_directory, whole_file
from dismec.errors import ModelError, located
from dismec.model.manifest import (
    DATA,
    EDIT,
    FORMAT,
    LOCK,
    MANIFEST,
    NEW,
    RUN,
    STAGE,
    Manifest,
    is_own,
    read_journal,
)

_MOST_MANIFEST_BYTES = 1 << 30
_ARRAYS_VERSION = "3"  # of the arrays, in the metadata of their files


def make_directory(directory: Path) -> None:
    """Create a directory for a model; raise `ModelError` if it contains something else."""
    with _as_model_errors(directory):
        new = [path for path in (directory, *directory.parents) if not path.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        for path in new:
            sync_directory(path.parent)
    check_place(directory)


def check_place(directory: Path) -> None:
    """Raise `ModelError` if a directory cannot hold a model; nothing is created."""
    if not directory.exists():
        nearest = next(path for path in directory.absolute().parents if path.exists())
        with _as_model_errors(directory):
            if not nearest.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not os.access(nearest, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return
    with _as_model_errors(directory):
        others = [path.name for path in directory.iterdir() if not is_own(path.name)]
    _refuse_links(directory)
    if _is_foreign(directory / MANIFEST):
        raise ModelError(f"{directory}: its {MANIFEST} does not belong to a model")
    if others and not holds_model(directory):
        raise ModelError(f"{directory} is not a model and not empty: it contains {min(others)!r}")


@contextmanager
def _as_model_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(f"{directory}: cannot be a model directory: {error.strerror}") from None


def _is_foreign(manifest: Path) -> bool:
    """Return whether a file is valid JSON of something else; a damaged manifest may be ours."""
    try:
        regular_size(manifest)
        content = json.loads(manifest.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return not isinstance(content, dict) or content.get("format") != FORMAT


def holds_model(directory: Path) -> bool:
    """Return whether a directory has a manifest."""
    return (directory / MANIFEST).exists()


def commit(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, which makes the directory the model that it describes."""
    with whole_file(directory / MANIFEST, follow=False) as file:
        file.write(manifest.to_json().encode())


def discard(directory: Path, *keep: Path) -> None:
    """Remove a model, and nothing else, from a directory; the manifest is removed first."""
    (directory / MANIFEST).unlink(missing_ok=True)
    for path in list(directory.iterdir()):
        if is_own(path.name) and path.name != LOCK and path not in keep:
            _remove(path)


def tidy(directory: Path, manifest: Manifest) -> None:
    """Remove model files that the manifest does not name: killed processes leave them behind."""
    named = {MANIFEST, LOCK, *manifest.names}
    if not manifest.complete:
        named.add(data_file(directory, manifest.data).name)
    for path in list(directory.iterdir()):
        if not manifest.complete and path.name.startswith(STAGE):
            continue  # needed to resume the training
        if is_own(path.name) and path.name not in named and path.name != NEW:
            _remove(path)


def _remove(path: Path) -> None:
    if path.name.startswith((RUN, STAGE)) or path.name in (EDIT, NEW):
        rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _refuse_links(directory: Path) -> None:
    """Raise `ModelError` if what would be written to inside a directory is a link to elsewhere."""
    for path in directory.glob(".*"):
        if is_own(path.name) and path.is_symlink():
            raise ModelError(f"{path}: a link, which is not followed; remove it")


class BusyError(ModelError):
    """Another process is writing to a model directory."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other processes from writing to a directory."""
    _refuse_links(directory)
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    handle = os.open(directory / LOCK, flags, 0o644)
    try:
        try:
            _lock(handle)
        except (BlockingIOError, PermissionError):
            raise BusyError(f"{directory}: another process is writing to it") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    """Lock a file until it is closed.

    Raise ``BlockingIOError``, or ``PermissionError`` on Windows, if another process has locked it.
    """
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def data_file(directory: Path, fingerprint: str) -> Path:
    """Return where training on a cluster stores data for the workers until it is finished."""
    return directory / f"{DATA}{fingerprint[:16]}.xmc"


def make_run_folder(directory: Path) -> Path:
    """Create a folder to which workers write the blocks of one run; `tidy` removes it."""
    folder = directory / f"{RUN}{secrets.token_hex(8)}"
    folder.mkdir()
    return folder


def edit_folder(directory: Path) -> Path:
    """Return where labels are trained before they become part of a finished model."""
    return directory / EDIT


def read_manifest(directory: Path) -> Manifest:
    """Read a manifest, including the blocks in its journal.

    Raise `ModelError` if there is none, or if it is of another format or contradicts itself or its
    journal.
    """
    manifest = _read_manifest(directory)
    while manifest.journal is not None:
        path = directory / manifest.journal
        try:
            return manifest.with_journal(read_journal(path))
        except FileNotFoundError:
            # The run may have ended, or another one started: then there is a new manifest.
            before, manifest = manifest, _read_manifest(directory)
            if manifest == before:
                raise ModelError(f"{path}: missing, though the manifest names it") from None
        except OSError as error:
            raise ModelError(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise ModelError(f"{path}: {error}") from None
    return manifest


def unfinished(directory: Path, manifest: Manifest | None = None) -> str:
    """Describe a training run that is not finished and may not have a manifest yet."""
    done = "no label is done yet"
    if manifest:
        done = f"{manifest.labels_done:,} of {counted(manifest.n_labels, 'label')}"
        for folder in sorted(directory.glob(f"{STAGE}*/{MANIFEST}")):
            with suppress(ModelError):
                stage = read_manifest(folder.parent)
                name = folder.parent.name.removeprefix(STAGE)
                done += f" ({name}: {stage.labels_done:,} of {stage.n_labels:,})"
    return f"unfinished training, {done}; run the same command again"


def _read_manifest(directory: Path) -> Manifest:
    path = directory / MANIFEST
    try:
        if regular_size(path) > _MOST_MANIFEST_BYTES:
            raise ModelError(f"{path}: too large for a manifest")
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if _is_started(directory):
            raise ModelError(f"{directory}: {unfinished(directory)}") from None
        reason = "no such directory" if not directory.exists() else "no manifest.json in it"
        raise ModelError(f"{directory} is not a dismec model: {reason}") from None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    with located(path, ModelError, ValueError):
        return Manifest.from_bytes(content)


def _is_started(directory: Path) -> bool:
    """Return whether a directory without a manifest contains only files of a training run."""
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    return bool(names) and all(map(is_own, names))


def write_hashed(path: Path, arrays: Mapping[str, npt.NDArray[Any]], **metadata: str) -> str:
    """Write a file of arrays and return its SHA-256; the format is added to the metadata."""
    digest = hashlib.sha256()
    about = {"format": FORMAT, "version": _ARRAYS_VERSION, **metadata}
    write_arrays(path, arrays, about, digest, follow=False)
    return digest.hexdigest()


def open_checked(
    path: Path, sha256: str | None, size: int | None = None
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Return the arrays and metadata of a file; check its SHA-256 and size if they are given.

    Raise `ModelError` if the file is missing, truncated, altered or not a file of arrays.
    """
    try:
        found = regular_size(path)
        if size not in (None, found):
            raise ModelError(
                f"{path}: {found:,} bytes, but the manifest says {size:,}: cut off or altered"
            )
        if sha256 is not None and sha256_of(path) != sha256:
            raise ModelError(f"{path}: altered since it was written (SHA-256 differs)")
        return open_arrays(path)
    except FileNotFoundError:
        raise ModelError(f"{path}: missing, though the manifest names it") from None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    except ContainerError as error:
        raise ModelError(f"{path}: {error}") from None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
