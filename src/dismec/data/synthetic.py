"""Random numbers → synthetic data that resembles XMC data.

First, a world of labels is drawn: the frequency of each (a power law), its topic, and the few words
that go with it; topics have words of their own, and all words follow a Zipf law. A row then gets a
label, most of its other labels from the same topic, and words from its labels, its topic and the
background. In some rows the labels leave hardly any words, which not even a perfect model could
predict, so accuracy stays well below 100 % at any size.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dismec.data.dataset import Dataset, save_data
from dismec.data.files import whole_file
from dismec.data.matrices import csr_on
from dismec.errors import DataError

TextRow: TypeAlias = tuple[str, list[str]]
Counts: TypeAlias = csr_array  # how often each word, or label, occurs in a row

_SYLLABLES = [consonant + vowel for vowel in "aeiou" for consonant in "bdflmnrtvz"]
_ENDS = ["", "n", "r", "l", "s"]

_ROWS_AT_A_TIME = 50_000
_MOST_PER_ROW = 1_000_000
_LABEL_EXPONENT = 0.9
_WORD_EXPONENT = 1.05
_WORDS_PER_LABEL = 10
_WORDS_PER_TOPIC = 100
_SAME_TOPIC = 0.8  # share of a row's further labels
_VAGUE_ROWS = 0.3
_LABEL_WORDS, _VAGUE_LABEL_WORDS = 0.21, 0.02  # share of the words of a clear and of a vague row
_TOPIC_WORDS = 0.2


class World(NamedTuple):
    """The labels and words that training and test rows share.

    Labels are sorted by topic, words by rank.
    """

    label_ids: NDArray[np.int32]
    label_cdf: NDArray[np.float64]
    label_topics: NDArray[np.int32]
    topic_starts: NDArray[np.int64]
    label_words: NDArray[np.int32]
    """Feature ids of each label's own words, the most common first."""
    topic_words: NDArray[np.int32]
    word_ids: NDArray[np.int32]
    word_cdf: NDArray[np.float64]


def generate(
    rows: int,
    features: int,
    labels: int,
    labels_per_row: float = 3.0,
    features_per_row: float = 42,
    seed: int = 0,
    test_rows: int | None = None,
) -> tuple[Dataset, Dataset]:
    """Generate a training set and a test set of the same distribution.

    Values are tf-idf with the document frequencies of the training rows; rows are not normalized.
    Every row has at least one feature and, if `labels_per_row` is at least 1, one label.

    Parameters
    ----------
    rows, features, labels : int
        Number of training rows, of features and of labels.
    labels_per_row, features_per_row : float, default=3.0 and 42
        About how many labels and features a row has on average. There are fewer if there are too
        few to choose from.
    seed : int, default=0
        The same arguments always give the same data. The training rows do not depend on
        `test_rows`.
    test_rows : int, default=None
        Number of test rows. By default a fifth of `rows`.

    Returns
    -------
    train, test : Dataset
        The two sets.

    Examples
    --------
    >>> from dismec import generate
    >>> train, test = generate(rows=100, features=50, labels=10)
    >>> train.X.shape, test.Y.shape
    ((100, 50), (20, 10))
    """
    shape = (rows, features, labels, labels_per_row, features_per_row, seed, test_rows)
    parts = []
    for chunks in draw(*shape)[1:]:
        none = csr_array((0, features), dtype=np.uint8), csr_array((0, labels), dtype=np.uint8)
        drawn = zip(none, *chunks, strict=True)
        parts.append([sp.vstack(matrices, format="csr") for matrices in drawn])
    document_frequency = np.bincount(parts[0][0].indices, minlength=features)
    idf = (1 + np.log((1 + rows) / (1 + document_frequency))).astype(np.float32)
    train, test = (
        Dataset(
            csr_on(_values(words, idf), words.indices, words.indptr, words.shape, canonical=True),
            positives.astype(np.bool_).astype(np.uint8),
        )
        for words, positives in parts
    )
    return train, test


