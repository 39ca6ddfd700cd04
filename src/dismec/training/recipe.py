"""Train a model from a request, in a directory or in memory, here or on a cluster.

1. Check the data, and state in a manifest what the model will be (`training.job`).
2. Lock the directory, and connect to the cluster (`training.running`).
3. Look for an earlier run of the same training to resume (`training.resume`).
4. On held-out rows, choose the parameters that are not fixed: C (`training.tuning`), then delta and
   probabilities (`training.trial`). Intermediate results are kept beside the model
   (`training.stages`).
5. With `refine`, find the likely labels of each row, and train a first stage
   (`training.refining`).
6. Solve block by block, saving each block as soon as it is done, and pack the blocks into shards
   (`training.running`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dismec.cpu import thread_count
from dismec.data.files import StrPath
from dismec.data.types import LabeledRows, LabelsLike, PairWeightsLike, RowsLike, WeightsLike
from dismec.model.directory import locked, make_directory
from dismec.model.manifest import Manifest
from dismec.model.model import Model
from dismec.model.opening import open_model
from dismec.model.replacing import install_replacement, replacement_folder
from dismec.training import resume
from dismec.training.job import Job
from dismec.training.params import TrainingParams
from dismec.training.placing import placed
from dismec.training.refining import Refining, record_held_out
from dismec.training.request import Progress, Request
from dismec.training.running import Workplace, run_in_memory, run_into, workplace
from dismec.training.stages import Stages
from dismec.training.trial import Trial

if TYPE_CHECKING:
    from dismec.features.vocabulary import Vocabulary
    from dismec.solve.costs import Costs

__all__ = ["Choose", "Settle", "fit", "train", "train_requested"]


# Choosing a parameter before anything else takes two steps. `Choose` gets the job and the rows to
# choose on, and returns the job that states how the choice will be made, and a `Settle` function.
# Once an earlier run has been looked for, `Settle` makes the choice or takes over that run's, and
# returns the job, the run to resume, and the progress callback for the remaining work.
Settle: TypeAlias = Callable[
    [Job, Manifest | None, Stages, Progress | None],
    tuple[Job, Manifest | None, Progress | None],
]
Choose: TypeAlias = Callable[[Job, tuple[Any, Any] | None], tuple[Job, Settle]]


def train_requested(request: Request, choose: Choose | None = None) -> Model:
    """Train the model of a request.

    Raises
    ------
    DataError
        If the data or the `validation` data are invalid.
    ModelError
        If the directory holds a finished or a different model and `overwrite` is not set.
    ClusterError
        If the cluster cannot be used.
    """
    threads = thread_count(request.threads)
    with placed(request, threads, chooses=choose is not None) as found:
        return _train_requested(found, choose, threads)


def _train_requested(request: Request, choose: Choose | None, threads: int) -> Model:
    job, given, settle = Job.prepare(request), request.validation, None
    if choose:
        job, settle = choose(job, given)
        given = given if request.params.holds_out else None
    trial = Trial.prepare(job, given)
    if request.params.refine:
        trial = trial._replace(job=record_held_out(trial.job))
    with _locked(request.path), workplace(request, threads) as place:
        path, earlier, progress = request.path, None, request.progress
        new = replacement_folder(path) if path and request.overwrite else None
        if new:
            path = new
            make_directory(path)
            earlier = resume.earlier_edit(path, trial.job, "training")
        elif path and not request.overwrite:
            earlier = resume.earlier_run(path, trial.job)
        if not (new and earlier and earlier.complete):
            trained = _train_stages(path, trial, settle, earlier, place, progress)
            if trained is not None:
                return trained
        assert request.path is not None
        if new:
            install_replacement(request.path)
    return open_model(request.path, check=False)


def _train_stages(
    path: Path | None,
    trial: Trial,
    settle: Settle | None,
    earlier: Manifest | None,
    place: Workplace,
    progress: Progress | None,
) -> Model | None:
    """Run steps 4 to 6; return the model if there is no directory to write it to."""
    stages = Stages(path, replace(place, source=None))
    if settle:
        job, earlier, progress = settle(trial.job, earlier, stages, progress)
        trial = trial._replace(job=job)
    job, earlier, progress = trial.outcome(stages, earlier, progress)
    if job.params.refine:
        job, earlier, progress = Refining.prepare(job, stages).outcome(earlier, progress)
        place = place if job.informed is None else stages.place
    if path is None:
        return run_in_memory(job, place, progress)
    run_into(path, job, earlier, place, progress)
    return None


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
    client: Any = None,
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
        Rows for choosing ``delta="auto"`` and learning probabilities. By default a tenth of the
        training rows is held out.
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
        Called periodically as ``progress(labels_done, labels_total)``. If rows are held out, labels
        are trained twice and count twice.
    cluster : Dask client or str, default=None
        Dask cluster to train on: a client, a scheduler address or a scheduler file
        (``docs/howto/cluster.md``).
    source : str or path-like, default=None
        The ``.xmc`` file that X and Y were loaded from. Cluster workers that can read this file are
        not sent the data.
    vocabulary : Vocabulary, default=None
        The vocabulary that was used to make X from texts. It is stored in the model.
    client
        Former name of `cluster`.

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
    return train_requested(
        Request(
            X,
            Y,
            params or TrainingParams(),
            Path(path),
            names=names,
            validation=validation,
            weights=weights,
            pair_weights=pair_weights,
            vocabulary=vocabulary,
            source=source,
            threads=threads,
            overwrite=overwrite,
            progress=progress,
            cluster=client if cluster is None else cluster,
        )
    )


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
) -> Model:
    """Train a model in memory; parameters as for `train`.

    `costs` are factors of the losses of each label's positive and negative rows. On a cluster, the
    model is trained in a temporary directory and memory-mapped from there.
    """
    return train_requested(
        Request(
            X,
            Y,
            params or TrainingParams(),
            names=names,
            validation=validation,
            weights=weights,
            pair_weights=pair_weights,
            costs=costs,
            vocabulary=vocabulary,
            threads=threads,
            progress=progress,
            cluster=cluster,
        )
    )
