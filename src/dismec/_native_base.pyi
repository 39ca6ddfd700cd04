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
