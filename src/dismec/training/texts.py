"""Texts with label names → models and datasets; a file is read a batch at a time, twice."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from dismec.data.binary import XmcWriter
from dismec.data.corpus import TextBatch, TextFormat, is_frame, read_frame, read_texts
from dismec.data.dataset import Dataset, fingerprint, load_data
from dismec.data.files import StrPath
from dismec.data.formats import detect
from dismec.data.mixed import mixed_rows
from dismec.data.text_format import RefusedError, checked_names
from dismec.errors import DataError
from dismec.features.text_rows import TextRows
from dismec.features.vocabulary import TextParams, Vocabulary, VocabularyBuilder
from dismec.model.directory import data_file, make_directory
from dismec.model.model import Model
from dismec.training.examples import example_texts
from dismec.training.params import TrainingParams
from dismec.training.recipe import carry_out
from dismec.training.request import Progress, Request
from dismec.training.resume import check_output

__all__ = [
    "TextRequest",
    "Texts",
    "learn",
    "text_dataset",
    "train_text",
    "vectorised",
    "vocabulary_of",
]

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
    def of_frame(
        cls, frame: Any, fmt: TextFormat | None = None, *, needs_labels: bool = True
    ) -> Texts:
        """Those of a frame of pandas, polars, pyarrow or Hugging Face datasets."""
        chosen = fmt or TextFormat()
        name = f"the {type(frame).__name__}"
        return cls(lambda: read_frame(frame, chosen, needs_labels=needs_labels), name)

    @classmethod
    def of(cls, source: Any, fmt: TextFormat | None = None, *, needs_labels: bool = True) -> Texts:
        """Those of a file or a frame; `Texts` as they are."""
        if isinstance(source, Texts):
            return source
        of = cls.of_frame if is_frame(source) else cls.of_file
        return of(source, fmt, needs_labels=needs_labels)

    @classmethod
    def of_lists(cls, texts: Sequence[str], labels: Sequence[Sequence[str]]) -> Texts:
        """Those that are in memory, with the names of the labels of each."""
        if len(texts) != len(labels):
            raise DataError(f"there are {len(texts)} texts and labels for {len(labels)}")
        names = []
        for number, row in enumerate(labels):
            try:
                names.append(checked_names(row))
            except RefusedError as error:
                raise DataError(f"labels[{number}]: {error}") from None
        batch = TextBatch(list(texts), names, 0)
        return cls(lambda: [batch])


@dataclass(frozen=True, eq=False)
class TextRequest:
    """A training of texts, as `Request` is one of rows; the fields are those of `train_text`."""

    source: Any
    params: TrainingParams | None = None
    path: StrPath | None = None
    text: TextParams | None = None
    fmt: TextFormat | None = None
    validation: Any = None
    threads: int | None = None
    overwrite: bool = False
    progress: Progress | None = None
    news: News | None = None
    cluster: Any = None
    examples: bool = False
    dense: Any = None
    validation_dense: Any = None
    dense_only: bool = False  # of the texts, only the labels count

    @contextmanager
    def as_rows(self) -> Iterator[Request]:
        """The request for the rows of the texts.

        For a model directory the rows are in a file there, as long as the context lasts.
        """
        texts = self._texts(self.source)
        validation = None if self.validation is None else self._texts(self.validation)
        if validation:
            next(iter(validation.read()), None)  # fails before hours of work if it cannot be read
        directory = None if self.path is None else Path(self.path)
        if directory:
            check_output(directory, self.overwrite)
        vocabulary: Vocabulary | None = None
        if self.dense_only:
            names = _label_names(texts)
        else:
            params = self.text or TextParams()
            vocabulary, names = learn(texts, params, threads=self.threads, news=self.news)
        numbers = {name: number for number, name in enumerate(names)}
        judge = None
        if validation:
            judge = vectorised(validation, vocabulary, numbers, threads=self.threads)
        request = Request(
            X=None,  # filled in below
            Y=None,
            params=self.params or TrainingParams(tfidf=not self.dense_only),
            path=directory,
            names=names,
            validation=judge and (_beside(judge.X, self.validation_dense), judge.Y),
            vocabulary=vocabulary,
            columns=None if self.fmt is None else self.fmt.kept,
            examples=example_texts(texts.read()) if self.examples and vocabulary else (),
            threads=self.threads,
            overwrite=self.overwrite,
            progress=self.progress,
            cluster=self.cluster,
        )
        if directory is None or vocabulary is None:
            dataset = vectorised(texts, vocabulary, numbers, threads=self.threads)
            yield replace(request, X=_beside(dataset.X, self.dense), Y=dataset.Y)
            return
        make_directory(directory)
        with _in_file(directory, texts, request, self.news) as (dataset, file):
            X = _beside(dataset.X, self.dense)
            yield replace(request, X=X, Y=dataset.Y, source=file)

    def _texts(self, source: Any) -> Texts:
        return Texts.of(source, self.fmt)


def train_text(
    source: Any,
    path: StrPath,
    params: TrainingParams | None = None,
    text: TextParams | None = None,
    *,
    fmt: TextFormat | None = None,
    validation: Any = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    news: News | None = None,
    cluster: Any = None,
    client: Any = None,
    examples: bool = False,
    dense: Any = None,
    validation_dense: Any = None,
) -> Model:
    """Train a model of texts into a directory, or go on where an earlier run of it stopped.

    Parameters
    ----------
    source
        A file of texts with labels (`read_texts`), which may be larger than memory; a frame of
        pandas, polars, pyarrow or Hugging Face datasets; or `Texts`.
    path
        The model directory.
    params
        As for `dismec.train`; by default with tf-idf.
    text
        Which terms of a text are features.
    fmt
        Names of the columns of a file or frame. The model keeps them, and they hold for whatever
        is read for it later.
    validation
        Other texts to choose delta and to calibrate on.
    threads, overwrite, progress, cluster, client
        As for `dismec.train`.
    news
        Called with a line now and then while texts are read.
    examples
        Whether the model keeps the beginnings of up to five training texts, which its server
        offers as examples. Leave it off if the texts are private.
    dense, validation_dense
        Dense features beside the texts, and beside those of `validation`: an array with a row for
        each text (``docs/dense.md``).

    Returns
    -------
    Model
        The finished model, with its vocabulary and the names of its labels.

    Raises
    ------
    DataError
        ``file:line: reason`` for what cannot be read; otherwise as `dismec.train`.
    """
    request = TextRequest(
        source,
        params,
        path,
        text=text,
        fmt=fmt,
        validation=validation,
        threads=threads,
        overwrite=overwrite,
        progress=progress,
        news=news,
        cluster=client if cluster is None else cluster,
        examples=examples,
        dense=dense,
        validation_dense=validation_dense,
    )
    with request.as_rows() as rows:
        return carry_out(rows)


def _beside(X: Any, dense: Any) -> Any:
    """Rows of texts, with dense features if there are some."""
    return X if dense is None else mixed_rows(X, dense)


def _label_names(texts: Texts) -> list[str]:
    names = sorted({name for batch in texts.read() for row in batch.labels for name in row})
    if not names:
        raise DataError(f"{texts.name}: no row has a label")
    return names


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
    source: Any,
    *,
    fmt: TextFormat | None = None,
    needs_labels: bool = True,
    threads: int | None = None,
) -> Dataset:
    """Texts as rows of a model's features, their labels as its labels; in memory.

    `source` is as for `train_text`; `fmt` is by default what the model was trained with. Names that
    the model does not know become labels after its own.
    """
    vocabulary = None if model.n_dense and not model.n_features else vocabulary_of(model)
    if isinstance(source, Texts) or is_frame(source):
        fmt = fmt or TextFormat.of_model(model.manifest.columns, "CSV")
    else:
        source = detect(source)
        fmt = fmt or TextFormat.of_model(model.manifest.columns, source.kind)
    texts = Texts.of(source, fmt, needs_labels=needs_labels)
    return vectorised(texts, vocabulary, model.label_numbers, threads=threads)


def vocabulary_of(model: Any) -> Vocabulary:
    """The vocabulary of a model of texts."""
    if model.vocabulary is None:
        raise DataError("the model was trained on numeric features, and the data are texts")
    return model.vocabulary  # type: ignore[no-any-return]


def vectorised(
    texts: Texts,
    vocabulary: Vocabulary | None,
    numbers: Mapping[str, int],
    *,
    threads: int | None = None,
) -> Dataset:
    """Texts as a dataset in memory, without a vocabulary one of no features.

    Names without a number get the next ones.
    """
    known = dict(numbers)
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
    if not rows:
        raise DataError(f"{texts.name}: no rows")
    n_labels = 1 + max(known.values(), default=-1)
    Y = sp.csr_array(
        (np.ones(len(ids), np.uint8), np.array(ids, np.int32), np.cumsum(lengths)),
        shape=(len(lengths) - 1, n_labels),
    )
    Y.sort_indices()
    return Dataset(TextRows(sp.vstack(rows, format="csr")), Y, sorted(known, key=known.__getitem__))


@contextmanager
def _in_file(
    directory: Path, texts: Texts, request: Request, news: News | None
) -> Iterator[tuple[Dataset, Path]]:
    """Texts as a dataset in a file, mapped into memory."""
    vocabulary, names = request.vocabulary, request.names
    assert vocabulary is not None
    assert names is not None
    numbers = {name: number for number, name in enumerate(names)}
    begun = data_file(directory, secrets.token_hex(8))
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
                writer.append(vocabulary.rows(batch.texts, threads=request.threads), ids)
            writer.finish(len(names))
        dataset = load_data(begun)
        file = data_file(directory, fingerprint(dataset.X, dataset.Y))
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
