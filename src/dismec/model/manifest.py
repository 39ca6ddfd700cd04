"""What ``manifest.json`` says of a model; parsed with suspicion."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from typing import Any, TypeVar

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

_NAME = re.compile(r"[a-z][a-z0-9.-]{0,99}", re.ASCII)  # of a file
_MOST = 1 << 62  # that anything counts to
_CHECKSUM = "checksum"  # of all that is before it in the file


@dataclass(frozen=True)
class PartReceipt:
    """A file of what a model has besides weights."""

    file: str
    sha256: str


@dataclass(frozen=True)
class _Receipt:
    """A file of weights: its name, what it holds, and how to tell that it is whole."""

    file: str
    n_labels: int
    nnz: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class BlockReceipt(_Receipt):
    """A block that training has written."""

    number: int
    isa: str  # instruction set of the kernels that solved it
    stats: BlockStats | None  # what that took


@dataclass(frozen=True)
class ShardReceipt(_Receipt):
    """A part of a finished model."""

    precision: str  # one of `dismec.model.format.PRECISIONS`


@dataclass(frozen=True)
class Manifest:
    """What ``manifest.json`` says; a value that is replaced as a whole.

    Of a finished model `isa` and `stats` are the instruction sets that solved it, and what that
    took in all. Models of format version 1 have only blocks; those up to 2 know their labels under
    one name.
    """

    n_rows: int  # of the training data
    n_features: int  # sparse ones, without the bias
    n_labels: int
    params: dict[str, Any]  # of the training, as JSON holds them
    transform: dict[str, Any]  # its scalars
    data: str  # fingerprint of the training data
    dismec: str  # version of the package that began the training
    parts: dict[str, PartReceipt] = field(default_factory=dict)  # files besides the weights
    text: dict[str, Any] | None = None  # how texts become features (`TextParams`)
    columns: dict[str, Any] | None = None  # of files of texts, as given (`TextFormat`)
    estimator: dict[str, Any] | None = None  # what `DiSMECClassifier` needs to be itself again
    examples: tuple[str, ...] = ()  # beginnings of a few training texts, to try the model on
    history: tuple[dict[str, Any], ...] = ()  # what was done to labels later, oldest first
    isa: str = ""
    stats: BlockStats | None = None
    blocks: tuple[BlockReceipt, ...] = ()  # what is done, by number, while training is under way
    journal: str | None = None  # a file with more blocks (`dismec.model.journal`)
    shards: tuple[ShardReceipt, ...] | None = None  # the weights of a finished model
    refined: dict[str, Any] | None = None  # how labels become features (`Refinement`)
    first: tuple[ShardReceipt, ...] | None = None  # the first stage of a refined model
    version: int = FORMAT_VERSION

    @property
    def complete(self) -> bool:
        """Whether this is a model that can be used."""
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
        """Dense features of a row."""
        return int(self.transform["dense"]["width"]) if "dense" in self.transform else 0

    @property
    def n_columns(self) -> int:
        """Features that a classifier has weights for, without the bias."""
        informing = self.refined["informing"] if self.refined else 0
        return self.n_features + self.dense + int(informing)

    @property
    def classifier_files(self) -> tuple[_Receipt, ...]:
        """The files that hold the weights of labels; not those of a first stage."""
        return self.blocks if self.shards is None else self.shards

    @property
    def files(self) -> tuple[_Receipt, ...]:
        """The files that hold weights."""
        return (*self.classifier_files, *(self.first or ()))

    def with_blocks(self, receipts: Iterable[BlockReceipt]) -> Manifest:
        """The same manifest with these blocks instead of its own."""
        return replace(self, blocks=tuple(sorted(receipts, key=lambda r: r.number)))

    def with_journal(self, receipts: Iterable[BlockReceipt]) -> Manifest:
        """The manifest that has the receipts of its journal itself.

        Raises `ValueError`, whose text is the reason, if they contradict it or each other.
        """
        manifest = replace(self, journal=None).with_blocks([*self.blocks, *receipts])
        _check_sizes(manifest)
        return manifest

    def finished(self, shards: Iterable[ShardReceipt]) -> Manifest:
        """The manifest of the model that has these shards in the place of its blocks."""
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
        """The text of the file."""
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
        """The inverse of `to_json`, from the bytes of the file.

        Manifests that have no checksum, because an earlier version has written them, are read as
        they are. Errors as of `from_json`.
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
        """The inverse of `to_json`, after JSON's own parser.

        Raises `ValueError`, whose text is the reason, for the manifest of something else or a newer
        format, or one that contradicts itself.
        """
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError("not the manifest of a dismec model")
        version = content.get("version")
        if not isinstance(version, int) or version < 1:
            raise ValueError(f"format version {version!r} is not a number from 1")
        if version > DENSE_VERSION:
            raise ValueError(
                f"format version {version} is newer than this dismec reads ({DENSE_VERSION}); "
                "upgrade dismec"
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
    """A receipt as JSON, on one line."""
    return json.dumps(vars(receipt), default=vars)  # `asdict` would copy every number


def parse_block(entry: Any) -> BlockReceipt:
    """A block's receipt, after JSON's own parser; `ValueError`, whose text is the reason."""
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
        raise ValueError(f"{file[:100]!r} is not the name of a file of a model")


def _parse_stats(stats: Any) -> BlockStats | None:
    if stats is None:
        return None
    known = {f.name for f in fields(BlockStats)} - {"weight_counts"}
    counts = stats.get("weight_counts") if isinstance(stats, dict) else None
    if not (
        isinstance(stats, dict)
        and stats.keys() - {"weight_counts"} == known
        and all(_is_count(stats[name]) for name in known - {"seconds"})
        and type(stats["seconds"]) in (int, float)
        and 0 <= stats["seconds"] < _MOST
        and (counts is None or _are_counts(counts))
    ):
        raise ValueError("the solver's statistics are not the ones of this format")
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
    if numbers != sorted(set(numbers)):  # or two blocks have the same
        raise ValueError("blocks are not in the order of their numbers")
    informing = (manifest.refined or {"informing": 0}).get("informing")
    if type(informing) is not int or not 0 <= informing <= manifest.n_labels:
        raise ValueError(f"{informing!r} labels inform others; there are {manifest.n_labels}")
    if manifest.shards is not None and bool(manifest.refined) != (manifest.first is not None):
        raise ValueError("a refined model has a first stage, and no other has")
    for receipt in manifest.files:
        if not 0 <= receipt.nnz <= receipt.n_labels * (manifest.n_columns + 1):
            raise ValueError(f"{receipt.file} cannot hold {receipt.nnz} weights")
    stages = ("blocks", manifest.blocks), ("shards", manifest.shards), ("first", manifest.first)
    for what, receipts in stages:
        held = sum(receipt.n_labels for receipt in receipts or ())
        if held > manifest.n_labels:
            raise ValueError(f"{what} hold {held} labels, there are {manifest.n_labels}")
