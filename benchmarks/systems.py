"""One system at work: data in, training timed, test rows predicted, a report out.

A process of its own, in an environment that has the system; `training.py` and `prediction.py` start
it. The folder holds train_X.npz, train_Y.npz, test_X.npz and train.txt, rows normalised. Every
system has its defaults. Timed are training, from loaded data to a model that can be used; writing
the model to the disk, where that is not part of the training (it is for dismec and napkinXC); and
prediction with one thread: of all test rows at once, and of one row at a time. Each line of input
has prediction timed once more, with the same model, so that systems can take turns. A report
is a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

K = 5
BATCHES = 3
SINGLE_ROWS = 300


class Stopwatch:
    """Measures the block of a with statement."""

    def __enter__(self) -> Stopwatch:
        self._begin = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._begin


class Trained(NamedTuple):
    """A model: the time it took, how it predicts rows, and how to read that."""

    seconds: float
    saving: float  # seconds on top of these
    predict: Callable[[Any], Any]
    labels: Callable[[Any], list[list[int]]] = list
    rows: Callable[[sp.csr_matrix], Any] = lambda X: X  # as the system takes them; not timed


def dismec(X, Y, scratch, threads, text, delta=0.01):
    from dismec import TrainingParams, train

    with Stopwatch() as training:
        model = train(X, Y, f"{scratch}/model", TrainingParams(delta=delta), threads=threads)
    return Trained(
        training.seconds,
        0.0,
        lambda rows: model.predict_topk(rows, K, threads=1),
        lambda result: result[0].tolist(),
    )


def dismec_auto(*args):
    return dismec(*args, delta="auto")


def xr_linear(X, Y, scratch, threads, text):
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    with Stopwatch() as training:
        embedding = LabelEmbeddingFactory.create(Y, X, method="pifa", threads=threads)
        clusters = Indexer.gen(embedding, threads=threads)
        trained = XLinearModel.train(X, Y, C=clusters, threads=threads)
    # Its fast path: the weights as they are laid out for prediction and nothing else.
    with Stopwatch() as saving:
        trained.save(f"{scratch}/model")
    model = XLinearModel.load(f"{scratch}/model", is_predict_only=True)

    def best(row: sp.csr_matrix) -> list[int]:
        return row.indices[np.argsort(-row.data, kind="stable")].tolist()

    return Trained(
        training.seconds,
        saving.seconds,
        lambda rows: model.predict(rows, only_topk=K, threads=1),
        lambda scores: [best(row) for row in scores],
    )


def napkinxc(X, Y, scratch, threads, text):
    from napkinxc.models import PLT

    with Stopwatch() as training:
        PLT(scratch, threads=threads).fit(X, Y)
    model = PLT(scratch, threads=1)
    model.load()
    return Trained(training.seconds, 0.0, lambda rows: model.predict(rows, top_k=K))


def omikuji(X, Y, scratch, threads, text):
    from omikuji import Model
    from omikuji._libomikuji import ffi, lib

    # Model.train_on_data reads the file as well, so its two steps are taken one by one.
    pool = ffi.gc(lib.init_omikuji_thread_pool(threads), lib.free_omikuji_thread_pool)
    data = lib.load_omikuji_data_set(ffi.new("char[]", str(text).encode()), pool)
    data = ffi.gc(data, lib.free_omikuji_data_set)
    with Stopwatch() as training:
        model = Model(lib.train_omikuji_model(data, Model.default_hyper_param(), pool))
    with Stopwatch() as saving:
        model.save(f"{scratch}/model")
    model.init_prediction_thread_pool(1)
    return Trained(
        training.seconds,
        saving.seconds,
        lambda rows: [model.predict(row, top_k=K) for row in rows],
        lambda result: [[label for label, _ in row] for row in result],
        lambda X: [list(zip(r.indices.tolist(), r.data.tolist(), strict=True)) for r in X],
    )


SYSTEMS = {
    "dismec": (dismec, "dismec"),
    "PECOS XR-Linear": (xr_linear, "libpecos"),
    "napkinXC PLT": (napkinxc, "napkinxc"),
    "omikuji, 3 trees": (omikuji, "omikuji"),
}
PREDICTING = {"dismec, delta auto": (dismec_auto, "dismec"), **SYSTEMS}


def seconds(work: Callable[[], Any]) -> float:
    with Stopwatch() as watch:
        work()
    return watch.seconds


def filled(top) -> np.ndarray:
    """Labels as a matrix; −1 where a system has found fewer than K."""
    return np.array([(list(row) + [-1] * K)[:K] for row in top], dtype=np.int32)


def main() -> None:
    name, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    reports = os.fdopen(int(sys.argv[4]), "w")  # some systems print what they like
    run, package = PREDICTING[name]
    X, Y, X_test = (
        sp.csr_matrix(sp.load_npz(folder / f"{part}.npz"), dtype=np.float32)
        for part in ("train_X", "train_Y", "test_X")
    )
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        trained = run(X, Y, scratch, threads, folder / "train.txt")
        single = [trained.rows(X_test[i]) for i in range(min(SINGLE_ROWS, X_test.shape[0]))]
        rows = trained.rows(X_test)
        for _ in chain([""], sys.stdin):
            alone = [seconds(lambda row=row: trained.predict(row)) for row in single]
            batches = [seconds(lambda: trained.predict(rows)) for _ in range(BATCHES)]
            report = {
                "train": trained.seconds,
                "save": trained.saving,
                "predict": min(batches) / X_test.shape[0],
                "single": float(np.median(alone)),
                "top": filled(trained.labels(trained.predict(rows))).tolist(),
                "version": f"{package} {version(package)}",
            }
            print(json.dumps(report), file=reports, flush=True)


if __name__ == "__main__":
    main()
