"""Texts are encoded by a sentence encoder, in training and wherever the model takes texts."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from importlib.util import find_spec
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from safetensors.numpy import save_file

import dismec
from dismec import DataError, DiSMECTextClassifier, ModelError, TrainingParams, open_model
from dismec.data.mixed import MixedRows
from dismec.features import encoder as encoders
from dismec.features.encoder import Encoder
from servers import serving
from test_cli import ok, refused
from test_docs import examples, run

pytestmark = pytest.mark.skipif(
    find_spec("sentence_transformers") is None, reason="needs pip install 'dismec[encoder]'"
)

# Words with the same meaning, which their letters do not show; training sees the first 300 of each.
NAMES = ("bread", "egg", "rice", "soup", "fish")
WORDS = np.random.default_rng(0).permutation(9000)[:2000].reshape(5, 400) + 1000
TOPICS = {name: [f"v{n}" for n in row] for name, row in zip(NAMES, WORDS.tolist(), strict=True)}
WIDTH = 8
PARAMS = TrainingParams(tfidf=True)


def write_encoder(folder, seed=0, noise=0.1):
    """Write a static encoder: an embedding per word, near those of words with the same meaning."""
    rng = np.random.default_rng(seed)
    words, rows = ["[UNK]"], [np.zeros(WIDTH)]
    for synonyms in TOPICS.values():
        meaning = rng.standard_normal(WIDTH)
        words += synonyms
        rows += [meaning + noise * rng.standard_normal(WIDTH) for _ in synonyms]
    folder.mkdir()
    save_file({"embeddings": np.float32(rows)}, folder / "model.safetensors")
    kind = "sentence_transformers.models.StaticEmbedding"
    files = {
        "modules.json": [{"idx": 0, "name": "0", "path": ".", "type": kind}],
        "config.json": {"normalize": False},
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [],
            "pre_tokenizer": {"type": "Whitespace"},
            "model": {
                "type": "WordLevel",
                "vocab": {word: number for number, word in enumerate(words)},
                "unk_token": "[UNK]",
            },
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def write_texts(path, words, rows, seed=0):
    """Write texts of a word of a topic among other words."""
    rng = np.random.default_rng(seed)
    with path.open("w") as file:
        for topic in rng.choice(list(TOPICS), rows):
            text = [
                rng.choice(TOPICS[topic][words]),
                *(f"w{n}" for n in rng.integers(30, size=3)),
            ]
            row = {"text": " ".join(rng.permutation(text)), "labels": [topic]}
            file.write(json.dumps(row) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An encoder, data, and a model of both."""
    place = tmp_path_factory.mktemp("encoder")
    write_encoder(place / "encoder")
    write_texts(place / "train.jsonl", slice(0, 300), 1200)
    write_texts(place / "test.jsonl", slice(300, 400), 60, seed=1)
    command = ("train", place / "train.jsonl", "--encoder", place / "encoder")
    ok(*command, "-o", place / "model")
    return place


@pytest.fixture(scope="module")
def model(folder):
    return open_model(folder / "model")


@pytest.fixture
def unloaded():
    """The encoder is loaded again."""
    encoders._loaded.cache_clear()
    yield
    encoders._loaded.cache_clear()


def texts_of(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["text"] for row in rows], [row["labels"] for row in rows]


def test_words_that_no_training_text_has_are_understood(folder, model, tmp_path):
    ok("train", folder / "train.jsonl", "-o", tmp_path / "plain")
    precision = [
        json.loads(ok("evaluate", path, folder / "test.jsonl", "--json"))["P@1"]
        for path in (folder / "model", tmp_path / "plain")
    ]
    assert precision[0] == 100
    assert precision[1] < 60
    texts, labels = texts_of(folder / "test.jsonl")
    assert model.predict(texts[:9]) == [tuple(row) for row in labels[:9]]
    assert model.n_dense == WIDTH
    assert isinstance(model.rows_of(texts), MixedRows)


