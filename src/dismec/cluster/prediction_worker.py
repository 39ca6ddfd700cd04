"""Prediction on the workers of a cluster: functions that `cluster.prediction` calls there.

A worker process memory-maps some shards of a model: the model's own files if it can read them,
otherwise copies that it was sent. They belong to a session, which is one client's use of one model.
A session ends when its client ends it, or has not been in contact for a while. It keeps the most
recent orders and sets of labels, so the client need not send them again.
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
from dismec.model.label_index import LabelIndex
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
    "check_reachable",
    "hold",
    "join",
    "release",
]

KEPT = 32  # orders, and as many sets of labels, that a session keeps
LEASE_SECONDS = 600.0  # lifetime of a session without contact from its client
_EXPIRY_SECONDS = 10.0

T = TypeVar("T")


class ShardFile(NamedTuple):
    """A shard: its path on the client, and its expected contents."""

    path: str  # at least on the client's machine
    receipt: ShardReceipt  # its entry in the model's manifest
    shape: tuple[int, int]  # labels and features of the model

    def read(self, path: Path | None = None, *, check: bool = True) -> Shard:
        """Return the memory-mapped shard, from this or another path; see `read_shard`."""
        where = Path(self.path) if path is None else path
        return weight_files.read_shard(where, self.receipt, *self.shape, check=check)


class Asked(NamedTuple):
    """A question to some of a worker's shards.

    Orders and sets of labels have keys. Their contents are included only if the client does not
    know that the worker has them.
    """

    question: Question
    numbers: tuple[int, ...]  # numbers of the shards
    order: str | None = None  # None: by score
    rescalings: Mapping[int, Rescaling] = {}  # by shard number
    choice: str | None = None  # None: among all labels
    bits: npt.NDArray[np.uint8] | None = None  # contents of the choice


class Forgotten(Exception):  # noqa: N818  named after the event
    """The worker no longer has an order or a set of labels, which must be sent again."""


@dataclass
class _Session:
    """One client's use of one model on this worker."""

    used: float  # time of the last call
    shards: dict[int, Shard] = field(default_factory=dict)
    n_labels: int = 0  # labels of the model
    # Most recent requests, the latest last.
    views: OrderedDict[str, dict[int, Shard]] = field(default_factory=OrderedDict)
    choices: OrderedDict[str, Allowed] = field(default_factory=OrderedDict)
    held: OrderedDict[tuple[int, ...], LabelIndex] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, number: int, shard: Shard, file: ShardFile) -> None:
        self.n_labels = file.shape[0]
        self.shards[number] = shard

    def in_order(self, asked: Asked) -> list[Any]:
        """Return the requested shards for the kernels, in the requested order."""
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
        """Return the labels allowed for all rows; None for all labels."""
        if asked.choice is None:
            return None

        def unpack() -> Allowed:
            if asked.bits is None:
                raise Forgotten
            return LabelSet.allowed(asked.bits, self.n_labels)

        with self.lock:
            return _kept(self.choices, asked.choice, unpack)

    def labels_of(self, numbers: tuple[int, ...]) -> LabelIndex:
        """Return the labels of these shards."""

        def find() -> LabelIndex:
            return LabelIndex([self.shards[number] for number in numbers], self.n_labels)

        with self.lock:
            return _kept(self.held, numbers, find)


_sessions: dict[str, _Session] = {}
_mapped: WeakValueDictionary[str, Shard] = WeakValueDictionary()  # by SHA-256, for all sessions
_expiry: threading.Thread | None = None  # while there are sessions
_sessions_lock = threading.Lock()


def join(token: str) -> int | None:
    """Start or continue a session; return the memory limit of this worker, if known."""
    global _expiry
    with _sessions_lock:
        _sessions.setdefault(token, _Session(0.0)).used = time.monotonic()
        if _expiry is None:
            _expiry = threading.Thread(target=_expire, name="dismec-sessions", daemon=True)
            _expiry.start()
    listen()
    return memory_limit()


def check_reachable(token: str) -> None:
    """Do nothing: a successful call shows that the worker can be reached directly."""
    _session(token)


def hold(token: str, number: int, file: ShardFile) -> bool:
    """Map a shard; return False if this process neither has it nor finds a valid file.

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
    """Map a shard that has been sent here; its file is then unlinked."""
    with arrived(parcel) as path:
        _session(token).keep(number, _map_shard(path, file), file)


def answer(token: str, asked: Asked, rows: Rows) -> Any:
    """Return the answer of some shards to a question about transformed rows.

    Raise `WorkerLost` if this process does not hold them, as it is then not the one that was given
    them, and `Forgotten` if it no longer has the contents for a key.
    """
    session = _session(token)
    if not session.shards.keys() >= set(asked.numbers):
        raise WorkerLost("this worker has been restarted")
    shards, choice = session.in_order(asked), session.allowed(asked)
    return asked.question.answer(shards, session.labels_of(asked.numbers), rows, choice)


def release(token: str) -> None:
    """End the session with this token, which comes from the client's `Sender`."""
    with _sessions_lock:
        _sessions.pop(token, None)
    discard_parcels(token)


def _map_shard(path: Path, file: ShardFile) -> Shard:
    shard = file.read(path)
    shard.native  # noqa: B018  so that the first rows need not wait for it
    _mapped[file.receipt.sha256] = shard
    return shard


def _kept(kept: OrderedDict[Any, T], key: Any, make: Callable[[], T]) -> T:
    """Return the value for a key, creating it if needed; the least recently used is dropped."""
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
    """End sessions whose clients have died, until none is left."""
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
