"""Parquet, Arrow and Zstandard ⇄ rows. The only module that imports pyarrow, the extra ``arrow``.

Import this module only where it is needed, and tell the user what to install if that fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

ARROW_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError)  # the last for column names
_ROWS = 4096  # rows read at a time
# Limits for the rows of a Parquet file: millions of equal rows take hardly any space in it.
_ALWAYS_ROWS, _ROWS_PER_BYTE = 1 << 20, 100


def zstd_stream(file: Any) -> Any:
    """Return a file object with the decompressed bytes of another."""
    return pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")


class ArrowTable:
    """The columns of an open Parquet or Arrow file; any call may raise one of `ARROW_ERRORS`."""

    def __init__(self, file: Any, *, parquet: bool) -> None:
        in_place = file.seekable()
        source = pa.PythonFile(file, "r") if in_place else pa.BufferReader(file.read())
        self._file: Any
        if parquet:
            self._file = _parquet_file(source)
        else:
            try:
                self._file = pa.ipc.open_file(source)
            except pa.ArrowInvalid:  # not the format with an index of its batches
                source.seek(0)
                self._file = pa.ipc.open_stream(source)
        self.names: list[str] = (self._file.schema_arrow if parquet else self._file.schema).names

    def rows(self, columns: list[str]) -> Iterator[dict[str, Any]]:
        """Yield the values of these columns, row by row, as Python objects."""
        for batch in self._batches(columns):
            some = batch.select(columns)
            some.validate(full=True)  # otherwise an index out of range crashes the process
            for begin in range(0, some.num_rows, _ROWS):
                yield from some.slice(begin, _ROWS).to_pylist()

    def _batches(self, columns: list[str]) -> Iterable[Any]:
        if isinstance(self._file, pq.ParquetFile):
            return self._file.iter_batches(_ROWS, columns=columns)  # type: ignore[no-any-return]
        if isinstance(self._file, pa.ipc.RecordBatchFileReader):
            return map(self._file.get_batch, range(self._file.num_record_batches))
        return self._file  # type: ignore[no-any-return]


def _parquet_file(source: Any) -> Any:
    """Open a Parquet file so that repeated texts are in memory only once."""
    found = pq.ParquetFile(source)
    n_rows, size = found.metadata.num_rows, source.size()
    if n_rows > max(_ALWAYS_ROWS, _ROWS_PER_BYTE * size):
        raise pa.ArrowInvalid(f"too many rows for its size: {n_rows:,}")
    kinds = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    texts = [field.name for field in found.schema_arrow if field.type in kinds]
    source.seek(0)
    return pq.ParquetFile(source, read_dictionary=texts)


class ParquetLists:
    """Writes rows of lists to a Parquet file, one row group at a time.

    The file is binary and written sequentially. `items` are the list columns and their item types:
    "string", "int32" or "float32". With `with_ids`, a text column ``id`` comes first.
    """

    def __init__(self, file: BinaryIO, items: dict[str, str], *, with_ids: bool) -> None:
        fields = [pa.field("id", pa.string())] if with_ids else []
        fields += [(name, pa.list_(getattr(pa, kind)())) for name, kind in items.items()]
        self._writer = pq.ParquetWriter(file, pa.schema(fields))
        self.close = self._writer.close  # writes the end, without which it cannot be read

    def write(
        self,
        lengths: npt.NDArray[np.integer[Any]],
        items: Sequence[Sequence[str] | npt.NDArray[Any]],
        ids: Sequence[str] | None = None,
    ) -> None:
        """Write rows, given the lengths of their lists and the concatenated items of each."""
        schema = self._writer.schema
        bounds = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        lists = [field.type.value_type for field in schema if field.name != "id"]
        columns = [pa.array(ids, pa.string())] if ids is not None else []
        columns += [
            pa.ListArray.from_arrays(bounds, pa.array(values, kind))
            for values, kind in zip(items, lists, strict=True)
        ]
        self._writer.write_table(pa.table(columns, schema=schema))
