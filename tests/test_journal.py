"""Receipts of finished blocks: one line each, whatever happens to the file or its writer."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from conftest import random_problem, train_unfinished, weight_files
from dismec import ModelError, TrainingParams, open_model, save_data, train
from dismec.data.dataset import Dataset
from dismec.model import directory
from dismec.model.directory import commit, read_manifest
from dismec.model.manifest import Journal, make_journal, read_journal
from dismec.model.sidecar_files import read_parts
from dismec.training import execute
from dismec.training.train import fit

PARAMS = TrainingParams(block_size=5)  # 8 blocks


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "model"
    train(*random_problem(), path, PARAMS, threads=1)
    return weight_files(path)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run killed after its last block: all receipts are in its journal."""
    path = tmp_path_factory.mktemp("killed") / "model"
    with (
        mock.patch("dismec.training.execute.commit", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        train(*random_problem(), path, PARAMS, threads=1)
    return path


@pytest.fixture
def unfinished(killed, tmp_path):
    return shutil.copytree(killed, tmp_path / "model")


def journal_of(path):
    (found,) = path.glob("*.journal")
    return found


def refused(path):
    """Return the reason, which must be one line."""
    with pytest.raises(ModelError) as caught:
        read_manifest(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_block_adds_one_line_and_leaves_the_manifest_alone(unfinished):
    lines = journal_of(unfinished).read_text().splitlines()
    numbers = [json.loads(line.partition(" ")[2])["number"] for line in lines]
    assert sorted(numbers) == list(range(8))
    content = json.loads((unfinished / "manifest.json").read_text())
    assert content["blocks"] == []
    assert content["journal"] == journal_of(unfinished).name
    assert [r.number for r in read_manifest(unfinished).blocks] == list(range(8))


def test_a_training_replaces_its_manifest_three_times_however_many_blocks_it_has(tmp_path):
    for size in (40, 1):
        with (
            mock.patch.object(directory, "whole_file", wraps=directory.whole_file) as written,
            mock.patch("dismec.model.manifest.Journal.append", autospec=True) as append,
        ):
            train(*random_problem(), tmp_path / str(size), replace(PARAMS, block_size=size))
        commits = [c for c in written.call_args_list if c.args[0].name == "manifest.json"]
        assert (len(commits), append.call_count) == (3, 40 // size)


def test_a_finished_model_has_no_journal(tmp_path, unfinished, reference):
    for path in (unfinished, tmp_path / "new"):
        train(*random_problem(), path, PARAMS)
        assert weight_files(path) == reference
        assert not list(path.glob("*.journal"))
        assert "journal" not in json.loads((path / "manifest.json").read_text())
    assert {p.name for p in unfinished.iterdir()} == {p.name for p in (tmp_path / "new").iterdir()}


def test_a_line_truncated_anywhere_is_ignored(unfinished):
    path = journal_of(unfinished)
    whole = path.read_bytes()
    receipts = read_journal(path)
    last = whole.rindex(b"\n", 0, -1) + 1
    for end in range(last, len(whole)):
        path.write_bytes(whole[:end])
        assert read_journal(path) == receipts[:-1]
    # After a power cut, the file may already have its final length, with a page of zeros.
    for zeros in (slice(last, len(whole)), slice(last, len(whole) - 1), slice(last, last + 99)):
        torn = bytearray(whole)
        torn[zeros] = bytes(len(torn[zeros]))
        path.write_bytes(torn)
        assert read_journal(path) == receipts[:-1]


def test_receipts_on_a_missing_page_are_ignored(unfinished):
    path = journal_of(unfinished)
    whole = path.read_bytes()
    receipts = read_journal(path)
    ends = [i for i, byte in enumerate(whole) if byte == ord("\n")]
    torn = bytearray(whole)
    torn[ends[2] - 100 : ends[3] + 500] = bytes(ends[3] - ends[2] + 600)
    path.write_bytes(torn)
    assert read_journal(path) == receipts[:2] + receipts[5:]


def test_simultaneous_receipts_are_flushed_together(unfinished):
    path = journal_of(unfinished)
    receipts = read_journal(path)
    alone = unfinished / "alone.journal"
    with Journal(alone) as journal, mock.patch("os.fsync") as flushed:
        journal.append(*receipts)
    assert flushed.call_count == 1
    assert alone.read_bytes() == path.read_bytes()


def test_a_full_disk_is_reported_with_the_path_of_the_journal(unfinished):
    with (
        Journal(Path("/dev/full")) as journal,
        pytest.raises(OSError, match="No space left on device: '/dev/full'"),
    ):
        journal.append(*read_manifest(unfinished).blocks)


def test_a_flipped_bit_is_reported_in_one_line_with_its_place(unfinished):
    path = journal_of(unfinished)
    whole = path.read_bytes()
    receipts = read_journal(path)
    last = whole.rindex(b"\n", 0, -1) + 1
    for place in [*range(0, last, 97), *range(last, len(whole), 7), len(whole) - 1]:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << (place % 8)
        path.write_bytes(flipped)
        torn = place == len(whole) - 1 or (place >= last and 0 in flipped)
        if torn:  # looks like a truncated line
            assert read_journal(path) == receipts[:-1]
        else:
            line = whole.count(b"\n", 0, place) + 1
            assert f"{path}:{line}: damaged (its checksum differs)" in refused(unfinished)


def test_a_damaged_line_can_be_deleted_and_its_block_is_solved_again(unfinished, reference):
    path = journal_of(unfinished)
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = [*lines[:2], lines[2].replace(b'"nnz": ', b'"nnz": 1'), *lines[3:]]
    path.write_bytes(b"".join(damaged))
    with pytest.raises(
        ModelError, match=r"journal:3: damaged .* delete this line, and its block is solved"
    ):
        train(*random_problem(), unfinished, PARAMS)
    assert path.read_bytes() == b"".join(damaged)  # nothing was changed
    path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    done = []
    train(*random_problem(), unfinished, PARAMS, progress=lambda n, _: done.append(n))
    assert done[0] == 35
    assert weight_files(unfinished) == reference


def test_a_writer_killed_within_a_line_loses_that_block_only(tmp_path, reference):
    save_data(Dataset(*random_problem(), None), tmp_path / "data.xmc")
    script = """
import os, signal, sys
from dismec import TrainingParams, load_data, train
from dismec.model import manifest as journal

class Killed(journal.Journal):
    lines = 0

    def append(self, receipt):
        if self.lines < 5:
            self.lines += 1
            return super().append(receipt)
        self._file.write(b"0123456789abcdef " + journal._receipt_text(receipt).encode()[:200])
        os.kill(os.getpid(), signal.SIGKILL)

import dismec.training.execute as execute
execute.Journal = Killed
X, Y, _ = load_data(sys.argv[1])
train(X, Y, sys.argv[2], TrainingParams(block_size=5), threads=1)
"""
    path = tmp_path / "model"
    command = [sys.executable, "-c", script, str(tmp_path / "data.xmc"), str(path)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not journal_of(path).read_bytes().endswith(b"\n")
    assert len(read_manifest(path).blocks) == 5
    done = []
    train(*random_problem(), path, PARAMS, progress=lambda n, _: done.append(n))
    assert done[0] == 25
    assert weight_files(path) == reference


@pytest.mark.parametrize("moment", ["commit", "tidy"])
def test_a_run_killed_while_resuming_loses_nothing(unfinished, reference, moment):
    with (
        mock.patch(f"dismec.training.resume.{moment}", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        train(*random_problem(), unfinished, PARAMS)
    assert len(list(unfinished.glob("*.journal"))) == 2  # one of them is not named by the manifest
    assert len(read_manifest(unfinished).blocks) == 8
    done = []
    train(*random_problem(), unfinished, PARAMS, progress=lambda n, _: done.append(n))
    assert done == [40]
    assert weight_files(unfinished) == reference


def test_a_run_from_before_journals_resumes(unfinished, reference):
    whole = read_manifest(unfinished)
    commit(unfinished, whole.with_blocks(whole.blocks[:3]))
    journal_of(unfinished).unlink()
    assert "journal" not in json.loads((unfinished / "manifest.json").read_text())
    done = []
    train(*random_problem(), unfinished, PARAMS, progress=lambda n, _: done.append(n))
    assert done[0] == 15
    assert weight_files(unfinished) == reference


def test_a_journal_not_named_by_the_manifest_is_ignored_and_removed(unfinished, reference):
    whole = read_manifest(unfinished)
    commit(unfinished, whole.with_blocks(whole.blocks[:3]))
    assert len(read_manifest(unfinished).blocks) == 3
    train(*random_problem(), unfinished, PARAMS)
    assert not list(unfinished.glob("*.journal"))
    assert weight_files(unfinished) == reference


def test_a_missing_journal_is_reported_in_one_line(unfinished):
    path = journal_of(unfinished)
    path.unlink()
    assert refused(unfinished) == f"{path}: missing, though the manifest names it"


def test_a_reader_is_not_disturbed_by_the_end_of_the_run(unfinished):
    """Its journal is removed while it reads, and there is a new manifest."""
    manifest = read_manifest(unfinished)
    counts = read_parts(unfinished, manifest).labels.counts

    def gone(path):
        execute.weight_files.finish(unfinished, manifest, "float16", counts)
        return read_journal(path)

    with mock.patch.object(directory, "read_journal", side_effect=gone):
        assert read_manifest(unfinished).complete
    assert open_model(unfinished).n_labels == 40


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"number": 1}, "order of their numbers"),
        ({"number": 8}, "blocks hold 45 labels, the model has 40"),
        ({"number": 8, "n_labels": 0, "nnz": 1}, "cannot hold 1 weights"),
        ({"number": 8, "file": "../secret"}, "not a valid name for a model file"),
        ({"number": "8"}, "not of type int"),
    ],
)
def test_receipts_that_contradict_the_manifest_are_refused(unfinished, change, reason):
    path = journal_of(unfinished)
    with Journal(path) as journal:
        journal.append(replace(read_journal(path)[0], **change))
    message = refused(unfinished)
    assert message.startswith(str(path))
    assert reason in message


@pytest.mark.parametrize("name", [7, "../elsewhere"])
def test_a_manifest_that_names_no_file_for_its_journal_is_refused(unfinished, name):
    content = json.loads((unfinished / "manifest.json").read_text()) | {"journal": name}
    del content["checksum"]
    (unfinished / "manifest.json").write_text(json.dumps(content))
    assert "manifest.json" in refused(unfinished)


def test_a_journal_is_made_before_it_is_named_and_overwriting_removes_it(unfinished, reference):
    before = journal_of(unfinished)
    make_journal(unfinished)
    assert len(read_manifest(unfinished).blocks) == 8
    train(*random_problem(), unfinished, PARAMS, overwrite=True)
    assert not before.exists()
    assert weight_files(unfinished) == reference


def test_all_blocks_are_in_the_manifest_before_they_are_packed(tmp_path):
    train_unfinished(*random_problem(), tmp_path / "model", PARAMS)
    content = json.loads((tmp_path / "model" / "manifest.json").read_text())
    assert [block["number"] for block in content["blocks"]] == list(range(8))
    assert "journal" not in content


def test_the_description_of_a_model_in_memory_has_no_journal():
    assert "journal" not in json.loads(fit(*random_problem(), PARAMS).manifest.to_json())
