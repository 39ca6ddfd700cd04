"""A file of the client or of a worker → the same file on other workers, once per machine.

A worker reads a file at the client's path if it can, or else from the copy of its machine. If there
is none, it fetches one from a worker that has the file. If it does not know of one, it raises
`NeedsFile`, and the client sends the file to that worker (`send`). A copy is removed when the
object that owns it is released on the worker, as by the end of the client.
"""

from __future__ import annotations

import errno
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple, TypeVar

from dismec.cluster.client import Cluster, scratch_directory, this_worker, worker_client
from dismec.errors import ClusterError, DismecError, ModelError
from dismec.model.directory import locked

__all__ = [
    "FileSpec",
    "Home",
    "LocalCopy",
    "NeedsFile",
    "copy_path",
    "open_file",
    "report_full_disk",
    "send",
]

_PIECE = 8_000_000  # bytes per message; Dask warns above 10 MB
_PIECE_SECONDS = 60.0  # after which a worker that does not take a piece counts as gone
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

T = TypeVar("T")


class FileSpec(NamedTuple):
    """A file that workers need: where the client has it, and its content."""

    path: str
    size: int
    digest: str  # identifies the content


class Home(NamedTuple):
    """A worker that has a file, and its path there."""

    worker: str
    path: str


class NeedsFile(ClusterError):  # noqa: N818  named after the need
    """A worker cannot read a file, and cannot fetch it from `home`."""

    def __init__(self, worker: str, home: Home | None) -> None:
        super().__init__(f"worker {worker} cannot read the file")
        self.args = worker, home
        self.worker, self.home = worker, home


class LocalCopy:
    """A copy of a file on a worker, in a folder that is removed with this object."""

    def __init__(self, path: str) -> None:
        self.path = path
        weakref.finalize(self, rmtree, Path(path).parent, ignore_errors=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (self.path,)  # what moves to another worker is only the name


def copy_path(digest: str) -> Path:
    """On a worker: return where the copy of its machine is, in a folder that exists."""
    folder = scratch_directory() / f"dismec-{digest[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "copy"


def open_file(
    file: FileSpec, load: Callable[[Path], T], home: Home | None = None
) -> tuple[T, LocalCopy | None]:
    """On a worker: return what `load` returns for a file, and its copy if this call made it.

    `load` checks the content, and raises if it is not that of the file.

    Raises
    ------
    NeedsFile
        If this worker cannot read the file, and cannot fetch it.
    ClusterError
        If the disk is full.
    """
    for path in (Path(file.path), scratch_directory() / f"dismec-{file.digest[:16]}" / "copy"):
        with suppress(OSError, DismecError):
            if path.stat().st_size == file.size:
                return load(path), None
    if home is None:
        raise NeedsFile(this_worker(), None)
    copy = copy_path(file.digest)
    with _only_process(copy.parent):
        if copy.exists() and copy.stat().st_size == file.size:
            return load(copy), None
        part = copy.with_suffix(".part")
        with report_full_disk(part), part.open("wb") as target:
            for offset in range(0, file.size, _PIECE):
                target.write(_fetch(home, offset))
        loaded = load(part)
        part.replace(copy)
        return loaded, LocalCopy(str(copy))


def send(cluster: Cluster, file: FileSpec, worker: str) -> tuple[Home, Any] | None:
    """Send a file of this machine to a worker; return its home, or None if the worker is lost.

    The worker keeps the file as long as the caller keeps the second value.
    """
    where = {"workers": [worker], "allow_other_workers": False, "pure": False, "priority": 1}
    try:
        with Path(file.path).open("rb") as source:
            while piece := source.read(_PIECE):
                offset = source.tell() - len(piece)
                written = cluster.client.submit(_write_piece, file, offset, piece, **where)
                written.result(timeout=_PIECE_SECONDS)
        kept = cluster.client.submit(_keep_copy, file, **where)
        path = cluster.client.submit(_path_of, kept, **where)
        return Home(worker, path.result(timeout=_PIECE_SECONDS)), kept
    except TimeoutError:
        return None


def _write_piece(file: FileSpec, offset: int, piece: bytes) -> None:
    """Store a piece of a file on this worker."""
    part = copy_path(file.digest).with_suffix(".part")
    with report_full_disk(part):
        handle = os.open(part, os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(handle, "wb") as target:
            target.seek(offset)
            target.write(piece)


def _keep_copy(file: FileSpec) -> LocalCopy:
    """Make the pieces on this worker the copy of its machine."""
    copy = copy_path(file.digest)
    copy.with_suffix(".part").replace(copy)
    return LocalCopy(str(copy))


def _path_of(copy: LocalCopy) -> str:
    return copy.path


def _fetch(home: Home, offset: int) -> bytes:
    """Return a piece of a file that another worker has.

    That worker answers outside of its task threads, which may be busy for long.
    """
    try:
        found = worker_client().run(_read_piece, home.path, offset, workers=[home.worker])
        return bytes(found[home.worker])
    except (OSError, LookupError, ValueError, RuntimeError):
        raise NeedsFile(this_worker(), home) from None


def _read_piece(path: str, offset: int) -> bytes:
    with Path(path).open("rb") as file:
        file.seek(offset)
        return file.read(_PIECE)


@contextmanager
def _only_process(folder: Path) -> Iterator[None]:
    """Wait until no other process of this machine fills the folder."""
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(folder))
                break
            except ModelError:
                time.sleep(0.1)
        yield


@contextmanager
def report_full_disk(path: Path) -> Iterator[None]:
    """On a worker: name worker and path in the error of a full disk, and remove a partial file."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        with suppress(OSError):
            path.unlink()
        raise ClusterError(
            f"worker {this_worker()}: {error.filename or path}: {error.strerror}; finished blocks "
            "are kept, and the same command resumes"
        ) from None
