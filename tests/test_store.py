from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from safetensors.numpy import load_file

from conftest import random_problem, train_unfinished, weight_files
from dismec import (
    ModelError,
    TrainingParams,
    open_model,
    remove_labels,
    train,
    update_labels,
)
from dismec.cluster.file_copies import _only_process
from dismec.cpu import kernels
from dismec.data.container import write_arrays
from dismec.errors import DismecError
from dismec.model.directory import commit, read_manifest
from dismec.model.shards import Shard
from dismec.model.weight_files import read_block, write_block
from dismec.report.facts import describe_model

SHARDS = ["shard-000000.safetensors", "shard-000001.safetensors"]
BLOCKS = [f"block-00000{i}.safetensors" for i in range(3)]
PARAMS = TrainingParams(block_size=15, tfidf=True)
NAMES = [f"Straße {i}" for i in range(40)]
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model"
    with mock.patch.object(kernels, "shard_rows", 38):
        train(*random_problem(), path, PARAMS, names=NAMES)
    return path


@pytest.fixture
def model(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "model")


@pytest.fixture
def unfinished(tmp_path):
    train_unfinished(*random_problem(), tmp_path / "unfinished", PARAMS, names=NAMES)
    return tmp_path / "unfinished"


def edit(path, change):
    manifest = json.loads((path / "manifest.json").read_text())
    manifest.pop("checksum", None)  # what the manifest says is checked all the same
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def refused(path, check=None):
    """Return the reason, which must be one line."""
    with pytest.raises(ModelError) as caught:
        open_model(path, check=check)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def flips(path):
    """Yield the file with one bit flipped, 25 times."""
    whole = path.read_bytes()
    for place in np.linspace(0, len(whole) - 1, 25).astype(int):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << (place % 8)
        yield path.write_bytes(flipped)


def test_a_model_round_trips_through_its_directory(trained):
    _, Y = random_problem()
    model = open_model(trained)
    assert model.names[3] == "Straße 3"
    assert model.params["block_size"] == 15
    assert model.weights.shape == (40, 81)
    np.testing.assert_array_equal(model.label_counts, np.asarray(Y.sum(axis=0)).ravel())
    assert model.transform.idf is not None
    assert model.manifest.complete
    assert [(r.file, r.n_labels) for r in model.manifest.shards] == [
        (SHARDS[0], 38),
        (SHARDS[1], 2),
    ]
    assert model.manifest.stats.solved == 40


def test_files_are_read_by_the_safetensors_library(trained):
    arrays = load_file(trained / SHARDS[0])
    every = {f.name for f in fields(Shard)}
    of_ceilings = {name for name in every if name.startswith("ceiling")} | {"slopes"}
    assert set(arrays) == every - of_ceilings  # which only large shards have
    np.testing.assert_array_equal(arrays["labels"], np.arange(38))
    assert arrays["weights"].dtype == np.float16


def test_a_manifest_of_any_number_of_blocks_is_plain_json(unfinished, tmp_path):
    manifest = read_manifest(unfinished)
    assert [(r.number, r.n_labels) for r in manifest.blocks] == [(0, 15), (1, 15), (2, 10)]
    for blocks in ((), manifest.blocks[:1], manifest.blocks):
        commit(tmp_path, manifest.with_blocks(blocks))
        assert read_manifest(tmp_path) == manifest.with_blocks(blocks)
        content = json.loads((tmp_path / "manifest.json").read_text())
        assert [b["number"] for b in content["blocks"]] == [b.number for b in blocks]
        assert content["shards"] is None


def test_a_manifest_is_read_without_the_kernels(trained):
    script = (
        "import sys, pathlib; from dismec.model.directory import read_manifest; "
        "print(read_manifest(pathlib.Path(sys.argv[1])).n_labels, "
        "[name for name in sys.modules if '_native' in name])"
    )
    command = [sys.executable, "-c", script, trained]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"40 []\n"


def test_saved_copy_has_the_same_weight_files(trained, tmp_path):
    open_model(trained).save(tmp_path / "copy")
    assert weight_files(tmp_path / "copy") == weight_files(trained)
    copy, original = (read_manifest(p) for p in (tmp_path / "copy", trained))
    assert copy == original