def test_predictions_of_one_text_and_of_many_are_the_same(folder, model):
    texts, _ = texts_of(folder / "test.jsonl")
    labels, values = model.predict_topk(texts, 3)
    written = ok("predict", folder / "model", folder / "test.jsonl", "--format", "jsonl", "-k", "3")
    rows = [json.loads(line) for line in written.splitlines()]
    assert [row["labels"] for row in rows] == [[model.names[n] for n in row] for row in labels]
    alone = [model.predict_topk([text], 3) for text in texts[:5]]
    np.testing.assert_array_equal(np.concatenate([one[0] for one in alone]), labels[:5])
    np.testing.assert_allclose(np.concatenate([one[1] for one in alone]), values[:5], atol=1e-5)
    told = ok("predict", folder / "model", "--text", texts[0], "-k", "1")
    assert told.startswith(model.names[labels[0, 0]])


def test_the_manifest_names_the_encoder_and_how_the_scale_was_chosen(folder, model):
    known = model.manifest.encoder
    assert known["name"] == str(folder / "encoder")
    assert known == Encoder.find(folder / "encoder").to_dict()
    tried = {row["dense_scale"] for row in model.params["dense_scale_table"]}
    assert tried >= {0.25, 0.5, 1.0}
    assert model.params["dense_scale"] == model.transform.dense_scale
    assert model.params["dense_scale_auto"]["rows"] == 120
    facts = json.loads(ok("inspect", folder / "model", "--json"))
    assert facts["encoder"] == f"{known['name']} {known['sha256']}"


@pytest.mark.parametrize(("rows", "given", "scale"), [(300, None, 0.5), (1200, 0.7, 0.7)])
def test_the_scale_of_few_rows_or_one_that_is_given_is_not_chosen(
    folder, tmp_path, rows, given, scale
):
    source = write_texts(tmp_path / "texts.jsonl", slice(0, 300), rows)
    params = TrainingParams(tfidf=True, dense_scale=given)
    found = dismec.train_text(source, tmp_path / "m", params, encoder=folder / "encoder")
    assert found.transform.dense_scale == scale
    assert "dense_scale_table" not in found.params


def test_an_explanation_has_one_line_for_the_encoder(folder, model):
    text, label = (column[0] for column in texts_of(folder / "test.jsonl"))
    found = model.explain([text], model.find_label(label[0]))
    assert found.embedding > 0.1
    parts = found.bias + found.embedding + sum(term.contribution for term in found.terms)
    assert parts == pytest.approx(found.score, abs=1e-4)
    told = json.loads(ok("explain", folder / "model", text, "--json"))
    assert (told["name"], told["embedding"]) == (label[0], pytest.approx(found.embedding))
    of_row = ok("explain", folder / "model", folder / "test.jsonl", "--row", "1", "--json")
    assert json.loads(of_row) == told


def test_a_server_encodes(folder, model, tmp_path):
    texts, _ = texts_of(folder / "test.jsonl")
    with serving(tmp_path, folder / "model") as server:
        status, _, answer = server.predict({"text": texts[0], "k": 2})
        assert status == 200, answer
        assert answer["labels"] == model.predict_topk(texts[:1], 2)[0][0].tolist()
        question = {"text": texts[0], "label": answer["labels"][0]}
        told = server.ask("POST", "/explain", json.dumps(question))[2]
        assert told["embedding"] > 0.1
        about = server.ask("GET", "/model")[2]
        assert (about["dense"], about["encoder"], about["text"]) == (0, "encoder", True)
        assert 'data-takes="text"' in server.ask("GET", "/")[2]
        status, _, answer = server.predict({"text": texts[0], "dense": [0.0] * WIDTH})
        assert status == 400
        assert "unknown key 'dense'" in answer["error"]
        numeric = {"features": [[0, 1.0]], "dense": [0.5] * WIDTH, "numeric": True}
        assert server.predict(numeric)[0] == 200


