"""Lists, parts of names and nodes of the hierarchy → labels, among millions."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.data.hierarchy import LabelTree
from dismec.errors import DataError
from dismec.model.allowed import Allowed
from dismec.model.model import Model

Ints = npt.NDArray[np.int64]

_KEPT = 16  # cached sets of labels: a client requests the same one many times
_BETWEEN = b"\xff"  # separates names; not a byte of UTF-8


class LabelSearch:
    """Finds labels by part of their names, ignoring case; without names, by how numbers begin.

    It keeps a second, case-folded copy of all names, concatenated, and a search is a few passes
    over these bytes: tens of milliseconds for a million names.
    """

    def __init__(self, names: Sequence[str] | None, n_labels: int) -> None:
        self._n_labels, self._named = n_labels, names is not None
        folded = [name.casefold().encode() for name in names or map(str, range(n_labels))]
        self._starts = np.cumsum([0, *(1 + len(name) for name in folded)])[:-1]
        self._folded = _BETWEEN + _BETWEEN.join([*folded, b""])

    def find(self, part: str, limit: int) -> list[int]:
        """Return at most `limit` labels: exact matches first, then prefixes, then other matches.

        White space around `part` is ignored. Ties are in label order.
        """
        wanted = part.strip().casefold().encode(errors="replace")
        found: dict[int, None] = {}
        whole = _BETWEEN + wanted
        for pattern in (whole + _BETWEEN, whole, wanted if self._named else b""):
            for label in self._holding(pattern) if pattern else ():
                found[label] = None
                if len(found) >= limit:
                    return list(found)
        return list(found)

    def beginning_with(self, prefix: str) -> Iterator[int]:
        """Yield the labels whose names start with `prefix`, in order; all if it is empty."""
        wanted = prefix.strip().casefold().encode(errors="replace")
        return self._holding(_BETWEEN + wanted) if wanted else iter(range(self._n_labels))

    def _holding(self, pattern: bytes) -> Iterator[int]:
        """Yield the labels whose folded names contain these bytes, each once, in order."""
        place = self._folded.find(pattern)
        while 0 <= place < len(self._folded) - 1:
            label = int(np.searchsorted(self._starts, place, "right")) - 1
            yield label
            following = self._starts[label + 1] if label + 1 < self._n_labels else len(self._folded)
            place = self._folded.find(pattern, int(following))


class ServedTree:
    """The nodes of a hierarchy as requests need them, for many threads.

    `counts` are the training rows of the labels. Children, and nodes without parents, are in the
    order of reports: those with the most labels below them first, then the most frequent. The path
    of a node with several parents goes through the first.
    """

    def __init__(self, tree: LabelTree, counts: Ints) -> None:
        self._tree = tree
        self._below = tree.labels_below
        self._rows = np.zeros(tree.n_nodes, np.int64)
        self._rows[: len(counts)] = counts
        by_parent = np.lexsort((*self._order(tree.child), tree.parent))
        self._children = tree.child[by_parent]
        self._starts = np.searchsorted(tree.parent[by_parent], np.arange(tree.n_nodes + 1))
        self._parent = np.full(tree.n_nodes, -1, np.int64)
        self._parent[tree.child[::-1]] = tree.parent[::-1]  # the first parent is written last
        roots = np.flatnonzero(self._parent < 0)
        self._roots = roots[np.lexsort(self._order(roots))]

    def _order(self, nodes: Ints) -> tuple[Ints, Ints]:
        return -self._rows[nodes], -self._below[nodes]

    def describe(self) -> dict[str, int]:
        """Return its size."""
        tree = self._tree
        return {
            "nodes": tree.n_nodes,
            "groups": tree.n_nodes - tree.n_labels,
            "levels": int(tree.levels.max(initial=0)),
        }

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a checked query: nodes that match part of a name, or the children of a node."""
        limit, start, node = request["limit"], request["start"], request["node"]
        if request["search"].strip():
            found = self._search.find(request["search"], limit + 1)
            nodes = [self._entry(one) | {"path": self.path(one)} for one in found[:limit]]
            return {"nodes": nodes, "more": len(found) > limit}
        children = self._roots if node is None else self._children_of(self.find(node))
        nodes = [self._entry(one) for one in children[start : start + limit].tolist()]
        return {"nodes": nodes, "more": len(children) > start + limit}

    def _entry(self, node: int) -> dict[str, Any]:
        is_label = node < self._tree.n_labels
        return {
            "node": node,
            "name": self._tree.names[node],
            "is_label": is_label,
            "children": int(self._starts[node + 1] - self._starts[node]),
            "labels": int(self._below[node]),
        } | ({"rows": int(self._rows[node])} if is_label else {})

    def _children_of(self, node: int) -> Ints:
        return self._children[self._starts[node] : self._starts[node + 1]]

    def find(self, node: int | str) -> int:
        """Return the number of a node, given its number or name (the first of equal names)."""
        number = self._numbers.get(node.strip(), -1) if isinstance(node, str) else node
        if not 0 <= number < self._tree.n_nodes:
            raise DataError(f"the hierarchy has no node {reprlib.repr(node)}")
        return number

    def path(self, node: int) -> list[str]:
        """Return the names above a node, from the top down to its parent."""
        names: list[str] = []
        node = int(self._parent[node])
        while node >= 0:
            names.append(self._tree.names[node])
            node = int(self._parent[node])
        return names[::-1]

    def labels_in(self, node: int) -> Ints:
        """Return the labels below a node, and itself if it is a label, in ascending order."""
        inside = np.zeros(self._tree.n_nodes, np.bool_)
        fresh = np.array([node])
        while len(fresh):
            inside[fresh] = True
            parents = fresh[self._starts[fresh + 1] > self._starts[fresh]].tolist()
            below = [self._children_of(parent) for parent in parents]
            children = np.unique(np.concatenate([np.empty(0, np.int64), *below]))
            fresh = children[~inside[children]]
        return np.flatnonzero(inside[: self._tree.n_labels])

    @cached_property
    def _search(self) -> LabelSearch:
        return LabelSearch(self._tree.names, self._tree.n_nodes)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in reversed(list(enumerate(self._tree.names)))}


class LabelFilter:
    """The sets of labels that requests of a model have used, for many threads."""

    def __init__(self, model: Model, tree: ServedTree | None) -> None:
        self._model, self._tree = model, tree
        self._allowed = lru_cache(_KEPT)(self._find)

    @cached_property
    def search(self) -> LabelSearch:
        """The search for names of labels, created when it is first needed."""
        return LabelSearch(self._model.names, self._model.n_labels)

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

    def _find(
        self,
        only: tuple[str | int, ...] | None,
        exclude: tuple[str | int, ...],
        prefix: str,
        node: int | None,
    ) -> Allowed:
        allowed = self._model.select_labels(only, exclude)
        if prefix:
            found = np.fromiter(self.search.beginning_with(prefix), np.int64)
            allowed = _within(allowed, found)
        if self._tree is not None and node is not None:
            allowed = _within(allowed, self._tree.labels_in(node))
        return allowed


def _within(allowed: Allowed, labels: Ints) -> Allowed:
    assert allowed.mask is not None
    return Allowed(len(allowed.mask), labels[allowed.mask[labels]])
