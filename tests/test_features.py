from __future__ import annotations

import copy
import json
import math
import pickle
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from conftest import random_problem
from dismec import train
from dismec.cpu import kernels
from dismec.data import matrices
from dismec.data.dataset import Dataset, load_data, save_data
from dismec.data.matrices import check_rows, check_X, check_Y, is_checked
from dismec.errors import DataError, ModelError
from dismec.features.transform import Transform
from dismec.solve.problem import Problem

pytestmark = pytest.mark.native

X = sp.csr_array(np.array([[3, 0, 4], [0, 0, 0], [0, -2, 0]], dtype=np.float32))

dense_matrices = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=6),
    elements=st.sampled_from([0.0, 0.0, 1.0, -0.5, 3.0, 2.0**-100, 2.0**100]),
)


def random_rows(n_rows, n_features, density):
    rng = np.random.default_rng(0)
    mask = rng.random((n_rows, n_features)) < density
    return sp.csr_array((mask * rng.standard_normal(mask.shape)).astype(np.float32))


def arrays(X):
    return X.data, X.indices, X.indptr


# --- Transform


def test_rows_have_norm_1_and_the_bias_last():
    np.testing.assert_allclose(
        Transform(3).apply(X).toarray(),
        [[0.6, 0, 0.8, 1], [0, 0, 0, 1], [0, -1, 0, 1]],
        rtol=1e-7,
    )


def test_without_normalize_values_stay():
    result = Transform(3, normalize=False, bias=0.5).apply(X).toarray()
    np.testing.assert_array_equal(result, np.column_stack([X.toarray(), [0.5] * 3]))


def test_without_bias_the_last_column_is_empty():
    result = Transform(3, bias=0).apply(X)
    assert result.shape == (3, 4)
    assert result.nnz == 3
    np.testing.assert_array_equal(result.indptr, [0, 2, 2, 3])


@given(
    dense_matrices, st.booleans(), st.booleans(), st.booleans(), st.sampled_from([0.0, 1.0, -2.5])
)
def test_apply_equals_the_formula(dense, sqrt, tfidf, normalize, bias):
    transform = Transform.fit(dense, sqrt=sqrt, tfidf=tfidf, normalize=normalize, bias=bias)
    weighted = dense.astype(np.float64)
    if sqrt:
        weighted = np.sign(weighted) * np.sqrt(np.abs(weighted))
    if tfidf:
        df = (dense != 0).sum(axis=0)
        weighted = weighted * (np.log((1 + len(dense)) / (1 + df)) + 1)
    norms = np.linalg.norm(weighted, axis=1, keepdims=True)
    norms[(norms == 0) | (not normalize)] = 1
    result = transform.apply(dense)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result.toarray()[:, :-1], weighted / norms, rtol=1e-6, atol=1e-37)
    np.testing.assert_array_equal(result.toarray()[:, -1], np.full(len(dense), bias))
    np.testing.assert_allclose(transform.row_scale(dense), 1 / norms[:, 0], rtol=1e-6)


def test_apply_is_the_row_scale_times_the_row_bit_for_bit():
    rows = random_rows(50, 40, density=0.2)
    transform = Transform(40)
    expected = rows.toarray() * transform.row_scale(rows)[:, None]
    np.testing.assert_array_equal(transform.apply(rows).toarray()[:, :-1], expected)


def test_a_row_is_transformed_alike_alone_and_among_others():
    rows = random_rows(30, 20, density=0.3)
    transform = Transform.fit(rows, tfidf=True)
    together = transform.apply(rows)
    alone = sp.vstack([transform.apply(rows[[i]]) for i in range(30)], format="csr")
    np.testing.assert_array_equal(alone.toarray(), together.toarray())
    middle = transform.apply_between(check_rows(rows, 20), 7, 19)
    np.testing.assert_array_equal(middle.data, together[7:19].data)
    np.testing.assert_array_equal(middle.indices, together[7:19].indices)
    np.testing.assert_array_equal(middle.indptr, together[7:19].indptr)


def test_huge_and_tiny_values_do_not_overflow():
    rows = np.array([[3e38, 3e38], [1e-30, 1e-30], [1e-45, 0]], dtype=np.float32)
    result = Transform(2).apply(rows).toarray()
    np.testing.assert_allclose(result[:2, :2], np.full((2, 2), 0.5**0.5), rtol=1e-5)
    assert np.isfinite(result).all()
    result = Transform.fit(rows, tfidf=True).apply(rows).toarray()
    np.testing.assert_allclose(np.linalg.norm(result[:2, :2], axis=1), 1, rtol=1e-5)
    assert np.isfinite(result).all()


