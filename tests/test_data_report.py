"""What `dismec inspect` finds in the labels and rows of data, and what guessing would achieve."""

from __future__ import annotations

import csv
import json
from itertools import combinations, permutations

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import random_problem
from dismec import train
from dismec.cli import main
from dismec.data.dataset import Dataset, save_data
from dismec.measure.breakdown import precision_of_guesses
from dismec.measure.metrics import Truth
from dismec.report import label_facts
from dismec.report.duplicates import Duplicates, describe_duplicates, row_hashes
from dismec.report.evaluation import describe_test
from dismec.report.facts import describe_data, describe_texts
from dismec.report.label_facts import describe_labels, one_edit_apart, same_words, words_of
from dismec.report.sections import list_anomalies, percent, summarize_data, summarize_test


def invoke(*args):
    return CliRunner().invoke(main, list(map(str, args)))


def indicator(rows, n_labels):
    Y = np.zeros((len(rows), n_labels), np.uint8)
    for row, labels in enumerate(rows):
        Y[row, list(labels)] = 1
    return sp.csr_array(Y)


# Guesses


def truth_of(rows, counts):
    return Truth.align(indicator(rows, len(counts)), np.array(counts), 10)


def test_guessing_at_random_is_the_average_over_all_draws():
    truth = truth_of([{0, 1}, {2}, set(), {0, 3, 4}], [9, 4, 4, 1, 0])
    found = precision_of_guesses(truth, (1, 3, 5))["random labels"]
    for k in (1, 3, 5):
        reached = [
            truth.metrics(np.tile(np.array(drawn), (4, 1)), (k,))[f"P@{k}"]
            for drawn in permutations(range(4), min(k, 4))  # label 4 has no training rows
        ]
        assert found[f"P@{k}"] == pytest.approx(np.mean(reached))


def test_guessing_frequent_labels_equals_predicting_them():
    truth = truth_of([{0, 1}, {2}, {1}, {0, 3}], [3, 9, 9, 1])
    found = precision_of_guesses(truth, (1, 3, 5))["most frequent labels"]
    always = truth.metrics(np.tile([1, 2, 0, 3, -1], (4, 1)), (1, 3, 5))
    assert found == {key: pytest.approx(always[key]) for key in ("P@1", "P@3", "P@5")}
    assert found["P@1"] == 50


def test_the_headline_states_quality_data_and_guesses(tmp_path):
    X, Y = random_problem()
    test = describe_test(train(X, Y, tmp_path / "model"), Dataset(X, Y))
    first = summarize_test(test)[0]
    assert first.startswith(f"For {percent(test['metrics']['P@1'])} of 300 test rows, ")
    assert percent(test["metrics"]["P@1"]) in first
    assert percent(test["guesses"]["most frequent labels"]["P@1"]) in first
    assert percent(test["guesses"]["random labels"]["P@1"]) in first
    save_data(Dataset(X, Y), tmp_path / "data.txt")
    result = invoke("inspect", tmp_path / "model", "--test", tmp_path / "data.txt")
    said = "".join(result.stdout.split())  # regardless of line breaks
    share = percent(test["metrics"]["P@1"])
    assert said.startswith("".join(f"For{share}of300testrowsof{tmp_path}/data.txt,".split()))


def test_rows_without_labels_and_unknown_labels_are_reported_with_the_headline(tmp_path):
    X, Y = random_problem(rows=60, labels=4)
    model = train(X, Y, tmp_path / "model")
    unknown = sp.csr_array(np.eye(60, 1, dtype=np.uint8))
    blank = sp.csr_array(sp.vstack([sp.csr_array((1, 4), dtype=np.uint8), Y[1:]]))
    test = describe_test(model, Dataset(X, sp.csr_array(sp.hstack([blank, 0 * unknown]))))
    assert test["rows without labels"] >= 1
    assert "no labels: no prediction can be right there" in " ".join(summarize_test(test))
    test = describe_test(model, Dataset(X, sp.csr_array(sp.hstack([Y, unknown]))))
    assert test["pairs with unknown labels"] == 1
    assert "unknown to the model" in " ".join(summarize_test(test))


def test_label_metrics_that_were_not_measured_are_none(tmp_path):
    X, Y = random_problem(rows=60, labels=8)
    model = train(X, Y, tmp_path / "model")
    kept = np.flatnonzero(np.asarray(Y[:, [0]].todense()).ravel() == 0)
    columns = describe_test(model, Dataset(X[kept], Y[kept]))["all labels"]
    place = columns["label"].index(0)
    assert columns["test rows"][place] == 0
    assert columns["recall"][place] is None
    assert columns["F1"][place] is None
    assert len(columns["name"]) == 8
    assert columns["training rows"] == sorted(columns["training rows"], reverse=True)


