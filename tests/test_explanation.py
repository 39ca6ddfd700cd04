from __future__ import annotations

import ctypes
import json
import mmap
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import random_problem
from dismec import DataError, ModelError, TrainingParams
from dismec.cpu import kernels
from dismec.features.transform import Transform
from dismec.model.explanation import Contribution, Explanation, highlights
from dismec.model.manifest import PRECISIONS
from dismec.model.scoring import Predictor
from dismec.model.shards import Shard, pack
from dismec.training.train import fit as train
from test_calibration import model_of, random_calibration
from test_predictor import random_csr
from test_shards import some_shard

pytestmark = pytest.mark.native


def some_model(rng, n_labels, n_features, precision, bounded, bias=1.0, density=0.5):
    W = random_csr(rng, n_labels, n_features + 1, density)
    W = W[np.sort(rng.integers(0, n_labels, n_labels))]  # some labels share their weights
    with (
        mock.patch.object(kernels, "bounded_rows", 0 if bounded else n_labels),
        mock.patch.object(kernels, "shard_rows", 1000),
    ):
        shards = list(pack([(np.arange(n_labels), W)], n_features, precision))
    transform = Transform(n_features, True, bias)
    given = random_calibration(rng, n_labels)
    return model_of(shards, transform, np.ones(n_labels), given)


@settings(deadline=None, max_examples=80)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_labels=st.sampled_from([1, 5, 40, 1100]),
    n_features=st.integers(0, 9),
    precision=st.sampled_from(list(PRECISIONS)),
    bounded=st.booleans(),
    bias=st.sampled_from([1.0, 0.0, -0.5]),
    density=st.sampled_from([0.03, 0.2, 1.0]),  # lists and bits
)
def test_explanations_add_up_to_the_predicted_score(
    seed, n_labels, n_features, precision, bounded, bias, density
):
    rng = np.random.default_rng(seed)
    model = some_model(rng, n_labels, n_features, precision, bounded, bias, density)
    X = random_csr(rng, 4, n_features, 0.7)
    scores = model.decision_function(X)
    labels, p = model.predict_topk(X, n_labels, rank="probability")
    weights, rows = model.weights.toarray(), model.transform.apply(X).toarray()
    for row in range(4):
        for label in rng.integers(0, n_labels, 5):
            told = model.explain(X[[row]], int(label))
            assert np.float32(told.score) == scores[row, label]
            assert np.float32(told.probability) == p[row, labels[row] == label][0]
            total = sum(term.contribution for term in told.terms) + told.bias
            assert total == pytest.approx(told.score, rel=1e-5, abs=1e-5)
            sizes = [abs(term.contribution) for term in told.terms]
            assert sizes == sorted(sizes, reverse=True)
            parts = rows[row].astype(float) * weights[label]
            used = np.flatnonzero(parts[:n_features])
            assert sorted(term.feature for term in told.terms) == used.tolist()
            for term in told.terms:
                assert term.value == rows[row, term.feature]
                assert term.weight == weights[label, term.feature]
                assert term.contribution == parts[term.feature]
            assert told.bias == parts[n_features]


def test_an_explanation_has_names_and_terms_and_fits_json():
    X, Y = random_problem(rows=60, labels=3)
    model = train(X, Y, names=["a", "b", "c"])
    terms = [f"word {i}" for i in range(X.shape[1])]
    told = model.explain(X[[5]], np.int32(1), terms=terms)  # in the type that predictions have
    assert told.name == "b"
    assert told.probability is None
    assert all(term.term == f"word {term.feature}" for term in told.terms)
    again = json.loads(json.dumps(told.to_dict()))
    assert list(again) == ["label", "name", "score", "bias", "terms"]
    assert again["terms"][0] == {
        name: getattr(told.terms[0], name)
        for name in ("feature", "value", "weight", "contribution", "term")
    }
    assert "term" not in model.explain(X[[5]], 1).to_dict()["terms"][0]


def test_invalid_explanation_requests_are_refused():
    X, Y = random_problem(rows=60, labels=3)
    Y = sp.csr_array(Y.multiply([[1, 0, 1]]))
    Y.eliminate_zeros()
    model = train(X, Y)
    for arguments, reason in [
        ((X[[0]], 1), "label 1 was never trained: no training row had it"),
        ((X[[0]], 3), "label 3; expected one of 0 to 2"),
        ((X[[0]], -1), "label -1; expected"),
        ((X[:2], 0), "X has 2 rows; one is explained at a time"),
        ((np.ones((1, 81)), 0), "X has 81 features, the model has 80"),
    ]:
        with pytest.raises(DataError, match=reason):
            model.explain(*arguments)
    with pytest.raises(DataError, match="2 terms for 80 features"):
        model.explain(X[[0]], 0, terms=["a", "b"])


