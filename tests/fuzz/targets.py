"""The readers of external input, each with valid inputs to start from."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from unittest import mock

import numpy as np
import scipy.sparse as sp

from dismec import Hierarchy, TrainingParams, load_data, open_model, save_data, train, train_text
from dismec.data.corpus import read_texts
from dismec.data.dataset import Dataset, feature_batches
from dismec.data.mixed import load_dense
from dismec.data.names import load_names
from dismec.data.text_format import TextFormat
from dismec.data.weights import load_row_weights
from dismec.report.facts import describe_data, describe_model, describe_texts
from dismec.serve.answers import Service
from dismec.serve.contract import Limits
from fuzz.mutations import (
    gzipped,
    json_bytes,
    mutate_bytes,
    mutate_container,
    mutate_json,
    mutate_model,
)


@dataclass(frozen=True)
class Target:
    """Generates an input from a random generator, and passes it to what reads it.

    `make` writes the input and returns its size in bytes, and a function that reads it; any
    exception but a `DismecError` is a fault.
    """

    name: str
    share: float  # of all inputs
    make: Callable[[Random], tuple[int, Callable[[], object]]]


def problem(rows=40, features=30, labels=12):
    rng = np.random.default_rng(0)
    X = sp.random_array(
        (rows, features), density=0.2, random_state=rng, dtype=np.float32, format="csr"
    )
    Y = sp.csr_array((rng.random((rows, labels)) < 0.15).astype(np.uint8))
    return X, Y


TEXTS = [
    {"text": f"the {word} and some other words {i}", "labels": [word, "all"], "id": str(i)}
    for i, word in enumerate(["apple", "pear", "straße", "ship \U0001f389", "harbour", "apple"] * 3)
]


class Workshop:
    """A folder with valid inputs, and the targets that mutate them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.X, self.Y = problem()
        self.current = folder / "current"
        self.current.mkdir(parents=True)
        self._make_models()
        self._make_data()
        self.services = {
            name: Service(folder / "models" / name, Limits(body=1 << 20, rows=50, k=50))
            for name in ("plain", "text", "dense")
        }
        self.targets = [
            Target("numbers", 5, self._numbers),
            Target("texts", 5, self._texts),
            Target("requests", 5, self._requests),
            Target("models", 2, self._models),
            Target("model files", 0.5, self._single_files),
            Target("lists", 3, self._lists),
            Target("reports", 0.5, self._reports),
        ]

    # Valid inputs

    def _make_models(self) -> None:
        models, names = self.folder / "models", [f"label é{i}" for i in range(12)]
        params = {
            "plain": TrainingParams(precision="float32"),
            "calibrated": TrainingParams(calibrate=True, tfidf=True, precision="float8"),
        }
        for name, how in params.items():
            train(self.X, self.Y, models / name, how, names=names, threads=1)
        dense = np.random.default_rng(1).standard_normal((self.X.shape[0], 3)).astype(np.float32)
        train([self.X, dense], self.Y, models / "dense", threads=1)
        lines = self.folder / "texts.jsonl"
        lines.write_bytes(b"".join(json_bytes(row) + b"\n" for row in TEXTS))
        train_text(lines, models / "text", threads=1)
        _unfinished(self.X, self.Y, models / "unfinished")
        self.models = {
            path.name: {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
            for path in models.iterdir()
        }
        for files in self.models.values():
            files.pop(".lock", None)
        self.single = [open_model(models / name).to_bytes() for name in ("plain", "text")]

    def _make_data(self) -> None:
        folder, data = self.folder / "data", Dataset(self.X, self.Y)
        folder.mkdir()
        save_data(data, folder / "a.txt")
        save_data(data, folder / "a.svm")
        save_data(data._replace(names=[f"n{i}" for i in range(12)]), folder / "a.xmc")
        sp.save_npz(folder / "a.npz", self.X)
        sp.save_npz(folder / "y.npz", self.Y)
        np.save(folder / "a.npy", np.ones((40, 3), np.float32))
        read = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.numeric = {name: read[name] for name in ("a.txt", "a.svm", "a.xmc", "a.npz")}
        self.other_numeric = {name: read[name] for name in ("a.npy", "y.npz")}
        rows = [json_bytes(row) for row in TEXTS]
        csv = "".join(f'"{r["text"]}","{", ".join(r["labels"])}",{r["id"]}\n' for r in TEXTS)
        fast = "".join(f"__label__{r['labels'][0].split()[0]} {r['text']}\n" for r in TEXTS)
        self.texts = {
            "a.jsonl": b"".join(row + b"\n" for row in rows),
            "a.json": b"[" + b",\n".join(rows) + b"]",
            "a.csv": b"text,labels,id\n" + csv.encode(),
            "a.tsv": b"text\tlabels\tid\n" + csv.replace('","', '"\t"').encode(),
            "a.ft": fast.encode(),
            "a.plain": "".join(r["text"] + "\n" for r in TEXTS).encode(),
        }
        with suppress(ModuleNotFoundError):
            self.texts |= _tables()

    def _write(self, name: str, data: bytes) -> Path:
        path = self.current / name
        path.write_bytes(data)
        return path

    # Mutated inputs

    def _numbers(self, rng: Random):
        name = rng.choice(["a.txt", "a.txt", "a.svm", "a.svm", "a.xmc", "a.npz"])
        data, others = self.numeric[name], [self.numeric["a.txt"], self.numeric["a.svm"]]
        if name == "a.xmc" and rng.random() < 0.8:
            data = mutate_container(rng, data)
        else:
            data = mutate_bytes(rng, data, others)
        if name in ("a.txt", "a.svm") and rng.random() < 0.1:
            name, data = f"{name}.gz", gzipped(rng, data)
        path, how = self._write(name, data), rng.randrange(3)

        def read() -> object:
            if how == 0:
                return [batch.sum() for batch in feature_batches(path, threads=1)]
            labels = self.folder / "data" / "y.npz" if name == "a.npz" else None
            found = load_data(path, labels=labels, threads=1)
            return found.X.sum() + found.Y.sum() if found.X.shape[1] < 10**6 else None

        return len(data), read

    def _texts(self, rng: Random):
        name = rng.choice(list(self.texts))
        data = self.texts[name]
        if name in ("a.jsonl", "a.json") and rng.random() < 0.3:
            rows = mutate_json(rng, TEXTS)
            lines = rows if isinstance(rows, list) and name == "a.jsonl" else [rows]
            data = b"\n".join(map(json_bytes, lines))
        else:
            data = mutate_bytes(rng, data, [self.texts[n] for n in ("a.jsonl", "a.csv", "a.ft")])
        if rng.random() < 0.1 and not name.endswith((".parquet", ".arrow")):
            name, data = f"{name}.gz", gzipped(rng, data)
        path, needs_labels = self._write(name, data), rng.random() < 0.5
        fmt = TextFormat(id_column="id") if rng.random() < 0.2 else TextFormat()

        def read() -> object:
            batches = read_texts(path, fmt, needs_labels=needs_labels, batch_chars=1 << 12)
            return sum(len(batch.texts) for batch in batches)

        return len(data), read

    def _requests(self, rng: Random):
        name = rng.choice(list(self.services))
        service = self.services[name]
        row = {"text": TEXTS[0]["text"]} if name == "text" else {"features": [[3, 1.5], [7, -2.0]]}
        if name == "dense":
            row["dense"] = [1.0, 2.0, -1.0]
        request = {**row, "k": 3, "rank": "score", "threshold": None}
        if rng.random() < 0.3:
            request = {"rows": [row, dict(row)], "k": 2}
        explains = rng.random() < 0.3
        if explains:
            request = {**row, "label": 3, "limit": 5}
        body = json_bytes(request)
        if rng.random() < 0.6:
            body = json_bytes(mutate_json(rng, request))
        if rng.random() < 0.5:
            body = mutate_bytes(rng, body, [body])

        def ask() -> object:
            if explains:
                return json.loads(service.explain(body))
            return json.loads(service.predict(body)[0])

        return len(body), ask

    def _models(self, rng: Random):
        name = rng.choice(list(self.models))
        files = self.models[name]
        changed = mutate_model(rng, files)
        folder = self.current / name
        if not folder.exists():
            shutil.copytree(self.folder / "models" / name, folder)
        for file in folder.iterdir():
            if file.name not in files and file.name != ".lock":
                shutil.rmtree(file) if file.is_dir() else file.unlink()
        for file, data in files.items():
            path = folder / file
            if file in changed or not path.exists() or path.stat().st_mtime_ns != 0:
                path.unlink(missing_ok=True)
                path.write_bytes(changed.get(file, data))
                # Unchanged files get a zero date, and need not be written again.
                os.utime(path, ns=(0, int(file in changed)))
        check, how = rng.choice((None, None, False, True)), rng.randrange(4)
        size = sum(len(changed.get(file, data)) for file, data in files.items())

        def use() -> object:
            if how == 0 or name == "unfinished":
                describe_model(folder)
            return self._use(open_model(folder, check=check), how)

        return size, use

    def _single_files(self, rng: Random):
        data = mutate_bytes(rng, rng.choice(self.single), self.single)
        self._write("a.zip", data)
        return len(data), lambda: self._use(open_model(data), 1)

    def _use(self, model, how: int) -> object:
        rows = self.X[:5, : model.n_features] if model.n_features <= 30 else self.X[:5]
        if model.vocabulary is not None:
            rows = [TEXTS[0]["text"], TEXTS[3]["text"]]
        elif model.n_dense:
            rows = [rows, np.ones((5, model.n_dense), np.float32)] if model.n_dense < 99 else rows
        labels, scores = model.predict_topk(rows, 3, threads=1)
        assert labels.max() < model.n_labels
        if model.names is not None:
            _ = [model.names[label] for label in labels.ravel().tolist() if label >= 0]
        if how == 1 and model.n_labels:
            first = rows[:1] if isinstance(rows, list) and isinstance(rows[0], str) else None
            if first is not None or not isinstance(rows, list):
                model.explain(rows[:1], int(labels[0, 0]))
        if how == 2:
            model.save(self.current / "saved", overwrite=True)
        if how == 3:
            _ = model.weights.nnz, model.first_labels
        return scores

    def _lists(self, rng: Random):
        kind = rng.randrange(4)
        if kind == 0:
            text = "".join(f"parent {i % 5}\tchild é{i}\n" for i in range(20)).encode()
            path = self._write("tree.tsv", mutate_bytes(rng, text, [text]))
            return path.stat().st_size, lambda: Hierarchy.load(path)
        if kind == 1:
            text = "".join(f"name é{i}\n" for i in range(20)).encode()
            path = self._write("names.txt", mutate_bytes(rng, text, [text]))
            return path.stat().st_size, lambda: load_names(path)
        if kind == 2:
            text = "".join(f"{i / 7}\n" for i in range(20)).encode()
            text = self.other_numeric["a.npy"] if rng.random() < 0.3 else text
            name = "weights.npy" if text[:1] == b"\x93" else "weights.txt"
            path = self._write(name, mutate_bytes(rng, text, [text]))
            return path.stat().st_size, lambda: load_row_weights(path)
        text = self.other_numeric["a.npy"]
        path = self._write("dense.npy", mutate_bytes(rng, text, [text]))
        return path.stat().st_size, lambda: load_dense(path).sum()

    def _reports(self, rng: Random):
        if rng.random() < 0.5:
            name = rng.choice(["a.txt", "a.svm", "a.xmc"])
            data = self.numeric[name]
            change = mutate_container if name == "a.xmc" else _with_others
            path = self._write(name, change(rng, data))
            return path.stat().st_size, lambda: describe_data(path, estimate=False, threads=1)
        name = rng.choice(["a.jsonl", "a.csv", "a.ft"])
        path = self._write(name, _with_others(rng, self.texts[name]))
        return path.stat().st_size, lambda: describe_texts(path)


def _with_others(rng: Random, data: bytes) -> bytes:
    return mutate_bytes(rng, data, [data])


def _tables() -> dict[str, bytes]:
    """Return the texts as Parquet and Arrow files, and compressed with Zstandard."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(TEXTS)
    found = {}
    for codec in ("none", "gzip"):
        file = io.BytesIO()
        pq.write_table(table, file, compression=codec)
        found[f"{codec}.parquet"] = file.getvalue()
    file = io.BytesIO()
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    found["a.arrow"] = file.getvalue()
    lines = b"".join(json_bytes(row) + b"\n" for row in TEXTS)
    found["a.jsonl.zst"] = pa.compress(lines, "zstd", asbytes=True)
    return found


def _unfinished(X, Y, directory: Path) -> None:
    """Leave a training that was interrupted after all of its blocks were written."""
    with (
        mock.patch("dismec.model.weight_files.finish", side_effect=KeyboardInterrupt),
        suppress(KeyboardInterrupt),
    ):
        train(X, Y, directory, TrainingParams(block_size=5), threads=1)
