"""Rows × shards on the workers of a cluster → top k.

Every worker holds some shards. Rows are sent in batches; a worker with free capacity gets the next
batch that has not been scored against some of its shards, and returns the best labels among them.
What a worker was scoring when it dies is scored by others, once they have its shards.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dismec.cluster import prediction_worker
from dismec.cluster.batches import RowBatch
from dismec.cluster.connection import Cluster
from dismec.cluster.placement import Place, plan
from dismec.cluster.pool import MOST_LOSSES, Member, Pool, Steps, Work, check_workers
from dismec.cluster.pulse import SILENT_SECONDS, Pulse
from dismec.cluster.ranking import ClusterRanking, Layout, RemoteModel
from dismec.cluster.sent import SentOrders
from dismec.cluster.shipping import Sender
from dismec.cluster.task import Task
from dismec.errors import ClusterError, ModelError
from dismec.model.opening import read_head
from dismec.model.scoring import Labels, Scores

__all__ = ["ClusterModel", "ClusterPredictor", "Traffic"]

_AHEAD = 2  # batches given to a worker, per thread, plus one
_OPEN_BYTES = 256_000_000  # total size of unfinished batches
_MEMORY_SHARE = 0.6  # share of a worker's memory for shards: beyond that, Dask starts to clear it
_JOIN_SECONDS = 5.0

_log = logging.getLogger("dismec")


@dataclass
class Traffic:
    """Bytes that have passed through this process: weights, rows and answers."""

    weights: int = 0
    rows: int = 0
    answers: int = 0


@dataclass(eq=False)
class _ShardWorker(Member[tuple[RowBatch, tuple[int, ...]]]):
    """A worker, the shards that it holds or is receiving, and the batches it is scoring."""

    since: float = field(default_factory=time.monotonic)
    room: float | None = None  # bytes for shards, once it has joined
    call: Callable[..., Task] | None = None  # direct calls, if it can be reached directly
    held: set[int] = field(default_factory=set)
    coming: set[int] = field(default_factory=set)  # shards on their way to it
    sent: SentOrders = field(default_factory=SentOrders)
    pulse: Pulse = field(default_factory=Pulse)
    silent: bool = False  # it holds its shards but does not answer

    @property
    def answering(self) -> set[int]:
        """The shards that it holds, if it answers."""
        return set() if self.silent else self.held

    @property
    def spare(self) -> int:
        return _AHEAD * self.info.threads + 1 - len(self.tasks)


class ClusterPredictor(AbstractContextManager["ClusterPredictor"]):
    """A model whose shards are distributed over the memory of a cluster's workers.

    Use it in a ``with`` statement, from one thread. The answers are those of `Predictor`, bit for
    bit.

    Parameters
    ----------
    cluster
        The connection, which stays open at the end.
    directory
        The model. Workers that can read this path map its files; others are sent what they need.
    patience
        Seconds to wait for workers that hold, or have room for, missing shards.

    Raises
    ------
    ModelError
        As in `open_model`.
    ClusterError
        If there is no worker, or one runs another version of dismec.
    """

    def __init__(
        self, cluster: Cluster, directory: str | os.PathLike[str], *, patience: float = 60.0
    ) -> None:
        path = Path(directory).resolve()
        self.manifest, self.transform, self.parts = read_head(path, check=True)
        if self.manifest.shards is None:
            raise ModelError(
                f"{directory}: in an older format; `dismec prune {directory} -o NEW` converts it"
            )
        receipts = self.manifest.shards
        if sum(r.n_labels for r in receipts) != np.count_nonzero(self.parts.labels.counts):
            raise ModelError(f"{directory}: the shards do not hold every label that had rows")
        shape = self.manifest.n_labels, self.manifest.n_columns
        self.traffic = Traffic()
        self._cluster = cluster
        self._patience = patience
        self._files = [prediction_worker.ShardFile(str(path / r.file), r, shape) for r in receipts]
        self.layout = Layout(self._files, self.manifest.n_labels)
        self._sender = Sender(cluster)
        self._token = self._sender.token
        self._pool: Pool[_ShardWorker, tuple[RowBatch, tuple[int, ...]]] = Pool(
            cluster, Work(_ShardWorker, self._join, self._maintain, self._lost)
        )
        self._batches: dict[RowBatch, None] = {}  # in order of arrival
        self._needs_plan = True
        self._progressed = self._renewed = time.monotonic()
        check_workers(cluster)

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Make the workers release the model."""
        self._batches.clear()
        self._pool.close((prediction_worker.release, self._token))

    def topk(self, X: Any, k: int = 5) -> tuple[Labels, Scores]:
        """Like `Predictor.topk`; `ClusterModel` supports more kinds of prediction.

        Raises
        ------
        ClusterError
            If there is no scheduler, no worker, or no room for the model, for `patience` seconds.
        """
        return ClusterRanking(self, self.transform).topk(X, k)

    @property
    def threads(self) -> int:
        """Total number of threads of all workers that take part."""
        return sum(member.info.threads for member in self._pool.members.values())

    def run(self, batches: Iterable[RowBatch]) -> None:
        """Score batches, as fast as workers accept them; raises the errors of `topk`."""
        try:
            while self.missing:
                self.step()
            for batch in batches:
                while not self.has_capacity:
                    self.step()
                self.add(batch)
            while self._batches:
                self.step()
        finally:
            self.drop()

    @property
    def missing(self) -> list[int]:
        """The shards that no answering worker holds at the moment."""
        held: set[int] = set()
        held.update(*(member.answering for member in self._pool.members.values()))
        return [number for number in range(len(self._files)) if number not in held]

    @property
    def why_missing(self) -> str:
        """Describe why the missing shards are unavailable."""
        missing = set(self.missing)
        share = f"{len(missing)} of {len(self._files)} shards of the model"
        for member in self._pool.members.values():
            if member.silent and member.held & missing:
                wait = f"has not answered for {SILENT_SECONDS:.0f} s"
                return f"{share} are only on worker {member.address}, which {wait}"
        return f"{share} are being sent to a worker"

    @property
    def has_capacity(self) -> bool:
        """Whether a worker is idle, and there is room for another batch."""
        if not self._files:
            return True
        if sum(batch.n_bytes for batch in self._batches) > _OPEN_BYTES:
            return False
        return any(
            member.spare > 0 and not any(batch.todo & member.held for batch in self._batches)
            for member in self._pool.members.values()
            if member.answering
        )

    def add(self, batch: RowBatch) -> None:
        """Add a batch to score; `step` continues with it."""
        only = batch.ask.shard
        batch.todo = set(range(len(self._files))) if only is None else {only}
        self._batches[batch] = None
        self._finish(batch)  # for a model without weights
        self._hand_out()

    def drop(self) -> None:
        """Drop all batches."""
        self._pool.drop()
        self._batches.clear()

    def step(self, timeout: float = 0.5, wake: Task | None = None) -> None:
        """Wait until something happens, or `wake` is done, and handle it.

        It takes at most `timeout` seconds while the scheduler answers. Raises `ClusterError` if
        shards have been missing, and none was being sent, for `patience` seconds; also errors from
        `RowBatch.done`, and the error that excluded the last worker.
        """
        for member, (batch, numbers), outcome in self._pool.turn(timeout, wake):
            batch.scoring -= 1
            if isinstance(outcome, prediction_worker.Forgotten):
                member.sent.forget()
                batch.todo.update(numbers)
            elif isinstance(outcome, Exception):
                self._fail(batch, outcome)
            else:
                batch.found.append(outcome)
                self.traffic.answers += _answer_bytes(outcome)
                self._finish(batch)
        self.traffic.weights = self._sender.n_bytes
        self._hand_out()
        self._check_patience()

    def _check_patience(self) -> None:
        missing = self.missing
        if not missing or self._pool.preparing:
            self._progressed = time.monotonic()
        waited = time.monotonic() - self._progressed
        if waited <= self._patience:
            return
        self._progressed = time.monotonic()
        if not self._pool.members:
            raise ClusterError(f"there has been no worker for {waited:.0f} s")
        if any(member.silent for member in self._pool.members.values()):
            raise ClusterError(f"{self.why_missing}: stop that worker, or add others")
        size = sum(self._files[number].receipt.bytes for number in missing)
        raise ClusterError(
            f"no worker has room for {len(missing)} of the model's {len(self._files)} shards, "
            f"{size / 1e9:.3g} GB: add workers, or give them more memory"
        )

    def _join(self, member: _ShardWorker) -> Steps:
        """Start a session on a worker, or keep it from expiring."""
        join = prediction_worker.join
        limit = yield self._cluster.submit(member.address, join, self._token)
        if member.room is None:
            self._pool.begin(member, self._try_directly(member))
            member.room = math.inf if limit is None else _MEMORY_SHARE * limit
            self._needs_plan = True

    def _try_directly(self, member: _ShardWorker) -> Steps:
        """Find out whether rows can be sent to a worker without the scheduler."""
        try:
            yield self._cluster.call(member.address, prediction_worker.check_reachable, self._token)
        except Exception:
            return
        member.call = self._cluster.call

    def _maintain(self) -> None:
        """Renew sessions, check that workers answer, place shards, and hand out batches."""
        now = time.monotonic()
        if now - self._renewed > prediction_worker.LEASE_SECONDS / 5:
            self._renewed = now
            for member in self._pool.members.values():
                self._pool.begin(member, self._join(member))
        for member in self._pool.members.values():
            self._check_pulse(member)
        self._place()
        self._hand_out()

    def _check_pulse(self, member: _ShardWorker) -> None:
        """Notice that a worker hangs or answers again; others get what it was scoring."""
        member.pulse.check(partial(self._cluster.ping, member.address))
        if member.pulse.silent == member.silent:
            return
        member.silent = member.pulse.silent
        self._needs_plan = True
        state = "does not answer" if member.silent else "answers again"
        _log.warning("worker %s %s", member.address, state)
        for task, (batch, numbers) in member.tasks.items():
            self._cluster.forget(task)
            batch.todo.update(numbers)
            batch.scoring -= 1
        member.tasks.clear()

    def _place(self) -> None:
        """Make sure that every shard is placed and every worker has something to do."""
        members = self._pool.members
        now = time.monotonic()
        # Wait until all known workers have answered: each of them should get a share.
        joining = any(m.room is None and now - m.since < _JOIN_SECONDS for m in members.values())
        if not self._needs_plan or joining:
            return
        self._needs_plan = False
        sizes = [file.receipt.bytes for file in self._files]
        places = {
            address: Place(member.held | member.coming, member.room)
            for address, member in members.items()
            if member.room is not None and not member.silent
        }
        brought: dict[str, list[int]] = {}
        for address, number in plan(sizes, places):
            brought.setdefault(address, []).append(number)
        for address, numbers in brought.items():
            members[address].coming.update(numbers)
            self._pool.begin(members[address], self._bring(members[address], numbers))

    def _bring(self, member: _ShardWorker, numbers: Sequence[int]) -> Steps:
        """Make a worker map shards, one after the other; send it those whose files it lacks."""
        hold = prediction_worker.hold
        for number in numbers:
            file = self._files[number]
            if not (yield self._cluster.submit(member.address, hold, self._token, number, file)):
                yield from self._send(member.address, number)
            member.coming.discard(number)
            member.held.add(number)

    def _send(self, address: str, number: int) -> Steps:
        file = self._files[number]
        path, adopt = Path(file.path), prediction_worker.adopt_shard
        if not path.exists():
            raise ModelError(f"{path}: missing, though the manifest names it")
        try:
            yield from self._sender.send(address, path, adopt, self._token, number, file)
        except ModelError:
            raise ModelError(f"{path}: altered since it was written") from None

    def _lost(self, member: _ShardWorker, why: str) -> None:
        """Score again what a lost worker was scoring."""
        self._needs_plan = True
        _log.warning("worker %s %s", member.address, why)
        for batch, numbers in member.tasks.values():
            batch.todo.update(numbers)
            batch.scoring -= 1
            batch.losses += 1
            if batch.losses >= MOST_LOSSES:
                reason = f"{batch.losses} workers have died while scoring the same rows"
                self._fail(batch, ClusterError(f"{reason}, perhaps out of memory"))

    def _hand_out(self) -> None:
        """Give every worker enough work, those with the least first."""
        ready = [member for member in self._pool.members.values() if member.answering]
        while sum(map(self._hand_one, sorted(ready, key=lambda member: -member.spare))):
            pass

    def _hand_one(self, member: _ShardWorker) -> bool:
        if member.spare <= 0:
            return False
        for batch in self._batches:
            numbers = tuple(sorted(batch.todo & member.held))
            if numbers:
                call = member.call or self._cluster.submit
                asked = member.sent.ask(batch, numbers, self.layout)
                work = self._token, asked, batch.rows
                task = call(member.address, prediction_worker.answer, *work)
                batch.todo.difference_update(asked.numbers)
                batch.scoring += 1
                member.tasks[task] = batch, asked.numbers
                self.traffic.rows += batch.n_bytes
                return True
        return False

    def _fail(self, batch: RowBatch, error: Exception) -> None:
        if batch in self._batches:
            del self._batches[batch]
            batch.done(error)

    def _finish(self, batch: RowBatch) -> None:
        if batch.todo or batch.scoring or batch not in self._batches:
            return
        del self._batches[batch]
        batch.done(batch.ask.question.merged(batch.found, batch.rows.n_rows))


class ClusterModel(RemoteModel):
    """A model on a cluster: it predicts and explains like `Model`, but has no weights here."""

    def __init__(self, predictor: ClusterPredictor) -> None:
        super().__init__(predictor.manifest, predictor.transform, predictor.parts, predictor)


def _answer_bytes(outcome: Any) -> int:
    """Return the size of the arrays in an answer."""
    parts = outcome if isinstance(outcome, tuple) else (outcome,)
    return sum(part.nbytes for part in parts if isinstance(part, np.ndarray))
