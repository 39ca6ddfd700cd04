"""Adding, retraining and removing labels of a finished model."""

from __future__ import annotations

import shutil
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from conftest import random_problem, weight_files
from dismec import DataError, DiSMECTextClassifier, ModelError, TrainingParams, open_model, train
from dismec.data.dataset import Dataset, save_data
from dismec.model.directory import locked, read_manifest
from dismec.model.weight_files import write_block
from dismec.training.edit_labels import add_labels, remove_labels, update_labels
from test_cli import ok, run

PARAMS = TrainingParams(block_size=7, tfidf=True, precision="float32")
NAMES = [f"label {i}" for i in range(40)]
OLD = 25  # labels that the model has at first


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A model of all labels, trained at once."""
    X, Y = random_problem()
    path = tmp_path_factory.mktemp("whole") / "model"
    return train(X, Y, path, PARAMS, names=NAMES)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The model of the first labels, in small shards."""
    X, Y = random_problem()
    path = tmp_path_factory.mktemp("trained") / "model"
    with mock.patch("dismec.model.shards.MOST_WEIGHTS", 300):
        train(X, Y[:, :OLD], path, PARAMS, names=NAMES[:OLD])
    return path


@pytest.fixture
def model(trained, tmp_path):
    """A copy of it that the test may change."""
    return shutil.copytree(trained, tmp_path / "model")


@pytest.fixture
def problem():
    return random_problem()


def same(model, other, labels=slice(None)):
    return (model.weights[labels] != other.weights[labels]).nnz == 0


def test_labels_added_later_equal_those_trained_at_once(model, problem, whole):
    before = weight_files(model)
    assert len(before) > 3
    found = add_labels(model, *problem, NAMES)
    assert found.n_labels == 40
    assert same(found, whole)
    assert list(found.names) == NAMES
    np.testing.assert_array_equal(found.label_counts, whole.label_counts)
    X, _ = problem
    for mine, its in zip(found.predict_topk(X), whole.predict_topk(X), strict=True):
        np.testing.assert_array_equal(mine, its)
    after = weight_files(model)
    assert {name: after[name] for name in before} == before
    assert open_model(model, check=True).n_labels == 40


def test_names_and_not_columns_determine_which_labels_are_new(model, problem, whole):
    X, Y = problem
    order = np.random.default_rng(0).permutation(40)
    found = add_labels(model, X, Y[:, order], [NAMES[i] for i in order])
    place = {name: i for i, name in enumerate(found.names)}
    assert same_rows(found, [place[name] for name in NAMES], whole)


def same_rows(found, places, whole):
    return (found.weights[places] != whole.weights).nnz == 0


def test_without_names_columns_are_labels(tmp_path, problem, whole):
    X, Y = problem
    train(X, Y[:, :OLD], tmp_path / "model", PARAMS)
    found = add_labels(tmp_path / "model", X, Y)
    assert same(found, whole)
    assert found.names is None


def test_retrained_labels_replace_the_old_ones(model, problem, whole):
    X, Y = problem
    half = np.arange(0, X.shape[0], 2)
    wanted = [3, 17]
    before, files = open_model(model), weight_files(model)
    found = update_labels(model, X[half], Y[half][:, :OLD], [NAMES[3], NAMES[17]], NAMES[:OLD])
    others = np.setdiff1d(np.arange(OLD), wanted)
    assert same(found, before, others)
    assert not same(found, before, wanted)
    np.testing.assert_array_equal(found.label_counts[others], before.label_counts[others])
    np.testing.assert_array_equal(found.label_counts[wanted], Y[half][:, wanted].sum(axis=0))
    after = weight_files(model)
    untouched = [
        r.file
        for r, s in zip(before.manifest.shards, before.shards, strict=True)
        if not np.isin(s.labels, wanted).any()
    ]
    assert untouched
    assert all(after[file] == files[file] for file in untouched)
    # Retrained on their original rows, they become what they were.
    again = update_labels(model, X, Y[:, :OLD], ["label 3", "label 17"], NAMES[:OLD])
    assert same(again, before)