def test_the_estimator_encodes(folder, model, tmp_path):
    texts, labels = texts_of(folder / "train.jsonl")
    clf = DiSMECTextClassifier(encoder=folder / "encoder", C=model.params["C"])
    clf.fit(texts, labels)
    assert clf.model_.transform == model.transform
    np.testing.assert_array_equal(clf.model_.weights.toarray(), model.weights.toarray())
    some, true = texts_of(folder / "test.jsonl")
    assert clf.predict(some) == [tuple(row) for row in true]
    assert clf.score(some, true) == 1
    assert pickle.loads(pickle.dumps(clf)).predict(some[:2]) == clf.predict(some[:2])
    clf.save(tmp_path / "saved")
    loaded = DiSMECTextClassifier.load(tmp_path / "saved")
    assert loaded.encoder == str(folder / "encoder")
    assert loaded.dense_scale is None
    assert loaded.predict(some) == clf.predict(some)
    with pytest.raises(DataError, match="cannot be combined with an encoder"):
        clf.predict([some, np.zeros((len(some), WIDTH))])
    with pytest.raises(DataError, match="cannot be combined with an encoder"):
        clf.fit([texts, np.zeros((len(texts), WIDTH))], labels)


@pytest.mark.parametrize(("noise", "pays"), [(0.1, True), (100, False)])
def test_best_keeps_the_encoder_only_if_it_pays(folder, tmp_path, noise, pays):
    encoder = write_encoder(tmp_path / "encoder", noise=noise)
    command = ("train", folder / "train.jsonl", "--encoder", encoder, "--best", "--quiet")
    ok(*command, "-o", tmp_path / "model")
    found = open_model(tmp_path / "model")
    terms, tried = zip(
        *[(row["terms"], row["used"]) for row in found.params["terms_table"]], strict=True
    )
    assert terms == ("words", "prefixes", "pairs of words", "character n-grams", "encoder")
    assert tried[-1] == pays
    assert found.n_dense == (WIDTH if pays else 0)
    assert (found.encoder is not None) == (found.manifest.encoder is not None) == pays
    assert not list((tmp_path / "model").glob(".stage*"))


def test_best_tries_the_encoder_with_terms_that_are_given(folder):
    texts, labels = texts_of(folder / "train.jsonl")
    clf = DiSMECTextClassifier(encoder=folder / "encoder", best=True, min_df=2).fit(texts, labels)
    terms, tried = zip(
        *[(row["terms"], row["used"]) for row in clf.model_.params["terms_table"]], strict=True
    )
    assert terms == ("given terms", "encoder")
    assert tried[-1]
    assert clf.model_.n_dense == WIDTH
    assert clf.model_.vocabulary.params.min_df == 2


class Stop(Exception):  # noqa: N818  what a kill leaves behind, without its end of the process
    pass


def test_a_killed_run_does_not_encode_again(folder, tmp_path, monkeypatch):
    def train(path, progress=None):
        source, encoder = folder / "train.jsonl", folder / "encoder"
        return dismec.train_text(source, path, PARAMS, encoder=encoder, progress=progress)

    encoded = []
    own = Encoder._encoded

    def counting(self, texts):
        if len(encoded) == limit:
            raise Stop
        if len(texts) > 1:
            encoded.append(len(texts))
        return own(self, texts)

    monkeypatch.setattr(encoders, "_TEXTS", 100)
    monkeypatch.setattr(Encoder, "_encoded", counting)
    limit = 99
    whole = train(tmp_path / "whole")
    assert encoded == [100] * 12
    encoded, limit = [], 5
    with pytest.raises(Stop):
        train(tmp_path / "killed")
    limit = 99

    def stop(done, total):
        if done:
            raise Stop

    with pytest.raises(Stop):
        train(tmp_path / "killed", stop)
    assert encoded == [100] * 12
    resumed = train(tmp_path / "killed")
    assert encoded == [100] * 12
    np.testing.assert_array_equal(resumed.weights.toarray(), whole.weights.toarray())
    kept = {path.name for path in (tmp_path / "killed").iterdir()}
    assert kept == {path.name for path in (tmp_path / "whole").iterdir()}
    assert not [name for name in kept if name.startswith(".stage")]


