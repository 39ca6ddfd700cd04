"""The model directory: made, locked, committed to, tidied.

``manifest.json`` says what the model is and names the files that belong to it. A file is written
under a temporary name, flushed and renamed before the manifest names it, so that at any moment the
directory is a model, finished or not, whose every named file is whole.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree

from dismec.data.files import whole_file
from dismec.errors import ModelError
from dismec.model.format import DATA, EDIT, FORMAT, LOCK, MANIFEST, MOST_MANIFEST_BYTES, RUN, is_own
from dismec.model.manifest import Manifest

__all__ = [
    "commit",
    "data_file",
    "discard",
    "edit_folder",
    "holds_model",
    "locked",
    "make_directory",
    "make_run_folder",
    "read_manifest",
    "tidy",
]


def make_directory(directory: Path) -> None:
    """Make a directory for a model, unless something else is in it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        others = [path.name for path in directory.iterdir() if not is_own(path.name)]
    except OSError as error:
        raise ModelError(f"{directory}: cannot be a model directory: {error.strerror}") from None
    if _is_foreign(directory / MANIFEST):
        raise ModelError(f"{directory}: its {MANIFEST} is not that of a model")
    if others and not holds_model(directory):
        raise ModelError(f"{directory} is not a model and not empty: {min(others)!r} is in it")


def _is_foreign(manifest: Path) -> bool:
    """Whether a file is sound JSON of something else; a damaged manifest may be ours."""
    try:
        content = json.loads(manifest.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return not isinstance(content, dict) or content.get("format") != FORMAT


def holds_model(directory: Path) -> bool:
    """Whether there is a manifest."""
    return (directory / MANIFEST).exists()


def commit(directory: Path, manifest: Manifest) -> None:
    """Make the directory the model that `manifest` says."""
    with whole_file(directory / MANIFEST) as file:
        file.write(manifest.to_json().encode())


def discard(directory: Path, keep: Path | None = None) -> None:
    """Remove a model, and nothing else, from a directory; the manifest goes first."""
    (directory / MANIFEST).unlink(missing_ok=True)
    for path in list(directory.iterdir()):
        if is_own(path.name) and path.name != LOCK and path != keep:
            _remove(path)


def tidy(directory: Path, manifest: Manifest) -> None:
    """Remove what killed writers have left: files of the model that its manifest does not name."""
    named = {MANIFEST, LOCK, *(receipt.file for receipt in manifest.files)}
    named.update(part.file for part in manifest.parts.values())
    if not manifest.complete:
        named.add(data_file(directory, manifest.data).name)
    for path in list(directory.iterdir()):
        if is_own(path.name) and path.name not in named:
            _remove(path)


def _remove(path: Path) -> None:
    if path.name.startswith(RUN) or path.name == EDIT:
        rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other trainings out of a directory while this one writes to it."""
    path = directory / LOCK
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with suppress(ImportError):
            import fcntl

            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ModelError(f"{directory}: another training is writing to it") from None
            except OSError:
                pass  # a file system without locks
        yield
    finally:
        os.close(handle)


def data_file(directory: Path, fingerprint: str) -> Path:
    """Where a training on a cluster puts its data for the workers, until it is finished."""
    return directory / f"{DATA}{fingerprint[:16]}.xmc"


def make_run_folder(directory: Path) -> Path:
    """A new folder for workers to write the blocks of one run to; `tidy` removes it."""
    folder = directory / f"{RUN}{secrets.token_hex(8)}"
    folder.mkdir()
    return folder


def edit_folder(directory: Path) -> Path:
    """Where labels of a finished model are trained until they become part of it."""
    return directory / EDIT


def read_manifest(directory: Path) -> Manifest:
    """Read and check a manifest.

    Raises
    ------
    ModelError
        If there is no model, it is of a newer format, or the manifest contradicts itself.
    """
    path = directory / MANIFEST
    try:
        if path.stat().st_size > MOST_MANIFEST_BYTES:
            raise ModelError(f"{path}: larger than a manifest can be")
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        reason = "no such directory" if not directory.exists() else "no manifest.json in it"
        raise ModelError(f"{directory} is not a dismec model: {reason}") from None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: not sound JSON; the file is damaged") from None
    try:
        return Manifest.from_json(content)
    except ValueError as error:
        raise ModelError(f"{path}: {error}") from None
