"""Refined models whose rows have dense features: the same two stages, exact and to the byte."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import dismec
from clusters import Processes
from conftest import BASE, WORDS, related, tune
from dismec import ModelError, TrainingParams, open_model, save_data, train
from dismec.cpu import kernels
from dismec.data.dataset import Dataset
from dismec.data.mixed import MixedRows
from dismec.features.transform import Transform
from dismec.report.facts import describe_model
from dismec.report.label_facts import strongest_pairs
from dismec.training import refine as refining
from dismec.training.train import fit
from naive import brute_force_scores, topk
from servers import serving
from test_cli import ok
from test_refining import Interruption, files_of
from test_server import features

pytestmark = pytest.mark.native(needs="distributed sklearn")

REFINE = TrainingParams(refine=True, calibrate=True, block_size=10)
SPARSE = BASE * WORDS // 2  # words of the first half of the labels; the others are dense features
LABELS = 2 * BASE


def parts_of(rows, seed=0):
    """Words of some labels as sparse features, those of the others as dense ones, and labels."""
    X, Y = related(rows, seed)
    return [sp.csr_array(X[:, :SPARSE]), np.ascontiguousarray(X[:, SPARSE:].toarray())], Y


@pytest.fixture(scope="module")
def data():
    (X, E), Y = parts_of(1500)
    return [X[:900], E[:900]], Y[:900], [X[900:], E[900:]], Y[900:]


@pytest.fixture(scope="module")
def path(data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("refined") / "model"
    train(*data[:2], directory, REFINE, threads=1)
    return directory


@pytest.fixture(scope="module")
def model(path):
    return open_model(path)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A refined model of dense features alone, and rows of it."""
    X, Y = related(900)
    E = X.toarray()
    return train([E], Y, tmp_path_factory.mktemp("alone") / "model", REFINE), E, Y


def arrays_of(directory):
    """All files of a model but its manifest, which has times, with what is in them."""
    return {name: content for name, content in files_of(directory).items() if ".json" not in name}


def some(parts, rows):
    return [part[rows] for part in parts]


def wide_rows(model, parts):
    """What the second stage sees, in plain NumPy: words, labels, dense features, bias."""
    informed = model.transform
    first = np.zeros((model.n_labels, informed.own.n_columns + 1), np.float32)
    for shard in informed.first:
        of_label = np.repeat(np.arange(len(shard.scales)), np.diff(shard.label_starts))
        first[shard.labels] = shard.unpack().toarray()[of_label]
    own = informed.own.apply(parts)
    scores = brute_force_scores(own, sp.csr_array(first))
    scores[:, np.setdiff1d(np.arange(model.n_labels), informed.informing)] = -np.inf
    how, n = informed.refinement, model.n_features
    labels, best = topk(scores, how.labels)
    likely = np.zeros((own.shape[0], how.informing), np.float32)
    for row, column in np.argwhere(labels >= 0):
        t = how.slope * float(best[row, column])
        place = np.searchsorted(informed.informing, labels[row, column])
        likely[row, place] = 0.5 * how.scale * (1 + t / np.sqrt(1 + t * t))
    own = own.toarray()
    bias = np.full((len(own), 1), informed.bias, np.float32)
    return sp.csr_array(np.hstack([own[:, :n], likely, own[:, n:-1], bias]))


def test_related_labels_improve_predictions(data, model):
    plain = fit(*data[:2]).evaluate(*data[2:])
    refined = model.evaluate(*data[2:])
    assert all(refined[f"P@{k}"] > plain[f"P@{k}"] + 0.5 for k in (3, 5))
    assert model.manifest.refined["informing"] == LABELS
    assert (model.n_features, model.n_dense) == (SPARSE, BASE * WORDS - SPARSE)
    assert model.weights.shape == (LABELS, BASE * WORDS + LABELS + 1)
    assert model.manifest.version == 5


def test_dense_features_are_refined_as_the_same_numbers_in_a_sparse_matrix():
    X, Y = related(900)
    params = TrainingParams(refine=True, delta=0.0, tol=1e-3, precision="float32")
    for normalize in (True, False):
        params = replace(params, normalize=normalize)
        sparse = fit(X, Y, params)
        dense = fit([X.toarray()], Y, params)
        assert dense.manifest.refined == sparse.manifest.refined
        differences = dense.decision_function([X.toarray()]) - sparse.decision_function(X)
        # Folds are solved to a tolerance of 0.1: which labels are a row's best may depend on that.
        assert (np.abs(differences).max(axis=1) <= 0.05).mean() >= 0.995


