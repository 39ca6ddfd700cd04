from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict

import numpy as np
import pytest

from dismec.data.corpus import read_texts
from dismec.data.synthetic import generate, generate_text, write_text
from dismec.errors import DataError

SIZES = {"rows": 1200, "labels": 150, "features": 3000}


@pytest.fixture(scope="module")
def pair():
    return tuple(list(rows) for rows in generate_text(**SIZES))


def words_of(text):
    return re.findall(r"[a-z]+", text.lower())


def test_rows_have_the_words_and_labels_of_the_generated_matrices(pair):
    for rows, (X, Y, _) in zip(pair, generate(**SIZES), strict=True):
        assert len(rows) == X.shape[0]
        ids = {}
        for row, (text, names) in enumerate(rows):
            features = X.indices[X.indptr[row] : X.indptr[row + 1]]
            assert len(set(words_of(text))) == len(features)
            labels = Y.indices[Y.indptr[row] : Y.indptr[row + 1]].tolist()
            assert [
                ids.setdefault(name, label) for name, label in zip(names, labels, strict=True)
            ] == labels
        assert len(set(ids.values())) == len(ids)


def test_a_word_stands_for_the_same_feature_in_every_row(pair):
    X = generate(**SIZES)[0].X
    rows_of_word = defaultdict(set)
    for row, (text, _) in enumerate(pair[0]):
        for word in words_of(text):
            rows_of_word[word].add(row)
    columns = X.tocsc()
    rows_of_feature = Counter(
        frozenset(columns.indices[begin:end].tolist())
        for begin, end in zip(columns.indptr[:-1], columns.indptr[1:], strict=True)
        if begin < end
    )
    assert Counter(frozenset(rows) for rows in rows_of_word.values()) == rows_of_feature


def test_frequent_words_are_shorter(pair):
    frequency = Counter(word for text, _ in pair[0] for word in words_of(text))
    ranked = [word for word, _ in frequency.most_common()]
    assert np.mean([len(word) for word in ranked[:30]]) < 4
    assert np.mean([len(word) for word in ranked[-1000:]]) > 4


def test_texts_are_sentences(pair):
    for text, _ in pair[0]:
        assert re.fullmatch(r"[A-Z][a-z]*( [a-z]+)*\.", text), text


def test_labels_are_named_after_words_that_go_with_them(pair):
    with_label, everywhere, n_with = Counter(), Counter(), Counter()
    for text, names in pair[0]:
        words = set(words_of(text))
        everywhere.update(words)
        for name in names:
            assert re.fullmatch("[a-z]+/[a-z]+", name)
            n_with[name] += 1
            with_label[name] += name.split("/")[1] in words
    frequent = [name for name, count in n_with.most_common(50)]
    shares = [with_label[name] / n_with[name] for name in frequent]
    usual = [everywhere[name.split("/")[1]] / len(pair[0]) for name in frequent]
    assert np.median(shares) > 0.4 > 4 * np.median(usual)


def test_names_are_unique_where_words_are_few():
    train, _ = generate_text(4000, 300, features=5, labels_per_row=5)
    labels_seen = len({name for _, names in train for name in names})
    assert labels_seen == np.count_nonzero(
        np.bincount(generate(4000, 5, 300, labels_per_row=5)[0].Y.indices)
    )


def test_a_seed_gives_the_same_bytes_and_another_seed_others(tmp_path, pair):
    paths = write_text(tmp_path / "new" / "folder", *pair)
    assert [path.name for path in paths] == ["train.jsonl", "test.jsonl"]
    again = write_text(tmp_path / "again", *generate_text(**SIZES))
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]
    other = write_text(tmp_path / "other", *generate_text(**SIZES, seed=1))
    assert other[0].read_bytes() != paths[0].read_bytes()
    short = write_text(tmp_path / "short", *generate_text(**SIZES, test_rows=0))
    assert short[0].read_bytes() == paths[0].read_bytes()
    assert short[1].read_bytes() == b""


def test_written_texts_are_read_unchanged(tmp_path, pair):
    for rows, path in zip(pair, write_text(tmp_path, *pair), strict=True):
        read = [row for b in read_texts(path) for row in zip(b.texts, b.labels, strict=True)]
        assert read == rows


def test_chunks_join_without_a_seam(monkeypatch):
    monkeypatch.setattr(sys.modules["dismec.data.synthetic"], "_ROWS_AT_A_TIME", 100)
    rows = list(generate_text(250, 20, 50)[0])
    assert len(rows) == 250
    assert len({text for text, _ in rows}) == 250
    assert all(text.endswith(".") and names for text, names in rows)


@pytest.mark.parametrize(
    "shape",
    [
        {"rows": 1, "labels": 1, "features": 1},
        {"rows": 5, "labels": 30, "features": 1},
        {"rows": 50, "labels": 4, "features": 3, "features_per_row": 1},
        {"rows": 50, "labels": 10, "features": 30, "labels_per_row": 0},
    ],
)
def test_odd_sizes_are_generated_too(shape):
    train, test = map(list, generate_text(**shape))
    assert (len(train), len(test)) == (shape["rows"], shape["rows"] // 5)
    assert all(words_of(text) for text, _ in train + test)


def test_impossible_sizes_are_refused():
    with pytest.raises(DataError, match="at least 1"):
        generate_text(0, 1)
    with pytest.raises(DataError, match="seed"):
        generate_text(1, 1, seed=-1)
