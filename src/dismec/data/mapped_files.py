"""Files mapped into memory, and whether they have changed since.

If another process truncates a mapped file, reading it ends the process with SIGBUS. A server
therefore watches the files of its model: missing pages read as zeros, and after each request the
server checks whether a file was truncated or written to in the meantime. dismec itself never does
either: it writes files under temporary names and renames them.
"""

from __future__ import annotations

import atexit
import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

__all__ = ["MappedFile", "WatchedFiles", "map_file", "watching"]


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
