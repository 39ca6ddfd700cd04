from __future__ import annotations

import csv
import gzip
import io
import json
import os
import threading
import tracemalloc
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dismec.data import formats, text_readers
from dismec.data.corpus import TextBatch, read_texts
from dismec.data.dataset import load_data
from dismec.data.formats import detect
from dismec.data.text_format import TextFormat
from dismec.errors import DataError

ROWS = [
    ("Wheat rose, and\nrye fell.", ["grain", "wheat"]),
    ("", ["empty"]),
    ("Ça coûte 3 €: “nothing” 😀", []),
    ('He said "so"', ["über", "a b"]),
]
ONE_LINE = [(" ".join(text.split()), [n.replace(" ", "_") for n in names]) for text, names in ROWS]


def as_json(rows, **options):
    return "".join(
        json.dumps({"id": 7, "text": text, "labels": names}, **options) + "\n"
        for text, names in rows
    ).encode()


def as_csv(rows, delimiter=","):
    file = io.StringIO()
    writer = csv.writer(file, "unix", delimiter=delimiter)
    writer.writerow(["id", "text", "labels"])
    writer.writerows([7, text, ",".join(names)] for text, names in rows)
    return file.getvalue().encode()


def as_fasttext(rows):
    lines = (" ".join([*(f"__label__{n}" for n in names), text]) for text, names in rows)
    return "\n".join(lines).encode() + b"\n"


FILES = {
    "rows.jsonl": as_json(ROWS),
    "rows.ndjson": as_json(ROWS, ensure_ascii=False),
    "rows.csv": as_csv(ROWS),
    "rows.TSV": as_csv(ROWS, "\t"),
}


@pytest.fixture
def write(tmp_path):
    def written(content, name="rows.jsonl"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return written


def kind_of(path):
    with detect(path) as data:
        return data.kind


def test_leaving_a_file_closes_it_although_its_reader_is_suspended(write):
    with detect(write(b"one text\nanother\n", "texts.txt")) as found:
        reader = found.open()
        file = reader.__enter__()
        assert file.readline() == b"one text\n"
    assert file.closed


def all_rows(path, *args, **options):
    batches = list(read_texts(path, *args, **options))
    sizes = [len(batch.texts) for batch in batches]
    assert [batch.first_row for batch in batches] == [sum(sizes[:i]) for i in range(len(sizes))]
    assert [len(batch.labels) for batch in batches] == sizes
    return [row for batch in batches for row in zip(batch.texts, batch.labels, strict=True)]


def refused(path, line, reason, *args, **options):
    with pytest.raises(DataError) as caught:
        list(read_texts(path, *args, **options))
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: " if line else f"{path}: "), message
    assert reason in message
    assert message.isprintable()
    assert len(message) < len(str(path)) + 300


# Reading


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("packed", [False, True])
def test_every_kind_gives_the_rows_that_were_written(write, name, packed):
    content = FILES[name]
    path = write(gzip.compress(content) if packed else content, name + ".gz" * packed)
    assert kind_of(path) in ("JSON", "CSV", "TSV")
    assert all_rows(path) == ROWS


@pytest.mark.parametrize("packed", [False, True])
def test_fasttext_lines_give_the_rows_that_were_written(write, packed):
    content = as_fasttext(ONE_LINE)
    path = write(gzip.compress(content) if packed else content, "rows.txt")
    assert kind_of(path) == "fastText"
    assert all_rows(path) == ONE_LINE


@pytest.mark.parametrize("name", [*FILES, "rows.txt"])
def test_a_byte_order_mark_crlf_blank_lines_and_a_last_line_without_end_are_fine(write, name):
    rows = ONE_LINE  # line breaks within quotes are kept
    content = {
        "rows.csv": as_csv(rows),
        "rows.TSV": as_csv(rows, "\t"),
        "rows.txt": as_fasttext(rows),
    }.get(name, as_json(rows))
    lines = content.replace(b"\n", b"\r\n \r\n\r\n").rstrip()
    assert all_rows(write(b"\xef\xbb\xbf" + lines, name)) == rows


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b'{"text": "a"}\n', "JSON"),
        (b'\xef\xbb\xbf\n {"text": "a"}\n', "JSON"),
        (b"__label__a b\n", "fastText"),
        (b"what comes first __label__a b\n", "fastText"),
        (b"it says x__label__a b\n__label__a\n", "fastText"),
        (b"it says x__label__a b\n", "plain text"),
        (b"Wheat rose.\n\n3 1:2\n", "plain text"),
        (b"abc 1:2\n", "XMC text"),
        (b"PAR1\x15", "Parquet"),
        (b"ARROW1\0\0", "Arrow"),
        (b"2 3 3\n0 1:1\n1 2:1\n", "XMC text"),
        (b"0,2 1:1\n", "XMC text"),
        (b" 1:1\n", "XMC text"),
        (b"PK\x03\x04", "npz"),
        (b"\x80\0\0\0\0\0\0\0{", "xmc"),
        (b"[1]\n", "JSON array"),
        (b"", "XMC text"),
    ],
)
def test_a_format_is_detected_by_how_a_file_begins(write, start, kind):
    assert kind_of(write(start, "data")) == kind
    whole = ("npz", "xmc", "Parquet", "Arrow")  # these are not gunzipped
    packed = "XMC text" if kind in whole else kind
    assert kind_of(write(gzip.compress(start), "data.gz")) == packed


