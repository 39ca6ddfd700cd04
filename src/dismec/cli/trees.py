"""Options for a hierarchy of labels, and how commands use one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dismec.cli.console import print_metrics, print_table
from dismec.cli.options import PATH

if TYPE_CHECKING:
    from dismec.data.dataset import Dataset
    from dismec.data.label_tree import LabelTree
    from dismec.model.allowed import Allowed
    from dismec.model.topk_model import TopkModel

Ranking = Callable[[Any], tuple[Any, Any]]

hierarchy_option = click.option(
    "--hierarchy",
    type=PATH,
    metavar="FILE",
    help="File of label parents; each line is a child, a tab or comma, and a parent.",
)


def tree_of_test(path: Path, model: TopkModel, data: Dataset) -> LabelTree:
    """Read the hierarchy of the labels of a model and of its test data."""
    from dismec.data.hierarchy import load_tree

    names = model.names
    if names is None or (data.names is not None and len(data.names) > len(names)):
        names = data.names
    return load_tree(path, names, max(model.n_labels, data.Y.shape[1]))


@dataclass(frozen=True)
class Branches:
    """Which labels of a hierarchy to predict."""

    path: Path | None
    upwards: bool
    leaves: bool

    def tree(self, model: TopkModel, names: Sequence[str] | None) -> LabelTree | None:
        """Return the hierarchy of a model's labels, if given."""
        if self.path is None:
            return None
        from dismec.data.hierarchy import load_tree

        return load_tree(self.path, names or model.names, model.n_labels)

    def among(
        self, model: TopkModel, tree: LabelTree | None, allowed: Allowed | None
    ) -> Allowed | None:
        """Return the allowed labels, restricted to leaves if requested."""
        if tree is None or not self.leaves:
            return allowed
        leaves = tree.leaves
        if allowed is not None and allowed.mask is not None:
            leaves = leaves & allowed.mask
        return model.select_labels(only=leaves.nonzero()[0].tolist())

    def close(self, rank: Ranking, tree: LabelTree | None) -> Ranking:
        """Return the ranking function, extended by ancestors if requested."""
        if tree is None or not self.upwards:
            return rank
        return lambda X: tree.close_ranking(*rank(X))


def branch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--hierarchy``, ``--close-upwards`` and ``--leaves-only`` as one `Branches`."""

    @functools.wraps(command)
    def gathered(
        *args: Any, hierarchy: Path | None, close_upwards: bool, leaves_only: bool, **others: Any
    ) -> Any:
        if hierarchy is None and (close_upwards or leaves_only):
            raise click.UsageError("--close-upwards and --leaves-only require --hierarchy")
        if hierarchy is not None and not (close_upwards or leaves_only):
            raise click.UsageError("--hierarchy requires --close-upwards or --leaves-only")
        branches = Branches(hierarchy, close_upwards, leaves_only)
        return command(*args, branches=branches, **others)

    for option in (
        click.option("--leaves-only", is_flag=True, help="Predict only labels without children."),
        click.option(
            "--close-upwards",
            is_flag=True,
            help="Add the ancestors of predicted labels, scored by their best descendant.",
        ),
        hierarchy_option,
    ):
        gathered = option(gathered)
    return gathered


def measure_levels(
    path: Path,
    model: TopkModel,
    data: Dataset,
    ks: tuple[int, ...],
    threads: int | None,
    weights: Any,
    **how: Any,
) -> dict[str, Any]:
    """Evaluate a model at each level of a hierarchy (`dismec.measure.levels`)."""
    from dismec.measure.levels import by_level

    tree = tree_of_test(path, model, data)
    depth = max(1, min(max(ks), model.n_labels))
    top, _ = model.predict_topk(data.X, depth, threads=threads, **how)
    return by_level(data.Y, top, tree, ks, weights)


def rounded(metrics: dict[str, Any]) -> dict[str, Any]:
    """Round metrics for JSON, including those of levels."""
    found = {key: round(value, 2) for key, value in metrics.items() if key != "levels"}
    levels = [rounded(entry) for entry in metrics.get("levels", ())]
    return found | ({"levels": levels} if levels else {})


def print_levels(result: dict[str, Any], ks: tuple[int, ...]) -> None:
    """Print the metrics of all labels, and those of levels, if any."""
    levels = result.pop("levels", None)
    print_metrics(result, ks)
    if levels is not None:
        print_level_table(levels, ks)


def print_level_table(levels: Sequence[dict[str, Any]], ks: Sequence[int]) -> None:
    """Print a table with one row per level."""
    counts = ("level", "nodes", "labels")
    found = [f"{name}@{k}" for name in ("hP", "hR") for k in ks if f"{name}@{k}" in levels[0]]
    print_table(
        [*counts, *found],
        [
            [*(f"{entry[key]:,}" for key in counts), *(f"{entry[key]:.2f}" for key in found)]
            for entry in levels
        ],
        "By level of the hierarchy" + (", %" if found else ""),
        left=0,
    )
