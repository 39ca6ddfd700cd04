"""What `dismec inspect` says about data and models."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.resources import files as files_of
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from conftest import random_problem, train_unfinished, weight_files
from dismec import TrainingParams, open_model, train
from dismec.cli import main
from dismec.data.dataset import Dataset, save_data
from dismec.data.targets import propensities
from dismec.errors import DataError
from dismec.features.transform import Transform
from dismec.measure import metrics
from dismec.measure.breakdown import (
    POINTS,
    by_group,
    by_label,
    describe_frequencies,
    frequency_groups,
    spread_ranks,
)
from dismec.measure.metrics import reliability
from dismec.model.directory import read_manifest
from dismec.report.estimate import estimate_training, summarize_estimate
from dismec.report.evaluation import describe_test
from dismec.report.facts import describe_data, describe_model, describe_texts
from dismec.report.inspection import make_page, write_page
from dismec.solve.block import BINS, EDGES, SIDE, BlockStats, count_weights
from dismec.solve.problem import Problem, SolverParams
from dismec.solve.threads import solve_blocks

EVIL = "<script>alert('é & \"x\"')</script>"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A data file with label names, one of them malicious, and a calibrated model of it."""
    folder = tmp_path_factory.mktemp("report")
    X, Y = random_problem()
    names = [EVIL, *(f"label {i}" for i in range(1, Y.shape[1]))]
    save_data(Dataset(X, Y, names), folder / "data.xmc")
    train(X, Y, folder / "model", TrainingParams(calibrate=True), names=names)
    return folder


def ok(*args):
    result = CliRunner().invoke(main, list(map(str, args)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


class Page(HTMLParser):
    """Parses a page; checks that tags nest, and that it loads and runs nothing foreign."""

    VOID = ("meta", "img", "input")

    def __init__(self, text):
        super().__init__()
        self.open, self.images, self.text, self.scripts = [], [], "", []
        self.feed(text)
        self.close()
        assert self.open == []
        own = (files_of("dismec.report") / "report.js").read_text().strip()
        assert [script for kind, script in self.scripts if kind is None] in ([], [own])
        self.tables = [json.loads(script) for kind, script in self.scripts if kind]

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "script":
            assert [name for name, _ in attrs] in ([], ["type"])
            self.scripts.append([dict(attrs).get("type"), ""])
        for name, value in attrs:
            assert not name.startswith("on")
            if name in ("src", "href"):
                assert value.startswith("data:image/svg+xml;base64,")
                self.images.append(base64.b64decode(value.partition(",")[2]))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            self.scripts[-1][1] += data
        else:
            self.text += data


def drawn(page):
    """Return the drawings of a page, none of which loads or runs anything."""
    for image in page.images:
        text = image.decode()
        tree = ElementTree.fromstring(text)
        assert not any(element.tag.endswith("script") for element in tree.iter())
        for key, value in ((k, v) for e in tree.iter() for k, v in e.attrib.items()):
            assert not key.endswith("href") or value.startswith("#")
        assert "@import" not in text
        assert not re.search(r"url\((?!#)", text)
        assert len(image) < 60_000
    return page.images


@pytest.mark.parametrize("beta", [0.5, 1.0, 1.7])
def test_exponent_of_an_exact_power_law_is_found(beta):
    found = describe_frequencies(1e9 * np.arange(1.0, 50_001) ** -beta)
    assert found["beta"] == pytest.approx(beta, abs=1e-3)
    assert found["n_1"] == pytest.approx(1e9, rel=1e-2)
    assert found["R2"] > 0.9999
    assert found["fitted ranks"] == [1, 50_000]


def test_the_power_law_equals_weighted_least_squares_on_log_axes():
    found = describe_frequencies([0, 3, 12, 5, 0, 1])
    x, y = np.log([1, 2, 3, 4]), np.log([12, 5, 3, 1])
    spread = np.cov(x, y, aweights=[1, 1 / 2, 1 / 3, 1 / 4])
    assert found["ranks"] == [1, 2, 3, 4]
    assert found["rows"] == [12, 5, 3, 1]
    assert found["beta"] == pytest.approx(-spread[0, 1] / spread[0, 0])
    assert found["R2"] == pytest.approx(spread[0, 1] ** 2 / (spread[0, 0] * spread[1, 1]))
    assert found["share with at most"] == {"1": 0.25, "5": 0.75, "10": 0.75}


@pytest.mark.parametrize(
    ("counts", "beta"), [([], None), ([0, 0], None), ([7], None), ([4, 4, 4], 0.0)]
)
def test_power_law_of_very_few_counts(counts, beta):
    found = describe_frequencies(counts)
    assert found["beta"] == (beta if beta is None else pytest.approx(beta, abs=1e-9))
    assert found["R2"] is None


@given(st.integers(0, 10**6))
def test_drawn_points_are_few_and_include_both_ends(n):
    ranks = spread_ranks(n)
    assert len(ranks) <= POINTS
    assert (np.diff(ranks) > 0).all()
    assert ranks[[0, -1]].tolist() == [1, n] if n else len(ranks) == 0


def test_facts_of_data_equal_a_count_by_hand(tmp_path):
    X = sp.csr_array(np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]], dtype=np.float32))
    Y = sp.csr_array(np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0]], dtype=np.uint8))
    save_data(Dataset(X, Y), tmp_path / "data.xmc")
    facts = describe_data(tmp_path / "data.xmc")
    expected = {
        "rows": 4,
        "features": 3,
        "labels": 3,
        "labels with rows": 2,
        "non-zeros": 6,
        "features per row": 1.5,
        "labels per row": 1.0,
        "rows per label": 2.0,
        "rows without labels": 1,
        "rows without features": 1,
    }
    assert {key: facts[key] for key in expected} == expected
    assert facts["label frequencies"]["rows"] == [3, 1]


