"""Users' own files and frames are read as they are meant, or refused."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from dismec import open_model, train_text
from dismec.cli import main
from dismec.data import text_readers
from dismec.data.corpus import is_frame, read_frame, read_texts
from dismec.data.formats import detect
from dismec.data.text_format import LabelCells, RefusedError, TextFormat
from dismec.errors import DataError
from dismec.features.text_rows import text_dataset

DEFAULT = TextFormat()
ROWS = [("Wheat rose.", ["grain", "wheat, winter"]), ("Ça coûte 3 €", []), ("So", ["a|b", "c"])]


def all_rows(source, fmt=DEFAULT, **options):
    read = read_frame if is_frame(source) else read_texts
    return [
        (text, names)
        for batch in read(source, fmt, **options)
        for text, names in zip(batch.texts, batch.labels, strict=True)
    ]


def refused(source, *reasons, fmt=DEFAULT, **options):
    with pytest.raises(DataError) as caught:
        all_rows(source, fmt, **options)
    for reason in reasons:
        assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


# Cells


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("a, b", ["a", "b"]),
        ("['a', 'b']", ["a", "b"]),
        ('["a", "b, c"]', ["a", "b, c"]),
        ("['a' 'b']", ["a", "b"]),  # as numpy prints it, which Python would read as one text
        ("['a'\n 'b']", ["a", "b"]),
        ("[\"it's\", 'b']", ["it's", "b"]),
        ("('a',)", ["a"]),
        ("{'a', 'b'}", ["a", "b"]),
        ("['a', 'a ']", ["a"]),
        ("[1, 2]", ["1", "2"]),
        ("[1 2]", ["1", "2"]),
        ("[]", []),
        ("()", ["()"]),
        ("set()", []),
        ("[x]", ["[x]"]),
        ("(formerly) known", ["(formerly) known"]),
        ("", []),
        (None, []),
        (float("nan"), []),
        (pd.NA, []),
        (7, ["7"]),
        (np.array(["a", "b"]), ["a", "b"]),
        ({"b", "a"}, ["a", "b"]),
        (("a", 3), ["a", "3"]),
    ],
)
def test_a_cell_gives_the_intended_names(cell, names):
    assert LabelCells().names(cell) == names


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("[a, b]", "look like a list"),
        ("['a', nan]", "look like a list"),
        ("['a', None]", "look like a list"),
        ("['a', ['b']]", "look like a list"),
        ('["a", ["b"]]', "a label must be text, not a list"),
        ("['a', '']", "an empty name"),
        ("['a", "look like a list" if False else None),
        (True, "expected names"),
        ({"a": 1}, "expected names"),
        (["a", None], "a label must be text, not None"),
        (1.5, "expected names"),
    ],
)
def test_a_cell_that_holds_neither_names_nor_a_list_is_refused(cell, reason):
    if reason is None:
        assert LabelCells().names(cell) == ["['a"]  # not a list: it does not end like one
        return
    with pytest.raises(RefusedError, match=reason):
        LabelCells().names(cell)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1))
def test_a_list_of_any_names_round_trips_through_a_cell_in_python_or_json_form(names):
    expected = list(dict.fromkeys(name.strip() for name in names))
    assert LabelCells().names(json.dumps(names)) == expected or "\\ud" in json.dumps(names)
    assert LabelCells().names(repr(names)) == expected or "\\ud" in repr(names)


@settings(max_examples=300, deadline=None)
@given(st.text("[](){}'\\\",ab 1|", max_size=12))
def test_any_cell_gives_names_or_is_refused(cell):
    try:
        names = LabelCells().names(cell)
    except RefusedError:
        return
    assert all(name == name.strip() and name for name in names)


# Separators


@pytest.mark.parametrize("separator", ["|", ";", "; ", " "])
@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_a_forgotten_separator_is_requested(tmp_path, separator, ending):
    rng = np.random.default_rng(0)
    cells = [separator.join(f"tag{i}" for i in rng.choice(20, 3)) for _ in range(100)]
    frame = pd.DataFrame({"text": ["x"] * 100, "labels": cells})
    path = tmp_path / f"data.{ending}"
    if ending == "parquet":
        frame.to_parquet(path)
    elif ending == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, index=False, sep="\t" if ending == "tsv" else ",")
    wanted = separator.strip() or " "
    refused(path, f"label_separator={wanted!r}")
    given = all_rows(path, TextFormat(label_separator=wanted))
    assert len({name for _, names in given for name in names}) == 20
    kept = TextFormat(label_separator="\n" if ending == "jsonl" else ",")
    assert [names for _, names in all_rows(path, kept)] == [[cell] for cell in cells]
    assert all_rows(path, needs_labels=False)  # nothing depends on labels here


def test_names_of_several_words_are_not_taken_for_several_labels(tmp_path):
    words = "red green blue deep shallow new old big small warm cold soft hard".split()  # noqa: SIM905
    rng = np.random.default_rng(0)
    cells = [", ".join(" ".join(rng.choice(words, 2)) for _ in range(2)) for _ in range(300)]
    path = tmp_path / "a.csv"
    pd.DataFrame({"text": cells, "labels": cells}).to_csv(path, index=False)
    assert len(all_rows(path)) == 300
    path.write_text("text,labels\n" + "x,New York\n" * 50 + "x,San Francisco\n" * 50)
    assert len(all_rows(path)) == 100


def test_a_forgotten_separator_is_noticed_even_if_a_name_has_a_comma(tmp_path):
    rng = np.random.default_rng(0)
    names = ["C++: lang", "Ünï", "42", "a, b", "R&D; misc", "x", "y"]
    cells = ["|".join(rng.choice(names, rng.integers(1, 4), replace=False)) for _ in range(120)]
    path = tmp_path / "a.csv"
    pd.DataFrame({"text": cells, "labels": cells}).to_csv(path, index=False)
    refused(path, "label_separator='|'")


def test_names_with_bars_in_a_column_with_commas_are_fine(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"{a}|{b}" for a in "abcdef" for b in "uvwxyz"]
    cells = [", ".join(rng.choice(names, 3, replace=False)) for _ in range(300)]
    path = tmp_path / "a.csv"
    pd.DataFrame({"text": cells, "labels": cells}).to_csv(path, index=False)
    assert len({name for _, labels in all_rows(path) for name in labels}) == len(names)


# Kinds of files


def test_a_table_without_an_ending_is_detected_by_its_header(tmp_path):
    path = tmp_path / "table"
    for delimiter in ",;\t":
        path.write_text(f"id{delimiter}text{delimiter}labels\n1{delimiter}a b{delimiter}x\n")
        assert all_rows(path) == [("a b", ["x"])]


def test_semicolons_tabs_and_bars_between_columns_are_detected_and_reported(tmp_path):
    for delimiter, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars")):
        path = tmp_path / "a.csv"
        path.write_text(f'id{delimiter}text{delimiter}labels\n1{delimiter}"a; b"{delimiter}x, y\n')
        with detect(path) as data:
            assert data.found == f"columns are separated by {name}"
        assert all_rows(path) == [("a; b", ["x", "y"])]
    path.write_text("id,text,labels\n1,a;b;c;d,x\n")
    with detect(path) as data:
        assert data.found is None


@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_array_is_read_like_lines(tmp_path, indent):
    rows = [{"text": text, "labels": names, "n": 1.5} for text, names in ROWS]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rows, indent=indent))
    assert all_rows(path) == ROWS
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert all_rows(path) == ROWS


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_a_json_array_may_be_larger_than_one_read(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(text_readers, "_CHUNK", chunk)
    rows = [(f"text {i} ] , [ " * 20, [f"l{i}"]) for i in range(50)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": t, "labels": n} for t, n in rows], indent=2))
    assert all_rows(path) == rows


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ('[\n{"text": "a", "labels": []},\n{"text": null, "labels": []}]', 3, "not text"),
        ('[\n{"text": "a", "labels": []}', 2, "is the file cut off?"),
        ('[\n{"text": "a", "labels": []},\n{"text": "b', 3, "not a JSON object"),
        ('[{"text": "a", "labels": []} {"text"', 1, "expected ',' or ']'"),
        ('[{"text": "a", "labels": []}] x', 1, "text after the end"),
        ("[1]", 1, "not '1'"),
        ("[]", None, "no rows"),
        ("[", 1, "not a JSON object"),
    ],
)
def test_a_damaged_json_array_is_refused_with_its_line(tmp_path, content, line, reason):
    path = tmp_path / "a.json"
    path.write_text(content)
    refused(path, f"{path}:{line}: " if line else f"{path}: ", reason)


def test_plain_text_has_a_text_per_line_and_no_labels(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("Wheat rose.\n\nÇa coûte 3 €\n")
    rows = [("Wheat rose.", []), ("", []), ("Ça coûte 3 €", [])]
    assert all_rows(path, needs_labels=False) == rows
    refused(path, "plain text without labels")


@pytest.mark.parametrize("kind", ["parquet", "feather", "stream"])
def test_parquet_and_arrow_files_are_read(tmp_path, kind):
    table = pa.table(
        {
            "id": [10, 20, 30],
            "text": [text for text, _ in ROWS],
            "labels": [names or None for _, names in ROWS],
        }
    )
    path = tmp_path / ("a.parquet" if kind == "parquet" else "a.arrow")
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=2)
    elif kind == "feather":
        pa.feather.write_feather(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as file:
            file.write_table(table, max_chunksize=1)
    assert all_rows(path) == ROWS
    (batch,) = read_texts(path, TextFormat(id_column="id"))
    assert batch.ids == ["10", "20", "30"]
    refused(path, "no column 'body' (text_column); the columns are 'id'", fmt=TextFormat("body"))
    cut = path.read_bytes()[:-20]
    path.write_bytes(cut)
    refused(path, str(path), f"cannot be read as {'Parquet' if kind == 'parquet' else 'Arrow'}")


def test_a_null_text_in_a_table_is_refused_with_its_row(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", None], "labels": [["x"], ["y"]]}), path)
    refused(path, "row 2: 'text' is None")


def test_zstandard_is_decompressed_and_damage_is_reported(tmp_path):
    lines = "".join(
        json.dumps({"text": f"{i} {t}", "labels": n}) + "\n" for i in range(999) for t, n in ROWS
    )
    path = tmp_path / "a.jsonl.zst"
    with pa.output_stream(path, compression="zstd") as file:
        file.write(lines.encode())
    assert len(all_rows(path)) == 3 * 999
    path.write_bytes(path.read_bytes()[:-50])
    refused(path, "Zstandard data is damaged or cut off")


def test_formats_that_need_pyarrow_report_it(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    (tmp_path / "a.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    script = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from dismec.data.corpus import read_texts\n"
        "list(read_texts(sys.argv[1]))"
    )
    for name in ("a.parquet", "a.jsonl.zst"):
        done = subprocess.run(
            [sys.executable, "-c", script, tmp_path / name], capture_output=True, text=True
        )
        assert "pip install 'dismec[arrow]'" in done.stderr.splitlines()[-1]


def test_a_key_that_occurs_twice_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "labels": ["b"], "labels": ["c"]}\n')
    refused(path, ":1: the key 'labels' occurs 2 times")


def test_white_space_around_a_name_is_stripped_everywhere(tmp_path):
    rows = {
        "a.jsonl": json.dumps({"text": "x", "labels": [" emoji 😀 ", "emoji 😀"]}),
        "a.json": json.dumps([{"text": "x", "labels": [" emoji 😀 "]}]),
        "a.csv": 'text,labels\nx," emoji 😀 "',
        "b.csv": "text,labels\nx,[' emoji 😀 ']",
    }
    for name, content in rows.items():
        (tmp_path / name).write_text(content)
        assert all_rows(tmp_path / name) == [("x", ["emoji 😀"])]


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv"])
def test_ids_are_read_with_the_rows(tmp_path, ending):
    frame = pd.DataFrame({"id": ["7", "x y"], "text": ["a", "b"], "labels": ["l", "m"]})
    path = tmp_path / f"a.{ending}"
    if ending == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=ending == "jsonl")
    (batch,) = read_texts(path, TextFormat(id_column="id"))
    assert batch.ids == ["7", "x y"]
    (batch,) = read_texts(path)
    assert batch.ids is None
    refused(path, "'key' (id_column)", fmt=TextFormat(id_column="key"))


# Pipes


def test_a_pipe_that_is_read_twice_is_copied(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    content = b'{"text": "a", "labels": ["b"]}\n' * 100_000
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    with detect(pipe) as data:
        data.read_twice()
        for _ in range(2):
            assert sum(len(batch.texts) for batch in read_texts(data)) == 100_000
    writer.join()


# Frames


def frames():
    texts, labels = [t for t, _ in ROWS], [n for _, n in ROWS]
    yield pd.DataFrame({"id": [1, 2, 3], "text": texts, "labels": labels})
    yield pl.DataFrame({"id": [1, 2, 3], "text": texts, "labels": labels})
    yield pa.table({"id": [1, 2, 3], "text": texts, "labels": labels})


@pytest.mark.parametrize("frame", list(frames()), ids=lambda frame: type(frame).__module__)
def test_frames_are_read_like_files(frame):
    assert all_rows(frame) == ROWS
    (batch,) = read_frame(frame, TextFormat(id_column="id"))
    assert batch.ids == ["1", "2", "3"]
    refused(frame, "no column 'body' (text_column)", fmt=TextFormat("body"))


def test_a_frame_with_sets_nan_and_single_names_is_read():
    frame = pd.DataFrame({"body": ["a", "b", "c"], "tags": [{"x", "y"}, np.nan, "z"]})
    fmt = TextFormat("body", "tags")
    assert all_rows(frame, fmt) == [("a", ["x", "y"]), ("b", []), ("c", ["z"])]
    frame.loc[1, "body"] = None
    refused(frame, "row index 1: 'body' is", fmt=fmt)


# Commands


def command(*args, stdin=None, code=0):
    if stdin is None:
        done = CliRunner().invoke(main, [str(arg) for arg in args], prog_name="dismec")
        assert done.exit_code == code, done.stderr
        return done
    done = subprocess.run(
        [sys.executable, "-m", "dismec", *map(str, args)],
        input=stdin,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A CSV file whose columns and separator are not the defaults."""
    rng = np.random.default_rng(0)
    words = {"grain": "wheat rye barley", "metal": "iron zinc copper", "oil & gas": "crude pipe"}
    rows = []
    for i in range(120):
        names = list(rng.choice(list(words), rng.integers(1, 3), replace=False))
        text = " ".join(rng.choice(words[name].split()) for name in names for _ in range(3))
        rows.append({"key": f"n{i}", "title": text, "tags": "|".join(names)})
    path = tmp_path_factory.mktemp("table") / "news.csv"
    pd.DataFrame(rows).to_csv(path, index=False, sep=";")
    return path


