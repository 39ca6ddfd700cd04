"""Allowed labels: the top k among them equals brute force, for every ranking."""

from __future__ import annotations

import json
import pickle
from functools import partial
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import naive
from conftest import random_problem
from dismec import (
    DataError,
    DiSMECClassifier,
    DiSMECTextClassifier,
    TrainingParams,
    save_data,
)
from dismec.cli import main
from dismec.cpu import kernels
from dismec.data.dataset import Dataset
from dismec.errors import ModelError
from dismec.features.transform import Transform
from dismec.measure import metrics
from dismec.model import allowed as allowed_labels
from dismec.model import rankings
from dismec.model.allowed import Allowed
from dismec.model.manifest import PRECISIONS
from dismec.model.scoring import Predictor
from dismec.model.select_labels import cut_down
from dismec.model.shards import gather, pack
from dismec.training.train import fit

pytestmark = pytest.mark.native(needs="sklearn")


def random_csr(rng, shape, density, values):
    mask = rng.random(shape) < density
    return sp.csr_array((mask * rng.choice(values, size=shape)).astype(np.float32))


def best_of(scores, k, inside):
    """Return the k best of each row among the labels that count, by brute force."""
    among = np.where(inside, scores, -np.inf)
    order = np.argsort(-among, axis=1, kind="stable")[:, :k]
    values = np.take_along_axis(among, order, axis=1).astype(np.float32)
    labels = np.where(np.take_along_axis(inside, order, axis=1), order, -1)
    pad = ((0, 0), (0, k - labels.shape[1]))
    return (
        np.pad(labels, pad, constant_values=-1),
        np.pad(np.where(labels < 0, -np.inf, values), pad, constant_values=-np.inf),
    )


def assert_same(result, expected):
    np.testing.assert_array_equal(result[0], expected[0])
    np.testing.assert_array_equal(result[1], expected[1])


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_rows=st.sampled_from([1, 9, 160]),  # in large batches rows share decoded weights
    n_labels=st.integers(1, 90),
    k=st.integers(1, 95),
    share=st.sampled_from([0.0, 0.03, 0.5, 0.97, 1.0]),
    shard_rows=st.sampled_from([7, 32, 1 << 16]),
    bounded_rows=st.sampled_from([0, 20, 1 << 16]),
    lookup=st.sampled_from([0, 1, 8, 1 << 16]),
    precision=st.sampled_from(list(PRECISIONS)),
    threads=st.sampled_from([1, 3]),
)
def test_topk_among_allowed_labels_equals_brute_force(
    seed, n_rows, n_labels, k, share, shard_rows, bounded_rows, lookup, precision, threads
):
    rng = np.random.default_rng(seed)
    n_features = int(rng.integers(1, 12))
    values = [-1, 1, 2] if seed % 2 else rng.standard_normal(50)
    X = random_csr(rng, (n_rows, n_features), 0.5, values)
    X = abs(X) if seed % 3 else X  # most rows have no values below 0, and bounds
    W = random_csr(rng, (n_labels, n_features + 1), rng.choice([0.1, 0.5, 1.0]), values)
    W = W[np.sort(rng.integers(0, n_labels, n_labels))]  # some labels share a classifier
    counts = (rng.random(n_labels) < 0.9).astype(np.int64)
    transform = Transform(n_features, bool(rng.integers(2)), float(rng.choice([0.0, 1.0, -0.5])))
    with (
        mock.patch.object(kernels, "shard_rows", shard_rows),
        mock.patch.object(kernels, "bounded_rows", bounded_rows),
    ):
        shards = list(pack([(np.arange(n_labels), W)], n_features, precision, counts))
        one = np.flatnonzero(rng.random(n_labels) < share)
        cut = cut_down(shards, np.isin(np.arange(n_labels), one))
    stored = gather(shards, n_labels, n_features)
    scores = naive.brute_force_scores(transform.apply(X), stored)
    trained = np.broadcast_to(counts > 0, scores.shape)
    predictor = Predictor(shards, n_labels, transform)
    each = rng.random(scores.shape) < share
    with mock.patch.object(kernels, "merge_topk", partial(kernels.merge_topk, lookup=lookup)):
        found = predictor.topk(X, k, threads, Allowed(n_labels, one))
        by_row = predictor.topk(X, k, threads, Allowed.of_rows(sp.csr_array(each), n_labels))
        of_copy = Predictor(cut, n_labels, transform).topk(X, k, threads)
    inside = trained & np.isin(np.arange(n_labels), one)
    assert_same(found, best_of(scores, k, inside))
    assert_same(of_copy, found)
    assert_same(by_row, best_of(scores, k, trained & each))


