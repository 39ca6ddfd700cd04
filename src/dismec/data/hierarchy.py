"""A file of child and parent names → a hierarchy, and the labels of a model in it."""

from __future__ import annotations

import csv
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.files import StrPath, decode_utf8, read_bytes
from dismec.errors import DataError

Ints = npt.NDArray[np.int64]
MOST_LEVELS = 100
_HEADERS = {("child", "parent"): 1, ("parent", "child"): -1}  # with the order of the columns


class Hierarchy:
    """A hierarchy of labels: which names are below which others.

    A name may have several parents, but there may be no cycle, and at most 100 levels.

    Parameters
    ----------
    pairs : iterable of tuple of str
        Pairs of a child and a parent, by name.

    Attributes
    ----------
    names : list of str
        All names, in the order in which they first occur.

    Examples
    --------
    >>> from dismec import Hierarchy
    >>> hierarchy = Hierarchy([("pug", "dogs"), ("dogs", "animals"), ("cats", "animals")])
    >>> hierarchy.ancestors("pug")
    ['dogs', 'animals']
    >>> hierarchy.leaves
    ['pug', 'cats']
    >>> hierarchy.closed([["cats"], ["pug", "cats"]])
    [['cats', 'animals'], ['pug', 'cats', 'dogs', 'animals']]
    >>> hierarchy.levels(["animals", "cats", "pug"]).tolist()
    [1, 2, 3]
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._path: StrPath | None = None
        self._lines: list[int] = []  # line numbers of the pairs, if read from a file
        if isinstance(pairs, Mapping | str) or not isinstance(pairs, Iterable):
            raise DataError(
                f"pairs is {reprlib.repr(pairs)}; expected a list of pairs (child, parent)"
                + (": pass its items()" if isinstance(pairs, Mapping) else "")
            )
        self._fill(pairs)

    @classmethod
    def load(cls, path: StrPath) -> Hierarchy:
        """Read a hierarchy from a file.

        Parameters
        ----------
        path : str or path-like
            A file with a child and its parent in each line, separated by a tab or, as in CSV, by a
            comma. The first line may be a header, "child" and "parent" in either order. Blank lines
            are skipped.

        Returns
        -------
        Hierarchy
            The hierarchy.
        """
        self = cls.__new__(cls)
        self._path, self._lines = path, []

        def pairs() -> Iterator[tuple[str, str]]:
            for line, pair in _read(Path(path)):
                self._lines.append(line)
                yield pair

        self._fill(pairs())
        if not self.names:
            raise DataError(f"{path}: no pairs of child and parent, only blank lines or a header")
        return self

    def _at(self, place: int) -> str:
        """Describe where a pair comes from."""
        return f"pair index {place}" if self._path is None else f"{self._path}:{self._lines[place]}"

    def _fill(self, pairs: Iterable[tuple[str, str]]) -> None:
        numbers: dict[str, int] = {}
        ends: list[int] = []  # children and parents, alternating
        for place, pair in enumerate(pairs):
            names = pair if isinstance(pair, list | tuple) else ()
            if len(names) != 2 or not all(isinstance(name, str) for name in names):
                raise DataError(f"{self._at(place)}: {reprlib.repr(pair)} is not a pair of names")
            child, parent = map(str.strip, pair)
            if not child or not parent:
                raise DataError(f"{self._at(place)}: a label without a name")
            if child == parent:
                raise DataError(f"{self._at(place)}: {child!r} is its own parent")
            ends.append(numbers.setdefault(child, len(numbers)))
            ends.append(numbers.setdefault(parent, len(numbers)))
        self.names, self._numbers = list(numbers), numbers
        edges = np.array(ends, np.int64).reshape(-1, 2)
        # The first place of each pair: duplicates count once.
        keys = edges[:, 0] * len(numbers) + edges[:, 1]
        self._place = np.sort(np.unique(keys, return_index=True)[1])
        self._child, self._parent = edges[self._place].T
        self._levels = self._find_levels()

    def _find_levels(self) -> Ints:
        """Return 1 for names without parents; otherwise 1 more than the highest parent level."""
        edges = list(zip(self._child.tolist(), self._parent.tolist(), strict=True))
        parents: dict[int, list[int]] = {number: [] for number in range(len(self.names))}
        for child, parent in edges:
            parents[child].append(parent)
        levels = [1] * len(self.names)
        try:
            for number in TopologicalSorter(parents).static_order():
                levels[number] += max((levels[parent] for parent in parents[number]), default=0)
        except CycleError as error:
            cycle = error.args[1][::-1]  # from a child to its parents, back to the child
            place_of = dict(zip(edges, self._place.tolist(), strict=True))
            last = max(place_of[edge] for edge in pairwise(cycle))
            shown = cycle if len(cycle) <= 6 else cycle[:5]
            text = " → ".join(repr(self.names[n]) for n in shown)
            more = " → …" if len(cycle) > 6 else ""
            raise DataError(
                f"{self._at(last)}: a cycle of children and parents: {text}{more}"
            ) from None
        if max(levels, default=0) > MOST_LEVELS:
            name, where = self.names[np.argmax(levels)], self._path or "pairs"
            few = f"a hierarchy has at most {MOST_LEVELS}"
            raise DataError(f"{where}: {name!r} is on level {max(levels)}; {few}")
        return np.array(levels, np.int64)

    @cached_property
    def _parents(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for child, parent in zip(self._child.tolist(), self._parent.tolist(), strict=True):
            found.setdefault(self.names[child], []).append(self.names[parent])
        return found

    def ancestors(self, name: str) -> list[str]:
        """Return the parents of a name, their parents and so on.

        Parameters
        ----------
        name : str
            The name.

        Returns
        -------
        list of str
            The ancestors, nearest first, each once.
        """
        found: dict[str, None] = {}
        above = self._parents.get(name, [])
        while above:
            fresh = [parent for parent in dict.fromkeys(above) if parent not in found]
            found.update(dict.fromkeys(fresh))
            above = [parent for below in fresh for parent in self._parents.get(below, [])]
        return list(found)

    @property
    def leaves(self) -> list[str]:
        """Names that have no children."""
        is_parent = np.zeros(len(self.names), np.bool_)
        is_parent[self._parent] = True
        return [self.names[number] for number in np.flatnonzero(~is_parent).tolist()]

    def levels(self, names: Sequence[str]) -> Ints:
        """Return the levels of names, counted from the top.

        Parameters
        ----------
        names : sequence of str
            The names.

        Returns
        -------
        ndarray of int64, shape (len(names),)
            1 for names without parents and for names that are not in the hierarchy; otherwise 1
            more than the highest level of the parents.
        """
        numbers = [self._numbers.get(name) for name in names]
        return np.array([1 if n is None else self._levels[n] for n in numbers], np.int64)

    def closed(self, rows: Iterable[Iterable[str]]) -> list[list[str]]:
        """Add all ancestors to the labels of rows.

        Parameters
        ----------
        rows : iterable of iterable of str
            The labels of each row.

        Returns
        -------
        list of list of str
            The labels of each row and after them their ancestors, each once.
        """
        closed = []
        for row in rows:
            own = list(row)
            above = [ancestor for name in own for ancestor in self.ancestors(name)]
            closed.append(list(dict.fromkeys([*own, *above])))
        return closed

    def over(self, names: Sequence[str]) -> LabelTree:
        """Arrange the labels of a model in the hierarchy.

        Parameters
        ----------
        names : sequence of str
            The names of the labels, in their order, such as `Model.names`.

        Returns
        -------
        LabelTree
            The labels and the groups above them. Names of the hierarchy that are not labels but
            have children, are groups.

        Raises
        ------
        DataError
            If a name of the hierarchy is not a label and has no children.
        """
        nodes = {name: number for number, name in reversed(list(enumerate(names)))}
        leaves = set(self.leaves)
        groups: list[str] = []
        for number, name in enumerate(self.names):
            if name in nodes:
                continue
            if name in leaves:
                place = int(self._place[self._child == number].min())
                raise DataError(
                    f"{self._at(place)}: {name!r} is neither a label of the model nor a parent"
                )
            nodes[name] = len(names) + len(groups)
            groups.append(name)
        node_of = np.array([nodes[name] for name in self.names], np.int64)
        levels = np.ones(len(names) + len(groups), np.int64)
        levels[node_of] = self._levels
        edges = node_of[self._child], node_of[self._parent]
        return LabelTree([*names, *groups], len(names), *edges, levels)


def load_tree(path: StrPath, names: Sequence[str] | None, n_labels: int) -> LabelTree:
    """Read a hierarchy for `n_labels` labels; labels without names are named by number."""
    named = list(names or ())[:n_labels]
    return Hierarchy.load(path).over([*named, *map(str, range(len(named), n_labels))])


def _read(path: Path) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield the pairs of a file with their line numbers, counted from 1."""
    lines = decode_utf8(path, read_bytes(path)).split("\n")
    first = next((line for line in lines if line.strip()), "")
    with_tabs = "\t" in first
    order = 1
    for line, fields in _fields(path, lines, with_tabs):
        if len(fields) != 2:
            between = "a tab" if with_tabs else "a tab or a comma"
            raise DataError(
                f"{path}:{line}: expected a child and a parent with {between} between them"
            )
        one, other = fields
        head = _HEADERS.get((one.strip().lower(), other.strip().lower()))
        if head is not None and line == 1:
            order = head
            continue
        yield line, (one, other) if order == 1 else (other, one)