def write(
    directory: str | os.PathLike[str], train: Dataset, test: Dataset, ending: str = ".txt"
) -> tuple[Path, Path]:
    """Save both sets in a directory, in the format of the extension, and return their paths."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / f"train{ending}", folder / f"test{ending}"
    for dataset, path in zip((train, test), paths, strict=True):
        save_data(dataset, path)
    return paths


def draw(
    rows: int,
    features: int,
    labels: int,
    labels_per_row: float,
    features_per_row: float,
    seed: int,
    test_rows: int | None,
) -> tuple[World, Iterator[tuple[Counts, Counts]], Iterator[tuple[Counts, Counts]]]:
    """Draw a world, and the words and labels of its training and test rows, in batches.

    The arguments are those of `generate`.
    """
    if min(rows, features, labels) < 1 or max(features, labels) >= 2**31 - 1:
        raise DataError("rows, features and labels must be at least 1, and ids fit 31 bits")
    if not (0 <= labels_per_row <= _MOST_PER_ROW and 1 <= features_per_row <= _MOST_PER_ROW):
        raise DataError(
            f"labels_per_row is {labels_per_row} and features_per_row {features_per_row}; "
            f"expected at least 0 and 1, and at most {_MOST_PER_ROW}"
        )
    if seed < 0:
        raise DataError(f"seed is {seed}; expected at least 0")
    world = _make_world(features, labels, np.random.default_rng([seed, 0]))

    def chunks(part: int, n_rows: int) -> Iterator[tuple[Counts, Counts]]:
        for begin in range(0, n_rows, _ROWS_AT_A_TIME):
            size = min(_ROWS_AT_A_TIME, n_rows - begin)
            rng = np.random.default_rng([seed, part, begin])
            yield _draw_rows(world, size, labels_per_row, features_per_row, rng)

    return world, chunks(1, rows), chunks(2, rows // 5 if test_rows is None else test_rows)


def _make_world(n_features: int, n_labels: int, rng: np.random.Generator) -> World:
    n_topics = max(1, round(n_labels**0.5))
    topics = np.sort(rng.integers(0, n_topics, n_labels, dtype=np.int32))
    weights = (rng.permutation(n_labels) + 3.0) ** -_LABEL_EXPONENT
    word_weights = (np.arange(n_features) + 3.0) ** -_WORD_EXPONENT
    word_ids = rng.permutation(n_features).astype(np.int32)
    return World(
        label_ids=rng.permutation(n_labels).astype(np.int32),
        label_cdf=np.append(0, np.cumsum(weights / weights.sum())),
        label_topics=topics,
        topic_starts=np.searchsorted(topics, np.arange(n_topics + 1)),
        label_words=_vocabulary(word_ids, (n_labels, _WORDS_PER_LABEL), rng),
        topic_words=_vocabulary(word_ids, (n_topics, _WORDS_PER_TOPIC), rng),
        word_ids=word_ids,
        word_cdf=np.append(0, np.cumsum(word_weights / word_weights.sum())),
    )


def _vocabulary(
    word_ids: NDArray[np.int32], shape: tuple[int, int], rng: np.random.Generator
) -> NDArray[np.int32]:
    """Draw words for labels or topics, without the most frequent and favoring frequent ones."""
    n_words = len(word_ids)
    stop_words = min(50, n_words // 20)
    ranks = stop_words + (n_words - stop_words) * rng.random(shape) ** 1.5
    return word_ids[np.minimum(ranks.astype(np.int64), n_words - 1)]


def _draw_rows(
    world: World,
    n_rows: int,
    labels_per_row: float,
    features_per_row: float,
    rng: np.random.Generator,
) -> tuple[Counts, Counts]:
    """Draw words and labels of some rows."""
    n_labels = len(world.label_ids)
    if labels_per_row >= 1:
        label_counts = 1 + rng.poisson(labels_per_row - 1, n_rows)
    else:
        label_counts = (rng.random(n_rows) < labels_per_row).astype(np.int64)
    main = _pick(world.label_cdf, rng.random(n_rows))
    row_topics = world.label_topics[main]

    # A row's own labels: the main one, then further ones from its topic or from all labels.
    owners = np.repeat(np.arange(n_rows), label_counts)
    starts = np.cumsum(label_counts) - label_counts
    low, high = np.zeros(len(owners)), np.ones(len(owners))
    inside = rng.random(len(owners)) < _SAME_TOPIC
    topics = row_topics[owners[inside]]
    low[inside] = world.label_cdf[world.topic_starts[topics]]
    high[inside] = world.label_cdf[world.topic_starts[topics + 1]]
    drawn = _pick(world.label_cdf, low + (high - low) * rng.random(len(owners)))
    drawn[starts[label_counts > 0]] = main[label_counts > 0]
    for _ in range(2):  # a label that a row already has is replaced by any other
        again = np.ones(len(owners), bool)
        again[np.unique(owners * n_labels + drawn, return_index=True)[1]] = False
        drawn[again] = _pick(world.label_cdf, rng.random(np.count_nonzero(again)))

    # Words are drawn with repetition: about a fifth of them are repeated.
    lengths = rng.lognormal(np.log(1.22 * features_per_row) - 0.08, 0.4, n_rows)
    word_counts = np.maximum(1, lengths.astype(np.int64))
    rows = np.repeat(np.arange(n_rows), word_counts)
    vague = rng.random(n_rows) < _VAGUE_ROWS
    of_label = np.where(vague, _VAGUE_LABEL_WORDS, _LABEL_WORDS)
    of_label[label_counts == 0] = 0
    source = rng.random(len(rows))
    from_label = source < of_label[rows]
    from_topic = ~from_label & (source < of_label[rows] + _TOPIC_WORDS)
    words = world.word_ids[_pick(world.word_cdf, rng.random(len(rows)))]

    at = rows[from_label]
    which = starts[at] + (rng.random(len(at)) * label_counts[at]).astype(np.int64)
    # Squares favor the first words of a vocabulary: a label has one or two that nearly always
    # occur.
    place = (rng.random(len(at)) ** 2 * _WORDS_PER_LABEL).astype(np.int64)
    words[from_label] = world.label_words[drawn[which], place]
    at = rows[from_topic]
    place = (rng.random(len(at)) ** 2 * _WORDS_PER_TOPIC).astype(np.int64)
    words[from_topic] = world.topic_words[row_topics[at], place]
    return (
        _counted(rows, words, n_rows, len(world.word_ids)),
        _counted(owners, world.label_ids[drawn], n_rows, n_labels),
    )


def _pick(cdf: NDArray[np.float64], u: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the interval of a cumulative distribution, starting with 0, for each number."""
    return np.clip(np.searchsorted(cdf, u, side="right") - 1, 0, len(cdf) - 2)


