"""Refined models: a second stage that uses labels as features, and all operations on it."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from clusters import Processes
from conftest import BASE, random_problem, related, tune
from dismec import DataError, ModelError, TrainingParams, open_model, save_data, train
from dismec.cpu import kernels
from dismec.data.dataset import Dataset
from dismec.estimators.rows import DiSMECClassifier
from dismec.estimators.texts import DiSMECTextClassifier
from dismec.features.transform import Transform
from dismec.model.directory import read_manifest
from dismec.report.facts import describe_model
from dismec.report.label_facts import strongest_pairs
from dismec.training import refine as refining
from dismec.training.edit_labels import add_labels, remove_labels
from dismec.training.train import fit
from naive import brute_force_scores, topk

pytestmark = pytest.mark.native(needs="distributed sklearn")

REFINE = TrainingParams(refine=True, block_size=10)


@pytest.fixture(scope="module")
def data():
    X, Y = related(1500)
    return X[:900], Y[:900], X[900:], Y[900:]


@pytest.fixture(scope="module")
def path(data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("refined") / "model"
    names = [f"label {i}" for i in range(data[1].shape[1])]
    train(*data[:2], directory, replace(REFINE, calibrate=True), names=names, threads=1)
    return directory


@pytest.fixture(scope="module")
def model(path):
    return open_model(path)


def files_of(directory):
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.name != ".lock"}


def test_related_labels_improve_predictions(data, model):
    X, Y, X_test, Y_test = data
    plain, refined = fit(X, Y).evaluate(X_test, Y_test), model.evaluate(X_test, Y_test)
    assert all(refined[f"P@{k}"] > plain[f"P@{k}"] + 0.5 for k in (3, 5))
    assert model.manifest.refined["informing"] == Y.shape[1]
    effect = model.params["refine_effect"]
    assert sum(effect["after"].values()) > sum(effect["before"].values())


def test_the_directory_holds_both_stages_and_nothing_else(path):
    names = {"manifest.json", "labels.safetensors", "calibration.safetensors", ".lock"}
    shards = {"shard-000000.safetensors", "first-000000.safetensors"}
    assert {p.name for p in path.iterdir()} == names | shards
    assert json.loads((path / "manifest.json").read_text())["version"] == 4


def wide_rows(model, X):
    """Compute the input of the second stage, label by label in plain NumPy."""
    informed = model.transform
    first = np.zeros((model.n_labels, model.n_features + 1), np.float32)
    for shard in informed.first:
        of_label = np.repeat(np.arange(len(shard.scales)), np.diff(shard.label_starts))
        first[shard.labels] = shard.unpack().toarray()[of_label]
    own = informed.own.apply(X)
    scores = brute_force_scores(own, sp.csr_array(first))
    unseen = np.setdiff1d(np.arange(model.n_labels), informed.informing)
    scores[:, unseen] = -np.inf
    how = informed.refinement
    labels, best = topk(scores, how.labels)
    wide = np.zeros((X.shape[0], informed.n_columns + 1), np.float32)
    wide[:, : model.n_features] = own.toarray()[:, :-1]
    for row, (of_row, values) in enumerate(zip(labels, best, strict=True)):
        for label, score in zip(of_row.tolist(), values.tolist(), strict=True):
            if label >= 0 and np.isfinite(score):
                t = how.slope * score
                column = model.n_features + np.searchsorted(informed.informing, label)
                wide[row, column] = 0.5 * how.scale * (1 + t / np.sqrt(1 + t * t))
    wide[:, -1] = informed.bias
    return sp.csr_array(wide)


def test_predictions_are_those_of_brute_force(data, model):
    X = data[2][:60]
    scores = brute_force_scores(wide_rows(model, X), model.weights)
    labels, best = topk(scores, 7)
    for threads in (1, 3):
        found = model.predict_topk(X, 7, rank="score", threads=threads)
        np.testing.assert_array_equal(found[0], labels)
        np.testing.assert_array_equal(found[1], best)
    np.testing.assert_array_equal(model.decision_function(X), scores)
    one = [model.predict_topk(X[[i]], 7, rank="score") for i in range(5)]
    np.testing.assert_array_equal(np.vstack([labels for labels, _ in one]), labels[:5])


def test_the_most_probable_labels_are_those_of_brute_force(data, model):
    X = data[2][:60]
    scores = brute_force_scores(wide_rows(model, X), model.weights)
    everything = np.broadcast_to(np.arange(model.n_labels), scores.shape)
    probabilities = model.calibration.probabilities(everything, scores)
    labels, values = model.predict_topk(X, 5)
    expected = -np.sort(-probabilities, axis=1)[:, :5]
    np.testing.assert_allclose(values, expected, rtol=1e-4)
    np.testing.assert_allclose(np.take_along_axis(probabilities, labels, 1), expected, rtol=1e-4)
    ranked = model.reranked(0.0).predict_topk(X, 5)[1]
    np.testing.assert_allclose(ranked, expected, rtol=1e-4)
    sets = model.assign(X, 0.3).toarray()
    np.testing.assert_array_equal((probabilities >= 0.3).sum(), np.count_nonzero(sets))


def test_rows_are_widened_as_specified():
    rng = np.random.default_rng(3)
    X = sp.csr_array(sp.random_array((30, 8), density=0.4, random_state=rng, dtype=np.float32))
    rows = Transform(8).apply(X)
    labels = np.array([rng.permutation(6)[:4] for _ in range(30)], np.int32)
    labels[rng.random(labels.shape) < 0.2] = -1
    scores = rng.normal(size=labels.shape).astype(np.float32)
    column = np.array([2, -1, 0, 1, -1, 3], np.int32)
    arrays = rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data
    more = labels.ravel(), scores.ravel(), column, 0.3, 1.5, 2.0, 8, 12
    indptr, indices, values = kernels.widen(*arrays, True, *more)
    expected = np.zeros((30, 13), np.float32)
    expected[:, :8] = rows.toarray()[:, :8]
    for row in range(30):
        for label, score in zip(labels[row], scores[row].astype(np.float64), strict=True):
            if label >= 0 and column[label] >= 0:
                t = 1.5 * score
                expected[row, 8 + column[label]] = 0.15 * (1 + t / np.sqrt(1 + t * t))
    expected[:, 12] = 2
    np.testing.assert_array_equal(
        sp.csr_array((values, indices, indptr), shape=(30, 13)).toarray(), expected
    )
    assert all((np.diff(indices[a:b]) > 0).all() for a, b in pairwise(indptr))


@pytest.mark.parametrize(
    "change",
    [
        {"labels": np.zeros(7, np.int32)},
        {"labels": np.full(8, 9, np.int32)},
        {"column": np.array([5], np.int32)},
        {"n_columns": 2},
        {"indptr": np.array([0, 1, 1])},
    ],
)
def test_invalid_widenings_are_refused(change):
    given = {
        "indptr": np.array([0, 1, 2]),
        "indices": np.array([3, 3], np.int32),
        "data": np.ones(2, np.float32),
        "has_bias": True,
        "labels": np.zeros(8, np.int32),
        "scores": np.zeros(8, np.float32),
        "column": np.array([0], np.int32),
        "scale": 0.3,
        "slope": 1.5,
        "bias": 1.0,
        "n_features": 3,
        "n_columns": 4,
    }
    kernels.widen(**given)
    with pytest.raises(ValueError):
        kernels.widen(**given | change)


def test_threads_blocks_and_memory_do_not_change_a_byte(data, path, tmp_path):
    params = replace(REFINE, calibrate=True, block_size=7)
    names = [f"label {i}" for i in range(data[1].shape[1])]
    train(*data[:2], tmp_path / "model", params, names=names, threads=3)
    fit(*data[:2], params, names=names).save(tmp_path / "saved")
    for made in (tmp_path / "model", tmp_path / "saved"):
        expected = files_of(path)
        del expected["manifest.json"]  # block size, statistics
        found = files_of(made)
        assert (
            json.loads(found.pop("manifest.json"))["refined"] == open_model(path).manifest.refined
        )
        assert found == expected


class Interruption:
    """Stops a training after this many steps."""

    def __init__(self, steps):
        self.steps = steps

    def __call__(self, done, total):
        self.steps -= 1
        if self.steps < 0:
            raise KeyboardInterrupt


def test_interrupted_anywhere_a_refinement_resumes_to_the_same_model(data, path, tmp_path):
    directory = tmp_path / "model"
    names = [f"label {i}" for i in range(data[1].shape[1])]
    how = {"names": names, "threads": 1}
    params = replace(REFINE, calibrate=True)
    interrupted = 0
    for steps in range(1, 100):
        try:
            train(*data[:2], directory, params, progress=Interruption(2 * steps), **how)
            break
        except KeyboardInterrupt:
            interrupted += 1
            with pytest.raises(ModelError, match="unfinished training"):
                open_model(directory)
    assert interrupted >= 5
    found, expected = files_of(directory), files_of(path)
    for files in (found, expected):
        del files["manifest.json"]  # seconds
    assert found == expected


def test_files_left_by_an_interrupted_run_are_checked(data, path, tmp_path):
    directory = tmp_path / "model"
    names = [f"label {i}" for i in range(data[1].shape[1])]
    how = {"names": names, "threads": 1}
    params = replace(REFINE, calibrate=True)
    found = directory / ".stage-found" / "fold-0.safetensors"

    def interrupt(done, total):
        if found.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(*data[:2], directory, params, progress=interrupt, **how)
    content = bytearray(found.read_bytes())
    content[-100] ^= 64
    found.write_bytes(content)
    train(*data[:2], directory, params, **how)
    for name in ("shard-000000.safetensors", "first-000000.safetensors"):
        assert (directory / name).read_bytes() == (path / name).read_bytes()


@pytest.mark.slow
def test_killed_at_any_moment_and_resumed_the_model_is_the_same(tmp_path):
    X, Y = related(6000)
    save_data(Dataset(X, Y, None), tmp_path / "data.xmc")
    params = TrainingParams(refine=True, calibrate=True, C=10, block_size=4)
    train(X, Y, tmp_path / "reference", params)
    expected = files_of(tmp_path / "reference")
    del expected["manifest.json"]  # seconds
    path, rng, kills = tmp_path / "model", random.Random(0), 0
    command = [sys.executable, "-m", "dismec", "train", str(tmp_path / "data.xmc"), "--quiet"]
    command += ["-o", str(path), "--refine", "--calibrate", "--C", "10", "--block-size", "4"]
    while kills < 8:
        shutil.rmtree(path, ignore_errors=True)
        ended = False
        while not ended:
            run = subprocess.Popen(command, stderr=subprocess.PIPE)
            time.sleep(rng.uniform(0.3, 1.0))
            if run.poll() is None:
                run.send_signal(signal.SIGKILL)
                kills += 1
            error = run.communicate()[1].decode()
            ended = run.returncode != -signal.SIGKILL
        assert run.returncode == 0 or "already holds a finished model" in error
        found = files_of(path)
        del found["manifest.json"]
        assert found == expected


@pytest.mark.cluster
def test_a_cluster_trains_and_predicts_the_same(data, path, tmp_path):
    from dismec.cluster.prediction import ClusterModel

    names = [f"label {i}" for i in range(data[1].shape[1])]
    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        for _ in range(2):
            processes.worker()
        address, directory = str(processes.file), tmp_path / "model"
        params = replace(REFINE, calibrate=True)
        train(*data[:2], directory, params, names=names, cluster=address)
        found, expected = files_of(directory), files_of(path)
        for files in (found, expected):
            del files["manifest.json"]
        assert found == expected
        here = open_model(path)
        with ClusterModel(directory, address) as there:
            for rank in ("score", "probability"):
                for one, other in zip(
                    there.predict_topk(data[2], 4, rank=rank),
                    here.predict_topk(data[2], 4, rank=rank),
                    strict=True,
                ):
                    np.testing.assert_array_equal(one, other)
            why = there.explain(data[2][[0]], BASE)
            assert why == here.explain(data[2][[0]], BASE)
            assert why.reasons
            assert there.nnz == here.nnz


def test_the_plain_model_is_kept_if_labels_do_not_inform_each_other(tmp_path, caplog):
    X, Y = random_problem(rows=200, labels=6, seed=4)
    rng = np.random.default_rng(0)
    Y = sp.csr_array(rng.random(Y.shape) < 0.3, dtype=np.uint8)  # nothing to learn
    while True:
        directory = tmp_path / str(rng.integers(10**9))
        refined = train(X, Y, directory, replace(REFINE, calibrate=True))
        if refined.manifest.refined is None:
            break
        Y = sp.csr_array(rng.random(Y.shape) < 0.3, dtype=np.uint8)
    assert "training the plain model" in caplog.text
    plain = train(X, Y, tmp_path / "plain", TrainingParams(block_size=10))
    assert (directory / "shard-000000.safetensors").read_bytes() == (
        tmp_path / "plain" / "shard-000000.safetensors"
    ).read_bytes()
    assert refined.calibration is not None
    assert not list(directory.glob(".stage*")) + list(directory.glob("first*"))
    assert refined.n_features == plain.n_features
    with pytest.raises(ModelError, match="finished model of this training"):
        train(X, Y, directory, replace(REFINE, calibrate=True))


def test_a_run_that_has_chosen_the_plain_model_resumes_with_it(tmp_path, monkeypatch):
    X, Y = random_problem(rows=300, labels=40)
    monkeypatch.setattr(refining, "_helps", lambda results: False)
    train(X, Y, tmp_path / "reference", REFINE)

    def interrupt(done, total):
        manifest = directory / "manifest.json"
        if manifest.exists() and "refine_effect" in read_manifest(directory).params:
            raise KeyboardInterrupt

    directory = tmp_path / "model"
    with pytest.raises(KeyboardInterrupt):
        train(X, Y, directory, REFINE, progress=interrupt)
    tried = []
    monkeypatch.setattr(refining._Steps, "_out_of_fold", lambda *_: tried.append(1))
    train(X, Y, directory, REFINE)
    assert not tried
    name = "shard-000000.safetensors"
    assert (directory / name).read_bytes() == (tmp_path / "reference" / name).read_bytes()


def test_progress_only_rises(data):
    told = []
    fit(*data[:2], REFINE, progress=lambda done, total: told.append((done, total)))
    assert {total for _, total in told} == {data[1].shape[1]}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (data[1].shape[1],) * 2


def test_an_explanation_names_the_labels_and_their_words(data, model):
    row = data[2][[3]]
    terms = [f"word {i}" for i in range(model.n_features)]
    label = int(model.predict_topk(row, 1)[0][0, 0])
    why = model.explain(row, label, terms=terms)
    parts = [*why.terms, *why.reasons]
    assert sum(part.contribution for part in parts) + why.bias == pytest.approx(why.score, abs=1e-5)
    assert why.reasons
    informed = model.transform
    wide = wide_rows(model, row).toarray()[0]
    for reason in why.reasons:
        assert reason.name == f"label {reason.label}"
        column = model.n_features + np.searchsorted(informed.informing, reason.label)
        assert reason.value == pytest.approx(wide[column])
        assert reason.contribution == pytest.approx(reason.value * reason.weight)
    strongest = why.reasons[0]
    assert {term.term for term in strongest.terms} <= {f"word {i}" for i in row.indices}
    said = why.to_dict()
    assert said["reasons"][0]["terms"][0]["term"].startswith("word")
    assert max(term["feature"] for term in said["terms"]) < model.n_features
    json.dumps(said)


def test_a_report_names_related_pairs(path, model):
    facts = describe_model(path)
    assert facts["labels used as features"] == 2 * BASE
    assert facts["weights of the first stage"] > 0
    assert "→" in facts["label pairs with the highest weights"][0]
    pairs = strongest_pairs(model, 2 * BASE)
    found = {(pair["label"], pair["informed by"]) for pair in pairs["for"]}
    both = [(BASE + i, other) for i in range(BASE) for other in (i, (i + 1) % BASE)]
    expected = {(f"label {label}", f"label {other}") for label, other in both}
    assert len(found & expected) >= 2 * BASE - 2
    weights = [pair["weight"] for pair in pairs["for"]]
    assert weights == sorted(weights, reverse=True)
    assert min(weights) > 0 > max(pair["weight"] for pair in pairs["against"])


def test_refined_models_can_be_pruned_and_pickled_and_labels_removed(data, path, model, tmp_path):
    X = data[2]
    pruned = model.pruned(0.05, precision="float8")
    assert pruned.nnz < model.nnz
    pruned.save(tmp_path / "pruned")
    again = open_model(tmp_path / "pruned")
    for one, other in zip(pruned.predict_topk(X), again.predict_topk(X), strict=True):
        np.testing.assert_array_equal(one, other)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict_topk(X)[0], model.predict_topk(X)[0])
    model.save(tmp_path / "copy")
    gone = remove_labels(tmp_path / "copy", ["label 4"])
    assert not (gone.predict_topk(X, 2 * BASE)[0] == 4).any()
    kept = [i for i in range(2 * BASE) if i != 4]
    np.testing.assert_array_equal(
        gone.decision_function(X)[:, kept], model.decision_function(X)[:, kept]
    )
    names = [f"label {i}" for i in range(2 * BASE + 1)]
    wider = sp.csr_array(sp.hstack([data[1], data[1][:, [0]]]))
    with pytest.raises(DataError, match="labels of a refined model cannot be added"):
        add_labels(path, data[0], wider, names=names)


@pytest.mark.parametrize(
    "params",
    [
        {"penalty": "l1"},
        {"weighting": "propensity"},
        {"delta": "auto"},
        {"tfidf": True, "bias": 0.0},
        {"normalize": False, "bias": 2.0},
    ],
)
def test_refining_works_with_other_parameters(data, params):
    X, Y, X_test, Y_test = data
    plain = fit(X, Y, TrainingParams(**params)).evaluate(X_test, Y_test)["P@3"]
    refined = fit(X, Y, TrainingParams(**params, refine=True))
    assert refined.manifest.refined
    assert refined.evaluate(X_test, Y_test)["P@3"] > plain


def test_C_is_chosen_as_for_plain_models(data, tmp_path):
    tuned = tune(*data[:2], tmp_path / "model", [0.3, 1.0], REFINE)
    assert tuned.model.manifest.refined
    assert tuned.model.params["C"] in (0.3, 1.0)


def test_estimators_refine(data):
    X, Y, X_test, _ = data
    refined = DiSMECClassifier(refine=True).fit(X, Y)
    assert refined.model_.manifest.refined
    expected = fit(X, Y, REFINE).predict_topk(X_test, 3)
    for found, other in zip(refined.predict_topk(X_test, 3), expected, strict=True):
        np.testing.assert_array_equal(found, other)
    words = [" ".join(f"w{w}" for w in X.indices[a:b]) for a, b in pairwise(X.indptr)]
    labels = [[f"l{i}" for i in Y.indices[a:b]] for a, b in pairwise(Y.indptr)]
    texts = DiSMECTextClassifier(refine=True, calibrate=True).fit(words, labels)
    assert texts.model_.manifest.refined
    assert texts.score(words, labels) > 0.8


def test_invalid_refinements_are_refused(data, tmp_path):
    X, Y = data[:2]
    with pytest.raises(DataError, match="refine needs at least 6 rows"):
        fit(X[:5], Y[:5], REFINE)
    with pytest.raises(DataError, match="validation data is not supported with refine"):
        fit(X, Y, replace(REFINE, calibrate=True), validation=(X, Y))
    none = fit(X, sp.csr_array(Y.shape, dtype=np.uint8), REFINE)  # there is nothing to learn
    assert none.manifest.refined is None


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda m: m["refined"].update(informing=23), "does not hold the 23 labels used as"),
        (lambda m: m["refined"].update(informing=10**9), "informing is 1000000000"),
        (lambda m: m["refined"].update(labels=10**9), "not numbers of labels"),
        (lambda m: m["refined"].update(folds=-1), "not numbers of labels"),
        (lambda m: m["refined"].update(scale="0.3"), "out of range"),
        (lambda m: m["refined"].pop("slope"), "entries are not those"),
        (lambda m: m.update(refined=None), "first stage"),
        (lambda m: m.update(first=None), "first stage"),
        (lambda m: m["first"][0].update(n_labels=23), "sizes that the manifest"),
        (lambda m: m["first"][0].update(file="missing.safetensors"), "missing"),
        (lambda m: m["first"][0].update(file="../x"), "not a valid name for a model file"),
    ],
)
def test_a_manifest_with_false_stages_is_refused(model, tmp_path, damage, reason):
    model.save(tmp_path / "model")
    manifest = tmp_path / "model" / "manifest.json"
    content = json.loads(manifest.read_text())
    content.pop("checksum", None)
    damage(content)
    manifest.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=reason) as caught:
        open_model(tmp_path / "model")
    assert "\n" not in str(caught.value)


def test_a_truncated_or_altered_first_stage_is_refused(model, tmp_path):
    model.save(tmp_path / "model")
    shard = tmp_path / "model" / "first-000000.safetensors"
    whole = shard.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-40] + b"\1" + whole[-39:]):
        shard.write_bytes(damaged)
        with pytest.raises(ModelError, match="altered"):
            open_model(tmp_path / "model")
