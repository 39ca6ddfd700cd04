"""Predictions → files, one batch of rows at a time.

Rows are written at once, so memory does not grow with their number, except for ``npz``, which is
held until the end. No format changes a label's name.
"""

from __future__ import annotations

import gzip
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from dismec.data.files import whole_file
from dismec.data.formats import arrow_module
from dismec.data.printable import json_text, spell_name
from dismec.errors import DataError

_Labels = npt.NDArray[np.int32]
_Scores = npt.NDArray[np.float32]

_VALUES_AT_ONCE = 1 << 14  # numbers formatted at a time: numpy's text of a number takes 128 bytes
_QUOTED_CELL = re.compile(r'[",\s]')
# JSON has no literals for these; a number beyond the range of floats is read as infinite.
_NOT_FINITE = {"inf": "1e999", "-inf": "-1e999", "nan": "null"}


class Columns(NamedTuple):
    """The contents of the columns of predictions."""

    n_labels: int
    names: Sequence[str] | None = None
    """One per label; if None, labels are written as numbers."""
    values: str = "scores"
    """Name of the scores."""
    without_rows: frozenset[int] = frozenset()
    """Labels without training rows, which JSON marks."""


class PredictionWriter(ABC):
    """Writes predictions to an open binary file, sequentially, and leaves it open.

    `encoding` is that of the format ``text``; all others are UTF-8.
    """

    def __init__(self, file: BinaryIO, columns: Columns, encoding: str = "utf-8") -> None:
        self.file, self.columns, self.encoding = file, columns, encoding

    @abstractmethod
    def write(self, top: _Labels, scores: _Scores, ids: Sequence[str] | None = None) -> None:
        """Write the labels of the next rows, best first, and their scores.

        Label −1 is an empty place. Ids of rows are given for all batches or for none.
        """

    def finish(self) -> None:  # noqa: B027  most have nothing left to write
        """Write what follows the last row. Write at least one batch before, possibly empty.

        `file` is then complete, but neither flushed nor closed.
        """

    def release(self) -> None:  # noqa: B027  most hold nothing
        """Release resources, finished or not."""


@contextmanager
def prediction_file(path: str | Path, form: str, columns: Columns) -> Iterator[PredictionWriter]:
    """Open a writer for a file that appears under its name only when it is complete.

    A file whose name ends in ``.gz`` is gzipped; a device or a pipe is written to directly. Raises
    `DataError` if a binary format would be gzipped.
    """
    path = Path(path)
    is_packed = path.suffix.lower() == ".gz"
    if is_packed and form in ("parquet", "npz"):
        raise DataError(f"{path}: {form} is already compressed; leave out .gz")
    with ExitStack() as opened:
        file: Any = opened.enter_context(whole_file(path))
        if is_packed:
            file = opened.enter_context(gzip.GzipFile("", "wb", 6, file, mtime=0))
        yield opened.enter_context(prediction_writer(file, form, columns))


@contextmanager
def prediction_writer(
    file: BinaryIO, form: str, columns: Columns, encoding: str = "utf-8"
) -> Iterator[PredictionWriter]:
    """Open a writer for an open file; see `PredictionWriter` and `prediction_file`."""
    writer = _WRITERS[form](file, columns, encoding if form == "text" else "utf-8")
    try:
        yield writer
        writer.finish()
    finally:
        writer.release()


