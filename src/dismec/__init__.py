"""Exact one-vs-rest linear classifiers for thousands to millions of labels."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dismec.data.corpus import read_frame, read_texts
    from dismec.data.dataset import Dataset, load_data, save_data
    from dismec.data.hierarchy import Hierarchy
    from dismec.data.synthetic import generate
    from dismec.data.targets import propensities
    from dismec.data.text_format import TextFormat
    from dismec.errors import ClusterError, DataError, DismecError, ModelError
    from dismec.estimators.classifier import DiSMECClassifier
    from dismec.estimators.scorers import label_scorer
    from dismec.estimators.text_classifier import DiSMECTextClassifier
    from dismec.features.vocabulary import TextParams, TextRows
    from dismec.measure.breakdown import by_level
    from dismec.measure.metrics import evaluate
    from dismec.model.explanation import Explanation, highlights
    from dismec.model.model import Model
    from dismec.model.opening import open_model
    from dismec.report.facts import describe_data
    from dismec.report.pruning_curve import pruning_curve
    from dismec.training.edit_labels import (
        add_labels,
        describe_labels,
        remove_labels,
        update_labels,
    )
    from dismec.training.merging import merge_models
    from dismec.training.params import TrainingParams
    from dismec.training.train import train, train_text

__all__ = [
    "ClusterError",
    "DataError",
    "Dataset",
    "DiSMECClassifier",
    "DiSMECTextClassifier",
    "DismecError",
    "Explanation",
    "Hierarchy",
    "Model",
    "ModelError",
    "TextFormat",
    "TextParams",
    "TextRows",
    "TrainingParams",
    "add_labels",
    "by_level",
    "describe_data",
    "describe_labels",
    "evaluate",
    "generate",
    "highlights",
    "label_scorer",
    "load_data",
    "merge_models",
    "open_model",
    "propensities",
    "pruning_curve",
    "read_frame",
    "read_texts",
    "remove_labels",
    "save_data",
    "train",
    "train_text",
    "update_labels",
]

_HOMES = {
    "data.corpus": ("read_frame", "read_texts"),
    "data.dataset": ("Dataset", "load_data", "save_data"),
    "data.hierarchy": ("Hierarchy",),
    "data.targets": ("propensities",),
    "data.synthetic": ("generate",),
    "data.text_format": ("TextFormat",),
    "errors": ("ClusterError", "DataError", "DismecError", "ModelError"),
    "estimators.classifier": ("DiSMECClassifier",),
    "estimators.scorers": ("label_scorer",),
    "estimators.text_classifier": ("DiSMECTextClassifier",),
    "features.vocabulary": ("TextParams", "TextRows"),
    "measure.breakdown": ("by_level",),
    "measure.metrics": ("evaluate",),
    "model.explanation": ("Explanation", "highlights"),
    "model.model": ("Model",),
    "model.opening": ("open_model",),
    "report.facts": ("describe_data",),
    "report.pruning_curve": ("pruning_curve",),
    "training.edit_labels": ("add_labels", "describe_labels", "remove_labels", "update_labels"),
    "training.merging": ("merge_models",),
    "training.params": ("TrainingParams",),
    "training.train": ("train", "train_text"),
}


def __getattr__(name: str) -> Any:
    # A module is imported when one of its names is first used, so importing the package is fast.
    if name == "__version__":
        from importlib.metadata import version

        return version("dismec")
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'dismec' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"dismec.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