# Names


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Food safety", "food-safety"),
        ("e-mail", "E-Mails"),
        ("ice  cream", "icecream"),
        ("category", "Categories"),
        ("node.js", "Node JS"),
        ("straße", "STRASSE"),
        ("U.S.", "us"),
    ],
)
def test_names_that_differ_in_case_spaces_signs_or_plural_are_alike(one, other):
    assert same_words([words_of(one), "something", words_of(other)]) == [[0, 2]]


@pytest.mark.parametrize(
    ("one", "other"),
    [("C", "C++"), ("C#", "C"), ("1.5", "15"), ("10-12", "1012"), ("glass", "glas"), ("!", "?")],
)
def test_names_that_differ_in_other_ways_are_not_alike(one, other):
    assert same_words([words_of(one), words_of(other)]) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("colour", "color"),
        ("machine lerning", "Machine Learning"),
        ("recieve", "receive"),
        ("yoghurt", "yogurts"),
    ],
)
def test_names_one_edit_apart_are_found(one, other):
    assert one_edit_apart([words_of(one), words_of(other)]) == [(0, 1)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("coffee", "toffee"),
        ("vitamin a", "vitamin b"),
        ("films of 2018", "films of 2019"),
        ("bread", "broad"),
        ("Food safety", "food-safety"),
    ],
)
def test_names_that_only_seem_one_edit_apart_are_not_paired(one, other):
    assert one_edit_apart([words_of(one), words_of(other)]) == []


def is_pair(one, other):
    """Whether words are one edit apart after the first letter, by trying every edit."""
    if len(one) > len(other):
        one, other = other, one
    if len(other) < 6 or one == other:
        return False
    edits = {other[:i] + other[i + 1 :] for i in range(1, len(other))}
    if len(one) == len(other):
        edits = {
            other[:i] + letter + other[i + 1 :] for i in range(1, len(other)) for letter in "abx"
        }
        edits |= {
            other[:i] + other[i + 1] + other[i] + other[i + 2 :] for i in range(1, len(other) - 1)
        }
    return one in edits


@settings(deadline=None)
@given(st.lists(st.text("abx", min_size=4, max_size=8), max_size=40, unique=True))
def test_pairs_are_those_that_comparing_all_with_all_finds(words):
    expected = [
        (i, j) for i, j in combinations(range(len(words)), 2) if is_pair(words[i], words[j])
    ]
    assert one_edit_apart(words) == expected


# Labels


def test_labels_are_named_by_frequency_and_rarity():
    Y = indicator([{0, 2}, {0}, {0, 1}, {3}, {3}], 5)
    facts = describe_labels(Y, ["many", "once", "rare", "two", "never"])
    frequent = [(e["name"], e["rows"]) for e in facts["most frequent labels"]]
    assert frequent == [("many", 3), ("two", 2), ("once", 1), ("rare", 1)]
    assert facts["rare labels"] == {"1 row": 2, "examples": ["once", "rare"]}
    assert facts["all labels"] == {
        "label": [0, 3, 1, 2, 4],
        "name": ["many", "two", "once", "rare", "never"],
        "rows": [3, 2, 1, 1, 0],
    }
    assert describe_labels(Y)["most frequent labels"][0]["name"] == "0"
    assert "similar names" not in describe_labels(Y)


def test_similar_names_are_listed_with_their_rows_most_certain_first():
    names = ["machine learning", "Machine-Learning", "cooking", "machine lerning"]
    facts = describe_labels(indicator([{0}, {0, 1}, {2}, {3}], 4), names)["similar names"]
    assert (facts["same words"], facts["one edit"]) == (1, 1)
    first, second = facts["examples"]
    assert (first["names"], first["rows"]) == (names[:2], [2, 1])
    assert second["names"] == [names[0], names[3]]
    assert second["differ by"] == "one letter"


@settings(deadline=None)
@given(st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=12))
def test_labels_with_the_same_rows_are_those_with_equal_columns(rows):
    Y = indicator(rows, 6)
    columns = Y.toarray().T
    expected = {}
    for label, column in enumerate(columns):
        if column.sum() > 1:
            expected.setdefault(column.tobytes(), []).append(str(label))
    groups = [names for names in expected.values() if len(names) > 1]
    found = describe_labels(Y)["labels with the same rows"]
    assert sorted(e["names"] for e in found["examples"]) == sorted(groups)
    assert found["groups"] == len(groups)
    assert found["labels"] == sum(map(len, groups))


