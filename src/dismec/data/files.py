"""Files that appear under their name only when they are complete."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

__all__ = ["StrPath", "sync_directory", "whole_file"]

StrPath: TypeAlias = str | os.PathLike[str]


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
    try:
        if path.is_dir() and (follow or not path.is_symlink()):
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        if follow and path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
            return
        target = Path(os.path.realpath(path)) if follow and path.is_symlink() else path
        temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(6)}.tmp")
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
