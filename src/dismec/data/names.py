"""Names of labels and terms: one per line in a file, or concatenated in arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, overload

import numpy as np

from dismec.data.container import ContainerError
from dismec.data.counts import counted
from dismec.data.files import StrPath, decode_utf8, read_bytes
from dismec.data.printable import can_encode
from dismec.errors import DataError

_NAMES_AT_ONCE = 1 << 12  # few enough that the intermediate results stay in the cache
_NAMES_SHOWN = 6  # names shown by `repr`


def pack_names(names: Iterable[str]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return concatenated names as UTF-8, and where each of them starts and the last one ends."""
    if isinstance(names, Names):
        return names.utf8, names.offsets
    encoded = [name.encode() for name in names]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=offsets[1:])
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets


class Names(Sequence[str]):
    """Names that are decoded on access: of millions, few ever are.

    `utf8` and `offsets` are as returned by `pack_names`.
    """

    def __init__(self, utf8: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any]) -> None:
        self.utf8, self.offsets = utf8, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        shown = [repr(name) for name in self[:_NAMES_SHOWN]]
        if len(self) > _NAMES_SHOWN:
            shown.append(f"… {len(self):,} in all")
        return f"Names([{', '.join(shown)}])"

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return self.utf8[self.offsets[place] : self.offsets[place + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        for begin in range(0, len(self), _NAMES_AT_ONCE):
            bounds = self.offsets[begin : begin + _NAMES_AT_ONCE + 1]
            encoded = self.utf8[bounds[0] : bounds[-1]].tobytes()
            for first, last in pairwise((bounds - bounds[0]).tolist()):
                yield encoded[first:last].decode()

    def find(self, name: str) -> int | None:
        """Return the place of a name, the first one for duplicates; None if it is missing.

        The first call builds an index of all names, with 16 bytes per name.
        """
        try:
            utf8 = np.frombuffer(name.encode(), np.uint8)
        except UnicodeEncodeError:
            return None
        hashes, places = self._index
        wanted = _hashes(utf8, np.array([0, len(utf8)]))
        begin, end = (int(np.searchsorted(hashes, wanted, side)[0]) for side in ("left", "right"))
        return next((p for p in places[begin:end].tolist() if self[p] == name), None)

    @cached_property
    def _index(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the sorted hashes of all names, and the places of the names."""
        hashes = np.empty(len(self), np.uint64)
        for begin in range(0, len(self), _NAMES_AT_ONCE):
            bounds = self.offsets[begin : begin + _NAMES_AT_ONCE + 1]
            part = _hashes(self.utf8[bounds[0] : bounds[-1]], bounds - bounds[0])
            hashes[begin : begin + _NAMES_AT_ONCE] = part
        places = np.argsort(hashes, kind="stable")
        return hashes[places], places

    def find_all(self, names: Sequence[str]) -> list[int | None]:
        """Like `find` for many names, in a tenth of the time."""
        try:
            wanted = _hashes(*pack_names(names))
        except UnicodeEncodeError:
            return list(map(self.find, names))
        hashes, places = self._index
        if not len(places):
            return [None] * len(names)
        first = places[np.minimum(np.searchsorted(hashes, wanted), len(places) - 1)]
        pairs = zip(first.tolist(), names, strict=True)
        return [place if self[place] == name else self.find(name) for place, name in pairs]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        try:
            utf8, offsets = pack_names(other)
        except (AttributeError, UnicodeEncodeError):  # not texts, or not valid ones
            return False
        return np.array_equal(self.offsets, offsets) and np.array_equal(self.utf8, utf8)

    __hash__ = None  # type: ignore[assignment]


def _hashes(
    utf8: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any]
) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return a number per name: the sum of its bytes, each times a factor for its position."""
    starts, lengths = offsets[:-1], np.diff(offsets)
    places = np.arange(len(utf8)) - np.repeat(starts, lengths)
    factors = _factors()
    hashes = lengths.astype(np.uint64)
    filled = lengths > 0
    if filled.any():
        terms = (utf8 + np.uint64(1)) * factors[places % len(factors)]
        hashes[filled] += np.add.reduceat(terms, starts[filled])
    return hashes


@cache
def _factors() -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.random.default_rng(0).integers(0, 2**64, 1024, dtype=np.uint64)


def unpack_names(utf8: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any]) -> Names:
    """Invert `pack_names`; raise ``ContainerError`` for arrays that it cannot have created."""
    if offsets.ndim != 1 or (utf8.dtype, offsets.dtype) != (np.uint8, np.int64):
        raise ContainerError("the label names are not UTF-8 text with offsets")
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


def load_names(path: StrPath, *, blanks: bool = False) -> list[str]:
    """Read label names from a UTF-8 text file, one per line, none of them empty.

    With `blanks`, blank lines are kept as empty names, for callers that skip them.
    """
    content = read_bytes(path).removesuffix(b"\n")
    names = list(map(str.strip, decode_utf8(path, content).split("\n")))
    if "" in names and not blanks:
        raise DataError(f"{path}:{1 + names.index('')}: a label without a name")
    return names


def check_names(names: Sequence[str] | None, n_labels: int) -> list[str] | None:
    """Return label names as a list after checking that there is one valid text per label.

    White space around a name is removed.
    """
    if names is None:
        return None
    if len(names) != n_labels:
        raise DataError(f"{counted(len(names), 'label name')} for {counted(n_labels, 'label')}")
    found = list(names)
    if _is_sound(found):
        return list(map(str.strip, found))
    for label, name in enumerate(names):
        if not isinstance(name, str):
            raise DataError(f"label {label}: its name is {name!r}, which is not text")
        if not can_encode(name):
            raise DataError(f"label {label}: its name {name!r} is not valid Unicode")
    return [str(name).strip() for name in names]


def _is_sound(names: list[str]) -> bool:
    """Return whether all names are certainly valid; checked at once, as there may be millions."""
    return set(map(type, names)) <= {str} and can_encode("".join(names))
