"""Convert scikit-learn's ``class_weight`` to costs of each label's rows, as in LIBLINEAR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.data.matrices import check_Y
from dismec.data.row_weights import RowWeights
from dismec.errors import DataError
from dismec.solve.costs import LARGEST_COST, SMALLEST_COST, Costs

__all__ = ["class_costs", "loaded_class_weight", "stored_class_weight"]

_BALANCED = "balanced"
Floats = npt.NDArray[np.float64]


def class_costs(
    class_weight: Any,
    Y: Any,
    classes: Sequence[Any],
    *,
    exclusive: bool,
    weights: RowWeights | None = None,
) -> Costs | None:
    """Return the costs of each label's positive and negative rows; None if all are 1.

    The weight of a class is the cost of its positive rows. With two `exclusive` classes, the
    negative rows of one are the positive rows of the other. "balanced" gives exclusive classes the
    weight n/(k·n_c), and the two sides of any other label n/(2·n_side), where n is the number of
    rows, k the number of classes, and n_c and n_side are the numbers of rows of the class and of
    the side.

    Parameters
    ----------
    class_weight
        None, "balanced", or the weights of some classes; others have weight 1.
    Y
        Indicator matrix (n_rows, n_columns) with a column per class; of two exclusive classes,
        there may be a column for the second only.
    classes
        The classes, in the order of the columns.
    exclusive
        Whether each row has exactly one class.
    weights
        Row weights, by which "balanced" counts rows.
    """
    if class_weight is None:
        return None
    Y = check_Y(Y)
    n_rows, n_columns = Y.shape
    of_row = np.ones(n_rows) if weights is None else weights
    n, positive = float(of_row.sum()), np.zeros(n_columns)
    np.add.at(positive, Y.indices, np.repeat(of_row, np.diff(Y.indptr)))
    both = exclusive and len(classes) == 2
    if isinstance(class_weight, Mapping):
        of_class = _explicit_weights(class_weight, classes)
    elif not isinstance(class_weight, str) or class_weight != _BALANCED:
        raise DataError(
            f"class_weight is {class_weight!r}; expected None, 'balanced', or a weight per class"
        )
    elif not exclusive:
        sides = _balanced(n, 2, positive), _balanced(n, 2, n - positive)
        return Costs(*sides)
    else:
        counts = np.array([n - positive[0], positive[0]]) if both else positive
        of_class = _balanced(n, len(classes), counts[: len(classes)])
    if both:
        return Costs(of_class[-n_columns:], of_class[::-1][-n_columns:].copy())
    return Costs(of_class, np.ones(n_columns))


def stored_class_weight(class_weight: Any) -> dict[str, Any]:
    """Return the class weights as stored with a saved estimator; empty if there are none."""
    if class_weight is None:
        return {}
    if isinstance(class_weight, str):
        return {"class_weight": class_weight}
    pairs = [[getattr(k, "item", lambda k=k: k)(), float(v)] for k, v in class_weight.items()]
    return {"class_weight": pairs}


def loaded_class_weight(estimator: Mapping[str, Any]) -> Any:
    """Invert `stored_class_weight`."""
    found = estimator.get("class_weight")
    return dict(found) if isinstance(found, list) else found


def _explicit_weights(class_weight: Mapping[Any, Any], classes: Sequence[Any]) -> Floats:
    """Return the weights of all classes; raise `DataError` for an unknown class or bad weight."""
    places = {label: place for place, label in enumerate(classes)}
    found = np.ones(len(classes))
    for label, weight in class_weight.items():
        if label not in places:
            raise DataError(f"class_weight has {label!r}, which is not one of the classes")
        try:
            number = float(weight)
        except (TypeError, ValueError):
            number = np.nan
        if not SMALLEST_COST <= number <= LARGEST_COST:
            raise DataError(
                f"class_weight of {label!r} is {weight!r}; "
                f"expected a number from {SMALLEST_COST:g} to {LARGEST_COST:g}"
            )
        found[places[label]] = number
    return found


def _balanced(n: float, k: int, counts: Floats) -> Floats:
    """Return n/(k·count), clipped to valid costs, and 1 where the count is 0."""
    shares = np.divide(n, k * counts, out=np.ones(len(counts)), where=counts > 0)
    return np.clip(shares, SMALLEST_COST, LARGEST_COST)
