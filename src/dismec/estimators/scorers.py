"""Scorers for scikit-learn's searches that accept lists of labels."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any

from dismec.data.targets import Kind
from dismec.errors import DataError
from dismec.estimators.shared import Estimator
from dismec.measure.metrics import f1_scores

__all__ = ["check_scorer", "label_scorer"]

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

    Raises
    ------
    DataError
        If the metric is unknown.

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
        rows, Y = estimator.rows_and_truth(X, y)
        model = estimator.model_
        truth = model.truth_of(Y)
        if self.metric in _F1:
            sets: Any = model.assign(rows)
            sets.resize(truth.Y.shape)
            return f1_scores(truth.Y, sets)[self.metric]
        k = int(self.metric.partition("@")[2])
        top = model.predict_topk(rows, min(k, model.n_labels))[0]
        return truth.metrics(top, (k,))[self.metric] / 100


def check_scorer(kind: Kind) -> None:
    """Raise `DataError` if `fit` runs for a scikit-learn scorer that cannot score lists of labels.

    The search would catch the scorer's error, set every score to NaN, and still report a best
    candidate. Errors from `fit` are not hidden: if all fits fail, the search says why.
    """
    if kind != "lists":
        return
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_fit_and_score":
        frame = frame.f_back
    scorer = None if frame is None else frame.f_locals.get("scorer")
    scorers = getattr(scorer, "_scorers", None)
    for one in scorers.values() if isinstance(scorers, dict) else (scorer,):
        metric = getattr(one, "_score_func", None)
        if getattr(metric, "__module__", "").startswith("sklearn."):
            raise DataError(
                f"scikit-learn's {getattr(metric, '__name__', 'scorer')} cannot score lists of "
                'labels: pass scoring=dismec.label_scorer("micro-F1"), or as labels '
                "MultiLabelBinarizer().fit_transform(labels)"
            )
