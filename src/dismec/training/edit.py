"""Change the labels of a model in a directory: train new ones, keep the rest, write the result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.cpu import thread_count
from dismec.data.counts import counted
from dismec.data.dataset import fingerprint
from dismec.data.files import StrPath
from dismec.errors import DataError, ModelError
from dismec.features.transform import Transform
from dismec.model import weight_files
from dismec.model.calibration import Calibration
from dismec.model.cutting import selected
from dismec.model.directory import commit, edit_folder, locked, make_directory, read_manifest, tidy
from dismec.model.manifest import ShardReceipt
from dismec.model.opening import open_model
from dismec.model.parts import LabelTable, Parts, write_parts
from dismec.model.provenance import format_ranges, history_entry
from dismec.model.shards import Shard
from dismec.solve.block import BlockStats
from dismec.training.job import Job
from dismec.training.params import TrainingParams
from dismec.training.request import Request
from dismec.training.resume import earlier_edit
from dismec.training.running import run_into, workplace

__all__ = ["Edit", "opened_edit", "rows_of_labels"]

Ids = npt.NDArray[np.int64]


def rows_of_labels(Y: Any) -> Ids:
    """Return the number of rows that have each label."""
    return np.bincount(Y.indices, minlength=Y.shape[1])


class Edit:
    """A model in a locked directory, with the label names that the edit has added so far."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.model = open_model(directory, check=True)  # what is rewritten must be intact
        if self.model.manifest.shards is None:
            raise ModelError(
                f"{directory} has an older format; `dismec prune {directory} -o NEW` converts it"
            )
        if (self.model.manifest.estimator or {}).get("classes") is not None:
            raise ModelError(
                f"{directory}: labels of a multiclass model cannot be edited; retrain it"
            )
        self.names = None if self.model.names is None else list(self.model.names)

    def labels_of(self, Y: Any, names: Sequence[str] | None, *, grow: bool = False) -> Ids:
        """Return the model's label for each column of Y, or −1.

        With `grow`, unknown names that at least one row has get the next numbers.
        """
        n_columns = Y.shape[1]
        if names is not None and len(names) != n_columns:
            raise DataError(
                f"{counted(len(names), 'label name')} for {counted(n_columns, 'label')}"
            )
        if self.names is None or (names is None and n_columns <= self.model.n_labels):
            return np.arange(n_columns)
        if names is None:
            raise DataError(
                f"the data have {counted(n_columns, 'label')} and the model {self.model.n_labels}, "
                "which have names: pass the label names of the data (names=…)"
            )
        if len(set(names)) < len(names):
            raise DataError("two labels of the data have the same name")
        numbers = dict(self.model.label_numbers)
        for name in np.array(names, object)[rows_of_labels(Y) > 0] if grow else ():
            if name not in numbers:
                numbers[name] = len(self.names)
                self.names.append(name)
        return np.array([numbers.get(name, -1) for name in names], np.int64)

    def find(self, labels: Iterable[str | int]) -> Ids:
        """Return the numbers of labels of the model, given by name or number."""
        found = []
        for label in labels:
            number = self.model.find_label(label)
            if not self.model.label_counts[number]:
                raise DataError(f"the model has no label {label!r}")
            found.append(number)
        if not found:
            raise DataError("no labels given")
        return np.unique(found)

    def named(self, label: int) -> str:
        """Return what messages call a label: by its name, or its number."""
        return f"label {label if self.names is None else repr(self.names[label])}"

    def train(self, action: str, request: Request, columns: Ids, labels: Ids) -> None:
        """Train some columns of Y and make them labels of the model."""
        transform = self.model.transform
        if not isinstance(transform, Transform):
            raise DataError(
                f"{self.directory}: labels of a refined model cannot be added or updated; "
                "retrain it with all labels"
            )
        order = np.argsort(labels)
        columns, labels = columns[order], labels[order]
        job = Job.prepare(replace(request, Y=request.Y[:, columns]), transform)
        # The new labels are trained as a model of their own, which an interrupted run can resume.
        folder = edit_folder(self.directory)
        make_directory(folder)
        trained = earlier_edit(folder, job)
        if trained is None or not trained.complete:
            if request.source is not None and fingerprint(request.X, request.Y) != job.data:
                request = replace(request, source=None)  # the file may hold more labels
            with workplace(request, thread_count(request.threads)) as place:
                trained = run_into(folder, job, trained, place, request.progress)
        counts = job.parts.labels.counts
        shards = [
            replace(shard, labels=labels[shard.labels].astype(np.int32))
            for shard in weight_files.read_shards(folder, trained, counts, check=False)
        ]
        facts = {"data": job.manifest.data, "rows": job.manifest.n_rows}
        self.commit(action, labels, counts, shards, facts, trained.stats)

    def commit(
        self,
        action: str,
        labels: Ids,
        counts: Ids,
        shards: Iterable[Shard],
        facts: dict[str, Any],
        stats: BlockStats | None = None,
    ) -> None:
        """Replace the weights of some labels with new shards, and record this in the history.

        `counts` are the numbers of training rows of the labels; None if labels are removed.
        """
        model, manifest = self.model, self.model.manifest
        n_labels = max(model.n_labels, 1 + int(labels.max()), len(self.names or ()))
        all_counts = np.zeros(n_labels, np.int64)
        all_counts[: model.n_labels] = model.label_counts
        all_counts[labels] = counts if len(counts) else 0
        receipts = list(self._write(self._kept(labels), shards))
        parts = Parts(
            LabelTable(all_counts, self.names, model.transform.idf),
            model.vocabulary,
            model.calibration and _calibrated(model.calibration, all_counts, labels),
        )
        entry = history_entry(action, labels=len(labels), numbers=format_ranges(labels), **facts)
        history = (*manifest.history, entry)
        named = write_parts(self.directory, parts, len(history), keep=manifest.parts)
        changed = replace(
            manifest,
            n_labels=n_labels,
            n_rows=max(manifest.n_rows, facts.get("rows", 0)),
            parts=named,
            history=history,
            stats=BlockStats.total([s for s in (manifest.stats, stats) if s]),
        )
        changed = changed.finished(receipts)
        commit(self.directory, changed)
        tidy(self.directory, changed)

    def _kept(self, gone: Ids) -> Iterator[ShardReceipt | Shard]:
        """Yield what is left of the model without some labels: unchanged files, or new shards."""
        assert self.model.manifest.shards is not None
        left = np.ones(max(self.model.n_labels, 1 + int(gone.max())), np.bool_)
        left[gone] = False
        for receipt, shard in zip(self.model.manifest.shards, self.model.shards, strict=True):
            if left[shard.labels].all():
                yield receipt
            else:
                yield from selected([shard], left)

    def _write(
        self, kept: Iterable[ShardReceipt | Shard], new: Iterable[Shard]
    ) -> Iterator[ShardReceipt]:
        """Write the shards that are not files yet, and yield the receipts of all of them."""
        number = weight_files.next_shard(self.model.manifest)
        for part in (*kept, *new):
            if isinstance(part, Shard):
                yield weight_files.write_shard(self.directory, number, part)
                number += 1
            else:
                yield part

    @property
    def params(self) -> TrainingParams:
        """The parameters that the model was trained with."""
        known = {field.name for field in fields(TrainingParams)}
        params = {key: value for key, value in self.model.params.items() if key in known}
        try:
            return TrainingParams(**params | {"calibrate": False})
        except ValueError as error:
            raise ModelError(f"{self.directory}: invalid parameters: {error}") from None


@contextmanager
def opened_edit(path: StrPath) -> Iterator[Edit]:
    """Open a model for editing, with its directory locked."""
    directory = Path(path)
    read_manifest(directory)  # no lock file must be left in a directory that is not a model
    with locked(directory):
        yield Edit(directory)


def _calibrated(calibration: Calibration, counts: Ids, labels: Ids) -> Calibration:
    """Return the calibration with the curves of some labels set by their counts alone."""
    grown = calibration.extended(counts[calibration.n_labels :])
    curves = [a.copy() for a in (grown.slopes, grown.intercepts, grown.macro_thresholds)]
    for curve, values in zip(curves, grown.for_labels(counts[labels]), strict=True):
        curve[labels] = values
    return replace(grown, slopes=curves[0], intercepts=curves[1], macro_thresholds=curves[2])
