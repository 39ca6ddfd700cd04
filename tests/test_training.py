from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp

from conftest import random_problem, run_killed, train_unfinished, weight_files
from dismec import DataError, ModelError, TrainingParams, open_model, save_data, train
from dismec.data.dataset import Dataset
from dismec.model.directory import commit, holds_model, locked, make_run_folder, read_manifest
from dismec.model.sidecar_files import read_parts
from dismec.model.weight_files import finish, read_block, write_block
from dismec.training.train import fit

PARAMS = TrainingParams(block_size=10)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    X, Y = random_problem()
    path = tmp_path_factory.mktemp("reference") / "model"
    train(X, Y, path, PARAMS, threads=1)
    return weight_files(path)


def test_threads_do_not_change_a_byte(tmp_path, reference, problem_data):
    train(*problem_data, tmp_path / "model", PARAMS, threads=3)
    assert weight_files(tmp_path / "model") == reference


def test_block_size_does_not_change_a_byte(tmp_path, reference, problem_data):
    for size in (7, 1000):
        path = tmp_path / str(size)
        train(*problem_data, path, TrainingParams(block_size=size))
        assert weight_files(path) == reference


def test_a_run_that_only_lacks_its_end_is_completed(tmp_path, reference, problem_data):
    path = tmp_path / "model"
    train_unfinished(*problem_data, path, PARAMS)
    assert sorted(weight_files(path)) == [f"block-00000{i}.safetensors" for i in range(4)]
    with pytest.raises(ModelError, match="unfinished training, 40 of 40 labels"):
        open_model(path)
    with mock.patch("dismec.training.execute.solve_blocks", return_value=(_ for _ in ())):
        train(*problem_data, path, PARAMS)
    assert weight_files(path) == reference


