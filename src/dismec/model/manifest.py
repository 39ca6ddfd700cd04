"""``manifest.json`` and the journal ⇄ the facts of a model; neither file is trusted unchecked.

``docs/reference/model-format.md`` specifies the format; its constants are here. Replacing the
manifest after every block would write thousands of receipts thousands of times. Instead, the
manifest that a training run starts with names a journal, and every finished block adds one line to
it: 16 hex digits of a checksum, a space, and the receipt as JSON.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dismec.data.counts import counted
from dismec.data.files import naming, regular_size, whole_file
from dismec.errors import DataError, ModelError
from dismec.solve.block import BINS, BlockStats

FORMAT = "dismec-model"
FORMAT_VERSION = 1

MANIFEST = "manifest.json"
LOCK = ".lock"
PARTS = ("labels", "vocabulary", "calibration")  # parts of a model other than its weights
BLOCK, SHARD = "block-", "shard-"  # prefixes of the files of weights
FIRST = "first-"  # prefix of the shards of the first stage of a refined model
STAGE = ".stage-"  # prefix of folders that a stage of training leaves for the next one
ENCODED = f"{STAGE}encoded"  # such a folder, for the embeddings of texts
JOURNAL = "blocks-", ".journal"  # prefix and suffix of the journal of a training run
ARRAYS = ".safetensors"  # suffix of all files of arrays
EDIT = ".edit"  # folder for labels being trained for a finished model
NEW = ".new"  # folder for a model that will replace a finished one
DATA, RUN = ".data-", ".run-"  # prefixes of the data and folders of training on a cluster

PRECISIONS: dict[str, np.dtype[Any]] = {
    "float16": np.dtype("<f2"),
    "float32": np.dtype("<f4"),
    "float8": np.dtype("u1"),  # sign, three bits of exponent, four of mantissa
}
PADDING = 16  # zeros after the weights of a shard, so that kernels can read whole vectors
MOST_WEIGHTS = 1 << 26  # weights per shard: it is assembled in memory
QUICK_BYTES = 1 << 26  # up to this size, comparing files with their SHA-256 takes little time

R = TypeVar("R", bound="_Receipt | PartReceipt")

_NAME = re.compile(r"[a-z][a-z0-9.-]{0,99}", re.ASCII)  # a file name
_MOST = 1 << 62  # upper limit for every count
_MOST_LABELS = 1 << 31  # so that labels × features fits 64 bits
_CHECKSUM = "checksum"  # key of the checksum of everything before it in the file
_MOST_JOURNAL_BYTES = 1 << 30
_PAGE = bytes(512)  # the smallest unit that a disk writes


def check_precision(precision: str) -> None:
    """Raise `DataError` unless `precision` is one of `PRECISIONS`."""
    if precision not in PRECISIONS:
        raise DataError(f"precision is {precision!r}; expected {', '.join(PRECISIONS)}")


def is_own(name: str) -> bool:
    """Return whether a file with this name in a model directory belongs to the model."""
    return (
        name in (MANIFEST, LOCK, EDIT, NEW)
        or (name.startswith((*PARTS, BLOCK, SHARD, FIRST)) and name.endswith(ARRAYS))
        or (name.startswith(JOURNAL[0]) and name.endswith(JOURNAL[1]))
        or (name.startswith(".") and name.endswith(".tmp"))
        or name.startswith((DATA, RUN, STAGE))
    )


@dataclass(frozen=True)
class PartReceipt:
    """The file of a part of a model other than its weights."""

    file: str
    sha256: str


@dataclass(frozen=True)
class _Receipt:
    """A file of weights: its name, its contents, and its size and checksum."""

    file: str
    n_labels: int
    nnz: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class BlockReceipt(_Receipt):
    """A block written by training."""

    number: int
    isa: str  # instruction set of the kernels that solved it
    stats: BlockStats | None  # the work that solving it took


@dataclass(frozen=True)
class ShardReceipt(_Receipt):
    """A shard of the weights of a finished model."""

    precision: str  # one of `PRECISIONS`


@dataclass(frozen=True)
class Manifest:
    """The contents of ``manifest.json``; an immutable value.

    For a finished model, `isa` lists the instruction sets that solved its blocks, and `stats` adds
    up the work.
    """

    n_rows: int  # number of training rows
    n_features: int  # number of sparse features, without the bias
    n_labels: int
    params: dict[str, Any]  # parameters of the training, as in JSON
    transform: dict[str, Any]  # scalars of the `Transform`
    data: str  # fingerprint of the training data
    dismec: str  # version of the package that started the training
    parts: dict[str, PartReceipt] = field(default_factory=dict)  # files other than the weights
    text: dict[str, Any] | None = None  # how texts become features (`TextParams`)
    encoder: dict[str, Any] | None = None  # what makes dense features of texts (`Encoder`)
    columns: dict[str, Any] | None = None  # columns of text files, as given (`TextFormat`)
    estimator: dict[str, Any] | None = None  # what a `DiSMECClassifier` needs to load the model
    examples: tuple[str, ...] = ()  # beginnings of a few training texts, to try the model on
    history: tuple[dict[str, Any], ...] = ()  # later changes of labels, oldest first
    isa: str = ""
    stats: BlockStats | None = None
    blocks: tuple[BlockReceipt, ...] = ()  # finished blocks of an unfinished training, by number
    journal: str | None = None  # a file with more blocks (`Journal`)
    shards: tuple[ShardReceipt, ...] | None = None  # the weights of a finished model
    refined: dict[str, Any] | None = None  # how labels become features (`Refinement`)
    first: tuple[ShardReceipt, ...] | None = None  # the first stage of a refined model

    @property
    def complete(self) -> bool:
        """Whether this is a finished model."""
        return self.shards is not None

    @property
    def labels_done(self) -> int:
        """Number of labels in blocks; all of them once there are shards."""
        if self.shards is not None:
            return self.n_labels
        return sum(receipt.n_labels for receipt in self.blocks)

    @property
    def dense(self) -> int:
        """Number of dense features of a row."""
        return int(self.transform["dense"]["width"]) if "dense" in self.transform else 0

    @property
    def n_columns(self) -> int:
        """Number of features that a classifier has weights for, without the bias."""
        informing = self.refined["informing"] if self.refined else 0
        return self.n_features + self.dense + int(informing)

    @property
    def classifier_files(self) -> tuple[_Receipt, ...]:
        """The files with the weights of the labels, without those of a first stage."""
        return self.blocks if self.shards is None else self.shards

    @property
    def files(self) -> tuple[_Receipt, ...]:
        """All files with weights."""
        return (*self.classifier_files, *(self.first or ()))

    @property
    def names(self) -> set[str]:
        """Names of all files that the manifest names."""
        parts = {part.file for part in self.parts.values()}
        journal = set() if self.journal is None else {self.journal}
        return parts | journal | {receipt.file for receipt in self.files}

    def check_separable(self, name: str) -> None:
        """Raise `ModelError` if the labels of this model, called `name`, depend on each other."""
        if self.refined:
            raise ModelError(
                f"{name} is refined: its labels depend on each other and cannot be separated; "
                "train it without refining"
            )
        if (self.estimator or {}).get("classes") is not None:
            raise ModelError(
                f"the classes of {name} exclude each other and cannot be separated; "
                "train it with lists of labels"
            )

    def with_blocks(self, receipts: Iterable[BlockReceipt]) -> Manifest:
        """Return the same manifest with these blocks instead of its own."""
        return replace(self, blocks=tuple(sorted(receipts, key=lambda r: r.number)))

    def with_journal(self, receipts: Iterable[BlockReceipt]) -> Manifest:
        """Return the manifest with the receipts of its journal among its blocks.

        Raise `ValueError`, with the reason as its text, if they contradict it or each other.
        """
        manifest = replace(self, journal=None).with_blocks([*self.blocks, *receipts])
        _check_sizes(manifest)
        return manifest

    def finished(self, shards: Iterable[ShardReceipt]) -> Manifest:
        """Return the manifest of the finished model, with shards instead of blocks."""
        isa, stats = self.isa, self.stats
        if self.blocks:
            isa = ", ".join(sorted({r.isa for r in self.blocks}))
            stats = BlockStats.total([r.stats for r in self.blocks if r.stats])
        done = tuple(shards)
        return replace(self, isa=isa, stats=stats, shards=done, blocks=(), journal=None)

    def to_json(self) -> str:
        """Return the text of the file."""
        content = {"format": FORMAT, "version": FORMAT_VERSION, "complete": self.complete}
        lists = ("blocks", "shards", *(["first"] if self.refined else []))
        left_out = (*lists, "first")
        content |= {k: v for k, v in vars(self).items() if k not in left_out}
        content["stats"] = self.stats and asdict(self.stats)
        content["parts"] = {name: asdict(part) for name, part in self.parts.items()}
        for key in ("journal", "encoder", "columns", "examples", "refined"):
            if not content[key]:
                del content[key]
        text = json.dumps(content, indent=1).removesuffix("\n}")
        for name in lists:
            receipts = getattr(self, name)
            lines = ",\n  ".join(map(_receipt_text, receipts or ()))
            text += f',\n "{name}": ' + ("null" if receipts is None else f"[\n  {lines}\n ]")
        return f'{text},\n "{_CHECKSUM}": "{sha256(text.encode()).hexdigest()}"\n}}\n'

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """Invert `to_json`, from the bytes of the file; errors are those of `from_json`."""
        try:
            parsed = json.loads(content)
        except (ValueError, RecursionError):
            raise ValueError("not valid JSON; the file is damaged") from None
        if isinstance(parsed, dict) and _CHECKSUM in parsed:
            text, _, _ = content.rpartition(f',\n "{_CHECKSUM}": '.encode())
            if sha256(text).hexdigest() != parsed[_CHECKSUM]:
                raise ValueError("altered since it was written: its checksum differs")
        return cls.from_json(parsed)

    @classmethod
    def from_json(cls, content: Any) -> Manifest:
        """Invert `to_json`, from parsed JSON.

        Raise `ValueError`, with the reason as its text, if this is not the manifest of a model, is
        of another format, or contradicts itself.
        """
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError("not the manifest of a dismec model")
        version = content.get("version")
        if version != FORMAT_VERSION:
            raise ValueError(
                f"model format {version!r}, but this version of dismec reads format "
                f"{FORMAT_VERSION}: use the version that wrote the model, or train it again"
            )
        try:
            manifest = _parse(content)
        except KeyError as error:
            raise ValueError(f"{error.args[0]!r} is missing") from None
        _check_sizes(manifest)
        return manifest


def make_journal(directory: Path) -> str:
    """Create an empty journal with a unique name, which no manifest mentions yet."""
    name = f"{JOURNAL[0]}{secrets.token_hex(8)}{JOURNAL[1]}"
    with whole_file(directory / name, follow=False):
        pass
    return name


class Journal:
    """An open journal; receipts are on disk when `append` returns.

    An ``OSError`` has the journal's path as its ``filename``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)

    def append(self, *receipts: BlockReceipt) -> None:
        """Add the receipts of blocks whose files are complete.

        The time does not depend on the length of the journal; receipts passed together are flushed
        to disk together.
        """
        texts = [_receipt_text(receipt).encode() for receipt in receipts]
        lines = b"".join(b"%s %s\n" % (_checksum(text), text) for text in texts)
        with naming(self._path):
            while lines:
                lines = lines[self._file.write(lines) :]
            os.fsync(self._file.fileno())

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def read_journal(path: Path) -> list[BlockReceipt]:
    """Return the receipts in a journal, in the order in which blocks were finished.

    An incomplete last line, whose writer was killed, and lines with a page that has not reached the
    disk are ignored: their blocks are solved again. Raise `ModelError` for any other damage, and
    ``FileNotFoundError`` if there is no such file.
    """
    if regular_size(path) > _MOST_JOURNAL_BYTES:
        raise ModelError(f"{path}: too large for a journal")
    *lines, _ = path.read_bytes().split(b"\n")  # a line without a newline is incomplete
    receipts = []
    for number, line in enumerate(lines, start=1):
        checksum, _, text = line.partition(b" ")
        if checksum != _checksum(text):
            if _PAGE in line or (number == len(lines) and b"\0" in line):
                continue  # lost in a power cut: later pages may have reached the disk before it
            raise ModelError(
                f"{path}:{number}: damaged (its checksum differs); "
                "delete this line, and its block is solved again"
            )
        try:
            receipts.append(_parse_receipt(BlockReceipt, json.loads(text)))
        except KeyError as error:
            raise ModelError(f"{path}:{number}: {error.args[0]!r} is missing") from None
        except ValueError as error:
            raise ModelError(f"{path}:{number}: {error}") from None
    return receipts


