from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

from dismec.cpu import kernels
from dismec.data.container import open_arrays, write_arrays
from dismec.errors import DataError, ModelError
from dismec.features import vocabulary as text_module
from dismec.features.transform import Transform
from dismec.features.vocabulary import TextParams, Vocabulary, VocabularyBuilder

pytestmark = pytest.mark.native(needs="sklearn")

ROOT = Path(__file__).resolve().parents[1]
same_unicode = pytest.mark.skipif(
    kernels.unicode_version != unicodedata.unidata_version,
    reason="Python's Unicode is of another version than the tables",
)

SENTENCES = [
    "The cat sat on the mat.",
    "The dog, a big one, sat on the cat!",
    "A café in Zürich; naïve CAFÉ",
    "snake_case and 2 or 42 numbers: the_end",
    "",
    "O'Neill isn't here -- is he?",
]


def build(texts, **params):
    builder = VocabularyBuilder(TextParams(**params))
    builder.add(texts)
    return builder.finish()


def terms(text, **params):
    """Return the terms of a text in the order in which they begin."""
    vocabulary = build([text], **params)
    return [vocabulary.terms[feature] for feature, _, _ in vocabulary.spans(text)]


def counts(vocabulary, texts, **kwargs):
    """Return each text as a dictionary from terms to values."""
    X = vocabulary.rows(texts, **kwargs)
    X.check_format(full_check=True)
    assert X.dtype == np.float32
    assert X.shape == (len(texts), len(vocabulary))
    assert all((np.diff(X.indices[a:b]) > 0).all() for a, b in pairwise(X.indptr))
    return [
        {vocabulary.terms[f]: v for f, v in zip(X.indices[a:b], X.data[a:b], strict=True)}
        for a, b in pairwise(X.indptr)
    ]


def sklearn_counts(vectorizer, texts, X=None):
    X = vectorizer.transform(texts) if X is None else X
    names = vectorizer.get_feature_names_out()
    return [
        {names[f]: v for f, v in zip(X.indices[a:b], X.data[a:b], strict=True)}
        for a, b in pairwise(X.indptr)
    ]


# Words


def test_words_are_those_of_scikit_learn():
    for lowercase in (True, False):
        ours = build(SENTENCES, word_ngrams=(1, 2), lowercase=lowercase, sublinear=False)
        theirs = CountVectorizer(ngram_range=(1, 2), lowercase=lowercase).fit(SENTENCES)
        assert counts(ours, SENTENCES) == sklearn_counts(theirs, SENTENCES)


english = st.text(st.sampled_from("abcXYZ019_ .,;'-\n\té" + "ÀßÆøŒ"), max_size=60)


@given(st.lists(english, min_size=1, max_size=8), st.sampled_from([(1, 1), (1, 3), (2, 2)]))
@settings(deadline=None)
def test_any_latin_text_counts_as_in_scikit_learn(texts, ngrams):
    try:
        theirs = CountVectorizer(ngram_range=ngrams).fit(texts)
    except ValueError:
        with pytest.raises(DataError, match="no row has a word"):
            build(texts, word_ngrams=ngrams)
        return
    ours = build(texts, word_ngrams=ngrams, sublinear=False)
    assert counts(ours, texts) == sklearn_counts(theirs, texts)


def naive_words(text):
    """Split text into words as defined, using Python's own tables."""
    pieces = []
    for c in text:
        mark = unicodedata.category(c) in ("Mn", "Mc")
        spaceless = (
            not mark
            and unicodedata.category(c) != "Nd"
            and re.match(
                "CJK (UNIFIED|COMPATIBILITY) IDEOGRAPH|IDEOGRAPHIC|HIRAGANA|HENTAIGANA|KATAKANA|"
                "HALFWIDTH KATAKANA|THAI|LAO|KHMER|MYANMAR",
                unicodedata.name(c, ""),
            )
        )
        if mark:
            pieces.append((pieces[-1][0] if pieces and pieces[-1][0] != " " else "w", c, True))
        elif c == "_" or c.isalnum():
            pieces.append(("s" if spaceless else "w", c, False))
        else:
            pieces.append((" ", c, False))
    words, i = [], 0
    while i < len(pieces):
        kind = pieces[i][0]
        run = [pieces[i]]
        i += 1
        while i < len(pieces) and pieces[i][0] == kind:
            run.append(pieces[i])
            i += 1
        if kind == "w" and len(run) >= 2:
            words.append("".join(c for _, c, _ in run))
        elif kind == "s":
            units = []
            for _, c, is_mark in run:
                units[-1:] = [units[-1] + c] if is_mark else [*units[-1:], c]
            words += ["".join(pair) for pair in pairwise(units)] or units
    return [w for w in words if len(w.encode()) <= 255]


