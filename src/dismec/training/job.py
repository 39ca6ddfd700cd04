"""Data and options → checked data, and the manifest of the model to be trained."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cluster.remote_data import RemoteData
from dismec.cpu import physical_memory
from dismec.data.counts import counted
from dismec.data.mixed import check_features, is_mostly_full
from dismec.data.names import check_names
from dismec.data.training_file import TrainingData
from dismec.data.weights import check_relevances
from dismec.errors import DataError
from dismec.features.label_texts import added_weights, matches
from dismec.features.transform import Transform
from dismec.model.manifest import Manifest
from dismec.model.sidecar_files import LabelTable, Parts
from dismec.solve.partition import EqualLabels, by_frequency, cut, effort
from dismec.solve.problem import Problem, ProblemFacts, SolverParams
from dismec.training.params import ENCODER_SCALE, TrainingParams, TrainOptions

if TYPE_CHECKING:
    from dismec.model.calibration import Calibration
    from dismec.model.refined_transform import RefinedTransform
    from dismec.solve.costs import Costs

Blocks: TypeAlias = dict[int, npt.NDArray[np.int64]]  # labels of each block, by block number
Mask: TypeAlias = npt.NDArray[np.bool_]  # (n_labels,)
Ints: TypeAlias = npt.NDArray[np.int64]

# Training allocates memory per feature and per label, even for those that no row has. Up to
# _ALWAYS_COLUMNS of each are accepted; more need an entry per _COLUMNS_PER_ENTRY of them.
_ALWAYS_COLUMNS, _COLUMNS_PER_ENTRY = 1 << 24, 100
_CHOOSING_C = ("metric",)  # recorded in ``C_auto`` if it is used


@dataclass(frozen=True, eq=False)
class Job:
    """Checked training data, with the parameters and the manifest of the model to be trained.

    Immutable: choosing a parameter or calibrating the model returns another job.
    """

    data: TrainingData
    problem: Problem | ProblemFacts
    params: TrainingParams
    transform: Transform  # of rows of X
    parts: Parts
    manifest: Manifest
    costs: Costs | None = None  # factors for the losses of each label's rows
    refined_transform: RefinedTransform | None = None  # from rows to X, in a second stage
    matches: sp.csr_array | None = None  # vectors of the labels' texts (`features.label_texts`)
    text_weight: float | None = None  # of matches, for labels with training rows; None: not used

    @classmethod
    def prepare(
        cls, data: TrainingData, options: TrainOptions, transform: Transform | None = None
    ) -> Job:
        """Check the data, and return the job of training on them.

        Without `transform`, one is fitted to X according to the parameters.

        Raises `DataError` if X, Y, the names or the weights are invalid.
        """
        params = options.params
        if params.dense_scale is None:
            encodes = options.vocabulary is not None and options.vocabulary.encoder is not None
            params = replace(params, dense_scale=ENCODER_SCALE if encodes else 1.0)
            options = replace(options, params=params)
        if isinstance(data.X, RemoteData):
            return cls._of_remote(data, options)
        X = transform.take(data.X) if transform else check_features(_with_dense_part(data, options))
        if X.shape[0] == 0:
            raise DataError("there are no rows to train on")
        if params.penalty == "l1" and not (data.weights is None and options.costs is None):
            raise DataError("row weights and class weights are not supported with penalty='l1'")
        if data.pairs is not None and params.penalty == "l1":
            raise DataError("pair weights are not supported with penalty='l1'")
        if data.pairs is not None and params.refine:
            raise DataError("pair weights are not supported with refine=True")
        data = data.checked(X)
        if params.soft_labels:
            check_relevances(data.pairs, data.Y)
        _check_memory(X.shape[1], data.Y.shape[1])
        _check_columns("labels", data.Y.shape[1], data.Y.nnz + len(data.names or ()))
        if transform is None:
            _check_columns("features", X.shape[1], data.X.nnz)
        return cls._of(data, options, transform)

    @classmethod
    def _of(cls, data: TrainingData, options: TrainOptions, transform: Transform | None) -> Job:
        """Return the job for checked data."""
        params = options.params
        if transform is None:
            transform = Transform.fit(data.undescribed.X, **params.transform)
        problem = Problem(data.X, data.Y, transform, data.weights, options.costs, data.pairs)
        problem.check_C(params.solver)
        vectors = None
        if options.label_texts is not None and options.vocabulary is not None:
            vectors = matches(options.vocabulary, transform.idf, options.label_texts)
        described = _describe(data, problem, options, transform, vectors)
        return cls(data, problem, params, transform, *described, options.costs, matches=vectors)

    @classmethod
    def _of_remote(cls, data: TrainingData, options: TrainOptions) -> Job:
        """Return the job for data on cluster workers, which have already checked them."""
        facts, problem = data.X.facts, data.X.problem
        names = check_names(facts.names if data.names is None else data.names, problem.n_labels)
        if problem.n_rows == 0:
            raise DataError("there are no rows to train on")
        _check_memory(problem.n_columns, problem.n_labels)
        data = replace(data, names=names, hashed=facts.fingerprint)
        described = _describe(data, problem, options, facts.transform)
        return cls(data, problem, options.params, facts.transform, *described)

    def stage(
        self,
        name: str,
        data: TrainingData,
        params: TrainingParams,
        transform: Transform | None = None,
    ) -> Job:
        """Return the job of a stage on some of the rows and labels of this job.

        It is identified by this job and its own name, so its data are not hashed.
        """
        data = self.identified(name, data)
        return Job._of(data, TrainOptions(params, costs=self.costs), transform)

    def identified(self, name: str, data: TrainingData) -> TrainingData:
        """Return the data of a stage, with a fingerprint made of this job's and its name."""
        return replace(data, hashed=hashlib.sha256(f"{self.digest} {name}".encode()).hexdigest())

    @property
    def digest(self) -> str:
        """A digest of the data, the parameters and what has been chosen so far."""
        params = self.manifest.params
        known = {key: params[key] for key in sorted(params) if key != "block_size"}
        text = json.dumps([self.manifest.data, known, self.manifest.dismec])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def solver(self) -> SolverParams:
        """The parameters of the solver, with the costs and pruning of this job."""
        params = self.params.solver
        if self.costs is not None:
            params = replace(params, weighting=replace(params.weighting, factors=self.costs))
        if self.matches is not None:
            added = self.added(self.text_weight, self.problem.n_columns)
            params = replace(params, added=added)
        if self.refined_transform is None:
            return params
        return replace(params, pruned_more=self.refined_transform.pruned_more(params.delta))

    def added(self, weight: float | None, n_columns: int) -> sp.csr_array:
        """Return what the texts of labels add to their weights, given the weight of matches.

        With None, only labels without training rows, which have no other weights, get any.
        """
        assert self.matches is not None
        table = self.parts.labels
        rest = weight or 0.0, table.only_described, self.transform.bias, n_columns
        return added_weights(self.matches, table.counts, *rest)

    def with_facts(self, **facts: Any) -> Job:
        """Return the job with these entries added to the parameters in its manifest."""
        manifest = replace(self.manifest, params=self.manifest.params | facts)
        return replace(self, manifest=manifest)

    def with_sqrt(self, effect: dict[str, Any]) -> Job:
        """Return the job with the effect of square roots recorded, and with these if it says so."""
        job = self.with_facts(sqrt_effect=effect)
        return job._with_transform(sqrt=True) if effect["used"] else job

    def with_dense_scale(self, scale: float, table: Any) -> Job:
        """Return the job with a chosen scale, recording the table of what was tried."""
        return self._with_transform(dense_scale=scale).with_facts(dense_scale_table=table)

    def _with_transform(self, **changed: Any) -> Job:
        """Return the job with a parameter that is also one of the transform."""
        params, transform = replace(self.params, **changed), replace(self.transform, **changed)
        data = self.data
        problem = Problem(data.X, data.Y, transform, data.weights, self.costs, data.pairs)
        manifest = replace(self.with_facts(**changed).manifest, transform=transform.to_dict())
        return replace(self, params=params, transform=transform, problem=problem, manifest=manifest)

    def with_text_weight(self, effect: dict[str, Any]) -> Job:
        """Return the job that uses the texts of labels as their effect says."""
        job = replace(self.with_facts(label_texts_effect=effect), text_weight=effect["weight"])
        if effect["weight"] is not None or not self.data.n_described:
            return job
        data = self.data.undescribed
        problem = Problem(data.X, data.Y, self.transform, data.weights, self.costs, data.pairs)
        table = self.parts.labels
        counts = np.maximum(problem.label_counts, np.asarray(table.described, np.int64))
        parts = replace(self.parts, labels=replace(table, counts=counts))
        return replace(job, data=data, problem=problem, parts=parts)

    def with_C(self, C: float, positive_weight: float, table: Any) -> Job:
        """Return the job with a chosen C and weight, recording the table of what was tried."""
        params = replace(self.params, C=C, positive_weight=positive_weight)
        facts = {"C": C, "positive_weight": positive_weight, "C_table": table}
        return replace(self, params=params).with_facts(**facts)

    def with_delta(self, delta: float, effect: Any) -> Job:
        """Return the job with a chosen delta, recording its effect on P@k."""
        job = replace(self, params=replace(self.params, delta=delta))
        return job.with_facts(delta=delta, delta_effect=effect)

    def with_calibration(self, calibration: Calibration | None) -> Job:
        """Return the job with the calibration that its model will have."""
        return replace(self, parts=replace(self.parts, calibration=calibration))

    def blocks(self, held: Mask, first: int, n_blocks: int | None = None) -> Blocks:
        """Return the labels that are not `held`, in blocks numbered from `first`.

        Frequent labels come first, in smaller blocks. Labels solved together then need similar
        passes over the data, and no slow label is left for the end.
        """
        labels = np.flatnonzero(~held)
        equal = self.equal_labels.among(labels)
        counts = self.problem.label_counts[labels]
        order, work = by_frequency(equal.groups, counts), effort(equal, counts)
        cuts = cut(order, self.params.block_size, work, n_blocks)
        return {first + i: labels[places] for i, places in enumerate(cuts)}

    @property
    def equal_labels(self) -> EqualLabels:
        """Labels with the same weights."""
        described = self.parts.labels.described
        equal = self.problem.equal_labels
        return equal if described is None else equal.apart(described)

    @property
    def work(self) -> npt.NDArray[np.int64]:
        """The `effort` of each label."""
        return effort(self.equal_labels, self.problem.label_counts)


