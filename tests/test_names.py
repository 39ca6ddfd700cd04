"""Label names: lists, files and arrays of them hold the same names, however many."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dismec import DataError, open_model, train
from dismec.data import names as names_module
from dismec.data.names import Names, check_names, load_names, pack_names, unpack_names
from dismec.data.training_file import TrainingData
from dismec.training.params import TrainOptions
from dismec.training.train import train_on

texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=40)


@settings(deadline=None)
@given(names=texts, at_once=st.integers(1, 50))
def test_packed_names_are_the_same_names(names, at_once):
    with mock.patch.object(names_module, "_NAMES_AT_ONCE", at_once):
        packed = unpack_names(*pack_names(names))
        assert len(packed) == len(names)
        assert list(packed) == [packed[i] for i in range(len(names))] == packed[:] == names
        assert packed == names == packed
        assert packed == unpack_names(*pack_names(packed))
        assert packed != [*names, "more"]
        assert packed != (unpack_names(*pack_names([*names, "more"])))
        assert not names or packed != ["another", *names[1:]]
        assert not names or (packed != [7, *names[1:]] and packed != ["\ud800", *names[1:]])
        for name in (*names, "absent name"):
            expected = names.index(name) if name in names else None
            assert packed.find(name) == expected


def test_packed_names_are_not_unpacked_to_be_written():
    packed = unpack_names(*pack_names(["a", "ß", ""]))
    with mock.patch.object(Names, "__iter__", side_effect=AssertionError):
        utf8, offsets = pack_names(packed)
    assert (utf8.tobytes(), offsets.tolist()) == ("aß".encode(), [0, 1, 3, 3])


@given(
    st.lists(st.text("ab😀", max_size=3), max_size=20),
    st.lists(st.text("ab😀\ud83c", max_size=3), max_size=8),
)
def test_many_names_are_found_as_if_one_at_a_time(names, wanted):
    packed = Names(*pack_names(names))
    expected = [names.index(name) if name in names else None for name in wanted]
    assert packed.find_all(wanted) == expected
    assert [packed.find(name) for name in wanted] == expected


def test_names_with_the_same_hash_are_distinguished():
    with mock.patch.object(names_module, "_factors", return_value=np.zeros(1, np.uint64)):
        packed = unpack_names(*pack_names(["ab", "cd", "ef", "cd", "é"]))
        assert [packed.find(name) for name in ("ef", "cd", "ab", "é", "xy")] == [2, 1, 0, 4, None]
    assert packed.find("\ud800") is None


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\r\n b \r\n", ["a", "b"]),
        ("Straße\n城".encode(), ["Straße", "城"]),
    ],
)
def test_names_are_read_from_lines(tmp_path, content, names):
    (tmp_path / "names").write_bytes(content)
    assert load_names(tmp_path / "names") == names


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"a\n\nb\n", ":2: a label without a name"),
        (b"a\n \t\n", ":2: a label without a name"),
        (b"", ":1: a label without a name"),
        (b"a\nb\xff\nc\n", ":2: not UTF-8"),
        (b"\xef\xbb\xbf\xffa\n", ":1: not UTF-8"),
        (b"a\n\xff\n\n", ":2: not UTF-8"),
        (b"a\nb\xc3\nc\n", ":2: not UTF-8"),  # the rest of the character is missing
        (b"a\n\xe2\x82", ":2: not UTF-8"),
    ],
)
def test_a_line_that_is_not_a_name_is_reported(tmp_path, content, fault):
    (tmp_path / "names").write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_names(tmp_path / "names")
    assert str(caught.value) == f"{tmp_path / 'names'}{fault}"


def test_names_are_checked_one_by_one_only_if_one_is_wrong():
    assert check_names(None, 3) is None
    assert check_names(("a", "ß"), 2) == ["a", "ß"]
    assert check_names(np.array(["a", "b"]), 2) == ["a", "b"]
    assert {type(name) for name in check_names(np.array(["a", "b"]), 2)} == {str}
    assert check_names(unpack_names(*pack_names(["a", "b"])), 2) == ["a", "b"]
    with pytest.raises(DataError, match="2 label names for 3 labels"):
        check_names(["a", "b"], 3)
    with pytest.raises(DataError, match="label 1: its name is 7, which is not text"):
        check_names(["a", 7], 2)
    with pytest.raises(DataError, match=r"label 1: its name '\\ud800' is not valid Unicode"):
        check_names(["a", "\ud800"], 2)
    with pytest.raises(DataError, match="label 0"):
        check_names(["\ud83d", "\ude00"], 2)


def test_names_that_are_passed_to_train_must_be_distinct_and_on_one_line(tmp_path, problem_data):
    names = [f"label {i}" for i in range(40)]
    for wrong, shown in (
        ("label 1", "'label 1'"),
        (" ", "''"),
        ("label 1 ", "'label 1'"),
        ("a\nb", r"'a\\nb'"),
    ):
        reason = f"names: {shown} occurs twice, is empty or has a line break"
        with pytest.raises(DataError, match=reason):
            train(*problem_data, tmp_path / "model", names=[wrong, *names[1:]])
    assert not (tmp_path / "model").exists()


def test_finding_a_label_does_not_unpack_all_names(tmp_path, problem_data):
    X, Y = problem_data
    names = [f"Straße {i % 30}" for i in range(40)]
    # Files of public datasets have equal names.
    train_on(TrainingData(X, Y, names=names), TrainOptions(path=tmp_path / "model"))
    model = open_model(tmp_path / "model")
    with mock.patch.object(Names, "__iter__", side_effect=AssertionError):
        assert model.find_label("Straße 7") == 7  # the first of equal names
        assert model.find_label(12) == 12
        for wrong in ("12", "Straße"):  # numbers are accepted only if there are no names
            with pytest.raises(DataError, match="no label"):
                model.find_label(wrong)


def test_names_are_packed_and_hashed_many_at_a_time():
    """Calls of numpy per name would take most of the time."""
    names = [f"label number {i}" for i in range(20_000)]
    packed = unpack_names(*pack_names(check_names(names, len(names))))
    assert packed == names
    with mock.patch.object(names_module, "_hashes", wraps=names_module._hashes) as hashed:
        assert packed.find(names[-1]) == len(names) - 1
        assert packed.find("label") is None
    assert hashed.call_count <= 20_000 // 4096 + 1 + 2  # the index, and the two names
