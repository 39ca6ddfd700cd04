"""Labels that a caller allows → what a ranking keeps to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.counts import counted
from dismec.data.matrices import check_csr, indicator
from dismec.data.types import MatrixLike
from dismec.errors import DataError

__all__ = ["Allowed", "LabelsAllowed"]

T = TypeVar("T")

Ids = npt.NDArray[np.int32]


class Allowed:
    """Labels that rows may be given: one set for all rows, or one for each row.

    Made by `Model.select_labels`, or by whatever takes `allowed`. One that is used for several
    calls is prepared once.
    """

    def __init__(
        self, n_labels: int, labels: npt.NDArray[Any] | None, rows: sp.csr_array | None = None
    ) -> None:
        self.n_labels = n_labels
        self.mask: npt.NDArray[np.bool_] | None = None  # (n_labels,); None if rows have their own
        if labels is not None:
            self.mask = np.zeros(n_labels, np.bool_)
            self.mask[labels] = True
        self._rows = rows
        self._prepared: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    @classmethod
    def of_rows(cls, matrix: Any, n_labels: int) -> Allowed:
        """One set for each row, from an indicator (n_rows, n_labels)."""
        rows: Any = indicator(check_csr(matrix, "allowed", "labels"))
        if rows.shape[1] != n_labels:
            raise DataError(
                f"allowed has {counted(rows.shape[1], 'column')}; expected {n_labels}: one for "
                "each label"
            )
        return cls(n_labels, None, rows)

    @cached_property
    def anywhere(self) -> npt.NDArray[np.bool_]:
        """(n_labels,): the labels that some row may be given."""
        if self.mask is not None:
            return self.mask
        assert self._rows is not None
        found = np.zeros(self.n_labels, np.bool_)
        found[self._rows.indices] = True
        return found

    @property
    def starts(self) -> npt.NDArray[np.int64] | None:
        """Where the labels of each row begin among those of all rows; None for one set for all."""
        return None if self._rows is None else self._rows.indptr.astype(np.int64)

    def check(self, n_rows: int) -> None:
        """Refuse sets that are not those of so many rows."""
        if self._rows is not None and self._rows.shape[0] != n_rows:
            raise DataError(f"allowed has {counted(self._rows.shape[0], 'row')}, X has {n_rows}")

    def take(self, rows: Any) -> Allowed:
        """The same for some of the rows, given by their numbers or as a slice."""
        if self._rows is None:
            return self
        some: Any = self._rows
        return Allowed(self.n_labels, None, some[rows])

    def between(self, start: int, stop: int) -> tuple[npt.NDArray[np.int64], Ids]:
        """Where the labels of rows start … stop − 1 begin, and these, ascending in each row."""
        assert self._rows is not None
        starts = self._rows.indptr[start : stop + 1].astype(np.int64)
        labels = self._rows.indices[starts[0] : starts[-1]].astype(np.int32)
        return starts - starts[0], labels

    def filter(self, Y: Any) -> tuple[sp.csr_array, int]:
        """The entries of a matrix (n_rows, …) that are allowed, and how many are not.

        Columns beyond the labels of the model are not.
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
        """What `make` made of it for this owner, the first time that it was asked for."""
        found = self._prepared.get(owner)
        if found is None:
            found = self._prepared[owner] = make()
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"n_labels": self.n_labels, "mask": self.mask, "_rows": self._rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _prepared=WeakKeyDictionary())


LabelsAllowed: TypeAlias = Allowed | Iterable[str | int] | MatrixLike
"""Labels that may be predicted: names or numbers; one set for each row, as an indicator matrix; or
the result of `Model.select_labels`.
"""
