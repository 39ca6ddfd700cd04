"""Scorers for scikit-learn's searches that accept lists of labels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dismec.errors import DataError
from dismec.estimators.shared import Estimator
from dismec.measure.metrics import f1_scores

_F1 = ("micro-F1", "macro-F1")
_RANKED = re.compile(r"(?:P|nDCG|PSP|PSnDCG|R)@([1-9]\d{0,8})")


def label_scorer(metric: str = "P@1") -> _LabelScorer:
    """Create a scorer of multi-label predictions, for ``scoring=`` of scikit-learn's searches.

    Unlike scikit-learn's own scorers, it accepts labels in every form that the estimators do,
    including lists of names. It also scores a pipeline that ends in one of the estimators.

    Parameters
    ----------
    metric
        "P@k", "nDCG@k", "R@k", "PSP@k" or "PSnDCG@k" for any k, of the ranking; "micro-F1" or
        "macro-F1" of the sets that `predict` returns.

    Returns
    -------
    callable
        ``scorer(estimator, X, y)``, between 0 and 1, higher is better. It can be pickled.

    Examples
    --------
    >>> from sklearn.model_selection import GridSearchCV, KFold
    >>> from dismec import DiSMECTextClassifier, label_scorer
    >>> texts = ["boil the egg", "fry the egg", "bake the bread", "slice the bread"] * 5
    >>> labels = [["egg"], ["egg", "pan"], ["bread"], ["bread"]] * 5
    >>> search = GridSearchCV(
    ...     DiSMECTextClassifier(), {"C": [0.1, 1.0]}, scoring=label_scorer("P@1"), cv=KFold(2)
    ... )
    >>> float(search.fit(texts, labels).best_score_)
    1.0
    """
    if metric not in _F1 and not _RANKED.fullmatch(str(metric)):
        raise DataError(
            f"metric is {metric!r}; expected micro-F1, macro-F1, or P@k, nDCG@k, R@k, PSP@k, "
            "PSnDCG@k with a number for k"
        )
    return _LabelScorer(metric)


@dataclass(frozen=True)
class _LabelScorer:
    metric: str

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        """Return the score of an estimator, or of a pipeline that ends in one."""
        if hasattr(estimator, "steps"):
            X = estimator[:-1].transform(X) if len(estimator.steps) > 1 else X
            estimator = estimator.steps[-1][1]
        if not isinstance(estimator, Estimator):
            name = type(estimator).__name__
            raise DataError(f"label_scorer scores the estimators of dismec, not {name}")
        rows, Y = estimator._rows_and_truth(X, y)
        if self.metric in _F1:
            sets: Any = estimator.model_.assign(rows)
            sets.resize(Y.shape)
            return f1_scores(Y, sets)[self.metric]
        k = int(self.metric.partition("@")[2])
        return estimator.model_.evaluate(rows, Y, (k,))[self.metric] / 100
