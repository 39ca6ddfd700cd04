"""Options for the labels that a command may predict, and for a hierarchy of labels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from dismec.cli.console import print_level_table, print_message, print_metrics
from dismec.cli.options import PATH, F
from dismec.data.counts import counted
from dismec.errors import DataError

if TYPE_CHECKING:
    from dismec.data.dataset import Dataset
    from dismec.data.hierarchy import LabelTree
    from dismec.model.allowed import Allowed
    from dismec.model.model import Model

Ranking = Callable[[Any], tuple[Any, Any]]

hierarchy_option = click.option(
    "--hierarchy",
    type=PATH,
    metavar="FILE",
    help="File of label parents; each line is a child, a tab or comma, and a parent.",
)


def tree_of_test(path: Path, model: Model, data: Dataset) -> LabelTree:
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
    ancestors: bool
    leaves: bool

    def tree(self, model: Model, names: Sequence[str] | None) -> LabelTree | None:
        """Return the hierarchy of a model's labels, if given."""
        if self.path is None:
            return None
        from dismec.data.hierarchy import load_tree

        return load_tree(self.path, names or model.names, model.n_labels)

    def among(
        self, model: Model, tree: LabelTree | None, allowed: Allowed | None
    ) -> Allowed | None:
        """Return the allowed labels, restricted to leaves if requested."""
        if tree is None or not self.leaves:
            return allowed
        leaves = tree.leaves
        if allowed is not None and allowed.mask is not None:
            leaves = leaves & allowed.mask
        return model.select_labels(only=leaves.nonzero()[0].tolist())

    def with_ancestors(self, rank: Ranking, tree: LabelTree | None) -> Ranking:
        """Return the ranking function, extended by ancestors if requested."""
        if tree is None or not self.ancestors:
            return rank
        return lambda X: tree.add_ancestors(*rank(X))


def branch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--hierarchy``, ``--add-ancestors`` and ``--leaves-only`` as one `Branches`."""

    @functools.wraps(command)
    def gathered(
        *args: Any, hierarchy: Path | None, add_ancestors: bool, leaves_only: bool, **others: Any
    ) -> Any:
        if hierarchy is None and (add_ancestors or leaves_only):
            raise click.UsageError("--add-ancestors and --leaves-only require --hierarchy")
        if hierarchy is not None and not (add_ancestors or leaves_only):
            raise click.UsageError("--hierarchy requires --add-ancestors or --leaves-only")
        branches = Branches(hierarchy, add_ancestors, leaves_only)
        return command(*args, branches=branches, **others)

    for option in (
        click.option("--leaves-only", is_flag=True, help="Predict only labels without children."),
        click.option(
            "--add-ancestors",
            is_flag=True,
            help="Add the ancestors of predicted labels, scored by their best descendant.",
        ),
        hierarchy_option,
    ):
        gathered = option(gathered)
    return gathered


def measure_levels(
    path: Path,
    model: Model,
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


@dataclass(frozen=True)
class LabelChoice:
    """Files of labels to predict exclusively, or to exclude."""

    only: Path | None
    exclude: Path | None

    def among(self, model: Model) -> Allowed | None:
        """Return the labels that the model may predict; None for all."""
        from dismec.data.names import load_names

        given = {"only": self.only, "exclude": self.exclude}
        files = {what: path for what, path in given.items() if path is not None}
        if not files:
            return None
        found: dict[str, list[int]] = {}
        for what, path in files.items():
            found[what] = []
            for line, name in enumerate(load_names(path, blanks=True), 1):
                if not name:
                    continue
                try:
                    found[what].append(model.find_label(name))
                except DataError as error:
                    raise DataError(f"{path}:{line}: {error}") from None
        return model.select_labels(**found)


def choice_options(command: F) -> F:
    """Add --only and --exclude, passed to the command as `choice`."""

    @click.option(
        "--only",
        type=PATH,
        metavar="FILE",
        help="Predict only the labels in this file: names or numbers, one per line.",
    )
    @click.option(
        "--exclude",
        type=PATH,
        metavar="FILE",
        help="Never predict the labels in this file: names or numbers, one per line.",
    )
    @functools.wraps(command)
    def with_choice(*args: Any, only: Path | None, exclude: Path | None, **rest: Any) -> Any:
        return command(*args, choice=LabelChoice(only, exclude), **rest)

    return cast(F, with_choice)


def print_not_allowed(allowed: Allowed, Y: Any) -> None:
    """Print how many true labels are ignored because they are not allowed."""
    kept, left_out = allowed.filter(Y)
    if left_out:
        without = int((kept.indptr[1:] == kept.indptr[:-1]).sum())
        of = f"{left_out:,} of {left_out + kept.nnz:,} true labels are not allowed and do not count"
        print_message(
            f"{of}; {without:,} of {counted(kept.shape[0], 'row')} have no true label left"
        )
