"""Rows → duplicates, and whether their labels differ.

Rows are compared by a 64-bit hash, and only hashes are kept: with a million rows, two different
rows collide in one of 40 million data sets. Empty rows do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.solve.partition import repeated

_LISTED = 10  # groups of equal rows that are listed
_ROWS_NAMED = 5  # rows listed per group
_MOST_BEGINNINGS = 50_000  # duplicate texts whose beginnings are kept for display
_BEGINNING = 120  # characters

_Hashes = npt.NDArray[np.uint64]


def row_hashes(X: sp.csr_array) -> _Hashes:
    """Return a hash for each row of a matrix with sorted indices; 0 for empty rows."""
    indices, data = np.ascontiguousarray(X.indices), np.ascontiguousarray(X.data)
    return np.fromiter(
        (
            _hash(indices[begin:end].tobytes() + data[begin:end].tobytes()) if end > begin else 0
            for begin, end in pairwise(X.indptr.tolist())
        ),
        np.uint64,
        X.shape[0],
    )


def _hash(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little") or 1


class Duplicates:
    """Collects texts one batch at a time, ignoring differences in white space."""

    def __init__(self) -> None:
        self._hashes: list[_Hashes] = []
        self._known = np.empty(0, np.uint64)
        self._beginnings: dict[int, str] = {}

    def add(self, texts: Sequence[str]) -> None:
        """Add the next rows."""
        plain = [" ".join(text.split()) for text in texts]
        hashes = np.fromiter(
            (_hash(text.encode()) if text else 0 for text in plain), np.uint64, len(plain)
        )
        distinct, first, times = np.unique(hashes, return_index=True, return_counts=True)
        is_repeated = (times > 1) | np.isin(distinct, self._known)
        for i in np.flatnonzero(is_repeated).tolist():
            if distinct[i] and len(self._beginnings) < _MOST_BEGINNINGS:
                text = plain[first[i]]
                self._beginnings[int(distinct[i])] = text[:_BEGINNING] + "…" * (
                    len(text) > _BEGINNING
                )
        self._hashes.append(hashes)
        self._known = np.union1d(self._known, distinct)

    def facts(self, Y: sp.csr_array) -> dict[str, Any]:
        """Like `describe_duplicates`, with the beginning of each text."""
        hashes = np.concatenate([np.empty(0, np.uint64), *self._hashes])
        return describe_duplicates(hashes, Y, self._beginnings)


def describe_duplicates(
    hashes: _Hashes, Y: sp.csr_array, beginnings: dict[int, str] | None = None
) -> dict[str, Any]:
    """Describe which rows occur several times.

    "groups" of equal rows; "rows", the number of rows in them; "groups whose labels differ"; and
    "examples", the largest groups: how often ("times"), the "rows" (the first few, counted from 1),
    whether the "labels differ", and the beginning of the "text", if known.
    """
    groups = [group for group in groups_of_equals(hashes) if hashes[group[0]]]
    groups.sort(key=lambda group: (-len(group), group[0]))

    def differ(group: npt.NDArray[np.int64]) -> bool:
        cuts = (slice(*Y.indptr[[row, row + 1]]) for row in group)
        return len({np.sort(Y.indices[cut]).tobytes() for cut in cuts}) > 1

    examples: list[dict[str, Any]] = [
        {
            "times": len(group),
            "rows": (group[:_ROWS_NAMED] + 1).tolist(),
            "labels differ": differ(group),
        }
        for group in groups[:_LISTED]
    ]
    for example, group in zip(examples, groups, strict=False):
        text = (beginnings or {}).get(int(hashes[group[0]]))
        if text is not None:
            example["text"] = text
    return {
        "groups": len(groups),
        "rows": sum(map(len, groups)),
        "groups whose labels differ": sum(map(differ, groups)),
        "examples": examples,
    }


def groups_of_equals(values: npt.NDArray[Any]) -> list[npt.NDArray[np.int64]]:
    """Return the places of each value that occurs several times, in ascending order."""
    places = repeated(values)
    order = places[np.argsort(values[places], kind="stable")]
    edges = np.flatnonzero(values[order][1:] != values[order][:-1]) + 1
    return np.split(order, edges) if len(order) else []
