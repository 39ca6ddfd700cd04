"""Named arrays ⇄ one memory-mapped safetensors file.

The file consists of eight bytes of header length, a JSON header with each array's type, shape and
position, and then the arrays, back to back. Any safetensors library can read it. This module parses
it itself, because arrays are returned as views of the mapped file, without a copy, and because
nothing in a file may be trusted before it has been checked.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from dismec.data.files import map_file, whole_file

_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_METADATA = "__metadata__"
_MAX_HEADER = 100_000_000  # the limit of the safetensors format
_ALIGNMENT = 64  # alignment of the first array: a cache line


class ContainerError(ValueError):
    """A file that is not a valid container; the message is the reason, without the path."""


@dataclass(frozen=True)
class Spooled:
    """An array stored in its own file, as little-endian bytes, to be copied from there."""

    file: IO[bytes]
    dtype: np.dtype[Any]
    width: int | None = None  # number of columns, for a matrix

    @property
    def nbytes(self) -> int:
        """Size of the file in bytes."""
        return self.file.seek(0, os.SEEK_END)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a matrix if it has a width, otherwise of a vector."""
        size = self.nbytes // self.dtype.itemsize
        return (size,) if self.width is None else (size // self.width, self.width)


def write_arrays(
    path: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray[Any, Any] | Spooled],
    metadata: Mapping[str, str],
    digest: Any = None,
    *,
    follow: bool = True,
) -> None:
    """Write arrays and metadata to ``path``, atomically.

    The same arrays and metadata always give the same bytes. The format does not support arrays of
    Python objects, booleans, text and complex numbers; they raise ``TypeError``. A `digest` from
    `hashlib` is updated with the bytes as they are written, on a separate thread.
    """
    header: dict[str, Any] = {_METADATA: {str(k): str(v) for k, v in sorted(metadata.items())}}
    # Wide types first, so every array is aligned to its own item size without gaps.
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    offset = 0
    for name, array in ordered:
        dtype = array.dtype.newbyteorder("<")
        if dtype not in _NAMES or name == _METADATA:
            raise TypeError(f"array {name!r} of type {array.dtype} cannot be stored")
        end = offset + array.nbytes
        header[name] = {
            "dtype": _NAMES[dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    if len(text) > _MAX_HEADER:
        raise ValueError(f"names and metadata take {len(text)} bytes; at most {_MAX_HEADER} fit")
    with whole_file(path, follow=follow) as file, ThreadPoolExecutor(1) as pool:

        def write(part: Any) -> None:
            hashed = pool.submit(digest.update, part) if digest else None
            file.write(part)
            if hashed:
                hashed.result()

        write(len(text).to_bytes(8, "little") + text)
        for _, array in ordered:
            if isinstance(array, Spooled):
                array.file.seek(0)
                while part := array.file.read(1 << 20):
                    write(part)
                continue
            little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
            if little.size:
                write(little.data)


def open_arrays(
    path: str | os.PathLike[str],
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, str]]:
    """Map a container into memory and return ``(arrays, metadata)``.

    The arrays are read-only views of the file: nothing is read until it is accessed, and processes
    that open the same file share one copy. The caller must check the contents of the arrays; a file
    that is not a container, is truncated or has an inconsistent header raises `ContainerError`.
    """
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 8:
            raise ContainerError("the file is empty" if size == 0 else "the file is cut off")
        mapped = map_file(file.fileno(), Path(path).name)
    length = int.from_bytes(mapped[:8], "little")
    if length > _MAX_HEADER:
        raise ContainerError("not a safetensors file (the header would be too long)")
    if length > len(mapped) - 8:
        raise ContainerError("the file is cut off within its header")
    header = _parse_header(mapped[8 : 8 + length])
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ContainerError("the metadata is not a map from text to text")

    start = 8 + length
    places: list[tuple[int, int]] = []
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, entry in header.items():
        dtype, shape, begin, end = _parse_entry(name, entry)
        if end > len(mapped) - start:
            raise ContainerError(f"the file is cut off within array {name!r}")
        if (start + begin) % dtype.itemsize:
            raise ContainerError(f"array {name!r} is not aligned")
        places.append((begin, end))
        try:
            arrays[name] = np.ndarray(shape, dtype, buffer=mapped, offset=start + begin)
        except (ValueError, OverflowError, TypeError) as error:
            raise ContainerError(f"array {name!r} has an impossible shape") from error
    reached = 0
    for begin, end in sorted(places):
        if begin != reached:
            raise ContainerError("arrays overlap or leave a gap")
        reached = end
    if start + reached != len(mapped):
        raise ContainerError("bytes follow the last array")
    return arrays, metadata


def forget(array: np.ndarray[Any, Any]) -> None:
    """Release the memory of a mapped file until the next access; do nothing for other arrays."""
    if isinstance(array.base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        array.base.madvise(mmap.MADV_DONTNEED)


def _parse_header(text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name occurs twice")
        return found

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        header = json.loads(text.decode(), object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ContainerError("not a safetensors file (the header is not valid JSON)") from error
    if not isinstance(header, dict):
        raise ContainerError("not a safetensors file (the header is not a JSON object)")
    return header


def _parse_entry(name: str, entry: Any) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    """Return type, shape, first and last byte of an array, with size and shape checked."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ContainerError(f"array {name!r} is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ContainerError(f"array {name!r} has a type that is not supported")
    if not _is_sizes(shape) or not _is_sizes(offsets) or len(offsets) != 2:
        raise ContainerError(f"array {name!r} has an invalid shape or invalid offsets")
    begin, end = offsets
    if math.prod(shape) * _DTYPES[dtype].itemsize != end - begin:
        raise ContainerError(f"array {name!r} has a size that disagrees with its shape")
    return _DTYPES[dtype], tuple(shape), begin, end


def _is_sizes(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= 32
        and all(type(size) is int and 0 <= size < 2**63 for size in value)
    )