def test_idf_that_overflows_a_value_is_refused():
    rows = np.array([[0, 0], [3e38, 0]], dtype=np.float32)
    with pytest.raises(DataError, match="row index 1: a value times its idf is too large"):
        Transform.fit(rows, tfidf=True, normalize=False).apply(rows)


def test_idf_counts_rows_of_the_training_data_with_a_value_other_than_0():
    train = sp.csr_array(
        (np.array([2.0, 0.0, 5.0]), np.array([0, 1, 0]), np.array([0, 2, 3, 3])), shape=(3, 2)
    )
    transform = Transform.fit(train, tfidf=True)
    expected = [math.log(4 / 3) + 1, math.log(4 / 1) + 1]
    np.testing.assert_allclose(transform.idf, expected, rtol=1e-7)
    other = Transform(2, normalize=False, idf=transform.idf).apply(np.ones((5, 2)))
    np.testing.assert_allclose(other.toarray()[0, :2], expected, rtol=1e-7)


def test_fewer_features_are_padded_and_more_are_refused():
    transform = Transform(5)
    assert transform.apply(X).shape == (3, 6)
    assert transform.apply(X).toarray()[0, 5] == 1
    with pytest.raises(DataError, match="X has 6 features, the model has 5"):
        transform.apply(np.ones((1, 6)))
    with pytest.raises(DataError, match="X has 6 features, the model has 5"):
        transform.row_scale(np.ones((1, 6)))


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (2, 0)])
def test_matrices_without_rows_or_features_pass(shape):
    result = Transform.fit(np.zeros(shape), tfidf=True).apply(np.zeros(shape))
    np.testing.assert_array_equal(result.toarray(), np.eye(shape[1] + 1)[[-1] * shape[0]])


def test_transform_round_trips_through_json():
    idf = Transform.fit(X, tfidf=True)
    for transform in (Transform(3), Transform(3, False, 0.0), Transform(3, sqrt=True), idf):
        d = json.loads(json.dumps(transform.to_dict()))
        assert Transform.from_dict(d, transform.idf) == transform
    assert Transform(3) != Transform(3, bias=2.0)
    assert Transform(3) != Transform.fit(X, tfidf=True)
    assert Transform(3) != "transform"


@pytest.mark.parametrize(
    ("change", "idf", "message"),
    [
        ({"stem": True}, None, "transform: unknown entry 'stem'"),
        ({"bias": None}, None, "transform: 'bias' is None; expected float"),
        ({"bias": True}, None, "transform: 'bias' is True; expected float"),
        ({"bias": math.inf}, None, "transform: bias is inf; expected a finite float32"),
        ({"n_features": 3.0}, None, "transform: 'n_features' is 3.0; expected int"),
        ({"n_features": -1}, None, "transform: n_features is -1; expected at least 0"),
        ({"sqrt": 1}, None, "transform: 'sqrt' is 1; expected bool"),
        ({"normalize": 1}, None, "transform: 'normalize' is 1; expected bool"),
        ({"tfidf": True}, None, "transform: tf-idf factors are missing"),
        ({}, [1.0, 1.0, 1.0], "transform: tf-idf factors are not expected"),
        ({"tfidf": True}, [1.0], "transform: idf has shape (1,); expected (3,)"),
        (
            {"tfidf": True},
            [1.0, math.nan, 1.0],
            "transform: idf holds values that are not positive and finite",
        ),
    ],
)
def test_damaged_transform_is_refused(change, idf, message):
    with pytest.raises(ModelError) as error:
        Transform.from_dict(Transform(3).to_dict() | change, idf)
    assert str(error.value) == message


def test_missing_entry_of_a_transform_is_refused():
    for key in Transform(3).to_dict():
        d = Transform(3).to_dict()
        del d[key]
        with pytest.raises(ModelError, match=f"transform: '{key}' is missing"):
            Transform.from_dict(d)