@pytest.mark.parametrize("killed", ["commit", "tidy"])
def test_a_run_that_is_killed_while_it_ends_loses_nothing(
    tmp_path, reference, problem_data, killed
):
    path = tmp_path / "model"
    train_unfinished(*problem_data, path, PARAMS)
    manifest = read_manifest(path)
    counts = read_parts(path, manifest).labels.counts
    with (
        mock.patch(f"dismec.model.weight_files.{killed}", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        finish(path, manifest, "float16", counts)
    if read_manifest(path).complete:
        assert open_model(path).n_labels == 40  # with files no longer named
    else:
        train(*problem_data, path, PARAMS)
        assert weight_files(path) == reference


def test_fit_in_memory_is_the_same_model(problem_data, tmp_path, reference):
    fit(*problem_data, PARAMS).save(tmp_path / "model")
    assert weight_files(tmp_path / "model") == reference


def test_an_interrupted_run_resumes_where_it_stopped(tmp_path):
    X, Y = random_problem(rows=3000, features=200, labels=200, density=0.15)
    path = tmp_path / "model"
    expected = weight_files(train_into(tmp_path / "reference", X, Y))

    def interrupt(done, total):
        if holds_model(path) and len(read_manifest(path).blocks) >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(X, Y, path, PARAMS, threads=1, progress=interrupt)
    with pytest.raises(ModelError, match="unfinished training"):
        open_model(path)
    kept = read_manifest(path).blocks
    assert 2 <= len(kept) < 20
    counts = []
    train(X, Y, path, PARAMS, progress=lambda done, total: counts.append(done))
    assert counts[0] == sum(receipt.n_labels for receipt in kept)
    assert counts[-1] == 200
    assert weight_files(path) == expected


def train_into(path, X, Y):
    train(X, Y, path, PARAMS)
    return path


def test_damaged_block_of_an_unfinished_run_is_solved_again(tmp_path, problem_data, reference):
    path = tmp_path / "model"
    train_unfinished(*problem_data, path, PARAMS)
    manifest = read_manifest(path)
    commit(path, manifest.with_blocks(manifest.blocks[:3]))
    (path / manifest.blocks[0].file).write_bytes(b"damaged")
    (path / manifest.blocks[1].file).unlink()
    train(*problem_data, path, PARAMS)
    assert weight_files(path) == reference


def test_a_run_resumes_with_another_block_size(tmp_path, problem_data, reference):
    path = tmp_path / "model"
    train_unfinished(*problem_data, path, PARAMS)
    manifest = read_manifest(path)
    commit(path, manifest.with_blocks(manifest.blocks[1:3]))
    counts = []
    train(
        *problem_data,
        path,
        replace(PARAMS, block_size=7),
        progress=lambda done, total: counts.append(done),
    )
    assert counts[0] == 20
    assert weight_files(path) == reference


def test_a_block_that_holds_labels_of_another_is_solved_again(tmp_path, problem_data, reference):
    path = tmp_path / "model"
    train_unfinished(*problem_data, path, PARAMS)
    manifest = read_manifest(path)
    twin = read_block(path, manifest, manifest.blocks[0])
    receipt = write_block(path, replace(twin, number=9))
    commit(path, manifest.with_blocks([*manifest.blocks[:2], receipt]))
    train(*problem_data, path, PARAMS)
    assert weight_files(path) == reference


def test_leftovers_of_killed_writers_are_cleared_away(tmp_path, problem_data, reference):
    path = tmp_path / "model"
    train_unfinished(*problem_data, path, PARAMS)
    manifest = read_manifest(path)
    commit(path, manifest.with_blocks(manifest.blocks[:3]))
    (path / ".block-000003.safetensors.0123456789ab.tmp").write_bytes(b"half")
    (path / "block-000999.safetensors").write_bytes(b"of no one")
    (path / ".data-0123456789abcdef.xmc").write_bytes(b"rows for a cluster")
    (make_run_folder(path) / "block-000003.safetensors").write_bytes(b"by a worker")
    train(*problem_data, path, PARAMS)
    assert {p.name for p in path.iterdir()} == {
        "manifest.json",
        "labels.safetensors",
        ".lock",
        *reference,
    }


def test_a_finished_or_different_model_is_kept_by_default(tmp_path, problem_data):
    X, Y = problem_data
    path = tmp_path / "model"
    train(X, Y, path, PARAMS)
    before = weight_files(path)
    with pytest.raises(ModelError, match="finished model of this training"):
        train(X, Y, path, PARAMS)
    with pytest.raises(ModelError, match=r"C 1\.0 instead of 2\.0"):
        train(X, Y, path, TrainingParams(C=2.0, block_size=10))
    with pytest.raises(ModelError, match="other data"):
        train(X, sp.csr_array(Y[:, ::-1]), path, PARAMS)
    with pytest.raises(ModelError, match="other label names"):
        train(X, Y, path, PARAMS, names=[str(i) for i in range(40)])
    with pytest.raises(DataError):
        train(X, Y[:10], path, PARAMS, overwrite=True)
    assert weight_files(path) == before
    model = train(X, Y, path, TrainingParams(C=2.0, block_size=25), overwrite=True)
    assert model.params["C"] == 2.0
    assert weight_files(path) != before


def test_two_trainings_do_not_share_a_directory(tmp_path, problem_data):
    path = tmp_path / "model"
    path.mkdir()
    with locked(path), pytest.raises(ModelError, match="another process"):
        train(*problem_data, path, PARAMS)


def test_unusable_data_is_refused(tmp_path, problem_data):
    X, Y = problem_data
    path = tmp_path / "model"
    nan = X.copy()
    nan.data[17] = np.nan
    for bad_X, bad_Y, reason in [
        (nan, Y, "not a finite"),
        (X[:0], Y[:0], "no rows"),
        (X, Y[:7], "300 rows"),
        (X, Y * 2, "not an indicator"),
    ]:
        with pytest.raises(DataError, match=reason):
            train(bad_X, bad_Y, path)
    with pytest.raises(DataError, match="3 label names for 40 labels"):
        train(X, Y, path, names=["a", "b", "c"])
    with pytest.raises(DataError, match="label 0: its name is 0, which is not text"):
        train(X, Y, path, names=list(range(40)))
    with pytest.raises(DataError, match="threads is 0"):
        train(X, Y, path, threads=0)
    for bad in (
        {"C": -1},
        {"C": 1e39},
        {"C": 1e-46},
        {"C": None},
        {"C": "1"},
        {"delta": -0.5},
        {"delta": 1e39},
        {"tol": 0},
        {"block_size": 0},
        {"block_size": 2.5},
        {"tfidf": "no"},
        {"precision": "float64"},
    ):
        with pytest.raises(ValueError, match="expected"):
            TrainingParams(**bad)
    assert not path.exists()


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_array])
def test_label_matrix_that_points_outside_itself_is_refused(problem_data, kind):
    X, Y = problem_data
    Y = kind(Y, copy=True)
    Y.indices[-1] = 10**6
    with pytest.raises(DataError, match="Y: "):
        fit(X, Y)


