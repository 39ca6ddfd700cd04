"""``manifest.json`` ⇄ the facts of a model; nothing in the file is trusted unchecked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from typing import Any, TypeVar

from dismec.data.counts import counted
from dismec.model.format import (
    ARRAYS,
    DENSE_VERSION,
    FORMAT,
    FORMAT_VERSION,
    PARTS,
    REFINED_VERSION,
)
from dismec.solve.block import BlockStats
from dismec.solve.weight_counts import BINS

__all__ = [
    "BlockReceipt",
    "Manifest",
    "PartReceipt",
    "ShardReceipt",
    "parse_block",
    "receipt_text",
]

R = TypeVar("R", bound="_Receipt | PartReceipt")

_NAME = re.compile(r"[a-z][a-z0-9.-]{0,99}", re.ASCII)  # a file name
_MOST = 1 << 62  # upper limit for every count
_MOST_LABELS = 1 << 31  # so that labels × features fits 64 bits
_CHECKSUM = "checksum"  # key of the checksum of everything before it in the file


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

    precision: str  # one of `dismec.model.format.PRECISIONS`


@dataclass(frozen=True)
class Manifest:
    """The contents of ``manifest.json``; an immutable value.

    For a finished model, `isa` lists the instruction sets that solved its blocks, and `stats` adds
    up the work. Models of format version 1 have only blocks; up to version 2, the file of the
    labels has a fixed name.
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
    columns: dict[str, Any] | None = None  # columns of text files, as given (`TextFormat`)
    estimator: dict[str, Any] | None = None  # what a `DiSMECClassifier` needs to load the model
    examples: tuple[str, ...] = ()  # beginnings of a few training texts, to try the model on
    history: tuple[dict[str, Any], ...] = ()  # later changes of labels, oldest first
    isa: str = ""
    stats: BlockStats | None = None
    blocks: tuple[BlockReceipt, ...] = ()  # finished blocks of an unfinished training, by number
    journal: str | None = None  # a file with more blocks (`dismec.model.journal`)
    shards: tuple[ShardReceipt, ...] | None = None  # the weights of a finished model
    refined: dict[str, Any] | None = None  # how labels become features (`Refinement`)
    first: tuple[ShardReceipt, ...] | None = None  # the first stage of a refined model
    version: int = FORMAT_VERSION

    @property
    def complete(self) -> bool:
        """Whether this is a finished model."""
        if self.version == 1:
            return self.labels_done == self.n_labels
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
        version = REFINED_VERSION if self.refined else FORMAT_VERSION
        if self.dense:
            version = DENSE_VERSION
        done = replace(self, isa=isa, stats=stats, shards=tuple(shards), version=version)
        return replace(done, blocks=(), journal=None)

    def to_json(self) -> str:
        """Return the text of the file."""
        content = {"format": FORMAT, "version": self.version, "complete": self.complete}
        lists = ("blocks", "shards", *(["first"] if self.refined else []))
        left_out = (*lists, "version", "first", *([] if self.refined else ["refined"]))
        content |= {k: v for k, v in vars(self).items() if k not in left_out}
        content["stats"] = self.stats and asdict(self.stats)
        content["parts"] = {name: asdict(part) for name, part in self.parts.items()}
        for key in ("journal", "columns", "examples"):
            if not content[key]:
                del content[key]
        text = json.dumps(content, indent=1).removesuffix("\n}")
        for name in lists:
            receipts = getattr(self, name)
            lines = ",\n  ".join(map(receipt_text, receipts or ()))
            text += f',\n "{name}": ' + ("null" if receipts is None else f"[\n  {lines}\n ]")
        return f'{text},\n "{_CHECKSUM}": "{sha256(text.encode()).hexdigest()}"\n}}\n'

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """Invert `to_json`, from the bytes of the file.

        Manifests of earlier versions have no checksum, which is then not checked. Errors are those
        of `from_json`.
        """
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
        of a newer format, or contradicts itself.
        """
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError("not the manifest of a dismec model")
        version = content.get("version")
        if not isinstance(version, int) or version < 1:
            raise ValueError(f"format version is {version!r}; expected a number of at least 1")
        if version > DENSE_VERSION:
            raise ValueError(
                f"format version {version} is too new: this dismec reads up to version "
                f"{DENSE_VERSION}; upgrade dismec"
            )
        try:
            manifest = _parse(content)
        except KeyError as error:
            raise ValueError(f"{error.args[0]!r} is missing") from None
        except TypeError as error:
            raise ValueError(str(error)) from None
        _check_sizes(manifest)
        return manifest


def receipt_text(receipt: _Receipt) -> str:
    """Return a receipt as JSON on one line."""
    return json.dumps(vars(receipt), default=vars)  # `asdict` would copy every number


def parse_block(entry: Any) -> BlockReceipt:
    """Return a block's receipt from parsed JSON; raise `ValueError` with the reason as its text."""
    try:
        return _parse_receipt(BlockReceipt, entry)
    except KeyError as error:
        raise ValueError(f"{error.args[0]!r} is missing") from None


