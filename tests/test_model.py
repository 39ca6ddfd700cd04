from __future__ import annotations

import contextlib
import io
import json
import pickle
import time
import warnings
import zipfile
from functools import partial
from unittest import mock

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

from conftest import random_problem
from dismec import DataError, ModelError, TextRows, TrainingParams, open_model, train
from dismec.cli import main
from dismec.cluster.cluster_model import ClusterModel
from dismec.model import weight_files
from dismec.model.model import Model, check_dense
from dismec.training.params import TrainOptions
from dismec.training.texts import texts_read
from dismec.training.train import fit, train_on


def test_a_model_is_evaluated_on_any_matrix_of_labels():
    X, Y = random_problem(rows=60, labels=4)
    model = fit(X, Y)
    expected = model.evaluate(X, Y)
    assert model.evaluate(X, Y.toarray().tolist()) == expected
    for bad, reason in [(None, "Y is 0-d"), (np.full(60, 0.5), "0.5"), (Y[:5], "5")]:
        with pytest.raises(DataError, match=reason):
            model.evaluate(X, bad)
    with pytest.raises(DataError, match="ks is empty"):
        model.evaluate(X, Y, ())
    assert model.evaluate(X, Y[:, :0])["P@1"] == 0


@pytest.fixture(scope="module")
def texts():
    """A small calibrated text model."""
    rng = np.random.default_rng(0)
    words = [f"{kind}{i}" for kind in ("egg", "car", "sea") for i in range(5)]
    labels = [["food"], ["road"], ["water", "road"]]
    picked = rng.integers(0, 3, 120)
    rows = [" ".join(rng.choice(words[5 * p : 5 * p + 5], 4)) for p in picked]
    params = TrainingParams(tfidf=True, calibrate=True)
    source = pd.DataFrame({"text": rows, "labels": [labels[p] for p in picked]})
    with texts_read(source, TrainOptions(params)) as read:
        return train_on(*read), rows


def test_a_text_model_predicts_texts(texts):
    model, rows = texts
    X = model.vocabulary.rows(rows)
    for method in (
        model.predict,
        model.predict_topk,
        model.decision_function,
        model.predict_proba,
        partial(model.predict_topk, aim="psp"),
    ):
        for mine, its in zip(method(rows), method(X), strict=True):
            assert np.array_equal(mine, its)
    assert model.predict(["egg1 egg2", "sea1 sea3 sea2"])[0] == ("food",)
    assert set(model.predict(["sea1 sea3 sea2"])[0]) == {"water", "road"}
    explained = model.explain(["egg1 car1"], 0)
    assert {term.term for term in explained.terms} <= {"egg1", "car1"}
    assert model.assign(rows).nnz == model.assign(rows, "micro-f1").nnz


@pytest.mark.parametrize(
    "wrap",
    [
        pd.Series,
        pl.Series,
        np.array,
        pa.array,
        tuple,
        iter,
        lambda rows: np.array(rows, object)[:, None],
        lambda rows: pd.DataFrame({"text": rows}),
        lambda rows: pl.DataFrame({"text": rows}),
        lambda rows: pa.table({"text": rows}),
        lambda rows: pa.chunked_array([rows[:3], rows[3:]]),
    ],
)
def test_texts_may_be_in_any_column(texts, wrap):
    model, rows = texts
    np.testing.assert_array_equal(model.predict_topk(wrap(rows))[0], model.predict_topk(rows)[0])