@pytest.mark.parametrize("check", [None, True, False])
def test_missing_shard_is_refused(model, check):
    (model / SHARDS[1]).unlink()
    assert f"{SHARDS[1]}: missing" in refused(model, check)


@pytest.mark.parametrize("check", [None, True])
@pytest.mark.parametrize("name", [SHARDS[1], "labels.safetensors"])
def test_every_flipped_bit_is_refused(model, name, check):
    for _ in flips(model / name):
        assert f"{name}: altered" in refused(model, check)


@pytest.mark.parametrize("check", [None, True, False])
@pytest.mark.parametrize("name", [SHARDS[1], "labels.safetensors"])
def test_every_truncated_file_is_refused(model, name, check):
    whole = (model / name).read_bytes()
    for size in np.linspace(0, len(whole) - 1, 25).astype(int):
        (model / name).write_bytes(whole[:size])
        assert name in refused(model, check)


def test_a_large_model_is_opened_without_reading_it_and_damage_is_noticed(model, monkeypatch):
    for module in ("weight_files", "sidecar_files"):
        monkeypatch.setattr(f"dismec.model.{module}.QUICK_BYTES", 100)
    monkeypatch.setattr(
        "dismec.model.directory.sha256_of", lambda _: pytest.fail("a file was read")
    )
    X, _ = random_problem()
    expected = open_model(model).predict_topk(X)
    arrays = dict(load_file(model / SHARDS[0]))
    starts = arrays["starts"].copy()
    starts[5:] = 2**31
    write_arrays(model / SHARDS[0], {**arrays, "starts": starts}, {"precision": "float16"})
    edit(model, lambda m: m["shards"][0].update(bytes=(model / SHARDS[0]).stat().st_size))
    with pytest.raises(ModelError, match="the model is damaged"):
        open_model(model).predict_topk(X)
    assert expected[0].shape == (300, 5)


def test_every_cut_manifest_is_refused(model):
    whole = (model / "manifest.json").read_bytes().rstrip()
    for size in np.linspace(0, len(whole) - 1, 40).astype(int):
        (model / "manifest.json").write_bytes(whole[:size])
        assert "manifest.json" in refused(model)


@pytest.mark.parametrize("version", [0, 2, 3, "1", None])
def test_another_format_is_refused(model, version):
    edit(model, lambda m: m.update(version=version))
    assert f"model format {version!r}, but this version of dismec reads format 1" in refused(model)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m["shards"][0].update(n_labels=37), "sizes that the manifest"),
        (lambda m: m["shards"][1].update(precision="float32"), "sizes that the manifest"),
        (lambda m: m["shards"][1].update(precision="float64"), "sizes that the manifest"),
        (lambda m: m["shards"][1].update(precision=7), "'precision' is not of type str"),
        (lambda m: m["shards"][1].update(bytes=5), "the manifest says 5"),
        (lambda m: m["shards"][1].update(nnz=10**12), "cannot hold"),
        (lambda m: m["shards"][1].update(file="../../secret"), "not a valid name for a model file"),
        (lambda m: m["shards"][1].pop("sha256"), "'sha256' is missing"),
        (lambda m: m["shards"].pop(), "do not hold every label that had rows"),
        (lambda m: m["shards"].append(m["shards"][1]), "shards hold 42 labels, the model has 40"),
        (lambda m: m["shards"].__setitem__(0, m["shards"][1]), "a label is in its shards twice"),
        (lambda m: m.update(shards=None), "unfinished training, 0 of 40 labels"),
        (lambda m: m.update(shards=7), "'shards' is not of type list"),
        (lambda m: m.update(shards=[3]), "not described by an object"),
        (lambda m: m.update(n_labels=10**12), "out of range"),
        (lambda m: m.update(n_labels=39), "shards hold 40 labels, the model has 39"),
        (lambda m: m.update(n_labels=41), "the label counts do not fit 41 labels"),
        (lambda m: m.update(n_labels="40"), "not of type int"),
        (lambda m: m.update(n_features=79), "n_features is 79, but 80 in the transform"),
        (lambda m: m.update(n_rows=7), "the label counts do not fit 7 rows"),
        (lambda m: m.update(stats=dict.fromkeys(m["stats"], "x")), "statistics"),
        (lambda m: m.update(stats={"solved": 1}), "statistics"),
        (lambda m: m["stats"].update(solved=1 << 60), "statistics"),
        (lambda m: m.update(format="other"), "not the manifest of a dismec model"),
        (lambda m: m.pop("transform"), "'transform' is missing"),
        (lambda m: m["transform"].update(bias="one"), "bias"),
    ],
)
def test_a_false_manifest_is_refused(model, change, reason):
    edit(model, change)
    assert reason in refused(model)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m["blocks"][1].update(number=0), "order of their numbers"),
        (lambda m: m["blocks"][1].update(file="../../secret"), "not a valid name for a model file"),
        (lambda m: m["blocks"][0].update(stats={"solved": 1}), "statistics"),
        (lambda m: m.update(n_labels=39), "blocks hold 40 labels, the model has 39"),
        (lambda m: m.update(blocks=[3]), "not described by an object"),
        (lambda m: m.update(blocks={}), "'blocks' is not of type list"),
    ],
)
def test_a_manifest_with_false_blocks_is_refused(unfinished, change, reason):
    edit(unfinished, change)
    assert reason in refused(unfinished)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: replace(r, nnz=r.nnz + 1), "sizes that the manifest"),
        (lambda r: replace(r, number=1), "not block 1"),
    ],
)
def test_a_block_that_contradicts_the_manifest_is_refused(unfinished, change, reason):
    manifest = read_manifest(unfinished)
    with pytest.raises(ModelError, match=reason):
        read_block(unfinished, manifest, change(manifest.blocks[0]))


