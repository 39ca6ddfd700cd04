"""A score → what each feature, and each word of a text, adds to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dismec.errors import DataError
from dismec.features import Rows

__all__ = ["Contribution", "Explanation", "contributions", "highlights"]


class Contribution(NamedTuple):
    """What one feature of a row adds to a score.

    Attributes
    ----------
    feature
        Its number.
    value
        Its value in the row, transformed as the model does.
    weight
        The label's weight for it.
    contribution
        value · weight.
    term
        What the feature stands for, if that is known.
    """

    feature: int
    value: float
    weight: float
    contribution: float
    term: str | None = None


@dataclass(frozen=True)
class Explanation:
    """Why a row has the score that it has for a label.

    Attributes
    ----------
    label, name
        The label and its name, if it has one.
    score
        Bit for bit what `Model.predict_topk` gives.
    probability
        That of the label, if the model is calibrated.
    bias
        What the bias adds, whatever the row.
    terms
        What the features of the row add, the largest in magnitude first; those for which the label
        has no weight add nothing and are left out. Together with `bias` they sum to the score, but
        for the rounding of a float32.
    """

    label: int
    name: str | None
    score: float
    probability: float | None
    bias: float
    terms: list[Contribution]

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold; what is not known is left out."""
        result = _known({field.name: getattr(self, field.name) for field in fields(self)})
        result["terms"] = [_known(term._asdict()) for term in self.terms]
        return result


def contributions(
    row: Rows, weights: npt.NDArray[np.float32], n_features: int, terms: Sequence[str] | None = None
) -> tuple[float, list[Contribution]]:
    """The bias's part and the features' parts of a score, as an `Explanation` has them.

    Parameters
    ----------
    row
        One row, transformed: its bias feature has number `n_features`.
    weights
        That of each entry of the row.
    n_features
        Number of features, without the bias.
    terms
        One for each feature, or None.

    Raises
    ------
    DataError
        If there are not as many terms as features.
    """
    if terms is not None and len(terms) != n_features:
        raise DataError(f"there are {len(terms)} terms for {n_features} features")
    parts = row.data.astype(np.float64) * weights
    of_bias = row.indices == n_features
    used = np.flatnonzero((weights != 0) & ~of_bias)
    order = used[np.argsort(-np.abs(parts[used]), kind="stable")]
    columns = (array[order].tolist() for array in (row.indices, row.data, weights, parts))
    found = [
        Contribution(feature, value, weight, part, None if terms is None else terms[feature])
        for feature, value, weight, part in zip(*columns, strict=True)
    ]
    return float(parts[of_bias].sum()), found


def highlights(
    explanation: Explanation, spans: Iterable[tuple[int, int, int]]
) -> list[tuple[int, int, float]]:
    """What each word of a text adds to a score.

    A feature's contribution is divided equally over the places where it occurs, and there equally
    over the words that it covers. So the sum over all words is that of the features that occur.

    Parameters
    ----------
    explanation
        That of the text.
    spans
        ``(feature, begin, end)`` of each occurrence in the text, in any order. Words
        are the pieces into which all of them cut it; what one skips between two others is none.

    Returns
    -------
    list
        ``(begin, end, contribution)`` of words that features with a contribution cover, in the
        order of the text; no two overlap.
    """
    places = [span for span in spans if span[1] < span[2]]
    begins, ends = {begin for _, begin, _ in places}, {end for _, _, end in places}
    # The blank between the words of a pair lies between an end and a begin.
    words = [
        (begin, end)
        for begin, end in pairwise(sorted(begins | ends))
        if begin in begins or end in ends
    ]
    first = {begin: number for number, (begin, _) in enumerate(words)}
    last = {end: number for number, (_, end) in enumerate(words)}
    occurrences: dict[int, list[tuple[int, int]]] = {}
    for feature, begin, end in places:
        occurrences.setdefault(feature, []).append((first[begin], last[end] + 1))
    shares: dict[int, float] = {}
    for term in explanation.terms:
        found = occurrences.get(term.feature, [])
        for start, stop in found:
            share = term.contribution / len(found) / (stop - start)
            for number in range(start, stop):
                shares[number] = shares.get(number, 0.0) + share
    return [(*words[number], shares[number]) for number in sorted(shares)]


def _known(entries: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if value is not None}
