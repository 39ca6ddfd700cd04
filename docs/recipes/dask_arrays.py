"""Trains on rows that the workers of a Dask cluster have; none pass through this process."""

import dask.array as da
import numpy as np
import scipy.sparse as sp
from distributed import Client, LocalCluster

import dismec

N_BLOCKS, ROWS, FEATURES, LABELS = 4, 200, 300, 12


def block_of_rows(number):
    """What a worker reads, or computes, of the rows: here they are generated."""
    rng = np.random.default_rng(int(number[0]))
    X = sp.random_array(
        (ROWS, FEATURES), density=0.05, random_state=rng, dtype=np.float32, format="csr"
    )
    return X, sp.csr_array(X[:, :LABELS].toarray() > 0)


def features(number):
    """A block of X."""
    return block_of_rows(number)[0]


def labels(number):
    """The same block of Y."""
    return block_of_rows(number)[1]


if __name__ == "__main__":
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit=0, dashboard_address=None
        ) as c,
        Client(c) as client,
    ):
        numbers = da.arange(N_BLOCKS, chunks=1)
        rows = (ROWS,) * N_BLOCKS
        meta = sp.csr_array((0, 0), dtype=np.float32)
        X = numbers.map_blocks(features, new_axis=1, chunks=(rows, (FEATURES,)), meta=meta)
        Y = numbers.map_blocks(labels, new_axis=1, chunks=(rows, (LABELS,)), meta=meta)
        model = dismec.train(X, Y, "model", cluster=client)
        print(f"{model.n_labels} labels, {model.n_features} features")  # 12 labels, 300 features
