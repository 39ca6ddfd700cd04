"""Train a model on data, in a directory or in memory, here or on a cluster.

1. Check the data, and state in a manifest what the model will be (`training.job`).
2. Lock the directory, and connect to the cluster (`training.execute`).
3. Look for an earlier run of the same training to resume (`training.resume`).
4. Run the stages that the parameters need: choose C (`training.choose_c`), then learn delta and
   probabilities (`training.held_out`), then refine (`training.refine`). Each is given a job and
   returns the job that remains; a `Store` keeps its results beside the model.
5. Solve block by block, saving each block as soon as it is done, and pack the blocks into shards
   (`training.execute`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dismec.cpu import thread_count
from dismec.data.corpus import Texts
from dismec.data.files import StrPath
from dismec.data.training_file import TrainingData
from dismec.data.types import (
    LabeledRows,
    LabelsLike,
    MatrixLike,
    PairWeightsLike,
    RowsLike,
    TextSource,
    WeightsLike,
)
from dismec.errors import DataError
from dismec.model.atomic_replace import install_replacement, replacement_folder
from dismec.model.directory import locked, make_directory
from dismec.model.model import Model
from dismec.model.opening import open_model
from dismec.training import resume
from dismec.training.choose_c import ChoiceOfC, ChoiceOfScale
from dismec.training.choose_terms import refines, texts_with_best_terms
from dismec.training.execute import (
    Executor,
    Store,
    on_workers,
    opened_executor,
    run_in_memory,
    run_into,
)
from dismec.training.held_out import Trial
from dismec.training.job import Job
from dismec.training.params import Progress, TrainingParams, TrainOptions
from dismec.training.refine import Refining
from dismec.training.split import Validation

if TYPE_CHECKING:
    from dismec.data.text_format import TextFormat
    from dismec.features.label_texts import LabelTextsLike
    from dismec.features.text_rows import Log
    from dismec.features.vocabulary import TextParams, Vocabulary
    from dismec.solve.costs import Costs


_ENOUGH_ROWS = 1000  # with fewer, the scale of embeddings is not chosen


class Stage(Protocol):
    """Something that is learned before the model itself is trained."""

    def stated(self, job: Job) -> Job:
        """Return the job whose manifest states how it will be learned; check that it can be."""
        ...

    def run(self, job: Job, store: Store) -> Job:
        """Learn it, or take it over from an earlier run, and return the job that remains."""
        ...


def train_on(data: TrainingData, options: TrainOptions) -> Model:
    """Train a model on data.

    Raises `DataError` if the data or the `validation` data are invalid; `ModelError` if the
    directory holds a finished or a different model and `overwrite` is not set; `ClusterError` if
    the cluster cannot be used.
    """
    threads = thread_count(options.threads)
    params = options.params.expanded
    params = replace(params, refine=params.refine and refines(options.terms_table))
    options = replace(options, params=params)
    with on_workers(data, options, threads) as (data, options):
        job = Job.prepare(data, options)
        stages = _stages(job, options)
        for stage in stages:
            job = stage.stated(job)
        with _locked(options.path), opened_executor(options.cluster, threads) as executor:
            return _run(job, stages, options, executor)


def _stages(job: Job, options: TrainOptions) -> list[Stage]:
    """Return the stages that the parameters need, in order."""
    params, given = job.params, options.validation
    stages: list[Stage] = []
    tries = params.holds_out or job.matches is not None
    encodes = job.parts.vocabulary is not None and job.parts.vocabulary.encoder is not None
    enough = job.problem.n_rows >= _ENOUGH_ROWS and job.problem.n_labels > 1
    chooses_scale = encodes and enough and options.params.dense_scale is None
    if params.chooses_C or tries or chooses_scale:
        validation = Validation.prepare(job, given)
        stages += [ChoiceOfScale(validation)] if chooses_scale else []
        stages += [ChoiceOfC(validation)] if params.chooses_C else []
        stages += [Trial(validation)] if tries else []
    elif given is not None and params.refine:
        raise DataError(
            "validation data is not supported with refine, which holds out training rows"
        )
    elif given is not None:
        raise DataError(
            'validation data is used only with C="auto", delta="auto" or calibrate=True, '
            f"but delta is {params.delta}"
        )
    return [*stages, Refining()] if params.refine else stages


def _run(job: Job, stages: Sequence[Stage], options: TrainOptions, executor: Executor) -> Model:
    """Run the stages, and train the model; the directory is locked."""
    path, earlier = options.path, None
    new = replacement_folder(path) if path and options.overwrite else None
    if new:
        path = new
        make_directory(path)
        earlier = resume.earlier_edit(path, job, "training")
    elif path and not options.overwrite:
        earlier = resume.earlier_run(path, job)
    if not (new and earlier and earlier.complete):
        store = Store(path, executor, earlier, options.progress)
        for stage in stages:
            job = stage.run(job, store)
        if path is None:
            return run_in_memory(job, executor, store.progress)
        run_into(path, job, store.earlier, executor, store.progress)
    assert options.path is not None
    if new:
        install_replacement(options.path)
    return open_model(options.path, check=False)


@contextmanager
def _locked(directory: Path | None) -> Iterator[None]:
    """Lock the directory, if there is one."""
    if directory is None:
        yield
        return
    make_directory(directory)
    with locked(directory):
        yield


def train(
    X: RowsLike | StrPath,
    Y: LabelsLike | None,
    path: StrPath,
    params: TrainingParams | None = None,
    *,
    names: Sequence[str] | None = None,
    validation: LabeledRows | None = None,
    weights: WeightsLike | None = None,
    pair_weights: PairWeightsLike | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    cluster: Any = None,
    source: StrPath | None = None,
    vocabulary: Vocabulary | None = None,
) -> Model:
    """Train a model and write it to a directory.

    An interrupted run with the same data and parameters is resumed: a killed run loses at most the
    blocks of labels that it was working on. The weights of a resumed model are byte for byte those
    of an uninterrupted run on the same instruction set.

    Parameters
    ----------
    X : matrix of shape (n_rows, n_features)
        Sparse, dense or a frame; a CSR matrix of float32 is not copied. For dense features, such as
        embeddings, a list ``[X, E]`` of a matrix and an array of shape (n_rows, width), or ``[E]``.
        With `cluster` also data on its workers: Dask arrays, a Dask bag of rows, or the path of a
        file (``docs/howto/cluster.md``).
    Y : indicator matrix of shape (n_rows, n_labels), or lists of labels
        Sparse, dense or a frame, or a list or set of labels for each row. A Dask array if X is one;
        None if X is a bag or a file, which hold the labels.
    path : str or path-like
        The model directory; it is created if it does not exist.
    params : TrainingParams, default=None
        Training parameters. By default those of `TrainingParams`.
    names : sequence of str, default=None
        Label names. By default the columns of Y if it is a frame, or the labels in its lists.
    validation : tuple of X and Y, default=None
        Rows for choosing ``C="auto"`` and ``delta="auto"`` and learning probabilities. By default a
        tenth of the training rows is held out.
    weights : array-like of shape (n_rows,), default=None
        Row weights, at least 0, that multiply the losses. Rows of weight 0 are ignored. Metrics on
        held-out rows are weighted, too. Not supported with ``penalty="l1"``.
    pair_weights : sparse matrix of shape (n_rows, n_labels), or path of a file, default=None
        Weights of single (row, label) pairs, at least 0, as the stored entries of the matrix. They
        multiply the row weights. With a stored 0, the row is neither positive nor negative for this
        label. Pairs that are not stored have weight 1. Not supported with ``penalty="l1"`` or
        `refine`.
    threads : int, default=None
        Number of threads. By default all available CPUs.
    overwrite : bool, default=False
        Whether to overwrite a model in the directory. A finished model remains usable until the new
        one is finished, and is then replaced in one step.
    progress : callable, default=None
        Called periodically as ``progress(labels_done, labels_total)``. If other things are learned
        first, `labels_done` is the share of all work that is done, times the number of labels.
    cluster : Dask client or str, default=None
        Dask cluster to train on: a client, a scheduler address or a scheduler file
        (``docs/howto/cluster.md``).
    source : str or path-like, default=None
        The ``.xmc`` file that X and Y were loaded from. Cluster workers that can read this file are
        not sent the data.
    vocabulary : Vocabulary, default=None
        The vocabulary that was used to make X from texts. It is stored in the model.

    Returns
    -------
    Model
        The trained model, opened from the directory.

    Raises
    ------
    DataError
        If X, Y or the `validation` data are invalid.
    ModelError
        If the directory holds another model, or a finished one, and `overwrite` is False.
    ClusterError
        If the cluster cannot be used.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dismec import train
    >>> X = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> Y = np.array([[1, 0], [1, 0], [0, 1], [0, 1]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = train(X, Y, folder + "/model")
    ...     model.predict_topk(X, k=1)[0].ravel().tolist()
    [0, 0, 1, 1]
    """
    given = Counter(str(name).strip() for name in (() if names is None else names))
    for name, times in given.items():
        if times > 1 or not name or "\n" in name:
            raise DataError(f"names: {name[:80]!r} occurs twice, is empty or has a line break")
    data = TrainingData(X, Y, weights, pair_weights, names, source)
    options = TrainOptions(
        params or TrainingParams(),
        Path(path),
        validation,
        vocabulary=vocabulary,
        threads=threads,
        overwrite=overwrite,
        progress=progress,
        cluster=cluster,
    )
    return train_on(data, options)


def fit(
    X: Any,
    Y: Any,
    params: TrainingParams | None = None,
    *,
    names: Sequence[str] | None = None,
    validation: tuple[Any, Any] | None = None,
    weights: Any = None,
    pair_weights: Any = None,
    costs: Costs | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    cluster: Any = None,
    vocabulary: Vocabulary | None = None,
    terms_table: tuple[Mapping[str, Any], ...] = (),
    label_texts: Sequence[str] | None = None,
    n_described: int = 0,
) -> Model:
    """Train a model in memory; parameters as for `train`.

    `costs` are factors of the losses of each label's positive and negative rows. The last
    `n_described` rows are `label_texts`. On a cluster, the model is mapped from a temporary folder.
    """
    options = TrainOptions(
        params or TrainingParams(),
        validation=validation,
        costs=costs,
        vocabulary=vocabulary,
        label_texts=label_texts,
        terms_table=terms_table,
        threads=threads,
        progress=progress,
        cluster=cluster,
    )
    data = TrainingData(X, Y, weights, pair_weights, names, n_described=n_described)
    return train_on(data, options)


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
    examples: bool = False,
    dense: MatrixLike | None = None,
    validation_dense: MatrixLike | None = None,
    label_texts: LabelTextsLike | None = None,
    encoder: StrPath | None = None,
) -> Model:
    r"""Train a model on texts and write it to a directory.

    An interrupted run with the same data and parameters is resumed.

    Parameters
    ----------
    source : str, path-like, frame or Texts
        Texts with their labels: a file as `read_texts` reads it, which may be larger than memory,
        or a frame of pandas, polars, pyarrow or Hugging Face datasets.
    path, threads, overwrite, progress, cluster
        As for `train`.
    params : TrainingParams, default=None
        Training parameters. By default those of `TrainingParams`, with tf-idf.
    text : TextParams, default=None
        The terms of a text that become features.
    fmt : TextFormat, default=None
        Column names of a file or frame. They are stored in the model, for reading further files.
    validation : str, path-like, frame or Texts, default=None
        Texts for choosing ``C="auto"`` and ``delta="auto"`` and learning probabilities. By default
        a tenth of the training texts is held out.
    weights : array-like of shape (n_texts,), default=None
        Text weights, at least 0. By default the ``weight_column`` of `fmt`, if there is one;
        otherwise all texts have the same weight.
    pair_weights : sparse matrix of shape (n_texts, n_labels), or path of a file, default=None
        Weights of single (text, label) pairs, as for `train`. The columns of a matrix are
        the labels in the order of their names; a file names them.
    log : callable, default=None
        Called periodically with a line of text while texts are read.
    examples : bool, default=False
        Whether to store the beginnings of up to five training texts in the model, which its server
        shows as examples. Leave this off if the texts are private.
    dense, validation_dense : array-like of shape (n_texts, width), default=None
        Dense features, such as embeddings, of the texts and of the `validation` texts
        (``docs/tutorial/embeddings.md``).
    label_texts : dict of str to str, path or True, default=None
        Texts that describe labels, by name, or a file of them (``docs/howto/label-texts.md``). True
        stands for the labels' own names. Labels that no text has become part of the model, too.
    encoder : str or path-like, default=None
        A sentence encoder whose embeddings become dense features: a name in the local cache of
        sentence-transformers, or a folder. The model encodes texts with it from then on.

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
    options = TrainOptions(
        params or TrainingParams(tfidf=True),
        Path(path),
        threads=threads,
        overwrite=overwrite,
        progress=progress,
        cluster=cluster,
    )
    with texts_with_best_terms(
        source,
        options,
        text,
        fmt=fmt,
        validation=validation,
        weights=weights,
        pair_weights=pair_weights,
        log=log,
        examples=examples,
        dense=dense,
        validation_dense=validation_dense,
        label_texts=label_texts,
        encoder=encoder,
    ) as (data, options):
        return train_on(data, options)
