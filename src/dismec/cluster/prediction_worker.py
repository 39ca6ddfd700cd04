"""What prediction runs on the workers of a cluster: functions `cluster.prediction` calls there.

A worker process holds some shards of a model by memory map: the model's own files if it sees them,
else copies that it was sent. They belong to a session, which is one client's use of one model. A
session ends when its client says so, or has not been heard of for a while.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

from dismec.cluster.connection import listen, memory_limit
from dismec.cluster.shipping import arrived, discard_parcels
from dismec.data.matrices import Rows
from dismec.errors import ModelError, WorkerLost
from dismec.model import weight_files
from dismec.model.manifest import ShardReceipt
from dismec.model.scoring import Labels, Scores, best_labels
from dismec.model.shards import Shard

__all__ = ["LEASE_SECONDS", "ShardFile", "adopt_shard", "hear", "hold", "join", "release", "score"]

LEASE_SECONDS = 600.0  # that a session lasts without a word from its client
_EXPIRY_SECONDS = 10.0


class ShardFile(NamedTuple):
    """A shard: where the client has it, and what it must be."""

    path: str  # on the client's machine at least
    receipt: ShardReceipt  # what the model's manifest says of it
    shape: tuple[int, int]  # labels and features of the model


@dataclass
class _Session:
    used: float
    shards: dict[int, Shard] = field(default_factory=dict)


_sessions: dict[str, _Session] = {}
_mapped: WeakValueDictionary[str, Shard] = WeakValueDictionary()  # by SHA-256, of all sessions
_expiry: threading.Thread | None = None  # while there are sessions
_sessions_lock = threading.Lock()


def join(token: str) -> int | None:
    """Begin a session, or go on with it; returns how much memory this worker may use, if known."""
    global _expiry
    with _sessions_lock:
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
    """Map a shard; False if this process neither has it nor sees its file, as it must be.

    All of it is read and compared with its SHA-256, which also brings it into memory.
    """
    session = _session(token)
    shard = _mapped.get(file.receipt.sha256)
    if shard is None:
        try:
            shard = _map_shard(Path(file.path), file)
        except ModelError:
            return False
    session.shards[number] = shard
    return True


def adopt_shard(parcel: str, token: str, number: int, file: ShardFile) -> None:
    """Map a shard that has been sent here; its file has no name any more then."""
    with arrived(parcel) as path:
        _session(token).shards[number] = _map_shard(path, file)


def score(token: str, numbers: tuple[int, ...], rows: Rows, places: int) -> tuple[Labels, Scores]:
    """The best labels of transformed rows among those of some shards, in at most `places` places.

    If this process does not hold them, it is not the one that was given them: `WorkerLost`.
    """
    session = _session(token)
    try:
        shards = [session.shards[number] for number in numbers]
    except KeyError:
        raise WorkerLost("this worker has been restarted") from None
    places = min(places, sum(len(shard.labels) for shard in shards))
    return best_labels([shard.native for shard in shards], rows, places)


def release(token: str) -> None:
    """End a session, which its client's `Sender` has given its token."""
    with _sessions_lock:
        _sessions.pop(token, None)
    discard_parcels(token)


def _map_shard(path: Path, file: ShardFile) -> Shard:
    n_labels, n_features = file.shape
    shard = weight_files.read_shard(path, file.receipt, n_labels, n_features)
    shard.native  # noqa: B018  so that the first rows need not wait for it
    _mapped[file.receipt.sha256] = shard
    return shard


def _session(token: str) -> _Session:
    session = _sessions.get(token)
    if session is None:
        raise WorkerLost("this worker has been restarted")
    session.used = time.monotonic()
    return session


def _expire() -> None:
    """End sessions whose clients have died, until there is none left."""
    global _expiry
    while True:
        time.sleep(_EXPIRY_SECONDS)
        oldest = time.monotonic() - LEASE_SECONDS
        for token, session in list(_sessions.items()):
            if session.used < oldest:
                release(token)
        with _sessions_lock:
            if not _sessions:
                _expiry = None
                return