@pytest.mark.parametrize("n_rows", [3, 160])
@pytest.mark.parametrize(
    ("n_labels", "n_open"),
    [(3000, 1), (3000, 20), (3000, 2900), (20_000, 1), (20_000, 30), (20_000, 19_000)],
)
def test_shards_with_and_without_ceilings_rank_allowed_labels(n_labels, n_open, n_rows):
    rng = np.random.default_rng(n_open)
    n_features = 40
    W = sp.random_array((n_labels, n_features + 1), density=0.1, random_state=rng, dtype=np.float32)
    W.data -= np.float32(0.5)
    W = sp.csr_array(W)
    rare = np.repeat(
        np.isin(np.arange(n_labels), rng.permutation(n_labels)[:99]), np.diff(W.indptr)
    )
    W.data[(W.indices < 10) & ~rare] = 0  # few labels have weights for some features
    W.eliminate_zeros()
    transform = Transform(n_features, normalize=True, bias=1.0)
    shards = list(pack([(np.arange(n_labels), W)], n_features, "float16"))
    assert (shards[0].ceilings is not None) == (n_labels > 16_384)
    predictor = Predictor(shards, n_labels, transform)
    X = random_csr(rng, (n_rows, n_features), 0.5, [0.5, 1.0, 2.0])
    X.data[: len(X.data) // 4] *= -1  # values that bounds are not for
    scores = predictor.decision_function(X)
    sets = [rng.permutation(n_labels)[:n_open] for _ in range(n_rows)]
    each = np.zeros(scores.shape, np.bool_)
    for row, labels in enumerate(sets):
        each[row, labels] = True
    one = np.broadcast_to(each[0], scores.shape)
    expected = best_of(scores, 20, one)
    assert_same(predictor.topk(X, 20, 1, Allowed(n_labels, sets[0])), expected)
    rows = Allowed.of_rows(sp.csr_array(each), n_labels)
    assert_same(predictor.topk(X, 20, 1, rows), best_of(scores, 20, each))
    [cut] = cut_down(shards, each[0])
    assert (cut.ceilings is not None) == (n_open > kernels.bounded_rows)
    assert_same(Predictor([cut], n_labels, transform).topk(X, 20, 1), expected)


def test_kernels_refuse_sets_that_do_not_match_the_shard():
    W = sp.csr_array(np.eye(20, 21, dtype=np.float32))
    [shard] = pack([(np.arange(20), W)], 20, "float32")
    rows = np.zeros(2, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32)

    def merge(*arrays):
        best = np.full((1, 2), -1, np.int32), np.full((1, 2), -np.inf, np.float32)
        among = kernels.AllowedLabels(*arrays)
        kernels.merge_topk(shard.native, *rows, *best, allowed=among)

    bits, words = np.zeros(3, np.uint8), np.zeros(2, np.uint16)
    starts, none = np.zeros(2, np.int64), np.zeros(0, np.uint16)
    merge(bits, words)
    merge(starts, np.zeros(0, np.int32), starts, none)
    with pytest.raises(ValueError, match="a bit for each label"):
        merge(bits[:2], words)
    with pytest.raises(ValueError, match="a bit for each classifier"):
        merge(bits, words[:1])
    with pytest.raises(ValueError, match="a bit for each classifier"):
        merge(bits, np.array([0, 1 << 4], np.uint16))
    with pytest.raises(ValueError, match="those of the rows"):
        merge(starts, np.zeros(1, np.int32), starts, none)
    with pytest.raises(ValueError, match="not there"):
        merge(starts, np.zeros(0, np.int32), np.array([0, 1]), np.array([20], np.uint16))
    goes = np.arange(20, dtype=np.int32)
    for shards, to, n_rows in (
        ([], [], 0),
        ([shard.native], [goes[:3]], 3),
        ([shard.native], [goes], 19),
        ([shard.native], [goes], 21),
        ([shard.native], [goes], 1 << 17),
        ([shard.native, shard.native], [goes, goes], 20),
    ):
        with pytest.raises(ValueError, match="classifier"):
            kernels.cut(shards, to, n_rows)
    [half] = pack([(np.arange(20), W)], 20, "float16")
    with pytest.raises(ValueError, match="one precision"):
        kernels.cut([shard.native, half.native], [goes, goes + 20], 40)
    [narrow] = pack([(np.arange(20), W[:, 1:])], 19, "float32")
    with pytest.raises(ValueError, match="same features"):
        kernels.cut([shard.native, narrow.native], [goes, goes + 20], 40)


@pytest.fixture(scope="module")
def problem():
    X, Y = random_problem(rows=400, labels=30, seed=3)
    return X, Y, [f"group {n % 3}: {n}" for n in range(Y.shape[1])]


@pytest.fixture(scope="module", params=["plain", "calibrated", "refined"])
def model(request, problem):
    X, Y, names = problem
    how = {"plain": {}, "calibrated": {"calibrate": True}, "refined": {"refine": True}}
    return fit(X, Y, TrainingParams(**how[request.param]), names=names)


@pytest.fixture(scope="module")
def calibrated(problem):
    X, Y, names = problem
    return fit(X, Y, TrainingParams(calibrate=True), names=names)


def sets_for(model, n_rows):
    """Return sets of labels in every form, each with the equivalent rows × labels mask."""
    rng = np.random.default_rng(n_rows)
    each = rng.random((n_rows, model.n_labels)) < 0.3
    few = np.zeros_like(each)
    few[:, [2, 17]] = True
    most = ~few
    nothing = np.zeros_like(each)
    return [
        ([17, 2, 2], few),
        ([model.names[2], model.names[17], 17], few),
        (np.array([2, 17]), few),
        (model.select_labels(exclude=[2, model.names[17]]), most),
        (sp.csr_array(each), each),
        (each.astype(np.int64), each),
        (sp.csr_array(each & few), each & few),
        ([], nothing),
    ]


@pytest.fixture(params=["copied", "masked"])
def way(request, monkeypatch):
    """How labels are ranked that a caller allows."""
    copied = request.param == "copied"
    monkeypatch.setattr(allowed_labels, "_MANY_ROWS", 1 if copied else 10**9)
    monkeypatch.setattr(allowed_labels, "_FEW_COPIED", 1)


@pytest.mark.usefixtures("way")
def test_every_order_is_exact_among_what_is_allowed(model, problem):
    model = pickle.loads(pickle.dumps(model))
    X = problem[0][:40]
    trained = np.broadcast_to(model.label_counts > 0, (40, model.n_labels))
    calibrated = model.calibration is not None
    for allowed, mask in sets_for(model, 40):
        inside = mask & trained
        top = model.predict_topk(X, 6, rank="score", allowed=allowed)
        assert_same(top, best_of(model.decision_function(X), 6, inside))
        all_sets = [(model.assign(X, 0.1, probabilities=False), 0.1, False)]
        if calibrated:
            labels, p = best_of(model.predict_proba(X), 6, inside)
            p[labels < 0] = 0
            found = model.predict_topk(X, 6, allowed=allowed, rank="probability")
            np.testing.assert_array_equal(found[1], p)
            assert ((found[0] < 0) == (labels < 0)).all()
            all_sets += [(model.assign(X, t), t, True) for t in (0.2, "micro-f1", "macro-f1")]
        for every, threshold, probabilities in all_sets:
            some = model.assign(X, threshold, probabilities=probabilities, allowed=allowed)
            np.testing.assert_array_equal(some.toarray(), np.where(mask, every.toarray(), 0))
        names = [
            tuple(name for name in row if inside[i, model.names.index(name)])
            for i, row in enumerate(model.predict(X))
        ]
        assert model.predict(X, allowed=allowed) == names


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("probabilities", [True, False])
def test_reranked_labels_are_exact_among_what_is_allowed(calibrated, problem, probabilities):
    X, model = problem[0][:40], pickle.loads(pickle.dumps(calibrated))
    if not probabilities:
        model = fit(problem[0], problem[1], names=problem[2])
    order, values = model.predict_topk(X, model.n_labels, aim="psp")
    for allowed, mask in sets_for(model, 40):
        labels, gains = model.predict_topk(X, 6, aim="psp", allowed=allowed)
        for row in range(40):
            there = order[row] >= 0
            kept = there & mask[row, order[row]]
            n = min(6, kept.sum())
            assert labels[row, :n].tolist() == order[row, kept][:6].tolist()
            assert (labels[row, n:] == -1).all()
            np.testing.assert_allclose(gains[row, :n], values[row, kept][:6], rtol=1e-5)


def test_the_weights_of_few_labels_are_copied_for_many_rows_and_kept(
    calibrated, problem, monkeypatch
):
    made = []
    monkeypatch.setattr(rankings, "cut_down", lambda *a: made.append(a) or cut_down(*a))
    monkeypatch.setattr(allowed_labels, "_MANY_ROWS", 100)
    X, model = problem[0], calibrated
    few = model.select_labels([1, 2])
    first = model.predict_topk(X[:99], allowed=few)
    assert not made
    assert_same([array[:99] for array in model.predict_topk(X[:100], allowed=few)], first)
    by_gain = model.predict_topk(X[:100], aim="psp:0", allowed=few)
    np.testing.assert_array_equal(by_gain[0][:99], first[0])
    assert len(made) == 1
    model.predict_topk(X[:200], allowed=list(range(20)))  # too many for a copy
    assert len(made) == 1
    rng = np.random.default_rng(0)
    each = np.zeros((200, model.n_labels), np.bool_)
    each[:, [4, 11, 12]] = rng.random((200, 3)) < 0.5
    found = model.predict_topk(X[:200], 3, rank="score", allowed=each)
    assert len(made) == 2
    assert_same(
        found, best_of(model.decision_function(X[:200]), 3, each & (model.label_counts > 0))
    )
    each[0] = True  # one row may get any label
    model.predict_topk(X[:200], 3, allowed=each)
    assert len(made) == 2


def test_evaluation_is_that_of_the_allowed_labels_alone(model, problem):
    X, Y, _ = problem
    for allowed, mask in sets_for(model, X.shape[0]):
        truth = sp.csr_array(Y.toarray() * mask)
        if not truth.nnz:
            continue
        top = model.predict_topk(X, 5, allowed=allowed)[0]
        p = model.propensities()
        expected = metrics.evaluate(truth, top, (1, 3, 5), p)
        result = model.evaluate(X, Y, allowed=allowed)
        assert {key: result[key] for key in expected} == expected
        if model.calibration is not None:
            assert {"ECE", "micro-F1", "macro-F1"} <= result.keys()


def test_filtering_reports_how_many_true_labels_are_left_out(calibrated, problem):
    _, Y, _ = problem
    wide = sp.hstack([Y, np.ones((Y.shape[0], 1), Y.dtype)], format="csr")
    kept, left_out = calibrated.select_labels(exclude=[0]).filter(wide)
    assert left_out == Y[:, [0]].nnz + Y.shape[0]
    assert kept.nnz == Y[:, 1:].nnz
    only_first = calibrated.allowed_labels(sp.csr_array(np.eye(*Y.shape, dtype=np.int64)))
    kept, left_out = only_first.filter(wide)
    assert kept.nnz == Y.diagonal().sum()
    assert left_out == wide.nnz - kept.nnz


def test_invalid_allowed_labels_are_refused_in_one_line(calibrated, problem):
    X = problem[0][:3]
    other = fit(X, sp.csr_array(np.eye(3)), TrainingParams())
    for allowed, reason in (
        (["nobody"], "the model has no label 'nobody'"),
        ([1, 99], r"label 99 is outside 0 … 29"),
        (np.array([1, -1]), r"label -1 is outside 0 … 29"),
        ([True], "label True is outside"),
        ([2.5], r"no label 2\.5"),
        ("group 1: 1", "allowed is 'group 1: 1'; expected a list of labels"),
        (7, "allowed is 7; expected a list of labels"),
        (sp.csr_array((3, 29)), "allowed has 29 columns; expected 30"),
        (sp.csr_array((2, 30)), "allowed has 2 rows, X has 3"),
        (other.select_labels(), "for a model with 3 labels, not 30"),
    ):
        with pytest.raises(DataError, match=reason) as error:
            calibrated.predict_topk(X, allowed=allowed)
        assert "\n" not in str(error.value)
    with pytest.raises(DataError, match="only is 'x'"):
        calibrated.select_labels(only="x")


def test_a_damaged_shard_is_refused_when_it_is_cut(calibrated):
    [shard] = calibrated.shards
    broken = type(shard)(**shard.arrays | {"starts": shard.starts[::-1].copy()})
    with pytest.raises(ModelError, match="damaged"):
        cut_down([broken], np.ones(calibrated.n_labels, np.bool_))


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments], prog_name="dismec")


