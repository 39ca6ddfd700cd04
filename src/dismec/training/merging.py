"""Merge models of disjoint labels on the same features into one model of all labels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.data.files import StrPath
from dismec.data.targets import matrix_of_labels
from dismec.data.training_file import fingerprint
from dismec.data.types import LabeledRows
from dismec.errors import DataError, ModelError
from dismec.features.transform import Transform
from dismec.model.calibration import Calibration
from dismec.model.manifest import Manifest
from dismec.model.model import Model
from dismec.model.opening import open_model
from dismec.model.provenance import format_ranges, history_entry
from dismec.model.select_labels import renumbered
from dismec.model.sidecar_files import LabelTable, Parts
from dismec.solve.block import BlockStats
from dismec.training.calibrate import fit_calibration
from dismec.training.params import EXAMPLES

Ids = npt.NDArray[np.int64]

_LEARNED = ("C_auto", "C_table", "delta_auto", "delta_effect", "refine_effect", "calibrated")


def merge_models(
    models: Sequence[Model | StrPath],
    *,
    validation: LabeledRows | None = None,
    threads: int | None = None,
) -> Model:
    """Merge models of different labels into one.

    The models must have the same features. Weights and scores stay the same, bit for bit. Labels
    are renumbered: those of the first model come first, then those of the second, and so on. If a
    label has training rows in only one of the models, it is taken from that one. The merged model
    has the parameters of the first model; its history lists those of the others.

    Parameters
    ----------
    models : sequence of Model, str or path-like
        Two or more models, or their paths.
    validation : tuple of X and Y, default=None
        Rows that no model was trained on, to learn probabilities of all labels together. By default
        probabilities are kept if all models have the same calibration, as subsets of one model do;
        otherwise the merged model has none.
    threads : int, default=None
        Number of threads for `validation`. By default all available CPUs.

    Returns
    -------
    Model
        The merged model, in memory. `Model.save` writes it to a directory.

    Raises
    ------
    ModelError
        If the models differ in features, vocabulary, transform, precision or penalty, if a label
        has training rows in two models, if only some have label names, or if one is refined.
    DataError
        If there are fewer than two models, or the rows do not fit.

    Examples
    --------
    >>> from dismec import DiSMECTextClassifier, merge_models
    >>> texts = ["boil the egg", "fry the egg", "bake the bread", "slice the bread"]
    >>> model = DiSMECTextClassifier().fit(texts, ["egg", "egg", "bread", "bread"]).model_
    >>> parts = [model.subset(["egg"]), model.subset(["bread"])]
    >>> list(merge_models(parts).names)
    ['egg', 'bread']
    """
    if len(models) < 2:
        raise DataError(f"merging needs at least 2 models, got {len(models)}")
    names = [f"model {i}" if isinstance(m, Model) else str(m) for i, m in enumerate(models, 1)]
    opened = [m if isinstance(m, Model) else open_model(m, check=True) for m in models]
    for model, name in zip(opened, names, strict=True):
        model.manifest.check_separable(name)
    for model, name in zip(opened[1:], names[1:], strict=True):
        for what in _obstacles(opened[0], model):
            raise ModelError(f"{names[0]} and {name} cannot be merged: {what}")
    merged = _merged(opened, _labels_taken(opened, names))
    if validation is None:
        return merged
    X, Y = validation
    known: Any = matrix_of_labels(Y, merged.names)
    return with_probabilities(merged, X, known[:, : merged.n_labels], threads=threads)


def with_probabilities(model: Model, X: Any, Y: Any, *, threads: int | None = None) -> Model:
    """Return the model with probabilities learned on rows that it was not trained on.

    Y is an indicator matrix of shape (n_rows, up to n_labels).
    """
    rows = model.rows_of(X, threads=threads)
    found = fit_calibration(model, rows, Y, threads=threads)
    learned = {"rows": Y.shape[0], "data": fingerprint(rows, Y)[:16]}
    params = model.params | {"calibrate": True, "calibrated": learned}
    parts = replace(model.parts, calibration=found)
    manifest = replace(model.manifest, params=params)
    return Model.from_shards(manifest, model.transform, parts, model.shards)


def _obstacles(one: Model, other: Model) -> Iterator[str]:
    """Yield the reasons why two models cannot be merged, as clauses."""
    facts, others = _facts(one), _facts(other)
    for key, value in facts.items():
        if value != others.get(key):
            yield f"{key} is {value} in the first and {others.get(key)} in the second"
    names = [(m.manifest.estimator or {}).get("feature_names") for m in (one, other)]
    if all(names) and names[0] != names[1]:
        yield "the names of their features differ"
    if one.vocabulary is not None and other.vocabulary is not None:
        arrays, its = one.vocabulary.to_arrays(), other.vocabulary.to_arrays()
        if not all(np.array_equal(arrays[name], its[name]) for name in arrays):
            yield "their vocabularies differ: train both on the same texts"
    if one.transform != other.transform:
        yield "their idf differs: train both on the same rows, each with its own labels"


def _facts(model: Model) -> dict[str, Any]:
    """Return what decides what the scores of a model mean, except its terms and their idf."""
    manifest, transform = model.manifest, model.transform
    assert isinstance(transform, Transform)
    return {
        "input": "rows" if manifest.text is None else "texts",
        "encoder": manifest.encoder and manifest.encoder["sha256"],
        **(manifest.text or {}),
        **transform.to_dict(),
        "precision": model.precision,
        **{key: manifest.params.get(key) for key in ("penalty", "weighting")},
        "labels have names": model.names is not None,
    }


def _labels_taken(models: Sequence[Model], names: Sequence[str]) -> list[Ids]:
    """Return the labels of each model that the merged model takes."""
    if models[0].names is None:
        return [np.arange(model.n_labels) for model in models]
    home: dict[str, int] = {}  # name → the model that trained it, otherwise the first with it
    trained: set[str] = set()
    for place, model in enumerate(models):
        for name, count in zip(model.names or (), model.label_counts.tolist(), strict=True):
            if count and name in trained and home[name] != place:
                where = f"{names[home[name]]} and {names[place]}"
                raise ModelError(
                    f"label {name!r} is in {where}: labels must be disjoint; leave it out of "
                    "one (subset)"
                )
            if count or name not in home:
                home[name] = place
            if count:
                trained.add(name)
    return [
        np.array([i for i, name in enumerate(model.names or ()) if home[name] == place], np.int64)
        for place, model in enumerate(models)
    ]


def _merged(models: Sequence[Model], kept: Sequence[Ids]) -> Model:
    first = models[0]
    pieces = [m.parts.of_labels(labels) for m, labels in zip(models, kept, strict=True)]
    counts = np.concatenate([part.labels.counts for part in pieces])
    names = None
    if first.names is not None:
        names = list(chain.from_iterable(part.labels.names or () for part in pieces))
    offsets = np.cumsum([0, *map(len, kept)])
    shards = []
    for model, labels, offset in zip(models, kept, offsets, strict=False):
        numbers = np.full(model.n_labels, -1, np.int64)
        numbers[labels] = offset + np.arange(len(labels))
        shards += [renumbered(shard, numbers) for shard in model.shards]
    calibration = _joined_curves([part.calibration for part in pieces])
    tables = [part.labels for part in pieces]
    texts = described = None
    if any(table.texts is not None for table in tables):
        described = np.concatenate([table.only_described for table in tables])
        # Explanations use the first model's weight of matches.
        effects = [model.params.get("label_texts_effect", {}).get("weight") for model in models]
        kept_texts = np.repeat([e == effects[0] for e in effects], [*map(len, kept)]) | described
        listed = chain.from_iterable(t.texts or [""] * len(t.counts) for t in tables)
        texts = [text if known else "" for text, known in zip(listed, kept_texts, strict=True)]
    table = LabelTable(counts, names, first.transform.idf, texts, described)
    parts = Parts(table, first.vocabulary, calibration)
    manifest = _manifest([m.manifest for m in models], offsets, calibration is not None)
    return Model.from_shards(manifest, first.transform, parts, shards)


def _joined_curves(parts: Sequence[Calibration | None]) -> Calibration | None:
    """Return the curves of all labels, or None if the models' shared coefficients differ."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    first = known[0]
    for part in known[1:]:
        if part.micro_threshold != first.micro_threshold or (part.shared != first.shared).any():
            return None
    return replace(
        first,
        slopes=np.concatenate([part.slopes for part in known]),
        intercepts=np.concatenate([part.intercepts for part in known]),
        macro_thresholds=np.concatenate([part.macro_thresholds for part in known]),
    )


