"""Texts → rows of a vocabulary's terms: a matrix type of their own, and datasets in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from dismec.data.corpus import Texts, is_frame
from dismec.data.dataset import Dataset
from dismec.data.formats import detect
from dismec.data.matrices import refuse_mask
from dismec.data.text_format import TextFormat
from dismec.data.weights import RowWeights
from dismec.errors import DataError

__all__ = ["TextRows", "text_dataset", "vocabulary_of", "weighted_rows"]


class TextRows(sp.csr_array):
    """Rows whose columns are the terms of a vocabulary: the input of a text model.

    `Vocabulary.rows` returns them, and slices keep the class. A text model rejects other matrices
    because it cannot know what their columns mean; ``TextRows(X)`` declares that they are its own
    terms, in order. Stacked rows need this too, because `scipy.sparse.vstack` returns a plain
    matrix.

    Examples
    --------
    >>> from dismec import DiSMECTextClassifier, TextRows
    >>> texts = ["boil the egg", "fry the egg", "bake the bread", "slice the bread"]
    >>> model = DiSMECTextClassifier().fit(texts, ["egg", "egg", "bread", "bread"]).model_
    >>> X = model.vocabulary.rows(["a fried egg"])
    >>> isinstance(X, TextRows)
    True
    >>> model.predict_topk(TextRows(X.toarray()), k=1)[0].tolist()
    [[1]]
    """

    def __init__(self, arg1: Any, *args: Any, **kwargs: Any) -> None:
        refuse_mask(arg1, "X")
        super().__init__(arg1, *args, **kwargs)


def text_dataset(
    model: Any,
    source: Any,
    *,
    fmt: TextFormat | None = None,
    threads: int | None = None,
) -> tuple[Dataset, RowWeights | None]:
    """Convert texts to a dataset with a model's features and labels, in memory.

    `source` is as for `train_text`; `fmt` defaults to the one that the model was trained with.
    Unknown label names become labels after those of the model. The weights are those of the
    ``weight_column`` of `fmt`.
    """
    vocabulary = None if model.n_dense and not model.n_features else vocabulary_of(model)
    if isinstance(source, Texts) or is_frame(source):
        fmt = fmt or TextFormat.of_model(model.manifest.columns, "CSV")
    else:
        source = detect(source)
        fmt = fmt or TextFormat.of_model(model.manifest.columns, source.kind)
    return weighted_rows(Texts.of(source, fmt), vocabulary, model.label_numbers, threads=threads)


def vocabulary_of(model: Any) -> Any:
    """Return the vocabulary of a text model."""
    if model.vocabulary is None:
        raise DataError("the data are texts, but the model was trained on numeric features")
    return model.vocabulary


def weighted_rows(
    texts: Texts,
    vocabulary: Any,  # a `Vocabulary`, or None
    numbers: Mapping[str, int],
    *,
    threads: int | None = None,
) -> tuple[Dataset, RowWeights | None]:
    """Convert texts to a dataset in memory, and return the weights of the texts, if any.

    Without a vocabulary, it has no features. Names that are not in `numbers` get the next numbers.
    """
    known = dict(numbers)
    weights: list[float] | None = None
    rows: list[Any] = []
    ids: list[int] = []
    lengths = [0]
    for batch in texts.read():
        if vocabulary is None:
            rows.append(sp.csr_array((len(batch.texts), 0), dtype=np.float32))
        else:
            rows.append(vocabulary.rows(batch.texts, threads=threads))
        for labels in batch.labels:
            ids.extend(known.setdefault(name, len(known)) for name in labels)
            lengths.append(len(labels))
        if batch.weights is not None:
            weights = [] if weights is None else weights
            weights.extend(batch.weights)
    if not rows:
        raise DataError(f"{texts.name}: no rows")
    n_labels = 1 + max(known.values(), default=-1)
    Y = sp.csr_array(
        (np.ones(len(ids), np.uint8), np.array(ids, np.int32), np.cumsum(lengths)),
        shape=(len(lengths) - 1, n_labels),
    )
    Y.sort_indices()
    dataset = Dataset(
        TextRows(sp.vstack(rows, format="csr")), Y, sorted(known, key=known.__getitem__)
    )
    return dataset, None if weights is None else np.array(weights)
