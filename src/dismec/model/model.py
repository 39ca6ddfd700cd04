"""A finished model: weights and names in; top k, sets of labels and explanations out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from dismec.data.counts import counted
from dismec.errors import ModelError
from dismec.model.calibration import Calibration
from dismec.model.orders import Orders, ShardOrders
from dismec.model.pruning import pruned_params, repacked
from dismec.model.ranking_model import RANKS, RankingModel
from dismec.model.stored import StoredModel
from dismec.model.subsets import parts_in_use, subset_parts

__all__ = ["RANKS", "Model", "RankingModel"]


class Model(StoredModel, RankingModel):
    """A trained model: one linear classifier per label.

    Models are made by `dismec.train`, `dismec.train_text` and `dismec.open_model`, and the
    estimators keep theirs in `model_`. There is no need to call the constructor.

    Attributes
    ----------
    manifest : Manifest
        Shape, parameters, files and history of the model.
    transform : Transform
        The transform of each row before it is scored: tf-idf and scaling to length 1.
    label_counts : ndarray of int64, shape (n_labels,)
        Number of training rows of each label.
    names : sequence of str, or None
        The names of the labels, if they have names.
    vocabulary : Vocabulary or None
        Turns texts into rows, for a text model.

    Examples
    --------
    >>> from dismec import DiSMECTextClassifier
    >>> texts = ["boil the egg", "fry the egg", "bake the bread", "slice the bread"]
    >>> labels = [["egg"], ["egg"], ["bread"], ["bread"]]
    >>> model = DiSMECTextClassifier().fit(texts, labels).model_
    >>> model.predict(["a fried egg", "slice it"])
    [('egg',), ('bread',)]
    >>> numbers, scores = model.predict_topk(["a fried egg"], k=2)
    >>> [model.names[number] for number in numbers[0]]
    ['egg', 'bread']
    >>> model.evaluate(texts, labels, ks=[1])["P@1"]
    100.0
    >>> model.explain(["a fried egg"], model.find_label("egg")).terms[0].term
    'egg'
    """

    def _facts(self) -> list[str]:
        words = {"calibrated": self._parts.calibration, "refined": self.manifest.refined}
        return [self.precision, *(word for word, there in words.items() if there is not None)]

    def _make_orders(self) -> Orders:
        return ShardOrders(self._shards, self.n_labels, self.transform, self.calibration)

    def calibrated(self, calibration: Calibration | None) -> Model:
        """Return the same model with another calibration.

        Parameters
        ----------
        calibration : Calibration or None
            How scores become probabilities, such as the `calibration` of another model with the
            same labels; None removes the calibration.

        Returns
        -------
        Model
            A model in memory that shares the weights of this one.

        Raises
        ------
        ModelError
            If the calibration has another number of labels.
        """
        if calibration is not None and calibration.n_labels != self.n_labels:
            raise ModelError(
                f"the calibration has {counted(calibration.n_labels, 'label')}, the model has "
                f"{self.n_labels:,}"
            )
        parts = replace(self._parts, calibration=calibration)
        return Model(self.manifest, self.transform, parts, self._shards)

    def pruned(self, delta: float | None = None, *, precision: str | None = None) -> Model:
        """Return a smaller model: without small weights, or with weights of another precision.

        The result is what training with these values would have given, except for weights that
        rounding has moved across `delta`.

        Parameters
        ----------
        delta : float, default=None
            Weights closer to 0 than this are dropped. None keeps all weights.
        precision : {"float16", "float32", "int8"}, default=None
            How weights are stored. None keeps the precision of the model.

        Returns
        -------
        Model
            The smaller model, in memory. `save` writes it to a directory.

        Raises
        ------
        DataError
            If `delta` is smaller than the delta of the model: the weights that training has
            dropped cannot be restored.
        """
        params = pruned_params(self.params, delta, precision or self.precision)
        kept = delta or 0.0, params["precision"]
        shards = repacked(self.manifest, self.transform, self._shards, *kept)
        return Model(replace(self.manifest, params=params), self.transform, self._parts, shards)

    def subset(self, labels: Iterable[str | int]) -> Model:
        """Return a model of some of the labels, with the same scores.

        Parameters
        ----------
        labels : iterable of str or int
            The labels to keep, by name or number.

        Returns
        -------
        Model
            The model of these labels, in memory. They keep their order and are numbered from 0.

        Raises
        ------
        DataError
            If the model does not have one of the labels.
        ModelError
            If the model is refined.
        """
        found = np.unique(self._find_labels(labels, "labels"))
        made = subset_parts(self.manifest, parts_in_use(self), self._shards, found)
        return Model(made[0], self.transform, *made[1:])