def naive_lower(word):
    return "".join(c.lower() for c in word).replace("ς", "σ")


world = st.text(
    st.one_of(
        st.sampled_from("aB1_ .\0éÉİıßẞΣσςжЖ हिन्दी กำลัง日本語カタカナひらがなー々한글עברית"),
        st.sampled_from("\u0301\u3099\u200d\U0001d400𐐀😀"),
        st.characters(exclude_categories=("Cs",)),
    ),
    max_size=40,
)


@same_unicode
@given(world, st.booleans())
@settings(deadline=None, max_examples=400)
def test_words_of_any_script_are_those_of_the_definition(text, lowercase):
    words = naive_words(text)
    if not words:
        with pytest.raises(DataError):
            build([text])
        return
    assert terms(text, lowercase=lowercase) == [naive_lower(w) if lowercase else w for w in words]


def test_marks_do_not_break_words():
    assert terms("हिन्दी भाषा") == ["हिन्दी", "भाषा"]
    assert terms("cafe\u0301 nai\u0308ve") == ["cafe\u0301", "nai\u0308ve"]


def test_scripts_without_spaces_give_overlapping_pairs():
    assert terms("日本語です。本") == ["日本", "本語", "語で", "です", "本"]
    assert terms("iPhone手机壳 X") == ["iphone", "手机", "机壳"]
    assert terms("กำลัง") == ["กำ", "ำลั", "ลัง"]
    assert terms("か\u3099き") == ["か\u3099き"]


def test_pairs_of_pairs_are_terms_too():
    assert terms("日本語", word_ngrams=(2, 2)) == ["日本 本語"]


def test_lower_case_has_one_sigma_and_a_dotted_i():
    assert terms("ΟΔΟΣ οδος ΟΔΌΣ") == ["οδοσ", "οδοσ", "οδόσ"]
    assert terms("İZMİR") == ["i\u0307zmi\u0307r"]
    assert terms("İZ ΟΣ", lowercase=False) == ["İZ", "ΟΣ"]


def test_a_word_of_255_bytes_counts_and_a_longer_one_is_passed_over():
    for letter, n in (("x", 255), ("é", 127), ("日\u3099", 21)):
        text = f"before {letter * n} after"
        assert len(terms(text)) > 2
    assert terms(f"before {'x' * 256} after") == ["before", "after"]
    assert terms(f"before {'é' * 128} after", word_ngrams=(2, 2)) == ["before after"]
    assert terms("before 日" + "\u3099" * 100 + " after") == ["before", "after"]
    assert terms("ok " + "y" * 10_000_000) == ["ok"]


def test_nul_is_a_separator_like_any_other():
    assert terms("one\0two\0\0three") == ["one", "two", "three"]


def test_terms_do_not_cross_texts():
    assert set(build(["one two", "three four"], word_ngrams=(1, 2)).terms) == {
        "one", "two", "three", "four", "one two", "three four",
    }  # fmt: skip


def test_n_grams_continue_across_the_end_of_the_buffer():
    words = [f"w{i}" for i in range(20_000)]
    for n in (1, 2, 5, 16):
        found = terms(" ".join(words), word_ngrams=(n, n))
        assert found == [" ".join(words[i : i + n]) for i in range(len(words) - n + 1)]


