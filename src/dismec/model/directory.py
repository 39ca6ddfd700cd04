"""The model directory: write, commit, verify, open.

``docs/model-format.md`` specifies it. In short: ``manifest.json`` says what the model is and names
the files that belong to it with their SHA-256; ``labels.safetensors`` holds what is known of each
label, and there may be a vocabulary and a calibration; ``shard-*.safetensors`` hold the weights,
and ``block-*.safetensors`` do while they are being learned. A file is written under a temporary
name, flushed and renamed before the manifest names it, so that at any moment the directory is a
model, finished or not, whose every named file is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import kernels
from dismec.data.container import ContainerError, open_arrays, write_arrays
from dismec.data.files import whole_file
from dismec.errors import ModelError
from dismec.model.manifest import FORMAT_VERSION, BlockReceipt, Manifest, ShardReceipt
from dismec.model.shards import PRECISIONS, Shard, pack
from dismec.solve.block import Block

__all__ = [
    "adopt_block",
    "commit",
    "data_file",
    "discard",
    "edit_folder",
    "finish",
    "holds_model",
    "locked",
    "make_directory",
    "make_run_folder",
    "next_shard",
    "open_checked",
    "read_block",
    "read_manifest",
    "read_shard",
    "read_shards",
    "sha256_of",
    "tidy",
    "write_block",
    "write_shard",
]

_FORMAT = "dismec-model"
_MANIFEST = "manifest.json"
_PARTS = ("labels", "vocabulary", "calibration", "block-", "shard-")  # how files of arrays begin
_EDIT = ".edit"  # labels that are being trained anew
_LOCK = ".lock"
_DATA, _RUN = ".data-", ".run-"  # of a training on a cluster
_MAX_MANIFEST = 1 << 30
_QUICK_BYTES = 1 << 26  # files up to this size are checked in no time


# -- writing ---------------------------------------------------------------------------------------


def write_block(directory: Path, block: Block) -> BlockReceipt:
    """Write a block's file and return its receipt; the manifest does not name it yet."""
    weights = block.weights
    file = f"block-{block.number:06d}.safetensors"
    arrays: dict[str, npt.NDArray[Any]] = {
        "labels": block.labels.astype(np.int32),
        "indptr": weights.indptr.astype(np.int64, copy=False),
        "indices": weights.indices.astype(np.int32, copy=False),
        "weights": weights.data.astype(np.float32, copy=False),
    }
    metadata = {
        "format": _FORMAT,
        "version": str(FORMAT_VERSION),
        "number": str(block.number),
        "n_columns": str(weights.shape[1]),
    }
    path = directory / file
    write_arrays(path, arrays, metadata)
    return BlockReceipt(
        file=file,
        number=block.number,
        n_labels=len(block.labels),
        nnz=int(weights.nnz),
        bytes=path.stat().st_size,
        sha256=sha256_of(path),
        isa=kernels.isa,
        stats=block.stats,
    )


def data_file(directory: Path, fingerprint: str) -> Path:
    """Where a training on a cluster puts its data for the workers, until it is finished."""
    return directory / f"{_DATA}{fingerprint[:16]}.xmc"


def make_run_folder(directory: Path) -> Path:
    """A new folder for workers to write the blocks of one run to; `tidy` removes it."""
    folder = directory / f"{_RUN}{secrets.token_hex(8)}"
    folder.mkdir()
    return folder


def edit_folder(directory: Path) -> Path:
    """Where labels of a finished model are trained until they become part of it."""
    return directory / _EDIT


def next_shard(manifest: Manifest) -> int:
    """A number for a shard that no file of the model has."""
    numbers = (receipt.file.removeprefix("shard-")[:6] for receipt in manifest.shards or ())
    return 1 + max((int(n) for n in numbers if n.isdecimal()), default=-1)


def adopt_block(directory: Path, receipt: BlockReceipt, source: Path | bytes) -> None:
    """Take in a block that `write_block` has written elsewhere: its folder, or what is in its file.

    Raises
    ------
    ModelError
        If the bytes are not those that were written.
    """
    target = directory / receipt.file
    if isinstance(source, Path):
        (source / receipt.file).replace(target)
        return
    if hashlib.sha256(source).hexdigest() != receipt.sha256:
        raise ModelError(f"{target}: altered on its way here (SHA-256 differs)")
    with whole_file(target) as file:
        file.write(source)


def write_shard(directory: Path, number: int, shard: Shard) -> ShardReceipt:
    """Write a shard's file and return its receipt; the manifest does not name it yet."""
    file = f"shard-{number:06d}.safetensors"
    metadata = {"format": _FORMAT, "version": str(FORMAT_VERSION), "precision": shard.precision}
    path = directory / file
    write_arrays(path, shard.arrays, metadata)
    return ShardReceipt(
        file=file,
        n_labels=len(shard.labels),
        nnz=shard.nnz,
        bytes=path.stat().st_size,
        sha256=sha256_of(path),
        precision=shard.precision,
    )


