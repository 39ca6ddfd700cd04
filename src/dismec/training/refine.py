"""The stage that turns a job into that of a second stage, whose features include likely labels.

1. Split the rows into folds. For each fold, train on the others and score its rows, so that every
   row is scored by a model that has not seen it. Only labels with enough rows take part.
2. Add the best labels of each row as features. On a sample of the labels, with a tenth of the rows
   held out, measure whether these features help, and calibrate if requested.
3. Train the first stage on all rows. It predicts the likely labels of new rows.

Intermediate results are kept in folders beside the model, so that a killed run can be resumed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dismec.cpu import kernels
from dismec.data.files import sync_directory, whole_file
from dismec.data.matrices import check_rows, csr_on
from dismec.data.mixed import MixedRows, sparse_part
from dismec.data.training_file import TrainingData
from dismec.errors import DataError
from dismec.features.transform import Transform
from dismec.measure.metrics import Truth
from dismec.model.calibration import Calibration
from dismec.model.manifest import ARRAYS, FIRST, Manifest, ShardReceipt
from dismec.model.model import Model
from dismec.model.provenance import sentence
from dismec.model.refined_transform import RefinedTransform, Refinement, label_columns, widened
from dismec.solve.problem import Problem
from dismec.training import resume
from dismec.training.calibrate import fit_calibration
from dismec.training.choose_c import difference_margin
from dismec.training.execute import Store
from dismec.training.job import Job
from dismec.training.params import LOOSE, Progress, TrainingParams, plain, share_of
from dismec.training.split import held_out, only_columns, only_known, only_labels, sampled
from dismec.training.text_weight import with_described_curve, with_label_texts

_log = logging.getLogger("dismec")

_LEAST_ROWS = 20  # of labels used as features: the scores of rarer ones are unreliable
_FOLDS = 3
_EVERY = 2  # the trial trains every second label: with fewer, the gain seems smaller than it is
_CHUNK_ROWS = 8192  # rows extended at a time
_DEPTHS = (1, 3, 5)
_METRICS = ("P@1", "P@3", "P@5", "nDCG@5")  # of the trial; the last one decides
_SHARES = ("reached", "attainable")
# Shares of the work done before the trial, the first and the second stage: between those measured
# on Eurlex-4K and citeulike-t.
_UNTIL_TRIAL, _UNTIL_FIRST, _UNTIL_SECOND = 0.2, 0.5, 0.6


class Refining:
    """The stage that refines a model, if that helps."""

    def stated(self, job: Job) -> Job:
        """Return the job whose manifest states how many rows are held out for calibration.

        Raises `DataError` if there are too few rows for refining.
        """
        n_rows = job.problem.n_rows
        if n_rows < 2 * _FOLDS:
            raise DataError(
                f"refine needs at least {2 * _FOLDS} rows, there are {n_rows}; train without it"
            )
        if not job.params.calibrate:
            return job
        return job.with_facts(calibrated={"rows": len(_held_out(job))})

    def run(self, job: Job, store: Store) -> Job:
        """Return the job of the second stage, or of the plain model if refining does not help."""
        informing = int(np.count_nonzero(job.parts.labels.counts >= _LEAST_ROWS))
        return _Steps(job, Refinement(informing, _FOLDS), store).run()


@dataclass(frozen=True, eq=False)
class _Steps:
    """The steps from the job of a plain model to that of its second stage."""

    job: Job  # of the plain model; its parameters request refining
    refinement: Refinement
    store: Store

    def run(self) -> Job:
        """Return the job that remains."""
        n_labels, store, progress = self.job.problem.n_labels, self.store, self.store.progress
        earlier = store.earlier
        effect = earlier and earlier.params.get("refine_effect")
        if store.directory and earlier and effect and earlier.refined is None:
            # An earlier run found that refining does not help.
            job = self.job.with_facts(refine_effect=effect)
            known = resume.known_calibration(store.directory, job, earlier)
            if known:
                return known
        if earlier is None or earlier.refined is None:
            begun = replace(self.job.manifest, refined=self.refinement.to_dict())
            store.earlier = earlier and replace(earlier, blocks=())
            store.record(replace(self.job, manifest=begun))
        likely = self._out_of_fold(share_of(progress, 0.0, _UNTIL_TRIAL, n_labels))
        trial = self._trial(likely, share_of(progress, _UNTIL_TRIAL, _UNTIL_FIRST, n_labels))
        job = self.job.with_facts(refine_effect=trial.effect)
        if trial.calibration is not None:
            groups = job.equal_labels.groups
            job = job.with_calibration(trial.calibration.taken_from(groups))
            if job.matches is not None and job.text_weight is None:
                job = self._with_described_curve(job)
        if not trial.helps:
            _log.warning(
                "refining does not help on this data (%s): training the plain model",
                sentence("refine_effect", trial.effect),
            )
            store.progress = share_of(progress, _UNTIL_FIRST, 1.0, n_labels)
            store.earlier = store.earlier and replace(store.earlier, blocks=())
            return job
        first = self._train_first(share_of(progress, _UNTIL_FIRST, _UNTIL_SECOND, n_labels))
        store.progress = share_of(progress, _UNTIL_SECOND, 1.0, n_labels)
        return self._second(job, self._wide(likely), first)

    def _with_described_curve(self, job: Job) -> Job:
        """Return the job with the calibration of labels that have only a text."""
        Y, share = sampled(job.data.Y, self.job.parts.labels.counts, _EVERY)
        held = job.data.at(_held_out(job))
        judge = replace(held, Y=only_labels(held.Y, Y))
        occurring = np.bincount(Y.indices, minlength=Y.shape[1]) > 0
        return with_described_curve(job, occurring, judge, share)

    def _informing_Y(self) -> Any:
        """Return Y with only the labels used as features."""
        return only_columns(self.job.data.Y, self.job.parts.labels.counts >= _LEAST_ROWS)

    def _out_of_fold(self, progress: Progress | None) -> _Likely:
        """Return the best labels of each row and their scores, by a model that has not seen it.

        No model has seen the rows of the trial: what rows of one fold learn of another would make
        the trial look better than new rows are.
        """
        data = replace(self.job.data, Y=self._informing_Y())
        n_rows, k = self.job.problem.n_rows, self.refinement.labels
        fold = np.random.default_rng(0).permutation(n_rows) % _FOLDS
        seen = np.ones(n_rows, bool)
        seen[_held_out(self.job)] = False
        labels, scores = np.empty((n_rows, k), np.int32), np.empty((n_rows, k), np.float32)
        for number in range(_FOLDS):
            rows, others = np.flatnonzero(fold == number), np.flatnonzero((fold != number) & seen)
            bounds = number / _FOLDS, (number + 1) / _FOLDS
            part = share_of(progress, *bounds, self.job.problem.n_labels)
            name = f"fold-{number}"
            find = partial(self._score_fold, name, data, rows, others, part)
            found = self.store.found(name, self.job, find, name)
            labels[rows], scores[rows] = found["labels"], found["scores"]
        return _Likely(labels, scores)

    def _score_fold(
        self,
        name: str,
        data: TrainingData,
        rows: npt.NDArray[np.int64],
        others: npt.NDArray[np.int64],
        progress: Progress | None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the best labels of some rows and their scores, by a model trained on the others.

        The rows of either kind are copied, dense features included, only while they are needed.
        """
        job = self.job.stage(name, data.at(others), plain(self.job.params, LOOSE))
        model = self.store.train(name, job, progress)
        known = sparse_part(job.data.X) if self.job.parts.vocabulary else None
        del job
        new = data.X[rows]
        if known is not None:
            # As in new texts, words that occur in no training text are ignored.
            new = only_known(new, known)
        found = model.predict_topk(new, self.refinement.labels, threads=self.store.threads)
        return dict(zip(("labels", "scores"), found, strict=True))

    def _wide(self, likely: _Likely, rows: npt.NDArray[np.int64] | None = None) -> Any:
        """Return the rows of the second stage, or some of them."""
        own = replace(self.job.transform, bias=0.0, dense=0)
        informing = np.flatnonzero(self.job.parts.labels.counts >= _LEAST_ROWS)
        columns = label_columns(informing)
        X = sparse_part(self.job.data.X)
        everything = rows is None
        rows = np.arange(X.shape[0]) if rows is None else rows
        # Filled chunk by chunk, so that memory holds only X, the result and one chunk.
        lengths = np.diff(X.indptr)[rows].astype(np.int64)
        room = int(lengths.sum()) + len(rows) * self.refinement.labels
        data, indices = np.empty(room, np.float32), np.empty(room, np.int32)
        indptr = np.zeros(len(rows) + 1, np.int64)
        for begin in range(0, len(rows), _CHUNK_ROWS):
            some = rows[begin : begin + _CHUNK_ROWS]
            raw = check_rows(X[some], own.n_features)
            chunk = own.apply_between(raw, 0, len(some))
            best = likely.labels[some], likely.scores[some]
            part = widened(chunk, own, *best, columns, self.refinement)
            first = indptr[begin]
            indptr[begin + 1 : begin + 1 + len(some)] = first + part.indptr[1:]
            data[first : first + len(part.data)] = part.data
            indices[first : first + len(part.data)] = part.indices
        shape = len(rows), own.n_features + len(informing)
        wide = csr_on(data[: indptr[-1]], indices[: indptr[-1]], indptr, shape)
        if not isinstance(self.job.data.X, MixedRows):
            return wide
        # All rows share the dense features of X; some of them get a copy.
        dense = self.job.data.X.dense
        return MixedRows(wide, dense if everything else np.ascontiguousarray(dense[rows]))

    @property
    def _wide_transform(self) -> Transform:
        """The transform of the second stage: only dense features are not transformed yet."""
        own = self.job.transform
        return Transform(
            own.n_features + self.refinement.informing,
            normalize=False,
            bias=own.bias,
            dense=own.dense,
            dense_scale=own.dense_scale,
            normalize_dense=own.normalize,
        )

    def _trial(self, likely: _Likely, progress: Progress | None) -> _TrialResults:
        """Measure whether likely labels help as features, and calibrate if requested."""
        find = partial(self._run_trial, likely, progress)
        found = dict(self.store.found("trial", self.job, find, "plain", "wide"))
        measured = {name: found.pop(name) for name in ("plain", "wide", "margin", "rows")}
        calibration = None
        if self.job.params.calibrate:
            calibration = Calibration.from_arrays(found, self.job.problem.n_labels)
        return _TrialResults(measured, calibration)

    def _run_trial(self, likely: _Likely, progress: Progress | None) -> dict[str, npt.NDArray[Any]]:
        """Train some labels without and with likely labels, and evaluate both on held-out rows."""
        job, threads = self.job, self.store.threads
        counts, n_labels = job.parts.labels.counts, job.problem.n_labels
        held = _held_out(job)
        others = np.delete(np.arange(job.problem.n_rows), held)
        Y, share = sampled(job.data.Y, counts, _EVERY)
        data = replace(job.data, Y=Y)
        without = plain(job.params, LOOSE)  # its calibration counts if refining is rejected
        stages: dict[str, tuple[TrainingParams, Transform | None]] = {
            "plain": (without, None),
            "wide": (replace(without, normalize=False, tfidf=False), self._wide_transform),
        }

        def rows_of(name: str, rows: npt.NDArray[np.int64]) -> TrainingData:
            if name == "plain":
                found = data.at(rows)
                known = rows is held and job.parts.vocabulary
                return replace(found, X=only_known(found.X, data.X[others])) if known else found
            weights = None if data.weights is None else data.weights[rows]
            return TrainingData(self._wide(likely, rows), data.Y[rows], weights)

        results = {"rows": np.array([float(len(held))])}
        shares: dict[str, Any] = {}
        curves: dict[str, Calibration] = {}
        for number, (name, (params, transform)) in enumerate(stages.items()):
            part = share_of(progress, number / 2, (number + 1) / 2, n_labels)
            # Only one model and one copy of the rows are in memory at a time.
            trial = job.stage(name, rows_of(name, others), params, transform)
            model = self.store.train(name, trial, part)
            del trial
            new = rows_of(name, held)
            if job.matches is not None:
                model = with_label_texts(model, job, job.text_weight)
            if job.params.calibrate:
                curves[name] = fit_calibration(
                    model,
                    new.X,
                    new.Y,
                    counts=counts,
                    share=share,
                    weights=new.weights,
                    threads=threads,
                    by_count=job.text_weight is None,
                )
                parts = replace(model.parts, calibration=curves[name])
                model = Model.from_shards(model.manifest, model.transform, parts, model.shards)
            top, _ = model.predict_topk(new.X, max(_DEPTHS), threads=threads)
            truth = Truth.align(new.Y, model.label_counts, len(others))
            found = truth.metrics(top, _DEPTHS, new.weights)
            results[name] = np.array([found[metric] for metric in _METRICS])
            shares[name] = dict(zip(_SHARES, truth.shares(top, _DEPTHS)[_METRICS[-1]], strict=True))
            new_weights = new.weights
            del model, new
            kernels.release_memory()
        margin = difference_margin(shares["wide"], shares["plain"], new_weights)
        results["margin"] = np.array([margin])
        if curves:
            results |= curves["wide" if _helps(results) else "plain"].to_arrays()
        return results

    def _train_first(self, progress: Progress | None) -> Model:
        """Train the first stage."""
        data = replace(self.job.data, Y=self._informing_Y(), names=None, source=None)
        job = self.job.stage("first", data, plain(self.job.params))
        return self.store.train("first", job, progress)

    def _second(self, job: Job, wide: Any, first: Model) -> Job:
        """Return the job of the second stage."""
        transform = self._wide_transform
        refined_transform = RefinedTransform(
            job.transform, first.shards, self.refinement, job.params.bias
        )
        receipts: tuple[ShardReceipt, ...] = ()
        if directory := self.store.directory:
            receipts = _link_shards(directory, self.store.folder("first"), first.manifest)
        manifest = replace(job.manifest, refined=self.refinement.to_dict(), first=receipts)
        data = job.identified("second", TrainingData(wide, job.data.Y, job.data.weights))
        return replace(
            job,
            data=data,
            problem=Problem(wide, data.Y, transform, data.weights, job.costs),
            transform=transform,
            manifest=manifest,
            refined_transform=refined_transform,
        )