@pytest.mark.parametrize(
    ("X", "reason"),
    [
        ("one text", "expected a list of texts, not one text"),
        ({"a": "b"}, "expected a list of texts, not a dict"),
        ({"a", "b"}, "expected a list of texts, not a set"),
        (["a", None], "row index 1: the text is missing"),
        (pd.Series(["a", np.nan]), "row index 1: the text is missing"),
        (pd.Series(["a", pd.NA]), "row index 1: the text is missing"),
        (np.array(["a", pd.NA], object), "row index 1: the text is missing"),
        (["a", 5], "row index 1: the text is of type int"),
        (pd.DataFrame({"t": ["a"], "n": [1]}), r"columns 't', 'n': pass one column.*\['t'\]"),
        (pl.DataFrame({"t": ["a"], "n": [1]}), r"columns 't', 'n': pass one column.*\['t'\]"),
        (pa.table({"t": ["a"], "n": [1]}), r"columns 't', 'n': pass one column.*\['t'\]"),
        (7, "expected a list of texts, not int"),
    ],
)
def test_inputs_that_are_not_columns_of_texts_are_refused_in_one_line(texts, X, reason):
    with pytest.raises(DataError, match=reason) as caught:
        texts[0].predict_topk(X)
    assert "\n" not in str(caught.value)


def test_a_text_model_refuses_other_matrices(texts):
    model, rows = texts
    X = model.vocabulary.rows(rows)
    plain = sp.csr_array(X)
    assert type(plain) is sp.csr_array
    Y = np.zeros((len(rows), 3))
    for wrong in (plain, X.toarray(), X.toarray().tolist(), plain.tocsc()):
        for call in (
            model.predict,
            model.predict_topk,
            model.decision_function,
            model.predict_proba,
            model.assign,
            partial(model.predict_topk, aim="psp"),
            lambda rows: model.explain(rows, 0),
            lambda rows: model.evaluate(rows, Y),
            lambda rows: model.evaluate(rows, Y, aim="psp"),
        ):
            with pytest.raises(DataError, match=r"pass dismec.TextRows\(X\)"):
                call(wrong)
        np.testing.assert_array_equal(
            model.predict_topk(TextRows(wrong))[0], model.predict_topk(rows)[0]
        )


def test_a_numeric_model_refuses_texts():
    model = fit(*random_problem(rows=60, labels=4))
    for texts in ("a", ["a", "b"], np.array(["a"]), pd.Series(["a"]), pl.Series(["a"])):
        with pytest.raises(DataError, match="trained on numeric features, but X is texts"):
            model.predict_topk(texts)


def test_slices_and_copies_of_text_rows_are_text_rows(texts):
    X = texts[0].vocabulary.rows(texts[1])
    for part in (X[:5], X[[3, 1]], X[np.arange(len(texts[1])) > 50], X[2:3], X.copy(), abs(X)):
        assert type(part) is TextRows
    again = pickle.loads(pickle.dumps(X))
    assert type(again) is TextRows
    assert (again != X).nnz == 0
    stacked = TextRows(sp.vstack([X[:7], X[7:]]))
    assert (stacked != X).nnz == 0


def test_a_numeric_model_predicts_names_or_numbers():
    X, Y = random_problem(rows=80, labels=4)
    for names in (None, ["a", "b", "c", "d"]):
        model = fit(X, Y, TrainingParams(C=10.0), names=names)
        scores = model.decision_function(X)
        expected = [
            tuple((names or range(4))[j] for j in np.argsort(-row, kind="stable") if row[j] > 0)
            for row in scores
        ]
        assert model.predict(X) == expected


def test_the_repr_of_a_model_says_what_it_is(texts):
    assert repr(texts[0]) == (
        f"Model(3 labels, 15 features, {texts[0].nnz} weights, float16, calibrated; of texts)"
    )
    X, Y = random_problem(rows=60, labels=1)
    model = fit(X, Y)
    assert repr(model).startswith(f"Model(1 label, {X.shape[1]} features, ")


def test_a_dense_answer_that_does_not_fit_memory_is_refused(monkeypatch):
    X, Y = random_problem(rows=60, labels=4)
    model = fit(X, Y)
    monkeypatch.setattr("dismec.model.model.available_memory", lambda: 900)
    with pytest.raises(DataError, match=r"60 rows × 4 labels would take .* predict_topk or assign"):
        model.decision_function(X)
    monkeypatch.setattr("dismec.model.model.available_memory", lambda: 960)
    assert model.decision_function(X).shape == (60, 4)
    with pytest.raises(DataError, match=r"200,000 rows × 100,000 labels would take 74\.5 GiB"):
        check_dense("decision_function", 200_000, 100_000, 4, "")


