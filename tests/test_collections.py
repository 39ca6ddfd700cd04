"""Training on data that the workers of a cluster have, without passing it through the client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dask.array as da
import dask.bag
import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client

from clusters import CountingProxy, Processes, wait_until
from conftest import random_problem, weight_files
from dismec import (
    DataError,
    DiSMECClassifier,
    TrainingParams,
    load_data,
    open_model,
    save_data,
    train,
)
from dismec.cluster import gather, remote_data
from dismec.data.dataset import Dataset
from dismec.data.training_file import TrainingData, XmcWriter
from dismec.training.execute import opened_executor
from dismec.training.train import fit

PARAMS = TrainingParams(block_size=10, tfidf=True)
ROWS, BLOCK = 600, 150
NOWHERE = "tcp://127.0.0.1:1"


@pytest.fixture(scope="module")
def problem():
    return random_problem(rows=ROWS)


@pytest.fixture(scope="module")
def file(tmp_path_factory, problem):
    path = tmp_path_factory.mktemp("data") / "data.xmc"
    save_data(Dataset(*problem), path)
    return path


@pytest.fixture(scope="module")
def expected(tmp_path_factory, problem):
    path = tmp_path_factory.mktemp("expected") / "model"
    return train(*problem, path, PARAMS), weight_files(path)


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Two workers, each pretending to be on its own machine."""
    with Processes(tmp_path_factory.mktemp("dask")) as started:
        started.scheduler()
        for host in ("127.0.0.1", "127.0.0.2"):
            started.worker(host=host, local_directory=started.folder / host)
        yield started


@pytest.fixture
def client(processes):
    with connect(processes) as connected:
        yield connected


def connect(processes, n_workers=2):
    client = Client(scheduler_file=str(processes.file), set_as_default=False)
    client.wait_for_workers(n_workers, timeout=300)
    return client


def collections(path, *, dense=False, rows=ROWS, block=BLOCK):
    """Return X and Y as Dask arrays whose blocks workers read; functions are sent by value."""

    def part(matrix):
        def read(number):
            begin = int(number[0]) * block
            found = getattr(load_data(path), matrix)[begin : begin + block]
            return found.toarray() if dense else found

        return read

    X, Y, _ = load_data(path)
    lengths = tuple(min(block, rows - begin) for begin in range(0, rows, block))
    numbers = da.arange(len(lengths), chunks=1)
    meta = np.empty((0, 0), np.float32) if dense else sp.csr_array((0, 0), dtype=np.float32)
    return [
        numbers.map_blocks(part(name), new_axis=1, chunks=(lengths, (n_columns,)), meta=meta)
        for name, n_columns in (("X", X.shape[1]), ("Y", Y.shape[1]))
    ]


def copies(processes):
    return list(processes.folder.glob("*/dask-scratch-space/dismec-*/copy"))


@pytest.mark.cluster
@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "numpy"])
def test_dask_arrays_give_the_model_of_one_machine(
    tmp_path, processes, client, file, expected, dense
):
    X, Y = collections(file, dense=dense)
    seen = set()
    model = train(
        X, Y, tmp_path / "model", PARAMS, cluster=client,
        progress=lambda done, total: seen.update(copies(processes)),
    )  # fmt: skip
    assert weight_files(tmp_path / "model") == expected[1]
    assert model.manifest.data == expected[0].manifest.data
    # At most one copy per machine during the training, and none afterwards.
    assert 1 <= len(seen) <= 2
    assert len({path.relative_to(processes.folder).parts[0] for path in seen}) == len(seen)
    wait_until(lambda: not copies(processes))
    assert not list((tmp_path / "model").glob(".data-*"))


@pytest.mark.cluster
def test_arrays_that_were_persisted_are_trained_on(tmp_path, client, file, expected):
    X, Y = client.persist(collections(file))
    train(X, Y, tmp_path / "model", PARAMS, cluster=client)
    assert weight_files(tmp_path / "model") == expected[1]


@pytest.mark.cluster
def test_arrays_persisted_by_another_client_are_trained_on(
    tmp_path, processes, client, file, expected
):
    X, Y = client.persist(collections(file))
    train(X, Y, tmp_path / "model", PARAMS, cluster=processes.file)
    assert weight_files(tmp_path / "model") == expected[1]