def _checksum(text: bytes) -> bytes:
    return sha256(text).hexdigest()[:16].encode()


def _receipt_text(receipt: _Receipt) -> str:
    """Return a receipt as JSON on one line."""
    return json.dumps(vars(receipt), default=vars)  # `asdict` would copy every number


def _parse(content: Mapping[str, Any]) -> Manifest:
    values: dict[str, Any] = {}
    required: dict[str, type] = {"n_rows": int, "n_features": int, "n_labels": int, "blocks": list}
    required |= {"params": dict, "transform": dict, "data": str, "dismec": str}
    optional = {"text": dict, "estimator": dict, "history": list, "isa": str, "shards": list}
    optional |= {"journal": str, "refined": dict, "first": list, "columns": dict, "examples": list}
    optional |= {"encoder": dict}
    for key, kind in (required | optional).items():
        value: Any = content[key] if key in required else content.get(key)
        if type(value) is not kind and (key in required or value is not None):
            raise ValueError(f"{key!r} is not of type {kind.__name__}")
        if isinstance(value, int) and not 0 <= value < 2**31:
            raise ValueError(f"{key!r} is {value}, which is out of range")
        values[key] = value
    values["isa"] = values["isa"] or ""
    values["history"] = tuple(values["history"] or ())
    if not all(isinstance(entry, dict) for entry in values["history"]):
        raise ValueError("an entry of 'history' is not an object")
    values["examples"] = tuple(values["examples"] or ())
    if not all(isinstance(text, str) for text in values["examples"]):
        raise ValueError("an entry of 'examples' is not text")
    named = content["parts"]
    if not isinstance(named, dict) or not named.keys() <= set(PARTS):
        raise ValueError(f"'parts' has entries other than {', '.join(PARTS)}")
    if "labels" not in named:
        raise ValueError("'parts' has no 'labels'")
    values["parts"] = {name: _parse_receipt(PartReceipt, entry) for name, entry in named.items()}
    values["stats"] = _parse_stats(content.get("stats"))
    if values["journal"] is not None:
        _check_name(values["journal"])
    values["blocks"] = tuple(_parse_receipt(BlockReceipt, entry) for entry in values["blocks"])
    for key in ("shards", "first"):
        if values[key] is not None:
            values[key] = tuple(_parse_receipt(ShardReceipt, entry) for entry in values[key])
    return Manifest(**values)


