"""What decides what a model is, apart from the data: every hyper-parameter, stated once.

The command line's options, the estimators' parameters, the manifest and the comparison of a run
with an earlier one are all derived from the fields of `TrainingParams`. It imports nothing heavy:
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

# The solver computes in float32.
_MOST_SCALE = 1e6  # of dense features
_TINY, _HUGE = 2.0**-126, (2 - 2.0**-23) * 2.0**127
_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "float | str | None": float,
    "int": operator.index,
    "bool": bool,
}


def _param(default: Any, help: str, **more: Any) -> Any:  # noqa: A002  as click calls it
    """A hyper-parameter: its default, and what the command line says about it."""
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class TrainingParams:
    """Parameters of the training: everything that decides what a model is, except for the data.

    Attributes
    ----------
    C : float, default=1.0
        Weight of the loss: the inverse of the regularization strength.
    delta : float or "auto", default=None
        Weights closer to 0 than delta are dropped. "auto" chooses the largest delta that costs at
        most 0.1 points of P@1, P@3 and P@5 on held-out rows. None becomes 0.01 under the L2 penalty
        and 0 under L1.
    tol : float, default=0.01
        Tolerance of the stopping rule, as in LIBLINEAR; under L1 a hundred times the relative gap.
    tfidf : bool, default=False
        Whether to multiply each feature by its inverse document frequency in the training data.
    normalize : bool, default=True
        Whether to scale each row to Euclidean norm 1.
    bias : float, default=1.0
        Value of the bias feature; 0 for none.
    block_size : int, default=1000
        The largest number of labels that are trained together. It does not change the model.
    precision : {"float16", "float32", "int8"}, default="float16"
        How the model stores weights.
    calibrate : bool, default=False
        Whether to learn probabilities, on rows that are held out for this.
    refine : bool, default=False
        Whether to train a second stage, which also sees the labels that the first one finds likely
        (``docs/howto/refining.md``). It is more accurate, and takes about three times as long.
    positive_weight : float, default=1.0
        Factor for the losses of positive rows.
    weighting : {None, "propensity"}, default=None
        With "propensity", the losses of positive rows are also multiplied by 2/p − 1, which is the
        larger, the rarer the label is (``docs/howto/rare-labels.md``).
    propensity_a, propensity_b : float, default=0.55 and 1.5
        The constants A and B of the propensities p (`dismec.propensities`).
    dense_scale : float, default=1.0
        Factor for dense features beside sparse ones, after both have been scaled to norm 1
        (``docs/tutorial/embeddings.md``): the larger, the more they count.
    penalty : {"l2", "l1"}, default="l2"
        The regularizer: "l2" is ½‖w‖², "l1" is ‖w‖₁, which leaves few weights.

    Raises
    ------
    ValueError
        For a value that is not a number or out of range.

    Examples
    --------
    >>> from dismec import TrainingParams
    >>> TrainingParams(C=2, penalty="l1").delta
    0.0
    """

    C: float = _param(1.0, "Loss weight (inverse of regularization strength).")
    delta: float | str | None = _param(
        None,
        "Drop weights closer to 0 than this; auto: as many as P@k allows [default: 0.01; l1: 0].",
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
                # A number of NumPy has no place in the manifest.
                object.__setattr__(self, name, kind(value))
            except (TypeError, ValueError):
                expected = 'a number or "auto"' if name == "delta" else "a number"
                raise ValueError(f"{name} is {value!r}; expected {expected}") from None
        solver = self.solver  # which has checks of its own
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
        """Whether something is learned from rows that are held out.

        Refining learns probabilities on its way.
        """
        return self.chooses_delta or (self.calibrate and not self.refine)

    @property
    def solver(self) -> SolverParams:
        """The parameters of the solver. If `delta` is "auto", the least that can be chosen."""
        from dismec.solve.costs import Weighting
        from dismec.solve.problem import SolverParams

        delta = LEAST_DELTA if self.chooses_delta else cast(float, self.delta)
        weighting = Weighting(
            self.positive_weight, self.weighting, self.propensity_a, self.propensity_b
        )
        return SolverParams(self.C, delta, self.tol, self.penalty, weighting)
