"""A table of labels → a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from dismec.data.files import StrPath, whole_file

__all__ = ["write_sheet"]


def write_sheet(target: StrPath, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns of equal length as UTF-8; None becomes an empty field; quoted as needed."""
    with whole_file(target) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(columns)
        rows.writerows(zip(*columns.values(), strict=True))
        text.detach()
