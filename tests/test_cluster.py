"""Training on a cluster of real processes gives the same model as on one machine."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from distributed import Client
from sklearn.base import clone

from clusters import CountingProxy, Machines, Processes, wait_until, with_version
from conftest import random_problem, weight_files
from dismec import (
    DiSMECClassifier,
    TrainingParams,
    add_labels,
    open_model,
    remove_labels,
    save_data,
    train,
    train_text,
)
from dismec.cluster.client import Cluster
from dismec.data.dataset import Dataset
from dismec.data.synthetic import generate_text, write_text
from dismec.errors import ClusterError
from dismec.features.text_rows import text_dataset
from dismec.model.directory import holds_model, read_manifest

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
    """A cluster of two workers that share the tests' file system."""
    with Processes(tmp_path_factory.mktemp("dask")) as started:
        started.scheduler()
        started.worker()
        started.worker(threads=2)
        with Client(scheduler_file=str(started.file), set_as_default=False) as client:
            client.wait_for_workers(2)
        yield started


def blind(processes, *folders, inside=(), **options):
    """Start a worker that cannot see some folders; needs root."""
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("hiding folders from a worker needs the rights of root")
    hide = "".join(f"mount -t tmpfs none '{folder}' && " for folder in folders)
    prefix = [*inside, "unshare", "-m", "sh", "-c", f'{hide} exec "$@"', "sh"]
    return processes.worker(prefix=prefix, **options)


def connect(processes, n_workers):
    client = Client(scheduler_file=str(processes.file), set_as_default=False)
    client.wait_for_workers(n_workers, timeout=30)
    return client


def test_model_is_that_of_one_machine(tmp_path, shared, reference):
    counts = []
    with connect(shared, 2) as client:
        train(
            *same_problem(),
            tmp_path / "model",
            PARAMS,
            cluster=client,
            progress=lambda done, total: counts.append((done, total)),
        )
    assert weight_files(tmp_path / "model") == reference
    assert counts[0] == (0, 150)
    assert counts[-1] == (150, 150)
    assert {path.name for path in (tmp_path / "model").iterdir()} == {
        "manifest.json", "labels.safetensors", ".lock", *reference,
    }  # fmt: skip


