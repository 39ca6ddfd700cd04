from __future__ import annotations

import gzip
import os
import tracemalloc
import zipfile
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dismec.data import xmc_text
from dismec.data.container import open_arrays, write_arrays
from dismec.data.dataset import Dataset, load_data, save_data
from dismec.data.training_file import XmcWriter, fingerprint
from dismec.errors import DataError

pytestmark = pytest.mark.native

TEXT = b"""4 6 5
1,3 0:1 2:0.25 5:-3e-05
 1:2.5
2

"""


def same(a: Dataset, b: Dataset) -> bool:
    return a.names == b.names and all(
        left.shape == right.shape
        and left.dtype == right.dtype
        and np.array_equal(left.indptr, right.indptr)
        and np.array_equal(left.indices, right.indices)
        and left.data.tobytes() == right.data.tobytes()
        for left, right in ((a.X, b.X), (a.Y, b.Y))
    )


@pytest.fixture
def write(tmp_path):
    def written(content: bytes, name: str = "data.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return written


def refused(path: Path, where: str, reason: str, **options: object) -> None:
    """Check that loading fails with one line that starts with the file and the place."""
    for threads in (1, 3):
        with pytest.raises(DataError) as caught:
            load_data(path, threads=threads, **options)
        message = str(caught.value)
        assert message.startswith(f"{path}{where}: "), message
        assert reason in message
        assert "\n" not in message


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def datasets(draw, names=None):
    n_rows, n_features, n_labels = (draw(st.integers(0, 8)) for _ in range(3))
    matrices = []
    for columns, values, dtype in ((n_features, floats, "f4"), (n_labels, st.just(1), "u1")):
        rows = [
            sorted(draw(st.sets(st.integers(0, columns - 1)))) if columns else []
            for _ in range(n_rows)
        ]
        indptr = np.cumsum([0, *map(len, rows)])
        indices = np.array([i for row in rows for i in row], np.int32)
        data = np.array([draw(values) for _ in indices], dtype)
        matrices.append(csr_array((data, indices, indptr), shape=(n_rows, columns)))
    label_names = None
    if names is not None:
        label_names = (draw(names) + [""] * n_labels)[:n_labels]
    return Dataset(*matrices, label_names)


def test_rows_are_read_as_they_are_written(write):
    X, Y, names = load_data(write(TEXT))
    expected = np.zeros((4, 6), np.float32)
    expected[0, [0, 2, 5]] = 1, 0.25, -3e-5
    expected[1, 1] = 2.5
    np.testing.assert_array_equal(X.toarray(), expected)
    np.testing.assert_array_equal(Y.toarray(), [[0, 1, 0, 1, 0], [0] * 5, [0, 0, 1, 0, 0], [0] * 5])
    assert names is None
    assert X.dtype == np.float32
    assert Y.dtype == np.uint8
    assert X.indices.dtype == Y.indices.dtype == np.int32


def test_without_a_header_the_sizes_come_from_the_data(write):
    path = write(TEXT.split(b"\n", 1)[1])
    X, Y, _ = load_data(path)
    assert X.shape == (4, 6)
    assert Y.shape == (4, 4)
    assert load_data(path, n_features=9, n_labels=7).X.shape == (4, 9)
    assert load_data(path, n_features=9, n_labels=7).Y.shape == (4, 7)
    refused(path, ":1", "feature id '5' is out of range (0 to 4)", n_features=5)
    refused(path, ":1", "label id '3' is out of range (0 to 2)", n_labels=3)


@pytest.mark.parametrize(
    "variant",
    [
        TEXT.replace(b"\n", b"\r\n"),
        TEXT.replace(b"\n", b"  \n").replace(b"  \n  \n", b"  \n\n"),
        TEXT.replace(b" ", b"\t"),
        TEXT.replace(b"1,3 0:1 2:0.25 5:-3e-05", b"3,1 5:-.00003 0:+1. 2:2500E-4"),
        b" " + TEXT,
    ],
    ids=["crlf", "trailing blanks", "tabs", "unsorted", "blank before the header"],
)
def test_spellings_that_mean_the_same_load_the_same(write, variant):
    assert same(load_data(write(variant)), load_data(write(TEXT, "plain.txt")))


def test_gzip_is_detected_by_content_and_may_have_several_members(write):
    packed = gzip.compress(TEXT[:20]) + gzip.compress(TEXT[20:]) + b"\0" * 10
    assert same(load_data(write(packed, "no-ending")), load_data(write(TEXT, "plain.txt")))


def test_a_last_line_may_lack_its_newline_if_it_ends_in_a_value(write):
    assert load_data(write(b"1 3 3\n1 0:1 2:5")).X.nnz == 2
    assert load_data(write(b"1 0:1 2:5")).X.nnz == 2
    refused(write(b"1 3 3\n1,2"), ":2", "cut off")
    refused(write(b"1 3 3\n1,2 0:1 "), ":2", "cut off")
    refused(write(b"0:1\n1,2"), ":1", "begins with a feature")
    refused(write(b"1 0:1\n1 0:"), ":2", "is it cut off?")


def test_explicit_zeros_stay_entries(write, tmp_path):
    dataset = load_data(write(b"1 3 1\n0 0:0 1:-0.0 2:1e-60\n"))
    assert dataset.X.nnz == 3
    for ending in ("txt", "svm", "xmc"):
        save_data(dataset, tmp_path / f"again.{ending}")
        assert same(load_data(tmp_path / f"again.{ending}"), dataset)


def nearest_float(word: str) -> np.float32:
    """Round by exact arithmetic: numpy itself rounds twice, to a double first."""
    exact = Fraction(word)
    guess = np.float32(word)
    with np.errstate(over="ignore", under="ignore"):
        around = (guess, *(np.nextafter(guess, np.float32(end)) for end in (-np.inf, np.inf)))
    finite = [value for value in around if np.isfinite(value)]
    return min(finite, key=lambda v: (abs(Fraction(float(v)) - exact), int(v.view(np.uint32)) & 1))


def test_values_are_rounded_to_the_nearest_float(write):
    bits = np.random.default_rng(0).integers(0, 0x7F000000, 500, dtype=np.uint32)
    values = bits.view(np.float32)
    halves = (values.astype(np.float64) + np.nextafter(values, np.float32(0))) / 2
    words = [f"{v:.{p}g}" for p in (3, 6, 9, 17) for v in values.tolist()]
    words += [f"{v:.{p}g}" for p in (16, 17, 40, 200) for v in halves.tolist()]
    words += ["16777217", "16777217.0000001", "1e-45", "7e-46", "8e-46", "3.4028235e38", "0.1"]
    text = "0 " + " ".join(f"{i}:{w}" for i, w in enumerate(words)) + "\n"
    found = load_data(write(text.encode())).X.data
    np.testing.assert_array_equal(found, [nearest_float(word) for word in words])
    tiny = load_data(write(b"0 0:1e-999999999999 1:-1e-60 2:0e999999999999999999999\n")).X.data
    assert tiny.tolist() == [0, 0, 0]


@settings(max_examples=60, deadline=None)
@given(datasets(), st.sampled_from(["txt", "txt.gz", "xmc"]))
def test_datasets_survive_every_format(tmp_path_factory, dataset, ending):
    path = tmp_path_factory.getbasetemp() / f"roundtrip.{ending}"
    save_data(dataset, path)
    once = path.read_bytes()
    loaded = load_data(path)
    assert same(loaded, dataset)
    assert fingerprint(loaded.X, loaded.Y) == fingerprint(dataset.X, dataset.Y)
    save_data(loaded, path)
    assert path.read_bytes() == once


@settings(max_examples=30, deadline=None)
@given(datasets())
def test_svmlight_and_npz_keep_the_rows(tmp_path_factory, dataset):
    base = tmp_path_factory.getbasetemp()
    sizes = {"n_features": dataset.X.shape[1], "n_labels": dataset.Y.shape[1]}
    if dataset.X.shape[0]:
        save_data(dataset, base / "rows.svm")
        assert same(load_data(base / "rows.svm", **sizes), dataset)
    scipy.sparse.save_npz(base / "X.npz", dataset.X)
    scipy.sparse.save_npz(base / "Y.npz", dataset.Y)
    assert same(load_data(base / "X.npz", labels=base / "Y.npz"), dataset)


@settings(max_examples=30, deadline=None)
@given(datasets(names=st.lists(st.text(st.characters(exclude_categories=["Cs"])))))
def test_label_names_survive_in_xmc(tmp_path_factory, dataset):
    path = tmp_path_factory.getbasetemp() / "names.xmc"
    save_data(dataset, path)
    names = None if dataset.names is None else [name.strip() for name in dataset.names]
    assert same(load_data(path), dataset._replace(names=names))


def test_neither_threads_nor_blocks_change_the_result(write, monkeypatch):
    rng = np.random.default_rng(1)
    X = scipy.sparse.random(400, 50, 0.2, "csr", np.float32, rng)
    Y = scipy.sparse.random(400, 20, 0.1, "csr", np.float32, rng) != 0
    path = write(b"")
    save_data(Dataset(csr_array(X), csr_array(Y)), path)
    whole = load_data(path, threads=1)
    content = path.read_bytes()
    lines = content.split(b"\n")
    for block, threads in ((1, 1), (100, 4), (5000, 2)):
        monkeypatch.setattr(xmc_text, "_BLOCK", block)
        assert same(load_data(path, threads=threads), whole)
        bad = [*lines]
        for line in (399, 250, 251):
            bad[line] = b"x"
        write(b"\n".join(bad), "bad.txt")
        refused(path.with_name("bad.txt"), ":251", "expected a label id, not 'x'")
        write(gzip.compress(b"\n".join(bad))[:-5], "bad.gz")
        refused(path.with_name("bad.gz"), ":251", "expected a label id")
        write(content + b" 0:1\nx\n", "more.txt")
        refused(path.with_name("more.txt"), ":402", "one more")


@pytest.mark.parametrize(
    ("rows", "line", "reason"),
    [
        (b"0 1:1 2:1 1:3", 2, "feature 1 occurs twice"),
        (b"0 1:1 1:1", 2, "feature 1 occurs twice"),
        (b"2,0,2 1:1", 2, "label 2 occurs twice"),
        (b"0 1:nan", 2, "the value in '1:nan' is not finite"),
        (b"0 1:-Inf", 2, "'1:-Inf' is not finite"),
        (b"0 1:1e39", 2, "'1:1e39' is too large"),
        (b"0 1:3.5e38", 2, "too large"),
        (b"0 1:-1e999999999999999999999", 2, "too large"),
        (b"0 -1:1", 2, "negative feature id '-1:1'"),
        (b"-2 1:1", 2, "negative label id '-2'"),
        (b"0 3:1", 2, "feature id '3' is out of range (0 to 2)"),
        (b"3 0:1", 2, "label id '3' is out of range (0 to 2)"),
        (b"0 99999999999999999999999:1", 2, "out of range"),
        (b"4294967296 0:1", 2, "out of range"),
        (b"0 1", 2, "expected feature:value, not '1'"),
        (b"0 1:", 2, "'1:' is not a number"),
        (b"0 1:1.5x", 2, "'1:1.5x' is not a number"),
        (b"0 1:0x1p3", 2, "not a number"),
        (b"0 1:1e", 2, "not a number"),
        (b"0 1:.", 2, "not a number"),
        (b"0 1:1:1", 2, "not a number"),
        (b"0 :1", 2, "expected a feature id"),
        (b"0 1 :1", 2, "expected feature:value"),
        (b"0,,1 1:1", 2, "expected a label id"),
        (b"0, 1:1", 2, "a label is missing after ','"),
        (b",0 1:1", 2, "expected a label id"),
        (b"1.0 1:1", 2, "expected a label id"),
        (b"1:1 2:1", 2, "begins with a feature"),
        (b'{"text": "a", "labels": []}', 2, "not XMC or svmlight text"),
        (b"0 1:1\0", 2, "not a number"),
        (b"\0\0\0\0", 2, "NUL byte"),
        (b"0 1:1\x0b2:1", 2, "'1:1\\x0b2:1' is not a number"),
        (b"0 1:1\r2:1", 2, "not a number"),
        (b"0 1:1 # note", 2, "expected a feature id, not '#'"),
        (b"\xff\xfe\x00", 2, "NUL byte"),
        (b"0 1:1\n0 1:1", 3, "one more"),
        (b"0 1:1\n", 3, "one more"),
        (b"0 1:1\nx", 3, "one more"),
    ],
)
def test_bad_rows_are_refused_with_their_line(write, rows, line, reason):
    refused(write(b"1 3 3\n" + rows + b"\n"), f":{line}", reason)
    if "one more" not in reason:
        sizes = {"n_features": 3, "n_labels": 3}
        refused(write(b"0 1:1\n" * 4 + rows + b"\n"), ":5", reason, **sizes)


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b"", 1, "the file is empty"),
        (gzip.compress(b"", mtime=0), 1, "the file is empty"),
        (b"999999999999 5 5\n0 1:1\n", 2, "the header says 999,999,999,999 rows"),
        (b"1 2147483648 5\n0 1:1\n", 1, "2147483648 features, which is too many"),
        (b"1 5 99999999999\n0 1:1\n", 1, "labels, which is too many"),
        (b"9" * 60 + b" 5 5\n0 1:1\n", 1, "rows, which is too many"),
        (b"9" * 6000 + b" 5 5\n0 1:1\n", 1, "label id '999999999999999999999999...' is out"),
        (b"3 5 5\n0 1:1\n0 1:1\n", 3, "the file ends here, but the header says 3 rows"),
        (b"3 5 5\n", 1, "the file ends here"),
        (b"3 5 5", 1, "within the header"),
        (b"3 5\n0 1:1\n", 1, "expected feature:value, not '5'"),
        (b"-3 5 5\n0 1:1\n", 1, "negative label id"),
        (b"3 0 5\n0 1:1\n", 2, "there are no features"),
        (b'{"text": "a"}\n', 1, "texts, not features"),
        (b"\x7fELF\x02\x01\x01\0\0\0\0", 1, "NUL byte"),
        (bytes(range(128, 256)) + b"\0", 1, ""),
        (gzip.compress(b"2 5 5\n0 1:1\n0 1:1\n", mtime=0)[:-1], 4, "the gzip data is cut off"),
        (gzip.compress(b"2 5 5\n0 1:1\n0 1:1\n", mtime=0) + b"x", 4, "the gzip data is "),
        (gzip.compress(b"2 5 5\n0 1:1\n0 1:1\n", mtime=0)[:12], 1, "the gzip data is cut off"),
        (gzip.compress(b"2 5 5\n0 1:1\n0 1:1\n", mtime=0)[:-8] + b"\0" * 8, 4, "damaged"),
        (b"\x1f\x8b\x08garbage that is no gzip", 1, "the gzip data is cut off"),
    ],
)
def test_bad_files_are_refused_with_their_line(write, content, line, reason):
    refused(write(content), f":{line}", reason)


