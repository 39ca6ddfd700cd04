"""Add, update and remove labels of a finished model.

Labels keep their numbers: a new label comes after the last one, and a removed label has no training
rows anymore and is never predicted. Labels are trained with the parameters and the feature
transform of the model, so on the same rows they get exactly the weights that training all labels
together would give. Files whose labels do not change stay as they are, byte for byte; a file that
holds a changed label is rewritten without it. Until the manifest is replaced, as the last step, the
directory holds the old model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import thread_count
from dismec.data.columns import label_names_of
from dismec.data.counts import counted
from dismec.data.files import StrPath
from dismec.data.matrices import check_Y
from dismec.data.mixed import check_features
from dismec.data.training_file import TrainingData
from dismec.data.types import LabelsLike, RowsLike, WeightsLike
from dismec.errors import DataError, ModelError, located
from dismec.features.label_texts import LabelTextsLike, added_weights, matches
from dismec.features.label_texts import label_texts as described_labels
from dismec.features.text_rows import vocabulary_of
from dismec.features.transform import Transform
from dismec.model import weight_files
from dismec.model.calibration import Calibration
from dismec.model.directory import commit, edit_folder, locked, make_directory, read_manifest, tidy
from dismec.model.manifest import ShardReceipt
from dismec.model.model import Model
from dismec.model.opening import open_model
from dismec.model.provenance import format_ranges, history_entry
from dismec.model.select_labels import selected
from dismec.model.shards import Shard, pack
from dismec.model.sidecar_files import Parts, write_parts
from dismec.solve.block import BlockStats
from dismec.training.execute import opened_executor, run_into
from dismec.training.job import Job
from dismec.training.params import Progress, TrainingParams, TrainOptions
from dismec.training.resume import earlier_edit

Ids = npt.NDArray[np.int64]


def add_labels(
    path: StrPath,
    X: RowsLike,
    Y: LabelsLike,
    names: Sequence[str] | None = None,
    *,
    weights: WeightsLike | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    cluster: Any = None,
    source: StrPath | None = None,
) -> Model:
    """Train new labels and add them to a model.

    Labels that the model already has do not change. An earlier run that was interrupted is resumed.

    Parameters
    ----------
    path : str or path-like
        The model directory.
    X : matrix of shape (n_rows, n_features), or texts
        Rows like those that the model was trained on; `TextRows` or texts for a text model.
    Y : indicator matrix of shape (n_rows, n_columns)
        All labels of these rows.
    names : sequence of str, default=None
        Names of the columns of Y, which match them with the labels of a model that has names. By
        default the columns of a frame. Without names, column l is label l.
    weights, threads, progress, cluster, source
        As for `train`.

    Returns
    -------
    Model
        The model with the new labels, opened from the directory.

    Raises
    ------
    DataError
        If the data do not fit the model, or have no new labels.
    ModelError
        If there is no finished model, or another process is writing to it.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dismec import add_labels, train
    >>> X = np.eye(4)
    >>> Y = np.eye(4, dtype=int)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = folder + "/model"
    ...     before = train(X, Y[:, :3], path)
    ...     after = add_labels(path, X, Y)
    >>> before.n_labels, after.n_labels
    (3, 4)
    """
    names = label_names_of(Y) if names is None else names
    with _opened_edit(path) as edit:
        data = edit.rows_that_count(TrainingData(X, check_Y(Y), weights, source=source), threads)
        Y = data.Y
        labels = edit.labels_of(Y, names, grow=True)
        known = np.zeros(max(edit.model.n_labels, 1 + labels.max(initial=-1)), np.bool_)
        known[: edit.model.n_labels] = edit.model.label_counts > 0
        known[: edit.model.n_labels] &= ~edit.table.only_described
        columns = np.flatnonzero((labels >= 0) & ~known[labels] & (_rows_of_labels(Y) > 0))
        if not len(columns):
            raise DataError("the model already has all labels of these rows")
        options = TrainOptions(edit.params, threads=threads, progress=progress, cluster=cluster)
        edit.train("added", data, options, columns, labels[columns])
    return open_model(path, check=False)


def describe_labels(path: StrPath, label_texts: LabelTextsLike) -> Model:
    """Add labels that have no rows yet to a model of texts, given texts that describe them.

    They are found by matches between a text and their own text (``docs/howto/label-texts.md``), and
    `add_labels` replaces this by what it learns from rows. Labels of the model do not change.

    Parameters
    ----------
    path : str or path-like
        The model directory.
    label_texts : dict of str to str, or path
        The texts by label, or a file of them, as for `train_text`.

    Returns
    -------
    Model
        The model with the new labels, opened from the directory.

    Raises
    ------
    DataError
        If the model is not one of texts, or no label is new and has words that the model knows.

    Examples
    --------
    >>> import tempfile
    >>> from dismec import DiSMECTextClassifier, describe_labels
    >>> texts = ["boil the egg", "fry the egg", "bake the bread", "slice the bread"]
    >>> clf = DiSMECTextClassifier().fit(texts, [["egg"], ["egg"], ["bread"], ["bread"]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     clf.save(folder + "/model")
    ...     model = describe_labels(folder + "/model", {"frying": "to fry something"})
    >>> list(model.names), model.without_rows.tolist()
    (['bread', 'egg', 'frying'], [False, False, True])
    """
    found = described_labels(label_texts)
    with _opened_edit(path) as edit:
        vocabulary, transform = vocabulary_of(edit.model), edit.model.transform
        held = set(compress(edit.names or (), edit.model.label_counts))
        new = {label: text for label, text in found.items() if label not in held}
        vectors = matches(vocabulary, transform.idf, list(new.values()))
        known = np.diff(vectors.indptr) > 0
        if not known.any():
            raise DataError("no label is new and has a text with words that the model knows")
        names = list(compress(new, known))
        labels = edit.labels_of(sp.eye_array(len(names), format="csr"), names, grow=True)
        ones, n_columns = np.ones(len(names), np.int64), transform.n_columns
        own, bias = vectors[np.flatnonzero(known)], float(edit.model.manifest.transform["bias"])
        blocks = [(labels, added_weights(own, ones, 0.0, ones > 0, bias, n_columns))]
        shards = pack(blocks, n_columns, edit.model.precision)
        edit.commit(
            "described", labels, ones, shards, {}, texts=list(compress(new.values(), known))
        )
    return open_model(path, check=False)


def update_labels(
    path: StrPath,
    X: RowsLike,
    Y: LabelsLike,
    labels: Iterable[str | int],
    names: Sequence[str] | None = None,
    *,
    weights: WeightsLike | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    cluster: Any = None,
    source: StrPath | None = None,
) -> Model:
    """Retrain some labels of a model on other rows.

    All other labels stay the same. An earlier run that was interrupted is resumed.

    Parameters
    ----------
    path, X, Y, names, weights, threads, progress, cluster, source
        As for `add_labels`.
    labels : iterable of str or int
        The labels to retrain, by name or number.

    Returns
    -------
    Model
        The changed model, opened from the directory.

    Raises
    ------
    DataError
        If the data do not fit the model, or if the model or the data do not have one of the labels.
    ModelError
        If there is no finished model, or another process is writing to it.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dismec import update_labels, train
    >>> X = np.eye(4)
    >>> Y = np.eye(4, dtype=int)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = folder + "/model"
    ...     before = train(X, Y, path)
    ...     after = update_labels(path, X, Y[::-1], labels=[0])
    >>> before.predict(X[:1]), after.predict(X[3:])
    ([(0,)], [(0, 3)])
    """
    names = label_names_of(Y) if names is None else names
    with _opened_edit(path) as edit:
        data = edit.rows_that_count(TrainingData(X, check_Y(Y), weights, source=source), threads)
        Y = data.Y
        wanted = edit.find(labels)
        found = edit.labels_of(Y, names)
        counts = np.zeros(max(edit.model.n_labels, 1 + found.max(initial=-1)), np.int64)
        counts[found[found >= 0]] = _rows_of_labels(Y)[found >= 0]
        if not counts[wanted].all():
            lost = wanted[np.argmin(counts[wanted])]
            raise DataError(
                f"no row of the data has {edit.named(lost)}; to drop the label, remove it"
            )
        columns = np.flatnonzero(np.isin(found, wanted) & (_rows_of_labels(Y) > 0))
        options = TrainOptions(edit.params, threads=threads, progress=progress, cluster=cluster)
        edit.train("updated", data, options, columns, found[columns])
    return open_model(path, check=False)


def remove_labels(path: StrPath, labels: Iterable[str | int]) -> Model:
    """Remove labels from a model, so that they are no longer predicted.

    The other labels keep their numbers.

    Parameters
    ----------
    path : str or path-like
        The model directory.
    labels : iterable of str or int
        The labels to remove, by name or number.

    Returns
    -------
    Model
        The changed model, opened from the directory.

    Raises
    ------
    DataError
        If the model does not have one of the labels.
    ModelError
        If there is no finished model, or another process is writing to it.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dismec import remove_labels, train
    >>> X = np.eye(4)
    >>> Y = np.eye(4, dtype=int)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = folder + "/model"
    ...     before = train(X, Y, path)
    ...     after = remove_labels(path, [3])
    >>> before.predict(X[3:]), after.predict(X[3:])
    ([(3,)], [()])
    """
    with _opened_edit(path) as edit:
        edit.commit("removed", edit.find(labels), np.empty(0, np.int64), [], {})
    return open_model(path, check=False)


def _rows_of_labels(Y: Any) -> Ids:
    """Return the number of rows that have each label."""
    return np.bincount(Y.indices, minlength=Y.shape[1])


class _Edit:
    """A model in a locked directory, with the label names that the edit has added so far."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.model = open_model(directory, check=True)  # what is rewritten must be intact
        if (self.model.manifest.estimator or {}).get("classes") is not None:
            raise ModelError(
                f"{directory}: labels of a multiclass model cannot be edited; retrain it"
            )
        self.names = None if self.model.names is None else list(self.model.names)
        self.table = self.model.parts.labels

    def rows_that_count(self, data: TrainingData, threads: int | None) -> TrainingData:
        """Return the rows of positive weight; labels that only other rows have are not trained."""
        data = replace(data, X=self.model.rows_of(data.X, threads=threads))
        return data if data.weights is None else data.checked(check_features(data.X))

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
                "which have names: pass the label names of the data",
                "names=…",
            )
        if len(set(names)) < len(names):
            raise DataError("two labels of the data have the same name")
        numbers = dict(self.model.label_numbers)
        for name in np.array(names, object)[_rows_of_labels(Y) > 0] if grow else ():
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

    def train(
        self, action: str, data: TrainingData, options: TrainOptions, columns: Ids, labels: Ids
    ) -> None:
        """Train some columns of Y and make them labels of the model."""
        transform = self.model.transform
        if not isinstance(transform, Transform):
            raise DataError(
                f"{self.directory}: labels of a refined model cannot be added or updated; "
                "retrain it with all labels"
            )
        order = np.argsort(labels)
        columns, labels = columns[order], labels[order]
        # The file may hold more labels, or fewer features.
        same = np.array_equal(columns, np.arange(data.Y.shape[1]))
        same = same and data.X.shape[1] == transform.n_columns
        some = replace(data, Y=data.Y[:, columns], source=data.source if same else None)
        job = Job.prepare(some, options, transform)
        # The new labels are trained as a model of their own, which an interrupted run can resume.
        folder = edit_folder(self.directory)
        make_directory(folder)
        trained = earlier_edit(folder, job)
        if trained is None or not trained.complete:
            with opened_executor(options.cluster, thread_count(options.threads)) as executor:
                trained = run_into(folder, job, trained, executor, options.progress)
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
        texts: Sequence[str] | None = None,
    ) -> None:
        """Replace the weights of some labels with new shards, and record this in the history.

        `counts` are the numbers of training rows of the labels; empty if labels are removed. With
        `texts`, these are all that is known of the labels.
        """
        model, manifest = self.model, self.model.manifest
        n_labels = max(model.n_labels, 1 + int(labels.max()), len(self.names or ()))
        all_counts = np.zeros(n_labels, np.int64)
        all_counts[: model.n_labels] = model.label_counts
        all_counts[labels] = counts if len(counts) else 0
        receipts = list(self._write(self._kept(labels), shards))
        calibration = model.calibration and _calibrated(model.calibration, all_counts, labels)
        curve = model.params.get("label_texts_curve")
        if calibration and texts is not None and curve:
            calibration = calibration.with_curve(labels, *curve)
        table = self.table.with_texts(n_labels, labels, texts)
        table = replace(table, counts=all_counts, names=self.names, idf=model.transform.idf)
        parts = Parts(table, model.vocabulary, calibration)
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
        left = np.ones(max(self.model.n_labels, 1 + int(gone.max())), np.bool_)
        left[gone] = False
        for receipt, shard in zip(self.model.manifest.shards or (), self.model.shards, strict=True):
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
        with located(f"{self.directory}: invalid parameters", ModelError, ValueError):
            return TrainingParams(**params | {"calibrate": False})


@contextmanager
def _opened_edit(path: StrPath) -> Iterator[_Edit]:
    """Open a model for editing, with its directory locked."""
    directory = Path(path)
    read_manifest(directory)  # no lock file must be left in a directory that is not a model
    with locked(directory):
        yield _Edit(directory)


def _calibrated(calibration: Calibration, counts: Ids, labels: Ids) -> Calibration:
    """Return the calibration with the curves of some labels set by their counts alone."""
    grown = calibration.extended(counts[calibration.n_labels :])
    curves = [a.copy() for a in (grown.slopes, grown.intercepts, grown.macro_thresholds)]
    for curve, values in zip(curves, grown.for_labels(counts[labels]), strict=True):
        curve[labels] = values
    return replace(grown, slopes=curves[0], intercepts=curves[1], macro_thresholds=curves[2])