def finish(
    directory: Path, manifest: Manifest, precision: str, counts: npt.NDArray[np.int64]
) -> Manifest:
    """Turn the blocks of a training that is through into the shards of a model.

    `counts` are the training rows of each label. One shard and one block are in memory at a time.
    """
    shards = pack(_Blocks(directory, manifest, counts), manifest.n_features, precision)
    done = manifest.finished(write_shard(directory, i, shard) for i, shard in enumerate(shards))
    commit(directory, done)
    tidy(directory, done)
    return done


class _Blocks(Sequence[tuple[npt.NDArray[np.int64], sp.csr_array]]):
    """The blocks of a training that is through, each opened when it is asked for."""

    def __init__(self, directory: Path, manifest: Manifest, counts: npt.NDArray[np.int64]) -> None:
        self._directory, self._manifest, self._counts = directory, manifest, counts

    def __len__(self) -> int:
        return len(self._manifest.blocks)

    def __getitem__(self, number: Any) -> Any:
        receipt = self._manifest.blocks[number]
        block = read_block(self._directory, self._manifest, receipt, check=False)
        return block.trained(self._counts)


def make_directory(directory: Path) -> None:
    """Make a directory for a model, unless something else is in it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        others = [path.name for path in directory.iterdir() if not _is_own(path.name)]
    except OSError as error:
        raise ModelError(f"{directory}: cannot be a model directory: {error.strerror}") from None
    if _is_foreign(directory / _MANIFEST):
        raise ModelError(f"{directory}: its {_MANIFEST} is not that of a model")
    if others and not holds_model(directory):
        raise ModelError(f"{directory} is not a model and not empty: {min(others)!r} is in it")


def _is_foreign(manifest: Path) -> bool:
    """Whether a file is sound JSON of something else; a damaged manifest may be ours."""
    try:
        content = json.loads(manifest.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return not isinstance(content, dict) or content.get("format") != _FORMAT


def holds_model(directory: Path) -> bool:
    """Whether there is a manifest."""
    return (directory / _MANIFEST).exists()


def commit(directory: Path, manifest: Manifest) -> None:
    """Make the directory the model that `manifest` says."""
    with whole_file(directory / _MANIFEST) as file:
        file.write(manifest.to_json().encode())


def discard(directory: Path, keep: Path | None = None) -> None:
    """Remove a model, and nothing else, from a directory; the manifest goes first."""
    (directory / _MANIFEST).unlink(missing_ok=True)
    for path in list(directory.iterdir()):
        if _is_own(path.name) and path.name != _LOCK and path != keep:
            _remove(path)


def tidy(directory: Path, manifest: Manifest) -> None:
    """Remove what killed writers have left: files of the model that its manifest does not name."""
    named = {_MANIFEST, _LOCK, *(receipt.file for receipt in manifest.files)}
    named.update(part.file for part in manifest.parts.values())
    if not manifest.complete:
        named.add(data_file(directory, manifest.data).name)
    for path in list(directory.iterdir()):
        if _is_own(path.name) and path.name not in named:
            _remove(path)


def _is_own(name: str) -> bool:
    return (
        name in (_MANIFEST, _LOCK, _EDIT)
        or (name.startswith(_PARTS) and name.endswith(".safetensors"))
        or (name.startswith(".") and name.endswith(".tmp"))
        or name.startswith((_DATA, _RUN))
    )


def _remove(path: Path) -> None:
    if path.name.startswith(_RUN) or path.name == _EDIT:
        rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other trainings out of a directory while this one writes to it."""
    path = directory / _LOCK
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with suppress(ImportError):
            import fcntl

            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ModelError(f"{directory}: another training is writing to it") from None
            except OSError:
                pass  # a file system without locks
        yield
    finally:
        os.close(handle)


# -- reading ---------------------------------------------------------------------------------------


def read_manifest(directory: Path) -> Manifest:
    """Read and check a manifest.

    Raises
    ------
    ModelError
        If there is no model, it is of a newer format, or the manifest contradicts itself.
    """
    path = directory / _MANIFEST
    try:
        if path.stat().st_size > _MAX_MANIFEST:
            raise ModelError(f"{path}: larger than a manifest can be")
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        reason = "no such directory" if not directory.exists() else "no manifest.json in it"
        raise ModelError(f"{directory} is not a dismec model: {reason}") from None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: not sound JSON; the file is damaged") from None
    try:
        return Manifest.from_json(content)
    except ValueError as error:
        raise ModelError(f"{path}: {error}") from None


