"""The parts of a model other than its weights ⇄ files: labels, vocabulary, calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dismec.data.container import ContainerError
from dismec.data.counts import counted
from dismec.data.names import pack_names, unpack_names
from dismec.errors import ModelError, located
from dismec.features.encoder import Encoder
from dismec.features.vocabulary import TextParams, Vocabulary
from dismec.model.calibration import Calibration
from dismec.model.directory import open_checked, write_hashed
from dismec.model.manifest import ARRAYS, QUICK_BYTES, Manifest, PartReceipt

T = TypeVar("T")
Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class LabelTable:
    """The count and name of each label, and the idf of each feature if the model uses tf-idf."""

    counts: npt.NDArray[np.int64]  # training rows per label; a label without any is never predicted
    names: Sequence[str] | None = None
    idf: npt.NDArray[np.float32] | None = None
    texts: Sequence[str] | None = None  # that describe the labels; each counts as a training row
    described: npt.NDArray[np.bool_] | None = None  # labels whose text is all that is known of them

    @property
    def only_described(self) -> npt.NDArray[np.bool_]:
        """Labels whose text is all that is known of them."""
        return np.zeros(len(self.counts), np.bool_) if self.described is None else self.described

    def with_texts(
        self, n_labels: int, labels: npt.NDArray[np.int64], texts: Sequence[str] | None
    ) -> LabelTable:
        """Return the table of more labels, some of which have only these texts, or rows now."""
        if self.texts is None and texts is None:
            return self
        described, found = np.zeros(n_labels, np.bool_), [""] * n_labels
        described[: len(self.counts)] = self.only_described
        described[labels] = texts is not None
        found[: len(self.counts)] = self.texts or found[: len(self.counts)]
        for label, text in zip(labels.tolist(), texts or [""] * len(labels), strict=True):
            found[label] = text
        return replace(self, texts=found, described=described)

    def of_labels(self, labels: npt.NDArray[np.int64]) -> LabelTable:
        """Return the table of some of the labels."""
        names, texts = (
            None if listed is None else [listed[label] for label in labels.tolist()]
            for listed in (self.names, self.texts)
        )
        described = None if self.described is None else self.described[labels]
        return LabelTable(self.counts[labels], names, self.idf, texts, described)


@dataclass(frozen=True, eq=False)
class Parts:
    """Everything in a model except its manifest and weights."""

    labels: LabelTable
    vocabulary: Vocabulary | None = None
    calibration: Calibration | None = None

    def of_labels(self, labels: npt.NDArray[np.int64]) -> Parts:
        """Return the parts of a model of some of the labels."""
        calibration = self.calibration and self.calibration.taken_from(labels)
        return Parts(self.labels.of_labels(labels), self.vocabulary, calibration)


def write_parts(
    directory: Path, parts: Parts, number: int = 0, keep: Mapping[str, PartReceipt] | None = None
) -> dict[str, PartReceipt]:
    """Write the files of the parts, which no manifest names yet; return their receipts.

    A `number` above 0 becomes part of their names, so they do not replace files of the current
    manifest. A vocabulary in `keep` is not written again.
    """
    labels: dict[str, npt.NDArray[Any]] = {"counts": parts.labels.counts.astype(np.int64)}
    if parts.labels.names is not None:
        labels["names.bytes"], labels["names.offsets"] = pack_names(parts.labels.names)
    if parts.labels.idf is not None:
        labels["idf"] = parts.labels.idf
    if parts.labels.texts is not None and parts.labels.described is not None:
        labels["texts.bytes"], labels["texts.offsets"] = pack_names(parts.labels.texts)
        labels["described"] = parts.labels.described.astype(np.uint8)
    files = {"labels": labels}
    receipts = {"vocabulary": keep["vocabulary"]} if keep and "vocabulary" in keep else {}
    if parts.vocabulary is not None and not receipts:
        files["vocabulary"] = parts.vocabulary.to_arrays()
    if parts.calibration is not None:
        files["calibration"] = parts.calibration.to_arrays()
    for name, arrays in files.items():
        file = f"{name}-{number:06d}{ARRAYS}" if number else f"{name}{ARRAYS}"
        receipts[name] = PartReceipt(file, write_hashed(directory / file, arrays))
    return receipts


def read_parts(directory: Path, manifest: Manifest, *, check: bool | None = True) -> Parts:
    """Read the parts that a manifest names; `check` and errors are those of `dismec.open_model`."""

    def read(name: str, parse: Callable[[Arrays], T]) -> T | None:
        receipt = manifest.parts.get(name)
        if receipt is None:
            return None
        path = directory / receipt.file
        quick = path.exists() and path.stat().st_size <= QUICK_BYTES
        wanted = receipt.sha256 if check or (check is None and quick) else None
        arrays, _ = open_checked(path, wanted)
        with located(path, ModelError):
            return parse(arrays)

    labels = read("labels", lambda arrays: _parse_labels(arrays, manifest))
    assert labels is not None  # every manifest names them
    vocabulary = None
    if manifest.text is not None:
        with located(directory, ModelError):
            params = TextParams.from_dict(manifest.text)
            encoder = None if manifest.encoder is None else Encoder.from_dict(manifest.encoder)
        vocabulary = read("vocabulary", lambda a: Vocabulary.from_arrays(a, params, encoder))
        if vocabulary is None or len(vocabulary.terms) != manifest.n_features:
            features = counted(manifest.n_features, "feature")
            raise ModelError(f"{directory}: no vocabulary with {features}")
    calibration = read("calibration", lambda a: Calibration.from_arrays(a, manifest.n_labels))
    return Parts(labels, vocabulary, calibration)


def _parse_labels(arrays: Arrays, manifest: Manifest) -> LabelTable:
    n_labels, n_features = manifest.n_labels, manifest.n_features
    counts, idf = arrays.get("counts"), arrays.get("idf")
    if counts is None or counts.shape != (n_labels,) or counts.dtype != np.int64:
        raise ModelError(f"the label counts do not fit {counted(n_labels, 'label')}")
    if n_labels and not 0 <= counts.min() <= counts.max() <= manifest.n_rows:
        raise ModelError(f"the label counts do not fit {counted(manifest.n_rows, 'row')}")
    if idf is not None and (idf.shape != (n_features,) or idf.dtype != np.float32):
        raise ModelError(f"the idf does not fit {counted(n_features, 'feature')}")
    names, texts = (_parse_texts(arrays, kind, n_labels) for kind in ("names", "texts"))
    described = arrays.get("described")
    if described is not None and described.astype(np.uint8).shape != (n_labels,):
        raise ModelError(f"the label texts do not fit {counted(n_labels, 'label')}")
    return LabelTable(counts, names, idf, texts, None if described is None else described > 0)


def _parse_texts(arrays: Arrays, kind: str, n_labels: int) -> Sequence[str] | None:
    if f"{kind}.bytes" not in arrays:
        return None
    try:
        found = unpack_names(arrays[f"{kind}.bytes"], arrays[f"{kind}.offsets"])
    except (KeyError, ContainerError):
        raise ModelError(f"the label {kind} are damaged") from None
    if len(found) != n_labels:
        given = counted(len(found), f"label {kind.removesuffix('s')}")
        raise ModelError(f"{given} for {counted(n_labels, 'label')}")
    return found
