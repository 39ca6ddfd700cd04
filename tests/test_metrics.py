from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import naive
from dismec.data.targets import propensities
from dismec.errors import DataError
from dismec.measure import metrics
from dismec.measure.metrics import Truth, expected_calibration_error, f1_scores

pytestmark = pytest.mark.native

GOLDEN = Path(__file__).parent / "golden"


def indicator(truth, n_labels):
    Y = np.zeros((len(truth), n_labels), dtype=np.float32)
    for row, labels in enumerate(truth):
        Y[row, sorted(labels)] = 1
    return sp.csr_array(Y)


@st.composite
def judged_rows(draw):
    """Draw truth as sets, predictions with empty places anywhere, and propensities."""
    n_labels = draw(st.integers(1, 8))
    n_rows = draw(st.integers(1, 6))
    depth = draw(st.integers(1, 10))
    label = st.integers(0, n_labels - 1)
    truth = draw(st.lists(st.sets(label), min_size=n_rows, max_size=n_rows))
    top = []
    for _ in range(n_rows):
        labels = draw(st.permutations(range(n_labels)))[:depth]
        row = labels + [-1] * (depth - len(labels))
        empty = draw(st.sets(st.integers(0, depth - 1)))
        top.append([-1 if place in empty else label for place, label in enumerate(row)])
    p = draw(st.lists(st.floats(0.01, 1), min_size=n_labels, max_size=n_labels))
    return truth, top, np.array(p)


# By hand, with 1/p = 1, 2, 4, 2, 1 and a = 1/log2(3) = 0.6309…; 1/log2(2) = 1, 1/log2(4) = 1/2:
#
#   row   true      top          hits at places
#   0     0 1 2     1 4 0        1, 3
#   1     3         2 3 –        2
#   2     none      0 1 2        none
#
#   P@1 = (1 + 0 + 0)/3                   P@3 = (2/3 + 1/3 + 0)/3
#   nDCG@1 = (1 + 0 + 0)/3                nDCG@3 = ((1 + 1/2)/(1 + a + 1/2) + a/1 + 0)/3
#   PSP@1 = 2/(4 + 2)                     PSP@3 = (2 + 1 + 2)/((4 + 2 + 1) + 2)
#   PSnDCG@1 = 2/(4 + 2)                  PSnDCG@3 = (2 + 1/2 + 2a)/((4 + 2a + 1/2) + 2)
#   R@1 = (1/3 + 0 + 0)/3                 R@3 = (2/3 + 1 + 0)/3
#   Coverage@1: label 1 of 0 1 2 3        Coverage@3: labels 0 1 3 of 0 1 2 3
#   macro-F1@1 = (0 + 1 + 0 + 0)/4        macro-F1@3 = (2/3 + 2/3 + 0 + 1 + 0)/5
def test_metrics_equal_the_example_worked_by_hand():
    golden = json.loads((GOLDEN / "metrics_by_hand.json").read_text())
    Y = indicator(golden["truth"], golden["n_labels"])
    result = metrics.evaluate(Y, golden["top"], (1, 3), golden["propensities"])
    assert result == pytest.approx(golden["percent"], rel=1e-14)
    assert list(result) == list(golden["percent"])


def test_metrics_equal_napkinxc_s():
    golden = json.loads((GOLDEN / "metrics_napkinxc.json").read_text())
    p = propensities(golden["label_counts"], len(golden["truth"]))
    np.testing.assert_allclose(p, golden["propensities"], rtol=1e-14)
    Y = indicator(golden["truth"], golden["n_labels"])
    result = metrics.evaluate(Y, golden["top"], propensities=p)
    common = {name: result[name] for name in golden["percent"]}
    assert common == pytest.approx(golden["percent"], rel=1e-12)


