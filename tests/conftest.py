from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

# Tests run side by side, and threads for their small matrices would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import settings

from dismec import TrainingParams, evaluate, load_data, train, train_text
from dismec.cli import main
from dismec.features.transform import Transform
from dismec.model.manifest import Journal
from dismec.model.model import Model

# No deadline: how long an example takes depends on the machine. "few" is for wheels and emulation.
settings.register_profile("default", deadline=None)
settings.register_profile("few", max_examples=15, deadline=None)
settings.load_profile("default")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m native``, import only such files, and only those whose `needs` are installed."""
    if "native" not in config.option.markexpr or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text("utf-8")
    mark = re.search(r'pytest\.mark\.native(?:\(needs="(.*)"\))?', text)
    if mark and all(find_spec(package) for package in (mark[1] or "").split()):
        return None
    return True


# Test files that take longest, mostly waiting for browsers, servers and clusters.
LONGEST = (
    "test_page",
    "test_cluster",
    "test_workers",
    "test_compare",
    "test_collections",
    "test_server",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first, so that none of them runs alone at the end."""
    items.sort(key=lambda item: not item.path.stem.startswith(LONGEST))
    for item in items:
        if item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Collect sockets that Dask left open while their warning is ignored, not in a later test.

    tornado's client leaves the socket of a failed connection to the garbage collector.
    """
    result = yield
    if item.get_closest_marker("cluster"):
        gc.collect()
    return result


def data_directory() -> Path | None:
    """Return the directory of the real datasets, or None."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    place = Path(os.environ.get("DISMEC_DATA", beside))
    return place if place.is_dir() else None


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The directory of the real datasets; skips the test if there is none."""
    place = data_directory()
    if place is None:
        pytest.skip("no real datasets here: set DISMEC_DATA to their directory")
    return place


@pytest.fixture(scope="session")
def bibtex_precision(real_data):
    """Return a function: P@1, 3, 5 of a system of `dismec.compare` on the test rows of bibtex."""
    parts = [load_data(real_data / "bibtex" / f"{name}.txt") for name in ("train", "test")]
    transform = Transform.fit(parts[0].X, bias=0)
    X, X_test = (sp.csr_matrix(transform.apply(part.X)[:, :-1]) for part in parts)

    @cache
    def measured(system):
        labels, _ = system.fit(X, sp.csr_matrix(parts[0].Y)).predict_topk(X_test, 5)
        return evaluate(parts[1].Y, labels, (1, 3, 5))

    return measured


def random_problem(rows=300, features=80, labels=40, density=0.08, seed=0):
    """Generate rows with a Zipf vocabulary, and labels that depend on a few features each."""
    rng = np.random.default_rng(seed)
    likely = 1 / np.arange(1, features + 1) ** 0.5
    X = rng.random((rows, features)) < density * features * likely / likely.sum()
    X = X * rng.gamma(2.0, 1.0, X.shape)
    meaning = rng.standard_normal((features, labels)) * (rng.random((features, labels)) < 0.2)
    scores = X @ meaning + 0.3 * rng.standard_normal((rows, labels))
    share = np.geomspace(1.5 / rows, 0.4, labels)
    Y = scores > np.array([np.quantile(s, 1 - p) for s, p in zip(scores.T, share, strict=True)])
    return sp.csr_array(X, dtype=np.float32), sp.csr_array(Y, dtype=np.uint8)


BASE, WORDS = 12, 8  # labels of `related` with their own words, and words per label


def related(rows=900, seed=0):
    """Generate labels with their own words, and as many that hold where two of those do.

    The number of words that a row has of a label varies widely. No sum over words distinguishes
    two labels from many words of one.
    """
    rng = np.random.default_rng(seed)
    Y = np.zeros((rows, 2 * BASE), np.uint8)
    X = np.zeros((rows, BASE * WORDS), np.float32)
    for row in range(rows):
        base = set(rng.choice(BASE, rng.integers(1, 4), replace=False).tolist())
        if rng.random() < 0.6:
            base.add((min(base) + 1) % BASE)
        for label in sorted(base):
            Y[row, label] = 1
            np.add.at(X[row], label * WORDS + rng.integers(0, WORDS, rng.integers(1, 15)), 1)
            Y[row, BASE + label] = (label + 1) % BASE in base
    return sp.csr_array(X), sp.csr_array(Y)


def dense_problem(rows=300, width=20, features=0, labels=12, seed=0):
    """Generate embeddings with labels as directions, and sparse features that help a little."""
    rng = np.random.default_rng(seed)
    E = rng.standard_normal((rows, width)).astype(np.float32) * rng.uniform(0.5, 3, (rows, 1))
    E = E.astype(np.float32)
    scores = E @ rng.standard_normal((width, labels))
    Y = sp.csr_array((scores > np.quantile(scores, 0.9, axis=0)).astype(np.uint8))
    X = sp.random_array(
        (rows, features), density=0.1, random_state=rng, dtype=np.float32, format="csr"
    )
    return (X, E, Y) if features else (E, Y)


@pytest.fixture(scope="session")
def problem_data():
    return random_problem()


@pytest.fixture(scope="session", params=["sparse", "dense", "both"])
def each_kind(request):
    """Rows of each kind that can be trained on, and their labels."""
    if request.param == "sparse":
        return random_problem()
    if request.param == "dense":
        E, Y = dense_problem()
        return [E], Y
    X, E, Y = dense_problem(features=60, seed=1)
    return [X, E], Y


@pytest.fixture(scope="session")
def dask_cluster(tmp_path_factory):
    """The scheduler's file of a cluster of two workers, to be left as it is."""
    from clusters import Processes

    with Processes(tmp_path_factory.mktemp("dask")) as processes:
        processes.scheduler()
        for _ in range(2):
            processes.worker()
        yield processes.file


