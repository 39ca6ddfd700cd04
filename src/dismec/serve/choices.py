"""The label restrictions of a request → the set of allowed labels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np

from dismec.model.allowed import Allowed
from dismec.model.topk_model import TopkModel
from dismec.serve.label_search import LabelSearch
from dismec.serve.tree import ServedTree

__all__ = ["Choices"]

_KEPT = 16  # cached sets: a client requests the same one many times


class Choices:
    """The sets of labels that requests have used, for many threads."""

    def __init__(self, search: Callable[[TopkModel], LabelSearch]) -> None:
        self._search = search
        self._found: OrderedDict[Any, Allowed] = OrderedDict()  # most recent last
        self._lock = Lock()
        self._model: TopkModel | None = None

    def find(
        self, model: TopkModel, request: dict[str, Any], tree: ServedTree | None = None
    ) -> Allowed | None:
        """Return the labels that a checked request allows, or None for all.

        Raise `DataError` if the model or the hierarchy does not contain one of them.
        """
        only, exclude, prefix = request["only"], request["exclude"], request["prefix"]
        below = request.get("below")
        if only is None and not exclude and not prefix.strip() and below is None:
            return None
        group = None
        if below is not None:
            assert tree is not None  # the contract allows it only then
            group = tree.find(below)
        key = None if only is None else tuple(only), tuple(exclude or ()), prefix, group
        with self._lock:
            if self._model is not model:
                self._found.clear()
                self._model = model
            known = self._found.pop(key, None)
            if known is not None:
                self._found[key] = known
                return known
        allowed = self._make(model, only, exclude, prefix)
        if tree is not None and group is not None:
            assert allowed.mask is not None
            inside = tree.labels_in(group)
            allowed = Allowed(model.n_labels, inside[allowed.mask[inside]])
        with self._lock:
            if self._model is model:
                self._found[key] = allowed
                while len(self._found) > _KEPT:
                    self._found.popitem(last=False)
        return allowed

    def _make(self, model: TopkModel, only: Any, exclude: Any, prefix: str) -> Allowed:
        allowed = model.select_labels(only, exclude)
        if not prefix.strip():
            return allowed
        begins = np.fromiter(self._search(model).beginning_with(prefix), np.int64)
        assert allowed.mask is not None
        return Allowed(model.n_labels, begins[allowed.mask[begins]])
