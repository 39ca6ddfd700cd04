"""A model directory → what it answers to the bodies of requests; HTTP itself is elsewhere."""

from __future__ import annotations

import logging
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import scipy.sparse as sp

from dismec.errors import DismecError
from dismec.model.model import Model
from dismec.model.opening import open_model
from dismec.model.topk_model import TopkModel
from dismec.serve import answers
from dismec.serve.contract import Contract, Limits
from dismec.serve.queries import parse

__all__ = ["NoExplanations", "Service"]

_log = logging.getLogger(__name__)


class NoExplanations(DismecError):  # noqa: N818  it says what there is not
    """The model explains nothing where it is."""


class Service:
    """The model that is served, for many threads; only `reload` is for one at a time.

    `predict` and `explain` raise `DataError` for a body that does not keep to the contract.
    """

    def __init__(self, path: Path, cluster: str | None, limits: Limits) -> None:
        self.name = path.absolute().name
        self.contract = Contract(limits)
        self.version = version("dismec")
        self.model = _open_warm(path, cluster)
        self._path, self._cluster = path, cluster

    def predict(self, body: bytes) -> tuple[bytes, int]:
        """The answer, and the number of rows that it is for."""
        model = self.model  # one for the whole request, whatever is loaded meanwhile
        X, request = parse("/predict", body, model, self.contract)
        return answers.predict(model, X, request), X.shape[0]

    def explain(self, body: bytes) -> bytes:
        """The answer; `NoExplanations` if the weights are on a cluster."""
        model = self._explaining_model()
        return answers.explain(model, *parse("/explain", body, model, self.contract))

    def example(self, _: bytes) -> str:
        """A text to try; `NoExplanations` if the weights are on a cluster."""
        return answers.example(self._explaining_model())

    def describe(self) -> dict[str, Any]:
        """What is served."""
        return answers.describe(self.model, self.name, self.contract.limits, self.version)

    def reload(self) -> bool:
        """Switch to the model that is on disk now; False, and a line in the log, if it is bad."""
        try:
            self.model = _open_warm(self._path, self._cluster)
        except (DismecError, OSError, MemoryError) as error:
            reason = " ".join(str(error).split()) or "out of memory"
            _log.error("not reloaded, the old model stays: %s", reason)
            return False
        _log.info("reloaded %s: %d labels", self._path, self.model.n_labels)
        return True

    def _explaining_model(self) -> Model:
        model = self.model
        if not model.capabilities.explanations:
            raise NoExplanations("explanations need the weights, and a cluster holds them")
        return cast(Model, model)


def _open_warm(path: Path, cluster: str | None) -> TopkModel:
    """The model, ready to predict: nobody waits for its weights to be laid out."""
    directory = path.resolve()  # one throughout, if a link is moved meanwhile
    model: TopkModel
    if cluster is None:
        model = open_model(directory, check=True)
    else:
        from dismec.cluster.serving import serve_on_cluster

        model = serve_on_cluster(cluster, directory)
    model.predict_topk(sp.csr_array((1, model.n_features)), 1, threads=1)
    return model