def _describe(
    data: TrainingData,
    problem: Problem | ProblemFacts,
    options: TrainOptions,
    transform: Transform,
    vectors: sp.csr_array | None = None,
) -> tuple[Parts, Manifest]:
    """Return the parts of the model other than its weights, and its manifest."""
    vocabulary = options.vocabulary
    params = {k: v for k, v in asdict(options.params).items() if k not in _CHOOSING_C}
    if not transform.dense:
        del params["dense_scale"]
    found: dict[str, Any] = {}
    if options.terms_table:
        found["terms_table"] = list(options.terms_table)
    table = LabelTable(
        problem.label_counts, None if data.names is None else list(data.names), transform.idf
    )
    if vectors is not None:
        described = (table.counts == 0) & (np.diff(vectors.indptr) > 0)
        counts, texts = table.counts + described, options.label_texts
        table = replace(table, counts=counts, texts=texts, described=described)
        digest = hashlib.sha256("\0".join(texts or ()).encode()).hexdigest()[:16]
        found["label_texts"] = {"data": digest, "without_rows": int(described.sum())}
    manifest = Manifest(
        n_rows=problem.n_rows,
        n_features=problem.n_features,
        n_labels=problem.n_labels,
        params=params | _weights_in_manifest(data) | found,
        transform=transform.to_dict(),
        data=data.fingerprint,
        dismec=version("dismec"),
        text=vocabulary.params.to_dict() if vocabulary else None,
        encoder=vocabulary.encoder.to_dict() if vocabulary and vocabulary.encoder else None,
        columns=dict(options.columns) if options.columns else None,
        examples=options.examples,
    )
    return Parts(table, vocabulary), manifest


