from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

isa: str

def cpu_isas() -> list[str]: ...

shard_labels: int

class Shard:
    @property
    def n_labels(self) -> int: ...
    @property
    def n_features(self) -> int: ...
    @property
    def nnz(self) -> int: ...

def pack(
    matrices: Sequence[tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]],
    matrix: NDArray[np.int32],
    row: NDArray[np.int32],
    n_features: int,
    ids: NDArray[np.int32],
    ranks: NDArray[np.uint8],
) -> Shard: ...
def merge_topk(
    shard: Shard,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    data: NDArray[np.float32],
    labels: NDArray[np.int32],
    scores: NDArray[np.float32],
) -> None: ...
def dense_scores(
    shard: Shard,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    data: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None: ...

class Problem:
    def __init__(
        self,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int32],
        values: NDArray[np.float32],
        scale: NDArray[np.float32],
        idf: NDArray[np.float32] | None,
        n_features: int,
        bias: float,
        label_indptr: NDArray[np.int64],
        label_rows: NDArray[np.int32],
    ) -> None: ...

class Worker:
    def __init__(
        self,
        problem: Problem,
        C: float,
        tolerance: float,
        delta: float,
        cancel: NDArray[np.uint8],
    ) -> None: ...
    def solve(self, labels: NDArray[np.int64], drain: bool) -> tuple[NDArray[Any], ...]: ...
    def take(self, features: NDArray[np.int32], weights: NDArray[np.float32]) -> None: ...

def parse_rows(
    text: NDArray[np.uint8], n_features: int, n_labels: int
) -> tuple[
    NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]
]: ...
def format_rows(
    x_indptr: NDArray[np.int64],
    features: NDArray[np.int32],
    values: NDArray[np.float32],
    y_indptr: NDArray[np.int64],
    labels: NDArray[np.int32],
    begin: int,
    end: int,
) -> bytes: ...
def check_rows(
    indptr: NDArray[np.int64], ids: NDArray[np.int32], n_columns: int
) -> tuple[int, str] | None: ...
def first_non_finite(values: NDArray[np.float32]) -> int: ...
