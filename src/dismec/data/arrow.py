"""Parquet, Arrow and Zstandard ⇄ our rows: the only importer of pyarrow, the extra ``arrow``.

Whoever imports this module does so where it is needed, and says what to install if it fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["ARROW_ERRORS", "ArrowTable", "ParquetLists", "zstd_stream"]

ARROW_ERRORS = (pa.ArrowException, OSError)
_ROWS = 4096  # read at a time
_ALWAYS_ROWS, _ROWS_PER_BYTE = 1 << 20, 100  # that a Parquet file may have: equal ones take no room


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
            self._parquet = _parquet_file(source)
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
            batch.validate(full=True)  # else a place beyond the values ends the process
            values = ((value.as_py() for value in batch.column(name)) for name in columns)
            yield from zip(*values, strict=True)

    def _batches(self, columns: Sequence[str]) -> Iterator[Any]:
        if self._parquet is not None:
            yield from self._parquet.iter_batches(_ROWS, columns=list(columns))
        elif hasattr(self._arrow, "num_record_batches"):
            for i in range(self._arrow.num_record_batches):
                yield self._arrow.get_batch(i).select(list(columns))
        else:
            for batch in self._arrow:
                yield batch.select(list(columns))


def _parquet_file(source: Any) -> Any:
    """A Parquet file, open so that a text that many rows have is in memory once."""
    found = pq.ParquetFile(source)
    n_rows, size = found.metadata.num_rows, source.size()
    if n_rows > max(_ALWAYS_ROWS, _ROWS_PER_BYTE * size):
        raise pa.ArrowInvalid(f"too many rows for its size: {n_rows:,}")
    kinds = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    texts = [field.name for field in found.schema_arrow if field.type in kinds]
    source.seek(0)
    return pq.ParquetFile(source, read_dictionary=texts)


class ParquetLists:
    """Rows that hold lists, written to a Parquet file a row group at a time.

    Parameters
    ----------
    file
        A binary file that is only written to, from its beginning to its end.
    items
        The lists' columns and the type of an item in each: "string", "int32" or "float32".
    with_ids
        Whether there is a column ``id`` of text before them.
    """

    def __init__(self, file: BinaryIO, items: dict[str, str], *, with_ids: bool) -> None:
        self._types = {name: getattr(pa, kind)() for name, kind in items.items()}
        fields = [pa.field("id", pa.string())] if with_ids else []
        fields += [pa.field(name, pa.list_(kind)) for name, kind in self._types.items()]
        self._schema = pa.schema(fields)
        self._writer = pq.ParquetWriter(file, self._schema)

    def write(
        self,
        lengths: npt.NDArray[np.integer[Any]],
        items: dict[str, Sequence[str] | npt.NDArray[Any]],
        ids: Sequence[str] | None = None,
    ) -> None:
        """Write rows: the length of each one's lists, and the items of all of them end to end."""
        bounds = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        columns = [pa.array(ids, pa.string())] if ids is not None else []
        columns += [
            pa.ListArray.from_arrays(bounds, pa.array(items[name], kind))
            for name, kind in self._types.items()
        ]
        self._writer.write_table(pa.table(columns, schema=self._schema))

    def close(self) -> None:
        """Write the end of the file, without which it cannot be read."""
        self._writer.close()
