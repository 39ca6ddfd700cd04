"""Blocks and shards ⇄ files; blocks → shards at the end of training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.cpu import kernels
from dismec.data.files import whole_file
from dismec.data.matrices import Rows, csr_on
from dismec.errors import ModelError
from dismec.model.directory import commit, open_checked, tidy, write_hashed
from dismec.model.manifest import (
    ARRAYS,
    BLOCK,
    PADDING,
    PRECISIONS,
    QUICK_BYTES,
    SHARD,
    BlockReceipt,
    Manifest,
    ShardReceipt,
)
from dismec.model.shards import LabeledWeights, Packing, Shard
from dismec.solve.block import Block

_OPEN_BLOCKS = 256  # mapped files: a process can often have no more than 1,024


def write_block(directory: Path, block: Block) -> BlockReceipt:
    """Write the file of a block, which no manifest names yet; return its receipt."""
    weights = block.weights
    path = directory / f"{BLOCK}{block.number:06d}{ARRAYS}"
    arrays: dict[str, npt.NDArray[Any]] = {
        "labels": block.labels.astype(np.int32),
        "rows": block.rows.astype(np.int32),
        "indptr": weights.indptr.astype(np.int64, copy=False),
        "indices": weights.indices.astype(np.int32, copy=False),
        "weights": weights.data.astype(np.float32, copy=False),
    }
    sha256 = write_hashed(path, arrays, number=str(block.number), n_columns=str(weights.shape[1]))
    return BlockReceipt(
        file=path.name,
        number=block.number,
        n_labels=len(block.labels),
        nnz=int(weights.nnz),
        bytes=path.stat().st_size,
        sha256=sha256,
        isa=kernels.isa,
        stats=block.stats,
    )


def adopt_block(directory: Path, receipt: BlockReceipt, source: Path | bytes) -> None:
    """Move a block into the directory: from the folder it was written to, or from its bytes.

    Raise `ModelError` if the bytes are not those that `write_block` wrote.
    """
    target = directory / receipt.file
    if isinstance(source, Path):
        (source / receipt.file).replace(target)
        return
    if hashlib.sha256(source).hexdigest() != receipt.sha256:
        raise ModelError(f"{target}: altered in transit (SHA-256 differs)")
    with whole_file(target, follow=False) as file:
        file.write(source)


def write_shard(directory: Path, number: int, shard: Shard, prefix: str = SHARD) -> ShardReceipt:
    """Write the file of a shard, which no manifest names yet; return its receipt."""
    path = directory / f"{prefix}{number:06d}{ARRAYS}"
    # The file calls the eight-bit float int8: its bytes are the same in every release.
    stored = shard.precision.replace("float8", "int8")
    sha256 = write_hashed(path, shard.arrays, precision=stored)
    return ShardReceipt(
        file=path.name,
        n_labels=len(shard.labels),
        nnz=shard.nnz,
        bytes=path.stat().st_size,
        sha256=sha256,
        precision=shard.precision,
    )


def next_shard(manifest: Manifest) -> int:
    """Return a number that no shard of the model has."""
    numbers = (receipt.file.removeprefix(SHARD)[:6] for receipt in manifest.shards or ())
    return 1 + max((int(n) for n in numbers if n.isdecimal()), default=-1)


def finish(
    directory: Path,
    manifest: Manifest,
    precision: str,
    counts: npt.NDArray[np.int64],
    threads: int = 1,
) -> Manifest:
    """Convert the blocks of a training run into the shards of a finished model.

    `counts` are the training rows of each label.
    """
    blocks = _BlockFiles(directory, manifest)
    packing = Packing(blocks, manifest.n_columns, precision, counts, threads=threads)
    receipts = packing.each(lambda number, shard: write_shard(directory, number, shard), threads)
    del blocks, packing  # unmaps the blocks, whose files are removed next
    done = manifest.finished(receipts)
    commit(directory, done)
    tidy(directory, done)
    return done


class _BlockFiles(Sequence[LabeledWeights]):
    """The blocks of a training run, mapped on access.

    The most recent ones stay mapped, because packing reads a few rows at a time from many blocks.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._directory, self._manifest = directory, manifest
        self._block = lru_cache(_OPEN_BLOCKS)(self._open)

    def __len__(self) -> int:
        return len(self._manifest.blocks)

    def __getitem__(self, number: Any) -> Any:
        block = self._block(int(number))
        return block.labels, block.weights, block.rows

    def _open(self, number: int) -> Block:
        receipt = self._manifest.blocks[number]
        return read_block(self._directory, self._manifest, receipt, check=False)