def test_facts_of_texts_equal_a_count_by_hand(tmp_path):
    rows = [("ab", ["x"]), ("abcd", ["x", "y"]), (" ", [])]
    lines = [json.dumps({"text": text, "labels": labels}) for text, labels in rows]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    facts = describe_texts(tmp_path / "a.jsonl")
    assert facts["label frequencies"]["rows"] == [2, 1]
    assert (facts["characters"], facts["rows without text"]) == (7, 1)
    assert facts["training"]["labels to solve"] == 2
    assert describe_texts(tmp_path / "a.jsonl", estimate=False)["training"] is None
    (tmp_path / "empty.jsonl").write_text('{"text": "", "labels": ["x"]}\n')
    assert describe_texts(tmp_path / "empty.jsonl")["training"] is None
    assert len(drawn(Page(make_page("a.jsonl", facts)))) == 1


def test_the_estimate_is_close_to_the_training(tmp_path, monkeypatch):
    X, Y = random_problem(rows=2000, features=400, labels=400, seed=1)
    worked = 0  # solver steps stand for seconds: they do not depend on the machine

    def counted(problem, params, blocks, use, **options):
        def count(block):
            nonlocal worked
            worked += block.stats.steps
            return use(block)

        return solve_blocks(problem, params, blocks, count, **options)

    monkeypatch.setattr("dismec.report.estimate.solve_blocks", counted)
    monkeypatch.setattr("dismec.report.estimate.time.process_time", lambda: worked)
    whole = estimate_training(X, Y, seconds=1e9, threads=1)
    assert whole["sampled labels"] == whole["labels to solve"] == 400
    found = estimate_training(X, Y, seconds=whole["core-seconds"] / 5, threads=1)
    assert 70 < found["sampled labels"] < 90
    assert found["core-seconds"] == pytest.approx(whole["sampled seconds"], rel=0.05)
    size = sum(receipt.bytes for receipt in train(X, Y, tmp_path / "model").manifest.files)
    assert found["model bytes"] == pytest.approx(size, rel=0.2)
    assert whole["model bytes"] == pytest.approx(size, rel=0.1)
    assert "threads" in " ".join(summarize_estimate(found))


def test_the_estimate_warns_if_memory_is_short():
    X, Y = random_problem(rows=50, labels=3)
    wide = sp.csr_array((X.data, X.indices, X.indptr), shape=(50, 2**31 - 2))
    found = estimate_training(wide, Y, threads=1)
    assert found.keys() == {"peak bytes", "memory bytes"}
    assert "This machine has less memory" in summarize_estimate(found)[-1]


def test_nothing_to_train_has_no_estimate():
    empty = sp.csr_array((0, 5), dtype=np.float32), sp.csr_array((0, 3), dtype=np.uint8)
    assert estimate_training(*empty) is None


@given(arrays(np.float32, st.integers(0, 50), elements=st.floats(-100, 100, width=32)))
def test_a_weight_is_counted_between_the_edges_of_its_bin(weights):
    counts = count_weights(weights)
    assert counts.sum() == len(weights)
    outer = np.append(EDGES, np.inf).astype(np.float32)
    for i in range(1, SIDE + 1):
        positive = (weights >= outer[i - 1]) & (weights < outer[i])
        negative = (-weights >= outer[i - 1]) & (-weights < outer[i])
        assert counts[SIDE + i] == np.count_nonzero(positive)
        assert counts[SIDE - i] == np.count_nonzero(negative)