@given(judged_rows())
def test_metrics_equal_the_naive_ones(rows):
    truth, top, p = rows
    Y, depth = indicator(truth, len(p)), len(top[0])
    ks = sorted({1, (depth + 1) // 2, depth})
    expected = {}
    for k in ks:
        expected[f"P@{k}"] = naive.precision_at_k(truth, top, k)
        expected[f"nDCG@{k}"] = naive.ndcg_at_k(truth, top, k)
        expected[f"PSP@{k}"] = naive.psp_at_k(truth, top, p, k)
        expected[f"PSnDCG@{k}"] = naive.psndcg_at_k(truth, top, p, k)
        expected[f"R@{k}"] = naive.recall_at_k(truth, top, k)
        expected[f"Coverage@{k}"] = naive.coverage_at_k(truth, top, k)
        expected[f"macro-F1@{k}"] = naive.macro_f1_at_k(truth, top, k)
    result = metrics.evaluate(Y, top, ks, p)
    assert result.pop("rows") == len(truth)
    assert result == pytest.approx({m: 100 * value for m, value in expected.items()}, rel=1e-12)


@given(judged_rows(), st.randoms())
def test_order_of_rows_does_not_matter(rows, random):
    truth, top, p = rows
    order = list(range(len(truth)))
    random.shuffle(order)
    k = len(top[0])
    expected = metrics.evaluate(indicator(truth, len(p)), top, (k,), p)
    shuffled = indicator([truth[i] for i in order], len(p))
    result = metrics.evaluate(shuffled, [top[i] for i in order], (k,), p)
    assert result == pytest.approx(expected, rel=1e-12)


@given(judged_rows())
def test_metrics_stay_between_0_and_100(rows):
    truth, top, p = rows
    result = metrics.evaluate(indicator(truth, len(p)), top, (1, len(top[0])), p)
    result.pop("rows")
    assert all(0 <= value <= 100 * (1 + 1e-12) for value in result.values())


def test_perfect_prediction_gives_100():
    p = np.array([1.0, 0.5, 0.2, 0.8, 0.4])
    truth = [{0, 1, 2}, {2, 3, 4}, {0, 3, 4}]
    top = [sorted(labels, key=lambda label: p[label]) for labels in truth]
    result = metrics.evaluate(indicator(truth, 5), top, (1, 3), p)
    assert result.pop("rows") == 3
    for name in ("R@1", "Coverage@1", "macro-F1@1"):  # one place cannot hold three labels
        assert 0 < result.pop(name) < 100
    assert result == pytest.approx(dict.fromkeys(result, 100.0), rel=1e-14)


def test_ndcg_of_few_true_labels_is_relative_to_the_best_possible():
    found = metrics.evaluate(indicator([{1}], 5), [[1, 0, 2, 3, 4]], (5,))
    assert (found["nDCG@5"], found["P@5"]) == (100, pytest.approx(20))


def test_without_propensities_there_are_no_ps_metrics():
    result = metrics.evaluate(indicator([{0}], 5), [[0, 1, 2, 3, 4]])
    assert list(result) == [
        *("P@1", "P@3", "P@5", "nDCG@1", "nDCG@3", "nDCG@5"),
        *("R@1", "R@3", "R@5", "Coverage@1", "Coverage@3", "Coverage@5"),
        *("macro-F1@1", "macro-F1@3", "macro-F1@5", "rows"),
    ]


def test_rows_without_true_labels_at_all_give_0():
    p = np.full(3, 0.5)
    result = metrics.evaluate(indicator([set(), set()], 3), [[0, 1], [1, -1]], (1, 2), p)
    assert set(result.values()) == {0.0, 2}


def test_empty_place_is_not_the_last_label_of_the_row_before():
    assert not metrics.hits(indicator([{2}, {0}], 3), [[-1], [-1]]).any()


@pytest.mark.parametrize("form", [sp.csr_matrix, sp.csc_array, sp.coo_array, np.asarray])
def test_truth_may_be_any_matrix(form):
    Y = indicator([{0, 2}, {1}], 3).toarray()
    assert metrics.evaluate(form(Y), [[2, 0], [0, 1]], (2,))["P@2"] == 75


def test_truth_with_stored_zeros_and_duplicates_is_read_correctly_and_unchanged():
    data, indices = np.array([1.0, 0.0, 1.0, 1.0]), np.array([2, 1, 2, 0])
    Y = sp.csr_array((data, indices, np.array([0, 3, 4])), shape=(2, 3))
    found = metrics.evaluate(Y, [[2, 1], [1, 0]], (2,))
    assert (found["R@2"], found["P@2"]) == (100, 50)
    np.testing.assert_array_equal(Y.data, [1, 0, 1, 1])
    np.testing.assert_array_equal(Y.indices, [2, 1, 2, 0])


@pytest.mark.parametrize(
    ("top", "message"),
    [
        ([[0, 1]], "top has 1 row, Y_true has 2"),
        ([[0], [1]], "top has 1 place per row; k = 2 needs 2"),
        ([[0, 1], [1, 3]], "row index 1: predicted label 3; expected −1 or a label below 3"),
        ([[0, -2], [1, 0]], "row index 0: predicted label -2; expected −1 or a label below 3"),
        ([[0, 1], [2, 2]], "row index 1: label 2 is predicted twice"),
        ([[0.5, 1], [2, 1]], "top is a 2-d array of float64; expected rows × places of integers"),
        ([0, 1], "top is a 1-d array of int64; expected rows × places of integers"),
    ],
)
def test_predictions_that_do_not_match_the_truth_are_refused(top, message):
    with pytest.raises(DataError) as error:
        metrics.evaluate(indicator([{0}, {1}], 3), np.array(top), (2,))
    assert str(error.value) == message


def test_meaningless_arguments_are_refused():
    Y = indicator([{0}], 2)
    with pytest.raises(DataError, match="k is 0; expected at least 1"):
        metrics.evaluate(Y, [[0]], (0, 1))
    with pytest.raises(DataError, match="ks is empty"):
        metrics.evaluate(Y, [[0]], ())
    with pytest.raises(DataError, match="no rows to evaluate"):
        metrics.evaluate(indicator([], 2), np.empty((0, 5), dtype=np.int32))
    with pytest.raises(DataError, match="expected rows × labels"):
        metrics.evaluate(np.ones(3), [[0]])
    with pytest.raises(DataError, match="propensities have shape"):
        metrics.evaluate(Y, [[0]], [1], [0.5])
    with pytest.raises(DataError, match="label 1: propensity 0; expected 0 < p ≤ 1"):
        metrics.evaluate(Y, [[0]], [1], [0.5, 0.0])
    with pytest.raises(DataError, match="label 0: propensity nan"):
        metrics.evaluate(Y, [[0]], [1], [math.nan, 0.5])


def test_labels_that_only_the_truth_has_count_as_missed():
    Y = np.array([[1, 0, 0, 1], [0, 1, 0, 0]])
    truth = Truth.align(Y, np.array([5, 3]), 9)
    assert truth.label_counts.tolist() == [5, 3, 0, 0]
    np.testing.assert_array_equal(truth.propensities, propensities([5, 3, 0, 0], 9))
    found = truth.metrics(np.array([[0], [1]]), (1, 3))  # further places count as empty
    assert (found["P@1"], found["P@3"], found["R@3"]) == (100, pytest.approx(100 / 3), 75)


def test_labels_that_only_the_model_has_are_never_hits():
    Y = indicator([{0}, {1}], 2)
    truth = Truth.align(Y, np.array([5, 3, 7]), 9, A=0.6, B=2.6)
    np.testing.assert_array_equal(truth.propensities, propensities([5, 3, 7], 9, 0.6, 2.6))
    assert truth.metrics(np.array([[2], [1]]), (1,))["P@1"] == 50
    assert Y.shape == (2, 2)


def test_propensities_follow_the_formula():
    C = (math.log(1000) - 1) * 2.5**0.55
    expected = [1 / (1 + C * (count + 1.5) ** -0.55) for count in (0, 1, 10, 1000)]
    np.testing.assert_allclose(propensities([0, 1, 10, 1000], 1000), expected, rtol=1e-14)
    C = (math.log(50) - 1) * 3.6**0.6
    assert propensities([3], 50, A=0.6, B=2.6)[0] == pytest.approx(
        1 / (1 + C * 5.6**-0.6), rel=1e-14
    )


@given(st.integers(1, 10**6), st.data())
def test_propensities_are_probabilities_that_grow_with_the_count(n_rows, data):
    counts = sorted(data.draw(st.lists(st.integers(0, n_rows), min_size=2, max_size=5)))
    p = propensities(counts, n_rows)
    assert ((p > 0) & (p <= 1)).all()
    assert (np.diff(p) >= 0).all()


@pytest.mark.parametrize(
    ("counts", "n_rows"), [([1], 0), ([-1], 5), ([6], 5), ([math.nan], 5), ([[1]], 5)]
)
def test_impossible_label_counts_are_refused(counts, n_rows):
    with pytest.raises(DataError):
        propensities(counts, n_rows)


@given(judged_rows())
def test_hits_are_the_places_with_true_labels(rows):
    truth, top, p = rows
    found = metrics.hits(indicator(truth, len(p)), top)
    expected = [[label in t for label in row] for t, row in zip(truth, top, strict=True)]
    np.testing.assert_array_equal(found, expected)


@given(judged_rows())
def test_f1_equals_the_naive_one(rows):
    truth, top, p = rows
    sets = [{label for label in row if label >= 0} for row in top]
    found = f1_scores(indicator(truth, len(p)), indicator(sets, len(p)))
    assert found == pytest.approx(naive.f1_scores(truth, sets), rel=1e-12)


def test_f1_counts_stored_entries_as_assigned_whatever_their_value():
    Y, assigned = indicator([{0}, {1}], 2), indicator([{0}, {0}], 2)
    assigned.data[:] = 0
    assert f1_scores(Y, assigned) == {"micro-F1": 0.5, "macro-F1": pytest.approx(1 / 3)}
    with pytest.raises(DataError, match=r"assigned is \(2, 1\), Y_true is \(2, 2\)"):
        f1_scores(Y, assigned[:, :1])


def test_calibration_error_by_hand():
    # Two bins: 0.1 and 0.3 sum to 0.4 without a hit; 0.6 and 1.0 sum to 1.6 with two.
    error = expected_calibration_error([[0.1, 0.6], [0.3, 1.0]], [[0, 1], [0, 1]], bins=2)
    assert error == pytest.approx((0.4 + abs(1.6 - 2)) / 4)
    assert expected_calibration_error([], []) == 0
    assert expected_calibration_error([1.0, 0.0], [True, False]) == 0
    for bad, reason in [
        (([0.5], [1, 0], 15), "expected the same"),
        (([np.nan], [1], 15), "a probability is not between 0 and 1"),
        (([1.5], [1], 15), "a probability is not between 0 and 1"),
        (([0.5], [1], 0), "bins is 0"),
    ]:
        with pytest.raises(DataError, match=reason):
            expected_calibration_error(*bad)
