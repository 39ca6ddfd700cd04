"""The recipe: dataset → blocks → engine → store; resume."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec import pruning, store
from dismec.blocks import Block, BlockStats, cut
from dismec.dataset import check_names, fingerprint, indicator
from dismec.engine import solve_blocks
from dismec.errors import DataError, ModelError
from dismec.features import Transform, check_csr, check_X
from dismec.manifest import BlockReceipt, Manifest
from dismec.model import Model, open_model
from dismec.native import kernels, thread_count
from dismec.shards import check_precision, pack
from dismec.solver import Problem, SolverParams
from dismec.store import LabelTable

__all__ = ["TrainingParams", "fit", "train"]

T = TypeVar("T")
Blocks = dict[int, npt.NDArray[np.int64]]  # the labels of each block by its number
Progress = Callable[[int, int], None]
AUTO = "auto"

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
        Labels in a block of the training. Does not change the model.
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

    Raises
    ------
    DataError
        If X and Y, or those of `validation`, cannot be used.
    ModelError
        If the directory holds a finished or a different model and `overwrite` is not set.
    """
    directory = Path(path)
    threads = thread_count(threads)
    job = _Job.prepare(X, Y, params or TrainingParams(), names, validation)
    store.make_directory(directory)
    with store.locked(directory):
        earlier = _earlier(directory, job) if not overwrite else None
        if job.trial and earlier:
            job = job.going_on(earlier)
        elif job.trial:
            job, progress = job.with_chosen_delta(threads, progress)
        manifest = _begin(directory, job, earlier)
        done = {receipt.number for receipt in manifest.blocks}
        wanted = {number: labels for number, labels in job.blocks.items() if number not in done}
        for receipt in job.run(
            wanted, lambda block: store.write_block(directory, block), threads, progress
        ):
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
) -> Model:
    """Train a model in memory; parameters as for `train`."""
    threads = thread_count(threads)
    job = _Job.prepare(X, Y, params or TrainingParams(), names, validation)
    if job.trial:
        job, progress = job.with_chosen_delta(threads, progress)
    blocks = list(job.run(job.blocks, lambda block: block, threads, progress))
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
        self, params: TrainingParams, threads: int | None, progress: Progress | None
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
        model = fit(X, Y, params, threads=threads, progress=progress)
        return pruning.choose(model, *judge, threads=threads)


@dataclass(frozen=True, eq=False)
class _Job:
    """Data that has been checked, and the manifest of the model to come."""

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
        return cls(problem, params, transform, labels, manifest, trial)

    def with_chosen_delta(
        self, threads: int | None, progress: Progress | None
    ) -> tuple[_Job, Progress | None]:
        """The job at the delta that a trial finds, and the progress that counts on from there."""
        assert self.trial
        total = self.problem.n_labels
        first = progress and (lambda done, _: progress(done, 2 * total))
        second = progress and (lambda done, _: progress(total + done, 2 * total))
        choice = self.trial.run(self.params, threads, first)
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

    @cached_property
    def blocks(self) -> Blocks:
        return dict(enumerate(cut(self.problem.groups, self.params.block_size)))

    def run(
        self,
        blocks: Blocks,
        keep: Callable[[Block], T],
        threads: int | None,
        progress: Progress | None,
    ) -> Iterator[T]:
        total = self.problem.n_labels
        done = total - sum(map(len, blocks.values()))

        def count(n_labels: int) -> None:
            nonlocal done
            done += n_labels
            if progress:
                progress(done, total)

        count(0)
        return solve_blocks(
            self.problem, self.params.solver, blocks, keep, threads=threads, progress=count
        )


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
    """The manifest with a delta that was chosen, or will be, as what it was chosen on."""
    params = dict(manifest.params)
    params.pop("delta_effect", None)
    if "delta_auto" in params:
        params["delta"] = f"auto {params.pop('delta_auto')}"
    return replace(manifest, params=params)


def _begin(directory: Path, job: _Job, earlier: Manifest | None) -> Manifest:
    """The manifest to go on from, with the blocks that an earlier run has left whole."""
    if earlier:
        # Of what the old manifest says, only the blocks count, and only those that are whole.
        ours = replace(job.manifest, labels_sha256=earlier.labels_sha256)
        manifest = ours.with_blocks(
            receipt for receipt in earlier.blocks if _whole(directory, ours, receipt, job.blocks)
        )
        store.tidy(directory, manifest)
        return manifest
    store.discard(directory)
    digest = store.write_labels(directory, job.labels)
    manifest = replace(job.manifest, labels_sha256=digest)
    store.commit(directory, manifest)
    return manifest


def _whole(directory: Path, manifest: Manifest, receipt: BlockReceipt, blocks: Blocks) -> bool:
    """Whether an earlier run has left the block that this one would write."""
    try:
        block = store.read_block(directory, manifest, receipt)
    except ModelError:
        return False
    return np.array_equal(block.labels, blocks.get(block.number, ()))
