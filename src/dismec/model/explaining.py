"""A row and a label of a model → the explanation of its score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dismec.data.counts import counted
from dismec.errors import DataError
from dismec.model.explanation import Explanation, contributions
from dismec.model.informed import Informed
from dismec.model.orders import Orders

__all__ = ["explain"]


def explain(
    orders: Orders,
    X: Any,
    label: int,
    names: Sequence[str] | None,
    terms: Sequence[str] | None,
) -> Explanation:
    """Explain a score, as in `Model.explain`; `names` are those of the labels."""
    transform = orders.transform
    if terms is not None and len(terms) != transform.n_features:
        raise DataError(
            f"{counted(len(terms), 'term')} for {counted(transform.n_features, 'feature')}"
        )
    row, weights, score = orders.by_score.explain(X, label)
    probability = None
    if orders.calibrated:
        z = orders.by_logit.explain(X, label)[2]
        probability = float(orders.calibration.of_logits(z))
    bias, found = contributions(row, weights, transform.n_columns, terms)
    embedding = None
    if transform.dense:
        of_dense = (part.contribution for part in found if part.feature >= transform.first_dense)
        embedding = float(sum(of_dense))
    reasons = []
    if isinstance(transform, Informed):
        reasons = transform.reasons(X, found, names, terms)
    return Explanation(
        int(label),
        None if names is None else names[label],
        score,
        probability,
        bias,
        [term for term in found if term.feature < transform.n_features],
        reasons,
        embedding,
    )