def test_a_resumed_run_has_the_same_encoder(folder, tmp_path):
    def stop(done, total):
        if done:
            raise Stop

    source = folder / "train.jsonl"
    with pytest.raises(Stop):
        dismec.train_text(source, tmp_path / "m", PARAMS, encoder=folder / "encoder", progress=stop)
    other = write_encoder(tmp_path / "other", seed=2)
    with pytest.raises(ModelError, match=r"different model \(.*another encoder\)"):
        dismec.train_text(source, tmp_path / "m", PARAMS, encoder=other)


def test_another_or_a_missing_encoder_is_refused_in_one_line(folder, tmp_path, unloaded):
    shutil.copytree(folder / "encoder", tmp_path / "encoder")
    (tmp_path / "encoder" / "README.md").write_text("not a part of it")
    model = tmp_path / "model"
    ok("train", folder / "train.jsonl", "--encoder", tmp_path / "encoder", "-o", model)
    before = open_model(folder / "model").manifest.encoder["sha256"]
    assert open_model(model).manifest.encoder["sha256"] == before
    encoders._loaded.cache_clear()
    shutil.rmtree(tmp_path / "encoder")
    commands = (
        ("predict", model, folder / "test.jsonl"),
        ("explain", model, TOPICS["bread"][0]),
        ("evaluate", model, folder / "test.jsonl"),
        ("serve", model, "--port", "0"),
    )
    for command in commands:
        assert f"the encoder {tmp_path / 'encoder'} is not on this machine" in refused(*command)
    write_encoder(tmp_path / "encoder", seed=3)
    for command in commands:
        assert "differs from the one that the model was trained with" in refused(*command)
    with pytest.raises(ModelError, match="differs"):
        open_model(model).predict([TOPICS["bread"][0]])
    ok("inspect", model)


def test_without_the_extra_the_message_says_what_to_install(folder, tmp_path, unloaded):
    said = "needs sentence-transformers: pip install 'dismec[encoder]'"
    with mock.patch.dict(sys.modules, {"sentence_transformers": None}):
        assert said in refused("predict", folder / "model", folder / "test.jsonl")
        assert said in refused("serve", folder / "model", "--port", "0")
        command = ("train", folder / "train.jsonl", "--encoder", "e", "-o", tmp_path / "m")
        assert said in refused(*command)
        ok("inspect", folder / "model")
    assert not (tmp_path / "m").exists()


