"""Labels chosen for a metric of all rows together."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import random_problem
from dismec import DataError, Dataset, TrainingParams, save_data, train
from dismec.cli import main
from dismec.cpu import kernels
from dismec.model.aims import aimed
from dismec.training.train import fit

pytestmark = pytest.mark.native


def candidates_of(rng, n_rows, n_labels, width):
    """Random labels with probabilities, the most probable first; some places are empty."""
    labels = np.array([rng.permutation(n_labels)[:width] for _ in range(n_rows)], np.int32)
    p = -np.sort(-rng.random((n_rows, width)).astype(np.float32), axis=1)
    empty = np.arange(width) >= rng.integers(1, width + 1, n_rows)[:, None]
    labels[empty], p[empty] = -1, 0
    return labels, p


def expected_coverage(chosen, n_labels):
    """The expected number of labels that are right at least once; `chosen`: (label, p) pairs."""
    missed = np.ones(n_labels)
    for label, p in chosen:
        missed[label] *= 1 - min(p, 1 - 1e-6)
    return (1 - missed).sum()


def pairs(labels, p):
    return [
        (x, q) for x, q in zip(labels.ravel().tolist(), p.ravel().tolist(), strict=True) if x >= 0
    ]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_coverage_is_near_the_best_of_all_choices_and_never_below_the_most_probable(seed):
    rng = np.random.default_rng(seed)
    labels, p = candidates_of(rng, 4, 5, 3)
    found = aimed("coverage", labels, p, 1, 5)
    assert found[0].shape == (4, 1)
    reached = expected_coverage(pairs(*found), 5)
    assert reached >= expected_coverage(pairs(labels[:, :1], p[:, :1]), 5) - 1e-9
    # No single row can do better: a maximum along every row.
    for row, place in itertools.product(range(4), range(3)):
        if labels[row, place] >= 0:
            other = [part.copy() for part in found]
            other[0][row, 0], other[1][row, 0] = labels[row, place], p[row, place]
            assert expected_coverage(pairs(*other), 5) <= reached * (1 + 1e-4) + 1e-6


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), aim=st.sampled_from(["macro-f1", "coverage"]))
def test_rows_get_k_of_their_candidates_the_most_probable_first(seed, aim):
    rng = np.random.default_rng(seed)
    width, k = 6, int(rng.integers(1, 7))
    labels, p = candidates_of(rng, 20, 12, width)
    found, values = aimed(aim, labels, p, k, 12)
    for row in range(20):
        given_row = dict(pairs(labels[row], p[row]))
        there = found[row] >= 0
        assert there.sum() == min(k, len(given_row))
        assert len(set(found[row, there].tolist())) == there.sum()
        assert [given_row[x] for x in found[row, there].tolist()] == values[row, there].tolist()
        assert (np.diff(values[row, there]) <= 0).all()


def test_each_aim_raises_its_metric(aiming):
    model, X, Y = aiming
    for k in (1, 3):
        plain = model.evaluate(X, Y, (k,))
        for aim, metric in (("coverage", "Coverage"), ("macro-f1", "macro-F1"), ("psp", "PSP")):
            found = model.evaluate(X, Y, (k,), aim=aim)
            assert found[f"{metric}@{k}"] > plain[f"{metric}@{k}"], (aim, k)
            assert found["rows"] == len(Y.toarray())


@pytest.fixture(scope="module")
def aiming():
    X, Y = random_problem(rows=3000, features=150, labels=120, seed=5)
    return fit(X[:2000], Y[:2000], TrainingParams(calibrate=True)), X[2000:], Y[2000:]


def test_every_k_is_aimed_at_by_itself(aiming):
    model, X, Y = aiming
    both = model.evaluate(X, Y, (1, 3), aim="coverage")
    one, three = (model.evaluate(X, Y, (k,), aim="coverage") for k in (1, 3))
    assert both == one | three


def test_no_rows_and_few_labels(aiming):
    model, X, _ = aiming
    assert model.predict_topk(X[:0], 3, aim="coverage")[0].shape == (0, 3)
    labels, p = model.predict_topk(X[:5], 4, aim="macro-f1", allowed=[3, 7])
    assert set(np.unique(labels[:, :2])) <= {3, 7}
    assert (labels[:, 2:] == -1).all()
    assert (p[:, 2:] == 0).all()


def test_the_command_chooses_for_all_rows_and_writes_each(tmp_path, monkeypatch):
    X, Y = random_problem(rows=400, labels=30)
    save_data(Dataset(X, Y), tmp_path / "data.xmc")
    model = train(X, Y, tmp_path / "model", TrainingParams(calibrate=True))
    expected = model.predict_topk(X, 2, aim="coverage")[0]
    monkeypatch.setattr("dismec.cli.prediction._ROWS_AT_ONCE", 64)  # several batches
    ask = ["predict", tmp_path / "model", tmp_path / "data.xmc", "-k", "2", "--json"]
    done = CliRunner().invoke(main, [*map(str, ask), "--aim", "coverage"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [row["labels"] for row in rows] == expected.tolist()
    assert all("probabilities" in row for row in rows)
    wrong = CliRunner().invoke(main, [*map(str, ask), "--aim", "f2"])
    assert wrong.exit_code == 2
    assert "macro-f1, coverage, psp" in " ".join(wrong.stderr.split())


@pytest.mark.parametrize(
    "wrong",
    [
        (np.array([[0, 5]], np.int32), np.array([[0.5, 0.1]], np.float32), (1, 1)),
        (np.array([[0, 1]], np.int32), np.array([[0.5, np.nan]], np.float32), (1, 1)),
        (np.array([[0, 1]], np.int32), np.array([[1.5, 0.1]], np.float32), (1, 1)),
        (np.array([[0, 1]], np.int32), np.array([[0.5, 0.1]], np.float32), (1, 3)),
        (np.array([[0, 1]], np.int32), np.array([[0.5]], np.float32), (1, 1)),
    ],
)
def test_the_kernel_refuses_what_it_cannot_use(wrong):
    labels, p, shape = wrong
    with pytest.raises(ValueError, match=r"range|probability|entry"):
        kernels.Aim("coverage", labels, p, np.empty(shape, np.int32), 5)
    with pytest.raises(DataError, match="aim is"):
        fit(*random_problem()).predict_topk(random_problem()[0], aim="recall")
