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

__all__ = ["Duplicates", "describe_duplicates", "row_hashes"]

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
        self._known = np.empty(0, np.uint64)  # sorted
        self._beginnings: dict[int, str] = {}

    def add(self, texts: Sequence[str]) -> None:
        """Add the next rows."""
        plain = [" ".join(text.split()) for text in texts]
        hashes = np.fromiter(
            (_hash(text.encode()) if text else 0 for text in plain), np.uint64, len(plain)
        )
        distinct, first, times = np.unique(hashes, return_index=True, return_counts=True)
        place = np.searchsorted(self._known, distinct)
        is_known = np.append(self._known, np.uint64(0))[place] == distinct
        for i in np.flatnonzero((times > 1) | is_known).tolist():
            if distinct[i] and len(self._beginnings) < _MOST_BEGINNINGS:
                text = plain[first[i]]
                self._beginnings[int(distinct[i])] = text[:_BEGINNING] + "…" * (
                    len(text) > _BEGINNING
                )
        self._hashes.append(hashes)
        # Two sorted runs: sorting merges them.
        self._known = np.sort(np.concatenate([self._known, distinct[~is_known]]), kind="stable")

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
    _, group_of, sizes = np.unique(hashes, return_inverse=True, return_counts=True)
    repeated = np.flatnonzero((sizes[group_of] > 1) & (hashes != 0))
    order = repeated[np.lexsort((repeated, group_of[repeated]))]
    edges = np.flatnonzero(np.diff(group_of[order])) + 1
    groups = [group for group in np.split(order, edges) if len(group)]
    differ = [len({_labels_of(Y, row) for row in group.tolist()}) > 1 for group in groups]
    ranked = sorted(range(len(groups)), key=lambda i: (-len(groups[i]), groups[i][0]))
    return {
        "groups": len(groups),
        "rows": len(repeated),
        "groups whose labels differ": sum(differ),
        "examples": [
            {
                "times": len(groups[i]),
                "rows": (groups[i][:_ROWS_NAMED] + 1).tolist(),
                "labels differ": differ[i],
                **_beginning(beginnings, int(hashes[groups[i][0]])),
            }
            for i in ranked[:_LISTED]
        ],
    }


def _labels_of(Y: sp.csr_array, row: int) -> bytes:
    labels: bytes = np.sort(Y.indices[Y.indptr[row] : Y.indptr[row + 1]]).tobytes()
    return labels


def _beginning(beginnings: dict[int, str] | None, key: int) -> dict[str, str]:
    return {"text": beginnings[key]} if beginnings and key in beginnings else {}
