"""The model directory: write, commit, verify, open.

``docs/model-format.md`` specifies it. In short: ``manifest.json`` says what the model is and names
the files that belong to it with their SHA-256; ``labels.safetensors`` holds what is known of each
label; ``block-*.safetensors`` hold the weights. A file is written under a temporary name, flushed
and renamed before the manifest names it, so that at any moment the directory is a model, finished
or not, whose every named file is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.blocks import Block, BlockStats, Receipt
from dismec.container import (
    ContainerError,
    open_arrays,
    pack_names,
    unpack_names,
    whole_file,
    write_arrays,
)
from dismec.errors import ModelError
from dismec.native import kernels

__all__ = [
    "FORMAT_VERSION",
    "LabelTable",
    "Manifest",
    "commit",
    "discard",
    "holds_model",
    "locked",
    "make_directory",
    "read_block",
    "read_labels",
    "read_manifest",
    "tidy",
    "write_block",
    "write_labels",
]

FORMAT_VERSION = 1
_FORMAT = "dismec-model"
_MANIFEST = "manifest.json"
_LABELS = "labels.safetensors"
_LOCK = ".lock"
_MAX_MANIFEST = 1 << 30


@dataclass(frozen=True, eq=False)
class LabelTable:
    """What is known of each label, and the idf of each feature if the model uses tf-idf.

    Attributes
    ----------
    counts
        int64 (n_labels,): rows of the training data that have the label.
    names
        One name a label, or None.
    idf
        float32 (n_features,), or None.
    """

    counts: npt.NDArray[np.int64]
    names: list[str] | None = None
    idf: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Manifest:
    """What ``manifest.json`` says; a value that is replaced as a whole.

    Attributes
    ----------
    n_rows, n_features, n_labels
        Shape of the training data; `n_features` without the bias.
    params
        The training parameters, as JSON holds them.
    transform
        The feature transform's scalars.
    data
        Fingerprint of the training data.
    dismec
        Version of the package that began the training.
    labels_sha256
        Of ``labels.safetensors``.
    estimator
        What `DiSMECClassifier` needs to be itself again, if it wrote the model.
    blocks
        Receipts in the order of their numbers.
    """

    n_rows: int
    n_features: int
    n_labels: int
    params: dict[str, Any]
    transform: dict[str, Any]
    data: str
    dismec: str
    labels_sha256: str = ""
    estimator: dict[str, Any] | None = None
    blocks: tuple[Receipt, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every label is in a block."""
        return self.labels_done == self.n_labels

    @property
    def labels_done(self) -> int:
        """Number of labels in blocks."""
        return sum(receipt.n_labels for receipt in self.blocks)

    def with_blocks(self, receipts: Iterable[Receipt]) -> Manifest:
        """The same manifest with these blocks instead of its own."""
        return replace(self, blocks=tuple(sorted(receipts, key=lambda r: r.number)))

    def differences(self, other: Manifest) -> list[str]:
        """What tells the training of `other` from this one's, for a person."""
        found = []
        if self.data != other.data:
            found.append("other data")
        for key in sorted(self.params.keys() | other.params.keys()):
            mine, its = self.params.get(key), other.params.get(key)
            if mine != its:
                found.append(f"{key} {mine} instead of {its}")
        if self.dismec != other.dismec:
            found.append(f"by dismec {self.dismec}")
        return found


# -- writing ---------------------------------------------------------------------------------------


def write_labels(directory: Path, table: LabelTable) -> str:
    """Write what is known of the labels; returns the file's SHA-256."""
    arrays: dict[str, npt.NDArray[Any]] = {"counts": table.counts.astype(np.int64)}
    if table.names is not None:
        arrays["names.bytes"], arrays["names.offsets"] = pack_names(table.names)
    if table.idf is not None:
        arrays["idf"] = table.idf
    path = directory / _LABELS
    write_arrays(path, arrays, {"format": _FORMAT, "version": str(FORMAT_VERSION)})
    return _sha256(path)


def write_block(directory: Path, block: Block) -> Receipt:
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
    return Receipt(
        file=file,
        number=block.number,
        n_labels=len(block.labels),
        nnz=int(weights.nnz),
        bytes=path.stat().st_size,
        sha256=_sha256(path),
        isa=kernels.isa,
        stats=block.stats,
    )


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
    content = {"format": _FORMAT, "version": FORMAT_VERSION, "complete": manifest.complete}
    content |= {key: value for key, value in vars(manifest).items() if key != "blocks"}
    # A line a block, each made once: with thousands of blocks there are thousands of commits.
    blocks = ",\n  ".join(map(_receipt_line, manifest.blocks))
    about = json.dumps(content, indent=1).removesuffix("\n}")
    with whole_file(directory / _MANIFEST) as file:
        file.write(f'{about},\n "blocks": [\n  {blocks}\n ]\n}}\n'.encode())


@lru_cache(maxsize=1 << 16)
def _receipt_line(receipt: Receipt) -> str:
    return json.dumps(receipt.to_dict())


def discard(directory: Path) -> None:
    """Remove a model, and nothing else, from a directory; the manifest goes first."""
    (directory / _MANIFEST).unlink(missing_ok=True)
    for path in list(directory.iterdir()):
        if _is_own(path.name) and path.name != _LOCK:
            path.unlink(missing_ok=True)


def tidy(directory: Path, manifest: Manifest) -> None:
    """Remove what killed writers have left: files of the model that its manifest does not name."""
    named = {_MANIFEST, _LABELS, _LOCK, *(receipt.file for receipt in manifest.blocks)}
    for path in list(directory.iterdir()):
        if _is_own(path.name) and path.name not in named:
            path.unlink(missing_ok=True)


