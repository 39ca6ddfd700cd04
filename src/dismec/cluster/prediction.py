"""Rows × shards on the workers of a cluster → top k.

Every worker holds some shards. Rows go out in batches; a worker with time to spare takes the next
batch that has not been scored against some of its shards, and sends back the best labels among
them. What a worker takes along when it dies is scored by others, once they have been brought its
shards.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.cluster import prediction_worker as cluster_scorer
from dismec.cluster.connection import Cluster, Task, WorkerInfo
from dismec.cluster.placement import Place, plan
from dismec.cluster.prediction_worker import LEASE_SECONDS, ShardFile
from dismec.data.matrices import Rows, check_rows
from dismec.errors import ClusterError, DataError, ModelError, WorkerLost
from dismec.model.opening import read_head
from dismec.model.scoring import Labels, Scores
from dismec.model.topk_model import TopkModel

__all__ = ["Batch", "ClusterModel", "ClusterPredictor", "Traffic", "merge"]

_PIECE = 4_000_000  # bytes of a shard in a task
_SENDERS = 8  # shards that are sent at a time: their pieces are in the scheduler's memory
_MOST_ROWS, _LEAST_ROWS, _MOST_BYTES = 1024, 64, 4_000_000  # of a batch
_BATCHES_A_THREAD = 6  # of rows, at least, so that the last ones are a small share of the work
_AHEAD = 2  # batches that a worker is given for each of its threads, and one more
_OPEN_BYTES = 256_000_000  # of batches that are not through
_MEMORY_SHARE = 0.6  # of a worker's memory for shards: beyond that Dask begins to clear it
_MOST_LOSSES = 10
_JOIN_SECONDS, _RELEASE_SECONDS = 5.0, 5.0

_log = logging.getLogger("dismec")

Part = tuple[Labels, Scores]


@dataclass
class Traffic:
    """Bytes that have passed through this process: of weights, rows and answers."""

    weights: int = 0
    rows: int = 0
    answers: int = 0


@dataclass(eq=False)
class Batch:
    """Transformed rows on their way, and what has been found for them.

    Attributes
    ----------
    places
        Labels a row.
    done
        Called with labels and scores, (n_rows, places), or with an exception.
    """

    rows: Rows
    places: int
    done: Callable[[Part | Exception], None]
    todo: set[int] = field(default_factory=set)  # shards that nobody is scoring it against
    parts: list[Part] = field(default_factory=list)
    scoring: int = 0
    losses: int = 0

    @property
    def bytes(self) -> int:
        """Of the rows."""
        return sum(array.nbytes for array in self.rows)


@dataclass
class _Member:
    """A worker that takes part: what it holds or is being brought, and what it is scoring."""

    info: WorkerInfo
    since: float
    room: float | None = None  # bytes, once it has joined
    call: Callable[..., Task] | None = None  # without the scheduler, once that has been tried
    held: set[int] = field(default_factory=set)
    coming: set[int] = field(default_factory=set)
    tasks: dict[Task, tuple[Batch, tuple[int, ...]]] = field(default_factory=dict)

    @property
    def spare(self) -> int:
        return _AHEAD * self.info.threads + 1 - len(self.tasks)


# What it takes to get a worker ready, step by step: tasks to wait for, or None to be called again.
_Steps = Generator[Task | None, Any, None]


class ClusterPredictor:
    """A model whose shards are spread over the memory of a cluster's workers.

    Use it in a ``with`` statement, from one thread. Answers are those of `Predictor`, bit for bit.

    Parameters
    ----------
    cluster
        The connection, which stays open in the end.
    directory
        The model. Workers that see this path map its files; others are sent what they need.
    patience
        Seconds to wait for workers that hold, and have room for, what is missing.

    Raises
    ------
    ModelError
        As `open_model`.
    ClusterError
        If there is no worker, or one has another version of dismec.
    """

    def __init__(
        self, cluster: Cluster, directory: str | os.PathLike[str], *, patience: float = 60.0
    ) -> None:
        path = Path(directory).resolve()
        self.manifest, self.transform, self.parts = read_head(path, check=True)
        if self.manifest.shards is None:
            raise ModelError(
                f"{directory}: of an older format; `dismec prune {directory} -o NEW` writes it anew"
            )
        receipts = self.manifest.shards
        if sum(r.n_labels for r in receipts) != np.count_nonzero(self.parts.labels.counts):
            raise ModelError(f"{directory}: the shards do not hold every label that had rows")
        shape = self.manifest.n_labels, self.manifest.n_features
        self.traffic = Traffic()
        self._cluster = cluster
        self._patience = patience
        self._token = secrets.token_hex(8)
        self._files = [ShardFile(str(path / r.file), r, shape) for r in receipts]
        self._members: dict[str, _Member] = {}
        self._refused: set[str] = set()
        self._steps: dict[Task, tuple[str, _Steps]] = {}
        self._later: list[tuple[str, _Steps]] = []
        self._senders = 0
        self._open: dict[Batch, None] = {}  # in the order of their coming
        self._unplanned = True
        self._moved = self._greeted = time.monotonic()
        ours = version("dismec")
        for address, info in cluster.wait_for_workers().items():
            if info.version != ours:
                raise ClusterError(f"worker {address} has {_dismec(info)}, this is {ours}")

    def __enter__(self) -> ClusterPredictor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the workers forget the model."""
        self.drop()
        addresses = list(self._members)
        for address in addresses:
            self._leave(address)
        with suppress(ClusterError):
            if self._cluster.connected:
                self._release(addresses)

    def topk(self, X: Any, k: int = 5) -> tuple[Labels, Scores]:
        """As `Predictor.topk`.

        Raises
        ------
        ClusterError
            If there is no scheduler, no worker, or no room for the model, for a while.
        """
        if k < 1:
            raise DataError(f"k is {k}; expected at least 1")
        rows = check_rows(X, self.transform.n_features)
        labels = np.full((rows.n_rows, k), -1, dtype=np.int32)
        scores = np.full((rows.n_rows, k), -np.inf, dtype=np.float32)
        places = min(k, self.manifest.n_labels)

        def keep(start: int, stop: int, found: Part | Exception) -> None:
            if isinstance(found, Exception):
                raise found
            labels[start:stop, :places], scores[start:stop, :places] = found

        try:
            while self.missing:
                self.step()
            for start, stop in self._cuts(rows):
                while not self.hungry:
                    self.step()
                chunk = self.transform.apply_between(rows, start, stop)
                self.add(Batch(chunk, places, partial(keep, start, stop)))
            while self._open:
                self.step()
        finally:
            self.drop()
        return labels, scores

    def _cuts(self, rows: Rows) -> Iterator[tuple[int, int]]:
        """Where batches of rows begin and end."""
        threads = sum(member.info.threads for member in self._members.values())
        share = rows.n_rows // (_BATCHES_A_THREAD * max(threads, 1))
        most = min(max(share, _LEAST_ROWS), _MOST_ROWS)
        before = (rows.indptr + np.arange(len(rows.indptr))) * 8
        start = 0
        while start < rows.n_rows:
            full = int(np.searchsorted(before, before[start] + _MOST_BYTES, side="right")) - 1
            stop = min(max(start + 1, full), start + most, rows.n_rows)
            yield start, stop
            start = stop

    # -- for those who run it step by step ---------------------------------------------------------

    @property
    def missing(self) -> list[int]:
        """The shards that no worker holds at the moment."""
        held: set[int] = set()
        held.update(*(member.held for member in self._members.values()))
        return [number for number in range(len(self._files)) if number not in held]

    @property
    def hungry(self) -> bool:
        """Whether a worker has nothing to do, and there is room for another batch."""
        if not self._files:
            return True
        if sum(batch.bytes for batch in self._open) > _OPEN_BYTES:
            return False
        return any(
            member.spare > 0 and not any(batch.todo & member.held for batch in self._open)
            for member in self._members.values()
            if member.held
        )

    def add(self, batch: Batch) -> None:
        """Have a batch scored; `step` goes on with it."""
        batch.todo = set(range(len(self._files)))
        self._open[batch] = None
        self._finish(batch)  # of a model without weights
        self._hand_out()

    def drop(self) -> None:
        """Forget all batches."""
        for member in self._members.values():
            for task in member.tasks:
                self._cluster.forget(task)
            member.tasks.clear()
        self._open.clear()

    def step(self, timeout: float = 0.5, bell: Task | None = None) -> None:
        """Wait until something happens, and do what there is to do then.

        Parameters
        ----------
        timeout
            Seconds to wait at most, as long as the scheduler answers.
        bell
            Something else that may happen.

        Raises
        ------
        ClusterError
            If shards have been missing, and none was being brought, for `patience` seconds.
        Exception
            What `Batch.done` raises; what has kept the last worker from taking part.
        """
        self._meet(self._cluster.workers())
        later, self._later = self._later, []
        for address, steps in later:
            self._advance(address, steps, None)
        self._place()
        self._hand_out()
        tasks = [*self._steps, *(t for m in self._members.values() for t in m.tasks)]
        if bell is not None:
            tasks.append(bell)
        if not tasks:
            time.sleep(min(timeout, 0.1))
        for task in self._cluster.wait(tasks, 0.05 if self._later else timeout) if tasks else ():
            if task in self._steps:
                self._advance(*self._steps.pop(task), task)
            elif task is not bell:
                self._take(task)
        self._hand_out()
        self._check_patience()

    def _check_patience(self) -> None:
        missing = self.missing
        if not missing or self._steps or self._later:
            self._moved = time.monotonic()
        waited = time.monotonic() - self._moved
        if waited <= self._patience:
            return
        self._moved = time.monotonic()
        if not self._members:
            raise ClusterError(f"no worker has been there for {waited:.0f} s")
        size = sum(self._files[number].receipt.bytes for number in missing)
        raise ClusterError(
            f"{len(missing)} of the model's {len(self._files)} shards, {size / 1e9:.3g} GB, have "
            f"no worker, as none has room for them: add workers, or give them more memory"
        )

    # -- workers -----------------------------------------------------------------------------------

    def _meet(self, workers: Mapping[str, WorkerInfo]) -> None:
        """Take note of who has come and gone."""
        for address in self._members.keys() - workers.keys():
            self._lose(address)
        now = time.monotonic()
        for address, info in workers.items():
            if address in self._members or address in self._refused:
                continue
            if info.version != version("dismec"):
                _log.warning("worker %s has %s: it is left out", address, _dismec(info))
                self._refused.add(address)
                continue
            self._members[address] = _Member(info, now)
            self._advance(address, self._join(address), None)
        if now - self._greeted > LEASE_SECONDS / 5:
            self._greeted = now
            for address in list(self._members):
                self._advance(address, self._join(address), None)

    def _join(self, address: str) -> _Steps:
        limit = yield self._cluster.submit(address, cluster_scorer.join, self._token)
        member = self._members[address]
        if member.room is None:
            self._try_directly(address, member)
            member.room = math.inf if limit is None else _MEMORY_SHARE * limit
            self._unplanned = True

    def _try_directly(self, address: str, member: _Member) -> None:
        """Find out whether rows can go to a worker without the scheduler between."""

        def attempt() -> _Steps:
            try:
                yield self._cluster.call(address, cluster_scorer.hear, self._token)
            except Exception:
                return
            member.call = self._cluster.call

        self._advance(address, attempt(), None)

    def _place(self) -> None:
        """See to it that every shard is somewhere, and every worker has something to do."""
        joined = {a: m for a, m in self._members.items() if m.room is not None}
        now = time.monotonic()
        # All that are there get their share: so it is not given away before they have answered.
        joining = any(
            m.room is None and now - m.since < _JOIN_SECONDS for m in self._members.values()
        )
        if not self._unplanned or joining:
            return
        self._unplanned = False
        sizes = [file.receipt.bytes for file in self._files]
        places = {a: Place(m.held | m.coming, m.room or 0.0) for a, m in joined.items()}
        brought: dict[str, list[int]] = {}
        for address, number in plan(sizes, places):
            brought.setdefault(address, []).append(number)
        for address, numbers in brought.items():
            self._members[address].coming.update(numbers)
            self._advance(address, self._bring(address, numbers), None)

    def _bring(self, address: str, numbers: Sequence[int]) -> _Steps:
        """Have a worker map shards, one after the other; send it those whose files it lacks."""
        submit, member = self._cluster.submit, self._members[address]
        for number in numbers:
            file = self._files[number]
            if not (yield submit(address, cluster_scorer.hold, self._token, number, file)):
                yield from self._send(address, number)
            member.coming.discard(number)
            member.held.add(number)

    def _send(self, address: str, number: int) -> _Steps:
        file = self._files[number]
        while self._senders >= _SENDERS:
            yield None
        self._senders += 1
        submit = self._cluster.submit
        try:
            with Path(file.path).open("rb") as content:
                while piece := content.read(_PIECE):
                    begin = content.tell() - len(piece)
                    self.traffic.weights += len(piece)
                    yield submit(address, cluster_scorer.receive, self._token, number, begin, piece)
            yield submit(address, cluster_scorer.received, self._token, number, file)
        except FileNotFoundError:
            raise ModelError(f"{file.path}: missing, though the manifest names it") from None
        except ModelError:
            raise ModelError(f"{file.path}: altered since it was written") from None
        finally:
            self._senders -= 1

    def _advance(self, address: str, steps: _Steps, finished: Task | None) -> None:
        """Go on with getting a worker ready."""
        if address not in self._members:
            steps.close()
            return
        try:
            task = _resume(steps, finished)
        except StopIteration:
            return
        except WorkerLost:
            self._lose(address)
            return
        except ModelError:  # it is not the worker's
            self._lose(address)
            raise
        except Exception as error:
            self._lose(address, f"cannot take part: {error}")
            self._refused.add(address)
            if not self._members:
                raise
            return
        if task is None:
            self._later.append((address, steps))
        else:
            self._steps[task] = address, steps

    def _leave(self, address: str) -> _Member:
        member = self._members.pop(address)
        for task, (owner, steps) in list(self._steps.items()):
            if owner == address:
                self._cluster.forget(task)
                del self._steps[task]
                steps.close()
        for task in member.tasks:
            self._cluster.forget(task)
        self._unplanned = True
        return member

    def _lose(self, address: str, why: str = "is gone") -> None:
        """Have what a worker was scoring scored again."""
        member = self._leave(address)
        _log.warning("worker %s %s", address, why)
        for batch, numbers in member.tasks.values():
            batch.todo.update(numbers)
            batch.scoring -= 1
            batch.losses += 1
            if batch.losses >= _MOST_LOSSES:
                reason = f"{batch.losses} workers have died over the same rows"
                self._fail(batch, ClusterError(f"{reason}, for want of memory perhaps"))

    def _release(self, addresses: Sequence[str]) -> None:
        there = self._cluster.workers()
        tasks = [
            self._cluster.submit(address, cluster_scorer.release, self._token)
            for address in addresses
            if address in there
        ]
        until = time.monotonic() + _RELEASE_SECONDS
        while tasks and time.monotonic() < until:
            for task in self._cluster.wait(tasks, 0.5):
                tasks.remove(task)
        for task in tasks:
            self._cluster.forget(task)

    # -- batches -----------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Give every worker enough to go on with, those with the least to do first."""
        ready = [(a, m) for a, m in self._members.items() if m.held]
        while sum(self._hand_one(*r) for r in sorted(ready, key=lambda r: -r[1].spare)):
            pass

    def _hand_one(self, address: str, member: _Member) -> bool:
        if member.spare <= 0:
            return False
        for batch in self._open:
            numbers = tuple(sorted(batch.todo & member.held))
            if numbers:
                call = member.call or self._cluster.submit
                task = call(
                    *(address, cluster_scorer.score, self._token, numbers),
                    *(batch.rows, batch.places),
                )
                batch.todo.difference_update(numbers)
                batch.scoring += 1
                member.tasks[task] = batch, numbers
                self.traffic.rows += batch.bytes
                return True
        return False

    def _take(self, task: Task) -> None:
        """What has come of scoring a batch."""
        member = self._members.get(task.worker)
        if member is None or task not in member.tasks:
            return
        try:
            part = task.result()
        except WorkerLost:
            self._lose(task.worker)
            return
        except Exception as error:
            self._fail(member.tasks.pop(task)[0], error)
            return
        batch, _ = member.tasks.pop(task)
        batch.scoring -= 1
        batch.parts.append(part)
        self.traffic.answers += sum(array.nbytes for array in part)
        self._finish(batch)

    def _fail(self, batch: Batch, error: Exception) -> None:
        if batch in self._open:
            del self._open[batch]
            batch.done(error)

    def _finish(self, batch: Batch) -> None:
        if batch.todo or batch.scoring or batch not in self._open:
            return
        del self._open[batch]
        batch.done(merge(batch.parts, batch.rows.n_rows, batch.places))


