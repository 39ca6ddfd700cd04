"""One running system: rows in, training and prediction timed, a report out.

It runs as a script with a folder, a system, threads and a seed as arguments, in its own process and
in an environment that need not have dismec: apart from the systems themselves, only numpy and scipy
are imported here. `dismec.compare.ours` does the same for the systems of dismec.

The folder holds train_X.npz, train_Y.npz and test_X.npz with normalized rows; train.txt, the same
as XMC text; and for texts train.ft and test.ft, one text per line, with label numbers. Timed are
training, from loaded data to a usable model; writing the model to disk, unless this is part of
training (as in dismec and napkinXC); and prediction with one thread, of all test rows at once and
one row at a time. The report is a line of JSON on standard output.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import packages_distributions, version
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

K = 5
_BATCHES, _SINGLE_ROWS = 3, 300
_SECONDS = 20.0  # a prediction that takes longer is not repeated
_LIBLINEAR_LABELS, _AUTOTUNE_SECONDS = 60, 300


class Stopwatch:
    """Measures the body of a with statement: seconds, CPU seconds, and peak memory so far."""

    seconds = 0.0
    cpu = 0.0
    peak = 0  # bytes

    def __enter__(self) -> Stopwatch:
        self._begin, self._cpu = time.perf_counter(), sum(os.times()[:4])
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._begin
        self.cpu = sum(os.times()[:4]) - self._cpu
        self.peak = _peak_bytes()


class Assignment(NamedTuple):
    """The input of a system."""

    X: Any  # CSR float32
    Y: Any  # CSR
    folder: Path  # folder of the data
    scratch: Path  # folder for the model
    threads: int
    seed: int


class Trained(NamedTuple):
    """A model: its cost, its prediction function, and how to read the output."""

    training: Stopwatch
    saving: float  # additional seconds for saving
    predict: Callable[[Any], Any] | None  # the best K labels of rows; None if it cannot predict
    labels: Callable[[Any], Sequence[Any]] = list
    rows: Callable[[Any], Any] = lambda X: X  # converts rows for the system; not timed
    note: str = ""
    rankings: dict[str, Callable[[Any], Any]] = {}  # noqa: RUF012  other orders of the same model
    texts: bool = False  # whether it predicts the lines of test.ft instead of rows


def xr_linear(work: Assignment, trees: int = 1, splits: int = 16, **params: Any) -> Trained:
    """PECOS XR-Linear, predicting with what its documentation calls a predict-only model.

    `params` go to its training. Scores of several trees are averaged, as its `CsrEnsembler` does.
    """
    from pecos.utils.smat_util import CsrEnsembler
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    X, Y, threads = work.X, work.Y, work.threads
    folders = [str(work.scratch / f"tree-{tree}") for tree in range(trees)]
    trained = []
    with Stopwatch() as training:
        embedding = LabelEmbeddingFactory.create(Y, X, method="pifa", threads=threads)
        for seed in range(work.seed * trees, (work.seed + 1) * trees):
            clusters = Indexer.gen(embedding, nr_splits=splits, threads=threads, seed=seed)
            trained.append(XLinearModel.train(X, Y, C=clusters, threads=threads, **params))
    with Stopwatch() as saving:
        for model, folder in zip(trained, folders, strict=True):
            model.save(folder)
    models = [XLinearModel.load(folder, is_predict_only=True) for folder in folders]

    def scores(rows: Any) -> Any:
        if trees == 1:
            return models[0].predict(rows, only_topk=K, threads=1)
        return CsrEnsembler.average(*(model.predict(rows, threads=1) for model in models))

    def best(row: Any) -> list[int]:
        return row.indices[np.argsort(-row.data, kind="stable")].tolist()  # type: ignore[no-any-return]

    return Trained(training, saving.seconds, scores, lambda found: list(map(best, found)))


def plt(work: Assignment, **params: Any) -> Trained:
    """The probabilistic label tree of napkinXC."""
    from napkinxc.models import PLT

    scratch = str(work.scratch)
    with Stopwatch() as training:
        PLT(scratch, threads=work.threads, seed=work.seed, **params).fit(work.X, work.Y)
    model = PLT(scratch, threads=1, **params)
    model.load()
    return Trained(training, 0.0, lambda rows: model.predict(rows, top_k=K))


def parabel(work: Assignment, **params: Any) -> Trained:
    """Parabel with the defaults of omikuji: three balanced binary trees."""
    from omikuji import Model
    from omikuji._libomikuji import ffi, lib

    # Model.train_on_data also reads the file, so its two steps are called separately.
    pool = ffi.gc(lib.init_omikuji_thread_pool(work.threads), lib.free_omikuji_thread_pool)
    text = ffi.new("char[]", str(work.folder / "train.txt").encode())
    data = ffi.gc(lib.load_omikuji_data_set(text, pool), lib.free_omikuji_data_set)
    settings = Model.default_hyper_param()
    for name, value in params.items():
        setattr(settings, name, value)
    with Stopwatch() as training:
        model = Model(lib.train_omikuji_model(data, settings, pool))
    with Stopwatch() as saving:
        model.save(str(work.scratch / "model"))
    model.init_prediction_thread_pool(1)
    model.densify_weights()  # according to its documentation, faster prediction for more memory
    return Trained(
        training,
        saving.seconds,
        lambda rows: [model.predict(row, top_k=K) for row in rows],
        lambda found: [[label for label, _ in row] for row in found],
        lambda X: [list(zip(r.indices.tolist(), r.data.tolist(), strict=True)) for r in X],
    )


def liblinear(work: Assignment) -> Trained:
    """LIBLINEAR -s 2 -e 0.01, label by label, on a sample of labels evenly spaced by frequency."""
    from liblinear import liblinearutil

    counts = np.bincount(work.Y.indices, minlength=work.Y.shape[1])
    ranked = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    places = np.linspace(0, len(ranked), min(_LIBLINEAR_LABELS, len(ranked)), endpoint=False)
    sample = ranked[places.astype(int)]
    bias = sp.csr_matrix(np.ones((work.X.shape[0], 1)))
    rows = sp.csr_matrix(sp.hstack([work.X, bias]), dtype=np.float64)
    problem = liblinearutil.problem(np.zeros(rows.shape[0]), rows)
    signs = np.ctypeslib.as_array(problem.y, (problem.l,))
    options = liblinearutil.parameter("-s 2 -c 1 -e 0.01 -q")
    Y = sp.csc_matrix(work.Y)
    with Stopwatch() as training:
        for label in sample:
            signs[:] = -1
            signs[Y.indices[Y.indptr[label] : Y.indptr[label + 1]]] = 1
            liblinearutil.train(problem, options)
    factor = len(ranked) / max(len(sample), 1)
    training.cpu, training.seconds = training.cpu * factor, training.seconds * factor / work.threads
    note = f"time on {work.threads} cores, extrapolated from {len(sample)} of {len(ranked)} labels"
    return Trained(training, 0.0, None, note=note)


def sklearn(work: Assignment) -> Trained:
    """scikit-learn's OneVsRestClassifier(LinearSVC())."""
    from joblib.externals.loky import get_reusable_executor
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.svm import LinearSVC

    # It computes nonsense for labels of one byte, and warns about labels without rows.
    trained = np.flatnonzero(np.bincount(work.Y.indices, minlength=work.Y.shape[1]))
    Y: Any = sp.csr_matrix(work.Y, dtype=np.int64)[:, trained]
    Y = Y.toarray() if len(trained) == 1 else Y
    with Stopwatch() as training:
        model = OneVsRestClassifier(LinearSVC(), n_jobs=work.threads).fit(work.X, Y)
        get_reusable_executor().shutdown(wait=True)  # CPU time counts when its processes end
    with Stopwatch() as saving, (work.scratch / "model.pkl").open("wb") as file:
        pickle.dump(model, file)

    def best(rows: Any) -> Any:
        scores = model.decision_function(rows).reshape(rows.shape[0], -1)
        most = min(K, scores.shape[1])
        top = np.argpartition(-scores, most - 1, axis=1)[:, :most]
        order = np.argsort(-np.take_along_axis(scores, top, axis=1), axis=1, kind="stable")
        return trained[np.take_along_axis(top, order, axis=1)]

    return Trained(training, saving.seconds, best)