COLUMNS = ("--text-column", "title", "--label-column", "tags", "--label-separator", "|")


def test_columns_given_at_training_apply_to_every_later_command(table, tmp_path):
    model = tmp_path / "model"
    said = command("train", table, "-o", model, *COLUMNS).stderr
    assert f"{table}: columns are separated by semicolons" in said
    found = json.loads(command("evaluate", model, table, "--json").stdout)
    assert found["P@1"] > 90
    first = command("predict", model, table, "-k", 1).stdout.splitlines()[0]
    rest = pd.read_csv(table, sep=";")
    as_json = tmp_path / "rows.jsonl"
    rest.to_json(as_json, orient="records", lines=True)
    assert command("predict", model, as_json, "-k", 1).stdout.splitlines()[0] == first
    assert command("explain", model, table, "--row", 1).stdout
    # Options given now take precedence, and plain text has no columns.
    assert "'body'" in command("predict", model, table, "--text-column", "body", code=2).stderr
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(rest["title"]))
    assert command("predict", model, lines, "-k", 1).stdout.splitlines()[0] == first


def test_texts_come_from_standard_input(table, tmp_path):
    content = table.read_text()
    train = ("train", "-", "--data-format", "csv", *COLUMNS, "-o")
    command(*train, tmp_path / "a", stdin=content)
    command("train", table, *COLUMNS, "-o", tmp_path / "b")
    texts = "iron and zinc\nrye\n"
    first, second = (
        command("predict", tmp_path / name, "-", "-k", 1, stdin=texts).stdout for name in "ab"
    )
    assert first == second
    assert first.startswith("metal:")
    assert first.splitlines()[1].startswith("grain:")


