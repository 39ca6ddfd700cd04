"""Existing outputs are refused before data is read; --json prints the report."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner

from conftest import random_problem, train_unfinished
from dismec import ModelError, open_model, save_data, train, train_text
from dismec.cli import main
from dismec.data.dataset import Dataset


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    X, Y = random_problem(rows=200, labels=20)
    save_data(Dataset(X, Y, None), folder / "data.xmc")
    names = [f"name {i}" for i in range(20)]
    train(X, Y, folder / "model", names=names)
    (folder / "names.txt").write_text("\n".join([*names, "new"]))
    (folder / "foreign").mkdir()
    (folder / "foreign" / "notes.txt").write_text("mine")
    (folder / "file.svg").write_text("mine")
    os.mkfifo(folder / "pipe")  # opening it would block forever
    return folder


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


def refused(*arguments):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    return line


@pytest.mark.parametrize("data", ["pipe", "missing.txt"])
@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("train DATA -o model", "model already holds a finished model"),
        ("train DATA -o foreign", "it contains 'notes.txt'"),
        ("train DATA -o file.svg", "cannot be a model directory"),
        ("train DATA -o file.svg/model", "cannot be a model directory"),
        ("prune model --curve DATA --plot file.svg", "file.svg exists"),
        ("prune model --curve DATA --plot no/file.svg", "no: no such directory"),
        ("compare DATA --test DATA -o new --html no/file.html", "no: no such directory"),
        ("compare DATA --test DATA -o new --html file.svg", "file.svg exists"),
        ("compare DATA --test DATA -o new --html foreign", "foreign is a directory"),
        ("compare DATA --test DATA -o file.svg", "file.svg is a file"),
        ("prune DATA -o model --delta 0.1", "model already holds a finished model"),
        ("prune DATA -o foreign --delta 0.1", "it contains 'notes.txt'"),
    ],
)
def test_an_output_that_exists_is_refused_before_data_is_read(
    files, monkeypatch, command, reason, data
):
    monkeypatch.chdir(files)
    line = refused(*(data if word == "DATA" else word for word in command.split()))
    assert reason in line
    if "already" in reason:
        assert line.endswith("(--overwrite)")
    assert (files / "file.svg").read_text() == "mine"
    assert not (files / "new").exists()


def test_overwrite_replaces_files(files, tmp_path):
    page, data = tmp_path / "page.html", files / "data.xmc"
    page.write_text("old")
    assert "exists: choose" in refused("inspect", data, "--html", page)
    assert run("inspect", data, "--html", page, "--overwrite").exit_code == 0
    assert page.read_text() != "old"


def test_a_plot_is_drawn_and_replaced(files, tmp_path):
    plot, data = tmp_path / "plot.svg", files / "data.xmc"
    plot.write_text("old")
    options = ["--curve", data, "--plot", plot, "--delta", "0.01,0.1"]
    assert "exists: choose" in refused("prune", files / "model", *options)
    assert run("prune", files / "model", *options, "--overwrite").exit_code == 0
    assert "P@5" in plot.read_text()


def test_the_library_names_its_own_parameter(files, tmp_path):
    with pytest.raises(ModelError, match=r"overwrite it \(overwrite=True\)"):
        train_text(tmp_path / "missing.jsonl", files / "model")
    with pytest.raises(ModelError, match=r"overwrite it \(overwrite=True\)"):
        open_model(files / "model").save(files / "model")


def test_an_unfinished_training_is_resumed_and_not_pruned_into(files, tmp_path):
    from dismec import load_data

    X, Y, _ = load_data(files / "data.xmc")
    train_unfinished(X, Y, tmp_path / "model")
    line = refused("prune", files / "model", "-o", tmp_path / "model", "--delta", "0.1")
    assert "already holds an unfinished model" in line
    assert run("train", files / "data.xmc", "-o", tmp_path / "model").exit_code == 0
    assert open_model(tmp_path / "model").n_labels == 20


def test_refusing_a_finished_model_leaves_an_unfinished_edit_alone(files, tmp_path):
    data, path = files / "data.xmc", tmp_path / "model"
    assert run("train", data, "-o", path).exit_code == 0
    (path / ".edit").mkdir()
    (path / "block-000009.safetensors").write_bytes(b"")
    assert "already holds a finished model" in refused("train", data, "-o", path)
    assert (path / ".edit").exists()
    (path / ".edit").rmdir()
    refused("train", data, "-o", path)
    assert not (path / "block-000009.safetensors").exists()


def told(*arguments):
    """Return what a command prints as JSON, and nothing else."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


FACTS = {"model", "labels", "weights", "precision", "bytes", "seconds", "labels_not_solved"}


def test_train_and_prune_report_as_json(files, tmp_path):
    path, data = tmp_path / "model", files / "data.xmc"
    result = run("train", data, "-o", path, "--delta", "auto", "--calibrate", "--json")
    found = json.loads(result.stdout)
    assert "may be inaccurate" in result.stderr  # warnings are still shown
    assert found.keys() >= FACTS | {"C", "delta", "delta_auto", "delta_effect", "calibrated"}
    model = open_model(path)
    assert (found["model"], found["labels"], found["weights"]) == (str(path), 20, model.nnz)
    assert (found["delta"], found["calibrated"]) == (model.params["delta"], {"rows": 20})
    assert found["bytes"] == sum(p.stat().st_size for p in path.glob("shard-*"))
    found = told("prune", path, "-o", tmp_path / "small", "--delta", "0.6")
    assert found["delta"] == 0.6
    assert found["weights"] == open_model(tmp_path / "small").nnz < model.nnz


def test_a_choice_of_C_is_reported_as_json(files, tmp_path):
    found = told("train", files / "data.xmc", "-o", tmp_path / "model", "--C", "auto")
    assert found.keys() >= FACTS | {"C", "metric", "table"}
    assert len(found["table"]) >= 3


def test_edits_report_as_json(files, tmp_path):
    from dismec import load_data

    X, Y, _ = load_data(files / "data.xmc")
    path, data = tmp_path / "model", files / "data.xmc"
    train(X, Y[:, :18], path, names=[f"name {i}" for i in range(18)])
    (tmp_path / "names.txt").write_text("\n".join(f"name {i}" for i in range(20)))
    (tmp_path / "list.txt").write_text("name 3\n")
    names = ["--label-names", tmp_path / "names.txt"]
    found = told("add-labels", path, data, *names)
    assert found.keys() >= FACTS
    assert (found["action"], found["numbers"]) == ("added", [18, 19])
    assert found["names"] == ["name 18", "name 19"]
    found = told("update", path, data, *names, "--labels", tmp_path / "list.txt")
    assert (found["action"], found["names"]) == ("updated", ["name 3"])
    found = told("remove-labels", path, "name 4", "name 5")
    assert (found["action"], found["numbers"], found["labels"]) == ("removed", [4, 5], 20)


def test_every_command_that_reports_has_json():
    silent = {"convert", "generate", "demo", "predict", "serve"}
    lacking = {
        name
        for name, command in main.commands.items()
        if not any("--json" in option.opts for option in command.params)
    }
    assert lacking <= silent