def test_a_line_without_end_is_refused(write, monkeypatch):
    monkeypatch.setattr(xmc_text, "_BLOCK", 1000)
    monkeypatch.setattr(xmc_text, "_LONGEST_LINE", 10_000)
    refused(write(b"0 1:1\n" + b"1" * 20_000), ":2", "longer than any row")


def test_paths_that_are_not_files_are_refused(tmp_path, write):
    refused(tmp_path / "missing", "", "No such file")
    refused(tmp_path, "", "directory")
    path = write(TEXT)
    refused(path, "", ".npz", labels=path)
    refused(path, ":1", "the header says 6 features; expected 7", n_features=7)


def test_every_cut_that_loses_a_row_or_part_of_a_word_is_refused(write):
    text = b"3 6 5\n1,3 0:1 2:0.25\n 1:2.5\n2,4 3:1.5 5:2\n"
    whole = load_data(write(text))
    for cut in range(len(text)):
        path = write(text[:cut], "cut.txt")
        # Without its newline, a last line that is cut after a value looks complete.
        if text[:cut].rstrip(b".0123456789").endswith((b"\n2,4 3:", b"\n2,4 3:1.5 5:")) and (
            text[cut - 1] != ord(":")
        ):
            rows = load_data(path)
            assert (rows.X[:2] != whole.X[:2]).nnz == 0
            assert rows.X.shape == whole.X.shape
        else:
            with pytest.raises(DataError, match=r"cut\.txt:[1-4]: "):
                load_data(path)
    packed = gzip.compress(text)
    for cut in range(len(packed)):
        with pytest.raises(DataError, match=r"cut\.gz:[1-5]: "):
            load_data(write(packed[:cut], "cut.gz"))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text("0123456789 ,:.-e\n\r", max_size=60).map(str.encode))