def test_the_solver_counts_weights_before_pruning(problem_data):
    X, Y = problem_data
    problem = Problem(X, Y, Transform.fit(X))
    pruned = problem.solve(range(Y.shape[1]), SolverParams(delta=0.1))
    whole = problem.solve(range(Y.shape[1]), SolverParams(delta=0))
    for label in range(Y.shape[1]):
        counts = count_weights(whole.weights[[label]].data)
        assert pruned.weight_counts[label].tolist() == counts.tolist()


def test_counts_of_a_model_add_up_to_all_weights(files):
    facts = describe_model(files / "model")
    model = open_model(files / "model")
    counts = facts["weight counts"]
    n_weights = facts["problems solved"] * (model.n_features + 1)
    assert sum(counts["before"]) == n_weights
    assert sum(counts["after"]) == model.nnz
    assert facts["share of ambiguous weights"] == pytest.approx(1 - model.nnz / n_weights, abs=1e-6)
    far = np.array(counts["before"]) - counts["after"]
    assert not far[: SIDE - 28].any()  # above 2^-6 nothing is dropped
    assert not far[SIDE + 29 :].any()


def test_counts_do_not_depend_on_threads_blocks_or_interruption(problem_data, tmp_path):
    X, Y = problem_data
    whole = train(X, Y, tmp_path / "whole", threads=1).manifest.stats
    params = TrainingParams(block_size=7)
    train_unfinished(X, Y, tmp_path / "resumed", params)
    unfinished = describe_model(tmp_path / "resumed")
    assert unfinished["weight counts"]["before"] is not None
    resumed = train(X, Y, tmp_path / "resumed", params).manifest.stats
    assert resumed.weight_counts == whole.weight_counts
    assert sum(whole.weight_counts) > 0


def test_statistics_without_the_counts_of_weights_are_refused(tmp_path, problem_data):
    train(*problem_data, tmp_path / "model")
    path = tmp_path / "model" / "manifest.json"
    content = json.loads(path.read_text())
    content.pop("checksum", None)
    for counts in ([0] * (BINS - 1), None):
        content["stats"]["weight_counts"] = counts
        path.write_text(json.dumps(content))
        with pytest.raises(Exception, match="solver's statistics"):
            read_manifest(tmp_path / "model")


def test_counts_are_added_up():
    counted = BlockStats(1, 0, 1, 1, 1, 0.5, (1,) * BINS)
    assert BlockStats.total([counted, counted]).weight_counts == (2,) * BINS


def test_a_model_of_some_labels_has_no_counts_before_pruning(tmp_path, problem_data):
    train(*problem_data, tmp_path / "all").subset([1, 2]).save(tmp_path / "some")
    facts = describe_model(tmp_path / "some")
    assert facts["weight counts"]["before"] is None
    assert "share of ambiguous weights" not in facts
    assert "were not recorded" in Page(make_page("some", facts)).text


@given(st.data())
def test_parts_of_groups_add_up(data):
    n_rows, n_labels = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 30))
    Y = sp.csr_array(data.draw(arrays(np.bool_, (n_rows, n_labels))), dtype=np.uint8)
    counts = data.draw(arrays(np.int64, n_labels, elements=st.integers(0, 50)))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    trained = np.flatnonzero(counts)
    top = np.full((n_rows, 5), -1, np.int32)
    for row in top:
        found = random.permutation(trained)[:5]
        row[: len(found)] = found
    p = propensities(counts, 100)
    groups = by_group(Y, top, counts, p)
    total = metrics.evaluate(Y, top, (1, 3, 5), p)
    for name in (f"{m}@{k}" for m in ("P", "nDCG", "PSP") for k in (1, 3, 5)):
        assert sum(group[name] for group in groups) == pytest.approx(total[name], abs=1e-6)
    assert sum(group["true pairs"] for group in groups) == Y.nnz


def test_group_metrics_by_hand():
    Y = sp.csr_array(np.array([[1, 1, 0], [0, 1, 1]], dtype=np.uint8))
    top = np.array([[0, 2], [1, 2]])
    found = by_group(Y, top, np.array([9, 5, 0]), np.ones(3), (1, 2))
    head, middle, unseen = found
    assert [g["frequency"] for g in found] == [[9, 9], [5, 5], [0, 0]]
    assert [g["P@1"] for g in found] == [50, 50, 0]
    assert [g["P@2"] for g in found] == [25, 25, 25]
    assert (head["R@1"], middle["R@1"], unseen["R@2"]) == (100, 50, 100)
    assert middle["Coverage@1"] == 100
    assert head["nDCG@2"] == pytest.approx(50 / (1 + 1 / np.log2(3)))


