"""Wording of messages: counts, rows and indices, and values of the wrong kind."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

import dismec
from conftest import random_problem
from dismec import DataError, Hierarchy
from dismec.cli import main
from dismec.data.corpus import read_frame, read_texts
from dismec.data.counts import counted
from dismec.data.dataset import Dataset, save_data
from dismec.data.names import Names, pack_names
from dismec.data.text_format import TextFormat
from dismec.data.weights import load_row_weights

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "dismec"
# Things counted in messages, right after the number.
THINGS = re.compile(
    r" (?:labels|rows|features|dense features|names|label names|texts|columns|classes|values|terms|"
    r"numbers|entries|places|threads|blocks|models|test rows|training rows)\b"
)
# Text that dismec itself reads, messages about damaged files, and counts that are never 1.
EXEMPT = {
    "model/provenance.py",
    "model/manifest.py",
    "model/parts.py",
    "model/classifiers.py",
    "model/calibration.py",
    "model/scoring.py",
    "model/weight_files.py",
    "compare/worker.py",
    "data/text_readers.py",
}


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def refused(*arguments):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return result.stderr.strip().splitlines()[-1]


def plain_counts(text):
    """Find numbers in f-strings that are followed by a plural whatever their value."""
    for node in ast.walk(ast.parse(text)):
        parts = node.values if isinstance(node, ast.JoinedStr) else []
        for place, part in enumerate(parts[:-1]):
            after = getattr(parts[place + 1], "value", None)
            before = getattr(parts[place - 1], "value", "") if place else ""
            if not isinstance(part, ast.FormattedValue) or not isinstance(after, str):
                continue
            is_number = re.search(r"\blen\(|shape\[|\bn_|nnz|\.size|count", ast.unparse(part.value))
            # "3 of 1 labels" is a total, "80 × 1 labels" a shape.
            whole = isinstance(before, str) and before.endswith(("of ", "of the ", "× ", "and "))
            if is_number and THINGS.match(after) and not whole:
                yield ast.unparse(part.value) + after


def test_counts_in_messages_have_a_singular():
    assert list(plain_counts('f"{len(x)} labels removed"')) == ["len(x) labels removed"]
    found = {
        path: names
        for file in PACKAGE.rglob("*.py")
        if (path := file.relative_to(PACKAGE).as_posix()) not in EXEMPT
        and (names := list(plain_counts(file.read_text())))
    }
    assert found == {}


def test_counted_has_the_number_and_the_plural():
    given = [(1, "label"), (0, "label"), (2500, "dense feature"), (3, "class"), (2, "entry")]
    assert [counted(n, what) for n, what in given] == [
        "1 label",
        "0 labels",
        "2,500 dense features",
        "3 classes",
        "2 entries",
    ]


def test_one_label_is_removed_in_the_singular(tmp_path):
    train = tmp_path / "texts.jsonl"
    train.write_text(
        "".join(
            json.dumps({"text": f"word{i % 3} more", "labels": [f"l{i % 3}"]}) + "\n"
            for i in range(30)
        )
    )
    assert run("train", train, "-o", tmp_path / "model").exit_code == 0
    (tmp_path / "gone.txt").write_text("l1\n")
    result = run("remove-labels", tmp_path / "model", "--labels", tmp_path / "gone.txt")
    assert result.exit_code == 0, result.output
    assert "1 label removed" in result.stderr


def test_rows_of_files_count_from_1_and_those_of_python_say_index(tmp_path):
    frame = pd.DataFrame({"text": ["a", None], "labels": [["x"], ["y"]]})
    frame.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"rows\.parquet: row 2: 'text' is"):
        list(read_texts(tmp_path / "rows.parquet"))
    with pytest.raises(DataError, match="the DataFrame: row index 1: 'text' is"):
        list(read_frame(frame))
    np.save(tmp_path / "weights.npy", np.array([1.0, -1.0]))
    with pytest.raises(DataError, match=r"weights\.npy: row 2: the weight is -1"):
        load_row_weights(tmp_path / "weights.npy")
    X = sp.csr_array(np.float32([[1, 0], [0, np.nan]]))
    with pytest.raises(DataError, match="row index 1, feature 1: nan"):
        dismec.train(X, np.eye(2), tmp_path / "model")
    with pytest.raises(DataError, match=r"x\.xmc: X, row 2: the value nan is not finite"):
        save_data(Dataset(X, sp.csr_array(np.eye(2))), tmp_path / "x.xmc")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    X, Y = random_problem(rows=60, labels=4)
    names = ["a", "b", "c", "7"]
    return dismec.train(X, Y, tmp_path_factory.mktemp("messages") / "model", names=names)


@pytest.mark.parametrize("k", [2.5, "3", None])
def test_k_that_is_not_a_whole_number_is_refused(model, k):
    X = random_problem(rows=3)[0]
    reason = "k is .*; expected a whole number of at least 1"
    with pytest.raises(DataError, match=reason):
        model.predict_topk(X, k)
    with pytest.raises(DataError, match=reason):
        model.evaluate(X, np.ones((3, 4)), [1, k])
    with pytest.raises(DataError, match=reason):
        dismec.evaluate(np.ones((3, 4)), [[0]] * 3, [k])
    with pytest.raises(DataError, match=reason):
        dismec.DiSMECClassifier().fit(X, [0, 1, 1]).predict_topk(X, k)


def test_a_single_number_as_ks_is_refused(model):
    with pytest.raises(DataError, match=r"ks is 5; expected values of k such as \(1, 3, 5\)"):
        model.evaluate(random_problem(rows=3)[0], np.ones((3, 4)), 5)


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ({"pug": "dogs"}, r"expected a list of pairs \(child, parent\): pass its items\(\)"),
        ("pug", "expected a list of pairs"),
        (None, "expected a list of pairs"),
        ([("pug", 3)], r"pair index 0: \('pug', 3\) is not a pair of names"),
        (["ab"], "pair index 0: 'ab' is not a pair of names"),
        ([("a", "b"), ("a", "b", "c")], "pair index 1: .* is not a pair of names"),
        ([3], "pair index 0: 3 is not a pair of names"),
    ],
)
def test_a_hierarchy_that_is_not_pairs_is_refused(pairs, reason):
    with pytest.raises(DataError, match=reason):
        Hierarchy(pairs)


def test_a_hierarchy_takes_the_items_of_a_dict_and_lists():
    assert Hierarchy({"pug": "dogs"}.items()).ancestors("pug") == ["dogs"]
    assert Hierarchy([["pug", "dogs"]]).ancestors("pug") == ["dogs"]


@pytest.mark.parametrize("source", [["a text", "another"], 3, {"text": ["a"]}, None])
def test_texts_that_are_neither_a_file_nor_a_frame_are_refused(source, tmp_path):
    with pytest.raises(DataError, match=r"expected a file, or a frame .* DiSMECTextClassifier"):
        dismec.train_text(source, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_one_label_per_row_is_measured_as_lists_of_one(model):
    X, _ = random_problem(rows=60, labels=4)
    rng = np.random.default_rng(0)
    names = rng.choice([*model.names, "unknown"], 60)
    wanted = model.evaluate(X, [[name] for name in names])
    for labels in (names.tolist(), names, names.astype(object), pd.Series(names)):
        assert model.evaluate(X, labels) == wanted


def test_one_number_per_row_is_measured_for_labels_without_names(tmp_path):
    X, Y = random_problem(rows=60, labels=4)
    model = dismec.train(X, Y, tmp_path / "model")
    labels = np.random.default_rng(0).integers(0, 4, 60)
    wanted = model.evaluate(X, np.eye(4)[labels])
    for given in (labels, labels.tolist(), labels.astype(np.float64), pd.Series(labels)):
        assert model.evaluate(X, given) == wanted
    with pytest.raises(DataError, match="the label -1 is negative; label numbers start at 0"):
        model.evaluate(X, labels - 1)
    with pytest.raises(DataError, match="the label 'a' is text"):
        model.evaluate(X, ["a"] * 60)


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "jsonl", "frame"])
def test_whole_numbers_are_the_same_labels_as_floats(tmp_path, ending):
    """Pandas turns whole numbers into floats if some are missing."""
    frame = pd.DataFrame({"text": ["a", "b", "c"], "labels": [1, None, 20]})
    assert frame["labels"].dtype == np.float64
    path = tmp_path / f"rows.{ending}"
    match ending:
        case "csv" | "tsv":
            frame.to_csv(path, index=False, sep="\t" if ending == "tsv" else ",")
            assert "1.0" in path.read_text()
        case "parquet":
            frame.to_parquet(path)
        case "jsonl":
            path.write_text(
                '{"text": "a", "labels": 1.0}\n{"text": "b", "labels": []}\n'
                '{"text": "c", "labels": [20.0]}\n'
            )
    read = read_frame(frame) if ending == "frame" else read_texts(path)
    assert [row for batch in read for row in batch.labels] == [["1"], [], ["20"]]
    target = dismec.DiSMECTextClassifier().fit(["aa", "bb", "aa", "bb"], [1.0, 20.0, 1, 20])
    assert target.classes_.tolist() == [1, 20]


def test_fractions_are_not_labels_and_text_is_unchanged(tmp_path):
    frame = pd.DataFrame({"text": ["a"], "labels": [1.5]})
    with pytest.raises(DataError, match=r"row index 0: the labels are 1\.5; expected names"):
        list(read_frame(frame))
    frame.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"row 1: the labels are 1\.5; expected names"):
        list(read_texts(tmp_path / "rows.parquet"))
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a", "labels": ["1.0", "v2.0"]}\n')
    assert next(read_texts(path)).labels == [["1.0", "v2.0"]]
    path = tmp_path / "rows.csv"
    path.write_text("text,labels\na,v2.0|1.|1.00|3.0\n")
    fmt = TextFormat(label_separator="|")
    assert next(read_texts(path, fmt)).labels == [["v2.0", "1.", "1.00", "3"]]


def test_the_repr_of_names_shows_the_first_ones():
    assert repr(Names(*pack_names(["a", "b c"]))) == "Names(['a', 'b c'])"
    many = Names(*pack_names(f"n{i}" for i in range(1234)))
    assert repr(many) == "Names(['n0', 'n1', 'n2', 'n3', 'n4', 'n5', … 1,234 in all])"


def test_names_of_a_model_are_shown(model):
    assert str(model.names) in ("Names(['a', 'b', 'c', '7'])", "['a', 'b', 'c', '7']")


def test_convert_reports_what_it_reads(tmp_path):
    (tmp_path / "odd.csv").write_text("1,2,3\n4,5,6\n")
    reason = refused("convert", tmp_path / "odd.csv", tmp_path / "out.xmc")
    assert "odd.csv holds texts (CSV), which train and predict read as they are" in reason
    assert "convert needs numeric data: XMC text or svmlight, .npz, .xmc" in reason
    assert not (tmp_path / "out.xmc").exists()


@pytest.mark.parametrize("content", ["", "\n\n", "child\tparent\n", "parent,child\n\n"])
def test_an_empty_hierarchy_file_is_refused(tmp_path, content):
    path = tmp_path / "tree.tsv"
    path.write_text(content)
    with pytest.raises(DataError, match=r"tree\.tsv: no pairs of child and parent"):
        Hierarchy.load(path)


@pytest.mark.parametrize("value", ["3,1", "0,2", "-1", "1,2,3", "x", "1.5", ""])
def test_invalid_ngram_ranges_are_refused_in_the_words_of_the_command_line(tmp_path, value):
    (tmp_path / "texts.jsonl").write_text('{"text": "a b", "labels": ["x"]}\n')
    for flag in ("--word-ngrams", "--char-ngrams"):
        said = refused("train", tmp_path / "texts.jsonl", "-o", tmp_path / "model", flag, value)
        assert f"'{flag}': {value!r} is not a range of lengths" in said
        assert "(" not in said


def test_the_longest_ngram_is_named_without_python_notation(tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"text": "a b", "labels": ["x"]}\n')
    for value in ("1,99", "99"):
        arguments = ("train", tmp_path / "texts.jsonl", "-o", tmp_path / "model")
        said = refused(*arguments, "--word-ngrams", value)
        assert "--word-ngrams" in said
        assert "(" not in said


def test_messages_about_very_long_values_are_shortened():
    message = str(DataError(f"label {'x' * 10**6} is outside 0 … 5"))
    assert len(message) < 2100
    assert message.startswith("label xxx")
    assert message.endswith("is outside 0 … 5")
