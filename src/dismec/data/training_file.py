"""Training data ⇄ one binary file (``.xmc``) that all processes on a machine map."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import scipy.sparse as sp

from dismec.data.binary import read_xmc_extras, write_xmc
from dismec.data.dataset import fingerprint, load_data
from dismec.data.matrices import checked_arrays
from dismec.data.mixed import MixedRows, mixed_rows
from dismec.data.pair_weights import PairWeights, check_pair_weights
from dismec.data.row_weights import RowWeights
from dismec.errors import DataError

__all__ = ["TrainingData"]


class TrainingData(NamedTuple):
    """The checked data that labels are solved on."""

    X: sp.csr_array | MixedRows
    Y: sp.csr_array
    weights: RowWeights | None = None  # row weights, all above 0; None means all 1
    pairs: PairWeights | None = None  # weights of pairs other than 1; no positive has weight 0

    @classmethod
    def map(cls, path: Path) -> TrainingData:
        """Map a file; nothing is copied, and processes that map it share its memory.

        Raises
        ------
        DataError
            If the file is not a binary dataset or is damaged.
        """
        X, Y, _ = load_data(path)
        weights, dense, pairs = read_xmc_extras(path)
        if pairs is not None:
            pairs = check_pair_weights(pairs, Y.shape, f"{path}: pairs", of_file=True)
        if dense is None:
            return cls(X, Y, weights, pairs)
        try:
            return cls(mixed_rows(X, dense), Y, weights, pairs)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None

    def save(self, path: Path) -> None:
        """Write the data to a file, atomically."""
        X = self.X
        sparse: Any = X.sparse if isinstance(X, MixedRows) else X
        dense = X.dense if isinstance(X, MixedRows) else None
        arrays = checked_arrays(path, sparse, self.Y)
        write_xmc(path, *arrays, None, self.weights, dense, self.pairs)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the data (`dismec.data.dataset.fingerprint`)."""
        return fingerprint(*self)