@pytest.fixture(scope="module")
def files(tmp_path_factory, calibrated, problem):
    directory = tmp_path_factory.mktemp("allowed")
    calibrated.save(directory / "model")
    X, Y, names = problem
    save_data(Dataset(X, Y, names), directory / "rows.xmc")
    (directory / "some").write_text(f"{names[2]}\n\n{names[17]}\n{names[5]}\n", "utf-8")
    (directory / "one").write_text(f"{names[5]}\n", "utf-8")
    (directory / "wrong").write_text(f"{names[5]}\nnobody\n", "utf-8")
    return directory


def predictions(result):
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_commands_choose_from_the_labels_of_files(files, calibrated, problem):
    X, Y, names = problem
    predict = ["predict", files / "model", files / "rows.xmc", "--format", "jsonl", "-k", "4"]
    for options, labels in (
        (["--only", files / "some"], [2, 17, 5]),
        (["--only", files / "some", "--exclude", files / "one"], [2, 17]),
        (["--exclude", files / "some"], sorted({*range(30)} - {2, 5, 17})),
    ):
        found = predictions(run(*predict, *options))
        expected, p = calibrated.predict_topk(X, 4, allowed=labels)
        assert len(found) == len(expected)
        for i, row in enumerate(found):
            n = int((expected[i] >= 0).sum())
            assert row["labels"] == [names[label] for label in expected[i, :n]]
            assert np.float32(row["probabilities"]) == pytest.approx(p[i, :n], rel=1e-5)
        result = run("evaluate", files / "model", files / "rows.xmc", "--json", *options)
        measured = calibrated.evaluate(X, Y, allowed=labels)
        assert json.loads(result.stdout) == {key: round(v, 2) for key, v in measured.items()}
        left_out = Y.nnz - Y[:, labels].nnz
        assert f"{left_out:,} of {Y.nnz:,} true labels are not allowed" in result.stderr
    sets = run(*predict[:-2], "--threshold", "0.3", "--only", files / "some")
    assigned = calibrated.assign(X, 0.3, allowed=[2, 17, 5])
    assert [len(row["labels"]) for row in predictions(sets)] == np.diff(assigned.indptr).tolist()
    again = run(*predict, "--aim", "psp", "--only", files / "one")
    assert all(row["labels"] in ([], [names[5]]) for row in predictions(again))


