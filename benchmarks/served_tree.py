"""A large hierarchy on a server: opening it, and its answers; exits with 1 if a bound is missed.

A generated tree: every label below the first level has one of the labels before it as parent, which
gives about eight levels. Times are CPU times of one thread; for answers the median.

Bounds: the children of a node, a path and the labels of a group take at most 2 ms longer than with
a tree of a hundredth of the size; a search takes less than 0.5 s per million names.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dismec.data.hierarchy import load_tree
from dismec.serve.label_filter import ServedTree
from machine import print_heading

TOP = 20  # labels of the first level
SLACK = 0.002
SEARCH = 0.5


def seconds(work: Callable[[], object]) -> float:
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def opened(n: int, folder: Path) -> tuple[ServedTree, dict[str, float]]:
    rng = np.random.default_rng(0)
    parents = (np.arange(TOP, n) * rng.random(n - TOP) / 8).astype(np.int64)
    names = [f"label {i}" for i in range(n)]
    path = folder / f"{n}.tsv"
    path.write_text(
        "".join(f"{names[i]}\t{names[p]}\n" for i, p in enumerate(parents.tolist(), TOP))
    )
    begin = time.thread_time()
    tree = load_tree(path, names, n)
    loaded = time.thread_time()
    served = ServedTree(tree, np.ones(n, np.int64))
    return served, {"read the file": loaded - begin, "open": time.thread_time() - loaded}


def answers(served: ServedTree, n: int) -> dict[str, float]:
    rng = np.random.default_rng(1)
    nodes = rng.integers(0, n, 200).tolist()
    query = {"node": None, "start": 0, "limit": 50, "search": ""}
    works: dict[str, list[Callable[[], object]]] = {
        "roots": [lambda: served.answer(query)] * 20,
        "children": [lambda i=i: served.answer({**query, "node": i}) for i in nodes],
        "path": [lambda i=i: served.path(i) for i in nodes],
        "labels of a group": [lambda i=i: served.labels_in(i) for i in nodes],
        "search": [lambda i=i: served.answer({**query, "search": f"{i}"}) for i in nodes[:10]],
    }
    works["search"][0]()  # the first search builds an index
    return {what: float(np.median([seconds(one) for one in each])) for what, each in works.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--labels", type=int, default=1_000_000)
    args = parser.parse_args()
    print_heading()
    found, missed = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for n in (args.labels // 100, args.labels):
            served, times = opened(n, Path(folder))
            found[n] = times | answers(served, n)
            print(f"{n:,} labels on {served.describe()['levels']} levels")
            for what, taken in found[n].items():
                print(f"  {what:20} {1e3 * taken:10.3f} ms")
    few, many = found.values()
    missed = [
        f"{what} takes {1e3 * many[what]:.1f} ms; with a small tree {1e3 * few[what]:.1f}"
        for what in ("roots", "children", "path", "labels of a group")
        if many[what] > few[what] + SLACK
    ]
    if many["search"] > SEARCH * args.labels / 1e6:
        missed.append(f"a search takes {many['search']:.2f} s")
    print("\n".join(missed) or "every bound is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
