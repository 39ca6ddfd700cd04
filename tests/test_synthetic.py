from __future__ import annotations

import sys

import numpy as np
import pytest
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC

from dismec.data.dataset import load_data
from dismec.data.synthetic import generate, write
from dismec.data.training_file import fingerprint


@pytest.fixture(scope="module")
def pair():
    return generate(3000, 4000, 800)


def test_shapes_and_means_are_as_asked(pair):
    train, test = pair
    assert train.X.shape == (3000, 4000)
    assert test.X.shape == (600, 4000)
    assert train.Y.shape == (3000, 800)
    assert test.Y.shape == (600, 800)
    assert train.X.nnz / 3000 == pytest.approx(42, rel=0.1)
    assert train.Y.nnz / 3000 == pytest.approx(3, rel=0.05)
    for X, Y, _ in pair:
        assert np.diff(X.indptr).min() >= 1
        assert np.diff(Y.indptr).min() >= 1
        assert X.dtype == np.float32
        assert Y.dtype == np.uint8
        assert X.data.min() > 0
        assert np.isfinite(X.data).all()
        for matrix in (X, Y):
            matrix.check_format(full_check=True)
            assert matrix.has_canonical_format
            assert matrix.indices.dtype == matrix.indptr.dtype == np.int32


def test_a_seed_gives_the_same_data_and_another_seed_other_data(pair):
    print_of = [fingerprint(dataset.X, dataset.Y) for dataset in pair]
    again = generate(3000, 4000, 800)
    assert [fingerprint(dataset.X, dataset.Y) for dataset in again] == print_of
    assert fingerprint(*generate(3000, 4000, 800, test_rows=7)[0][:2]) == print_of[0]
    other = generate(3000, 4000, 800, seed=1)
    assert fingerprint(*other[0][:2]) != print_of[0]
    assert print_of[0] != print_of[1]


def test_frequencies_follow_power_laws(pair):
    train, _ = pair
    for matrix in (train.X, train.Y):
        frequency = np.sort(np.bincount(matrix.indices, minlength=matrix.shape[1]))[::-1]
        half = len(frequency) // 2
        assert frequency[: len(frequency) // 20].sum() > 0.25 * frequency.sum()
        assert frequency[half:].sum() < 0.2 * frequency.sum()
        ranks = np.arange(10, half)
        slope = np.polyfit(np.log(ranks), np.log(frequency[10:half] + 0.5), 1)[0]
        assert -1.6 < slope < -0.5


def test_labels_of_a_row_belong_together(pair):
    Y = pair[0].Y.astype(np.float64)
    together = (Y.T @ Y).toarray()
    frequency = np.diag(together).copy()
    np.fill_diagonal(together, 0)
    by_chance = np.outer(frequency, frequency) / Y.shape[0]
    common = by_chance >= 1
    np.fill_diagonal(common, False)
    # If labels were independent, few pairs would occur much more often than by chance.
    assert np.mean(together[common] > 4 * by_chance[common]) > 0.02
    assert np.mean(together[common] < by_chance[common]) > 0.5


@pytest.mark.parametrize("sizes", [(2000, 2000, 200), (1000, 5000, 100)])
def test_a_linear_model_ranks_most_but_not_all_rows_correctly(sizes):
    train, test = generate(*sizes)
    Y = train.Y.toarray()
    model = OneVsRestClassifier(LinearSVC(C=1)).fit(
        normalize(train.X), Y[:, seen := Y.sum(0, dtype=int) > 0]
    )
    best = np.flatnonzero(seen)[model.decision_function(normalize(test.X)).argmax(1)]
    p_at_1 = test.Y.toarray()[np.arange(len(best)), best].mean()
    assert 0.6 < p_at_1 < 0.9


def test_chunks_join_without_a_seam(monkeypatch):
    monkeypatch.setattr(sys.modules["dismec.data.synthetic"], "_ROWS_AT_A_TIME", 100)
    train, test = generate(250, 50, 20, test_rows=0)
    assert train.X.shape == (250, 50)
    assert np.diff(train.X.indptr).min() >= 1
    assert test.X.shape == (0, 50)


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((1, 1, 1), {}),
        ((5, 1, 1), {"labels_per_row": 10}),
        ((50, 3, 4), {"features_per_row": 1}),
        ((50, 30, 10), {"labels_per_row": 0.5}),
        ((50, 30, 10), {"labels_per_row": 0}),
    ],
)
def test_odd_sizes_are_generated_too(sizes, options):
    for X, Y, _ in generate(*sizes, **options):
        assert (X.shape[1], Y.shape[1]) == sizes[1:]
        assert len(X.data) == 0 or np.diff(X.indptr).min() >= 1
    if "labels_per_row" in options and options["labels_per_row"] < 1:
        assert Y.nnz <= X.shape[0]


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 2**31, 1)])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match="at least 1"):
        generate(*sizes)
    with pytest.raises(ValueError, match="labels_per_row"):
        generate(1, 1, 1, labels_per_row=-1)


@pytest.mark.parametrize("ending", [".txt", ".txt.gz", ".xmc"])
def test_written_data_loads_unchanged(tmp_path, ending):
    pair = generate(40, 30, 10)
    paths = write(tmp_path / "new" / "folder", *pair, ending=ending)
    assert [path.name for path in paths] == [f"train{ending}", f"test{ending}"]
    for dataset, path in zip(pair, paths, strict=True):
        assert fingerprint(*load_data(path)[:2]) == fingerprint(*dataset[:2])