def test_numeric_rows_come_from_standard_input(tmp_path):
    rows = "4 3 2\n0 0:1\n1 1:1\n0 0:1 2:1\n1 1:1\n"
    command("train", "-", "-o", tmp_path / "model", stdin=rows)
    (tmp_path / "rows.txt").write_text(rows)
    expected = command("predict", tmp_path / "model", tmp_path / "rows.txt").stdout
    assert command("predict", tmp_path / "model", "-", stdin=rows).stdout == expected
    said = command("predict", tmp_path / "model", "-", stdin="2 3 2\n0 9:1\n", code=2).stderr
    assert said.startswith("dismec: <stdin>:2: ")


def test_a_model_is_trained_on_a_frame_and_knows_its_columns(table, tmp_path):
    frame = pd.read_csv(table, sep=";")
    fmt = TextFormat("title", "tags", "|")
    model = train_text(frame, tmp_path / "frame", fmt=fmt)
    train_text(pl.from_pandas(frame), tmp_path / "polars", fmt=fmt)
    assert model.manifest.columns == {
        "text_column": "title",
        "label_column": "tags",
        "label_separator": "|",
    }
    assert open_model(tmp_path / "polars").manifest.data == model.manifest.data
    for source in (frame, table):
        dataset, _ = text_dataset(model, source)
        assert model.evaluate(dataset.X, dataset.Y)["P@1"] > 90