def _parse(content: Mapping[str, Any]) -> Manifest:
    values: dict[str, Any] = {"version": content["version"]}
    kinds: dict[str, type] = {"n_rows": int, "n_features": int, "n_labels": int}
    kinds |= {"params": dict, "transform": dict, "data": str, "dismec": str, "blocks": list}
    for key, kind in kinds.items():
        value: Any = content[key]
        if type(value) is not kind:
            raise ValueError(f"{key!r} is not of type {kind.__name__}")
        if isinstance(value, int) and not 0 <= value < 2**31:
            raise ValueError(f"{key!r} is {value}, which is out of range")
        values[key] = value
    kinds = {"text": dict, "estimator": dict, "history": list, "isa": str, "shards": list}
    kinds |= {"journal": str, "refined": dict, "first": list, "columns": dict, "examples": list}
    for key, kind in kinds.items():
        value = content.get(key)
        if not isinstance(value, kind | None):
            raise ValueError(f"{key!r} is not of type {kind.__name__}")
        values[key] = value
    values["isa"] = values["isa"] or ""
    values["history"] = tuple(values["history"] or ())
    if not all(isinstance(entry, dict) for entry in values["history"]):
        raise ValueError("an entry of 'history' is not an object")
    values["examples"] = tuple(values["examples"] or ())
    if not all(isinstance(text, str) for text in values["examples"]):
        raise ValueError("an entry of 'examples' is not text")
    values["parts"] = _parse_parts(content)
    values["stats"] = _parse_stats(content.get("stats"))
    if values["journal"] is not None:
        _check_name(values["journal"])
    values["blocks"] = tuple(_parse_receipt(BlockReceipt, entry) for entry in values["blocks"])
    for key in ("shards", "first"):
        if values[key] is not None:
            values[key] = tuple(_parse_receipt(ShardReceipt, entry) for entry in values[key])
    return Manifest(**values)


def _parse_parts(content: Mapping[str, Any]) -> dict[str, PartReceipt]:
    if content["version"] < 3:
        named = {"labels": {"file": f"labels{ARRAYS}", "sha256": content["labels_sha256"]}}
    else:
        named = content["parts"]
    if not isinstance(named, dict) or not named.keys() <= set(PARTS):
        raise ValueError(f"'parts' has entries other than {', '.join(PARTS)}")
    if "labels" not in named:
        raise ValueError("'parts' has no 'labels'")
    return {name: _parse_receipt(PartReceipt, entry) for name, entry in named.items()}


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
    required = {f.name for f in fields(BlockStats)} - {"weight_counts"}
    counts = stats.get("weight_counts") if isinstance(stats, dict) else None
    if not (
        isinstance(stats, dict)
        and stats.keys() - {"weight_counts"} == required
        and all(_is_count(stats[name]) for name in required - {"seconds"})
        and stats["solved"] < _MOST_LABELS
        and type(stats["seconds"]) in (int, float)
        and 0 <= stats["seconds"] < _MOST
        and (counts is None or _are_counts(counts))
    ):
        raise ValueError("the solver's statistics are not valid for this format")
    return BlockStats(**stats | {"weight_counts": counts and tuple(counts)})


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and len(values) == BINS and all(map(_is_count, values))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _check_dense_entry(transform: Mapping[str, Any]) -> None:
    entry = transform.get("dense", {"width": 1})
    width = entry.get("width") if isinstance(entry, dict) else None
    if type(width) is not int or not 1 <= width < 2**31:
        raise ValueError(f"the transform has {width!r} dense features")


def _check_sizes(manifest: Manifest) -> None:
    _check_dense_entry(manifest.transform)
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
