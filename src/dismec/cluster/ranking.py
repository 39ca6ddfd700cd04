"""A model whose weights are on a cluster: the same rankings and explanations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dismec.cluster.batches import RowBatch, cut_rows
from dismec.cluster.prediction_worker import ShardFile
from dismec.cluster.questions import Ask, Best, CountBefore, Curves, Explain, LabelSet
from dismec.data.matrices import Rows
from dismec.errors import DataError
from dismec.model.allowed import Allowed
from dismec.model.calibration import Calibration, Float32s
from dismec.model.label_index import LabelIndex
from dismec.model.manifest import Manifest
from dismec.model.model import Model
from dismec.model.rankings import Rankings
from dismec.model.scoring import (
    Labels,
    RowTransform,
    Scores,
    check_explained,
    empty_topk,
)
from dismec.model.shards import Shard, first_labels
from dismec.model.sidecar_files import Parts

__all__ = ["ClusterRanking", "ClusterRankings", "Layout", "RemoteModel", "Runner"]


class Layout:
    """The labels of each shard of a model, read from its files when first needed."""

    def __init__(self, files: list[ShardFile], n_labels: int) -> None:
        self.files = files
        self.n_labels = n_labels

    @cached_property
    def shards(self) -> list[Shard]:
        """The memory-mapped shards; workers have compared them with their SHA-256."""
        return [file.read(check=False) for file in self.files]

    @cached_property
    def held(self) -> LabelIndex:
        """The shard and the classifier of each label."""
        return LabelIndex(self.shards, self.n_labels)

    @cached_property
    def first_labels(self) -> npt.NDArray[np.int64]:
        """For each label, the first label with the same classifier."""
        return first_labels(self.shards, self.n_labels)


class Runner(Protocol):
    """Makes the workers that hold a model score batches."""

    @property
    def layout(self) -> Layout:
        """The layout of the model."""

    @property
    def threads(self) -> int | None:
        """Number of threads that share a batch of work; None if there is always other work."""

    def run(self, batches: Iterable[RowBatch]) -> None:
        """Score batches, and call `RowBatch.done` of each in this thread.

        Raises the error that kept one from being scored.
        """


class ClusterRanking:
    """A ranking of all labels on a cluster: equivalent to `Predictor`, bit for bit."""

    def __init__(
        self, runner: Runner, transform: RowTransform, curves: Curves | None = None
    ) -> None:
        self.transform = transform
        self._runner = runner
        self._curves = curves

    @property
    def n_labels(self) -> int:
        """Number of labels of the model."""
        return self._runner.layout.n_labels

    def topk(
        self, X: Any, k: int = 5, threads: int | None = None, allowed: Allowed | None = None
    ) -> tuple[Labels, Scores]:
        """Like `Predictor.topk`; `threads` is ignored, as workers use their own."""
        if k < 1:
            raise DataError(f"k is {k}; expected at least 1")
        rows = self.transform.arrays(X)
        if allowed is not None:
            allowed.check(rows.n_rows)
        labels, scores = empty_topk(rows.n_rows, k)
        places = min(k, self.n_labels)
        if places == 0 or rows.n_rows == 0:
            return labels, scores
        mask = None if allowed is None else allowed.mask
        choice = None if mask is None else LabelSet(mask)

        def keep(start: int, stop: int, found: Any) -> None:
            labels[start:stop, :places], scores[start:stop, :places] = _checked(found)

        def batches() -> Iterator[RowBatch]:
            for start, stop in cut_rows(rows, self._runner.threads, allowed):
                sets = None
                if allowed is not None and choice is None:
                    sets = allowed.take(slice(start, stop))
                chunk = self.transform.apply_between(rows, start, stop)
                ask = Ask(Best(places, sets), self._curves, choice)
                yield RowBatch(chunk, ask, partial(keep, start, stop))

        self._runner.run(batches())
        return labels, scores

    def decision_function(self, X: Any, threads: int | None = None) -> Scores:
        """Like `Predictor.decision_function`."""
        labels, scores = self.topk(X, max(self.n_labels, 1), threads)
        result = np.full((len(labels), self.n_labels), -1, np.float32)
        row, place = np.nonzero(labels >= 0)
        result[row, labels[row, place]] = scores[row, place]
        return result

    def explain(self, X: Any, label: int) -> tuple[Rows, Scores, float]:
        """Like `Predictor.explain`."""
        rows = self.transform.arrays(X)
        check_explained(rows.n_rows, label, self.n_labels)
        shard, classifier = self._runner.layout.held.find(label)
        if shard < 0:
            raise DataError(f"label {label} was never trained: no training row had it")
        row = self.transform.apply_between(rows, 0, 1)
        weights, score = self._asked(row, Ask(Explain(classifier), self._curves, shard=shard))
        return row, weights, score

    def place(self, X: Any, label: int) -> int:
        """Like `Predictor.place`."""
        row, _, score = self.explain(X, label)
        before: int = self._asked(row, Ask(CountBefore(label, score), self._curves))
        return 1 + before

    def _asked(self, row: Rows, ask: Ask) -> Any:
        found: list[Any] = []
        self._runner.run([RowBatch(row, ask, found.append)])
        return _checked(found[0])


class ClusterRankings(Rankings):
    """The rankings of a model whose weights are on a cluster."""

    def __init__(
        self, runner: Runner, transform: RowTransform, calibration: Calibration | None
    ) -> None:
        super().__init__(runner.layout.n_labels, transform, calibration)
        self._runner = runner

    @property
    def first_labels(self) -> npt.NDArray[np.int64]:  # noqa: D102
        return self._runner.layout.first_labels

    def _by_score(self) -> ClusterRanking:
        return ClusterRanking(self._runner, self.transform)

    def _rescaled(self, slopes: Float32s, offsets: Float32s) -> ClusterRanking:
        curves = Curves(slopes, offsets, self.transform.bias)
        return ClusterRanking(self._runner, self.transform.with_bias(1.0), curves)


class RemoteModel(Model):
    """A model on a cluster: it predicts and explains like `Model`, but has no weights here."""

    def __init__(
        self, manifest: Manifest, transform: RowTransform, parts: Parts, runner: Runner
    ) -> None:
        rankings = ClusterRankings(runner, transform, parts.calibration)
        super().__init__(manifest, transform, parts, rankings)


def _checked(found: Any) -> Any:
    """Return an answer, or raise it if it is an exception."""
    if isinstance(found, Exception):
        raise found
    return found
