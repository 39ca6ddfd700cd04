from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dismec.data.container import ContainerError, Spooled, forget, open_arrays, write_arrays
from dismec.data.files import whole_file
from dismec.data.names import pack_names, unpack_names

pytestmark = pytest.mark.native

DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1"]


def container(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.fixture
def sound(tmp_path):
    path = tmp_path / "sound.bin"
    arrays = {
        "a": np.arange(7, dtype=np.int64),
        "b": np.linspace(0, 1, 5, dtype=np.float32),
        "c": np.arange(3, dtype=np.uint8),
    }
    write_arrays(path, arrays, {"format": "test", "name": "größe"})
    return path


def refused(path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(ContainerError) as caught:
        open_arrays(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda name: name != "__metadata__"),
        st.sampled_from(DTYPES).flatmap(
            lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
        ),
        max_size=4,
    ),
    st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
)
def test_written_arrays_open_unchanged(tmp_path_factory, arrays, metadata):
    path = tmp_path_factory.mktemp("container") / "x.bin"
    write_arrays(path, arrays, metadata)
    found, found_metadata = open_arrays(path)
    assert found_metadata == metadata
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_files_are_interchangeable_with_the_safetensors_library(sound, tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    arrays, _ = open_arrays(sound)
    theirs = library.load_file(sound)
    assert theirs.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(theirs[name], array)
    library.save_file(theirs, tmp_path / "theirs.bin", {"k": "v"})
    again, metadata = open_arrays(tmp_path / "theirs.bin")
    assert metadata == {"k": "v"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[name], array)


def test_arrays_are_read_only_views_of_the_file(sound):
    arrays, _ = open_arrays(sound)
    for array in arrays.values():
        assert not array.flags.owndata
        assert array.flags.aligned
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_same_content_gives_same_bytes_whatever_the_order(tmp_path):
    a, b = np.arange(3), np.ones(2, np.float32)
    write_arrays(tmp_path / "1", {"a": a, "b": b}, {"x": "1", "y": "2"})
    write_arrays(tmp_path / "2", {"b": b, "a": a}, {"y": "2", "x": "1"})
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


@pytest.mark.parametrize(
    "array", [np.array([True]), np.array(["x"]), np.array([None]), 1j * np.ones(1)]
)
def test_types_outside_the_format_are_not_written(tmp_path, array):
    with pytest.raises(TypeError, match="cannot be stored"):
        write_arrays(tmp_path / "x", {"a": array}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with suppress(RuntimeError), whole_file(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(IsADirectoryError), whole_file(tmp_path):
        pass


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "link").symlink_to("target")
    with whole_file(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with whole_file(path) as file:
        file.write(b"new")
    assert os.read(reader, 99) == b"new"
    os.close(reader)
    assert path.is_fifo()


def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path):
    path = tmp_path / "nowhere" / "x"
    with pytest.raises(OSError, match="No such file") as caught, whole_file(path):
        pass
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("offsets", [[0, 2, 1, 3], [1, 3], [0, 2], [], [[0, 3]]])
def test_names_that_were_never_packed_are_refused(offsets):
    utf8, _ = pack_names(["ab", "", "c"])
    assert unpack_names(*pack_names(["ab", "", "é\n"])) == ["ab", "", "é\n"]
    with pytest.raises(ContainerError, match="label names"):
        unpack_names(utf8, np.array(offsets, dtype=np.int64))


def test_every_truncation_is_refused(sound, tmp_path):
    content = sound.read_bytes()
    for cut in range(len(content)):
        refused(tmp_path / "cut", content[:cut])
    refused(tmp_path / "longer", content + b"\0")


def test_flipped_header_bits_are_refused_or_harmless(sound, tmp_path):
    content = bytearray(sound.read_bytes())
    end = 8 + int.from_bytes(content[:8], "little")
    path = tmp_path / "flipped"
    for place in range(end):
        for bit in (0, 3, 6):
            content[place] ^= 1 << bit
            path.write_bytes(content)
            try:
                arrays, _ = open_arrays(path)
            except ContainerError as error:
                assert "\n" not in str(error)  # noqa: PT017
            else:
                assert sum(array.nbytes for array in arrays.values()) == len(content) - end
                for array in arrays.values():
                    array.tobytes()
            content[place] ^= 1 << bit


def test_lying_header_lengths_are_refused(tmp_path):
    path = tmp_path / "x"
    assert "cut off" in refused(path, (1000).to_bytes(8, "little") + b"{}")
    assert "too long" in refused(path, b"\xff" * 8 + b"{}")
    assert "too long" in refused(path, (2**62).to_bytes(8, "little") + b"{}" * 50)
    assert "JSON" in refused(path, (0).to_bytes(8, "little") + b"{}")


@pytest.mark.parametrize(
    ("header", "body", "reason"),
    [
        (b"[" * 100_000, b"", "JSON"),
        (b'{"a":' * 50_000, b"", "JSON"),
        (b'{"a": NaN}', b"", "JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", b"", "JSON"),
        (b'{"a":1,"a":2}', b"", "JSON"),
        (b"\xff\xfe", b"", "JSON"),
        ([], b"", "object"),
        ({"__metadata__": {"a": 1}}, b"", "metadata"),
        ({"__metadata__": []}, b"", "metadata"),
        ({"a": 3}, b"", "described"),
        ({"a": entry() | {"more": 1}}, b"\0" * 8, "described"),
        ({"a": entry(dtype="F31")}, b"\0" * 8, "type"),
        ({"a": entry(dtype=["F32"])}, b"\0" * 8, "type"),
        ({"a": entry(shape=[-2])}, b"\0" * 8, "invalid shape or invalid offsets"),
        ({"a": entry(shape=[2.0])}, b"\0" * 8, "invalid shape or invalid offsets"),
        ({"a": entry(shape=[True, 2])}, b"\0" * 8, "invalid shape or invalid offsets"),
        ({"a": entry(shape="2")}, b"\0" * 8, "invalid shape or invalid offsets"),
        ({"a": entry(shape=[1] * 100 + [2])}, b"\0" * 8, "invalid shape or invalid offsets"),
        ({"a": entry(offsets=[-8, 0])}, b"\0" * 8, "invalid shape or invalid offsets"),
        ({"a": entry(offsets=[0, 8, 8])}, b"\0" * 8, "invalid shape or invalid offsets"),
        ({"a": entry(offsets=[8, 0])}, b"\0" * 8, "disagrees"),
        ({"a": entry(shape=[3])}, b"\0" * 8, "disagrees"),
        ({"a": entry(shape=[2**62, 4])}, b"\0" * 8, "disagrees"),
        ({"a": entry(shape=[0, 2**62, 2**62], offsets=[0, 0])}, b"", "impossible"),
        ({"a": entry(shape=[2**60], offsets=[0, 2**62])}, b"\0" * 8, "cut off"),
        ({"a": entry(), "b": entry()}, b"\0" * 8, "overlap"),
        ({"a": entry(), "b": entry(offsets=[4, 12])}, b"\0" * 12, "overlap"),
        ({"a": entry(), "b": entry(offsets=[12, 20])}, b"\0" * 20, "gap"),
        ({"a": entry("U8", [1], [0, 1]), "b": entry(offsets=[1, 9])}, b"\0" * 9, "aligned"),
        ({"a": entry()}, b"\0" * 9, "follow"),
    ],
)
def test_lies_in_the_header_are_refused(tmp_path, header, body, reason):
    assert reason in refused(tmp_path / "x", container(header, body))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_refused(tmp_path_factory, garbage):
    path = tmp_path_factory.getbasetemp() / "garbage"
    for content in (garbage, container(garbage)):
        path.write_bytes(content)
        try:
            open_arrays(path)
        except ContainerError:
            pass
        else:
            assert json.loads(content[8:]) in ({}, {"__metadata__": {}})


def test_a_digest_equals_that_of_the_file(tmp_path):
    digest = hashlib.sha256()
    with (tmp_path / "spooled").open("w+b") as spooled:
        spooled.write(b"abcd" * 700_000)
        arrays = {"a": np.arange(7)[::2], "b": Spooled(spooled, np.dtype("<i4")), "c": np.empty(0)}
        write_arrays(tmp_path / "x", arrays, {"k": "v"}, digest)
    content = (tmp_path / "x").read_bytes()
    assert len(content) > 2_800_000
    assert digest.hexdigest() == hashlib.sha256(content).hexdigest()


def resident(path) -> int:
    """Return the kilobytes of a mapped file that this process has in memory."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            found = line.endswith(str(path))
        elif found and line.startswith("Rss:"):
            return int(line.split()[1])
    return 0


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_file_that_is_forgotten_takes_no_memory_and_can_be_read_again(tmp_path):
    path = tmp_path / "x"
    write_arrays(path, {"a": np.ones(1 << 20)}, {})
    array = open_arrays(path)[0]["a"]
    assert array.sum() == 1 << 20
    assert resident(path) >= 8000
    forget(array)
    assert resident(path) < 200
    assert array.sum() == 1 << 20
    forget(np.ones(3))  # has no effect


def test_what_killed_writers_left_is_removed_after_a_week(tmp_path):
    names = ["model.zip.0123456789ab", "model.zip.ba9876543210", "model.zip.of.somebody.else"]
    left = [tmp_path / f".{name}.tmp" for name in names]
    for path, days in zip(left, (6, 8, 8), strict=True):
        path.touch()
        os.utime(path, (time.time() - days * 86400,) * 2)
    with whole_file(tmp_path / "model.zip"):
        pass
    assert [path.exists() for path in left] == [True, False, True]