def test_garbage_is_an_error_or_a_sound_dataset(tmp_path_factory, garbage):
    path = tmp_path_factory.getbasetemp() / "garbage"
    path.write_bytes(garbage)
    try:
        X, Y, _ = load_data(path)
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        for matrix in (X, Y):
            matrix.check_format(full_check=True)
            assert np.isfinite(matrix.data).all()


# Binary datasets


@pytest.fixture
def xmc(tmp_path, write):
    path = tmp_path / "data.xmc"
    save_data(load_data(write(TEXT))._replace(names=["a", "b", "ç", "", "e"]), path)
    return path


def test_xmc_is_mapped_and_not_copied(xmc):
    X, Y, names = load_data(xmc)
    assert not X.data.flags.owndata
    assert not X.indices.flags.owndata
    assert not Y.indices.flags.owndata
    assert not X.data.flags.writeable
    assert names == ["a", "b", "ç", "", "e"]


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("x.indices", [0, 2, 6, 1], "X, row 1: an id is out of range"),
        ("x.indices", [-1, 2, 5, 1], "X, row 1: an id is out of range"),
        ("x.indices", [2, 0, 5, 1], "X, row 1: ids are not sorted and unique"),
        ("x.indices", [0, 0, 5, 1], "X, row 1: ids are not sorted and unique"),
        ("x.indices", [0, 2, 5], "disagree"),
        ("x.indptr", [0, 3, 4, 4, 5], "X, row 4: the row pointers are out of order"),
        ("x.indptr", [0, 3, 2, 4, 4], "X, row 2: the row pointers are out of order"),
        ("x.indptr", [0, -3, 4, 4, 4], "X, row 1: the row pointers are out of order"),
        ("x.indptr", [0, 2**62, 4, 4, 4], "X, row 1: the row pointers are out of order"),
        ("x.indptr", [1, 3, 4, 4, 4], "do not start at 0"),
        ("x.indptr", [0, 3, 3, 3, 3], "do not end"),
        ("x.indptr", [0, 3, 4, 4], "disagree"),
        ("x.data", [1, 2, np.nan, 1], "X, row 1: the value nan is not finite"),
        ("x.data", [1, 2, 3, np.inf], "X, row 2: the value inf is not finite"),
        ("y.indices", [1, 5, 2], "Y, row 1: an id is out of range"),
        ("y.indptr", [0, 2, 2, 3, 2], "Y, row 4: the row pointers are out of order"),
        ("names.offsets", [0, 1, 2, 4, 4], "names"),
        ("names.offsets", [0, 2, 1, 4, 4, 5], "out of order"),
        ("names.offsets", [0, 1, 2, 3, 4, 5], "UTF-8"),
        ("names.offsets", [], "out of order"),
        ("names.utf8", [97, 98, 99], "out of order"),
    ],
)
def test_unsound_arrays_in_xmc_are_refused(xmc, name, values, reason):
    arrays, metadata = open_arrays(xmc)
    write_arrays(xmc, arrays | {name: np.array(values, arrays[name].dtype)}, metadata)
    refused(xmc, "", reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": "other"}, "not a dataset"),
        ({"version": "2"}, "version"),
        ({"n_rows": "5"}, "number of rows"),
        ({"n_rows": "-4"}, "not numbers"),
        ({"n_rows": "9" * 5000}, "not numbers"),
        ({"n_features": "x"}, "not numbers"),
        ({"n_features": "4294967296"}, "more than"),
        ({"n_labels": "4"}, "5 label names for 4 labels"),
    ],
)
def test_false_metadata_in_xmc_is_refused(xmc, changes, reason):
    arrays, metadata = open_arrays(xmc)
    write_arrays(xmc, arrays, metadata | changes)
    refused(xmc, "", reason)