def merge(parts: Sequence[Part], n_rows: int, places: int) -> Part:
    """The best of what has been found among disjoint sets of labels, as `Predictor.topk` ranks."""
    empty = np.full((n_rows, places), -1, np.int32), np.full((n_rows, places), -np.inf, np.float32)
    labels, scores = (np.concatenate(all_, axis=1) for all_ in zip(*parts, empty, strict=True))
    # An empty place, −1, is the largest unsigned number: it loses to a label of score −inf.
    order: npt.NDArray[np.intp] = np.lexsort((labels.view(np.uint32), -scores), axis=1)
    order = order[:, :places]
    return np.take_along_axis(labels, order, 1), np.take_along_axis(scores, order, 1)


def _resume(steps: _Steps, finished: Task | None) -> Task | None:
    """The next step, given what has come of the last one."""
    if finished is None:
        return next(steps)
    try:
        result = finished.result()
    except Exception as error:
        return steps.throw(error)
    return steps.send(result)


def _dismec(info: WorkerInfo) -> str:
    return f"dismec {info.version}" if info.version else "no dismec, or a very old one"


class ClusterModel(TopkModel):
    """A model on a cluster: it predicts as `Model` does, and has no weights here."""

    def __init__(self, predictor: ClusterPredictor) -> None:
        super().__init__(predictor.manifest, predictor.transform, predictor.parts)
        self._topk = predictor.topk

    @property
    def nnz(self) -> int:  # noqa: D102
        return sum(receipt.nnz for receipt in self.manifest.files)

    def predict_topk(  # noqa: D102
        self, X: Any, k: int = 5, *, threads: int | None = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        return self._topk(X, k)
