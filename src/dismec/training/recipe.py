"""The recipe: a request → a model, in a directory or in memory, here or on a cluster.

1. Check the data, and state in a manifest what the model will be (`training.job`).
2. Lock the directory, and connect to the cluster (`training.running`).
3. Look for an earlier run of the same training to go on from (`training.resume`).
4. Settle what the parameters leave open on rows that are held out: C (`training.tuning`), then
   delta and probabilities (`training.trial`). What is done for this is kept beside the model
   (`training.stages`).
5. With `refine`, find the labels that are likely for each row, and train a first stage
   (`training.refining`).
6. Solve block by block and keep each block as soon as it is done; pack them into the shards of the
   model (`training.running`).
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
from dismec.model.replacing import move_in, replaces
from dismec.training import resume
from dismec.training.job import Job
from dismec.training.params import TrainingParams
from dismec.training.placing import placed
from dismec.training.refining import Refining, stated
from dismec.training.request import Progress, Request
from dismec.training.running import Workplace, run_in_memory, run_into, workplace
from dismec.training.stages import Stages
from dismec.training.trial import Trial

if TYPE_CHECKING:
    from dismec.features.vocabulary import Vocabulary
    from dismec.solve.costs import Costs

__all__ = ["Choose", "Settle", "carry_out", "fit", "train"]


# Chooses a parameter before anything else is settled. First it is given the job and the rows to
# choose on, and returns the job that states how it will be chosen, and a function. That is called
# once an earlier run has been looked for, and makes the choice or takes over that run's; it returns
# the job, the run to go on from, and the progress of what is left.
Settle: TypeAlias = Callable[
    [Job, Manifest | None, Stages, Progress | None],
    tuple[Job, Manifest | None, Progress | None],
]
Choose: TypeAlias = Callable[[Job, tuple[Any, Any] | None], tuple[Job, Settle]]


def carry_out(request: Request, choose: Choose | None = None) -> Model:
    """Train what is requested.

    Raises
    ------
    DataError
        If the data, or those of `validation`, cannot be used.
    ModelError
        If the directory holds a finished or a different model and `overwrite` is not set.
    ClusterError
        If the cluster cannot be used.
    """
    threads = thread_count(request.threads)
    with placed(request, threads, chooses=choose is not None) as found:
        return _carry_out(found, choose, threads)


def _carry_out(request: Request, choose: Choose | None, threads: int) -> Model:
    job, given, settle = Job.prepare(request), request.validation, None
    if choose:
        job, settle = choose(job, given)
        given = given if request.params.holds_out else None
    trial = Trial.prepare(job, given)
    if request.params.refine:
        trial = trial._replace(job=stated(trial.job))
    with _locked(request.path), workplace(request, threads) as place:
        path, earlier, progress = request.path, None, request.progress
        new = replaces(path) if path and request.overwrite else None
        if new:
            path = new
            make_directory(path)
            earlier = resume.earlier_edit(path, trial.job, "training")
        elif path and not request.overwrite:
            earlier = resume.earlier_run(path, trial.job)
        if not (new and earlier and earlier.complete):
            trained = _carry_on(path, trial, settle, earlier, place, progress)
            if trained is not None:
                return trained
        assert request.path is not None
        if new:
            move_in(request.path)
    return open_model(request.path, check=False)


def _carry_on(
    path: Path | None,
    trial: Trial,
    settle: Settle | None,
    earlier: Manifest | None,
    place: Workplace,
    progress: Progress | None,
) -> Model | None:
    """Steps 4 to 6, into a directory; without one the model is returned."""
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
    """Keep others out of the directory, if there is one."""
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

    If an earlier run of the same training was stopped, it is continued: a run that is killed loses
    at most the blocks of labels that it was working on. The weights of the resumed model are byte
    for byte those of an undisturbed run on the same instruction set.

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
        Parameters of the training. By default those of `TrainingParams`.
    names : sequence of str, default=None
        The names of the labels. By default the columns of Y if that is a frame, or the labels in
        lists.
    validation : tuple of X and Y, default=None
        Other rows on which ``delta="auto"`` is chosen and probabilities are learned. By default a
        tenth of the rows is held out for this.
    weights : array-like of shape (n_rows,), default=None
        How much each row counts: numbers of at least 0, by which its losses are multiplied. Rows of
        weight 0 are left out. Metrics on rows held out are weighted, too. Cannot be used with
        ``penalty="l1"``.
    pair_weights : sparse matrix of shape (n_rows, n_labels), or path of a file, default=None
        How much single pairs of a row and a label count, on top of `weights`: the stored entries,
        numbers of at least 0. A stored 0 leaves the row out for this label, as neither positive nor
        negative. All other pairs count once. Cannot be used with ``penalty="l1"`` or `refine`.
    threads : int, default=None
        Number of threads. By default all available CPUs.
    overwrite : bool, default=False
        Whether to replace a model that is in the directory. A finished model can be used until the
        new one is finished, and is then replaced in one step.
    progress : callable, default=None
        Called now and then as ``progress(labels_done, labels_in_all)``. Labels count twice if rows
        are held out, as they are then trained twice.
    cluster : Dask client or str, default=None
        Where to train instead of here: a client, or the address or scheduler file of a cluster
        (``docs/howto/cluster.md``).
    source : str or path-like, default=None
        The ``.xmc`` file that X and Y were loaded from. Workers of a cluster that can read it there
        need not be sent the data.
    vocabulary : Vocabulary, default=None
        The vocabulary that has made X from texts. It becomes part of the model.
    client
        The former name of `cluster`.

    Returns
    -------
    Model
        The trained model, opened from the directory.

    Raises
    ------
    DataError
        If X and Y, or those of `validation`, cannot be used.
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
    return carry_out(
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

    `costs` are factors of the losses of each label's rows, positive and negative. On a cluster the
    model is trained in a temporary directory, and mapped from there.
    """
    return carry_out(
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