def test_missing_or_wrong_arrays_in_xmc_are_refused(xmc):
    arrays, metadata = open_arrays(xmc)
    for name in arrays:
        write_arrays(xmc, {k: v for k, v in arrays.items() if k != name}, metadata)
        refused(xmc, "", "does not contain the arrays")
    write_arrays(xmc, arrays | {"x.data": arrays["x.data"].astype(np.float64)}, metadata)
    refused(xmc, "", "does not contain the arrays")
    write_arrays(xmc, arrays | {"x.data": arrays["x.data"].reshape(2, 2)}, metadata)
    refused(xmc, "", "does not contain the arrays")


def test_a_damaged_xmc_is_an_error_or_a_sound_dataset(xmc, tmp_path):
    content = bytearray(xmc.read_bytes())
    path = tmp_path / "damaged.xmc"
    for cut in range(0, len(content), 3):
        path.write_bytes(content[:cut])
        with pytest.raises(DataError):
            load_data(path)
    rng = np.random.default_rng(0)
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        try:
            X, Y, _ = load_data(path)
        except DataError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            X.check_format(full_check=True)
            Y.check_format(full_check=True)


@pytest.mark.parametrize(
    ("name", "reason"), [(7, "7, which is not text"), ("\ud800", "not valid Unicode")]
)
def test_names_that_no_file_can_hold_are_refused(tmp_path, write, name, reason):
    dataset = load_data(write(TEXT))._replace(names=["a", name, "c", "d", "e"])
    with pytest.raises(DataError, match=f"label 1: .*{reason}"):
        save_data(dataset, tmp_path / "x.xmc")
    assert not (tmp_path / "x.xmc").exists()


