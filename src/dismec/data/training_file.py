"""Rows with everything that is known about them for training ⇄ a file that processes map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.data.binary import read_xmc_extras, write_xmc
from dismec.data.dataset import fingerprint, load_data
from dismec.data.files import StrPath
from dismec.data.matrices import check_Y, checked_arrays
from dismec.data.mixed import MixedRows, mixed_rows
from dismec.data.names import check_names
from dismec.data.pair_weights import check_pair_weights, find_pairs, known_labels, pairs_at
from dismec.data.row_weights import check_row_weights, kept_rows, weights_at
from dismec.data.targets import is_label_lists, named_matrix
from dismec.errors import DataError

__all__ = ["TrainingData"]


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Rows, labels and weights: as a caller passes them, or checked (`checked`).

    Checked, X is CSR or `MixedRows` (with dense features), Y an indicator matrix, `weights` are all
    above 0, `pairs` are other than 1, no positive has a pair of weight 0, and weights that would
    all be 1 are None. On a cluster, X and Y may be data that only workers have.
    """

    X: Any
    Y: Any
    weights: Any = None  # one per row, at least 0
    pairs: Any = None  # weights of (row, label) pairs: a sparse matrix, or a file
    names: Sequence[str] | None = None  # of labels
    source: StrPath | None = None  # the ``.xmc`` file that holds exactly these X and Y
    hashed: str | None = None  # the fingerprint, if it is known

    def checked(self, X: Any) -> TrainingData:
        """Check everything but X, which has been, and leave out what has weight 0.

        Raises
        ------
        DataError
            If Y, the names or the weights are invalid.
        """
        keep = weights = None
        labels, n_rows = self.Y, X.shape[0]
        if self.weights is not None:
            keep, weights = kept_rows(check_row_weights(self.weights, n_rows))
        left = keep
        if keep is not None and is_label_lists(labels) and len(labels) == n_rows:
            # Rows of weight 0 are ignored, so labels that only they have do not exist.
            listed = list(labels)
            labels = [listed[row] for row in keep.tolist()]
            X, left = X[keep], None
        matrix, names = named_matrix(labels, self.names)
        Y: Any = check_Y(matrix, X.shape[0])
        if left is not None:
            X, Y = X[left], Y[left]
        pairs = pairs_at(find_pairs(self.pairs, (n_rows, Y.shape[1]), names), keep)
        # A file of X and Y holds neither weights nor dense features.
        plain = self.weights is None and self.pairs is None and not isinstance(X, MixedRows)
        return TrainingData(
            X,
            known_labels(Y, pairs),
            weights,
            pairs,
            check_names(names, Y.shape[1]),
            self.source if plain else None,
            self.hashed,
        )

    def at(self, rows: npt.NDArray[np.int64]) -> TrainingData:
        """Return some rows of checked data, without the names."""
        weights, pairs = weights_at(self.weights, rows), pairs_at(self.pairs, rows)
        return TrainingData(self.X[rows], self.Y[rows], weights, pairs)

    @classmethod
    def map(cls, path: Path) -> TrainingData:
        """Map a file; nothing is copied, and processes that map it share its memory.

        Raises
        ------
        DataError
            If the file is not a binary dataset or is damaged.
        """
        X: Any
        X, Y, _ = load_data(path)
        weights, dense, pairs = read_xmc_extras(path)
        if pairs is not None:
            pairs = check_pair_weights(pairs, Y.shape, f"{path}: pairs", of_file=True)
        if dense is not None:
            try:
                X = mixed_rows(X, dense)
            except DataError as error:
                raise DataError(f"{path}: {error}") from None
        return cls(X, Y, weights, pairs)

    def save(self, path: Path) -> None:
        """Write checked data to a file, atomically."""
        X = self.X
        sparse: Any = X.sparse if isinstance(X, MixedRows) else X
        dense = X.dense if isinstance(X, MixedRows) else None
        arrays = checked_arrays(path, sparse, self.Y)
        write_xmc(path, *arrays, None, self.weights, dense, self.pairs)

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of checked data (`dismec.data.dataset.fingerprint`)."""
        return self.hashed or fingerprint(self.X, self.Y, self.weights, self.pairs)
