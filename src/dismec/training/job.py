"""A request → data that has been checked, and what is known of the model to come."""

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

Blocks: TypeAlias = dict[int, npt.NDArray[np.int64]]  # the labels of each block by its number
Mask: TypeAlias = npt.NDArray[np.bool_]  # of labels
Ints: TypeAlias = npt.NDArray[np.int64]

# Features and labels that a training takes memory for, though none of the rows may have them.
_ALWAYS_COLUMNS, _COLUMNS_PER_ENTRY = 1 << 24, 100


@dataclass(frozen=True, eq=False)
class Job:
    """Data that has been checked, and what is known of the model to come.

    A value: what is learned on the way makes another job of it.
    """

    X: sp.csr_array | MixedRows | PlacedData
    Y: sp.csr_array | PlacedData
    problem: Problem | ProblemFacts
    params: TrainingParams
    transform: Transform  # of X
    parts: Parts
    manifest: Manifest
    data: str  # fingerprint of X, Y and all weights
    informed: Informed | None = None  # what makes X of rows, if that is not `transform` alone
    weights: RowWeights | None = None  # of rows, all above 0; None for ones
    pairs: PairWeights | None = None  # of pairs of a row and a label; None for ones
    costs: Costs | None = None  # factors of the losses of each label's rows

    @classmethod
    def prepare(cls, request: Request, transform: Transform | None = None) -> Job:
        """Check the data; `transform` is by default what the parameters say, fitted to X.

        Raises
        ------
        DataError
            If X, Y, the names or the weights cannot be used.
        """
        if isinstance(request.X, PlacedData):
            return cls._of_placed(request, request.X)
        X = transform.take(request.X) if transform else check_features(_as_parts(request))
        if X.shape[0] == 0:
            raise DataError("there are no rows to train on")
        params = request.params
        if params.penalty == "l1" and not (request.weights is None and request.costs is None):
            raise DataError("weights of rows and classes are not supported with penalty='l1'")
        if request.pair_weights is not None:
            _check_pairs_allowed(params)
        X, Y, named, weights, pairs = _counted_rows(X, request)
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
        found = _Found(problem, transform, data, names, weights, pairs)
        rest: dict[str, Any] = {"weights": weights, "pairs": pairs, "costs": request.costs}
        return cls(X, Y, problem, params, transform, *found.known(request), data, **rest)

    @classmethod
    def _of_placed(cls, request: Request, placed: PlacedData) -> Job:
        """The job of data that workers have, which they have checked."""
        facts, problem = placed.facts, placed.problem
        names = check_names(
            facts.names if request.names is None else request.names, problem.n_labels
        )
        if problem.n_rows == 0:
            raise DataError("there are no rows to train on")
        _check_memory(problem.n_columns, problem.n_labels)
        problem.check_C(request.params.C)
        found = _Found(problem, facts.transform, facts.fingerprint, names)
        given = request.params, facts.transform
        return cls(placed, placed, problem, *given, *found.known(request), facts.fingerprint)

    @property
    def solver(self) -> SolverParams:
        """What the solver needs to know."""
        params = self.params.solver
        if self.costs is not None:
            params = replace(params, weighting=replace(params.weighting, factors=self.costs))
        if self.informed is None:
            return params
        return replace(params, pruned_more=self.informed.pruned_more(params.delta))

    def stating(self, **facts: Any) -> Job:
        """The same job, with more in the parameters of its manifest."""
        manifest = replace(self.manifest, params=self.manifest.params | facts)
        return replace(self, manifest=manifest)

    def with_C(self, C: float, table: Any) -> Job:
        """The job at a C that was chosen, with what others were tried."""
        return replace(self, params=replace(self.params, C=C)).stating(C=C, C_table=table)

    def with_delta(self, delta: float, effect: Any) -> Job:
        """The job at a delta that was chosen, with what that does to P@k."""
        job = replace(self, params=replace(self.params, delta=delta))
        return job.stating(delta=delta, delta_effect=effect)

    def with_calibration(self, calibration: Calibration | None) -> Job:
        """The job of a model that knows this of its scores."""
        return replace(self, parts=replace(self.parts, calibration=calibration))

    def blocks(self, held: Mask, first: int) -> Blocks:
        """The labels that are not `held`, in blocks that are numbered from `first`.

        Frequent labels come first, in blocks of fewer labels: labels that are solved side by side
        then need the same kind of pass, and none that takes long is left for the end.
        """
        labels, order, work = self._ordered(held)
        cuts = cut(order, self.params.block_size, work)
        return {first + i: labels[places] for i, places in enumerate(cuts)}

    def cutter(self, held: Mask) -> BlockCutter:
        """The labels that are not `held`, in the same order, to be cut bit by bit."""
        return BlockCutter(*self._ordered(held), self.params.block_size)

    def _ordered(self, held: Mask) -> tuple[Ints, Ints, Ints]:
        """The labels that are not `held`; numbers to sort them by, frequent first; their work."""
        labels = np.flatnonzero(~held)
        equal = self.problem.equal_labels.among(labels)
        counts = self.problem.label_counts[labels]
        return labels, by_frequency(equal.groups, counts), effort(equal, counts)


