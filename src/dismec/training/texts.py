"""Texts with label names → models and datasets; a file is read a batch at a time, twice."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from dismec.data.binary import XmcWriter
from dismec.data.corpus import TextBatch, TextFormat, is_frame
from dismec.data.counts import counted
from dismec.data.dataset import Dataset, fingerprint, load_data
from dismec.data.files import StrPath
from dismec.data.formats import detect
from dismec.data.mixed import mixed_rows
from dismec.data.row_weights import RowWeights, kept_rows
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
from dismec.training.text_source import Texts

__all__ = [
    "TextRequest",
    "Texts",
    "learn",
    "text_dataset",
    "train_text",
    "vectorized",
    "vocabulary_of",
    "weighted_rows",
    "weighted_text_dataset",
]

Log = Callable[[str], None]

_LOG_SECONDS = 10.0


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
    log: Log | None = None
    cluster: Any = None
    examples: bool = False
    weights: Any = None
    dense: Any = None
    validation_dense: Any = None
    dense_only: bool = False  # of the texts, only the labels count

    @contextmanager
    def as_rows(self) -> Iterator[Request]:
        """The request for the rows of the texts.

        For a model directory the rows are in a file there, as long as the context lasts.
        """
        texts = Texts.of(self.source, self.fmt).counted(self.weights)
        validation = None
        if self.validation is not None:  # of which every row counts once
            fmt = None if self.fmt is None else replace(self.fmt, weight_column=None)
            validation = Texts.of(self.validation, fmt)
            next(iter(validation.read()), None)  # fails before hours of work if it cannot be read
        directory = None if self.path is None else Path(self.path)
        if directory:
            check_output(directory, self.overwrite)
        vocabulary: Vocabulary | None = None
        if self.dense_only:
            names = _names_of(texts)
        else:
            params = self.text or TextParams()
            vocabulary, names = learn(texts, params, threads=self.threads, log=self.log)
        numbers = {name: number for number, name in enumerate(names)}
        judge = None
        if validation:
            judge = vectorized(validation, vocabulary, numbers, threads=self.threads)
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
            dataset, weights = weighted_rows(texts, vocabulary, numbers, threads=self.threads)
            X = _beside(dataset.X, self.dense)
            yield replace(request, X=X, Y=dataset.Y, weights=weights)
            return
        make_directory(directory)
        with _in_file(directory, texts, request, self.log) as (dataset, weights, file):
            X = _beside(dataset.X, self.dense)
            yield replace(request, X=X, Y=dataset.Y, weights=weights, source=file)


def train_text(
    source: Any,
    path: StrPath,
    params: TrainingParams | None = None,
    text: TextParams | None = None,
    *,
    fmt: TextFormat | None = None,
    validation: Any = None,
    weights: Any = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    log: Log | None = None,
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
        Directory for the model.
    params
        As for `dismec.train`; by default with tf-idf.
    text
        Which terms of a text are features.
    fmt
        Names of the columns of a file or frame. The model keeps them, and they hold for whatever
        is read for it later.
    validation
        Other texts to choose delta and to calibrate on; each counts once.
    weights
        How much each text counts, as for `dismec.train`; by default what the ``weight_column`` of
        `fmt` holds, if there is one.
    threads, overwrite, progress, cluster, client
        As for `dismec.train`.
    log
        Called with a line now and then while texts are read.
    examples
        Whether the model keeps the beginnings of up to five training texts, which its server
        offers as examples. Leave it off if the texts are private.
    dense, validation_dense
        Dense features beside the texts, and beside those of `validation`: an array with a row for
        each text (``docs/tutorial/embeddings.md``).

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
        weights=weights,
        threads=threads,
        overwrite=overwrite,
        progress=progress,
        log=log,
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


def _names_of(texts: Texts) -> list[str]:
    names = sorted({name for batch in texts.read() for row in batch.labels for name in row})
    if not names:
        raise DataError(f"{texts.name}: no row has a label")
    return names


def learn(
    texts: Texts,
    params: TextParams,
    *,
    threads: int | None = None,
    log: Log | None = None,
) -> tuple[Vocabulary, list[str]]:
    """The vocabulary of texts, and the names of their labels in order."""
    builder = VocabularyBuilder(params, threads=threads)
    names: set[str] = set()
    n_rows = 0
    for batch in _logged(texts, "terms counted", log):
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
    if log:
        log(
            f"{counted(n_rows, 'text')}, {counted(len(vocabulary.terms), 'feature')}, "
            f"{counted(len(names), 'label')}"
        )
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
    return weighted_text_dataset(
        model, source, fmt=fmt, needs_labels=needs_labels, threads=threads
    )[0]


def weighted_text_dataset(
    model: Any,
    source: Any,
    *,
    fmt: TextFormat | None = None,
    needs_labels: bool = True,
    threads: int | None = None,
) -> tuple[Dataset, RowWeights | None]:
    """As `text_dataset`, with the weights of rows that the ``weight_column`` of `fmt` holds."""
    vocabulary = None if model.n_dense and not model.n_features else vocabulary_of(model)
    if isinstance(source, Texts) or is_frame(source):
        fmt = fmt or TextFormat.of_model(model.manifest.columns, "CSV")
    else:
        source = detect(source)
        fmt = fmt or TextFormat.of_model(model.manifest.columns, source.kind)
    texts = Texts.of(source, fmt, needs_labels=needs_labels)
    return weighted_rows(texts, vocabulary, model.label_numbers, threads=threads)


def vocabulary_of(model: Any) -> Vocabulary:
    """The vocabulary of a model of texts."""
    if model.vocabulary is None:
        raise DataError("the model was trained on numeric features, and the data are texts")
    return model.vocabulary  # type: ignore[no-any-return]


def vectorized(
    texts: Texts,
    vocabulary: Vocabulary | None,
    numbers: Mapping[str, int],
    *,
    threads: int | None = None,
) -> Dataset:
    """Texts as a dataset in memory, without a vocabulary one of no features.

    Names without a number get the next ones.
    """
    return weighted_rows(texts, vocabulary, numbers, threads=threads)[0]


def weighted_rows(
    texts: Texts,
    vocabulary: Vocabulary | None,
    numbers: Mapping[str, int],
    *,
    threads: int | None = None,
) -> tuple[Dataset, RowWeights | None]:
    """As `vectorized`, with the weights that texts have."""
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


@contextmanager
def _in_file(
    directory: Path, texts: Texts, request: Request, log: Log | None
) -> Iterator[tuple[Dataset, RowWeights | None, Path]]:
    """Texts as a dataset in a file, mapped into memory, and their weights."""
    vocabulary, names = request.vocabulary, request.names
    assert vocabulary is not None
    assert names is not None
    numbers = {name: number for number, name in enumerate(names)}
    begun = data_file(directory, secrets.token_hex(8))
    file = begun
    found: list[float] = []
    try:
        with XmcWriter(begun, len(vocabulary.terms)) as writer:
            for batch in _logged(texts, "features counted", log):
                try:
                    ids = [[numbers[name] for name in row] for row in batch.labels]
                except KeyError as error:
                    raise DataError(
                        f"{texts.name}: changed while it was read: label {error} is new"
                    ) from None
                writer.append(vocabulary.rows(batch.texts, threads=request.threads), ids)
                found.extend(batch.weights or ())
            weights = kept_rows(np.array(found) if found else None)[1]
            writer.finish(len(names), weights=weights)
        dataset = load_data(begun)
        file = data_file(directory, fingerprint(dataset.X, dataset.Y, weights))
        begun.replace(file)
        yield dataset, weights, file
    finally:
        begun.unlink(missing_ok=True)
        file.unlink(missing_ok=True)


def _logged(texts: Texts, what: str, log: Log | None) -> Iterator[TextBatch]:
    """The batches, with a line now and then on how far it is."""
    last = time.monotonic()
    for batch in texts.read():
        yield batch
        if log and time.monotonic() - last > _LOG_SECONDS:
            last = time.monotonic()
            log(f"{counted(batch.first_row + len(batch.texts), 'text')} read, their {what}")
