"""From raw texts to ranked labels: dismec, scikit-learn, PECOS and fastText; prints a table.

Each pipeline is one function below, written as in the system's documentation, and its lines are
counted. It runs in its own process, dismec in this environment and the others in that of the peers:
from texts and label lists in memory to the five best labels of each test text. CPU seconds are
summed over all cores, from texts to the trained model on disk, and the size is that of its files.
fastText's learning rate and epochs are chosen on a tenth of the training texts, in time that is
shown separately, and its texts are prepared as in its tutorial. PECOS gets scikit-learn's features:
its own vectorizer splits only at blanks, and reached a P@1 of 65.1 on cooking-text. P@1 has a 95 %
interval of about ± 1.6 on cooking-text (3,000 texts), and ± 0.9 on eurlex57k-text (6,000).
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import inspect
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SETS = ("cooking-text", "eurlex57k-text")
K = 5


def with_dismec(texts, labels, test, folder, threads):
    import dismec
    from dismec.data.corpus import TextBatch, Texts

    source = Texts(lambda: [TextBatch(texts, labels, 0)])
    model = dismec.train_text(source, folder / "model", threads=threads)
    yield
    top, _ = model.predict_topk(model.vocabulary.rows(test), K)
    yield [[model.names[label] for label in row] for row in top]


def with_sklearn(texts, labels, test, folder, threads):
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MultiLabelBinarizer
    from sklearn.svm import LinearSVC

    names = MultiLabelBinarizer(sparse_output=True)
    Y = names.fit_transform(labels)
    model = make_pipeline(TfidfVectorizer(sublinear_tf=True), OneVsRestClassifier(LinearSVC()))
    model.fit(texts, Y)
    (folder / "model.pkl").write_bytes(pickle.dumps((names, model)))
    yield
    scores = model.decision_function(test)
    yield names.classes_[np.argsort(-scores, axis=1)[:, :K]].tolist()


def with_pecos(texts, labels, test, folder, threads):
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import MultiLabelBinarizer

    names = MultiLabelBinarizer(sparse_output=True)
    Y = names.fit_transform(labels).astype(np.float32).tocsr()
    vectorizer = TfidfVectorizer(sublinear_tf=True, dtype=np.float32)
    X = vectorizer.fit_transform(texts)
    clusters = Indexer.gen(LabelEmbeddingFactory.create(Y, X, method="pifa"), threads=threads)
    trained = XLinearModel.train(X, Y, C=clusters, threads=threads)
    (folder / "features.pkl").write_bytes(pickle.dumps((names, vectorizer)))
    trained.save(str(folder / "model"))
    yield
    model = XLinearModel.load(str(folder / "model"), is_predict_only=True)
    found = model.predict(vectorizer.transform(test), only_topk=K)
    yield [names.classes_[r.indices[np.argsort(-r.data)]].tolist() for r in found]


def with_fasttext(texts, labels, test, folder, threads, settings):
    import fasttext

    lines = folder.parent / "train.txt"
    tags = [" ".join(f"__label__{name.replace(' ', '_')}" for name in row) for row in labels]
    words = [" ".join(re.findall(r"\w+|[^\w\s]", text.lower())) for text in texts]
    rows = [f"{tag} {text}" for tag, text in zip(tags, words, strict=True)]
    lines.write_text("\n".join(rows), "utf-8")
    model = fasttext.train_supervised(str(lines), loss="ova", thread=threads, verbose=0, **settings)
    model.save_model(str(folder / "model.bin"))
    yield
    words = [" ".join(re.findall(r"\w+|[^\w\s]", text.lower())) for text in test]
    found = model.predict(words, k=K)[0]
    yield [[name.removeprefix("__label__") for name in row] for row in found]


PIPELINES = {
    "dismec": with_dismec,
    "sklearn": with_sklearn,
    "pecos": with_pecos,
    "fasttext": with_fasttext,
}
GRID = [  # similar to its tutorial for cooking-text
    {"lr": lr, "epoch": epoch, "wordNgrams": 2, "bucket": 200_000, "dim": 50}
    for lr in (0.5, 1.0)
    for epoch in (10, 25)
]
IMPORTS = {  # not timed
    "dismec": ["dismec", "dismec.training.texts"],
    "sklearn": ["sklearn.feature_extraction.text", "sklearn.multiclass", "sklearn.svm"],
    "pecos": ["pecos.xmc.xlinear.model", "sklearn.feature_extraction.text"],
    "fasttext": ["fasttext"],
}


def lines_of(pipeline) -> int:
    """Count non-empty lines, without the first and the bare yield."""
    body = inspect.getsource(pipeline).splitlines()[1:]
    return sum(bool(line.strip()) and line.strip() != "yield" for line in body)


def cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def load(name: str, part: str) -> tuple[list[str], list[list[str]]]:
    folder = Path(os.environ.get("DISMEC_DATA", "data")) / name
    for path, opened in (
        (folder / f"{part}.jsonl", open),
        (folder / f"{part}.jsonl.gz", gzip.open),
    ):
        if path.exists():
            with opened(path, "rt", encoding="utf-8") as file:
                rows = [json.loads(line) for line in file]
            return [row["text"] for row in rows], [row["labels"] for row in rows]
    sys.exit(f"no {part}.jsonl or {part}.jsonl.gz in {folder}: set DISMEC_DATA")


def precision(truth: list[list[str]], found: list[list[str]], k: int) -> float:
    """Return P@k in percent; compares names without blanks, which fastText does not support."""
    same = [{name.replace(" ", "_") for name in row} for row in truth]
    hits = sum(
        name.replace(" ", "_") in own
        for own, row in zip(same, found, strict=True)
        for name in row[:k]
    )
    return 100 * hits / (k * len(truth))


def run(pipeline, train, test, threads, **settings) -> dict:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "kept"
        folder.mkdir()
        begin = cpu()
        steps = pipeline(*train, test[0], folder, threads, **settings)
        next(steps)
        seconds = cpu() - begin
        size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        found = next(steps)
    return {"cpu": seconds, "bytes": size} | {
        f"P@{k}": precision(test[1], found, k) for k in (1, 3, 5)
    }


def tuned_settings(train, threads) -> dict:
    """Return the settings that are best on a tenth of the training texts."""
    held = np.random.default_rng(0).random(len(train[0])) < 0.1
    parts = [
        tuple([column[i] for i in np.flatnonzero(rows)] for column in train)
        for rows in (~held, held)
    ]
    found = []
    for settings in GRID:
        try:
            found.append(run(with_fasttext, *parts, threads, settings=settings)["P@1"])
        except RuntimeError:  # it diverged
            found.append(0.0)
    return GRID[int(np.argmax(found))]


def work(name: str, dataset: str, threads: int) -> None:
    train, test = load(dataset, "train"), load(dataset, "test")
    for module in IMPORTS[name]:
        importlib.import_module(module)
    settings, begin = {}, cpu()
    if name == "fasttext":
        settings = {"settings": tuned_settings(train, threads)}
    tuning = cpu() - begin
    report = run(PIPELINES[name], train, test, threads, **settings)
    print("REPORT", json.dumps(report | {"tuning": tuning, **settings}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--systems", nargs="+", choices=PIPELINES, default=list(PIPELINES))
    args = parser.parse_args()

    from machine import print_heading
    from training import default_peers

    print_heading()
    peers = default_peers()
    for dataset in args.sets:
        print(f"{dataset}, {args.threads} threads")
        print("| | P@1 / 3 / 5 | CPU s | of which tuning | model MB | lines |")
        print("|---|---|---|---|---|---|")
        for name in args.systems:
            python = sys.executable if name == "dismec" else peers
            command = [str(python), __file__, "--work", name, dataset, str(args.threads)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            line = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
            if not line:
                sys.exit(f"{name} failed:\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
            found = json.loads(line[0].removeprefix("REPORT "))
            shown = " / ".join(f"{found[f'P@{k}']:.2f}" for k in (1, 3, 5))
            tuning = f"{found['tuning']:.0f}" if found["tuning"] > 1 else "–"
            total, size = found["cpu"] + found["tuning"], found["bytes"] / 1e6
            told = f"| {name} | {shown} | {total:.1f} | {tuning} | {size:.1f} |"
            print(told, lines_of(PIPELINES[name]), "|", found.get("settings", ""), flush=True)
        print()
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        sys.exit(main())
