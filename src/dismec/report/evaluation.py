"""A model and rows with known labels → how good it is, overall and per label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.data.dataset import Dataset
from dismec.data.hierarchy import LabelTree
from dismec.errors import DataError
from dismec.measure.breakdown import by_group, by_label, by_level, by_node, precision_of_guesses
from dismec.measure.metrics import Truth, hits, reliability
from dismec.model.model import Model

KS = (1, 3, 5)
_LISTED = 10  # labels listed as the best, and as the worst
_LEAST_TEST_ROWS = 5  # minimum number of test rows of such a label


def describe_test(
    model: Model, data: Dataset, threads: int | None = None, tree: LabelTree | None = None
) -> dict[str, Any]:
    """Evaluate a model on rows with known labels, overall and per label, in percent.

    "metrics" as in `Model.evaluate`; "guesses", P@k without a model; "rows
    without labels", where no prediction can be right, and "pairs with unknown labels" among all
    "pairs" of a row and a true label; "groups" by training frequency (`measure.breakdown`); "best
    labels" and "worst labels" by F1 in the first 5 places, among the labels with at least 5 test
    rows (their number is "labels judged"; ties: more test rows first); "all labels", one list per
    column, the most frequent in training first, with None if there is nothing to measure; for a
    calibrated model, "reliability" of the probabilities in the first 5 places; and with a `tree` of
    the labels of both, "hierarchy": its "levels" (`by_level`) and, for all "nodes", their
    numbers in the first 5 places.
    """
    truth = Truth.align(data.Y, model.label_counts, model.manifest.n_rows)
    if truth.Y.shape[0] == 0:
        raise DataError("the test data have no rows")
    top, values = model.predict_topk(data.X, max(KS), threads=threads)
    columns = _label_columns(truth, top, all_names(model, data))
    found = {
        "metrics": model.evaluate(data.X, data.Y, KS, threads=threads),
        "guesses": precision_of_guesses(truth, KS),
        "rows without labels": int(np.count_nonzero(np.diff(truth.Y.indptr) == 0)),
        "pairs": int(truth.Y.nnz),
        "pairs with unknown labels": int(
            np.count_nonzero(truth.label_counts[truth.Y.indices] == 0)
        ),
        "groups": by_group(truth.Y, top, truth.label_counts, truth.propensities, KS),
        **_extremes(columns),
        "all labels": columns,
    }
    if model.calibration is not None:
        there = top >= 0
        found["reliability"] = reliability(values[there], hits(truth.Y, top)[there])
    if tree is not None:
        counts = by_node(truth.Y, top, tree)
        nodes: dict[str, list[Any]] = {"test rows": counts["rows"].tolist()}
        for name, of in (("precision", "predicted"), ("recall", "rows")):
            pairs = zip(counts["hits"].tolist(), counts[of].tolist(), strict=True)
            nodes[name] = [round(100 * hit / all_, 2) if all_ else None for hit, all_ in pairs]
        found["hierarchy"] = by_level(truth.Y, top, tree, KS) | {"nodes": nodes}
    return found


def all_names(model: Model, data: Dataset) -> Sequence[str] | None:
    """Return the names of all labels; with texts, the data may have more labels than the model."""
    if model.names is None or (data.names is not None and len(data.names) > len(model.names)):
        return data.names
    return model.names


def _label_columns(
    truth: Truth, top: npt.NDArray[np.int32], names: Sequence[str] | None
) -> dict[str, list[Any]]:
    found, counts = by_label(truth.Y, top), truth.label_counts
    rows, predicted = found["rows"], found["predicted"]
    order = np.lexsort((np.arange(len(rows)), -rows, -counts))
    labels = order.tolist()
    measured = {"precision": predicted > 0, "recall": rows > 0, "F1": rows > 0}
    n_names = 0 if names is None else len(names)
    return {
        "label": labels,
        "name": [names[i] if names is not None and i < n_names else str(i) for i in labels],
        "training rows": counts[order].tolist(),
        "test rows": rows[order].tolist(),
        "predicted rows": predicted[order].tolist(),
        **{
            key: [round(100 * float(found[key][i]), 2) if there[i] else None for i in labels]
            for key, there in measured.items()
        },
    }


def _extremes(columns: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Return the best and the worst rows of the table of all labels, by F1."""
    judged = [
        {key: values[place] or 0 for key, values in columns.items()}  # a precision may be None
        for place, rows in enumerate(columns["test rows"])
        if rows >= _LEAST_TEST_ROWS
    ]
    best = sorted(judged, key=lambda entry: (-entry["F1"], -entry["test rows"], entry["label"]))
    worst = sorted(judged, key=lambda entry: (entry["F1"], -entry["test rows"], entry["label"]))
    return {
        "labels judged": len(judged),
        "best labels": best[:_LISTED],
        "worst labels": worst[:_LISTED],
    }


def describe_hierarchy(
    tree: LabelTree, counts: npt.NDArray[np.int64], test: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Describe the levels, and all nodes as one list per column: first labels, then groups.

    `counts` are the training rows of labels; groups have None. `test` is the hierarchy part of the
    result of `describe_test`: if given, levels have metrics, and nodes have "test rows",
    "precision" and "recall" in percent, None if there is nothing to measure.
    """
    rows: list[int | None] = [None] * tree.n_nodes
    rows[: tree.n_labels] = [0] * tree.n_labels
    rows[: len(counts)] = counts.tolist()
    parents: list[list[int]] = [[] for _ in range(tree.n_nodes)]
    for child, parent in zip(tree.child.tolist(), tree.parent.tolist(), strict=True):
        parents[child].append(parent)
    nodes: dict[str, list[Any]] = {
        "name": list(tree.names),
        "parents": parents,
        "level": tree.levels.tolist(),
        "is label": [number < tree.n_labels for number in range(tree.n_nodes)],
        "labels below": tree.labels_below.tolist(),
        "training rows": rows,
    }
    if test is not None:
        nodes |= {key: test["nodes"][key] for key in ("test rows", "precision", "recall")}
        return {"levels": test["levels"], "nodes": nodes}
    return {"levels": tree.describe_levels(), "nodes": nodes}
