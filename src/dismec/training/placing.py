"""Turn data on the workers of a cluster into a file there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from dismec.cluster.placed import is_path, is_placed
from dismec.data.training_file import TrainingData
from dismec.errors import DataError
from dismec.training.execute import opened_executor
from dismec.training.params import TrainOptions
from dismec.training.resume import check_output

__all__ = ["placed"]


@contextmanager
def placed(
    data: TrainingData, options: TrainOptions, threads: int
) -> Iterator[tuple[TrainingData, TrainOptions]]:
    """Gather Dask collections, or a file that workers read, into one file on the cluster.

    Data on this machine are passed through.

    Raises
    ------
    DataError
        If they cannot be used, or if a setting needs the rows on this machine.
    """
    if options.cluster is None or not is_placed(data.X):
        if is_path(data.X):
            raise DataError(
                "X is a path, which only the workers of a cluster can read: name one", "cluster=…"
            )
        yield data, options
        return
    _check_possible(data, options)
    if options.path is not None:
        check_output(options.path, options.overwrite)
    from dismec.cluster.gathering import gathered

    params = options.params
    fitted = {
        "tfidf": params.tfidf,
        "normalize": params.normalize,
        "bias": params.bias,
        "dense_scale": params.dense_scale,
    }
    n_labels = None if data.names is None else len(data.names)
    with opened_executor(options.cluster, threads) as executor:
        assert executor.cluster is not None
        with gathered(executor.cluster, data.X, data.Y, fitted, n_labels) as there:
            rows = TrainingData(there, there, names=data.names)
            yield rows, replace(options, cluster=executor.cluster)


def _check_possible(data: TrainingData, options: TrainOptions) -> None:
    """Raise `DataError` for settings that need the rows on this machine."""
    params = options.params
    for what, asked in (
        ('C="auto"', params.chooses_C),
        ('delta="auto"', params.chooses_delta),
        ("calibrate=True", params.calibrate),
        ("refine=True", params.refine),
        ("weights", data.weights is not None),
        ("pair_weights", data.pairs is not None),
        ("class_weight", options.costs is not None),
        ("validation", options.validation is not None),
    ):
        if asked:
            raise DataError(f"{what} is not supported with data on the workers of a cluster")