@pytest.mark.parametrize("kind", ["both", "alone"])
def test_predictions_are_those_of_brute_force(data, model, alone, kind):
    refined, parts = (model, some(data[2], slice(60)))
    if kind == "alone":
        refined, parts = alone[0], [alone[1][:60]]
    scores = brute_force_scores(wide_rows(refined, parts), refined.weights)
    labels, best = topk(scores, 7)
    for threads in (1, 3):
        found = refined.predict_topk(parts, 7, rank="score", threads=threads)
        np.testing.assert_array_equal(found[0], labels)
        np.testing.assert_array_equal(found[1], best)
    np.testing.assert_array_equal(refined.decision_function(parts), scores)
    one = [refined.predict_topk(some(parts, [i]), 7, rank="score")[0] for i in range(5)]
    np.testing.assert_array_equal(np.vstack(one), labels[:5])


def test_labels_are_put_between_sparse_and_dense_features():
    rng = np.random.default_rng(3)
    X = sp.csr_array(sp.random_array((30, 8), density=0.4, random_state=rng, dtype=np.float32))
    E = rng.standard_normal((30, 3)).astype(np.float32)
    for bias in (0.0, 1.0):
        rows = Transform(8, dense=3, bias=bias).apply([X, E])
        labels = np.array([rng.permutation(4)[:2] for _ in range(30)], np.int32)
        arrays = rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data
        more = labels.ravel(), np.zeros(60, np.float32), np.arange(4, dtype=np.int32)
        found = kernels.widen(*arrays, bias != 0, *more, 0.3, 1.5, 2.0, 8, 12, 3)
        wide = sp.csr_array((found[2], found[1], found[0]), shape=(30, 16)).toarray()
        np.testing.assert_array_equal(wide[:, :8], rows.toarray()[:, :8])
        np.testing.assert_array_equal(wide[:, 12:15], rows.toarray()[:, 8:11])
        for row in range(30):
            assert set(np.flatnonzero(wide[row, 8:12])) == set(labels[row])
        assert (wide[:, 15] == 2).all()
    with pytest.raises(ValueError, match="too few dense features"):
        kernels.widen(*arrays, True, *more, 0.3, 1.5, 2.0, 8, 12, 40)
    with pytest.raises(ValueError, match="out of range"):
        kernels.widen(*arrays, True, *more, 0.3, 1.5, 2.0, 8, 12, -1)


def test_threads_blocks_and_memory_do_not_change_a_byte(data, path, tmp_path):
    params = replace(REFINE, block_size=7)
    train(*data[:2], tmp_path / "model", params, threads=3)
    fit(*data[:2], params).save(tmp_path / "saved")
    for made in (tmp_path / "model", tmp_path / "saved"):
        assert open_model(made).manifest.refined == open_model(path).manifest.refined
        assert arrays_of(made) == arrays_of(path)


def test_interrupted_anywhere_a_refinement_resumes_to_the_same_bytes(data, path, tmp_path):
    directory, interrupted = tmp_path / "model", 0
    for steps in range(1, 100):
        stop = Interruption(2 * steps)
        try:
            train(*data[:2], directory, REFINE, progress=stop, threads=1)
            break
        except KeyboardInterrupt:
            interrupted += 1
            with pytest.raises(ModelError, match="unfinished training"):
                open_model(directory)
    assert interrupted >= 5
    assert arrays_of(directory) == arrays_of(path)


def test_a_killed_command_resumes_to_the_same_bytes(data, path, tmp_path):
    (X, E), Y = data[:2]
    save_data(Dataset(X, Y, None), tmp_path / "data.xmc")
    np.save(tmp_path / "E.npy", E)
    command = [sys.executable, "-m", "dismec", "train", "data.xmc", "--dense", "E.npy", "--quiet"]
    command += ["-o", "model", "--refine", "--calibrate", "--block-size", "10", "--threads", "1"]
    run = subprocess.Popen(command, cwd=tmp_path)
    found = tmp_path / "model" / ".stage-found"
    while not found.exists() and run.poll() is None:
        time.sleep(0.01)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    subprocess.run(command, cwd=tmp_path, check=True)
    assert arrays_of(tmp_path / "model") == arrays_of(path)


