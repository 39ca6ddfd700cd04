"""One system at work: data in, training timed, test rows predicted, a report out.

A process of its own, in an environment that has the system; `training.py` starts it. The folder
holds train_X.npz, train_Y.npz, test_X.npz and train.txt, rows normalised. Every system has its
defaults. Timed are training alone, from loaded data to a model that can be used, and prediction of
the test rows after one row to warm up.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import scipy.sparse as sp

K = 5


class Stopwatch:
    """Measures the block of a with statement."""

    def __enter__(self) -> Stopwatch:
        self._begin = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._begin


def dismec(X, Y, X_test, scratch, threads, text):
    from dismec import train

    with Stopwatch() as training:
        model = train(X, Y, f"{scratch}/model", threads=threads)
    model.predict_topk(X_test[:1], K, threads=1)
    with Stopwatch() as prediction:
        top, _ = model.predict_topk(X_test, K, threads=1)
    return training.seconds, prediction.seconds, top


def xr_linear(X, Y, X_test, scratch, threads, text):
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    with Stopwatch() as training:
        embedding = LabelEmbeddingFactory.create(Y, X, method="pifa", threads=threads)
        clusters = Indexer.gen(embedding, threads=threads)
        model = XLinearModel.train(X, Y, C=clusters, threads=threads)
    model.predict(X_test[:1], only_topk=K, threads=1)
    with Stopwatch() as prediction:
        scores = model.predict(X_test, only_topk=K, threads=1)
    return training.seconds, prediction.seconds, [best(row) for row in scores]


def napkinxc(X, Y, X_test, scratch, threads, text):
    from napkinxc.models import PLT

    with Stopwatch() as training:
        PLT(scratch, threads=threads).fit(X, Y)
    model = PLT(scratch, threads=1)
    model.load()
    model.predict(X_test[:1], top_k=K)
    with Stopwatch() as prediction:
        top = model.predict(X_test, top_k=K)
    return training.seconds, prediction.seconds, top


def omikuji(X, Y, X_test, scratch, threads, text):
    from omikuji import Model
    from omikuji._libomikuji import ffi, lib

    # Model.train_on_data reads the file as well, so its two steps are taken one by one.
    pool = ffi.gc(lib.init_omikuji_thread_pool(threads), lib.free_omikuji_thread_pool)
    rows = lib.load_omikuji_data_set(ffi.new("char[]", str(text).encode()), pool)
    rows = ffi.gc(rows, lib.free_omikuji_data_set)
    with Stopwatch() as training:
        model = Model(lib.train_omikuji_model(rows, Model.default_hyper_param(), pool))
    model.init_prediction_thread_pool(1)
    pairs = [list(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in X_test]
    model.predict(pairs[0], top_k=K)
    with Stopwatch() as prediction:
        top = [[label for label, _ in model.predict(row, top_k=K)] for row in pairs]
    return training.seconds, prediction.seconds, top


SYSTEMS = {
    "dismec": (dismec, "dismec"),
    "PECOS XR-Linear": (xr_linear, "libpecos"),
    "napkinXC PLT": (napkinxc, "napkinxc"),
    "omikuji, 3 trees": (omikuji, "omikuji"),
}


def best(row: sp.csr_matrix) -> list[int]:
    return row.indices[np.argsort(-row.data, kind="stable")].tolist()


def filled(top) -> np.ndarray:
    """Labels as a matrix; −1 where a system has found fewer than K."""
    return np.array([(list(row) + [-1] * K)[:K] for row in top], dtype=np.int32)


def main() -> None:
    name, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    run, package = SYSTEMS[name]
    X, Y, X_test = (
        sp.csr_matrix(sp.load_npz(folder / f"{part}.npz"), dtype=np.float32)
        for part in ("train_X", "train_Y", "test_X")
    )
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        seconds, predict, top = run(X, Y, X_test, scratch, threads, folder / "train.txt")
    report = {
        "train": seconds,
        "predict": predict,
        "top": filled(top).tolist(),
        "version": f"{package} {version(package)}",
    }
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