def test_commands_refuse_unknown_labels_with_file_and_line(files):
    for command in ("predict", "evaluate"):
        for option in ("--only", "--exclude"):
            result = run(command, files / "model", files / "rows.xmc", option, files / "wrong")
            assert result.exit_code == 2
            line = result.stderr.strip()
            assert line.endswith(f"{files / 'wrong'}:2: the model has no label 'nobody'")
            assert "\n" not in line


def test_row_estimator_takes_allowed_labels_in_the_form_of_its_classes(problem):
    X, Y, _ = problem
    numbered = DiSMECClassifier().fit(X, Y)
    assert_same(
        numbered.predict_topk(X, 3, allowed=[4, 9]),
        numbered.model_.predict_topk(X, 3, allowed=[4, 9]),
    )
    both = numbered.predict(X, allowed=[4, 9])
    only = np.isin(np.arange(30), [4, 9])
    np.testing.assert_array_equal(both.toarray(), numbered.predict(X).toarray() * only)
    dense = DiSMECClassifier(calibrate=True).fit(X.toarray(), Y.toarray())
    np.testing.assert_array_equal(
        dense.predict(X.toarray(), allowed=[4, 9]), dense.predict(X.toarray()) * only
    )
    assert_same(
        dense.predict_topk(X.toarray(), 3, allowed=[4, 9]),
        dense.model_.predict_topk(X, 3, rank="probability", allowed=[4, 9]),
    )
    y = np.array(["a", "b", "c", "d"])[np.arange(X.shape[0]) % 4]
    classes = DiSMECClassifier().fit(X, y)
    scores = classes.decision_function(X)[:, [1, 3]]
    assert (
        classes.predict(X, allowed=["d", "b"]) == np.where(scores[:, 0] >= scores[:, 1], "b", "d")
    ).all()
    with pytest.raises(DataError, match="'e' is not one of the classes"):
        classes.predict(X, allowed=["a", "e"])
    with pytest.raises(DataError, match="row index 0: no class is allowed"):
        classes.predict(X, allowed=[])
    with pytest.raises(DataError, match="allowed is not supported with two classes"):
        DiSMECClassifier().fit(X, y == "a").predict(X, allowed=[True])