class _LineWriter(PredictionWriter):
    """A line per row."""

    _n_rows, _begun = 0, False

    def write(self, top: _Labels, scores: _Scores, ids: Sequence[str] | None = None) -> None:
        if not self._begun:
            self._put(self._head(ids is not None))
            self._begun = True
        rows = max(1, _VALUES_AT_ONCE // max(1, top.shape[1]))
        for begin in range(0, len(top), rows):
            part = slice(begin, begin + rows)
            some = self._rows(top[part], scores[part], None if ids is None else ids[part])
            self._put("".join(self._line(*row) for row in some))
        self._n_rows += len(top)

    def _put(self, text: str) -> None:
        self.file.write(text.encode(self.encoding))

    def _head(self, with_ids: bool) -> str:
        return ""

    @abstractmethod
    def _line(self, row_id: str | None, labels: list[str], values: list[str]) -> str: ...

    def _spell(self, label: int) -> str:
        names = self.columns.names
        return str(label) if names is None else json_text(names[label])

    def _spelled_values(self, scores: _Scores) -> list[list[str]]:
        words: list[list[str]] = scores.astype("U").tolist()  # shortest that reads back the same
        if np.isfinite(scores).all():
            return words
        return [[_NOT_FINITE.get(word, word) for word in row] for row in words]

    def _rows(
        self, top: _Labels, scores: _Scores, ids: Sequence[str] | None
    ) -> Iterator[tuple[str | None, list[str], list[str]]]:
        spelled = {label: self._spell(label) for label in np.unique(top).tolist() if label >= 0}
        rows = zip(top.tolist(), self._spelled_values(scores), strict=True)
        for number, (labels, values) in enumerate(rows):
            kept = [value for label, value in zip(labels, values, strict=True) if label >= 0]
            named = [spelled[label] for label in labels if label >= 0]
            yield None if ids is None else ids[number], named, kept


class _TextWriter(_LineWriter):
    """``label:score label:score``, after the id and a tab if there are ids."""

    def _spell(self, label: int) -> str:
        names = self.columns.names
        return str(label) if names is None else spell_name(names[label], self.encoding)

    def _spelled_values(self, scores: _Scores) -> list[list[str]]:
        words: list[list[str]] = scores.astype("U").tolist()
        return words

    def _line(self, row_id: str | None, labels: list[str], values: list[str]) -> str:
        pairs = " ".join(map(":".join, zip(labels, values, strict=True)))
        if row_id is None:
            return f"{pairs}\n"
        bare = row_id.isdecimal() and row_id.isascii()
        return f"{row_id if bare else spell_name(row_id, self.encoding)}\t{pairs}\n"


class _XmcWriter(_TextWriter):
    """XMC text: ``rows labels``, then label numbers.

    Rows are kept in an unlinked temporary file until they have been counted.
    """

    def __init__(self, file: BinaryIO, columns: Columns, encoding: str = "utf-8") -> None:
        # Closed by `release`; on Windows a wrapper with the same interface.
        self._rows_file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115
        super().__init__(self._rows_file, columns._replace(names=None), encoding)
        self._whole = file

    def write(self, top: _Labels, scores: _Scores, ids: Sequence[str] | None = None) -> None:
        if ids is not None:
            raise DataError("XMC text cannot hold ids: choose another format, or leave them out")
        super().write(top, scores)

    def finish(self) -> None:
        self._whole.write(f"{self._n_rows} {self.columns.n_labels}\n".encode())
        self._rows_file.seek(0)
        shutil.copyfileobj(self._rows_file, self._whole, 1 << 20)

    def release(self) -> None:
        self._rows_file.close()


class _JsonLinesWriter(_LineWriter):
    """``{"labels": […], "scores": […]}``, with ``"id"`` first if there are ids.

    Labels without training rows are listed again as ``"without_rows"``.
    """

    def _line(self, row_id: str | None, labels: list[str], values: list[str]) -> str:
        first = "" if row_id is None else f'"id": {json_text(row_id)}, '
        lists = f'"labels": [{", ".join(labels)}], "{self.columns.values}": [{", ".join(values)}]'
        if marked := [label for label in labels if label in self._marked]:
            lists += f', "without_rows": [{", ".join(marked)}]'
        return f"{{{first}{lists}}}\n"

    @cached_property
    def _marked(self) -> set[str]:
        return set(map(self._spell, self.columns.without_rows))


class _JsonWriter(_JsonLinesWriter):
    """One array of these objects."""

    _before = "[\n"

    def _line(self, row_id: str | None, labels: list[str], values: list[str]) -> str:
        line = self._before + super()._line(row_id, labels, values).rstrip("\n")
        self._before = ",\n"
        return line

    def finish(self) -> None:
        self.file.write(b"\n]\n" if self._n_rows else b"[]\n")


class _CsvWriter(_LineWriter):
    """A table with a header; the cells of labels and scores are JSON lists."""

    _delimiter: ClassVar = ","

    def _head(self, with_ids: bool) -> str:
        return self._cells([*(["id"] if with_ids else []), "labels", self.columns.values])

    def _line(self, row_id: str | None, labels: list[str], values: list[str]) -> str:
        lists = [f"[{', '.join(labels)}]", f"[{', '.join(values)}]"]
        return self._cells([*([] if row_id is None else [row_id]), *lists])

    def _cells(self, cells: list[str]) -> str:
        return self._delimiter.join(map(_csv_cell, cells)) + "\n"


class _TsvWriter(_CsvWriter):
    _delimiter = "\t"


def _csv_cell(cell: str) -> str:
    """Quote a cell such that every CSV or TSV reader returns the same text."""
    return '"' + cell.replace('"', '""') + '"' if _QUOTED_CELL.search(cell) else cell


class _ParquetWriter(PredictionWriter):
    """List columns ``labels`` and ``scores``, and ``id`` if there are ids."""

    _lists: Any = None  # ParquetLists, created with the first rows

    def write(self, top: _Labels, scores: _Scores, ids: Sequence[str] | None = None) -> None:
        names, what = self.columns.names, self.columns.values
        if self._lists is None:
            items = {"labels": "int32" if names is None else "string", what: "float32"}
            arrow = arrow_module("Parquet is written")
            self._lists = arrow.ParquetLists(self.file, items, with_ids=ids is not None)
        kept = top >= 0
        labels: Any = top[kept]
        if names is not None:
            used, places = np.unique(labels, return_inverse=True)
            labels = np.array([names[label] for label in used.tolist()], object)[places]
        self._lists.write(kept.sum(axis=1), [labels, scores[kept]], ids)

    def finish(self) -> None:
        if self._lists is not None:
            self._lists.close()

    def release(self) -> None:
        if self._lists is not None:
            with suppress(Exception):  # for a file that could not be written either
                self._lists.close()


class _NpzWriter(PredictionWriter):
    """Arrays ``labels`` (numbers) and ``scores`` (n_rows, places), and ``ids`` if there are ids."""

    def __init__(self, file: BinaryIO, columns: Columns, encoding: str = "utf-8") -> None:
        super().__init__(file, columns, encoding)
        self._found: list[tuple[_Labels, _Scores]] = []
        self._ids: list[str] | None = None

    def write(self, top: _Labels, scores: _Scores, ids: Sequence[str] | None = None) -> None:
        self._found.append((top, scores))
        if ids is not None:
            self._ids = self._ids or []
            self._ids += ids

    def finish(self) -> None:
        width = max((top.shape[1] for top, _ in self._found), default=0)
        arrays: dict[str, Any] = {
            "labels": np.concatenate([_widened(top, width, -1) for top, _ in self._found]),
            self.columns.values: np.concatenate(
                [_widened(scores, width, -np.inf) for _, scores in self._found]
            ),
        }
        if self._ids is not None:
            arrays["ids"] = np.array(self._ids, dtype=np.str_)
        np.savez_compressed(self.file, **arrays)


def _widened(array: npt.NDArray[Any], width: int, empty: float) -> npt.NDArray[Any]:
    missing = width - array.shape[1]
    return np.pad(array, ((0, 0), (0, missing)), constant_values=empty) if missing else array


_WRITERS: dict[str, type[PredictionWriter]] = {
    "text": _TextWriter,
    "csv": _CsvWriter,
    "tsv": _TsvWriter,
    "jsonl": _JsonLinesWriter,
    "json": _JsonWriter,
    "parquet": _ParquetWriter,
    "npz": _NpzWriter,
    "xmc": _XmcWriter,
}
