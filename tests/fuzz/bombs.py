"""Small inputs that claim to be large; each is tried once, before anything is mutated."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from dismec import TrainingParams, load_data, open_model, train
from dismec.data.container import write_arrays
from dismec.data.corpus import read_texts
from dismec.data.dataset import feature_batches
from dismec.report.facts import describe_data, describe_model, describe_texts
from fuzz.targets import problem

UNPACKED = 1 << 25  # bytes that a small compressed file may expand to
Case = tuple[str, Path, int, Callable[[], object]]


def gzip_of(piece: bytes, times: int) -> bytes:
    """Compress a repeated piece, as several gzip members, like files joined by ``cat``."""
    return gzip.compress(piece, 9, mtime=0) * times


def bombs(folder: Path) -> list[Case]:
    """Return the name, file or directory, size and attempt of each case."""
    folder.mkdir()
    cases: list[Case] = []

    def add(name: str, file: str, content: bytes, *tries: Callable[[Path], object]) -> None:
        path = folder / file
        path.write_bytes(content)
        size = UNPACKED if path.suffix in (".gz", ".zst") else len(content)
        cases.extend((name, path, size, lambda try_=try_: try_(path)) for try_ in tries)

    def texts(path: Path) -> int:
        return sum(len(batch.texts) for batch in read_texts(path, needs_labels=False))

    def batches(path: Path) -> int:
        return sum(batch.shape[0] for batch in feature_batches(path))

    def trained(path: Path) -> object:
        return train(*load_data(path)[:2], folder / "never")

    newlines = gzip_of(b"\n" * (1 << 20), 256)
    add("newlines", "newlines.gz", newlines, load_data, batches, describe_data)
    add("newlines of JSON", "newlines.jsonl.gz", newlines, describe_texts)
    add("newlines of CSV", "newlines.csv.gz", gzip_of(b"text\n", 1) + newlines, texts)
    add("labels alone", "labels.txt.gz", gzip_of(b"0\n" * (1 << 19), 128), load_data)
    add("blanks", "blanks.jsonl.gz", gzip_of(b" " * (1 << 20), 200), texts)
    add("an array of blanks", "blanks.json.gz", gzip_of(b"[" + b" \n" * (1 << 19), 100), texts)
    add("a text", "text.jsonl.gz", gzip_of(b'{"text": "' + b"a" * (1 << 20), 100), texts)
    add("blank rows", "rows.txt", b"\n" * (1 << 22), load_data)
    add("2^31 labels", "labels.txt", b"1 5 2147483647\n0 0:1\n", describe_data, trained)
    add("2^31 features", "features.txt", b"1 2147483646 5\n0 0:1\n", describe_data, trained)
    add("rows", "many.txt", b"99999999999999999 5 5\n0 0:1\n", load_data)
    add("a label", "label.svm", b"2147483646 0:1\n", describe_data, trained)
    add("a feature", "feature.svm", b"0 2147483645:1\n", describe_data, trained)
    add("depth", "depth.jsonl", b'{"text": "a", "labels": ' + b"[" * (1 << 20), texts)
    add("a depth of objects", "depth.json", b'[{"text": ' * (1 << 17), texts)
    add("digits", "digits.jsonl", b'{"text": "a", "labels": [' + b"9" * (1 << 20) + b"]}", texts)
    add("quotes", "quotes.csv", b"text,labels\n" + b'"' * ((1 << 20) + 1), texts)
    add("an array of zeros", "zeros.npz", _npz_of_zeros(), load_npz_alone)
    add("a matrix of many rows", "rows.npz", _npz_of_rows(), load_npz_alone)
    add("a binary file", "sizes.xmc", b"", load_data)
    _xmc(folder / "large.xmc")
    cases.append(("a binary file of 2^31 labels", folder / "large.xmc", 0, _describes(folder)))
    with suppress(ModuleNotFoundError):
        _add_arrow(add, texts)
    _add_models(folder / "models", cases)
    return cases


def load_npz_alone(path: Path) -> object:
    return [batch.shape for batch in feature_batches(path)]


def _describes(folder: Path) -> Callable[[], object]:
    return lambda: describe_data(folder / "large.xmc", estimate=True, threads=1)


def _npz_of_zeros() -> bytes:
    """Return arrays of 200 MB that deflate to 200 kB."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, array in {
            "format": np.array(b"csr"),
            "shape": np.array([1, 25 * 10**6]),
            "indptr": np.array([0, 25 * 10**6]),
        }.items():
            with packed.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, array)
        for name, dtype in (("indices", "<i4"), ("data", "<f4")):
            with packed.open(f"{name}.npy", "w") as entry:
                about = {"descr": dtype, "fortran_order": False, "shape": (25 * 10**6,)}
                np.lib.format.write_array_header_1_0(entry, about)
                for _ in range(100):
                    entry.write(bytes(10**6))
    return file.getvalue()