def test_text_estimator_takes_allowed_labels_in_the_form_of_fit():
    texts = ["one egg", "two eggs", "some bread", "more bread", "milk", "sour milk"]
    lists = DiSMECTextClassifier().fit(texts, [[30], [30], [2], [2], [1], [1, 2]])
    found, scores = lists.predict_topk(texts, 3, allowed=[2, 30])
    assert {*found[:, :2].ravel()} == {2, 30}
    assert (found[:, 2] == None).all()  # noqa: E711  an array
    assert np.isneginf(scores[:, 2]).all()
    assert lists.predict(texts, allowed=[1])[-1] == (1,)
    assert lists.predict(texts, allowed=[1])[0] == ()
    each = np.zeros((6, 3), np.bool_)
    each[:, 1] = True
    assert (lists.predict_topk(texts, 1, allowed=each)[0] == lists.classes_[1]).all()
    with pytest.raises(DataError, match="0 is not one of the labels"):
        lists.predict(texts, allowed=[0])  # the number of a label, not a label
    classes = DiSMECTextClassifier(calibrate=True).fit(
        texts * 5, ["e", "e", "b", "b", "m", "m"] * 5
    )
    assert {*classes.predict(texts, allowed=["b", "m"])} == {"b", "m"}
    assert {*classes.predict_topk(texts, 1, allowed=["e"])[0].ravel()} == {"e"}
