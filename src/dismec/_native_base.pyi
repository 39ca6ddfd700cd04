from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

isa: str

def cpu_isas() -> list[str]: ...

shard_rows: int
bounded_rows: int
features_per_non_zero: int

class Watch:
    def __init__(self, memory: NDArray[np.uint8]) -> None: ...
    @property
    def lost(self) -> bool: ...
    def stop(self) -> None: ...

class Shard:
    def __init__(
        self,
        labels: NDArray[np.int32],
        label_starts: NDArray[np.int32],
        scales: NDArray[np.float32],
        bias: NDArray[np.float32],
        starts: NDArray[np.uint32],
        places: NDArray[np.uint16],
        weights: NDArray[Any],
        ceiling_starts: NDArray[np.uint32] | None = None,
        ceiling_ranges: NDArray[np.float32] | None = None,
        ceiling_places: NDArray[np.uint16] | None = None,
        ceilings: NDArray[np.uint8] | None = None,
        slopes: NDArray[np.float32] | None = None,
    ) -> None: ...

class Packer:
    def __init__(self, precision: str, n_rows: int, n_features: int) -> None: ...
    def begin(self, first: int, sizes: NDArray[np.int64]) -> None: ...
    def take_in(
        self,
        to: NDArray[np.int32],
        rows: NDArray[np.int32],
        indptr: NDArray[np.int64],
        indices: NDArray[np.int32],
        data: NDArray[np.float32],
    ) -> None: ...
    def count(self, begin: int, end: int) -> None: ...
    def measure(self) -> tuple[int, int]: ...
    def give(self, places: NDArray[np.uint16], weights: NDArray[np.uint8]) -> None: ...
    def place(self, begin: int, end: int) -> None: ...
    def take(self) -> tuple[NDArray[Any], ...]: ...

class Aim:
    def __init__(
        self,
        aim: str,
        labels: NDArray[np.int32],
        probabilities: NDArray[np.float32],
        places: NDArray[np.int32],
        n_labels: int,
    ) -> None: ...
    def round(self) -> float: ...

class AllowedLabels:
    @overload
    def __init__(self, bits: NDArray[np.uint8], open: NDArray[np.uint16]) -> None: ...
    @overload
    def __init__(
        self,
        label_starts: NDArray[np.int64],
        labels: NDArray[np.int32],
        starts: NDArray[np.int64],
        classifiers: NDArray[np.uint16],
    ) -> None: ...

def ceilings(shard: Shard) -> tuple[NDArray[Any], ...]: ...
def cut(
    shards: list[Shard], to: list[NDArray[np.int32]], n_rows: int
) -> tuple[NDArray[Any], ...]: ...
def unpack(
    shard: Shard,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]: ...
def merge_topk(
    shard: Shard,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    data: NDArray[np.float32],
    labels: NDArray[np.int32],
    scores: NDArray[np.float32],
    lookup: int = 8,
    allowed: AllowedLabels | None = None,
) -> None: ...
def dense_scores(
    shard: Shard,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    data: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None: ...
def explain(
    shard: Shard,
    classifier: int,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    data: NDArray[np.float32],
) -> tuple[float, NDArray[np.float32]]: ...
def release_memory() -> None: ...

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
        weights: NDArray[np.float32] | None,
        dense: NDArray[np.float32] | None,
        dense_scale: NDArray[np.float32] | None,
        label_indptr: NDArray[np.int64],
        label_rows: NDArray[np.int32],
    ) -> None: ...
    @property
    def weight(self) -> float: ...
    @property
    def squares(self) -> float: ...
    @property
    def longest(self) -> float: ...

class WorkSharing:
    def __init__(self) -> None: ...
    @property
    def calls(self) -> int: ...
    @property
    def n_helped(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    def help(self, known: int) -> None: ...
    def call_back(self) -> None: ...

class Worker:
    def __init__(
        self,
        problem: Problem,
        C: float,
        tolerance: float,
        delta: float,
        first: int,
        delta_from_first: float,
        l1: bool,
        soft_labels: bool,
        positive_costs: NDArray[np.float64],
        negative_costs: NDArray[np.float64],
        cancel: NDArray[np.uint8],
        sharing: WorkSharing,
    ) -> None: ...
    def solve(self, labels: NDArray[np.int64], drain: bool) -> tuple[NDArray[Any], ...]: ...
    def take(self, features: NDArray[np.int32], weights: NDArray[np.float32]) -> None: ...

def copy_rows(
    rows: NDArray[np.int64],
    to: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    data: NDArray[np.float32],
    target_indptr: NDArray[np.int64],
    target_indices: NDArray[np.int32],
    target_data: NDArray[np.float32],
) -> None: ...
def same_rows(
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    data: NDArray[np.float32],
) -> NDArray[np.uint8]: ...
def row_scale(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    data: NDArray[np.float32],
    idf: NDArray[np.float32] | None,
    sqrt: bool,
    n_features: int,
) -> NDArray[np.float32]: ...
def apply(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    data: NDArray[np.float32],
    idf: NDArray[np.float32] | None,
    sqrt: bool,
    normalize: bool,
    bias: float,
    n_features: int,
    begin: int,
    end: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]: ...
def widen(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    data: NDArray[np.float32],
    has_bias: bool,
    labels: NDArray[np.int32],
    scores: NDArray[np.float32],
    column: NDArray[np.int32],
    scale: float,
    slope: float,
    bias: float,
    n_features: int,
    n_columns: int,
    n_dense: int = ...,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]: ...
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
def parse_pairs(
    body: bytes, begin: int, n_features: int
) -> tuple[NDArray[np.int32], NDArray[np.float32], int] | None: ...
def first_non_finite(values: NDArray[np.float32]) -> int: ...

unicode_version: str
longest_gram: int

class Texts:
    def __init__(self, texts: list[str]) -> None: ...
    def ends(self) -> NDArray[np.int64]: ...

class DocumentCounter:
    def __init__(
        self, words: tuple[int, int], chars: tuple[int, int], prefix: int, lowercase: bool
    ) -> None: ...
    def add(self, texts: Texts, begin: int, end: int) -> None: ...
    def prune(self, most: int) -> int: ...
    def list(
        self, least: int, most: float, size: int | None
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]: ...

class Lexicon:
    def __init__(
        self,
        words: tuple[int, int],
        chars: tuple[int, int],
        prefix: int,
        lowercase: bool,
        utf8: NDArray[np.uint8],
        offsets: NDArray[np.int64],
    ) -> None: ...
    def unsound(self) -> int | None: ...
    def rows(
        self, texts: Texts, begin: int, end: int, sublinear: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]: ...
    def spans(self, texts: Texts, number: int) -> NDArray[np.int64]: ...
