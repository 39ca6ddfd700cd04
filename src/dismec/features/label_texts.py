"""Texts that describe labels: names, descriptions and synonyms → what they add to the weights.

The *match* of a text x with a label's own text t is Σ_j x_j·m_j. The vector m has the idf of each
word of t, divided by their norm; forms of a word, such as its plural, count `_FORM` times as much.
A match is linear in x, so a multiple of m can be added to the weights of the label: its scores then
grow with the match, and prediction does not change. The multiple is w·n^−`_DECLINE` for a label
with n training rows, because what is learned from many rows needs less help.
`dismec.training.text_weight` chooses w on held-out rows.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.files import StrPath
from dismec.data.formats import DataFile, detect
from dismec.data.matrices import csr_on, plus
from dismec.data.mixed import MixedRows, mixed_rows, sparse_part
from dismec.data.text_format import RefusedError, TextFormat, TextRow, checked_names, quoted
from dismec.data.text_readers import RowReader, file_rows
from dismec.errors import DataError, located
from dismec.features.vocabulary import TextParams, Vocabulary, VocabularyBuilder

# What a caller may pass: texts by label, the path of a file, or True for the labels' own names.
LabelTextsLike = Mapping[str, str] | StrPath | bool

COLUMNS = ("label", "name", "description", "synonyms")
_FORM = 0.7  # weight of another form of a word
_STEM, _ENDING = 4, 3  # forms share this many characters or more, and add at most so many
_DECLINE = 0.3
ALONE = 0.6  # w of labels without training rows
_SEPARATORS = re.compile(r"[_/.:+-]+")


def label_texts(source: LabelTextsLike) -> dict[str, str]:
    """Return the texts of labels by name; none for True, as all labels then have their own names.

    A file holds JSON lines, a JSON array or a table with the columns or keys `COLUMNS`, of which
    only the first is required; a file whose name ends in ``.txt`` has one label per line.

    Raises `DataError` if the file cannot be read or describes a label twice: ``path:line: reason``.
    """
    if isinstance(source, bool):
        return {}
    found = dict[str, str]()
    if isinstance(source, Mapping):
        for key, text in source.items():
            with located("label_texts", DataError, RefusedError):
                (label,) = checked_names([str(key)])
                if not isinstance(text, str) or label in found:
                    raise RefusedError(f"expected one text for label {label!r}")
            found[label] = text
        return found
    lines = Path(source).name.lower().removesuffix(".gz").removesuffix(".zst").endswith(".txt")
    with DataFile(source, "plain text") if lines else detect(source) as data, data.open() as file:
        if not lines and data.kind == "plain text":
            raise DataError(f"{data}: expected JSON lines or a table; lines of labels need .txt")
        for row in file_rows(data, file, _Reader(data.kind)):
            label = row.text if lines else row.labels[0]
            if label in found:
                raise DataError(f"{data}: label {label!r} is described twice")
            if label:
                found[label] = own_text(label) if lines else row.text
    if not found:
        raise DataError(f"{source}: no labels")
    return found


class _Reader(RowReader):
    """Makes rows of a label, with its text, of the values of `COLUMNS`."""

    def __init__(self, kind: str) -> None:
        super().__init__(TextFormat(text_column=COLUMNS[0]), kind, needs_labels=False)

    def columns(self, header: list[str]) -> list[str]:
        self.check(header)
        return [name for name in COLUMNS if name in header]

    def row(self, values: Mapping[str, Any]) -> TextRow:
        (label,) = checked_names([values[COLUMNS[0]]])
        parts: list[str] = []
        for key in COLUMNS[1:]:
            value = values.get(key) or []
            words = [value] if isinstance(value, str) else value
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise RefusedError(f"{key!r} is {quoted(value)}, which is not text")
            parts += words
        return TextRow(
            "\n".join(parts if values.get("name") else [own_text(label), *parts]), [label]
        )


def own_text(label: str) -> str:
    """Return the words of a label's name."""
    return _SEPARATORS.sub(" ", label)


def with_own_rows(
    X: Any, Y: Any, vocabulary: Vocabulary, texts: Sequence[str]
) -> tuple[Any, sp.csr_array, int]:
    """Return rows and labels followed by the texts of labels with rows, and the number of these.

    There may be more texts than columns of Y: labels without rows.
    """
    counts = np.bincount(Y.indices, minlength=len(texts))
    own = np.flatnonzero((counts > 0) & (np.diff(vocabulary.counts(texts).indptr) > 0))
    rows: Any = vocabulary.rows([texts[label] for label in own.tolist()])
    shape = len(own), len(texts)
    of_own: Any = sp.csr_array((np.ones(len(own), Y.dtype), own, np.arange(len(own) + 1)), shape)
    Y = sp.csr_array((Y.data, Y.indices, Y.indptr), (Y.shape[0], len(texts)))
    stacked: Any = sp.vstack([sparse_part(X), sparse_part(rows)], format="csr")
    if isinstance(X, MixedRows):  # of an encoder
        stacked = mixed_rows(stacked, np.vstack([X.dense, rows.dense]))
    return stacked, sp.csr_array(sp.vstack([Y, of_own], format="csr")), len(own)


