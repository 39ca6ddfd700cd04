"""What a training run is asked for: the hyperparameters, each defined once, and the options.

Command-line options, estimator parameters, manifest entries and the comparison with an earlier run
are all derived from the fields of `TrainingParams`. This module imports nothing heavy, as
``dismec train --help`` reads it.
"""

from __future__ import annotations

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from dismec.features.vocabulary import Vocabulary
    from dismec.solve.costs import Costs
    from dismec.solve.problem import SolverParams

AUTO = "auto"
LOOSE = 0.1  # tolerance of stages whose scores need not be more exact
EXAMPLES = 5  # number of training texts that a model may keep
LEAST_DELTA = 0.01  # the default, and the smallest delta that "auto" may choose
# The values that "auto" chooses from: 0.01 · 50^(i/20), rounded to two digits.
DELTAS = (
    *(LEAST_DELTA, 0.012, 0.015, 0.018, 0.022, 0.027, 0.032, 0.039, 0.048, 0.058),
    *(0.071, 0.086, 0.10, 0.13, 0.15, 0.19, 0.23, 0.28, 0.34, 0.41, 0.50),
)
KINDS = ("P", "nDCG", "PSP")  # of metrics that C may be chosen by
_MOST_DEPTH = 100  # of these metrics
Progress: TypeAlias = Callable[[int, int], None]

_MOST_SCALE = 1e6  # of dense features
ENCODER_SCALE = 0.5  # of the embeddings of texts, if there are too few rows to choose it
_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "float | str": float,
    "float | str | None": float,
    "float | None": float,
    "int": operator.index,
    "bool": bool,
}