def _counted(rows: NDArray[np.int64], ids: NDArray[np.int32], n_rows: int, n_ids: int) -> Counts:
    keys, occurrences = np.unique(rows * n_ids + ids, return_counts=True)
    indptr = np.append(0, np.cumsum(np.bincount(keys // n_ids, minlength=n_rows)))
    numbers = np.minimum(occurrences, 255).astype(np.uint8)
    return csr_on(numbers, (keys % n_ids).astype(np.int32), indptr, (n_rows, n_ids))


def _values(words: Counts, idf: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute tf-idf, rounded to four decimals as is usual in such files."""
    tf = (1 + np.log(np.arange(1, 257))).astype(np.float32)
    values = np.empty(words.nnz, np.float32)
    for begin in range(0, len(values), 1 << 20):
        part = slice(begin, begin + (1 << 20))
        values[part] = tf[words.data[part] - 1] * idf[words.indices[part]]
        np.round(values[part], 4, out=values[part])
    return values


def generate_text(
    rows: int,
    labels: int,
    features: int = 20_000,
    labels_per_row: float = 3.0,
    features_per_row: float = 42,
    seed: int = 0,
    test_rows: int | None = None,
) -> tuple[Iterator[TextRow], Iterator[TextRow]]:
    """Generate training and test rows ``(text, label names)`` from the same distribution.

    They are generated on demand, so there may be more than fit in memory. A row has the words of
    the same row of `generate` with the same arguments, as often as they occur there, in some order.
    """
    world, train, test = draw(
        rows, features, labels, labels_per_row, features_per_row, seed, test_rows
    )
    words = _words(world)
    names = _label_names(world, words)
    return _texts(train, words, names, [seed, 3]), _texts(test, words, names, [seed, 4])


def write_text(
    directory: str | os.PathLike[str], train: Iterable[TextRow], test: Iterable[TextRow]
) -> tuple[Path, Path]:
    """Save both sets in a directory as ``train.jsonl`` and ``test.jsonl``; return their paths."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "train.jsonl", folder / "test.jsonl"
    for rows, path in zip((train, test), paths, strict=True):
        with whole_file(path) as file:
            for text, names in rows:
                file.write(json.dumps({"text": text, "labels": names}).encode() + b"\n")
    return paths


def _words(world: World) -> NDArray[Any]:
    """Return a unique word for each feature id."""
    n_words = len(world.word_ids)
    words = np.empty(n_words, object)
    rank, syllables = 0, 1
    while rank < n_words:
        count = len(_SYLLABLES) ** syllables * len(_ENDS)
        # A step that is coprime with the count visits every word once, and words of adjacent rank
        # do not sound alike.
        step = next(s for s in range(int(count * 0.618), count) if math.gcd(s, count) == 1)
        for place in range(min(count, n_words - rank)):
            words[world.word_ids[rank + place]] = _spell(place * step % count, syllables)
        rank, syllables = rank + count, syllables + 1
    return words


def _spell(number: int, syllables: int) -> str:
    number, end = divmod(number, len(_ENDS))
    parts = [_ENDS[end]]
    for _ in range(syllables):
        number, syllable = divmod(number, len(_SYLLABLES))
        parts.append(_SYLLABLES[syllable])
    return "".join(reversed(parts))


def _label_names(world: World, words: NDArray[Any]) -> list[str]:
    """Return a name for each label id: its topic's first word and its first unused own word.

    If there are too few words for all labels, the id makes the name unique.
    """
    names = [""] * len(world.label_ids)
    taken = set()
    for label, topic, own in zip(
        world.label_ids.tolist(),
        words[world.topic_words[world.label_topics, 0]],
        words[world.label_words],
        strict=True,
    ):
        free = (f"{topic}/{word}" for word in own if word != topic)
        name = next((name for name in free if name not in taken), f"{topic}/{own[0]}-{label}")
        taken.add(name)
        names[label] = name
    return names


def _texts(
    chunks: Iterable[tuple[Counts, Counts]], words: NDArray[Any], names: list[str], seed: list[int]
) -> Iterator[TextRow]:
    for chunk, (counts, positives) in enumerate(chunks):
        n_rows = counts.shape[0]
        rows = np.repeat(np.repeat(np.arange(n_rows), np.diff(counts.indptr)), counts.data)
        word_ids = np.repeat(counts.indices, counts.data)
        rng = np.random.default_rng([*seed, chunk])
        word_ids = word_ids[np.lexsort((rng.random(len(rows)), rows))]
        ends = np.cumsum(np.bincount(rows, minlength=n_rows))
        for row, own in enumerate(np.split(words[word_ids], ends[:-1])):
            begin, last = positives.indptr[row : row + 2]
            labels = positives.indices[begin:last].tolist()
            yield " ".join(own.tolist()).capitalize() + ".", [names[label] for label in labels]
