"""Exact one-vs-rest linear classifiers for thousands to millions of labels."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dismec.data.dataset import Dataset, load_data, save_data
    from dismec.data.hierarchy import Hierarchy
    from dismec.data.synthetic import generate
    from dismec.errors import ClusterError, DataError, DismecError, ModelError
    from dismec.estimators.rows import DiSMECClassifier
    from dismec.estimators.scorers import label_scorer
    from dismec.estimators.texts import DiSMECTextClassifier
    from dismec.features.text_rows import TextRows
    from dismec.features.vocabulary import TextParams
    from dismec.measure.metrics import evaluate
    from dismec.model.model import Model
    from dismec.model.opening import open_model
    from dismec.training.editing import add_labels, remove_labels, update_labels
    from dismec.training.merging import merge_models
    from dismec.training.params import TrainingParams
    from dismec.training.recipe import train
    from dismec.training.texts import train_text
    from dismec.training.tuning import tune, tune_text

__all__ = [
    "ClusterError",
    "DataError",
    "Dataset",
    "DiSMECClassifier",
    "DiSMECTextClassifier",
    "DismecError",
    "Hierarchy",
    "Model",
    "ModelError",
    "TextParams",
    "TextRows",
    "TrainingParams",
    "add_labels",
    "evaluate",
    "generate",
    "label_scorer",
    "load_data",
    "merge_models",
    "open_model",
    "remove_labels",
    "save_data",
    "train",
    "train_text",
    "tune",
    "tune_text",
    "update_labels",
]

_HOMES = {
    "data.dataset": ("Dataset", "load_data", "save_data"),
    "data.hierarchy": ("Hierarchy",),
    "data.synthetic": ("generate",),
    "errors": ("ClusterError", "DataError", "DismecError", "ModelError"),
    "estimators.rows": ("DiSMECClassifier",),
    "estimators.scorers": ("label_scorer",),
    "estimators.texts": ("DiSMECTextClassifier",),
    "features.text_rows": ("TextRows",),
    "features.vocabulary": ("TextParams",),
    "measure.metrics": ("evaluate",),
    "model.model": ("Model",),
    "model.opening": ("open_model",),
    "training.editing": ("add_labels", "remove_labels", "update_labels"),
    "training.merging": ("merge_models",),
    "training.params": ("TrainingParams",),
    "training.recipe": ("train",),
    "training.texts": ("train_text",),
    "training.tuning": ("tune", "tune_text"),
}


def __getattr__(name: str) -> Any:
    # Importing the package costs nothing: a name brings its module with it when it is first used.
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