@pytest.mark.cluster
def test_dense_features_of_dask_arrays_are_trained_as_such(tmp_path, client, file, problem):
    X, Y = problem
    E = np.ascontiguousarray(X.toarray()[:, :20] + 1)
    dask_X, dask_Y = collections(file)
    dense = da.from_array(E, chunks=(BLOCK, 20))
    train([X, E], Y, tmp_path / "both here", PARAMS)
    train([dask_X, dense], dask_Y, tmp_path / "both", PARAMS, cluster=client)
    assert weight_files(tmp_path / "both") == weight_files(tmp_path / "both here")
    train([E], Y, tmp_path / "alone here")
    model = train([dense], dask_Y, tmp_path / "alone", cluster=client)
    assert weight_files(tmp_path / "alone") == weight_files(tmp_path / "alone here")
    assert (model.n_features, model.n_dense) == (0, 20)


@pytest.mark.cluster
def test_a_bag_of_rows_gives_the_model_of_one_machine(tmp_path, client, problem, expected):
    X, Y = problem
    rows = []
    for row in range(ROWS):
        x, y = (slice(*matrix.indptr[row : row + 2].tolist()) for matrix in (X, Y))
        features = dict(zip(X.indices[x].tolist(), X.data[x].tolist(), strict=True))
        rows.append((features, Y.indices[y].tolist()))
    names = [f"label {number}" for number in range(Y.shape[1])]
    bag = dask.bag.from_sequence(rows, npartitions=4)
    model = train(bag, None, tmp_path / "model", PARAMS, cluster=client, names=names)
    assert weight_files(tmp_path / "model") == expected[1]
    assert model.names == names


@pytest.mark.cluster
def test_a_model_in_memory_is_trained_on_dask_arrays(client, file, expected):
    found = fit(*collections(file), PARAMS, cluster=client)
    assert (found.weights != expected[0].weights).nnz == 0


