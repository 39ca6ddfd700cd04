"""Writing predictions: every format keeps every name, score and id, row by row."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pty
import re
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import random_problem
from dismec import Dataset, Model, load_data, open_model, save_data
from dismec.cli import main
from dismec.cli.options import Reading
from dismec.cli.output import ENDINGS, FORMATS, format_of
from dismec.data.predictions import Columns, prediction_file, prediction_writer
from dismec.data.printable import spell_name
from dismec.data.synthetic import generate_text, write_text
from dismec.errors import DataError, DismecError
from dismec.model.rankings import ranked

# As in docs/reference/predictions.md.
PAIR = re.compile(r'("(?:[^"\\]|\\.)*"|[^\s:"\\]+):(\S+)')

NAMES = ["plain", "emoji 😀", "a:b", '"quoted"', "back\\slash", "2024", "tab\tand\nbreak", "x,y"]
NAMES += ["next\x85line", "line\u2028separator", "esc\x1b[31m", "⁷", "é", "[]", "{'a': 1}", "=1+1"]
LINES = ("text", "csv", "tsv", "jsonl", "json", "xmc")


def predictions(n_rows=50, places=4):
    rng = np.random.default_rng(0)
    top = np.array([rng.permutation(len(NAMES))[:places] for _ in range(n_rows)], np.int32)
    scores = -np.sort(-rng.normal(size=(n_rows, places)).astype(np.float32), axis=1)
    top[3:5, 1:], scores[3:5, 1:] = -1, -np.inf
    top[7], scores[7] = -1, -np.inf
    return top, scores


def written(form, top, scores, names=NAMES, ids=None, batch=1000, values="scores"):
    out = io.BytesIO()
    with prediction_writer(out, form, Columns(len(NAMES), names, values)) as writer:
        for begin in range(0, max(len(top), 1), batch):
            part = slice(begin, begin + batch)
            writer.write(top[part], scores[part], None if ids is None else ids[part])
    return out.getvalue()


def read_back(form, content, values="scores"):
    """Return rows (id or None, labels, scores) as a reader of the format sees them."""
    if form == "parquet":
        from pyarrow import parquet

        rows = parquet.read_table(io.BytesIO(content)).to_pylist()
        return [(row.get("id"), row["labels"], row[values]) for row in rows]
    text = content.decode()
    if form in ("csv", "tsv"):
        delimiter = "," if form == "csv" else "\t"
        rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        return [(r.get("id"), json.loads(r["labels"]), json.loads(r[values])) for r in rows]
    if form in ("json", "jsonl"):
        rows = json.loads(text) if form == "json" else map(json.loads, text.splitlines())
        return [(row.get("id"), row["labels"], row[values]) for row in rows]
    found = []
    for line in text.splitlines()[form == "xmc" :]:
        name, tab, pairs = line.partition("\t")
        given = (json.loads(name) if name.startswith('"') else name) if tab else None
        pairs = PAIR.findall(pairs if tab else line)
        labels = [json.loads(n) if n[0] == '"' or n.isdecimal() else n for n, _ in pairs]
        found.append((given, labels, [float(score) for _, score in pairs]))
    return found


def rows_of(top, scores, names=NAMES, ids=None):
    kept = [[place for place, label in enumerate(row) if label >= 0] for row in top.tolist()]
    return [
        (
            None if ids is None else ids[i],
            [int(top[i, p]) if names is None else names[top[i, p]] for p in kept[i]],
            [scores[i, p] for p in kept[i]],
        )
        for i in range(len(top))
    ]


def same_rows(found, expected):
    assert [(i, labels) for i, labels, _ in found] == [(i, labels) for i, labels, _ in expected]
    for (*_, had), (*_, wanted) in zip(found, expected, strict=True):
        assert np.array(had, np.float32).tobytes() == np.array(wanted, np.float32).tobytes()


# Forms


@pytest.mark.parametrize("form", [f for f in FORMATS if f not in ("npz", "xmc")])
@pytest.mark.parametrize("names", [NAMES, None], ids=["names", "numbers"])
@pytest.mark.parametrize("with_ids", [False, True], ids=["", "ids"])
def test_names_ids_and_scores_round_trip(form, names, with_ids):
    top, scores = predictions()
    ids = [f"{NAMES[i % len(NAMES)]} {i}\r" if i % 3 else str(i) for i in range(len(top))]
    ids[0] = ""
    ids = ids if with_ids else None
    content = written(form, top, scores, names, ids, values="probabilities")
    same_rows(read_back(form, content, "probabilities"), rows_of(top, scores, names, ids))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4))
def test_any_name_round_trips_through_text_and_csv(names):
    names = [*names, *NAMES][: len(NAMES)]
    top = np.arange(len(names), dtype=np.int32).reshape(4, -1)
    scores = np.zeros(top.shape, np.float32)
    for form in ("text", "csv", "tsv", "jsonl"):
        content = written(form, top, scores, names)
        assert len(content.decode().splitlines()) == 4 + (form in ("csv", "tsv"))
        same_rows(read_back(form, content), rows_of(top, scores, names))


def test_a_name_is_quoted_only_where_it_must_be():
    assert spell_name("étude") == "étude"
    assert spell_name("👨‍👩‍👧") == "👨‍👩‍👧"
    assert spell_name("emoji 😀") == '"emoji 😀"'
    assert spell_name("étude", "ascii") == '"\\u00e9tude"'
    assert spell_name("a\x9bb") == '"a\\u009bb"'


def test_the_documentation_has_all_formats_and_how_text_is_parsed():
    root = Path(__file__).resolve().parents[1]
    page = (root / "docs" / "reference" / "predictions.md").read_text()
    assert f"re.compile(r'{PAIR.pattern}')" in page
    for name in (*FORMATS, *ENDINGS):
        assert f"`{name}`" in page


@pytest.mark.parametrize("form", FORMATS)
def test_batches_do_not_show_in_the_output(form):
    top, scores = predictions()
    ids = None if form == "xmc" else [f"row {i}" for i in range(len(top))]
    whole, cut = (written(form, top, scores, ids=ids, batch=batch) for batch in (1000, 7))
    if form == "parquet":
        assert read_back(form, whole) == read_back(form, cut)
    else:
        assert whole == cut


def test_xmc_text_counts_its_rows_and_has_labels_by_number():
    top, scores = predictions()
    content = written("xmc", top, scores, batch=7)
    assert content.decode().splitlines()[0] == f"50 {len(NAMES)}"
    same_rows(read_back("xmc", content), rows_of(top, scores, None))
    with pytest.raises(DataError, match="cannot hold ids: choose another format"):
        written("xmc", top, scores, ids=["a"] * 50)


def test_arrays_hold_all_places_and_ids():
    top, scores = predictions()
    out = io.BytesIO()
    with prediction_writer(out, "npz", Columns(len(NAMES))) as writer:
        writer.write(top, scores, ["é"] * 50)
        writer.write(top[:, :2], scores[:, :2], ["b"] * 50)
    out.seek(0)
    with np.load(out) as arrays:
        assert arrays["labels"].shape == (100, 4)
        assert (arrays["labels"][50:, 2:] == -1).all()
        np.testing.assert_array_equal(arrays["scores"][:50], scores)
        assert arrays["ids"].tolist() == ["é"] * 50 + ["b"] * 50


@pytest.mark.parametrize("form", FORMATS)
def test_predictions_of_no_rows_can_be_read(form):
    content = written(form, np.empty((0, 3), np.int32), np.empty((0, 3), np.float32))
    if form == "npz":
        with np.load(io.BytesIO(content)) as arrays:
            assert arrays["labels"].shape == (0, 3)
    else:
        assert read_back(form, content) == []


def test_scores_that_are_not_finite_are_still_json():
    top = np.array([[0, 1, 2]], np.int32)
    scores = np.array([[np.inf, np.nan, -np.inf]], np.float32)

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    row = json.loads(written("jsonl", top, scores), parse_constant=refuse)
    assert row["scores"] == [np.inf, None, -np.inf]
    assert written("text", top, scores, None) == b"0:inf 1:nan 2:-inf\n"


def test_parquet_has_types_and_a_row_group_per_batch():
    from pyarrow import parquet

    top, scores = predictions()
    file = parquet.ParquetFile(io.BytesIO(written("parquet", top, scores, None, batch=25)))
    assert file.num_row_groups == 2
    types = [str(kind) for kind in file.schema_arrow.types]
    assert types == ["list<element: int32>", "list<element: float>"]


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "dismec.data.arrow", raising=False)
    with pytest.raises(DismecError, match=r"pip install 'dismec\[arrow\]'"):
        written("parquet", *predictions())


def test_endings_determine_formats():
    assert format_of(Path("a.JSONL.gz")) == "jsonl"
    assert {format_of(Path(f"a.b{ending}")) for ending in ENDINGS} == set(FORMATS) - {"xmc"}
    for name in ("a", "a.gz", "a.xmc", "csv", "a.npz.gz", "a.parquet.gz", "a.csv.zip"):
        assert format_of(Path(name)) is None


# Files


@pytest.mark.parametrize("form", FORMATS)
def test_a_write_that_fails_half_way_leaves_the_old_file(form, tmp_path):
    path = tmp_path / "out"
    path.write_text("before")

    def fail():
        with prediction_file(path, form, Columns(len(NAMES), NAMES)) as writer:
            writer.write(*predictions())
            raise DataError("here")

    with pytest.raises(DataError, match="here"):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert path.read_text() == "before"


@pytest.mark.parametrize("form", LINES)
def test_text_formats_are_gzipped_by_their_ending(form, tmp_path):
    top, scores = predictions()
    with prediction_file(tmp_path / "a.gz", form, Columns(len(NAMES), NAMES)) as writer:
        writer.write(top, scores)
    packed = (tmp_path / "a.gz").read_bytes()
    assert gzip.decompress(packed) == written(form, top, scores)
    with (
        pytest.raises(DataError, match=r"leave out \.gz"),
        prediction_file(tmp_path / "b.gz", "npz", Columns(1)),
    ):
        pass


# The command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two models, of rows and of texts, and data for them."""
    folder = tmp_path_factory.mktemp("predict")
    X, Y = random_problem()
    names = [NAMES[i] if i < len(NAMES) else f"tag {i}" for i in range(Y.shape[1])]
    save_data(Dataset(X, Y, names), folder / "data.xmc")
    ok("train", folder / "data.xmc", "-o", folder / "rows", "--quiet")
    write_text(folder, *generate_text(rows=300, labels=20, features=800, test_rows=40))
    ok("train", folder / "train.jsonl", "-o", folder / "texts", "--quiet")
    return folder


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments], prog_name="dismec")


