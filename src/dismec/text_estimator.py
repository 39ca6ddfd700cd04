"""The scikit-learn estimator of texts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.errors import DataError, ModelError
from dismec.estimators import Estimator, constructor
from dismec.features.vocabulary import TextParams
from dismec.model.opening import open_model
from dismec.model.thresholds import MICRO_F1, ranked
from dismec.training.params import TrainingParams
from dismec.training.recipe import carry_out
from dismec.training.texts import TextRequest, Texts

__all__ = ["DiSMECTextClassifier"]

_TEXT = tuple(f.name for f in fields(TextParams))


class DiSMECTextClassifier(Estimator):
    """Texts in, label names out: a vocabulary, tf-idf, and one linear classifier a label.

    Parameters
    ----------
    C, delta, tol, precision, penalty, positive_weight, weighting, propensity_a, propensity_b
        As for `TrainingParams`.
    n_jobs, cluster, engine
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

    __init__ = constructor(
        f"C delta tol calibrate {' '.join(_TEXT)} precision n_jobs engine penalty",
        TrainingParams,
        TextParams,
        without="block_size tfidf normalize bias",
    )

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
        text = TextParams(**{name: getattr(self, name) for name in _TEXT})
        source, params = Texts.of_lists(_listed(texts), rows), self._params(tfidf=True)
        how = {"threads": self._threads(), "cluster": self._where}
        with TextRequest(source, params, text=text, **how).as_rows() as request:
            self.model_ = carry_out(request)
        return self

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """The names of the labels, in order."""
        return np.array(self._fitted().names or (), object)

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
        self: DiSMECTextClassifier = cls._with_params_of(model)
        return self

    def _rows(self, texts: Iterable[str]) -> Any:
        vocabulary = self._fitted().vocabulary
        assert vocabulary is not None
        return vocabulary.rows(_listed(texts), threads=self._threads())

    def _named(self, labels: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
        names = np.array([*(self.model_.names or ()), None], object)
        return names[labels]  # −1, an empty place, is the last

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
