"""A row and a label → what each feature of the row, or word of the text, adds to the score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dismec.data.counts import counted
from dismec.data.matrices import Rows
from dismec.errors import DataError
from dismec.model.refined_transform import RefinedTransform
from dismec.model.scoring import Predictor, Ranking

_TRACED, _TRACED_TERMS = 5, 5  # labels explained by terms of their own, and terms of each


class Contribution(NamedTuple):
    """The contribution of one feature of a row to a score."""

    feature: int
    value: float  # value in the row, after the transform of the model
    weight: float  # weight of the label for the feature
    contribution: float  # value · weight
    term: str | None = None  # what the feature stands for, if known


class Reason(NamedTuple):
    """The contribution of a likely label to the score of another one, in a refined model."""

    label: int
    name: str | None
    value: float  # how likely the first stage finds it, from 0 to the refinement's scale
    weight: float  # weight of the explained label for it
    contribution: float  # value · weight
    terms: list[Contribution]  # largest contributions to its own score in the first stage

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that JSON can hold, without entries that are None."""
        terms = [_without_none(term._asdict()) for term in self.terms]
        return _without_none(self._asdict() | {"terms": terms})


@dataclass(frozen=True)
class Explanation:
    """Why a row has its score for a label.

    Together, `bias`, `terms`, `reasons` and `embedding` sum to the score, except for the rounding
    of a float32.

    Attributes
    ----------
    label : int
        Number of the label.
    name : str or None
        Its name, if it has one.
    score : float
        The score, bit for bit that of `Model.predict_topk`.
    probability : float or None
        The probability, if the model is calibrated.
    bias : float
        What is added for every row.
    terms : list of Contribution
        What each feature of the row adds, largest magnitude first. Features for which the label has
        no weight are left out.
    reasons : list of Reason
        What labels add that are likely for the row, if the model is refined.
    embedding : float or None
        What the dense features of the row add together, if the model takes any.
    own_text : float or None
        The part of what terms add that is due to the text that describes the label, if there is
        one (``docs/howto/label-texts.md``).
    """

    label: int
    name: str | None
    score: float  # bit for bit what `Model.predict_topk` gives
    probability: float | None  # if the model is calibrated
    bias: float
    terms: list[Contribution]
    reasons: list[Reason] = field(default_factory=list)
    embedding: float | None = None
    own_text: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as a dict that JSON can hold.

        Returns
        -------
        dict
            The attributes by name; those that are None are left out.
        """
        result = _without_none({field.name: getattr(self, field.name) for field in fields(self)})
        result["terms"] = [_without_none(term._asdict()) for term in self.terms]
        del result["reasons"]
        if self.reasons:
            result["reasons"] = [reason.to_dict() for reason in self.reasons]
        return result


def explain(
    ranking: Ranking,
    X: Any,
    label: int,
    probability: float | None,
    names: Sequence[str] | None,
    terms: Sequence[str] | None,
    share_of_text: Callable[[npt.NDArray[Any], npt.NDArray[Any]], float] | None = None,
) -> Explanation:
    """Explain a score, as in `Model.explain`; `names` are those of the labels.

    `share_of_text` returns what the text of the label adds to a score, given features and values.
    """
    transform = ranking.transform
    if terms is not None and len(terms) != transform.n_features:
        raise DataError(
            f"{counted(len(terms), 'term')} for {counted(transform.n_features, 'feature')}"
        )
    row, weights, score = ranking.explain(X, label)
    bias, found = _contributions(row, weights, transform.n_columns, terms)
    embedding = None
    if transform.dense:
        of_dense = (part.contribution for part in found if part.feature >= transform.first_dense)
        embedding = float(sum(of_dense))
    reasons = []
    if isinstance(transform, RefinedTransform):
        reasons = _reasons(transform, X, found, names, terms)
    return Explanation(
        int(label),
        None if names is None else names[label],
        score,
        probability,
        bias,
        [term for term in found if term.feature < transform.n_features],
        reasons,
        embedding,
        share_of_text and share_of_text(row.indices[weights != 0], row.data[weights != 0]),
    )


def _reasons(
    transform: RefinedTransform,
    X: Any,
    parts: Sequence[Contribution],
    names: Sequence[str] | None,
    terms: Sequence[str] | None,
) -> list[Reason]:
    """Return the contributions of labels among `parts`; explain the largest by their terms."""
    informing, own = transform.informing, transform.own
    first = Predictor(transform.first, int(informing.max(initial=-1)) + 1, own)
    found: list[Reason] = []
    for part in parts:
        if not own.n_features <= part.feature < transform.first_dense:
            continue
        label = int(informing[part.feature - own.n_features])
        why: list[Contribution] = []
        if len(found) < _TRACED:
            row, weights, _ = first.explain(X, label)
            all_parts = _contributions(row, weights, own.n_columns, terms)[1]
            why = [term for term in all_parts if term.feature < own.n_features][:_TRACED_TERMS]
        name = None if names is None else names[label]
        found.append(Reason(label, name, part.value, part.weight, part.contribution, why))
    return found


def _contributions(
    row: Rows, weights: npt.NDArray[np.float32], n_columns: int, terms: Sequence[str] | None = None
) -> tuple[float, list[Contribution]]:
    """Return the contribution of the bias, and those of the features as in `Explanation.terms`.

    The row is transformed: its bias is feature `n_columns`. `weights` has a weight for each of its
    entries, `terms` a name for each of the first features.
    """
    parts = row.data.astype(np.float64) * weights
    of_bias = row.indices == n_columns
    names = terms or ()
    used = np.flatnonzero((weights != 0) & ~of_bias)
    order = used[np.argsort(-np.abs(parts[used]), kind="stable")]
    columns = (array[order].tolist() for array in (row.indices, row.data, weights, parts))
    found = [
        Contribution(feature, value, weight, part, names[feature] if feature < len(names) else None)
        for feature, value, weight, part in zip(*columns, strict=True)
    ]
    return float(parts[of_bias].sum()), found


def highlights(
    explanation: Explanation, spans: Iterable[tuple[int, int, int]]
) -> list[tuple[int, int, float]]:
    """Compute what each word of a text adds to a score.

    The contribution of a feature is divided equally over the places where it occurs, and there
    equally over the words that it covers.

    Parameters
    ----------
    explanation : Explanation
        The explanation of the text, from `Model.explain`.
    spans : iterable of tuple of int
        ``(feature, begin, end)`` of each occurrence of a feature in the text, in any order, from
        ``model.vocabulary.spans(text)``.

    Returns
    -------
    list of tuple
        ``(begin, end, contribution)`` of the words with a contribution, in the order of the text;
        no two overlap.

    Examples
    --------
    >>> from dismec import DiSMECTextClassifier, highlights
    >>> texts = ["boil the egg", "fry the egg", "bake the bread", "slice the bread"]
    >>> model = DiSMECTextClassifier().fit(texts, ["egg", "egg", "bread", "bread"]).model_
    >>> text = "a fried egg"
    >>> found = highlights(model.explain([text], 1), model.vocabulary.spans(text))
    >>> [text[begin:end] for begin, end, contribution in found]
    ['egg']
    """
    table = np.array(list(spans), dtype=np.int64).reshape(-1, 3)
    feature, begin, end = table[table[:, 1] < table[:, 2]].T
    bounds = np.sort(np.concatenate([begin, end]))
    bounds = bounds[np.diff(bounds, prepend=-1) > 0]
    # The space between two words of a term lies between an end and a begin, and is not a word.
    is_word = np.isin(bounds[:-1], begin) | np.isin(bounds[1:], end)
    first, last = bounds[:-1][is_word], bounds[1:][is_word]
    numbers, occurrence, occurrences = np.unique(feature, return_inverse=True, return_counts=True)
    explained = {term.feature: term.contribution for term in explanation.terms}
    parts = np.array([explained.get(number, np.nan) for number in numbers.tolist()], np.float64)
    part = (parts / occurrences)[occurrence]
    used = ~np.isnan(part)
    start = np.searchsorted(first, begin[used])
    size = np.searchsorted(last, end[used]) + 1 - start
    # Each occurrence once for each of its words: start, start + 1, …
    offset = np.cumsum(size) - size
    word = np.arange(size.sum()) + np.repeat(start - offset, size)
    shares = np.bincount(word, np.repeat(part[used] / size, size), len(first))
    covered = np.bincount(word, minlength=len(first)) > 0
    columns = (array[covered].tolist() for array in (first, last, shares))
    return list(zip(*columns, strict=True))


def _without_none(entries: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if value is not None}