@pytest.mark.cluster
def test_rows_do_not_pass_through_the_client(tmp_path, client):
    path = tmp_path / "data.xmc"
    save_data(Dataset(*random_problem(rows=5000, features=2000, labels=100, density=0.05)), path)
    X, Y = collections(path, rows=5000, block=1000)
    model = tmp_path / "model"
    with (
        CountingProxy(client.scheduler.address) as proxy,
        Client(proxy.address, set_as_default=False) as counted,
    ):
        train(X, Y, model, cluster=counted)
    train(*load_data(path)[:2], tmp_path / "here")
    assert weight_files(model) == weight_files(tmp_path / "here")
    # Only graphs, labels of blocks, receipts, and every second the list of workers pass through.
    assert proxy.sent + proxy.received < path.stat().st_size / 2
    assert path.stat().st_size > 4_000_000


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["data.xmc", pytest.param("data.txt", marks=pytest.mark.slow)])
def test_a_file_that_only_workers_can_see_is_trained_on(
    tmp_path, tmp_path_factory, processes, client, problem, expected, name
):
    """The command line runs where the folder is hidden by another file system."""
    hide = ["unshare", "-m", "true"]
    if os.geteuid() or subprocess.run(hide, check=False).returncode:
        pytest.skip("hiding a folder from a process needs the rights of root")
    folder = tmp_path_factory.mktemp("only-workers")
    names = [f"label {number}" for number in range(problem[1].shape[1])]
    save_data(Dataset(*problem, names), folder / name)
    run = [
        sys.executable,
        "-m",
        "dismec",
        "train",
        folder / name,
        "--data-on-workers",
        "-o",
        "model",
    ]
    run += ["--tfidf", "--block-size", "10", "--cluster", processes.file]
    hidden = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs none "{folder}" && exec "$@"', "sh"]
    ran = subprocess.run([*hidden, *map(str, run)], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert ran.returncode == 0, ran.stderr
    assert " 0.0 MB of data sent" in ran.stderr
    assert weight_files(tmp_path / "model") == expected[1]
    assert open_model(tmp_path / "model").names == (names if name.endswith("xmc") else None)
    wait_until(lambda: not copies(processes))
    assert (folder / name).exists()


@pytest.mark.cluster
def test_a_file_that_no_worker_can_see_is_refused(tmp_path, client):
    with pytest.raises(DataError, match=r"none\.xmc: no worker of the cluster can read this file"):
        train(tmp_path / "none.xmc", None, tmp_path / "model", cluster=client)


@pytest.mark.cluster
def test_an_unsound_block_is_named(tmp_path, client, file):
    X, Y = collections(file)
    with pytest.raises(DataError, match=r"block 2: .* is not a finite float32"):
        train(X.map_blocks(spoiled(2), meta=X._meta), Y, tmp_path / "model", cluster=client)
    broken = X.map_blocks(lambda block: 1 // 0, meta=X._meta, dtype=X.dtype)
    with pytest.raises(ZeroDivisionError):
        train(broken, Y, tmp_path / "model", cluster=client)
    assert not (tmp_path / "model" / "manifest.json").exists()


def spoiled(number):
    def spoil(block, block_id=None):
        if block_id[0] != number:
            return block
        block = block.copy()
        block.data[0] = np.nan
        return block

    return spoil


@pytest.mark.cluster
def test_a_worker_that_dies_while_data_is_gathered_is_replaced(tmp_path, file, expected):
    X, Y = collections(file)
    once = str(tmp_path / "died")

    def die_once(block):
        try:
            Path(once).mkdir()
        except FileExistsError:
            return block
        os._exit(1)

    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        for host in ("127.0.0.1", "127.0.0.2"):
            processes.worker(host=host, local_directory=tmp_path / host)
        with connect(processes) as client:
            dying = X.map_blocks(die_once, meta=X._meta, dtype=X.dtype)
            train(dying, Y, tmp_path / "model", PARAMS, cluster=client)
    assert Path(once).exists()
    assert weight_files(tmp_path / "model") == expected[1]


@pytest.mark.parametrize(
    ("params", "more", "reason"),
    [
        (
            {"refine": True},
            {},
            "refine=True is not supported with data on the workers of a cluster",
        ),
        ({"calibrate": True}, {}, "calibrate=True is not supported"),
        ({"delta": "auto"}, {}, 'delta="auto" is not supported'),
        ({}, {"weights": np.ones(3)}, "weights is not supported"),
    ],
)
def test_options_that_need_local_rows_are_refused_before_any_work(tmp_path, params, more, reason):
    X = Y = da.zeros((4, 4), chunks=(2, 4))
    how = {"cluster": NOWHERE, **more}
    with pytest.raises(DataError, match=reason):
        train(X, Y, tmp_path / "model", TrainingParams(**params), **how)
    assert not (tmp_path / "model").exists()


def test_choosing_c_needs_local_rows(tmp_path):
    X = Y = da.zeros((4, 4), chunks=(2, 4))
    with pytest.raises(DataError, match='C="auto" is not supported'):
        train(X, Y, tmp_path / "model", TrainingParams(C="auto"), cluster=NOWHERE)


def test_a_path_needs_a_cluster(tmp_path):
    with pytest.raises(
        DataError, match="X is a path, which only the workers of a cluster can read"
    ):
        train("data.xmc", None, tmp_path / "model")


def test_a_dask_array_without_a_cluster_is_treated_as_an_array(tmp_path, problem, expected):
    X, Y = problem
    train(da.from_array(X.toarray(), chunks=100), Y, tmp_path / "model", PARAMS)
    assert weight_files(tmp_path / "model") == expected[1]


def blocks(*shape, chunks):
    return da.zeros(shape, chunks=chunks)


@pytest.mark.parametrize(
    ("X", "Y", "reason"),
    [
        (
            blocks(4, 4, chunks=(2, 2)),
            blocks(4, 3, chunks=(2, 3)),
            "several blocks side by side: rechunk",
        ),
        (blocks(4, 4, chunks=(1, 4)), blocks(4, 3, chunks=(2, 3)), r"differ \(X 4, Y 2\)"),
        (blocks(4, chunks=2), blocks(4, 3, chunks=(2, 3)), "X is 1-d; expected rows × columns"),
        (blocks(4, 4, chunks=(2, 4)), np.zeros((4, 3)), "must both be Dask collections"),
        (blocks(4, 4, chunks=(2, 4)), None, "Y is missing"),
    ],
)
def test_collections_that_do_not_fit_are_refused_in_one_line(X, Y, reason):
    with pytest.raises(DataError, match=reason):
        gather._blocks_of(X, Y)


def test_collections_are_recognized_without_dask():
    X = blocks(4, 4, chunks=(2, 4))
    assert remote_data.is_remote(X)
    assert remote_data.is_remote([X, X])
    assert remote_data.is_remote("data.xmc")
    assert not remote_data.is_remote(np.zeros((2, 2)))
    assert not remote_data.is_remote([np.zeros((2, 2))])
    assert not remote_data.is_remote([[1.0, 2.0], [3.0, 4.0]])


@pytest.fixture
def growing(tmp_path, monkeypatch):
    """Make files that grow in this process."""
    monkeypatch.setattr(
        "dismec.cluster.file_copies.scratch_directory", lambda worker=None: tmp_path
    )
    monkeypatch.setattr("dismec.cluster.gather.this_worker", lambda: "here")
    return lambda *kinds: gather._GrowingFile("file", kinds)


OPTIONS = {"tfidf": False, "normalize": True, "bias": 1.0, "dense_scale": 1.0}


def test_facts_of_blocks_equal_those_of_the_whole(growing, problem):
    X, Y = problem
    file = growing("X", "Y")
    for begin in range(0, ROWS, 250):
        rows = slice(begin, begin + 250)
        file.append(X[rows], Y[rows].toarray())
    copy = file.finish(None)
    facts, _, path = gather._facts_of(copy, OPTIONS)
    job = fit(X, Y)
    assert facts.fingerprint == job.manifest.data
    np.testing.assert_array_equal(facts.label_counts, job.label_counts)
    assert facts.n_rows == ROWS
    assert Path(path).exists()
    del copy, file
    assert not Path(path).parent.exists()


def test_blocks_of_other_widths_are_refused(growing, problem):
    X, Y = problem
    file = growing("X", "Y")
    file.append(X[:10], Y[:10])
    with pytest.raises(DataError, match="block 1: rows with 79 features, not 80"):
        file.append(X[:10, :79], Y[:10])
    with pytest.raises(
        DataError, match="block 1: the number of labels is 3; blocks before have 40"
    ):
        file.append(X[:10], Y[:10, :3])
    with pytest.raises(DataError, match=r"block 1: X has 10 rows, Y has shape \(9, 40\)"):
        file.append(X[:10], Y[:9])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (5, "block 0: row 1 is not a pair of features"),
        (({"word": 1.0}, [0]), "block 0: row 1 is not a pair of features"),
        (({-1: 1.0}, [0]), "block 0: .*-1"),
        (({1: 1.0}, [-1]), "block 0: row 2: -1 is not a label id"),
        (({1: float("nan")}, [1]), "block 0: row index 1, feature 1: nan is not a finite"),
    ],
)
def test_unsound_rows_of_a_bag_are_named(growing, row, reason):
    with pytest.raises(DataError, match=reason):
        growing("rows").append([({0: 1.0}, [0]), row])