@pytest.mark.parametrize("row", [-1, 10**6])
def test_block_whose_labels_have_no_row_is_refused(unfinished, row):
    manifest = read_manifest(unfinished)
    block = read_block(unfinished, manifest, manifest.blocks[0])
    rows = np.append(block.rows[:-1], row)
    receipt = write_block(unfinished, replace(block, rows=rows))
    with pytest.raises(ModelError, match="a row is out of range"):
        read_block(unfinished, manifest, receipt)


def test_a_manifest_that_was_altered_is_refused(model):
    file = model / "manifest.json"
    whole = file.read_bytes()
    for old, new in ((b'"bias": 1.0', b'"bias": 9.0'), (b'"n_rows": ', b'"n_rows" : ')):
        assert old in whole
        file.write_bytes(whole.replace(old, new))
        assert "altered since it was written" in refused(model)
    for place in range(0, len(whole), 97):
        flipped = bytearray(whole)
        flipped[place] ^= 4
        file.write_bytes(flipped)
        refused(model)
    file.write_bytes(whole)
    open_model(model)


def _leaves(value, path=()):
    parts = value.items() if isinstance(value, dict) else enumerate(value[:2])
    for key, part in parts:
        yield (*path, key)
        if isinstance(part, dict | list):
            yield from _leaves(part, (*path, key))


ODD = (None, True, -1, 1.5, 10**400, float("nan"), "", "\0", "\ud800", "x" * 5000, "../x", [], {})


def test_no_value_of_a_manifest_ends_in_a_traceback(model):
    whole = (model / "manifest.json").read_text()
    paths = list(_leaves(json.loads(whole)))
    assert len(paths) > 60
    X, Y = random_problem()

    def put(manifest, path, value):
        *folders, last = path
        for key in folders:
            manifest = manifest[key]
        manifest[last] = value

    for path in paths:
        if path == ("checksum",):
            continue
        for value in ODD:
            (model / "manifest.json").write_text(whole)
            edit(model, lambda manifest, path=path, value=value: put(manifest, path, value))
            with suppress(DismecError):
                describe_model(model)
                open_model(model).evaluate(X[:3], Y[:3])
    (model / "manifest.json").write_text(whole)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "\0" * 50, "[" * 100_000])
def test_garbage_manifest_is_refused(model, text):
    (model / "manifest.json").write_text(text)
    assert "manifest.json" in refused(model)


def test_directories_that_are_not_models_are_refused(tmp_path):
    assert "no such directory" in refused(tmp_path / "nowhere")
    assert "no manifest.json" in refused(tmp_path)
    (tmp_path / "file").write_text("x")
    assert "not a dismec model" in refused(tmp_path / "file")


