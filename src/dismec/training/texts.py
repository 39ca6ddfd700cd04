"""Train models on texts with label names; a file is read in batches, twice."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dismec.data.binary import XmcWriter
from dismec.data.corpus import TextBatch, TextFormat
from dismec.data.counts import counted
from dismec.data.dataset import Dataset, fingerprint, load_data
from dismec.data.files import StrPath
from dismec.data.mixed import mixed_rows
from dismec.data.pair_weights import PairWeights, find_pairs, known_labels, pairs_at
from dismec.data.row_weights import kept_rows
from dismec.data.types import MatrixLike, PairWeightsLike, TextSource, WeightsLike
from dismec.errors import DataError
from dismec.features.vocabulary import TextParams, Vocabulary, VocabularyBuilder
from dismec.model.directory import data_file, make_directory
from dismec.model.model import Model
from dismec.training.examples import example_texts
from dismec.training.params import TrainingParams
from dismec.training.recipe import train_requested
from dismec.training.request import Progress, Request
from dismec.training.resume import check_output
from dismec.training.text_datasets import (
    text_dataset,
    vectorized,
    vocabulary_of,
    weighted_rows,
    weighted_text_dataset,
)
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
    """A request to train on texts; the fields are the parameters of `train_text`."""

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
    pair_weights: Any = None
    dense: Any = None
    validation_dense: Any = None
    dense_only: bool = False  # use only the labels of the texts

    @contextmanager
    def as_rows(self) -> Iterator[Request]:
        """Yield the request for the rows of the texts.

        For a model directory, the rows are in a file there, which exists only within the context.
        """
        texts = Texts.of(self.source, self.fmt).weighted(self.weights)
        validation = None
        if self.validation is not None:  # its rows all count once
            fmt = None if self.fmt is None else replace(self.fmt, weight_column=None)
            validation = Texts.of(self.validation, fmt)
            next(iter(validation.read()), None)  # fail before hours of work if it cannot be read
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
            validation=judge and (_with_dense(judge.X, self.validation_dense), judge.Y),
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
            X, pairs = _with_dense(dataset.X, self.dense), self._pairs(dataset, names)
            yield replace(request, X=X, Y=dataset.Y, weights=weights, pair_weights=pairs)
            return
        make_directory(directory)
        with _rows_in_file(directory, texts, request, self._pairs, self.log) as (
            dataset,
            weighed,
            file,
        ):
            X = _with_dense(dataset.X, self.dense)
            yield replace(request, X=X, Y=dataset.Y, source=file, **weighed)

    def _pairs(self, dataset: Dataset, names: Sequence[str]) -> PairWeights | None:
        """Return the pair weights of the texts that count; they are given for all texts."""
        if self.pair_weights is None:
            return None
        counting = Texts.of(self.source, self.fmt).which_count(self.weights)
        n_rows = dataset.Y.shape[0] if counting is None else len(counting)
        pairs = find_pairs(self.pair_weights, (n_rows, len(names)), names)
        return pairs_at(pairs, None if counting is None else np.flatnonzero(counting))


def train_text(
    source: TextSource | Texts,
    path: StrPath,
    params: TrainingParams | None = None,
    text: TextParams | None = None,
    *,
    fmt: TextFormat | None = None,
    validation: TextSource | Texts | None = None,
    weights: WeightsLike | None = None,
    pair_weights: PairWeightsLike | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    log: Log | None = None,
    cluster: Any = None,
    client: Any = None,
    examples: bool = False,
    dense: MatrixLike | None = None,
    validation_dense: MatrixLike | None = None,
) -> Model:
    r"""Train a model on texts and write it to a directory.

    An interrupted run with the same data and parameters is resumed.

    Parameters
    ----------
    source : str, path-like, frame or Texts
        Texts with their labels: a file as `read_texts` reads it, which may be larger than memory,
        or a frame of pandas, polars, pyarrow or Hugging Face datasets.
    path : str or path-like
        The model directory; it is created if it does not exist.
    params : TrainingParams, default=None
        Training parameters. By default those of `TrainingParams`, with tf-idf.
    text : TextParams, default=None
        The terms of a text that become features.
    fmt : TextFormat, default=None
        Column names of a file or frame. They are stored in the model, for reading further files.
    validation : str, path-like, frame or Texts, default=None
        Texts for choosing ``delta="auto"`` and learning probabilities. By default a tenth of the
        training texts is held out.
    weights : array-like of shape (n_texts,), default=None
        Text weights, at least 0. By default the ``weight_column`` of `fmt`, if there is one;
        otherwise all texts have the same weight.
    pair_weights : sparse matrix of shape (n_texts, n_labels), or path of a file, default=None
        Weights of single (text, label) pairs, as for `dismec.train`. The columns of a matrix are
        the labels in the order of their names; a file names them.
    threads : int, default=None
        Number of threads. By default all available CPUs.
    overwrite : bool, default=False
        Whether to overwrite a model in the directory.
    progress : callable, default=None
        Called periodically as ``progress(labels_done, labels_total)``.
    log : callable, default=None
        Called periodically with a line of text while texts are read.
    cluster : Dask client or str, default=None
        Dask cluster to train on: a client, a scheduler address or a scheduler file.
    client
        Former name of `cluster`.
    examples : bool, default=False
        Whether to store the beginnings of up to five training texts in the model, which its server
        shows as examples. Leave this off if the texts are private.
    dense, validation_dense : array-like of shape (n_texts, width), default=None
        Dense features, such as embeddings, of the texts and of the `validation` texts
        (``docs/tutorial/embeddings.md``).

    Returns
    -------
    Model
        The trained model, with its vocabulary and the names of its labels.

    Raises
    ------
    DataError
        If the texts cannot be read: ``file:line: reason``.
    ModelError
        If the directory holds another model, or a finished one, and `overwrite` is False.
    ClusterError
        If the cluster cannot be used.

    Examples
    --------
    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from dismec import train_text
    >>> rows = [("boil the egg", ["egg"]), ("fry the egg", ["egg"]), ("bake the bread", ["bread"])]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "recipes.jsonl"
    ...     lines = [json.dumps({"text": text, "labels": labels}) for text, labels in rows]
    ...     _ = file.write_text("\n".join(lines))
    ...     model = train_text(file, Path(folder) / "model")
    ...     model.predict(["a fried egg"])
    [('egg',)]
    """
    request = TextRequest(
        source,
        params,
        path,
        text=text,
        fmt=fmt,
        validation=validation,
        weights=weights,
        pair_weights=pair_weights,
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
        return train_requested(rows)


def _with_dense(X: Any, dense: Any) -> Any:
    """Return the rows of texts, with dense features beside them if there are any."""
    return X if dense is None else mixed_rows(X, dense)


def _names_of(texts: Texts) -> list[str]:
    """Return the sorted label names of texts."""
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
    """Learn the vocabulary of texts, and collect their label names in order."""
    builder = VocabularyBuilder(params, threads=threads)
    names: set[str] = set()
    n_rows = 0
    for batch in _logged(texts, "terms counted", log):
        builder.add(batch.texts)
        names.update(name for row in batch.labels for name in row)
        n_rows += len(batch.texts)
    if not n_rows:
        raise DataError(f"{texts.name}: no rows to train on")
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


@contextmanager
def _rows_in_file(
    directory: Path,
    texts: Texts,
    request: Request,
    pairs_of: Callable[[Dataset, Sequence[str]], PairWeights | None],
    log: Log | None,
) -> Iterator[tuple[Dataset, dict[str, Any], Path]]:
    """Write texts to a dataset file; yield it memory-mapped, and the weights of a `Request`."""
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
                        f"{texts.name}: changed while being read: label {error} is new"
                    ) from None
                writer.append(vocabulary.rows(batch.texts, threads=request.threads), ids)
                found.extend(batch.weights or ())
            weights = kept_rows(np.array(found) if found else None)[1]
            writer.finish(len(names), weights=weights)
        dataset = load_data(begun)
        # A training takes a file of this name as its own.
        pairs = pairs_of(dataset, names)
        known = known_labels(dataset.Y, pairs)
        file = data_file(directory, fingerprint(dataset.X, known, weights, pairs))
        begun.replace(file)
        yield dataset, {"weights": weights, "pair_weights": pairs}, file
    finally:
        begun.unlink(missing_ok=True)
        file.unlink(missing_ok=True)


def _logged(texts: Texts, what: str, log: Log | None) -> Iterator[TextBatch]:
    """Yield the batches, and log how many texts have been read from time to time."""
    last = time.monotonic()
    for batch in texts.read():
        yield batch
        if log and time.monotonic() - last > _LOG_SECONDS:
            last = time.monotonic()
            log(f"{counted(batch.first_row + len(batch.texts), 'text')} read, {what}")
