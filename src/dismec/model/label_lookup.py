"""Labels of a model by name and by number, and those that a caller allows."""

from __future__ import annotations

import operator
import re
import reprlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.counts import counted
from dismec.data.names import Names
from dismec.errors import DataError
from dismec.model.allowed import Allowed, LabelsAllowed

__all__ = ["LabelLookup"]


class LabelLookup:
    """Finds labels of a model, given by name or number."""

    names: Sequence[str] | None

    @property
    def n_labels(self) -> int:
        """Number of labels."""
        raise NotImplementedError

    def find_label(self, label: str | int) -> int:
        """Return the number of a label.

        Parameters
        ----------
        label : str or int
            Its name or its number. Of several labels with the same name, the first is found. If the
            labels have no names, a text is read as a number.

        Returns
        -------
        int
            The number of the label, from 0.

        Raises
        ------
        DataError
            If the model has no such label.
        """
        if isinstance(label, str):
            number = self.find_name(label)
            if number is None:  # white space around a name is not part of it
                number = self.find_name(label := label.strip())
            if self.names is None and re.fullmatch(r"\d{1,20}", label):
                number = int(label)
            if number is None or number >= self.n_labels:
                raise DataError(f"the model has no label {reprlib.repr(label)}")
            return number
        try:
            number = -1 if isinstance(label, bool) else operator.index(label)
        except TypeError:
            raise DataError(f"the model has no label {reprlib.repr(label)}") from None
        if not 0 <= number < self.n_labels:
            raise DataError(f"label {reprlib.repr(label)} is outside 0 … {self.n_labels - 1}")
        return number

    def find_name(self, name: str) -> int | None:
        """Return the number of the first label with a name, or None if there is none.

        Parameters
        ----------
        name : str
            The name of the label, in full.

        Returns
        -------
        int or None
            The number of the label, from 0.
        """
        known = self.names
        return known.find(name) if isinstance(known, Names) else self.label_numbers.get(name)

    def select_labels(
        self,
        only: Iterable[str | int] | None = None,
        exclude: Iterable[str | int] | None = None,
    ) -> Allowed:
        """Choose the labels that may be predicted.

        Pass the result as `allowed` to `predict_topk` and other methods, as often as you like: it
        is prepared only once.

        Parameters
        ----------
        only : iterable of str or int, default=None
            The labels that may be predicted, by name or number. By default all.
        exclude : iterable of str or int, default=None
            Labels that may not be predicted. By default none.

        Returns
        -------
        Allowed
            The labels chosen.

        Raises
        ------
        DataError
            If the model does not have one of the labels.
        """
        mask = np.full(self.n_labels, only is None, np.bool_)
        if only is not None:
            mask[self._find_labels(only, "only")] = True
        if exclude is not None:
            mask[self._find_labels(exclude, "exclude")] = False
        return Allowed(self.n_labels, np.flatnonzero(mask))

    def allowed_labels(self, allowed: LabelsAllowed | None) -> Allowed | None:
        """Turn a value of `allowed` into the labels that it stands for.

        Parameters
        ----------
        allowed : labels, indicator matrix, or None
            As for `predict_topk`.

        Returns
        -------
        Allowed or None
            The labels, or None for all labels.

        Raises
        ------
        DataError
            If the model does not have one of the labels.
        """
        if allowed is None:
            return None
        if isinstance(allowed, Allowed):
            if allowed.n_labels != self.n_labels:
                raise DataError(
                    f"allowed is for a model with {counted(allowed.n_labels, 'label')}, "
                    f"not {self.n_labels:,}"
                )
            return allowed
        if sp.issparse(allowed) or getattr(allowed, "ndim", 1) == 2:
            return Allowed.of_rows(allowed, self.n_labels)
        return Allowed(self.n_labels, self._find_labels(allowed, "allowed"))

    def _find_labels(self, labels: Any, what: str) -> npt.NDArray[np.int64]:
        """Return the numbers of labels; `what` names the argument in errors."""
        if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
            raise DataError(f"{what} is {reprlib.repr(labels)}; expected a list of labels")
        if isinstance(labels, np.ndarray) and labels.dtype.kind in "iu" and labels.ndim == 1:
            outside = (labels < 0) | (labels >= self.n_labels)
            if outside.any():
                self.find_label(int(labels[np.argmax(outside)]))
            return labels.astype(np.int64)
        given = list(labels)
        known = self.names
        found: list[int | None] = [None] * len(given)
        if isinstance(known, Names) and all(isinstance(label, str) for label in given):
            found = known.find_all(given)
        pairs = zip(found, given, strict=True)
        return np.array([self.find_label(x) if n is None else n for n, x in pairs], np.int64)

    @cached_property
    def label_numbers(self) -> dict[str, int]:
        """Numbers of the labels by their names; of equal names, the first."""
        return {name: number for number, name in reversed(list(enumerate(self.names or ())))}