@given(arrays(np.int64, st.integers(0, 60), elements=st.integers(0, 9)))
def test_groups_have_equally_many_labels_and_fall_in_frequency(counts):
    groups = frequency_groups(counts)
    sizes = [len(group) for group in groups]
    assert sum(sizes) == np.count_nonzero(counts)
    assert len(groups) <= 10
    assert max(sizes, default=1) - min(sizes, default=1) <= 1
    ranked = counts[np.concatenate([*groups, np.empty(0, np.int64)]).astype(np.int64)]
    assert (np.diff(ranked) <= 0).all()


def test_recall_precision_and_f1_of_a_label_by_hand():
    Y = sp.csr_array(np.array([[1, 0], [1, 1], [1, 0], [0, 0]], dtype=np.uint8))
    found = by_label(Y, np.array([[0], [1], [0], [0]]))
    assert found["rows"].tolist() == [3, 1]
    assert found["recall"].tolist() == pytest.approx([2 / 3, 1])
    assert found["precision"].tolist() == pytest.approx([2 / 3, 1])
    assert found["F1"].tolist() == pytest.approx([2 / 3, 1])


def test_reliability_by_hand():
    found = reliability(np.array([0.05, 0.07, 0.95, 1.0]), np.array([False, True, True, True]))
    assert [entry["pairs"] for entry in found] == [2, 2]
    assert [entry["probability"] for entry in found] == pytest.approx([0.06, 0.975])
    assert [entry["share of hits"] for entry in found] == [0.5, 1.0]


def test_extremes_are_ordered_and_named(files):
    X, Y = random_problem()
    test = describe_test(open_model(files / "model"), Dataset(X, Y))
    best, worst = ([e["F1"] for e in test[f"{w} labels"]] for w in ("best", "worst"))
    assert best == sorted(best, reverse=True)
    assert worst == sorted(worst)
    assert best[0] >= worst[0]
    assert all(e["test rows"] >= 5 for e in test["best labels"])
    assert test["metrics"] == open_model(files / "model").evaluate(X, Y)
    assert sum(entry["pairs"] for entry in test["reliability"]) == X.shape[0] * 5


def test_test_data_without_rows_are_refused(files):
    empty = Dataset(sp.csr_array((0, 80), dtype=np.float32), sp.csr_array((0, 40), dtype=np.uint8))
    with pytest.raises(DataError, match="no rows"):
        describe_test(open_model(files / "model"), empty)


def test_the_page_of_a_model_is_complete_and_escaped(files, tmp_path):
    out = tmp_path / "page.html"
    printed = ok("inspect", files / "model", "--test", files / "data.xmc", "--html", out)
    text = out.read_text()
    page = Page(text)
    assert len(drawn(page)) == 4
    assert "default-src 'none'" in text
    facts = json.loads(ok("inspect", files / "model", "--test", files / "data.xmc", "--json"))
    named = {e["name"] for w in ("best", "worst") for e in facts["test"][f"{w} labels"]}
    assert all(name in page.text for name in named)
    assert f"{facts['test']['metrics']['P@5']:.2f}" in page.text
    assert f"{facts['test']['metrics']['P@5']:.2f}" in printed


def test_names_and_paths_cannot_break_out_of_the_page(files):
    facts = describe_model(files / "model")
    model = open_model(files / "model")
    X, Y = random_problem()
    facts["test"] = describe_test(model, Dataset(X, Y))
    facts["test"]["worst labels"][0]["name"] = EVIL
    page = Page(make_page(EVIL, facts))
    assert page.text.count(EVIL) == 4  # title, heading, and the label in two tables
    assert page.tables[0]["columns"][1]["values"].count(EVIL) == 1


def test_the_page_of_data_is_written_completely_or_not_at_all(files, tmp_path):
    facts = json.loads(ok("inspect", files / "data.xmc", "--html", tmp_path / "a.html", "--json"))
    page = Page((tmp_path / "a.html").read_text())
    assert len(drawn(page)) == 1
    assert f"{facts['training']['labels to solve']}" in page.text
    assert re.search(r"APpL", page.text)
    before = (tmp_path / "a.html").read_bytes()
    with pytest.raises(KeyError):
        write_page(tmp_path / "a.html", "x", {})
    assert (tmp_path / "a.html").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html"]


@pytest.mark.parametrize("n_labels", [1, 10, 500_000])
def test_page_has_a_bounded_size_whatever_the_number_of_labels(n_labels):
    counts = np.maximum(1e6 * np.arange(1, n_labels + 1) ** -0.9, 1).astype(np.int64)
    facts = {"label frequencies": describe_frequencies(counts)}
    assert len(drawn(Page(make_page("x", facts)))) == 1


