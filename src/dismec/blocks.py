"""How labels are cut into blocks, and the values that travel between engine and store."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from dismec.solver import Solution

__all__ = ["Block", "BlockStats", "Receipt", "cut"]


def cut(n_labels: int, block_size: int) -> list[range]:
    """Consecutive ranges of `block_size` labels; the last may be shorter."""
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; expected at least 1")
    return [
        range(first, min(first + block_size, n_labels)) for first in range(0, n_labels, block_size)
    ]


@dataclass(frozen=True)
class BlockStats:
    """What solving a block took.

    Attributes
    ----------
    solved
        Labels with at least one positive.
    unsolved
        Labels that stopped before the tolerance was reached.
    passes, steps, products, set_rows
        Sums over labels: passes over all rows, Newton steps, products with the Hessian, rows in
        the working sets.
    seconds
        Core-seconds spent.
    """

    solved: int
    unsolved: int
    passes: int
    steps: int
    products: int
    set_rows: int
    seconds: float

    @classmethod
    def of(cls, solutions: list[Solution], seconds: float) -> BlockStats:
        """Statistics over the parts of a block."""
        return cls(
            solved=sum(int(np.count_nonzero(s.passes)) for s in solutions),
            unsolved=sum(int(np.count_nonzero(s.gradient > 1)) for s in solutions),
            passes=sum(int(s.passes.sum(dtype=np.int64)) for s in solutions),
            steps=sum(int(s.steps.sum(dtype=np.int64)) for s in solutions),
            products=sum(int(s.products.sum(dtype=np.int64)) for s in solutions),
            set_rows=sum(int(s.set_size.sum()) for s in solutions),
            seconds=round(seconds, 3),
        )


@dataclass(frozen=True, eq=False)
class Block:
    """Weights of consecutive labels.

    Attributes
    ----------
    labels
        The labels of the rows of `weights`.
    weights
        CSR float32 (len(labels), n_features + 1), bias last.
    """

    labels: range
    weights: sp.csr_array
    stats: BlockStats | None = None


@dataclass(frozen=True)
class Receipt:
    """What the manifest says of a block that has been written."""

    file: str
    first: int
    stop: int
    nnz: int
    bytes: int
    sha256: str
    isa: str
    stats: BlockStats | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)
