"""A model whose shards are on the workers of a cluster: the answers of `Model`, bit for bit.

Each shard is the result of a task (`HeldShard`), so it stays on its worker, and Dask loads it
elsewhere if that worker dies; if there are fewer shards than workers, several hold the same. Rows
are sent in batches. A batch is one task per shard, which runs where the shard is; the client merges
their results.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from dismec.cluster.client import Cluster, Tasks
from dismec.cluster.file_copies import FileSpec, LocalCopy, NeedsFile, open_file, send
from dismec.data.matrices import Rows
from dismec.errors import ModelError
from dismec.model import weight_files
from dismec.model.allowed import Allowed
from dismec.model.calibration import Calibration, Float32s
from dismec.model.label_index import LabelIndex
from dismec.model.manifest import ShardReceipt
from dismec.model.model import Model
from dismec.model.opening import read_head
from dismec.model.rankings import Rankings
from dismec.model.scoring import (
    InputRows,
    Keep,
    Labels,
    Ranking,
    RowTransform,
    Scores,
    best_labels,
    count_before,
    explained,
    merge_topk,
)
from dismec.model.shards import Shard, first_labels

_MOST_ROWS, _LEAST_ROWS, _MOST_BYTES = 1024, 64, 4_000_000  # per batch
_BATCHES_PER_THREAD = 6  # at least, so the last ones are a small share of the work
_AHEAD = 2  # batches submitted per thread


class ClusterModel(Model, AbstractContextManager["ClusterModel"]):
    """A model on a cluster: it predicts and explains like `Model`, but has no weights here.

    Use it in a ``with`` statement, from one thread; the workers then release the model. Workers
    that can read the path map its files; others are sent what they need. `cluster` is as for
    `Cluster.connect`; a client or a cluster stays open at the end.
    """

    def __init__(self, path: str | os.PathLike[str], cluster: Any) -> None:
        directory = Path(path).resolve()
        manifest, transform, parts = read_head(directory, check=True)
        receipts = manifest.shards or ()
        if sum(r.n_labels for r in receipts) != np.count_nonzero(parts.labels.counts):
            raise ModelError(f"{path}: the shards do not hold every label that had rows")
        shape = manifest.n_labels, manifest.n_columns
        files = [ShardFile(str(directory / r.file), r, shape) for r in receipts]
        with ExitStack() as stack:
            connection = Cluster.connect(cluster)
            if connection is not cluster:
                stack.enter_context(connection)
            connection.check_workers()
            self._remote = _RemoteShards(connection, files, manifest.n_labels)
            self._connection = stack.pop_all()
        rankings = _ClusterRankings(self._remote, transform, parts.calibration)
        super().__init__(manifest, transform, parts, rankings)

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Make the workers release the model, and disconnect."""
        self._remote.release()
        self._connection.close()


class ShardFile(NamedTuple):
    """A shard: its path on the client, and its expected contents."""

    path: str
    receipt: ShardReceipt  # its entry in the model's manifest
    shape: tuple[int, int]  # labels and features of the model

    @property
    def spec(self) -> FileSpec:
        """The file as workers find it."""
        return FileSpec(self.path, self.receipt.bytes, self.receipt.sha256)

    def read(self, path: Path | None = None, *, check: bool = True) -> Shard:
        """Return the memory-mapped shard, from this or another path; see `read_shard`."""
        where = Path(self.path) if path is None else path
        return weight_files.read_shard(where, self.receipt, *self.shape, check=check)


@dataclass(frozen=True, eq=False)
class Rescaling:
    """The arguments of `Shard.rescaled` for one shard: a ranking by slope·score + offset."""

    slopes: Float32s
    offsets: Float32s
    bias: float