def test_the_second_stage_has_the_dense_features_of_the_caller(data, monkeypatch):
    seen = []
    second = refining._Steps._second

    def looked_at(self, job, wide, first):
        seen.append(wide)
        return second(self, job, wide, first)

    monkeypatch.setattr(refining._Steps, "_second", looked_at)
    fit(*data[:2], TrainingParams(refine=True))
    (wide,) = seen
    assert isinstance(wide, MixedRows)
    assert np.shares_memory(wide.dense, data[0][1])
    assert wide.n_features == SPARSE + LABELS


@pytest.mark.parametrize("kind", ["both", "alone"])
def test_an_explanation_has_words_labels_and_one_embedding(data, model, alone, kind):
    refined, row = model, some(data[2], [3])
    if kind == "alone":
        refined, row = alone[0], [alone[1][3:4]]
    label = int(refined.predict_topk(row, 1)[0][0, 0])
    why = refined.explain(row, label)
    parts = [*why.terms, *why.reasons]
    total = sum(part.contribution for part in parts) + why.bias + why.embedding
    assert total == pytest.approx(why.score, abs=1e-5)
    assert why.reasons
    assert all(term.feature < refined.n_features for term in why.terms)
    wide = wide_rows(refined, row).toarray()[0]
    weights = refined.weights.toarray()[label]
    dense = slice(refined.n_features + LABELS, -1)
    assert why.embedding == pytest.approx(float(wide[dense] @ weights[dense]), abs=1e-5)
    for reason in why.reasons:
        column = refined.n_features + np.searchsorted(refined.transform.informing, reason.label)
        assert reason.value == pytest.approx(wide[column])
        assert all(term.feature < refined.n_features for term in reason.terms)
    json.dumps(why.to_dict())


def test_delta_drops_weights_of_words_and_labels_but_not_of_dense_features(data):
    (X, E), Y = data[:2]
    params = TrainingParams(refine=True, delta=0.05, precision="float32")
    trained = fit([X, E], Y, params)
    pruned = fit([X, E], Y, replace(params, delta=0.01)).pruned(0.1)
    for refined, delta in ((trained, 0.05), (pruned, 0.1)):
        W = np.abs(refined.weights.toarray())
        own, labels, dense = np.split(W[:, :-1], [SPARSE, SPARSE + LABELS], axis=1)
        assert own[own > 0].min() >= delta
        assert labels[labels > 0].min() >= np.float32(5 * delta)
        assert 0 < dense[dense > 0].min() < delta


def test_refined_models_can_be_saved_packed_and_pickled(data, model, tmp_path):
    expected = model.predict_topk(data[2])
    model.save(tmp_path / "copy")
    for other in (
        open_model(tmp_path / "copy", check=True),
        open_model(model.to_bytes()),
        pickle.loads(pickle.dumps(model)),
    ):
        for found, right in zip(other.predict_topk(data[2]), expected, strict=True):
            np.testing.assert_array_equal(found, right)


def test_a_report_names_related_pairs(path, model):
    facts = describe_model(path)
    assert facts["labels used as features"] == LABELS
    assert facts["dense features"] == BASE * WORDS - SPARSE
    pairs = strongest_pairs(model, LABELS)
    found = {(pair["label"], pair["informed by"]) for pair in pairs["for"]}
    both = {(BASE + i, other) for i in range(BASE) for other in (i, (i + 1) % BASE)}
    assert len(found & both) >= LABELS - 4


@pytest.mark.parametrize(
    "params",
    [
        {"weighting": "propensity"},
        {"delta": "auto"},
        {"tfidf": True, "bias": 0.0},
        {"normalize": False, "bias": 2.0},
        {"dense_scale": 0.5},
    ],
)
def test_refining_works_with_other_parameters(data, params):
    plain = fit(*data[:2], TrainingParams(**params)).evaluate(*data[2:])["P@3"]
    refined = fit(*data[:2], TrainingParams(**params, refine=True))
    assert refined.manifest.refined
    assert refined.evaluate(*data[2:])["P@3"] > plain
    parts = some(data[2], slice(20))
    scores = brute_force_scores(wide_rows(refined, parts), refined.weights)
    np.testing.assert_array_equal(refined.decision_function(parts), scores)


