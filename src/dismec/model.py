"""A finished model: weights and names in, top k out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec import metrics, store
from dismec.blocks import Block
from dismec.errors import DataError, ModelError
from dismec.features import Transform, check_csr
from dismec.predictor import Predictor
from dismec.pruning import prune
from dismec.store import LabelTable, Manifest

__all__ = ["Model", "open_model"]


class Model:
    """One linear classifier a label.

    Made by `dismec.train`, `dismec.open_model` or `DiSMECClassifier.fit`, not by hand.

    Attributes
    ----------
    manifest
        What the model is: shape, parameters, blocks.
    transform
        What is done to a row before it is scored.
    label_counts
        int64 (n_labels,): rows of the training data that have each label.
    names
        One name a label, or None.
    """

    def __init__(
        self,
        manifest: Manifest,
        transform: Transform,
        labels: LabelTable,
        blocks: Sequence[Block],
    ) -> None:
        self.manifest = manifest
        self.transform = transform
        self.label_counts = labels.counts
        self.names = labels.names
        self._blocks = list(blocks)

    @property
    def n_labels(self) -> int:
        """Number of labels."""
        return self.manifest.n_labels

    @property
    def n_features(self) -> int:
        """Number of features, without the bias."""
        return self.manifest.n_features

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the training."""
        return dict(self.manifest.params)

    @property
    def weights(self) -> sp.csr_array:
        """The weights as CSR float32 (n_labels, n_features + 1), bias last; put together anew."""
        none: Any = sp.csr_array((0, self.n_features + 1), dtype=np.float32)
        stacked: Any = sp.vstack([none, *(block.weights for block in self._blocks)], format="csr")
        labels = np.concatenate([np.empty(0, np.int64), *(block.labels for block in self._blocks)])
        return cast(sp.csr_array, stacked[np.argsort(labels)])

    def predict_topk(
        self, X: Any, k: int = 5, *, threads: int | None = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The k best labels of each row with their scores, best first; ties to the smaller label.

        Parameters
        ----------
        X
            (n_rows, up to n_features) sparse or dense, as read from a file: the model's own
            transform is applied.
        k
            Places a row. Those beyond the labels that had training rows hold label −1 and score
            −inf: what was never seen is never predicted.
        threads
            All available CPUs by default.

        Returns
        -------
        labels, scores
            int32 and float32 (n_rows, k).

        Raises
        ------
        DataError
            If X has more features than the model, or values that are not finite.
        """
        return self._predictor.topk(X, k, threads)

    def decision_function(self, X: Any, *, threads: int | None = None) -> npt.NDArray[np.float32]:
        """Scores of all labels, dense float32 (n_rows, n_labels): for few labels or rows."""
        return self._predictor.decision_function(X, threads)

    def evaluate(
        self,
        X: Any,
        Y: Any,
        ks: Sequence[int] = (1, 3, 5),
        *,
        A: float = 0.55,
        B: float = 1.5,
        threads: int | None = None,
    ) -> dict[str, float]:
        """P@k, nDCG@k, PSP@k and more on rows with known labels, in percent (`dismec.metrics`).

        `Y` (n_rows, n_labels), sparse or dense, may have labels that the model does not have: they
        are never predicted, and count.
        """
        truth: Any = check_csr(Y, "Y", "labels").copy()
        n_labels = max(self.n_labels, truth.shape[1])
        depth = max(1, min(max(ks, default=1), n_labels))
        top, _ = self.predict_topk(X, depth, threads=threads)
        truth.resize((truth.shape[0], n_labels))
        counts = np.zeros(n_labels, dtype=np.int64)
        counts[: self.n_labels] = self.label_counts
        known = metrics.propensities(counts, self.manifest.n_rows, A, B)
        return metrics.evaluate(truth, top, ks, known)

    def propensities(self, A: float = 0.55, B: float = 1.5) -> npt.NDArray[np.float64]:
        """How likely each label is to be seen where it holds, by its training frequency."""
        return metrics.propensities(self.label_counts, self.manifest.n_rows, A, B)

    def pruned(self, delta: float) -> Model:
        """The model that training with this larger `delta` would have given, in memory.

        Raises
        ------
        DataError
            If `delta` is below the model's own: what training has dropped does not come back.
        """
        own = self.params.get("delta")
        if not isinstance(own, int | float):
            raise ModelError("the model does not say at which delta it was pruned")
        # What is left of any weights at infinity is nothing, but JSON has no word for it.
        if not own <= delta <= np.finfo(np.float32).max:
            raise DataError(
                f"delta is {delta}; expected at least {own}, that of the model: "
                "weights that have been dropped do not come back"
            )
        params = {k: v for k, v in self.params.items() if k not in ("delta_auto", "delta_effect")}
        manifest = replace(self.manifest, params=params | {"delta": float(delta)}, blocks=())
        labels = LabelTable(self.label_counts, self.names, self.transform.idf)
        blocks = [replace(block, weights=prune(block.weights, delta)) for block in self._blocks]
        return Model(manifest, self.transform, labels, blocks)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        estimator: dict[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write the model to a directory of its own, with what `estimator` or its manifest says.

        Raises
        ------
        ModelError
            If there is a model already and `overwrite` is not set, or other files are there.
        """
        directory = Path(path)
        store.make_directory(directory)
        with store.locked(directory):
            if store.holds_model(directory) and not overwrite:
                raise ModelError(
                    f"{directory} holds a model already: "
                    "choose another directory, or overwrite it (--overwrite)"
                )
            store.discard(directory)
            labels = LabelTable(self.label_counts, self.names, self.transform.idf)
            digest = store.write_labels(directory, labels)
            about = self.manifest.estimator if estimator is None else estimator
            manifest = replace(self.manifest, labels_sha256=digest, estimator=about)
            receipts = [store.write_block(directory, block) for block in self._blocks]
            store.commit(directory, manifest.with_blocks(receipts))

    @cached_property
    def _predictor(self) -> Predictor:
        blocks = [(block.labels, block.weights) for block in self._blocks]
        return Predictor(blocks, self.n_labels, self.transform, untrained=self.label_counts == 0)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_predictor"}


def open_model(path: str | os.PathLike[str], *, check: bool = True) -> Model:
    """Open a model directory.

    Every file is read and checked against the manifest. Without `check` only sizes are compared,
    and weights are read when they are needed: for files that are known to be sound.

    Raises
    ------
    ModelError
        If there is no finished model, or one of its files is missing, cut off or altered.
    """
    directory = Path(path)
    manifest = store.read_manifest(directory)
    if not manifest.complete:
        raise ModelError(
            f"{directory}: training is not finished ({manifest.labels_done} of "
            f"{manifest.n_labels} labels); run the same training again to go on"
        )
    labels = store.read_labels(directory, manifest)
    blocks = [store.read_block(directory, manifest, r, check=check) for r in manifest.blocks]
    held = np.concatenate([np.empty(0, np.int64), *(block.labels for block in blocks)])
    if not np.array_equal(np.sort(held), np.arange(manifest.n_labels)):
        raise ModelError(f"{directory}: the blocks do not hold every label once")
    return Model(manifest, Transform.from_dict(manifest.transform, labels.idf), labels, blocks)
