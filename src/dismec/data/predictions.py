"""Top k → files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from dismec.data.files import whole_file

__all__ = ["print_text", "write_predictions"]

Labels = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float32]


def print_text(top: Labels, scores: Scores, names: Sequence[str] | None, out: TextIO) -> None:
    """One line per row: ``label:score label:score``, best first.

    A name takes the place of the label's number; blanks in it become underscores, so that a line
    can be split at blanks and an entry at its last colon.
    """
    clean = None if names is None else ["_".join(name.split()) for name in names]
    for row in _rows(top, scores, clean):
        out.write(" ".join(f"{label}:{score:.6g}" for label, score in row) + "\n")


def write_predictions(
    top: Labels,
    scores: Scores,
    names: Sequence[str] | None,
    path: str | Path,
    *,
    what: str = "scores",
) -> None:
    """Write predictions in the format of the file's ending, atomically.

    ``.jsonl``: a line ``{"labels": [...], "scores": [...]}`` per row. ``.npz``: arrays ``labels``
    and ``scores`` (n_rows, k), −1 and −inf for places beyond the number of labels. Else text.
    `what` names the scores there.
    """
    path = Path(path)
    with whole_file(path) as file:
        if path.suffix == ".npz":
            arrays: dict[str, Any] = {"labels": top, what: scores}
            np.savez_compressed(file, **arrays)
            return
        text = TextIOWrapper(file, encoding="utf-8", newline="\n")
        if path.suffix == ".jsonl":
            for row in _rows(top, scores, names):
                entry = {"labels": [label for label, _ in row], what: [s for _, s in row]}
                text.write(json.dumps(entry, ensure_ascii=False) + "\n")
        else:
            print_text(top, scores, names, text)
        text.flush()
        text.detach()


def _rows(
    top: Labels, scores: Scores, names: Sequence[str] | None
) -> Iterator[list[tuple[Any, float]]]:
    for labels, values in zip(top, scores, strict=True):
        shortest = (float(np.format_float_positional(v)) if np.isfinite(v) else v for v in values)
        yield [
            (names[label] if names is not None else label, score)
            for label, score in zip(labels.tolist(), shortest, strict=True)
            if label >= 0
        ]
