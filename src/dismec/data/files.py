"""Files that appear under their name only when they are complete, and files that are mapped."""

from __future__ import annotations

import atexit
import errno
import glob
import mmap
import os
import secrets
import stat
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from dismec.errors import DataError

StrPath: TypeAlias = str | os.PathLike[str]


def read_bytes(path: StrPath) -> bytes:
    """Read a file; raise `DataError` if that is not possible."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


def regular_size(path: Path) -> int:
    """Return the size of a file; raise ``OSError`` for a device or a pipe, which may never end."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return found.st_size


def decode_utf8(path: StrPath, content: bytes) -> str:
    """Decode the content of a file; the `DataError` names the first line that is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        raise DataError(f"{path}:{line}: not UTF-8") from None


@contextmanager
def whole_file(path: StrPath, *, follow: bool = True) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name only when it is complete.

    It is written under a temporary name in the same directory, flushed to disk and renamed. If the
    body raises, the temporary file is removed and an existing file at ``path`` stays as it was. A
    link is followed; a device or a pipe cannot be replaced and is written to directly. If `follow`
    is false, whatever is at ``path`` is replaced, and the target of a link is left alone. An
    ``OSError`` has ``path`` as its ``filename``.
    """
    path = Path(path)
    with naming(path):
        if path.is_dir() and (follow or not path.is_symlink()):
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        if follow and path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
            return
        target = Path(os.path.realpath(path)) if follow and path.is_symlink() else path
        stem = f".{target.name[:40]}."
        temporary = target.with_name(f"{stem}{secrets.token_hex(6)}.tmp")
        for left in target.parent.glob(f"{glob.escape(stem)}{'?' * 12}.tmp") if follow else ():
            with suppress(OSError):
                if left.stat().st_mtime < time.time() - 7 * 86400:  # its writer was killed
                    left.unlink()
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(target.parent)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give errors of temporary and open files the name of the file they are for."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def sync_directory(directory: Path) -> None:
    """Flush renames and links to disk, on systems that can open a directory."""
    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class MappedFile(mmap.mmap):
    """A file mapped for reading, which can be watched."""

    name = ""
    _handle = -1
    _state = (0, 0)
    _watch: Any = None

    def watch(self, handle: int, name: str) -> None:
        """Make memory that can no longer be read return zeros, and let `damage` report it."""
        from dismec.cpu import kernels

        self.name = name
        self._handle = os.dup(handle)
        self._state = _state(self._handle)
        self._watch = kernels.Watch(np.frombuffer(self, np.uint8))
        _watched.add(self)

    def unwatch(self) -> None:
        """Stop watching, if it is watched."""
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
            os.close(self._handle)

    @property
    def damage(self) -> str | None:
        """Description of a change of the watched file since it was mapped, or None.

        If it is None, everything read before the check is what the file contained when it was
        mapped.
        """
        if self._watch is None:
            return None
        size, _ = state = _state(self._handle)
        if self._watch.lost or size < len(self):
            return f"{self.name} was cut off while the model was in use"
        if state != self._state:
            return f"{self.name} was written to while the model was in use"
        return None

    def __del__(self) -> None:
        self.unwatch()


_watched: weakref.WeakSet[MappedFile] = weakref.WeakSet()


@atexit.register
def _unwatch_all() -> None:
    """Release native objects before the interpreter ends: it would report them as leaks."""
    for file in list(_watched):
        file.unwatch()


class WatchedFiles:
    """Mapped files that are watched together while something else keeps them mapped."""

    def __init__(self) -> None:
        self._files: list[weakref.ref[MappedFile]] = []

    def add(self, file: MappedFile) -> None:
        """Watch one more file; other threads may read `damage` at the same time."""
        self._files.append(weakref.ref(file))

    @property
    def damage(self) -> str | None:
        """The first `MappedFile.damage` found, or None."""
        files = (reference() for reference in self._files)
        return next((found for file in files if file is not None and (found := file.damage)), None)


_files: ContextVar[WatchedFiles | None] = ContextVar("_files", default=None)


def map_file(handle: int, name: str) -> MappedFile:
    """Map an open file, which must not be empty; within `watching` it is watched."""
    mapped = MappedFile(handle, 0, access=mmap.ACCESS_READ)
    watched = _files.get()
    if watched is not None:
        mapped.watch(handle, name)
        watched.add(mapped)
    return mapped


@contextmanager
def watching() -> Iterator[WatchedFiles]:
    """Watch the files that are mapped within the context.

    The caller must check their `damage` whenever something was computed from them. A thread started
    within the context takes part if it runs in a copy of the context.
    """
    files = WatchedFiles()
    token = _files.set(files)
    try:
        yield files
    finally:
        _files.reset(token)


def _state(handle: int) -> tuple[int, int]:
    """Return what changes when a file is written to; renaming or changing permissions does not."""
    found = os.fstat(handle)
    return found.st_size, found.st_mtime_ns
