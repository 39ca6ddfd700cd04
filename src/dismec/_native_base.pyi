import numpy as np
from numpy.typing import NDArray

isa: str

def cpu_isas() -> list[str]: ...
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
