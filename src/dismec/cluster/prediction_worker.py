"""What prediction runs on the workers of a cluster: functions that `cluster_predictor` calls there.

A worker process holds some shards of a model by memory map: the model's own files if it sees them,
else copies that it was sent. They belong to a session, which is one client's use of one model. A
session ends when its client says so, or has not been heard of for a while.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, NamedTuple
from weakref import WeakValueDictionary

from dismec.cluster.connection import listen, memory_limit, private_directory
from dismec.data.matrices import Rows
from dismec.errors import ModelError, WorkerLost
from dismec.model import weight_files
from dismec.model.manifest import ShardReceipt
from dismec.model.scoring import Labels, Scores, best_labels
from dismec.model.shards import Shard

__all__ = ["ShardFile", "hear", "hold", "join", "receive", "received", "release", "score"]

LEASE_SECONDS = 600.0  # that a session lasts without a word from its client
_LOOK_SECONDS = 10.0


class ShardFile(NamedTuple):
    """A shard: where the client has it, and what it must be.

    Attributes
    ----------
    path
        Its file, on the client's machine at least.
    receipt
        What the model's manifest says of it.
    shape
        Labels and features of the model.
    """

    path: str
    receipt: ShardReceipt
    shape: tuple[int, int]


@dataclass
class _Session:
    used: float
    shards: dict[int, Shard] = field(default_factory=dict)
    incoming: dict[int, IO[bytes]] = field(default_factory=dict)


_sessions: dict[str, _Session] = {}
_mapped: WeakValueDictionary[str, Shard] = WeakValueDictionary()  # by SHA-256, of all sessions
_expiry: threading.Thread | None = None  # while there are sessions
_lock = threading.Lock()


def join(token: str) -> int | None:
    """Begin a session, or go on with it; returns how much memory this worker may use, if known."""
    global _expiry
    with _lock:
        _sessions.setdefault(token, _Session(0.0)).used = time.monotonic()
        if _expiry is None:
            _expiry = threading.Thread(target=_expire, name="dismec-sessions", daemon=True)
            _expiry.start()
    listen()
    return memory_limit()


def hear(token: str) -> None:
    """Nothing: whoever calls this without the scheduler learns that it can."""
    _session(token)


def hold(token: str, number: int, file: ShardFile) -> bool:
    """Map a shard; False if this process has not got it and does not see its file, as it must be.

    All of it is read and compared with its SHA-256, which also brings it into memory.
    """
    session = _session(token)
    shard = _mapped.get(file.receipt.sha256)
    if shard is None:
        try:
            shard = _open(Path(file.path), file)
        except ModelError:
            return False
    session.shards[number] = shard
    return True


def receive(token: str, number: int, begin: int, piece: bytes) -> None:
    """Take in the next part of a shard's file, from byte `begin`."""
    session = _session(token)
    if begin == 0:
        # Dask removes the directory of a worker that has died.
        session.incoming[number] = NamedTemporaryFile(dir=private_directory())  # noqa: SIM115
    file = session.incoming[number]
    file.seek(begin)
    file.write(piece)


def received(token: str, number: int, file: ShardFile) -> None:
    """Map a shard that has been received; its file has no name any more then.

    Raises
    ------
    ModelError
        If it is not what the manifest says.
    """
    session = _session(token)
    with session.incoming.pop(number) as copy:
        copy.flush()
        session.shards[number] = _open(Path(copy.name), file)


def score(token: str, numbers: tuple[int, ...], rows: Rows, places: int) -> tuple[Labels, Scores]:
    """The best labels of transformed rows among those of some shards, in at most `places` places.

    Raises
    ------
    WorkerLost
        If this process does not hold them: it is not the one that was given them.
    """
    session = _session(token)
    try:
        shards = [session.shards[number] for number in numbers]
    except KeyError:
        raise WorkerLost("this worker has been started anew") from None
    places = min(places, sum(len(shard.labels) for shard in shards))
    return best_labels([shard.native for shard in shards], rows, places)


def release(token: str) -> None:
    """End a session."""
    with _lock:
        session = _sessions.pop(token, None)
    for file in session.incoming.values() if session else ():
        file.close()


def _open(path: Path, file: ShardFile) -> Shard:
    n_labels, n_features = file.shape
    shard = weight_files.read_shard(path, file.receipt, n_labels, n_features)
    shard.native  # noqa: B018  so that the first rows need not wait for it
    _mapped[file.receipt.sha256] = shard
    return shard


def _session(token: str) -> _Session:
    session = _sessions.get(token)
    if session is None:
        raise WorkerLost("this worker has been started anew")
    session.used = time.monotonic()
    return session


def _expire() -> None:
    """End sessions whose clients have died, until there is none left."""
    global _expiry
    while True:
        time.sleep(_LOOK_SECONDS)
        oldest = time.monotonic() - LEASE_SECONDS
        for token, session in list(_sessions.items()):
            if session.used < oldest:
                release(token)
        with _lock:
            if not _sessions:
                _expiry = None
                return
