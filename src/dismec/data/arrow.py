"""Arrow's columns ⇄ ours: the one module that imports pyarrow, the extra ``arrow``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dismec.errors import DismecError

__all__ = ["ParquetLists", "import_pyarrow"]


def import_pyarrow() -> Any:
    """The package pyarrow.

    Raises
    ------
    DismecError
        If it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise DismecError(
            f"Parquet needs {error.name}, which is not installed: pip install 'dismec[arrow]'"
        ) from None
    return pyarrow


# Writing


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
        self._pa = pa = import_pyarrow()
        self._types = {name: getattr(pa, kind)() for name, kind in items.items()}
        fields = [pa.field("id", pa.string())] if with_ids else []
        fields += [pa.field(name, pa.list_(kind)) for name, kind in self._types.items()]
        self._schema = pa.schema(fields)
        self._writer = pa.parquet.ParquetWriter(file, self._schema)

    def write(
        self,
        lengths: npt.NDArray[np.integer[Any]],
        items: dict[str, Sequence[str] | npt.NDArray[Any]],
        ids: Sequence[str] | None = None,
    ) -> None:
        """Write rows: the length of each one's lists, and the items of all of them end to end."""
        pa = self._pa
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
