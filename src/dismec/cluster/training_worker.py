"""Training on a worker: a run, and the task that solves one of its blocks.

A `Run` is the result of a Dask task, so Dask brings it to each worker that solves blocks, and
releases it there when the client is done or gone. The problem belongs to it: it is made once per
worker process, from rows that are memory-mapped and thus shared by the processes of a machine.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dismec.cluster.client import own_version, scratch_directory, this_worker
from dismec.cluster.file_copies import FileSpec, Home, LocalCopy, open_file, report_full_disk
from dismec.data.training_file import TrainingData
from dismec.errors import ClusterError, DataError
from dismec.features.transform import Transform
from dismec.model import weight_files
from dismec.model.manifest import BlockReceipt
from dismec.solve.problem import Problem, SolverParams
from dismec.solve.threads import solve_blocks

__all__ = ["Run", "Solved", "solve_block"]


class Run:
    """A training run: everything that solving its blocks needs.

    Blocks are written to `folder` if this process can: a folder with a random name for this run
    alone, in the model directory. Once it is gone, no process writes blocks of the run anymore.
    """

    def __init__(
        self, folder: str, data: FileSpec, params: SolverParams, transform: Transform
    ) -> None:
        self.folder, self.data, self.params, self.transform = folder, data, params, transform
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._problem: Problem | None = None
        self._copy: LocalCopy | None = None

    def __getstate__(self) -> tuple[Any, ...]:
        return self.folder, self.data, self.params, self.transform

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.folder, self.data, self.params, self.transform = state
        self._begin()

    def problem(self, home: Home | None) -> Problem:
        """Return the problem of this process; `home` and errors as in `open_file`."""
        with self._lock:
            if self._problem is None:
                rows, self._copy = open_file(self.data, self._load, home)
                costs = self.params.weighting.factors
                self._problem = Problem(
                    rows.X, rows.Y, self.transform, rows.weights, costs, rows.pairs
                )
                self._problem.equal_labels  # noqa: B018  before there are threads
            return self._problem

    def _load(self, path: Path) -> TrainingData:
        rows = TrainingData.map(path)
        if rows.fingerprint != self.data.digest:
            raise DataError(f"{path}: not the data of this training")
        return rows


class Solved(NamedTuple):
    """A solved block: its receipt, and the folder or the content of its file."""

    receipt: BlockReceipt
    file: str | bytes
    worker: str
    seconds: float  # that the task took, including the preparation of the problem


def solve_block(
    number: int,
    labels: npt.NDArray[np.int64],
    *,
    run: Run,
    software: str,
    home: Home | None,
) -> Solved:
    """Solve a block with one thread, and write its file.

    Parameters
    ----------
    number, labels
        The block.
    run
        The run that it belongs to.
    software
        The client's version of dismec, which must be that of this process.
    home
        A worker from which the data can be fetched, if known.

    Raises
    ------
    ClusterError
        If versions differ, a disk is full, or the data are missing (`NeedsFile`).
    """
    begin = time.monotonic()
    if software != own_version():
        raise ClusterError(f"the client has dismec {software}, a worker {own_version()}")
    problem = run.problem(home)

    def solve_into(folder: str) -> BlockReceipt:
        def write(block: Any) -> BlockReceipt:
            return weight_files.write_block(Path(folder), block)

        with report_full_disk(Path(folder)):
            (receipt,) = solve_blocks(problem, run.params, {number: labels}, write, threads=1)
        return receipt

    def solved(receipt: BlockReceipt, file: str | bytes) -> Solved:
        return Solved(receipt, file, this_worker(), time.monotonic() - begin)

    try:
        # Another worker may be solving the same block.
        with report_full_disk(Path(run.folder)):
            folder = mkdtemp(dir=run.folder)
    except OSError:  # not shared with the client
        with (
            report_full_disk(scratch_directory()),
            TemporaryDirectory(prefix="dismec-", dir=scratch_directory()) as own,
        ):
            receipt = solve_into(own)
            return solved(receipt, (Path(own) / receipt.file).read_bytes())
    return solved(solve_into(folder), folder)
