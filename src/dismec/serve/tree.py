"""The hierarchy of the served labels → a few nodes at a time, paths, and groups."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.data.label_tree import LabelTree
from dismec.errors import DataError
from dismec.serve.label_search import LabelSearch

__all__ = ["BELOW", "HIERARCHY", "PATH", "PATHS", "TREE_QUERY", "TREE_SCHEMAS", "ServedTree"]

Ints = npt.NDArray[np.int64]


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


# Requests and answers, as OpenAPI schemas (`dismec.serve.contract`).
_TEXT, _WHOLE = {"type": "string"}, {"type": "integer"}
PATH = {
    "type": "array",
    "items": _TEXT,
    "description": "Names above the label in the hierarchy, from the top; only if there is a "
    "hierarchy. With several parents, through the first.",
}
PATHS = {
    "type": "array",
    "items": {"type": "array", "items": _TEXT},
    "description": "Names above each label in the hierarchy, from the top; only if there is a "
    "hierarchy.",
}
BELOW = {
    "title": "the number or name of a node of the hierarchy",
    "oneOf": [_WHOLE, _TEXT],
    "description": "Predict only labels below this node of the hierarchy, or the node itself if it "
    "is a label; by number or name.",
}
HIERARCHY = {
    "type": "object",
    "nullable": True,
    "description": "Numbers of nodes, groups and levels of the hierarchy, if there is one.",
}
TREE_QUERY: dict[str, dict[str, Any]] = {
    "node": {
        **_WHOLE,
        "minimum": 0,
        "maximum": 2**31 - 1,
        "description": "The node whose children are returned; by default, all nodes without "
        "parents are returned.",
    },
    "start": {
        **_WHOLE,
        "minimum": 0,
        "maximum": 2**31 - 1,
        "default": 0,
        "description": "Number of children to skip.",
    },
    "limit": {
        **_WHOLE,
        "minimum": 1,
        "maximum": 500,
        "default": 50,
        "description": "Maximum number of nodes.",
    },
    "search": {
        **_TEXT,
        "default": "",
        "description": "Part of a name, ignoring case: return matching nodes from the whole "
        "hierarchy; node and start are ignored.",
    },
}
_NODE = {
    "node": {**_WHOLE, "description": "Number of the node; for a label, its id."},
    "name": _TEXT,
    "is_label": {
        "type": "boolean",
        "description": "Whether it can be predicted; otherwise it is a group.",
    },
    "children": _WHOLE,
    "labels": {**_WHOLE, "description": "Number of labels below it, without itself."},
    "rows": {**_WHOLE, "description": "Number of training rows; only for labels."},
    "path": {**PATH, "description": "Names above it, from the top; only in a search."},
}
TREE_SCHEMAS: dict[str, dict[str, Any]] = {
    "Node": {
        "type": "object",
        "properties": _NODE,
        "required": ["node", "name", "is_label", "children", "labels"],
        "additionalProperties": False,
    },
    "Nodes": {
        "type": "object",
        "properties": {
            "nodes": {"type": "array", "items": {"$ref": "#/components/schemas/Node"}},
            "more": {"type": "boolean", "description": "Whether there are more."},
        },
        "required": ["nodes", "more"],
        "additionalProperties": False,
    },
}
