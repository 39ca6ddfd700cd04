"""The recipe: dataset → blocks → engine → store; resume."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import kernels, thread_count
from dismec.data.dataset import fingerprint
from dismec.data.matrices import check_X, check_Y
from dismec.errors import DataError, ModelError
from dismec.model import directory as store
from dismec.model.manifest import BlockReceipt, Manifest
from dismec.model.model import Model, open_model
from dismec.model.parts import read_parts, write_parts
from dismec.model.shards import pack
from dismec.solve.block import BlockStats
from dismec.training import calibrating
from dismec.training import delta as pruning
from dismec.training.job import Job, Mask, Progress
from dismec.training.params import TrainingParams

if TYPE_CHECKING:
    from dismec.cluster.connection import Cluster
    from dismec.features.vocabulary import Vocabulary

__all__ = [
    "Judge",
    "TrainingParams",
    "connected",
    "earlier_run",
    "fit",
    "run",
    "train",
    "train_job",
]

_log = logging.getLogger("dismec")

Settle = Callable[
    [Job, Manifest | None, "Cluster | None"],
    tuple[Job, Progress | None],
]


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
    vocabulary: Vocabulary | None = None,
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
        X and Y to choose `delta="auto"` and to calibrate on, instead of a tenth of the rows held
        out for this.
    threads
        All available CPUs by default.
    overwrite
        Replace a model that is there, finished or not.
    progress
        Called now and then with (labels done, labels in all); each label counts twice if rows are
        held out, as it is then trained twice.
    client
        Where to train instead of here (``docs/cluster.md``): a client of Dask, or the address or
        scheduler file of a cluster.
    source
        The ``.xmc`` file that X and Y were loaded from, if there is one: workers of a cluster that
        see it there need not be sent the data.
    vocabulary
        What has made X of texts; it becomes part of the model.

    Raises
    ------
    DataError
        If X and Y, or those of `validation`, cannot be used.
    ModelError
        If the directory holds a finished or a different model and `overwrite` is not set.
    ClusterError
        If the cluster cannot be used.
    """
    job = Job.prepare(X, Y, params or TrainingParams(), names, vocabulary=vocabulary)
    return train_job(
        *(Path(path), job, validation),
        threads=threads,
        overwrite=overwrite,
        progress=progress,
        client=client,
        source=source,
    )


def train_job(
    directory: Path,
    job: Job,
    validation: tuple[Any, Any] | None,
    *,
    threads: int | None,
    overwrite: bool,
    progress: Progress | None,
    client: Any,
    source: str | os.PathLike[str] | None,
    settle: Settle | None = None,
) -> Model:
    """What `train` does once the data are checked.

    `settle` is called before anything is trained, with the job, the manifest of an earlier run of
    it and the cluster, and returns the job that is to be done and its progress. What it decides has
    to be among what `_as_asked` leaves out.
    """
    threads = thread_count(threads)
    trial = _Trial.prepare(job, validation)
    store.make_directory(directory)
    with store.locked(directory), connected(client) as cluster:
        earlier = None if overwrite else earlier_run(directory, trial.job)
        if earlier and earlier.complete:
            store.tidy(directory, earlier)  # should it have been killed at the very end
            raise ModelError(
                f"{directory} holds the finished model of this training already; "
                "to train it again, overwrite it (--overwrite)"
            )
        if settle:
            settled, progress = settle(trial.job, earlier, cluster)
            trial = trial._replace(job=settled)
        job, progress = trial.outcome(directory, earlier, threads, progress, cluster)
        run(directory, job, earlier, threads, progress, cluster, source)
    return open_model(directory, check=False)


