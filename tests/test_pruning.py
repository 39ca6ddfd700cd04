from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import naive
from conftest import random_problem, train_unfinished, weight_files
from dismec import (
    DataError,
    DiSMECClassifier,
    ModelError,
    TrainingParams,
    generate,
    load_data,
    open_model,
    save_data,
    train,
)
from dismec.data.dataset import Dataset
from dismec.model.directory import commit, read_manifest
from dismec.model.provenance import sentence, shown
from dismec.training.held_out import DEPTHS
from dismec.training.held_out import pick_delta as pick
from dismec.training.params import DELTAS as GRID
from dismec.training.split import held_out
from dismec.training.train import fit
from test_cli import ok, refused, run

AUTO = TrainingParams(delta="auto", block_size=50)


@pytest.fixture(scope="module")
def data():
    return generate(rows=2000, features=1500, labels=60, test_rows=1200, seed=2)


def brute_force(X, Y, judge_X, judge_Y):
    """Train at each delta of the grid, score densely, and apply the rule literally."""
    truth = [set(row.nonzero()[0].tolist()) for row in judge_Y.toarray()]
    losses = []
    for delta in GRID:
        scores = fit(X, Y, TrainingParams(delta=delta)).decision_function(judge_X)
        scores[:, Y.sum(axis=0) == 0] = -np.inf
        top = np.argsort(-scores, axis=1, kind="stable")[:, :5].tolist()
        losses.append([-100 * naive.precision_at_k(truth, top, k) for k in DEPTHS])
    chosen = 0.01
    for delta, loss in zip(GRID, np.array(losses) - losses[0], strict=True):
        if max(loss) <= 0.1 + 1e-9:
            chosen = delta
        elif len(truth) < 1000:
            break
    return chosen


def split(data):
    rows = held_out(data.X.shape[0])
    others = np.setdiff1d(np.arange(data.X.shape[0]), rows)
    return data.X[others], data.Y[others], data.X[rows], data.Y[rows]


def test_grid_ascends_from_the_usual_delta():
    assert GRID[0] == TrainingParams().delta
    assert GRID[-1] == 0.5
    assert (np.diff(GRID) > 0).all()


def test_a_tenth_of_the_rows_is_held_out():
    for n_rows, size in [(2, 1), (9, 1), (57, 5), (1000, 100), (123_456, 10_000)]:
        rows = held_out(n_rows)
        assert len(rows) == len(set(rows)) == size
        assert rows.min() >= 0
        assert rows.max() < n_rows
        np.testing.assert_array_equal(rows, held_out(n_rows))


def test_choice_on_held_out_rows_is_that_of_brute_force(data):
    train_data, _ = data
    model = fit(train_data.X, train_data.Y, AUTO)
    assert model.params["delta"] == brute_force(*split(train_data))
    assert model.params["delta"] > 0.01
    assert model.params["delta_auto"] == {"rows": 200}


@pytest.mark.slow
def test_choice_on_validation_data_is_that_of_brute_force(data):
    (X, Y, _), test = data
    model = fit(X, Y, AUTO, validation=(test.X, test.Y))
    assert model.params["delta"] == brute_force(X, Y, test.X, test.Y)
    assert model.params["delta_auto"]["rows"] == 1200
    before = fit(X, Y).evaluate(test.X, test.Y)
    after = model.evaluate(test.X, test.Y)
    for k in DEPTHS:
        assert after[f"P@{k}"] >= before[f"P@{k}"] - 0.1 - 1e-9
        effect = model.params["delta_effect"]
        assert effect["after"][f"P@{k}"] == after[f"P@{k}"]
        assert effect["before"][f"P@{k}"] == before[f"P@{k}"]


def test_the_model_is_trained_on_all_rows_at_the_chosen_delta(data, tmp_path):
    (X, Y, _), _ = data
    model = train(X, Y, tmp_path / "auto", AUTO)
    again = train(X, Y, tmp_path / "again", AUTO, threads=1)
    assert model.params == again.params
    given = replace(AUTO, delta=model.params["delta"])
    train(X, Y, tmp_path / "given", given)
    expected = weight_files(tmp_path / "given")
    assert weight_files(tmp_path / "auto") == weight_files(tmp_path / "again") == expected


def test_a_lucky_delta_after_a_loss_counts_only_with_many_rows():
    losses = np.full(len(GRID), 5.0)
    losses[:7] = 0, -0.2, 0.05, 0.1, 0.12, -0.1, 0.03
    precision = np.column_stack([80 - losses] * 3)
    assert [pick(precision, rows) for rows in (1, 99, 100, 999, 1000)] == [0, 0, 3, 3, 6]
    for column in range(3):
        one_fails = precision.copy()
        one_fails[2, column] = 79.8
        assert pick(one_fails, 500) == 1
    assert pick(np.full((len(GRID), 3), 70.0), 500) == len(GRID) - 1


