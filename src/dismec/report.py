"""What a person looks at: facts of a dataset or a model."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dismec import store
from dismec.blocks import BlockStats
from dismec.corpus import TextFormat, read_texts
from dismec.dataset import load_data
from dismec.parts import read_parts

__all__ = ["describe_data", "describe_model", "describe_texts"]


def describe_data(
    path: str | os.PathLike[str], labels: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """Shape and sparsity of a data file: the row of the paper's Table 1, and what it leaves out."""
    X, Y, names = load_data(path, labels=labels)
    counts = np.bincount(Y.indices, minlength=Y.shape[1])
    used = int(np.count_nonzero(counts))
    n_rows = X.shape[0]
    return {
        "rows": n_rows,
        "features": X.shape[1],
        "labels": Y.shape[1],
        "labels with rows": used,
        "non-zeros": int(X.nnz),
        "features a row": round(X.nnz / max(n_rows, 1), 2),
        "labels a row": round(Y.nnz / max(n_rows, 1), 2),
        "rows a label": round(Y.nnz / max(used, 1), 2),
        "rows without labels": int(np.count_nonzero(np.diff(Y.indptr) == 0)),
        "rows without features": int(np.count_nonzero(np.diff(X.indptr) == 0)),
        "label names": names is not None,
    }


def describe_texts(path: str | os.PathLike[str], fmt: TextFormat | None = None) -> dict[str, Any]:
    """What a file of texts holds; it is read a batch at a time."""
    counts: Counter[str] = Counter()
    n_rows = characters = empty = unlabelled = 0
    for batch in read_texts(path, fmt or TextFormat(), needs_labels=False):
        counts.update(name for row in batch.labels for name in row)
        n_rows += len(batch.texts)
        characters += sum(map(len, batch.texts))
        empty += sum(not text.strip() for text in batch.texts)
        unlabelled += sum(not row for row in batch.labels)
    pairs = counts.total()
    return {
        "rows": n_rows,
        "characters": characters,
        "labels": len(counts),
        "characters a row": round(characters / max(n_rows, 1), 2),
        "labels a row": round(pairs / max(n_rows, 1), 2),
        "rows a label": round(pairs / max(len(counts), 1), 2),
        "rows without labels": unlabelled,
        "rows without text": empty,
    }


def describe_model(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Size, sparsity, parameters and solver statistics of a model; its files are checked."""
    directory = Path(path)
    manifest = store.read_manifest(directory)
    labels = read_parts(directory, manifest).labels
    if manifest.complete:
        store.read_shards(directory, manifest, labels.counts, check=True)
    else:
        for receipt in manifest.blocks:
            store.read_block(directory, manifest, receipt)
    weights, size = (sum(getattr(r, key) for r in manifest.files) for key in ("nnz", "bytes"))
    done = manifest.labels_done
    made = manifest.finished(())  # with sums over its blocks, should it have any
    stats = made.stats or BlockStats.total(())
    solved = max(stats.solved, 1)
    return {
        "labels": manifest.n_labels,
        "features": manifest.n_features,
        "complete": manifest.complete,
        "labels done": done,
        "files": len(manifest.files),
        "weights": weights,
        "bytes": size,
        "bytes a weight": round(size / max(weights, 1), 2),
        "weights a label": round(weights / max(done, 1), 1),
        "share of weights kept": round(weights / max(done * (manifest.n_features + 1), 1), 6),
        "label names": labels.names is not None,
        "training rows": manifest.n_rows,
        "training data": manifest.data,
        **manifest.params,
        **({"text": _settings(manifest.text)} if manifest.text is not None else {}),
        **({"history": _told(manifest.history)} if manifest.history else {}),
        "labels without rows": int(np.count_nonzero(labels.counts == 0)),
        "labels not solved": stats.unsolved,
        "passes a label": round(stats.passes / solved, 2),
        "working set a label": round(stats.set_rows / solved, 1),
        "core-seconds": round(stats.seconds, 2),
        "kernels": made.isa,
        "dismec": manifest.dismec,
    }


def _settings(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _told(history: Sequence[dict[str, Any]]) -> list[str]:
    """What was done to labels later, a line each."""
    return [
        f"{entry.get('time')}: {entry.get('labels')} labels {entry.get('action')}"
        + (f" on {entry['rows']} rows" if "rows" in entry else "")
        for entry in history
    ]
