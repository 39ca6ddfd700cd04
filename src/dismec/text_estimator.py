"""The scikit-learn estimator for texts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from dismec.errors import DataError, ModelError
from dismec.estimator import DiSMECClassifier, threads_of
from dismec.model import MICRO_F1, Model, open_model
from dismec.params import TrainingParams
from dismec.text import TextParams
from dismec.text_training import Texts, fit_text

__all__ = ["DiSMECTextClassifier"]


class DiSMECTextClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Texts in, label names out: a vocabulary, tf-idf, and one linear classifier a label.

    Parameters
    ----------
    C, delta, tol, precision, n_jobs, engine, penalty
        As for `DiSMECClassifier`.
    positive_weight, weighting, propensity_a, propensity_b
        As for `DiSMECClassifier`.
    calibrate
        Learn on a tenth of the texts what probability a score stands for; the final model is
        trained on all of them.
    word_ngrams, char_ngrams, lowercase, min_df, max_df, max_features, sublinear
        Which terms of a text are features, as for `dismec.TextParams`.

    Attributes
    ----------
    classes_
        The names of the labels, in order.
    model_
        The fitted `Model`.

    Examples
    --------
    >>> from dismec import DiSMECTextClassifier
    >>> texts = ["boil the egg", "fry the egg", "bake the bread", "slice the bread"]
    >>> clf = DiSMECTextClassifier().fit(texts, [["egg"], ["egg"], ["bread"], ["bread"]])
    >>> clf.predict_topk(["a fried egg"], k=1)[0].tolist()
    [['egg']]
    >>> clf.predict(["toast the bread"])
    [('bread',)]
    """

    def __init__(
        self,
        C: float = 1.0,
        delta: float | str | None = None,
        tol: float = 0.01,
        calibrate: bool = False,
        word_ngrams: tuple[int, int] = (1, 1),
        char_ngrams: tuple[int, int] = (0, 0),
        lowercase: bool = True,
        min_df: int = 1,
        max_df: float = 1.0,
        max_features: int | None = None,
        sublinear: bool = True,
        precision: str = "float16",
        n_jobs: int | None = None,
        engine: Any = None,
        penalty: str = "l2",
        positive_weight: float = 1.0,
        weighting: str | None = None,
        propensity_a: float = 0.55,
        propensity_b: float = 1.5,
    ) -> None:
        self.C = C
        self.delta = delta
        self.tol = tol
        self.calibrate = calibrate
        self.word_ngrams = word_ngrams
        self.char_ngrams = char_ngrams
        self.lowercase = lowercase
        self.min_df = min_df
        self.max_df = max_df
        self.max_features = max_features
        self.sublinear = sublinear
        self.precision = precision
        self.n_jobs = n_jobs
        self.engine = engine
        self.penalty = penalty
        self.positive_weight = positive_weight
        self.weighting = weighting
        self.propensity_a = propensity_a
        self.propensity_b = propensity_b

    def fit(self, texts: Iterable[str], labels: Iterable[str | Iterable[str]]) -> Any:
        """Train one classifier a label.

        Parameters
        ----------
        texts
            One a row.
        labels
            The names of the labels of each row; a row with one label may have just its name.
        """
        rows = [[row] if isinstance(row, str) else list(row) for row in labels]
        params = TrainingParams(
            C=self.C,
            delta=self.delta,
            tol=self.tol,
            tfidf=True,
            precision=self.precision,
            calibrate=self.calibrate,
            penalty=self.penalty,
            positive_weight=self.positive_weight,
            weighting=self.weighting,
            propensity_a=self.propensity_a,
            propensity_b=self.propensity_b,
        )
        text = TextParams(**{name: getattr(self, name) for name in TextParams.__dataclass_fields__})
        self.model_: Model = fit_text(
            Texts.of_lists(_listed(texts), rows),
            params,
            text,
            threads=threads_of(self.n_jobs),
            client=self.engine,
        )
        return self

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """The names of the labels, in order."""
        check_is_fitted(self, "model_")
        return np.array(self.model_.names or (), object)

    def predict_topk(
        self, texts: Iterable[str], k: int = 5
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """The names of the k best labels of each text, and their scores; best first.

        Places beyond the labels that there are hold None and −inf.
        """
        found, scores = self.model_.predict_topk(self._rows(texts), k, threads=self._threads())
        return self._named(found), scores

    def predict_proba_topk(
        self, texts: Iterable[str], k: int = 5
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """The names of the k most probable labels of each text, and their probabilities.

        It needs `calibrate`. Places beyond the labels that there are hold None and 0.
        """
        found, p = self.model_.predict_proba_topk(self._rows(texts), k, threads=self._threads())
        return self._named(found), p

    def predict(self, texts: Iterable[str]) -> list[tuple[str, ...]]:
        """The names of the labels that each text is given, best first.

        Those with scores above 0; with `calibrate` those more probable than the threshold that was
        best for micro-F1.
        """
        from dismec.assignment import ranked

        calibrated = self._fitted().calibration is not None
        sets = self.model_.assign(
            self._rows(texts),
            MICRO_F1 if calibrated else float(np.nextafter(np.float32(0), np.float32(1))),
            probabilities=calibrated,
            threads=self._threads(),
        )
        named = self._named(ranked(sets)[0])
        return [tuple(name for name in row if name is not None) for row in named]

    def score(self, texts: Iterable[str], labels: Iterable[str | Iterable[str]]) -> float:
        """P@1: the share of texts whose best label is one of theirs."""
        rows = [{row} if isinstance(row, str) else set(row) for row in labels]
        best = self.predict_topk(texts, k=1)[0][:, 0]
        if len(best) != len(rows):
            raise DataError(f"there are {len(best)} texts and labels for {len(rows)}")
        return float(np.mean([name in row for name, row in zip(best, rows, strict=True)]))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a directory that `open_model` and the command line read."""
        self._fitted().save(path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DiSMECTextClassifier:
        """The estimator around a model of texts."""
        model = open_model(path)
        if model.vocabulary is None:
            raise ModelError(f"{path}: not a model of texts; DiSMECClassifier loads it")
        known = cls()._get_param_names()
        self = cls(
            **{name: value for name, value in model.params.items() if name in known},
            **{
                name: getattr(model.vocabulary.params, name)
                for name in known
                if hasattr(model.vocabulary.params, name)
            },
        )
        if "delta_auto" in model.params:
            self.delta = "auto"
        self.model_ = model
        return self

    def _fitted(self) -> Model:
        check_is_fitted(self, "model_")
        return self.model_

    def _rows(self, texts: Iterable[str]) -> Any:
        vocabulary = self._fitted().vocabulary
        assert vocabulary is not None
        return vocabulary.rows(_listed(texts), threads=self._threads())

    def _named(self, labels: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
        names = np.array([*(self.model_.names or ()), None], object)
        return names[labels]  # −1, an empty place, is the last

    def _threads(self) -> int | None:
        return threads_of(self.n_jobs)

    __sklearn_clone__ = DiSMECClassifier.__sklearn_clone__

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.classifier_tags.multi_label = True
        return tags


def _listed(texts: Iterable[str]) -> Sequence[str]:
    if isinstance(texts, str):
        raise DataError("expected a list of texts, not one text")
    return list(texts)
