"""An earlier run of the same training → what there is to go on from: all that resuming rests on.

Two runs are the same training if data, parameters as they were *asked for* (a chosen C or delta
counts as how it was chosen), text settings, label names and version are the same. How labels are
cut into blocks does not change the model and is not compared.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dismec.errors import ModelError
from dismec.model import weight_files
from dismec.model.directory import (
    check_place,
    commit,
    data_file,
    discard,
    edit_folder,
    holds_model,
    locked,
    read_manifest,
    tidy,
)
from dismec.model.journal import make_journal
from dismec.model.manifest import BlockReceipt, Manifest
from dismec.model.parts import read_parts, write_parts
from dismec.model.provenance import parse, sentence
from dismec.training.delta import GRID
from dismec.training.job import Job, Mask
from dismec.training.params import AUTO

__all__ = [
    "begin",
    "check_output",
    "earlier_edit",
    "earlier_run",
    "known_C",
    "known_calibration",
    "known_lessons",
]

_log = logging.getLogger("dismec")

_NOT_ASKED = (
    "C_table",
    "delta_effect",
    "refine_effect",
    "block_size",
)  # results, and what does not matter
_CHOSEN = ("C", "delta")


def check_output(directory: Path, overwrite: bool, *, resumes: bool = True) -> None:
    """Refuse a directory that no data can be trained into: before hours of reading them.

    `resumes` says whether an unfinished model there may be gone on with.

    Raises
    ------
    ModelError
        If it holds a finished model and `overwrite` is not set, or something that is no model.
    """
    check_place(directory)
    if overwrite or not holds_model(directory):
        return
    manifest = read_manifest(directory)
    if manifest.complete:
        with suppress(OSError, ModelError), locked(directory):  # or another run is at it
            _tidy_finished(directory, manifest)
    if manifest.complete or not resumes:
        kind = "the finished model of a training" if manifest.complete else "an unfinished model"
        raise ModelError(
            f"{directory} holds {kind} already: choose another directory, or overwrite it "
            "(overwrite=True)"
        )


def earlier_run(directory: Path, job: Job) -> Manifest | None:
    """The manifest of an unfinished run of the same training, if the directory holds one.

    Raises
    ------
    ModelError
        If it holds the finished model of this training, or a model of another one.
    """
    if not holds_model(directory):
        return None
    manifest = _same_training(directory, job)
    if manifest.complete:
        _tidy_finished(directory, manifest)
        raise ModelError(
            f"{directory} holds the finished model of this training already; "
            "to train it again, overwrite it (overwrite=True)"
        )
    return manifest


def _tidy_finished(directory: Path, manifest: Manifest) -> None:
    """Do what a training that was killed at the very end has not; an unfinished edit stays."""
    if not edit_folder(directory).exists():
        tidy(directory, manifest)


def earlier_edit(folder: Path, job: Job, what: str = "edit") -> Manifest | None:
    """The manifest of an earlier run of the same edit, finished or not.

    An edit that was given up half-way for another one is dropped with a warning, where a training
    refuses: nothing but the time of the new labels is lost, and the model itself is not touched.
    """
    if not holds_model(folder):
        return None
    try:
        return _same_training(folder, job)
    except ModelError as error:
        _log.warning("dropping an unfinished %s: %s", what, error)
        return None


def begin(directory: Path, job: Job, earlier: Manifest | None) -> tuple[Manifest, Mask]:
    """The manifest to go on from, and which labels are in the blocks that it has already.

    Its journal is empty: what an earlier run had in its own is in the manifest.
    """
    held = np.zeros(job.problem.n_labels, np.bool_)
    if earlier is None:
        discard(directory, keep=data_file(directory, job.manifest.data))
    manifest = replace(job.manifest, parts=write_parts(directory, job.parts))
    if earlier:
        # Of what the old manifest says, only the blocks count, and only those that are whole.
        manifest = manifest.with_blocks(
            receipt for receipt in earlier.blocks if _hold(directory, manifest, receipt, held)
        )
    manifest = replace(manifest, journal=make_journal(directory))
    commit(directory, manifest)
    tidy(directory, manifest)
    return manifest, held


def known_C(job: Job, grid: Sequence[float], earlier: Manifest) -> Job | None:
    """The job at the C that an earlier run of it has chosen from a grid; None if it has not yet."""
    C, table = earlier.params.get("C"), earlier.params.get("C_table")
    if table is None:
        return None
    if not isinstance(C, float) or C not in grid or not isinstance(table, list):
        raise ModelError(f"the unfinished model's C, {C!r}, is not one of the grid")
    return job.with_C(C, table)


def known_lessons(directory: Path, job: Job, earlier: Manifest) -> Job | None:
    """The job with the delta and the calibration of an earlier run; None if they are not whole.

    They are not there as long as its trial is not finished.
    """
    if job.params.chooses_delta:
        delta = earlier.params.get("delta")
        if delta == AUTO:
            return None
        if delta not in GRID:
            raise ModelError(
                f"the unfinished model's delta, {delta!r}, is not one of the values to choose from"
            )
        job = job.with_delta(float(delta), earlier.params.get("delta_effect"))
    # Refining learns probabilities itself.
    return job if job.params.refine else known_calibration(directory, job, earlier)


def known_calibration(directory: Path, job: Job, earlier: Manifest) -> Job | None:
    """The job with the calibration of an earlier run; None if it needs one that is not whole."""
    if not job.params.calibrate:
        return job
    try:
        known = read_parts(directory, earlier).calibration
    except ModelError:
        return None
    return job.with_calibration(known) if known else None


def _same_training(directory: Path, job: Job) -> Manifest:
    manifest = read_manifest(directory)
    differences = _differences(manifest, job.manifest)
    if not differences:
        names = read_parts(directory, manifest).labels.names
        differences = [] if names == job.parts.labels.names else ["other label names"]
    if differences:
        raise ModelError(
            f"{directory} holds a model of another training ({', '.join(differences)}): "
            "choose another directory, or overwrite it (overwrite=True)"
        )
    return manifest


def _differences(earlier: Manifest, now: Manifest) -> list[str]:
    """What tells one training from another, for a person."""
    found = ["other data"] if earlier.data != now.data else []
    before, after = _asked(earlier), _asked(now)
    found += [
        f"{key} {_as_read(key, before.get(key))} instead of {_as_read(key, after.get(key))}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    if earlier.text != now.text:
        found.append("texts read in another way")
    if earlier.dismec != now.dismec:
        found.append(f"by dismec {earlier.dismec}")
    return found


def _asked(manifest: Manifest) -> dict[str, Any]:
    """The parameters with a C or delta that was chosen, or will be, as how it is chosen."""
    params = {k: parse(k, v) for k, v in manifest.params.items() if k not in _NOT_ASKED}
    for key in _CHOSEN:
        if f"{key}_auto" in params:
            params[key] = params.pop(f"{key}_auto")
    return params


def _as_read(key: str, value: Any) -> Any:
    """A value of `_asked` as a person reads it."""
    text = sentence(f"{key}_auto" if key in _CHOSEN else key, value)
    return f"auto {text}" if key in _CHOSEN and isinstance(value, dict) else text


def _hold(directory: Path, manifest: Manifest, receipt: BlockReceipt, held: Mask) -> bool:
    """Mark the labels of a block that an earlier run has left whole; says whether it has."""
    try:
        labels = weight_files.read_block(directory, manifest, receipt).labels
    except ModelError:
        return False
    if held[labels].any():
        return False
    held[labels] = True
    return True
