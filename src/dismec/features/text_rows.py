"""Texts with labels → a vocabulary and label names, and datasets of its terms in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from dismec.data.corpus import TextBatch, Texts, is_frame
from dismec.data.counts import counted
from dismec.data.dataset import Dataset
from dismec.data.formats import detect
from dismec.data.matrices import indicator_of
from dismec.data.mixed import no_features, stacked
from dismec.data.text_format import TextFormat, format_of_model
from dismec.data.weights import RowWeights
from dismec.errors import DataError, located
from dismec.features.encoder import Encoder
from dismec.features.vocabulary import TextParams, TextRows, Vocabulary, VocabularyBuilder

Log = Callable[[str], None]

_LOG_SECONDS = 10.0


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
        fmt = fmt or format_of_model(model.manifest.columns, "CSV")
    else:
        source = detect(source)
        fmt = fmt or format_of_model(model.manifest.columns, source.kind)
    return weighted_rows(Texts.of(source, fmt), vocabulary, model.label_numbers, threads=threads)


def vocabulary_of(model: Any) -> Vocabulary:
    """Return the vocabulary of a text model."""
    if model.vocabulary is None:
        raise DataError("the data are texts, but the model was trained on numeric features")
    return model.vocabulary  # type: ignore[no-any-return]


def weighted_rows(
    texts: Texts,
    vocabulary: Vocabulary | None,
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
    ids: list[list[int]] = []
    for batch in texts.read():
        if vocabulary is None:
            rows.append(no_features(len(batch.texts)))
        else:
            rows.append(vocabulary.rows(batch.texts, threads=threads))
        ids += [[known.setdefault(name, len(known)) for name in row] for row in batch.labels]
        if batch.weights is not None:
            weights = [] if weights is None else weights
            weights.extend(batch.weights)
    if not rows:
        raise DataError(f"{texts.name}: no rows")
    Y = indicator_of(ids, 1 + max(known.values(), default=-1))
    dataset = Dataset(stacked(rows, TextRows), Y, sorted(known, key=known.__getitem__))
    return dataset, None if weights is None else np.array(weights)


def learn(
    texts: Texts,
    params: TextParams,
    *,
    threads: int | None = None,
    log: Log | None = None,
    encoder: Encoder | None = None,
) -> tuple[Vocabulary, list[str]]:
    """Learn the vocabulary of texts, and collect their label names in order."""
    builder = VocabularyBuilder(params, threads=threads)
    names: set[str] = set()
    n_rows = 0
    for batch in logged(texts, "terms counted", log):
        builder.add(batch.texts)
        names.update(name for row in batch.labels for name in row)
        n_rows += len(batch.texts)
    if not n_rows:
        raise DataError(f"{texts.name}: no rows to train on")
    if not names:
        raise DataError(f"{texts.name}: no row has a label")
    with located(texts.name, DataError):
        vocabulary = builder.finish(encoder)
    if log:
        log(
            f"{counted(n_rows, 'text')}, {counted(len(vocabulary.terms), 'feature')}, "
            f"{counted(len(names), 'label')}"
        )
    return vocabulary, sorted(names)


def logged(texts: Texts, what: str, log: Log | None) -> Iterator[TextBatch]:
    """Yield the batches, and log how many texts have been read from time to time."""
    last = time.monotonic()
    for batch in texts.read():
        yield batch
        if log and time.monotonic() - last > _LOG_SECONDS:
            last = time.monotonic()
            log(f"{counted(batch.first_row + len(batch.texts), 'text')} read, {what}")
