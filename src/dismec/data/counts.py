"""Counts: checked, and in words."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from dismec.errors import DataError


def check_k(k: Any) -> int:
    """Check k, the number of places per row: an integer of at least 1."""
    try:
        number = operator.index(k)
    except TypeError:
        raise DataError(f"k is {k!r}; expected a whole number of at least 1") from None
    if number < 1:
        raise DataError(f"k is {number}; expected at least 1")
    return number


def check_ks(ks: Any) -> tuple[int, ...]:
    """Check the values of k to report, of which there must be at least one."""
    if isinstance(ks, str) or not isinstance(ks, Iterable):
        raise DataError(f"ks is {ks!r}; expected values of k such as (1, 3, 5)")
    found = tuple(map(check_k, ks))
    if not found:
        raise DataError("ks is empty; expected at least one value of k")
    return found


def counted(n: int, what: str) -> str:
    """Format a count with its noun, in the plural unless it is 1.

    Examples
    --------
    >>> print(counted(1, "label"), counted(2000, "row"), counted(0, "class"), sep=", ")
    1 label, 2,000 rows, 0 classes
    """
    if n == 1:
        return f"1 {what}"
    if what.endswith(("ss", "x", "ch")):
        return f"{n:,} {what}es"
    return f"{n:,} {what[:-1]}ies" if what.endswith("ry") else f"{n:,} {what}s"
