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
    X: Any,
    Y: Any,
    path: StrPath,
    params: TrainingParams | None = None,
    *,
    names: Sequence[str] | None = None,
    validation: tuple[Any, Any] | None = None,
    weights: Any = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    cluster: Any = None,
    source: StrPath | None = None,
    vocabulary: Vocabulary | None = None,
    client: Any = None,
) -> Model:
    """Train a model into a directory, or go on where an earlier run of the same training stopped.

    Every finished block is on the disk before it counts as done: a run that is killed loses at most
    the blocks in flight, and the weights of the resumed model are byte for byte those that an
    undisturbed run writes on the same instruction set.

    Parameters
    ----------
    X
        (n_rows, n_features) sparse, dense or a frame; CSR float32 is used in place. Or a list
        ``[X, E]`` with dense features beside these, or ``[E]`` with dense ones alone: E is an
        array (n_rows, width) of floats, and float32 is used in place. With a
        `cluster` also data that its workers have: Dask arrays, a Dask bag of rows, or the path
        of a file that they see (``docs/howto/cluster.md``).
    Y
        (n_rows, n_labels) indicator, sparse, dense or a frame; or for each row a list or set of
        labels; a Dask array if X is one, and None if X has the labels, as a bag or a file has.
    path
        The model directory; it is created if it does not exist.
    params
        Defaults as in `TrainingParams`.
    names
        One name per label; by default the columns of Y if that is a frame, or the labels in lists.
    validation
        X and Y to choose `delta="auto"` and to calibrate on, instead of a tenth of the rows held
        out for this.
    weights
        How much each row counts, one number of at least 0 per row: a factor of its losses. A row of
        weight 0 is left out, weights that are all 2 are the same as twice the C. Metrics on rows
        held out are weighted likewise. Not with ``penalty="l1"``.
    threads
        All available CPUs by default.
    overwrite
        Replace a model that is there, finished or not. A finished one can be opened until the new
        one is finished, and is then replaced in one step.
    progress
        Called now and then with (labels done, labels in all); each label counts twice if rows are
        held out, as it is then trained twice.
    cluster
        Where to train instead of here (``docs/howto/cluster.md``): a Dask client, or the address or
        scheduler file of a cluster.
    source
        The ``.xmc`` file that X and Y were loaded from, if there is one: workers of a cluster that
        see it there need not be sent the data.
    vocabulary
        What has made X from texts; it becomes part of the model.
    client
        The former name of `cluster`.

    Returns
    -------
    Model
        The finished model, opened from the directory.

    Raises
    ------
    DataError
        If X and Y, or those of `validation`, cannot be used.
    ModelError
        If the directory holds a finished or a different model and `overwrite` is not set.
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
            costs=costs,
            vocabulary=vocabulary,
            threads=threads,
            progress=progress,
            cluster=cluster,
        )
    )
