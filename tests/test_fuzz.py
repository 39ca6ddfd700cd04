"""A short run of ``make fuzz``, always with the same inputs.

Also checks that the harness detects faults, and tests every fault that it has found.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
import scipy.sparse as sp

from dismec import DataError, load_data, train
from dismec.data.corpus import read_texts
from dismec.data.mixed import load_dense
from dismec.data.weights import load_pair_weights, load_row_weights
from dismec.errors import DismecError
from dismec.report.facts import describe_data
from fuzz import run
from fuzz.bombs import gzip_of
from fuzz.mutations import ODD, mutate_bytes, mutate_json, mutate_model
from fuzz.run import Faults, Meter
from fuzz.targets import Workshop

SCRIPT = Path(__file__).parent / "fuzz" / "run.py"


@pytest.mark.slow
def test_no_bomb_and_none_of_many_mutated_inputs_shows_a_fault(tmp_path):
    command = [SCRIPT, "--inputs", "800", "--seed", "1", "--faults", tmp_path / "faults"]
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1] == "800 inputs, 0 faults", done.stdout + done.stderr
    assert done.returncode == 0


def test_a_run_that_finds_a_fault_keeps_the_input_and_fails(tmp_path):
    faults = Faults(tmp_path / "faults")
    (tmp_path / "input").write_bytes(b"x")
    faults.keep("texts 7", "Traceback\nKeyError", tmp_path / "input")
    faults.keep("texts 7", "again", tmp_path / "input")
    assert len(faults) == 1
    assert (tmp_path / "faults" / "texts-7" / "input").read_bytes() == b"x"
    assert (tmp_path / "faults" / "texts-7" / "what.txt").read_text() == "Traceback\nKeyError"


def test_the_meter_notices_memory_tracebacks_and_errors_of_several_lines():
    meter = Meter()
    assert meter.fault_of(10, lambda: None) is None

    def several_lines():
        raise DataError("one\ntwo")

    def clear():
        raise DataError("one line")

    assert "bytes" in meter.fault_of(1000, lambda: np.ones(1 << 25).sum())
    assert meter.fault_of(1 << 25, lambda: np.ones(1 << 25).sum()) is None
    assert "KeyError" in meter.fault_of(10, lambda: {}["x"])
    assert "not one line" in meter.fault_of(10, several_lines)
    assert meter.fault_of(10, clear) is None


@pytest.mark.parametrize(
    ("code", "stuck", "reason"),
    [
        ("import os; os.abort()", 600, "the process ended with status -6"),
        ("import time; time.sleep(1000)", 1, "no end after 1 seconds"),
        ("", 600, None),
    ],
)
def test_a_process_that_dies_or_hangs_is_noticed(code, stuck, reason, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "STUCK", stuck)
    (tmp_path / "progress").write_bytes(run.PROGRESS.pack(3, 3))
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    assert run._wait(process, tmp_path / "progress", None) == reason
    assert process.poll() is not None


def test_the_same_number_is_the_same_input(tmp_path):
    data = bytes(range(256))
    assert mutate_bytes(Random(5), data, [data]) == mutate_bytes(Random(5), data, [data]) != data
    assert len({mutate_bytes(Random(i), data, [data]) for i in range(50)}) > 40
    document = {"a": [1, 2, {"b": "c"}]}
    assert mutate_json(Random(5), document) == mutate_json(Random(5), document)
    odd = repr(ODD)
    for seed in range(2000):  # values put into one document are not changed in the next
        mutate_json(Random(seed), [[], [1], {"a": [[]]}])
    assert repr(ODD) == odd
    assert document == {"a": [1, 2, {"b": "c"}]}


def test_mutated_models_reach_the_code_behind_the_checksums(tmp_path):
    """Most are refused, some are not, and not all for the same reason."""
    shop = Workshop(tmp_path)
    (models,) = (target for target in shop.targets if target.name == "models")
    reasons = set()
    opened = 0
    for number in range(120):
        _, attempt = models.make(Random(number))
        try:
            attempt()
            opened += 1
        except DismecError as error:
            reasons.add("".join(c for c in str(error).partition("safetensors")[2] if c.isalpha()))
    assert 3 < opened < 100
    assert len(reasons) > 5
    assert set(mutate_model(Random(1), shop.models["plain"])) <= set(shop.models["plain"])


def test_a_few_mutated_inputs_of_each_kind_show_no_fault(tmp_path):
    shop, meter = Workshop(tmp_path), Meter()
    for target in shop.targets:
        for number in range(5):
            size, attempt = target.make(Random(number))
            assert meter.fault_of(size, attempt) is None, f"{target.name} {number}"


# Faults found so far.


def test_more_than_a_million_blank_rows_with_hardly_any_others_are_refused(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_bytes(b"0 0:1\n" + b"\n" * (1 << 20))
    assert load_data(path).X.shape == (1 + (1 << 20), 1)
    path.write_bytes(b"0 0:1\n" + b"\n" * ((1 << 20) + 1))
    with pytest.raises(DataError, match=r"rows\.txt:1048578: 1,048,577 of the 1,048,578 rows"):
        load_data(path)
    path.write_bytes((b"0 0:1\n" + b"\n" * 8) * 150_000)
    assert load_data(path).X.shape == (9 * 150_000, 1)


def test_a_file_that_unpacks_to_more_than_a_hundred_times_its_size_is_refused(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    line = b'{"text": "%s", "labels": ["b"]}\n' % (b"a" * (1 << 20))
    path.write_bytes(gzip_of(line, 30))
    assert 30 * len(line) > 100 * path.stat().st_size  # small files may do so
    assert sum(len(batch.texts) for batch in read_texts(path)) == 30
    path.write_bytes(gzip_of(line, 40))
    with pytest.raises(DataError, match=r"more than 100 times its size.*unpack it first"):
        list(read_texts(path))


def test_more_than_a_million_consecutive_blank_lines_are_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a", "labels": []}\n' + b"\n" * (1 << 20))
    assert [batch.texts for batch in read_texts(path)] == [["a"]]
    path.write_bytes(b"\n" * ((1 << 20) + 1))
    with pytest.raises(DataError, match=r"a\.jsonl:1048577: 1,048,577 blank lines in a row"):
        list(read_texts(path))


@pytest.mark.parametrize("sizes", ["5 2147483647", "2147483646 5"])
def test_sizes_claimed_only_by_a_header_take_no_memory(sizes, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(f"3 {sizes}\n0,3 0:1\n3 1:1 2:0.5\n 4:1\n")
    facts = describe_data(path, threads=1)
    assert (facts["labels with rows"], facts["all labels"]["label"]) == (2, [3, 0])
    assert f"{facts['features']} {facts['labels']}" == sizes
    X, Y, _ = load_data(path)
    with pytest.raises(DataError, match=r"need at least|is the header right\?"):
        train(X, Y, tmp_path / "model")


def test_unused_labels_and_features_do_not_prevent_training(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("3 100000 70000\n0,3 0:1\n3 1:1 2:0.5\n 4:1\n")
    X, Y, _ = load_data(path)
    assert train(X, Y, tmp_path / "model", threads=1).n_labels == 70000


@pytest.mark.parametrize("shape", ["(40, 3", "(40, -3), ", "(40, 9" + "9" * 30 + "), ", "(1, [2]"])
def test_an_array_with_a_damaged_header_is_refused_in_one_line(shape, tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.ones((40, 3), np.float32))
    content = path.read_bytes()
    assert b"(40, 3), " in content
    path.write_bytes(content.replace(b"(40, 3), ", shape.encode()))
    for load in (load_dense, load_row_weights, load_pair_weights):
        with pytest.raises(DataError) as caught:
            load(path)
        assert "\n" not in str(caught.value)


def test_an_arrow_file_with_offsets_beyond_its_values_is_refused(tmp_path):
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "a.arrow"
    table = pa.table({"text": ["first", "second", "third"], "labels": [["a"], ["b"], []]})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    content = path.read_bytes()
    places = np.array([0, 5, 11, 16], "<i4").tobytes()
    assert places in content
    path.write_bytes(content.replace(places, np.array([0, 5, 2**30, 16], "<i4").tobytes()))
    with pytest.raises(DataError, match="cannot be read as Arrow"):
        list(read_texts(path))


def test_encrypted_archives_are_refused_in_one_line(tmp_path):
    sp.save_npz(tmp_path / "a.npz", sp.csr_array(np.eye(3, dtype=np.float32)))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    place = content.index(b"PK\x01\x02")
    while place >= 0:  # a flag of each directory entry
        content[place + 8] |= 1
        place = content.find(b"PK\x01\x02", place + 1)
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"not a scipy sparse matrix: .*encrypted"):
        load_data(tmp_path / "a.npz", labels=tmp_path / "a.npz")


def test_column_names_that_are_not_utf_8_are_refused_in_one_line(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"text": ["one"], "labels": [["a"]]})
    pq.write_table(table, tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes().replace(b"text", b"te\xfft")
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.parquet"):
        list(read_texts(tmp_path / "a.parquet"))