def run(
    directory: Path,
    job: Job,
    earlier: Manifest | None,
    threads: int | None,
    progress: Progress | None,
    cluster: Cluster | None = None,
    source: str | os.PathLike[str] | None = None,
) -> Manifest:
    """Do a job into a directory that is locked, after an earlier run of it if there was one."""
    manifest, held = _begin(directory, job, earlier)
    first = 1 + max((receipt.number for receipt in manifest.blocks), default=-1)
    if cluster is None:
        blocks = job.blocks(held, first)
        receipts = job.run(
            blocks,
            lambda block: store.write_block(directory, block),
            threads,
            progress,
        )
    else:
        receipts = job.run_on(cluster, directory, source, held, first, progress)
    with closing(receipts):
        for receipt in receipts:
            manifest = manifest.with_blocks([*manifest.blocks, receipt])
            store.commit(directory, manifest)
    kernels.release_memory()  # the solver's, before more is taken
    return store.finish(directory, manifest, job.params.precision, job.parts.labels.counts)


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
    vocabulary: Vocabulary | None = None,
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
                vocabulary=vocabulary,
            )
    threads = thread_count(threads)
    job = Job.prepare(X, Y, params or TrainingParams(), names, vocabulary=vocabulary)
    trial = _Trial.prepare(job, validation)
    job, progress = trial.outcome(None, None, threads, progress)
    everything = job.blocks(np.zeros(job.problem.n_labels, np.bool_), 0)
    blocks = list(job.run(everything, lambda block: block, threads, progress))
    trained = [block.trained(job.parts.labels.counts) for block in blocks]
    shards = list(pack(trained, job.problem.n_features, job.params.precision))
    stats = BlockStats.total([block.stats for block in blocks if block.stats])
    manifest = replace(job.manifest, isa=kernels.isa, stats=stats)
    return Model(manifest, job.transform, job.parts, shards)


class Judge(NamedTuple):
    """Rows that a trial is not trained on, to judge it by."""

    given: tuple[sp.csr_array, sp.csr_array] | None
    held_out: npt.NDArray[np.int64]  # else rows of the job

    @classmethod
    def prepare(cls, job: Job, validation: tuple[Any, Any] | None) -> Judge:
        """Those that are given, or some of the job's own."""
        if validation is None:
            return cls(None, pruning.held_out(job.X.shape[0]))
        given = _check_validation(validation, job.X.shape[1])
        truth: Any = given[1]
        if not truth[:, : job.Y.shape[1]].nnz:
            raise DataError("validation data: no row has a label of the training data")
        return cls(given, np.empty(0, np.int64))

    def __str__(self) -> str:
        if self.given is None:
            return f"on {len(self.held_out)} held-out rows"
        return f"on {self.given[0].shape[0]} rows of data {fingerprint(*self.given)[:16]}"

    def parted(self, job: Job) -> tuple[Any, Any, Any, Any]:
        """X and Y to train on, and those to judge by."""
        X: Any = job.X
        Y: Any = job.Y
        if self.given is not None:
            return X, Y, *self.given
        judge = X[self.held_out], Y[self.held_out]
        others = np.delete(np.arange(X.shape[0]), self.held_out)
        X, Y = X[others], Y[others]
        if job.parts.vocabulary:
            # Of later texts, words that no training text has are not counted.
            known = np.bincount(X.indices, minlength=X.shape[1]) > 0
            judge = _only_columns(judge[0], known), judge[1]
        return X, Y, *judge


class _Trial(NamedTuple):
    """A training on some of the rows, to learn from the others what the parameters leave open."""

    job: Job  # its manifest says on what it is learned
    judge: Judge | None

    @classmethod
    def prepare(cls, job: Job, validation: tuple[Any, Any] | None) -> _Trial:
        params = job.params
        if not params.holds_out:
            if validation is not None:
                raise DataError(
                    'validation data is for delta="auto" and for calibrate, '
                    f"and delta is {params.delta}"
                )
            return cls(job, None)
        n_labels = job.Y.shape[1]
        if params.chooses_delta and n_labels < 2:
            raise DataError(
                f"delta is chosen by the order of labels, and there is {n_labels} label; "
                "give it as a number"
            )
        judge = Judge.prepare(job, validation)
        facts = {"delta_auto": str(judge)} if params.chooses_delta else {}
        if params.calibrate:
            facts["calibrated"] = str(judge)
        return cls(job.told(**facts), judge)

    def outcome(
        self,
        directory: Path | None,
        earlier: Manifest | None,
        threads: int | None,
        progress: Progress | None,
        cluster: Cluster | None = None,
    ) -> tuple[Job, Progress | None]:
        """The job with what is learned, or was by an earlier run; and the progress from there."""
        if self.judge is None:
            return self.job, progress
        if directory and earlier:
            known = self._known(directory, earlier)
            if known:
                return known, progress
        total = self.job.problem.n_labels
        first = progress and (lambda done, _: progress(done, 2 * total))
        second = progress and (lambda done, _: progress(total + done, 2 * total))
        return self._run(self.judge, threads, first, cluster), second

    def _known(self, directory: Path, earlier: Manifest) -> Job | None:
        """The job with what an earlier run has learned, if that is whole."""
        job = self.job
        if job.params.chooses_delta:
            delta = earlier.params.get("delta")
            if delta not in pruning.GRID:
                raise ModelError(f"the unfinished model's delta, {delta!r}, is none that is chosen")
            job = job.at(float(delta), earlier.params.get("delta_effect"))
        if not job.params.calibrate:
            return job
        try:
            known = read_parts(directory, earlier).calibration
        except ModelError:
            return None
        return job.calibrated(known) if known else None

    def _run(
        self,
        judge: Judge,
        threads: int | None,
        progress: Progress | None,
        cluster: Cluster | None,
    ) -> Job:
        job = self.job
        X, Y, judge_X, truth = judge.parted(job)
        params = replace(job.params, delta=job.params.solver.delta, calibrate=False)
        model = fit(X, Y, params, threads=threads, progress=progress, client=cluster)
        if job.params.chooses_delta:
            choice = pruning.choose(model, judge_X, truth, threads=threads)
            job = job.at(choice.delta, str(choice))
            model = model.pruned(choice.delta)
        if job.params.calibrate:
            curves = calibrating.fit(
                model,
                judge_X,
                truth[:, : model.n_labels],  # it may have labels that the training has not
                counts=job.parts.labels.counts,
                threads=threads,
            )
            job = job.calibrated(curves.taken_from(job.problem.equal_labels.groups))
        return job


