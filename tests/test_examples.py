"""Training texts that a model keeps as examples."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from conftest import write_texts
from dismec import open_model, train_text
from dismec.data.corpus import TextBatch
from dismec.model.manifest import Manifest
from dismec.training.texts import example_texts


def batch(*rows):
    texts, labels = zip(*rows, strict=True)
    return TextBatch(list(texts), [list(row) for row in labels], 0)


def test_examples_are_the_first_texts_without_shared_labels():
    texts = [f"a text with number {i} in it" for i in range(9)]
    labels = ["a", "ab", "c", "bc", "", "d", "e", "f", "g"]
    given = batch(*zip(texts, labels, strict=True))
    assert example_texts([given]) == tuple(texts[i] for i in (0, 2, 5, 6, 7))


def test_too_short_or_long_texts_are_not_examples_and_others_are_cut_after_a_word():
    words = "word " * 100
    given = batch(("short", "a"), ("x" * 2001, "b"), (words, "c"), ("y" * 400, "d"))
    cut = example_texts([given])
    assert cut == (("word " * 60).strip(), "y" * 300)


def test_only_the_first_batch_is_read():
    def batches():
        yield batch(("a text that is long enough", "a"))
        raise AssertionError("a second batch is read")

    assert len(example_texts(batches())) == 1


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("examples") / "texts.jsonl"
    write_texts(path)
    return path


def trained(texts, path, *options):
    command = [sys.executable, "-m", "dismec", "train", texts, "-o", path, "--quiet", *options]
    subprocess.run([*map(str, command)], check=True)
    return open_model(path)


def test_the_command_line_keeps_examples_by_default(texts, tmp_path):
    model = trained(texts, tmp_path / "with")
    given = [json.loads(line)["text"] for line in texts.read_text().splitlines()]
    assert len(model.manifest.examples) > 1
    assert set(model.manifest.examples) <= set(given)
    without = trained(texts, tmp_path / "without", "--no-examples")
    assert without.manifest.examples == ()
    assert "examples" not in json.loads((tmp_path / "without" / "manifest.json").read_text())


def test_python_keeps_examples_on_request_and_copies_have_them(texts, tmp_path):
    assert train_text(texts, tmp_path / "without").manifest.examples == ()
    model = train_text(texts, tmp_path / "with", examples=True)
    model.pruned(0.1).save(tmp_path / "copy")
    assert model.manifest.examples
    assert open_model(tmp_path / "copy").manifest.examples == model.manifest.examples


def test_examples_that_are_not_texts_are_refused(texts, tmp_path):
    train_text(texts, tmp_path / "model")
    content = json.loads((tmp_path / "model" / "manifest.json").read_text())
    for wrong in ("a text", [1]):
        with pytest.raises(ValueError, match="examples"):
            Manifest.from_json(content | {"examples": wrong})