def fasttext(work: Assignment, lines: Path | None = None, **params: Any) -> Trained:
    """The one-vs-all loss of fastText, on the texts themselves."""
    import fasttext as package

    lines = lines or work.folder / "train.ft"
    if not lines.exists():
        raise UnfitError("needs texts, but the data are numeric")
    settings = {"loss": "ova", "thread": work.threads, "verbose": 0, **params}
    with Stopwatch() as training:
        model = package.train_supervised(str(lines), **settings)
    with Stopwatch() as saving:
        model.save_model(str(work.scratch / "model.bin"))
    return Trained(
        training,
        saving.seconds,
        lambda texts: model.predict(texts, k=K)[0],
        lambda found: [[int(name.removeprefix("__label__")) for name in row] for row in found],
        texts=True,
    )


def tuned_fasttext(work: Assignment) -> Trained:
    """Train fastText on nine tenths of the rows; its autotune uses the last tenth."""
    if not (work.folder / "train.ft").exists():
        return fasttext(work)  # raises with the reason
    lines = (work.folder / "train.ft").read_text("utf-8").splitlines(keepends=True)
    held = np.random.default_rng(work.seed).random(len(lines)) < 0.1
    parts = work.folder / "others.ft", work.folder / "held.ft"
    for path, rows in zip(parts, (~held, held), strict=True):
        path.write_text("".join(np.array(lines, object)[rows]), "utf-8")
    judged = {"autotuneValidationFile": str(parts[1]), "autotuneDuration": _AUTOTUNE_SECONDS}
    note = f"{_AUTOTUNE_SECONDS} s of autotune; trained on nine tenths"
    return fasttext(work, parts[0], **judged)._replace(note=note)


