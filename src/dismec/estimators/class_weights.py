"""scikit-learn's ``class_weight`` → costs of each label's rows, as LIBLINEAR has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.data.matrices import check_Y
from dismec.data.row_weights import RowWeights
from dismec.errors import DataError
from dismec.solve.costs import LARGEST_COST, SMALLEST_COST, Costs

__all__ = ["class_costs", "kept_class_weight", "stored_class_weight"]

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
    """The costs of a label's positive and negative rows; None if all are 1.

    A class's weight is the cost of its rows where they are the positive ones. Of two classes that
    `exclusive` says exclude each other the negative rows are those of the other class. "balanced"
    gives classes that exclude each other weight n/(k·n_c), and the two sides of any other label
    n/(2·n_side): n rows, k classes, and n_c and n_side those of the class and of the side.

    Parameters
    ----------
    class_weight
        None, "balanced", or a weight for some of the classes; others have 1.
    Y
        Indicator (n_rows, n_columns), a column per class; of two exclusive classes the second
        may be alone.
    classes
        What the classes are.
    exclusive
        Whether each row has one class.
    weights
        Of the rows, which "balanced" counts by.
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
        of_class = _given(class_weight, classes)
    elif not isinstance(class_weight, str) or class_weight != _BALANCED:
        raise DataError(
            f"class_weight is {class_weight!r}; expected None, 'balanced', or a weight per class"
        )
    elif not exclusive:
        sides = _share(n, 2, positive), _share(n, 2, n - positive)
        return Costs(*sides)
    else:
        counts = np.array([n - positive[0], positive[0]]) if both else positive
        of_class = _share(n, len(classes), counts[: len(classes)])
    if both:
        return Costs(of_class[-n_columns:], of_class[::-1][-n_columns:].copy())
    return Costs(of_class, np.ones(n_columns))


def stored_class_weight(class_weight: Any) -> dict[str, Any]:
    """What a saved estimator says of it; nothing where there is none."""
    if class_weight is None:
        return {}
    if isinstance(class_weight, str):
        return {"class_weight": class_weight}
    pairs = [[getattr(k, "item", lambda k=k: k)(), float(v)] for k, v in class_weight.items()]
    return {"class_weight": pairs}


def kept_class_weight(estimator: Mapping[str, Any]) -> Any:
    """The inverse of `stored_class_weight`."""
    found = estimator.get("class_weight")
    return dict(found) if isinstance(found, list) else found


def _given(class_weight: Mapping[Any, Any], classes: Sequence[Any]) -> Floats:
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


def _share(n: float, k: int, counts: Floats) -> Floats:
    """n/(k·count), as far as a cost may go; 1 for what no row has."""
    shares = np.divide(n, k * counts, out=np.ones(len(counts)), where=counts > 0)
    return np.clip(shares, SMALLEST_COST, LARGEST_COST)