def test_a_file_is_written_in_pieces_with_dense_features(tmp_path, problem):
    X, Y = problem
    E = np.ascontiguousarray(X.toarray()[:, :7] + 1)
    with XmcWriter(tmp_path / "pieces.xmc", X.shape[1], 7) as writer:
        for begin in range(0, ROWS, 100):
            rows = slice(begin, begin + 100)
            writer.append(X[rows], Y[rows], E[rows])
        writer.finish(Y.shape[1])
    from dismec.data.mixed import mixed_rows

    TrainingData(mixed_rows(X, E), Y).save(tmp_path / "whole.xmc")
    assert (tmp_path / "pieces.xmc").read_bytes() == (tmp_path / "whole.xmc").read_bytes()


def test_dask_arrays_of_sparse_blocks_need_a_cluster(tmp_path, problem):
    X, Y = problem
    parts = [da.from_array(M.toarray(), chunks=(100, M.shape[1])) for M in (X, Y)]
    sparse = [part.map_blocks(sp.csr_array) for part in parts]
    for given in (sparse, [X, sparse[1]]):
        with pytest.raises(
            DataError, match=r"[XY] is a Dask collection of sparse blocks: pass its"
        ):
            train(*given, tmp_path / "model")
    dense = DiSMECClassifier().fit(*parts)
    assert dense.predict(X).tolist() == DiSMECClassifier().fit(X, Y).predict(X).toarray().tolist()


@pytest.mark.parametrize("link", ["http://{host}:1/status", "/proxy/{port}/status", "http://["])
def test_a_dashboard_that_does_not_answer_is_not_mentioned(dask_cluster, caplog, link):
    caplog.set_level("INFO", "dismec")
    with (
        dask.config.set({"distributed.dashboard.link": link}),
        opened_executor(dask_cluster, 1) as executor,
    ):
        assert executor.cluster.client.dashboard_link  # though there is none
    assert "dashboard" not in caplog.text