# Binary datasets in pieces


def in_pieces(dataset, path, cuts, as_lists):
    with XmcWriter(path, dataset.X.shape[1]) as writer:
        for begin, end in pairwise(cuts):
            Y = dataset.Y[begin:end]
            lists = [ids.tolist()[::-1] * 2 for ids in np.split(Y.indices, Y.indptr[1:-1])]
            writer.append(dataset.X[begin:end], lists[: end - begin] if as_lists else Y)
        writer.finish(dataset.Y.shape[1], dataset.names)


@settings(max_examples=60, deadline=None)
@given(
    datasets() | datasets(names=st.lists(st.text("aé"))),
    st.lists(st.integers(0, 8)),
    st.booleans(),
)
def test_pieces_give_the_bytes_of_the_whole(tmp_path_factory, dataset, cuts, as_lists):
    base = tmp_path_factory.getbasetemp()
    n_rows = dataset.X.shape[0]
    cuts = sorted([0, *(min(cut, n_rows) for cut in cuts), n_rows])
    in_pieces(dataset, base / "pieces.xmc", cuts, as_lists)
    save_data(dataset, base / "whole.xmc")
    assert (base / "pieces.xmc").read_bytes() == (base / "whole.xmc").read_bytes()


def test_a_writer_keeps_neither_X_nor_Y_in_memory(tmp_path):
    rng = np.random.default_rng(0)
    X = csr_array(scipy.sparse.random(1000, 500, 0.2, "csr", np.float32, rng))
    labels = [[i % 7, i % 50] for i in range(1000)]
    size = 40 * X.data.nbytes * 2
    tracemalloc.start()
    try:
        with XmcWriter(tmp_path / "a.xmc", 500) as writer:
            for _ in range(40):
                writer.append(X, labels)
            writer.finish(50)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert load_data(tmp_path / "a.xmc").X.nnz == 40 * X.nnz
    assert peak < size / 8