def test_co_occurring_labels_are_counted_exactly(monkeypatch):
    rng = np.random.default_rng(0)
    Y = (rng.random((200, 12)) < np.linspace(0.5, 0.05, 12)).astype(np.uint8)
    Y[:, 11] = Y[:, 0] & Y[:, 1]
    facts = describe_labels(sp.csr_array(Y))["labels that occur together"]
    assert facts["of labels"] == 12
    for entry in facts["pairs"]:
        a, b = (Y[:, int(name)].astype(bool) for name in entry["names"])
        assert entry["rows"] == [a.sum(), b.sum()]
        assert entry["together"] == (a & b).sum()
        assert entry["Jaccard"] == pytest.approx((a & b).sum() / (a | b).sum(), abs=1e-4)
        assert entry["lift"] == pytest.approx((a & b).mean() / (a.mean() * b.mean()), abs=0.01)
    jaccard = [entry["Jaccard"] for entry in facts["pairs"]]
    assert jaccard == sorted(jaccard, reverse=True)
    # If rows have very many labels, fewer labels are examined; their counts stay exact.
    monkeypatch.setattr(label_facts, "_MOST_MEETINGS", 2000)
    fewer = describe_labels(sp.csr_array(Y))["labels that occur together"]
    assert 2 <= fewer["of labels"] < 12
    names = {name for entry in fewer["pairs"] for name in entry["names"]}
    assert [e for e in facts["pairs"] if set(e["names"]) <= names][: len(fewer["pairs"])] == (
        fewer["pairs"]
    )


@pytest.mark.parametrize("shape", [(3, 0), (2, 1), (1, 3)])
def test_data_with_few_or_no_labels_has_facts(shape):
    facts = describe_labels(sp.csr_array(shape, dtype=np.uint8))
    assert facts["most frequent labels"] == []
    assert facts["labels that occur together"]["pairs"] == []


# Rows


def test_duplicate_texts_are_found_across_batches_whatever_their_white_space():
    duplicates = Duplicates()
    duplicates.add(["a  b", "other", "", "x" * 200])
    duplicates.add(["a b\n", "", "x" * 200, " a b"])
    Y = indicator([{0}, {1}, set(), {0, 1}, {0}, set(), {0, 1}, {1}], 2)
    facts = duplicates.facts(Y)
    assert (facts["groups"], facts["rows"], facts["groups whose labels differ"]) == (2, 5, 1)
    first, second = facts["examples"]
    assert first == {"times": 3, "rows": [1, 5, 8], "labels differ": True, "text": "a b"}
    assert (second["rows"], second["labels differ"]) == ([4, 7], False)
    assert second["text"] == "x" * 120 + "…"


def test_duplicate_rows_have_the_same_features_and_values():
    X = sp.csr_array(
        np.array([[1, 0, 2], [1, 0, 2], [0, 1, 2], [1, 0, 3], [0, 0, 0], [0, 0, 0]], np.float32)
    )
    facts = describe_duplicates(row_hashes(X), indicator([{0}, {0}, {0}, {0}, {0}, {0}], 1))
    assert (facts["groups"], facts["rows"], facts["groups whose labels differ"]) == (1, 2, 0)
    assert facts["examples"] == [{"times": 2, "rows": [1, 2], "labels differ": False}]


# The command


@pytest.fixture
def odd(tmp_path):
    """Texts with every oddity that is reported."""
    rows = [
        ("apple pie", ["fruit", "Baking"]),
        ("apple  pie", ["fruit"]),
        ("pear tart", ["fruits", "baking"]),
        ("plain", []),
        ("", ["fruit"]),
        *((f"cake {i}", ["cake", "dessert", "sweet"]) for i in range(5)),
        ("jelly", ["dessert"]),
    ]
    lines = [json.dumps({"text": text, "labels": labels}) for text, labels in rows]
    (tmp_path / "odd.jsonl").write_text("\n".join(lines))
    return tmp_path / "odd.jsonl"


def test_every_oddity_is_reported_in_the_terminal(odd):
    facts = describe_texts(odd)
    lines = list_anomalies(facts)
    for words in (
        "1 row without labels",
        "1 row without text",
        "2 groups of names that differ only in case",
        "1 group of labels that never occur apart",
        "1 text occurs more than once, with different labels",
    ):
        assert any(words in line for line in lines)
    assert "11 rows with" in summarize_data(facts)[0]
    assert "“dessert”" in summarize_data(facts)[1]
    said = " ".join(invoke("inspect", odd).stdout.split())
    for name in ("fruits", "Baking", "apple pie", "dessert", "Check before training"):
        assert name in said


def test_data_without_oddities_reports_none(tmp_path):
    text = '{"text": "a", "labels": ["x"]}\n{"text": "b", "labels": ["x"]}\n'
    (tmp_path / "a.jsonl").write_text(text)
    assert list_anomalies(describe_texts(tmp_path / "a.jsonl")) == []


