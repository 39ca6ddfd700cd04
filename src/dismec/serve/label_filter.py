"""The label restrictions of a request → the set of allowed labels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np

from dismec.model.allowed import Allowed
from dismec.model.model import Model
from dismec.serve.label_browser import LabelSearch, ServedTree

__all__ = ["LabelFilter"]

_KEPT = 16  # cached sets: a client requests the same one many times


class LabelFilter:
    """The sets of labels that requests of a model have used, for many threads.

    `search` returns the search for names of labels, which is created when it is first needed.
    """

    def __init__(self, model: Model, tree: ServedTree | None) -> None:
        self._tree = tree
        self.search = cache(partial(LabelSearch, model.names, model.n_labels))
        self._allowed = lru_cache(_KEPT)(partial(_allowed, model, tree, self.search))

    def find(self, request: dict[str, Any]) -> Allowed | None:
        """Return the labels that a checked request allows, or None for all.

        Raise `DataError` if the model or the hierarchy does not contain one of them.
        """
        only, exclude, prefix = request["only"], request["exclude"], request["prefix"]
        below = request.get("below")
        if only is None and not exclude and not prefix.strip() and below is None:
            return None
        # The contract allows "below" only if there is a hierarchy.
        node = None if below is None or self._tree is None else self._tree.find(below)
        listed = None if only is None else tuple(only)
        return self._allowed(listed, tuple(exclude or ()), prefix.strip(), node)


def _allowed(
    model: Model,
    tree: ServedTree | None,
    search: Callable[[], LabelSearch],
    only: tuple[str | int, ...] | None,
    exclude: tuple[str | int, ...],
    prefix: str,
    node: int | None,
) -> Allowed:
    allowed = model.select_labels(only, exclude)
    if prefix:
        allowed = _within(allowed, np.fromiter(search().beginning_with(prefix), np.int64))
    if tree is not None and node is not None:
        allowed = _within(allowed, tree.labels_in(node))
    return allowed


def _within(allowed: Allowed, labels: np.ndarray[Any, np.dtype[np.int64]]) -> Allowed:
    assert allowed.mask is not None
    return Allowed(len(allowed.mask), labels[allowed.mask[labels]])
