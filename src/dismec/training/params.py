"""What decides what a model is, apart from the data."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from dismec.errors import DataError
from dismec.model.format import check_precision
from dismec.solve.blocks import cut
from dismec.solve.costs import Weighting
from dismec.solve.problem import SolverParams
from dismec.training import delta as pruning

__all__ = ["TrainingParams"]

AUTO = "auto"

_KINDS: dict[str, Callable[[Any], Any]] = {
    "C": float,
    "delta": float,
    "tol": float,
    "tfidf": bool,
    "normalize": bool,
    "bias": float,
    "block_size": operator.index,
    "calibrate": bool,
    "positive_weight": float,
    "propensity_a": float,
    "propensity_b": float,
}


@dataclass(frozen=True)
class TrainingParams:
    """Everything that decides what a model is, apart from the data.

    Attributes
    ----------
    C
        Weight of the losses against the regulariser.
    delta
        Weights with |w| < delta are dropped; "auto" chooses it (`training.delta`): the largest that
        costs at most 0.1 points of P@1, P@3 and P@5 on rows held out for this. None becomes 0.01
        under the L2 penalty and 0 under L1.
    tol
        LIBLINEAR's ε in the stopping rule; under L1 a hundred times the relative gap.
    tfidf
        Multiply each feature by its inverse document frequency in the training data.
    normalize
        Scale each row to Euclidean norm 1.
    bias
        Value of the bias feature; 0 for none.
    block_size
        Labels in a block of the training, at most. Does not change the model.
    precision
        How the model stores weights: "float16", "float32", or "int8" for eight bits a weight.
    calibrate
        Learn from rows that are held out for this what probability a score stands for.
    positive_weight
        What the losses of positive rows are multiplied by.
    weighting
        None, or "propensity": the losses of a label's positive rows are also multiplied by 2/p − 1,
        the more, the rarer it is (``docs/tail.md``).
    propensity_a, propensity_b
        The constants A and B of the propensities p (`dismec.data.labels.propensities`).
    penalty
        "l2", the regulariser ½‖w‖² with weights everywhere, or "l1", ‖w‖₁ with few of them.

    Raises
    ------
    ValueError
        For a value that is not a number or out of range.
    """

    C: float = 1.0
    delta: float | str | None = None
    tol: float = 0.01
    tfidf: bool = False
    normalize: bool = True
    bias: float = 1.0
    block_size: int = 1000
    precision: str = "float16"
    calibrate: bool = False
    positive_weight: float = 1.0
    weighting: str | None = None
    propensity_a: float = 0.55
    propensity_b: float = 1.5
    penalty: str = "l2"

    def __post_init__(self) -> None:
        if self.delta is None:
            object.__setattr__(self, "delta", 0.0 if self.penalty == "l1" else 0.01)
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if name == "delta" and self.chooses_delta:
                continue
            try:
                if isinstance(value, str):
                    raise TypeError
                # A number of NumPy has no place in the manifest.
                object.__setattr__(self, name, kind(value))
            except (TypeError, ValueError):
                expected = 'a number or "auto"' if name == "delta" else "a number"
                raise ValueError(f"{name} is {value!r}; expected {expected}") from None
        self.solver  # noqa: B018  its own checks
        cut(np.empty(0, np.int64), self.block_size)
        try:
            check_precision(self.precision)
        except DataError as error:
            raise ValueError(str(error)) from None
        # The solver computes in float32.
        least, most = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
        if not least <= self.C <= most:
            raise ValueError(f"C is {self.C}; expected a number from {least:.1e} to {most:.1e}")
        if self.solver.delta > most:
            raise ValueError(f"delta is {self.delta}; expected a number up to {most:.1e}")

    @property
    def chooses_delta(self) -> bool:
        """Whether `delta` is left to choose."""
        return isinstance(self.delta, str) and self.delta == AUTO

    @property
    def holds_out(self) -> bool:
        """Whether something is learned from rows that the training does not see."""
        return self.chooses_delta or self.calibrate

    @property
    def solver(self) -> SolverParams:
        """The part that the solver needs; of a delta left to choose the least that it can be."""
        delta = pruning.GRID[0] if self.chooses_delta else cast(float, self.delta)
        weighting = Weighting(
            self.positive_weight, self.weighting, self.propensity_a, self.propensity_b
        )
        return SolverParams(self.C, delta, self.tol, self.penalty, weighting)