class _Likely(NamedTuple):
    """The likely labels of each row, (n_rows, k), and their scores."""

    labels: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class _TrialResults:
    """The results of the trial: metrics without and with likely labels, and the calibration."""

    results: Mapping[str, npt.NDArray[Any]]
    calibration: Calibration | None

    @property
    def helps(self) -> bool:
        return _helps(self.results)

    @property
    def effect(self) -> dict[str, Any]:
        """The manifest entry ``refine_effect`` (`dismec.model.provenance`)."""
        before, after = (
            dict(zip(_METRICS, self.results[name].tolist(), strict=True))
            for name in ("plain", "wide")
        )
        margin, rows = float(self.results["margin"][0]), int(self.results["rows"][0])
        return {"before": before, "after": after, "margin": margin, "rows": rows}


def _helps(results: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Return whether the loss, if there is one, is within half of the 95 % margin.

    The trial understates the gain: its labels come from models of fewer rows than those of new rows
    will (``docs/contributing/decisions/accuracy.md``).
    """
    return bool(results["wide"][-1] - results["plain"][-1] > -results["margin"][0] / 2)


def _held_out(job: Job) -> npt.NDArray[np.int64]:
    """Return the rows of the trial."""
    return held_out(job.problem.n_rows - job.data.n_described)


def _link_shards(directory: Path, folder: Path, manifest: Manifest) -> tuple[ShardReceipt, ...]:
    """Link the shards of the first stage into the model directory; return their receipts."""
    receipts = []
    for number, receipt in enumerate(manifest.shards or ()):
        target = directory / f"{FIRST}{number:06d}{ARRAYS}"
        target.unlink(missing_ok=True)
        try:
            os.link(folder / receipt.file, target)
        except OSError:  # the file system does not support links
            with whole_file(target) as file:
                file.write((folder / receipt.file).read_bytes())
        receipts.append(replace(receipt, file=target.name))
    sync_directory(directory)  # the files must be durable before a manifest names them
    return tuple(receipts)
