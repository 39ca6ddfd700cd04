"""Random numbers → synthetic texts with label names.

The rows are those of `synthetic.generate`, with a word for every feature and a name for every
label. Words are made up but pronounceable, and more frequent words are shorter. A label is named
after its topic and a word of its own, ``ravol/bimer``, so its name shows the words that are
decisive for it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dismec.data.files import whole_file
from dismec.data.synthetic import Counts, World, draw

__all__ = ["generate_text", "write_text"]

TextRow: TypeAlias = tuple[str, list[str]]

_SYLLABLES = [consonant + vowel for vowel in "aeiou" for consonant in "bdflmnrtvz"]
_ENDS = ["", "n", "r", "l", "s"]


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
    the same row of `generate` with the same arguments, as often as they occur there, in some order;
    the division into sentences has no meaning.
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
    capitals = np.array([word.capitalize() for word in words.tolist()], object)
    for chunk, (counts, positives) in enumerate(chunks):
        rng = np.random.default_rng([*seed, chunk])
        lengths, word_ids, starts, breaks = _sentences(counts, rng)
        pieces = np.where(starts, capitals[word_ids], words[word_ids])
        pieces += np.array([" ", ", ", ". "], object)[breaks]
        ends, label_ends = np.cumsum(lengths), np.cumsum(positives.lengths)
        row_ends = (ends, lengths, label_ends, positives.lengths)
        for end, length, label_end, n_labels in np.column_stack(row_ends).tolist():
            labels = positives.features[label_end - n_labels : label_end].tolist()
            text = "".join(pieces[end - length : end].tolist())
            yield text.rstrip(), [names[label] for label in labels]


def _sentences(
    counts: Counts, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.bool_], NDArray[np.int64]]:
    """Return words per row and, for each word, its id, whether it starts a sentence, what follows.

    The last is 0 for nothing, 1 for a comma, 2 for a full stop.
    """
    n_rows = len(counts.lengths)
    rows = np.repeat(np.repeat(np.arange(n_rows), counts.lengths), counts.occurrences)
    word_ids = np.repeat(counts.features, counts.occurrences)
    word_ids = word_ids[np.lexsort((rng.random(len(rows)), rows))]
    lengths = np.bincount(rows, minlength=n_rows)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    left = lengths[rows] - 1 - place
    sentence = rng.integers(7, 14, n_rows)[rows]
    within = place % sentence
    stop = ((within == sentence - 1) & (left >= 3)) | (left == 0)
    comma = (within == sentence // 2) & (left >= 2) & ~stop & (rng.random(len(rows)) < 0.6)
    starts = np.roll(stop, 1)  # the very last word also ends a sentence
    return lengths, word_ids, starts, np.where(stop, 2, comma.astype(np.int64))
