"""An unfinished training is reported as such wherever a model is opened."""

from __future__ import annotations

import logging
import shutil
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

from conftest import random_problem, train_unfinished, tune
from dismec import (
    DiSMECClassifier,
    DiSMECTextClassifier,
    ModelError,
    TrainingParams,
    open_model,
    save_data,
    train,
)
from dismec.cli import main
from dismec.cluster.cluster_model import ClusterModel
from dismec.data.dataset import Dataset
from dismec.model.directory import locked
from dismec.serve.answers import Service
from dismec.serve.contract import Limits
from dismec.training.edit_labels import add_labels, remove_labels, update_labels

LABELS = 40
LINE = "; run the same command again"


@pytest.fixture(scope="module")
def data():
    return random_problem(rows=300, labels=LABELS)


@pytest.fixture(scope="module")
def file(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.xmc"
    save_data(Dataset(*data, None), path)
    return path


def before_the_first_block(path, data):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        train(*data, path, progress=interrupt)


def in_the_blocks(path, data):
    train_unfinished(*data, path)


def in_the_trial(path, data):
    with (
        mock.patch("dismec.training.held_out.fit_calibration", side_effect=KeyboardInterrupt),
        suppress(KeyboardInterrupt),
    ):
        train(*data, path, TrainingParams(calibrate=True))


def while_choosing_C(path, data):
    with (
        mock.patch("dismec.training.choose_c.peak", side_effect=KeyboardInterrupt),
        suppress(KeyboardInterrupt),
    ):
        tune(*data, path)


def in_a_fold(path, data):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        train(*data, path, TrainingParams(refine=True), progress=interrupt)


def before_anything(path, data):
    path.mkdir()
    with locked(path):
        pass


STATES = {
    before_anything: "unfinished training, no label is done yet",
    before_the_first_block: f"unfinished training, 0 of {LABELS} labels",
    in_the_blocks: f"unfinished training, {LABELS} of {LABELS} labels",
    in_the_trial: f"unfinished training, 0 of {LABELS} labels (trial: {LABELS} of {LABELS})",
    while_choosing_C: f"unfinished training, 0 of {LABELS} labels",
    in_a_fold: f"unfinished training, 0 of {LABELS} labels (fold-0: 0 of {LABELS})",
}


@pytest.fixture(scope="module", params=STATES, ids=lambda state: state.__name__)
def unfinished(request, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("unfinished") / "model"
    request.param(path, data)
    return path, f"{path}: {STATES[request.param]}{LINE}"


COMMANDS = [
    "predict MODEL DATA",
    "evaluate MODEL DATA",
    "explain MODEL 1:1",
    "prune MODEL -o NEW --delta 0.1",
    "subset MODEL 3 -o NEW",
    "merge MODEL MODEL -o NEW",
    "prune MODEL --curve DATA",
    "add-labels MODEL DATA",
    "update MODEL DATA --labels LIST",
    "remove-labels MODEL 3",
    "serve MODEL --port 0",
    "inspect MODEL --test DATA",
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_commands_report_an_unfinished_training(unfinished, file, tmp_path, command):
    path, line = unfinished
    (tmp_path / "list").write_text("3\n")
    stands = {"MODEL": path, "DATA": file, "NEW": tmp_path / "new", "LIST": tmp_path / "list"}
    before = contents(path)
    result = CliRunner().invoke(main, [str(stands.get(word, word)) for word in command.split()])
    assert result.exit_code == 2, result.output
    assert result.stderr.strip().splitlines() == [f"dismec: {line}"]
    assert contents(path) == before
    assert not (tmp_path / "new").exists()


def contents(path: Path):
    return {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    "door",
    [
        open_model,
        DiSMECClassifier.load,
        DiSMECTextClassifier.load,
        lambda path: ClusterModel(path, None),
        lambda path: Service(path, Limits()),
        lambda path: add_labels(path, *random_problem()),
        lambda path: update_labels(path, *random_problem(), [3]),
        lambda path: remove_labels(path, [3]),
    ],
)
def test_the_library_reports_an_unfinished_training(unfinished, door):
    path, line = unfinished
    with pytest.raises(ModelError) as caught:
        door(path)
    assert str(caught.value) == line


def test_inspect_shows_the_progress_of_an_unfinished_training(unfinished):
    path, line = unfinished
    state = line.removeprefix(f"{path}: ")
    result = CliRunner().invoke(main, ["inspect", str(path)])
    assert state in result.output
    assert result.exit_code == (2 if "no label" in state else 0)


def test_a_server_keeps_its_model_when_it_is_told_to_open_an_unfinished_one(
    unfinished, data, tmp_path, caplog
):
    path, line = unfinished
    served = tmp_path / "model"
    train(*data, tmp_path / "whole")
    served.symlink_to(tmp_path / "whole")
    service = Service(served, Limits())
    model = service.model
    served.unlink()
    served.symlink_to(path)
    with caplog.at_level(logging.ERROR):
        assert not service.reload()
    assert line.removeprefix(f"{path}: ") in caplog.text
    assert service.model is model


def test_an_unrelated_directory_is_not_taken_for_a_training(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with locked(tmp_path):
        pass
    with pytest.raises(ModelError, match="is not a dismec model: no manifest"):
        open_model(tmp_path)
    shutil.rmtree(tmp_path)
    with pytest.raises(ModelError, match="no such directory"):
        open_model(tmp_path)
