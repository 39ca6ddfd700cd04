"""Parquet, Arrow and Zstandard: the only importer of pyarrow, which is an extra."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["ARROW_ERRORS", "ArrowTable", "zstd_stream"]

ARROW_ERRORS = (pa.ArrowException, OSError)
_ROWS = 4096  # read at a time


def zstd_stream(file: Any) -> Any:
    """A file object with the decompressed bytes of another."""
    return pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")


class ArrowTable:
    """The columns of an open Parquet or Arrow file; any call may raise one of `ARROW_ERRORS`."""

    def __init__(self, file: Any, *, parquet: bool) -> None:
        in_place = file.seekable()
        source = pa.PythonFile(file, "r") if in_place else pa.BufferReader(file.read())
        self._parquet: Any = None
        self._arrow: Any = None
        if parquet:
            self._parquet = pq.ParquetFile(source)
            self.names: list[str] = self._parquet.schema_arrow.names
        else:
            try:
                self._arrow = pa.ipc.open_file(source)
            except pa.ArrowInvalid:  # not the form with an index of its batches
                source.seek(0)
                self._arrow = pa.ipc.open_stream(source)
            self.names = self._arrow.schema.names

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """The values of these columns, row by row, as Python objects."""
        for batch in self._batches(columns):
            for begin in range(0, batch.num_rows, _ROWS):
                part = batch.slice(begin, _ROWS)
                yield from zip(*(part.column(name).to_pylist() for name in columns), strict=True)

    def _batches(self, columns: Sequence[str]) -> Iterator[Any]:
        if self._parquet is not None:
            yield from self._parquet.iter_batches(_ROWS, columns=list(columns))
        elif hasattr(self._arrow, "num_record_batches"):
            for i in range(self._arrow.num_record_batches):
                yield self._arrow.get_batch(i).select(list(columns))
        else:
            for batch in self._arrow:
                yield batch.select(list(columns))