def test_c_is_chosen_and_estimators_refine_with_dense_features(data, tmp_path):
    tuned = tune(*data[:2], tmp_path / "model", [0.3, 1.0], TrainingParams(refine=True))
    assert tuned.model.manifest.refined
    clf = dismec.DiSMECClassifier(refine=True).fit(*data[:2])
    expected = fit(*data[:2], TrainingParams(refine=True)).predict_topk(data[2], 3)
    for found, right in zip(clf.predict_topk(data[2], 3), expected, strict=True):
        np.testing.assert_array_equal(found, right)


def test_texts_are_refined_with_dense_features(data):
    (X, E), Y = data[:2]
    bounds = zip(X.indptr[:-1], X.indptr[1:], strict=True)
    texts = [" ".join(f"w{w}" for w in X.indices[a:b]) for a, b in bounds]
    bounds = zip(Y.indptr[:-1], Y.indptr[1:], strict=True)
    labels = [[f"l{i}" for i in Y.indices[a:b]] for a, b in bounds]
    clf = dismec.DiSMECTextClassifier(refine=True, calibrate=True).fit([texts, E], labels)
    assert clf.model_.manifest.refined
    assert clf.score([texts, E], labels) > 0.8


def test_the_command_line_trains_predicts_and_explains(data, path, tmp_path):
    (X, E), Y = data[:2]
    save_data(Dataset(X, Y, None), tmp_path / "data.txt")
    np.save(tmp_path / "E.npy", E)
    given = (tmp_path / "data.txt", "--dense", tmp_path / "E.npy")
    ok("train", *given, "--refine", "--calibrate", "-o", tmp_path / "model")
    assert arrays_of(tmp_path / "model") == arrays_of(path)
    lines = ok("predict", tmp_path / "model", *given, "-k", 1).splitlines()
    labels, _ = open_model(path).predict_topk([X, E], 1)
    assert [int(line.split(":")[0]) for line in lines] == labels[:, 0].tolist()
    told = json.loads(ok("explain", tmp_path / "model", *given, "--row", 1, "--json"))
    assert told["reasons"]
    assert "embedding" in told
    ok("train", *given, "--dense-only", "--refine", "-o", tmp_path / "alone")
    assert open_model(tmp_path / "alone").n_features == 0


def test_a_server_answers_as_the_library(data, path, tmp_path):
    X, E = data[2]
    model = open_model(path)
    labels, _ = model.predict_topk([X, E], 3)
    rows = [{"features": features(X, i), "dense": E[i].tolist()} for i in range(5)]
    with serving(tmp_path, path) as server:
        status, _, found = server.predict({"rows": rows, "k": 3})
        assert status == 200, found
        np.testing.assert_array_equal([row["labels"] for row in found["rows"]], labels[:5])
        question = json.dumps({**rows[0], "label": int(labels[0, 0])})
        status, _, told = server.ask("POST", "/explain", question)
    assert status == 200, told
    why = model.explain([X[[0]], E[:1]], int(labels[0, 0]))
    assert told["embedding"] == pytest.approx(why.embedding)
    assert [r["label"] for r in told["reasons"]] == [r.label for r in why.reasons]


@pytest.mark.cluster
def test_a_cluster_trains_and_predicts_the_same(data, path, tmp_path):
    from dismec.cluster.prediction import ClusterModel

    with Processes(tmp_path / "dask") as processes:
        processes.scheduler()
        for _ in range(2):
            processes.worker()
        address, directory = str(processes.file), tmp_path / "model"
        train(*data[:2], directory, REFINE, cluster=address)
        assert arrays_of(directory) == arrays_of(path)
        here = open_model(path)
        with ClusterModel(directory, address) as there:
            found, expected = (m.predict_topk(data[2], 4) for m in (there, here))
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)
            row = some(data[2], [0])
            assert there.explain(row, BASE) == here.explain(row, BASE)