def read_block(
    directory: Path, manifest: Manifest, receipt: BlockReceipt, *, check: bool = True
) -> Block:
    """Return a memory-mapped block after checking it; without `check`, check only its sizes."""
    path = directory / receipt.file
    arrays, metadata = open_checked(path, receipt.sha256 if check else None, receipt.bytes)
    if metadata.get("number") != str(receipt.number):
        raise ModelError(f"{path}: not block {receipt.number}, although the manifest says so")
    n_labels = receipt.n_labels
    n_rows = arrays["indptr"].size - 1 if "indptr" in arrays else 0
    shape = (n_rows, manifest.n_columns + 1)
    for name, dtype, size in (
        ("labels", np.int32, n_labels),
        ("rows", np.int32, n_labels),
        ("indptr", np.int64, n_rows + 1),  # must have one dimension
        ("indices", np.int32, receipt.nnz),
        ("weights", np.float32, receipt.nnz),
    ):
        if name not in arrays:
            raise ModelError(f"{path}: array {name!r} is missing")
        if arrays[name].dtype != dtype or arrays[name].shape != (size,):
            raise ModelError(f"{path}: the arrays do not have the sizes that the manifest gives")
    labels, rows_of = arrays["labels"], arrays["rows"]
    rows = Rows(arrays["indptr"], arrays["indices"], arrays["weights"])
    matrix = csr_on(rows.data, rows.indices, rows.indptr, shape)
    held, places = labels.astype(np.int64), rows_of.astype(np.int64)
    block = Block(receipt.number, held, places, matrix, receipt.stats)
    if not check:
        return block
    if n_labels and not (labels[0] >= 0 and labels[-1] < manifest.n_labels):
        raise ModelError(f"{path}: a label is out of range")
    if n_labels and not 0 <= rows_of.min() <= rows_of.max() < n_rows:
        raise ModelError(f"{path}: a row is out of range")
    if (np.diff(labels) <= 0).any():
        raise ModelError(f"{path}: the labels are not in order")
    _check_entries(path, rows, shape[1])
    return block


def read_shards(
    directory: Path, manifest: Manifest, counts: npt.NDArray[np.int64], *, check: bool | None = None
) -> list[Shard]:
    """Return the memory-mapped weights of a finished model.

    `counts` are the training rows of each label. With `check`, every file is read and compared with
    its SHA-256; by default this is done for small models. Otherwise only sizes are compared.
    """
    receipts = manifest.shards or ()
    shards = _read_files(directory, manifest.n_labels, receipts, manifest.n_columns, check)
    labels = np.concatenate([np.empty(0, np.int32), *(shard.labels for shard in shards)])
    held = np.bincount(labels, minlength=len(counts))
    if (held > 1).any():
        raise ModelError(f"{directory}: a label is in its shards twice")
    if not np.array_equal(held > 0, counts > 0):
        raise ModelError(f"{directory}: the shards do not hold every label that had rows")
    return shards


def read_first(directory: Path, manifest: Manifest, *, check: bool | None = None) -> list[Shard]:
    """Return the first stage of a refined model; `check` as in `read_shards`."""
    n_columns = manifest.n_features + manifest.dense
    return _read_files(directory, manifest.n_labels, manifest.first or (), n_columns, check)


def _read_files(
    directory: Path,
    n_labels: int,
    receipts: Sequence[ShardReceipt],
    n_columns: int,
    check: bool | None,
) -> list[Shard]:
    if check is None:
        check = sum(receipt.bytes for receipt in receipts) <= QUICK_BYTES
    return [read_shard(directory / r.file, r, n_labels, n_columns, check=check) for r in receipts]


def read_shard(
    path: Path, receipt: ShardReceipt, n_labels: int, n_features: int, *, check: bool = True
) -> Shard:
    """Return a shard of a model with these numbers of labels and features; see `read_shards`."""
    arrays, _ = open_checked(path, receipt.sha256 if check else None, receipt.bytes)
    try:
        shard = Shard(**arrays)
    except TypeError:
        raise ModelError(f"{path}: the arrays are not those of a shard") from None
    sizes_fit = (
        shard.starts.shape == (n_features + 1, 2)
        and shard.labels.shape == (receipt.n_labels,)
        and shard.weights.dtype == PRECISIONS.get(receipt.precision)
        and shard.weights.ndim == 1
        and len(shard.weights) >= PADDING
    )
    if not sizes_fit:
        raise ModelError(f"{path}: the arrays do not have the sizes that the manifest gives")
    labels = shard.labels
    if len(labels) and not 0 <= labels.min() <= labels.max() < n_labels:
        raise ModelError(f"{path}: a label is out of range")
    starts = shard.label_starts
    if not (
        starts.dtype == np.int32
        and starts.shape == (len(shard.scales) + 1,)
        and starts[0] == 0
        and starts[-1] == len(labels)
        and (np.diff(starts) > 0).all()
    ):
        raise ModelError(f"{path}: its classifiers do not cover its labels")
    return shard


def _check_entries(path: Path, rows: Rows, n_columns: int) -> None:
    indptr, indices, weights = rows
    if indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise ModelError(f"{path}: the rows do not add up to {len(indices)} weights")
    if len(indices) == 0:
        return
    if indices.min() < 0 or indices.max() >= n_columns:
        raise ModelError(f"{path}: a feature is out of range")
    ascending = np.diff(indices) > 0
    starts = indptr[1:-1]
    ascending[starts[(starts > 0) & (starts < len(indices))] - 1] = True
    if not ascending.all():
        raise ModelError(f"{path}: features of a label are not in order")
    if not np.isfinite(weights).all():
        raise ModelError(f"{path}: a weight is not a finite number")
