"""Facts about data or a model, as plain values for JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.corpus import Texts, read_texts
from dismec.data.counts import counted
from dismec.data.dataset import load_data
from dismec.data.formats import detect
from dismec.data.matrices import without_unused
from dismec.data.text_format import TextFormat
from dismec.errors import DataError
from dismec.features.text_rows import learn, weighted_rows
from dismec.features.vocabulary import TextParams
from dismec.measure.breakdown import describe_frequencies
from dismec.model import weight_files
from dismec.model.directory import read_manifest, unfinished
from dismec.model.manifest import Manifest
from dismec.model.opening import open_model
from dismec.model.provenance import shown as shown_params
from dismec.model.sidecar_files import LabelTable, read_parts
from dismec.report.duplicates import Duplicates, describe_duplicates, row_hashes
from dismec.report.estimate import estimate_training
from dismec.report.label_facts import describe_labels, strongest_pairs
from dismec.solve.block import BINS, EDGES, SIDE, BlockStats, count_weights
from dismec.training.params import TrainingParams

_SECTIONS = (
    "label frequencies",
    "most frequent labels",
    "rare labels",
    "similar names",
    "labels with the same rows",
    "labels that occur together",
    "duplicate rows",
    "duplicate texts",
    "all labels",
    "hierarchy",
    "training",
    "file sizes",
    "weight counts",
    "test",
)


def describe_data(
    path: str | os.PathLike[str],
    labels: str | os.PathLike[str] | None = None,
    *,
    names: Sequence[str] | None = None,
    estimate: bool = True,
    threads: int | None = None,
) -> dict[str, Any]:
    """Describe a data file: sizes, frequencies of labels, duplicates, and the cost of training.

    Parameters
    ----------
    path, labels
        The file, as for `dismec.load_data`.
    names : sequence of str, default=None
        The names of the labels. By default those in the file.
    estimate : bool, default=True
        Whether to estimate the time and memory of training, which takes a few seconds.
    threads : int, default=None
        Number of threads that read, and that would train. By default all available CPUs.

    Returns
    -------
    dict
        Numbers such as "rows", "features" and "labels per row", and the entries "label
        frequencies", "duplicate rows" and "training", which is None without `estimate`.

    Examples
    --------
    >>> import tempfile
    >>> from dismec import describe_data, generate, save_data
    >>> train, test = generate(rows=10, features=20, labels=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_data(train, folder + "/train.xmc")
    ...     facts = describe_data(folder + "/train.xmc", estimate=False)
    >>> facts["rows"], facts["features"], facts["labels"]
    (10, 20, 3)
    """
    n_labels = None if names is None else len(names)
    X, Y, of_file = load_data(path, labels=labels, n_labels=n_labels, threads=threads)
    names = of_file if names is None else names
    counts = np.bincount(without_unused(Y)[0].indices)  # labels with rows
    used = len(counts)
    n_rows = X.shape[0]
    return {
        "rows": n_rows,
        "features": X.shape[1],
        "labels": Y.shape[1],
        "labels with rows": used,
        "non-zeros": int(X.nnz),
        "features per row": round(X.nnz / max(n_rows, 1), 2),
        "labels per row": round(Y.nnz / max(n_rows, 1), 2),
        "rows per label": round(Y.nnz / max(used, 1), 2),
        "rows without labels": int(np.count_nonzero(np.diff(Y.indptr) == 0)),
        "rows without features": int(np.count_nonzero(np.diff(X.indptr) == 0)),
        "label names": names is not None,
        "label frequencies": describe_frequencies(counts),
        **describe_labels(Y, names),
        "duplicate rows": describe_duplicates(row_hashes(X), Y),
        "training": estimate_training(X, Y, threads=threads) if estimate else None,
    }


def describe_texts(
    path: str | os.PathLike[str],
    fmt: TextFormat | None = None,
    *,
    estimate: bool = True,
    threads: int | None = None,
) -> dict[str, Any]:
    """Describe a file of texts, reading it one batch at a time.

    The arguments and the result are like those of `describe_data`, but duplicates are "duplicate
    texts". For an estimate the texts are read twice more, and their words are the features.
    """
    path, fmt = detect(path).read_twice(), fmt or TextFormat()
    numbers: dict[str, int] = {}
    labels: list[npt.NDArray[np.int32]] = []
    of_row: list[npt.NDArray[np.int64]] = []
    duplicates = Duplicates()
    characters = empty = 0
    for batch in read_texts(path, fmt, needs_labels=False):
        found = [numbers.setdefault(name, len(numbers)) for row in batch.labels for name in row]
        labels.append(np.array(found, np.int32))
        of_row.append(np.fromiter(map(len, batch.labels), np.int64, len(batch.labels)))
        characters += sum(map(len, batch.texts))
        empty += sum(not text.strip() for text in batch.texts)
        duplicates.add(batch.texts)
    indices, ends = np.concatenate(labels), np.append(0, np.cumsum(np.concatenate(of_row)))
    n_rows, n_labels = len(ends) - 1, len(numbers)
    Y = sp.csr_array((np.ones(len(indices), np.uint8), indices, ends), (n_rows, n_labels))
    return {
        "rows": n_rows,
        "characters": characters,
        "labels": n_labels,
        "characters per row": round(characters / n_rows, 2),
        "labels per row": round(Y.nnz / n_rows, 2),
        "rows per label": round(Y.nnz / max(n_labels, 1), 2),
        "rows without labels": int(np.count_nonzero(np.diff(Y.indptr) == 0)),
        "rows without text": empty,
        "label frequencies": describe_frequencies(np.bincount(Y.indices, minlength=n_labels)),
        **describe_labels(Y, list(numbers)),
        "duplicate texts": duplicates.facts(Y),
        "training": _estimate(Texts.of(path, fmt), threads) if estimate and Y.nnz else None,
    }


def _estimate(texts: Texts, threads: int | None) -> dict[str, Any] | None:
    """Estimate the cost of training on texts; None if they have no words."""
    try:
        vocabulary, names = learn(texts, TextParams(), threads=threads)
    except DataError:
        return None
    numbers = {name: number for number, name in enumerate(names)}
    rows, _ = weighted_rows(texts, vocabulary, numbers, threads=threads)
    return estimate_training(rows.X, rows.Y, TrainingParams(tfidf=True), threads=threads)


def describe_model(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return size, sparsity, parameters and solver statistics of a model; its files are checked.

    "weight counts" has the counts "after" pruning, and "before" pruning if training recorded them,
    in the bins of `solve.block`, with the "lower bounds" of the positive side. Labels that
    share a classifier count once, and zeros are in the middle bin. "share of ambiguous weights" is
    the share of |w| < delta among all weights, "… other than 0" among the nonzero weights before
    pruning.
    """
    directory = Path(path)
    manifest = read_manifest(directory)
    labels = read_parts(directory, manifest).labels
    after = np.zeros(BINS, np.int64)
    n_classifiers = 0
    for weights in _stored_weights(directory, manifest, labels):
        after += count_weights(weights.data)
        n_classifiers += weights.shape[0]
    files = manifest.classifier_files
    kept, size = (sum(getattr(r, key) for r in files) for key in ("nnz", "bytes"))
    done = manifest.labels_done
    made = manifest.finished(())  # sums over its blocks, if any
    stats = made.stats or BlockStats.total(())
    solved = max(stats.solved, 1)
    before = None
    if stats.solved:
        before = np.array(stats.weight_counts, np.int64)
        before[SIDE] += stats.solved * (manifest.n_columns + 1) - before.sum()  # zeros
    text = ", ".join(f"{key} {value}" for key, value in (manifest.text or {}).items())
    return {
        "labels": manifest.n_labels,
        "features": manifest.n_features,
        **({"dense features": manifest.dense} if manifest.dense else {}),
        "complete": manifest.complete,
        **({} if manifest.complete else {"state": unfinished(directory, manifest)}),
        "labels done": done,
        "files": len(files),
        "weights": kept,
        "bytes": size,
        "bytes per weight": round(size / max(kept, 1), 2),
        "classifiers": n_classifiers,
        "weights per classifier": round(kept / max(n_classifiers, 1), 1),
        "share of weights kept": round(kept / max(n_classifiers * (manifest.n_columns + 1), 1), 6),
        **_ambiguous(manifest, sum(stats.weight_counts), before, after),
        **_refined(directory, manifest),
        "label names": labels.names is not None,
        "training rows": manifest.n_rows,
        "training data": manifest.data,
        **shown_params(manifest.params),
        **({"text": text} if manifest.text is not None else {}),
        **({"encoder": " ".join(manifest.encoder.values())} if manifest.encoder else {}),
        **({"history": _history_lines(manifest.history)} if manifest.history else {}),
        "labels without rows": int(np.count_nonzero(labels.counts == labels.only_described)),
        "predicted by a text": int(np.count_nonzero(labels.only_described)),
        "labels not solved": stats.unsolved,
        "problems solved": stats.solved,
        "passes per label": round(stats.passes / solved, 2),
        "steps per label": round(stats.steps / solved, 2),
        "working set per label": round(stats.set_rows / solved, 1),
        "core-seconds": round(stats.seconds, 2),
        "kernels": made.isa,
        "dismec": manifest.dismec,
        "file sizes": [
            {"file": r.file, "labels": r.n_labels, "weights": r.nnz, "bytes": r.bytes}
            for r in manifest.files
        ],
        "label frequencies": describe_frequencies(labels.counts),
        "weight counts": {
            "lower bounds": EDGES.tolist(),
            "before": None if before is None else before.tolist(),
            "after": after.tolist(),
        },
    }


def plain_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the scalar facts as text for people; a history becomes lines."""
    return {key: shown(value) for key, value in facts.items() if key not in _SECTIONS}


def shown(value: Any) -> str:
    """Format a fact for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "\n".join(map(shown, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {shown(entry)}" for key, entry in value.items())
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _stored_weights(
    directory: Path, manifest: Manifest, labels: LabelTable
) -> Iterator[sp.csr_array]:
    """Yield the weights of a model file by file, one row per classifier; labels may share one."""
    if manifest.complete:
        for shard in weight_files.read_shards(directory, manifest, labels.counts, check=True):
            yield shard.unpack()
    else:
        for receipt in manifest.blocks:
            yield weight_files.read_block(directory, manifest, receipt).weights


def _refined(directory: Path, manifest: Manifest) -> dict[str, Any]:
    """Return the facts of a second stage."""
    if not manifest.refined:
        return {}
    facts = {
        "labels used as features": manifest.refined["informing"],
        "weights of the first stage": sum(r.nnz for r in manifest.first or ()),
        "bytes of the first stage": sum(r.bytes for r in manifest.first or ()),
    }
    if not manifest.complete:
        return facts
    pairs = strongest_pairs(open_model(directory, check=False))
    lines = {
        f"label pairs with the {name} weights": [
            f"{pair['informed by']} → {pair['label']} {pair['weight']:+.3f}" for pair in pairs[side]
        ]
        for name, side in (("highest", "for"), ("lowest", "against"))
    }
    return facts | lines


def _ambiguous(manifest: Manifest, made: int, before: Any, after: Any) -> dict[str, float]:
    """Return the shares of pruned weights, among all weights and among the nonzero ones."""
    # The counts include replaced and removed labels, and an unfinished model holds copies.
    if before is None or manifest.history or not manifest.complete or after.sum() > before.sum():
        return {}
    if not manifest.params.get("delta"):  # weights that are not stored were 0, or rounded to 0
        return {"share of ambiguous weights": 0.0, "share of ambiguous weights other than 0": 0.0}
    return {
        "share of ambiguous weights": round(int(before.sum() - after.sum()) / before.sum(), 6),
        "share of ambiguous weights other than 0": round(1 - int(after.sum()) / max(made, 1), 6),
    }


def _history_lines(history: Sequence[dict[str, Any]]) -> list[str]:
    """Describe later changes to labels, one line per entry."""

    def number(value: Any, what: str) -> str:
        return counted(value, what) if isinstance(value, int) else f"{value} {what}s"

    return [
        f"{entry.get('time')}: {number(entry.get('labels'), 'label')} {entry.get('action')}"
        + (f" of {entry['of']}" if "of" in entry else "")
        + (f" from {counted(len(entry['models']), 'model')}" if "models" in entry else "")
        + (f" on {number(entry['rows'], 'row')}" if "rows" in entry else "")
        for entry in history
    ]
