"""Keep intermediate results of a training run in folders beside its model, to resume from.

A stage is a model of some of the rows or labels, or arrays computed with one. The manifest of the
directory states which training its stages belong to, before the first of them begins. Stages are
removed when the model is finished.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.errors import ModelError
from dismec.model.directory import make_directory, open_checked, write_hashed
from dismec.model.format import ARRAYS, STAGE
from dismec.model.manifest import Manifest
from dismec.model.model import Model
from dismec.model.opening import open_model
from dismec.training import resume
from dismec.training.job import Job
from dismec.training.request import Progress
from dismec.training.running import Workplace, run_in_memory, run_into

__all__ = ["Arrays", "Stages", "digest"]

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Stages:
    """The stages of a training run into a directory; without a directory, nothing is kept."""

    directory: Path | None
    place: Workplace

    def begin(self, job: Job, earlier: Manifest | None) -> Manifest | None:
        """Record which training this is and what it has chosen so far.

        Return the run to resume from, or None without a directory.
        """
        if self.directory is None:
            return None
        return resume.begin(self.directory, job, earlier)[0]

    def trained(self, name: str, job: Job, progress: Progress | None) -> Model:
        """Return the model of a stage, resuming an earlier run of it."""
        if self.directory is None:
            return run_in_memory(job, self.place, progress)
        folder = self.folder(name)
        make_directory(folder)
        earlier = resume.earlier_edit(folder, job, "stage")
        if earlier and earlier.complete:
            with suppress(ModelError):  # damaged files are trained again
                return open_model(folder, check=True)
            earlier = None
        run_into(folder, job, earlier, self.place, progress)
        return open_model(folder, check=False)

    def known(self, name: str, training: str) -> Arrays | None:
        """Return the arrays that an earlier run of this training kept, if they are intact."""
        if self.directory is None:
            return None
        with suppress(ModelError):
            arrays, metadata = open_checked(self._file(name), None)
            if metadata.get("training") == training and metadata.get("content") == _sum(arrays):
                return arrays
        return None

    def keep(self, name: str, training: str, found: Arrays) -> None:
        """Keep arrays, replacing those kept under this name before."""
        if self.directory is not None:
            self._file(name).parent.mkdir(exist_ok=True)
            write_hashed(self._file(name), found, training=training, content=_sum(found))

    def found(self, name: str, training: str, find: Callable[[], Arrays], *models: str) -> Arrays:
        """Return the arrays of a stage, kept by an earlier run or computed now.

        The models that they were computed with are removed.
        """
        arrays = self.known(name, training)
        if arrays is None:
            arrays = find()
            self.keep(name, training, arrays)
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


def digest(manifest: Manifest) -> str:
    """Return a digest that identifies a training run."""
    params = {key: manifest.params[key] for key in sorted(manifest.params) if key != "block_size"}
    text = json.dumps([manifest.data, params, manifest.dismec])
    return hashlib.sha256(text.encode()).hexdigest()


def _sum(arrays: Arrays) -> str:
    """Return the SHA-256 of the contents of arrays."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(name.encode())
        found.update(np.ascontiguousarray(arrays[name]).data)
    return found.hexdigest()
