"""The recipe: dataset → blocks → engine → store; resume."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec import pruning, store
from dismec.blocks import Block, BlockStats, costs, cut, cut_evenly
from dismec.dataset import Dataset, check_names, fingerprint, indicator, save_data
from dismec.engine import solve_blocks
from dismec.errors import DataError, ModelError
from dismec.features import Transform, check_csr, check_X
from dismec.manifest import BlockReceipt, Manifest
from dismec.model import Model, open_model
from dismec.native import kernels, thread_count
from dismec.shards import check_precision, pack
from dismec.solver import Problem, SolverParams
from dismec.store import LabelTable

if TYPE_CHECKING:
    from dismec.dask_engine import Cluster

__all__ = ["TrainingParams", "fit", "train"]

T = TypeVar("T")
Blocks = dict[int, npt.NDArray[np.int64]]  # the labels of each block by its number
Mask = npt.NDArray[np.bool_]  # of labels
Progress = Callable[[int, int], None]
AUTO = "auto"

_log = logging.getLogger("dismec")

_KINDS: dict[str, Callable[[Any], Any]] = {
    "C": float,
    "delta": float,
    "tol": float,
    "tfidf": bool,
    "normalize": bool,
    "bias": float,
    "block_size": operator.index,
}


@dataclass(frozen=True)
class TrainingParams:
    """Everything that decides what a model is, apart from the data.

    Attributes
    ----------
    C
        Weight of the losses against the regulariser.
    delta
        Weights with |w| < delta are dropped; "auto" chooses it (`dismec.pruning`): the largest that
        costs at most 0.1 points of P@1, P@3 and P@5 on rows held out for this.
    tol
        LIBLINEAR's ε in the stopping rule.
    tfidf
        Multiply each feature by its inverse document frequency in the training data.
    normalize
        Scale each row to Euclidean norm 1.
    bias
        Value of the bias feature; 0 for none.
    block_size
        Labels in a block of the training, at most. Does not change the model.
    precision
        How the model stores weights: "float16", "float32", or "int8" for eight bits a weight.

    Raises
    ------
    ValueError
        For a value that is not a number or out of range.
    """

    C: float = 1.0
    delta: float | str = 0.01
    tol: float = 0.01
    tfidf: bool = False
    normalize: bool = True
    bias: float = 1.0
    block_size: int = 1000
    precision: str = "float16"

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if name == "delta" and self.chooses_delta:
                continue
            try:
                if isinstance(value, str):
                    raise TypeError
                # A number of NumPy has no place in the manifest.
                object.__setattr__(self, name, kind(value))
            except (TypeError, ValueError):
                expected = 'a number or "auto"' if name == "delta" else "a number"
                raise ValueError(f"{name} is {value!r}; expected {expected}") from None
        self.solver  # noqa: B018  its own checks
        cut(np.empty(0, np.int64), self.block_size)
        try:
            check_precision(self.precision)
        except DataError as error:
            raise ValueError(str(error)) from None
        # The solver computes in float32.
        least, most = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
        if not least <= self.C <= most:
            raise ValueError(f"C is {self.C}; expected a number from {least:.1e} to {most:.1e}")
        if self.solver.delta > most:
            raise ValueError(f"delta is {self.delta}; expected a number up to {most:.1e}")

    @property
    def chooses_delta(self) -> bool:
        """Whether `delta` is left to choose."""
        return isinstance(self.delta, str) and self.delta == AUTO

    @property
    def solver(self) -> SolverParams:
        """The part that the solver needs; of a delta left to choose the least that it can be."""
        delta = pruning.GRID[0] if self.chooses_delta else cast(float, self.delta)
        return SolverParams(C=self.C, delta=delta, tol=self.tol)


def train(
    X: Any,
    Y: Any,
    path: str | os.PathLike[str],
    params: TrainingParams | None = None,
    *,
    names: Sequence[str] | None = None,
    validation: tuple[Any, Any] | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    client: Any = None,
    source: str | os.PathLike[str] | None = None,
) -> Model:
    """Train a model into a directory, or go on where an earlier run of the same training stopped.

    Every finished block is on the disk before the next is begun to be counted: a run that is
    killed loses at most the blocks in flight, and the resumed model is byte for byte the one that
    an undisturbed run writes.

    Parameters
    ----------
    X
        (n_rows, n_features) sparse or dense; CSR float32 is used in place.
    Y
        (n_rows, n_labels) indicator, sparse or dense.
    path
        The model directory; made if need be.
    params
        Defaults as in `TrainingParams`.
    names
        One name a label.
    validation
        X and Y to choose `delta="auto"` on, instead of a tenth of the rows held out for this.
    threads
        All available CPUs by default.
    overwrite
        Replace a model that is there, finished or not.
    progress
        Called now and then with (labels done, labels in all); each label counts twice if delta is
        to be chosen first.
    client
        Where to train instead of here (``docs/cluster.md``): a client of Dask, or the address or
        scheduler file of a cluster.
    source
        The ``.xmc`` file that X and Y were loaded from, if there is one: workers of a cluster that
        see it there need not be sent the data.

    Raises
    ------
    DataError
        If X and Y, or those of `validation`, cannot be used.
    ModelError
        If the directory holds a finished or a different model and `overwrite` is not set.
    ClusterError
        If the cluster cannot be used.
    """
    directory = Path(path)
    threads = thread_count(threads)
    job = _Job.prepare(X, Y, params or TrainingParams(), names, validation)
    store.make_directory(directory)
    with store.locked(directory), _connected(client) as cluster:
        earlier = _earlier(directory, job) if not overwrite else None
        if job.trial and earlier:
            job = job.going_on(earlier)
        elif job.trial:
            job, progress = job.with_chosen_delta(threads, progress, cluster)
        manifest, held = _begin(directory, job, earlier)
        first = 1 + max((receipt.number for receipt in manifest.blocks), default=-1)
        if cluster is None:
            blocks = job.blocks(held, first)
            receipts = job.run(
                blocks, lambda block: store.write_block(directory, block), threads, progress
            )
        else:
            receipts = job.run_on(cluster, directory, source, held, first, progress)
        with closing(receipts):
            for receipt in receipts:
                manifest = manifest.with_blocks([*manifest.blocks, receipt])
                store.commit(directory, manifest)
        kernels.release_memory()  # the solver's, before more is taken
        store.finish(directory, manifest, job.params.precision, job.labels.counts)
    return open_model(directory, check=False)


def fit(
    X: Any,
    Y: Any,
    params: TrainingParams | None = None,
    *,
    names: Sequence[str] | None = None,
    validation: tuple[Any, Any] | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    client: Any = None,
) -> Model:
    """Train a model in memory; parameters as for `train`.

    On a cluster it is trained in a temporary directory, and mapped from there.
    """
    if client is not None:
        with TemporaryDirectory(prefix="dismec-", ignore_cleanup_errors=True) as folder:
            return train(
                *(X, Y, Path(folder) / "model", params),
                names=names,
                validation=validation,
                threads=threads,
                progress=progress,
                client=client,
            )
    threads = thread_count(threads)
    job = _Job.prepare(X, Y, params or TrainingParams(), names, validation)
    if job.trial:
        job, progress = job.with_chosen_delta(threads, progress)
    everything = job.blocks(np.zeros(job.problem.n_labels, np.bool_), 0)
    blocks = list(job.run(everything, lambda block: block, threads, progress))
    trained = [block.trained(job.labels.counts) for block in blocks]
    shards = list(pack(trained, job.problem.n_features, job.params.precision))
    stats = BlockStats.total([block.stats for block in blocks if block.stats])
    manifest = replace(job.manifest, isa=kernels.isa, stats=stats)
    return Model(manifest, job.transform, job.labels, shards)


class _Trial(NamedTuple):
    """The data on which delta is chosen, and a name for it."""

    X: sp.csr_array
    Y: sp.csr_array
    judge: tuple[sp.csr_array, sp.csr_array] | npt.NDArray[np.int64]  # other rows, or some of these
    source: str

    @classmethod
    def prepare(
        cls, X: sp.csr_array, Y: sp.csr_array, validation: tuple[Any, Any] | None
    ) -> _Trial:
        if Y.shape[1] < 2:
            raise DataError(
                f"delta is chosen by the order of labels, and there is {Y.shape[1]} label; "
                "give it as a number"
            )
        if validation is None:
            rows = pruning.held_out(X.shape[0])
            return cls(X, Y, rows, f"on {len(rows)} held-out rows")
        try:
            judge_X = check_X(validation[0], X.shape[1])
            judge_Y = _check_Y(validation[1], judge_X.shape[0])
        except DataError as error:
            raise DataError(f"validation data: {error}") from None
        if judge_X.shape[0] == 0:
            raise DataError("validation data: there are no rows to choose delta on")
        digest = fingerprint(judge_X, judge_Y)
        source = f"on {judge_X.shape[0]} rows of data {digest[:16]}"
        return cls(X, Y, (judge_X, judge_Y), source)

    def run(
        self,
        params: TrainingParams,
        threads: int | None,
        progress: Progress | None,
        cluster: Cluster | None,
    ) -> pruning.Choice:
        """Train at the least delta and choose."""
        X: Any = self.X
        Y: Any = self.Y
        if isinstance(self.judge, tuple):
            judge = self.judge
        else:
            judge = X[self.judge], Y[self.judge]
            others = np.delete(np.arange(X.shape[0]), self.judge)
            X, Y = X[others], Y[others]
        params = replace(params, delta=params.solver.delta)
        model = fit(X, Y, params, threads=threads, progress=progress, client=cluster)
        return pruning.choose(model, *judge, threads=threads)


@dataclass(frozen=True, eq=False)
class _Job:
    """Data that has been checked, and the manifest of the model to come."""

    X: sp.csr_array
    Y: sp.csr_array
    problem: Problem
    params: TrainingParams
    transform: Transform
    labels: LabelTable
    manifest: Manifest
    trial: _Trial | None = None  # if delta is still to be chosen

    @classmethod
    def prepare(
        cls,
        X: Any,
        Y: Any,
        params: TrainingParams,
        names: Sequence[str] | None,
        validation: tuple[Any, Any] | None = None,
    ) -> _Job:
        if validation is not None and not params.chooses_delta:
            raise DataError(f'validation data is for delta="auto", and delta is {params.delta}')
        X = check_X(X)
        Y = _check_Y(Y, X.shape[0])
        if X.shape[0] == 0:
            raise DataError("there are no rows to train on")
        known = check_names(names, Y.shape[1])
        _check_memory(X.shape[1], Y.shape[1])
        transform = Transform.fit(
            X, tfidf=params.tfidf, normalize=params.normalize, bias=params.bias
        )
        problem = Problem(X, Y, transform)
        labels = LabelTable(problem.label_counts, known, transform.idf)
        trial = _Trial.prepare(X, Y, validation) if params.chooses_delta else None
        manifest = Manifest(
            n_rows=problem.n_rows,
            n_features=problem.n_features,
            n_labels=problem.n_labels,
            params=asdict(params) | ({"delta_auto": trial.source} if trial else {}),
            transform=transform.to_dict(),
            data=fingerprint(X, Y),
            dismec=version("dismec"),
        )
        return cls(X, Y, problem, params, transform, labels, manifest, trial)

    def with_chosen_delta(
        self, threads: int | None, progress: Progress | None, cluster: Cluster | None = None
    ) -> tuple[_Job, Progress | None]:
        """The job at the delta that a trial finds, and the progress that counts on from there."""
        assert self.trial
        total = self.problem.n_labels
        first = progress and (lambda done, _: progress(done, 2 * total))
        second = progress and (lambda done, _: progress(total + done, 2 * total))
        choice = self.trial.run(self.params, threads, first, cluster)
        return self._at(choice.delta, str(choice)), second

    def going_on(self, earlier: Manifest) -> _Job:
        """The job at the delta that an earlier run has chosen."""
        delta = earlier.params.get("delta")
        if delta not in pruning.GRID:
            raise ModelError(f"the unfinished model's delta, {delta!r}, is none that is chosen")
        return self._at(float(delta), earlier.params.get("delta_effect"))

    def _at(self, delta: float, effect: Any) -> _Job:
        params = self.manifest.params | {"delta": delta, "delta_effect": effect}
        return replace(
            self,
            params=replace(self.params, delta=delta),
            manifest=replace(self.manifest, params=params),
            trial=None,
        )

    def blocks(self, held: Mask, first: int, n_blocks: int = 1) -> Blocks:
        """The labels that are not `held`, in at least so many blocks, numbered from `first`."""
        labels = np.flatnonzero(~held)
        groups = self.problem.groups[labels]
        cost = costs(groups, self.problem.label_counts[labels])
        parts = cut_evenly(groups, self.params.block_size, cost, n_blocks)
        return {first + i: labels[part] for i, part in enumerate(parts)}

    def run(
        self,
        blocks: Blocks,
        keep: Callable[[Block], T],
        threads: int | None,
        progress: Progress | None,
    ) -> Generator[T, None, None]:
        """Solve blocks here."""
        count = self._counter(blocks, progress)
        return solve_blocks(
            self.problem, self.params.solver, blocks, keep, threads=threads, progress=count
        )

    def run_on(
        self,
        cluster: Cluster,
        directory: Path,
        source: str | os.PathLike[str] | None,
        held: Mask,
        first: int,
        progress: Progress | None,
    ) -> Generator[BlockReceipt, None, None]:
        """Solve the labels that are not `held` on a cluster."""
        from dismec.cluster_training import (
            BLOCKS_A_THREAD,
            Training,
            check_workers,
            solve_on_cluster,
        )

        n_threads = sum(info.threads for info in check_workers(cluster).values())
        blocks = self.blocks(held, first, BLOCKS_A_THREAD * n_threads)
        data = Path(source) if source else store.data_file(directory, self.manifest.data)
        if blocks and not data.exists():
            save_data(Dataset(self.X, self.Y), data)
        training = Training(
            directory,
            data,
            self.manifest.data,
            self.params.solver,
            self.transform,
            costs(self.problem.groups, self.problem.label_counts),
        )
        count = self._counter(blocks, progress)
        return solve_on_cluster(cluster, training, blocks, count)

    def _counter(self, blocks: Blocks, progress: Progress | None) -> Callable[[int], None]:
        total = self.problem.n_labels
        done = total - sum(map(len, blocks.values()))

        def count(n_labels: int) -> None:
            nonlocal done
            done += n_labels
            if progress:
                progress(done, total)

        count(0)
        return count


@contextmanager
def _connected(client: Any) -> Iterator[Cluster | None]:
    """The cluster, which stays open if it was before."""
    if client is None:
        yield None
        return
    from dismec.dask_engine import Cluster

    cluster = Cluster.connect(client)
    if cluster is client:
        yield cluster
        return
    with cluster:
        if cluster.dashboard:
            _log.info("the cluster's dashboard: %s", cluster.dashboard)
        yield cluster


def _check_memory(n_features: int, n_labels: int) -> None:
    """Refuse shapes whose dense vectors alone do not fit this machine: a header may lie."""
    if not hasattr(os, "sysconf"):
        return
    # A thread's weights of 32 labels in 16 bits and some vectors; a label's counts and places.
    needed = 100 * n_features + 64 * n_labels
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > present:
        raise DataError(
            f"{n_features} features and {n_labels} labels need at least {needed >> 30} GiB of "
            f"memory; this machine has {present >> 30}"
        )


def _check_Y(Y: Any, n_rows: int) -> sp.csr_array:
    """An indicator without stored zeros."""
    Y = check_csr(Y, "Y", "labels")
    if Y.shape[0] != n_rows:
        raise DataError(f"X has {n_rows} rows, Y has shape {Y.shape}")
    if not np.isin(Y.data, (0, 1)).all():
        raise DataError("Y is not an indicator: it holds values other than 0 and 1")
    return cast(sp.csr_array, indicator(Y))


def _earlier(directory: Path, job: _Job) -> Manifest | None:
    """The manifest of an unfinished run of the same training, if there is one."""
    if not store.holds_model(directory):
        return None
    manifest = store.read_manifest(directory)
    differences = _as_asked(manifest).differences(_as_asked(job.manifest))
    if not differences and store.read_labels(directory, manifest).names != job.labels.names:
        differences = ["other label names"]
    if differences:
        raise ModelError(
            f"{directory} holds a model of another training ({', '.join(differences)}): "
            "choose another directory, or overwrite it (--overwrite)"
        )
    if manifest.complete:
        store.tidy(directory, manifest)  # should it have been killed at the very end
        raise ModelError(
            f"{directory} holds the finished model of this training already; "
            "to train it again, overwrite it (--overwrite)"
        )
    return manifest


def _as_asked(manifest: Manifest) -> Manifest:
    """The manifest with a delta that was chosen, or will be, as what it was chosen on.

    How labels are cut into blocks is not asked: it does not change the model.
    """
    params = dict(manifest.params)
    params.pop("delta_effect", None)
    params.pop("block_size", None)
    if "delta_auto" in params:
        params["delta"] = f"auto {params.pop('delta_auto')}"
    return replace(manifest, params=params)


def _begin(directory: Path, job: _Job, earlier: Manifest | None) -> tuple[Manifest, Mask]:
    """The manifest to go on from, and which labels are in the blocks that it has already."""
    held = np.zeros(job.problem.n_labels, np.bool_)
    if earlier:
        # Of what the old manifest says, only the blocks count, and only those that are whole.
        ours = replace(job.manifest, labels_sha256=earlier.labels_sha256)
        manifest = ours.with_blocks(
            receipt for receipt in earlier.blocks if _hold(directory, ours, receipt, held)
        )
        store.tidy(directory, manifest)
        return manifest, held
    store.discard(directory)
    digest = store.write_labels(directory, job.labels)
    manifest = replace(job.manifest, labels_sha256=digest)
    store.commit(directory, manifest)
    return manifest, held


def _hold(directory: Path, manifest: Manifest, receipt: BlockReceipt, held: Mask) -> bool:
    """Mark the labels of a block that an earlier run has left whole; says whether it has."""
    try:
        labels = store.read_block(directory, manifest, receipt).labels
    except ModelError:
        return False
    if held[labels].any():
        return False
    held[labels] = True
    return True
