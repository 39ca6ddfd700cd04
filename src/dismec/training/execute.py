"""Run a job: solve blocks here or on a cluster, save each when done, pack them into shards.

`Store` keeps what the stages of a run have found in folders beside the model, to resume from. Its
manifest states which training they belong to, before the first of them begins. They are removed
when the model is finished.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from http.client import HTTPException
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.request import urlopen

import numpy as np
import numpy.typing as npt

from dismec.cluster.remote_data import RemoteData, is_path, is_remote
from dismec.cpu import kernels
from dismec.data.training_file import TrainingData
from dismec.errors import DataError, ModelError
from dismec.model import weight_files
from dismec.model.directory import commit, data_file, make_directory, open_checked, write_hashed
from dismec.model.manifest import ARRAYS, STAGE, BlockReceipt, Journal, Manifest
from dismec.model.model import Model
from dismec.model.opening import open_model
from dismec.model.shards import Packing
from dismec.solve.block import Block, BlockStats
from dismec.solve.problem import Problem
from dismec.solve.threads import solve_blocks
from dismec.training import resume
from dismec.training.job import Blocks, Job, Mask
from dismec.training.params import Progress, TrainOptions, report

if TYPE_CHECKING:
    from dismec.cluster.client import Cluster

_log = logging.getLogger("dismec")

T = TypeVar("T")
Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Executor:
    """Where blocks are solved: threads of this process, or a cluster."""

    threads: int
    cluster: Cluster | None = None


@contextmanager
def opened_executor(where: Any, threads: int) -> Iterator[Executor]:
    """Open an executor; a cluster that was already connected stays connected."""
    if where is None:
        yield Executor(threads)
        return
    from dismec.cluster.client import Cluster

    cluster = Cluster.connect(where)
    if cluster is where:
        yield Executor(threads, cluster)
        return
    with cluster:
        # A scheduler without dashboard, or with one behind a proxy.
        with suppress(KeyError, OSError, ValueError, HTTPException):
            link = cluster.client.dashboard_link
            with urlopen(link, timeout=2):
                _log.info("the cluster's dashboard: %s", link)
        yield Executor(threads, cluster)


@contextmanager
def on_workers(
    data: TrainingData, options: TrainOptions, threads: int
) -> Iterator[tuple[TrainingData, TrainOptions]]:
    """Gather Dask collections, or a file that workers read, into one file on the cluster.

    Data on this machine are passed through.

    Raises `DataError` if they cannot be used, or if a setting needs the rows on this machine.
    """
    if options.cluster is None or not is_remote(data.X):
        if is_path(data.X):
            raise DataError(
                "X is a path, which only the workers of a cluster can read: pass cluster=…"
            )
        yield data, options
        return
    _check_possible(data, options)
    if options.path is not None:
        resume.check_output(options.path, options.overwrite)
    from dismec.cluster.gather import gathered

    n_labels = None if data.names is None else len(data.names)
    fitted = options.params.transform
    with opened_executor(options.cluster, threads) as executor:
        assert executor.cluster is not None
        with gathered(executor.cluster, data.X, data.Y, fitted, n_labels) as there:
            rows = TrainingData(there, there, names=data.names)
            yield rows, replace(options, cluster=executor.cluster)


def _check_possible(data: TrainingData, options: TrainOptions) -> None:
    """Raise `DataError` for settings that need the rows on this machine."""
    params = options.params
    for what, asked in (
        ('C="auto"', params.chooses_C),
        ('delta="auto"', params.chooses_delta),
        ("calibrate=True", params.calibrate),
        ("refine=True", params.refine),
        ("weights", data.weights is not None),
        ("pair_weights", data.pairs is not None),
        ("class_weight", options.costs is not None),
        ("validation", options.validation is not None),
    ):
        if asked:
            raise DataError(f"{what} is not supported with data on the workers of a cluster")


def run_in_memory(job: Job, executor: Executor, progress: Progress | None) -> Model:
    """Return the model of a job whose parameters are all fixed.

    On a cluster, it is trained in a temporary directory and memory-mapped from there.
    """
    transform, counts = job.refined_transform or job.transform, job.parts.labels.counts
    if executor.cluster is not None:
        with TemporaryDirectory(prefix="dismec-", ignore_cleanup_errors=True) as folder:
            manifest = run_into(Path(folder), job, None, executor, progress)
            shards = weight_files.read_shards(Path(folder), manifest, counts, check=False)
            return Model.from_shards(manifest, transform, job.parts, shards)
    everything = job.blocks(np.zeros(job.problem.n_labels, np.bool_), 0)
    blocks = list(_solve_locally(job, everything, lambda block: block, executor.threads, progress))
    solved = [(block.labels, block.weights, block.rows) for block in blocks]
    packing = Packing(
        solved, job.problem.n_columns, job.params.precision, counts, threads=executor.threads
    )
    shards = packing.each(lambda _, shard: shard, executor.threads)
    stats = BlockStats.total([block.stats for block in blocks if block.stats])
    manifest = replace(job.manifest, isa=kernels.isa, stats=stats)
    return Model.from_shards(manifest, transform, job.parts, shards)


def run_into(
    directory: Path,
    job: Job,
    earlier: Manifest | None,
    executor: Executor,
    progress: Progress | None,
) -> Manifest:
    """Train the model of a job into a locked directory, resuming an `earlier` run if there is one.

    Every block is on disk, and listed in the journal, before it counts as done.
    """
    manifest, held = resume.begin(directory, job, earlier)
    first = 1 + max((receipt.number for receipt in manifest.blocks), default=-1)
    if executor.cluster is None:
        receipts = _solve_into(directory, job, job.blocks(held, first), executor.threads, progress)
    else:
        receipts = _solve_on_cluster(job, directory, held, first, executor, progress)
    done: list[BlockReceipt] = []
    with closing(receipts), Journal(directory / str(manifest.journal)) as journal:
        for finished in receipts:
            journal.append(*finished)
            done += finished
    manifest = manifest.with_journal(done)
    commit(directory, manifest)
    kernels.release_memory()  # memory of the solver, before packing allocates more
    return weight_files.finish(
        directory, manifest, job.params.precision, job.parts.labels.counts, executor.threads
    )


def _solve_locally(
    job: Job,
    blocks: Blocks,
    keep: Callable[[Block], T],
    threads: int,
    progress: Progress | None,
) -> Generator[T, None, None]:
    """Solve blocks on threads of this process, and yield what `keep` returns for each."""
    left = np.concatenate([*blocks.values(), np.empty(0, np.int64)])
    count = _counter(job, left, progress)
    problem = cast(Problem, job.problem)  # data on a cluster is solved there
    return solve_blocks(problem, job.solver, blocks, keep, threads=threads, progress=count)


def _solve_into(
    directory: Path, job: Job, blocks: Blocks, threads: int, progress: Progress | None
) -> Generator[list[BlockReceipt], None, None]:
    """Solve blocks here and write each to the directory."""

    def write(block: Block) -> BlockReceipt:
        return weight_files.write_block(directory, block)

    with closing(_solve_locally(job, blocks, write, threads, progress)) as receipts:
        for receipt in receipts:
            yield [receipt]


def _solve_on_cluster(
    job: Job,
    directory: Path,
    held: Mask,
    first: int,
    executor: Executor,
    progress: Progress | None,
) -> Generator[list[BlockReceipt], None, None]:
    """Solve the labels that are not in `held` on a cluster."""
    from dismec.cluster.file_copies import FileSpec
    from dismec.cluster.solve_tasks import ClusterJob, solve_on_cluster

    cluster: Any = executor.cluster
    cluster.check_workers()
    count = _counter(job, np.flatnonzero(~held), progress)
    if held.all():
        return
    data, remote = job.data, job.data.X if isinstance(job.data.X, RemoteData) else None
    file = Path(data.source) if data.source else data_file(directory, data.fingerprint)
    # The file that texts were read into has neither dense features nor weights of pairs.
    more = data.pairs is not None or bool(job.transform.dense)
    if remote is None:
        if more or not file.exists():
            data.save(file)
        path, size, home = str(file.resolve()), file.stat().st_size, None
    else:
        path, size, home = remote.path, remote.facts.size, remote.home
    there = FileSpec(path, size, data.fingerprint)
    blocks = partial(job.blocks, held, first)
    given = ClusterJob(directory, there, home, job.solver, job.transform, blocks, job.work)
    yield from solve_on_cluster(cluster, given, count)


def _counter(
    job: Job, left: npt.NDArray[np.int64], progress: Progress | None
) -> Callable[[int, npt.NDArray[np.int64]], None]:
    """Return a function that reports solved labels and their work as progress.

    Labels that are not in `left` count as done from the start.
    """
    total = job.problem.n_labels
    work = job.work
    done, worked, all_work = total - len(left), int(work.sum() - work[left].sum()), int(work.sum())

    def count(n_labels: int, solved: npt.NDArray[np.int64]) -> None:
        nonlocal done, worked
        done += n_labels
        worked += int(work[solved].sum())
        report(progress, done, total, worked / max(all_work, 1) if done < total else 1.0)

    count(0, np.empty(0, np.int64))
    return count


class Store:
    """What a run has learned and kept beside its model, where it runs, and its progress.

    Without a directory, nothing is kept. `progress` is the callback for the work that remains, and
    `earlier` the manifest to resume from, if any: stages replace both as they go.
    """

    def __init__(
        self,
        directory: Path | None,
        executor: Executor,
        earlier: Manifest | None,
        progress: Progress | None,
    ) -> None:
        self.directory = directory
        self.executor = executor
        self.earlier = earlier
        self.progress = progress

    @property
    def threads(self) -> int:
        """Number of threads for work on this machine."""
        return self.executor.threads

    def record(self, job: Job) -> None:
        """Record which training this is and what it has chosen so far."""
        if self.directory is not None:
            self.earlier = resume.begin(self.directory, job, self.earlier)[0]

    def train(self, name: str, job: Job, progress: Progress | None) -> Model:
        """Return the model of a stage; an earlier run loses only the blocks it was working on."""
        if self.directory is None:
            return run_in_memory(job, self.executor, progress)
        folder = self.folder(name)
        make_directory(folder)
        earlier = resume.earlier_edit(folder, job, "stage")
        if earlier and earlier.complete:
            with suppress(ModelError):  # damaged files are trained again
                return open_model(folder, check=True)
            earlier = None
        run_into(folder, job, earlier, self.executor, progress)
        return open_model(folder, check=False)

    def known(self, name: str, job: Job) -> Arrays | None:
        """Return the arrays that an earlier run of this job kept, if they are intact."""
        if self.directory is None:
            return None
        with suppress(ModelError):
            arrays, metadata = open_checked(self._file(name), None)
            if metadata.get("training") == job.digest and metadata.get("content") == _sum(arrays):
                return arrays
        return None

    def keep(self, name: str, job: Job, found: Arrays) -> None:
        """Keep arrays, replacing those kept under this name before."""
        if self.directory is not None:
            self._file(name).parent.mkdir(exist_ok=True)
            write_hashed(self._file(name), found, training=job.digest, content=_sum(found))

    def found(self, name: str, job: Job, find: Callable[[], Arrays], *models: str) -> Arrays:
        """Return the arrays that an earlier run kept, or find and keep them.

        The stages' models that they were computed with are removed.
        """
        arrays = self.known(name, job)
        if arrays is None:
            arrays = find()
            self.keep(name, job, arrays)
            for model in models:
                self.drop(model)
        return arrays

    def drop(self, name: str) -> None:
        """Remove the model of a stage."""
        if self.directory is not None:
            rmtree(self.folder(name), ignore_errors=True)

    def folder(self, name: str) -> Path:
        """Return the folder of a stage's model, given that there is a directory."""
        assert self.directory is not None
        return self.directory / f"{STAGE}{name}"

    def _file(self, name: str) -> Path:
        return self.folder("found") / f"{name}{ARRAYS}"


def _sum(arrays: Arrays) -> str:
    """Return the SHA-256 of the contents of arrays."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(name.encode())
        found.update(np.ascontiguousarray(arrays[name]).data)
    return found.hexdigest()
