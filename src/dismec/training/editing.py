"""Add, update and remove labels of a finished model.

Labels keep their numbers: a new label comes after the last one, and a removed label has no training
rows anymore and is never predicted. Labels are trained with the parameters and the feature
transform of the model, so on the same rows they get exactly the weights that training all labels
together would give. Files whose labels do not change stay as they are, byte for byte; a file that
holds a changed label is rewritten without it. Until the manifest is replaced, as the last step, the
directory holds the old model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dismec.data.columns import label_names_of
from dismec.data.files import StrPath
from dismec.data.matrices import check_Y
from dismec.data.mixed import check_features
from dismec.data.row_weights import RowWeights, check_row_weights, kept_rows
from dismec.data.types import LabelsLike, RowsLike, WeightsLike
from dismec.errors import DataError
from dismec.model.model import Model
from dismec.model.opening import open_model
from dismec.training.edit import opened_edit, rows_of_labels
from dismec.training.request import Progress, Request

__all__ = ["add_labels", "remove_labels", "update_labels"]


def add_labels(
    path: StrPath,
    X: RowsLike,
    Y: LabelsLike,
    names: Sequence[str] | None = None,
    *,
    weights: WeightsLike | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    cluster: Any = None,
    source: StrPath | None = None,
    client: Any = None,
) -> Model:
    """Train new labels and add them to a model.

    Labels that the model already has do not change. An earlier run that was interrupted is resumed.

    Parameters
    ----------
    path : str or path-like
        The model directory.
    X : matrix of shape (n_rows, n_features), or texts
        Rows like those that the model was trained on; `TextRows` or texts for a text model.
    Y : indicator matrix of shape (n_rows, n_columns)
        All labels of these rows.
    names : sequence of str, default=None
        Names of the columns of Y, which match them with the labels of a model that has names. By
        default the columns of a frame. Without names, column l is label l.
    weights : array-like of shape (n_rows,), default=None
        Row weights, at least 0.
    threads : int, default=None
        Number of threads. By default all available CPUs.
    progress : callable, default=None
        Called periodically as ``progress(labels_done, labels_total)``.
    cluster : Dask client or str, default=None
        Dask cluster to train on: a client, a scheduler address or a scheduler file.
    source : str or path-like, default=None
        The ``.xmc`` file that X and Y were loaded from.
    client
        Former name of `cluster`.

    Returns
    -------
    Model
        The model with the new labels, opened from the directory.

    Raises
    ------
    DataError
        If the data do not fit the model, or have no new labels.
    ModelError
        If there is no finished model, or another process is writing to it.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dismec import add_labels, train
    >>> X = np.eye(4)
    >>> Y = np.eye(4, dtype=int)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = folder + "/model"
    ...     before = train(X, Y[:, :3], path)
    ...     after = add_labels(path, X, Y)
    >>> before.n_labels, after.n_labels
    (3, 4)
    """
    names = label_names_of(Y) if names is None else names
    Y = check_Y(Y)
    with opened_edit(path) as edit:
        rows, Y, weights = _rows_that_count(edit.model.rows_of(X, threads=threads), Y, weights)
        labels = edit.labels_of(Y, names, grow=True)
        known = np.zeros(max(edit.model.n_labels, 1 + labels.max(initial=-1)), np.bool_)
        known[: edit.model.n_labels] = edit.model.label_counts > 0
        columns = np.flatnonzero((labels >= 0) & ~known[labels] & (rows_of_labels(Y) > 0))
        if not len(columns):
            raise DataError("the model already has all labels of these rows")
        where = client if cluster is None else cluster
        how = {"source": source, "threads": threads, "progress": progress, "cluster": where}
        request = Request(rows, Y, edit.params, weights=weights, **how)
        edit.train("added", request, columns, labels[columns])
    return open_model(path, check=False)


def update_labels(
    path: StrPath,
    X: RowsLike,
    Y: LabelsLike,
    labels: Iterable[str | int],
    names: Sequence[str] | None = None,
    *,
    weights: WeightsLike | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    cluster: Any = None,
    source: StrPath | None = None,
    client: Any = None,
) -> Model:
    """Retrain some labels of a model on other rows.

    All other labels stay the same. An earlier run that was interrupted is resumed.

    Parameters
    ----------
    path : str or path-like
        The model directory.
    X : matrix of shape (n_rows, n_features), or texts
        Rows like those that the model was trained on; `TextRows` or texts for a text model.
    Y : indicator matrix of shape (n_rows, n_columns)
        All labels of these rows.
    labels : iterable of str or int
        The labels to retrain, by name or number.
    names : sequence of str, default=None
        Names of the columns of Y, which match them with the labels of a model that has names. By
        default the columns of a frame. Without names, column l is label l.
    weights : array-like of shape (n_rows,), default=None
        Row weights, at least 0.
    threads : int, default=None
        Number of threads. By default all available CPUs.
    progress : callable, default=None
        Called periodically as ``progress(labels_done, labels_total)``.
    cluster : Dask client or str, default=None
        Dask cluster to train on: a client, a scheduler address or a scheduler file.
    source : str or path-like, default=None
        The ``.xmc`` file that X and Y were loaded from.
    client
        Former name of `cluster`.

    Returns
    -------
    Model
        The changed model, opened from the directory.

    Raises
    ------
    DataError
        If the data do not fit the model, or if the model or the data do not have one of the labels.
    ModelError
        If there is no finished model, or another process is writing to it.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dismec import update_labels, train
    >>> X = np.eye(4)
    >>> Y = np.eye(4, dtype=int)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = folder + "/model"
    ...     before = train(X, Y, path)
    ...     after = update_labels(path, X, Y[::-1], labels=[0])
    >>> before.predict(X[:1]), after.predict(X[3:])
    ([(0,)], [(0, 3)])
    """
    names = label_names_of(Y) if names is None else names
    Y = check_Y(Y)
    with opened_edit(path) as edit:
        rows, Y, weights = _rows_that_count(edit.model.rows_of(X, threads=threads), Y, weights)
        wanted = edit.find(labels)
        found = edit.labels_of(Y, names)
        counts = np.zeros(max(edit.model.n_labels, 1 + found.max(initial=-1)), np.int64)
        counts[found[found >= 0]] = rows_of_labels(Y)[found >= 0]
        if not counts[wanted].all():
            lost = wanted[np.argmin(counts[wanted])]
            raise DataError(
                f"no row of the data has {edit.named(lost)}; to drop the label, remove it"
            )
        columns = np.flatnonzero(np.isin(found, wanted) & (rows_of_labels(Y) > 0))
        where = client if cluster is None else cluster
        how = {"source": source, "threads": threads, "progress": progress, "cluster": where}
        request = Request(rows, Y, edit.params, weights=weights, **how)
        edit.train("updated", request, columns, found[columns])
    return open_model(path, check=False)


def remove_labels(path: StrPath, labels: Iterable[str | int]) -> Model:
    """Remove labels from a model, so that they are no longer predicted.

    The other labels keep their numbers.

    Parameters
    ----------
    path : str or path-like
        The model directory.
    labels : iterable of str or int
        The labels to remove, by name or number.

    Returns
    -------
    Model
        The changed model, opened from the directory.

    Raises
    ------
    DataError
        If the model does not have one of the labels.
    ModelError
        If there is no finished model, or another process is writing to it.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dismec import remove_labels, train
    >>> X = np.eye(4)
    >>> Y = np.eye(4, dtype=int)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = folder + "/model"
    ...     before = train(X, Y, path)
    ...     after = remove_labels(path, [3])
    >>> before.predict(X[3:]), after.predict(X[3:])
    ([(3,)], [()])
    """
    with opened_edit(path) as edit:
        edit.commit("removed", edit.find(labels), np.empty(0, np.int64), [], {})
    return open_model(path, check=False)


def _rows_that_count(X: Any, Y: Any, weights: Any) -> tuple[Any, Any, RowWeights | None]:
    """Return the rows of positive weight; labels that only other rows have are not trained."""
    if weights is None:
        return X, Y, None
    X = check_features(X)
    keep, found = kept_rows(check_row_weights(weights, X.shape[0]))
    if keep is None:
        return X, Y, found
    return X[keep], check_Y(Y, X.shape[0])[keep], found
