"""Files mapped into memory, and whether they are still what they were when they were mapped.

A mapped file that somebody else cuts off ends the process that reads it, by SIGBUS. A server
watches the files of its model instead: what is gone reads as zeros, and the server asks after each
request whether a file was cut off or written to meanwhile. dismec itself never does either: its
files are written under temporary names and renamed.
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
    """A file mapped for reading, which may be watched."""

    name = ""
    _handle = -1
    _state = (0, 0)
    _watch: Any = None

    def watch(self, handle: int, name: str) -> None:
        """Have memory that can no longer be read become zeros, and `damage` tell of it."""
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
        """What has happened to a watched file since it was mapped, or None.

        What was read before this was asked is what the file held when it was mapped, if it is None.
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
    """Release native objects while the interpreter still can: it complains of those it cannot."""
    for file in list(_watched):
        file.unwatch()


class WatchedFiles:
    """The mapped files that are watched together, as long as somebody else keeps them mapped."""

    def __init__(self) -> None:
        self._files: list[weakref.ref[MappedFile]] = []

    def add(self, file: MappedFile) -> None:
        """Watch one more; others may ask for the damage meanwhile."""
        self._files.append(weakref.ref(file))

    @property
    def damage(self) -> str | None:
        """The first `MappedFile.damage` that there is, or None."""
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
    """Watch the files that are mapped meanwhile.

    Whoever does must ask for their `damage` whenever something was computed from them. A thread
    that is started meanwhile takes part if it runs in a copy of this context.
    """
    files = WatchedFiles()
    token = _files.set(files)
    try:
        yield files
    finally:
        _files.reset(token)


def _state(handle: int) -> tuple[int, int]:
    """What changes when a file is written to; a new name or other rights change neither."""
    found = os.fstat(handle)
    return found.st_size, found.st_mtime_ns