class UnfitError(Exception):
    """The system cannot be run on this kind of data."""


class System(NamedTuple):
    """How to run a system, and the package it comes from."""

    run: Callable[[Assignment], Trained]
    package: str
    module: str


# As their authors tune them: XR-Linear in the experiments of its paper (pecos-xrlinear-jmlr22), the
# label tree in theirs (plt_jmlr), and Bonsai in omikuji's README.
_SAMPLING: Any = {"negative_sampling_scheme": "tfn+man", "pred_kwargs": {"beam_size": 50}}
_TUNED_XR_LINEAR = partial(xr_linear, trees=3, splits=32, **_SAMPLING)
_TUNED_PLT = partial(plt, liblinear_c=12, arity=16, kmeans_balanced=False, ensemble=3)
_BONSAI = partial(parabel, cluster_k=100, cluster_balanced=False, max_depth=3)

PEERS = {
    "plt": System(plt, "napkinxc", "napkinxc"),
    "plt-tuned": System(_TUNED_PLT, "napkinxc", "napkinxc"),
    "xr-linear": System(xr_linear, "libpecos", "pecos"),
    "xr-linear-tuned": System(_TUNED_XR_LINEAR, "libpecos", "pecos"),
    "parabel": System(parabel, "omikuji", "omikuji"),
    "bonsai": System(_BONSAI, "omikuji", "omikuji"),
    "liblinear": System(liblinear, "liblinear-official", "liblinear"),
    "sklearn": System(sklearn, "scikit-learn", "sklearn"),
    "fasttext": System(fasttext, "fasttext-wheel", "fasttext"),
    "fasttext-tuned": System(tuned_fasttext, "fasttext-wheel", "fasttext"),
}


def _peak_bytes() -> int:
    """Return the peak memory of this process so far; children are watched from outside."""
    if sys.platform == "win32":
        import ctypes

        counters = (ctypes.c_size_t * 9)(72)  # PROCESS_MEMORY_COUNTERS; -1: of this process
        ctypes.windll.kernel32.K32GetProcessMemoryInfo(ctypes.c_void_p(-1), counters, 72)
        return counters[1]
    if sys.platform == "darwin":
        from resource import RUSAGE_SELF, getrusage

        return getrusage(RUSAGE_SELF).ru_maxrss
    # Not ru_maxrss, which starts at the peak of the parent process.
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