def look_up_guarded(bounded_rows):
    """Explain a label, then rank all, with pages without weights of the label unreadable."""
    n, own = 60_000, 30_000
    W = np.random.default_rng(1).normal(size=(n, 9)).astype(np.float32)
    W[own, :8] = [7, -7] * 4
    with mock.patch.object(kernels, "bounded_rows", bounded_rows):
        (shard,) = pack([(np.arange(n), sp.csr_array(W))], 8, "float32")
    weights = np.frombuffer(mmap.mmap(-1, shard.weights.nbytes), np.float32)
    weights[:] = shard.weights
    predictor = Predictor([replace(shard, weights=weights)], n, Transform(8))
    pages = set(range(-(-weights.nbytes // mmap.PAGESIZE)))
    for page in pages - set((np.flatnonzero(abs(weights) == 7) * 4 // mmap.PAGESIZE).tolist()):
        begin = ctypes.c_void_p(weights.ctypes.data + page * mmap.PAGESIZE)
        assert ctypes.CDLL(None).mprotect(begin, mmap.PAGESIZE, 0) == 0
    sys.stdout.write(str(predictor.explain(np.ones((1, 8)), own)[1][:8].tolist()))
    sys.stdout.flush()
    predictor.topk(np.ones((1, 8)))


@pytest.mark.skipif(sys.platform == "win32", reason="memory is protected in another way there")
@pytest.mark.parametrize("bounded_rows", [0, 60_000])
def test_one_label_is_looked_up_without_reading_the_weights_of_others(bounded_rows):
    script = f"import test_explanation; test_explanation.look_up_guarded({bounded_rows})"
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    assert found.stdout == str([7.0, -7.0] * 4), found.stderr
    assert found.returncode != 0  # ranking reads all weights
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("bounded", [False, True])
def test_binding_refuses_what_is_out_of_range_and_survives_damage(bounded):
    shard = some_shard(bounded=bounded)
    row = np.array([0, 50]), np.arange(50, dtype=np.int32), np.ones(50, np.float32)
    for number in (-1, len(shard.scales)):
        with pytest.raises(ValueError, match="classifier out of range"):
            kernels.explain(shard.native, number, *row)
    with pytest.raises(ValueError, match="one row is explained at a time"):
        kernels.explain(shard.native, 0, np.array([0, 25, 50]), *row[1:])
    with pytest.raises(ValueError, match="index out of range"):
        kernels.explain(shard.native, 0, row[0], row[1] + 2, row[2])
    rng = np.random.default_rng(2)
    for _ in range(50):
        arrays = {name: array.copy() for name, array in shard.arrays.items()}
        for name in ("places", "starts"):
            flat = arrays[name].reshape(-1)
            hurt = rng.integers(0, len(flat), 3 if name == "starts" else len(flat) // 2)
            flat[hurt] = rng.integers(0, np.iinfo(flat.dtype).max, len(hurt), endpoint=True)
        damaged = Predictor([Shard(**arrays)], 100, Transform(50))
        for label in range(0, 100, 7):
            with suppress(ModelError):
                damaged.explain(np.ones((1, 50)), label)


def explained(contributions):
    terms = [Contribution(f, 1.0, part, part) for f, part in contributions.items()]
    return Explanation(0, None, 0.0, None, 0.0, terms)


def test_words_share_the_contributions_of_their_features():
    # "new york, new deal": 0 new, 1 york, 2 "new york", 3 "new deal"; "deal" is not a feature.
    spans = [(0, 0, 3), (1, 4, 8), (2, 0, 8), (0, 10, 13), (3, 10, 18)]
    found = highlights(explained({0: 2.0, 1: -1.0, 2: 4.0, 3: 6.0, 9: 5.0}), spans)
    assert found == [(0, 3, 3.0), (4, 8, 1.0), (10, 13, 4.0), (13, 18, 3.0)]


def test_words_without_a_contribution_are_left_out():
    assert highlights(explained({}), [(0, 0, 3)]) == []
    assert highlights(explained({1: 1.0}), [(0, 0, 3), (1, 4, 6), (1, 7, 7)]) == [(4, 6, 1.0)]
    assert highlights(explained({1: 1.0}), []) == []


@given(
    contributions=st.dictionaries(st.integers(0, 6), st.floats(-5, 5)),
    spans=st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 30), st.integers(1, 9)), max_size=25
    ),
)
def test_words_sum_to_the_features_that_occur(contributions, spans):
    spans = [(feature, begin, begin + size) for feature, begin, size in spans]
    found = highlights(explained(contributions), spans)
    occurring = {feature for feature, _, _ in spans}
    expected = sum(part for f, part in contributions.items() if f in occurring)
    assert sum(part for _, _, part in found) == pytest.approx(expected, abs=1e-9)
    bounds = [bound for begin, end, _ in found for bound in (begin, end)]
    assert bounds == sorted(bounds)
    assert all(begin < end for begin, end, _ in found)


@pytest.mark.parametrize("calibrate", [False, True])
def test_the_place_of_a_label_matches_the_ranking(calibrate):
    X, Y = random_problem()
    Y = Y.tolil()
    Y[:, 7] = 0  # never trained
    model = train(X, Y.tocsr(), TrainingParams(calibrate=calibrate))
    for row in (0, 5):
        labels, _ = model.predict_topk(X[[row]], Y.shape[1])
        ranked = labels[0][labels[0] >= 0].tolist()
        assert 7 not in ranked
        assert [model.place(X[[row]], label) for label in ranked] == [*range(1, 1 + len(ranked))]
    empty = np.zeros((1, X.shape[1]))  # labels with equal scores
    labels, _ = model.predict_topk(empty, Y.shape[1])
    ranked = labels[0][labels[0] >= 0].tolist()
    assert [model.place(empty, label) for label in ranked] == [*range(1, 1 + len(ranked))]
    with pytest.raises(DataError, match="never trained"):
        model.place(X[[0]], 7)