def test_masked_values_are_refused():
    X, Y = random_problem(rows=60, labels=4)
    masked = np.ma.array(X.toarray(), mask=False)
    assert fit(masked, Y).nnz == fit(X, Y).nnz
    masked[3, 2] = np.ma.masked
    for call in (lambda: fit(masked, Y), lambda: fit(X, Y).predict_topk(masked)):
        with pytest.raises(DataError, match=r"X is masked at \[3, 2\]: fill it"):
            call()
    truth = np.ma.array(Y.toarray(), mask=Y.toarray() > 0)
    with pytest.raises(DataError, match=r"Y is masked at \["):
        fit(X, truth)
    with pytest.raises(DataError, match="masked"):
        TextRows(masked)


def same_answers(one, other, rows):
    for mine, its in zip(one.predict_topk(rows), other.predict_topk(rows), strict=True):
        np.testing.assert_array_equal(mine, its)
    assert repr(one) == repr(other)


def test_a_model_round_trips_through_a_single_file(texts, tmp_path):
    model, rows = texts
    content = model.to_bytes()
    assert content == model.to_bytes()
    model.save(tmp_path / "m.zip")
    assert (tmp_path / "m.zip").read_bytes() == content
    with (tmp_path / "m.zip").open("rb") as file:
        same_answers(open_model(file), model, rows)
    for source in (content, tmp_path / "m.zip", str(tmp_path / "m.zip"), io.BytesIO(content)):
        same_answers(open_model(source), model, rows)
    same_answers(pickle.loads(pickle.dumps(open_model(content))), model, rows)
    with pytest.raises(ModelError, match=r"m\.zip already exists"):
        model.save(tmp_path / "m.zip")
    model.save(tmp_path / "m.zip", overwrite=True)
    open_model(content).save(tmp_path / "directory")
    same_answers(open_model(tmp_path / "directory"), model, rows)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def zipped(entries, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as packed, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about duplicate names
        for name, content in entries:
            packed.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "name",
    [
        "../labels.safetensors",
        "/labels.safetensors",
        "labels/x.safetensors",
        "labels\\..\\x",
        "labels/../../x.safetensors",
        ".lock",
        ".data-1",
        "other.txt",
    ],
)
def test_a_single_file_unpacks_only_model_files(name, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ModelError, match="is not a file of a model"):
        open_model(zipped([(name, b"x")]))
    assert list(tmp_path.iterdir()) == []


def test_damage_to_a_single_file_is_refused(texts):
    content = texts[0].to_bytes()
    entries = zipfile.ZipFile(io.BytesIO(content))
    files = [(name, entries.read(name)) for name in entries.namelist()]
    for wrong, reason in [
        (zipped(files, zipfile.ZIP_DEFLATED), "is compressed"),
        (zipped([*files, files[0]]), "same name"),
        (zipped([f for f in files if f[0] != "manifest.json"]), "not a dismec model"),
        (zipped([f for f in files if f[0] != "labels.safetensors"]), "missing"),
        (zipped([(n, c + b" " * (n == "labels.safetensors")) for n, c in files]), "SHA-256"),
        (b"", "not a model in a single file"),
        (b"PK\x05\x06" + bytes(18), "not a dismec model"),
        (content[:-30], "not a model in a single file"),
        (io.StringIO("text"), "binary mode"),
    ]:
        with pytest.raises(ModelError, match=reason) as caught:
            open_model(wrong)
        assert "/tmp" not in str(caught.value)
    rng = np.random.default_rng(0)
    directory = content.index(b"PK\x01\x02")
    for begin in [0, directory] * 150:
        changed = bytearray(content)
        changed[int(rng.integers(begin, len(content)))] ^= 1 << int(rng.integers(8))
        with contextlib.suppress(ModelError):
            same_answers(open_model(bytes(changed)), *texts)


def test_every_model_checks_rows_in_the_same_way():
    """What is refused here is also refused on a cluster and by the server."""
    for kind in (Model, ClusterModel):
        assert kind.predict_topk is Model.predict_topk
        assert kind.evaluate is Model.evaluate


