"""Rows held out → the C that ranks their labels best, and the training with it."""

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
from dismec.training.recipe import Settle, carry_out
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
    """A model, and how its C was chosen.

    Attributes
    ----------
    model : Model
        The model, trained on all rows with the best C.
    C : float
        The best C.
    metric : str
        The metric that C was chosen by.
    table : list of dict
        A row for each C, ascending: ``{"C": …, "P@1": …, "nDCG@1": …, "PSP@1": …, "weights": …,
        "seconds": …}``, with metrics in percent on the rows held out, and the seconds of a core
        that the trial took.
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
    """Choose the best C on rows that are held out, and train a model with it on all rows.

    The weights are byte for byte those of `dismec.train` with this C. Of equally good values the
    smallest is chosen. If an earlier run was stopped, it is continued.

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
        Parameters of the training, except for C. If delta is "auto", it is chosen after C.
    metric : str, default="nDCG@5"
        What C is chosen by: "P@k", "nDCG@k" or "PSP@k" with a number for k.
    validation : tuple of X and Y, default=None
        Other rows to choose on. By default a tenth of the rows is held out for this.
    weights : array-like of shape (n_rows,), default=None
        How much each row counts: numbers of at least 0, by which its losses are multiplied. Rows of
        weight 0 are left out. Metrics on rows held out are weighted, too. Cannot be used with
        ``penalty="l1"``.
    pair_weights : sparse matrix of shape (n_rows, n_labels), or path of a file, default=None
        How much single pairs of a row and a label count, as for `dismec.train`. Metrics on rows
        held out do not use them, except that labels of weight 0 do not count as true there.
    names : sequence of str, default=None
        The names of the labels. By default the columns of Y if that is a frame, or the labels in
        lists.
    threads : int, default=None
        Number of threads. By default all available CPUs.
    overwrite : bool, default=False
        Whether to replace a model that is in the directory.
    progress : callable, default=None
        Called now and then as ``progress(labels_done, labels_in_all)``. A label counts once for
        each time that it is trained.
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
    Tuned
        The model, the C chosen, and the metrics of each C.

    Raises
    ------
    DataError
        If the grid, the metric or the data cannot be used.
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
    r"""Choose the best C on texts that are held out, and train a model with it on all texts.

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
        Parameters of the training, except for C. By default those of `TrainingParams`, with tf-idf.
    text : TextParams, default=None
        Which terms of a text become features.
    metric : str, default="nDCG@5"
        What C is chosen by: "P@k", "nDCG@k" or "PSP@k" with a number for k.
    fmt : TextFormat, default=None
        Names of the columns of a file or frame. The model keeps them for files that are read later.
    validation : str, path-like, frame or Texts, default=None
        Other texts to choose on. By default a tenth of the texts is held out for this.
    weights : array-like of shape (n_texts,), default=None
        How much each text counts: numbers of at least 0. By default what the ``weight_column`` of
        `fmt` holds, if there is one; otherwise all texts count the same.
    pair_weights : sparse matrix of shape (n_texts, n_labels), or path of a file, default=None
        How much single pairs of a text and a label count, as for `dismec.train_text`.
    threads : int, default=None
        Number of threads. By default all available CPUs.
    overwrite : bool, default=False
        Whether to replace a model that is in the directory.
    progress : callable, default=None
        Called now and then as ``progress(labels_done, labels_in_all)``.
    log : callable, default=None
        Called now and then with a line of text while texts are read.
    cluster : Dask client or str, default=None
        Where to train instead of here: a client, or the address or scheduler file of a cluster.
    client
        The former name of `cluster`.
    dense, validation_dense : array-like of shape (n_texts, width), default=None
        Dense features, such as embeddings, of the texts and of those of `validation`
        (``docs/tutorial/embeddings.md``).

    Returns
    -------
    Tuned
        The model, the C chosen, and the metrics of each C.

    Raises
    ------
    DataError
        If the grid, the metric or the texts cannot be used.
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
    """By which metric C is chosen, and from which values, ascending."""

    grid: list[float]
    metric: str

    @classmethod
    def of(cls, grid: Sequence[float], metric: str) -> ChoiceOfC:
        """The choice from a grid in any order; `DataError` for what cannot be chosen from or by."""
        return cls(check_grid(grid), check_metric(metric))

    def carried_out(self, request: Request) -> Tuned:
        """The model of a request at the C chosen."""
        model = carry_out(request, self.open)
        return Tuned(model, model.params["C"], self.metric, model.params["C_table"])

    def open(self, job: Job, given: tuple[Any, Any] | None) -> tuple[Job, Settle]:
        """The job with how its C will be chosen, and what chooses it (`recipe.Choose`)."""
        n_rows, n_labels = job.Y.shape
        if n_labels < 2:
            raise DataError(
                f"C is chosen by the order of labels, and there is {n_labels} label; "
                "train with a C of your own"
            )
        if given is None and n_rows < 2:
            raise DataError(
                f"there is {n_rows} row: too few to hold one out for the choice of C; "
                "give rows to choose it on (validation=…)"
            )
        for C in (self.grid[0], self.grid[-1]):
            job.problem.check_C(C)
        validation = Validation.prepare(job, given)
        fields = {"metric": self.metric, "grid": self.grid, **validation.fields}
        return job.stating(C_auto=fields), partial(self._settle, validation)

    def _settle(
        self,
        validation: Validation,
        job: Job,
        earlier: Manifest | None,
        stages: Stages,
        progress: Progress | None,
    ) -> tuple[Job, Manifest | None, Progress | None]:
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
    """The C of a grid, ascending; `DataError` for fewer than two, or one that no solver takes."""
    found = set()
    for C in grid:
        try:
            found.add(TrainingParams(C=C).C)
        except ValueError as error:
            raise DataError(f"the grid's {error}") from None
    if len(found) < 2:
        raise DataError(
            f"the grid has {counted(len(found), 'value')} of C; expected two or more to choose from"
        )
    return sorted(found)


def check_metric(metric: str) -> str:
    """The metric's name; `DataError` if it is none."""
    kind, _, k = metric.partition("@")
    if kind not in KINDS or not re.fullmatch("[1-9][0-9]*", k) or int(k) > _MOST_DEPTH:
        raise DataError(
            f"the metric is {metric!r}; expected P@k, nDCG@k or PSP@k, k from 1 to {_MOST_DEPTH}"
        )
    return metric


def pick(table: Sequence[Row], metric: str) -> float:
    """The C with the highest value; of equals the smallest."""
    return min(table, key=lambda row: (-row[metric], row["C"]))["C"]