def _npz_of_rows() -> bytes:
    file = io.BytesIO()
    matrix = sp.coo_array(([1.0], ([0], [0])), shape=(1 << 30, 2))
    sp.save_npz(file, matrix)
    return file.getvalue()


def _xmc(path: Path) -> None:
    arrays = {
        "x.indptr": np.array([0, 1]),
        "x.indices": np.zeros(1, np.int32),
        "x.data": np.ones(1, np.float32),
        "y.indptr": np.array([0, 1]),
        "y.indices": np.zeros(1, np.int32),
    }
    sizes = {"n_rows": "1", "n_features": str(2**31 - 2), "n_labels": str(2**31 - 1)}
    write_arrays(path, arrays, {"format": "dismec-dataset", "version": "1", **sizes})


def _add_arrow(add: Callable[..., None], texts: Callable[[Path], int]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = b'{"text": "a", "labels": []}\n' * (1 << 16)
    newlines = pa.compress(b"\n" * (1 << 26), "zstd", asbytes=True)
    add("newlines of Zstandard", "newlines.jsonl.zst", newlines, texts)
    add("lines of Zstandard", "lines.jsonl.zst", pa.compress(lines, "zstd", asbytes=True), texts)
    file = io.BytesIO()
    long = pa.array(["x" * (1 << 20)] * 300).dictionary_encode()
    pq.write_table(pa.table({"text": long.cast(pa.string())}), file)
    add("one text many times", "same.parquet", file.getvalue(), texts)


def _add_models(folder: Path, cases: list[Case]) -> None:
    X, Y = problem()
    train(X, Y, folder / "sound", TrainingParams(), threads=1)

    def changed(name: str, change: Callable[[dict], None]) -> Path:
        path = shutil.copytree(folder / "sound", folder / name)
        manifest = json.loads((path / "manifest.json").read_bytes())
        del manifest["checksum"]
        change(manifest)
        (path / "manifest.json").write_text(json.dumps(manifest))
        return path

    for key in ("n_labels", "n_features", "n_rows"):
        for size in (2**31 - 1, 10**18):
            path = changed(f"{key}-{size}", lambda m, key=key, size=size: m.update({key: size}))
            cases.append((f"{key} {size}", path, 0, lambda path=path: describe_model(path)))
            cases.append((f"{key} {size}", path, 0, lambda path=path: open_model(path).nnz))
    pipe = shutil.copytree(folder / "sound", folder / "pipe")
    (shard,) = pipe.glob("shard-*")
    shard.unlink()
    os.mkfifo(shard)
    cases.append(("a pipe", pipe, 0, lambda: open_model(pipe)))
    device = shutil.copytree(folder / "sound", folder / "device")
    (device / "manifest.json").unlink()
    (device / "manifest.json").symlink_to("/dev/zero")
    cases.append(("a device", device, 0, lambda: open_model(device)))
