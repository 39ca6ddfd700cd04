"""Exact one-vs-rest linear classifiers for thousands to millions of labels."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dismec.dataset import Dataset, load_data, save_data
    from dismec.errors import ClusterError, DataError, DismecError, ModelError
    from dismec.estimator import DiSMECClassifier
    from dismec.metrics import evaluate
    from dismec.model import Model, open_model
    from dismec.synthetic import generate
    from dismec.training import TrainingParams, train

__all__ = [
    "ClusterError",
    "DataError",
    "Dataset",
    "DiSMECClassifier",
    "DismecError",
    "Model",
    "ModelError",
    "TrainingParams",
    "evaluate",
    "generate",
    "load_data",
    "open_model",
    "save_data",
    "train",
]

_HOME = {
    "ClusterError": "errors",
    "DataError": "errors",
    "Dataset": "dataset",
    "DiSMECClassifier": "estimator",
    "DismecError": "errors",
    "Model": "model",
    "ModelError": "errors",
    "TrainingParams": "training",
    "evaluate": "metrics",
    "generate": "synthetic",
    "load_data": "dataset",
    "open_model": "model",
    "save_data": "dataset",
    "train": "training",
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
