"""Training on a cluster whose workers hang, join late, have many threads, or a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client

from clusters import Processes, wait_until
from conftest import random_problem, weight_files
from dismec import ClusterError, TrainingParams, save_data, train
from dismec.cluster import solve_tasks
from dismec.data.dataset import Dataset
from dismec.model.directory import read_manifest

pytestmark = pytest.mark.cluster

PARAMS = TrainingParams(block_size=10, tfidf=True)


def same_problem():
    return random_problem(rows=1500, features=200, labels=150, density=0.15)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "model"
    train(*same_problem(), path, PARAMS)
    return weight_files(path)


def is_stopped(process):
    """Whether all threads of a process have stopped."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


def stop(process):
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(process))


@pytest.mark.slow
def test_blocks_of_a_hung_worker_are_solved_by_another_and_logged(
    tmp_path, reference, caplog, monkeypatch
):
    caplog.set_level("INFO", "dismec")
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        first = processes.worker()
        processes.worker()
        with Client(scheduler_file=str(processes.file), set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        stopped = []

        def disturb(done, total):
            if done > 40 and not stopped:
                stopped.append(done)
                stop(first)
                for limit in ("_LATE_SECONDS", "_LATE_TIMES"):
                    monkeypatch.setattr(solve_tasks, limit, 0.0)

        train(*same_problem(), tmp_path / "model", PARAMS, cluster=processes.file, progress=disturb)
    assert weight_files(tmp_path / "model") == reference
    assert "another worker solves it as well, and the first result counts" in caplog.text
    reports = [r.args[0] for r in caplog.records if "blocks on 2 workers" in r.getMessage()]
    assert reports[-1].repeated > 0


@pytest.mark.slow
def test_blocks_solved_by_every_worker_give_the_same_model(tmp_path, reference, caplog):
    """All workers count as late all the time: most blocks are solved more than once."""
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        for _ in range(2):
            processes.worker()
        with (
            mock.patch.object(solve_tasks, "_LATE_SECONDS", -1.0),
            mock.patch.object(solve_tasks, "_LATE_TIMES", 0.0),
            mock.patch.object(solve_tasks, "_LOOK_SECONDS", 0.0),
            Client(scheduler_file=str(processes.file), set_as_default=False) as client,
        ):
            client.wait_for_workers(2, timeout=60)
            train(*same_problem(), tmp_path / "model", PARAMS, cluster=client)
    assert weight_files(tmp_path / "model") == reference


def waiting_for(folder, n_workers):
    """Write a module that lets no worker write a block before this many have one to write."""
    marks = folder / "marks"
    marks.mkdir()
    path = folder / "waiting.py"
    path.write_text(
        "import os, time\n"
        "from pathlib import Path\n"
        "from dismec.model import weight_files\n"
        f"marks = Path({str(marks)!r})\n"
        "def write_block(directory, block, write=weight_files.write_block):\n"
        "    (marks / str(os.getpid())).touch()\n"
        f"    while len(list(marks.iterdir())) < {n_workers}:\n"
        "        time.sleep(0.05)\n"
        "    return write(directory, block)\n"
        "weight_files.write_block = write_block\n"
    )
    return path, marks


@pytest.mark.slow
def test_seven_workers_that_join_late_all_solve_blocks(tmp_path, reference):
    preload, marks = waiting_for(tmp_path, 8)
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        processes.worker(f"--preload={preload}")

        def start_others():
            wait_until(lambda: list(marks.iterdir()), 120)
            for _ in range(7):
                processes.worker(f"--preload={preload}")

        starting = threading.Thread(target=start_others)
        starting.start()
        train(*same_problem(), tmp_path / "model", PARAMS, cluster=processes.file)
        starting.join()
    assert len(list(marks.iterdir())) == 8
    assert weight_files(tmp_path / "model") == reference


@contextmanager
def small_disk(folder, size):
    """Return a command prefix that mounts a disk of this many bytes at `folder`."""
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("a disk of its own needs the rights of root")
    folder.mkdir(parents=True, exist_ok=True)
    mount = f"mount -t tmpfs -o size={size} none '{folder}' && echo ready && exec sleep infinity"
    holder = subprocess.Popen(["unshare", "-m", "sh", "-c", mount], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"ready\n"
        inside = f"cd '{folder.parent}' && exec \"$@\""
        yield ["nsenter", "-t", str(holder.pid), "-m", "sh", "-c", inside, "sh"]
    finally:
        holder.kill()
        holder.communicate()


def wide_problem():
    """Return rows with so many features that the weights of a label take hundreds of kilobytes."""
    rng = np.random.default_rng(0)
    X = sp.random(300, 30_000, 0.02, format="csr", dtype=np.float32, random_state=rng)
    return X, sp.csr_array((rng.random((300, 4)) < 0.4).astype(np.uint8))


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    path = tmp_path_factory.mktemp("wide") / "wide.xmc"
    save_data(Dataset(*wide_problem()), path)
    assert path.stat().st_size > 1_000_000
    return path


def run_train(data, processes, folder, prefix=()):
    return subprocess.run(
        [
            *prefix, sys.executable, "-m", "dismec", "train", str(data), "-o", "model",
            "--delta", "0", "--cluster", str(processes.file), "--quiet",
        ],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip


def test_a_full_model_disk_is_reported_in_one_line_with_worker_and_path(tmp_path, wide):
    with small_disk(tmp_path / "model", 100_000) as prefix, Processes(tmp_path / "dask") as started:
        started.scheduler()
        started.worker(prefix=prefix)
        ran = run_train(wide, started, tmp_path, prefix)
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert line.startswith("dismec: worker tcp://127.0.0.1:")
    assert f": {tmp_path / 'model'}/.run-" in line
    assert "No space left on device; finished blocks are kept" in line


def test_a_full_disk_of_the_client_is_reported_in_one_line_with_the_path(tmp_path, wide):
    with small_disk(tmp_path / "model", 100_000) as prefix, Processes(tmp_path / "dask") as started:
        started.scheduler()
        started.worker()  # its blocks are sent to the client
        ran = run_train(wide, started, tmp_path, prefix)
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert line.startswith("dismec: ")
    assert "model/block-0000" in line
    assert line.endswith("No space left on device")


@pytest.mark.parametrize("hidden", ["data", "model"])
def test_a_worker_with_a_full_disk_is_reported_and_the_run_resumes(tmp_path, wide, hidden):
    """Hidden from it are the rows, which are then sent, or the place where blocks go."""
    X, Y = wide_problem()
    model = tmp_path / "model"
    model.mkdir()
    params = TrainingParams(delta=0)
    with (
        small_disk(tmp_path / "scratch", 150_000) as prefix,
        Processes(tmp_path / "dask") as processes,
    ):
        hide = f'mount -t tmpfs none "{wide.parent if hidden == "data" else model}" && exec "$@"'
        full = [*prefix, "unshare", "-m", "sh", "-c", hide, "sh"]
        processes.scheduler()
        worker = processes.worker(prefix=full, local_directory=tmp_path / "scratch")
        with pytest.raises(ClusterError) as caught:
            train(X, Y, model, params, cluster=processes.file, source=wide)
        message = str(caught.value)
        assert message.startswith("worker tcp://127.0.0.1:")
        assert f": {tmp_path / 'scratch'}/" in message
        assert "No space left on device; finished blocks are kept" in message
        processes.kill(worker)
        processes.worker()
        train(X, Y, model, params, cluster=processes.file, source=wide)
    train(X, Y, tmp_path / "here", params)
    assert weight_files(model) == weight_files(tmp_path / "here")
    assert read_manifest(model).complete
