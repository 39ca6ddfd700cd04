"""What a training does on the way to its model → folders beside it, to resume from after a kill.

A stage is a model of some rows or labels, or arrays that were found with one. The manifest of the
directory says which training its stages belong to, from before the first of them begins; they are
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
    """The stages of a training into a directory; without a directory nothing is kept."""

    directory: Path | None
    place: Workplace

    def begin(self, job: Job, earlier: Manifest | None) -> Manifest | None:
        """Write down which training this is and what it has settled so far.

        Returns the run to go on from; None without a directory.
        """
        if self.directory is None:
            return None
        return resume.begin(self.directory, job, earlier)[0]

    def trained(self, name: str, job: Job, progress: Progress | None) -> Model:
        """The model of a stage; what an earlier run has done of it is not done again."""
        if self.directory is None:
            return run_in_memory(job, self.place, progress)
        folder = self.folder(name)
        make_directory(folder)
        earlier = resume.earlier_edit(folder, job, "stage")
        if earlier and earlier.complete:
            with suppress(ModelError):  # damaged since
                return open_model(folder, check=True)
            earlier = None
        run_into(folder, job, earlier, self.place, progress)
        return open_model(folder, check=False)

    def known(self, name: str, training: str) -> Arrays | None:
        """What an earlier run of this training has found, if it is there and whole."""
        if self.directory is None:
            return None
        with suppress(ModelError):
            arrays, metadata = open_checked(self._file(name), None)
            if metadata.get("training") == training and metadata.get("content") == _sum(arrays):
                return arrays
        return None

    def keep(self, name: str, training: str, found: Arrays) -> None:
        """Keep what was found, in place of what was found under this name before."""
        if self.directory is not None:
            self._file(name).parent.mkdir(exist_ok=True)
            write_hashed(self._file(name), found, training=training, content=_sum(found))

    def found(self, name: str, training: str, find: Callable[[], Arrays], *models: str) -> Arrays:
        """What a stage has found, now or in an earlier run; its models are not needed any more."""
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
        """Where the model of a stage is, if there is a directory."""
        assert self.directory is not None
        return self.directory / f"{STAGE}{name}"

    def _file(self, name: str) -> Path:
        return self.folder("found") / f"{name}{ARRAYS}"


def digest(manifest: Manifest) -> str:
    """What tells one training from another."""
    params = {key: manifest.params[key] for key in sorted(manifest.params) if key != "block_size"}
    text = json.dumps([manifest.data, params, manifest.dismec])
    return hashlib.sha256(text.encode()).hexdigest()


def _sum(arrays: Arrays) -> str:
    """The SHA-256 of what arrays hold."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(name.encode())
        found.update(np.ascontiguousarray(arrays[name]).data)
    return found.hexdigest()