def _only_columns(X: Any, keep: npt.NDArray[np.bool_]) -> Any:
    """The matrix without the entries of other columns."""
    kept: Any = X.copy()
    kept.data[~keep[kept.indices]] = 0
    kept.eliminate_zeros()
    return kept


def _check_validation(given: tuple[Any, Any], n_features: int) -> tuple[sp.csr_array, sp.csr_array]:
    try:
        X = check_X(given[0], n_features)
        Y = check_Y(given[1], X.shape[0])
    except DataError as error:
        raise DataError(f"validation data: {error}") from None
    if X.shape[0] == 0:
        raise DataError("validation data: there are no rows")
    return X, Y


@contextmanager
def connected(client: Any) -> Iterator[Cluster | None]:
    """The cluster, which stays open if it was before."""
    if client is None:
        yield None
        return
    from dismec.cluster.connection import Cluster

    cluster = Cluster.connect(client)
    if cluster is client:
        yield cluster
        return
    with cluster:
        if cluster.dashboard:
            _log.info("the cluster's dashboard: %s", cluster.dashboard)
        yield cluster


def earlier_run(directory: Path, job: Job) -> Manifest | None:
    """The manifest of the same training, finished or not, if the directory holds one."""
    if not store.holds_model(directory):
        return None
    manifest = store.read_manifest(directory)
    differences = _as_asked(manifest).differences(_as_asked(job.manifest))
    if not differences:
        names = read_parts(directory, manifest).labels.names
        differences = [] if names == job.parts.labels.names else ["other label names"]
    if differences:
        raise ModelError(
            f"{directory} holds a model of another training ({', '.join(differences)}): "
            "choose another directory, or overwrite it (--overwrite)"
        )
    return manifest


def _as_asked(manifest: Manifest) -> Manifest:
    """The manifest with a C or delta that was chosen, or will be, as what it was chosen on.

    How labels are cut into blocks is not asked: it does not change the model.
    """
    params = dict(manifest.params)
    for key in ("C_table", "delta_effect", "block_size"):
        params.pop(key, None)
    for key in ("C", "delta"):
        if f"{key}_auto" in params:
            params[key] = f"auto {params.pop(f'{key}_auto')}"
    return replace(manifest, params=params)


def _begin(directory: Path, job: Job, earlier: Manifest | None) -> tuple[Manifest, Mask]:
    """The manifest to go on from, and which labels are in the blocks that it has already."""
    held = np.zeros(job.problem.n_labels, np.bool_)
    if earlier is None:
        store.discard(directory, keep=store.data_file(directory, job.manifest.data))
    manifest = replace(job.manifest, parts=write_parts(directory, job.parts))
    if earlier:
        # Of what the old manifest says, only the blocks count, and only those that are whole.
        manifest = manifest.with_blocks(
            receipt for receipt in earlier.blocks if _hold(directory, manifest, receipt, held)
        )
    store.commit(directory, manifest)
    store.tidy(directory, manifest)
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