class HeldShard:
    """A shard on a worker, with the rescaled views that it has been asked for."""

    def __init__(self, shard: Shard, file: ShardFile, copy: LocalCopy | None = None) -> None:
        self._shard, self._file, self._copy = shard, file, copy
        self.n_labels = file.shape[0]
        self._views: WeakKeyDictionary[Rescaling, Shard] = WeakKeyDictionary()
        shard.native  # noqa: B018  so that the first rows need not wait for it

    def __sizeof__(self) -> int:
        return self._file.receipt.bytes  # for Dask: moving it to another worker is expensive

    def __reduce__(self) -> tuple[Any, ...]:
        return HeldShard, (self._shard, self._file)

    @cached_property
    def index(self) -> LabelIndex:
        """The labels of the shard."""
        return LabelIndex([self._shard], self.n_labels)

    def ranked_by(self, rescaling: Rescaling | None) -> Any:
        """Return the shard for the kernels, ranking by score or by a rescaled score."""
        if rescaling is None:
            return self._shard.native
        view = self._views.get(rescaling)
        if view is None:
            how = rescaling.slopes, rescaling.offsets, rescaling.bias
            view = self._views[rescaling] = self._shard.rescaled(*how)
        return view.native


def load_shard(file: ShardFile, home: str | None) -> HeldShard:
    """Map a shard and compare it with its SHA-256; `home` and errors as in `open_file`."""
    shard, copy = open_file(file.spec, file.read, home)
    return HeldShard(shard, file, copy)


def find_best(
    held: HeldShard, rescaling: Rescaling | None, rows: Rows, places: int, allowed: Allowed | None
) -> tuple[Labels, Scores]:
    """Return the best labels of transformed rows in a shard, at most as many as it has."""
    among = None if allowed is None else held.index.among(allowed, 0, rows.n_rows)
    places = min(places, held.index.n_held)
    return best_labels([held.ranked_by(rescaling)], rows, places, among)


def explain_row(
    held: HeldShard, rescaling: Rescaling | None, row: Rows, classifier: int
) -> tuple[Scores, float]:
    """Return the weights of a classifier for the entries of one row, and its score."""
    return explained(held.ranked_by(rescaling), classifier, row)


def count_labels(
    held: HeldShard, rescaling: Rescaling | None, row: Rows, label: int, score: float
) -> int:
    """Return how many labels of a shard rank before a label with this score for a row."""
    return count_before([held.ranked_by(rescaling)], row, held.n_labels, label, score)


@dataclass(eq=False)
class _Query:
    """A task function, to be called with some rows for some shards.

    `args` may contain futures. `done` is called with the results, in the order of `shards`.
    """

    function: Callable[..., Any]
    rows: Rows
    args: tuple[Any, ...]
    rescaling: Callable[[int], Any]  # a future of `Rescaling` for a shard, or None
    shards: Sequence[int]
    done: Callable[[list[Any]], None]
    sent: Any = None  # a future of the rows
    found: dict[int, Any] = field(default_factory=dict)


