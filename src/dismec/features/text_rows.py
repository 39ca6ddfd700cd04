"""A matrix type for rows made from texts, distinct from any other matrix."""

from __future__ import annotations

from typing import Any

import scipy.sparse as sp

from dismec.data.matrices import refuse_mask

__all__ = ["TextRows"]


class TextRows(sp.csr_array):
    """Rows whose columns are the terms of a vocabulary: the input of a text model.

    `Vocabulary.rows` returns them, and slices keep the class. A text model rejects other matrices
    because it cannot know what their columns mean; ``TextRows(X)`` declares that they are its own
    terms, in order. Stacked rows need this too, because `scipy.sparse.vstack` returns a plain
    matrix.

    Examples
    --------
    >>> from dismec import DiSMECTextClassifier, TextRows
    >>> texts = ["boil the egg", "fry the egg", "bake the bread", "slice the bread"]
    >>> model = DiSMECTextClassifier().fit(texts, ["egg", "egg", "bread", "bread"]).model_
    >>> X = model.vocabulary.rows(["a fried egg"])
    >>> isinstance(X, TextRows)
    True
    >>> model.predict_topk(TextRows(X.toarray()), k=1)[0].tolist()
    [[1]]
    """

    def __init__(self, arg1: Any, *args: Any, **kwargs: Any) -> None:
        refuse_mask(arg1, "X")
        super().__init__(arg1, *args, **kwargs)