def test_text_files_are_detected_by_their_ending_if_they_have_one(tmp_path, write):
    assert kind_of(write(b"2 3 3\n", "data.csv")) == "CSV"
    assert kind_of(write(b"__label__a", "data.Jsonl.GZ")) == "JSON"
    assert kind_of(write(b"\x1f\x8bdamaged", "data.gz")) == "XMC text"
    assert all_rows(write(b"text,labels\n{x,a\n", "a.csv")) == [("{x", ["a"])]
    for path, reason in ((tmp_path / "missing.csv", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(DataError, match=f"^{path}: {reason}"):
            kind_of(path)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("content", [FILES["rows.jsonl"], b"2 3 3\n0 1:1\n1 2:1\n"])
def test_detecting_the_format_of_a_pipe_loses_no_bytes(tmp_path, content, packed):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write_in_pieces():
        sent = gzip.compress(content) if packed else content
        with pipe.open("wb", buffering=0) as file:
            for place in range(len(sent)):
                file.write(sent[place : place + 1])

    writer = threading.Thread(target=write_in_pieces)
    writer.start()
    with detect(pipe) as data:
        assert detect(data) is data
        if data.is_texts:
            assert all_rows(data) == ROWS
        else:
            assert load_data(data).X.nnz == 2
        with pytest.raises(DataError, match="can be read only once"), data.open():
            pass
    writer.join()


def test_a_file_is_opened_once_to_detect_its_format_and_read_it(write):
    path = write(FILES["rows.jsonl"])
    with mock.patch.object(formats, "_File", wraps=formats._File) as opened:
        with detect(path) as data:
            assert all_rows(data) == ROWS
        assert opened.call_count == 1
        assert all_rows(data) == ROWS  # again, from the beginning
        assert opened.call_count == 2
        load_data(write(b"1 2 2\n0 1:1\n", "a.txt"))
        assert opened.call_count == 3


def test_labels_are_named_once_and_numbers_by_their_text(write):
    line = b'{"text": "a", "labels": ["b", 3, "a", "b", 1.50, -1e400, "3"]}\n'
    assert all_rows(write(line)) == [("a", ["b", "3", "a", "1.50", "-1e400"])]
    assert all_rows(write(b'{"text": "a", "labels": "b, c"}\n')) == [("a", ["b, c"])]
    path = write(b'text,labels\nx," a ,b,,a"\n', "a.csv")
    assert all_rows(path) == [("x", ["a", "b"])]
    twice = b"__label__a x __label__b __label__a y x__label__c\xc2\xa0d\n"
    assert all_rows(write(twice, "a.txt")) == [("x y x__label__c\u00a0d", ["a", "b"])]


def test_columns_are_named_and_several_make_one_text(write):
    fmt = TextFormat("title, body", "tags", "|")
    content = b"tags, title ,body\nx|y z|,A,B\nx,,B\n,A,\n"
    expected = [("A\n\nB", ["x", "y z"]), ("B", ["x"]), ("A", [])]
    assert all_rows(write(content, "a.csv"), fmt) == expected
    assert all_rows(write(content.replace(b",", b"\t"), "a.tsv"), fmt) == expected
    line = b'{"title": "A", "body": "B", "tags": ["x|y"]}\n'
    assert all_rows(write(line), TextFormat("title,body", "tags")) == [("A\n\nB", ["x|y"])]


def test_rows_without_labels_are_refused_only_where_labels_are_needed(write):
    path = write(b'{"text": "a"}\n')
    refused(path, 1, "no key 'labels' (label_column); the keys are 'text'")
    assert all_rows(path, needs_labels=False) == [("a", [])]
    assert all_rows(write(b'{"text": "a", "labels": null}\n')) == [("a", [])]  # as in tables
    path = write(b"id,text\n1,a\n", "a.csv")
    refused(path, 1, "no column 'labels' (label_column); the columns are 'id', 'text'")
    assert all_rows(path, needs_labels=False) == [("a", [])]
    path = write(FILES["rows.jsonl"])
    assert all_rows(path, needs_labels=False) == ROWS


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
            st.lists(st.text("abcé -1", min_size=1).filter(str.strip), unique_by=str.strip),
        ),
        min_size=1,
    ),
    st.sampled_from([".jsonl", ".csv", ".tsv"]),
    st.integers(1, 2000),
)
def test_any_rows_come_back_whatever_the_batches(tmp_path_factory, rows, ending, batch_chars):
    path = tmp_path_factory.getbasetemp() / f"any{ending}"
    if ending == ".jsonl":
        path.write_bytes(as_json(rows))
    else:
        path.write_bytes(as_csv(rows, "," if ending == ".csv" else "\t"))
    rows = [(text, [name.strip() for name in names]) for text, names in rows]
    fmt = TextFormat(label_separator=",")  # the separator that these names contain
    assert all_rows(path, fmt, batch_chars=batch_chars) == rows


