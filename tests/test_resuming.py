"""A training that is stopped anywhere, also in a trial, resumes where it stopped."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from conftest import random_problem, stopped_after, tune
from dismec import ModelError, TrainingParams, open_model, save_data, train
from dismec.data.dataset import Dataset
from dismec.model.directory import read_manifest
from dismec.training.choose_c import Trials
from dismec.training.train import fit

PARAMS = TrainingParams(block_size=20)
LABELS = 300
TRIALS = {
    "calibrate": replace(PARAMS, calibrate=True),
    "delta": replace(PARAMS, delta="auto"),
    "both": replace(PARAMS, calibrate=True, delta="auto"),
}


@pytest.fixture(scope="module")
def data():
    return random_problem(rows=900, features=60, labels=LABELS)


@pytest.fixture(scope="module", params=TRIALS)
def trial(request, data, tmp_path_factory):
    """Parameters of a training with a trial, and the files of an undisturbed run."""
    directory = tmp_path_factory.mktemp(request.param) / "model"
    train(*data, directory, TRIALS[request.param], threads=1)
    return TRIALS[request.param], files_of(directory)


def files_of(directory):
    """Return all files of a model except the manifest, which contains times."""
    names = {p.name for p in directory.iterdir()} - {".lock", "manifest.json"}
    return {name: (directory / name).read_bytes() for name in names}


class Interruption:
    """Records the progress of a training, and stops it this many labels after the first call."""

    def __init__(self, labels=np.inf):
        self.labels, self.seen = labels, []

    def __call__(self, done, total):
        self.seen.append((done, total))
        if done >= self.seen[0][0] + self.labels:
            raise KeyboardInterrupt


def labels_kept(directory):
    """Return the number of labels in finished blocks: of the trial, and of the model."""
    found = read_manifest(directory)
    kept = found.labels_done + (LABELS if settled(found) else 0)
    with suppress(ModelError):
        kept += read_manifest(directory / ".stage-trial").labels_done
    return kept


def settled(manifest):
    needs = "calibration" if manifest.params["calibrate"] else "labels"
    return manifest.params["delta"] != "auto" and needs in manifest.parts


def test_a_training_stopped_anywhere_resumes_to_the_same_model(data, trial, tmp_path):
    params, expected = trial
    directory, kept, stops, begins = tmp_path / "model", 0, [], []
    for _ in range(100):
        news = Interruption()
        try:
            with stopped_after(4):
                train(*data, directory, params, threads=1, progress=news)
            break
        except KeyboardInterrupt:
            pass
        finally:
            # Labels of finished blocks are not solved again, and count as done.
            assert (news.seen[0][0] > 0) == (kept > 0)
            begins.append(news.seen[0][0])
            assert [done for done, _ in news.seen] == sorted(done for done, _ in news.seen)
        kept = labels_kept(directory)
        stops.append(kept)
    assert sum(0 < at < LABELS for at in stops) >= 2, stops
    assert sum(at > LABELS for at in stops) >= 1, stops
    assert begins == sorted(begins)
    assert news.seen[-1] == (LABELS, LABELS)
    assert files_of(directory) == expected


def test_a_finished_trial_that_was_not_evaluated_is_not_trained_again(data, trial, tmp_path):
    params, expected = trial
    judge = "held_out.choose_delta" if params.delta == "auto" else "held_out.fit_calibration"
    with (
        mock.patch(f"dismec.training.{judge}", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        train(*data, tmp_path / "model", params, threads=1)
    seen = []
    train(*data, tmp_path / "model", params, threads=1, progress=lambda *now: seen.append(now))
    assert seen[0] == (LABELS // 2, LABELS)
    assert files_of(tmp_path / "model") == expected


@pytest.mark.parametrize("pattern", ["shard-*", "labels*", "manifest.json"])
def test_a_damaged_trial_is_trained_again(data, tmp_path, pattern):
    params = TRIALS["calibrate"]
    train(*data, tmp_path / "whole", params)
    with (
        mock.patch("dismec.training.held_out.fit_calibration", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        train(*data, tmp_path / "model", params)
    (file,) = (tmp_path / "model" / ".stage-trial").glob(pattern)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 64
    file.write_bytes(content)
    train(*data, tmp_path / "model", params)
    assert files_of(tmp_path / "model") == files_of(tmp_path / "whole")


def test_a_trial_of_other_data_or_parameters_is_not_resumed(data, tmp_path):
    X, Y = data
    path, params = tmp_path / "model", TRIALS["calibrate"]

    def interrupt(done, total):
        if labels_kept(path):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(X, Y, path, params, threads=1, progress=interrupt)
    for other, reason in (
        (lambda: train(X, Y, path, replace(params, C=2)), "C 1.0 instead of 2"),
        (lambda: train(X[:, ::-1], Y, path, params), "other data"),
        (lambda: train(X, Y, path, params, validation=(X, Y)), "calibrated on 90 held-out rows"),
    ):
        with pytest.raises(ModelError, match=reason):
            other()
        assert labels_kept(path) > 0
    again = train(X, Y, path, replace(params, C=2), overwrite=True)
    assert again.params["C"] == 2
    assert files_of(path) == files_of_training(tmp_path / "new", data, replace(params, C=2))


def files_of_training(path, data, params):
    train(*data, path, params)
    return files_of(path)


def test_delta_is_chosen_once_before_a_refinement_that_is_stopped(data, tmp_path):
    params = replace(PARAMS, refine=True, delta="auto")
    expected = files_of_training(tmp_path / "whole", data, params)
    path = tmp_path / "model"
    with (
        mock.patch("dismec.training.refine._Steps._out_of_fold", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        train(*data, path, params)
    again = AssertionError("tried again")
    with mock.patch("dismec.training.held_out._learned", side_effect=again):
        train(*data, path, params)
    assert files_of(path) == expected


def test_training_in_memory_gives_the_same_model(data, trial, tmp_path):
    params, expected = trial
    fit(*data, params).save(tmp_path / "saved")
    assert files_of(tmp_path / "saved") == expected


def test_a_stopped_choice_of_C_resumes(data, tmp_path):
    path, found = tmp_path / "model", []
    whole = tune(*data, tmp_path / "whole", PARAMS, threads=1)
    real = Trials._try

    def one_more(trials, name, C, weight):
        if found.count(C):
            raise AssertionError(f"{C} is tried again")
        found.append(C)
        if len(found) in (2, 4):
            found.pop()
            found.append(None)
            raise KeyboardInterrupt
        return real(trials, name, C, weight)

    with mock.patch.object(Trials, "_try", one_more):
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                tune(*data, path, PARAMS, threads=1)
        resumed = tune(*data, path, PARAMS, threads=1)
    assert len(found) == len(whole.table) + 2
    assert resumed.C == whole.C
    for row, expected in zip(resumed.table, whole.table, strict=True):
        assert row | {"seconds": 0} == expected | {"seconds": 0}
    assert files_of(path) == files_of(tmp_path / "whole")


def test_a_training_with_chosen_C_resumes_after_its_trial_is_stopped(data, tmp_path):
    path, params = tmp_path / "model", TRIALS["both"]
    tune(*data, tmp_path / "whole", params, threads=1)
    starts = []
    for _ in range(100):
        news = Interruption()
        try:
            with stopped_after(4):
                tune(*data, path, params, threads=1, progress=news)
            break
        except KeyboardInterrupt:
            pass
        finally:
            starts.append(news.seen[0][0] / news.seen[0][1])
    assert starts == sorted(starts)
    assert any(0.6 < at < 0.9 for at in starts), starts
    assert files_of(path) == files_of(tmp_path / "whole")


def test_a_resumed_trial_begins_with_what_it_kept(data, tmp_path):
    params, seen = TRIALS["calibrate"], []
    with stopped_after(4), pytest.raises(KeyboardInterrupt):
        train(*data, tmp_path / "model", params, threads=1)
    progress = lambda done, total: seen.append(done)  # noqa: E731
    train(*data, tmp_path / "model", params, threads=1, progress=progress)
    assert 0 < seen[0] < LABELS // 2
    assert seen == sorted(seen)


@pytest.mark.slow
def test_a_killed_command_resumes_within_its_trial(tmp_path):
    X, Y = random_problem(rows=3000, features=200, labels=480, density=0.2)
    save_data(Dataset(X, Y, None), tmp_path / "data.xmc")
    path = tmp_path / "model"
    options = ["--calibrate", "--delta", "auto", "--C", "10", "--block-size", "4"]
    command = [sys.executable, "-m", "dismec", "train", tmp_path / "data.xmc", "-o", path, *options]
    command = list(map(str, command))
    process = subprocess.Popen([*command, "--quiet"])

    def blocks():
        with suppress(ModelError):
            return len(read_manifest(path / ".stage-trial").blocks)
        return 0

    while process.poll() is None and blocks() < 5:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = read_manifest(path / ".stage-trial").labels_done
    assert 0 < kept < 480
    with pytest.raises(ModelError, match=f"unfinished training.*{kept} of 480"):
        open_model(path)
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert re.search("resuming after [0-9]+ of 480 labels", again.stderr)
    params = TrainingParams(calibrate=True, delta="auto", C=10)
    assert files_of(path) == files_of_training(tmp_path / "whole", (X, Y), params)


@pytest.mark.slow
@pytest.mark.cluster
def test_on_a_cluster_a_trial_resumes(data, tmp_path, dask_cluster):
    params = TRIALS["both"]
    expected = files_of_training(tmp_path / "whole", data, params)
    how = {"cluster": str(dask_cluster)}
    with stopped_after(2), pytest.raises(KeyboardInterrupt):
        train(*data, tmp_path / "model", params, **how)
    seen = []
    train(*data, tmp_path / "model", params, progress=lambda *at: seen.append(at), **how)
    assert 0 < seen[0][0] < LABELS
    assert files_of(tmp_path / "model") == expected