@dataclass(frozen=True, eq=False)
class _Found:
    """What is known of a model once its data have been looked at."""

    problem: Problem | ProblemFacts
    transform: Transform
    data: str
    names: list[str] | None
    weights: RowWeights | None = None
    pairs: PairWeights | None = None

    def known(self, request: Request) -> tuple[Parts, Manifest]:
        """What the model will consist of besides weights, and its manifest."""
        problem, transform, vocabulary = self.problem, self.transform, request.vocabulary
        labels = LabelTable(problem.label_counts, self.names, transform.idf)
        manifest = Manifest(
            n_rows=problem.n_rows,
            n_features=problem.n_features,
            n_labels=problem.n_labels,
            params=_stated(request.params, transform) | _weights_stated(self.weights, self.pairs),
            transform=transform.to_dict(),
            data=self.data,
            dismec=version("dismec"),
            text=vocabulary.params.to_dict() if vocabulary else None,
            columns=dict(request.columns) if request.columns else None,
            examples=request.examples,
        )
        return Parts(labels, vocabulary), manifest


def _counted_rows(
    X: Any, request: Request
) -> tuple[Any, sp.csr_array, Sequence[str] | None, RowWeights | None, PairWeights | None]:
    """X and Y without what has weight 0, the names of labels, and the weights of rows and pairs."""
    keep = weights = None
    labels, n_rows = request.Y, X.shape[0]
    if request.weights is not None:
        keep, weights = kept_rows(check_row_weights(request.weights, n_rows))
    left = keep
    if keep is not None and is_label_lists(labels) and len(labels) == n_rows:
        # Which labels there are is what the rows that count say.
        listed = list(labels)
        labels = [listed[row] for row in keep.tolist()]
        X, left = X[keep], None
    found, named = named_matrix(labels, request.names)
    Y: Any = check_Y(found, X.shape[0])
    if left is not None:
        X, Y = X[left], Y[left]
    pairs = pairs_at(find_pairs(request.pair_weights, (n_rows, Y.shape[1]), named), keep)
    return X, known_labels(Y, pairs), named, weights, pairs


def _weights_stated(weights: RowWeights | None, pairs: PairWeights | None) -> dict[str, Any]:
    """What the manifest says of weights (`dismec.model.provenance`)."""
    stated: dict[str, Any] = {}
    if weights is not None:
        least, most, total = (float(f(weights)) for f in (np.min, np.max, np.sum))
        stated["row_weights"] = {"least": least, "most": most, "sum": total}
    if pairs is not None:
        left_out = int(np.count_nonzero(pairs.data == 0))
        stated["pair_weights"] = {"pairs": pairs.nnz, "left_out": left_out}
    return stated


def _as_parts(request: Request) -> Any:
    """X, as dense features if it is an array that is worth it and nothing else is requested."""
    params = request.params
    if params.tfidf or request.vocabulary is not None:
        return request.X
    return [request.X] if is_mostly_full(request.X) else request.X


def _stated(params: TrainingParams, transform: Transform) -> dict[str, Any]:
    """The parameters as a manifest has them: one about dense features only where there are any."""
    stated = asdict(params)
    if not transform.dense:
        del stated["dense_scale"]
    return stated


def _check_pairs_allowed(params: TrainingParams) -> None:
    """Refuse what is not possible with weights of pairs."""
    if params.penalty == "l1":
        raise DataError("pair weights are not supported with penalty='l1'")
    if params.refine:
        raise DataError("pair weights are not supported with refine=True")


def _check_columns(what: str, n_columns: int, n_entries: int) -> None:
    """Refuse numbers of features or labels that nothing but a header speaks for."""
    if n_columns > max(_ALWAYS_COLUMNS, _COLUMNS_PER_ENTRY * n_entries):
        raise DataError(
            f"{n_columns:,} {what}, but the data have only {counted(n_entries, 'entry')}: "
            f"more than {_ALWAYS_COLUMNS:,} {what} need an entry for every {_COLUMNS_PER_ENTRY}; "
            "is the header right?"
        )


def _check_memory(n_features: int, n_labels: int) -> None:
    """Refuse shapes whose dense vectors alone do not fit this machine: a header may lie."""
    # A thread's weights of 32 labels in 16 bits and some vectors; a label's counts and places.
    needed = 100 * n_features + 64 * n_labels
    present = physical_memory()
    if present is not None and needed > present:
        raise DataError(
            f"{counted(n_features, 'feature')} and {counted(n_labels, 'label')} need at least "
            f"{needed >> 30} GiB of "
            f"memory; this machine has {present >> 30}"
        )