def _param(default: Any, help: str, **more: Any) -> Any:  # noqa: A002  as click calls it
    """Define a hyperparameter by its default and its help text on the command line."""
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class TrainingParams:
    """Training parameters: everything but the data that determines the model.

    Attributes
    ----------
    C : float or "auto", default=1.0
        Weight of the loss: the inverse of the regularization strength. "auto" chooses the value
        that ranks the labels of held-out rows best (``docs/howto/tuning.md``).
    delta : float or "auto", default=None
        Weights closer to 0 than delta are dropped. "auto" chooses the largest delta that costs at
        most 0.1 points of P@1, P@3 and P@5 on held-out rows. None becomes 0.01 under the L2 penalty
        and 0 under L1.
    tol : float, default=0.01
        Tolerance of the stopping rule, as in LIBLINEAR; under L1, 100 times the relative gap.
    tfidf : bool, default=False
        Whether to multiply each feature by its inverse document frequency in the training data.
    sqrt : bool, default=False
        Whether to take the square root of each feature value (of its magnitude; signs stay) before
        anything else. Often more accurate if values are counts (``docs/howto/best.md``).
    normalize : bool, default=True
        Whether to scale each row to Euclidean norm 1.
    bias : float, default=1.0
        Value of the bias feature; 0 for none.
    block_size : int, default=1000
        Maximum number of labels trained together. It does not affect the model.
    precision : {"float16", "float32", "float8"}, default="float16"
        How the model stores weights.
    calibrate : bool, default=False
        Whether to calibrate scores to probabilities, on held-out rows.
    refine : bool, default=False
        Whether to train a second stage, whose features include the likely labels that a first
        stage predicts (``docs/howto/refining.md``). More accurate; takes about three times as long.
    positive_weight : float, default=1.0
        Factor for the losses of positive rows.
    weighting : {None, "propensity"}, default=None
        With "propensity", the losses of positive rows are also multiplied by 2/p − 1, which is
        larger for rarer labels (``docs/howto/rare-labels.md``).
    soft_labels : bool, default=False
        Whether the weights of (row, label) pairs are relevances from 0 to 1: a row of relevance r
        counts as a positive of the label with weight r, and as a negative with weight 1 − r.
    propensity_a, propensity_b : float, default=0.55 and 1.5
        The constants A and B of the propensities p (`dismec.propensities`).
    dense_scale : float, default=None
        Factor for dense features used with sparse ones, after both have been scaled to norm 1
        (``docs/tutorial/embeddings.md``). Larger values give dense features more influence. None
        becomes 1, or with an encoder of texts the value that ranks the labels of held-out texts
        best.
    penalty : {"l2", "l1"}, default="l2"
        The regularizer: "l2" is ½‖w‖², "l1" is ‖w‖₁, which makes weights sparse.
    metric : str, default="nDCG@5"
        The metric that ``C="auto"`` maximizes: "P@k", "nDCG@k" or "PSP@k" with a number for k.
    best : bool, default=False
        Whether to choose everything that pays on held-out rows (``docs/howto/best.md``): C, the
        weight of positive rows, refining, and the terms of texts or the square roots of numbers.
        The model is calibrated.

    Raises
    ------
    ValueError
        If a value is not a number or is out of range.

    Examples
    --------
    >>> from dismec import TrainingParams
    >>> TrainingParams(C=2, penalty="l1").delta
    0.0
    """

    C: float | str = _param(
        1.0,
        "Loss weight (inverse of regularization strength); auto: the best on held-out rows.",
        metavar="NUMBER|auto",
    )
    delta: float | str | None = _param(
        None,
        "Drop weights closer to 0 than this; auto: as large as P@k allows [default: 0.01; l1: 0].",
        metavar="NUMBER|auto",
    )
    tol: float = _param(0.01, "LIBLINEAR's stopping tolerance.")
    tfidf: bool = _param(False, "Multiply features by their idf [default: for texts].")
    sqrt: bool = _param(False, "Take the square root of each value first; often good for counts.")
    normalize: bool = _param(True, "Do not scale rows to unit length.")
    bias: float = _param(1.0, "Value of the bias feature; 0: none.")
    block_size: int = _param(1000, "Labels per block.")
    precision: str = _param(
        "float16",
        "Storage of weights; float8 takes one byte each.",
        choices=("float16", "float32", "float8"),
    )
    calibrate: bool = _param(False, "Calibrate scores to probabilities, and rank by these.")
    refine: bool = _param(False, "Train a second stage on likely labels: more accurate, slower.")
    positive_weight: float = _param(1.0, "Factor for the losses of positive rows.")
    weighting: str | None = _param(
        None,
        "Give positive rows of rare labels more weight.",
        choices=("propensity",),
    )
    soft_labels: bool = _param(False, "Weights of pairs are relevances, from 0 to 1.")
    propensity_a: float = _param(0.55, "The constant A of propensities.")
    propensity_b: float = _param(1.5, "The constant B of propensities.")
    dense_scale: float | None = _param(
        None,
        "Factor for dense features used with sparse ones [default: 1; --encoder: the best on "
        "held-out rows].",
    )
    penalty: str = _param("l2", "Regularizer: l2, or l1 for sparse weights.", choices=("l2", "l1"))
    metric: str = _param("nDCG@5", "Metric for --C auto: P@k, nDCG@k or PSP@k.")
    best: bool = _param(False, "Choose all that makes the model more accurate; takes longer.")

    def __post_init__(self) -> None:
        if self.delta is None:
            object.__setattr__(self, "delta", 0.0 if self.penalty == "l1" else LEAST_DELTA)
        for name, kind in ((f.name, _NUMBERS.get(str(f.type))) for f in fields(self)):
            value = getattr(self, name)
            if kind is None or (name in ("C", "delta") and value == AUTO):
                continue
            if name == "dense_scale" and value is None:
                continue
            try:
                if isinstance(value, str):
                    raise TypeError
                # The manifest is JSON, which has no NumPy numbers.
                object.__setattr__(self, name, kind(value))
            except (TypeError, ValueError):
                expected = 'a number or "auto"' if name in ("C", "delta") else "a number"
                raise ValueError(f"{name} is {value!r}; expected {expected}") from None
        _ = self.solver  # checks its own parameters
        if self.best and self.penalty == "l1":
            raise ValueError("best is not supported with penalty='l1'")
        if self.block_size < 1:
            raise ValueError(f"block_size is {self.block_size}; expected at least 1")
        precisions = self.__dataclass_fields__["precision"].metadata["choices"]
        if self.precision not in precisions:
            raise ValueError(f"precision is {self.precision!r}; expected {', '.join(precisions)}")
        kind_of_metric, _, k = str(self.metric).partition("@")
        known = kind_of_metric in KINDS and re.fullmatch("[1-9][0-9]*", k)
        if not known or int(k) > _MOST_DEPTH:
            raise ValueError(
                f"metric is {self.metric!r}; expected P@k, nDCG@k or PSP@k, k from 1 to "
                f"{_MOST_DEPTH}"
            )
        if self.dense_scale is not None and not 0 < self.dense_scale <= _MOST_SCALE:
            raise ValueError(
                f"dense_scale is {self.dense_scale}; expected a number above 0 "
                f"and at most {_MOST_SCALE:g}"
            )

    @property
    def expanded(self) -> TrainingParams:
        """The same parameters, with those that `best` stands for."""
        return replace(self, C=AUTO, calibrate=True, refine=True) if self.best else self

    @property
    def transform(self) -> dict[str, Any]:
        """The options of `Transform.fit`."""
        options = ("tfidf", "sqrt", "normalize", "bias")
        known = {name: getattr(self, name) for name in options}
        return known | {"dense_scale": 1.0 if self.dense_scale is None else self.dense_scale}

    @property
    def chooses_C(self) -> bool:
        """Whether `C` is "auto"."""
        return isinstance(self.C, str)

    @property
    def chooses_delta(self) -> bool:
        """Whether `delta` is "auto"."""
        return isinstance(self.delta, str) and self.delta == AUTO

    @property
    def holds_out(self) -> bool:
        """Whether choosing delta or calibrating needs rows held out of training.

        With `refine`, the trial of the second stage calibrates as well.
        """
        return self.chooses_delta or (self.calibrate and not self.refine)

    @property
    def solver(self) -> SolverParams:
        """The parameters of the solver; 1 for a `C` and 0.01 for a `delta` that are "auto"."""
        from dismec.solve.costs import Weighting
        from dismec.solve.problem import SolverParams

        delta = LEAST_DELTA if self.chooses_delta else cast(float, self.delta)
        weighting = Weighting(
            self.positive_weight, self.weighting, self.propensity_a, self.propensity_b
        )
        C = 1.0 if self.chooses_C else cast(float, self.C)
        soft = self.soft_labels
        return SolverParams(C, delta, self.tol, self.penalty, weighting, soft_labels=soft)


