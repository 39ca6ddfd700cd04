"""Run a job: solve blocks here or on a cluster, save each when done, pack them into shards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from dismec.cluster.placed import PlacedData
from dismec.cpu import kernels
from dismec.data.files import StrPath
from dismec.data.training_file import TrainingData
from dismec.model import weight_files
from dismec.model.directory import commit, data_file
from dismec.model.journal import Journal
from dismec.model.manifest import BlockReceipt, Manifest
from dismec.model.model import Model
from dismec.model.opening import open_model
from dismec.model.shards import Packing
from dismec.solve.block import Block, BlockStats
from dismec.solve.blocks import effort
from dismec.solve.problem import Problem
from dismec.solve.threads import solve_blocks
from dismec.training import resume
from dismec.training.job import Blocks, Job, Mask
from dismec.training.request import Progress, Request, report

if TYPE_CHECKING:
    from dismec.cluster.connection import Cluster

__all__ = ["Workplace", "run_in_memory", "run_into", "workplace"]

_log = logging.getLogger("dismec")

T = TypeVar("T")


@dataclass(frozen=True)
class Workplace:
    """The place where blocks are solved: threads of this process, or a cluster."""

    threads: int
    cluster: Cluster | None = None
    source: StrPath | None = None  # the ``.xmc`` file of the data, for workers that can read it


@contextmanager
def workplace(request: Request, threads: int) -> Iterator[Workplace]:
    """Open the workplace of a request; a cluster that was already connected stays connected."""
    # A file of X and Y does not hold weights.
    plain = request.weights is None and request.pair_weights is None
    source = request.source if plain else None
    if request.cluster is None:
        yield Workplace(threads)
        return
    from dismec.cluster.connection import Cluster

    cluster = Cluster.connect(request.cluster)
    if cluster is request.cluster:
        yield Workplace(threads, cluster, source)
        return
    with cluster:
        if cluster.dashboard:
            _log.info("the cluster's dashboard: %s", cluster.dashboard)
        yield Workplace(threads, cluster, source)


def run_in_memory(job: Job, place: Workplace, progress: Progress | None) -> Model:
    """Return the model of a job whose parameters are all fixed.

    On a cluster, it is trained in a temporary directory and memory-mapped from there.
    """
    if place.cluster is not None:
        with TemporaryDirectory(prefix="dismec-", ignore_cleanup_errors=True) as folder:
            run_into(Path(folder), job, None, replace(place, source=None), progress)
            return open_model(folder, check=False)
    everything = job.blocks(np.zeros(job.problem.n_labels, np.bool_), 0)
    blocks = list(_solve_locally(job, everything, lambda block: block, place.threads, progress))
    packing = Packing(
        [(block.labels, block.weights, block.rows) for block in blocks],
        job.problem.n_columns,
        job.params.precision,
        job.parts.labels.counts,
        threads=place.threads,
    )
    shards = packing.each(lambda _, shard: shard, place.threads)
    stats = BlockStats.total([block.stats for block in blocks if block.stats])
    manifest = replace(job.manifest, isa=kernels.isa, stats=stats)
    return Model(manifest, job.informed or job.transform, job.parts, shards)


def run_into(
    directory: Path,
    job: Job,
    earlier: Manifest | None,
    place: Workplace,
    progress: Progress | None,
) -> Manifest:
    """Train the model of a job into a locked directory, resuming an `earlier` run if there is one.

    Every block is on disk, and listed in the journal, before it counts as done.
    """
    manifest, held = resume.begin(directory, job, earlier)
    first = 1 + max((receipt.number for receipt in manifest.blocks), default=-1)
    if place.cluster is None:
        receipts = _solve_into(directory, job, job.blocks(held, first), place.threads, progress)
    else:
        receipts = _solve_on_cluster(job, directory, held, first, place, progress)
    done: list[BlockReceipt] = []
    with closing(receipts), Journal(directory / str(manifest.journal)) as journal:
        for finished in receipts:
            journal.append(*finished)
            done += finished
    manifest = manifest.with_journal(done)
    commit(directory, manifest)
    kernels.release_memory()  # memory of the solver, before packing allocates more
    return weight_files.finish(
        directory, manifest, job.params.precision, job.parts.labels.counts, place.threads
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
    place: Workplace,
    progress: Progress | None,
) -> Generator[list[BlockReceipt], None, None]:
    """Solve the labels that are not in `held` on a cluster."""
    from dismec.cluster.pool import check_workers
    from dismec.cluster.training import ClusterJob, solve_on_cluster

    cluster: Any = place.cluster
    check_workers(cluster)
    data, placed = data_file(directory, job.data), None
    if isinstance(job.X, PlacedData):
        placed = job.X
    else:
        # A file of X and Y does not hold dense features.
        data = Path(place.source) if place.source and not job.transform.dense else data
        # The file that texts were read into does not have the weights of pairs.
        if not held.all() and (job.pairs is not None or not data.exists()):
            TrainingData(job.X, cast(Any, job.Y), job.weights, job.pairs).save(data)
    work = ClusterJob(
        directory, data, job.data, job.solver, job.transform, job.cutter(held), first, placed
    )
    return solve_on_cluster(cluster, work, _counter(job, np.flatnonzero(~held), progress))


def _counter(
    job: Job, left: npt.NDArray[np.int64], progress: Progress | None
) -> Callable[[int, npt.NDArray[np.int64]], None]:
    """Return a function that reports solved labels and their work as progress.

    Labels that are not in `left` count as done from the start.
    """
    total = job.problem.n_labels
    work = effort(job.problem.equal_labels, job.problem.label_counts)
    done, worked, all_work = total - len(left), int(work.sum() - work[left].sum()), int(work.sum())

    def count(n_labels: int, solved: npt.NDArray[np.int64]) -> None:
        nonlocal done, worked
        done += n_labels
        worked += int(work[solved].sum())
        report(progress, done, total, worked / max(all_work, 1) if done < total else 1.0)

    count(0, np.empty(0, np.int64))
    return count
