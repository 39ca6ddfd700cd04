"""A model that is being overwritten is the old one or the new one, at every moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import dismec
from conftest import stopped_after
from dismec import TrainingParams, generate, open_model, train
from dismec.errors import ModelError
from dismec.model import atomic_replace
from dismec.model.manifest import NEW


@pytest.fixture(scope="module")
def data():
    return generate(800, 600, 300, seed=3)[0]


@pytest.fixture
def old(data, tmp_path):
    return train(data.X, data.Y, tmp_path / "model", TrainingParams(C=0.3), threads=1)


def bits(model):
    return model.weights.data.tobytes(), model.weights.indices.tobytes()


class StoppedError(Exception):
    pass


def stop_after(n_labels):
    def progress(done, total):
        if done > n_labels:
            raise StoppedError

    return progress


@pytest.mark.parametrize("calibrate", [False, True])
def test_the_old_model_stays_until_the_new_one_is_complete(data, old, tmp_path, calibrate):
    path = tmp_path / "model"
    params = TrainingParams(C=2.0, calibrate=calibrate, block_size=10)
    fresh = train(data.X, data.Y, tmp_path / "fresh", params, threads=1)
    for n in (-1, 0, 100):
        with pytest.raises(StoppedError):
            train(data.X, data.Y, path, params, overwrite=True, threads=1, progress=stop_after(n))
        assert bits(open_model(path, check=True)) == bits(old)
    with pytest.raises(KeyboardInterrupt), stopped_after(3):
        train(data.X, data.Y, path, params, overwrite=True, threads=1)
    assert bits(open_model(path, check=True)) == bits(old)
    calls = []
    model = train(
        data.X,
        data.Y,
        path,
        params,
        overwrite=True,
        threads=1,
        progress=lambda done, total: calls.append(done),
    )
    assert calls[0] > 0  # it resumed, within the staging area
    assert bits(model) == bits(fresh)
    assert model.manifest.params == fresh.manifest.params
    assert not (path / NEW).exists()
    assert not [f for f in path.iterdir() if f.name not in _named(model)]


def _named(model):
    manifest = model.manifest
    files = [*manifest.files, *manifest.parts.values()]
    return {"manifest.json", ".lock", *(receipt.file for receipt in files)}


@pytest.mark.parametrize("way", ["train", "save", "prune"])
def test_every_step_of_a_replacement_leaves_one_of_the_models(
    data, old, tmp_path, monkeypatch, way
):
    path, params = tmp_path / "model", TrainingParams(C=2.0)
    new = train(data.X, data.Y, tmp_path / "fresh", params, threads=1)
    before, after = bits(old), bits(new)

    def overwrite():
        if way == "train":
            train(data.X, data.Y, path, params, overwrite=True, threads=1)
        elif way == "save":
            new.save(path, overwrite=True)
        else:
            new.pruned(0.05).save(path, overwrite=True)

    if way == "prune":
        after = bits(new.pruned(0.05))
    steps = 0
    for name in ("os.link", "commit", "tidy", "sync_directory"):
        for n in range(20):
            left = n
            owner = os if name == "os.link" else atomic_replace
            attribute = name.removeprefix("os.")
            real = getattr(owner, attribute)

            def failing(*args, real=real, **options):
                nonlocal left
                if left == 0:
                    raise StoppedError
                left -= 1
                return real(*args, **options)

            with monkeypatch.context() as patch:
                patch.setattr(owner, attribute, failing)
                try:
                    overwrite()
                except StoppedError:
                    steps += 1
                else:
                    break
            assert bits(open_model(path, check=True)) in (before, after)
    assert steps > 4
    overwrite()
    assert bits(open_model(path, check=True)) == after


def test_files_without_links_are_copied(data, old, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(95, "not supported")

    monkeypatch.setattr(os, "link", refuse)
    new = train(data.X, data.Y, tmp_path / "fresh", TrainingParams(C=2.0), threads=1)
    new.save(tmp_path / "model", overwrite=True)
    assert bits(open_model(tmp_path / "model", check=True)) == bits(new)


def test_another_training_does_not_resume_from_the_staging_area(data, old, tmp_path):
    path = tmp_path / "model"
    with pytest.raises(StoppedError):
        train(
            data.X,
            data.Y,
            path,
            TrainingParams(C=5.0, block_size=10),
            overwrite=True,
            threads=1,
            progress=stop_after(0),
        )
    model = train(data.X, data.Y, path, TrainingParams(C=2.0), overwrite=True, threads=1)
    fresh = train(data.X, data.Y, tmp_path / "fresh", TrainingParams(C=2.0), threads=1)
    assert bits(model) == bits(fresh)


def test_labels_can_be_edited_while_a_replacement_is_unfinished(data, old, tmp_path):
    path = tmp_path / "model"
    params = TrainingParams(C=5.0, block_size=10)
    with pytest.raises(StoppedError):
        train(data.X, data.Y, path, params, overwrite=True, threads=1, progress=stop_after(0))
    dismec.remove_labels(path, [0])
    assert (path / NEW).exists()
    train(data.X, data.Y, path, params, overwrite=True, threads=1)
    assert np.count_nonzero(open_model(path).label_counts) == np.count_nonzero(data.Y.sum(axis=0))


def test_a_damaged_model_is_overwritten(data, old, tmp_path):
    (tmp_path / "model" / "manifest.json").write_text("{")
    with pytest.raises(ModelError):
        open_model(tmp_path / "model")
    train(data.X, data.Y, tmp_path / "model", overwrite=True, threads=1)
    assert open_model(tmp_path / "model").n_labels == data.Y.shape[1]


@pytest.mark.slow
def test_a_killed_overwrite_never_loses_the_model(data, tmp_path):
    dismec.save_data(data, tmp_path / "train.xmc")

    def command(C, path):
        how = ["-o", tmp_path / path, "--C", C, "--overwrite", "--quiet"]
        return [sys.executable, "-m", "dismec", "train", tmp_path / "train.xmc", *how]

    for C, path in (("1", "m"), ("3", "other")):
        subprocess.run(command(C, path), check=True)
    known = {bits(open_model(tmp_path / path)) for path in ("m", "other")}
    begin = time.monotonic()
    subprocess.run(command("3", "m"), check=True)
    whole = time.monotonic() - begin
    for share, C in zip((0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98), "1313131", strict=True):
        run = subprocess.Popen(command(C, "m"))
        time.sleep(share * whole)
        run.send_signal(signal.SIGKILL)
        run.wait()
        assert bits(open_model(tmp_path / "m", check=True)) in known
