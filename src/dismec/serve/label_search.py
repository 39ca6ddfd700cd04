"""Part of a name → labels, among millions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

__all__ = ["LabelSearch"]

_BETWEEN = b"\xff"  # separates names; not a byte of UTF-8


class LabelSearch:
    """Finds labels by part of their names, ignoring case; without names, by number.

    It keeps a second, case-folded copy of all names, concatenated, and a search is a few passes
    over these bytes: tens of milliseconds for a million names.
    """

    def __init__(self, names: Sequence[str] | None, n_labels: int) -> None:
        self._n_labels = n_labels
        self._folded: bytes | None = None
        if names is not None:
            folded = [name.casefold().encode() for name in names]
            ends = np.cumsum([0, *(1 + len(name) for name in folded)])
            self._starts = ends[:-1]
            self._folded = _BETWEEN + _BETWEEN.join([*folded, b""])

    def find(self, part: str, limit: int) -> list[int]:
        """Return at most `limit` labels: exact matches first, then prefixes, then other matches.

        White space around `part` is ignored. Ties are in label order.
        """
        wanted = part.strip().casefold().encode(errors="replace")
        if self._folded is None:
            return list(islice(self._numbered(wanted.decode()), limit))
        found: dict[int, None] = {}
        whole = _BETWEEN + wanted
        for pattern in (whole + _BETWEEN, whole, wanted):
            for label in self._holding(pattern) if pattern else ():
                found[label] = None
                if len(found) >= limit:
                    return list(found)
        return list(found)

    def beginning_with(self, prefix: str) -> Iterator[int]:
        """Yield the labels whose names start with `prefix`, in order; all if it is empty."""
        wanted = prefix.strip().casefold()
        if self._folded is None or not wanted:
            return self._numbered(wanted) if self._folded is None else iter(range(self._n_labels))
        return self._holding(_BETWEEN + wanted.encode(errors="replace"))

    def _holding(self, pattern: bytes) -> Iterator[int]:
        """Yield the labels whose folded names contain these bytes, each once, in order."""
        assert self._folded is not None
        place = self._folded.find(pattern)
        while 0 <= place < len(self._folded) - 1:
            label = int(np.searchsorted(self._starts, place, "right")) - 1
            yield label
            following = self._starts[label + 1] if label + 1 < self._n_labels else len(self._folded)
            place = self._folded.find(pattern, int(following))

    def _numbered(self, digits: str) -> Iterator[int]:
        """Yield the labels whose numbers start with these digits; all if there are none."""
        if not digits:
            yield from range(self._n_labels)
        if not digits.isdecimal() or len(digits) > 18 or digits != str(int(digits)):
            return
        first, several = int(digits), 1
        while first < self._n_labels:
            yield from range(first, min(first + several, self._n_labels))
            if first == 0:
                return
            first, several = 10 * first, 10 * several
