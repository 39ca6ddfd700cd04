"""Options for the labels that a command may predict, and for a hierarchy of labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dismec.cli.console import print_level_table, print_message, print_metrics
from dismec.cli.options import file_option
from dismec.data.counts import counted
from dismec.errors import DataError, located

if TYPE_CHECKING:
    from dismec.data.dataset import Dataset
    from dismec.data.hierarchy import LabelTree
    from dismec.model.allowed import Allowed
    from dismec.model.model import Model

hierarchy_option = file_option(
    "--hierarchy", "File of label parents; each line is a child, a tab or comma, and a parent."
)
only_option = file_option(
    "--only", "Predict only the labels in this file: names or numbers, one per line."
)
exclude_option = file_option(
    "--exclude", "Never predict the labels in this file: names or numbers, one per line."
)


def allowed_labels(
    model: Model, only: Path | None, exclude: Path | None, tree: LabelTree | None = None
) -> Allowed | None:
    """Return the labels that the options allow, only leaves if there is a tree; None for all."""
    allowed = None
    if only is not None or exclude is not None:
        listed = None if only is None else _labels_in(only, model)
        allowed = model.select_labels(listed, [] if exclude is None else _labels_in(exclude, model))
    if tree is None:
        return allowed
    leaves = tree.leaves
    if allowed is not None and allowed.mask is not None:
        leaves = leaves & allowed.mask
    return model.select_labels(only=leaves.nonzero()[0].tolist())


def _labels_in(path: Path, model: Model) -> list[int]:
    """Return the numbers of the labels in a file; an error names the line."""
    from dismec.data.names import load_names

    found = []
    for line, name in enumerate(load_names(path, blanks=True), 1):
        with located(f"{path}:{line}", DataError):
            found += [model.find_label(name)] if name else []
    return found


def print_not_allowed(allowed: Allowed, Y: Any) -> None:
    """Print how many true labels are ignored because they are not allowed."""
    kept, left_out = allowed.filter(Y)
    if left_out:
        without = int((kept.indptr[1:] == kept.indptr[:-1]).sum())
        of = f"{left_out:,} of {left_out + kept.nnz:,} true labels are not allowed and do not count"
        print_message(
            f"{of}; {without:,} of {counted(kept.shape[0], 'row')} have no true label left"
        )


def tree_of_test(path: Path, model: Model, data: Dataset) -> LabelTree:
    """Read the hierarchy of the labels of a model and of its test data."""
    from dismec.data.hierarchy import load_tree
    from dismec.report.evaluation import all_names

    return load_tree(path, all_names(model, data), max(model.n_labels, data.Y.shape[1]))


def measure_levels(
    path: Path,
    model: Model,
    data: Dataset,
    ks: tuple[int, ...],
    threads: int | None,
    weights: Any,
    **how: Any,
) -> dict[str, Any]:
    """Evaluate a model at each level of a hierarchy (`dismec.by_level`)."""
    from dismec.measure.breakdown import by_level

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