@pytest.mark.parametrize(
    ("row", "labels", "reason"),
    [
        ([[0, np.nan]], [[0]], "X, row 3: the value nan is not finite"),
        ([[1, 1]], [[-1]], "row 3: -1 is not a label id"),
        ([[1, 1]], [[2**32]], "row 3: 4294967296 is not a label id"),
        ([[1, 1]], [[0], [1]], "X has 1 row and Y has 2"),
        ([[1, 1, 1]], [[0]], "rows with 3 features, not 2"),
        ([[1, 1]], [[5]], "4 labels, but a row has label 5"),
    ],
)
def test_bad_pieces_are_refused_and_the_old_file_stays(tmp_path, row, labels, reason):
    path = tmp_path / "a.xmc"
    path.write_bytes(b"before")

    def write_pieces():
        with XmcWriter(path, 2) as writer:
            writer.append(csr_array(np.ones((2, 2), np.float32)), [[0], []])
            writer.append(csr_array(np.array(row, np.float32)), labels)
            writer.finish(4)

    with pytest.raises(DataError) as caught:
        write_pieces()
    assert str(caught.value) == f"{path}: {reason}"
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_names_that_do_not_match_the_pieces_are_refused(tmp_path):
    with (
        pytest.raises(DataError, match="1 label name for 2 labels"),
        XmcWriter(tmp_path / "a.xmc", 2) as writer,
    ):
        writer.finish(2, ["a"])
    assert not list(tmp_path.iterdir())