# Errors


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "a", "labels": ["b"]', "not a JSON object on a line of its own"),
        (b'{"text": "a", "labels": []} x', "Extra data at character 28"),
        (b"[" * 100_000, "cannot be read as JSON"),
        (b'{"text": "a", "labels": [NaN]}', "NaN is not JSON"),
        (b'["a"]', 'expected {"text": …, "labels": […]}, not a list'),
        (b"7", "not '7'"),
        (
            b'{"body": "a", "labels": []}',
            "no key 'text' (text_column); the keys are 'body', 'labels'",
        ),
        (b"{}", "there are no keys"),
        (b'{"text": null, "labels": []}', "'text' is None, which is not text"),
        (b'{"text": ["a"], "labels": []}', "'text' is a list, which is not text"),
        (b'{"text": "a", "labels": {"b": 1}}', "the labels are an object; expected names"),
        (b'{"text": "a", "labels": true}', "the labels are True"),
        (b'{"text": "a", "labels": ["b", true]}', "a label must be text, not True"),
        (b'{"text": "a", "labels": ["b", null]}', "a label must be text, not None"),
        (b'{"text": "a", "labels": [["b"]]}', "a label must be text, not a list"),
        (b'{"text": "a", "labels": ["b", ""]}', "a label has an empty name"),
        (b'{"text": "a", "labels": " "}', "a label has an empty name"),
        (b'{"text": "a\\udc00", "labels": []}', "\\udc00 is half of a surrogate pair"),
        (b'{"text": "a", "labels": ["b", "\\ud83d"]}', "\\ud83d is half of a surrogate pair"),
        (b'{"text": "a\xff", "labels": []}', "not UTF-8: byte 0xff at place 12 of the line"),
        (b'{"text": "a\xc3', "not UTF-8: byte 0xc3 at place 12"),
        (b'{"text": "a\0", "labels": []}', "a NUL byte"),
        (b'{"text": "a\tb", "labels": []}', "Invalid control character"),
    ],
)
def test_bad_lines_are_refused_with_their_number(write, line, reason):
    good = b'\n{"text": "a", "labels": []}\n\n'
    refused(write(good + line + b"\n" + good), 4, reason)
    refused(write(gzip.compress(good + line)), 4, reason)


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b"text,labels\na,b\nc\n", 3, "1 fields, but the header has 2"),
        (b'text,labels\n"a\n\nb",b\n\nc,d,e\n', 6, "3 fields, but the header has 2"),
        (b'text,labels\na,b\n"a,b\nc,d\n', 3, "is a quote not closed"),
        (b'text,labels\n"a"b,c\n', 2, "is a quote not closed, or a quote in a field not doubled?"),
        (b"text,labels\na\rb,c\n", 2, "new-line"),
        (
            b"a,b,text\n1,2,3\n",
            1,
            "no column 'labels' (label_column); the columns are 'a', 'b', 'text'",
        ),
        (b"Text,labels\n1,2\n", 1, "no column 'text' (text_column)"),
        (b"text,text,labels\n1,2,3\n", 1, "there are 2 columns 'text'"),
        (b"text,labels\na,b\xff\n", 2, "not UTF-8: byte 0xff at place 4"),
        (b"text,labels\n", None, "no rows"),
    ],
)
def test_bad_csv_is_refused_with_the_line_where_the_row_begins(write, content, line, reason):
    refused(write(content, "rows.csv"), line, reason)