def test_labels_that_only_held_out_rows_have_and_duplicates_do_not_matter():
    X, Y = random_problem(rows=100, labels=12)
    rows = held_out(100)
    Y = Y.toarray()
    Y[:, 11] = 0
    Y[rows[0], 11] = 1
    Y[:, 5] = Y[:, 4]
    X, Y = sp.vstack([X] * 3, format="csr"), sp.csr_array(np.vstack([Y] * 3))
    for x, y in [(X, Y), (X[:100], Y[:100])]:
        assert fit(x, y, AUTO).params["delta"] in GRID
    assert fit(X[:2], Y[:2], AUTO).params["delta_auto"] == {"rows": 1}
    narrow = X[:, :50], sp.hstack([Y, sp.csr_array((300, 8), dtype=np.uint8)])
    assert fit(X, Y, AUTO, validation=narrow).params["delta"] in GRID


def test_data_too_small_to_choose_delta_is_refused(tmp_path, problem_data):
    X, Y = problem_data
    path = tmp_path / "model"
    for x, y, params, validation, reason in [
        (X[:1], Y[:1], AUTO, None, "too few to hold one out"),
        (X, Y[:, :1], AUTO, None, "needs at least 2 labels to rank, the data have 1"),
        (X, Y, TrainingParams(), (X, Y), 'only with C="auto", delta="auto"'),
        (X, Y, AUTO, (X[:0], Y[:0]), "validation data: no rows"),
        (X, Y, AUTO, (X[:5], Y[:6]), "validation data: X has 5 rows"),
        (X, Y, AUTO, (sp.hstack([X, X]), Y), "validation data: X has 160 features"),
    ]:
        with pytest.raises(DataError, match=reason):
            train(x, y, path, params, validation=validation)
    assert not path.exists()
    with pytest.raises(ValueError, match='expected a number or "auto"'):
        TrainingParams(delta="automatic")


def test_one_row_is_enough_with_validation_data(problem_data):
    X, Y = problem_data
    assert fit(X[:1], Y[:1], AUTO, validation=(X, Y)).params["delta"] in GRID


def test_an_unfinished_run_resumes_with_its_delta(tmp_path, data, monkeypatch):
    (X, Y, _), test = data
    path = tmp_path / "model"
    train(X, Y, tmp_path / "whole", AUTO)
    expected = weight_files(tmp_path / "whole")
    train_unfinished(X, Y, path, AUTO)
    whole = read_manifest(path)
    commit(path, whole.with_blocks(whole.blocks[:1]))
    # It would be called to choose again.
    monkeypatch.setattr("dismec.training.held_out.choose_delta", None)
    for params, validation, reason in [
        (replace(AUTO, C=2), None, "C 1.0 instead of 2"),
        (replace(AUTO, delta=0.02), None, "delta auto on 200 held-out rows instead of 0.02"),
        (AUTO, (test.X, test.Y), "delta auto on 200 held-out rows instead of auto on 1200 rows"),
    ]:
        with pytest.raises(ModelError, match=reason):
            train(X, Y, path, params, validation=validation)
    with pytest.raises(ModelError, match="other data"):
        train(X[:, ::-1], Y, path, AUTO)
    assert train(X, Y, path, AUTO).params == whole.params
    assert weight_files(path) == expected
    with pytest.raises(ModelError, match="finished model of this training"):
        train(X, Y, path, AUTO)
    broken = {**whole.params, "delta": 0.001}
    commit(path, replace(whole, params=broken).with_blocks(whole.blocks[:1]))
    with pytest.raises(ModelError, match=r"0\.001"):
        train(X, Y, path, AUTO)


def test_progress_covers_both_trainings(problem_data):
    counts = []
    fit(*problem_data, AUTO, progress=lambda *count: counts.append(count))
    assert counts[0] == (0, 40)
    assert counts[-1] == (40, 40)
    assert (np.diff([done for done, _ in counts]) >= 0).all()


@pytest.mark.slow
def test_a_killed_training_keeps_its_chosen_delta(tmp_path):
    X, Y = random_problem(rows=3000, features=200, labels=480, density=0.2)
    save_data(Dataset(X, Y, None), tmp_path / "data.xmc")
    path = tmp_path / "model"
    command = [sys.executable, "-m", "dismec", "train", tmp_path / "data.xmc", "-o", path]
    command += ["--delta", "auto", "--C", "10", "--block-size", "4", "--quiet"]
    process = subprocess.Popen(list(map(str, command)))

    def n_blocks():
        with suppress(ModelError):  # no manifest yet
            return len(read_manifest(path).blocks)
        return 0

    while process.poll() is None and n_blocks() < 2:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    unfinished = read_manifest(path)
    assert 0 < len(unfinished.blocks) < 120
    begun = unfinished.params
    # A different number in its place proves that delta is not chosen again.
    other = next(delta for delta in GRID if delta != begun["delta"])
    commit(path, replace(unfinished, params={**begun, "delta": other}, blocks=()))
    subprocess.run(list(map(str, command)), check=True)
    assert open_model(path).params == {**begun, "delta": other}


