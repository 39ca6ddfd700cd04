"""A file here, or on a worker → the same file on a worker that cannot read it, in pieces."""

from __future__ import annotations

import operator
import os
import pickle
import secrets
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dismec.cluster.connection import Cluster, private_directory
from dismec.cluster.task import Receiver, Task, packed

__all__ = ["Sender", "arrived", "discard_parcels", "hand_over", "parcel_file", "receive"]

_PIECE = 8_000_000  # bytes per task; Dask warns above 10 MB
_MOST_FILES = 8  # files sent at a time: a piece of each is in the scheduler's memory

_arriving: set[Path] = set()  # on a worker: files with pieces received


class Sender:
    """Sends files to workers, a few at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self.token = secrets.token_hex(8)  # for `discard_parcels`
        self.n_bytes = 0  # sent so far
        self._cluster = cluster
        self._sending = 0

    def parcel(self) -> str:
        """Return a name for a file on its way to a worker."""
        return f"{self.token}-{secrets.token_hex(8)}"

    def send(
        self, worker: str, path: Path, adopt: Callable[..., Any], *args: Any
    ) -> Generator[Task | None, Any, Any]:
        """Yield steps that send a file to a worker and call ``adopt(parcel, *args)`` there.

        `adopt` gets the file from `arrived`, checks it, and keeps it or raises; its result is the
        generator's value. However the generator ends, its file is closed and its slot released.
        """
        while self._sending >= _MOST_FILES:
            yield None
        self._sending += 1
        try:
            parcel = self.parcel()
            with path.open("rb") as file:
                while piece := file.read(_PIECE):
                    self.n_bytes += len(piece)
                    offset = file.tell() - len(piece)
                    yield self._cluster.submit(worker, receive, parcel, offset, piece)
            return (yield self._cluster.submit(worker, adopt, parcel, *args))
        finally:
            self._sending -= 1


def hand_over(
    cluster: Cluster, holder: tuple[str, str], worker: str, parcel: str, size: int
) -> Generator[Task | None, Any, None]:
    """Yield steps that send a file of `size` bytes from one worker to another as a parcel.

    `holder` is the worker that can read the file, and its path there. The data do not pass through
    the client.
    """
    source, path = holder
    for offset in range(0, size, _PIECE):
        call = packed(_read_piece, (path, offset))
        into = packed(Receiver, (receive, (parcel, offset)))

        def ask(call: bytes = call, into: bytes = into) -> Any:
            piece = cluster.ask(source, _read_piece.__name__, pickle.loads, call)
            receiver = cluster.ask(worker, Receiver.__name__, pickle.loads, into)
            return cluster.ask(worker, receive.__name__, operator.call, receiver, piece)

        yield cluster.watch(worker, ask, source)


def receive(parcel: str, offset: int, piece: bytes) -> None:
    """On a worker: store a piece of a file; pieces may arrive in any order.

    If the disk is full, the partial file is removed. An ``OSError`` has its ``filename``.
    """
    path = parcel_file(parcel)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.seek(offset)
            file.write(piece)
    except OSError as error:
        _arriving.discard(path)
        path.unlink(missing_ok=True)
        error.filename = str(path)
        raise


@contextmanager
def arrived(parcel: str) -> Iterator[Path]:
    """On a worker: yield the file whose pieces were received, and remove it afterwards.

    To keep it, map it, or move it within the workers' scratch directory. Nothing has been checked:
    it may be damaged, truncated or, if no piece has arrived, missing.
    """
    path = parcel_file(parcel)
    try:
        yield path
    finally:
        _arriving.discard(path)
        path.unlink(missing_ok=True)


def discard_parcels(token: str) -> None:
    """On a worker: remove the files that a sender has started but will not finish."""
    for path in list(_arriving):
        if path.name.startswith(f"dismec-{token}-"):
            _arriving.discard(path)
            path.unlink(missing_ok=True)


def parcel_file(parcel: str) -> Path:
    """On a worker: return where a file is assembled, until it is adopted or discarded."""
    # Dask removes the directory of a worker that has died.
    path = private_directory() / f"dismec-{parcel}.part"
    _arriving.add(path)
    return path


def _read_piece(path: str, offset: int) -> bytes:
    """On a worker: return a piece of a file."""
    with Path(path).open("rb") as file:
        file.seek(offset)
        return file.read(_PIECE)