def test_removed_labels_are_never_predicted_and_can_come_back(model, problem):
    X, Y = problem
    before = open_model(model)
    found = remove_labels(model, ["label 5", "label 9"])
    gone = [5, 9]
    others = np.setdiff1d(np.arange(OLD), gone)
    assert same(found, before, others)
    top, _ = found.predict_topk(X, OLD)
    assert not np.isin(top, gone).any()
    np.testing.assert_array_equal(np.unique(top[top >= 0]), others[before.label_counts[others] > 0])
    assert found.weights[gone].nnz == 0
    with pytest.raises(DataError, match="no label 'label 5'"):
        remove_labels(model, ["label 5"])
    back = add_labels(model, X, Y[:, :OLD], NAMES[:OLD])
    assert same(back, before)
    assert list(back.names) == NAMES[:OLD]


def test_all_labels_can_be_removed(model, problem):
    found = remove_labels(
        model, [n for n, c in zip(NAMES, open_model(model).label_counts, strict=False) if c]
    )
    assert (found.predict_topk(problem[0])[0] == -1).all()


def test_pruning_consolidates_the_shards_of_many_changes(model, problem, tmp_path):
    X, Y = problem
    for last in range(OLD + 1, 41, 3):
        add_labels(model, X, Y[:, :last], NAMES[:last])
    scattered = open_model(model)
    assert len(scattered.shards) > 8
    scattered.pruned().save(tmp_path / "new")
    tidied = open_model(tmp_path / "new")
    assert len(tidied.shards) == 1
    assert same(tidied, scattered)
    assert tidied.manifest.history == scattered.manifest.history


def test_a_model_that_changes_while_opening_is_opened(model, problem):
    read = read_manifest
    before = read(model)
    add_labels(model, *problem, NAMES)
    remove_labels(model, ["label 3"])
    answers = [before, before]  # what the reader saw last
    with mock.patch(
        "dismec.model.opening.read_manifest",
        lambda path: answers.pop() if answers else read(path),
    ):
        found = open_model(model, check=True)
    assert found.n_labels == 40


def test_history_records_every_change(model, problem):
    X, Y = problem
    add_labels(model, X, Y, NAMES)
    remove_labels(model, ["label 1", "label 2", "label 30"])
    history = read_manifest(model).history
    assert [(e["action"], e["labels"]) for e in history] == [("added", 15), ("removed", 3)]
    assert history[1]["numbers"] == "1-2,30"
    assert history[0]["rows"] == X.shape[0]
    assert len(history[0]["data"]) == 64
    assert history[0]["time"].startswith("20")


def test_a_killed_edit_leaves_the_model_and_resumes(model, problem, whole):
    before, files = open_model(model), weight_files(model)
    written = []

    def stop(folder, block):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(block.number)
        return write(folder, block)

    write = write_block
    with (
        mock.patch("dismec.model.weight_files.write_block", stop),
        pytest.raises(KeyboardInterrupt),
    ):
        add_labels(model, *problem, NAMES, threads=1)
    assert weight_files(model) == files
    assert same(open_model(model, check=True), before)
    solved = []
    with mock.patch(
        "dismec.model.weight_files.write_block",
        lambda *a: (solved.append(a[1].number), write(*a))[1],
    ):
        found = add_labels(model, *problem, NAMES, threads=1)
    assert same(found, whole)
    assert len(solved) < 3
    assert not list(model.glob(".edit*"))