def test_pruning_equals_training_at_the_larger_delta(tmp_path, problem_data):
    X, Y = problem_data
    names = [f"tag {i}" for i in range(40)]
    params = TrainingParams(tfidf=True, block_size=15, precision="float32")
    model = train(X, Y, tmp_path / "fine", params, names=names)
    for delta in (0.01, 0.1, np.float32(0.3), 1e9):
        params = replace(params, delta=delta)
        expected = train(X, Y, tmp_path / "coarse", params, names=names, overwrite=True)
        pruned = model.pruned(delta)
        pruned.save(tmp_path / "pruned", overwrite=True)
        assert pruned.params == expected.params
        found = read_manifest(tmp_path / "pruned")
        assert same(pruned.weights, expected.weights)
        assert found.parts == expected.manifest.parts
        again = open_model(tmp_path / "pruned")
        assert again.names == names
        assert same(again.weights, expected.weights)
        for one, other in zip(pruned.predict_topk(X), expected.predict_topk(X), strict=True):
            np.testing.assert_array_equal(one, other)
    assert model.params["delta"] == 0.01


def same(a, b):
    return (abs(a - b) > 0).nnz == 0 and a.nnz == b.nnz


def test_rounding_moves_hardly_any_weight_across_delta(problem_data):
    X, Y = problem_data
    fine = fit(X, Y).pruned(0.2).weights
    coarse = fit(X, Y, TrainingParams(delta=0.2)).weights
    moved = abs(fine - coarse)
    assert moved.nnz == 0 or (abs(moved.data - 0.2) < 0.2 * 2**-11).all()


@pytest.mark.parametrize("precision", ["float16", "float32", "float8"])
def test_changing_precision_equals_training_with_it(tmp_path, problem_data, precision):
    X, Y = problem_data
    exact = fit(X, Y, TrainingParams(precision="float32"))
    expected = fit(X, Y, TrainingParams(precision=precision))
    assert exact.precision == "float32"
    found = exact.pruned(precision=precision)
    assert found.params == expected.params
    assert found.precision == expected.precision == precision
    assert same(found.weights, expected.weights)
    for model in (expected, found):
        model.save(tmp_path / "model", overwrite=True)
        assert same(open_model(tmp_path / "model").weights, expected.weights)
        with pytest.raises(DataError, match="precision is 'half'"):
            model.pruned(precision="half")
    assert found.pruned().params["delta"] == 0.01


def test_pruning_twice_and_below_the_model_s_delta(problem_data):
    model = fit(*problem_data, AUTO)
    own = model.params["delta"]
    assert "delta_auto" not in model.pruned(own).params
    twice = model.pruned(max(0.2, own)).pruned(0.6)
    assert twice.weights.data.tobytes() == model.pruned(0.6).weights.data.tobytes()
    for bad in (0.001, -1, float("nan"), float("inf"), np.nextafter(own, 0)):
        with pytest.raises(DataError, match="cannot be recovered"):
            model.pruned(bad)
    model.manifest = replace(model.manifest, params={})
    with pytest.raises(ModelError, match="does not say"):
        model.pruned(0.5)


def test_estimator_chooses_and_is_kept_by_pruning(tmp_path, problem_data):
    X, Y = problem_data
    clf = DiSMECClassifier(delta="auto").fit(X, Y)
    clf.save(tmp_path / "auto")
    loaded = DiSMECClassifier.load(tmp_path / "auto")
    assert loaded.delta == "auto"
    assert loaded.model_.params == clf.model_.params
    y = np.array(["ant", "bee", "cat"])[np.argmax(Y[:, [30, 35, 39]].toarray(), axis=1)]
    clf = DiSMECClassifier(delta="auto")
    clf.fit(X, y, validation=(X, np.where(y == "cat", "unknown", y)))
    assert clf.model_.params["delta_auto"]["rows"] == 300
    clf.save(tmp_path / "classes")
    ok("prune", tmp_path / "classes", "-o", tmp_path / "pruned", "--delta", "0.6")
    pruned = DiSMECClassifier.load(tmp_path / "pruned")
    assert pruned.classes_.tolist() == ["ant", "bee", "cat"]
    assert pruned.delta == 0.6


