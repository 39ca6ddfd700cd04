"""What texts of labels gain, and how well labels without training rows are found.

The environment variable DISMEC_DATA names the folder with the sets.

    python benchmarks/label_texts.py yso-en-text       # at the defaults of `dismec train`
    python benchmarks/label_texts.py cooking-text 30   # number of labels whose rows are hidden

Labels drawn at random are removed from all training rows, and described by their names alone. The
table gives the recall of these labels among the ten best of all labels, and what the others lose.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data import folder_of
from dismec import Model, TrainingParams, train_text
from machine import print_heading

Rows = list[dict[str, object]]
PARAMS = TrainingParams(C="auto", tfidf=True, calibrate=True)


def read(name: str, part: str) -> Rows:
    path = folder_of(name) / f"{part}.jsonl"
    if path.exists():
        return [json.loads(line) for line in path.open(encoding="utf-8")]
    with gzip.open(f"{path}.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def trained(rows: Rows, folder: str, label_texts: object) -> tuple[Model, float]:
    file = Path(folder) / "train.jsonl"
    with file.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    begin = time.process_time()
    path = Path(folder) / "model"
    model = train_text(file, path, PARAMS, label_texts=label_texts, overwrite=True)
    return model, time.process_time() - begin


def top(model: Model, rows: Rows, k: int) -> list[Sequence[str]]:
    texts = [str(row["text"]) for row in rows]
    labels, _ = model.predict_topk(model.vocabulary.rows(texts), k)
    return [[model.names[label] for label in best if label >= 0] for best in labels]


def precision(found: list[Sequence[str]], truth: list[set[str]]) -> float:
    right = [bool(best) and best[0] in true for best, true in zip(found, truth, strict=True)]
    return 100 * float(np.mean(right))


def main() -> None:
    name = sys.argv[1]
    train, test = read(name, "train"), read(name, "test")
    every = sorted({label for row in train for label in row["labels"]})
    n_hidden = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    hidden = set(np.random.default_rng(0).choice(every, min(n_hidden, len(every) // 5), False))
    print_heading()
    with tempfile.TemporaryDirectory() as folder:
        for how in (None, True):
            model, seconds = trained(train, folder, how)
            rows = model.vocabulary.rows([str(row["text"]) for row in test])
            found = model.evaluate(rows, [row["labels"] for row in test])
            shown = " / ".join(f"{found[f'P@{k}']:.2f}" for k in (1, 3, 5))
            rare = " / ".join(f"{found[f'PSP@{k}']:.2f}" for k in (1, 3, 5))
            effect = model.params.get("label_texts_effect", {}).get("weight")
            print(f"label texts {how}: P {shown}, PSP {rare}; {seconds:.0f} CPU s, weight {effect}")

        left = [
            row | {"labels": [one for one in row["labels"] if one not in hidden]} for row in train
        ]
        truth = [set(row["labels"]) for row in test]
        others = [labels - hidden for labels in truth]
        pairs = sum(len(labels & hidden) for labels in truth)
        for how in (None, True):
            texts = None if how is None else {label: label.replace("-", " ") for label in every}
            model, _ = trained(left, folder, texts)
            best = top(model, test, 10)
            hits = sum(
                len(labels & hidden & set(ten)) for labels, ten in zip(truth, best, strict=True)
            )
            without = [[one for one in ten if one not in hidden] for ten in best]
            print(
                f"{len(hidden)} labels without rows, label texts {how}: recall@10 "
                f"{100 * hits / pairs:.1f} % of {pairs}; P@1 of the others "
                f"{precision(best, others):.2f} (ranked alone: {precision(without, others):.2f})"
            )


if __name__ == "__main__":
    main()
