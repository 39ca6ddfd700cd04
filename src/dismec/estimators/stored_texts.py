"""The estimator of texts apart from fitting and predicting: labels, saving, loading."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from dismec.data.columns import text_column
from dismec.data.counts import counted
from dismec.data.mixed import is_parts, mixed_rows
from dismec.data.targets import Kind, Target
from dismec.errors import DataError, ModelError
from dismec.estimators.class_weights import stored_class_weight
from dismec.estimators.shared import Estimator
from dismec.features.text_rows import TextRows
from dismec.features.vocabulary import Vocabulary
from dismec.model.opening import open_model

__all__ = ["TextEstimator", "check_lengths", "split_dense"]

# Labels that are not text, by their names in the model.
_TYPES: dict[str, Callable[[str], Any]] = {"int": int, "bool": "True".__eq__}
_TYPE_NAMES = {"int": re.compile(r"-?\d{1,19}"), "bool": re.compile("True|False")}


class TextEstimator(Estimator):
    """An estimator of texts that can be saved and loaded."""

    target_: Kind
    _label_type: str

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the fitted model to a directory, or to a single file.

        `dismec.open_model` and the command line can read it, too.

        Parameters
        ----------
        path : str or path-like
            The directory, or a file whose name ends in ``.zip``.
        overwrite : bool, default=False
            Whether to overwrite an existing model.
        """
        model = self._fitted()
        about = {"target": self.target_, "label_type": self._label_type}
        about |= stored_class_weight(self.class_weight)
        model.save(path, estimator=about, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str] | bytes | BinaryIO) -> Self:
        """Load a saved estimator.

        Parameters
        ----------
        path : str, path-like, bytes or binary file
            A text model, as for `dismec.open_model`.

        Returns
        -------
        DiSMECTextClassifier
            The fitted estimator.

        Raises
        ------
        ModelError
            If there is no model, or it was not trained on texts.
        """
        model = open_model(path)
        if model.vocabulary is None:
            raise ModelError("the model was not trained on texts; load it with DiSMECClassifier")
        self: Self = cls._with_params_of(model)
        about = model.manifest.estimator or {}
        self.target_ = about.get("target", "lists")
        kind = about.get("label_type")
        # A label that was added later may have a name that is not a number.
        sound = kind in _TYPES and all(map(_TYPE_NAMES[kind].fullmatch, model.names or ()))
        self._label_type = str(kind) if sound else "str"
        return self

    def _aligned(
        self, vocabulary: Vocabulary, texts: Any, labels: Any, classes: list[Any]
    ) -> tuple[Any, Any]:
        """Return texts and labels as rows and a matrix whose first columns are these classes."""
        texts, dense = split_dense(texts)
        target, rows = Target.of(labels), text_column(texts)
        check_lengths(rows, target)
        found = vocabulary.rows(rows, threads=self._threads())
        return self._with_dense(found, dense), target.among(classes)

    @staticmethod
    def _with_dense(rows: TextRows, dense: Any) -> Any:
        """Return the rows of texts, with dense features beside them if there are any."""
        return rows if dense is None else mixed_rows(rows, dense)

    def _rows(self, texts: Any) -> Any:
        return self._fitted().rows_of(texts, threads=self._threads())

    @property
    def _multilabel(self) -> bool:
        return self.target_ != "classes"

    @property
    def _are_classes(self) -> bool:
        """Whether labels are values that scikit-learn can sort."""
        return self.target_ == "classes" or self._label_type != "str"

    def _as_labels(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return labels by number, None for −1; only the names that are needed are decoded."""
        found, places = np.unique(numbers, return_inverse=True)
        names = self.model_.names or ()
        labels = np.empty(len(found), object)
        labels[:] = [None if n < 0 else self._label(names[n]) for n in found.tolist()]
        return labels[places].reshape(numbers.shape)

    def _number_of(self, label: Any) -> int:
        number = self.model_.find_name(str(label))
        if number is None:
            raise DataError(f"{label!r} is not one of the labels")
        return number

    def _label(self, name: str) -> Any:
        """Return the label as it was passed to `fit`, by its name in the model."""
        return name if self._label_type == "str" else _TYPES[self._label_type](name)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.classifier_tags.multi_label = True
        return tags


def split_dense(texts: Any) -> tuple[Any, Any]:
    """Split texts from the dense features passed with them, or None."""
    if is_parts(texts) and len(texts) == 2:
        return texts[0], texts[1]
    return texts, None


def check_lengths(texts: list[str], target: Target) -> None:
    """Raise `DataError` unless there are as many texts as labels."""
    if len(texts) != target.Y.shape[0]:
        raise DataError(f"{counted(len(texts), 'text')}, but labels for {target.Y.shape[0]}")