def test_foreign_files_are_never_touched(tmp_path):
    X, Y = random_problem(rows=50, labels=3)
    (tmp_path / "thesis.tex").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(ModelError, match=r"thesis\.tex"):
            train(X, Y, tmp_path, overwrite=overwrite)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("others", [[], ["app.js"]])
def test_manifest_of_something_else_is_never_replaced(tmp_path, others):
    X, Y = random_problem(rows=50, labels=3)
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / "manifest.json").write_text('{"name": "a web page"}')
    with pytest.raises(ModelError, match=r"manifest\.json does not belong to a model"):
        train(X, Y, tmp_path, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*others, "manifest.json"])


def test_damaged_model_can_be_overwritten(model):
    X, Y = random_problem(rows=50, labels=3)
    (model / "manifest.json").write_text("{")
    assert train(X, Y, model, overwrite=True).n_labels == 3


def test_what_a_link_in_a_model_points_to_is_never_written(tmp_path):
    X, Y = random_problem()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    train(X, Y, tmp_path / "model", PARAMS)
    names = [path.name for path in (tmp_path / "model").iterdir() if path.name != ".lock"]
    for overwrite in (False, True):
        model = tmp_path / f"new-{overwrite}"
        if overwrite:
            train(X, Y, model, replace(PARAMS, C=3.0))
        model.mkdir(exist_ok=True)
        for name in names:
            if name != "manifest.json":
                (model / name).unlink(missing_ok=True)
                (model / name).symlink_to(victim)
        train(X, Y, model, PARAMS, overwrite=True)
        assert victim.read_text() == "precious"
        assert not any(path.is_symlink() for path in model.iterdir())
        open_model(model, check=True)


def test_pipes_in_place_of_files_are_refused_immediately(model):
    for pattern in ("shard-*", "labels*", "manifest.json"):
        (file,) = list(model.glob(pattern))[:1]
        whole = file.read_bytes()
        file.unlink()
        os.mkfifo(file)
        assert "not a regular file" in refused(model)
        file.unlink()
        file.write_bytes(whole)
    open_model(model, check=True)


@pytest.mark.parametrize("change", [[0, 2**30], [0, -5], [5, 0], [0, 0]])
def test_labels_not_assigned_to_exactly_one_classifier_are_refused(model, change):
    file = min(model.glob("shard-*"))
    arrays = load_file(file)
    arrays["label_starts"] = np.resize(np.array(change, np.int32), len(arrays["label_starts"]))
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        about = json.loads(opened.read(length))["__metadata__"]
    write_arrays(file, arrays, about)
    size = file.stat().st_size

    def lie(manifest):
        manifest["shards"][0]["bytes"] = size

    edit(model, lie)
    assert "its classifiers do not cover its labels" in refused(model, check=False)


@pytest.mark.parametrize("name", [".new", ".edit", ".lock", ".stage-trial"])
def test_links_to_what_would_be_written_to_are_refused(model, tmp_path, name):
    X, Y = random_problem()
    victim = shutil.copytree(model, tmp_path / "victim")
    before = {path.name: path.read_bytes() for path in victim.iterdir()}
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to(tmp_path / "created" if name == ".lock" else victim)
    for write in (
        lambda: open_model(victim).pruned(0.1).save(model, overwrite=True),
        lambda: train(X, Y, model, PARAMS, overwrite=True),
        lambda: update_labels(model, X, Y, [0], NAMES),
        lambda: remove_labels(model, [0]),
        lambda: _only_process(model).__enter__(),
    ):
        with pytest.raises(ModelError, match=f"{name}: a link, which is not followed; remove it"):
            write()
    assert {path.name: path.read_bytes() for path in victim.iterdir()} == before
    assert not (tmp_path / "created").exists()


def test_training_does_not_wait_for_a_pipe_or_a_device_in_place_of_the_manifest(tmp_path):
    X, Y = random_problem(rows=50, labels=3)
    (tmp_path / "model").mkdir()
    manifest = tmp_path / "model" / "manifest.json"
    for begin in (lambda: os.mkfifo(manifest), lambda: manifest.symlink_to("/dev/zero")):
        begin()
        with pytest.raises(ModelError, match="not a regular file"):
            train(X, Y, tmp_path / "model")
        assert train(X, Y, tmp_path / "model", overwrite=True).n_labels == 3
        manifest.unlink()