def test_a_label_given_256_times_counts_once(problem_data):
    X, _ = problem_data
    indptr = np.append(0, np.full(300, 256))
    Y = sp.csr_array((np.ones(256, np.uint8), np.zeros(256, np.int32), indptr), shape=(300, 2))
    assert fit(X, Y).label_counts.tolist() == [1, 0]


def test_parameters_may_be_numpy_numbers(tmp_path, problem_data):
    params = TrainingParams(C=np.float32(2), tfidf=np.bool_(True), block_size=np.int64(10))
    train(*problem_data, tmp_path / "model", params)
    assert params == TrainingParams(C=2.0, tfidf=True, block_size=10)


def test_a_false_unfinished_manifest_is_corrected_on_resuming(tmp_path, problem_data):
    path = tmp_path / "model"
    whole = train(*problem_data, tmp_path / "whole", PARAMS).manifest
    train_unfinished(*problem_data, path, PARAMS)
    unfinished = read_manifest(path)
    first, second, *_ = unfinished.blocks
    lies = [replace(first, n_labels=11), replace(second, number=7)]
    commit(path, replace(unfinished, transform={"bias": 7}).with_blocks(lies))
    again = train(*problem_data, path, PARAMS).manifest
    assert again.transform == whole.transform
    assert again.shards == whole.shards


def test_stored_zeros_and_other_formats_of_the_labels_are_the_same_labels(problem_data):
    X, Y = problem_data
    zeros = Y.tocoo()
    rows, cols = np.append(zeros.row, 0), np.append(zeros.col, 39)
    stored_zero = sp.csr_array((np.append(zeros.data, 0), (rows, cols)), shape=Y.shape)
    expected = fit(X, Y).manifest.data
    for other in (stored_zero, Y.tocsc(), Y.toarray(), Y.astype(bool)):
        assert fit(X, other).manifest.data == expected


@pytest.mark.slow
def test_killed_at_any_moment_and_resumed_the_model_is_the_same(tmp_path):
    X, Y = random_problem(rows=3000, features=200, labels=480, density=0.2)
    save_data(Dataset(X, Y, None), tmp_path / "data.xmc")
    train(X, Y, tmp_path / "reference", TrainingParams(C=10, block_size=4))
    path, rng, kills = tmp_path / "model", random.Random(0), 0
    command = [sys.executable, "-m", "dismec", "train", str(tmp_path / "data.xmc")]
    command += ["-o", str(path), "--C", "10", "--no-calibrate", "--block-size", "4", "--quiet"]
    while run_killed(command, path, rng):
        kills += 1
    assert kills >= 5
    with pytest.raises(ModelError, match="finished model of this training"):
        train(X, Y, path, TrainingParams(C=10, block_size=4))
    assert weight_files(path) == weight_files(tmp_path / "reference")


def any_block(path):
    return holds_model(path) and len(read_manifest(path).blocks) > 0


@pytest.mark.slow
def test_ctrl_c_stops_and_keeps_finished_blocks(tmp_path):
    X, Y = random_problem(rows=8000, features=300, labels=300, density=0.2)
    save_data(Dataset(X, Y, None), tmp_path / "data.xmc")
    command = [sys.executable, "-m", "dismec", "train", str(tmp_path / "data.xmc")]
    command += ["-o", str(tmp_path / "model"), "--C", "10", "--block-size", "2"]
    # Tests that run in the background ignore Ctrl-C.
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while process.poll() is None and not any_block(tmp_path / "model"):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "run the same command again" in errors
    manifest = read_manifest(tmp_path / "model")
    assert 1 <= len(manifest.blocks) < 150
    for receipt in manifest.blocks:
        read_block(tmp_path / "model", manifest, receipt)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_directory_that_cannot_be_written_is_refused(tmp_path, problem_data):
    tmp_path.chmod(0o500)
    with pytest.raises(ModelError, match="Permission denied"):
        train(*problem_data, tmp_path / "model")
