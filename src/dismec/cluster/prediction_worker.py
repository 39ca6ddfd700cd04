"""What prediction runs on the workers of a cluster: functions `cluster.prediction` calls there.

A worker process holds some shards of a model by memory map: the model's own files if it sees them,
else copies that it was sent. They belong to a session, which is one client's use of one model. A
session ends when its client says so, or has not been heard of for a while. It keeps the orders and
the sets of labels that were last asked for, so that the client need not send them again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from dismec.cluster.connection import listen, memory_limit
from dismec.cluster.questions import LabelSet, Question, Rescaling
from dismec.cluster.shipping import arrived, discard_parcels
from dismec.data.matrices import Rows
from dismec.errors import ModelError, WorkerLost
from dismec.model import weight_files
from dismec.model.allowed import Allowed
from dismec.model.held_labels import HeldLabels
from dismec.model.manifest import ShardReceipt
from dismec.model.shards import Shard

__all__ = [
    "KEPT",
    "LEASE_SECONDS",
    "Asked",
    "Forgotten",
    "ShardFile",
    "adopt_shard",
    "answer",
    "hear",
    "hold",
    "join",
    "release",
]

KEPT = 32  # orders, and as many sets of labels, that a session keeps
LEASE_SECONDS = 600.0  # that a session lasts without a word from its client
_EXPIRY_SECONDS = 10.0

T = TypeVar("T")


class ShardFile(NamedTuple):
    """A shard: where the client has it, and what it must be."""

    path: str  # on the client's machine at least
    receipt: ShardReceipt  # what the model's manifest says of it
    shape: tuple[int, int]  # labels and features of the model

    def read(self, path: Path | None = None, *, check: bool = True) -> Shard:
        """The shard, memory-mapped, from here or from another path; as `read_shard`."""
        where = Path(self.path) if path is None else path
        return weight_files.read_shard(where, self.receipt, *self.shape, check=check)


class Asked(NamedTuple):
    """A question to some of a worker's shards.

    Orders and sets of labels have keys. What belongs to a key is there only if the client does not
    know that the worker has it.
    """

    question: Question
    numbers: tuple[int, ...]  # of the shards
    order: str | None = None  # None: by score
    rescalings: Mapping[int, Rescaling] = {}  # by the numbers of shards
    choice: str | None = None  # None: among all labels
    bits: npt.NDArray[np.uint8] | None = None  # of the choice


class Forgotten(Exception):  # noqa: N818  it says what has happened
    """The worker does not have an order or a set of labels any more: it has to be sent again."""


@dataclass
class _Session:
    used: float
    shards: dict[int, Shard] = field(default_factory=dict)
    n_labels: int = 0  # of the model
    # What was last asked for, the latest last.
    views: OrderedDict[str, dict[int, Shard]] = field(default_factory=OrderedDict)
    choices: OrderedDict[str, Allowed] = field(default_factory=OrderedDict)
    held: OrderedDict[tuple[int, ...], HeldLabels] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, number: int, shard: Shard, file: ShardFile) -> None:
        self.n_labels = file.shape[0]
        self.shards[number] = shard

    def in_order(self, asked: Asked) -> list[Any]:
        """The shards that are asked, as the kernels take them, in the order that is asked for."""
        if asked.order is None:
            return [self.shards[number].native for number in asked.numbers]
        with self.lock:
            views = _kept(self.views, asked.order, dict)
        for number, rescaling in asked.rescalings.items():
            views[number] = self.shards[number].rescaled(*rescaling)
        try:
            return [views[number].native for number in asked.numbers]
        except KeyError:
            raise Forgotten from None

    def allowed(self, asked: Asked) -> Allowed | None:
        """The labels that all rows may be given; None for all."""
        if asked.choice is None:
            return None

        def unpack() -> Allowed:
            if asked.bits is None:
                raise Forgotten
            return LabelSet.allowed(asked.bits, self.n_labels)

        with self.lock:
            return _kept(self.choices, asked.choice, unpack)

    def labels_of(self, numbers: tuple[int, ...]) -> HeldLabels:
        """The labels that shards hold."""

        def find() -> HeldLabels:
            return HeldLabels([self.shards[number] for number in numbers], self.n_labels)

        with self.lock:
            return _kept(self.held, numbers, find)


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
    session.keep(number, shard, file)
    return True


def adopt_shard(parcel: str, token: str, number: int, file: ShardFile) -> None:
    """Map a shard that has been sent here; its file has no name any more then."""
    with arrived(parcel) as path:
        _session(token).keep(number, _map_shard(path, file), file)


def answer(token: str, asked: Asked, rows: Rows) -> Any:
    """What some shards make of a question about transformed rows.

    If this process does not hold them, it is not the one that was given them: `WorkerLost`. If it
    no longer has what belongs to a key: `Forgotten`.
    """
    session = _session(token)
    if not session.shards.keys() >= set(asked.numbers):
        raise WorkerLost("this worker has been restarted")
    shards, choice = session.in_order(asked), session.allowed(asked)
    return asked.question.answer(shards, session.labels_of(asked.numbers), rows, choice)


def release(token: str) -> None:
    """End a session, which its client's `Sender` has given its token."""
    with _sessions_lock:
        _sessions.pop(token, None)
    discard_parcels(token)


def _map_shard(path: Path, file: ShardFile) -> Shard:
    shard = file.read(path)
    shard.native  # noqa: B018  so that the first rows need not wait for it
    _mapped[file.receipt.sha256] = shard
    return shard


def _kept(kept: OrderedDict[Any, T], key: Any, make: Callable[[], T]) -> T:
    """What is kept for a key, made if there is nothing; what was last used long ago goes."""
    found = kept.pop(key, None)
    kept[key] = found = make() if found is None else found
    while len(kept) > KEPT:
        kept.popitem(last=False)
    return found


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
