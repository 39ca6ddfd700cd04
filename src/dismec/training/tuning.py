"""Choose the C that ranks the labels of held-out rows best, and train with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dismec.data.corpus import TextFormat
from dismec.data.counts import counted
from dismec.data.files import StrPath
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
from dismec.features.vocabulary import TextParams, Vocabulary
from dismec.model.manifest import Manifest
from dismec.model.model import Model
from dismec.training.grid import KINDS, GridTrials, Row
from dismec.training.job import Job
from dismec.training.params import TrainingParams
from dismec.training.recipe import Settle, train_requested
from dismec.training.request import Progress, Request, part_of
from dismec.training.resume import known_C
from dismec.training.stages import Stages
from dismec.training.text_source import Texts
from dismec.training.texts import Log, TextRequest
from dismec.training.trial import Validation

__all__ = ["GRID", "METRIC", "ChoiceOfC", "Tuned", "pick", "tune", "tune_text"]

GRID = (0.25, 0.5, 1.0, 2.0)
METRIC = "nDCG@5"
_DEPTHS = (1, 3, 5)
_MOST_DEPTH = 100


@dataclass(frozen=True, eq=False)
class Tuned:
    """A model and how its C was chosen.

    Attributes
    ----------
    model : Model
        The model, trained on all rows with the best C.
    C : float
        The best C.
    metric : str
        The metric used to choose C.
    table : list of dict
        A row for each C, ascending: ``{"C": …, "P@1": …, "nDCG@1": …, "PSP@1": …, "weights": …,
        "seconds": …}``, with metrics in percent on the held-out rows, and the CPU seconds that the
        trial took.
    """

    model: Model
    C: float
    metric: str
    table: list[Row]


def tune(
    X: RowsLike | StrPath,
    Y: LabelsLike | None,
    path: StrPath,
    grid: Sequence[float] = GRID,
    params: TrainingParams | None = None,
    *,
    metric: str = METRIC,
    validation: LabeledRows | None = None,
    weights: WeightsLike | None = None,
    pair_weights: PairWeightsLike | None = None,
    names: Sequence[str] | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    cluster: Any = None,
    source: StrPath | None = None,
    vocabulary: Vocabulary | None = None,
    client: Any = None,
) -> Tuned:
    """Choose the best C on held-out rows, and train a model with it on all rows.

    The weights are byte for byte those of `dismec.train` with this C. Ties go to the smallest C. An
    interrupted run is resumed.

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
    grid : sequence of float, default=(0.25, 0.5, 1.0, 2.0)
        The values of C to try, in any order; at least two.
    params : TrainingParams, default=None
        Training parameters, except C. If delta is "auto", it is chosen after C.
    metric : str, default="nDCG@5"
        Metric by which C is chosen: "P@k", "nDCG@k" or "PSP@k" with a number for k.
    validation : tuple of X and Y, default=None
        Rows to choose on. By default a tenth of the training rows is held out.
    weights : array-like of shape (n_rows,), default=None
        Row weights, at least 0, that multiply the losses. Rows of weight 0 are ignored. Metrics on
        held-out rows are weighted, too. Not supported with ``penalty="l1"``.
    pair_weights : sparse matrix of shape (n_rows, n_labels), or path of a file, default=None
        Weights of single (row, label) pairs, as for `dismec.train`. Metrics on held-out rows do not
        use them, except that labels of weight 0 do not count as true there.
    names : sequence of str, default=None
        Label names. By default the columns of Y if it is a frame, or the labels in its lists.
    threads : int, default=None
        Number of threads. By default all available CPUs.
    overwrite : bool, default=False
        Whether to overwrite a model in the directory.
    progress : callable, default=None
        Called periodically as ``progress(labels_done, labels_total)``. A label counts once for
        each training run.
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
    Tuned
        The model, the chosen C, and the metrics of each C.

    Raises
    ------
    DataError
        If the grid, the metric or the data are invalid.
    ModelError
        If the directory holds another model, or a finished one, and `overwrite` is False.
    ClusterError
        If the cluster cannot be used.

    Examples
    --------
    >>> import tempfile
    >>> from dismec import generate, tune
    >>> data, _ = generate(rows=200, features=50, labels=5, seed=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = tune(data.X, data.Y, folder + "/model", grid=[0.5, 1.0])
    >>> [row["C"] for row in found.table]
    [0.5, 1.0]
    >>> found.C in (0.5, 1.0)
    True
    """
    request = Request(
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
    return ChoiceOfC.of(grid, metric).carried_out(request)


def tune_text(
    source: TextSource | Texts,
    path: StrPath,
    grid: Sequence[float] = GRID,
    params: TrainingParams | None = None,
    text: TextParams | None = None,
    *,
    metric: str = METRIC,
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
    dense: MatrixLike | None = None,
    validation_dense: MatrixLike | None = None,
) -> Tuned:
    r"""Choose the best C on held-out texts, and train a model with it on all texts.

    Parameters
    ----------
    source : str, path-like, frame or Texts
        Texts with their labels: a file as `read_texts` reads it, which may be larger than memory,
        or a frame of pandas, polars, pyarrow or Hugging Face datasets.
    path : str or path-like
        The model directory; it is created if it does not exist.
    grid : sequence of float, default=(0.25, 0.5, 1.0, 2.0)
        The values of C to try, in any order; at least two.
    params : TrainingParams, default=None
        Training parameters, except C. By default those of `TrainingParams`, with tf-idf.
    text : TextParams, default=None
        The terms of a text that become features.
    metric : str, default="nDCG@5"
        Metric by which C is chosen: "P@k", "nDCG@k" or "PSP@k" with a number for k.
    fmt : TextFormat, default=None
        Column names of a file or frame. They are stored in the model, for reading further files.
    validation : str, path-like, frame or Texts, default=None
        Texts to choose on. By default a tenth of the training texts is held out.
    weights : array-like of shape (n_texts,), default=None
        Text weights, at least 0. By default the ``weight_column`` of `fmt`, if there is one;
        otherwise all texts have the same weight.
    pair_weights : sparse matrix of shape (n_texts, n_labels), or path of a file, default=None
        Weights of single (text, label) pairs, as for `dismec.train_text`.
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
    dense, validation_dense : array-like of shape (n_texts, width), default=None
        Dense features, such as embeddings, of the texts and of the `validation` texts
        (``docs/tutorial/embeddings.md``).

    Returns
    -------
    Tuned
        The model, the chosen C, and the metrics of each C.

    Raises
    ------
    DataError
        If the grid, the metric or the texts are invalid.
    ModelError
        If the directory holds another model, or a finished one, and `overwrite` is False.
    ClusterError
        If the cluster cannot be used.

    Examples
    --------
    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from dismec import tune_text
    >>> rows = [("boil the egg", ["egg"]), ("bake the bread", ["bread"])] * 20
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "recipes.jsonl"
    ...     lines = [json.dumps({"text": text, "labels": labels}) for text, labels in rows]
    ...     _ = file.write_text("\n".join(lines))
    ...     found = tune_text(file, Path(folder) / "model", grid=[0.5, 1.0], metric="P@1")
    >>> found.model.predict(["a fried egg"])
    [('egg',)]
    """
    choice = ChoiceOfC.of(grid, metric)
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
        dense=dense,
        validation_dense=validation_dense,
    )
    with request.as_rows() as rows:
        return choice.carried_out(rows)


@dataclass(frozen=True)
class ChoiceOfC:
    """The metric by which C is chosen, and the candidates, ascending."""

    grid: list[float]
    metric: str

    @classmethod
    def of(cls, grid: Sequence[float], metric: str) -> ChoiceOfC:
        """Return the choice from an unsorted grid; raise `DataError` if an argument is invalid."""
        return cls(check_grid(grid), check_metric(metric))

    def carried_out(self, request: Request) -> Tuned:
        """Choose C and train the model of a request with it."""
        model = train_requested(request, self.open)
        return Tuned(model, model.params["C"], self.metric, model.params["C_table"])

    def open(self, job: Job, given: tuple[Any, Any] | None) -> tuple[Job, Settle]:
        """Return the job that states how C will be chosen, and the function that chooses it."""
        n_rows, n_labels = job.Y.shape
        if n_labels < 2:
            raise DataError(
                f"choosing C needs at least 2 labels to rank, the data have {n_labels}; "
                "train with a fixed C"
            )
        if given is None and n_rows < 2:
            raise DataError(
                f"{counted(n_rows, 'row')}: too few to hold one out for the choice of C; "
                "pass validation rows (validation=…)"
            )
        for C in (self.grid[0], self.grid[-1]):
            job.problem.check_C(C)
        validation = Validation.prepare(job, given)
        fields = {"metric": self.metric, "grid": self.grid, **validation.fields}
        return job.with_facts(C_auto=fields), partial(self._settle, validation)

    def _settle(
        self,
        validation: Validation,
        job: Job,
        earlier: Manifest | None,
        stages: Stages,
        progress: Progress | None,
    ) -> tuple[Job, Manifest | None, Progress | None]:
        """Choose C, or take over the choice of an earlier run (`recipe.Settle`)."""
        n_labels = job.problem.n_labels
        tried, total = len(self.grid), len(self.grid) + 1 + job.params.holds_out
        rest = part_of(progress, tried * n_labels, total * n_labels)
        known = earlier and known_C(job, self.grid, earlier)
        if known:
            return known, earlier, rest
        earlier = stages.begin(job, earlier)
        trials = GridTrials(validation.split(job), job, self.grid, self._depths, stages)
        table = trials.run(part_of(progress, 0, total * n_labels))
        chosen = job.with_C(pick(table, self.metric), table)
        return chosen, stages.begin(chosen, earlier), rest

    @property
    def _depths(self) -> list[int]:
        return sorted({*_DEPTHS, int(self.metric.partition("@")[2])})


def check_grid(grid: Sequence[float]) -> list[float]:
    """Return the distinct C, ascending; raise `DataError` for an invalid C or fewer than two."""
    found = set()
    for C in grid:
        try:
            found.add(TrainingParams(C=C).C)
        except ValueError as error:
            raise DataError(f"the grid's {error}") from None
    if len(found) < 2:
        raise DataError(f"the grid has {counted(len(found), 'value')} of C; expected at least 2")
    return sorted(found)


def check_metric(metric: str) -> str:
    """Return the metric's name; raise `DataError` if it is invalid."""
    kind, _, k = metric.partition("@")
    if kind not in KINDS or not re.fullmatch("[1-9][0-9]*", k) or int(k) > _MOST_DEPTH:
        raise DataError(
            f"the metric is {metric!r}; expected P@k, nDCG@k or PSP@k, k from 1 to {_MOST_DEPTH}"
        )
    return metric


def pick(table: Sequence[Row], metric: str) -> float:
    """Return the C with the highest metric; ties go to the smallest C."""
    return min(table, key=lambda row: (-row[metric], row["C"]))["C"]