def matches(
    vocabulary: Vocabulary,
    idf: npt.NDArray[np.float32] | None,
    texts: Sequence[str],
    among: npt.NDArray[Any] | None = None,
) -> sp.csr_array:
    """Return the vectors m of texts, float32 (n_texts, n_features).

    With `among`, only their values for these features are complete.
    """
    rows = vocabulary.counts(texts)
    n_rows, n_features = rows.shape
    factors = np.ones(n_features) if idf is None else idf.astype(np.float64)
    features = np.unique(rows.indices)
    words, counts = _unknown_words(vocabulary, texts)
    # A column per known term and unknown word of the texts; the latter count as the rarest terms.
    found: Any = sp.hstack([rows[:, features], counts], format="csr")
    values = np.append(factors[features], np.full(len(words), factors.max(initial=1)))[
        found.indices
    ]
    row = np.repeat(np.arange(n_rows), np.diff(found.indptr))
    values /= np.sqrt(np.bincount(row, values**2, n_rows))[row]
    own = sp.csr_array((values, found.indices, found.indptr), shape=found.shape)
    known = [(vocabulary.terms[feature], feature) for feature in features.tolist()]
    unknown = [(word, -1) for word in words]
    spread: Any = own @ _forms(vocabulary.terms, [*known, *unknown], among)
    spread.sum_duplicates()
    spread.sort_indices()
    data, indices = spread.data.astype(np.float32), spread.indices.astype(np.int32)
    return csr_on(data, indices, spread.indptr, rows.shape)


def _unknown_words(vocabulary: Vocabulary, texts: Sequence[str]) -> tuple[list[str], sp.csr_array]:
    """Return the words that are not in the vocabulary, and in which of the texts they are."""
    builder = VocabularyBuilder(TextParams(lowercase=vocabulary.params.lowercase))
    builder.add(texts)
    try:
        words = builder.finish()
    except DataError:  # there are none
        return [], sp.csr_array((len(texts), 0))
    rows = vocabulary.counts(words.terms)
    new = [
        number
        for number, word in enumerate(words.terms)
        if all(vocabulary.terms[f] != word for f in rows.indices[slice(*rows.indptr[number:][:2])])
    ]
    return [words.terms[number] for number in new], words.counts(texts)[:, new]


def _forms(
    terms: Sequence[str], words: Sequence[tuple[str, int]], among: npt.NDArray[Any] | None
) -> sp.csr_array:
    """Return the forms of words, (n_words, n_terms): 1 for a term itself, `_FORM` for others.

    Words come with their number among the terms, or −1. Other forms of a word are single words that
    differ from it in at most the last few characters.
    """
    candidates = range(len(terms)) if among is None else among.tolist()
    single = sorted((terms[i], i) for i in candidates if terms[i].isalpha())
    indptr, indices, data = [0], list[int](), list[float]()
    for word, number in words:
        forms = [] if number < 0 else [(number, 1.0)]
        stem = word[: max(_STEM, len(word) - _ENDING)]
        place = bisect_left(single, (stem, -1))
        while place < len(single) and single[place][0].startswith(stem):
            other, i = single[place]
            same = min(len(word), len(other)) - 1  # all but the last of the shorter one
            alike = word[:same] == other[:same] and len(other) <= len(word) + _ENDING
            if alike and i != number and len(stem) >= _STEM and word.isalpha():
                forms.append((i, _FORM))
            place += 1
        indices += [i for i, _ in forms]
        data += [value for _, value in forms]
        indptr.append(len(indices))
    return sp.csr_array((data, indices, indptr), shape=(len(words), len(terms)))


def added_weights(
    vectors: sp.csr_array,
    counts: npt.NDArray[np.int64],
    weight: float,
    described: npt.NDArray[np.bool_],
    bias: float,
    n_columns: int,
) -> sp.csr_array:
    """Return what matches add to the weights of labels, float32 (n_labels, n_columns + 1).

    These are m times w·n^−`_DECLINE`, given n = `counts` and w = `weight`. Labels that are only
    `described` have w = `ALONE`, and a weight for the bias feature as well, so that a text that
    does not match has the score −1, like a row that is just outside the margin.
    """
    declined = weight * np.maximum(counts, 1).astype(np.float64) ** -_DECLINE
    factors = np.where(described, ALONE, declined).astype(np.float32)
    data, shape = (
        vectors.data * np.repeat(factors, np.diff(vectors.indptr)),
        (len(counts), n_columns + 1),
    )
    labels = np.flatnonzero(described) if bias else np.empty(0, np.int64)
    places = labels, np.full(len(labels), n_columns)
    biases: Any = sp.csr_array((np.full(len(labels), -1 / (bias or 1), np.float32), places), shape)
    return plus(csr_on(data, vectors.indices, vectors.indptr, shape), biases)


def share_of_text(
    vocabulary: Vocabulary,
    idf: npt.NDArray[np.float32] | None,
    text: str,
    features: npt.NDArray[Any],
    values: npt.NDArray[Any],
    weight: float,
    count: int,
) -> float:
    """Return what a label's text adds to the score of a row, given its features and their values.

    `weight` is w, and `count` the number of training rows of the label.
    """
    own = features < len(vocabulary.terms)
    match: Any = matches(vocabulary, idf, [text], features[own])[:, features[own]]
    found: float = (match @ values[own])[0]
    return float(weight * max(count, 1) ** -_DECLINE * found)