@pytest.mark.slow
def test_a_text_of_a_hundred_megabytes_is_one_row():
    text = "alpha beta gamma, 日本語 " * (100_000_000 // 29)
    vocabulary = build([text], word_ngrams=(1, 2), sublinear=False)
    (row,) = counts(vocabulary, [text])
    assert row["alpha beta"] == row["日本"] == 100_000_000 // 29
    assert row["本語 alpha"] == row["alpha"] - 1


# Characters


def char_wb(text, n, m):
    """Return scikit-learn's character n-grams of the words that scikit-learn finds."""
    words = " ".join(re.findall(r"\b\w\w+\b", text.lower()))
    vectorizer = CountVectorizer(analyzer="char_wb", ngram_range=(n, m))
    return Counter("#" + gram for gram in vectorizer.build_analyzer()(words))


@given(english, st.sampled_from([(1, 1), (2, 4), (3, 3), (5, 8), (16, 16)]))
@settings(deadline=None)
def test_characters_inside_words_are_those_of_scikit_learn(text, ngrams):
    wanted = char_wb(text, *ngrams)
    if not wanted:
        return
    params = {"word_ngrams": (0, 0), "char_ngrams": ngrams, "sublinear": False}
    assert counts(build([text], **params), [text]) == [wanted]


def test_words_and_characters_are_different_terms():
    found = terms("abc", char_ngrams=(3, 3))
    assert found == ["abc", "# ab", "#abc", "#bc "]
    (row,) = counts(build(["abc"], char_ngrams=(3, 3)), ["abc"])
    assert set(row) == set(found)


# Spans


@given(world, st.booleans())
@settings(deadline=None)
def test_spans_are_where_the_terms_are(text, lowercase):
    params = {"word_ngrams": (1, 2), "char_ngrams": (1, 3), "lowercase": lowercase}
    try:
        vocabulary = build([text], sublinear=False, **params)
    except DataError:
        return
    spans = vocabulary.spans(text)
    (row,) = counts(vocabulary, [text])
    assert row == Counter(vocabulary.terms[feature] for feature, _, _ in spans)
    for feature, begin, end in spans:
        term = vocabulary.terms[feature]
        assert 0 <= begin <= end <= len(text)
        if term.startswith("#"):
            term = term[1:].strip()
            source = text[begin:end]
            if lowercase:
                source = naive_lower(source)
            # A part of an i with its dot stands for all of it.
            assert term in source if "\u0307" in source else term == source
        else:
            assert (begin == end) is False
            first, last = term.split(" ")[0], term.split(" ")[-1]
            source = naive_lower(text[begin:end]) if lowercase else text[begin:end]
            assert source.startswith(first)
            assert source.endswith(last)


def test_spans_count_characters_and_not_bytes():
    vocabulary = build(["größe 😀 Zürich zürich"], word_ngrams=(1, 1))
    spans = vocabulary.spans("😀 Größe, Zürich")
    assert [(vocabulary.terms[f], b, e) for f, b, e in spans] == [
        ("größe", 2, 7),
        ("zürich", 9, 15),
    ]


# Values


def test_tf_idf_is_that_of_scikit_learn():
    texts = [s for s in SENTENCES for _ in range(2)] + ["the the the cat cat", "zebra"]
    theirs = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2, max_df=0.5)
    wanted = sklearn_counts(theirs, texts, theirs.fit_transform(texts))
    vocabulary = build(texts, word_ngrams=(1, 2), min_df=2, max_df=0.5)
    X = vocabulary.rows(texts)
    transform = Transform.fit(X, tfidf=True, bias=0.0)
    X = transform.apply(X)
    for row in range(len(texts)):
        entries = slice(X.indptr[row], X.indptr[row + 1])
        pairs = zip(X.indices[entries], X.data[entries], strict=True)
        found = {vocabulary.terms[f]: v for f, v in pairs}
        assert found.keys() == wanted[row].keys()
        assert all(math.isclose(found[t], wanted[row][t], rel_tol=1e-5) for t in found)


@pytest.mark.data
def test_real_text_gives_the_features_of_scikit_learn(real_data):
    lines = (real_data / "cooking-text" / "train.jsonl").read_text().splitlines()[:3000]
    texts = [json.loads(line)["text"] for line in lines]
    theirs = CountVectorizer(ngram_range=(1, 2), min_df=2).fit(texts)
    ours = build(texts, word_ngrams=(1, 2), min_df=2, sublinear=False)
    assert set(ours.terms) == set(theirs.get_feature_names_out())
    assert counts(ours, texts) == sklearn_counts(theirs, texts)


