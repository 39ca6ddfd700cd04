"""Training request → checked data, and the manifest of the model to be trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cluster.placed import PlacedData
from dismec.cpu import physical_memory
from dismec.data.counts import counted
from dismec.data.dataset import fingerprint
from dismec.data.matrices import check_Y
from dismec.data.mixed import MixedRows, check_features, is_mostly_full
from dismec.data.names import check_names
from dismec.data.pair_weights import PairWeights, find_pairs, known_labels, pairs_at
from dismec.data.row_weights import RowWeights, check_row_weights, kept_rows
from dismec.data.targets import is_label_lists, named_matrix
from dismec.errors import DataError
from dismec.features.transform import Transform
from dismec.model.manifest import Manifest
from dismec.model.parts import LabelTable, Parts
from dismec.solve.blocks import BlockCutter, by_frequency, cut, effort
from dismec.solve.problem import Problem, ProblemFacts, SolverParams

if TYPE_CHECKING:
    from dismec.model.calibration import Calibration
    from dismec.model.informed import Informed
    from dismec.solve.costs import Costs
    from dismec.training.params import TrainingParams
    from dismec.training.request import Request

__all__ = ["Blocks", "Job", "Mask"]

Blocks: TypeAlias = dict[int, npt.NDArray[np.int64]]  # labels of each block, by block number
Mask: TypeAlias = npt.NDArray[np.bool_]  # (n_labels,)
Ints: TypeAlias = npt.NDArray[np.int64]

# Training allocates memory per feature and per label, even for those that no row has. Up to
# _ALWAYS_COLUMNS of each are accepted; more need an entry per _COLUMNS_PER_ENTRY of them.
_ALWAYS_COLUMNS, _COLUMNS_PER_ENTRY = 1 << 24, 100


@dataclass(frozen=True, eq=False)
class Job:
    """Checked training data, with the parameters and the manifest of the model to be trained.

    Immutable: choosing a parameter or calibrating the model returns another job.
    """

    X: sp.csr_array | MixedRows | PlacedData
    Y: sp.csr_array | PlacedData
    problem: Problem | ProblemFacts
    params: TrainingParams
    transform: Transform  # of rows of X
    parts: Parts
    manifest: Manifest
    data: str  # fingerprint of X, Y and all weights
    informed: Informed | None = None  # how rows are extended to X in a second stage
    weights: RowWeights | None = None  # row weights, all above 0; None: all 1
    pairs: PairWeights | None = None  # weights of (row, label) pairs; None: all 1
    costs: Costs | None = None  # factors for the losses of each label's rows

    @classmethod
    def prepare(cls, request: Request, transform: Transform | None = None) -> Job:
        """Check the data of a request, and return the job of training on them.

        Without `transform`, one is fitted to X according to the parameters.

        Raises
        ------
        DataError
            If X, Y, the names or the weights are invalid.
        """
        if isinstance(request.X, PlacedData):
            return cls._of_placed(request, request.X)
        X = transform.take(request.X) if transform else check_features(_with_dense_part(request))
        if X.shape[0] == 0:
            raise DataError("there are no rows to train on")
        params = request.params
        if params.penalty == "l1" and not (request.weights is None and request.costs is None):
            raise DataError("row weights and class weights are not supported with penalty='l1'")
        if request.pair_weights is not None:
            _check_pairs_supported(params)
        X, Y, named, weights, pairs = _weighted_data(X, request)
        names = check_names(named, Y.shape[1])
        _check_memory(X.shape[1], Y.shape[1])
        _check_columns("labels", Y.shape[1], Y.nnz + len(names or ()))
        if transform is None:
            _check_columns("features", X.shape[1], X.nnz)
            transform = Transform.fit(
                X,
                tfidf=params.tfidf,
                normalize=params.normalize,
                bias=params.bias,
                dense_scale=params.dense_scale,
            )
        problem = Problem(X, Y, transform, weights, request.costs, pairs)
        problem.check_C(params.C)
        data = fingerprint(X, Y, weights, pairs)
        checked = _CheckedData(problem, transform, data, names, weights, pairs)
        rest: dict[str, Any] = {"weights": weights, "pairs": pairs, "costs": request.costs}
        return cls(X, Y, problem, params, transform, *checked.describe(request), data, **rest)

    @classmethod
    def _of_placed(cls, request: Request, placed: PlacedData) -> Job:
        """Return the job for data on cluster workers, which have already checked them."""
        facts, problem = placed.facts, placed.problem
        names = check_names(
            facts.names if request.names is None else request.names, problem.n_labels
        )
        if problem.n_rows == 0:
            raise DataError("there are no rows to train on")
        _check_memory(problem.n_columns, problem.n_labels)
        problem.check_C(request.params.C)
        checked = _CheckedData(problem, facts.transform, facts.fingerprint, names)
        given = request.params, facts.transform
        return cls(placed, placed, problem, *given, *checked.describe(request), facts.fingerprint)

    @property
    def solver(self) -> SolverParams:
        """The parameters of the solver, with the costs and pruning of this job."""
        params = self.params.solver
        if self.costs is not None:
            params = replace(params, weighting=replace(params.weighting, factors=self.costs))
        if self.informed is None:
            return params
        return replace(params, pruned_more=self.informed.pruned_more(params.delta))

    def with_facts(self, **facts: Any) -> Job:
        """Return the job with these entries added to the parameters in its manifest."""
        manifest = replace(self.manifest, params=self.manifest.params | facts)
        return replace(self, manifest=manifest)

    def with_C(self, C: float, table: Any) -> Job:
        """Return the job with a chosen C, recording the table of the values that were tried."""
        return replace(self, params=replace(self.params, C=C)).with_facts(C=C, C_table=table)

    def with_delta(self, delta: float, effect: Any) -> Job:
        """Return the job with a chosen delta, recording its effect on P@k."""
        job = replace(self, params=replace(self.params, delta=delta))
        return job.with_facts(delta=delta, delta_effect=effect)

    def with_calibration(self, calibration: Calibration | None) -> Job:
        """Return the job with the calibration that its model will have."""
        return replace(self, parts=replace(self.parts, calibration=calibration))

    def blocks(self, held: Mask, first: int) -> Blocks:
        """Return the labels that are not `held`, in blocks numbered from `first`.

        Frequent labels come first, in smaller blocks. Labels solved together then need similar
        passes over the data, and no slow label is left for the end.
        """
        labels, order, work = self._ordered(held)
        cuts = cut(order, self.params.block_size, work)
        return {first + i: labels[places] for i, places in enumerate(cuts)}

    def cutter(self, held: Mask) -> BlockCutter:
        """Return a cutter of the labels that are not `held`, in the order of `blocks`."""
        return BlockCutter(*self._ordered(held), self.params.block_size)

    def _ordered(self, held: Mask) -> tuple[Ints, Ints, Ints]:
        """Return the labels that are not `held`, keys to sort them frequent first, and work."""
        labels = np.flatnonzero(~held)
        equal = self.problem.equal_labels.among(labels)
        counts = self.problem.label_counts[labels]
        return labels, by_frequency(equal.groups, counts), effort(equal, counts)


@dataclass(frozen=True, eq=False)
class _CheckedData:
    """The facts about checked data that determine the manifest of a model."""

    problem: Problem | ProblemFacts
    transform: Transform
    data: str
    names: list[str] | None
    weights: RowWeights | None = None
    pairs: PairWeights | None = None

    def describe(self, request: Request) -> tuple[Parts, Manifest]:
        """Return the parts of the model other than its weights, and its manifest."""
        problem, transform, vocabulary = self.problem, self.transform, request.vocabulary
        labels = LabelTable(problem.label_counts, self.names, transform.idf)
        manifest = Manifest(
            n_rows=problem.n_rows,
            n_features=problem.n_features,
            n_labels=problem.n_labels,
            params=_params_in_manifest(request.params, transform)
            | _weights_in_manifest(self.weights, self.pairs),
            transform=transform.to_dict(),
            data=self.data,
            dismec=version("dismec"),
            text=vocabulary.params.to_dict() if vocabulary else None,
            columns=dict(request.columns) if request.columns else None,
            examples=request.examples,
        )
        return Parts(labels, vocabulary), manifest


def _weighted_data(
    X: Any, request: Request
) -> tuple[Any, sp.csr_array, Sequence[str] | None, RowWeights | None, PairWeights | None]:
    """Return X, Y, label names, row weights and pair weights, without what has weight 0."""
    keep = weights = None
    labels, n_rows = request.Y, X.shape[0]
    if request.weights is not None:
        keep, weights = kept_rows(check_row_weights(request.weights, n_rows))
    left = keep
    if keep is not None and is_label_lists(labels) and len(labels) == n_rows:
        # Rows of weight 0 are ignored, so labels that only they have do not exist.
        listed = list(labels)
        labels = [listed[row] for row in keep.tolist()]
        X, left = X[keep], None
    found, named = named_matrix(labels, request.names)
    Y: Any = check_Y(found, X.shape[0])
    if left is not None:
        X, Y = X[left], Y[left]
    pairs = pairs_at(find_pairs(request.pair_weights, (n_rows, Y.shape[1]), named), keep)
    return X, known_labels(Y, pairs), named, weights, pairs


def _weights_in_manifest(weights: RowWeights | None, pairs: PairWeights | None) -> dict[str, Any]:
    """Return the manifest entries about weights, as `dismec.model.provenance` specifies them."""
    entries: dict[str, Any] = {}
    if weights is not None:
        least, most, total = (float(f(weights)) for f in (np.min, np.max, np.sum))
        entries["row_weights"] = {"least": least, "most": most, "sum": total}
    if pairs is not None:
        left_out = int(np.count_nonzero(pairs.data == 0))
        entries["pair_weights"] = {"pairs": pairs.nnz, "left_out": left_out}
    return entries


def _with_dense_part(request: Request) -> Any:
    """Return X, as dense features if most of it is nonzero and the parameters allow it."""
    params = request.params
    if params.tfidf or request.vocabulary is not None:
        return request.X
    return [request.X] if is_mostly_full(request.X) else request.X


def _params_in_manifest(params: TrainingParams, transform: Transform) -> dict[str, Any]:
    """Return the parameters for a manifest: `dense_scale` only with dense features."""
    entries = asdict(params)
    if not transform.dense:
        del entries["dense_scale"]
    return entries


def _check_pairs_supported(params: TrainingParams) -> None:
    """Raise `DataError` if the parameters do not support pair weights."""
    if params.penalty == "l1":
        raise DataError("pair weights are not supported with penalty='l1'")
    if params.refine:
        raise DataError("pair weights are not supported with refine=True")


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
