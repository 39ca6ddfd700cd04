"""Dense features on a cluster of real processes: the model of one machine, one copy of the data."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from clusters import Processes, wait_until
from conftest import tune, weight_files
from dismec import (
    DataError,
    DiSMECClassifier,
    TrainingParams,
    add_labels,
    save_data,
    train,
    train_text,
    update_labels,
)
from dismec.data.dataset import Dataset
from dismec.data.mixed import mixed_rows
from dismec.data.training_file import TrainingData, fingerprint
from test_cluster import blind
from test_dense import dense_problem

SMALL = TrainingParams(block_size=3)


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Two workers that share the tests' file system."""
    with Processes(tmp_path_factory.mktemp("dask")) as started:
        started.scheduler()
        started.worker()
        started.worker(threads=2)
        with Client(scheduler_file=str(started.file), set_as_default=False) as client:
            client.wait_for_workers(2, timeout=300)
        yield started


@pytest.fixture(scope="module")
def problem():
    return dense_problem(features=50)


def test_the_training_file_holds_its_dense_features_and_maps_them(tmp_path, problem):
    X, E, Y = problem
    rows = mixed_rows(X, E)
    TrainingData(rows, Y).save(tmp_path / "data.xmc")
    found = TrainingData.map(tmp_path / "data.xmc")
    np.testing.assert_array_equal(found.X.dense, E, strict=True)
    assert found.fingerprint == fingerprint(rows, Y) != fingerprint(X, Y)
    assert not found.X.dense.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        found.X.dense[0, 0] = 1


def test_a_file_of_damaged_dense_features_is_refused(tmp_path, problem):
    X, E, Y = problem
    path = tmp_path / "data.xmc"
    TrainingData(mixed_rows(X, E), Y).save(path)
    content = path.read_bytes()
    at = content.index(E.tobytes())
    path.write_bytes(content[:at] + np.float32(np.nan).tobytes() + content[at + 4 :])
    with pytest.raises(DataError, match=r"data\.xmc: row index 0, dense feature 0: nan is not"):
        TrainingData.map(path)
    path.write_bytes(content.replace(b'"dense"', b'"tense"'))
    with pytest.raises(DataError, match="does not contain the arrays of a dataset"):
        TrainingData.map(path)


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["both", "alone", "weighted"])
def test_a_model_with_dense_features_equals_that_of_one_machine(tmp_path, processes, problem, kind):
    X, E, Y = problem
    weights = np.arange(300) % 4 / 2 if kind == "weighted" else None
    rows = [E] if kind == "alone" else [X, E]
    params = TrainingParams(block_size=3, tfidf=kind == "both", dense_scale=0.7)
    train(rows, Y, tmp_path / "here", params, weights=weights)
    train(rows, Y, tmp_path / "there", params, weights=weights, cluster=processes.file)
    assert weight_files(tmp_path / "there") == weight_files(tmp_path / "here")
    assert not list((tmp_path / "there").glob(".data-*"))


@pytest.mark.cluster
def test_texts_with_dense_features_are_trained_on_a_cluster(tmp_path, processes):
    rng = np.random.default_rng(0)
    names = rng.choice(["bread", "egg", "rice"], 60)
    (tmp_path / "texts.csv").write_text(
        "text,labels\n" + "".join(f"word{i % 7} {name},{name}\n" for i, name in enumerate(names))
    )
    E = rng.standard_normal((60, 8), dtype=np.float32)
    train_text(tmp_path / "texts.csv", tmp_path / "here", dense=E)
    train_text(tmp_path / "texts.csv", tmp_path / "there", dense=E, cluster=processes.file)
    assert weight_files(tmp_path / "there") == weight_files(tmp_path / "here")


@pytest.mark.cluster
def test_an_estimator_fits_dense_features_on_a_cluster(processes, problem):
    X, E, Y = problem
    there = DiSMECClassifier(cluster=str(processes.file)).fit([X, E], Y)
    here = DiSMECClassifier().fit([X, E], Y)
    assert (there.model_.weights != here.model_.weights).nnz == 0


@pytest.mark.cluster
def test_a_large_full_array_is_taken_as_dense_features_on_a_cluster_too(tmp_path, processes):
    E, Y = dense_problem(rows=1100, width=1000, labels=2)
    model = train(E.astype(np.float64), Y, tmp_path / "model", cluster=processes.file)
    assert (model.n_features, model.n_dense) == (0, 1000)


