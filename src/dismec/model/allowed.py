"""Names, numbers or a matrix of allowed labels → the labels that each row may be given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.counts import counted
from dismec.data.matrices import check_csr, indicator
from dismec.data.types import MatrixLike
from dismec.errors import DataError

T = TypeVar("T")

Ids = npt.NDArray[np.int32]

_PASS_FACTOR = 16  # sorting n labels is faster than a pass over more than 16·n labels
# If few labels are allowed for many rows, their weights are copied. A copy takes about as long as
# ranking _MANY_ROWS rows, and makes rows as fast as in a model with only these labels.
_FEW_COPIED = 1 / 8  # of the labels
_MANY_ROWS = 256
_FEW_LISTED = 1 / 16  # largest share of the labels that is listed for one row, without a mask


class Allowed:
    """The labels that may be predicted: one set for all rows, or one set per row.

    `Model.select_labels` returns one, and methods with a parameter `allowed` convert their
    argument to one. An object passed to several calls is prepared for ranking only once.
    """

    def __init__(
        self, n_labels: int, labels: npt.NDArray[Any] | None, rows: sp.csr_array | None = None
    ) -> None:
        self.n_labels = n_labels
        self._given = labels
        self._rows = rows
        self._prepared: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._known: WeakSet[Any] = WeakSet()

    @classmethod
    def of_rows(cls, matrix: Any, n_labels: int) -> Allowed:
        """Return one set per row, from an indicator matrix (n_rows, n_labels)."""
        rows: Any = indicator(check_csr(matrix, "allowed", "labels"))
        if rows.shape[1] != n_labels:
            raise DataError(
                f"allowed has {counted(rows.shape[1], 'column')}; expected {n_labels}, "
                "one per label"
            )
        return cls(n_labels, None, rows)

    @cached_property
    def mask(self) -> npt.NDArray[np.bool_] | None:
        """Mask (n_labels,) of the set for all rows; None if each row has its own."""
        if self._given is None:
            return None
        found = np.zeros(self.n_labels, np.bool_)
        found[self._given] = True
        return found

    @cached_property
    def labels(self) -> Ids:
        """Labels allowed for at least one row, ascending."""
        given = self._given
        if given is not None and len(given) * _PASS_FACTOR < self.n_labels:
            return np.unique(given).astype(np.int32)
        return np.flatnonzero(self.anywhere).astype(np.int32)

    @cached_property
    def mean_size(self) -> float:
        """Mean number of allowed labels per row."""
        if self._rows is None:
            return len(self.labels)
        return self._rows.nnz / max(1, self._rows.shape[0])

    @cached_property
    def anywhere(self) -> npt.NDArray[np.bool_]:
        """Mask (n_labels,) of the labels allowed for at least one row."""
        if self.mask is not None:
            return self.mask
        assert self._rows is not None
        found = np.zeros(self.n_labels, np.bool_)
        found[self._rows.indices] = True
        return found

    def is_few_for(self, n_rows: int) -> bool:
        """Return whether it pays to copy the weights of these labels to rank so many rows."""
        return n_rows >= _MANY_ROWS and len(self.labels) <= _FEW_COPIED * self.n_labels

    def is_fleeting(self, owner: Any, n_rows: int) -> bool:
        """Return whether a mask does not pay: for few labels, a single row, and the first time."""
        few = n_rows == 1 and self.mean_size < _FEW_LISTED * self.n_labels
        if not few or owner in self._known:
            return False
        self._known.add(owner)
        return True

    @property
    def starts(self) -> npt.NDArray[np.int64] | None:
        """Offsets (n_rows + 1,) of each row's labels; None if all rows share one set."""
        return None if self._rows is None else self._rows.indptr.astype(np.int64)

    def check(self, n_rows: int) -> None:
        """Raise `DataError` if there are sets per row, but not of this number of rows."""
        if self._rows is not None and self._rows.shape[0] != n_rows:
            raise DataError(f"allowed has {counted(self._rows.shape[0], 'row')}, X has {n_rows}")

    def take(self, rows: Any) -> Allowed:
        """Return the allowed labels of some rows, given by their numbers or as a slice."""
        if self._rows is None:
            return self
        some: Any = self._rows
        return Allowed(self.n_labels, None, some[rows])

    def between(self, start: int, stop: int) -> tuple[npt.NDArray[np.int64], Ids]:
        """Return the offsets and the labels of rows start … stop − 1, ascending in each row.

        If all rows share one set, return that once, as if for one row.
        """
        if self._rows is None:
            return np.array([0, len(self.labels)], np.int64), self.labels
        starts = self._rows.indptr[start : stop + 1].astype(np.int64)
        labels = self._rows.indices[starts[0] : starts[-1]].astype(np.int32)
        return starts - starts[0], labels

    def filter(self, Y: Any) -> tuple[sp.csr_array, int]:
        """Return the entries of Y (n_rows, …) that are allowed, and the number of the others.

        Columns beyond the labels of the model are not allowed.
        """
        Y = check_csr(Y, "Y", "labels")
        self.check(Y.shape[0])
        rows: Any = self._rows
        if self.mask is not None:
            known = np.zeros(max(self.n_labels, Y.shape[1]), np.bool_)
            known[: self.n_labels] = self.mask
            kept = Y.copy()
            kept.data[~known[kept.indices]] = 0
        else:
            inside = rows.copy().astype(np.bool_)
            inside.resize(Y.shape)
            kept = sp.csr_array(Y.multiply(inside))
        kept.eliminate_zeros()
        return kept, int(np.count_nonzero(Y.data)) - kept.nnz

    def prepared(self, owner: Any, make: Callable[[], T]) -> T:
        """Return the result of `make` for this owner, calling it only the first time."""
        found = self._prepared.get(owner)
        if found is None:
            found = self._prepared[owner] = make()
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"n_labels": self.n_labels, "_given": self._given, "_rows": self._rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _prepared=WeakKeyDictionary(), _known=WeakSet())


LabelsAllowed: TypeAlias = Allowed | Iterable[str | int] | MatrixLike
"""Labels that may be predicted: names or numbers; one set per row, as an indicator matrix; or the
result of `Model.select_labels`.
"""