def test_unknown_terms_leave_no_trace():
    vocabulary = build(["known words"])
    assert counts(vocabulary, ["", "other things", "known"]) == [{}, {}, {"known": 1.0}]
    assert vocabulary.rows([]).shape == (0, 2)


# Which terms are kept


def test_terms_are_ordered_by_rows_and_then_by_bytes():
    texts = ["bb aa éé", "bb aa zz", "bb bb cc", "cc zz"]
    vocabulary = build(texts, word_ngrams=(1, 1))
    assert list(vocabulary.terms) == ["bb", "aa", "cc", "zz", "éé"]
    assert list(build(texts, word_ngrams=(1, 1), max_features=2).terms) == ["bb", "aa"]
    assert list(build(texts, word_ngrams=(1, 1), max_df=0.5).terms) == [
        "aa",
        "cc",
        "zz",
        "éé",
    ]
    assert list(build(texts, word_ngrams=(1, 1), min_df=3).terms) == ["bb"]


def test_no_terms_left_is_an_error_that_says_what_to_do():
    with pytest.raises(DataError, match=r"2 rows of text: every term was dropped; lower min_df"):
        build(["one", "two"], min_df=2)
    with pytest.raises(DataError, match="0 rows of text: no row has a word"):
        VocabularyBuilder().finish()


batches = st.lists(
    st.lists(st.sampled_from([*SENTENCES, "日本語", "zz zz"]), max_size=5), min_size=1
)


@given(batches, st.integers(1, 3), st.sampled_from([1, 5, 1000]))
@settings(deadline=None)
def test_batches_and_threads_do_not_change_the_vocabulary(batches, threads, max_terms):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "_CHUNK", 16)
        patch.setattr(text_module, "_WINDOW", 64)
        whole = VocabularyBuilder(TextParams((1, 2)), threads=1, max_terms=max_terms)
        whole.add([text for batch in batches for text in batch])
        parts = VocabularyBuilder(TextParams((1, 2)), threads=threads, max_terms=max_terms)
        for batch in batches:
            parts.add(batch)
        assert parts.undercount == whole.undercount
        try:
            wanted = whole.finish()
        except DataError:
            with pytest.raises(DataError):
                parts.finish()
            return
        assert parts.finish().terms == wanted.terms


@given(st.lists(st.text(st.sampled_from("abc "), max_size=30), max_size=30), st.integers(1, 20))
@settings(deadline=None)
def test_a_forgotten_term_is_in_few_rows(texts, max_terms):
    exact = Counter(t for text in texts for t in set(re.findall(r"\w\w+", text)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "_WINDOW", 50)
        builder = VocabularyBuilder(TextParams(), max_terms=max_terms)
        builder.add(texts)
    try:
        found = set(builder.finish().terms)
    except DataError:
        found = set()
    assert found <= set(exact)
    assert {t for t, df in exact.items() if df >= 1 + builder.undercount} <= found
    if len(exact) <= max_terms:
        assert builder.undercount == 0


def test_threads_and_chunks_do_not_change_rows(monkeypatch):
    texts = SENTENCES * 20
    vocabulary = build(texts)
    one = vocabulary.rows(texts, threads=1)
    monkeypatch.setattr(text_module, "_CHUNK", 50)
    many = vocabulary.rows(texts, threads=3)
    for a, b in ((one.indptr, many.indptr), (one.indices, many.indices), (one.data, many.data)):
        np.testing.assert_array_equal(a, b)


# What is not text


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["fine", "bad \ud800"], "row index 1: half of a character"),
        (["fine", None], "row index 1: not a text"),
        ([b"bytes"], "row index 0: not a text"),
        ("one text", "expected a list of texts, not a single text"),
    ],
)
def test_items_that_are_not_text_are_refused_with_their_row(texts, reason):
    builder = VocabularyBuilder(TextParams())
    builder.add(["good words"])
    with pytest.raises(DataError, match=reason):
        builder.add(texts)
    vocabulary = builder.finish()
    assert list(vocabulary.terms) == ["good", "words"]
    with pytest.raises(DataError, match=reason):
        vocabulary.rows(texts)