def _weights_in_manifest(data: TrainingData) -> dict[str, Any]:
    """Return the manifest entries about weights, as `dismec.model.provenance` specifies them."""
    entries: dict[str, Any] = {}
    if data.weights is not None:
        least, most, total = (float(f(data.weights)) for f in (np.min, np.max, np.sum))
        entries["row_weights"] = {"least": least, "most": most, "sum": total}
    if data.pairs is not None:
        left_out = int(np.count_nonzero(data.pairs.data == 0))
        entries["pair_weights"] = {"pairs": data.pairs.nnz, "left_out": left_out}
    return entries


def _with_dense_part(data: TrainingData, options: TrainOptions) -> Any:
    """Return X, as dense features if most of it is nonzero and the parameters allow it."""
    params = options.params
    if params.tfidf or params.sqrt or options.vocabulary is not None:
        return data.X
    return [data.X] if is_mostly_full(data.X) else data.X


def _check_columns(what: str, n_columns: int, n_entries: int) -> None:
    """Raise `DataError` if there are far more columns than entries: the header may be wrong."""
    if n_columns > max(_ALWAYS_COLUMNS, _COLUMNS_PER_ENTRY * n_entries):
        raise DataError(
            f"{n_columns:,} {what}, but the data have only {counted(n_entries, 'entry')}: "
            f"more than {_ALWAYS_COLUMNS:,} {what} need an entry for every {_COLUMNS_PER_ENTRY}; "
            "is the header right?"
        )


def _check_memory(n_features: int, n_labels: int) -> None:
    """Raise `DataError` if vectors of these sizes do not fit in memory: the header may be wrong."""
    # Per feature, one thread's 16-bit weights for 32 labels and some vectors; per label, counts and
    # positions.
    needed = 100 * n_features + 64 * n_labels
    present = physical_memory()
    if present is not None and needed > present:
        raise DataError(
            f"{counted(n_features, 'feature')} and {counted(n_labels, 'label')} need at least "
            f"{needed >> 30} GiB of memory; this machine has {present >> 30}"
        )