def test_command_line_trains_on_a_cluster(tmp_path, shared, problem_file, reference):
    ran = subprocess.run(
        command(problem_file, shared.file), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert weight_files(tmp_path / "model") == reference
    assert "blocks on 2 workers; 0.0 MB of data sent, 0.0 MB of blocks received" in ran.stderr
    assert "150 of 150 labels" in ran.stderr


def command(data, cluster, *more):
    return [
        sys.executable, "-m", "dismec", "train", str(data), "-o", "model", "--tfidf", "--C", "1",
        "--no-calibrate", "--cluster", str(cluster), *more,
    ]  # fmt: skip


@pytest.mark.parametrize("penalty", ["l2", "l1"])
def test_estimator_fits_on_a_cluster(shared, penalty):
    X, Y = same_problem()
    with connect(shared, 2) as client:
        there = clone(DiSMECClassifier(cluster=client, penalty=penalty)).fit(X, Y)
    here = DiSMECClassifier(penalty=penalty).fit(X, Y)
    assert (there.model_.weights != here.model_.weights).nnz == 0
    again = DiSMECClassifier(cluster=str(shared.file)).fit(X, Y.toarray()[:, 0])
    np.testing.assert_array_equal(again.classes_, [0, 1])


def test_texts_are_learned_and_predicted_on_a_cluster_as_locally(tmp_path, shared):
    write_text(tmp_path, *generate_text(rows=300, labels=20, features=500))
    params = TrainingParams(tfidf=True, calibrate=True)
    source, address = tmp_path / "train.jsonl", str(shared.file)
    train_text(source, tmp_path / "here", params)
    train_text(source, tmp_path / "there", params, cluster=address)
    for path in (tmp_path / "here").glob("*.safetensors"):
        assert (tmp_path / "there" / path.name).read_bytes() == path.read_bytes()
    for name in ("here", "there"):
        remove_labels(tmp_path / name, open_model(tmp_path / name).names[:5])
    texts, _ = text_dataset(open_model(tmp_path / "here"), source)
    add_labels(tmp_path / "here", *texts)
    add_labels(tmp_path / "there", *texts, cluster=address)
    assert weight_files(tmp_path / "here") == weight_files(tmp_path / "there")
    run = [sys.executable, "-m", "dismec", "predict"]
    here, there = (
        subprocess.run(
            [*run, tmp_path / "here", tmp_path / "test.jsonl", *option],
            capture_output=True,
            check=True,
        ).stdout
        for option in ((), ("--cluster", address))
    )
    assert here == there


def test_delta_is_chosen_on_a_cluster_as_locally(tmp_path, shared):
    X, Y = same_problem()
    params = TrainingParams(delta="auto")
    counts = []
    there = train(
        X, Y, tmp_path / "there", params,
        cluster=shared.file, progress=lambda done, total: counts.append((done, total)),
    )  # fmt: skip
    here = train(X, Y, tmp_path / "here", params)
    assert there.params["delta_effect"] == here.params["delta_effect"]
    assert weight_files(tmp_path / "there") == weight_files(tmp_path / "here")
    assert there.manifest.stats.weight_counts == here.manifest.stats.weight_counts
    assert counts[-1] == (150, 150)


def test_neither_rows_nor_weights_pass_through_the_client_where_storage_is_shared(tmp_path, shared):
    X, Y = random_problem(rows=5000, features=2000, labels=150, density=0.05)
    data, model = tmp_path / "data.xmc", tmp_path / "model"
    save_data(Dataset(X, Y), data)
    with connect(shared, 2) as client, CountingProxy(client.scheduler.address) as proxy:
        train(X, Y, model, TrainingParams(delta=0), cluster=proxy.address, source=data)
    assert data.stat().st_size > 4_000_000
    assert sum(map(len, weight_files(model).values())) > 600_000
    # Only the labels and receipts of blocks, and the list of workers, pass through.
    assert proxy.sent < 150_000
    assert proxy.received < 150_000


def test_rows_are_sent_once_and_weights_come_back_if_nothing_is_shared(
    tmp_path, reference, problem_file, caplog
):
    caplog.set_level("INFO", "dismec")
    model = tmp_path / "model"
    model.mkdir()
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        for host in ("127.0.0.1", "127.0.0.2", "127.0.0.2"):
            hidden = (model, problem_file.parent)
            blind(processes, *hidden, host=host, local_directory=tmp_path / host)
        copies = set()

        def look(done, total):
            copies.update(tmp_path.glob("127*/dask-scratch-space/dismec-*/copy"))

        with connect(processes, 3) as client, CountingProxy(client.scheduler.address) as proxy:
            how = {"cluster": proxy.address, "source": problem_file, "progress": look}
            train(*same_problem(), model, PARAMS, **how)
        wait_until(lambda: not list(tmp_path.glob("127*/dask-scratch-space/dismec-*")))
    assert weight_files(model) == reference
    rows = problem_file.stat().st_size
    (report,) = [r.args[0] for r in caplog.records if r.msg == "%s"]
    # One machine gets the rows from the client, the other from that machine.
    assert report.sent == rows < proxy.sent < rows + 200_000
    assert 1 <= len(copies) <= 2
    assert 0 < report.received < proxy.received < report.received + 400_000


@pytest.mark.slow
def test_a_killed_client_leaves_finished_blocks_and_no_copies(tmp_path, reference, problem_file):
    model = tmp_path / "model"
    model.mkdir()
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        blind(processes, model, problem_file.parent)
        with connect(processes, 1):
            pass
        begun = subprocess.Popen(
            command(problem_file, processes.file, "--block-size", "1"), cwd=tmp_path
        )
        wait_until(lambda: holds_model(model) and read_manifest(model).blocks)
        begun.kill()
        begun.wait()
        kept = read_manifest(model).labels_done
        counts = []
        wait_until(lambda: not list(processes.folder.glob("dask-scratch-space/dismec-*/copy")))
        train(
            *same_problem(), model, PARAMS,
            cluster=processes.file, progress=lambda done, _: counts.append(done),
        )  # fmt: skip
    assert 0 < kept <= counts[0] < 150
    assert weight_files(model) == reference


@pytest.mark.slow
def test_machines_in_separate_networks_train_together(tmp_path, reference, problem_file):
    """Workers in network namespaces, each with its own address and nothing shared."""
    with Machines(3) as machines, Processes(tmp_path / "dask") as processes:
        model = tmp_path / "model"
        model.mkdir()
        processes.scheduler(host=machines.gateway)
        for i, address in enumerate(machines.addresses):
            blind(
                processes, model, problem_file.parent,
                host=address, inside=machines.inside(i), local_directory=tmp_path / address,
            )  # fmt: skip
        with connect(processes, 3) as client:
            train(*same_problem(), model, PARAMS, cluster=client, source=problem_file)
    assert weight_files(model) == reference


def test_a_killed_worker_is_replaced_by_a_late_one(tmp_path, reference):
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        first = processes.worker()
        begun = []

        def disturb(done, total):
            if done and not begun:
                processes.kill(first)
                begun.append(processes.worker())

        train(*same_problem(), tmp_path / "model", PARAMS, cluster=processes.file, progress=disturb)
    assert weight_files(tmp_path / "model") == reference


@pytest.mark.slow
def test_a_run_continues_after_its_scheduler_restarts(tmp_path, reference, caplog):
    with Processes(tmp_path / "dask") as processes:
        scheduler = processes.scheduler()
        processes.worker()
        with connect(processes, 1) as client:
            port = client.scheduler.address.rsplit(":")[-1]
        begun = []

        def disturb(done, total):
            if done and not begun:
                processes.kill(scheduler)
                processes.scheduler(port=port)
                begun.append(processes.worker())

        train(*same_problem(), tmp_path / "model", PARAMS, cluster=processes.file, progress=disturb)
    assert weight_files(tmp_path / "model") == reference


def test_a_block_that_always_fails_ends_the_run_and_the_others_stay(tmp_path, reference):
    X, Y = same_problem()
    model = tmp_path / "model"
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        for _ in range(2):
            processes.worker(f"--preload={failing(tmp_path, label=7)}")
        with (
            connect(processes, 2) as client,
            pytest.raises(OSError, match="label 7 is cursed") as caught,
        ):
            train(X, Y, model, PARAMS, cluster=client)
    assert "finished blocks are kept" in caught.value.__notes__[-1]
    manifest = read_manifest(model)
    assert 0 < manifest.labels_done < 150
    train(X, Y, model, PARAMS)
    assert weight_files(model) == reference


def failing(folder, label):
    """Write a module that makes blocks with a label fail in the worker that loads it."""
    path = folder / "failing.py"
    path.write_text(
        "from dismec.model import weight_files\n"
        "def write_block(directory, block, write=weight_files.write_block):\n"
        f"    if {label} in block.labels:\n"
        f"        raise OSError('label {label} is cursed')\n"
        "    return write(directory, block)\n"
        "weight_files.write_block = write_block\n"
    )
    return path


@pytest.mark.slow
def test_a_block_that_kills_its_workers_is_reported_in_one_line(tmp_path, problem_file):
    deadly = tmp_path / "deadly.py"
    deadly.write_text(
        "import os\n"
        "from dismec.model import weight_files\n"
        "def write_block(directory, block, write=weight_files.write_block):\n"
        "    if 7 in block.labels:\n"
        "        os._exit(1)\n"
        "    return write(directory, block)\n"
        "weight_files.write_block = write_block\n"
    )
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler(env={"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"})
        processes.worker(f"--preload={deadly}", nanny=True)
        ran = subprocess.run(
            command(problem_file, processes.file, "--quiet", "--block-size", "10"),
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert "several workers have died while running the same task" in line
    assert read_manifest(tmp_path / "model").labels_done > 0


def test_a_worker_of_another_version_is_refused(tmp_path, shared, reference):
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        processes.worker()
        processes.worker(env=with_version(tmp_path, "0.0.1"))
        with (
            connect(processes, 2) as client,
            pytest.raises(ClusterError, match=r"has dismec 0\.0\.1, but the client has dismec"),
        ):
            train(*same_problem(), tmp_path / "model", PARAMS, cluster=client)


@pytest.mark.slow
def test_a_late_worker_of_another_version_or_kind_is_reported(tmp_path, caplog):
    X, Y = same_problem()
    started = []
    slow = tmp_path / "slow.py"  # leaves blocks for the late workers
    slow.write_text(
        "import time\n"
        "from dismec.model import weight_files\n"
        "def write_block(directory, block, write=weight_files.write_block):\n"
        "    time.sleep(0.4)\n"
        "    return write(directory, block)\n"
        "weight_files.write_block = write_block\n"
    )
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        processes.worker(f"--preload={slow}")

        def disturb(done, total):
            if done and not started:
                started.append(processes.worker(env=with_version(tmp_path, "0.0.1")))
                started.append(processes.worker(env={"DISMEC_ISA": "base"}))

        train(X, Y, tmp_path / "model", PARAMS, cluster=processes.file, progress=disturb)
    assert "has dismec 0.0.1: it is not used" in caplog.text
    assert "runs base kernels, others" in caplog.text
    assert open_model(tmp_path / "model").n_labels == 150


def test_a_run_continues_locally_and_on_a_cluster(tmp_path, shared, reference):
    X, Y = same_problem()
    model = tmp_path / "model"

    def stop_after(n_labels):
        def progress(done, total):
            if done >= n_labels:
                raise KeyboardInterrupt

        return progress

    for n_labels, client in ((40, None), (80, shared.file), (120, None)):
        with pytest.raises(KeyboardInterrupt):
            train(X, Y, model, PARAMS, cluster=client, progress=stop_after(n_labels))
    kept = read_manifest(model).labels_done
    assert kept >= 80
    counts = []
    train(X, Y, model, PARAMS, cluster=shared.file, progress=lambda done, _: counts.append(done))
    assert counts[0] == kept
    assert weight_files(model) == reference


def test_a_missing_cluster_is_reported_in_one_line(tmp_path, problem_file):
    ran = subprocess.run(
        command(problem_file, "gopher://here"), cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert ran.stderr.startswith("dismec: gopher://here: ")


def test_waiting_for_a_scheduler_file_is_reported_immediately(tmp_path, caplog):
    with pytest.raises(ClusterError, match="no scheduler has answered"):
        Cluster.connect(tmp_path / "mistyped.json", patience=0.5)
    assert "no scheduler yet (there is no such file); waiting" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("sees_all", [True, False])
def test_twenty_kills_do_not_change_a_byte(tmp_path, sees_all):
    X, Y = random_problem(rows=6000, features=400, labels=9000, density=0.2)
    data, model = tmp_path / "data" / "data.xmc", tmp_path / "model"
    data.parent.mkdir()
    model.mkdir()
    save_data(Dataset(X, Y), data)
    params = TrainingParams(tfidf=True)
    train(X, Y, tmp_path / "reference", params)
    luck = random.Random(0)
    kills = 0
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler(env={"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "20"})

        def start():
            return processes.worker() if sees_all else blind(processes, model, data.parent)

        workers = [start() for _ in range(2)]
        client = None
        while client is None or client.poll() is None:
            if client is None:
                client = subprocess.Popen(command(data, processes.file, "--quiet"), cwd=tmp_path)
            time.sleep(luck.uniform(0.2, 1.5))
            if kills == 20 or client.poll() is not None:
                continue
            kills += 1
            victim = luck.randrange(3)
            if victim == 2:
                client.send_signal(signal.SIGKILL)
                client.wait()
                client = None
            else:
                processes.kill(workers[victim])
                workers[victim] = start()
        assert client.returncode == 0
    assert kills == 20
    assert weight_files(model) == weight_files(tmp_path / "reference")
