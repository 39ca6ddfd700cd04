"""Find what an earlier run of the same training has left to resume from.

Two runs are the same training if they have the same data, requested parameters (a C or delta that
was chosen counts as the way of choosing it), text settings, label names and version. How labels are
cut into blocks does not change the model and is not compared.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dismec.errors import ModelError
from dismec.features.vocabulary import TextParams
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
from dismec.model.manifest import ENCODED, BlockReceipt, Manifest, make_journal
from dismec.model.provenance import sentence
from dismec.model.sidecar_files import read_parts, write_parts
from dismec.training.job import Job, Mask
from dismec.training.params import AUTO, DELTAS

_log = logging.getLogger("dismec")

_NOT_COMPARED = (
    "C_table",
    "dense_scale_table",
    "terms_table",
    "delta_effect",
    "refine_effect",
    "sqrt_effect",
    "label_texts_effect",
    "label_texts_curve",
    "block_size",
)  # results, and settings that do not change the model
_CHOSEN = ("C", "delta", "dense_scale")


def check_output(directory: Path, overwrite: bool, *, resumes: bool = True) -> None:
    """Raise `ModelError` if no model can be trained into a directory, before hours of reading data.

    `resumes` says whether an unfinished model there may be resumed.

    Raises `ModelError` if it holds a finished model and `overwrite` is not set, or files that are
    not a model.
    """
    check_place(directory)
    if overwrite or not holds_model(directory):
        return
    manifest = read_manifest(directory)
    if manifest.complete:
        with suppress(OSError, ModelError), locked(directory):  # or another run is writing
            _tidy_finished(directory, manifest)
    if manifest.complete or not resumes:
        kind = "a finished model" if manifest.complete else "an unfinished model"
        raise ModelError(
            f"{directory} already holds {kind}: choose another directory, or overwrite it",
            "overwrite=True",
        )


def earlier_run(directory: Path, job: Job) -> Manifest | None:
    """Return the manifest of an unfinished run of the same training, if the directory holds one.

    Raises `ModelError` if it holds the finished model of this training run, or a different model.
    """
    if not holds_model(directory):
        return None
    manifest = _same_training(directory, job)
    if manifest.complete:
        _tidy_finished(directory, manifest)
        raise ModelError(
            f"{directory} already holds the finished model of this training; "
            "to train it again, overwrite it",
            "overwrite=True",
        )
    return manifest


def _tidy_finished(directory: Path, manifest: Manifest) -> None:
    """Clean up after a run that was killed at the very end, but keep an unfinished edit."""
    if not edit_folder(directory).exists():
        tidy(directory, manifest)


def earlier_edit(folder: Path, job: Job, what: str = "edit") -> Manifest | None:
    """Return the manifest of an earlier run of the same edit, finished or not.

    A different unfinished edit is dropped with a warning, where training would raise: only the
    time spent on its labels is lost, and the model itself is not touched.
    """
    if not holds_model(folder):
        return None
    try:
        return _same_training(folder, job)
    except ModelError as error:
        _log.warning("dropping an unfinished %s: %s", what, error)
        return None


def begin(directory: Path, job: Job, earlier: Manifest | None) -> tuple[Manifest, Mask]:
    """Return the manifest to start from, and a mask of the labels whose blocks are already there.

    Its journal is empty: the blocks in an earlier run's journal become part of the manifest.
    """
    held = np.zeros(job.problem.n_labels, np.bool_)
    if earlier is None:
        discard(directory, data_file(directory, job.manifest.data), directory / ENCODED)
    manifest = replace(job.manifest, parts=write_parts(directory, job.parts))
    if earlier:
        # Of the old manifest, only blocks that are intact are taken over.
        manifest = manifest.with_blocks(
            receipt
            for receipt in earlier.blocks
            if _mark_intact(directory, manifest, receipt, held)
        )
    manifest = replace(manifest, journal=make_journal(directory))
    commit(directory, manifest)
    tidy(directory, manifest)
    return manifest, held


def earlier_terms(directory: Path) -> tuple[TextParams, tuple[dict[str, Any], ...]] | None:
    """Return the terms of texts that an unfinished run has chosen, and how, if there is one."""
    manifest = read_manifest(directory) if holds_model(directory) else None
    table = manifest and manifest.params.get("terms_table")
    if not (manifest and manifest.text and isinstance(table, list) and table):
        return None
    return TextParams.from_dict(manifest.text), tuple(table)


def known_C(job: Job, earlier: Manifest) -> Job | None:
    """Return the job with the C that an earlier run chose, or None."""
    C, table = earlier.params.get("C"), earlier.params.get("C_table")
    if table is None:
        return None
    weight = earlier.params.get("positive_weight")
    if not (isinstance(C, float) and isinstance(weight, float) and isinstance(table, list)):
        raise ModelError(f"the unfinished model's C, {C!r}, is not a chosen one")
    effect = earlier.params.get("sqrt_effect")
    return (job.with_sqrt(effect) if isinstance(effect, dict) else job).with_C(C, weight, table)


def known_dense_scale(job: Job, earlier: Manifest) -> Job | None:
    """Return the job with the scale of embeddings that an earlier run chose, or None."""
    scale, table = earlier.params.get("dense_scale"), earlier.params.get("dense_scale_table")
    if table is None:
        return None
    if not (isinstance(scale, float) and scale > 0 and isinstance(table, list)):
        raise ModelError(f"the unfinished model's dense_scale, {scale!r}, is not a chosen one")
    return job.with_dense_scale(scale, table)


def known_trial(directory: Path, job: Job, earlier: Manifest) -> Job | None:
    """Return the job with the delta and the calibration of an earlier run, or None if incomplete.

    They are stored when the trial is finished.
    """
    if job.params.chooses_delta:
        delta = earlier.params.get("delta")
        if delta == AUTO:
            return None
        if delta not in DELTAS:
            raise ModelError(
                f"the unfinished model's delta, {delta!r}, is not one of the candidates"
            )
        job = job.with_delta(float(delta), earlier.params.get("delta_effect"))
    if job.matches is not None:
        effect = earlier.params.get("label_texts_effect")
        if not isinstance(effect, dict):
            return None
        job = job.with_text_weight(effect)
        if curve := earlier.params.get("label_texts_curve"):
            job = job.with_facts(label_texts_curve=curve)
    # Refining learns its own probabilities.
    return job if job.params.refine else known_calibration(directory, job, earlier)


def known_calibration(directory: Path, job: Job, earlier: Manifest) -> Job | None:
    """Return the job with the calibration of an earlier run, or None if one is missing."""
    if not job.params.calibrate:
        return job
    try:
        known = read_parts(directory, earlier).calibration
    except ModelError:
        return None
    return job.with_calibration(known) if known else None


def _same_training(directory: Path, job: Job) -> Manifest:
    """Return the manifest in a directory; raise `ModelError` if the model differs."""
    manifest = read_manifest(directory)
    differences = _differences(manifest, job.manifest)
    if not differences:
        names = read_parts(directory, manifest).labels.names
        differences = [] if names == job.parts.labels.names else ["other label names"]
    if differences:
        raise ModelError(
            f"{directory} holds a different model ({', '.join(differences)}): "
            "choose another directory, or overwrite it",
            "overwrite=True",
        )
    return manifest


def _differences(earlier: Manifest, now: Manifest) -> list[str]:
    """Describe the differences between two training runs."""
    found = ["other data"] if earlier.data != now.data else []
    before, after = _requested(earlier), _requested(now)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            had, has = (_readable(key, params.get(key)) for params in (before, after))
            found.append(f"other {key}" if had == has else f"{key} {had} instead of {has}")
    if earlier.text != now.text:
        found.append("other text settings")
    if (earlier.encoder or {}).get("sha256") != (now.encoder or {}).get("sha256"):
        found.append("another encoder")
    if earlier.dismec != now.dismec:
        found.append(f"by dismec {earlier.dismec}")
    return found


def _requested(manifest: Manifest) -> dict[str, Any]:
    """Return the parameters as requested: a chosen C or delta as the way of choosing it."""
    params = {k: v for k, v in manifest.params.items() if k not in _NOT_COMPARED}
    for key in _CHOSEN:
        if f"{key}_auto" in params:
            params[key] = params.pop(f"{key}_auto")
    if params.get("best"):
        params.pop("positive_weight", None)  # it is chosen, too
        if "sqrt_effect" in manifest.params:
            params["sqrt"] = False
    return params


def _readable(key: str, value: Any) -> Any:
    """Format a value of `_requested` for people."""
    text = sentence(f"{key}_auto" if key in _CHOSEN else key, value)
    return f"auto {text}" if key in _CHOSEN and isinstance(value, dict) else text


def _mark_intact(directory: Path, manifest: Manifest, receipt: BlockReceipt, held: Mask) -> bool:
    """Mark the labels of a block in `held` and return True, if the block is intact."""
    try:
        labels = weight_files.read_block(directory, manifest, receipt).labels
    except ModelError:
        return False
    if held[labels].any():
        return False
    held[labels] = True
    return True