def _seconds(predict: Callable[[Any], Any], rows: Any) -> float:
    begin = time.perf_counter()
    predict(rows)
    return time.perf_counter() - begin


def _filled(top: Sequence[Any]) -> list[list[int]]:
    """Return the labels of each row, filled up with −1 if there are fewer than K."""
    return [([int(label) for label in row] + [-1] * K)[:K] for row in top]


def _end_with_parent() -> None:
    """Exit when the parent process ends, which closes standard input."""
    os.read(0, 1)
    os._exit(0)


def _report(trained: Trained, X: Any, work: Assignment) -> dict[str, Any]:
    """Time the predictions of a model; return them with the cost of training."""
    facts: dict[str, Any] = {
        "train": trained.training.seconds,
        "cpu": trained.training.cpu,
        "save": trained.saving,
        "peak": trained.training.peak,
        "note": trained.note,
    }
    predict = trained.predict
    if predict is None:
        return facts | {"size": None}
    files = [path for path in work.scratch.rglob("*") if path.is_file()]
    if trained.texts:
        lines = (work.folder / "test.ft").read_text("utf-8").split("\n")[: X.shape[0]]
        texts = [" ".join(w for w in line.split(" ") if w[:9] != "__label__") for line in lines]
        rows: Any = texts
        single = [[text] for text in texts[:_SINGLE_ROWS]]
    else:
        rows = trained.rows(X)
        single = [trained.rows(X[i]) for i in range(min(_SINGLE_ROWS, X.shape[0]))]
    with Stopwatch() as watch:
        found = predict(rows)
    batch = [watch.seconds]
    if batch[0] < _SECONDS / _BATCHES:
        batch += [_seconds(predict, rows) for _ in range(_BATCHES - 1)]
    alone = [_seconds(predict, row) for row in single[:10]]
    if sum(alone) < _SECONDS / 10:
        alone += [_seconds(predict, row) for row in single[10:]]
    return facts | {
        "size": sum(path.stat().st_size for path in files),
        "predict": min(batch) / X.shape[0],
        "single": float(np.median(alone)),
        "top": _filled(trained.labels(found)),
        "rankings": {
            name: _filled(trained.labels(rank(rows))) for name, rank in trained.rankings.items()
        },
    }


def main(systems: Mapping[str, System]) -> None:
    """Run the system that the process arguments name."""
    folder, name = Path(sys.argv[1]), sys.argv[2]
    threads, seed = map(int, sys.argv[3:5])
    # Files next to this script must not shadow other modules.
    sys.path[:] = [path for path in sys.path if Path(path) != Path(__file__).parent]
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of systems goes to standard error
    Thread(target=_end_with_parent, daemon=True).start()

    def send(report: dict[str, Any]) -> None:
        print(json.dumps(report), file=reports, flush=True)

    run, package, module = systems[name]
    try:
        __import__(module)
        X, Y, X_test = (
            sp.csr_matrix(sp.load_npz(folder / f"{part}.npz"), dtype=np.float32)
            for part in ("train_X", "train_Y", "test_X")
        )
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            work = Assignment(X, Y, folder, Path(scratch), threads, seed)
            report = _report(run(work), X_test, work)
        installed = packages_distributions().get(module, [package])[0]
        send(report | {"version": f"{installed} {version(installed)}"})
        os._exit(0)  # some libraries hang or crash at the end of a process
    except UnfitError as error:
        send({"error": str(error)})
    except MemoryError:
        send({"error": "out of memory"})
    except ImportError as error:
        missing = (error.name or "").split(".")[0] == module
        send({"error": f"not installed: pip install {package}" if missing else str(error)})
    except Exception as error:
        send({"error": f"failed: {(' '.join(str(error).split()) or type(error).__name__)[:300]}"})
        raise


if __name__ == "__main__":
    main(PEERS)