def test_idf_cannot_be_changed_afterwards():
    idf = np.ones(3, dtype=np.float32)
    transform = Transform(3, idf=idf)
    idf[0] = 7
    assert transform.idf[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        transform.idf[0] = 7


# --- check_X


def test_canonical_float32_rows_are_not_copied():
    result = check_X(X)
    assert isinstance(result, sp.csr_array)
    for ours, theirs in zip(arrays(result), arrays(X), strict=True):
        assert np.shares_memory(ours, theirs)


@pytest.mark.parametrize(
    "form",
    [
        *(sp.csr_matrix, sp.csc_array, sp.coo_array, sp.lil_array, sp.dok_array, sp.bsr_array),
        *(np.asarray, np.ndarray.tolist, np.asfortranarray),
    ],
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int8])
def test_every_kind_of_matrix_becomes_the_same_rows(form, dtype):
    dense = X.toarray().astype(dtype)
    result = check_X(form(dense))
    assert isinstance(result, sp.csr_array)
    assert result.dtype == np.float32
    assert result.indices.dtype == np.int32
    assert result.has_canonical_format
    for ours, expected in zip(arrays(result), arrays(X), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_half_precision_is_accepted():
    np.testing.assert_array_equal(check_X(X.toarray().astype(np.float16)).toarray(), X.toarray())


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8, np.bool_])
def test_unsorted_and_repeated_columns_are_fixed_in_a_copy(dtype):
    data = np.array([1, 100, 100, 1]).astype(dtype)
    indices = np.array([2, 1, 1, 0], dtype=np.int64)
    rows = sp.csr_array((data, indices, np.array([0, 3, 4])), shape=(2, 3))
    before = [array.copy() for array in arrays(rows)]
    result = check_X(rows)
    total = 2 if dtype is np.bool_ else 200
    np.testing.assert_array_equal(result.toarray(), [[0, total, 1], [1, 0, 0]])
    np.testing.assert_array_equal(result.indices, [1, 2, 0])
    for array, old in zip(arrays(rows), before, strict=True):
        np.testing.assert_array_equal(array, old)


def test_a_stale_canonical_flag_is_not_trusted():
    rows = sp.csr_array((np.ones(2, np.float32), np.array([1, 0]), np.array([0, 2])), shape=(1, 2))
    rows.has_canonical_format = True
    np.testing.assert_array_equal(check_X(rows).indices, [0, 1])


@pytest.mark.parametrize("part", ["indices", "indptr", "both"])
def test_int64_numbers_become_int32(part):
    rows = X.copy()
    if part != "indptr":
        rows.indices = rows.indices.astype(np.int64)
    if part != "indices":
        rows.indptr = rows.indptr.astype(np.int64)
    for result in (check_X(rows), Transform(3, normalize=False, bias=0).apply(rows)):
        assert result.indices.dtype == result.indptr.dtype == np.int32
        np.testing.assert_array_equal(result.toarray()[:, :3], X.toarray())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e39])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, sp.csc_array])
def test_values_that_are_not_finite_name_row_and_feature(bad, form):
    dense = np.array([[1.0, 0.0], [0.0, 0.0], [2.0, bad]])
    with pytest.raises(DataError, match=f"row index 2, feature 1: {bad:g}".replace("+", r"\+")):
        check_X(form(dense))


def test_repeated_columns_whose_sum_overflows_are_refused():
    data = np.full(2, 3e38, dtype=np.float32)
    rows = sp.csr_array((data, np.array([1, 1]), np.array([0, 2])), shape=(1, 2))
    with pytest.raises(DataError, match="row index 0, feature 1: inf"):
        check_X(rows)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("indices", [0, 2, 3], "X: column 3 is outside 3 features"),
        ("indices", [0, -1, 1], "X: column -1 is outside 3 features"),
        ("indptr", [0, 2, 1, 3], "X: indptr does not describe 3 rows"),
        ("indptr", [1, 2, 2, 3], "X: indptr does not describe 3 rows"),
        ("indptr", [0, 2, 3], "X: indptr does not describe 3 rows"),
        ("indptr", [0, 2, 2, 4], "X: indptr declares 4 entries, but there are 3"),
    ],
)
def test_arrays_that_do_not_form_a_matrix_are_refused(part, value, message):
    rows = X.copy()
    setattr(rows, part, np.array(value, dtype=np.int32))
    with pytest.raises(DataError) as error:
        check_X(rows)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.ones(3), "X is 1-d; expected rows × features"),
        (np.array([["a"]]), "X holds <U1; expected numbers"),
        (np.array([[1j]]), "X holds complex128; expected numbers"),
        (np.array([[None]]), "X holds object; expected numbers"),
    ],
)
def test_values_other_than_numeric_matrices_are_refused(rows, message):
    with pytest.raises(DataError) as error:
        check_X(rows)
    assert str(error.value) == message