def _parse_receipt(cls: type[R], entry: Any) -> R:
    if not isinstance(entry, dict):
        raise ValueError("a file is not described by an object")
    values: dict[str, Any] = {}
    for f in fields(cls):
        value = entry.get(f.name) if f.name == "stats" else entry[f.name]
        kind = {"int": int, "str": str}.get(str(f.type))
        if kind is not None and type(value) is not kind:
            raise ValueError(f"a file's {f.name!r} is not of type {f.type}")
        values[f.name] = _parse_stats(value) if f.name == "stats" else value
    _check_name(values["file"])
    return cls(**values)


def _check_name(file: str) -> None:
    if not _NAME.fullmatch(file):
        raise ValueError(f"{file[:100]!r} is not a valid name for a model file")


def _parse_stats(stats: Any) -> BlockStats | None:
    if stats is None:
        return None
    names = {f.name for f in fields(BlockStats)}
    if not (
        isinstance(stats, dict)
        and stats.keys() == names
        and all(_is_count(stats[name]) for name in names - {"seconds", "weight_counts"})
        and stats["solved"] < _MOST_LABELS
        and type(stats["seconds"]) in (int, float)
        and 0 <= stats["seconds"] < _MOST
        and isinstance(stats["weight_counts"], list)
        and len(stats["weight_counts"]) == BINS
        and all(map(_is_count, stats["weight_counts"]))
    ):
        raise ValueError("the solver's statistics are not valid for this format")
    return BlockStats(**stats | {"weight_counts": tuple(stats["weight_counts"])})


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _check_sizes(manifest: Manifest) -> None:
    entry = manifest.transform.get("dense", {"width": 1})
    width = entry.get("width") if isinstance(entry, dict) else None
    if type(width) is not int or not 1 <= width < 2**31:
        raise ValueError(f"the transform has {width!r} dense features")
    scored = manifest.transform.get("n_features", manifest.n_features)
    if scored != manifest.n_features:
        raise ValueError(f"n_features is {manifest.n_features}, but {scored!r} in the transform")
    numbers = [receipt.number for receipt in manifest.blocks]
    if numbers != sorted(set(numbers)):  # or two blocks have the same number
        raise ValueError("blocks are not in the order of their numbers")
    informing = (manifest.refined or {"informing": 0}).get("informing")
    if type(informing) is not int or not 0 <= informing <= manifest.n_labels:
        raise ValueError(f"informing is {informing!r}, but there are {manifest.n_labels:,} labels")
    if manifest.shards is not None and bool(manifest.refined) != (manifest.first is not None):
        raise ValueError("a first stage is missing, or present in a model that is not refined")
    for receipt in manifest.files:
        if not 0 <= receipt.nnz <= receipt.n_labels * (manifest.n_columns + 1):
            raise ValueError(f"{receipt.file} cannot hold {receipt.nnz} weights")
    stages = ("blocks", manifest.blocks), ("shards", manifest.shards), ("first", manifest.first)
    for what, receipts in stages:
        held = sum(receipt.n_labels for receipt in receipts or ())
        if held > manifest.n_labels:
            total = manifest.n_labels
            raise ValueError(f"{what} hold {counted(held, 'label')}, the model has {total:,}")