class _RemoteShards:
    """The shards of a model as results of tasks on workers."""

    def __init__(self, cluster: Cluster, files: list[ShardFile], n_labels: int) -> None:
        self.cluster = cluster
        self.files = files
        self.n_labels = n_labels
        self._held: dict[tuple[int, str], Any] = {}  # futures, by shard and worker
        self._homes: dict[int, tuple[str, Any]] = {}  # workers that were sent a shard
        self._turn = 0

    def release(self) -> None:
        """Let the workers drop the shards."""
        self._held.clear()
        self._homes.clear()

    @cached_property
    def shards(self) -> list[Shard]:
        """The memory-mapped shards, for their labels; workers have checked them."""
        return [file.read(check=False) for file in self.files]

    @cached_property
    def index(self) -> LabelIndex:
        """The shard and the classifier of each label."""
        return LabelIndex(self.shards, self.n_labels)

    @property
    def threads(self) -> int:
        """Total number of threads of all workers."""
        return sum(self.cluster.workers().values())

    def submit(self, function: Callable[..., Any], *args: Any, worker: str | None = None) -> Any:
        """Submit a task, to a worker if it is still there."""
        where = {"workers": [worker], "allow_other_workers": True} if worker else {}
        return self.cluster.client.submit(function, *args, pure=False, **where)

    def run(self, queries: Iterable[_Query]) -> None:
        """Answer queries, and call `done` of each."""
        tasks = Tasks(self.cluster)
        # By key: the future, which keeps the task, and the worker it was submitted to.
        asked: dict[str, tuple[_Query, int, Any, str]] = {}

        def ask(query: _Query, number: int) -> None:
            future, worker = self._ask(query, number)
            asked[future.key] = query, number, future, worker
            tasks.add(future)

        def step() -> None:
            finished = tasks.finished()
            if not finished:
                self._ask_again(asked, ask)
            for future, outcome in finished:
                if future.key not in asked:
                    continue  # it was submitted again
                query, number, _, _ = asked.pop(future.key)
                if isinstance(outcome, Exception):
                    self._recover(number, outcome)
                    ask(query, number)
                    continue
                query.found[number] = outcome
                if len(query.found) == len(query.shards):
                    query.done([query.found[n] for n in query.shards])

        for query in queries:
            if not query.shards:
                query.done([])
            for number in query.shards:
                ask(query, number)
            while len(asked) > _AHEAD * max(self.threads, 1) * max(len(query.shards), 1):
                step()
        while asked:
            step()

    def _ask_again(self, asked: dict[str, Any], ask: Callable[[_Query, int], None]) -> None:
        """Submit the tasks of dead workers again.

        A task that prefers a dead worker, and becomes ready while there is no other, is not
        started by Dask when a worker joins.
        """
        workers = self.cluster.workers()
        for key in [key for key, (*_, worker) in asked.items() if worker not in workers]:
            query, number, _, _ = asked.pop(key)
            ask(query, number)

    def _ask(self, query: _Query, number: int) -> tuple[Any, str]:
        """Submit the task of a query for one shard, to a worker that holds the shard."""
        worker = self._holder(number)
        if query.sent is None:
            query.sent = self.submit(Rows, *query.rows)
        held = self._held.get((number, worker))
        if held is None:
            home = self._homes[number][0] if number in self._homes else None
            held = self.submit(load_shard, self.files[number], home, worker=worker)
            self._held[number, worker] = held
        rescaling = query.rescaling(number)
        args = held, rescaling, query.sent, *query.args
        return self.submit(query.function, *args, worker=worker), worker

    def _holder(self, number: int) -> str:
        """Return a worker for a shard; all workers have something to do."""
        while not (workers := sorted(self.cluster.workers())):  # raises an error after a while
            time.sleep(0.1)
        self._held = {key: held for key, held in self._held.items() if key[1] in workers}
        holders = workers[number :: len(self.files)] or [workers[number % len(workers)]]
        self._turn += 1
        return holders[self._turn // len(self.files) % len(holders)]

    def _recover(self, number: int, error: Exception) -> None:
        """Send a worker a shard that it cannot read; raise other errors."""
        if not isinstance(error, NeedsFile):
            raise error
        for key in [key for key in self._held if key[0] == number]:
            del self._held[key]
        home = self._homes[number][0] if number in self._homes else None
        if error.home != home:
            return  # it has been sent in the meantime
        self._homes.pop(number, None)
        file = self.files[number]
        file.read()  # raises an error if it is missing or altered
        kept = send(self.cluster, file.spec, error.worker)
        if kept is not None:
            self._homes[number] = error.worker, kept


class _ClusterRanking(Ranking):
    """A ranking of all labels on a cluster: equivalent to `Predictor`, bit for bit.

    With `curves`, a slope and an offset per label, labels are ranked by slope·score + offset.
    """

    def __init__(
        self,
        remote: _RemoteShards,
        transform: RowTransform,
        curves: tuple[Float32s, Float32s, float] | None = None,
    ) -> None:
        super().__init__(remote.n_labels, transform)
        self._remote = remote
        self._curves = curves
        self._rescalings: dict[int, Any] = {}  # futures, by shard

    def _rank(
        self, rows: InputRows, places: int, threads: int | None, allowed: Allowed | None, keep: Keep
    ) -> None:
        """Rank rows on the workers, which use their own numbers of threads."""

        def merge(start: int, stop: int, found: list[Any]) -> None:
            keep(start, stop, merge_topk(found, stop - start, places))

        def queries() -> Iterator[_Query]:
            for start, stop in _cut_rows(rows, self._remote.threads, allowed):
                chunk = self.transform.apply_between(rows, start, stop)
                among = self._among(allowed, start, stop)
                yield self._query(find_best, chunk, partial(merge, start, stop), places, among)

        self._remote.run(queries())

    def decision_function(self, X: Any, threads: int | None = None) -> Scores:
        """Like `Predictor.decision_function`."""
        labels, scores = self.topk(X, max(self.n_labels, 1), threads)
        result = np.full((len(labels), self.n_labels), -1, np.float32)
        row, place = np.nonzero(labels >= 0)
        result[row, labels[row, place]] = scores[row, place]
        return result

    def _explained(self, row: Rows, label: int) -> tuple[Scores, float]:
        shard, classifier = self._remote.index.find(label)
        found: list[Any] = []
        query = self._query(explain_row, row, found.extend, classifier)
        query.shards = [shard]
        self._remote.run([query])
        weights, score = found[0]
        return weights, score

    def _count_before(self, row: Rows, label: int, score: float) -> int:
        found: list[int] = []
        self._remote.run([self._query(count_labels, row, found.extend, label, score)])
        return sum(found)

    def _query(
        self,
        function: Callable[..., Any],
        rows: Rows,
        done: Callable[[list[Any]], None],
        *args: Any,
    ) -> _Query:
        every = range(len(self._remote.files))
        return _Query(function, rows, args, self._rescaling, every, done)

    def _rescaling(self, number: int) -> Any:
        if self._curves is None:
            return None
        if number not in self._rescalings:
            slopes, offsets, bias = self._curves
            leaders = self._remote.shards[number].leaders
            given = slopes[leaders], offsets[leaders], bias
            self._rescalings[number] = self._remote.submit(Rescaling, *given)
        return self._rescalings[number]

    def _among(self, allowed: Allowed | None, start: int, stop: int) -> Any:
        """Return the labels allowed for some rows; a set for all rows is sent only once."""
        if allowed is None:
            return None
        if allowed.mask is None:
            return allowed.take(slice(start, stop))
        given = Allowed, self.n_labels, allowed.labels
        return allowed.prepared(self._remote, lambda: self._remote.submit(*given))


class _ClusterRankings(Rankings):
    """The rankings of a model whose weights are on a cluster."""

    def __init__(
        self, remote: _RemoteShards, transform: RowTransform, calibration: Calibration | None
    ) -> None:
        super().__init__(remote.n_labels, transform, calibration)
        self._remote = remote

    @property
    def first_labels(self) -> npt.NDArray[np.int64]:
        """For each label the first label with the same weights, int64 (n_labels,)."""
        return first_labels(self._remote.shards, self.n_labels)

    def _by_score(self) -> _ClusterRanking:
        return _ClusterRanking(self._remote, self.transform)

    def _rescaled(self, slopes: Float32s, offsets: Float32s) -> _ClusterRanking:
        curves = slopes, offsets, self.transform.bias
        return _ClusterRanking(self._remote, self.transform.with_bias(1.0), curves)


def _cut_rows(rows: InputRows, threads: int, allowed: Allowed | None) -> Iterator[tuple[int, int]]:
    """Yield where batches of rows and their label sets start and end, for so many threads."""
    share = rows.n_rows // (_BATCHES_PER_THREAD * max(threads, 1))
    most = min(max(share, _LEAST_ROWS), _MOST_ROWS)
    before = (rows.indptr + np.arange(len(rows.indptr))) * 8
    if allowed is not None and allowed.starts is not None:
        before = before + allowed.starts * 4
    start = 0
    while start < rows.n_rows:
        full = int(np.searchsorted(before, before[start] + _MOST_BYTES, side="right")) - 1
        stop = min(max(start + 1, full), start + most, rows.n_rows)
        yield start, stop
        start = stop
