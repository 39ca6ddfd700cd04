"""Raw text in, label names out: library, estimator and command line."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from sklearn.base import clone
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC

from conftest import weight_files
from dismec import (
    DataError,
    DiSMECTextClassifier,
    ModelError,
    TextParams,
    TrainingParams,
    open_model,
    train_text,
)
from dismec.cli import main
from dismec.data.corpus import Texts, read_texts
from dismec.data.synthetic import generate_text, write_text
from dismec.features.text_rows import text_dataset
from dismec.features.transform import Transform


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_text(folder, *generate_text(rows=600, labels=30, features=1500, test_rows=200))
    return folder


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "model"
    params = TrainingParams(tfidf=True, calibrate=True)
    return train_text(data / "train.jsonl", path, params), path


def rows_of(path):
    (batch,) = read_texts(path)
    return batch.texts, batch.labels


def run(*args, code=0):
    done = CliRunner().invoke(main, [str(arg) for arg in args], prog_name="dismec")
    assert done.exit_code == code, done.stderr
    return done


def files_of(path):
    return {p.name: p.read_bytes() for p in path.iterdir() if p.suffix == ".safetensors"}


def test_a_text_model_is_complete_when_reopened(model, data):
    trained, path = model
    opened = open_model(path, check=True)
    texts, _ = rows_of(data / "test.jsonl")
    X = opened.vocabulary.rows(texts)
    for mine, its in zip(opened.predict_topk(X), trained.predict_topk(X), strict=True):
        np.testing.assert_array_equal(mine, its)
    ranked = [model.predict_topk(X, rank="probability") for model in (opened, trained)]
    for mine, its in zip(*ranked, strict=True):
        np.testing.assert_array_equal(mine, its)
    assert sorted(p.name for p in path.iterdir()) == [
        ".lock",
        "calibration.safetensors",
        "labels.safetensors",
        "manifest.json",
        "shard-000000.safetensors",
        "vocabulary.safetensors",
    ]
    assert list(opened.names) == sorted(opened.names)
    result = opened.evaluate(*text_dataset(opened, data / "test.jsonl")[0][:2])
    assert result["P@1"] > 60
    assert result["ECE"] < result["ECE uncalibrated"]


@pytest.mark.parametrize("threads", [1, 3])
def test_neither_batches_nor_threads_nor_the_file_change_a_byte(
    data, tmp_path, threads, monkeypatch
):
    params = TrainingParams(tfidf=True)
    train_text(data / "train.jsonl", tmp_path / "one", params)
    texts, labels = rows_of(data / "train.jsonl")
    train_text(
        pd.DataFrame({"text": texts, "labels": labels}), tmp_path / "two", params, threads=threads
    )
    packed = tmp_path / "train.jsonl.gz"
    packed.write_bytes(gzip.compress((data / "train.jsonl").read_bytes()))
    small = Texts(lambda: read_texts(packed, batch_chars=5000))
    assert len(list(small.read())) > 10
    train_text(small, tmp_path / "three", params, threads=threads)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two") == files_of(tmp_path / "three")


def test_a_killed_text_training_resumes(data, tmp_path, monkeypatch):
    params = TrainingParams(tfidf=True, block_size=5, calibrate=True, delta="auto")
    train_text(data / "train.jsonl", tmp_path / "whole", params)
    from dismec.model import weight_files

    write, n = weight_files.write_block, 0

    def stop(*args):
        nonlocal n
        n += 1
        if n == 4:
            raise KeyboardInterrupt
        return write(*args)

    monkeypatch.setattr("dismec.model.weight_files.write_block", stop)
    with pytest.raises(KeyboardInterrupt):
        train_text(data / "train.jsonl", tmp_path / "cut", params, threads=1)
    assert not list((tmp_path / "cut").glob(".data-*"))
    with pytest.raises(ModelError, match="unfinished training"):
        open_model(tmp_path / "cut")
    with pytest.raises(ModelError, match="other text settings"):
        train_text(
            data / "train.jsonl", tmp_path / "cut", params, TextParams(sublinear=False, min_df=3)
        )
    train_text(data / "train.jsonl", tmp_path / "cut", params)
    assert files_of(tmp_path / "cut") == files_of(tmp_path / "whole")


def test_kinds_of_files_give_the_same_model(data, tmp_path):
    texts, labels = rows_of(data / "train.jsonl")
    with (tmp_path / "train.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["body", "tags"])
        rows.writerows((t, "; ".join(row)) for t, row in zip(texts, labels, strict=True))
    run("train", data / "train.jsonl", "-o", tmp_path / "json", "--quiet")
    columns = ("--text-column", "body", "--label-column", "tags", "--label-separator", ";")
    run("train", tmp_path / "train.csv", "-o", tmp_path / "csv", "--quiet", *columns)
    assert files_of(tmp_path / "csv") == files_of(tmp_path / "json")


def test_names_come_out_on_the_command_line(model, data, tmp_path):
    _, path = model
    run("predict", path, data / "test.jsonl", "-k", 2, "-o", tmp_path / "best.jsonl")
    best = [json.loads(line) for line in (tmp_path / "best.jsonl").read_text().splitlines()]
    texts, labels = rows_of(data / "test.jsonl")
    opened = open_model(path)
    top, scores = opened.predict_topk(opened.vocabulary.rows(texts), 2)
    assert [row["labels"] for row in best] == [[opened.names[i] for i in row] for row in top]
    np.testing.assert_allclose([row["probabilities"] for row in best], scores)
    hits = np.mean([row["labels"][0] in true for row, true in zip(best, labels, strict=True)])
    said = json.loads(run("evaluate", path, data / "test.jsonl", "--json").stdout)
    assert said["P@1"] == pytest.approx(100 * hits, abs=0.01)
    assert {"ECE", "ECE uncalibrated", "micro-F1", "macro-F1"} <= said.keys()
    assert "ECE" in run("evaluate", path, data / "test.jsonl").stdout


def test_texts_without_labels_are_enough_to_predict(model, tmp_path):
    _, path = model
    (tmp_path / "new.jsonl").write_text('{"text": "some words"}\n{"text": ""}\n')
    assert len(run("predict", path, tmp_path / "new.jsonl").stdout.splitlines()) == 2
    assert "labels" in run("evaluate", path, tmp_path / "new.jsonl", code=2).stderr


def test_probabilities_and_thresholds_on_the_command_line(model, data):
    opened, path = model
    texts, _ = rows_of(data / "test.jsonl")
    X = opened.vocabulary.rows(texts)

    def predicted(*options):
        lines = run("predict", path, data / "test.jsonl", *options).stdout.splitlines()
        return [[pair.rsplit(":", 1) for pair in line.split()] for line in lines]

    probable = predicted("--rank", "probability", "-k", 3)
    labels, p = opened.predict_topk(X, 3, rank="probability")
    assert [[name for name, _ in row] for row in probable] == [
        [opened.names[i] for i in row] for row in labels
    ]
    np.testing.assert_allclose([[float(v) for _, v in row] for row in probable], p, rtol=1e-5)
    sure = predicted("--rank", "probability", "--threshold", 0.4)
    expected = opened.assign(X, 0.4)
    assert [len(row) for row in sure] == np.diff(expected.indptr).tolist()
    assert all(float(v) >= 0.4 for row in sure for _, v in row)
    for chosen in ("micro-f1", "macro-f1"):
        assert [len(row) for row in predicted("--threshold", chosen)] == np.diff(
            opened.assign(X, chosen).indptr
        ).tolist()
    assert all(len(row) <= 1 for row in predicted("--threshold", "micro-f1", "-k", 1))
    assert predicted("-k", 3) == probable  # the default for a calibrated model
    by_score = predicted("--rank", "score", "-k", 3)
    expected, values = opened.predict_topk(X, 3, rank="score")
    assert [[name for name, _ in row] for row in by_score] == [
        [opened.names[i] for i in row] for row in expected
    ]
    np.testing.assert_allclose([[float(v) for _, v in row] for row in by_score], values, rtol=1e-5)
    scores = predicted("--rank", "score", "--threshold", -0.5)
    assert max(map(len, scores)) > 5
    assert all(float(v) >= -0.5 for row in scores for _, v in row)


def test_a_model_without_calibration_says_how_to_get_one(data, tmp_path):
    run("train", data / "train.jsonl", "-o", tmp_path / "plain", "--quiet")
    for options in (["--rank", "probability"], ["--threshold", "micro-f1"]):
        said = run("predict", tmp_path / "plain", data / "test.jsonl", *options, code=2).stderr
        assert "--calibrate" in said
        assert said.count("\n") == 1


def test_explanations_name_the_words_that_contributed_most(model, data):
    opened, path = model
    text = rows_of(data / "test.jsonl")[0][0]
    said = json.loads(run("explain", path, text, "--json").stdout)
    top, probabilities = opened.predict_topk(opened.vocabulary.rows([text]), 1)
    assert (said["label"], said["name"]) == (top[0, 0], opened.names[top[0, 0]])
    assert said["probability"] == pytest.approx(probabilities[0, 0])
    assert said["terms"][0]["term"].split()[0] in text.lower()
    assert all(0 <= begin < end <= len(text) for begin, end, _ in said["highlights"])
    shown = run("explain", path, text, "--label", opened.names[3], "--label", opened.names[4])
    assert opened.names[3] in shown.stdout
    assert "bias" in shown.stdout
    again = run("explain", path, data / "test.jsonl", "--row", 1, "--json").stdout
    assert json.loads(again) == said
    run("explain", path, data / "test.jsonl", "--row", 201, code=2)
    assert "no label 'nothing'" in run("explain", path, text, "--label", "nothing", code=2).stderr


def test_numeric_rows_are_explained_too(tmp_path):
    run("generate", "-o", tmp_path, "--rows", 300, "--features", 200, "--labels", 20)
    run("train", tmp_path / "train.txt", "-o", tmp_path / "model", "--quiet")
    said = json.loads(run("explain", tmp_path / "model", "3:0.5 17:1", "--json").stdout)
    assert {term["feature"] for term in said["terms"]} <= {3, 17}
    for bad in ("some text", "3:0.5 3:1", "200:1", "3:x"):
        run("explain", tmp_path / "model", bad, code=2)


def test_names_for_numeric_data(tmp_path):
    run("generate", "-o", tmp_path, "--rows", 300, "--features", 200, "--labels", 20)
    names = [f"Straße {i}" for i in range(20)]
    (tmp_path / "names.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    option = ("--label-names", tmp_path / "names.txt")
    run("train", tmp_path / "train.txt", "-o", tmp_path / "model", "--quiet", *option)
    assert list(open_model(tmp_path / "model").names) == names
    assert '"Straße ' in run("predict", tmp_path / "model", tmp_path / "test.txt").stdout
    run("train", tmp_path / "train.txt", "-o", tmp_path / "bare", "--quiet")
    assert '"Straße ' in run("predict", tmp_path / "bare", tmp_path / "test.txt", *option).stdout
    (tmp_path / "names.txt").write_text("one\n")
    said = run("train", tmp_path / "train.txt", "-o", tmp_path / "x", *option, code=2).stderr
    assert "20 labels; expected 1" in said
    (tmp_path / "names.txt").write_bytes(b"one\n\xff\n")
    assert (
        "names.txt:2: not UTF-8"
        in run("train", tmp_path / "train.txt", "-o", tmp_path / "x", *option, code=2).stderr
    )


def test_labels_of_text_models_are_added_and_removed(data, tmp_path):
    texts, labels = rows_of(data / "train.jsonl")
    everything = sorted({name for row in labels for name in row})
    late = set(everything[::5])

    def write(path, keep):
        with path.open("w") as file:
            for text, row in zip(texts, labels, strict=True):
                file.write(json.dumps({"text": text, "labels": [n for n in row if keep(n)]}) + "\n")

    write(tmp_path / "early.jsonl", lambda name: name not in late)
    run("train", tmp_path / "early.jsonl", "-o", tmp_path / "model", "--calibrate", "--quiet")
    before = weight_files(tmp_path / "model")
    said = run("add-labels", tmp_path / "model", data / "train.jsonl").stderr
    assert f"{len(late)} labels added" in said
    after = weight_files(tmp_path / "model")
    assert {name: after[name] for name in before} == before
    grown = open_model(tmp_path / "model", check=True)
    whole = train_text(data / "train.jsonl", tmp_path / "whole", TrainingParams(tfidf=True))
    place = [grown.label_numbers[name] for name in whole.names]
    assert (grown.weights[place] != whole.weights).nnz == 0
    _, p = grown.predict_topk(grown.vocabulary.rows(texts[:50]), 3, rank="probability")
    assert ((p >= 0) & (p <= 1)).all()
    run("remove-labels", tmp_path / "model", *sorted(late))
    said = run("inspect", tmp_path / "model").stdout
    assert f"{len(late)} labels added on {len(texts)} rows" in said
    assert f"{len(late)} labels removed" in said
    assert "word_ngrams" in said
    assert not late & {
        name
        for line in run("predict", tmp_path / "model", data / "test.jsonl").stdout.splitlines()
        for name in line.replace(":", " ").split()
    }


def test_retraining_labels_on_the_same_texts_changes_nothing(data, tmp_path):
    run("train", data / "train.jsonl", "-o", tmp_path / "model", "--quiet")
    before = open_model(tmp_path / "model")
    wanted = list(before.names)[::3]
    (tmp_path / "labels.txt").write_text("\n".join(wanted))
    more = tmp_path / "more.jsonl"
    more.write_text((data / "train.jsonl").read_text())
    run("update", tmp_path / "model", more, "--labels", tmp_path / "labels.txt")
    after = open_model(tmp_path / "model")
    assert (after.weights != before.weights).nnz == 0
    np.testing.assert_array_equal(after.label_counts, before.label_counts)
    run("remove-labels", tmp_path / "model", *wanted)
    run("add-labels", tmp_path / "model", more)
    assert (open_model(tmp_path / "model").weights != before.weights).nnz == 0
    with more.open("a") as file:
        file.write(json.dumps({"text": "one more", "labels": ["never seen"]}) + "\n")
    run("update", tmp_path / "model", more, "--labels", tmp_path / "labels.txt")
    assert list(open_model(tmp_path / "model").names) == list(before.names)


def test_a_label_that_every_row_has_is_reported(model, data, tmp_path):
    shutil.copytree(model[1], tmp_path / "model")
    (tmp_path / "new.jsonl").write_text('{"text": "xyzzy", "labels": ["everywhere"]}\n')
    said = run("add-labels", tmp_path / "model", tmp_path / "new.jsonl").stderr
    assert "every row has label 'everywhere'" in said


def test_predictions_never_replace_their_data(model, data, tmp_path):
    copy = tmp_path / "test.jsonl"
    shutil.copy(data / "test.jsonl", copy)
    before = copy.read_bytes()
    assert "choose another file" in run("predict", model[1], copy, "-o", copy, code=2).stderr
    assert copy.read_bytes() == before


def test_probabilities_are_named_as_such_in_the_output(model, data, tmp_path):
    out = tmp_path / "best.jsonl"
    run("predict", model[1], data / "test.jsonl", "--rank", "probability", "-o", out)
    assert json.loads(out.read_text().splitlines()[0]).keys() == {"labels", "probabilities"}
    done = run("predict", model[1], data / "test.jsonl", "--threshold", 2, code=2)
    assert "between 0 and 1" in done.stderr


def test_unknown_labels_and_words_are_reported(model, data, tmp_path):
    unknown = tmp_path / "unknown.jsonl"
    unknown.write_text('{"text": "xyzzy", "labels": ["never", "seen"]}\n')
    assert "2 of the 2 labels of DATA are unknown" in run("evaluate", model[1], unknown).stderr
    assert "knows no word" in run("explain", model[1], "xyzzy").stderr
    assert "--row" in run("explain", model[1], unknown, code=2).stderr
    said = run(
        "train", data / "train.jsonl", "-o", tmp_path / "x", "--calibrate",
        "--validation", unknown, code=2,
    ).stderr  # fmt: skip
    assert "no row has a label of the training data" in said
    small = tmp_path / "small.jsonl"
    small.write_text("".join((data / "train.jsonl").read_text().splitlines(True)[:50]))
    assert "may be inaccurate" in run("train", small, "-o", tmp_path / "y", "--calibrate").stderr
    for wrong in (["-o", data], ["-o", tmp_path / "z", "--calibrate", "--validation", "nothing"]):
        said = run("train", data / "train.jsonl", *wrong, code=2).stderr
        assert said.count("\n") == 1  # nothing was read before


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"text": "a b"', ":1: "),
        (b'{"text": "a b", "labels": ["x"]}\n{"text": "\xff"}\n', ":2: "),
        (b"", "no rows"),
        (b'{"text": "one two", "labels": []}\n', "no row has a label"),
        (b'{"text": "! ?", "labels": ["x"]}\n', "no row has a word of two letters"),
    ],
)
def test_bad_texts_are_refused_in_one_line_and_leave_nothing(tmp_path, content, reason):
    path = tmp_path / "docs.jsonl"
    path.write_bytes(content)
    said = run("train", path, "-o", tmp_path / "model", code=2).stderr
    assert reason in said
    assert said.count("\n") == 1
    assert not (tmp_path / "model").exists()


def test_options_that_do_not_apply_to_the_data_are_refused(data, tmp_path):
    out = ("-o", tmp_path / "model")
    assert (
        "--min-df is for texts"
        in run("train", *out, "--min-df", 3, _numeric(tmp_path), code=2).stderr
    )
    for options in (["--labels", "x.npz"], ["--label-names", "x"]):
        run("train", data / "train.jsonl", *out, *options, code=2)
    for options in (["--word-ngrams", "2,1"], ["--word-ngrams", "x"], ["--max-df", "2"]):
        run("train", data / "train.jsonl", *out, *options, code=2)
    run("train", data / "train.jsonl", *out, "--quiet", "--word-ngrams", "1", "--max-features", 99)
    assert open_model(tmp_path / "model").n_features == 99
    said = run("predict", tmp_path / "model", _numeric(tmp_path), code=2).stderr
    assert "holds numeric rows, but the model was trained on texts; use --numeric" in said
    said = run("evaluate", tmp_path / "model", _numeric(tmp_path), code=2).stderr
    assert "--numeric" in said
    run("train", _numeric(tmp_path), "-o", tmp_path / "numeric", "--quiet")
    said = run("predict", tmp_path / "numeric", data / "test.jsonl", code=2).stderr
    assert "numeric features" in said


def _numeric(folder):
    (folder / "rows.txt").write_text("2 500 2\n0 1:1 499:1\n1 2:1\n")
    return folder / "rows.txt"


def test_the_estimator_takes_texts_and_gives_names(data, tmp_path):
    texts, labels = rows_of(data / "train.jsonl")
    test_texts, test_labels = rows_of(data / "test.jsonl")
    clf = DiSMECTextClassifier(C=2.0, calibrate=True, n_jobs=1).fit(texts, labels)
    names, scores = clf.predict_topk(test_texts, k=3)
    assert names.shape == scores.shape == (200, 3)
    assert set(names.ravel()) <= set(clf.classes_)
    assert clf.score(test_texts, test_labels) > 0.6
    _, p = clf.predict_topk(test_texts, k=3)
    assert ((p > 0) & (p <= 1)).all()
    sets = clf.predict(test_texts)
    assert np.mean([bool(set(s) & set(t)) for s, t in zip(sets, test_labels, strict=True)]) > 0.5
    clf.save(tmp_path / "model")
    again = DiSMECTextClassifier.load(tmp_path / "model")
    assert again.get_params() == {**clf.get_params(), "n_jobs": None, "delta": 0.01}
    assert again.predict(test_texts) == sets
    assert clone(clf).get_params() == clf.get_params()
    with pytest.raises(DataError, match="600 texts, but labels for 200"):
        clf.fit(texts, test_labels)
    with pytest.raises(DataError, match="not one text"):
        clf.predict("a text")


@pytest.mark.slow
def test_a_file_larger_than_memory_trains(tmp_path):
    """300 MB of texts with 160 MB of memory, most of which Python and its libraries use."""
    rng = np.random.default_rng(0)
    words = np.array([f"word{i}" for i in range(2000)])
    size = 0
    with (tmp_path / "big.jsonl").open("w") as file:
        while size < 300e6:
            label = int(rng.integers(20))
            own = words[100 * label : 100 * label + 100]
            line = " ".join(rng.choice(own, 20)) + " " + " ".join(rng.choice(words, 20))
            entry = json.dumps({"text": f"{line}. " * 400, "labels": [f"l{label}"]}) + "\n"
            size += file.write(entry)
    # Peak resident memory as the kernel counts it, without pages of mapped files.
    script = (
        "import sys, threading, time\n"
        "from dismec.cli import main\n"
        "peak = 0\n"
        "def watch():\n"
        "    global peak\n"
        "    while True:\n"
        "        for line in open('/proc/self/status'):\n"
        "            if line.startswith('RssAnon'): peak = max(peak, int(line.split()[1]))\n"
        "        time.sleep(0.01)\n"
        "threading.Thread(target=watch, daemon=True).start()\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(peak)\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            script,
            "train",
            tmp_path / "big.jsonl",
            "-o",
            tmp_path / "model",
            "--quiet",
            "--threads",
            "2",
        ],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ},
    )
    assert int(done.stdout.split()[-1]) < 220_000, done.stdout
    assert open_model(tmp_path / "model").n_labels == 20


@pytest.mark.data
@pytest.mark.slow
def test_cooking_questions_are_tagged_as_well_as_by_linear_svms(real_data, tmp_path):
    folder = real_data / "cooking-text"
    model = train_text(folder / "train.jsonl", tmp_path / "model")
    train, test = (text_dataset(model, folder / f"{part}.jsonl")[0] for part in ("train", "test"))
    plain = Transform.fit(train.X, tfidf=True, bias=0.0)
    X, X_test = (sp.csr_matrix(plain.apply(data.X)) for data in (train, test))
    n_labels = train.Y.shape[1]
    svm = OneVsRestClassifier(LinearSVC()).fit(X, sp.csr_matrix(train.Y).astype(np.int64))
    best = svm.decision_function(X_test).argmax(axis=1)
    theirs = 100 * test.Y[:, :n_labels].toarray()[np.arange(len(best)), best].mean()
    assert model.evaluate(test.X, test.Y)["P@1"] >= theirs - 0.3