@pytest.mark.parametrize(
    "wrong",
    [
        {"word_ngrams": (0, 0)},
        {"word_ngrams": (2, 1)},
        {"word_ngrams": (0, 1)},
        {"word_ngrams": (1, 17)},
        {"word_ngrams": (1,)},
        {"word_ngrams": 2},
        {"char_ngrams": (1.5, 2)},
        {"lowercase": "yes"},
        {"sublinear": 1},
        {"min_df": 0},
        {"min_df": 0.5},
        {"min_df": True},
        {"max_df": 0.0},
        {"max_df": 1.5},
        {"max_df": float("nan")},
        {"max_df": 10**400},
        {"max_df": "1"},
        {"max_features": 0},
    ],
)
def test_impossible_parameters_are_refused(wrong):
    with pytest.raises(ValueError):
        TextParams(**wrong)
    with pytest.raises(ModelError, match="text: "):
        TextParams.from_dict(TextParams().to_dict() | wrong)


def test_parameters_survive_json():
    params = TextParams(
        (1, 3), (2, 5), np.int64(4), False, np.int64(3), np.float32(0.5), 1000, np.True_
    )
    assert TextParams.from_dict(json.loads(json.dumps(params.to_dict()))) == params
    assert TextParams.from_dict(json.loads(json.dumps(asdict(params)))) == params
    with pytest.raises(ModelError, match="unknown entry 'more'"):
        TextParams.from_dict(params.to_dict() | {"more": 1})
    with pytest.raises(ModelError, match="'min_df' is missing"):
        TextParams.from_dict({k: v for k, v in params.to_dict().items() if k != "min_df"})


# On disk


def test_a_vocabulary_survives_a_file(tmp_path):
    vocabulary = build(SENTENCES, char_ngrams=(2, 3))
    write_arrays(tmp_path / "terms", vocabulary.to_arrays(), {})
    arrays, _ = open_arrays(tmp_path / "terms")
    again = Vocabulary.from_arrays(arrays, vocabulary.params)
    assert again.terms == vocabulary.terms
    assert counts(again, SENTENCES) == counts(vocabulary, SENTENCES)
    assert again.spans(SENTENCES[1]) == vocabulary.spans(SENTENCES[1])


def arrays_of(*names, offsets=None):
    encoded = [name.encode() for name in names]
    ends = np.cumsum([0, *map(len, encoded)]) if offsets is None else np.array(offsets)
    return {
        "terms": np.frombuffer(b"".join(encoded), np.uint8),
        "term_offsets": ends.astype(np.int64),
    }


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        arrays_of(),
        arrays_of("one", "two", "one"),
        arrays_of("one", ""),
        arrays_of("one two three"),
        arrays_of("one "),
        arrays_of(" one"),
        arrays_of("#abc"),
        arrays_of("a", "b", "c", "d"),
        arrays_of("abc", offsets=[0, 2]),
        arrays_of("abc", offsets=[0, 4]),
        arrays_of("abc", offsets=[0, 2, 1, 3]),
        arrays_of("é", offsets=[0, 1, 2]),
        {**arrays_of("abc"), "terms": np.array([255, 97, 98], np.uint8)},
        {**arrays_of("abc"), "term_offsets": np.array([0, 3], np.int32)},
    ],
)
def test_arrays_that_no_vocabulary_can_produce_are_refused(arrays):
    with pytest.raises(ModelError, match="vocabulary: "):
        Vocabulary.from_arrays(arrays, TextParams(word_ngrams=(1, 2), max_features=3))


# Tables


@same_unicode
def test_character_kinds_agree_with_python():
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assigned = [c for c in every if unicodedata.category(c) not in ("Cn", "Co")]
    text = " ".join(f"x{c}x" for c in [*assigned, *every[::97]])
    assert terms(text) == [naive_lower(w) for w in naive_words(text)]


@same_unicode
def test_the_tables_equal_the_output_of_the_script():
    script = ROOT / "native" / "text" / "make_unicode.py"
    made = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert made.stdout == (ROOT / "native" / "text" / "unicode.hpp").read_text()