def test_bad_fasttext_is_refused(write):
    refused(write(b"__label__a b\n__label__ b\n", "rows.txt"), 2, "nothing follows __label__")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.tsv.gz", "rows", "rows.gz"])
@pytest.mark.parametrize("content", [b"", b"\n \n\n", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_a_file_without_rows_is_refused(write, name, content):
    refused(write(content, name), None, "no rows")


def test_meaningless_format_options_are_refused(write):
    path = write(as_fasttext(ONE_LINE), "rows.txt")
    for entry in ("text_column", "label_column", "label_separator", "id_column"):
        refused(path, None, entry, TextFormat(**{entry: "x"}))
        with pytest.raises(DataError, match=entry):
            TextFormat(**{entry: ""})
    with pytest.raises(DataError, match="text_column is 'a,,b'"):
        TextFormat("a,,b")


def test_files_that_are_not_text_are_refused(tmp_path, write):
    refused(write(b"2 3 3\n0 1:1\n", "a.txt"), None, "not texts; a CSV or TSV file needs")
    refused(tmp_path / "missing.jsonl", None, "No such file")
    refused(tmp_path, None, "directory")


def test_a_line_without_end_is_refused(write, monkeypatch):
    monkeypatch.setattr(text_readers, "_LONGEST_LINE", 1000)
    good = FILES["rows.jsonl"]
    refused(write(good + b"x" * 1001), 5, "longer than 1000 bytes")
    assert len(all_rows(write(good + b" " * 1000))) == len(ROWS)


def test_a_csv_field_may_be_long_but_not_without_end(write, monkeypatch):
    before = csv.field_size_limit(1000)
    monkeypatch.setattr(text_readers, "_LONGEST_FIELD", 200_000)
    long = b"x" * 200_000
    assert all_rows(write(b"text,labels\n" + long + b",a\n", "a.csv")) == [(long.decode(), ["a"])]
    endless = b'text,labels\na,b\n"' + b"x\n" * 100_001
    refused(write(endless, "a.csv"), 3, "field larger than field limit (200000)")
    csv.field_size_limit(before)


def test_a_cut_gzip_file_says_which_line_it_reached(write):
    rows = [(f"{i} " * 50, [str(i)]) for i in range(3000)]
    packed = gzip.compress(as_json(rows))
    reached = []
    for cut in (len(packed) // 3, len(packed) // 2, len(packed) - 1):
        path = write(packed[:cut])
        read = 0
        try:
            for batch in read_texts(path, batch_chars=1):
                read += len(batch.texts)
        except DataError as error:
            assert str(error) == f"{path}:{read + 1}: the gzip data is cut off here"  # noqa: PT017
        reached.append(read)
    assert all(a < b for a, b in pairwise([0, *reached]))
    assert reached[-1] == len(rows)
    refused(path, 3001, "cut off")
    refused(write(packed[:-8] + b"\0" * 8), 3001, "the gzip data is damaged")
    refused(write(b"\x1f\x8bgarbage that is no gzip"), 1, "the gzip data is damaged")
    refused(write(b"\x1f\x8bgarbage that is no gzip", "a"), 1, "the gzip data is damaged")


JSONISH = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "labels", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
PIECES = st.sampled_from(
    [b'"', b",", b"\t", b"\n", b"\r", b"text,labels", b"text\tlabels", b"__label__", b"a", b" ",
     b'{"text": "', b'", "labels": ["', b'"]}', b"\xef\xbb\xbf", b"\xc3", b"\0", b"\\ud800"]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    st.binary(max_size=60)
    | st.lists(PIECES, max_size=12).map(b"".join)
    | st.lists(JSONISH, max_size=4).map(lambda v: "\n".join(map(json.dumps, v)).encode()),
    st.sampled_from(["a", "a.jsonl", "a.csv", "a.tsv"]),
    st.sampled_from([None, "whole", 3, 12, -1]),
    st.booleans(),
)
@example(b"text,labels\na,b\nc", "a.csv", None, True)
def test_garbage_gives_batches_or_one_line_of_error(
    tmp_path_factory, garbage, name, packed, needs_labels
):
    path = tmp_path_factory.getbasetemp() / name
    if packed is not None:
        garbage = gzip.compress(garbage)[: None if packed == "whole" else packed]
    path.write_bytes(garbage)
    kind_of(path)
    try:
        rows = all_rows(path, needs_labels=needs_labels)
    except DataError as error:
        assert str(error).removeprefix(str(path)).isprintable()  # noqa: PT017
    else:
        assert rows
        for text, names in rows:
            text.encode()
            assert all(name.strip() and name.encode() for name in names)
            assert len(set(names)) == len(names)


# Memory


def test_only_one_batch_is_in_memory(write):
    rows = [(" ".join(map(str, range(i, i + 400))), ["a", "b"]) for i in range(10_000)]
    path = write(gzip.compress(as_json(rows), 1))
    tracemalloc.start()
    try:
        n_rows = sum(len(batch.texts) for batch in read_texts(path, batch_chars=1 << 20))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert n_rows == 10_000
    assert peak < 6e6 < len(as_json(rows)) / 3


def test_batches_of_short_rows_are_bounded_too(write):
    path = write(as_json([("", [])] * 5000))
    batches = list(read_texts(path, batch_chars=1 << 18))
    assert [len(batch.texts) for batch in batches[:-1]] == [1024] * 4
    assert isinstance(batches[0], TextBatch)


@pytest.mark.data
@pytest.mark.parametrize("name", ["cooking-text/test.jsonl", "eurlex57k-text/test.jsonl.gz"])
def test_real_texts_are_read_as_json_parses_them(real_data, name):
    path = real_data / name
    assert kind_of(path) == "JSON"
    content = path.read_bytes()
    lines = (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines()
    rows = map(json.loads, lines)
    assert all_rows(path) == [(row["text"], list(dict.fromkeys(row["labels"]))) for row in rows]
