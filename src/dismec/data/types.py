"""Types of arguments: matrices, texts, labels and weights in every accepted form.

They are for annotations only; functions check their arguments when they use them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.files import StrPath

MatrixLike: TypeAlias = sp.sparray | sp.spmatrix | npt.ArrayLike
"""A matrix of numbers: a scipy matrix of any format, a NumPy array, nested lists, or a frame."""

TextsLike: TypeAlias = Iterable[str] | npt.ArrayLike
"""One text per row: a list, an array, a Series of pandas or polars, an Arrow array, a generator."""

RowsLike: TypeAlias = MatrixLike | TextsLike | Sequence[MatrixLike | TextsLike]
"""Rows for a model: a matrix, or texts for a text model.

For a model with dense features, a list ``[X, E]`` of a matrix or texts and a dense array, or
``[E]`` for dense features alone.
"""

LabelsLike: TypeAlias = MatrixLike | Iterable[str | int] | Iterable[Iterable[str | int]]
"""Labels of rows: an indicator matrix (n_rows, n_labels), a list of labels for each row, or one
label for each row.
"""

LabeledRows: TypeAlias = tuple[RowsLike, LabelsLike]
"""Rows with their labels, as for `validation`."""

WeightsLike: TypeAlias = npt.ArrayLike
"""One number per row, of at least 0: a list, an array or a Series."""


PairWeightsLike: TypeAlias = sp.sparray | sp.spmatrix | StrPath
"""Numbers of at least 0 for pairs of a row and a label: a scipy matrix, or the path of a file."""


class Frame(Protocol):
    """A table with named columns, such as that of pandas, polars, pyarrow or Hugging Face."""

    def __getitem__(self, column: str, /) -> Iterable[object]: ...

    def __len__(self) -> int: ...


TextSource: TypeAlias = StrPath | Frame
"""Where texts with labels come from: the path of a file, or a frame."""