def read_block(
    directory: Path, manifest: Manifest, receipt: BlockReceipt, *, check: bool = True
) -> Block:
    """A block, memory-mapped and checked; without `check` only its sizes are.

    Raises
    ------
    ModelError
        If the file is missing, cut off, altered, or not what the manifest says.
    """
    path = directory / receipt.file
    arrays, metadata = open_checked(path, receipt.sha256 if check else None, receipt.bytes)
    if metadata.get("number") != str(receipt.number):
        raise ModelError(f"{path}: not block {receipt.number}, as which the manifest names it")
    shape = (receipt.n_labels, manifest.n_features + 1)
    try:
        labels = arrays["labels"]
        indptr, indices, weights = arrays["indptr"], arrays["indices"], arrays["weights"]
    except KeyError as error:
        raise ModelError(f"{path}: array {error.args[0]!r} is missing") from None
    sizes_fit = (
        indptr.dtype == np.int64
        and labels.dtype == np.int32
        and labels.shape == (shape[0],)
        and indices.dtype == np.int32
        and weights.dtype == np.float32
        and indptr.shape == (shape[0] + 1,)
        and indices.shape == weights.shape == (receipt.nnz,)
    )
    if not sizes_fit:
        raise ModelError(f"{path}: the arrays do not have the sizes that the manifest gives")
    # scipy's own constructor would read all of it to check what we check.
    matrix: Any = sp.csr_array(shape, dtype=np.float32)
    matrix.indptr, matrix.indices, matrix.data = indptr, indices, weights
    block = Block(receipt.number, labels.astype(np.int64), matrix, receipt.stats)
    if not check:
        return block
    if shape[0] and not (labels[0] >= 0 and labels[-1] < manifest.n_labels):
        raise ModelError(f"{path}: a label is out of range")
    if (np.diff(labels) <= 0).any():
        raise ModelError(f"{path}: the labels are not in order")
    _check_rows(path, indptr, indices, weights, shape[1])
    return block


def read_shards(
    directory: Path,
    manifest: Manifest,
    counts: npt.NDArray[np.int64],
    *,
    check: bool | None = None,
) -> list[Shard]:
    """The weights of a finished model, memory-mapped; `counts` are the training rows of each label.

    With `check` every file is read and compared with its SHA-256, by default if that takes no time.
    Otherwise only sizes are compared.

    Raises
    ------
    ModelError
        If a file is missing, cut off, altered, or not what the manifest says.
    """
    if manifest.shards is None:  # of format version 1
        blocks = [
            read_block(directory, manifest, r, check=check is not False) for r in manifest.blocks
        ]
        held = np.concatenate([np.empty(0, np.int64), *(block.labels for block in blocks)])
        if not np.array_equal(np.sort(held), np.arange(manifest.n_labels)):
            raise ModelError(f"{directory}: the blocks do not hold every label once")
        trained = [block.trained(counts) for block in blocks]
        return list(pack(trained, manifest.n_features, "float32"))
    if check is None:
        check = sum(receipt.bytes for receipt in manifest.shards) <= _QUICK_BYTES
    n_labels, n_features = manifest.n_labels, manifest.n_features
    shards = [
        read_shard(directory / r.file, r, n_labels, n_features, check=check)
        for r in manifest.shards
    ]
    _check_held(directory, counts, shards)
    return shards


def read_shard(
    path: Path, receipt: ShardReceipt, n_labels: int, n_features: int, *, check: bool = True
) -> Shard:
    """A shard of a model with so many labels and features; otherwise as `read_shards`."""
    arrays, _ = open_checked(path, receipt.sha256 if check else None, receipt.bytes)
    try:
        shard = Shard(**arrays)
    except TypeError:
        raise ModelError(f"{path}: the arrays are not those of a shard") from None
    sizes_fit = (
        shard.starts.shape in ((n_features + 1, 2), (n_features + 1, 4))
        and shard.labels.shape == (receipt.n_labels,)
        and shard.weights.dtype == PRECISIONS.get(receipt.precision)
        and shard.weights.ndim == 1
        and len(shard.weights) >= 16
    )
    if not sizes_fit:
        raise ModelError(f"{path}: the arrays do not have the sizes that the manifest gives")
    labels = shard.labels
    if len(labels) and not 0 <= labels.min() <= labels.max() < n_labels:
        raise ModelError(f"{path}: a label is out of range")
    return shard


def _check_held(directory: Path, counts: npt.NDArray[np.int64], shards: Sequence[Shard]) -> None:
    """That every label with training rows is in one shard, and no other label in any."""
    held = np.zeros(len(counts), np.int64)
    for shard in shards:
        held += np.bincount(shard.labels, minlength=len(counts))
    if (held > 1).any():
        raise ModelError(f"{directory}: a label is in its shards twice")
    if not np.array_equal(held > 0, counts > 0):
        raise ModelError(f"{directory}: the shards do not hold every label that had rows")


def _check_rows(
    path: Path,
    indptr: npt.NDArray[Any],
    indices: npt.NDArray[Any],
    weights: npt.NDArray[Any],
    n_columns: int,
) -> None:
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


def open_checked(
    path: Path, sha256: str | None, size: int | None = None
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """The arrays and metadata of a file that must have this SHA-256 and size, if they are given."""
    try:
        if size is not None and path.stat().st_size != size:
            raise ModelError(
                f"{path}: {path.stat().st_size} bytes, the manifest says {size}; cut off or altered"
            )
        if sha256 is not None and sha256_of(path) != sha256:
            raise ModelError(f"{path}: altered since it was written (SHA-256 differs)")
        return open_arrays(path)
    except FileNotFoundError:
        raise ModelError(f"{path}: missing, though the manifest names it") from None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    except ContainerError as error:
        raise ModelError(f"{path}: {error}") from None


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
