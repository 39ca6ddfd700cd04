from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

import dismec
from conftest import random_problem
from dismec import ModelError, TrainingParams, open_model, store, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    X, Y = random_problem()
    path = tmp_path_factory.mktemp("models") / "model"
    names = [f"Straße {i}" for i in range(Y.shape[1])]
    train(X, Y, path, TrainingParams(block_size=15, tfidf=True), names=names)
    return path


@pytest.fixture
def model(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "model")


def edit(path, change):
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def refused(path):
    """The reason, which must be one line."""
    with pytest.raises(ModelError) as caught:
        open_model(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_model_comes_back_as_it_was(trained):
    _, Y = random_problem()
    model = open_model(trained)
    assert model.names[3] == "Straße 3"
    assert model.params["block_size"] == 15
    assert model.weights.shape == (40, 81)
    np.testing.assert_array_equal(model.label_counts, np.asarray(Y.sum(axis=0)).ravel())
    assert model.transform.idf is not None
    assert model.manifest.complete
    assert [(r.number, r.n_labels) for r in model.manifest.blocks] == [(0, 15), (1, 15), (2, 10)]


def test_files_are_read_by_the_safetensors_library(trained):
    model = open_model(trained)
    arrays = load_file(trained / model.manifest.blocks[1].file)
    assert set(arrays) == {"labels", "indptr", "indices", "weights"}
    np.testing.assert_array_equal(arrays["weights"], model.weights[15:30].data)


def test_manifest_of_no_and_of_many_blocks_is_plain_json(trained, tmp_path):
    manifest = store.read_manifest(trained)
    assert len(manifest.blocks) == 3
    for blocks in ((), manifest.blocks[:1], manifest.blocks):
        store.commit(tmp_path, manifest.with_blocks(blocks))
        assert store.read_manifest(tmp_path) == manifest.with_blocks(blocks)
        content = json.loads((tmp_path / "manifest.json").read_text())
        assert [b["number"] for b in content["blocks"]] == [b.number for b in blocks]


def test_saved_copy_has_the_same_block_files(trained, tmp_path):
    open_model(trained).save(tmp_path / "copy")
    for receipt in open_model(tmp_path / "copy").manifest.blocks:
        original = (trained / receipt.file).read_bytes()
        assert (tmp_path / "copy" / receipt.file).read_bytes() == original


def test_missing_block_is_refused(model):
    (model / "block-000001.safetensors").unlink()
    assert "block-000001.safetensors: missing" in refused(model)


@pytest.mark.parametrize("name", ["block-000001.safetensors", "labels.safetensors"])
def test_every_flipped_bit_is_refused(model, name):
    whole = (model / name).read_bytes()
    for place in np.linspace(0, len(whole) - 1, 25).astype(int):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << (place % 8)
        (model / name).write_bytes(flipped)
        assert f"{name}: altered" in refused(model)


@pytest.mark.parametrize("name", ["block-000001.safetensors", "labels.safetensors"])
def test_every_cut_is_refused(model, name):
    whole = (model / name).read_bytes()
    for size in np.linspace(0, len(whole) - 1, 25).astype(int):
        (model / name).write_bytes(whole[:size])
        assert name in refused(model)


def test_every_cut_manifest_is_refused(model):
    whole = (model / "manifest.json").read_bytes().rstrip()
    for size in np.linspace(0, len(whole) - 1, 40).astype(int):
        (model / "manifest.json").write_bytes(whole[:size])
        assert "manifest.json" in refused(model)


def test_newer_format_is_refused(model):
    edit(model, lambda m: m.update(version=store.FORMAT_VERSION + 1))
    assert "newer than this dismec reads" in refused(model)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m["blocks"][1].update(nnz=m["blocks"][1]["nnz"] + 1), "sizes that the manifest"),
        (lambda m: m["blocks"][1].update(bytes=5), "the manifest says 5"),
        (lambda m: m["blocks"][1].update(nnz=10**12), "cannot hold"),
        (lambda m: m["blocks"][1].update(number=0), "order of their numbers"),
        (lambda m: m["blocks"][1].update(file="../../secret"), "not in the model directory"),
        (lambda m: m["blocks"].pop(), "not finished (30 of 40 labels)"),
        (lambda m: m.update(n_labels=10**12), "out of range"),
        (lambda m: m.update(n_labels=39), "blocks hold 40 labels, there are 39"),
        (lambda m: m.update(n_labels="40"), "not of type int"),
        (lambda m: m.update(n_features=79), "n_features is 79, but 80 in the transform"),
        (lambda m: m.update(n_rows=7), "the label counts do not fit 7 rows"),
        (
            lambda m: m["blocks"][0].update(stats=dict.fromkeys(m["blocks"][0]["stats"], "x")),
            "stat",
        ),
        (
            lambda m: m["blocks"][1].update({**m["blocks"][0], "number": 1}),
            "not block 1",
        ),
        (lambda m: m.update(format="other"), "not the manifest of a dismec model"),
        (lambda m: m.pop("transform"), "'transform' is missing"),
        (lambda m: m["transform"].update(bias="one"), "bias"),
        (lambda m: m.update(blocks=[3]), "not described by an object"),
        (lambda m: m["blocks"][0].update(stats={"solved": 1}), "statistics"),
    ],
)
def test_manifest_that_lies_is_refused(model, change, reason):
    edit(model, change)
    assert reason in refused(model)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "\0" * 50, "[" * 100_000])
def test_garbage_manifest_is_refused(model, text):
    (model / "manifest.json").write_text(text)
    assert "manifest.json" in refused(model)


def test_what_is_not_a_model_is_refused(tmp_path):
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
    with pytest.raises(ModelError, match=r"manifest\.json is not that of a model"):
        train(X, Y, tmp_path, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*others, "manifest.json"])


def test_damaged_model_can_be_overwritten(model):
    X, Y = random_problem(rows=50, labels=3)
    (model / "manifest.json").write_text("{")
    assert train(X, Y, model, overwrite=True).n_labels == 3


def test_public_names_are_exactly_these():
    assert dismec.__all__ == sorted(dismec.__all__, key=str)
    for name in dismec.__all__:
        assert getattr(dismec, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dismec.nothing


def test_blocks_that_hold_a_label_twice_are_refused(model):
    # A block that repeats another's labels, with a manifest that says so truthfully.
    directory = model
    manifest = store.read_manifest(directory)
    first = store.read_block(directory, manifest, manifest.blocks[0])
    again = store.write_block(directory, replace(first, number=1))
    store.commit(directory, manifest.with_blocks([manifest.blocks[0], again, manifest.blocks[2]]))
    assert "do not hold every label once" in refused(directory)
