"""Texts with label names → rows for training: a reader in front of `training.train`.

Texts are read a batch at a time, twice: the first reading learns the vocabulary, the second writes
rows to a file in the model directory.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any, cast

import numpy as np

from dismec.data.corpus import TextBatch, Texts
from dismec.data.dataset import Dataset
from dismec.data.mixed import MixedRows, sparse_part, with_dense
from dismec.data.text_format import TextFormat
from dismec.data.training_file import TrainingData, XmcWriter
from dismec.data.weights import RowWeights, find_pairs, kept_rows, known_labels, pairs_at
from dismec.errors import DataError
from dismec.features.encoder import Encoder
from dismec.features.label_texts import LabelTextsLike, own_text
from dismec.features.label_texts import label_texts as described_labels
from dismec.features.text_rows import Log, learn, logged, weighted_rows
from dismec.features.vocabulary import TextParams, Vocabulary
from dismec.model.directory import data_file, make_directory
from dismec.training.params import EXAMPLES, TrainOptions
from dismec.training.resume import check_output

_SHORTEST, _LONGEST = 20, 2000  # range of characters in a text that it may keep
_KEPT = 300  # characters kept of each text


@contextmanager
def texts_read(
    source: Any,
    options: TrainOptions,
    text: TextParams | None = None,
    *,
    fmt: TextFormat | None = None,
    validation: Any = None,
    weights: Any = None,
    pair_weights: Any = None,
    log: Log | None = None,
    examples: bool = False,
    dense: Any = None,
    validation_dense: Any = None,
    dense_only: bool = False,
    label_texts: LabelTextsLike | None = None,
    encoder: Encoder | None = None,
    hashed: str | None = None,
) -> Iterator[tuple[TrainingData, TrainOptions]]:
    """Yield the rows of texts, and the options with what else was read.

    Parameters are those of `dismec.train_text`; with `dense_only`, only labels of texts are used,
    and `hashed` stands for the rows' fingerprint. For a model directory, the rows are in a file
    there, which exists only within the context.
    """
    texts = Texts.of(source, fmt)
    counting, texts = texts, texts.weighted(weights)
    judge = None
    if validation is not None:  # its rows all count once
        judge = Texts.of(validation, None if fmt is None else replace(fmt, weight_column=None))
        next(iter(judge.read()), None)  # fail before hours of work if it cannot be read
    directory, threads = options.path, options.threads
    if directory:
        check_output(directory, options.overwrite)
    vocabulary: Vocabulary | None = None
    if dense_only:
        names = _names_of(texts)
    else:
        vocabulary, names = learn(
            texts, text or TextParams(), threads=threads, log=log, encoder=encoder
        )
    described: TextBatch | None = None
    if label_texts is not None and label_texts is not False:
        if vocabulary is None or dense is not None:
            raise DataError("label_texts is not supported with dense features")
        seen, given = set(names), described_labels(label_texts)
        names = sorted(seen | given.keys())
        own = [given.get(name) or own_text(name) for name in names]
        options = replace(options, label_texts=own)
        texts, described = _with_described(
            texts, vocabulary, dict(zip(names, own, strict=True)), seen
        )
    numbers = {name: number for number, name in enumerate(names)}
    options = replace(
        options,
        vocabulary=vocabulary,
        columns=None if fmt is None else fmt.kept,
        examples=example_texts(texts.read()) if examples and vocabulary else (),
    )
    if judge:
        rows, _ = weighted_rows(judge, vocabulary, numbers, threads=threads)
        options = replace(options, validation=(with_dense(rows.X, validation_dense), rows.Y))

    def completed(rows: Dataset, found: RowWeights | None) -> TrainingData:
        pairs = None
        if pair_weights is not None:  # given for all texts, also those that do not count
            keep = counting.which_count(weights)
            n_rows = rows.Y.shape[0] if keep is None else len(keep)
            pairs = find_pairs(pair_weights, (n_rows, len(names)), names)
            pairs = pairs_at(pairs, None if keep is None else np.flatnonzero(keep))
        if pairs is not None:
            cast(Any, pairs).resize(rows.Y.shape)
        n = len(described.texts) if described else 0
        return TrainingData(with_dense(rows.X, dense), rows.Y, found, pairs, names, n_described=n)

    if directory is None or vocabulary is None:
        yield completed(*weighted_rows(texts, vocabulary, numbers, threads=threads)), options
        return
    make_directory(directory)
    begun = file = data_file(directory, secrets.token_hex(8))
    try:
        found = _write_rows(begun, texts, vocabulary, numbers, threads, log)
        mapped = TrainingData.map(begun)
        data = completed(Dataset(mapped.X, mapped.Y), found)
        # A training takes a file of this name as its own.
        known = replace(data, Y=known_labels(data.Y, data.pairs), hashed=hashed)
        file = data_file(directory, known.fingerprint)
        begun.replace(file)
        yield replace(data, source=file, hashed=known.fingerprint), options
    finally:
        begun.unlink(missing_ok=True)
        file.unlink(missing_ok=True)


def _with_described(
    texts: Texts, vocabulary: Vocabulary, of_labels: Mapping[str, str], seen: Set[str]
) -> tuple[Texts, TextBatch]:
    """Return the texts followed by those of the labels that they have, and the latter."""
    names = [name for name in of_labels if name in seen]
    known = np.diff(vocabulary.counts([of_labels[name] for name in names]).indptr) > 0
    names = list(compress(names, known))
    batch = TextBatch([of_labels[name] for name in names], [[name] for name in names], 0)

    def read() -> Iterator[TextBatch]:
        weights = None
        for one in texts.read():
            weights = one.weights
            yield one
        yield batch if weights is None else batch._replace(weights=[1.0] * len(names))

    return replace(texts, read=read), batch


def _write_rows(
    path: Path,
    texts: Texts,
    vocabulary: Vocabulary,
    numbers: Mapping[str, int],
    threads: int | None,
    log: Log | None,
) -> RowWeights | None:
    """Write the rows of texts to a dataset file, and return their weights."""
    found: list[float] = []
    width = None if vocabulary.encoder is None else vocabulary.encoder.width
    with XmcWriter(path, len(vocabulary.terms), width) as writer:
        for batch in logged(texts, "features counted", log):
            try:
                ids = [[numbers[name] for name in row] for row in batch.labels]
            except KeyError as error:
                raise DataError(
                    f"{texts.name}: changed while being read: label {error} is new"
                ) from None
            rows = vocabulary.rows(batch.texts, threads=threads)
            dense = rows.dense if isinstance(rows, MixedRows) else None
            writer.append(sparse_part(rows), ids, dense)
            found.extend(batch.weights or ())
        weights = kept_rows(np.array(found) if found else None)[1]
        writer.finish(len(numbers), weights=weights)
    return weights


def _names_of(texts: Texts) -> list[str]:
    """Return the sorted label names of texts."""
    names = sorted({name for batch in texts.read() for row in batch.labels for name in row})
    if not names:
        raise DataError(f"{texts.name}: no row has a label")
    return names


def example_texts(batches: Iterable[TextBatch]) -> tuple[str, ...]:
    """Return the beginnings of the first texts of a file, no two of which share a label.

    Only the first batch is read, so the same file always gives the same texts.
    """
    found: list[str] = []
    used: set[str] = set()
    for batch in batches:
        for text, labels in zip(batch.texts, batch.labels, strict=True):
            fits = _SHORTEST <= len(text.strip()) <= _LONGEST
            if fits and labels and used.isdisjoint(labels) and len(found) < EXAMPLES:
                used.update(labels)
                found.append(_opening_words(text.strip()))
        break
    return tuple(found)


def _opening_words(text: str) -> str:
    """Return the text, cut after a word if it is long."""
    if len(text) <= _KEPT:
        return text
    kept = text[: _KEPT + 1].rsplit(maxsplit=1)[0]
    return kept if len(kept) <= _KEPT else kept[:_KEPT]
