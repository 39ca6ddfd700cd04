"""Training on a cluster of real processes comes to the model of one machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from distributed import Client

from clusters import Processes
from conftest import random_problem, weight_files
from dismec import TrainingParams, save_data, train
from dismec.dataset import Dataset

pytestmark = pytest.mark.cluster

PARAMS = TrainingParams(block_size=10, tfidf=True)


def same_problem():
    return random_problem(rows=1500, features=200, labels=150, density=0.15)


@pytest.fixture(scope="module")
def problem_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.xmc"
    save_data(Dataset(*same_problem()), path)
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "model"
    train(*same_problem(), path, PARAMS)
    return weight_files(path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A cluster of two workers that see the file system of the tests."""
    with Processes(tmp_path_factory.mktemp("dask")) as started:
        started.scheduler()
        started.worker()
        started.worker(threads=2)
        with Client(scheduler_file=str(started.file), set_as_default=False) as client:
            client.wait_for_workers(2)
        yield started


def blind(processes, *folders, **options):
    """A worker that does not see some folders, where root allows that."""
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("hiding folders from a worker needs the rights of root")
    hide = "".join(f"mount -t tmpfs none '{folder}' && " for folder in folders)
    return processes.worker(
        prefix=["unshare", "-m", "sh", "-c", f'{hide} exec "$@"', "sh"], **options
    )


@pytest.mark.parametrize("n_workers", [1, 2, 4])
def test_model_is_that_of_one_machine(tmp_path, reference, n_workers):
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        for _ in range(n_workers):
            processes.worker()
        with Client(scheduler_file=str(processes.file), set_as_default=False) as client:
            client.wait_for_workers(n_workers)
            counts = []
            train(
                *same_problem(),
                tmp_path / "model",
                PARAMS,
                client=client,
                progress=lambda done, total: counts.append((done, total)),
            )
    assert weight_files(tmp_path / "model") == reference
    assert counts[0] == (0, 150)
    assert counts[-1] == (150, 150)
    assert {path.name for path in (tmp_path / "model").iterdir()} == {
        "manifest.json", "labels.safetensors", ".lock", *reference,
    }  # fmt: skip


def test_command_line_trains_on_a_cluster(tmp_path, shared, problem_file, reference):
    command = [sys.executable, "-m", "dismec", "train", str(problem_file), "-o", "model", "--tfidf"]
    command += ["--cluster", str(shared.file)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert weight_files(tmp_path / "model") == reference
    assert "blocks on 2 workers, idle" in ran.stderr
    assert " 0.0 MB of data sent, 0.0 MB of blocks" in ran.stderr
    assert "150 of 150 labels" in ran.stderr


if __name__ == "__main__":
    pytest.main([__file__])