@pytest.mark.parametrize("step", ["model.weight_files.write_shard", "training.edit_labels.commit"])
def test_an_edit_killed_at_the_end_resumes_too(model, problem, whole, step):
    before = open_model(model)
    with (
        mock.patch(f"dismec.{step}", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        add_labels(model, *problem, NAMES)
    assert same(open_model(model, check=True), before)
    assert same(add_labels(model, *problem, NAMES), whole)


def test_other_data_after_a_kill_starts_over(model, problem, whole):
    X, Y = problem
    with (
        mock.patch("dismec.training.edit_labels.write_parts", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        add_labels(model, X[:200], Y[:200], NAMES)
    assert same(add_labels(model, X, Y, NAMES), whole)


def test_more_rows_than_before_are_fine(model, problem):
    X, Y = problem
    found = add_labels(model, sp.vstack([X, X]), sp.vstack([Y, Y]), NAMES)
    assert found.manifest.n_rows == 2 * X.shape[0]
    assert found.evaluate(X, Y)["rows"] == X.shape[0]


def test_edits_that_do_not_match_the_model_are_refused(model, problem, tmp_path):
    X, Y = problem
    files = weight_files(model)
    with pytest.raises(DataError, match="already has all labels of these rows"):
        add_labels(model, X, Y[:, :OLD], NAMES[:OLD])
    with pytest.raises(DataError, match="pass the label names"):
        add_labels(model, X, Y)
    with pytest.raises(DataError, match="3 label names for 40 labels"):
        add_labels(model, X, Y, ["a", "b", "c"])
    with pytest.raises(DataError, match="same name"):
        add_labels(model, X, Y, ["a"] * 40)
    with pytest.raises(DataError, match="the model has 80"):
        add_labels(model, sp.csr_array((300, 81)), Y, NAMES)
    with pytest.raises(DataError, match="no label 'nothing'"):
        update_labels(model, X, Y, ["nothing"], NAMES)
    with pytest.raises(DataError, match="no row of the data has label 'label 3'"):
        update_labels(model, X, Y[:, :3], ["label 3"], NAMES[:3])
    with pytest.raises(DataError, match="no labels given"):
        remove_labels(model, [])
    with pytest.raises(ModelError, match="not a dismec model"):
        remove_labels(tmp_path, ["label 3"])
    assert not (tmp_path / ".lock").exists()
    with locked(model), pytest.raises(ModelError, match="writing to it"):
        remove_labels(model, ["label 3"])
    assert weight_files(model) == files


@pytest.mark.parametrize("name", ["shard-000001.safetensors", "labels.safetensors"])
def test_editing_does_not_hide_damage_of_a_model(model, problem, name):
    content = bytearray((model / name).read_bytes())
    content[len(content) * 4 // 5] ^= 0x40
    (model / name).write_bytes(content)
    with pytest.raises(ModelError, match=r"altered since it was written"):
        remove_labels(model, [NAMES[3]])
    with pytest.raises(ModelError, match=r"altered since it was written"):
        add_labels(model, *problem, NAMES)


def test_commands(model, problem, whole, tmp_path):
    X, Y = problem
    save_data(Dataset(X, Y, NAMES), tmp_path / "all.xmc")
    (tmp_path / "labels.txt").write_text("label 3\nlabel 30\n")
    some = ("--labels", tmp_path / "labels.txt")
    assert "15 labels added" in run("add-labels", model, tmp_path / "all.xmc").stderr
    assert same(open_model(model), whole)
    assert "2 labels updated" in run("update", model, tmp_path / "all.xmc", *some).stderr
    assert same(open_model(model), whole)
    ok("remove-labels", model, "label 3", "label 4")
    done = run("remove-labels", model, *some)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "no label 'label 3'" in done.stderr
    assert open_model(model).weights[[3, 4]].nnz == 0


@pytest.mark.parametrize("label", [1.0, np.float32(2), True, None, b"3", (1,), -1, 2**70, "x"])
def test_invalid_labels_are_refused_in_one_line(tmp_path, problem_data, label):
    train(*problem_data, tmp_path / "model")
    before = weight_files(tmp_path / "model")
    with pytest.raises(DataError, match="label"):
        remove_labels(tmp_path / "model", [label])
    assert weight_files(tmp_path / "model") == before


def test_numbers_of_numpy_are_labels(tmp_path, problem_data):
    train(*problem_data, tmp_path / "model")
    assert remove_labels(tmp_path / "model", [np.int64(3)]).label_counts[3] == 0


def test_labels_of_a_text_model_are_added_from_texts(tmp_path):
    texts = ["boil the egg", "fry the egg", "bake the bread", "slice the bread"] * 5
    DiSMECTextClassifier().fit(texts, ["egg", "egg", "bread", "bread"] * 5).save(tmp_path / "model")
    Y = pd.DataFrame({"pan": [0, 1, 0, 0] * 5})
    plain = sp.csr_array(open_model(tmp_path / "model").vocabulary.rows(texts))
    with pytest.raises(DataError, match=r"pass dismec.TextRows\(X\)"):
        add_labels(tmp_path / "model", plain, Y)
    model = add_labels(tmp_path / "model", texts, Y)
    assert list(model.names) == ["bread", "egg", "pan"]
    assert set(model.predict(["fry an egg"])[0]) == {"egg", "pan"}
    assert model.find_label(" pan ") == 2
