"""Data of any kind → the files that systems read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import scipy.sparse as sp

from dismec.data.corpus import TextBatch
from dismec.data.dataset import Dataset, save_data
from dismec.data.matrices import check_X, check_Y
from dismec.errors import DataError
from dismec.features.transform import Transform
from dismec.features.vocabulary import TextParams
from dismec.training.texts import Texts, learn, vectorized

__all__ = ["Pair", "RowFiles", "aligned", "pair_of_texts", "write_rows"]

_READ_TEXT = ("parabel", "bonsai")
_READ_LINES = ("fasttext", "fasttext-tuned")


class Pair(NamedTuple):
    """The training and test data of a comparison."""

    train: Dataset  # rows may have any norm
    test: Dataset
    texts: tuple[Texts, Texts] | None = None  # the texts that X was made from, if any
    tfidf: bool = False  # whether X holds term counts


def pair_of_texts(train: Texts, test: Texts, *, threads: int | None = None) -> Pair:
    """Convert texts to data: terms and labels come from the training texts, rows from both."""
    vocabulary, names = learn(train, TextParams(), threads=threads)
    numbers = {name: number for number, name in enumerate(names)}
    parts = [vectorized(texts, vocabulary, numbers, threads=threads) for texts in (train, test)]
    return Pair(parts[0], parts[1], (train, test), tfidf=True)


def aligned(pair: Pair) -> tuple[Dataset, Dataset]:
    """Return the training and test data, checked, with the same columns."""
    X, X_test = check_X(pair.train.X), check_X(pair.test.X)
    if X.shape[0] == 0 or X_test.shape[0] == 0:
        raise DataError("no rows to compare systems on")
    n_features = max(X.shape[1], X_test.shape[1])
    Y, Y_test = (
        check_Y(part.Y, rows.shape[0]) for part, rows in ((pair.train, X), (pair.test, X_test))
    )
    if not Y.nnz:
        raise DataError("no training row has a label")
    if not Y_test.nnz:
        raise DataError("no test row has a label")
    return (
        Dataset(check_X(X, n_features), Y, pair.train.names),
        Dataset(check_X(X_test, n_features), Y_test, pair.test.names),
    )


class RowFiles:
    """The files that `dismec.compare.worker` reads, written when the first system needs them."""

    def __init__(self, folder: Path, train: Dataset, test: Dataset, pair: Pair) -> None:
        self.folder = folder
        self._train, self._test, self._pair = train, test, pair
        self._normal: Dataset | None = None
        self.n_test_rows = test.X.shape[0]

    def write(self, system: str) -> None:
        """Write the files that a system reads."""
        if self._normal is None:
            self._normal = write_rows(self.folder, self._train, self._test, self._pair.tfidf)
        if system in _READ_TEXT and not (self.folder / "train.txt").exists():
            save_data(self._normal, self.folder / "train.txt")
        if system in _READ_LINES and self._pair.texts:
            for part, texts, Y in zip(
                ("train", "test"), self._pair.texts, (self._train.Y, self._test.Y), strict=True
            ):
                _write_lines(self.folder / f"{part}.ft", texts.read(), Y)


def write_rows(folder: Path, train: Dataset, test: Dataset, tfidf: bool = False) -> Dataset:
    """Write normalized rows of both parts; return the training part."""
    transform = Transform.fit(train.X, tfidf=tfidf, bias=0)
    rows, test_rows = (transform.apply(part.X)[:, :-1] for part in (train, test))
    for part, matrix in (("train_X", rows), ("train_Y", train.Y), ("test_X", test_rows)):
        whole: Any = sp.csr_matrix(matrix)
        sp.save_npz(folder / f"{part}.npz", whole, compressed=False)
    return Dataset(rows, train.Y)


def _write_lines(path: Path, batches: Iterable[TextBatch], Y: Any) -> None:
    """Write one text per line with its label numbers, in fastText's format."""
    row = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for batch in batches:
            for text in batch.texts:
                labels = Y.indices[Y.indptr[row] : Y.indptr[row + 1]].tolist()
                words = [word for word in text.split() if not word.startswith("__label__")]
                file.write(" ".join([*(f"__label__{label}" for label in labels), *words]) + "\n")
                row += 1
