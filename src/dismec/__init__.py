"""Exact one-vs-rest linear classifiers for thousands to millions of labels."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dismec.data.dataset import Dataset, load_data, save_data
    from dismec.data.synthetic import generate
    from dismec.errors import ClusterError, DataError, DismecError, ModelError
    from dismec.estimators import DiSMECClassifier
    from dismec.features.vocabulary import TextParams
    from dismec.measure.metrics import evaluate
    from dismec.model.model import Model
    from dismec.model.opening import open_model
    from dismec.text_estimator import DiSMECTextClassifier
    from dismec.training.editing import add_labels, remove_labels, update_labels
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
    "Model",
    "ModelError",
    "TextParams",
    "TrainingParams",
    "add_labels",
    "evaluate",
    "generate",
    "load_data",
    "open_model",
    "remove_labels",
    "save_data",
    "train",
    "train_text",
    "tune",
    "tune_text",
    "update_labels",
]

_HOME = {
    "ClusterError": "errors",
    "DataError": "errors",
    "Dataset": "data.dataset",
    "DiSMECClassifier": "estimators",
    "DiSMECTextClassifier": "text_estimator",
    "DismecError": "errors",
    "Model": "model.model",
    "ModelError": "errors",
    "TextParams": "features.vocabulary",
    "TrainingParams": "training.params",
    "add_labels": "training.editing",
    "evaluate": "measure.metrics",
    "generate": "data.synthetic",
    "load_data": "data.dataset",
    "open_model": "model.opening",
    "remove_labels": "training.editing",
    "save_data": "data.dataset",
    "train": "training.recipe",
    "train_text": "training.texts",
    "tune": "training.tuning",
    "tune_text": "training.tuning",
    "update_labels": "training.editing",
}


def __getattr__(name: str) -> Any:
    # Importing the package costs nothing: a name brings its module with it when it is first used.
    if name == "__version__":
        from importlib.metadata import version

        return version("dismec")
    if name not in _HOME:
        raise AttributeError(f"module 'dismec' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"dismec.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
