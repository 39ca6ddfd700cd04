from typing import Any

import numpy as np
import numpy.typing as npt

isa: str

def cpu_isas() -> list[str]: ...

class PostingLists:
    @property
    def n_labels(self) -> int: ...
    @property
    def n_features(self) -> int: ...
    @property
    def nnz(self) -> int: ...

def post(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    data: npt.NDArray[np.float32],
    n_features: int,
) -> PostingLists: ...
def merge_topk(
    lists: PostingLists,
    first_label: int,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    data: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int32],
    scores: npt.NDArray[np.float32],
) -> None: ...
def dense_scores(
    lists: PostingLists,
    first_label: int,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    data: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
) -> None: ...

class Problem:
    def __init__(
        self,
        indptr: npt.NDArray[np.int64],
        indices: npt.NDArray[np.int32],
        values: npt.NDArray[np.float32],
        scale: npt.NDArray[np.float32],
        idf: npt.NDArray[np.float32] | None,
        n_features: int,
        bias: float,
    ) -> None: ...
    def solve(
        self,
        indptr: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int32],
        labels: npt.NDArray[np.int64],
        C: float,
        tolerance: float,
        delta: float,
        cancel: npt.NDArray[np.uint8],
    ) -> tuple[npt.NDArray[Any], ...]: ...