# Label names, some of which a page must handle with care, with the words of their texts.
LABELS = {
    "fruit": ("apple", "banana", "pear"),
    "ships": ("harbour", "vessel", "cargo"),
    '<img src=x onerror="alert(1)"><script>alert(2)</script>': ("markup", "script", "browser"),
    "ספרים עתיקים": ("books", "scroll", "parchment"),
    "a very long name " * 20: ("endless", "lengthy", "verbose"),
    "party 🎉": ("confetti", "cake", "balloon"),
}


def write_texts(path, rows=240, seed=0):
    """Write JSON lines; each text has the words of one or two of `LABELS` among common words."""
    rng = np.random.default_rng(seed)
    common = ["the", "and", "was", "with", "some", "lay", "seen", "full", "day", "crates"]
    with path.open("w") as file:
        for i in range(rows):
            names = sorted({list(LABELS)[i % len(LABELS)], rng.choice(list(LABELS))})
            words = [*rng.choice(common, 5), *(w for n in names for w in rng.choice(LABELS[n], 2))]
            text = " ".join(rng.permutation(words))
            file.write(json.dumps({"text": text, "labels": names}) + "\n")


@pytest.fixture(scope="session")
def text_files(tmp_path_factory):
    """A directory with two models of `LABELS`, one of them calibrated."""
    directory = tmp_path_factory.mktemp("texts")
    write_texts(directory / "texts.jsonl")
    for name, options in (("plain", []), ("calibrated", ["--calibrate"])):
        command = ["train", directory / "texts.jsonl", "-o", directory / name, *options]
        main([*map(str, command), "--quiet"], standalone_mode=False)
    return directory


def weight_files(path):
    """Return the files of a model that hold weights, with their contents."""
    files = [*path.glob("shard-*"), *path.glob("block-*")]
    assert files
    return {p.name: p.read_bytes() for p in files}


class Tuned:
    """A model whose C was chosen, its C, and the results for each C."""

    def __init__(self, model):
        self.model, self.C, self.table = model, model.params["C"], model.params["C_table"]


def tune(X, Y, path, params=None, metric="nDCG@5", **how):
    """Train with the C that is best on held-out rows."""
    params = replace(params or TrainingParams(), C="auto", metric=metric)
    return Tuned(train(X, Y, path, params, **how))


def tune_text(source, path, metric="nDCG@5", **how):
    """Train on texts with the C that is best on held-out ones."""
    params = TrainingParams(C="auto", metric=metric, tfidf=True)
    return Tuned(train_text(source, path, params, **how))


def with_calibration(model, calibration):
    """Return the same model with another calibration."""
    parts = replace(model.parts, calibration=calibration)
    return Model.from_shards(model.manifest, model.transform, parts, model.shards)


def train_unfinished(*args, **kwargs):
    """Train until every block of the model is written, and stop there."""
    from dismec.model.weight_files import finish

    def finish_stages(directory, *rest):
        if directory.name.startswith(".stage-"):
            return finish(directory, *rest)
        raise KeyboardInterrupt

    with (
        mock.patch("dismec.model.weight_files.finish", side_effect=finish_stages),
        pytest.raises(KeyboardInterrupt),
    ):
        train(*args, **kwargs)


@contextmanager
def stopped_after(n_blocks):
    """Stop a training when it has kept this many more blocks, independent of any clock."""
    append, left = Journal.append, n_blocks

    def keep(journal, *receipts):
        nonlocal left
        append(journal, *receipts)
        left -= len(receipts)
        if left <= 0:
            raise KeyboardInterrupt

    with mock.patch.object(Journal, "append", keep):
        yield


def run_killed(command, path, rng):
    """Run a training until it has written a few more files to a directory, and kill it anywhere.

    Returns whether it was killed: False if it finished the model, now or just before a kill.
    """

    def written():
        return sum(len(files) for _, _, files in os.walk(path))

    enough = written() + rng.randrange(8)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and written() < enough:
        time.sleep(0.001)
    time.sleep(rng.random() * 0.05)
    process.kill()
    _, error = process.communicate()
    if process.returncode == -signal.SIGKILL:
        return True
    assert process.returncode == 0 or "finished model" in error, error
    return False
