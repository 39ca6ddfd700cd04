"""Texts from files, frames and lists, readable repeatedly, with labels and weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.data.corpus import TextBatch, TextFormat, is_frame, read_frame, read_texts
from dismec.data.counts import counted
from dismec.data.files import StrPath
from dismec.data.row_weights import RowWeights, check_row_weights
from dismec.data.text_format import RefusedError, checked_names
from dismec.errors import DataError

__all__ = ["Texts"]


@dataclass(frozen=True)
class Texts:
    """Texts that can be read repeatedly, a batch at a time.

    Attributes
    ----------
    read
        Begins at the first row each time it is called.
    name
        Name of the texts in messages.
    """

    read: Callable[[], Iterable[TextBatch]]
    name: str = "the texts"

    @classmethod
    def of_file(
        cls, path: StrPath, fmt: TextFormat | None = None, *, needs_labels: bool = True
    ) -> Texts:
        """Return the texts of a file, as `dismec.data.corpus.read_texts` reads it."""
        chosen = fmt or TextFormat()
        return cls(lambda: read_texts(path, chosen, needs_labels=needs_labels), str(path))

    @classmethod
    def of_frame(
        cls, frame: Any, fmt: TextFormat | None = None, *, needs_labels: bool = True
    ) -> Texts:
        """Return the texts of a frame of pandas, polars, pyarrow or Hugging Face datasets."""
        chosen = fmt or TextFormat()
        name = f"the {type(frame).__name__}"
        return cls(lambda: read_frame(frame, chosen, needs_labels=needs_labels), name)

    @classmethod
    def of(cls, source: Any, fmt: TextFormat | None = None, *, needs_labels: bool = True) -> Texts:
        """Return the texts of a file or a frame; `Texts` are returned unchanged."""
        if isinstance(source, Texts):
            return source
        if not is_frame(source) and not isinstance(source, str | os.PathLike):
            raise DataError(
                f"the texts are a {type(source).__name__}; expected a file, or a frame with columns"
                " of texts and labels (lists are for DiSMECTextClassifier)"
            )
        of = cls.of_frame if is_frame(source) else cls.of_file
        return of(source, fmt, needs_labels=needs_labels)

    @classmethod
    def of_lists(cls, texts: Sequence[str], labels: Sequence[Sequence[str]]) -> Texts:
        """Return texts that are in memory, each with a list of label names."""
        if len(texts) != len(labels):
            raise DataError(f"{counted(len(texts), 'text')}, but labels for {len(labels)}")
        names = []
        for number, row in enumerate(labels):
            try:
                names.append(checked_names(row))
            except RefusedError as error:
                raise DataError(f"labels[{number}]: {error}") from None
        batch = TextBatch(list(texts), names, 0)
        return cls(lambda: [batch])

    def weighted(self, weights: Any = None) -> Texts:
        """Return the texts of positive weight, the only ones that training learns from.

        `weights`, one number per text, override those of a file or frame.
        """
        if weights is None:
            return replace(self, read=lambda: map(_without_zero_weights, self.read()))
        given = np.asarray(weights)
        found = check_row_weights(given, given.size)
        return replace(self, read=lambda: self._with_weights(found))

    def which_count(self, weights: Any = None) -> npt.NDArray[np.bool_] | None:
        """Whether each text is one of those that `counted` keeps; None if all are."""
        found: list[float] = []
        if weights is not None:
            found = np.asarray(weights, np.float64).tolist()
        else:
            for batch in self.read():
                if batch.weights is None:
                    return None
                found.extend(batch.weights)
        return None if all(found) else np.array(found) != 0

    def _with_weights(self, weights: RowWeights) -> Iterator[TextBatch]:
        n_rows = 0
        for batch in self.read():
            part = weights[n_rows : n_rows + len(batch.texts)].tolist()
            n_rows += len(batch.texts)
            if len(part) == len(batch.texts):
                yield _without_zero_weights(batch._replace(weights=part))
        if n_rows != len(weights):
            raise DataError(
                f"weights: {counted(len(weights), 'number')} for {counted(n_rows, 'text')}"
            )


def _without_zero_weights(batch: TextBatch) -> TextBatch:
    """Return the batch without rows of weight 0."""
    if batch.weights is None or all(batch.weights):
        return batch
    keep = [row for row, weight in enumerate(batch.weights) if weight]
    return TextBatch(
        [batch.texts[row] for row in keep],
        [batch.labels[row] for row in keep],
        batch.first_row,
        None if batch.ids is None else [batch.ids[row] for row in keep],
        [batch.weights[row] for row in keep],
    )