def test_a_writer_that_does_not_finish_leaves_nothing(tmp_path):
    with XmcWriter(tmp_path / "a.xmc", 2) as writer:
        writer.append(csr_array(np.ones((2, 2), np.float32)), [[0], []])
    assert not list(tmp_path.iterdir())
    for bad in (tmp_path, tmp_path / "missing" / "a.xmc"):
        with pytest.raises(OSError, match=r"directory") as caught:
            XmcWriter(bad, 2)
        assert caught.value.filename == str(bad)


# Matrices


def test_npz_needs_two_valid_matrices(tmp_path, write):
    path, labels = tmp_path / "X.npz", tmp_path / "Y.npz"
    dataset = load_data(write(TEXT))
    with pytest.raises(DataError, match="unknown extension"):
        save_data(dataset, path)
    scipy.sparse.save_npz(path, dataset.X)
    scipy.sparse.save_npz(labels, dataset.Y)
    refused(path, "", "labels=")
    for kind in ("csc", "coo"):
        scipy.sparse.save_npz(path, dataset.X.asformat(kind))
        assert same(load_data(path, labels=labels), dataset)
    scipy.sparse.save_npz(path, dataset.X.asformat("bsr"))
    refused(path, "", "bsr", labels=labels)
    scipy.sparse.save_npz(path, dataset.X[:3])
    refused(path, "", "X has 3 rows and Y has 4", labels=labels)
    for indices, data in (([0, 7], [1, 1]), ([0, 1], [1, np.nan]), ([1, 1], [1, 1])):
        np.savez(path, format=b"csc", shape=(4, 6), indptr=[0, 2, 2, 2, 2, 2, 2],
                 indices=np.array(indices, np.int32), data=np.array(data, float))  # fmt: skip
        refused(path, "", "", labels=labels)
    twice = scipy.sparse.coo_array(([1.0, 1.0], ([0, 0], [1, 1])), shape=(4, 6))
    scipy.sparse.save_npz(path, twice)
    refused(path, "", "1 entry given twice in the same row", labels=labels)
    scipy.sparse.save_npz(path, dataset.X * 1j)
    refused(path, "", "not real numbers", labels=labels)
    np.savez(path, a=np.arange(3))
    refused(path, "", "not a scipy sparse matrix", labels=labels)
    path.write_bytes(labels.read_bytes()[:-30])
    refused(path, "", "not a scipy sparse matrix", labels=labels)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("format.npy", b"x")
    refused(path, "", "not a scipy sparse matrix", labels=labels)
    scipy.sparse.save_npz(path, dataset.X)
    scipy.sparse.save_npz(labels, dataset.Y * np.float32(2))
    with pytest.raises(DataError, match=r"Y\.npz: holds values other than 0 and 1"):
        load_data(path, labels=labels)