# --- once


@pytest.mark.parametrize("name", ["train.txt", "train.xmc"])
def test_loading_and_training_check_the_entries_of_X_once(tmp_path, name):
    save_data(Dataset(*random_problem(rows=120)), tmp_path / name)
    with (
        mock.patch.object(kernels, "check_rows", wraps=kernels.check_rows) as ids,
        mock.patch.object(kernels, "first_non_finite", wraps=kernels.first_non_finite) as values,
        mock.patch.object(matrices, "_converted", side_effect=AssertionError("a slow pass")),
    ):
        X, Y, _ = load_data(tmp_path / name)
        train(X, Y, tmp_path / "model", threads=1)
    assert X.nnz != Y.nnz
    assert [len(call.args[1]) for call in ids.call_args_list].count(X.nnz) == 1
    assert [len(call.args[0]) for call in values.call_args_list].count(X.nnz) == 1


def test_a_matrix_of_the_caller_is_checked_once_in_a_whole_training():
    rows, Y = random_problem(rows=120)
    with mock.patch.object(matrices, "first_fault", wraps=matrices.first_fault) as looked:
        checked = check_X(rows)
        transform = Transform.fit(checked, tfidf=True)
        transform.apply(checked)
        assert check_X(checked) is checked
        assert is_checked(check_X(checked, rows.shape[1] + 3))
        Problem(checked, Y, transform)
    assert looked.call_count == 1
    assert rows.data.flags.writeable


def test_a_checked_matrix_cannot_be_written_to():
    checked = check_X(X.copy())
    for array in arrays(checked):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("data", [1, math.nan, 1], "row index 0, feature 2: nan is not a finite float32"),
        ("indices", [0, 2, 3], "X: column 3 is outside 3 features"),
        ("indptr", [0, 2, 2, 4], "X: indptr declares 4 entries, but there are 3"),
    ],
)
@pytest.mark.parametrize("how", ["exchanged", "made writeable"])
def test_a_checked_matrix_that_was_modified_anyway_is_checked_again(part, value, message, how):
    rows = check_X(X.copy())
    value = np.array(value, getattr(rows, part).dtype)
    if how == "exchanged":
        setattr(rows, part, value)
    else:
        getattr(rows, part).flags.writeable = True
        getattr(rows, part)[:] = value
    for door in (check_X, Transform(3).apply, Transform.fit):
        with pytest.raises(DataError) as error:
            door(rows)
        assert str(error.value) == message


def test_matrices_derived_from_a_checked_one_are_checked_again():
    checked = check_X(X)
    others = [checked.copy(), checked[:2], checked * 2, checked.T.tocsr(), copy.deepcopy(checked)]
    assert not any(map(is_checked, [*others, pickle.loads(pickle.dumps(checked))]))
    checked._shape = (3, 2)
    with pytest.raises(DataError, match="column 2 is outside 2 features"):
        check_X(checked)


# --- check_Y


def test_labels_become_an_indicator_without_zeros_and_without_a_copy_if_possible():
    Y = sp.csr_array(np.array([[1, 0, 1], [0, 0, 0]], np.uint8))
    assert np.shares_memory(check_Y(Y, 2).indices, Y.indices)
    twice = sp.csr_array((np.ones(256, np.uint8), np.full(256, 2), np.array([0, 256])), (1, 3))
    twice.has_canonical_format = True  # the flag is not trusted
    zero = sp.csr_array((np.array([1.0, 0.0]), np.array([2, 1]), np.array([0, 2])), (1, 3))
    for given_Y in (twice, zero, [[False, False, True]]):
        result = check_Y(given_Y)
        assert result.indices.tolist() == [2]
        assert result.has_canonical_format


@pytest.mark.parametrize(
    ("Y", "message"),
    [
        ([[2]], "Y is not an indicator: it holds values other than 0 and 1"),
        ([[math.nan]], "Y is not an indicator: it holds values other than 0 and 1"),
        ([[1], [0]], "X has 1 row, Y has shape (2, 1)"),
        ([1], "Y is 1-d; expected rows × labels"),
    ],
)
def test_matrices_that_are_not_indicators_are_refused(Y, message):
    with pytest.raises(DataError) as error:
        check_Y(Y, 1)
    assert str(error.value) == message