def test_what_is_not_an_encoder_on_this_machine_is_refused_in_one_line(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    pickled = write_encoder(tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    damaged = write_encoder(tmp_path / "damaged")
    (damaged / "tokenizer.json").write_text("{}")
    for encoder, reason in (
        ("all-MiniLM-of-nobody", "is not on this machine"),
        (tmp_path / "empty", "not a sentence encoder"),
        (pickled, "pickled weights; expected a .safetensors file"),
        (damaged, "cannot be loaded as a sentence encoder"),
    ):
        command = ("train", folder / "train.jsonl", "--encoder", encoder, "-o", tmp_path / "m")
        assert reason in refused(*command)
    assert not (tmp_path / "m").exists()


def test_options_that_do_not_fit_an_encoder_are_refused(folder, tmp_path):
    (tmp_path / "data.txt").write_text("1 1 1\n0 0:1\n")
    np.save(tmp_path / "E.npy", np.zeros((60, WIDTH), np.float32))
    dense = ("--dense", tmp_path / "E.npy")
    encoder = ("--encoder", folder / "encoder", "-o", tmp_path / "m")
    texts = folder / "test.jsonl"
    assert "cannot be combined with --dense" in refused("train", texts, *encoder, *dense)
    assert "--encoder is for texts" in refused("train", tmp_path / "data.txt", *encoder)
    for command in ("predict", "evaluate"):
        assert "omit --dense" in refused(command, folder / "model", texts, *dense)
    assert "omit --dense" in refused("explain", folder / "model", TOPICS["bread"][0], *dense)


def test_labels_are_added_and_models_merged(folder, tmp_path):
    texts, labels = texts_of(folder / "train.jsonl")
    rows = [{"text": t, "labels": names} for t, names in zip(texts, labels, strict=True)]
    for row in rows:
        row["labels"] += ["first"] if "w1" in row["text"].split() else []
    (tmp_path / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.copytree(folder / "model", tmp_path / "model")
    ok("add-labels", tmp_path / "model", tmp_path / "more.jsonl", "--quiet")
    grown = open_model(tmp_path / "model")
    assert list(grown.names) == [*sorted(TOPICS), "first"]
    assert set(grown.predict([f"w1 {TOPICS['soup'][350]}"])[0]) == {"soup", "first"}
    other = write_encoder(tmp_path / "other", seed=5)
    models = []
    for name, encoder in (("one", folder / "encoder"), ("two", other)):
        source = tmp_path / f"{name}.jsonl"
        named = [{**row, "labels": [f"{name} {label}" for label in row["labels"]]} for row in rows]
        source.write_text("".join(json.dumps(row) + "\n" for row in named))
        models.append(dismec.train_text(source, tmp_path / name, PARAMS, encoder=encoder))
    with pytest.raises(ModelError, match="encoder is"):
        dismec.merge_models(models)


@pytest.mark.cluster
def test_a_cluster_predicts_the_same(folder, model, dask_cluster, tmp_path):
    cluster = ("--cluster", dask_cluster)
    here, there = (
        ok("predict", folder / "model", folder / "test.jsonl", *where) for where in ((), cluster)
    )
    assert here == there
    command = ("train", folder / "train.jsonl", "--encoder", folder / "encoder", "--quiet")
    ok(*command, "-o", tmp_path / "model", *cluster)
    found = open_model(tmp_path / "model")
    np.testing.assert_array_equal(found.weights.toarray(), model.weights.toarray())


def test_numeric_rows_of_such_a_model_need_dense_features(folder, model, tmp_path):
    texts, _ = texts_of(folder / "test.jsonl")
    rows = model.rows_of(texts)
    Y = sp.csr_array((len(texts), model.n_labels), dtype=np.uint8)
    dismec.save_data(dismec.Dataset(rows.sparse, Y), tmp_path / "terms.txt")
    np.save(tmp_path / "E.npy", rows.dense)
    command = ("predict", folder / "model", tmp_path / "terms.txt", "--numeric", "-k", "1")
    assert "pass them with --dense" in refused(*command)
    found = ok(*command, "--dense", tmp_path / "E.npy")
    assert found == ok("predict", folder / "model", folder / "test.jsonl", "-k", "1")


def test_a_name_is_found_in_the_local_cache(folder, tmp_path):
    place = tmp_path / "hub" / "models--sentence-transformers--tiny"
    (place / "snapshots").mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folder / "encoder", place / "snapshots" / ("0" * 40))
    command = [sys.executable, "-m", "dismec", "train", folder / "train.jsonl", "-o", "model"]
    env = {**os.environ, "HF_HOME": str(tmp_path)}
    subprocess.run([*command, "--encoder", "tiny"], cwd=tmp_path, env=env, check=True)
    found, known = (open_model(place / "model").manifest for place in (tmp_path, folder))
    assert found.encoder == known.encoder | {"name": "tiny"}
    assert found.data == known.data


@pytest.mark.slow
def test_the_commands_of_the_tutorial_run(folder, tmp_path):
    for command in examples("docs/tutorial/embeddings.md", "bash"):
        run(command.replace("all-MiniLM-L6-v2", str(folder / "encoder")), tmp_path)
