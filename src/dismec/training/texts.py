"""Texts with label names → models and datasets; a file is read a batch at a time, twice."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from dismec.data.corpus import TextBatch, TextFormat, read_texts
from dismec.data.dataset import Dataset, fingerprint, load_data
from dismec.data.xmc_writer import XmcWriter
from dismec.errors import DataError
from dismec.features.vocabulary import TextParams, Vocabulary, VocabularyBuilder
from dismec.model import directory as store
from dismec.model.model import Model
from dismec.training.job import Progress
from dismec.training.params import TrainingParams
from dismec.training.recipe import fit, train

__all__ = [
    "Texts",
    "fit_text",
    "learn",
    "text_dataset",
    "train_text",
    "vectorised",
    "vocabulary_of",
]

StrPath = str | os.PathLike[str]
News = Callable[[str], None]

_NEWS_SECONDS = 10.0


@dataclass(frozen=True)
class Texts:
    """Texts that can be read again and again, a batch at a time.

    Attributes
    ----------
    read
        Begins at the first row each time it is called.
    name
        What messages call them.
    """

    read: Callable[[], Iterable[TextBatch]]
    name: str = "the texts"

    @classmethod
    def of_file(
        cls, path: StrPath, fmt: TextFormat | None = None, *, needs_labels: bool = True
    ) -> Texts:
        """Those of a file, as `dismec.data.corpus.read_texts` reads it."""
        chosen = fmt or TextFormat()
        return cls(lambda: read_texts(path, chosen, needs_labels=needs_labels), str(path))

    @classmethod
    def of_lists(cls, texts: Sequence[str], labels: Sequence[Sequence[str]]) -> Texts:
        """Those that are in memory, with the names of the labels of each."""
        if len(texts) != len(labels):
            raise DataError(f"there are {len(texts)} texts and labels for {len(labels)}")
        batch = TextBatch(list(texts), [list(dict.fromkeys(row)) for row in labels], 0)
        return cls(lambda: [batch])


def train_text(
    source: StrPath | Texts,
    path: StrPath,
    params: TrainingParams | None = None,
    text: TextParams | None = None,
    *,
    fmt: TextFormat | None = None,
    validation: StrPath | Texts | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    news: News | None = None,
    client: Any = None,
) -> Model:
    """Train a model of texts into a directory, or go on where an earlier run of it stopped.

    Parameters
    ----------
    source
        A file of JSON lines, CSV, TSV or fastText lines (`read_texts`), which may be larger
        than memory, or `Texts`.
    path
        The model directory.
    params
        As for `dismec.train`; by default with tf-idf.
    text
        Which terms of a text are features.
    fmt
        Names of the columns of a file.
    validation
        Other texts to choose delta and to calibrate on.
    threads, overwrite, progress, client
        As for `dismec.train`.
    news
        Called with a line now and then while texts are read.

    Raises
    ------
    DataError
        ``file:line: reason`` for what cannot be read; otherwise as `dismec.train`.
    """
    with on_disk(source, path, text, fmt, validation, threads, news) as (X, Y, facts):
        return train(
            *(X, Y, path, params or TrainingParams(tfidf=True)),
            threads=threads,
            overwrite=overwrite,
            progress=progress,
            client=client,
            **facts,
        )


@contextmanager
def on_disk(
    source: StrPath | Texts,
    path: StrPath,
    text: TextParams | None,
    fmt: TextFormat | None,
    validation: StrPath | Texts | None,
    threads: int | None,
    news: News | None,
) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """X and Y of texts, in a file of a model directory as long as the context lasts.

    With them come `names`, `validation`, `source` and `vocabulary` for `dismec.train`.
    """
    directory = Path(path)
    texts = source if isinstance(source, Texts) else Texts.of_file(source, fmt)
    if validation is not None:
        if not isinstance(validation, Texts):
            validation = Texts.of_file(validation, fmt)
        next(iter(validation.read()), None)  # what cannot be read is told before hours of work
    if directory.exists():
        store.make_directory(directory)
    vocabulary, names = learn(texts, text or TextParams(), threads=threads, news=news)
    store.make_directory(directory)
    numbers = {name: number for number, name in enumerate(names)}
    judge = None
    if validation is not None:
        judge = vectorised(validation, vocabulary, numbers, threads=threads)
    with _in_file(directory, texts, vocabulary, names, threads, news) as (dataset, file):
        yield (
            dataset.X,
            dataset.Y,
            {
                "names": names,
                "validation": judge and (judge.X, judge.Y),
                "source": file,
                "vocabulary": vocabulary,
            },
        )


def fit_text(
    texts: Texts,
    params: TrainingParams | None = None,
    text: TextParams | None = None,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    client: Any = None,
) -> Model:
    """Train a model of texts in memory; arguments as for `train_text`."""
    vocabulary, names = learn(texts, text or TextParams(), threads=threads)
    numbers = {name: number for number, name in enumerate(names)}
    dataset = vectorised(texts, vocabulary, numbers, threads=threads)
    return fit(
        dataset.X,
        dataset.Y,
        params or TrainingParams(tfidf=True),
        names=names,
        threads=threads,
        progress=progress,
        client=client,
        vocabulary=vocabulary,
    )


def learn(
    texts: Texts,
    params: TextParams,
    *,
    threads: int | None = None,
    news: News | None = None,
) -> tuple[Vocabulary, list[str]]:
    """The vocabulary of texts, and the names of their labels in order."""
    builder = VocabularyBuilder(params, threads=threads)
    names: set[str] = set()
    n_rows = 0
    for batch in _told(texts, "terms counted", news):
        builder.add(batch.texts)
        names.update(name for row in batch.labels for name in row)
        n_rows += len(batch.texts)
    if not n_rows:
        raise DataError(f"{texts.name}: there are no rows to train on")
    if not names:
        raise DataError(f"{texts.name}: no row has a label")
    try:
        vocabulary = builder.finish()
    except DataError as error:
        raise DataError(f"{texts.name}: {error}") from None
    if news:
        news(f"{n_rows:,} texts, {len(vocabulary.terms):,} features, {len(names):,} labels")
    return vocabulary, sorted(names)


def text_dataset(
    model: Any,
    source: StrPath | Texts,
    *,
    fmt: TextFormat | None = None,
    needs_labels: bool = True,
    threads: int | None = None,
) -> Dataset:
    """Texts as rows of a model's features, their labels as its labels; in memory.

    Names that the model does not know become labels after its own.
    """
    if not isinstance(source, Texts):
        source = Texts.of_file(source, fmt, needs_labels=needs_labels)
    return vectorised(source, vocabulary_of(model), model.label_numbers, threads=threads)


def vocabulary_of(model: Any) -> Vocabulary:
    """The vocabulary of a model of texts."""
    if model.vocabulary is None:
        raise DataError("the model was trained on numeric features, and the data are texts")
    return model.vocabulary  # type: ignore[no-any-return]


def vectorised(
    texts: Texts, vocabulary: Vocabulary, numbers: Mapping[str, int], *, threads: int | None = None
) -> Dataset:
    """Texts as a dataset in memory. Names without a number get the next ones."""
    known = dict(numbers)
    rows: list[Any] = []
    ids: list[int] = []
    lengths = [0]
    for batch in texts.read():
        rows.append(vocabulary.rows(batch.texts, threads=threads))
        for labels in batch.labels:
            ids.extend(known.setdefault(name, len(known)) for name in labels)
            lengths.append(len(labels))
    if not rows:
        raise DataError(f"{texts.name}: no rows")
    n_labels = 1 + max(known.values(), default=-1)
    Y = sp.csr_array(
        (np.ones(len(ids), np.uint8), np.array(ids, np.int32), np.cumsum(lengths)),
        shape=(len(lengths) - 1, n_labels),
    )
    Y.sort_indices()
    return Dataset(sp.vstack(rows, format="csr"), Y, sorted(known, key=known.__getitem__))


@contextmanager
def _in_file(
    directory: Path,
    texts: Texts,
    vocabulary: Vocabulary,
    names: Sequence[str],
    threads: int | None,
    news: News | None,
) -> Iterator[tuple[Dataset, Path]]:
    """Texts as a dataset in a file, mapped into memory."""
    numbers = {name: number for number, name in enumerate(names)}
    begun = store.data_file(directory, secrets.token_hex(8))
    file = begun
    try:
        with XmcWriter(begun, len(vocabulary.terms)) as writer:
            for batch in _told(texts, "features counted", news):
                try:
                    ids = [[numbers[name] for name in row] for row in batch.labels]
                except KeyError as error:
                    raise DataError(
                        f"{texts.name}: changed while it was read: label {error} is new"
                    ) from None
                writer.append(vocabulary.rows(batch.texts, threads=threads), ids)
            writer.finish(len(names))
        dataset = load_data(begun)
        file = store.data_file(directory, fingerprint(dataset.X, dataset.Y))
        begun.replace(file)
        yield dataset, file
    finally:
        begun.unlink(missing_ok=True)
        file.unlink(missing_ok=True)


def _told(texts: Texts, what: str, news: News | None) -> Iterator[TextBatch]:
    """The batches, with a line now and then on how far it is."""
    last = time.monotonic()
    for batch in texts.read():
        yield batch
        if news and time.monotonic() - last > _NEWS_SECONDS:
            last = time.monotonic()
            news(f"{batch.first_row + len(batch.texts):,} texts read, their {what}")
