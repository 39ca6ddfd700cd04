"""Exact one-vs-rest linear classifiers for thousands to millions of labels."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dismec.dataset import Dataset, load_data, save_data
    from dismec.editing import add_labels, remove_labels, update_labels
    from dismec.errors import ClusterError, DataError, DismecError, ModelError
    from dismec.estimator import DiSMECClassifier
    from dismec.metrics import evaluate
    from dismec.model import Model, open_model
    from dismec.params import TrainingParams
    from dismec.synthetic import generate
    from dismec.text import TextParams
    from dismec.text_estimator import DiSMECTextClassifier
    from dismec.text_training import train_text
    from dismec.training import train
    from dismec.tuning import tune, tune_text

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
    "Dataset": "dataset",
    "DiSMECClassifier": "estimator",
    "DiSMECTextClassifier": "text_estimator",
    "DismecError": "errors",
    "Model": "model",
    "ModelError": "errors",
    "TextParams": "text",
    "TrainingParams": "params",
    "add_labels": "editing",
    "evaluate": "metrics",
    "generate": "synthetic",
    "load_data": "dataset",
    "open_model": "model",
    "remove_labels": "editing",
    "save_data": "dataset",
    "train": "training",
    "train_text": "text_training",
    "tune": "tuning",
    "tune_text": "tuning",
    "update_labels": "editing",
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