def _is_own(name: str) -> bool:
    return (
        name in (_MANIFEST, _LABELS, _LOCK)
        or (name.startswith("block-") and name.endswith(".safetensors"))
        or (name.startswith(".") and name.endswith(".tmp"))
    )


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
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ModelError(f"{path}: not the manifest of a dismec model")
    version = content.get("version")
    if not isinstance(version, int) or version < 1:
        raise ModelError(f"{path}: format version {version!r} is not a number from 1")
    if version > FORMAT_VERSION:
        raise ModelError(
            f"{path}: format version {version} is newer than this dismec reads "
            f"({FORMAT_VERSION}); upgrade dismec"
        )
    try:
        manifest = _parse_manifest(content)
        _check_sizes(manifest)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ModelError(f"{path}: {reason}") from None
    return manifest


def _parse_manifest(content: Mapping[str, Any]) -> Manifest:
    values: dict[str, Any] = {}
    for key, kind in {
        "n_rows": int,
        "n_features": int,
        "n_labels": int,
        "params": dict,
        "transform": dict,
        "data": str,
        "labels_sha256": str,
        "dismec": str,
        "blocks": list,
    }.items():
        value: Any = content[key]
        if type(value) is not kind:
            raise ValueError(f"{key!r} is not of type {kind.__name__}")
        if isinstance(value, int) and not 0 <= value < 2**31:
            raise ValueError(f"{key!r} is {value}, which is out of range")
        values[key] = value
    values["estimator"] = content.get("estimator")
    if not isinstance(values["estimator"], dict | None):
        raise ValueError("'estimator' is not of type dict")
    values["blocks"] = tuple(map(_parse_receipt, values["blocks"]))
    return Manifest(**values)


def _parse_receipt(entry: Any) -> Receipt:
    if not isinstance(entry, dict):
        raise ValueError("a block is not described by an object")
    kinds = {"file": str, "number": int, "n_labels": int, "nnz": int, "bytes": int, "sha256": str}
    for key, kind in {**kinds, "isa": str}.items():
        if type(entry[key]) is not kind:
            raise ValueError(f"a block's {key!r} is not of type {kind.__name__}")
    if Path(entry["file"]).name != entry["file"]:
        raise ValueError(f"block file {entry['file']!r} is not in the model directory")
    stats = entry.get("stats")
    known = {f.name for f in fields(BlockStats)}
    if stats is not None and not (
        isinstance(stats, dict)
        and stats.keys() == known
        and all(type(value) in (int, float) for value in stats.values())
    ):
        raise ValueError("a block's statistics are not the ones of this format")
    own = {key: entry[key] for key in (*kinds, "isa")}
    return Receipt(**own, stats=None if stats is None else BlockStats(**stats))


def _check_sizes(manifest: Manifest) -> None:
    scored = manifest.transform.get("n_features", manifest.n_features)
    if scored != manifest.n_features:
        raise ValueError(f"n_features is {manifest.n_features}, but {scored!r} in the transform")
    numbers = [receipt.number for receipt in manifest.blocks]
    if numbers != sorted(set(numbers)):
        raise ValueError("blocks are not in the order of their numbers")
    for receipt in manifest.blocks:
        if not 0 <= receipt.nnz <= receipt.n_labels * (manifest.n_features + 1):
            raise ValueError(f"{receipt.file} cannot hold {receipt.nnz} weights")
    if manifest.labels_done > manifest.n_labels:
        raise ValueError(
            f"blocks hold {manifest.labels_done} labels, there are {manifest.n_labels}"
        )


def read_labels(directory: Path, manifest: Manifest) -> LabelTable:
    """What is known of the labels, checked against the manifest."""
    path = directory / _LABELS
    arrays, _ = _open_checked(path, manifest.labels_sha256)
    n_labels, n_features = manifest.n_labels, manifest.n_features
    counts, idf = arrays.get("counts"), arrays.get("idf")
    if counts is None or counts.shape != (n_labels,) or counts.dtype != np.int64:
        raise ModelError(f"{path}: the label counts do not fit {n_labels} labels")
    if n_labels and not 0 <= counts.min() <= counts.max() <= manifest.n_rows:
        raise ModelError(f"{path}: the label counts do not fit {manifest.n_rows} rows")
    if idf is not None and (idf.shape != (n_features,) or idf.dtype != np.float32):
        raise ModelError(f"{path}: the idf does not fit {n_features} features")
    names = None
    if "names.bytes" in arrays:
        try:
            names = unpack_names(arrays["names.bytes"], arrays["names.offsets"])
        except (KeyError, ContainerError):
            raise ModelError(f"{path}: the label names are damaged") from None
        if len(names) != n_labels:
            raise ModelError(f"{path}: {len(names)} label names for {n_labels} labels")
    return LabelTable(counts, names, idf)


def read_block(
    directory: Path, manifest: Manifest, receipt: Receipt, *, check: bool = True
) -> Block:
    """A block, memory-mapped and checked; without `check` only its sizes are.

    Raises
    ------
    ModelError
        If the file is missing, cut off, altered, or not what the manifest says.
    """
    path = directory / receipt.file
    arrays, metadata = _open_checked(path, receipt.sha256 if check else None, receipt.bytes)
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


def _open_checked(
    path: Path, sha256: str | None, size: int | None = None
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    try:
        if size is not None and path.stat().st_size != size:
            raise ModelError(
                f"{path}: {path.stat().st_size} bytes, the manifest says {size}; cut off or altered"
            )
        if sha256 is not None and _sha256(path) != sha256:
            raise ModelError(f"{path}: altered since it was written (SHA-256 differs)")
        return open_arrays(path)
    except FileNotFoundError:
        raise ModelError(f"{path}: missing, though the manifest names it") from None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    except ContainerError as error:
        raise ModelError(f"{path}: {error}") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