@pytest.mark.cluster
def test_c_and_probabilities_of_dense_models_are_chosen_on_a_cluster(tmp_path, processes, problem):
    X, E, Y = problem
    params = TrainingParams(block_size=3, calibrate=True, delta="auto")
    for place, cluster in (("here", None), ("there", processes.file)):
        tune([X, E], Y, tmp_path / place, params, cluster=cluster)
    for path in (tmp_path / "here").glob("*.safetensors"):
        assert (tmp_path / "there" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.cluster
@pytest.mark.parametrize("weighted", [False, True])
def test_labels_of_dense_models_are_added_and_updated_on_a_cluster(
    tmp_path, processes, problem, weighted
):
    X, E, Y = problem
    how = {"weights": np.arange(300) % 4 / 2} if weighted else {}
    train([X, E], Y, tmp_path / "whole", SMALL, **how)
    train([X, E], Y[:, :9], tmp_path / "grown", SMALL, **how)
    save_data(Dataset(X, Y), tmp_path / "data.xmc")
    there = {"cluster": processes.file, "source": tmp_path / "data.xmc", **how}
    add_labels(tmp_path / "grown", [X, E], Y, **there)
    found = update_labels(tmp_path / "grown", [X, E], Y, [0, 5], **there)
    expected = train([X, E], Y, tmp_path / "whole", SMALL, overwrite=True, **how)
    np.testing.assert_array_equal(found.weights.toarray(), expected.weights.toarray())


@pytest.mark.cluster
def test_labels_are_added_on_a_cluster_from_a_file_that_has_more(tmp_path, processes, problem):
    X, _, Y = problem
    save_data(Dataset(X, Y), tmp_path / "data.xmc")
    expected = train(X, Y, tmp_path / "whole", SMALL)
    train(X, Y[:, :9], tmp_path / "grown", SMALL)
    how = {"cluster": processes.file, "source": tmp_path / "data.xmc"}
    found = add_labels(tmp_path / "grown", X, Y, **how)
    np.testing.assert_array_equal(found.weights.toarray(), expected.weights.toarray())


@pytest.mark.cluster
@pytest.mark.slow
def test_the_command_line_trains_dense_features_on_a_cluster(tmp_path, processes, problem):
    X, E, Y = problem
    save_data(Dataset(X, Y), tmp_path / "data.xmc")
    np.save(tmp_path / "E.npy", E)
    run = [sys.executable, "-m", "dismec", "train", "data.xmc", "--dense", "E.npy"]
    for more in (["-o", "here"], ["-o", "there", "--cluster", str(processes.file)]):
        subprocess.run([*run, *more], cwd=tmp_path, check=True)
    assert weight_files(tmp_path / "there") == weight_files(tmp_path / "here")


def looker():
    """Return a function that measures a worker: bytes of mapped data files, dirty ones, its own.

    It is created here so that it is sent by value: workers cannot import this module.
    """

    def look():
        text = Path("/proc/self/smaps").read_text()
        areas = [area for area in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", text) if ".xmc" in area]
        kb = {
            name: sum(int(n) for area in areas for n in re.findall(rf"^{name}: +(\d+)", area, re.M))
            for name in ("Size", "Private_Dirty")
        }
        own = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
        return 1024 * kb["Size"], 1024 * kb["Private_Dirty"], 1024 * int(own[1])

    return look


@pytest.mark.cluster
@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")
def test_threads_of_a_worker_share_one_map_of_the_dense_features(tmp_path):
    E, Y = dense_problem(rows=3000, width=5000, labels=4)  # 60 MB
    during = []
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        processes.worker(threads=4)
        with Client(scheduler_file=str(processes.file), set_as_default=False) as client:
            client.wait_for_workers(1, timeout=300)
            # The first training also loads modules, which do not count as data.
            train([E[:300]], Y[:300], tmp_path / "first", cluster=processes.file)
            ((_, _, before),) = client.run(looker()).values()

            def look(done, total):
                if done:
                    during.extend(client.run(looker()).values())

            params = TrainingParams(block_size=1)
            train([E], Y, tmp_path / "model", params, cluster=processes.file, progress=look)
    assert during
    for mapped, written, own in during:
        assert mapped >= E.nbytes
        assert written == 0
        assert own - before < E.nbytes / 2


@pytest.mark.cluster
def test_dense_features_are_sent_once_if_nothing_is_shared(tmp_path, problem, caplog):
    caplog.set_level("INFO", "dismec")
    X, E, Y = problem
    here, there = tmp_path / "here", tmp_path / "there"
    train([X, E], Y, here, SMALL)
    there.mkdir()
    TrainingData(mixed_rows(X, E), Y).save(tmp_path / "data.xmc")
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        for _ in range(2):
            blind(processes, there, local_directory=tmp_path / "scratch")
        with Client(scheduler_file=str(processes.file), set_as_default=False) as client:
            client.wait_for_workers(2, timeout=300)
        train([X, E], Y, there, SMALL, cluster=processes.file)
        wait_until(lambda: not list((tmp_path / "scratch").glob("dask-scratch-space/dismec-*")))
    assert weight_files(there) == weight_files(here)
    (report,) = [record.args[0] for record in caplog.records if record.msg == "%s"]
    assert report.sent == (tmp_path / "data.xmc").stat().st_size
