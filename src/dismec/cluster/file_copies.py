"""A file of the client or of a worker → the same file on other workers, once per machine.

A worker reads a file at its path if it can, or else from the copy of its machine. If there is none,
it fetches one from `home`, a worker that has the file. If it knows of none, it raises `NeedsFile`,
and the client sends the file to that worker (`send`). A copy is removed when the object that owns
it is released on the worker, as by the end of the client.
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
from dismec.errors import ClusterError, DismecError
from dismec.model.directory import BusyError, locked

_PIECE = 8_000_000  # bytes per message; Dask warns above 10 MB
_PIECE_SECONDS = 60.0  # after which a worker that does not take a piece counts as gone

T = TypeVar("T")


class FileSpec(NamedTuple):
    """A file that workers need."""

    path: str  # on the client, or on the worker that has it
    size: int
    digest: str  # identifies the content


class NeedsFile(ClusterError):  # noqa: N818  named after the need
    """A worker cannot read a file, and cannot fetch it from `home`."""

    def __init__(self, worker: str, home: str | None) -> None:
        super().__init__(f"worker {worker} cannot read the file")
        self.args = self.worker, self.home = worker, home


class LocalCopy:
    """A copy of a file on a worker, in a folder of its own that is removed with this object."""

    def __init__(self, digest: str) -> None:
        self.path = _copy_path(digest)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        weakref.finalize(self, rmtree, self.path.parent, ignore_errors=True)

    def __sizeof__(self) -> int:
        return 1 << 26  # for Dask: it should stay on its worker


def _copy_path(digest: str, worker: Any = None) -> Path:
    """Return where the copy of this machine is."""
    return scratch_directory(worker) / f"dismec-{digest[:16]}" / "copy"


def open_file(
    file: FileSpec, load: Callable[[Path], T], home: str | None
) -> tuple[T, LocalCopy | None]:
    """On a worker: return what `load` returns for a file, and its copy if this call made it.

    `load` checks the content, and raises if it is not that of the file. Raises `NeedsFile` if this
    worker cannot read the file and cannot fetch it, and `ClusterError` if the disk is full.
    """
    path = Path(file.path)
    with suppress(OSError, DismecError):
        if path.stat().st_size == file.size:
            return load(path), None
    copy = _copy_path(file.digest)
    with suppress(OSError):
        if copy.stat().st_size == file.size:
            return load(copy), None
    if home is None:
        raise NeedsFile(this_worker(), None)
    copy.parent.mkdir(parents=True, exist_ok=True)
    with _only_process(copy.parent):
        if copy.exists():
            return load(copy), None
        part = copy.with_suffix(".part")
        with report_full_disk(part), part.open("wb") as target:
            for offset in range(0, file.size, _PIECE):
                target.write(_fetch(file, offset, home))
        part.replace(copy)
        return load(copy), LocalCopy(file.digest)


def send(cluster: Cluster, file: FileSpec, worker: str) -> Any:
    """Send a file of this machine to a worker, which keeps it as long as the result is kept.

    Returns None if the worker does not take it.
    """
    where = {"workers": [worker], "allow_other_workers": False, "pure": False, "priority": 1}
    try:
        kept = cluster.client.submit(LocalCopy, file.digest, **where)
        with Path(file.path).open("rb") as source:
            while piece := source.read(_PIECE):
                offset = source.tell() - len(piece)
                written = cluster.client.submit(_write, kept, offset, piece, **where)
                written.result(timeout=_PIECE_SECONDS)
        cluster.client.submit(_complete, kept, **where).result(timeout=_PIECE_SECONDS)
    except TimeoutError:
        return None
    return kept


def _write(copy: LocalCopy, offset: int, piece: bytes) -> None:
    part = copy.path.with_suffix(".part")
    with report_full_disk(part):
        handle = os.open(part, os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(handle, "wb") as target:
            target.seek(offset)
            target.write(piece)


def _complete(copy: LocalCopy) -> None:
    copy.path.with_suffix(".part").replace(copy.path)


def _fetch(file: FileSpec, offset: int, home: str) -> bytes:
    """Return a piece of a file that another worker has.

    That worker answers outside of its task threads, which may be busy for long.
    """
    try:
        return bytes(worker_client().run(_read, file, offset, workers=[home])[home])
    except (OSError, LookupError, ValueError, RuntimeError):
        raise NeedsFile(this_worker(), home) from None


def _read(file: FileSpec, offset: int, dask_worker: Any = None) -> bytes:
    for path in (_copy_path(file.digest, dask_worker), Path(file.path)):
        with suppress(FileNotFoundError), path.open("rb") as source:
            source.seek(offset)
            return source.read(_PIECE)
    raise FileNotFoundError(file.path)


@contextmanager
def _only_process(folder: Path) -> Iterator[None]:
    """Wait until no other process of this machine fills the folder."""
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(folder))
                break
            except BusyError:
                time.sleep(0.1)
        yield


@contextmanager
def report_full_disk(path: Path) -> Iterator[None]:
    """On a worker: name worker and path in the error of a full disk, and remove a partial file."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        with suppress(OSError):
            path.unlink()
        raise ClusterError(
            f"worker {this_worker()}: {error.filename or path}: {error.strerror}"
        ) from None
