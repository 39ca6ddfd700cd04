"""A model on a cluster ranks, assigns and explains as on one machine, to the last bit."""

from __future__ import annotations

import shlex
from functools import partial
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from distributed import Client

from clusters import Processes
from conftest import random_problem
from dismec import DataError, ModelError, TrainingParams, open_model, save_data, train
from dismec.cli import main
from dismec.cluster.cluster_model import ClusterModel
from dismec.cpu import kernels
from dismec.data.dataset import Dataset

pytestmark = pytest.mark.cluster

N_LABELS, UNSEEN = 64, 3  # number of labels, and of the last ones among them that no row has


def problem():
    """Some labels have the same rows as others, and therefore share their classifiers."""
    X, Y = random_problem(rows=300, features=80, labels=N_LABELS - UNSEEN)
    Y = Y.toarray()
    Y[:, [9, 30, 31]] = Y[:, [50, 8, 8]]
    Y = np.hstack([Y, np.zeros((len(Y), UNSEEN), Y.dtype)])
    return X, sp.csr_array(Y)


@pytest.fixture(scope="module")
def X():
    return problem()[0]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A calibrated model of several shards."""
    path = tmp_path_factory.mktemp("models") / "model"
    names = [f"tag {i}" for i in range(N_LABELS)]
    with mock.patch.object(kernels, "shard_rows", 12):
        train(*problem(), path, TrainingParams(tfidf=True, calibrate=True, bias=0.7), names=names)
    assert len(open_model(path).manifest.files) == 5
    return path


@pytest.fixture(scope="module")
def here(path):
    return open_model(path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with Processes(tmp_path_factory.mktemp("dask")) as processes:
        processes.scheduler()
        processes.worker()
        processes.worker(threads=2)
        with Client(scheduler_file=str(processes.file), set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        yield processes


@pytest.fixture(scope="module")
def there(shared, path):
    """The model on the cluster."""
    with ClusterModel(path, shared.file) as model:
        yield model


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def assert_same_sets(found, expected):
    assert found.shape == expected.shape
    assert_same(
        (found.indptr, found.indices, found.data),
        (expected.indptr, expected.indices, expected.data),
    )


def choices(n_rows):
    """Return allowed labels: few and many, none, unseen ones, and one set per row."""
    rng = np.random.default_rng(1)
    each = rng.random((n_rows, N_LABELS)) < 0.2
    each[3] = False
    return [
        None,
        ["tag 8", "tag 31", "tag 40"],
        np.arange(2, N_LABELS),
        [],
        [N_LABELS - 1],
        sp.csr_array(each),
    ]


@pytest.mark.parametrize("rank", [None, "score", "probability"])
def test_rankings_are_those_of_one_machine_whatever_is_allowed(there, here, X, rank):
    for allowed in choices(X.shape[0]):
        for k in (1, 5, N_LABELS + 6):
            found = there.predict_topk(X, k, rank=rank, allowed=allowed)
            assert_same(found, here.predict_topk(X, k, rank=rank, allowed=allowed))
    wanted = there.select_labels(exclude=["tag 8"])
    assert_same(
        there.predict_topk(X[:9], 4, rank=rank, allowed=wanted),
        here.predict_topk(X[:9], 4, rank=rank, allowed=wanted),
    )


@pytest.mark.parametrize("threshold", [None, "micro-f1", "macro-f1", 0.0, 0.3])
def test_sets_of_labels_are_those_of_one_machine(there, here, X, threshold):
    for allowed in choices(X.shape[0]):
        how = {"allowed": allowed, "most": 9 if allowed is None else None}
        assert_same_sets(there.assign(X, threshold, **how), here.assign(X, threshold, **how))
    if threshold is None:
        assert there.predict(X[:40]) == here.predict(X[:40])
        scores = {"probabilities": False, "allowed": [1, 2, 30]}
        assert_same_sets(there.assign(X, **scores), here.assign(X, **scores))


@pytest.mark.parametrize("aim", ["psp", "psp:0.4", "macro-f1", "coverage"])
def test_metrics_are_aimed_at_as_on_one_machine(there, here, X, aim):
    for allowed in choices(X.shape[0])[::2]:
        found = there.predict_topk(X, 5, aim=aim, allowed=allowed)
        assert_same(found, here.predict_topk(X, 5, aim=aim, allowed=allowed))
    Y = problem()[1]
    assert there.evaluate(X, Y, (1, 5), aim=aim) == here.evaluate(X, Y, (1, 5), aim=aim)


def test_explanations_and_places_are_those_of_one_machine(there, here, X):
    for row, label in ((0, 0), (1, 8), (2, 31), (5, N_LABELS - UNSEEN - 1)):
        assert there.explain(X[[row]], label) == here.explain(X[[row]], label)
        assert there.place(X[[row]], label) == here.place(X[[row]], label)
    for label, reason in ((N_LABELS - 1, "never trained"), (N_LABELS, "expected one of")):
        for ask in (there.explain, there.place):
            with pytest.raises(DataError, match=reason):
                ask(X[[0]], label)
    with pytest.raises(DataError, match="one is explained at a time"):
        there.explain(X[:2], 0)


def test_scores_and_probabilities_of_all_labels_are_those_of_one_machine(there, here, X):
    np.testing.assert_array_equal(there.decision_function(X), here.decision_function(X))
    np.testing.assert_array_equal(there.predict_proba(X), here.predict_proba(X))


def test_metrics_are_those_of_one_machine(there, here, X):
    Y = problem()[1]
    for how in (
        {},
        {"rank": "score", "weights": np.linspace(0, 2, X.shape[0])},
        {"allowed": list(range(20, 40))},
    ):
        found = there.evaluate(X, Y, (1, 4), **how)
        assert found == here.evaluate(X, Y, (1, 4), **how)
        assert {"P@4", "ECE", "macro-F1"} <= found.keys()


def test_invalid_requests_are_refused_as_on_one_machine(there, X):
    for ask, reason in (
        (lambda: there.predict_topk(X, 0), "k is 0"),
        (lambda: there.predict_topk(X, allowed=["nothing"]), "no label 'nothing'"),
        (lambda: there.predict_topk(X[:2], allowed=np.ones((3, N_LABELS))), "3 rows, X has 2"),
        (lambda: there.predict_topk(X, rank="name"), "rank is 'name'"),
        (lambda: there.assign(X, 1.5), "threshold is 1.5"),
    ):
        with pytest.raises(DataError, match=reason):
            ask()


def test_a_model_without_calibration_says_so(tmp_path, shared, X):
    train(*problem(), tmp_path / "plain")
    here = open_model(tmp_path / "plain")
    with ClusterModel(tmp_path / "plain", shared.file) as there:
        assert_same(there.predict_topk(X, 3, allowed=[5]), here.predict_topk(X, 3, allowed=[5]))
        assert_same(
            there.predict_topk(X, 3, aim="psp"),
            here.predict_topk(X, 3, aim="psp"),
        )
        assert repr(there).startswith("ClusterModel(64 labels")
        for ask in (partial(there.predict_topk, rank="probability"), there.predict_proba):
            with pytest.raises(ModelError, match="gives no probabilities"):
                ask(X)
        with pytest.raises(ModelError, match="gives no probabilities"):
            there.predict_topk(X, aim="coverage")


@pytest.fixture(scope="module")
def files(tmp_path_factory, path):
    """Data, allowed labels, a hierarchy, dense features, and models for them."""
    folder = tmp_path_factory.mktemp("files")
    X, Y = problem()
    save_data(Dataset(X, Y), folder / "data.xmc")
    (folder / "some.txt").write_text("tag 3\ntag 8\ntag 31\ntag 40\ntag 50\n")
    (folder / "tree.csv").write_text("".join(f"tag {i},tag {i % 4}\n" for i in range(4, 60)))
    np.savetxt(folder / "weights.txt", np.linspace(0.1, 2, X.shape[0]))
    E = np.random.default_rng(0).standard_normal((X.shape[0], 12)).astype(np.float32)
    np.save(folder / "E.npy", E)
    with mock.patch.object(kernels, "shard_rows", 25):
        train([X, E], Y, folder / "both", TrainingParams(calibrate=True))
        train([E], Y, folder / "alone")
    return folder


def printed(*arguments):
    found = CliRunner().invoke(main, [*map(str, arguments)])
    assert found.exit_code == 0, found.output
    assert found.stdout
    return found.stdout


COMMANDS = [
    "predict model data.xmc -k 4",
    "predict model data.xmc --rank probability --only some.txt",
    "predict model data.xmc --rank score --exclude some.txt",
    "predict model data.xmc --hierarchy tree.csv --leaves-only --add-ancestors",
    "predict model data.xmc --threshold macro-f1",
    "predict model data.xmc --aim psp:0.8 --only some.txt",
    "predict model data.xmc --aim macro-f1 -k 3 --exclude some.txt",
    "predict both data.xmc --dense E.npy --threshold 0.2",
    "predict alone --dense E.npy",
    "evaluate model data.xmc --rank score --weights weights.txt --json",
    "evaluate model data.xmc --aim psp --only some.txt --json",
    "evaluate model data.xmc --hierarchy tree.csv --exclude some.txt --json",
    "evaluate both data.xmc --dense E.npy --json",
    'explain model data.xmc --row 3 --label "tag 8" --label "tag 31" --json',
    "explain both data.xmc --row 2 --dense E.npy",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_print_the_same_with_a_cluster(files, shared, path, monkeypatch, command):
    monkeypatch.chdir(files)
    words = [str(path) if word == "model" else word for word in shlex.split(command)]
    assert printed(*words, "--cluster", shared.file) == printed(*words)