def ok(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes


def refused(*arguments):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return result.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("ending", sorted(set(ENDINGS) - {".npz"}))
def test_the_command_writes_the_format_of_the_ending(folder, tmp_path, ending):
    model = open_model(folder / "rows")
    top, scores = model.predict_topk(load_data(folder / "data.xmc").X, 3)
    path = tmp_path / f"out{ending}"
    assert ok("predict", folder / "rows", folder / "data.xmc", "-k", 3, "-o", path) == b""
    form = ENDINGS[ending]
    same_rows(read_back(form, path.read_bytes()), rows_of(top, scores, model.names))
    printed = ok("predict", folder / "rows", folder / "data.xmc", "-k", 3, "--format", form)
    assert read_back(form, printed) == read_back(form, path.read_bytes())
    named = ok(
        "predict", folder / "rows", folder / "data.xmc", "-k", 3, "-o", "-", "--format", form
    )
    assert named == printed


def test_the_command_prints_json_and_xmc_text(folder, tmp_path):
    command = ("predict", folder / "rows", folder / "data.xmc")
    rows = json.loads(ok(*command, "--json"))
    assert len(rows) == 300
    assert ok(*command, "--format", "json") == ok(*command, "--json")
    path = tmp_path / "scores.txt"
    ok(*command, "--format", "xmc", "-o", path)
    assert path.read_text().splitlines()[0] == "300 40"
    assert ok(*command, "--format", "xmc") == path.read_bytes()


def test_machine_readable_formats_are_utf8_whatever_the_terminal(folder):
    command = [sys.executable, "-m", "dismec", "predict", "rows", "data.xmc", "-k", "40"]
    for form in ("text", "jsonl"):
        found = subprocess.run(
            ["env", "PYTHONIOENCODING=ascii", *command, "--format", form],
            cwd=folder,
            capture_output=True,
            check=True,
        )
        names = {label for _, labels, _ in read_back(form, found.stdout) for label in labels}
        assert set(NAMES) <= names


def test_texts_are_predicted_from_the_command_line(folder):
    texts = [
        json.loads(line)["text"] for line in (folder / "test.jsonl").read_text().splitlines()[:3]
    ]
    options = [part for text in texts for part in ("--text", text)]
    lines = ok("predict", folder / "texts", *options, "-k", 2).splitlines()
    everything = ok("predict", folder / "texts", folder / "test.jsonl", "-k", 2).splitlines()
    assert lines == everything[:3]
    assert json.loads(ok("predict", folder / "texts", "--text", "", "--json"))[0]["labels"]
    assert "text 2 is not UTF-8" in refused(
        "predict", folder / "texts", "--text", "a", "--text", "\udcff"
    )


def test_rows_without_a_label_keep_their_line(folder):
    command = ("predict", folder / "rows", folder / "data.xmc", "--threshold", 1.2)
    model = open_model(folder / "rows")
    X = load_data(folder / "data.xmc").X
    expected = rows_of(*ranked(model.assign(X, 1.2, probabilities=False)), model.names)
    empty = sum(not labels for _, labels, _ in expected)
    assert 0 < empty < len(expected)
    for form in ("text", "csv", "json", "jsonl", "parquet"):
        same_rows(read_back(form, ok(*command, "--format", form)), expected)


def test_an_output_that_exists_is_overwritten_only_on_request(folder, tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("mine")
    command = ("predict", folder / "texts", folder / "test.jsonl", "-o", path)
    assert "exists" in refused(*command)
    assert path.read_text() == "mine"
    # Refused before anything is read: neither the model nor the data exist.
    assert "exists" in refused("predict", tmp_path / "no", tmp_path / "nothing", "-o", path)
    ok(*command, "--overwrite")
    assert path.read_text().startswith("labels,scores\n")
    (tmp_path / "link.csv").symlink_to(path)
    assert "exists" in refused(*command[:-1], tmp_path / "link.csv")
    ok(*command[:-1], "/dev/null")
    ok(*command[:-1], "/dev/null", "--format", "csv")


def test_no_file_that_is_read_is_ever_overwritten(folder, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_bytes((folder / "test.jsonl").read_bytes())
    names = tmp_path / "names.txt"
    names.write_text("\n".join(map(str, range(40))))
    for command in (
        ("predict", folder / "texts", data, "-o", data),
        ("predict", folder / "rows", folder / "data.xmc", "--label-names", names, "-o", names),
    ):
        before = command[-1].read_bytes()
        assert "read by this command" in refused(*command, "--overwrite")
        assert command[-1].read_bytes() == before


def test_standard_input_is_not_compared_with_the_output(folder, tmp_path):
    (tmp_path / "out.csv").touch()
    assert "exists" in refused("predict", folder / "texts", "-", "-o", tmp_path / "out.csv")


def test_row_ids_are_copied_to_the_output(folder, monkeypatch):
    ids = [f"row {i}" for i in range(300)]
    batches = Reading.batches

    def with_ids(*arguments):
        for batch in batches(*arguments):
            yield batch._replace(ids=ids)

    monkeypatch.setattr(Reading, "batches", with_ids)
    monkeypatch.setattr("dismec.cli.prediction._ROWS_AT_ONCE", 7)
    for form in ("text", "csv", "jsonl", "json", "parquet"):
        rows = read_back(
            form, ok("predict", folder / "rows", folder / "data.xmc", "--format", form)
        )
        assert [row[0] for row in rows] == ids


def test_binary_formats_are_not_printed_to_a_terminal(folder):
    ours, theirs = pty.openpty()
    for form in ("parquet", "npz"):
        command = [sys.executable, "-m", "dismec", "predict", "no", "no", "--format", form]
        out = subprocess.run(command, cwd=folder, stdout=theirs, stderr=subprocess.PIPE, text=True)
        assert f"{form} cannot be printed to a terminal: choose a file with -o" in out.stderr
    os.close(theirs)
    os.close(ours)


def test_results_do_not_depend_on_how_rows_are_cut(folder, monkeypatch):
    command = ("predict", folder / "rows", folder / "data.xmc", "--format", "jsonl")
    whole = [ok(*command, *more) for more in ((), ("--threshold", 0))]
    monkeypatch.setattr("dismec.cli.prediction._ROWS_AT_ONCE", 7)
    assert [ok(*command, *more) for more in ((), ("--threshold", 0))] == whole


def test_predictions_are_released_once_they_are_written(folder, tmp_path, monkeypatch):
    """The memory itself is measured by benchmarks/predict_memory.py."""
    made, most = [], 0
    predict_topk = Model.predict_topk

    def watched(*arguments, **options):
        nonlocal most
        found = predict_topk(*arguments, **options)
        made.extend(weakref.ref(array) for array in found)
        most = max(most, sum(array() is not None for array in made))
        return found

    monkeypatch.setattr(Model, "predict_topk", watched)
    monkeypatch.setattr("dismec.cli.prediction._ROWS_AT_ONCE", 7)
    command = ("predict", folder / "rows", folder / "data.xmc", "-o")
    for form in FORMATS:
        made, most = [], 0
        ok(*command, tmp_path / form, "--format", form)
        assert len(made) == 2 * 43
        assert most == (len(made) if form == "npz" else 2), form


def test_ids_that_a_spreadsheet_would_execute_are_escaped_on_request(folder, tmp_path):
    ids = ['=HYPERLINK("http://x")', "+1", "-1", "@x", "plain", "a=1", ""]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"id": i, "text": "a"}) + "\n" for i in ids))
    command = ("predict", folder / "texts", file, "--id-column", "id", "--format", "csv")
    found = [row["id"] for row in csv.DictReader(io.StringIO(ok(*command).decode()))]
    assert found == ids
    found = [
        row["id"] for row in csv.DictReader(io.StringIO(ok(*command, "--escape-formulas").decode()))
    ]
    assert found == [f"'{i}" for i in ids[:4]] + ids[4:]
