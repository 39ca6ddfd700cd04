"""Refined models: a second stage that uses labels as features, and all operations on it."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from conftest import BASE, WORDS, random_problem, related, run_killed, tune
from dismec import DataError, ModelError, TrainingParams, generate, open_model, save_data, train
from dismec.cpu import kernels
from dismec.data.dataset import Dataset
from dismec.data.mixed import MixedRows
from dismec.estimators.classifier import DiSMECClassifier
from dismec.estimators.text_classifier import DiSMECTextClassifier
from dismec.features.transform import Transform
from dismec.model.directory import read_manifest
from dismec.report.facts import describe_model
from dismec.report.label_facts import strongest_pairs
from dismec.training import refine as refining
from dismec.training.edit_labels import add_labels, remove_labels
from dismec.training.train import fit
from naive import brute_force_scores, topk
from test_cli import ok

pytestmark = pytest.mark.native(needs="sklearn")

REFINE = TrainingParams(refine=True, calibrate=True, block_size=10)
LABELS = 2 * BASE
SPARSE = BASE * WORDS // 2  # of rows with both kinds: words of half the labels, the rest is dense
NAMES = [f"label {i}" for i in range(LABELS)]


def rows_of(kind, X):
    """Words as sparse features, dense ones, or both."""
    if kind == "sparse":
        return X
    if kind == "dense":
        return [X.toarray()]
    return [sp.csr_array(X[:, :SPARSE]), np.ascontiguousarray(X[:, SPARSE:].toarray())]


def take(X, rows):
    return [part[rows] for part in X] if isinstance(X, list) else X[rows]


class Refined:
    """Rows of a kind, and the directory of a model that was refined on most of them."""

    def __init__(self, kind, path):
        X, Y = related(1500)
        rows = rows_of(kind, X)
        self.kind, self.path = kind, path
        self.X, self.X_test = take(rows, slice(900)), take(rows, slice(900, None))
        self.Y, self.Y_test = Y[:900], Y[900:]
        train(self.X, self.Y, path, REFINE, names=NAMES, threads=1)
        self.model = open_model(path)

    @property
    def data(self):
        return self.X, self.Y


@pytest.fixture(scope="module")
def refined_of(tmp_path_factory):
    """Return a function: the refined model of a kind of rows, trained once."""
    return cache(lambda kind: Refined(kind, tmp_path_factory.mktemp(kind) / "model"))


@pytest.fixture(params=["sparse", "dense", "both"])
def refined(request, refined_of):
    return refined_of(request.param)


sparse_and_both = pytest.mark.parametrize("refined", ["sparse", "both"], indirect=True)
both_only = pytest.mark.parametrize("refined", ["both"], indirect=True)


@pytest.fixture
def data(refined_of):
    sparse = refined_of("sparse")
    return sparse.X, sparse.Y, sparse.X_test, sparse.Y_test


@pytest.fixture
def path(refined_of):
    return refined_of("sparse").path


@pytest.fixture
def model(refined_of):
    return refined_of("sparse").model


def files_of(directory):
    """All files of a model but its manifest, which has times, with what is in them."""
    names = (".lock", "manifest.json")
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.name not in names}


@sparse_and_both
def test_related_labels_improve_predictions(refined):
    test, model = (refined.X_test, refined.Y_test), refined.model
    before, after = fit(*refined.data).evaluate(*test), model.evaluate(*test)
    assert all(after[f"P@{k}"] > before[f"P@{k}"] + 0.5 for k in (3, 5))
    assert model.manifest.refined["informing"] == LABELS
    assert model.weights.shape == (LABELS, BASE * WORDS + LABELS + 1)
    effect = model.params["refine_effect"]
    assert sum(effect["after"].values()) > sum(effect["before"].values())


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


def test_the_directory_holds_both_stages_and_nothing_else(path):
    names = {"manifest.json", "labels.safetensors", "calibration.safetensors", ".lock"}
    shards = {"shard-000000.safetensors", "first-000000.safetensors"}
    assert {p.name for p in path.iterdir()} == names | shards


def wide_rows(model, X):
    """Compute the input of the second stage in plain NumPy: words, labels, dense features, bias."""
    refined_transform = model.transform
    first = np.zeros((model.n_labels, refined_transform.own.n_columns + 1), np.float32)
    for shard in refined_transform.first:
        of_label = np.repeat(np.arange(len(shard.scales)), np.diff(shard.label_starts))
        first[shard.labels] = shard.unpack().toarray()[of_label]
    own = refined_transform.own.apply(X)
    scores = brute_force_scores(own, sp.csr_array(first))
    scores[:, np.setdiff1d(np.arange(model.n_labels), refined_transform.informing)] = -np.inf
    how, n = refined_transform.refinement, model.n_features
    labels, best = topk(scores, how.labels)
    likely = np.zeros((own.shape[0], how.informing), np.float32)
    for row, column in np.argwhere(labels >= 0):
        t = how.slope * float(best[row, column])
        place = np.searchsorted(refined_transform.informing, labels[row, column])
        likely[row, place] = 0.5 * how.scale * (1 + t / np.sqrt(1 + t * t))
    own = own.toarray()
    bias = np.full((len(own), 1), refined_transform.bias, np.float32)
    return sp.csr_array(np.hstack([own[:, :n], likely, own[:, n:-1], bias]))


def test_predictions_are_those_of_brute_force(refined):
    model, X = refined.model, take(refined.X_test, slice(60))
    scores = brute_force_scores(wide_rows(model, X), model.weights)
    labels, best = topk(scores, 7)
    for threads in (1, 3):
        found = model.predict_topk(X, 7, rank="score", threads=threads)
        np.testing.assert_array_equal(found[0], labels)
        np.testing.assert_array_equal(found[1], best)
    np.testing.assert_array_equal(model.decision_function(X), scores)
    one = [model.predict_topk(take(X, [i]), 7, rank="score")[0] for i in range(5)]
    np.testing.assert_array_equal(np.vstack(one), labels[:5])


def test_the_most_probable_labels_are_those_of_brute_force(data, model):
    X = data[2][:60]
    scores = brute_force_scores(wide_rows(model, X), model.weights)
    everything = np.broadcast_to(np.arange(model.n_labels), scores.shape)
    probabilities = model.calibration.probabilities(everything, scores)
    labels, values = model.predict_topk(X, 5)
    expected = -np.sort(-probabilities, axis=1)[:, :5]
    np.testing.assert_allclose(values, expected, rtol=1e-4)
    np.testing.assert_allclose(np.take_along_axis(probabilities, labels, 1), expected, rtol=1e-4)
    ranked = model.predict_topk(X, 5, aim="psp:0")[1]
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


@sparse_and_both
def test_threads_blocks_and_memory_do_not_change_a_byte(refined, tmp_path):
    params = replace(REFINE, block_size=7)
    train(*refined.data, tmp_path / "model", params, names=NAMES, threads=3)
    fit(*refined.data, params, names=NAMES).save(tmp_path / "saved")
    for made in (tmp_path / "model", tmp_path / "saved"):
        assert open_model(made).manifest.refined == refined.model.manifest.refined
        assert files_of(made) == files_of(refined.path)


class Interruption:
    """Stops a training after this many steps."""

    def __init__(self, steps):
        self.steps = steps

    def __call__(self, done, total):
        self.steps -= 1
        if self.steps < 0:
            raise KeyboardInterrupt


@sparse_and_both
def test_interrupted_anywhere_a_refinement_resumes_to_the_same_model(refined, tmp_path):
    directory, interrupted = tmp_path / "model", 0
    for steps in range(1, 100):
        stop = Interruption(steps)
        try:
            train(*refined.data, directory, REFINE, names=NAMES, progress=stop, threads=1)
            break
        except KeyboardInterrupt:
            interrupted += 1
            with pytest.raises(ModelError, match="unfinished training"):
                open_model(directory)
    assert interrupted >= 5
    assert files_of(directory) == files_of(refined.path)


def test_files_left_by_an_interrupted_run_are_checked(data, path, tmp_path):
    directory = tmp_path / "model"
    how = {"names": NAMES, "threads": 1}
    found = directory / ".stage-found" / "fold-0.safetensors"

    def interrupt(done, total):
        if found.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(*data[:2], directory, REFINE, progress=interrupt, **how)
    content = bytearray(found.read_bytes())
    content[-100] ^= 64
    found.write_bytes(content)
    train(*data[:2], directory, REFINE, **how)
    for name in ("shard-000000.safetensors", "first-000000.safetensors"):
        assert (directory / name).read_bytes() == (path / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sparse", "both"])
def test_killed_at_any_moment_and_resumed_the_model_is_the_same(kind, tmp_path):
    X, Y = related(6000)
    rows = rows_of(kind, X)
    params = TrainingParams(refine=True, calibrate=True, C=10, block_size=4)
    train(rows, Y, tmp_path / "reference", params)
    expected = files_of(tmp_path / "reference")
    path, rng, kills = tmp_path / "model", random.Random(0), 0
    command = [sys.executable, "-m", "dismec", "train", str(tmp_path / "data.xmc"), "--quiet"]
    command += ["-o", str(path), "--refine", "--calibrate", "--C", "10", "--block-size", "4"]
    if kind == "both":
        X, E = rows
        np.save(tmp_path / "E.npy", E)
        command += ["--dense", str(tmp_path / "E.npy")]
    save_data(Dataset(X, Y, None), tmp_path / "data.xmc")
    while kills < 8:
        shutil.rmtree(path, ignore_errors=True)
        while run_killed(command, path, rng):
            kills += 1
        assert files_of(path) == expected


@pytest.mark.cluster
@both_only
def test_a_cluster_refines_a_model_in_memory(refined, dask_cluster, tmp_path):
    there = fit(*refined.data, REFINE, names=NAMES, cluster=str(dask_cluster))
    for given, expected in zip(
        there.predict_topk(refined.X_test), refined.model.predict_topk(refined.X_test), strict=True
    ):
        np.testing.assert_array_equal(given, expected, strict=True)
    there.save(tmp_path / "model")
    assert files_of(tmp_path / "model") == files_of(refined.path)


@pytest.mark.cluster
@sparse_and_both
def test_a_cluster_trains_and_predicts_the_same(refined, dask_cluster, tmp_path):
    from dismec.cluster.cluster_model import ClusterModel

    address, directory = str(dask_cluster), tmp_path / "model"
    train(*refined.data, directory, REFINE, names=NAMES, cluster=address)
    assert files_of(directory) == files_of(refined.path)
    here = refined.model
    with ClusterModel(directory, address) as there:
        for rank in ("score", "probability"):
            found, expected = (m.predict_topk(refined.X_test, 4, rank=rank) for m in (there, here))
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)
        row = take(refined.X_test, [0])
        why = there.explain(row, BASE)
        assert why == here.explain(row, BASE)
        assert why.reasons
        assert there.nnz == here.nnz


def test_the_plain_model_is_kept_if_labels_do_not_inform_each_other(tmp_path, caplog):
    X, _ = random_problem(rows=600, labels=6, seed=4)
    chance = [np.random.default_rng(seed).random((600, 6)) < 0.3 for seed in range(12)]
    effects, kept = [], []
    for seed, Y in enumerate(chance):
        refined = train(X, Y, tmp_path / str(seed), REFINE)
        effect = refined.params["refine_effect"]
        effects.append(effect["after"]["nDCG@5"] - effect["before"]["nDCG@5"])
        if refined.manifest.refined is None:
            kept.append(seed)
    assert 1 <= len(kept) <= 6
    assert abs(np.mean(effects)) < 0.5 * effect["margin"]  # rows of the trial are like new ones
    Y = chance[kept[-1]]
    directory = tmp_path / str(kept[-1])
    refined = open_model(directory)
    assert "training the plain model" in caplog.text
    plain = train(X, Y, tmp_path / "plain", TrainingParams(block_size=10))
    assert (directory / "shard-000000.safetensors").read_bytes() == (
        tmp_path / "plain" / "shard-000000.safetensors"
    ).read_bytes()
    assert refined.calibration is not None
    assert not list(directory.glob(".stage*")) + list(directory.glob("first*"))
    assert refined.n_features == plain.n_features
    with pytest.raises(ModelError, match="finished model of this training"):
        train(X, Y, directory, REFINE)


def test_a_loss_within_half_of_the_margin_is_no_reason_to_reject():
    results = {"plain": np.array([60.0]), "margin": np.array([0.4])}
    assert refining._helps(results | {"wide": np.array([59.9])})
    assert not refining._helps(results | {"wide": np.array([59.7])})


def test_rejected_refining_gives_the_model_and_probabilities_of_calibrating_alone(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(refining, "_helps", lambda results: False)
    train_part, test = generate(900, 500, 300, seed=2)
    plain = TrainingParams(calibrate=True)
    found = [
        fit(train_part.X, train_part.Y, params).predict_topk(test.X, 5, rank="probability")
        for params in (plain, replace(plain, refine=True))
    ]
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_rejected_refining_of_many_labels_ranks_as_well_as_calibrating_alone(monkeypatch):
    """The trial trains half of the labels, calibrating alone a sixth: probabilities differ."""
    monkeypatch.setattr(refining, "_helps", lambda results: False)
    gains = []
    for seed in (2, 3):
        train_part, test = generate(900, 500, 450, seed=seed, test_rows=3000)
        plain = TrainingParams(calibrate=True)
        alone, rejected = (
            fit(train_part.X, train_part.Y, params)
            for params in (plain, replace(plain, refine=True))
        )
        assert (alone.weights != rejected.weights).nnz == 0
        alone, rejected = (model.evaluate(test.X, test.Y) for model in (alone, rejected))
        gains.append(rejected["nDCG@5"] - alone["nDCG@5"])
    assert np.mean(gains) >= 0


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


@both_only
def test_the_second_stage_has_the_dense_features_of_the_caller(refined, monkeypatch):
    seen = []
    second = refining._Steps._second

    def looked_at(self, job, wide, first):
        seen.append(wide)
        return second(self, job, wide, first)

    monkeypatch.setattr(refining._Steps, "_second", looked_at)
    fit(*refined.data, TrainingParams(refine=True))
    (wide,) = seen
    assert isinstance(wide, MixedRows)
    assert np.shares_memory(wide.dense, refined.X[1])
    assert wide.n_features == SPARSE + LABELS


def test_an_explanation_names_the_labels_and_their_words(refined):
    model, row = refined.model, take(refined.X_test, [3])
    terms = [f"word {i}" for i in range(model.n_features)]
    label = int(model.predict_topk(row, 1)[0][0, 0])
    why = model.explain(row, label, terms=terms if terms else None)
    total = sum(part.contribution for part in [*why.terms, *why.reasons]) + why.bias
    assert total + (why.embedding or 0) == pytest.approx(why.score, abs=1e-5)
    assert why.reasons
    wide = wide_rows(model, row).toarray()[0]
    for reason in why.reasons:
        assert reason.name == f"label {reason.label}"
        column = model.n_features + np.searchsorted(model.transform.informing, reason.label)
        assert reason.value == pytest.approx(wide[column])
        assert reason.contribution == pytest.approx(reason.value * reason.weight)
        assert {term.term for term in reason.terms} <= set(terms)
    assert all(term.feature < model.n_features for term in why.terms)
    said = why.to_dict()
    json.dumps(said)
    if refined.kind == "sparse":
        assert {term.term for term in why.reasons[0].terms} <= {f"word {i}" for i in row.indices}
        assert said["reasons"][0]["terms"][0]["term"].startswith("word")
        assert "embedding" not in said
    else:
        dense, weights = slice(model.n_features + LABELS, -1), model.weights.toarray()[label]
        assert why.embedding == pytest.approx(float(wide[dense] @ weights[dense]), abs=1e-5)


@both_only
def test_delta_drops_weights_of_words_and_labels_but_not_of_dense_features(refined):
    params = TrainingParams(refine=True, delta=0.05, precision="float32")
    trained = fit(*refined.data, params)
    pruned = fit(*refined.data, replace(params, delta=0.01)).pruned(0.1)
    for found, delta in ((trained, 0.05), (pruned, 0.1)):
        W = np.abs(found.weights.toarray())
        own, labels, dense = np.split(W[:, :-1], [SPARSE, SPARSE + LABELS], axis=1)
        assert own[own > 0].min() >= delta
        assert labels[labels > 0].min() >= np.float32(5 * delta)
        assert 0 < dense[dense > 0].min() < delta


def test_a_report_names_related_pairs(refined):
    facts = describe_model(refined.path)
    assert facts["labels used as features"] == LABELS
    assert facts["weights of the first stage"] > 0
    assert facts.get("dense features", 0) == refined.model.n_dense
    assert "→" in facts["label pairs with the highest weights"][0]
    pairs = strongest_pairs(refined.model, LABELS)
    found = {(pair["label"], pair["informed by"]) for pair in pairs["for"]}
    both = [(BASE + i, other) for i in range(BASE) for other in (i, (i + 1) % BASE)]
    expected = {(f"label {label}", f"label {other}") for label, other in both}
    assert len(found & expected) >= LABELS - (2 if refined.kind == "sparse" else 4)
    weights = [pair["weight"] for pair in pairs["for"]]
    assert weights == sorted(weights, reverse=True)
    assert min(weights) > 0 > max(pair["weight"] for pair in pairs["against"])


def test_refined_models_can_be_saved_packed_and_pickled(refined, tmp_path):
    expected = refined.model.predict_topk(refined.X_test)
    refined.model.save(tmp_path / "copy")
    for other in (
        open_model(tmp_path / "copy", check=True),
        open_model(refined.model.to_bytes()),
        pickle.loads(pickle.dumps(refined.model)),
    ):
        for found, right in zip(other.predict_topk(refined.X_test), expected, strict=True):
            np.testing.assert_array_equal(found, right)


def test_refined_models_can_be_pruned_and_labels_removed(data, path, model, tmp_path):
    X = data[2]
    pruned = model.pruned(0.05, precision="float8")
    assert pruned.nnz < model.nnz
    pruned.save(tmp_path / "pruned")
    again = open_model(tmp_path / "pruned")
    for one, other in zip(pruned.predict_topk(X), again.predict_topk(X), strict=True):
        np.testing.assert_array_equal(one, other)
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
        {"dense_scale": 0.5},
        {"sqrt": True, "tfidf": True},
    ],
)
@sparse_and_both
def test_refining_works_with_other_parameters(refined, params, monkeypatch):
    monkeypatch.setattr(refining, "_helps", lambda results: True)
    X, test = take(refined.X_test, slice(20)), (refined.X_test, refined.Y_test)
    plain = fit(*refined.data, TrainingParams(**params)).evaluate(*test)["P@3"]
    model = fit(*refined.data, TrainingParams(**params, refine=True))
    assert model.manifest.refined
    assert model.evaluate(*test)["P@3"] > plain
    scores = brute_force_scores(wide_rows(model, X), model.weights)
    np.testing.assert_array_equal(model.decision_function(X), scores)


@sparse_and_both
def test_C_is_chosen_as_for_plain_models(refined, tmp_path, monkeypatch):
    monkeypatch.setattr(refining, "_helps", lambda results: True)
    tuned = tune(*refined.data, tmp_path / "model", TrainingParams(refine=True))
    assert tuned.model.manifest.refined
    plain = tune(*refined.data, tmp_path / "plain")
    assert tuned.C == plain.C


@sparse_and_both
def test_estimators_refine(refined, monkeypatch):
    clf = DiSMECClassifier(refine=True, calibrate=True).fit(*refined.data)
    assert clf.model_.manifest.refined
    expected = refined.model.predict_topk(refined.X_test, 3)
    for found, other in zip(clf.predict_topk(refined.X_test, 3), expected, strict=True):
        np.testing.assert_array_equal(found, other)
    X, Y = refined.X[0] if refined.kind == "both" else refined.X, refined.Y
    words = [" ".join(f"w{w}" for w in X.indices[a:b]) for a, b in pairwise(X.indptr)]
    labels = [[f"l{i}" for i in Y.indices[a:b]] for a, b in pairwise(Y.indptr)]
    given = [words, refined.X[1]] if refined.kind == "both" else words
    monkeypatch.setattr(refining, "_helps", lambda results: True)
    texts = DiSMECTextClassifier(refine=True, calibrate=True).fit(given, labels)
    assert texts.model_.manifest.refined
    assert texts.score(given, labels) > 0.8


@both_only
def test_the_command_line_trains_predicts_and_explains(refined, tmp_path):
    (X, E), Y = refined.data
    save_data(Dataset(X, Y, NAMES), tmp_path / "data.xmc")
    np.save(tmp_path / "E.npy", E)
    given = (tmp_path / "data.xmc", "--dense", tmp_path / "E.npy")
    ok("train", *given, "--refine", "--calibrate", "-o", tmp_path / "model")
    assert files_of(tmp_path / "model") == files_of(refined.path)
    lines = ok("predict", tmp_path / "model", *given, "-k", 1).splitlines()
    labels, _ = refined.model.predict_topk([X, E], 1)
    assert [line.rpartition(":")[0].strip('"') for line in lines] == [
        NAMES[i] for i in labels[:, 0]
    ]
    told = json.loads(ok("explain", tmp_path / "model", *given, "--row", 1, "--json"))
    assert told["reasons"]
    assert "embedding" in told
    ok("train", *given, "--dense-only", "--refine", "-o", tmp_path / "alone")
    assert open_model(tmp_path / "alone").n_features == 0


@both_only
def test_a_server_answers_as_the_library(refined, tmp_path):
    from servers import serving
    from test_server import features

    X, E = refined.X_test
    model = refined.model
    labels, _ = model.predict_topk([X, E], 3)
    rows = [{"features": features(X, i), "dense": E[i].tolist()} for i in range(5)]
    with serving(tmp_path, refined.path) as server:
        status, _, found = server.predict({"rows": rows, "k": 3})
        assert status == 200, found
        np.testing.assert_array_equal([row["labels"] for row in found["rows"]], labels[:5])
        question = json.dumps({**rows[0], "label": int(labels[0, 0])})
        status, _, told = server.ask("POST", "/explain", question)
    assert status == 200, told
    why = model.explain([X[[0]], E[:1]], int(labels[0, 0]))
    assert told["embedding"] == pytest.approx(why.embedding)
    assert [r["label"] for r in told["reasons"]] == [r.label for r in why.reasons]


def test_invalid_refinements_are_refused(data, tmp_path):
    X, Y = data[:2]
    with pytest.raises(DataError, match="refine needs at least 6 rows"):
        fit(X[:5], Y[:5], REFINE)
    with pytest.raises(DataError, match="validation data is not supported with refine"):
        fit(X, Y, REFINE, validation=(X, Y))
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
