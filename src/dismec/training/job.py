"""Data that has been checked → blocks of weights, here or on a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.dataset import Dataset, fingerprint, save_data
from dismec.data.matrices import check_X, check_Y
from dismec.data.names import check_names
from dismec.errors import DataError
from dismec.features.transform import Transform
from dismec.model import directory as store
from dismec.model.manifest import BlockReceipt, Manifest
from dismec.model.parts import LabelTable, Parts
from dismec.solve.block import Block
from dismec.solve.blocks import cut_evenly, effort
from dismec.solve.problem import Problem
from dismec.solve.threads import solve_blocks
from dismec.training.params import TrainingParams

if TYPE_CHECKING:
    from dismec.cluster.connection import Cluster
    from dismec.features.vocabulary import Vocabulary
    from dismec.model.calibration import Calibration

__all__ = ["Blocks", "Job", "Mask", "Progress"]

T = TypeVar("T")
Blocks = dict[int, npt.NDArray[np.int64]]  # the labels of each block by its number
Mask = npt.NDArray[np.bool_]  # of labels
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Job:
    """Data that has been checked, and what is known of the model to come."""

    X: sp.csr_array
    Y: sp.csr_array
    problem: Problem
    params: TrainingParams
    transform: Transform
    parts: Parts
    manifest: Manifest

    @classmethod
    def prepare(
        cls,
        X: Any,
        Y: Any,
        params: TrainingParams,
        names: Sequence[str] | None,
        *,
        vocabulary: Vocabulary | None = None,
        transform: Transform | None = None,
    ) -> Job:
        """Check data of a caller; `transform` is by default what `params` say, fitted to X."""
        X = check_X(X, transform.n_features if transform else None)
        Y = check_Y(Y, X.shape[0])
        if X.shape[0] == 0:
            raise DataError("there are no rows to train on")
        known = check_names(names, Y.shape[1])
        _check_memory(X.shape[1], Y.shape[1])
        if transform is None:
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
            text=vocabulary.params.to_dict() if vocabulary else None,
        )
        return cls(X, Y, problem, params, transform, Parts(labels, vocabulary), manifest)

    def told(self, **facts: Any) -> Job:
        """The same job, with more in the parameters that its manifest states."""
        manifest = replace(self.manifest, params=self.manifest.params | facts)
        return replace(self, manifest=manifest)

    def at(self, delta: float, effect: Any) -> Job:
        """The job at a delta that was chosen, with what can be said of that."""
        job = replace(self, params=replace(self.params, delta=delta))
        return job.told(delta=delta, delta_effect=effect)

    def with_C(self, C: float, table: Any) -> Job:
        """The job at a C that was chosen, with what others were tried."""
        job = replace(self, params=replace(self.params, C=C))
        return job.told(C=C, C_table=table)

    def calibrated(self, calibration: Calibration | None) -> Job:
        """The job of a model that knows this of its scores."""
        return replace(self, parts=replace(self.parts, calibration=calibration))

    def blocks(self, held: Mask, first: int, n_blocks: int = 1) -> Blocks:
        """The labels that are not `held`, in at least so many blocks, numbered from `first`."""
        labels = np.flatnonzero(~held)
        equal = self.problem.equal_labels.among(labels)
        work = effort(equal, self.problem.label_counts[labels])
        cuts = cut_evenly(equal.groups, self.params.block_size, work, n_blocks)
        return {first + i: labels[places] for i, places in enumerate(cuts)}

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
        from dismec.cluster.training import (
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
            effort(self.problem.equal_labels, self.problem.label_counts),
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
