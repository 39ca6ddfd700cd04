"""After a power cut at any moment, a directory holds the old model or the new one."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from conftest import random_problem, related
from dismec import (
    ModelError,
    TrainingParams,
    add_labels,
    open_model,
    remove_labels,
    train,
    update_labels,
)
from power_cuts import Change, Recording, Sync, Write, lay_out, tree_of

PARAMS = TrainingParams(block_size=4)
X, Y = random_problem(rows=60, features=20, labels=9, density=0.3)
NAMES = [f"name {i}" for i in range(9)]
REPEATED = 8  # trees per case on which the operation is repeated


def found(directory):
    """Return which model a directory holds, with all files intact, or None."""
    try:
        open_model(directory, check=True)
    except ModelError:
        return None
    return (directory / "manifest.json").read_bytes()


def first_model(directory):
    train(X[:, :19], Y[:, :8], directory, replace(PARAMS, C=0.5), names=NAMES[:8], threads=1)


def fresh(directory):
    train(X, Y, directory, PARAMS, names=NAMES, threads=1)


def trained_over(directory):
    train(X, Y, directory, PARAMS, names=NAMES, threads=1, overwrite=True)


def saved_over(directory):
    open_model(directory.parent / "other").save(directory, overwrite=True)


def added(directory):
    add_labels(directory, X[:, :19], Y, NAMES, threads=1)


def updated(directory):
    update_labels(directory, X[:, :19], Y[:, :8], ["name 1", "name 5"], NAMES[:8], threads=1)


def removed(directory):
    remove_labels(directory, ["name 2"])


def recorded(root, act, *, old):
    """Record what `act` does to a model directory; also return the models before and after."""
    root.mkdir()
    directory = root / "model"
    if old:
        first_model(directory)
    if act is saved_over:
        fresh(root / "other")
    before = found(directory)
    with Recording(root) as recording:
        act(directory)
    return recording, before, found(directory)


CASES = {
    "a first training": (fresh, False),
    "a training that overwrites": (trained_over, True),
    "a model that is saved over another": (saved_over, True),
    "labels that are added": (added, True),
    "labels that are updated": (updated, True),
    "labels that are removed": (removed, True),
}


@dataclass
class Case:
    """An operation that was recorded once, and the models that it found and left."""

    act: Callable[[Path], None]
    root: Path
    recording: Recording
    before: bytes | None
    after: bytes | None


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    act, old = CASES[request.param]
    root = tmp_path_factory.mktemp("recorded") / "root"
    made = Case(act, root, *recorded(root, act, old=old))
    assert (made.before is None, made.after is None) == (not old, False)
    return made


def test_after_a_power_cut_there_is_the_old_model_or_the_new_one(case, tmp_path):
    act, recording, before, after = case.act, case.recording, case.before, case.after
    assert before != after
    trees = list(recording.after_power_cuts())
    held = []
    for number, (_, tree) in enumerate(trees):
        root = lay_out(tree, tmp_path / f"{number}")
        held.append(found(root / "model"))
        assert held[-1] in (before, after)
        shutil.rmtree(root)
    assert {before, after} == set(held)

    # The operation can be repeated: nothing left behind is in its way.
    undone = [number for number, model in enumerate(held) if model == before]
    for number in random.Random(0).sample(undone, min(REPEATED, len(undone))):
        root = lay_out(trees[number][1], tmp_path / f"again {number}")
        act(root / "model")
        assert found(root / "model") not in (None, before)
        model, expected = open_model(root / "model"), open_model(case.root / "model")
        assert (model.weights != expected.weights).nnz == 0
        shutil.rmtree(root)


def test_finished_operations_are_not_lost(case, tmp_path):
    for number, tree in enumerate(case.recording.at_the_end()):
        root = lay_out(tree, tmp_path / f"{number}")
        assert found(root / "model") == case.after
        shutil.rmtree(root)


def test_no_file_of_a_model_is_written_in_place(case):
    assert case.recording.written_in_place <= {".lock"}
    assert any(isinstance(operation, Write) for operation in case.recording.operations)


def test_a_single_file_is_the_old_model_or_the_new_one(tmp_path):
    root = tmp_path / "root"
    first_model(root / "first")
    fresh(root / "second")
    (root / "files").mkdir()
    file = root / "files" / "model.zip"
    open_model(root / "first").save(file)
    before = file.read_bytes()
    with Recording(root / "files") as recording:
        open_model(root / "second").save(file, overwrite=True)
    after = file.read_bytes()
    assert before != after
    assert {tree["model.zip"] for _, tree in recording.after_power_cuts()} == {before, after}
    assert {tree["model.zip"] for tree in recording.at_the_end()} == {after}


@pytest.mark.slow
def test_a_refined_model_is_complete_or_absent(tmp_path):
    X, Y = related(rows=300)
    with Recording(tmp_path) as recording:
        train(X, Y, tmp_path / "model", TrainingParams(refine=True), threads=1)
    after = found(tmp_path / "model")
    assert after is not None
    trees = list(recording.after_power_cuts(most=6))
    for number, (_, tree) in enumerate(random.Random(0).sample(trees, min(150, len(trees)))):
        root = lay_out(tree, tmp_path / f"{number}")
        assert found(root / "model") in (None, after)
        shutil.rmtree(root)


# The simulation itself: it detects known mistakes.


def trees_of(folder, act):
    with Recording(folder) as recording:
        act()
    return [tree for _, tree in recording.after_power_cuts()]


def test_a_rename_of_data_that_is_not_synced_may_leave_an_empty_file(tmp_path):
    (tmp_path / "file").write_bytes(b"old")

    def careless():
        (tmp_path / "new").write_bytes(b"new!")
        (tmp_path / "new").rename(tmp_path / "file")

    held = {tree["file"] for tree in trees_of(tmp_path, careless)}
    assert held == {b"old", b"", b"ne", b"ne\0\0", b"new!"}


def test_a_file_may_be_gone_before_its_replacement_exists(tmp_path):
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "name").write_bytes(b"old")

    def careless():
        (tmp_path / "new").touch()
        (tmp_path / "name").unlink()
        (tmp_path / "new").rename(tmp_path / "name")
        (tmp_path / "old").unlink()

    trees = trees_of(tmp_path, careless)
    assert {} in trees
    assert {"name": b"old"} in trees
    assert {"old": b"old"} in trees
    assert tree_of(tmp_path) == {"name": b""} in trees


def test_a_recording_has_all_operations_in_order(tmp_path):
    with Recording(tmp_path) as recording:
        first_model(tmp_path / "model")
    kinds = [type(operation) for operation in recording.operations]
    assert kinds.count(Sync) > 10
    assert kinds.count(Write) > 5
    assert kinds.count(Change) > 20
    assert isinstance(recording.operations[0], Change)  # the directory itself
    assert recording.tree(0) == {}
    assert recording.tree(0) == recording.tree(1, set())


def test_unrecorded_changes_are_noticed(tmp_path):
    file = (tmp_path / "file").open("wb")
    with pytest.raises(AssertionError), Recording(tmp_path):  # noqa: PT012
        file.write(b"behind its back")
        file.flush()
    file.close()