def plain(params: TrainingParams, tol: float = 0.0, **values: Any) -> TrainingParams:
    """Return the parameters of a stage: nothing else is learned, and `tol` is at least this."""
    values |= {"delta": params.solver.delta, "calibrate": False, "refine": False, "best": False}
    return replace(params, tol=max(params.tol, tol), **values)


@dataclass(frozen=True, eq=False)
class TrainOptions:
    """Everything that a training run is asked for, except the data.

    `validation` is X and Y as passed by the caller, not checked yet. `cluster` may also be a
    `Cluster`, which is left open.
    """

    params: TrainingParams = field(default_factory=TrainingParams)
    path: Path | None = None  # None: the model stays in memory
    validation: tuple[Any, Any] | None = None
    costs: Costs | None = None  # factors for the losses of each label's rows
    vocabulary: Vocabulary | None = None
    label_texts: Sequence[str] | None = None  # a text that describes each label, or ""
    columns: Mapping[str, str] | None = None  # of text files, for later commands to use
    examples: tuple[str, ...] = ()  # texts stored in the model
    terms_table: tuple[Mapping[str, Any], ...] = ()  # how the terms of texts were chosen
    threads: int | None = None
    overwrite: bool = False
    progress: Progress | None = None
    cluster: Any = None


class WorkProgress(ABC):
    """A progress callback that also receives the share of the work done.

    Labels take unequal times, so the number of labels alone does not predict the time left.
    """

    @abstractmethod
    def update(self, done: int, total: int, share: float) -> None:
        """Report that `done` of `total` labels are done, which is this share of the work."""

    def __call__(self, done: int, total: int) -> None:
        """Report the number of labels done, and take it for the share of the work."""
        self.update(done, total, done / total if total else 1.0)


def report(progress: Progress | None, done: int, total: int, share: float) -> None:
    """Call a progress callback, with the share of the work if it accepts one."""
    if isinstance(progress, WorkProgress):
        progress.update(done, total, share)
    elif progress:
        progress(done, total)


def share_of(progress: Progress | None, begin: float, end: float, n_labels: int) -> Progress | None:
    """Return the callback for a stage that covers the work between two shares.

    The share done is reported as the number of labels it would be if all took equally long.
    """
    return progress and _Share(progress, begin, end, n_labels)


@dataclass(frozen=True)
class _Share(WorkProgress):
    whole: Progress
    begin: float
    end: float
    n_labels: int

    def update(self, done: int, total: int, share: float) -> None:
        at = self.begin + share * (self.end - self.begin)
        report(self.whole, int(at * self.n_labels), self.n_labels, at)