def test_model_of_one_label_and_an_unfinished_one_have_pages(tmp_path):
    X, Y = random_problem(rows=60, labels=1)
    model = train(X, Y, tmp_path / "one")
    facts = describe_model(tmp_path / "one") | {"test": describe_test(model, Dataset(X, Y))}
    assert len(drawn(Page(make_page("one", facts)))) == 3
    train_unfinished(X, Y, tmp_path / "half")
    page = Page(make_page("half", describe_model(tmp_path / "half")))
    assert "unfinished training, 1 of 1 label; run the same command again" in page.text
    weights = weight_files(tmp_path / "half")
    assert ok("inspect", tmp_path / "half")
    assert weight_files(tmp_path / "half") == weights


@pytest.mark.parametrize("delta", [0, 1e-9, 1e6])
def test_models_at_any_delta_have_pages(tmp_path, delta):
    X, Y = random_problem(rows=60, labels=3)
    train(X, Y, tmp_path / "model", TrainingParams(delta=delta))
    facts = describe_model(tmp_path / "model")
    assert len(drawn(Page(make_page("model", facts)))) == 2
    facts["weight counts"]["before"] = None
    assert len(drawn(Page(make_page("model", facts)))) == 2


def test_test_data_is_refused_with_a_data_file(files):
    path = str(files / "data.xmc")
    result = CliRunner().invoke(main, ["inspect", path, "--test", path])
    assert result.exit_code == 2
    assert "--test needs a model" in result.stderr


def test_missing_matplotlib_is_reported_in_one_line(files, tmp_path):
    script = "import sys; sys.modules['matplotlib'] = None; from dismec.cli import main; main()"
    command = [sys.executable, "-c", script, "inspect", str(files / "model")]
    out = subprocess.run(
        [*command, "--html", str(tmp_path / "page.html")], capture_output=True, text=True
    )
    assert out.returncode == 2
    assert out.stderr == "dismec: plots need matplotlib: pip install 'dismec[plots]'\n"
    assert not any(tmp_path.iterdir())
    assert subprocess.run(command, capture_output=True).returncode == 0


def test_a_page_never_overwrites_its_subject(tmp_path):
    X, Y = random_problem()
    save_data(Dataset(X, Y), tmp_path / "data.txt")
    train(X, Y, tmp_path / "model")
    for path, page, more in (
        ("data.txt", "data.txt", []),
        ("model", "model/manifest.json", []),
        ("model", "data.txt", ["--test", tmp_path / "data.txt"]),
    ):
        before = (tmp_path / page).read_bytes()
        result = CliRunner().invoke(
            main, list(map(str, ["inspect", tmp_path / path, "--html", tmp_path / page, *more]))
        )
        assert result.exit_code == 2
        assert "choose another" in result.stderr
        assert (tmp_path / page).read_bytes() == before
    for options in (["--label-names", "names.txt"], ["--labels", "y.npz"]):
        assert (
            CliRunner().invoke(main, ["inspect", str(tmp_path / "model"), *options]).exit_code == 2
        )


@pytest.mark.parametrize("precision", ["float32", "float8"])
@pytest.mark.parametrize("penalty", ["l1", "l2"])
def test_nothing_is_ambiguous_where_nothing_is_dropped(tmp_path, penalty, precision):
    params = TrainingParams(delta=0, penalty=penalty, precision=precision)
    train(*random_problem(), tmp_path / "model", params)
    assert describe_model(tmp_path / "model")["share of ambiguous weights"] == 0


def test_labels_only_in_test_texts_are_reported_by_name(tmp_path):
    from dismec.data.synthetic import generate_text, write_text

    write_text(tmp_path, *generate_text(rows=300, labels=20, features=500))
    long = "a label with a name that goes on and on " * 5
    rows = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
    for row in rows:
        row["labels"].append(long.strip())
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = CliRunner().invoke
    model = str(tmp_path / "model")
    assert run(main, ["train", str(tmp_path / "train.jsonl"), "-o", model]).exit_code == 0
    test = ["inspect", model, "--test", str(tmp_path / "test.jsonl")]
    found = run(main, [*test, "--json"])
    assert "1 of the 20 labels of DATA are unknown" in found.stderr
    assert json.loads(found.stdout)["test"]["worst labels"][0]["name"] == long.strip()
    shown = run(main, test).stdout
    worst = next(line for line in shown.splitlines() if "a label with a name" in line)
    assert "60" in worst  # its test rows
