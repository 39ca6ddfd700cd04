"""The recipe: dataset → blocks → engine → store; resume."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec import store
from dismec.blocks import Block, Receipt, cut
from dismec.dataset import check_names, fingerprint, indicator
from dismec.engine import solve_blocks
from dismec.errors import DataError, ModelError
from dismec.features import Transform, check_csr, check_X
from dismec.model import Model, open_model
from dismec.native import thread_count
from dismec.solver import Problem, SolverParams
from dismec.store import LabelTable, Manifest

__all__ = ["TrainingParams", "fit", "train"]

T = TypeVar("T")
Blocks = dict[int, npt.NDArray[np.int64]]  # the labels of each block by its number
Progress = Callable[[int, int], None]

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
        Weights with |w| < delta are dropped.
    tol
        LIBLINEAR's ε in the stopping rule.
    tfidf
        Multiply each feature by its inverse document frequency in the training data.
    normalize
        Scale each row to Euclidean norm 1.
    bias
        Value of the bias feature; 0 for none.
    block_size
        Labels in a block of the model. Does not change any weight.

    Raises
    ------
    ValueError
        For a value that is not a number or out of range.
    """

    C: float = 1.0
    delta: float = 0.01
    tol: float = 0.01
    tfidf: bool = False
    normalize: bool = True
    bias: float = 1.0
    block_size: int = 1000

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            try:
                if isinstance(value, str):
                    raise TypeError
                # A number of NumPy has no place in the manifest.
                object.__setattr__(self, name, kind(value))
            except (TypeError, ValueError):
                raise ValueError(f"{name} is {value!r}; expected a number") from None
        self.solver  # noqa: B018  its own checks
        cut(np.empty(0, np.int64), self.block_size)
        # The solver computes in float32.
        least, most = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
        if not least <= self.C <= most:
            raise ValueError(f"C is {self.C}; expected a number from {least:.1e} to {most:.1e}")
        if self.delta > most:
            raise ValueError(f"delta is {self.delta}; expected a number up to {most:.1e}")

    @property
    def solver(self) -> SolverParams:
        """The part that the solver needs."""
        return SolverParams(C=self.C, delta=self.delta, tol=self.tol)


def train(
    X: Any,
    Y: Any,
    path: str | os.PathLike[str],
    params: TrainingParams | None = None,
    *,
    names: Sequence[str] | None = None,
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
    threads
        All available CPUs by default.
    overwrite
        Replace a model that is there, finished or not.
    progress
        Called now and then with (labels done, labels in all).

    Raises
    ------
    DataError
        If X and Y cannot be used.
    ModelError
        If the directory holds a finished or a different model and `overwrite` is not set.
    """
    directory = Path(path)
    threads = thread_count(threads)
    job = _Job.prepare(X, Y, params or TrainingParams(), names)
    store.make_directory(directory)
    with store.locked(directory):
        manifest = _begin(directory, job, overwrite)
        done = {receipt.number for receipt in manifest.blocks}
        wanted = {number: labels for number, labels in job.blocks.items() if number not in done}
        for receipt in job.run(
            wanted, lambda block: store.write_block(directory, block), threads, progress
        ):
            manifest = manifest.with_blocks([*manifest.blocks, receipt])
            store.commit(directory, manifest)
    return open_model(directory, check=False)


def fit(
    X: Any,
    Y: Any,
    params: TrainingParams | None = None,
    *,
    names: Sequence[str] | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Model:
    """Train a model in memory; parameters as for `train`."""
    threads = thread_count(threads)
    job = _Job.prepare(X, Y, params or TrainingParams(), names)
    blocks = sorted(
        job.run(job.blocks, lambda block: block, threads, progress),
        key=lambda block: block.number,
    )
    return Model(job.manifest, job.transform, job.labels, blocks)


@dataclass(frozen=True, eq=False)
class _Job:
    """Data that has been checked, and the manifest of the model to come."""

    problem: Problem
    params: TrainingParams
    transform: Transform
    labels: LabelTable
    manifest: Manifest

    @classmethod
    def prepare(cls, X: Any, Y: Any, params: TrainingParams, names: Sequence[str] | None) -> _Job:
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
        manifest = Manifest(
            n_rows=problem.n_rows,
            n_features=problem.n_features,
            n_labels=problem.n_labels,
            params=asdict(params),
            transform=transform.to_dict(),
            data=fingerprint(X, Y),
            dismec=version("dismec"),
        )
        return cls(problem, params, transform, labels, manifest)

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


def _begin(directory: Path, job: _Job, overwrite: bool) -> Manifest:
    """The manifest to go on from, with the blocks that an earlier run has left whole."""
    if store.holds_model(directory) and not overwrite:
        manifest = store.read_manifest(directory)
        differences = manifest.differences(job.manifest)
        if not differences and store.read_labels(directory, manifest).names != job.labels.names:
            differences = ["other label names"]
        if differences:
            raise ModelError(
                f"{directory} holds a model of another training ({', '.join(differences)}): "
                "choose another directory, or overwrite it (--overwrite)"
            )
        if manifest.complete:
            raise ModelError(
                f"{directory} holds the finished model of this training already; "
                "to train it again, overwrite it (--overwrite)"
            )
        # Of what the old manifest says, only the blocks count, and only those that are whole.
        ours = replace(job.manifest, labels_sha256=manifest.labels_sha256)
        manifest = ours.with_blocks(
            receipt for receipt in manifest.blocks if _whole(directory, ours, receipt, job.blocks)
        )
        store.tidy(directory, manifest)
        return manifest
    store.discard(directory)
    digest = store.write_labels(directory, job.labels)
    manifest = replace(job.manifest, labels_sha256=digest)
    store.commit(directory, manifest)
    return manifest


def _whole(directory: Path, manifest: Manifest, receipt: Receipt, blocks: Blocks) -> bool:
    """Whether an earlier run has left the block that this one would write."""
    try:
        block = store.read_block(directory, manifest, receipt)
    except ModelError:
        return False
    return np.array_equal(block.labels, blocks.get(block.number, ()))
