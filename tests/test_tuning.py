"""Choosing C, and sweeping delta."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from conftest import random_problem, tune, tune_text, weight_files
from dismec import (
    DataError,
    DiSMECClassifier,
    ModelError,
    TrainingParams,
    open_model,
    pruning_curve,
    save_data,
    train,
)
from dismec.cli import main
from dismec.data.dataset import Dataset
from dismec.training import split as pruning
from dismec.training.choose_c import Trials, peak
from dismec.training.train import fit

pytestmark = pytest.mark.native(needs="sklearn")


@pytest.fixture(scope="module")
def data():
    """More rows than in other tests: with few, every order of labels is equally good."""
    return random_problem(rows=700, labels=50, seed=3)


@pytest.fixture(scope="module")
def tuned(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("tuned") / "model"
    return tune(*data, path, metric="nDCG@3"), path


def held_out(X, Y):
    judge = pruning.held_out(X.shape[0])
    others = np.delete(np.arange(X.shape[0]), judge)
    return X[others], Y[others], X[judge], Y[judge]


def test_the_chosen_C_is_the_peak_over_neighboring_values(tuned):
    result, _ = tuned
    quality = {row["C"]: row["nDCG@3"] for row in result.table}
    tried = sorted(quality)
    assert [high / low for low, high in pairwise(tried)] == [2] * (len(tried) - 1)
    assert peak(quality.__getitem__) == result.C
    assert tried[0] / 2 < result.C < 2 * tried[-1]


@given(st.floats(-8, 6), st.floats(0.5, 50), st.floats(-100, 100))
def test_the_peak_of_a_parabola_is_found(at, bend, height):
    tried = []

    def quality_at(C):
        tried.append(C)
        return height - bend * (math.log2(C) - at) ** 2

    found = math.log2(peak(quality_at))
    assert len(set(tried)) == len(tried) <= 3 + abs(at)
    assert abs(found - at) <= 0.08 + 0.15 / bend  # rounded, and bent a little more


def test_values_without_a_peak_end_the_search():
    assert peak(lambda C: 50.0) == 0.71
    assert 0.5 < peak(lambda C: -0.01 * C) <= 0.71
    assert peak(lambda C: 10 * math.log2(C)) > 100
    assert peak(lambda C: -10 * math.log2(C)) < 0.01
    assert peak(lambda C: abs(math.log2(C))) < 0.01


def test_the_table_equals_models_trained_one_by_one(data, tuned):
    X, Y, judge_X, judge_Y = held_out(*data)
    for row in tuned[0].table:
        model = fit(X, Y, TrainingParams(C=row["C"]))
        found = model.evaluate(judge_X, judge_Y)
        assert row["nDCG@3"] == pytest.approx(found["nDCG@3"], abs=1.5)  # one row of seventy
        assert row["weights"] == pytest.approx(model.nnz, rel=0.1)


def test_the_model_equals_a_training_at_the_chosen_C(data, tuned, tmp_path):
    result, path = tuned
    train(*data, tmp_path / "model", TrainingParams(C=result.C))
    assert weight_files(path) == weight_files(tmp_path / "model")


def test_a_sample_of_many_labels_is_tried_at_a_smaller_depth(data, tmp_path):
    X, Y = data
    with mock.patch("dismec.training.choose_c._SAMPLE", (10, 16)):
        model = train(X, Y, tmp_path / "model", TrainingParams(C="auto"))
    how, table = model.params["C_auto"], model.params["C_table"]
    every = np.count_nonzero(np.bincount(Y.indices)) // 10
    assert how["label_share"] == every > 1
    assert how["judged_by"] == f"nDCG@{math.ceil(5 / every)}"
    X_train, Y_train, X_judge, Y_judge = held_out(X, Y)
    some = pruning.sampled(Y_train, model.label_counts, every)[0]
    for row in table:
        there = fit(X_train, some, TrainingParams(C=row["C"]))
        found = there.evaluate(X_judge, pruning.only_labels(Y_judge, some))
        assert row[how["judged_by"]] == pytest.approx(found[how["judged_by"]], abs=2)


def test_margins_are_half_intervals_of_paired_differences(data, tuned):
    table = tuned[0].table
    best = max(row["nDCG@3"] for row in table)
    for row in table:
        assert (row["margin"] == 0) == (row["nDCG@3"] == best)
        assert 0 <= row["margin"] < 30


def test_the_model_records_how_its_C_was_chosen(tuned):
    result, path = tuned
    params = open_model(path).params
    assert params["C"] == result.C
    assert params["C_table"] == result.table
    assert params["C_auto"] == {"metric": "nDCG@3", "rows": 70}


def test_each_label_with_the_same_rows_counts(data, tmp_path):
    X, Y = data
    twice = sp.hstack([Y, Y, sp.csr_array((Y.shape[0], 1), dtype=np.uint8)], format="csr")
    result = tune(X, twice, tmp_path / "model")
    X, Y, judge_X, judge_Y = held_out(X, twice)
    for row in result.table:
        found = fit(X, Y, TrainingParams(C=row["C"])).evaluate(judge_X, judge_Y)
        assert row["nDCG@5"] == pytest.approx(found["nDCG@5"], abs=1)


def test_labels_of_different_rows_may_have_the_same_weights(tmp_path):
    """Two equal rows with one label each: the problems of these labels are the same."""
    X = np.vstack([[1, 0, 0, 0.5]] * 2 + [[0, 1, 0, 0]] * 3 + [[0, 0, 1, 0]] * 3).astype(np.float32)
    Y = np.zeros((8, 5), np.uint8)
    Y[0, [0, 3]] = Y[1, [1, 4]] = 1  # 0 and 3 have the same rows, and so do 1 and 4
    Y[2:5, 2] = 1
    tuned = tune(X, Y, tmp_path / "model", metric="P@3", validation=(X, Y))
    for row in tuned.table:
        one = train(X, Y, tmp_path / str(row["C"]), TrainingParams(C=row["C"]))
        assert row["P@3"] == pytest.approx(one.evaluate(X, Y)["P@3"], abs=1e-4)


def test_progress_ends_at_its_total(data, tmp_path):
    seen = []
    X, Y = data
    Y = sp.hstack([Y, sp.csr_array((Y.shape[0], 5), dtype=Y.dtype)], format="csr")
    params = TrainingParams(delta="auto")
    tune(X, Y, tmp_path / "model", params, progress=lambda *now: seen.append(now))
    assert {total for _, total in seen} == {55}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[0] == (0, 55)
    assert seen[-1] == (55, 55)


def test_delta_and_probabilities_are_learned_after_C(data, tmp_path):
    params = TrainingParams(delta="auto", calibrate=True)
    result = tune(*data, tmp_path / "a", params)
    alone = train(*data, tmp_path / "b", TrainingParams(C=result.C, delta="auto", calibrate=True))
    assert weight_files(tmp_path / "a") == weight_files(tmp_path / "b")
    assert result.model.params["delta"] == alone.params["delta"]
    assert result.model.calibration is not None


def test_validation_rows_choose_C(data, tmp_path):
    X, Y = data
    result = tune(X, Y, tmp_path / "model", validation=(X[:100], Y[:100]))
    chosen = result.model.params["C_auto"]
    assert (chosen["metric"], chosen["rows"]) == ("nDCG@5", 100)
    assert len(chosen["data"]) == 16
    assert result.C > 1.5  # the model was trained on these rows


def test_a_killed_training_resumes_with_the_chosen_C(data, tuned, tmp_path):
    path = tmp_path / "model"
    with (
        mock.patch("dismec.model.weight_files.finish", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        tune(*data, path, metric="nDCG@3")
    with mock.patch.object(Trials, "_try", side_effect=AssertionError):
        result = tune(*data, path, metric="nDCG@3")
    assert (result.C, weight_files(path)) == (tuned[0].C, weight_files(tuned[1]))


def test_another_training_in_the_directory_is_refused_before_C_is_chosen(data, tuned, tmp_path):
    path = tmp_path / "model"
    train(*data, path, TrainingParams(C=tuned[0].C))
    before = weight_files(path)
    with mock.patch.object(Trials, "_try", side_effect=AssertionError):
        with pytest.raises(ModelError, match="holds a different model"):
            tune(*data, path)
        with pytest.raises(ModelError, match="finished model of this training"):
            tune(*data, tuned[1], metric="nDCG@3")
    assert weight_files(path) == before


@pytest.mark.parametrize("metric", ["", "P", "P@0", "P@", "p@1", "R@1", "P@1.5", "P@-1", "P@999"])
def test_bad_metrics_are_refused(metric):
    with pytest.raises(ValueError, match="expected P@k, nDCG@k or PSP@k"):
        TrainingParams(C="auto", metric=metric)


def test_data_that_leaves_nothing_to_choose_on_is_refused(data, tmp_path):
    X, Y = data
    with pytest.raises(DataError, match="needs at least 2 labels to rank, the data have 1"):
        tune(X, Y[:, :1], tmp_path / "model")
    with pytest.raises(DataError, match="1 row: too few to hold one out"):
        tune(X[:1], Y[:1], tmp_path / "model")
    with pytest.raises(DataError, match="validation data"):
        tune(X, Y, tmp_path / "model", validation=(X[:5], Y[:4]))


def test_a_metric_may_be_deeper_than_the_number_of_labels(data, tmp_path):
    X, Y = data
    result = tune(X, Y[:, 45:48], tmp_path / "model", metric="PSP@7")
    assert all("PSP@7" in row for row in result.table)


@pytest.fixture
def texts(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "texts.jsonl"
    with path.open("w") as file:
        for _ in range(300):
            label = int(rng.integers(6))
            words = [f"w{label}{rng.integers(4)}", *(f"x{rng.integers(30)}" for _ in range(4))]
            file.write(json.dumps({"text": " ".join(words), "labels": [f"l{label}"]}) + "\n")
    return path


def test_texts_are_tuned_as_their_features_are(texts, tmp_path):
    result = tune_text(texts, tmp_path / "model", metric="P@1")
    assert result.model.vocabulary is not None
    assert len(result.table) >= 3
    files = {p.name for p in (tmp_path / "model").iterdir()}
    assert not [name for name in files if name.endswith(".xmc")]


@pytest.mark.cluster
@pytest.mark.slow
def test_with_a_cluster_the_same_C_is_chosen(data, tuned, tmp_path, dask_cluster):
    result = tune(*data, tmp_path / "model", metric="nDCG@3", cluster=dask_cluster)
    assert result.C == tuned[0].C
    assert weight_files(tmp_path / "model") == weight_files(tuned[1])


def test_an_estimator_chooses_C_and_remembers_how(data, tuned, tmp_path):
    clf = DiSMECClassifier(C="auto", metric="nDCG@3").fit(*data)
    assert clf.model_.params["C"] == tuned[0].C
    clf.save(tmp_path / "model")
    again = DiSMECClassifier.load(tmp_path / "model")
    assert (again.C, again.metric) == ("auto", "nDCG@3")


# -- the curve of delta ----------------------------------------------------------------------------


def test_rows_of_a_curve_are_those_of_models_trained_at_each_delta(data):
    X, Y, test_X, test_Y = held_out(*data)
    whole = fit(X, Y, TrainingParams(delta=0, precision="float32"))
    table = pruning_curve(whole, test_X, test_Y, [0.3, 0, 0.05])
    assert [row["delta"] for row in table] == [0, 0.05, 0.3]
    for row in table:
        model = fit(X, Y, TrainingParams(delta=row["delta"], precision="float32"))
        assert row["weights"] == model.nnz
        assert row["bytes"] > 4 * model.nnz
        found = model.evaluate(test_X, test_Y)
        assert {name: row[name] for name in found} == found
    assert table[0]["weights"] > table[1]["weights"] > table[2]["weights"]
    assert all(row["ms per row"] > 0 for row in table)


def test_a_curve_begins_at_the_delta_of_the_model(data):
    model = fit(*data, TrainingParams(delta=0.05))
    table = pruning_curve(model, *data)
    assert [row["delta"] for row in table] == [0.05, 0.07, 0.1, 0.2, 0.3]
    assert table[2]["weights"] == model.pruned(0.1).nnz
    with pytest.raises(DataError, match=r"delta is 0.01; expected at least 0.05"):
        pruning_curve(model, *data, [0.01])
    for deltas in ([], [-0.1], [float("nan")], ["auto"], [None], [float("inf")]):
        with pytest.raises(DataError, match="delta"):
            pruning_curve(model, *data, deltas)


# -- commands --------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments], prog_name="dismec")


@pytest.fixture(scope="module")
def file(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.txt"
    save_data(Dataset(*data, None), path)
    return path


def test_train_prints_how_C_was_chosen(file, tmp_path, tuned):
    choice = ("--C", "auto", "--metric", "nDCG@3")
    common = ("train", file, *choice, "--quiet")
    shown = run(*common, "-o", tmp_path / "a")
    assert shown.exit_code == 0, shown.output
    assert f"C {tuned[0].C:g}, chosen by nDCG@3" in shown.stdout
    listed = json.loads(run(*common, "-o", tmp_path / "b", "--json").stdout)
    assert listed["C"] == tuned[0].C
    assert [row["nDCG@3"] for row in listed["table"]] == [row["nDCG@3"] for row in tuned[0].table]
    assert weight_files(tmp_path / "a") == weight_files(tuned[1])
    assert "by nDCG@3 on 70 held-out rows" in run("inspect", tmp_path / "a").stdout


def test_the_command_line_chooses_C_by_default_if_there_are_enough_rows(tmp_path):
    for rows, chosen in ((999, False), (1000, True)):
        X, Y = random_problem(rows=rows, labels=5)
        save_data(Dataset(X, Y, None), tmp_path / f"{rows}.txt")
        for options, expected in (
            ((), chosen),
            (("--C", "1"), False),
            (("--penalty", "l1"), False),
        ):
            given = ("-o", tmp_path / "model", "--overwrite", *options)
            result = run("train", tmp_path / f"{rows}.txt", *given)
            assert result.exit_code == 0, result.output
            assert ("chosen by nDCG@5" in result.stdout) == expected
            assert ("C_auto" in open_model(tmp_path / "model").params) == expected


def test_texts_and_given_rows_choose_C(file, texts, tmp_path):
    for data in (texts, file):
        choice = ("--validation", data, "--C", "auto")
        result = run("train", data, "-o", tmp_path / data.stem, *choice)
        assert result.exit_code == 0, result.output
        assert "rows of data" in result.stdout


def test_prune_prints_a_row_for_each_delta(file, tuned):
    model, deltas = tuned[1], ["--delta", "0.01,0.3"]
    shown = run("prune", model, "--curve", file, *deltas)
    assert shown.exit_code == 0, shown.output
    assert len(shown.stdout.splitlines()) == 6
    rows = json.loads(run("prune", model, "--curve", file, *deltas, "--json").stdout)
    assert [row["delta"] for row in rows] == [0.01, 0.3]
    usual = json.loads(run("prune", model, "--curve", file, "--json").stdout)
    assert usual[0]["delta"] == 0.01


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("train DATA -o OUT --C auto --metric F1", "expected P@k"),
        ("train DATA -o OUT --C best", "neither a number nor auto"),
        ("train DATA -o OUT --validation-labels x", "--validation-labels requires --validation"),
        ("prune MODEL --curve DATA --delta -1", "delta is -1"),
        ("prune MODEL --curve nothing.txt", "nothing.txt"),
        ("prune MODEL", "pass -o for a smaller model, or --curve"),
        ("prune MODEL -o OUT --delta 0.1,0.2", "several values only with --curve"),
    ],
)
def test_bad_options_are_refused_in_one_line_before_training(
    file, tuned, tmp_path, arguments, reason
):
    places = {"DATA": file, "OUT": tmp_path / "model", "MODEL": tuned[1]}
    with mock.patch("dismec.solve.threads.LabelSolver", side_effect=AssertionError("begun")):
        result = run(*(places.get(word, word) for word in arguments.split()))
    assert result.exit_code == 2, result.output
    assert reason in result.stderr.strip().splitlines()[-1]
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(("key", "value"), [("weighting", "propensity"), ("penalty", "l1")])
def test_C_is_chosen_under_other_parameters(tmp_path, key, value):
    X, Y = random_problem()
    params = TrainingParams(**{key: value})
    chosen = tune(X, Y, tmp_path / "model", params)
    train(X, Y, tmp_path / "again", TrainingParams(C=chosen.C, **{key: value}))
    assert weight_files(tmp_path / "model") == weight_files(tmp_path / "again")