def test_fingerprint_depends_on_content_alone(write):
    X, Y, _ = load_data(write(TEXT))
    expected = fingerprint(X, Y)
    wide = X.copy()
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    shuffled = csr_array((X.data[[2, 0, 1, 3]], X.indices[[2, 0, 1, 3]], X.indptr), shape=X.shape)
    for same_X in (wide, shuffled, X.tocsc(), X.astype(np.float64)):
        assert fingerprint(same_X, Y) == expected
    assert fingerprint(X, Y.astype(np.float32) * 3) == expected
    others = [(X * 2, Y), (X, Y[:, :4]), (X[:, ::-1], Y), (X[:3], Y[:3]), (X, Y[::-1])]
    assert len({expected, *(fingerprint(*other) for other in others)}) == len(others) + 1


def test_unsound_datasets_are_not_saved(tmp_path, write):
    X, Y, _ = load_data(write(TEXT))
    path = tmp_path / "out.xmc"
    path.write_bytes(b"old")
    bad = X.copy()
    bad.data[1] = np.nan
    huge = X.astype(np.float64) * 1e300
    for dataset, reason in (
        (Dataset(bad, Y), "row 1: the value nan"),
        (Dataset(huge, Y), "row 1: the value inf"),
        (Dataset(X[:2], Y), "X has 2 rows and Y has 4"),
        (Dataset(X, Y, ["a"]), "1 label name for 5 labels"),
    ):
        with pytest.raises(DataError, match=reason):
            save_data(dataset, path)
    with pytest.raises(DataError, match="unknown extension"):
        save_data(Dataset(X, Y), tmp_path / "out.csv")
    assert path.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.txt", "out.xmc"]


def test_matrices_of_other_kinds_are_saved_in_the_documented_types(tmp_path, write):
    dataset = load_data(write(TEXT))
    Y = csr_array(dataset.Y.toarray().astype(np.int64))
    Y.data[0] = 0
    save_data(Dataset(dataset.X.tocoo().astype(np.float64), Y), tmp_path / "x.xmc")
    again = load_data(tmp_path / "x.xmc")
    assert same(Dataset(again.X, dataset.Y), dataset)
    assert again.Y.nnz == dataset.Y.nnz - 1


def _data(name: str) -> Path:
    root = Path(os.environ.get("DISMEC_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (root / name).exists():
        pytest.skip(f"{name} is not there: set DISMEC_DATA to the folder that has it")
    return root / name


@pytest.mark.data
def test_eurlex_has_its_published_shape(tmp_path):
    X, Y, _ = load_data(_data("eurlex-4k/train.txt.gz"))
    assert X.shape == (15539, 5000)
    assert Y.shape == (15539, 3993)
    assert (np.diff(Y.indptr) == 0).sum() == 28
    save_data(Dataset(X, Y), tmp_path / "x.xmc")
    assert same(load_data(tmp_path / "x.xmc"), Dataset(X, Y))
