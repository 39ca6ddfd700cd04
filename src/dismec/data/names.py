"""Names of labels and terms: one per line in a file, or end to end in arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from dismec.data.container import ContainerError
from dismec.data.files import StrPath
from dismec.errors import DataError

__all__ = ["Names", "check_names", "load_names", "pack_names", "unpack_names"]


def pack_names(names: Iterable[str]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Names end to end as UTF-8, and where each of them begins and the last one ends."""
    encoded = [name.encode() for name in names]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets


class Names(Sequence[str]):
    """Names that become text when they are asked for: of millions, few ever are."""

    def __init__(self, utf8: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any]) -> None:
        self._utf8, self._offsets = utf8, offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return self._utf8[self._offsets[place] : self._offsets[place + 1]].tobytes().decode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def unpack_names(utf8: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any]) -> Names:
    """The inverse of `pack_names`; ``ContainerError`` for arrays that it cannot have made."""
    if offsets.ndim != 1 or (utf8.dtype, offsets.dtype) != (np.uint8, np.int64):
        raise ContainerError("the label names are not UTF-8 and its offsets")
    bounds = [*offsets[:1], *offsets[-1:]]
    if bounds != [0, utf8.size] or utf8.ndim != 1 or np.any(offsets[1:] < offsets[:-1]):
        raise ContainerError("the label names are out of order")
    try:
        utf8.tobytes().decode()
    except UnicodeDecodeError as error:
        raise ContainerError("the label names are not UTF-8") from error
    inner = offsets[offsets < utf8.size]
    if np.any(utf8[inner] & 0xC0 == 0x80):  # the middle of a character
        raise ContainerError("the label names are not UTF-8")
    return Names(utf8, offsets)


def load_names(path: StrPath) -> list[str]:
    """Names of labels from a text file, one per line, none of them empty; UTF-8."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    names = []
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n"), start=1):
        try:
            name = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            raise DataError(f"{path}:{number}: not UTF-8") from None
        if not name:
            raise DataError(f"{path}:{number}: a label without a name")
        names.append(name)
    return names


def check_names(names: Sequence[str] | None, n_labels: int) -> list[str] | None:
    """Label names as a list, if there is one text for each label that a file can hold."""
    if names is None:
        return None
    if len(names) != n_labels:
        raise DataError(f"there are {len(names)} label names for {n_labels} labels")
    for label, name in enumerate(names):
        if not isinstance(name, str):
            raise DataError(f"label {label}: its name is {name!r}, which is not text")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DataError(f"label {label}: its name {name!r} is not sound Unicode") from None
    return [str(name) for name in names]
