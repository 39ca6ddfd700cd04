"""A file here → the same file on a worker that does not see it, piece by piece."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dismec.cluster.connection import Cluster, private_directory
from dismec.cluster.task import Task

__all__ = ["Sender", "arrived", "discard_parcels", "receive"]

_PIECE = 8_000_000  # bytes in a task; Dask warns above 10 MB
_MOST_FILES = 8  # files that are sent at a time: a piece of each is in the scheduler's memory

_arriving: set[Path] = set()  # on a worker: files of which pieces have come


class Sender:
    """Sends files to workers, a few at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self.token = secrets.token_hex(8)  # for `discard_parcels`
        self.n_bytes = 0  # sent so far
        self._cluster = cluster
        self._sending = 0

    def send(
        self, worker: str, path: Path, adopt: Callable[..., Any], *args: Any
    ) -> Generator[Task | None, Any, Any]:
        """Steps that bring a file to a worker and call ``adopt(parcel, *args)`` there.

        `adopt` gets the file from `arrived`, checks it, and keeps it or raises; what it returns is
        the generator's value. However the generator ends, its file is closed and its place free.
        """
        while self._sending >= _MOST_FILES:
            yield None
        self._sending += 1
        try:
            parcel = f"{self.token}-{secrets.token_hex(8)}"
            with path.open("rb") as file:
                while piece := file.read(_PIECE):
                    self.n_bytes += len(piece)
                    offset = file.tell() - len(piece)
                    yield self._cluster.submit(worker, receive, parcel, offset, piece)
            return (yield self._cluster.submit(worker, adopt, parcel, *args))
        finally:
            self._sending -= 1


def receive(parcel: str, offset: int, piece: bytes) -> None:
    """On a worker: take in a piece of a file; pieces may come in any order.

    If there is no room for it, nothing of the file stays. An ``OSError`` has its ``filename``.
    """
    path = _file(parcel)
    _arriving.add(path)
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
    """On a worker: the file whose pieces were received; afterwards it is no longer there.

    To be kept it may be mapped, or moved within the workers' scratch directory. Nothing has been
    checked: it may be damaged, cut off or, if no piece has come, missing.
    """
    path = _file(parcel)
    try:
        yield path
    finally:
        _arriving.discard(path)
        path.unlink(missing_ok=True)


def discard_parcels(token: str) -> None:
    """On a worker: remove what a sender has begun to send and will not finish."""
    for path in list(_arriving):
        if path.name.startswith(f"dismec-{token}-"):
            _arriving.discard(path)
            path.unlink(missing_ok=True)


def _file(parcel: str) -> Path:
    # Dask removes the directory of a worker that has died.
    return private_directory() / f"dismec-{parcel}.part"
