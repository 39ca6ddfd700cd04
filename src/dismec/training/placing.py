"""Turn a request for data on the workers of a cluster into one for a file there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from dismec.cluster.placed import is_path, is_placed
from dismec.errors import DataError
from dismec.training.request import Request
from dismec.training.resume import check_output
from dismec.training.running import workplace

__all__ = ["placed"]


@contextmanager
def placed(request: Request, threads: int, *, chooses: bool = False) -> Iterator[Request]:
    """Gather Dask collections, or a file that workers read, into one file on the cluster.

    Requests for data on this machine are passed through. `chooses` says whether C will be chosen.

    Raises
    ------
    DataError
        If they cannot be used, or if a setting needs the rows on this machine.
    """
    if request.cluster is None or not is_placed(request.X):
        if is_path(request.X):
            raise DataError(
                "X is a path, which only the workers of a cluster can read: pass cluster=…"
            )
        yield request
        return
    _check_possible(request, chooses)
    if request.path is not None:
        check_output(request.path, request.overwrite)
    from dismec.cluster.gathering import gathered

    params = request.params
    fitted = {
        "tfidf": params.tfidf,
        "normalize": params.normalize,
        "bias": params.bias,
        "dense_scale": params.dense_scale,
    }
    n_labels = None if request.names is None else len(request.names)
    with workplace(request, threads) as place:
        assert place.cluster is not None
        with gathered(place.cluster, request.X, request.Y, fitted, n_labels) as data:
            yield replace(request, X=data, Y=data, cluster=place.cluster, source=None)


def _check_possible(request: Request, chooses: bool) -> None:
    """Raise `DataError` for settings that need the rows on this machine."""
    params = request.params
    for what, asked in (
        ("choosing C", chooses),
        ('delta="auto"', params.chooses_delta),
        ("calibrate=True", params.calibrate),
        ("refine=True", params.refine),
        ("weights", request.weights is not None),
        ("pair_weights", request.pair_weights is not None),
        ("class_weight", request.costs is not None),
        ("validation", request.validation is not None),
    ):
        if asked:
            raise DataError(f"{what} is not supported with data on the workers of a cluster")