def _manifest(manifests: Sequence[Manifest], offsets: Ids, calibrated: bool) -> Manifest:
    first = manifests[0].finished(())
    params = {
        key: value
        for key, value in first.params.items()
        if key not in _LEARNED or all(m.params.get(key) == value for m in manifests)
    }
    if not calibrated:
        params.pop("calibrated", None)
    models = [
        {
            "labels": int(end - begin),
            "numbers": format_ranges(np.arange(begin, end)) if end > begin else "",
            "rows": manifest.n_rows,
            "data": manifest.data,
            "dismec": manifest.dismec,
            "params": dict(manifest.params),
            "history": list(manifest.history),
        }
        for manifest, begin, end in zip(manifests, offsets, offsets[1:], strict=False)
    ]
    stats = [manifest.finished(()).stats for manifest in manifests]
    known = [entry for entry in stats if entry is not None]
    data = [manifest.data for manifest in manifests]
    same_columns = all(manifest.columns == first.columns for manifest in manifests)
    same_estimator = all(manifest.estimator == first.estimator for manifest in manifests)
    texts = dict.fromkeys(text for manifest in manifests for text in manifest.examples)
    isas = {isa for manifest in manifests for isa in manifest.finished(()).isa.split(", ")}
    return replace(
        first,
        n_rows=max(manifest.n_rows for manifest in manifests),
        n_labels=int(offsets[-1]),
        params=params | {"calibrate": calibrated},
        data=hashlib.sha256("\n".join(data).encode()).hexdigest(),
        columns=first.columns if same_columns else None,
        estimator=first.estimator if same_estimator else None,
        examples=tuple(texts)[:EXAMPLES],
        history=(history_entry("merged", labels=int(offsets[-1]), models=models),),
        isa=", ".join(sorted(isas - {""})),
        stats=BlockStats.total(known) if len(known) == len(stats) else None,
    )
