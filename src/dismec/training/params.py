"""The hyperparameters of training, each defined once.

Command-line options, estimator parameters, manifest entries and the comparison with an earlier run
are all derived from the fields of `TrainingParams`. This module imports nothing heavy, as
``dismec train --help`` reads it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from dismec.solve.problem import SolverParams

__all__ = ["AUTO", "LEAST_DELTA", "TrainingParams"]

AUTO = "auto"
LEAST_DELTA = 0.01  # the default, and the smallest delta that "auto" may choose

_MOST_SCALE = 1e6  # of dense features
# The normal numbers of float32, in which the solver computes.
_TINY, _HUGE = 2.0**-126, (2 - 2.0**-23) * 2.0**127
_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "float | str | None": float,
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
    C : float, default=1.0
        Weight of the loss: the inverse of the regularization strength.
    delta : float or "auto", default=None
        Weights closer to 0 than delta are dropped. "auto" chooses the largest delta that costs at
        most 0.1 points of P@1, P@3 and P@5 on held-out rows. None becomes 0.01 under the L2 penalty
        and 0 under L1.
    tol : float, default=0.01
        Tolerance of the stopping rule, as in LIBLINEAR; under L1, 100 times the relative gap.
    tfidf : bool, default=False
        Whether to multiply each feature by its inverse document frequency in the training data.
    normalize : bool, default=True
        Whether to scale each row to Euclidean norm 1.
    bias : float, default=1.0
        Value of the bias feature; 0 for none.
    block_size : int, default=1000
        Maximum number of labels trained together. It does not affect the model.
    precision : {"float16", "float32", "int8"}, default="float16"
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
    propensity_a, propensity_b : float, default=0.55 and 1.5
        The constants A and B of the propensities p (`dismec.propensities`).
    dense_scale : float, default=1.0
        Factor for dense features used with sparse ones, after both have been scaled to norm 1
        (``docs/tutorial/embeddings.md``). Larger values give dense features more influence.
    penalty : {"l2", "l1"}, default="l2"
        The regularizer: "l2" is ½‖w‖², "l1" is ‖w‖₁, which makes weights sparse.

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

    C: float = _param(1.0, "Loss weight (inverse of regularization strength).")
    delta: float | str | None = _param(
        None,
        "Drop weights closer to 0 than this; auto: as large as P@k allows [default: 0.01; l1: 0].",
        metavar="NUMBER|auto",
    )
    tol: float = _param(0.01, "LIBLINEAR's stopping tolerance.")
    tfidf: bool = _param(False, "Multiply features by their idf [default: for texts].")
    normalize: bool = _param(True, "Do not scale rows to unit length.")
    bias: float = _param(1.0, "Value of the bias feature; 0: none.")
    block_size: int = _param(1000, "Labels per block.")
    precision: str = _param(
        "float16",
        "Storage of weights; int8 takes one byte each.",
        choices=("float16", "float32", "int8"),
    )
    calibrate: bool = _param(False, "Calibrate scores to probabilities.")
    refine: bool = _param(False, "Train a second stage on likely labels: more accurate, slower.")
    positive_weight: float = _param(1.0, "Factor for the losses of positive rows.")
    weighting: str | None = _param(
        None,
        "Give positive rows of rare labels more weight.",
        choices=("propensity",),
    )
    propensity_a: float = _param(0.55, "The constant A of propensities.")
    propensity_b: float = _param(1.5, "The constant B of propensities.")
    dense_scale: float = _param(1.0, "Factor for dense features used with sparse ones.")
    penalty: str = _param("l2", "Regularizer: l2, or l1 for sparse weights.", choices=("l2", "l1"))

    def __post_init__(self) -> None:
        if self.delta is None:
            object.__setattr__(self, "delta", 0.0 if self.penalty == "l1" else LEAST_DELTA)
        for name, kind in ((f.name, _NUMBERS.get(str(f.type))) for f in fields(self)):
            value = getattr(self, name)
            if kind is None or (name == "delta" and self.chooses_delta):
                continue
            try:
                if isinstance(value, str):
                    raise TypeError
                # The manifest is JSON, which has no NumPy numbers.
                object.__setattr__(self, name, kind(value))
            except (TypeError, ValueError):
                expected = 'a number or "auto"' if name == "delta" else "a number"
                raise ValueError(f"{name} is {value!r}; expected {expected}") from None
        solver = self.solver  # checks its own parameters
        if self.block_size < 1:
            raise ValueError(f"block_size is {self.block_size}; expected at least 1")
        precisions = self.__dataclass_fields__["precision"].metadata["choices"]
        if self.precision not in precisions:
            raise ValueError(f"precision is {self.precision!r}; expected {', '.join(precisions)}")
        if not _TINY <= self.C <= _HUGE:
            raise ValueError(f"C is {self.C}; expected a number from {_TINY:.1e} to {_HUGE:.1e}")
        if not 0 < self.dense_scale <= _MOST_SCALE:
            raise ValueError(
                f"dense_scale is {self.dense_scale}; expected a number above 0 "
                f"and at most {_MOST_SCALE:g}"
            )
        if solver.delta > _HUGE:
            raise ValueError(f"delta is {self.delta}; expected a number up to {_HUGE:.1e}")

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
        """The parameters of the solver, with the smallest candidate if `delta` is "auto"."""
        from dismec.solve.costs import Weighting
        from dismec.solve.problem import SolverParams

        delta = LEAST_DELTA if self.chooses_delta else cast(float, self.delta)
        weighting = Weighting(
            self.positive_weight, self.weighting, self.propensity_a, self.propensity_b
        )
        return SolverParams(self.C, delta, self.tol, self.penalty, weighting)