def test_labels_to_train_and_evaluate_on_may_be_lists_or_a_frame(tmp_path):
    X, Y = random_problem(rows=120, labels=5)
    names = ["e", "d", "c", "b", "a"]
    lists = [[names[label] for label in row.nonzero()[0]] for row in Y.toarray()]
    frame = pd.DataFrame(Y.toarray(), columns=names)
    expected = train(X, Y, tmp_path / "one", names=names)
    known = expected.evaluate(X, Y)
    for labels in (lists, [set(row) for row in lists], pd.Series(lists), frame):
        model = fit(X, labels)
        assert set(model.names) == set(names)
        assert model.nnz == expected.nnz
        assert model.evaluate(X, labels) == pytest.approx(known)
        assert expected.evaluate(X, labels) == pytest.approx(known)
    for order in (["a", "b", "c", "d", "e"], ["c", "a", "e", "b", "d"]):
        assert expected.evaluate(X, frame[order]) == pytest.approx(known)
    new = expected.evaluate(X, frame.rename(columns={"e": "new"}))
    assert new["R@5"] < known["R@5"]
    named = fit(X, lists, names=names)
    assert list(named.names) == names
    params = TrainingParams(delta="auto")
    for other in (lists, frame[["c", "a", "e", "b", "d"]], Y):
        chosen = fit(X, Y, params, names=names, validation=(X, other))
        assert chosen.params["delta_effect"]["before"]["P@1"] > 30
    assert (
        fit(X, Y, params, names=names, validation=(X, lists)).params["delta_auto"]
        == (fit(X, Y, params, names=names, validation=(X, Y)).params["delta_auto"])
    )
    with pytest.raises(DataError, match="the label 'a' is text, but labels have numbers"):
        fit(X, Y).evaluate(X, lists)


def test_text_is_read_as_a_number_only_without_names(tmp_path):
    X, Y = random_problem()
    names = [str(10 * label) for label in range(Y.shape[1])]
    named = train(X, Y, tmp_path / "named", names=names)
    assert named.find_label("20") == 2
    assert named.find_label(2) == 2
    for labels in (["1"], "20", 20):
        with pytest.raises(DataError):
            named.subset(labels)
    assert train(X, Y, tmp_path / "numbered").find_label("3") == 3


def test_a_single_file_is_checked_before_its_files_are_written(texts, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    content = texts[0].to_bytes()
    entries = zipfile.ZipFile(io.BytesIO(content))
    files = [(name, entries.read(name)) for name in entries.namelist()]
    many = [(f"shard-{i:06d}.safetensors", b"") for i in range(1000, 20_000)]
    for more in (many, [(f"labels{'x' * 300}.safetensors", b"x")]):
        begin = time.thread_time()
        with pytest.raises(ModelError, match=r"the manifest does not name '(shard|labels)"):
            open_model(zipped([*more, *files]))
        assert time.thread_time() - begin < 5
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_no_part_of_a_model_that_is_saved(texts, tmp_path):
    texts[0].save(tmp_path / "old")
    before = sorted(path.name for path in (tmp_path / "old").iterdir())
    with mock.patch.object(weight_files, "write_shard", side_effect=OSError(28, "full")):
        for name in ("old", "new"):
            with pytest.raises(OSError, match="full"):
                texts[0].save(tmp_path / name, overwrite=True)
    assert sorted(path.name for path in (tmp_path / "old").iterdir()) == before
    assert [path.name for path in (tmp_path / "new").iterdir()] == [".lock"]
    same_answers(open_model(tmp_path / "old"), *texts)


def test_a_model_in_a_single_file_is_inspected_like_a_directory(texts, tmp_path):
    texts[0].save(tmp_path / "model")
    texts[0].save(tmp_path / "model.zip")
    described = []
    for name in ("model", "model.zip"):
        result = CliRunner().invoke(main, ["inspect", str(tmp_path / name), "--json"])
        assert result.exit_code == 0, result.output
        described.append(json.loads(result.stdout))
    assert described[0] == described[1]