def _fields(path: Path, lines: list[str], with_tabs: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of lines that are not blank."""
    how: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if with_tabs else {"strict": True}
    reader: Any = csv.reader((f"{line}\n" for line in lines), **how)
    begin = 1
    try:
        for row in reader:
            if any(field.strip() for field in row):
                yield begin, row
            begin = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}:{begin}: {error}") from None


@dataclass(frozen=True, eq=False)
class LabelTree:
    """The labels of a model in a hierarchy; created by `Hierarchy.over`.

    The nodes are the labels 0 … n_labels − 1, followed by groups: names above labels that are not
    labels themselves.
    """

    names: Sequence[str]  # names of the nodes
    n_labels: int
    child: Ints  # for each pair of a child and a parent
    parent: Ints
    levels: Ints  # (n_nodes,), from 1: roots, and labels outside the hierarchy

    @property
    def n_nodes(self) -> int:
        """Number of labels and groups."""
        return len(self.levels)

    def describe_levels(self) -> list[dict[str, Any]]:
        """Return the numbers of nodes and of labels on each level."""
        return [
            {
                "level": level,
                "nodes": int(np.count_nonzero(self.levels == level)),
                "labels": int(np.count_nonzero(self.levels[: self.n_labels] == level)),
            }
            for level in range(1, 1 + int(self.levels.max(initial=0)))
        ]

    @cached_property
    def leaves(self) -> npt.NDArray[np.bool_]:
        """Labels without children: bool (n_labels,)."""
        found = np.ones(self.n_nodes, np.bool_)
        found[self.parent] = False
        return found[: self.n_labels]

    @cached_property
    def up(self) -> sp.csr_array:
        """int32 (n_nodes, n_nodes): 1 if the column is the row's own node or an ancestor."""
        shape = self.n_nodes, self.n_nodes
        ones = np.ones(len(self.child), np.int32)
        step: Any = sp.csr_array((ones, (self.child, self.parent)), shape=shape)
        reached: Any = sp.eye_array(self.n_nodes, dtype=np.int32, format="csr")
        pairs: list[Any] = []  # the nodes and ancestors of each distance, joined only once
        while reached.nnz:
            pairs.append(reached.tocoo())
            reached = _ones(reached @ step)
        row, column = (np.concatenate([pair.coords[axis] for pair in pairs]) for axis in (0, 1))
        found: Any = sp.csr_array((np.ones(len(row)), (row, column)), shape=shape)
        return _ones(found)  # type: ignore[no-any-return]

    @property
    def labels_below(self) -> Ints:
        """int64 (n_nodes,): number of labels below each node, excluding itself."""
        up: Any = self.up
        found: Ints = np.bincount(up[: self.n_labels].indices, minlength=self.n_nodes)
        found[: self.n_labels] -= 1
        return found

    def closed(self, Y: Any) -> sp.csr_array:
        """Return the labels of rows with all their ancestors: bool (n_rows, n_nodes).

        Y is sparse (n_rows, up to n_labels); nonzero entries are labels.
        """
        rows: Any = sp.csr_array(Y, copy=True)
        rows.eliminate_zeros()
        rows.resize((rows.shape[0], self.n_nodes))
        rows.data = np.ones(rows.nnz, np.int32)
        return _ones(rows @ self.up).astype(np.bool_)  # type: ignore[no-any-return]

    def add_ancestors(
        self, labels: npt.NDArray[np.int32], scores: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Add those ancestors that are labels to ranked labels of rows, (n_rows, places).

        An ancestor gets the highest score of the labels below it, or its own if that is higher.
        Best first; among equal scores, ancestors come before their descendants, then smaller labels
        first. Empty places hold label −1 and score −inf, in the input and the output.
        """
        up, there = self.up, labels >= 0
        n_rows = len(labels)
        row, label = np.nonzero(there)[0], labels[there]
        sizes = np.diff(up.indptr)[label]
        begins = np.repeat(up.indptr[label] - np.cumsum(sizes) + sizes, sizes)
        node = up.indices[begins + np.arange(sizes.sum())]
        row, score = np.repeat(row, sizes), np.repeat(scores[there], sizes)
        of_label = node < self.n_labels
        row, node, score = row[of_label], node[of_label], score[of_label]
        order = np.lexsort((-score, node, row))
        row, node, score = row[order], node[order], score[order]
        first = np.append(True, (np.diff(row) != 0) | (np.diff(node) != 0))[: len(row)]
        row, node, score = row[first], node[first], score[first]
        order = np.lexsort((node, self.levels[node], -score, row))
        row, node, score = row[order], node[order], score[order]
        lengths = np.bincount(row, minlength=n_rows)
        place = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        width = int(lengths.max(initial=0))
        closed = np.full((n_rows, width), -1, np.int32)
        values = np.full((n_rows, width), -np.inf, np.float32)
        closed[row, place], values[row, place] = node, score
        return closed, values


def _ones(matrix: Any) -> Any:
    """Return the matrix with all stored values set to 1, so sums and products count paths."""
    matrix.data = np.ones(len(matrix.data), np.int32)
    return matrix