@pytest.fixture(scope="module")
def files(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("pruning")
    for name, part in zip(("train", "test"), data, strict=True):
        save_data(part, directory / f"{name}.txt")
    X, Y, _ = data[0]
    save_data(Dataset(X[:1], Y[:1]), directory / "one.txt")
    ok("train", directory / "train.txt", "-o", directory / "model", "--C", "1")
    return directory


def test_the_command_line_chooses_delta_and_reports_it(files, tmp_path):
    for name, options in {"a": [], "b": ["--validation", files / "test.txt"]}.items():
        out = tmp_path / name
        result = run("train", files / "train.txt", "-o", out, "--delta", "auto", *options)
        assert result.exit_code == 0
        params = open_model(out).params
        (line,) = [line for line in result.stderr.splitlines() if line.startswith("delta")]
        assert line.startswith(f"delta {params['delta']}, chosen on ")
        assert "P@1 " in line
        told = json.loads(ok("inspect", out, "--json"))
        assert {key: told[key] for key in params} == shown(params)
        assert sentence("delta_auto", params["delta_auto"]) in ok("inspect", out)
    quiet = run("train", files / "train.txt", "-o", out, "--delta=auto", "--quiet", "--overwrite")
    assert (quiet.exit_code, quiet.output) == (0, "")


def test_validation_data_may_be_a_pair_of_matrices(files, tmp_path):
    pair = [tmp_path / "x.npz", tmp_path / "y.npz"]
    for path, matrix in zip(pair, load_data(files / "test.txt")[:2], strict=True):
        sp.save_npz(path, matrix)
    options = ["--delta", "auto", "--validation", pair[0], "--validation-labels", pair[1]]
    ok("train", files / "train.txt", "-o", tmp_path / "model", *options)
    assert open_model(tmp_path / "model").params["delta_auto"]["rows"] == 1200


def test_command_line_prunes(files, tmp_path):
    out = tmp_path / "out"
    ok("prune", files / "model", "-o", out, "--delta", "0.05")
    ok("train", files / "train.txt", "-o", tmp_path / "trained", "--C", "1", "--delta", "0.05")
    moved = abs(open_model(out).weights - open_model(tmp_path / "trained").weights)
    assert moved.nnz < 10  # due to rounding
    before = weight_files(out)
    assert "--overwrite" in refused("prune", files / "model", "-o", out, "--delta", "0.1")
    assert weight_files(out) == before
    ok("prune", files / "model", "-o", out, "--delta", "0.1", "--overwrite")
    assert open_model(out).params["delta"] == 0.1
    said = run("prune", files / "model", "-o", tmp_path / "small", "--precision", "float8").output
    assert "weights in float8" in said
    assert open_model(tmp_path / "small").params["precision"] == "float8"
    weights = [
        sum(map(len, weight_files(p).values())) for p in (files / "model", tmp_path / "small")
    ]
    assert weights[1] < weights[0]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("train train.txt -o new --delta often", "'often' is neither a number nor auto"),
        ("train train.txt -o new --delta -1", "delta is -1.0"),
        (
            "train train.txt -o new --validation test.txt",
            "--validation requires --C auto",
        ),
        ("train train.txt -o new --delta auto --validation-labels test.txt", "--validation"),
        ("train train.txt -o new --delta auto --validation nothing.txt", "nothing.txt"),
        ("train one.txt -o new --delta auto", "too few to hold one out"),
        ("prune model -o new --delta 0.001", "cannot be recovered"),
        ("prune model -o new --delta nan", "delta is nan"),
        ("prune model -o model --delta 0.1 --overwrite", "is the model itself"),
        ("prune nowhere -o new --delta 0.1", "no such directory"),
        ("prune model -o train.txt --delta 0.1", "train.txt"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(files, monkeypatch, arguments, reason):
    monkeypatch.chdir(files)
    before = sorted(Path().iterdir())
    assert reason in refused(*arguments.split())
    assert sorted(Path().iterdir()) == before


@pytest.mark.slow
@pytest.mark.data
def test_eurlex_keeps_its_accuracy_with_far_fewer_weights(real_data, tmp_path):
    place = real_data / "eurlex-4k"
    found = {}
    for delta in ("0.01", "auto"):
        model = tmp_path / delta
        ok("train", place / "train.txt.gz", "-o", model, "--delta", delta)
        found[delta] = json.loads(ok("evaluate", model, place / "test.txt.gz", "--json"))
    assert open_model(tmp_path / "auto").params["delta"] >= 0.03
    for k in DEPTHS:
        assert found["auto"][f"P@{k}"] >= found["0.01"][f"P@{k}"] - 0.3