def test_labels_of_numeric_data_have_the_names_that_are_given(tmp_path):
    X, Y = random_problem(rows=60, labels=3)
    save_data(Dataset(X, Y), tmp_path / "data.txt")
    (tmp_path / "names.txt").write_text("one\ntwo\nthree\n")
    assert describe_data(tmp_path / "data.txt", names=["a", "b", "c"])["label names"]
    found = invoke(
        "inspect", tmp_path / "data.txt", "--label-names", tmp_path / "names.txt", "--json"
    )
    names = {e["name"] for e in json.loads(found.stdout)["most frequent labels"]}
    assert names == {"one", "two", "three"}


def test_all_labels_are_written_as_csv_with_their_names_intact(tmp_path):
    names = ['commas, and "quotes"', "Änderung", "two\nlines"]
    rows = [{"text": f"t{i}", "labels": [name]} for i, name in enumerate(names)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert invoke("inspect", tmp_path / "a.jsonl", "--csv", tmp_path / "labels.csv").exit_code == 0
    with (tmp_path / "labels.csv").open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert [row["name"] for row in found] == names
    assert {row["rows"] for row in found} == {"1"}


def test_csv_of_a_model_needs_test_data(tmp_path):
    X, Y = random_problem(rows=60, labels=3)
    train(X, Y, tmp_path / "model")
    save_data(Dataset(X, Y), tmp_path / "data.txt")
    result = invoke("inspect", tmp_path / "model", "--csv", tmp_path / "x.csv")
    assert result.exit_code == 2
    assert "--csv requires --test for a model" in result.stderr
    test = ("--test", tmp_path / "data.txt", "--csv", tmp_path / "x.csv")
    assert invoke("inspect", tmp_path / "model", *test).exit_code == 0
    assert (tmp_path / "x.csv").read_text().startswith("label,name,training rows,test rows,")


@pytest.mark.parametrize(
    "command",
    [
        ["inspect", "nothing.txt", "--html", "out"],
        ["inspect", "nothing.txt", "--csv", "out"],
        ["convert", "nothing.txt", "out"],
    ],
)
def test_an_existing_output_is_refused_before_data_is_read(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").write_text("precious")
    result = invoke(*command)
    assert result.exit_code == 2
    assert "out exists: choose another file, or use --overwrite" in result.stderr
    result = invoke(*command, "--overwrite")
    assert "nothing.txt: No such file or directory" in result.stderr
    assert (tmp_path / "out").read_text() == "precious"


def test_unwritable_outputs_are_refused_before_data_is_read(tmp_path):
    for target in (tmp_path, tmp_path / "no" / "x.html"):
        result = invoke("inspect", "nothing.txt", "--html", target)
        assert result.exit_code == 2
        assert "directory" in result.stderr
        assert "nothing.txt" not in result.stderr
    twice = invoke("inspect", "nothing.txt", "--html", tmp_path / "x", "--csv", tmp_path / "x")
    assert "is given twice" in twice.stderr


def test_outputs_are_overwritten_on_request(odd, tmp_path):
    page = tmp_path / "page.html"
    for more in ([], ["--overwrite"]):
        assert invoke("inspect", odd, "--html", page, *more).exit_code == 0
    assert invoke("inspect", odd, "--html", page).exit_code == 2
    X, Y = random_problem(rows=20, labels=3)
    save_data(Dataset(X, Y), tmp_path / "data.txt")
    for more in ([], ["--overwrite"]):
        convert = ("convert", tmp_path / "data.txt", tmp_path / "data.xmc")
        assert invoke(*convert, *more).exit_code == 0
    assert invoke(*convert).exit_code == 2


@pytest.mark.parametrize("options", [[], ["--text"], ["--format", "svm"]])
def test_generate_never_overwrites_data_unasked(tmp_path, options):
    command = ["generate", "-o", tmp_path, "--rows", 20, "--features", 50, "--labels", 5, *options]
    assert invoke(*command).exit_code == 0
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    result = invoke(*command, "--seed", 1)
    assert result.exit_code == 2
    assert "exists: choose another file, or use --overwrite" in result.stderr
    assert before == {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    facts = json.loads(invoke(*command, "--overwrite", "--json").stdout)
    assert {facts["train"], facts["test"]} == {str(path) for path in tmp_path.iterdir()}
    assert (facts["rows"], facts["test_rows"]) == (20, 4)


def test_convert_reports_json_and_says_when_names_are_lost(tmp_path):
    X, Y = random_problem(rows=20, labels=3)
    save_data(Dataset(X, Y, ["a", "b", "c"]), tmp_path / "data.xmc")
    result = invoke("convert", tmp_path / "data.xmc", tmp_path / "data.txt", "--json")
    facts = json.loads(result.stdout)
    assert (facts["rows"], facts["labels"], facts["label names"]) == (20, 3, False)
    assert "cannot hold the 3 label names" in result.stderr
    kept = invoke("convert", tmp_path / "data.xmc", tmp_path / "copy.xmc")
    assert "label names" not in kept.stderr
    assert "20 rows" in kept.stderr
